# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of fixes fail where they have to, also those that the base kernel passes."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstall.evidence import Event, Evidence, WorkloadResult
from kstall.verdict import run_check

MS = 1_000_000
PAGE = 4096

Lines = list[dict[str, Any]]


def _checks(project_root: Path, name: str) -> ModuleType:
    path = project_root / "patches" / name / "checks.py"
    spec = importlib.util.spec_from_file_location(f"checks_of_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for it there.
    with pytest.MonkeyPatch().context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def _load(
    place: Path, name: str, text: str, events: tuple[Event, ...] = ()
) -> WorkloadResult:
    folder = place / name
    folder.mkdir()
    (folder / "stdout").write_text(text)
    load = WorkloadResult(name, folder, {}, {"exit_status": 0})
    load.__dict__["_traced"] = events
    return load


def _said(lines: Lines) -> str:
    return "\n".join(map(json.dumps, lines))


def _wrong(verdict: Any) -> list[str]:
    assert verdict.comparisons
    return [comparison.label for comparison in verdict.comparisons if not comparison.ok]


# -- iommu-lazy -----------------------------------------------------------------------


def _reads() -> Lines:
    """Four requests of two pages each, of each kind, first lazy and then strict."""
    lines: Lines = []
    waits, entered, taken, freed, flushed = [], [], [], [], []
    begin = 0
    for kind in ("DMA-FQ", "DMA"):
        for name in ("small", "scattered", "adjacent"):
            facts: dict[str, Any] = {"type": kind, "begin_ns": begin * MS}
            facts |= {"end_ns": (begin + 900) * MS}
            facts |= {"bytes": 8 * PAGE, "sectors": 64, "requests": 4, "runs": [2] * 4}
            lines.append({"what": "phase", "name": name} | facts)
            for number in range(1, 5):
                at = (begin + number) * 1000
                taken.append((at, 2))
                # By a queue all at once, and later.
                freed.append((at + 5 if kind == "DMA" else (begin + 20) * 1000, 2))
                entered.append((at + 1, "dma_iova_destroy"))
                if kind == "DMA":
                    waits.append(
                        (at + 1, "disk", at + 2, at + 3, at + 4, at + 5, 0, 0, 0)
                    )
            if kind == "DMA-FQ":
                flushed.append((begin + 20) * 1000 - 9)
            begin += 1000
    lines.append({"what": "probes", "waits": waits, "entered": entered})
    lines.append({"what": "iovas", "taken": taken, "freed": freed, "flushed": flushed})
    return lines


def _iommu(place: Path, lines: Lines) -> Evidence:
    events = tuple(
        Event(
            int(line["begin_ns"]) + number * MS, 0, 1, "x", "iommu", "unmap",
            {"unmapped_size": 2 * PAGE},
        )
        for line in lines
        if line["what"] == "phase"
        for number in range(4)
    )  # fmt: skip
    load = _load(place, "disk-both", _said(lines), events)
    return Evidence(place, {}, {load.name: load}, {})


def _waits_once(lines: Lines) -> None:
    lines[-2]["waits"].append((1001000, "disk", 0, 0, 1001000, 1001009, 0, 0, 0))


def _never_waits(lines: Lines) -> None:
    lines[-2]["waits"] = []


def _keeps_one(lines: Lines) -> None:
    lines[-1]["freed"].pop(5)


def _frees_what_was_mapped(lines: Lines) -> None:
    lines[-1]["freed"] = [(at, 1) for at, _ in lines[-1]["freed"]]


def _frees_at_once(lines: Lines) -> None:
    """A lazy domain's large requests, with nothing in the queue and so no flush."""
    iovas = lines[-1]
    iovas["freed"][4:8] = [(at + 3, pages) for at, pages in iovas["taken"][4:8]]
    del iovas["flushed"][1]


def _frees_one_at_once(lines: Lines) -> None:
    iovas = lines[-1]
    iovas["freed"][4] = (iovas["taken"][4][0] + 3, 2)


def _in_one_piece(lines: Lines) -> None:
    lines[1]["runs"] = [1] * 4


EARLY = "nothing_is_freed_before_an_invalidation"
WITHOUT = "IOVAs freed without an invalidation"
EACH = [
    f"{k}, {n}" for k in ("DMA-FQ", "DMA") for n in ("small", "scattered", "adjacent")
]


@pytest.mark.parametrize(
    ("change", "check", "wrong"),
    [
        (None, "", []),
        (_waits_once, "nothing_waits_in_lazy_mode", ["scattered: waits for the IOMMU"]),
        (_in_one_piece, "nothing_waits_in_lazy_mode", ["scattered: pieces, least"]),
        (
            _never_waits,
            "strict_mode_waits",
            [
                f"{name}: waits for the IOMMU"
                for name in ("small", "scattered", "adjacent")
            ],
        ),
        (_keeps_one, "each_iova_is_freed", ["DMA-FQ, scattered: pages freed"]),
        (
            _frees_what_was_mapped,
            "each_iova_is_freed",
            [f"{where}: pages freed" for where in EACH],
        ),
        (_frees_at_once, EARLY, [f"DMA-FQ, scattered: {WITHOUT}"]),
        (_frees_one_at_once, EARLY, [f"DMA-FQ, scattered: {WITHOUT}"]),
    ],
)
def test_a_disk_in_a_lazy_domain(
    project_root: Path,
    tmp_path: Path,
    change: Callable[[Lines], None] | None,
    check: str,
    wrong: list[str],
) -> None:
    checks = _checks(project_root, "iommu-lazy")
    lines = _reads()
    if change is not None:
        change(lines)
    evidence = _iommu(tmp_path, lines)
    for name in (
        "nothing_waits_in_lazy_mode",
        "strict_mode_waits",
        "each_iova_is_freed",
        EARLY,
    ):
        labels = _wrong(getattr(checks, name)(evidence))
        expected = wrong if name == check else []
        if change is _never_waits and name == EARLY:
            # A strict domain has no queue that is flushed instead.
            expected = [f"DMA, scattered: {WITHOUT}"]
        assert labels == expected, name


# -- iommu-fq -------------------------------------------------------------------------

CALM = {"type": "DMA-FQ", "flushes": 9, "inside": 0, "taken": 300, "freed": 300}


@pytest.mark.parametrize(
    ("change", "unmapped", "wrong", "status"),
    [
        ({}, 300, [], "pass"),
        ({"freed": 299}, 300, ["IOVAs freed"], "fail"),
        ({"type": "DMA"}, 300, ["type of the group"], "fail"),
        ({"flushes": 4}, 300, ["flushes"], "error"),
        ({"taken": 99, "freed": 99}, 99, ["IOVAs taken"], "error"),
        ({"taken": 99, "freed": 98}, 99, ["IOVAs taken", "IOVAs freed"], "fail"),
        ({}, 301, ["IOVAs unmapped"], "fail"),
    ],
)
def test_a_calm_flush_queue(
    project_root: Path,
    tmp_path: Path,
    change: dict[str, Any],
    unmapped: int,
    wrong: list[str],
    status: str,
) -> None:
    event = Event(1, 0, 1, "x", "iommu", "unmap", {})
    load = _load(tmp_path, "calm", _said([CALM | change]), (event,) * unmapped)
    evidence = Evidence(tmp_path, {}, {"calm": load}, {})
    checks = _checks(project_root, "iommu-fq")
    judge = checks.nothing_is_lost_when_calm
    assert _wrong(judge(evidence)) == wrong
    assert run_check("it", "positive", "", judge, evidence).status == status


@pytest.mark.parametrize(
    ("inside", "freed", "status"), [(5, 300, "pass"), (5, 44, "fail"), (4, 44, "error")]
)
def test_a_crowd_that_was_none_is_no_verdict(
    project_root: Path, tmp_path: Path, inside: int, freed: int, status: str
) -> None:
    facts = CALM | {"inside": inside, "freed": freed}
    load = _load(tmp_path, "crowd", _said([facts]))
    checks = _checks(project_root, "iommu-fq")
    evidence = Evidence(tmp_path, {}, {"crowd": load}, {})
    verdict = checks.nothing_is_lost_when_crowded(evidence)
    assert bool(verdict.undecided) is (status == "error")
    if status != "error":
        assert _wrong(verdict) == ([] if status == "pass" else ["IOVAs freed"])


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"early": 1}, ["IOVAs freed without a whole flush"]),
        ({"whole": 149}, ["IOVAs whose unmapping was seen"]),
        ({"domains": 2}, ["domains"]),
        ({"type": "DMA"}, ["type of the group"]),
        # Nobody flushed in the course of another flush: no verdict, unless IOVAs were
        # freed too early for that.
        ({"inside": 4}, None),
        ({"inside": 4, "early": 1}, ["IOVAs freed without a whole flush"]),
    ],
)
def test_an_iova_is_freed_after_a_whole_flush(
    project_root: Path,
    tmp_path: Path,
    change: dict[str, Any],
    wrong: list[str] | None,
) -> None:
    facts = CALM | {"inside": 5, "early": 0, "whole": 300, "domains": 1} | change
    load = _load(tmp_path, "crowd", _said([facts]))
    checks = _checks(project_root, "iommu-fq")
    evidence = Evidence(tmp_path, {}, {"crowd": load}, {})
    verdict = checks.nothing_is_freed_early(evidence)
    assert bool(verdict.undecided) is (wrong is None)
    if wrong is not None:
        assert _wrong(verdict) == wrong
    check = run_check("it", "positive", "", checks.nothing_is_freed_early, evidence)
    unsure = wrong in (None, ["IOVAs whose unmapping was seen"])
    assert check.status == ("error" if unsure else "fail" if wrong else "pass")


