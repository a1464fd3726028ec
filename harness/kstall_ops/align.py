# SPDX-License-Identifier: GPL-2.0-or-later
"""The clocks of nodes on one scale, each with a bound, and what the bound forbids.

There are three methods: pings through the agent's pipe (the shortest for each peer;
half its round trip bounds the error), CLOCK_REALTIME with adjtimex's error, and shared
collectives: no rank leaves an all-reduce before the last has entered it, which bounds
the offset from both sides.  Each has a scale of its own, so one is used for all nodes:
of the first two that which bounds most of them more closely, of those for which all
nodes have data, else the third.  Collectives also refute the other two methods.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

#: CLOCK_MONOTONIC is slewed by at most 500 ppm, and a crystal is 100 ppm off.
_PPM = 600e-6
Order = Literal["before", "after", "unordered"]


@dataclass(frozen=True)
class Point:
    """At ``t`` of a node, ``t + offset`` is the reference's time, up to ``bound``."""

    t: int
    offset: int
    bound: int


@dataclass(frozen=True)
class Clock:
    """How to convert a session's times to the reference's; unknown without points."""

    sid: str
    method: str
    points: tuple[Point, ...] = ()
    refuted: bool = False

    @property
    def known(self) -> bool:
        """Whether its times can be compared with times of other sessions."""
        return bool(self.points) and not self.refuted

    def at(self, t: int) -> tuple[int, int]:
        """(reference's time, bound) of the node's ``t``; linear between points."""
        first, last = self.points[0], self.points[-1]
        if first.t == last.t:
            far = int(abs(t - first.t) * _PPM)
            return t + first.offset, first.bound + far
        slope = (last.offset - first.offset) / (last.t - first.t)
        offset = first.offset + round((t - first.t) * slope)
        bound = max(first.bound, last.bound)
        outside = max(first.t - t, t - last.t, 0)
        return t + offset, bound + round(outside * 2 * bound / (last.t - first.t))


@dataclass(frozen=True)
class Collective:
    """When one rank entered and left one collective, on its node's clock."""

    sid: str
    job: str
    step: int
    enter: int
    exit: int


#: The reference clock, which has no offset and no drift.
_ITSELF = (Point(0, 0, 0), Point(1, 0, 0))


def order(a: tuple[int, int], b: tuple[int, int]) -> Order:
    """The order of two (time, bound) pairs of different nodes."""
    if abs(a[0] - b[0]) <= a[1] + b[1]:
        return "unordered"
    return "before" if a[0] < b[0] else "after"


def clocks(
    sids: Sequence[str],
    rows: Iterable[
        tuple[str, int, int | None, str | None, int | None, int | None, str]
    ],
    shared: Sequence[Collective],
    boots: Mapping[str, str] | None = None,
) -> dict[str, Clock]:
    """A clock for each of ``sids``; ``rows`` are rows of the table `clock`.

    Sessions with the same boot in ``boots`` share a clock.
    """
    pings: dict[str, dict[str, list[Point]]] = {}
    real: dict[str, list[Point]] = {}
    times: dict[str, list[int]] = {}
    for sid, t, t_real, peer, offset, bound, method in rows:
        times.setdefault(sid, []).append(t)
        if method == "ping" and peer and offset is not None and bound is not None:
            pings.setdefault(peer, {}).setdefault(sid, []).append(
                Point(t, offset, bound)
            )
        elif t_real is not None and bound is not None:
            real.setdefault(sid, []).append(Point(t, t_real - t, bound))
    everyone = set(sids)
    boots = boots or {}
    if len({boots.get(sid, sid) for sid in everyone}) <= 1:
        return {sid: Clock(sid, "same", _ITSELF) for sid in sids}
    ways: list[tuple[str, Mapping[str, list[Point]]]] = [
        ("ping", points) for _, points in sorted(pings.items())
    ]
    ways.append(("adjtimex", real))
    made = [
        {sid: _clock(sid, method, points[sid]) for sid in sids}
        for method, points in ways
        if everyone <= points.keys()
    ]
    if not made:
        return _by_collectives(sids, shared)
    asked: dict[str, list[int]] = {}
    for collective in shared:
        asked.setdefault(collective.sid, []).append(collective.enter)
    times |= asked
    return _refuted(min(made, key=lambda aligned: _usual(aligned, times)), shared)


