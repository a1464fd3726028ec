# SPDX-License-Identifier: GPL-2.0-or-later
"""What had not ended when the recording did: stalls, and collectives that hang.

There is nothing to compare them with, so nothing here is more than *coincides*.
No clocks of nodes are compared: how long something lasts is known by its node's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from . import missing
from .chains import filled, without
from .errors import shown
from .health import Health, Source, is_cut, lasting
from .rules import Rules
from .runs import TABLE, Runs, Worlds
from .straggler import Job, union

_UNTIL = """
SELECT s.sid, coalesce(s.ended, greatest(s.began,
    (SELECT max(t0) FROM loss l WHERE l.sid = s.sid AND reason = 'recorder gone'),
    (SELECT max(t) FROM mark m WHERE m.sid = s.sid),
    (SELECT max(coalesce(t1, t0)) FROM stall x WHERE x.sid = s.sid)))
FROM session s
"""
# Of a recording without an end, some CPUs may be known for longer than others.
_COMPLETE = """
SELECT sid, t0 FROM loss WHERE reason = 'recorder gone' AND t0 IS NOT NULL
"""
# A group has a row for each quota that it had.
_PATH = """
(SELECT any_value(path) FROM cgroup g WHERE g.sid = s.sid AND g.cgroup_id = s.cgroup_id)
"""
_OPEN = f"""
SELECT s.sid, s.class, coalesce(s.cause, ''), s.provider, s.tid, s.tgid, s.comm,
    s.device, s.t0, (SELECT count(*) FROM mark m WHERE m.sid = s.sid AND m.tid = s.tid
    AND m.t > s.t0) AS went_on, {_PATH}, s.cgroup_id
FROM stall s WHERE s.t0 IS NOT NULL AND s.t1 IS NULL ORDER BY s.sid, s.t0, s.id
"""  # noqa: S608
# Only the present start of a job: each start numbers its steps anew.  A later recording
# may have seen the process end.
_LAST = f"""
WITH {TABLE}, numbered AS (
    SELECT m.*, s.boot_id, r.run, row_number() OVER (
        PARTITION BY m.sid, m.tid, m.job, m.rank, step, phase ORDER BY t) AS nth,
        (SELECT max(p.ended) FROM proc p JOIN session o USING (sid)
            WHERE o.boot_id = s.boot_id AND p.pid = m.tgid
            AND p.starttime <= m.t AND p.ended >= m.t) AS ended
    FROM mark m JOIN session s USING (sid) JOIN runs r ON coalesce(m.job, '') = r.job
        AND m.rank = r.rank AND m.sid = r.sid AND m.tid = r.tid
)
SELECT coalesce(job, ''), rank, sid, tid, step, nth, phase, t, ended, boot_id, tgid
FROM numbered
QUALIFY run = max(run) OVER (PARTITION BY coalesce(job, '')) AND row_number() OVER (
    PARTITION BY coalesce(job, ''), rank, run ORDER BY ended IS NULL DESC, t DESC) = 1
ORDER BY ALL
"""  # noqa: S608
# All recordings that knew a process, as its boot, number and start.
_KNOWN = """
SELECT DISTINCT boot_id, pid, starttime, sid FROM proc JOIN session USING (sid)
WHERE pid = tgid AND starttime IS NOT NULL ORDER BY ALL
"""
_OF_THREAD = f"""
SELECT s.class, coalesce(s.cause, ''), s.t0, coalesce(s.t1, ?), s.t1 IS NULL, s.id,
    s.provider, s.device, {_PATH}, s.cgroup_id
