# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the mm-thp-charge series: what fails without its patch."""

from __future__ import annotations

import json

from kstall.evidence import Evidence, Verdict

_ALLOCATED = ("thp_fault_alloc", "anon_fault_alloc")
_FAILED = (
    "thp_fault_fallback",
    "thp_fault_fallback_charge",
    "anon_fault_fallback",
    "anon_fault_fallback_charge",
)
_ENOENT = 2


def migration_counts_as_a_page_fault(ev: Evidence) -> Verdict:
    """The migration is compared with a page fault under the same conditions."""
    v = Verdict()
    lines = ev.workload("charge").stdout.splitlines()
    turns = {(turn["how"], turn["room"]): turn for turn in map(json.loads, lines)}
    v.equal("turns", len(turns), 5)
    for (how, room), turn in turns.items():
        where = f"{how} {'with' if room else 'without'} room"
        # With userfaultfd the page is charged, but not inserted.
        inserted = room and how != "userfaultfd"
        if how != "fault":
            # The device reads what it has: nothing, or all pages.
            v.equal(f"{where}: error", turn["error"], 0 if inserted else _ENOENT)
            v.equal(f"{where}: pages", turn["done"], 512 if inserted else 0)
        for name in _ALLOCATED:
            v.equal(f"{where}: {name}", turn[name], int(inserted))
        for name in _FAILED:
            v.equal(f"{where}: {name}", turn[name], int(not room))
    return v