# -- pci-aer-overflow -----------------------------------------------------------------

BEHIND: Lines = [
    {"name": name, "errors": [0] * (260 + len(senders)), "taken": 0}
    | {"grown": {"root": {"total_err_cor": 128}}, "recovered": len(senders)}
    | {"began_ns": number * MS, "ended_ns": number * MS + 9}
    | {"addresses": {"ep2": "0000:06:00.0", "root": "0000:00:11.0"}}
    | {"left": {"ep2": 0, "root": 0}}
    for number, (name, senders) in enumerate(
        (
            ("one", ["ep2"]),
            ("two", ["ep2", "root"]),
            ("fatal", ["ep2"]),
            ("both", ["ep2"]),
        )
    )
]
BEHIND[3]["grown"] = {"root": {"total_err_cor": 129}}
BEHIND_SAW = (
    (0, "0000:06:00.0", 0, 0x4000),
    (1, "0000:06:00.0", 0, 0x4000),
    (1, "0000:00:11.0", 0, 0x4000),
    (2, "0000:06:00.0", 1, 0),
    (3, "0000:06:00.0", 0, 0x4000),
)


@pytest.mark.parametrize(
    ("turn", "change", "lost", "wrong"),
    [
        (0, {}, None, []),
        (0, {"recovered": 0}, None, ["one: recovered"]),
        (1, {"recovered": 1}, 2, ["two: aer_event", "two: recovered"]),
        (2, {"recovered": 0}, 3, ["fatal: aer_event", "fatal: recovered"]),
        (2, {"left": {"ep2": 16}}, None, ["fatal: status left"]),
        (1, {"taken": 1}, None, ["two: taken before the last"]),
        (0, {"errors": [0] * 129}, None, ["one: messages"]),
        # A larger FIFO that correctable errors may fill.
        (
            0,
            {"grown": {"root": {"total_err_cor": 256}}},
            None,
            ["one: correctable messages"],
        ),
        # No room for a record with a correctable error, whatever else it has.
        (
            3,
            {"grown": {"root": {"total_err_cor": 128}}, "recovered": 0},
            4,
            ["both: correctable messages", "both: aer_event", "both: recovered"],
        ),
    ],
)
def test_what_comes_behind_a_full_fifo(
    project_root: Path,
    tmp_path: Path,
    turn: int,
    change: dict[str, Any],
    lost: int | None,
    wrong: list[str],
) -> None:
    lines = copy.deepcopy(BEHIND)
    lines[turn] |= change
    events = tuple(
        Event(
            at * MS + 1, 0, 1, "x", "ras", "aer_event",
            {"dev_name": name, "severity": severity, "status": status},
        )
        for number, (at, name, severity, status) in enumerate(BEHIND_SAW)
        if number != lost
    )  # fmt: skip
    load = _load(tmp_path, "overflow", _said(lines))
    load.__dict__["_recorded"] = events
    checks = _checks(project_root, "pci-aer-overflow")
    evidence = Evidence(tmp_path, {}, {"overflow": load}, {})
    assert _wrong(checks.late_error_is_recovered(evidence)) == wrong


