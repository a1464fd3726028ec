# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rank was late, by its own clock alone: the rank that waits least arrived last.

No clocks of nodes are compared: how long a rank waits in a collective is a difference
of two times of one clock, and the waits of all ranks end together.  They end when the
first rank on that clock leaves: a rank that leaves later was delayed after the wait.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import duckdb

from .rules import Rules
from .runs import TABLE, Runs, Worlds, runs

_PARTS = 12
_MARKS = f"""
WITH {TABLE}, numbered AS (
    SELECT m.*, r.run, r.w0, r.w1, row_number() OVER (
        PARTITION BY m.sid, m.tid, m.job, m.rank, step, phase ORDER BY t) AS nth
    FROM mark m JOIN runs r ON coalesce(m.job, '') = r.job AND m.rank = r.rank
        AND m.sid = r.sid AND m.tid = r.tid
), pairs AS (
    SELECT coalesce(e.job, '') AS job, e.rank, e.step, e.nth, e.sid, e.tid, e.tgid,
        e.run, e.t AS entered, x.t AS left_at,
        min(x.t) OVER (PARTITION BY coalesce(e.job, ''), e.run, e.step, e.nth,
            coalesce(s.boot_id, e.sid)) AS released,
        bool_or(x.t >= e.w0 AND e.t < e.w1) OVER (
            PARTITION BY coalesce(e.job, ''), e.run, e.step, e.nth) AS asked
    FROM numbered e JOIN numbered x ON e.sid = x.sid AND e.tid = x.tid
        AND e.job IS NOT DISTINCT FROM x.job AND e.rank = x.rank
        AND e.step = x.step AND e.nth = x.nth
        LEFT JOIN session s ON s.sid = e.sid
    WHERE e.phase = 'enter' AND x.phase = 'exit'
)
SELECT job, run, rank, step, nth, sid, tid, tgid, entered, left_at, released,
    lag(released) OVER (PARTITION BY job, rank, sid, tid ORDER BY entered) AS since
FROM pairs QUALIFY asked ORDER BY job, run, step, nth, rank
"""  # noqa: S608


@dataclass(frozen=True)
class Arrival:
    """One rank at one collective; ``since`` is when it could leave the previous one.

    ``kept`` is how long its thread was stalled inside, as far as that is known.
    """

    rank: int
    sid: str
    #: None if it is not known which thread of the process it was.
    tid: int | None
    tgid: int
    since: int | None
    enter: int
    exit: int
    released: int
    kept: int = 0
    boot: str | None = None
    #: By how much its wait may be wrong, compared with a rank of another boot.
    doubt: int = 0
    #: How much before ``enter`` it may have arrived, and how much after.
    early: int = 0
    late: int = 0

    @property
    def wait(self) -> int:
        """How long it waited for other ranks."""
        return self.released - self.enter


@dataclass(frozen=True)
class Step:
    """One collective that all ranks took part in."""

    number: int
    arrivals: dict[int, Arrival]

    def lateness(self, rank: int) -> int:
        """How much later than the first rank this rank arrived, at least."""
        mine = self.arrivals[rank]
        late = self._longest - mine.doubt - mine.wait
        if mine.doubt:
            late = max(late, self._beside[mine.boot] - mine.wait)
        return max(0, late)

    @functools.cached_property
    def _longest(self) -> int:
        # A thread that stalls inside leaves late, without having waited for others.
        return max(
            arrival.wait - arrival.kept - arrival.doubt
            for arrival in self.arrivals.values()
        )

    @functools.cached_property
    def _beside(self) -> dict[str | None, int]:
        """The longest wait on each boot, whose ranks share a clock."""
        longest: dict[str | None, int] = {}
        for arrival in self.arrivals.values():
            longest[arrival.boot] = max(
                arrival.wait, longest.get(arrival.boot, arrival.wait)
            )
        return longest

    @functools.cached_property
    def last(self) -> int:
        """The rank that waited least."""
        waits = [(arrival.wait, arrival.rank) for arrival in self.arrivals.values()]
        return min(waits)[1]


@dataclass
class Job:
    """The steps of one job, and what is not known from its marks."""

    name: str
    ranks: tuple[int, ...]
    steps: list[Step]
    remarks: list[str] = field(default_factory=list)
    #: Median length of a step, and the least lateness that makes a rank late.
    median: int = 0
    limit: int = 0
    #: How many ranks have no marks; one of them may be the late rank.
    silent: int = 0
    #: Which of several starts it is, as text.
    start: str = ""
    #: How many ranks it has; None if that is not known.
    world: int | None = None
    #: Missing recordings that may have ranks of it, as text.
    unseen: str = ""
    #: The process group if its collectives were imported from dumps: `enqueued`.
    group: str | None = None
    #: The job of this process group, or the name of this job.
    of: str = ""
    #: Whether it is not known how many ranks take part.
    uncounted: bool = False
    #: Whether only the times of hosts are known, not what devices waited for.
    by_host: bool = False
    #: By rank, why no claim on it can be of the highest level.
    caps: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """Whether it may have ranks that are not known."""
        return bool(self.silent or self.unseen or self.uncounted)

    @property
    def word(self) -> str:
        """The word for a rank that came last."""
        return "late to enqueue" if self.by_host else "late"

    def late(self, rank: int) -> list[Step]:
        """The steps in which this rank was last, by the limit or more."""
        return [self.steps[at] for at in self.late_at(rank)]

    def late_at(self, rank: int) -> list[int]:
        """As `late`, but their positions."""
        return [
            at
            for at, step in enumerate(self.steps)
            if step.last == rank and step.lateness(rank) >= self.limit
        ]

    def run(self, rank: int) -> float:
        """The probability of its longest run of late steps, if any rank may be last."""
        longest = length = 0
        for step in self.steps:
            late = step.last == rank and step.lateness(rank) >= self.limit
            length = length + 1 if late else 0
            longest = max(longest, length)
        return min(1.0, len(self.steps) * (1 / len(self.ranks)) ** longest)

    def late_steps(self) -> list[Step]:
        """The steps in which any rank was late."""
        return [step for step in self.steps if step.lateness(step.last) >= self.limit]