FROM stall s
WHERE s.sid = ? AND s.tid = ? AND s.t0 IS NOT NULL AND coalesce(s.t1, ?) > ?
ORDER BY s.t0
"""  # noqa: S608


@dataclass(frozen=True)
class Open:
    """A stall without a recorded end; ``lasted_ns`` is how long it lasted at least."""

    node: str
    sid: str
    cls: str
    cause: str
    provider: str
    tid: int | None
    comm: str | None
    device: str | None
    lasted_ns: int
    #: Why it may have ended without that being recorded.
    doubts: tuple[str, ...]
    text: str
    doc: str


@dataclass(frozen=True)
class Absent:
    """A rank that others wait for, and the stalls of its thread meanwhile."""

    rank: int
    node: str
    tid: int
    #: Its last mark, and how long before the end of the recording that was.
    step: int
    phase: str
    age_ns: int
    #: How long before the end its process was gone, at least; None if it was there.
    gone_ns: int | None
    text: str
    #: Why it may have entered since, or the text may be wrong.
    caps: tuple[str, ...]
    #: The class that takes most of that time; None if none takes any.
    cls: str | None = None
    coverage: float = 0.0
    #: Its providers that no oracle was compared with.
    uncompared: tuple[str, ...] = ()
    fix: str = ""
    doc: str = ""
    not_said: str = ""


@dataclass(frozen=True)
class Hung:
    """A collective in which ranks wait, and the ranks that they wait for."""

    job: str
    step: int
    waiting: tuple[int, ...]
    waited_ns: int
    absent: tuple[Absent, ...]
    #: Ranks whose recording ends too early to tell.
    unknown: tuple[int, ...]
    #: How many ranks have no marks at all.
    silent: int
    #: Missing recordings that may have more ranks, as text.
    unseen: str = ""


@dataclass(frozen=True)
class _Last:
    rank: int
    sid: str
    #: The recordings in which its process was there then, or is since.
    sids: tuple[str, ...]
    tid: int
    step: int
    nth: int
    phase: str
    t: int
    age: int
    #: For how long its process has been gone.
    gone: int | None
    #: How many ranks its start of the job has; None if that is not known.
    world: int | None

    @property
    def place(self) -> tuple[int, int, bool]:
        return self.step, self.nth, self.phase == "exit"


def known_until(opened: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Up to when each session is known, in ns of its node's clock."""
    return dict(opened.execute(_UNTIL).fetchall())


def stalls(
    opened: duckdb.DuckDBPyConnection,
    until: Mapping[str, int],
    health: Health,
    limits: Rules,
) -> list[Open]:
    """Stalls without an end that lasted long enough to be listed, the longest first."""
    stalls = []
    for row in opened.execute(_OPEN).fetchall():
        sid, cls, cause, provider, tid, _, comm, device, t0, went_on, *group = row
        lasted = until[sid] - t0
        if lasted < limits.open_min_ns:
            continue
        doubts = ["its thread wrote marks since"]
        if not went_on:
            doubts = health.of(sid, provider, t0, until[sid])
        rule = limits.classes[cls]
        stalls.append(
            Open(
                node=health.nodes.get(sid, sid),
                sid=sid,
                cls=cls,
                cause=cause,
                provider=provider,
                tid=tid,
                comm=comm,
                device=device,
                lasted_ns=lasted,
                doubts=tuple(doubts),
                text=_filled(
                    rule.say_node if tid is None else rule.say,
                    lasted=lasted,
                    cause=cause,
                    device=device,
                    group=group,
                ),
                doc=rule.doc,
            )
        )
    return sorted(stalls, key=lambda stall: (len(stall.doubts) > 0, -stall.lasted_ns))


def _filled(
    say: str, lasted: int, cause: str, device: str | None, group: Sequence[Any]
) -> str:
    path, number = group
    known = f"cgroup {number}" if number is not None else "a group that is not known"
    names = {
        "ms": f"{lasted / 1e6:.1f}",
        "cause": shown(cause) or "cause unknown",
        "device": "a device" if device is None else shown(device),
        "cgroup": shown(path) if path else known,
        "n": "1",
    }
    return filled(say, names)