# -- pci-aer-fixes --------------------------------------------------------------------

OTHERS: Lines = [
    {"name": "two devices", "errors": [0] * 3, "left": [0, 0]}
    | {"grown": {"root": {"total_err_cor": 1, "correctable BadTLP": 1}}}
    | {"addresses": {"root": "0000:00:11.0", "ep2": "0000:06:00.0"}},
    {"name": "uncorrectable", "errors": [0], "left": [0]}
    | {"addresses": {"root": "0000:00:12.0", "switch": "0000:07:00.0"}},
]
OTHERS_SAW = (
    ("0000:00:11.0", 2, 0x40),
    ("0000:06:00.0", 2, 0x1),
    ("0000:07:00.0", 0, 0x4000),
)
RECOVERED = "pcieport 0000:00:12.0: device recovery successful\n"


@pytest.mark.parametrize(
    ("line", "change", "log", "saw", "wrong"),
    [
        (0, {}, RECOVERED, OTHERS_SAW, []),
        # The patch only handles what it has noted, of which there is nothing.
        (
            1,
            {"left": [0x4000]},
            "",
            OTHERS_SAW,
            ["uncorrectable status that is left", "recoveries"],
        ),
        # In each device, the bits that the first one reported are cleared.
        (
            0,
            {"left": [0, 0x41]},
            RECOVERED,
            OTHERS_SAW,
            ["correctable status that is left"],
        ),
        (
            0,
            {"errors": [0, 0, 22]},
            RECOVERED,
            OTHERS_SAW,
            ["errors that could not be injected"],
        ),
        (0, {}, RECOVERED, OTHERS_SAW[1:], ["aer_event"]),
        (
            0,
            {"grown": {"root": {"total_err_cor": 2}}},
            RECOVERED,
            OTHERS_SAW,
            ["messages of two"],
        ),
    ],
)
def test_what_is_handled_as_ever(
    project_root: Path,
    tmp_path: Path,
    line: int,
    change: dict[str, Any],
    log: str,
    saw: tuple[tuple[str, int, int], ...],
    wrong: list[str],
) -> None:
    lines = copy.deepcopy(OTHERS)
    lines[line] |= change
    load = _load(tmp_path, "others", _said(lines))
    load.__dict__["_recorded"] = _reports(saw)
    (tmp_path / "others" / "kmsg.txt").write_text(log)
    checks = _checks(project_root, "pci-aer-fixes")
    evidence = Evidence(tmp_path, {}, {"others": load}, {})
    assert _wrong(checks.others_are_handled(evidence)) == wrong


def _reports(saw: tuple[tuple[str, int, int], ...]) -> tuple[Event, ...]:
    return tuple(
        Event(
            number, 0, 1, "x", "ras", "aer_event",
            {"dev_name": name, "severity": severity, "status": status},
        )
        for number, (name, severity, status) in enumerate(saw)
    )  # fmt: skip


# -- pci-aer-inject -------------------------------------------------------------------