def _usual(clocks: Mapping[str, Clock], times: Mapping[str, Sequence[int]]) -> float:
    """The largest bound at the ``times`` of a session, for most of the sessions."""
    return statistics.median_high(
        max(clock.at(t)[1] for t in (min(times[sid]), max(times[sid])))
        if clock.points
        else math.inf
        for sid, clock in clocks.items()
    )


def _clock(sid: str, method: str, points: list[Point]) -> Clock:
    """A clock through ``points``; unknown if one of them is off by more than bounds."""
    clock = Clock(sid, method, _best(points))
    for point in points:
        when, bound = clock.at(point.t)
        if abs(when - point.t - point.offset) > bound + point.bound:
            return Clock(sid, f"{method}: it was set, or jumped")
    return clock


def _best(points: list[Point]) -> tuple[Point, ...]:
    """The tightest point of the first half and of the second; or one of them."""
    points = sorted(points, key=lambda point: point.t)
    half = max(1, len(points) // 2)
    first = min(points[:half], key=lambda point: point.bound)
    last = min(points[half:] or points, key=lambda point: point.bound)
    # If they are near to each other, their difference is noise and not drift; if it is
    # larger than drift can be, one of them is wrong.
    span = (last.t - first.t) * _PPM
    far = abs(last.offset - first.offset) > 2 * span + first.bound + last.bound
    if far or span < first.bound + last.bound:
        return (min(first, last, key=lambda point: point.bound),)
    return (first, last)


def _pairs(
    shared: Sequence[Collective],
) -> dict[tuple[str, int], list[Collective]]:
    pairs: dict[tuple[str, int], list[Collective]] = {}
    for collective in shared:
        pairs.setdefault((collective.job, collective.step), []).append(collective)
    return pairs


def _refuted(
    clocks: dict[str, Clock], shared: Sequence[Collective]
) -> dict[str, Clock]:
    """Mark clocks by which a rank left a collective before another had entered it."""
    wrong: set[str] = set()
    # A clock that jumped has no points, so there is nothing to refute.
    known = [collective for collective in shared if clocks[collective.sid].points]
    for group in _pairs(known).values():
        entered = [
            (clocks[collective.sid].at(collective.enter), collective.sid)
            for collective in group
        ]
        last, who = max(entered)
        for collective in group:
            left = clocks[collective.sid].at(collective.exit)
            if collective.sid != who and order(left, last) == "before":
                wrong |= {collective.sid, who}
    return {
        sid: Clock(sid, clock.method, clock.points, sid in wrong)
        for sid, clock in clocks.items()
    }


def _by_collectives(
    sids: Sequence[str], shared: Sequence[Collective]
) -> dict[str, Clock]:
    reference = sids[0]
    # By session: with a thousand sessions, a search for each would take too long.
    own: dict[str, list[Collective]] = {}
    for collective in shared:
        own.setdefault(collective.sid, []).append(collective)
    others = _pairs(own.get(reference, ()))
    clocks = {reference: Clock(reference, "reference", _ITSELF)}
    for sid in sids[1:]:
        lows: list[int] = []
        highs: list[int] = []
        times: list[int] = []
        for mine in own.get(sid, ()):
            for theirs in others.get((mine.job, mine.step), ()):
                lows.append(theirs.enter - mine.exit)
                highs.append(theirs.exit - mine.enter)
                times.append(mine.exit)
        if not lows or max(lows) > min(highs):
            # The clocks have drifted apart meanwhile, or share no collective.
            clocks[sid] = Clock(sid, "unknown")
            continue
        low, high = max(lows), min(highs)
        offset, bound = (low + high) // 2, (high - low + 1) // 2
        # The offset holds from the first to the last shared collective.
        ends = sorted({min(times), max(times)})
        points = tuple(Point(t, offset, bound) for t in ends)
        clocks[sid] = Clock(sid, "collective", points)
    return clocks
