# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rank was late at imported collectives, each process group by itself.

With timing on all ranks, a rank waited while its device was in the collective: the rank
with the shortest time arrived last, by its own clock.  Without timing only the host's
times are known, which are compared by the nodes' clocks: the late rank enqueued last.
Its device may have started later still, so others may not have waited for this rank.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import duckdb

from .align import Clock
from .errors import shown
from .rules import Rules
from .runs import NAME, TABLE, Runs
from .straggler import Arrival, Job, Step, ranks_named, union

_ROWS = f"""
WITH {TABLE}, c AS (SELECT *, {NAME} AS name FROM collective)
SELECT c.name, r.run, coalesce(c.job, ''), c.process_group, c.seq, c.rank, c.sid,
    coalesce(s.boot_id, c.sid), c.tid, c.tgid, c.thread, c.world, c.op, c.t, c.bound,
    c.started_by, c.ended_by, c.lasted
FROM c JOIN runs r ON c.name = r.job AND c.rank = r.rank AND c.sid = r.sid
    AND c.tgid = r.tid LEFT JOIN session s ON s.sid = c.sid
QUALIFY bool_or(c.t >= r.w0 AND c.t < r.w1) OVER (PARTITION BY c.name, r.run, c.seq)
ORDER BY c.name, r.run, c.seq, c.rank
"""  # noqa: S608
#: A rank that waited for this share of its lateness in another group is late for that.
_ELSEWHERE = 0.5
#: If this share of collectives has timing, those without it are left out.
_TIMED = 0.5


class _Row(NamedTuple):
    name: str
    run: int
    of: str
    group: str
    seq: int
    rank: int
    sid: str
    boot: str
    tid: int | None
    tgid: int
    thread: str | None
    world: int | None
    op: str
    t: int
    bound: int
    started_by: int | None
    ended_by: int | None
    lasted: int | None


def jobs(
    opened: duckdb.DuckDBPyConnection,
    limits: Rules,
    starts: Runs,
    clocks: Mapping[str, Clock],
) -> list[Job]:
    """A `Job` for each process group of each start, by name."""
    groups: dict[tuple[str, int], list[_Row]] = {}
    for values in opened.execute(_ROWS, [starts.rows]).fetchall():
        row = _Row(*values)
        groups.setdefault((row.name, row.run), []).append(row)
    jobs = []
    for (name, run), rows in groups.items():
        job = _job(name, rows, clocks, limits)
        if name in starts.names:
            job.start = starts.names[name][run]
        jobs.append(job)
    for job in jobs:
        _waits_elsewhere(job, [other for other in jobs if other.of == job.of], limits)
    return jobs


def _job(
    name: str, rows: Sequence[_Row], clocks: Mapping[str, Clock], limits: Rules
) -> Job:
    ranks = tuple(sorted({row.rank for row in rows}))
    worlds = [row.world for row in rows if row.world is not None]
    job = Job(name, ranks, [], world=max(worlds, default=None))
    job.group, job.of = rows[0].group, rows[0].of
    job.uncounted = job.world is None
    job.silent = max(0, (job.world or 0) - len(ranks))
    whole = _whole(rows, job)
    timed = [group for group in whole if all(row.lasted is not None for row in group)]
    by_device = bool(timed) and len(timed) >= _TIMED * len(whole)
    job.by_host = not by_device and any(_is_queued(row.op) for row in rows)
    if by_device:
        _left_out(job, len(whole) - len(timed), "not all ranks timed them")
        steps = [(group[0].seq, _by_device(group)) for group in timed]
    else:
        steps = list(_by_clocks(whole, clocks))
        away = sum(not arrivals for _, arrivals in steps)
        _left_out(job, away, "the clocks of their nodes are not aligned")
    _steps(job, steps, limits)
    _describe(job, rows, by_device=by_device)
    return job


