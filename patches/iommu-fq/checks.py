# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the iommu-fq series: what fails without its patch."""

from __future__ import annotations

import json
from typing import Any

from kstall.evidence import Evidence, Verdict

#: How often a queue has to have been filled and flushed in the course of a flush; or
#: have been flushed, where there is no crowd.
_CROWDED = 5


def _crowd(ev: Evidence, v: Verdict) -> dict[str, Any] | None:
    """What was counted, or None if flushes were not in each other's way."""
    facts: dict[str, Any]
    (facts,) = map(json.loads, ev.workload("crowd").stdout.splitlines())
    if facts["inside"] < _CROWDED:
        v.undecide(
            f"{facts['inside']} flushes of one CPU in the course of another's, of "
            f"{facts['flushes']}; it takes {_CROWDED}"
        )
        return None
    return facts


def nothing_is_lost_when_crowded(ev: Evidence) -> Verdict:
    """Counted where an IOVA is taken and where it is freed, until all is quiet."""
    v = Verdict()
    facts = _crowd(ev, v)
    if facts is None:
        return v
    v.at_least("flushes in the course of another CPU's", facts["inside"], _CROWDED)
    v.equal("type of the group", facts["type"], "DMA-FQ")
    v.equal("IOVAs freed", facts["freed"], facts["taken"])
    return v


def nothing_is_freed_early(ev: Evidence) -> Verdict:
    """Stamps of BPF programs: of unmappings, of flushes, and of what is freed."""
    v = Verdict()
    facts = _crowd(ev, v)
    if facts is None:
        return v
    v.equal("type of the group", facts["type"], "DMA-FQ")
    v.equal("domains", facts["domains"], 1)
    # A program that is preempted in the middle is not run for others on its CPU.
    seen = facts["whole"] + facts["early"]
    v.at_least("IOVAs whose unmapping was seen", seen, facts["freed"] // 2)
    v.equal("IOVAs freed without a whole flush", facts["early"], 0)
    return v


def nothing_is_lost_when_calm(ev: Evidence) -> Verdict:
    """Each is unmapped once, which the event of unmapping tells."""
    v = Verdict()
    load = ev.workload("calm")
    (facts,) = map(json.loads, load.stdout.splitlines())
    v.equal("type of the group", facts["type"], "DMA-FQ")
    v.at_least("flushes", facts["flushes"], _CROWDED)
    v.at_least("IOVAs taken", facts["taken"], 100)
    v.equal("IOVAs freed", facts["freed"], facts["taken"])
    v.equal("IOVAs unmapped", len(load.events("unmap")), facts["taken"])
    return v
