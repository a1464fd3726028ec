# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer-inject series: each shows a fault of the kernel without it.

What the kernel did is judged by means that exist without the patches: `ras:aer_event`,
its counters in sysfs, and kprobes on its functions.
"""

from __future__ import annotations

from typing import Any

from kstall.evidence import Evidence, Verdict

#: By turn: what it is about, the severity in aer_event, the first error and its name
#: among the counters, the second error.
_TURNS = (
    ("correctable", 2, 0x1, "correctable RxErr", 0x40),
    ("uncorrectable", 0, 0x4000, "nonfatal CmpltTO", 0x10000),
)


def overridden_error_is_reported(ev: Evidence) -> Verdict:
    """aer_event leaves out errors that are masked; the mask has both of a turn."""
    v = Verdict()
    load = ev.workload("override")
    turns = load.objects()
    v.equal("turns", len(turns), len(_TURNS))
    for turn, (kind, severity, error, counter, other) in zip(
        turns, _TURNS, strict=False
    ):
        mask = turn["mask"]
        v.equal(f"{kind}: writes that failed", sum(map(bool, turn["errors"])), 0)
        v.equal(f"{kind}: the mask has both", mask & (error | other), error | other)
        v.equal(f"{kind}: taken while it waits", turn["taken"], 0)
        v.equal(f"{kind}: mask while it waits", turn["pending"], mask & ~error)
        v.equal(f"{kind}: messages received", _received(turn), 1)
        statuses = load.values("aer_event", "status", severity=severity)
        v.equal(f"{kind}: status of aer_event", statuses, [error])
        _counted(v, kind, turn, counter, 1)
        v.equal(f"{kind}: mask afterwards", turn["after"], mask)
    v.equal("correctable mask written", turns[0]["written"], [])
    v.equal("uncorrectable mask written", turns[0]["uncor_written"], [])
    return v


def refused_error_is_forgotten(ev: Evidence) -> Verdict:
    """The first one is masked, the second one is not."""
    v = Verdict()
    load = ev.workload("refused")
    turns = load.objects()
    v.equal("turns", len(turns), len(_TURNS))
    for turn, (kind, severity, _, counter, other) in zip(turns, _TURNS, strict=False):
        v.equal(f"{kind}: the first one", turn["refusal"], "EINVAL")
        v.equal(f"{kind}: the second one failed", sum(map(bool, turn["errors"])), 0)
        statuses = load.values("aer_event", "status", severity=severity)
        v.equal(f"{kind}: status of aer_event", statuses, [other])
        _counted(v, kind, turn, counter, 0)
    return v


def _received(turn: dict[str, Any]) -> int:
    """Messages of either kind."""
    return sum(
        count
        for name, count in turn["grown"]["root"].items()
        if name.startswith("total_err_")
    )


def _counted(
    v: Verdict, kind: str, turn: dict[str, Any], counter: str, times: int
) -> None:
    """By how much a counter of the device grew; those that did not are left out."""
    (sender,) = turn["grown"].keys() - {"root"}
    name = counter.partition(" ")[2]
    v.equal(f"{kind}: {name} counted", turn["grown"][sender].get(counter, 0), times)