OVERRIDDEN: Lines = [
    {"errors": [0], "mask": 0xC041, "pending": 0xC040, "taken": 0, "after": 0xC041}
    | {"written": [], "uncor_written": []}
    | {"grown": {"root": {"total_err_cor": 1}, "ep2": {"correctable RxErr": 1}}},
    {"errors": [0], "mask": 0x414000, "pending": 0x410000, "taken": 0}
    | {"after": 0x414000}
    | {"grown": {"root": {"total_err_nonfatal": 1}, "switch": {"nonfatal CmpltTO": 1}}},
]
FORGOTTEN: Lines = [
    {"refusal": "EINVAL", "errors": [0], "grown": {"root": {}, "ep2": {}}},
    {"refusal": "EINVAL", "errors": [0], "grown": {"root": {}, "switch": {}}},
]


@pytest.mark.parametrize(
    ("line", "change", "saw", "wrong"),
    [
        (0, {}, (0x1, 0x4000), []),
        # All bits are unmasked while an error waits.
        (0, {"pending": 0}, (0x1, 0x4000), ["correctable: mask while it waits"]),
        # Masks of uncorrectable errors are not overridden.
        (
            1,
            {
                "pending": 0x414000,
                "grown": {"root": {"total_err_nonfatal": 1}, "switch": {}},
            },
            (0x1, None),
            [
                "uncorrectable: mask while it waits",
                "uncorrectable: status of aer_event",
                "uncorrectable: CmpltTO counted",
            ],
        ),
        (0, {"written": [0]}, (0x1, 0x4000), ["correctable mask written"]),
        (0, {"uncor_written": [0]}, (0x1, 0x4000), ["uncorrectable mask written"]),
        (1, {"taken": 1}, (0x1, 0x4000), ["uncorrectable: taken while it waits"]),
        (1, {"after": 0}, (0x1, 0x4000), ["uncorrectable: mask afterwards"]),
        (
            1,
            {"mask": 0x404000, "pending": 0x400000, "after": 0x404000},
            (0x1, 0x4000),
            ["uncorrectable: the mask has both"],
        ),
    ],
)
def test_masks_that_are_overridden(
    project_root: Path,
    tmp_path: Path,
    line: int,
    change: dict[str, Any],
    saw: tuple[int, int | None],
    wrong: list[str],
) -> None:
    verdict = _injected(
        project_root, tmp_path, "override", OVERRIDDEN, line, change, saw
    )
    assert _wrong(verdict) == wrong


@pytest.mark.parametrize(
    ("line", "change", "saw", "wrong"),
    [
        (0, {}, (0x40, 0x10000), []),
        (
            0,
            {"grown": {"root": {}, "ep2": {"correctable RxErr": 1}}},
            (0x41, 0x10000),
            ["correctable: status of aer_event", "correctable: RxErr counted"],
        ),
        # Only correctable errors are refused before they are kept.
        (
            1,
            {"grown": {"root": {}, "switch": {"nonfatal CmpltTO": 1}}},
            (0x40, 0x14000),
            ["uncorrectable: status of aer_event", "uncorrectable: CmpltTO counted"],
        ),
        (
            1,
            {"refusal": None},
            (0x40, 0x10000),
            ["uncorrectable: the first one"],
        ),
    ],
)
def test_errors_that_are_refused(
    project_root: Path,
    tmp_path: Path,
    line: int,
    change: dict[str, Any],
    saw: tuple[int, int],
    wrong: list[str],
) -> None:
    verdict = _injected(project_root, tmp_path, "refused", FORGOTTEN, line, change, saw)
    assert _wrong(verdict) == wrong


def _injected(
    project_root: Path,
    place: Path,
    name: str,
    lines: Lines,
    line: int,
    change: dict[str, Any],
    saw: tuple[int, int | None],
) -> Any:
    """The verdict if the statuses in aer_event are ``saw``, by kind of error."""
    lines = copy.deepcopy(lines)
    lines[line] |= change
    load = _load(place, name, _said(lines))
    kinds = (("0000:06:00.0", 2), ("0000:07:00.0", 0))
    load.__dict__["_recorded"] = _reports(
        tuple(
            (address, severity, status)
            for (address, severity), status in zip(kinds, saw, strict=True)
            if status is not None
        )
    )
    checks = _checks(project_root, "pci-aer-inject")
    judge = {
        "override": checks.overridden_error_is_reported,
        "refused": checks.refused_error_is_forgotten,
    }[name]
    return judge(Evidence(place, {}, {name: load}, {}))


# -- pci-aer-leaks --------------------------------------------------------------------

COPIES = [{"regs": 0x1000 * number} for number in range(4)]


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        ((104, 104, 104, 104), []),
        # Half of them as large as a pointer.
        ((104, 8, 104, 8), ["sizes freed"]),
        ((104, 104), ["copies freed", "queued and not freed"]),
    ],
)
def test_copies_of_registers(
    project_root: Path, tmp_path: Path, sizes: tuple[int, ...], wrong: list[str]
) -> None:
    freed = [one | {"size": size} for one, size in zip(COPIES, sizes, strict=False)]
    fact = {"what": "firmware", "taken": [True, True], "queued": COPIES, "freed": freed}
    load = _load(tmp_path, "unknown", _said([fact | {"address": "0000:01:00.0"}]))
    load.__dict__["_recorded"] = _reports((("0000:01:00.0", 2, 1),) * 2)
    (tmp_path / "unknown" / "kmsg.txt").write_text("no pci_dev found\n" * 2)
    checks = _checks(project_root, "pci-aer-leaks")
    evidence = Evidence(tmp_path, {}, {"unknown": load}, {})
    assert _wrong(checks.registers_are_freed(evidence)) == wrong


