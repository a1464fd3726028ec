# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether the rank that was last was that, or another one as late.

By its own clock each rank tells how long it waited, up to how far apart nodes leave a
collective.  What differs by less than a step has to be late is ordered by the clocks
of the nodes, if these are near enough to each other; if not, it is unordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import align
from .straggler import Arrival, Job


@dataclass(frozen=True)
class Rival:
    """A rank on another node that may have been last instead."""

    rank: int
    sid: str
    #: In which steps, as numbers.
    steps: tuple[int, ...]
    #: How far apart they can be told, at the worst; None if clocks are not aligned.
    within_ns: int | None


def rivals(
    job: Job,
    rank: int,
    clocks: Mapping[str, align.Clock],
    boots: Mapping[str, str],
) -> list[Rival]:
    """Of the steps that ``rank`` was late in, those of most steps first."""
    found: dict[int, list[tuple[int, str, int | None]]] = {}
    for step in job.late(rank):
        last = step.arrivals[rank]
        for other in step.arrivals.values():
            if other.rank == rank:
                continue
            same = boots.get(other.sid, other.sid) == boots.get(last.sid, last.sid)
            known = 0 if same else last.doubt + other.doubt
            # What was on one boot has one clock, and is ordered, if it has a time.
            exact = same and not (last.early + last.late + other.early + other.late)
            if other.wait - last.wait - known >= job.limit or exact:
                continue
            apart = _apart(last, other, None if same else clocks)
            if apart != 0:
                found.setdefault(other.rank, []).append((step.number, other.sid, apart))
    return sorted(
        (_rival(other, those) for other, those in found.items()),
        key=lambda one: (-len(one.steps), one.rank),
    )


def _apart(
    last: Arrival, other: Arrival, clocks: Mapping[str, align.Clock] | None
) -> int | None:
    """Within what they are unordered; 0 if clocks say that ``last`` was, too.

    Without ``clocks`` both are on one.
    """
    a, b = _between(last), _between(other)
    if clocks is not None:
        mine, theirs = clocks[last.sid], clocks[other.sid]
        if not (mine.known and theirs.known):
            return None
        a, b = _aligned(a, mine), _aligned(b, theirs)
    if align.order(a, b) == "after":
        return 0
    # Clocks may even say that the other one was: then they are so far apart.
    return max(1, a[1] + b[1], b[0] - a[0])


def _between(arrival: Arrival) -> tuple[int, int]:
    """The middle of when it may have arrived, and how far that may be off."""
    return arrival.enter + (arrival.late - arrival.early) // 2, (
        arrival.late + arrival.early + 1
    ) // 2


def _aligned(when: tuple[int, int], clock: align.Clock) -> tuple[int, int]:
    t, bound = clock.at(when[0])
    return t, bound + when[1]


def _rival(rank: int, those: Sequence[tuple[int, str, int | None]]) -> Rival:
    known = [apart for _, _, apart in those if apart is not None]
    return Rival(
        rank=rank,
        sid=those[0][1],
        steps=tuple(dict.fromkeys(number for number, _, _ in those)),
        within_ns=max(known) if len(known) == len(those) else None,
    )
