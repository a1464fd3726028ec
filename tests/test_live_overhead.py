# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants that cost more than they should: each fails by function and cause."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from kstall.base import cache
from kstall.series import Project
from live import Outcome, edit, keep_only, validate

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "drm-sched"
WAIT = "0002-drm-sched-Trace-how-long-a-job-waited-and-for-what.patch"
GUARD = "+\tif (trace_drm_sched_job_wait_enabled())\n"
INTERNAL = "drivers/gpu/drm/scheduler/sched_internal.h"


def _replace(project: Project, old: str, new: str) -> None:
    edit(project.patches / SERIES / WAIT, old, new)


def _add_patch(
    project: Project, proven: Outcome, file: str, old: str, new: str
) -> None:
    """Add a last patch to the series, which makes ``old`` in ``file`` ``new``."""
    assert proven.report.tree is not None
    source = cache.default_dir() / "trees" / proven.report.tree.id / "src" / file
    before = source.read_text()
    assert before.count(old) == 1
    diff = "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            before.replace(old, new).splitlines(keepends=True),
            f"a/{file}",
            f"b/{file}",
        )
    )
    name = "0005-drm-sched-Cost-more.patch"
    (project.patches / SERIES / name).write_text(
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: A Mutant <mutant@example.org>\n"
        "Date: Thu, 1 Jan 1970 00:00:00 +0000\n"
        "Subject: [PATCH 5/5] drm/sched: Cost more\n\n"
        f"---\ndiff --git a/{file} b/{file}\n{diff}-- \n2.39.5\n\n"
    )
    toml = project.patches / SERIES / "series.toml"
    last = "0004-drm-sched-Add-tests-for-the-wait-time-trace-events.patch"
    text = toml.read_text()
    assert text.count(f'    "{last}",\n') == 1
    toml.write_text(text.replace(f'    "{last}",\n', f'    "{last}",\n    "{name}",\n'))


def _validate(project: Project, out: Path) -> Outcome:
    """Run what a comparison of binaries needs, and the shortest of the workloads."""
    keep_only(project.patches / SERIES, ["second_job_waits_for_credits"], binaries=True)
    return validate(project.root, out, SERIES)


def _detail(outcome: Outcome, check: str) -> str:
    assert outcome.exit_code == 1, outcome.output
    assert check in outcome.failed(), outcome.output
    return outcome.failed()[check]


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        pytest.param("ktime_get() && ", "reads a clock while off", id="clock"),
        pytest.param(
            "dma_fence_get_status(&s_fence->finished) >= 0 && ",
            "calls while off",
            id="argument",
        ),
    ],
)
def test_work_outside_the_guard(
    project_copy: Project, tmp_path: Path, condition: str, cause: str
) -> None:
    _replace(project_copy, GUARD, GUARD.replace("(trace", f"({condition}trace"))
    outcome = _validate(project_copy, tmp_path / "out")
    detail = _detail(outcome, "disabled_path_unchanged")
    assert f"drm_sched_run_job_work [gpu-sched]: {cause}" in detail
    assert "drm_sched_run_job_work+0x" in detail
    assert "call ktime_get" in detail or "call dma_fence_get_status" in detail


def test_a_grown_struct(project_copy: Project, proven: Outcome, tmp_path: Path) -> None:
    _add_patch(
        project_copy,
        proven,
        "include/drm/gpu_scheduler.h",
        "struct drm_sched_job {\n",
        "struct drm_sched_job {\n\tktime_t\t\t\t\twaited;\n",
    )
    outcome = _validate(project_copy, tmp_path / "out")
    detail = _detail(outcome, "structs_do_not_grow")
    assert "struct drm_sched_job: +waited: 160 bytes, expected <= 152 bytes" in detail


def test_a_renamed_field_of_an_existing_event(
    project_copy: Project, proven: Outcome, tmp_path: Path
) -> None:
    done = (
        "\t\t    __field(u64, fence_seqno)\n"
        "\t\t    ),\n\n"
        "\t    TP_fast_assign(\n"
        "\t\t    __entry->fence_context = fence->finished.context;\n"
        "\t\t    __entry->fence_seqno = fence->finished.seqno;\n"
        "\t\t    ),\n"
        '\t    TP_printk("fence=%llu:%llu signaled",\n'
        "\t\t      __entry->fence_context, __entry->fence_seqno)\n"
    )
    renamed = done.replace("fence_seqno", "number")
    header = "drivers/gpu/drm/scheduler/gpu_scheduler_trace.h"
    _add_patch(project_copy, proven, header, done, renamed)
    outcome = validate(project_copy.root, tmp_path / "out", SERIES)
    detail = _detail(outcome, "existing_events_are_kept")
    assert "drm_sched_job_done" in detail and "fence_seqno is gone" in detail


def test_a_tracepoint_in_a_header(
    project_copy: Project, proven: Outcome, tmp_path: Path
) -> None:
    _add_patch(
        project_copy,
        proven,
        INTERNAL,
        "/* Return true if entity could provide a job. */\n"
        "static inline bool\n"
        "drm_sched_entity_is_ready(struct drm_sched_entity *entity)\n"
        "{\n",
        "#include <linux/tracepoint-defs.h>\n"
        "DECLARE_TRACEPOINT(drm_sched_job_wait);\n"
        "/* Return true if entity could provide a job. */\n"
        "static inline bool\n"
        "drm_sched_entity_is_ready(struct drm_sched_entity *entity)\n"
        "{\n"
        "\tif (tracepoint_enabled(drm_sched_job_wait))\n"
        "\t\tsmp_mb();\n",
    )
    outcome = _validate(project_copy, tmp_path / "out")
    detail = _detail(outcome, "off_is_a_nop")
    assert "drm_sched_job_wait: functions with a site" in detail
    assert ", undeclared" in detail
