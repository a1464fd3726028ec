# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the drm-sched series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "drm-sched"
HELPER = "0001-drm-sched-Add-a-helper-for-pipelined-dependencies.patch"
WAIT = "0002-drm-sched-Trace-how-long-a-job-waited-and-for-what.patch"
CREDITS = "0003-drm-sched-Trace-jobs-held-back-by-missing-credits.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            HELPER,
            "+\treturn s_fence && s_fence->sched == sched &&\n"
            "+\t       !test_bit(DRM_SCHED_FENCE_DONT_PIPELINE, &fence->flags);\n",
            "+\treturn s_fence && s_fence->sched == sched &&\n+\t       fence;\n",
            {"dependency_wait_is_told_apart"},
            id="what must not be pipelined is",
        ),
        pytest.param(
            WAIT,
            "+\t\tready = max(ready, dma_fence_timestamp(fence));\n",
            "+\t\tready = dma_fence_timestamp(fence);\n",
            {"dependency_wait_is_told_apart"},
            id="the last dependency is taken for the last to signal",
        ),
        pytest.param(
            WAIT,
            "+\t    fence->context == job->s_fence->finished.context)\n",
            "+\t    fence->context == job->s_fence->finished.context + 1)\n",
            {"dependency_wait_is_told_apart"},
            id="a job of the same entity is taken for a dependency",
        ),
        pytest.param(
            WAIT,
            "+\treturn (s_fence && fence == &s_fence->scheduled) ||\n",
            "+\treturn (s_fence && fence == &s_fence->finished) ||\n",
            {"dependency_wait_is_told_apart"},
            id="scheduled and finished fences are mixed up",
        ),
        pytest.param(
            CREDITS,
            "+\tu32 count = atomic_read(&sched->credit_count);\n",
            "+\tu32 count = atomic_read(sched->score);\n",
            {"shortage_is_real_and_lasts_until_the_wait_ends"},
            id="jobs are taken for credits",
        ),
        pytest.param(
            CREDITS,
            "+\tif (job && (u64)count + job->credits > sched->credit_limit)\n",
            "+\tif (job && !count)\n",
            {
                "second_job_waits_for_credits",
                "deep_queue_matches_the_tests_own_clock",
            },
            id="a full ring is silent",
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
