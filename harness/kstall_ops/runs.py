# SPDX-License-Identifier: GPL-2.0-or-later
"""Which marks belong to one start of a job, as each start numbers its steps anew.

A directory may have recordings of several days, and a launcher restarts a job under the
same name.  Step 7 of one start and step 7 of the next are different collectives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import duckdb

from .window import ALL, Window, wall

_FAR = (1 << 63) - 1
#: SQL for the name of a process group, which is treated as a job by itself.
NAME = "coalesce(job, '') || ', process group ' || process_group"
#: A table for SQL: by thread, the number of the start to which its marks belong, and
#: between which times of its node's clock they are asked for.
TABLE = (
    "runs AS (SELECT unnest(?::STRUCT(job VARCHAR, rank INTEGER, sid VARCHAR, "
    "tid INTEGER, run INTEGER, w0 BIGINT, w1 BIGINT)[], recursive := true))"
)
# All collectives of a process belong to one start, whichever thread enqueued them.
_THREADS = f"""
WITH m AS (
    SELECT coalesce(job, '') AS job, rank, sid, tid, t, step FROM mark
    UNION ALL SELECT {NAME}, rank, sid, tgid, t, seq FROM collective
)
SELECT m.job, m.rank, m.sid, m.tid, min(m.t), max(m.t), min(m.step),
    max(m.step), any_value(s.boot_id),
    (SELECT min_by(t_real - t_mono, t_mono) FROM clock c WHERE c.sid = m.sid)