# -- mm-test-hmm ----------------------------------------------------------------------

CHUNK: Lines = [
    {"turn": name, "mapped": mapped, "offline_error": 0, "error": 0, "pages": 16}
    | {"stuck": []}
    for name, mapped in (("memory to spare", 0), ("memory used up", 1))
]
CHUNK.append({"turn": "both sizes", "mapped": 2, "error": 0, "pages": 528})
CHUNK[-1] |= {"huge_kb": 2048, "wrong": 0}
TESTS = "# Totals: pass:40 fail:0 xfail:0 xpass:0 skip:38 error:0\n"


@pytest.mark.parametrize(
    ("line", "change", "wrong"),
    [
        (1, {}, []),
        (1, {"stuck": ["ioctl"]}, ["memory used up: wait for each other"]),
        (0, {"stuck": ["ioctl"]}, ["memory to spare: wait for each other"]),
        (1, {"mapped": 0}, ["memory used up: pieces mapped"]),
        (1, {"offline_error": 16}, ["memory used up: the processor went"]),
        (1, {"pages": 15}, ["memory used up: pages"]),
        (2, {"mapped": 1}, ["pieces mapped"]),
        (2, {"pages": 16}, ["pages"]),
        (2, {"wrong": 1}, ["pages with other contents"]),
        (2, {"huge_kb": 0}, ["kB of huge pages before"]),
    ],
)
def test_device_memory_that_is_used_up(
    project_root: Path,
    tmp_path: Path,
    line: int,
    change: dict[str, Any],
    wrong: list[str],
) -> None:
    checks = _checks(project_root, "mm-test-hmm")
    lines = copy.deepcopy(CHUNK)
    lines[line] |= change
    load = _load(tmp_path, "chunk", _said(lines))
    evidence = Evidence(tmp_path, {}, {"chunk": load}, {})
    names = ("nobody_waits_for_ever", "both_sizes_are_mapped")
    labels = [_wrong(getattr(checks, name)(evidence)) for name in names]
    assert labels == ([[], wrong] if line == 2 else [wrong, []])


SHORT: Lines = [
    {"turn": name, "status": 0, "huge_kb": 2048, "wrong": 0}
    | {"most": [1, 0, 65436], "huge": [0, 12], "few": [0, 0, 100]}
    for name in ("hole", "huge page")
]


@pytest.mark.parametrize(
    ("line", "change", "wrong"),
    [
        (0, {}, []),
        (0, {"most": [0, 0, 65436]}, ["hole: all but a few: pieces mapped"]),
        (0, {"most": [1, 0, 65435]}, ["hole: all but a few: pages"]),
        (0, {"status": 9}, ["hole: status of the process"]),
        (0, {"huge": [0, 0]}, ["hole: the huge one: error"]),
        (1, {"huge": [1, 12]}, ["huge page: the huge one: pieces mapped"]),
        (1, {"huge_kb": 0}, ["huge page: kB of huge pages before"]),
        (1, {"wrong": 1}, ["huge page: bytes with other contents"]),
        (1, {"few": [1, 0, 100]}, ["huge page: the few: pieces mapped"]),
        (1, {"few": [0, 0, 99]}, ["huge page: the few: pages"]),
    ],
)
def test_device_memory_that_is_short(
    project_root: Path,
    tmp_path: Path,
    line: int,
    change: dict[str, Any],
    wrong: list[str],
) -> None:
    lines = copy.deepcopy(SHORT)
    lines[line] |= change
    load = _load(tmp_path, "short", _said(lines))
    checks = _checks(project_root, "mm-test-hmm")
    evidence = Evidence(tmp_path, {}, {"short": load}, {})
    assert _wrong(checks.too_few_pages_are_put_back(evidence)) == wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (TESTS, []),
        (TESTS.replace("pass:40", "pass:29"), ["passed"]),
        (TESTS.replace("fail:0", "fail:1"), ["failed"]),
        ("", ["totals", "passed"]),
    ],
)
def test_the_trees_own_tests(
    project_root: Path, tmp_path: Path, text: str, wrong: list[str]
) -> None:
    load = _load(tmp_path, "hmm-tests", text)
    checks = _checks(project_root, "mm-test-hmm")
    evidence = Evidence(tmp_path, {}, {"hmm-tests": load}, {})
    assert _wrong(checks.hmm_tests_pass(evidence)) == wrong


# -- mm-thp-charge --------------------------------------------------------------------

ALLOCATED = ("thp_fault_alloc", "anon_fault_alloc")
FAILED = (
    "thp_fault_fallback",
    "thp_fault_fallback_charge",
    "anon_fault_fallback",
    "anon_fault_fallback_charge",
)
CHARGES: Lines = [
    {"how": how, "room": room, "error": error, "done": done}
    | dict.fromkeys(ALLOCATED, inserted)
    | dict.fromkeys(FAILED, int(not room))
    for how, room, error, done, inserted in (
        ("fault", False, 0, 0, 0),
        ("device", False, 2, 0, 0),
        ("fault", True, 0, 0, 1),
        ("device", True, 0, 512, 1),
        ("userfaultfd", True, 2, 0, 0),
    )
]


