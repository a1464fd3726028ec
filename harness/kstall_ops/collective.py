# SPDX-License-Identifier: GPL-2.0-or-later
"""Import of Flight Recorder dumps into a store: to which process they belong, and when.

A dump names neither node nor process.  Its file's name ends in the rank, and its times
are CLOCK_REALTIME; a recording knows the processes of ranks, and pairs of that clock
and its own.  Collectives outside of all recordings of such a process are left out.
"""

from __future__ import annotations

import bisect
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import duckdb

from . import files, flight, missing, store
from .errors import NotADump, shown
from .flight import Collective, Dump
from .recording import digest
from .straggler import ranks_named

_FAR = (1 << 63) - 1
#: If the offset changes by more between two pairs, the real clock was set in between.
_SET = 1_000_000
#: The two readings of a pair are up to so far apart; /proc counts in 10 ms.
_READ, _TICK = 1000, 10_000_000
#: How long after the last pair, or before the first, its offset is taken to hold.
_BEYOND = 20_000_000_000
#: A process may own a dump if it has this share of the collectives of the best match.
_MOST = 0.9
#: A process that trains has so many threads: of PyTorch, of NCCL, of the driver.
_TRAINS = 8
#: The start times of one process, as seen by two recorders, differ by less.
_SAME = 1_000_000_000
#: How the thread of a collective is known, the surest first: by its stack it is the
#: process's first; only one thread has that name; the first thread is assumed.
THREADS = ("stack", "name", "assumed")
_PROCESSES = """
SELECT DISTINCT p.sid, s.node, s.boot_id, p.pid, p.starttime,
    max(p.ended) OVER (PARTITION BY p.sid, p.pid, p.starttime),
    coalesce(p.job, ''), p.world, s.began, s.ended
FROM proc p JOIN session s USING (sid) WHERE p.rank = ? AND p.pid = p.tgid
ORDER BY p.starttime, s.began, p.sid
"""


class Row(NamedTuple):
    """A row of the table `collective`."""

    id: int
    sid: str
    t: int
    bound: int
    tid: int | None
    tgid: int
    thread: str | None
    job: str | None
    rank: int
    world: int | None
    process_group: str
    seq: int
    op: str
    started_by: int | None
    ended_by: int | None
    lasted: int | None


@dataclass
class Imported:
    """What became of each dump, and remarks on it."""

    collectives: int = 0
    added: list[Path] = field(default_factory=list)
    same: list[Path] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    #: Why each of the others was left out; the text names it.
    left_out: list[str] = field(default_factory=list)


def add(dumps: Iterable[Path], path: Path, job: str | None = None) -> Imported:
    """Import ``dumps``, files or directories of files, into the store at ``path``.

    A file is left out if it is no dump, or belongs to no recorded rank of ``job``.
    Importing the same again changes nothing.  Raises `OpsError`.
    """
    store.check(path)
    with files.locked(path):
        return _add(dumps, path, job)


def _add(dumps: Iterable[Path], path: Path, job: str | None) -> Imported:
    done = Imported()
    fresh: dict[int, Row] = {}
    by_remark: dict[str, list[int]] = {}
    with store.reading(path) as opened:
        gone = missing.read(opened)
        ranks = _Ranks(opened, path, job)
        for file in _files(dumps, done):
            try:
                dump = flight.load(file)
                rows, remarks = ranks.rows(dump)
                changed = list(_changed(file, rows, fresh, ranks))
            except NotADump as error:
                done.left_out.append(str(error))
                continue
            fresh.update((row.id, row) for row in changed)
            (done.added if changed else done.same).append(file)
            for text in remarks:
                by_remark.setdefault(text, []).append(dump.rank)
    done.remarks = [
        f"{ranks_named(sorted(set(who)))}: {text}" for text, who in by_remark.items()
    ]
    done.collectives = len(fresh)
    if fresh:
        with (
            store.writing(path) as database,
            tempfile.TemporaryDirectory(prefix=".kstall-", dir=path.parent) as spool,
        ):
            store.copy(database, path, (), others=True)
            missing.write(database, gone)
            database.execute(
                "DELETE FROM collective WHERE id IN (SELECT unnest(?::UBIGINT[]))",
                [[number for number in fresh if number in ranks.known]],
            )
            writer = store.Writer(database, Path(spool))
            for row in fresh.values():
                writer.write("collective", row._asdict())
            writer.load()
    return done