FROM m LEFT JOIN session s ON s.sid = m.sid WHERE m.rank IS NOT NULL
GROUP BY ALL ORDER BY m.job, min(m.t), m.rank, m.sid, m.tid
"""  # noqa: S608


class Thread(NamedTuple):
    """A thread with marks of a rank, and their range; for dumps, a process."""

    job: str
    rank: int
    #: All recordings that have some of them.
    sids: tuple[str, ...]
    tid: int
    begin: int
    end: int
    first: int
    last: int
    boot: str | None
    #: How far CLOCK_REALTIME is ahead; None if that was not recorded.
    ahead: int | None

    @property
    def real(self) -> tuple[int, int]:
        """Begin and end by CLOCK_REALTIME, which nodes have about right."""
        return self.begin + (self.ahead or 0), self.end + (self.ahead or 0)


class Worlds:
    """How many ranks a job has, by the environment of each of its processes.

    Another start of the job may have another number.
    """

    def __init__(self, opened: duckdb.DuckDBPyConnection) -> None:
        self._known: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for sid, pid, starttime, world in opened.execute(
            "SELECT sid, pid, coalesce(starttime, 0), world FROM proc "
            "WHERE pid = tgid AND world IS NOT NULL ORDER BY ALL"
        ).fetchall():
            self._known.setdefault((sid, pid), []).append((starttime, world))

    def of(self, sid: str, pid: int, t: int) -> int | None:
        """The number for the process that had this ``pid`` at ``t``, if it is known."""
        worlds = [
            world
            for starttime, world in self._known.get((sid, pid), ())
            if starttime <= t
        ]
        return worlds[-1] if worlds else None


class Runs(NamedTuple):
    """The rows for `TABLE`, and the names of starts of jobs that have several."""

    rows: list[dict[str, Any]]
    names: dict[str, list[str]]


def runs(opened: duckdb.DuckDBPyConnection, window: Window = ALL) -> Runs:
    """The starts of all jobs with marks, and of all process groups with dumps.

    Only marks in ``window`` are asked for.
    """
    asked = {span["sid"]: span for span in window.spans(opened)}
    threads = _threads(opened)
    result = Runs([], {})
    for job, group in itertools.groupby(threads, key=lambda thread: thread.job):
        starts = list(_starts(list(group)))
        if len(starts) > 1:
            result.names[job] = [
                _name(number, len(starts), start)
                for number, start in enumerate(starts, 1)
            ]
        for number, start in enumerate(starts):
            result.rows.extend(
                {
                    "job": thread.job,
                    "rank": thread.rank,
                    "sid": sid,
                    "tid": thread.tid,
                    "run": number,
                    **asked[sid],
                }
                for thread in start
                for sid in thread.sids
            )
    return result


def _threads(opened: duckdb.DuckDBPyConnection) -> list[Thread]:
    """All threads, by job; one that several recorders saw, one after another, once."""
    threads: dict[tuple[str, int, str, int], list[Thread]] = {}
    for job, rank, sid, *values in opened.execute(_THREADS).fetchall():
        thread = Thread(job, rank, (sid,), *values)
        known = threads.setdefault((job, rank, thread.boot or sid, thread.tid), [])
        # A step may be in two recordings if a recorder was restarted in it.
        if known and known[-1].last <= thread.first:
            before = known.pop()
            sids = (*before.sids, sid)
            thread = before._replace(sids=sids, end=thread.end, last=thread.last)
        known.append(thread)
    return [thread for known in threads.values() for thread in known]


def _starts(threads: Sequence[Thread]) -> Iterator[list[Thread]]:
    """Split threads into starts if step numbers repeat, as far as clocks allow that."""
    if not any(map(_again, _by_rank(threads).values())):
        yield list(threads)
        return
    # By order first, which is right even if a node's clock is an hour off.
    if numbered := _by_number(threads):
        yield from numbered
        return
    for together in _at_one_time(threads):
        yield from _by_number(together) or [together]


def _by_number(threads: Sequence[Thread]) -> list[list[Thread]]:
    """Match the n-th threads of all ranks; empty if that may be wrong.

    It is wrong if a rank lacks a start that others have: then the times between its
    starts differ from theirs.
    """
    ranks = [sorted(group, key=_when) for group in _by_rank(threads).values()]
    if len({len(group) for group in ranks}) > 1 or not all(map(_in_sequence, ranks)):
        return []
    between = [
        [_when(b) - _when(a) for a, b in itertools.pairwise(group)] for group in ranks
    ]
    if any(
        max(gaps) - min(gaps) > min(gaps) // 2 for gaps in zip(*between, strict=True)
    ):
        return []
    return list(map(list, zip(*ranks, strict=True)))


def _by_rank(threads: Iterable[Thread]) -> dict[int, list[Thread]]:
    ranks: dict[int, list[Thread]] = {}
    for thread in threads:
        ranks.setdefault(thread.rank, []).append(thread)
    return ranks


def _again(threads: Sequence[Thread]) -> bool:
    spans = sorted((thread.first, thread.last) for thread in threads)
    return any(a[1] >= b[0] for a, b in itertools.pairwise(spans))


def _when(thread: Thread) -> int:
    return thread.real[0]


def _at_one_time(threads: Sequence[Thread]) -> Iterator[list[Thread]]:
    """Threads whose times overlap; all together if one has no known time."""
    if any(thread.ahead is None for thread in threads):
        yield list(threads)
        return
    newest = {rank: max(group, key=_when) for rank, group in _by_rank(threads).items()}
    together: list[Thread] = []
    until = 0
    for thread in sorted(threads, key=_when):
        begin, end = thread.real
        if thread.begin == thread.end and thread is newest[thread.rank]:
            # It is in its first collective, where it may wait for long.
            end = _FAR
        if together and begin > until:
            yield together
            together = []
        until = max(until, end) if together else end
        together.append(thread)
    yield together


def _in_sequence(threads: Sequence[Thread]) -> bool:
    """Whether each had ended before the next began, by clocks that can be compared."""
    known = all(thread.ahead is not None for thread in threads)
    if not known and len({thread.boot for thread in threads}) > 1:
        return False
    return all(
        (a.real[1] < b.real[0]) if known else (a.end < b.begin)
        for a, b in itertools.pairwise(threads)
    )


def _name(number: int, count: int, threads: Sequence[Thread]) -> str:
    text = f"start {number} of {count}"
    if any(thread.ahead is None for thread in threads):
        return text
    return f"{text}, {wall(min(map(_when, threads)))}"