@pytest.mark.parametrize(
    ("line", "change", "wrong"),
    [
        (0, {}, []),
        # Without the patch.
        (
            1,
            dict.fromkeys(FAILED[1:3], 0),
            [f"device without room: {name}" for name in FAILED[1:3]],
        ),
        (3, {"done": 0}, ["device with room: pages"]),
        # All four are counted wherever the page is not inserted.
        (
            4,
            dict.fromkeys(FAILED, 1),
            [f"userfaultfd with room: {name}" for name in FAILED],
        ),
        (
            4,
            {"error": 0, "done": 512},
            ["userfaultfd with room: error", "userfaultfd with room: pages"],
        ),
    ],
)
def test_a_huge_page_that_is_not_charged(
    project_root: Path,
    tmp_path: Path,
    line: int,
    change: dict[str, Any],
    wrong: list[str],
) -> None:
    lines = copy.deepcopy(CHARGES)
    lines[line] |= change
    load = _load(tmp_path, "charge", _said(lines))
    checks = _checks(project_root, "mm-thp-charge")
    evidence = Evidence(tmp_path, {}, {"charge": load}, {})
    assert _wrong(checks.migration_counts_as_a_page_fault(evidence)) == wrong


# -- trace-module-trigger -------------------------------------------------------------


def _unloads(project_root: Path) -> Lines:
    turns = _checks(project_root, "trace-module-trigger")._TURNS
    lines: Lines = [
        {"turn": name, "fired": fires, "unregistered": 1, "freed": triggers}
        for name, (fires, triggers) in turns.items()
    ]
    for line in lines:
        if line["turn"] in ("another module's event", "snapshot"):
            line |= {"held": True, "released": True}
    return lines


@pytest.mark.parametrize(
    ("turn", "change", "wrong"),
    [
        ("trigger", {}, [[], [], []]),
        ("trigger", {"unregistered": 0}, [["trigger: unregistered"], [], []]),
        ("enabled", {"unregistered": 2}, [["enabled: unregistered"], [], []]),
        ("trigger", {"fired": False}, [["trigger: fired"], [], []]),
        ("two triggers", {"freed": 1}, [[], ["two triggers: freed"], []]),
        ("snapshot", {"freed": 0}, [[], ["snapshot: freed"], []]),
        ("snapshot", {"held": False}, [[], [], ["snapshot: held"]]),
        ("snapshot", {"released": False}, [[], [], ["snapshot: released"]]),
        (
            "another module's event",
            {"released": False},
            [[], [], ["another module's event: released"]],
        ),
    ],
)
def test_triggers_of_a_module_that_goes(
    project_root: Path,
    tmp_path: Path,
    turn: str,
    change: dict[str, Any],
    wrong: list[list[str]],
) -> None:
    lines = _unloads(project_root)
    for line in lines:
        if line["turn"] == turn:
            line |= change
    load = _load(tmp_path, "unload", _said(lines))
    checks = _checks(project_root, "trace-module-trigger")
    evidence = Evidence(tmp_path, {}, {"unload": load}, {})
    names = (
        "trigger_does_not_keep_the_probe",
        "triggers_go_with_the_event",
        "triggers_hold_nothing_when_gone",
    )
    assert [_wrong(getattr(checks, name)(evidence)) for name in names] == wrong


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        # Without what patch 1 does.
        ({"unregistered": 0}, ["unregistered"]),
        # With a patch 2 that frees histograms as well.
        ({"freed": 1}, ["freed"]),
        ({"fired": False}, ["fired"]),
        # The module cannot be unloaded, and nothing is said of it.
        (None, ["turns"]),
    ],
)
@pytest.mark.parametrize(
    ("workload", "turn"),
    [("histogram", "histogram"), ("variable", "histogram with a variable")],
)
def test_a_histogram_of_a_module_that_goes(
    project_root: Path,
    tmp_path: Path,
    workload: str,
    turn: str,
    change: dict[str, Any] | None,
    wrong: list[str],
) -> None:
    line = {"turn": turn, "fired": True, "unregistered": 1, "freed": 0}
    said = "" if change is None else _said([line | change])
    load = _load(tmp_path, workload, said)
    checks = _checks(project_root, "trace-module-trigger")
    judge = getattr(checks, f"{workload}_does_not_keep_the_probe")
    labels = _wrong(judge(Evidence(tmp_path, {}, {workload: load}, {})))
    assert labels == [one if one == "turns" else f"{turn}: {one}" for one in wrong]


# -- drm-sched-chain, drm-sched-tests -------------------------------------------------


LATE_RUNS: Lines = [
    {"run": run, "status": 0, "jobs": 297, "back": 297, "chains": chains}
    for run, chains in (("in time", [[99, 0]] * 3), ("late", [[99, 98]] * 3))
]
MEMORY_RUNS: Lines = [
    {"run": run, "status": 0, "jobs": 300, "back": 300, "late": 0, "delayed": delayed}
    for run, delayed in (("worker in time", 0), ("worker late", 2))
]