def hung(
    opened: duckdb.DuckDBPyConnection,
    jobs: Sequence[Job],
    starts: Runs,
    until: Mapping[str, int],
    health: Health,
    limits: Rules,
) -> list[Hung]:
    """Collectives in which a rank waited, far longer than a step, until the end."""
    until = {**until, **dict(opened.execute(_COMPLETE).fetchall())}
    marks: dict[str, list[_Last]] = {}
    known: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for boot, pid, starttime, sid in opened.execute(_KNOWN).fetchall():
        known.setdefault((boot, pid), []).append((starttime, sid))
    worlds = Worlds(opened)
    for row in opened.execute(_LAST, [starts.rows]).fetchall():
        job, rank, sid, tid, step, nth, phase, t, ended, boot, tgid = row
        later = [
            other
            for starttime, other in known.get((boot, tgid), ())
            if starttime <= t <= until[other]
        ]
        sids = tuple(dict.fromkeys([sid, *later]))
        end = max(until[each] for each in sids)
        gone = None if ended is None else max(0, end - ended)
        world = worlds.of(sid, tgid, t)
        last = _Last(rank, sid, sids, tid, step, nth, phase, t, end - t, gone, world)
        marks.setdefault(job, []).append(last)
    medians = {job.name: job.median for job in jobs}
    # That an end may be among other losses is said, and the stall counts all the same.
    cuts = {
        sid: [loss for loss in losses if is_cut(loss[2])]
        for sid, losses in health.losses.items()
    }
    ends = lasting(opened, cuts, limits)
    hung = []
    for job, each in marks.items():
        limit = max(limits.open_min_ns, int(limits.hung_steps * medians.get(job, 0)))
        present = [last for last in each if last.gone is None] or each
        size = max((last.world or 0 for last in present), default=0) or None
        # An earlier start may have had more ranks.
        lasts = [last for last in each if size is None or last.rank < size]
        silent = max(0, (size or 0) - len(lasts))
        if len(lasts) + silent < 2:
            continue
        front = max(last.place for last in lasts)
        waiting = [last for last in lasts if last.place == front and last.gone is None]
        waited = max((last.age for last in waiting), default=0)
        # If a rank has left it, the collective is over.
        if front[2] or waited < limit:
            continue
        behind = [last for last in lasts if last not in waiting]
        absent = [last for last in behind if last.age >= limit]
        hung.append(
            Hung(
                job=job,
                step=front[0],
                waiting=tuple(last.rank for last in waiting),
                waited_ns=waited,
                absent=tuple(
                    _absent(opened, last, until, ends, health, limits)
                    for last in absent
                ),
                unknown=tuple(last.rank for last in behind if last.age < limit),
                silent=silent,
                unseen=missing.unseen(health.missing, size, len(lasts)),
            )
        )
    return hung


def _absent(
    opened: duckdb.DuckDBPyConnection,
    last: _Last,
    until: Mapping[str, int],
    ends: Mapping[int, int],
    health: Health,
    limits: Rules,
) -> Absent:
    """An absent rank, with the stalls of its thread since its last mark."""
    spans: dict[str, list[tuple[int, int]]] = {}
    newest: dict[str, tuple[Any, ...]] = {}
    for sid in sorted(last.sids, key=until.__getitem__):
        end = until[sid]
        rows = opened.execute(_OF_THREAD, [end, sid, last.tid, end, last.t])
        for row in rows.fetchall():
            cls, cause, t0, t1, is_open, id_, provider, device, *group = row
            t1 = min(t1, ends.get(id_, t1))
            if t1 <= last.t:
                continue
            spans.setdefault(cls, []).append((t0, t1))
            newest[cls] = (cause, is_open, sid, provider, device, group)
    end = last.t + last.age
    lost = {cls: union(span, last.t, end) for cls, span in spans.items()}
    cls = max(lost, key=lost.__getitem__, default=None)
    unrecorded = tuple(health.unrecorded.get(last.sid, ()))
    fields: dict[str, Any] = {"text": f"not in kernel events{without(unrecorded)}"}
    provider = ""
    if last.gone is not None:
        fields = {"text": "its process ended"}
    elif cls is not None:
        cause, is_open, sid, provider, device, group = newest[cls]
        rule = limits.classes[cls]
        fields = {
            "cls": cls,
            "coverage": lost[cls] / last.age,
            "text": _filled(rule.say, lost[cls], cause, device, group)
            + ("; no end seen" if is_open else ""),
            "uncompared": health.uncompared([Source(sid, provider, group[1], device)]),
            "fix": _filled(rule.fix, lost[cls], cause, device, group),
            "doc": rule.doc,
            "not_said": rule.not_said,
        }
    return Absent(
        rank=last.rank,
        node=health.nodes.get(last.sid, last.sid),
        tid=last.tid,
        step=last.step,
        phase=last.phase,
        age_ns=last.age,
        gone_ns=last.gone,
        # Without a class, what may have had a mark of it.
        caps=tuple(
            dict.fromkeys(
                cap
                for each in last.sids
                for cap in health.of(each, provider, last.t, until[each])
            )
        ),
        **fields,
    )