def _steps(
    job: Job, collectives: Iterable[tuple[int, Sequence[Arrival]]], limits: Rules
) -> None:
    """Make steps, each from the end of the last; the first has no known beginning."""
    released: dict[int, int] = {}
    entered: dict[int, int] = {}
    lengths: list[int] = []
    for number, arrivals in collectives:
        if not arrivals:
            continue
        step = Step(
            number,
            {
                arrival.rank: dataclasses.replace(
                    arrival, since=released.get(arrival.rank)
                )
                for arrival in arrivals
            },
        )
        if released:
            lengths += [arrival.enter - entered[arrival.rank] for arrival in arrivals]
            job.steps.append(step)
        released = {arrival.rank: arrival.released for arrival in arrivals}
        entered = {arrival.rank: arrival.enter for arrival in arrivals}
    job.median = int(statistics.median(lengths)) if lengths else 0
    job.limit = max(limits.late_min_ns, int(limits.late_share * job.median))


def _whole(rows: Iterable[_Row], job: Job) -> list[list[_Row]]:
    """The collectives with all ranks; remarks of the job say why others are omitted."""
    groups: dict[int, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.seq, []).append(row)
    whole = []
    twice = unlike = absent = 0
    lacking: collections.Counter[int] = collections.Counter()
    for _, group in sorted(groups.items()):
        if len({row.rank for row in group}) < len(group):
            twice += 1
        elif len({row.op for row in group}) > 1:
            unlike += 1
        elif len(group) < len(job.ranks):
            absent += 1
            lacking.update(set(job.ranks) - {row.rank for row in group})
        else:
            whole.append(group)
    _left_out(job, twice, "two processes say they are the same rank")
    _left_out(job, unlike, "ranks disagree on what they are")
    most = max(lacking.values(), default=0)
    who = ranks_named(sorted(rank for rank, count in lacking.items() if count == most))
    _left_out(
        job,
        absent,
        f"they are not in the dumps of all ranks, {most} not in what {who} left: dumps "
        "of one time have more in common",
    )
    return whole


def _waits_elsewhere(job: Job, jobs: Iterable[Job], limits: Rules) -> None:
    """Note which late ranks waited in another group before, longer than usual.

    That is why such a rank is late here; stalls of its thread do not explain it.
    """
    for rank in job.ranks:
        late = {step.number for step in job.late(rank)}
        if len(late) < limits.late_steps:
            continue
        lateness = sum(step.lateness(rank) for step in job.late(rank))
        for other in jobs:
            if other is job or rank not in other.ranks:
                continue
            waits = _waits(job, rank, other)
            usual = statistics.median(
                [wait for number, wait in waits if number not in late] or [0]
            )
            more = sum(max(0, wait - usual) for number, wait in waits if number in late)
            if more < _ELSEWHERE * lateness:
                continue
            group = shown(other.group)
            text = f"waited {more / 1e6:.1f} ms longer than else in process group"
            job.remarks.append(
                f"rank {rank} {text} {group} before it was late here: look there for "
                "who was waited for; no claim on it is more than `coincides`"
            )
            caps = job.caps.get(rank, ())
            job.caps[rank] = (*caps, f"it {text} {group}, before")


def _waits(job: Job, rank: int, other: Job) -> list[tuple[int, int]]:
    """(number of a step, how long ``rank`` waited in ``other`` before it)."""
    spans = sorted(
        (arrival.enter, arrival.released)
        for step in other.steps
        if (arrival := step.arrivals.get(rank)) is not None
    )
    begins = [begin for begin, _ in spans]
    ends = list(itertools.accumulate((end for _, end in spans), max))
    waits = []
    for step in job.steps:
        arrival = step.arrivals[rank]
        assert arrival.since is not None
        first = bisect.bisect_right(ends, arrival.since)
        last = bisect.bisect_left(begins, arrival.enter)
        waits.append(
            (step.number, union(spans[first:last], arrival.since, arrival.enter))
        )
    return waits


def _left_out(job: Job, count: int, why: str) -> None:
    if count:
        job.remarks.append(f"{count} steps are left out: {why}")


def _is_queued(op: str) -> bool:
    """Whether a device executes it later, from a queue, rather than the host at once.

    Gloo's threads begin with it when it is enqueued, so other ranks wait for that.
    """
    return not op.startswith("gloo:")