def _files(dumps: Iterable[Path], done: Imported) -> list[Path]:
    files: dict[Path, None] = {}
    for given in dumps:
        try:
            files.update(dict.fromkeys(flight.find(given)))
        except NotADump as error:
            done.left_out.append(str(error))
        except OSError as error:
            done.left_out.append(f"{given}: {error.strerror or error}")
    return list(files)


def _changed(
    file: Path, rows: Iterable[Row], fresh: Mapping[int, Row], ranks: _Ranks
) -> Iterator[Row]:
    """Rows that are new, and known rows to which ``rows`` add something."""
    for row in rows:
        before = fresh.get(row.id) or ranks.known.get(row.id)
        if before is None:
            yield row
            continue
        if before.t != row.t:
            raise NotADump(
                f"{file}: collective {row.seq} of process group "
                f"{shown(row.process_group)} was enqueued at another time in what was "
                f"imported as rank {row.rank} before: one of the two is of another "
                "rank, or the group was made again in between; import the later one "
                "into a store of its own"
            )
        both = _both(before, row)
        if both != before:
            yield both


def _both(a: Row, b: Row) -> Row:
    """Merge two dumps' rows of one collective; their order makes no difference."""
    started = [row.started_by for row in (a, b) if row.started_by is not None]
    ended = [row.ended_by for row in (a, b) if row.ended_by is not None]
    surer = min(a, b, key=lambda row: _sure(row.thread))
    return a._replace(
        tid=surer.tid,
        thread=surer.thread,
        world=b.world if a.world is None else a.world,
        started_by=min(started, default=None),
        ended_by=min(ended, default=None),
        lasted=b.lasted if a.lasted is None else a.lasted,
    )


def _sure(thread: str | None) -> int:
    return THREADS.index(thread) if thread in THREADS else len(THREADS)


# -- clocks --------------------------------------------------------------------------