def jobs(
    opened: duckdb.DuckDBPyConnection, limits: Rules, starts: Runs | None = None
) -> list[Job]:
    """All jobs that have marks, by name; ``starts`` if those are known already."""
    groups: dict[tuple[str, int], dict[tuple[int, int], list[Arrival]]] = {}
    starts = starts or runs(opened)
    # A step may have several collectives, the n-th of which is one for all ranks.
    for row in opened.execute(_MARKS, [starts.rows]).fetchall():
        job, run, rank, step, nth, sid, tid, tgid, enter, left, released, since = row
        arrival = Arrival(rank, sid, tid, tgid, since, enter, left, released)
        groups.setdefault((job, run), {}).setdefault((step, nth), []).append(arrival)
    worlds = Worlds(opened)
    jobs: list[Job] = []
    for (name, run), steps in sorted(groups.items()):
        processes = {
            (arrival.sid, arrival.tgid): arrival.enter
            for arrivals in steps.values()
            for arrival in arrivals
        }
        known = [worlds.of(*process, t) for process, t in processes.items()]
        world = max(filter(None, known), default=None)
        job = _job(name, steps, world, limits)
        if name in starts.names:
            job.start = starts.names[name][run]
        jobs.append(job)
    return jobs


def _job(
    name: str,
    groups: dict[tuple[int, int], list[Arrival]],
    world: int | None,
    limits: Rules,
) -> Job:
    ranks = tuple(
        sorted({arrival.rank for group in groups.values() for arrival in group})
    )
    job = Job(name, ranks, [], world=world, of=name)
    if world is not None and world > len(ranks):
        job.silent = world - len(ranks)
        job.remarks.append(
            f"marks of {len(ranks)} of {world} ranks: a rank that is missing may be "
            "the one that was late; seal the recordings of its node, too"
        )
    backwards = twice = missing = 0
    for (step, _), group in sorted(groups.items()):
        if any(arrival.wait < 0 for arrival in group):
            backwards += 1
        elif len({arrival.rank for arrival in group}) < len(group):
            twice += 1
        elif len(group) < len(ranks):
            missing += 1
        else:
            job.steps.append(Step(step, {arrival.rank: arrival for arrival in group}))
    for count, what in (
        (backwards, "one left before all had entered: the marks are damaged"),
        (twice, "two processes say they are the same rank"),
        (missing, "marks of some ranks are missing"),
    ):
        if count:
            job.remarks.append(f"{count} steps are left out: {what}")
    lengths = [
        arrival.exit - arrival.since
        for step in job.steps
        for arrival in step.arrivals.values()
        if arrival.since is not None
    ]
    # The beginning of the first step is not known.
    job.steps = [
        step
        for step in job.steps
        if all(arrival.since is not None for arrival in step.arrivals.values())
    ]
    job.median = int(statistics.median(lengths)) if lengths else 0
    job.limit = max(limits.late_min_ns, int(limits.late_share * job.median))
    return job


def chance(count: int, total: int, ranks: int) -> float:
    """The probability that a rank is last in ``count`` of ``total`` steps or more."""
    if ranks < 2:
        return 1.0
    yes, no = math.log(1 / ranks), math.log(1 - 1 / ranks)
    whole = math.lgamma(total + 1)
    return math.fsum(
        math.exp(
            whole
            - math.lgamma(k + 1)
            - math.lgamma(total - k + 1)
            + k * yes
            + (total - k) * no
        )
        for k in range(count, total + 1)
    )


def union(intervals: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    """How much of ``begin`` to ``end`` is covered by the union of the intervals."""
    covered, at = 0, begin
    for start, stop in sorted(intervals):
        fresh = min(stop, end) - max(start, at)
        if fresh > 0:
            covered += fresh
            at = min(stop, end)
    return covered


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as text, such as `0-3, 7`; a long list is cut."""
    parts: list[str] = []
    start = before = None
    for rank in [*sorted(ranks), None]:
        if start is not None and before is not None and rank != before + 1:
            parts.append(str(start) if start == before else f"{start}-{before}")
            start = None
        start = rank if start is None else start
        before = rank
    if len(parts) > _PARTS:
        parts[_PARTS:] = [f"… {max(ranks)}"]
    return ", ".join(parts)


def ranks_named(ranks: Sequence[int]) -> str:
    """`rank 1`, or `ranks 0-2`."""
    return f"rank{'s' * (len(ranks) != 1)} {ranks_text(ranks)}"