@pytest.mark.parametrize(
    ("series", "at", "change", "wrong", "status"),
    [
        ("drm-sched-chain", 0, {}, [], "pass"),
        (
            "drm-sched-chain",
            1,
            {"chains": [[99, 98], [99, 0], [99, 98]]},
            ["late: chain 2: for one that was given back"],
            "error",
        ),
        (
            "drm-sched-chain",
            1,
            {"chains": [[99, 0]] * 3, "status": 1},
            [
                "late: exit status of the suite",
                *(f"late: chain {n}: for one that was given back" for n in "123"),
            ],
            "fail",
        ),
        ("drm-sched-chain", 0, {"back": 296}, ["in time: given back"], "fail"),
        ("drm-sched-tests", 0, {}, [], "pass"),
        ("drm-sched-tests", 1, {"delayed": 1}, ["delays of the worker"], "error"),
        ("drm-sched-tests", 1, {"delayed": 58}, [], "pass"),
        # Eight delays are as long as a test waits for a job.
        (
            "drm-sched-tests",
            1,
            {"delayed": 8, "status": 1},
            ["worker late: exit status of the suite"],
            "error",
        ),
        (
            "drm-sched-tests",
            1,
            {"delayed": 7, "status": 1},
            ["worker late: exit status of the suite"],
            "fail",
        ),
        (
            "drm-sched-tests",
            1,
            {"delayed": 8, "status": 1, "late": 1},
            [
                "worker late: exit status of the suite",
                "worker late: given back after they were freed",
            ],
            "fail",
        ),
        (
            "drm-sched-tests",
            1,
            {"late": 1},
            ["worker late: given back after they were freed"],
            "fail",
        ),
    ],
)
def test_tests_of_the_scheduler(
    project_root: Path,
    tmp_path: Path,
    series: str,
    at: int,
    change: dict[str, Any],
    wrong: list[str],
    status: str,
) -> None:
    chain = series == "drm-sched-chain"
    lines = copy.deepcopy(LATE_RUNS if chain else MEMORY_RUNS)
    lines[at].update(change)
    load = _load(tmp_path, "late" if chain else "memory", _said(lines))
    checks = _checks(project_root, series)
    judge = checks.late_tests_pass if chain else checks.jobs_outlive_the_scheduler
    evidence = Evidence(tmp_path, {}, {load.name: load}, {})
    assert _wrong(judge(evidence)) == wrong
    check = run_check("it", "positive", "", judge, evidence)
    assert check.status == status


# -- drm-sched-stop -------------------------------------------------------------------


def _scenes() -> Lines:
    """What the module tells: jobs, and how many of them run, of each scene."""
    scenes = {
        "not killed": (2, 2),
        "before it is selected": (2, 0),
        "while selected": (2, 1),
        "while selected, more jobs": (3, 1),
        "while selected, and once more": (2, 1),
        "while selected, its last job": (1, 1),
        "after a job has run": (2, 1),
    }
    return [
        {
            "policy": policy,
            "set": True,
            "scene": name,
            "jobs": jobs,
            "met": 1,
            "window": int(name.startswith("while")),
            "tree": 0,
            "tree_in_run": 0,
            "written": 0,
            "ran": [run, run],
            "done": run,
            "killed": jobs - run,
            "other": 1,
            "freed": jobs + 1,
        }
        for policy in ("round robin", "fifo", "fair")
        for name, (jobs, run) in scenes.items()
    ]


STOPPED = "killed_entity_is_off_the_run_queue"
SERVED = "others_are_served_and_killed_as_ever"
LAST_JOB = "while selected, its last job"


@pytest.mark.parametrize(
    ("check", "at", "change", "wrong"),
    [
        (STOPPED, 0, {}, []),
        (SERVED, 0, {}, []),
        (STOPPED, 2, {"tree": 1}, ["round robin, while selected: in the tree"]),
        # Removed once more, when the worker has given it up.
        (
            STOPPED,
            9,
            {"tree_in_run": 1},
            ["fifo, while selected: in the tree in run_job()"],
        ),
        (STOPPED, 2, {"written": 1}, ["round robin, while selected: written to"]),
        (STOPPED, 9, {"ran": [1, 2]}, ["fifo, while selected: run"]),
        (STOPPED, 9, {"other": 0}, ["fifo, while selected: the other entity's job"]),
        (STOPPED, 16, {"window": 0}, ["fair, while selected: stopped in time"]),
        (STOPPED, 16, {"set": False}, ["fair, while selected: by this policy"]),
        (STOPPED, 16, {"scene": "nap"}, []),
        (SERVED, 0, {"freed": 1}, ["round robin, not killed: freed"]),
        (SERVED, 13, {"tree": 1}, ["fifo, after a job has run: in the tree"]),
        (SERVED, 20, {"met": 0}, ["fair, after a job has run: came to the moment"]),
        (SERVED, 19, {"window": 0}, [f"fair, {LAST_JOB}: stopped in time"]),
        (SERVED, 15, {"killed": 1}, ["fair, before it is selected: killed"]),
    ],
)
def test_a_killed_entity(
    project_root: Path,
    tmp_path: Path,
    check: str,
    at: int,
    change: dict[str, Any],
    wrong: list[str],
) -> None:
    lines = _scenes()
    lines[at].update(change)
    checks = _checks(project_root, "drm-sched-stop")
    evidence = Evidence(
        tmp_path, {}, {"kill": _load(tmp_path, "kill", _said(lines))}, {}
    )
    assert _wrong(getattr(checks, check)(evidence)) == wrong


