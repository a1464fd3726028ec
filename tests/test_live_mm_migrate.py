# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the mm-migrate series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "mm-migrate"
EVENT = "0002-mm-mmu_notifier-add-tracepoints-around-subscribers-c.patch"
BEGIN_TRACE = "trace_mmu_notifier_invalidate_begin"
CAUSE = "0003-mm-tell-MMU-notifiers-of-migration-entries-and-of-NU.patch"
#: What only the end's fields are followed by.
REST = (
    "+\t\t__entry->function = function;\n"
    "+\t\t__entry->start = range->start;\n"
    "+\t\t__entry->end = range->end;\n"
    "+\t\t__entry->duration_ns = duration_ns;\n"
)
OWN = (
    "+\t\t\t\t!(current->flags & PF_KTHREAD);\n+\t),\n+\n+\tTP_printk(\n"
    '+\t\t"mm=%p subscription=%p function=%ps start=0x%lx end=0x%lx duration_ns'
)


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
            "+\tinterval_sub->ops->invalidate_finish(f);\n",
            "+\tinterval_sub->ops->invalidate_finish(f); start = ktime_get_ns();\n",
            {"second_pass_is_told_apart"},
            id="the clock is read on the wrong side of the callback",
        ),
        pytest.param(
            EVENT,
            "+\t\t\tif (mn_trace_enabled())\n",
            "+\t\t\tif (0 && mn_trace_enabled())\n",
            {"kvm_is_told_of_the_same_ranges"},
            id="no event for the older kind of notifier",
        ),
        pytest.param(
            EVENT,
            f"+\t\t__entry->subscription = subscription;\n{REST}",
            f"+\t\t__entry->subscription = range->mm;\n{REST}",
            {"two_mirrors_two_identities", "begins_pair_with_ends"},
            id="subscriptions are not told apart",
        ),
        pytest.param(
            EVENT,
            f"+\t\t__entry->curr = current->mm == range->mm &&\n{OWN}",
            f"+\t\t__entry->curr = current->mm != NULL &&\n{OWN}",
            {"third_party_is_told_apart"},
            id="everybody is one of the mm's own",
        ),
        pytest.param(
            EVENT,
            f"+\t{BEGIN_TRACE}(range, interval_sub, function, 1);\n",
            "+\n",
            {"stuck_callback_is_seen", "begins_pair_with_ends"},
            id="a callback has no begin",
        ),
        pytest.param(
            CAUSE,
            "+\t\t\t\t\t\t(cp_flags & MM_CP_PROT_NUMA) ?\n",
            "+\t\t\t\t\t\t(cp_flags & MM_CP_UFFD_WP) ?\n",
            {"numa_hints_are_told_apart"},
            id="a NUMA hint is called mprotect()",
        ),
        pytest.param(
            CAUSE,
            "+\tmmu_notifier_range_init(&range, MMU_NOTIFY_MIGRATION_ENTRY, 0,\n",
            "+\tmmu_notifier_range_init(&range, MMU_NOTIFY_CLEAR, 0,\n",
            {"one_event_for_each_page", "failed_migration_still_waits"},
            id="migration is called clear",
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
