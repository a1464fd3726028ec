# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the mm-migrate series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "mm-migrate"
EVENT = "0002-mm-mmu_notifier-add-tracepoints-for-subscriber-inval.patch"
MARK = "0003-mm-tell-page-migration-apart-in-MMU-notifier-tracing.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            EVENT,
            "+\t\t__entry->duration_ns = duration_ns;\n",
            "+\t\t__entry->duration_ns = duration_ns >> 10;\n",
            {"delay_is_measured", "wait_is_the_time_that_the_mutex_was_held"},
            id="microseconds",
        ),
        pytest.param(
            EVENT,
            "+\tops->invalidate_finish(f);\n+\ttrace_call__",
            "+\tops->invalidate_finish(f); start = ktime_get_ns();\n+\ttrace_call__",
            {"second_pass_is_told_apart"},
            id="the clock is read on the wrong side of the callback",
        ),
        pytest.param(
            EVENT,
            "+\t\t\tif (trace_mmu_notifier_invalidate_enabled())\n",
            "+\t\t\tif (0 && trace_mmu_notifier_invalidate_enabled())\n",
            {"kvm_is_told_of_the_same_ranges"},
            id="no event for the older kind of notifier",
        ),
        pytest.param(
            EVENT,
            "+\t\t__entry->subscription = subscription;\n",
            "+\t\t__entry->subscription = range->mm;\n",
            {"two_mirrors_two_identities"},
            id="subscriptions are not told apart",
        ),
        pytest.param(
            EVENT,
            "+\t\t__entry->curr = current->mm == range->mm &&\n",
            "+\t\t__entry->curr = current->mm != NULL &&\n",
            {"third_party_is_told_apart"},
            id="everybody is one of the mm's own",
        ),
        pytest.param(
            MARK,
            "+\t\ttry_to_migrate(folio, ttu_flags | TTU_SPLIT_FOLIO);\n",
            "+\t\ttry_to_migrate(folio, ttu_flags);\n",
            {"split_is_no_migration"},
            id="a split is called migration",
        ),
        pytest.param(
            MARK,
            "+\t\t__entry->migration = range->flags & MMU_NOTIFIER_RANGE_MIGRATION;\n",
            "+\t\t__entry->migration = range->event == MMU_NOTIFY_MIGRATE;\n",
            {"one_event_for_each_page", "failed_migration_still_waits"},
            id="migration is read off the event",
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
