# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the sched-throttle series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "sched-throttle"
QUEUE = "0001-sched-fair-Add-tracepoints-for-CFS-bandwidth-throttl.patch"
TASK = "0002-sched-fair-Add-tracepoints-for-throttled-tasks.patch"
STAT = "0003-sched-fair-Add-sched_stat_throttled.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            QUEUE,
            "start ? rq_clock(rq) - start : 0);\n",
            "start ? (rq_clock(rq) - start) >> 10 : 0);\n",
            {"group_time_is_cpu_stat", "lone_task_is_its_group"},
            id="microseconds",
        ),
        pytest.param(
            TASK,
            "+\tif (flags & (DEQUEUE_SLEEP | DEQUEUE_CLASS))\n",
            "+\tif (flags & DEQUEUE_SLEEP)\n",
            {"changing_the_class_ends_it"},
            id="no end for a task that leaves the class",
        ),
        pytest.param(
            TASK,
            "+\tif (flags & (DEQUEUE_SLEEP | DEQUEUE_CLASS))\n",
            "+\tif (flags != -1)\n",
            {"changing_the_cpu_ends_it"},
            id="the end on the wrong side of the move",
        ),
        pytest.param(
            TASK,
            "+\tp->se.throttled_clock = rq_clock(rq_of(cfs_rq));\n",
            "+\tif (trace_sched_cfs_throttle_task_tp_enabled())"
            " p->se.throttled_clock = rq_clock(rq_of(cfs_rq));\n",
            {"switched_on_half_way"},
            id="the start is kept for listeners only",
        ),
        pytest.param(
            TASK,
            "+\ttrace_sched_cfs_throttle_task_tp(p, cfs_rq);\n",
            "+\ttrace_sched_cfs_throttle_task_tp(p, &rq_of(cfs_rq)->cfs);\n",
            {"nested_limit_is_told_apart", "some_quota_is_to_blame"},
            id="the queue of the CPU, not of the group",
        ),
        pytest.param(
            STAT,
            "+\ttrace_sched_stat_throttled(p, delta);\n",
            "+\ttrace_sched_stat_throttled(current, delta);\n",
            {"stat_is_the_task_event", "scripts_add_up"},
            id="charged to whoever is current",
        ),
    ],
)
def test_a_mutant_is_caught_by_name(
    project_copy: Project,
    tmp_path: Path,
    file: str,
    old: str,
    new: str,
    checks: set[str],
) -> None:
    require_caught(project_copy, tmp_path / "out", SERIES, file, old, new, *checks)
