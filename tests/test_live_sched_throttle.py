# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the sched-throttle series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "sched-throttle"
QUEUE = "0002-sched-fair-Add-tracepoints-for-CFS-bandwidth-throttl.patch"
TASK = "0003-sched-fair-Add-tracepoints-for-throttled-tasks.patch"


# That DEQUEUE_SLEEP is dropped is caught by none: a preemptible kernel switches away
# from a task where it is throttled, before it can block; see the cover.
@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            QUEUE,
            "+\ttrace_sched_cfs_unthrottle_tp(cfs_rq, delta);\n",
            "+\ttrace_sched_cfs_unthrottle_tp(cfs_rq, delta >> 10);\n",
            {"group_time_is_cpu_stat", "switched_on_half_way"},
            id="microseconds",
        ),
        pytest.param(
            TASK,
            "+\t\telse if (flags & DEQUEUE_CLASS)\n",
            "+\t\telse if (flags == -1)\n",
            {"changing_the_class_ends_it", "waiting_for_a_pi_futex_ends_it"},
            id="a class change looks like a move",
        ),
        pytest.param(
            TASK,
            "+\tif (trace_sched_cfs_unthrottle_task_tp_enabled()) {\n",
            "+\tif (trace_sched_cfs_unthrottle_task_tp_enabled()"
            " && !(flags & DEQUEUE_CLASS)) {\n",
            {"changing_the_class_ends_it", "waiting_for_a_pi_futex_ends_it"},
            id="no end for a task that leaves the class",
        ),
        pytest.param(
            TASK,
            "+\tif (trace_sched_cfs_unthrottle_task_tp_enabled()) {\n",
            "+\tif (trace_sched_cfs_unthrottle_task_tp_enabled()"
            " && flags & DEQUEUE_CLASS) {\n",
            {"changing_the_cpu_ends_it", "leaving_the_group_ends_it"},
            id="no end for a task that is moved",
        ),
        pytest.param(
            TASK,
            "+\t\ttrace_sched_cfs_throttle_task_tp(p, cfs_rq);\n \t\treturn true;\n",
            "+\t\t;\n \t\treturn true;\n",
            {"changing_the_cpu_ends_it", "changing_the_class_ends_it"},
            id="no start for a task that is put on a throttled queue",
        ),
        pytest.param(
            TASK,
            "+\t\ttrace_sched_cfs_throttle_task_tp(p, cfs_rq);\n \t\tresched_curr",
            "+\t\tif (!(p->flags & PF_IO_WORKER))"
            " trace_sched_cfs_throttle_task_tp(p, cfs_rq);\n \t\tresched_curr",
            {"workers_stop_in_the_kernel"},
            id="no start for workers of io_uring",
        ),
        pytest.param(
            TASK,
            "+\t\ttrace_sched_cfs_throttle_task_tp(p, cfs_rq);\n \t\tresched_curr",
            "+\t\ttrace_sched_cfs_throttle_task_tp(p, &rq->cfs);\n \t\tresched_curr",
            {"nested_limit_is_told_apart", "some_quota_is_to_blame"},
            id="the queue of the CPU, not of the group",
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
