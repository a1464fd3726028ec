# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparisons of sched-throttle's checks that hold on a busy host, and not always."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstall.evidence import Evidence, WorkloadResult

GROUP = 37
PIDS = (101, 102, 103)
Record = dict[str, Any]


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/sched-throttle/checks.py"
    spec = importlib.util.spec_from_file_location("sched_throttle_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch().context() as patch:
        # Its dataclasses look for it there.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def _records(held: list[tuple[int, ...]]) -> list[Record]:
    """A period for each of ``held``, the tasks that stop in it, and go on."""
    found: list[Record] = []

    def tell(name: str, clock: int, **fields: int) -> None:
        found.append(
            {
                "event": f"sched:sched_cfs_{name}",
                "ts": len(found) * 1000,
                "cpu": 0,
                "pid": 0,
                "tgid": 0,
                "comm": "x",
                "fields": {"cgroup": GROUP, "on": 0, "clock": clock, **fields},
            }
        )

    for number, tasks in enumerate(held):
        begin, end = number * 1000, number * 1000 + 500
        tell("throttle", begin)
        for late, task in enumerate(tasks):
            tell("throttle_task", begin + late, task=task)
        tell("unthrottle", end, delta=500)
        for late, task in enumerate(tasks):
            tell("unthrottle_task", end, task=task, delta=500 - late)
    return found


def _evidence(place: Path, records: list[Record]) -> Evidence:
    folder = place / "three"
    folder.mkdir()
    said: list[dict[str, Any]] = [
        {
            **{"what": "group", "name": "three", "cgroup": GROUP, "parent": 1},
            "seen": {"grown": 12, "stood": 24, "idle_us": 600_000},
        }
    ]
    said += [{"what": "task", "name": f"three-{pid}", "pid": pid} for pid in PIDS]
    (folder / "stdout").write_text("".join(json.dumps(fact) + "\n" for fact in said))
    lines = "".join(json.dumps(one) + "\n" for one in records)
    (folder / "record.jsonl").write_text(lines)
    return Evidence(place, {}, {"three": WorkloadResult("three", folder, {}, {})}, {})


#: On a busy host a period can be over before the second task has stopped.
BUSY: list[tuple[int, ...]] = [PIDS[:2], PIDS[1:], PIDS[::2], *[(p,) for p in PIDS]] * 5


def _same(records: list[Record]) -> None:
    pass


def _without_an_end(records: list[Record]) -> None:
    del records[-1]


def _without_a_start(records: list[Record]) -> None:
    del records[-3]


def _late_end(records: list[Record]) -> None:
    records[-1]["fields"]["clock"] += 1


@pytest.mark.parametrize(
    ("held", "change", "wrong"),
    [
        ([PIDS] * 12, _same, set()),
        (BUSY, _same, set()),
        (
            [(p,) for p in PIDS] * 12,
            _same,
            {"of one queue, most"},
        ),
        (BUSY, _without_an_end, {"queues that let others go than stood still"}),
        (BUSY, _without_a_start, {"queues that let others go than stood still"}),
        (
            BUSY,
            _late_end,
            {
                "tasks that end with their queue",
                "queues that let others go than stood still",
            },
        ),
    ],
)
def test_three_tasks(
    checks: ModuleType,
    tmp_path: Path,
    held: list[tuple[int, ...]],
    change: Callable[[list[Record]], None],
    wrong: set[str],
) -> None:
    records = _records(held)
    change(records)
    verdict = checks.three_tasks_wait_for_one_queue(_evidence(tmp_path, records))
    found = {one.label for one in verdict.comparisons if not one.ok}
    assert found - {"queues whose first task has another delta"} == wrong
