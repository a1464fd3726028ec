# SPDX-License-Identifier: GPL-2.0-or-later
"""What pci-aer's checks expect of an advisory error, on kernels of both kinds."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstall.evidence import Evidence, WorkloadResult

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
    """One message after the first ``reports`` of what a kernel can make of it."""
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
    message = {"root": ROOT, "domain": 0, "source": SOURCE, "severity": CORRECTABLE}
    flags = {"multi": 0, "dropped": 0, "nr_dev": 1, "nr_logged": 1}
    told.append(("pci:pcie_aer_msg", message | flags))
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
    assert {one.label for one in verdict.comparisons if not one.ok} == wrong


@pytest.mark.parametrize(
    ("reports", "mask", "counted", "wrong"),
    [
        (2, ALLOWED, TWICE, set()),
        (1, MASKED, TOTALS, set()),
        (1, ALLOWED, TOTALS, {"advisory: advisory"}),
        (2, MASKED, TWICE, {"advisory: advisory"}),
    ],
)
def test_reports_of_a_message(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reports: int,
    mask: int,
    counted: dict[str, int],
    wrong: set[str],
) -> None:
    monkeypatch.setattr(checks, "_WORKLOADS", ("advisory",))
    saved = _evidence(tmp_path, reports, mask, 0, counted)
    verdict = checks.logged_is_the_aer_events(saved)
    assert {one.label for one in verdict.comparisons if not one.ok} == wrong
