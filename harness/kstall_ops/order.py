# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a rank was really last, or another was about as late.

How long each rank waited is known by its own clock, up to how far apart nodes leave a
collective.  Waits that differ by less than the limit of lateness are ordered by the
clocks of the nodes, if their bounds are small enough; else they are unordered.
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
    #: The numbers of these steps.
    steps: tuple[int, ...]
    #: The largest difference that cannot be ordered; None if clocks are not aligned.
    within_ns: int | None


def rivals(
    job: Job,
    rank: int,
    clocks: Mapping[str, align.Clock],
    boots: Mapping[str, str],
) -> list[Rival]:
    """Rivals of ``rank`` in the steps in which it was late, most steps first."""
    rivals: dict[int, list[tuple[int, str, int | None]]] = {}
    for step in job.late(rank):
        last = step.arrivals[rank]
        for other in step.arrivals.values():
            if other.rank == rank:
                continue
            same = boots.get(other.sid, other.sid) == boots.get(last.sid, last.sid)
            known = 0 if same else last.doubt + other.doubt
            # Ranks of one boot share a clock, which orders arrivals at known times.
            exact = same and not (last.early + last.late + other.early + other.late)
            if other.wait - last.wait - known >= job.limit or exact:
                continue
            apart = _apart(last, other, None if same else clocks)
            if apart != 0:
                rival = (step.number, other.sid, apart)
                rivals.setdefault(other.rank, []).append(rival)
    return sorted(
        (_rival(other, entries) for other, entries in rivals.items()),
        key=lambda rival: (-len(rival.steps), rival.rank),
    )


def _apart(
    last: Arrival, other: Arrival, clocks: Mapping[str, align.Clock] | None
) -> int | None:
    """How far apart they may be, unordered; 0 if clocks agree that ``last`` was last.

    Without ``clocks`` both are on the same clock; None if clocks are not aligned.
    """
    a, b = _between(last), _between(other)
    if clocks is not None:
        mine, theirs = clocks[last.sid], clocks[other.sid]
        if not (mine.known and theirs.known):
            return None
        a, b = _aligned(a, mine), _aligned(b, theirs)
    if align.order(a, b) == "after":
        return 0
    # By the clocks ``other`` may even have been last, by this much.
    return max(1, a[1] + b[1], b[0] - a[0])


def _between(arrival: Arrival) -> tuple[int, int]:
    """The middle of the interval in which it arrived, and half of its length."""
    return arrival.enter + (arrival.late - arrival.early) // 2, (
        arrival.late + arrival.early + 1
    ) // 2


def _aligned(when: tuple[int, int], clock: align.Clock) -> tuple[int, int]:
    t, bound = clock.at(when[0])
    return t, bound + when[1]


def _rival(rank: int, entries: Sequence[tuple[int, str, int | None]]) -> Rival:
    known = [apart for _, _, apart in entries if apart is not None]
    return Rival(
        rank=rank,
        sid=entries[0][1],
        steps=tuple(dict.fromkeys(number for number, _, _ in entries)),
        within_ns=max(known) if len(known) == len(entries) else None,
    )
