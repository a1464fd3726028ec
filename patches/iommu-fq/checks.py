# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the iommu-fq series: what fails without its patch."""

from __future__ import annotations

import json
from typing import Any

from kstall.evidence import Evidence, Verdict

#: How often a CPU has to flush during a flush of another one; or just flush, where CPUs
#: do not compete.
_CROWDED = 5


def _crowd(ev: Evidence, v: Verdict) -> dict[str, Any] | None:
    """What was counted, or None if flushes did not overlap often enough."""
    facts: dict[str, Any]
    (facts,) = map(json.loads, ev.workload("crowd").stdout.splitlines())
    if facts["inside"] < _CROWDED:
        v.undecide(
            f"{facts['inside']} of {facts['flushes']} flushes ran during another "
            f"CPU's; it takes {_CROWDED}"
        )
        return None
    return facts


def nothing_is_lost_when_crowded(ev: Evidence) -> Verdict:
    """Counted where IOVAs are taken and where they are freed, until all is quiet."""
    v = Verdict()
    facts = _crowd(ev, v)
    if facts is None:
        return v
    v.at_least("flushes during another CPU's", facts["inside"], _CROWDED)
    v.equal("type of the group", facts["type"], "DMA-FQ")
    v.equal("IOVAs freed", facts["freed"], facts["taken"])
    return v


def nothing_is_freed_early(ev: Evidence) -> Verdict:
    """BPF programs take the times of unmappings, of flushes, and of what is freed."""
    v = Verdict()
    (facts,) = map(json.loads, ev.workload("crowd").stdout.splitlines())
    # With IOVAs freed early a queue is never full, so its CPU hardly flushes.
    if facts["early"] == 0 and _crowd(ev, v) is None:
        return v
    v.equal("type of the group", facts["type"], "DMA-FQ")
    v.equal("domains", facts["domains"], 1)
    # While a BPF program is preempted, it is not run for others on its CPU.
    seen = facts["whole"] + facts["early"]
    with v.excused("the BPF programs were preempted most of the time"):
        v.at_least("IOVAs whose unmapping was seen", seen, facts["freed"] // 2)
    v.equal("IOVAs freed without a whole flush", facts["early"], 0)
    return v


def nothing_is_lost_when_calm(ev: Evidence) -> Verdict:
    """The event of unmapping shows that each IOVA is unmapped once."""
    v = Verdict()
    load = ev.workload("calm")
    (facts,) = map(json.loads, load.stdout.splitlines())
    v.equal("type of the group", facts["type"], "DMA-FQ")
    with v.excused("little was mapped in the time that the host gave"):
        v.at_least("flushes", facts["flushes"], _CROWDED)
        v.at_least("IOVAs taken", facts["taken"], 100)
    v.equal("IOVAs freed", facts["freed"], facts["taken"])
    v.equal("IOVAs unmapped", len(load.events("unmap")), facts["taken"])
    return v