class _Wall:
    """Converts CLOCK_REALTIME of a recording to CLOCK_MONOTONIC, at the same rate."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        """``pairs`` are (monotonic, real), in order."""
        self._spans: list[tuple[int, int, int, int]] = []
        #: How far real time is ahead; None without pairs.
        self.ahead = pairs[0][1] - pairs[0][0] if pairs else None
        for (mono, real), (after, ends) in itertools.pairwise(pairs):
            ahead = real - mono
            off = abs((ends - after) - ahead)
            if off > _SET:
                continue
            last = self._spans[-1] if self._spans else None
            if last and last[1] == real and max(off, abs(ahead - last[2])) <= _READ:
                # The same offset, up to reading errors.  Merge: a day has 8640 pairs.
                self._spans[-1] = (last[0], ends, last[2], 3 * _READ)
            else:
                self._spans.append((real, ends, ahead, off + _READ))
        # A recorder notes pairs every 10 s, and at its start and end unless killed.
        for mono, real in pairs[:1]:
            self._spans.append((real - _BEYOND, real, real - mono, _READ))
        for mono, real in pairs[-1:]:
            self._spans.append((real, real + _BEYOND, real - mono, _READ))
        # Where reading takes longer, spans are not merged, so search them by bisection.
        self._spans.sort()
        self._begins = [span[0] for span in self._spans]
        #: The latest end of all spans up to each.
        self._reach = list(itertools.accumulate((span[1] for span in self._spans), max))

    def at(self, real: int) -> tuple[int, int] | None:
        """(monotonic, bound) of a time; None if the clock was set about then."""
        times = []
        at = bisect.bisect_right(self._begins, real) - 1
        while at >= 0 and self._reach[at] >= real:
            _, ends, ahead, bound = self._spans[at]
            if ends >= real:
                times.append((real - ahead, bound))
            at -= 1
        # A clock that was set back shows some times twice.
        if not times or max(times)[0] - min(times)[0] > _SET:
            return None
        return min(times, key=lambda time: time[1])


# -- processes -----------------------------------------------------------------------


class _Part(NamedTuple):
    """When one recording has seen a process."""

    sid: str
    began: int
    until: int


@dataclass
class _Process:
    """One process that was a rank, with all recordings that have seen it."""

    boot: str
    node: str
    pid: int
    starttime: int
    job: str
    world: int | None
    parts: list[_Part]


class _Place(NamedTuple):
    """A collective in the recording in which it was enqueued, on that clock."""

    collective: Collective
    sid: str
    t: int
    bound: int
    started_by: int | None
    ended_by: int | None


class _Ranks:
    """The processes of ranks in a store, and the collectives imported for them."""

    def __init__(
        self, opened: duckdb.DuckDBPyConnection, path: Path, job: str | None
    ) -> None:
        self._opened, self._path, self._job = opened, path, job
        self._walls: dict[str, _Wall] = {}
        #: Rows in the store for the processes seen so far.
        self.known: dict[int, Row] = {}

    def rows(self, dump: Dump) -> tuple[list[Row], list[str]]:
        """The rows of a dump, and remarks on what was left out.  Raises `NotADump`."""
        process, places, others = self._process_of(dump)
        remarks = list(dump.remarks)
        if others:
            remarks.append(
                f"{others} more processes of that rank and job on that node have about "
                "as many threads, as if it ran there twice: which of them the dump is "
                "of is assumed, and no claim is more than `coincides`"
            )
        if away := len(dump.collectives) - len(places):
            remarks.append(
                f"{away} collectives are left out: they were enqueued outside of the "
                "recording, or when the clock was set"
            )
        self._read(process)
        threads = {}
        for part in process.parts:
            names = self._threads(part.sid, process.pid)
            # A new thread has the first thread's name until it gets its own.
            first = {name for name, tids in names.items() if process.pid in tids}
            threads[part.sid] = {
                name: tids for name, tids in names.items() if name not in first
            }
        return [
            self._row(place, dump, process, threads[place.sid], sure=not others)
            for place in places
        ], remarks

    def _row(
        self,
        place: _Place,
        dump: Dump,
        process: _Process,
        threads: Mapping[str, Sequence[int]],
        *,
        sure: bool,
    ) -> Row:
        collective = place.collective
        tid, thread = _thread(collective, process.pid, threads)
        if thread is not None and not sure:
            thread = THREADS[-1]
        label = collective.label
        where = (process.boot, process.pid, process.starttime, dump.rank, label)
        return Row(
            id=int.from_bytes(digest("collective", *where, collective.seq), "big"),
            sid=place.sid,
            t=place.t,
            bound=place.bound,
            tid=tid,
            tgid=process.pid,
            thread=thread,
            job=process.job or None,
            rank=dump.rank,
            world=len(collective.ranks) or _world(collective, process),
            process_group=label,
            seq=collective.seq,
            op=collective.op,
            started_by=place.started_by,
            ended_by=place.ended_by,
            lasted=collective.lasted,
        )

    # -- its process ------------------------------------------------------------------

    def _process_of(self, dump: Dump) -> tuple[_Process, list[_Place], int]:
        """The process whose dump it is, by rank and time, and its collectives.

        Also how many other processes cannot be told apart from it.
        """
        processes = self._processes(dump.rank)
        if self._job is not None:
            processes = [process for process in processes if process.job == self._job]
        if not processes:
            raise NotADump(f"{dump.path}: {self._not_recorded(dump.rank)}")
        placed = [(process, self._places(dump, process)) for process in processes]
        inside = [(process, places) for process, places in placed if places]
        if not inside:
            raise NotADump(f"{dump.path}: {self._other_time(dump, processes)}")
        # A launcher's own environment may have another number, such as its node's.
        whys = [_mismatch(dump, process) for process, _ in inside]
        inside = [pair for pair, why in zip(inside, whys, strict=True) if not why]
        if not inside:
            raise NotADump(f"{dump.path}: {whys[0]}")
        # The shell that started it and its children have the same rank, but fewer
        # threads; processes that ended early have fewer of the collectives.
        most = max(len(places) for _, places in inside)
        best, places = max(
            (process for process in inside if len(process[1]) >= _MOST * most),
            key=lambda pair: (self._count(pair[0]), len(pair[1]), -pair[0].starttime),
        )
        rivals = [
            process
            for process, _ in inside
            if (process.boot, process.job) != (best.boot, best.job)
            and self._meet(process, best)
        ]
        if rivals:
            raise NotADump(f"{dump.path}: {_ambiguous(dump.rank, [best, *rivals])}")
        least = max(_TRAINS, self._count(best) // 2)
        others = sum(
            process is not best
            and self._meet(process, best)
            and self._count(process) >= least
            for process, _ in inside
        )
        return best, places, others

    def _count(self, process: _Process) -> int:
        """How many of its threads were recorded."""
        return max(
            sum(map(len, self._threads(part.sid, process.pid).values()))
            for part in process.parts
        )

    def _meet(self, process: _Process, other: _Process) -> bool:
        """Whether both existed at the same time, rather than one after the other.

        The end of a process is known only up to the interval between two scans.
        """
        (a, b), (c, d) = self._life(process), self._life(other)
        return min(b, d) - max(a, c) > _BEYOND

    def _life(self, process: _Process) -> tuple[int, int]:
        """Its start and end by CLOCK_REALTIME, which nodes have about right."""
        aheads = [(part, self._wall(part.sid).ahead or 0) for part in process.parts]
        return (
            min(part.began + ahead for part, ahead in aheads),
            max(part.until + ahead for part, ahead in aheads),
        )

    def _processes(self, rank: int) -> list[_Process]:
        processes: list[_Process] = []
        for row in self._opened.execute(_PROCESSES, [rank]).fetchall():
            sid, node, boot, pid, since, gone, job, world, began, ended = row
            since = since or 0
            until = min(_FAR if time is None else time for time in (ended, gone))
            part = _Part(sid, max(began, since - _TICK), until)
            for process in processes:
                same = (process.boot, process.pid, process.job) == (
                    boot or sid,
                    pid,
                    job,
                )
                if same and since - process.starttime < _SAME:
                    if all(known.sid != sid for known in process.parts):
                        process.parts.append(part)
                    break
            else:
                processes.append(
                    _Process(boot or sid, node, pid, since, job, world, [part])
                )
        return processes

    def _places(self, dump: Dump, process: _Process) -> list[_Place]:
        places = []
        for collective in dump.collectives:
            for part in process.parts:
                wall = self._wall(part.sid)
                at = wall.at(collective.enqueued)
                if at is None or not part.began <= at[0] <= part.until:
                    continue
                later = [
                    None if seen is None else wall.at(seen)
                    for seen in (collective.started_by, collective.ended_by)
                ]
                # If the clock was set meanwhile, its end is not known.
                if collective.ended_by is not None and later[1] is None:
                    continue
                known = [None if when is None else when[0] for when in later]
                places.append(_Place(collective, part.sid, *at, *known))
                break
        return places

    def _wall(self, sid: str) -> _Wall:
        if sid not in self._walls:
            rows = self._opened.execute(
                "SELECT DISTINCT t_mono, t_real FROM clock WHERE sid = ? AND "
                "t_mono IS NOT NULL AND t_real IS NOT NULL ORDER BY t_mono",
                [sid],
            ).fetchall()
            self._walls[sid] = _Wall(rows)
        return self._walls[sid]

    def _read(self, process: _Process) -> None:
        """Read the rows that were imported for this process before."""
        for part in process.parts:
            rows = self._opened.execute(
                f"SELECT {', '.join(Row._fields)} FROM collective "  # noqa: S608
                "WHERE sid = ? AND tgid = ?",
                [part.sid, process.pid],
            ).fetchall()
            self.known.update((row[0], Row(*row)) for row in rows)

    def _threads(self, sid: str, pid: int) -> dict[str, list[int]]:
        """The threads of a process by their names."""
        threads: dict[str, list[int]] = {}
        for tid, comm in self._opened.execute(
            "SELECT DISTINCT pid, comm FROM proc WHERE sid = ? AND tgid = ? "
            "AND comm IS NOT NULL ORDER BY pid, comm",
            [sid, pid],
        ).fetchall():
            threads.setdefault(comm, []).append(tid)
        return threads

    # -- in words ---------------------------------------------------------------------

    def _not_recorded(self, rank: int) -> str:
        rows = self._opened.execute(
            "SELECT DISTINCT coalesce(job, ''), rank FROM proc WHERE rank IS NOT NULL"
        ).fetchall()
        jobs: dict[str, list[int]] = {}
        for job, known in rows:
            jobs.setdefault(job, []).append(known)
        there = "; ".join(
            f"{ranks_named(known)} of {_named(job)}"
            for job, known in sorted(jobs.items())
        )
        of = "" if self._job is None else f" of {_named(self._job)}"
        return (
            f"no process of rank {rank}{of} is in {self._path}, which has "
            f"{there or 'no ranks at all'}: seal the recording of its node"
        )

    def _other_time(self, dump: Dump, processes: Sequence[_Process]) -> str:
        first, last = dump.collectives[0].enqueued, dump.collectives[-1].enqueued
        there = []
        for process in processes:
            for part in process.parts:
                ahead = self._wall(part.sid).ahead
                where = shown(process.node)
                if ahead is None:
                    there.append(f"{where}, whose recording has no real time")
                    continue
                end = "now" if part.until == _FAR else _utc(part.until + ahead)
                there.append(f"{where} from {_utc(part.began + ahead)} to {end}")
        return (
            f"its collectives are of {_utc(first)} to {_utc(last)} UTC, but rank "
            f"{dump.rank} was recorded on {'; '.join(there[:4])}: not of that run"
        )


def _ambiguous(rank: int, processes: Sequence[_Process]) -> str:
    """Why it is not known to which process a dump belongs, and what to do."""
    jobs = sorted({process.job for process in processes})
    if len(jobs) > 1:
        return (
            f"rank {rank} was recorded at that time in {', '.join(map(_named, jobs))}: "
            "say with --job which it is of"
        )
    nodes = sorted({shown(process.node) for process in processes})
    return (
        f"rank {rank} of {_named(jobs[0])} was recorded at that time on "
        f"{', '.join(nodes)}: seal those nodes apart that are of another run"
    )


def _world(collective: Collective, process: _Process) -> int | None:
    """How many ranks take part in a collective of the whole job; else None."""
    return process.world if collective.group[1] == flight.WHOLE else None


def _mismatch(dump: Dump, process: _Process) -> str:
    """Why a dump cannot be of this process's job; empty if it can."""
    for (name, about), ranks in {
        (collective.group, collective.ranks): None for collective in dump.collectives
    }:
        if not ranks or process.world is None:
            continue
        whole = about == flight.WHOLE
        if max(ranks) >= process.world or (whole and len(ranks) != process.world):
            return (
                f"its process group {shown(name)} is of {len(ranks)} "
                f"ranks up to {max(ranks)}, but {_named(process.job)} has "
                f"{process.world}: not a dump of this job"
            )
    return ""


def _thread(
    collective: Collective, pid: int, threads: Mapping[str, Sequence[int]]
) -> tuple[int | None, str | None]:
    """The thread that enqueued it, and how that is known; None if it is not known."""
    if collective.first:
        return pid, "stack"
    named = threads.get(collective.thread or "", ())
    if len(named) == 1:
        return named[0], "name"
    return (None, None) if collective.first is False else (pid, "assumed")


def _named(job: str) -> str:
    return f"job {shown(job)}" if job else "a job without a name"


def _utc(ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"
