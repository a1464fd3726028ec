# SPDX-License-Identifier: GPL-2.0-or-later
"""What pci-aer's checks take for true, and what not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstall.evidence import Evidence, WorkloadResult, records

ROOT, EP0, SOURCE = "0000:00:10.0", "0000:03:00.0", 0x300
CORRECTABLE, NONFATAL = 2, 0
ADVISORY, UNSUPPORTED = 0x2000, 0x100000
#: What a device comes with: internal errors, overflows of its log, advisory errors.
MASKED, ALLOWED = 0xE000, 0xC000

TOTALS = {"correctable NonFatalErr": 1, "correctable TOTAL_ERR_COR": 1}
TWICE = TOTALS | {"nonfatal UnsupReq": 1, "nonfatal TOTAL_ERR_NONFATAL": 1}


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/pci-aer/checks.py"
    spec = importlib.util.spec_from_file_location("pci_aer_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch().context() as patch:
        # Its dataclasses look for it there.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def _evidence(
    place: Path, reports: int, mask: int, left: int, counted: dict[str, int]
) -> Evidence:
    """One message before the first ``reports`` of what a kernel can make of it."""
    folder = place / "advisory"
    folder.mkdir()
    fact = {
        "what": "turn",
        "name": "ep0-advisory",
        "thread": 36,
        "began_ns": 0,
        "ended_ns": 100,
        "grown": {"root": {"total_err_cor": 1}, "ep0": counted},
        "sources": {"root": 0x80, "ep0": SOURCE},
        "addresses": {"root": ROOT, "ep0": EP0},
        "mask": mask,
        "left": left,
    }
    (folder / "stdout").write_text(json.dumps(fact))
    told: list[tuple[str, dict[str, Any]]] = [
        ("ras:aer_event", {"dev_name": EP0, "severity": kind, "status": status})
        for kind, status in [(CORRECTABLE, ADVISORY), (NONFATAL, UNSUPPORTED)][:reports]
    ]
    registers = {"root_status": 1, "err_src": SOURCE}
    message = {"port_name": ROOT, "domain": 0, "dropped": 0} | registers
    told.insert(0, ("pci:pcie_aer_msg", message))
    records = [
        {
            "event": event,
            "ts": at,
            "cpu": 0,
            "pid": 36,
            "tgid": 36,
            "comm": "irq",
            "fields": fields,
        }
        for at, (event, fields) in enumerate(told, 1)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "record.jsonl").write_text(lines)
    load = WorkloadResult("advisory", folder, {}, {})
    return Evidence(place, {}, {"advisory": load}, {})


NEVERTHELESS = "ERR_NONFATAL counted for the device nevertheless"
BEFORE = "ERR_NONFATAL counted for the device by a kernel before 7.3"
LEFT = "uncorrectable status left"
REPORTS = "advisory: ep0-advisory: aer_event"


@pytest.mark.parametrize(
    ("reports", "mask", "left", "counted", "wrong"),
    [
        # Since 7.3 the kernel allows them, looks into them, and clears what it found.
        (2, ALLOWED, 0, TWICE, set()),
        # Before, it does not know of them.
        (1, MASKED, UNSUPPORTED, TOTALS, set()),
        # One that did only the half of either.
        (1, ALLOWED, UNSUPPORTED, TOTALS, {REPORTS, NEVERTHELESS, LEFT}),
        (2, MASKED, 0, TWICE, {REPORTS, BEFORE, LEFT}),
        (1, ALLOWED, 0, TWICE, {REPORTS}),
        (2, MASKED, UNSUPPORTED, TOTALS, {REPORTS}),
        (2, ALLOWED, UNSUPPORTED, TWICE, {LEFT}),
        (2, ALLOWED, 0, TOTALS, {NEVERTHELESS}),
        (1, MASKED, UNSUPPORTED, TWICE, {BEFORE}),
    ],
)
def test_an_advisory_error(
    checks: ModuleType,
    tmp_path: Path,
    reports: int,
    mask: int,
    left: int,
    counted: dict[str, int],
    wrong: set[str],
) -> None:
    saved = _evidence(tmp_path, reports, mask, left, counted)
    verdict = checks.advisory_error_is_one_message(saved)
    assert {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    } == wrong


# -- the invariants, held against turns that are made up


_COMMON = """\
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;
"""
_FORMATS = (
    ("pcie_aer_msg", '"%s root_status:0x%08x (%s), err_src:0x%08x, dropped:%u", '
     "__get_str(port_name), REC->root_status, a(1), REC->err_src, REC->dropped"),
    ("irq_handler_entry", '"irq=%d name=%s", REC->irq, __get_str(name)'),
    ("irq_handler_exit", '"irq=%d ret=%s", REC->irq, '
     'REC->ret ? "handled" : "unhandled"'),
)  # fmt: skip
LAYOUTS = {
    name: records.parse_layout(
        f"name: {name}\nID: {number}\nformat:\n{_COMMON}\nprint fmt: {fmt}\n", "any"
    )
    for number, (name, fmt) in enumerate(_FORMATS, 1)
}


def _turns(place: Path, turns: list[dict[str, Any]]) -> Evidence:
    """Turns of "multi", 0.1 ms each, with what was recorded in them."""
    folder = place / "multi"
    folder.mkdir()
    facts, records, lines = [], [], []
    for number, turn in enumerate(turns):
        began = 100_000 * number
        facts.append(
            {
                "what": "turn",
                "name": turn.get("name", "two-devices"),
                "thread": 36,
                "began_ns": began,
                "ended_ns": began + 99_000,
                "grown": {"root": turn.get("grown", {})},
                "rest": turn.get("rest", [0, SOURCE]),
                "sources": {"root": 0x80, "ep0": SOURCE},
                "addresses": {"root": ROOT, "ep0": EP0},
            }
        )
        for at, (event, fields) in enumerate(turn["told"], 1):
            record = {"event": event, "ts": began + 1000 * at, "cpu": 0, "pid": 36}
            records.append(record | {"tgid": 36, "comm": "irq", "fields": fields})
        for at, line in enumerate(turn.get("traced", ()), 1):
            stamp = f"{(began + 1000 * at) / 1e9:.6f}"
            lines.append(f"     irq-36      [000] ..... {stamp}: {line}")
    (folder / "stdout").write_text("\n".join(map(json.dumps, facts)))
    (folder / "record.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    (folder / "trace.txt").write_text("".join(f"{line}\n" for line in lines))
    load = WorkloadResult("multi", folder, LAYOUTS, {})
    return Evidence(place, {}, {"multi": load}, {})


def message(status: int, senders: int, full: int = 0) -> tuple[str, dict[str, Any]]:
    registers = {"root_status": status, "err_src": senders, "dropped": full}
    return "pci:pcie_aer_msg", {"port_name": ROOT, "domain": 0} | registers


def report(severity: int) -> tuple[str, dict[str, Any]]:
    return "ras:aer_event", {"dev_name": EP0, "severity": severity, "status": 1}


def _wrong(
    checks: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    saved: Evidence,
) -> set[str]:
    monkeypatch.setattr(checks, "_WORKLOADS", ("multi",))
    verdict = getattr(checks, check)(saved)
    return {
        comparison.label.partition(": two-devices")[2]
        for comparison in verdict.comparisons
        if not comparison.ok
    }


@pytest.mark.parametrize(
    ("turns", "wrong"),
    [
        ([{"told": [message(0x1, SOURCE)]}], set()),
        # Who sent it is not who the register says it was.
        ([{"told": [message(0x1, 0x400)]}], {": err_src"}),
        # The number of the interrupt stays.
        (
            [{"told": [message(0x08000001, SOURCE)], "rest": [0x08000000, SOURCE]}],
            set(),
        ),
        ([{"told": [message(0x08000001, SOURCE)]}], {": the rest"}),
        # A half that no message came for is as the last one has left it.
        (
            [
                {"told": [message(0x24, 0x500 << 16)], "rest": [0, 0x500 << 16]},
                {
                    "told": [message(0x1, 0x500 << 16 | SOURCE)],
                    "rest": [0, 0x500 << 16 | SOURCE],
                },
            ],
            set(),
        ),
        (
            [
                {"told": [message(0x24, 0x500 << 16)], "rest": [0, 0x500 << 16]},
                {"told": [message(0x1, SOURCE)]},
            ],
            {": halves that changed without a message"},
        ),
    ],
)
def test_registers(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    turns: list[dict[str, Any]],
    wrong: set[str],
) -> None:
    saved = _turns(tmp_path, turns)
    assert _wrong(checks, monkeypatch, "registers_are_the_ports", saved) == wrong


@pytest.mark.parametrize(
    ("told", "grown", "good"),
    [
        ([message(0x1, SOURCE)], {"total_err_cor": 1}, True),
        ([message(0x25, SOURCE)], {"total_err_cor": 1, "total_err_nonfatal": 1}, True),
        # Of both kinds in one record the kernel counts the worse one only.
        ([message(0x6C, 0)], {"total_err_fatal": 1}, True),
        ([message(0x6C, 0)], {"total_err_fatal": 1, "total_err_nonfatal": 1}, False),
        ([message(0x1, SOURCE, full=1)], {}, True),
        ([message(0x1, SOURCE, full=1)], {"total_err_cor": 1}, False),
        # One that is counted and not told.
        ([], {"total_err_cor": 1}, False),
        # Of what the hardware has merged nobody knows how much it was.
        ([message(0x2, SOURCE)], {}, True),
    ],
)
def test_totals(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: list[tuple[str, dict[str, Any]]],
    grown: dict[str, int],
    good: bool,
) -> None:
    saved = _turns(tmp_path, [{"told": told, "grown": grown}])
    wrong = _wrong(checks, monkeypatch, "messages_are_the_root_ports_totals", saved)
    assert (not wrong) == good


@pytest.mark.parametrize(
    ("told", "good"),
    [
        ([message(0x1, SOURCE), report(CORRECTABLE)], True),
        ([report(CORRECTABLE), message(0x1, SOURCE)], False),
        ([message(0x24, SOURCE), report(CORRECTABLE)], False),
        ([message(0x25, SOURCE), report(CORRECTABLE), report(NONFATAL)], True),
    ],
)
def test_reports(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: list[tuple[str, dict[str, Any]]],
    good: bool,
) -> None:
    saved = _turns(tmp_path, [{"told": told}])
    wrong = _wrong(checks, monkeypatch, "reports_follow_messages", saved)
    assert (not wrong) == good


LINE = (
    f"pcie_aer_msg: {ROOT} root_status:0x00000003 (COR|MULTI_COR), "
    f"err_src:0x{SOURCE:08x}, dropped:0"
)


@pytest.mark.parametrize(
    ("line", "good"),
    [
        (LINE, True),
        (LINE.replace(f"0x{SOURCE:08x}", "0x00000400"), False),
        (LINE.replace(f"0x{SOURCE:08x}", f"0x{SOURCE << 16:08x}"), False),
        (LINE.replace("MULTI_COR", "UNCOR"), False),
        (LINE.replace("COR|MULTI_COR", "COR"), False),
        (LINE.replace("dropped:0", "dropped:2"), False),
    ],
)
def test_text(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    good: bool,
) -> None:
    saved = _turns(tmp_path, [{"told": [message(0x3, SOURCE)], "traced": [line]}])
    wrong = _wrong(checks, monkeypatch, "text_names_the_sender", saved)
    assert (not wrong) == good


ENTRY = "irq_handler_entry: irq=25 name=aerdrv"
EXIT = "irq_handler_exit: irq=25 ret=handled"


@pytest.mark.parametrize(
    ("traced", "wrong"),
    [
        ([ENTRY, LINE, EXIT], set()),
        (
            [ENTRY, EXIT.replace("handled", "unhandled"), ENTRY, LINE, EXIT],
            set(),
        ),
        ([LINE, ENTRY, LINE, EXIT], {"outside of the handler"}),
        ([ENTRY, LINE, LINE, EXIT], {"calls with another number of records"}),
        (
            [ENTRY, EXIT, ENTRY, LINE, EXIT],
            {"calls with another number of records"},
        ),
        (
            [ENTRY, LINE, EXIT.replace("handled", "unhandled")],
            {"calls with another number of records", "calls that found something"},
        ),
    ],
)
def test_the_interrupt(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    traced: list[str],
    wrong: set[str],
) -> None:
    saved = _turns(tmp_path, [{"told": [], "traced": traced}])
    monkeypatch.setattr(checks, "_WORKLOADS", ("multi",))
    verdict = checks.reported_by_the_interrupt(saved)
    bad = {
        comparison.label.partition(": ")[2]
        for comparison in verdict.comparisons
        if not comparison.ok
    }
    assert bad == wrong
