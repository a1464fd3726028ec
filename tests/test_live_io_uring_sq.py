# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the io_uring-sq series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import validate

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
            "+\t\t\terr = 0;\n",
            "+\t\t\terr = -EINVAL;\n",
            {"dropped_sqe_is_told"},
            id="a dropped SQE has an error",
        ),
        pytest.param(
            SHORT,
            "+\t\t\terr = -EAGAIN;\n",
            "+\t\t\terr = -ENOMEM;\n",
            {"no_memory_is_told"},
            id="no request is -ENOMEM",
        ),
        pytest.param(
            SHORT,
            "+\t\ttrace_io_uring_short_submit(ctx, ret, left, err);\n",
            "+\t\tif (!(ctx->flags & IORING_SETUP_SQPOLL))"
            " trace_io_uring_short_submit(ctx, ret, left, err);\n",
            {"sq_thread_reports_what_enter_hides"},
            id="nothing from SQ threads",
        ),
        pytest.param(
            SHORT,
            "+\t\ttrace_io_uring_short_submit(ctx, ret, left, err);\n",
            "+\t\ttrace_io_uring_short_submit(ctx, ret + left, left, err);\n",
            {"sqe_error_stops_the_batch", "dropped_sqe_is_told"},
            id="the result before it is final",
        ),
        pytest.param(
            OVERFLOW,
            "+\t\t    entries > ctx->sq_entries)\n",
            "+\t\t    entries >= ctx->sq_entries)\n",
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
    path = project_copy.patches / SERIES / file
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    path.write_text(text.replace(old, new))
    found = validate(project_copy.root, tmp_path / "out", SERIES)
    assert found.exit_code == 1, found.said
    assert checks <= set(found.failed()), found.failed()
