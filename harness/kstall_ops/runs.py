# SPDX-License-Identifier: GPL-2.0-or-later
"""Which marks are of one start of a job: with each the numbers of steps begin anew.

A directory of recordings has yesterday's as well, and a launcher starts a job again
under the same name.  Step 7 of one start and step 7 of the next are no collective.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb

#: What the collectives of one process group are called, as a job of their own, in SQL.
NAME = "coalesce(job, '') || ', process group ' || process_group"
#: For a query that has `mark`: the number of the start that each thread's marks are of.
TABLE = (
    "runs AS (SELECT unnest(?::STRUCT(job VARCHAR, rank INTEGER, sid VARCHAR, "
    "tid INTEGER, run INTEGER)[], recursive := true))"
)
# What a process enqueued is of one start, whichever of its threads did it.
_THREADS = f"""
WITH m AS (
    SELECT coalesce(job, '') AS job, rank, sid, tid, t, step FROM mark
    UNION ALL SELECT {NAME}, rank, sid, tgid, t, seq FROM collective
)
SELECT m.job, m.rank, m.sid, m.tid, min(m.t), max(m.t), min(m.step),
    max(m.step), any_value(s.boot_id),
    (SELECT min_by(t_real - t_mono, t_mono) FROM clock c WHERE c.sid = m.sid)
FROM m LEFT JOIN session s ON s.sid = m.sid WHERE m.rank IS NOT NULL
GROUP BY ALL ORDER BY ALL
"""  # noqa: S608


class Thread(NamedTuple):
    """Who marked as a rank of a job, and from when to when; of dumps a process."""

    job: str
    rank: int
    sid: str
    tid: int
    begin: int
    end: int
    first: int
    last: int
    boot: str | None
    #: What CLOCK_REALTIME is ahead by; None if nobody looked.
    ahead: int | None

    @property
    def real(self) -> tuple[int, int]:
        """When, by a clock that all nodes have about right."""
        return self.begin + (self.ahead or 0), self.end + (self.ahead or 0)


class Runs(NamedTuple):
    """The rows for `TABLE`, and by job what each of several starts is called."""

    rows: list[dict[str, Any]]
    names: dict[str, list[str]]


def runs(opened: duckdb.DuckDBPyConnection) -> Runs:
    """Those of all jobs that have marks, and of all process groups that have dumps."""
    threads = [Thread(*row) for row in opened.execute(_THREADS).fetchall()]
    made = Runs([], {})
    for job, group in itertools.groupby(threads, key=lambda one: one.job):
        starts = list(_starts(list(group)))
        if len(starts) > 1:
            made.names[job] = [
                _name(number, len(starts), those)
                for number, those in enumerate(starts, 1)
            ]
        for number, those in enumerate(starts):
            made.rows.extend(
                {
                    **{"job": thread.job, "rank": thread.rank, "sid": thread.sid},
                    **{"tid": thread.tid, "run": number},
                }
                for thread in those
            )
    return made


def _starts(threads: Sequence[Thread]) -> Iterator[list[Thread]]:
    """Apart if numbers of steps come again, and as far as clocks tell them apart."""
    if not any(map(_again, _by_rank(threads).values())):
        yield list(threads)
        return
    # By number first: it is right as well if a clock is an hour off.
    if numbered := _by_number(threads):
        yield from numbered
        return
    for together in _at_one_time(threads):
        yield from _by_number(together) or [together]


def _by_number(threads: Sequence[Thread]) -> list[list[Thread]]:
    """The first of each rank, the second of each; none if that may be wrong.

    It is if one rank has other starts than another: then there is not the same time
    from one to the next.
    """
    ranks = [sorted(those, key=_when) for those in _by_rank(threads).values()]
    if len({len(those) for those in ranks}) > 1 or not all(map(_one_by_one, ranks)):
        return []
    between = [
        [_when(b) - _when(a) for a, b in itertools.pairwise(those)] for those in ranks
    ]
    if any(
        max(gaps) - min(gaps) > min(gaps) // 2 for gaps in zip(*between, strict=True)
    ):
        return []
    return list(map(list, zip(*ranks, strict=True)))


def _by_rank(threads: Iterable[Thread]) -> dict[int, list[Thread]]:
    found: dict[int, list[Thread]] = {}
    for thread in threads:
        found.setdefault(thread.rank, []).append(thread)
    return found


def _again(those: Sequence[Thread]) -> bool:
    # One step is in two recordings if a recorder was stopped and started in it.
    spans = sorted((thread.first, thread.last) for thread in those)
    return any(a[1] > b[0] for a, b in itertools.pairwise(spans))


def _when(thread: Thread) -> int:
    return thread.real[0]


def _at_one_time(threads: Sequence[Thread]) -> Iterator[list[Thread]]:
    """Those whose times touch; all, if of one it is not known when it was."""
    if any(thread.ahead is None for thread in threads):
        yield list(threads)
        return
    together: list[Thread] = []
    until = 0
    for thread in sorted(threads, key=_when):
        begin, end = thread.real
        if together and begin > until:
            yield together
            together = []
        until = max(until, end) if together else end
        together.append(thread)
    yield together


def _one_by_one(those: Sequence[Thread]) -> bool:
    """Whether one had ended before the next began, by clocks that can be compared."""
    known = all(thread.ahead is not None for thread in those)
    if not known and len({thread.boot for thread in those}) > 1:
        return False
    return all(
        (a.real[1] < b.real[0]) if known else (a.end < b.begin)
        for a, b in itertools.pairwise(those)
    )


def _name(number: int, count: int, those: Sequence[Thread]) -> str:
    text = f"start {number} of {count}"
    if any(thread.ahead is None for thread in those):
        return text
    began = datetime.fromtimestamp(min(map(_when, those)) / 1e9, UTC)
    return f"{text}, {began:%Y-%m-%d %H:%M:%S} UTC"
