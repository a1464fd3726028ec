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
FDINFO = "0003-io_uring-fdinfo-show-dropped-SQEs-and-lost-CQEs.patch"
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
            "+\t\ttrace_io_uring_start_async_work(req, true);\n",
            "+\t\tif (0) trace_io_uring_start_async_work(req, true);\n",
            {"canceled_work_leaves_the_queue"},
            id="canceled work stays queued",
        ),
        pytest.param(
            ASYNC,
            "+\ttrace_io_uring_start_async_work(req, false);\n",
            "+\tif (req->cqe.user_data & 1)"
            " trace_io_uring_start_async_work(req, false);\n",
            {"async_start_is_seen_twice", "stall_shows_while_it_lasts"},
            id="some work seems never to start",
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
            FDINFO,
            "READ_ONCE(r->sq_dropped));\n",
            "READ_ONCE(r->cq_overflow));\n",
            {"fdinfo_shows_the_rings_counters"},
            id="one counter for another",
        ),
        pytest.param(
            WAIT,
            "+\t\tif (trace_io_uring_sqring_wait_enabled())\n",
            "+\t\tif (trace_io_uring_sqring_wait_enabled() && ctx->sq_entries > 4)\n",
            {"full_ring_wait_is_timed"},
            id="no beginning",
        ),
        pytest.param(
            WAIT,
            "io_sqring_queued(ctx));\n",
            "ctx->sq_entries);\n",
            {"full_ring_wait_is_timed", "every_waiter_has_its_own"},
            id="still full, whatever happened",
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