def _by_device(group: Sequence[_Row]) -> list[Arrival]:
    """Arrivals by each rank's own clock: it waited while its device was in it."""
    arrivals = []
    for row in group:
        assert row.lasted is not None and row.ended_by is not None
        # The device may have entered it later than the host, at the latest by then.
        latest = row.ended_by - row.lasted
        if row.started_by is not None:
            latest = min(latest, row.started_by)
        late = max(0, latest - row.t)
        arrival = _arrival(row, row.lasted)
        arrivals.append(
            dataclasses.replace(arrival, early=row.bound, late=row.bound + late)
        )
    return arrivals


def _by_clocks(
    whole: Iterable[Sequence[_Row]], clocks: Mapping[str, Clock]
) -> Iterator[tuple[int, list[Arrival]]]:
    """Arrivals that wait until the last rank enqueued; none if clocks are not aligned.

    If a rank enqueues several at once, it waits for the first, and for the next only
    after the last rank has enqueued the first.
    """
    before: int | None = None
    for group in whole:
        one_boot = len({row.boot for row in group}) == 1
        if not one_boot and not all(clocks[row.sid].known for row in group):
            yield group[0].seq, []
            continue
        times = [(row.t, 0) if one_boot else clocks[row.sid].at(row.t) for row in group]
        last = max(when for when, _ in times)
        arrivals = []
        for row, (when, bound) in zip(group, times, strict=True):
            ahead = 0 if before is None else max(0, min(before, last) - when)
            arrival = _arrival(row, last - when - ahead, ahead)
            if not one_boot:
                blur = row.bound
                arrival = dataclasses.replace(
                    arrival, doubt=bound + blur, early=blur, late=blur
                )
            arrivals.append(arrival)
        before = last
        yield group[0].seq, arrivals


def _arrival(row: _Row, wait: int, ahead: int = 0) -> Arrival:
    """The arrival of a row that waits for ``wait``; its real end may be later.

    ``ahead`` is how long the collective before it lasted after it was enqueued.
    """
    enter = row.t + ahead
    end = enter + wait
    return Arrival(
        rank=row.rank,
        sid=row.sid,
        tid=row.tid,
        tgid=row.tgid,
        since=None,
        enter=enter,
        exit=end,
        released=end,
        boot=row.boot,
    )


def _describe(job: Job, rows: Sequence[_Row], *, by_device: bool) -> None:
    """Add remarks on what is known of the collectives, and what caps all claims."""
    source = (
        "imported from dumps of the Flight Recorder, where each collective is a step"
    )
    how = "a rank arrives when its host enqueues it, if its tensors are not on a GPU"
    if by_device:
        how = "a rank waits for as long as its device is in it"
    elif job.by_host:
        how = (
            "when hosts enqueued it is known, not whether devices waited for that "
            "(TORCH_NCCL_ENABLE_TIMING=1 records it): no claim is more than `coincides`"
        )
    remarks = [f"{source}: {how}"]
    if job.uncounted:
        remarks.append(
            "the number of ranks in the process group is not in the dumps: a rank "
            "without a dump may be the late one"
        )
    elif job.silent:
        remarks.append(
            f"dumps of {len(job.ranks)} of {job.world} ranks: a rank that is missing "
            "may be the one that was late; import its dump, too"
        )
    doubts = [arrival.doubt for step in job.steps for arrival in step.arrivals.values()]
    if 2 * max(doubts, default=0) > job.limit:
        remarks.append(
            f"clocks of its nodes can be compared up to {max(doubts) / 1e6:.1f} ms "
            "each: who was less late than both is not seen to be late"
        )
    caps: dict[int, list[str]] = {rank: [] for rank in job.ranks}
    if job.by_host:
        for rank in job.ranks:
            caps[rank].append("whether devices waited for its host is not in the dumps")
    for thread, who, cap in (
        ("assumed", "the first of its process is assumed", "the first is assumed"),
        (None, "but not the first of its process", "it was not the first"),
    ):
        ranks = sorted({row.rank for row in rows if row.thread == thread})
        if ranks:
            remarks.append(
                f"{ranks_named(ranks)}: which thread enqueued is not in the dumps, "
                f"{who}: no claim is more than `coincides`"
            )
        for rank in ranks:
            caps[rank].append(f"which thread enqueued is not in its dump: {cap}")
    job.caps = {rank: tuple(reasons) for rank, reasons in caps.items() if reasons}
    job.remarks = [*remarks, *job.remarks]
