# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the io_uring-sq series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "io_uring-sq"
ASYNC = "0001-io_uring-add-trace-event-for-the-start-of-async-work.patch"
SHORT = "0002-io_uring-add-trace-event-for-short-submissions.patch"
WAIT = "0004-io_uring-sqpoll-add-trace-events-for-SQ-ring-waits.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            ASYNC,
            "+\t\t__entry->req\t\t= req;\n",
            "+\t\t__entry->req\t\t= req->ctx;\n",
            {"async_start_is_seen_twice"},
            id="another request",
        ),
        pytest.param(
            ASYNC,
            "+\t\ttrace_io_uring_start_async_work(req, true);\n",
            "+\t\ttrace_io_uring_start_async_work(req, false);\n",
            {"canceled_work_leaves_the_queue"},
            id="canceled work seems to run",
        ),
        pytest.param(
            ASYNC,
            "+\ttrace_io_uring_start_async_work(req, false);\n",
            "+\ttrace_io_uring_start_async_work(req, work->list.next);\n",
            {"async_start_is_seen_twice"},
            id="work with more behind it seems canceled",
        ),
        pytest.param(
            SHORT,
            "+\t\t\treason = IO_SHORT_SUBMIT_NO_REQ;\n",
            "+\t\t\treason = IO_SHORT_SUBMIT_DROPPED;\n",
            {"no_memory_is_told"},
            id="no memory is called dropped",
        ),
        pytest.param(
            SHORT,
            "+\t\t\treason = IO_SHORT_SUBMIT_DROPPED;\n",
            "+\t\t\treason = IO_SHORT_SUBMIT_NO_REQ;\n",
            {"dropped_sqe_is_told"},
            id="dropped is called no memory",
        ),
        pytest.param(
            SHORT,
            "+\t\t__entry->ret\t\t= ret;\n",
            "+\t\t__entry->ret\t\t= ret < 0 ? 0 : ret;\n",
            {"no_memory_is_told"},
            id="an error is no return value",
        ),
        pytest.param(
            SHORT,
            "+\t\t__entry->left\t\t= left - (reason == IO_SHORT_SUBMIT_DROPPED);\n",
            "+\t\t__entry->left\t\t= left;\n",
            {"dropped_sqe_is_told"},
            id="the dropped one is left",
        ),
        pytest.param(
            WAIT,
            "+\t\ttrace_io_uring_sqring_wait(ctx);\n \t\tschedule();\n",
            "+\t\ttrace_io_uring_sqring_wait_end(ctx);\n \t\tschedule();\n",
            {"full_ring_wait_is_timed"},
            id="no beginning",
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