@pytest.mark.parametrize("check", [STOPPED, SERVED])
def test_a_killed_entity_of_which_nothing_is_reported(
    project_root: Path, tmp_path: Path, check: str
) -> None:
    lines = [one for one in _scenes() if "selected" not in one["scene"]]
    checks = _checks(project_root, "drm-sched-stop")
    evidence = Evidence(
        tmp_path, {}, {"kill": _load(tmp_path, "kill", _said(lines))}, {}
    )
    assert _wrong(getattr(checks, check)(evidence)) == ["scenes"]


KILL = """\
    # Subtest: drm_sched_kill_tests
    1..2
    ok 1 drm_sched_kill_queued
    ok 2 drm_sched_kill_selected
ok 1 drm_sched_kill_tests
"""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (KILL, []),
        (KILL.replace("ok 2", "not ok 2"), ["cases"]),
        (KILL.replace("    ok 2 drm_sched_kill_selected\n", ""), ["cases"]),
    ],
)
def test_killed_entities_cases(
    project_root: Path, tmp_path: Path, text: str, wrong: list[str]
) -> None:
    load = _load(tmp_path, "suite", text)
    checks = _checks(project_root, "drm-sched-stop")
    evidence = Evidence(tmp_path, {}, {"suite": load}, {})
    assert _wrong(checks.killed_entities_have_their_own_tests(evidence)) == wrong


# -- sched-throttle-class -------------------------------------------------------------


def _leaver(name: str, pid: int) -> dict[str, Any]:
    """The record of one turn: times in ns, limits as numbers of groups."""
    return {
        "scene": name,
        "limits_before": 0,
        "throttled_ns": 400 * MS,
        "priority": -2,
        "again_ns": 400 * MS,
        "limits": int(name == "limit elsewhere"),
        "pid": pid,
        "slept": {"priority": 20, "ended": "EAGAIN", "ns": 300 * MS},
    }


def _leavers() -> Lines:
    once = ("not throttled", "limit elsewhere", "policy in time", "boosted in time")
    thrice = ("by policy", "boosted", "forked by policy", "forked boosted")
    names = (*once, *(name for name in thrice for _ in "123"))
    return [_leaver(name, pid) for pid, name in enumerate(names)]


BACK = "task_that_came_back_sleeps"
CHILD = "child_of_one_that_left_sleeps"
AGAIN = "who_is_back_in_time_is_throttled_again"


@pytest.mark.parametrize(
    ("check", "at", "change", "slept", "wrong"),
    [
        (BACK, 0, {}, {}, []),
        (CHILD, 0, {}, {}, []),
        (AGAIN, 0, {}, {}, []),
        (BACK, 4, {}, {"ended": "EINTR"}, ["by policy: waits that timed out"]),
        (BACK, 9, {}, {"ended": "EINTR"}, ["boosted: waits that timed out"]),
        (BACK, 7, {"priority": 20}, {}, ["boosted: priority, away"]),
        (BACK, 8, {"pid": 19}, {}, ["tasks boosted by PI"]),
        (BACK, 6, {"limits_before": 1}, {}, ["by policy: limits before"]),
        (BACK, 4, {"throttled_ns": MS}, {}, ["by policy: throttled"]),
        (BACK, 1, {"limits": 0}, {}, ["limit elsewhere: limits, away"]),
        (BACK, 0, {"throttled_ns": 0}, {}, []),
        (BACK, 0, {}, {"ns": MS}, ["not throttled: and took"]),
        (BACK, 9, {"scene": "by policy"}, {}, ["turns"]),
        (CHILD, 10, {}, {"ended": "EINTR"}, ["forked by policy: waits that timed out"]),
        (CHILD, 10, {}, {"priority": -2}, ["forked by policy: priority, back"]),
        (CHILD, 15, {"limits": 1}, {}, ["forked boosted: limits, away"]),
        (AGAIN, 2, {"again_ns": 0}, {}, ["policy in time: throttled again"]),
        (AGAIN, 3, {"again_ns": 0}, {}, ["boosted in time: throttled again"]),
    ],
)
def test_a_task_that_left_its_class(
    project_root: Path,
    tmp_path: Path,
    check: str,
    at: int,
    change: dict[str, Any],
    slept: dict[str, Any],
    wrong: list[str],
) -> None:
    lines = _leavers()
    lines[at].update(change)
    lines[at]["slept"].update(slept)
    boosts = tuple(
        Event(pid * MS, 1, 1, "x", "sched", "sched_pi_setprio", {"pid": pid})
        for pid in range(16)
    )
    checks = _checks(project_root, "sched-throttle-class")
    load = _load(tmp_path, "leave", _said(lines), boosts)
    evidence = Evidence(tmp_path, {}, {"leave": load}, {})
    assert _wrong(getattr(checks, check)(evidence)) == wrong


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"again_ns": 0}, ["limited: throttled again"]),
        (
            {"slept": {"priority": 20, "ended": "EINTR", "ns": 1}},
            ["limited: waits that timed out"],
        ),
    ],
)
def test_a_task_that_is_limited_again(
    project_root: Path, tmp_path: Path, change: dict[str, Any], wrong: list[str]
) -> None:
    line = _leaver("limited", 1) | change
    checks = _checks(project_root, "sched-throttle-class")
    load = _load(tmp_path, "limited", _said([line]))
    evidence = Evidence(tmp_path, {}, {"limited": load}, {})
    assert _wrong(checks.who_came_back_is_held_to_a_new_limit(evidence)) == wrong
