# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the io_uring-sq series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "io_uring-sq"
WAIT = "0001-io_uring-sqpoll-add-trace-event-for-SQ-ring-waits.patch"
SHORT = "0002-io_uring-add-trace-event-for-short-submissions.patch"
OVERFLOW = "0003-io_uring-add-trace-event-for-SQ-overflow.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            WAIT,
            "+\t\t__entry->wait_ns\t= wait_ns;\n",
            "+\t\t__entry->wait_ns\t= wait_ns >> 10;\n",
            {"full_ring_wait_is_timed", "every_waiter_has_its_own"},
            id="microseconds",
        ),
        pytest.param(
            WAIT,
            "+\tif (trace_io_uring_sqring_wait_enabled() && start)\n",
            "+\tif (trace_io_uring_sqring_wait_enabled())\n",
            {"room_needs_no_wait", "switched_on_midway"},
            id="an event without a beginning",
        ),
        pytest.param(
            WAIT,
            "+\t\tif (trace_io_uring_sqring_wait_enabled() && !start)\n",
            "+\t\tif (trace_io_uring_sqring_wait_enabled())\n",
            {"switched_on_between_wakeups"},
            id="each wake-up begins anew",
        ),
        pytest.param(
            WAIT,
            "+\t\t__entry->full\t\t= full;\n",
            "+\t\t__entry->full\t\t= 0;\n",
            {"signal_leaves_it_full"},
            id="a signal is taken for success",
        ),
        pytest.param(
            SHORT,
            "+\t\t\ttrace_io_uring_short_submit(ctx, entries - left, left, 0);\n",
            "+\t\t\ttrace_io_uring_short_submit(ctx, entries - left, left, -EINVAL);\n",
            {"dropped_sqe_is_told"},
            id="a dropped SQE has an error",
        ),
        pytest.param(
            SHORT,
            "+\t\t\ttrace_io_uring_short_submit(ctx, entries - left, left, -EAGAIN);\n",
            "+\t\t\ttrace_io_uring_short_submit(ctx, entries - left, left, -ENOMEM);\n",
            {"no_memory_is_told"},
            id="no request is -ENOMEM",
        ),
        pytest.param(
            SHORT,
            "+\tTP_CONDITION(left),\n",
            "+\tTP_CONDITION(left && !(ctx->flags & IORING_SETUP_SQPOLL)),\n",
            {"sq_thread_reports_what_enter_hides"},
            id="nothing from SQ threads",
        ),
        pytest.param(
            SHORT,
            "+\tTP_CONDITION(left),\n",
            "+\tTP_CONDITION(true),\n",
            {"nothing_left_no_event"},
            id="an error that leaves nothing behind",
        ),
        pytest.param(
            SHORT,
            "+\t\t\ttrace_io_uring_short_submit(ctx, entries - left, left, err);\n",
            "+\t\t\ttrace_io_uring_short_submit(ctx, entries, left, err);\n",
            {"sqe_error_stops_the_batch"},
            id="what was to be submitted, not what was",
        ),
        pytest.param(
            OVERFLOW,
            "+\tif (queued > ctx->sq_entries)\n",
            "+\tif (queued >= ctx->sq_entries)\n",
            {"nothing_left_no_event"},
            id="a full ring is called overflown",
        ),
        pytest.param(
            OVERFLOW,
            "+\t\t__entry->queued\t\t= queued;\n",
            "+\t\t__entry->queued\t\t= queued - ctx->sq_entries;\n",
            {"overflow_is_counted"},
            id="only what is too much",
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
