# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparisons of iommu-iotlb's checks that must hold on a busy host, and not always."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from kstall.evidence import Evidence, Verdict, WorkloadResult

US = 1_000
MS = 1_000_000
EVENTS = ("iotlb_sync", "iotlb_fq_flush")
#: Of each of 40 turns when it began and ended, and what was told in it: ts, duration.
TURNS = [(number * 50 * MS, number * 50 * MS + 40 * MS) for number in range(1, 41)]
TOLD = [(on + 5 * MS, 20 * US) for on, _ in TURNS]


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/iommu-iotlb/checks.py"
    spec = importlib.util.spec_from_file_location("iommu_iotlb_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for it there.
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def _toggled(place: Path, told: list[tuple[int, int]]) -> Evidence:
    """Evidence of the workload ``toggle`` with ``told`` for either event."""
    folder = place / "toggle"
    folder.mkdir()
    lines = [
        json.dumps({"what": "toggle", "event": event, "turns": TURNS, "told": told})
        for event in EVENTS
    ]
    (folder / "stdout").write_text("\n".join(lines))
    load = WorkloadResult("toggle", folder, {}, {})
    return Evidence(place, {}, {"toggle": load}, {})


def _wrong(verdict: Verdict) -> set[str]:
    return {one.label.partition(": ")[2] for one in verdict.comparisons if not one.ok}


ON, OFF = TURNS[7]
#: Recorded a millisecond after the event was off, and begun before that.
LATE = (OFF + MS, 2 * MS)


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (TOLD, set()),
        # One that lost the CPU, in each of several turns.
        ([*TOLD, LATE], set()),
        ([*TOLD, *((off + MS, MS + 20 * US) for _, off in TURNS)], set()),
        # The same, recorded so late that it had ended before it was switched off.
        ([*TOLD, (OFF + 3 * MS, 20 * US)], set()),
        # But one thread cannot have two of them,
        ([*TOLD, LATE, (LATE[0] + 20 * US, 20 * US)], {"after a turn, most for any"}),
        # a time from before the event was on is wrong, by whatever it is,
        ([*TOLD, (ON + MS, MS + 2 * US)], {"longer than it was on"}),
        ([*TOLD, (ON + MS, ON + MS)], {"longer than it was on"}),
        ([*TOLD, (OFF + MS, OFF + 2 * MS - ON)], {"longer than it was on"}),
        # and so is an event before all that.
        ([*TOLD, (TURNS[0][0] - MS, 1)], {"before all turns"}),
        (TOLD[:9], {"events"}),
    ],
)
def test_switched_on_half_way(
    checks: ModuleType, tmp_path: Path, told: list[tuple[int, int]], wrong: set[str]
) -> None:
    verdict = checks.switched_on_half_way(_toggled(tmp_path, told))
    assert _wrong(verdict) == wrong
