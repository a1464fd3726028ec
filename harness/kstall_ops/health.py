# SPDX-License-Identifier: GPL-2.0-or-later
"""What is wrong with the records of a store, which caps what can be claimed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import duckdb

from . import missing
from .errors import shown
from .missing import Missing
from .recording import LEFT_OUT
from .rules import Rules, rules
from .straggler import Arrival, Job
from .window import wall

#: The end of a stall that lasts for as long as anything is known.
LASTING = (1 << 63) - 1
#: How many nodes a remark names.
_NODES = 4
_DAMAGE = """
SELECT sid, count(*) FILTER (t1 < t0 OR dur < 0) AS backwards,
    count(*) FILTER (t1 >= t0 AND dur <> t1 - t0) AS unequal,
    count(*) FILTER (t1 > s.ended OR t1 < s.began) AS outside
FROM stall JOIN session s USING (sid) GROUP BY sid
"""
_MARKS_OUTSIDE = """
SELECT sid, count(*) FROM mark JOIN session s USING (sid)
WHERE t > s.ended OR t < s.began GROUP BY sid
"""
# In one pass over each thread, as comparing each mark with each stall takes hours for
# a day of both: whether the last end of those that have begun is after a mark.
_MARKS_INSIDE = """
SELECT sid, count(*) FROM (
    SELECT sid, t, of_mark, max(until) OVER (
        PARTITION BY sid, tid ORDER BY t, of_mark DESC ROWS UNBOUNDED PRECEDING
    ) AS until
    FROM (
        SELECT sid, tid, t, true AS of_mark, NULL AS until FROM mark UNION ALL
        SELECT sid, tid, t0, false, coalesce(t1, 9223372036854775807) FROM stall
        WHERE tid IS NOT NULL AND t0 IS NOT NULL
            AND list_contains(?::VARCHAR[], class)
    )
)
WHERE of_mark AND until > t GROUP BY sid
"""
_ENQUEUED_INSIDE = """
SELECT sid, count(*) FROM collective m WHERE EXISTS (
    FROM stall s WHERE s.sid = m.sid AND s.tid = m.tid AND s.t0 < m.t - m.bound
    AND m.t + m.bound < coalesce(s.t1, 9223372036854775807)
    AND list_contains(?::VARCHAR[], s.class))
GROUP BY sid
"""
_LEFT_OUT = """
SELECT node, t1 + (SELECT min_by(t_real - t_mono, t_mono) FROM clock c
    WHERE c.sid = loss.sid)
FROM loss JOIN session USING (sid) WHERE reason = ? ORDER BY ALL
"""
# When the thread of a stall without an end did something else.
_UNENDED = """
SELECT s.id, s.sid, s.provider, s.t0, min(m.t) FROM stall s LEFT JOIN (
    SELECT sid, tid, t FROM mark UNION ALL SELECT sid, tid, t - bound FROM collective
) m ON m.sid = s.sid AND m.tid = s.tid AND m.t > s.t0
    AND list_contains(?::VARCHAR[], s.class)
WHERE s.t1 IS NULL AND s.t0 IS NOT NULL GROUP BY ALL
"""
#: Losses of a single provider, which the recorder names in the reason.
_CUT = re.compile(r"(?:threshold|suspended|refused) (\S+)")


class Source(NamedTuple):
    """What a stall was recorded by, and what an oracle may have compared it for."""

    sid: str
    provider: str
    cgroup_id: int | None
    device: str | None


@dataclass(frozen=True)
class Health:
    """What is wrong with the records of each session, which caps claims on them."""

    caps: Mapping[str, tuple[str, ...]]
    losses: Mapping[str, tuple[tuple[int, int, str], ...]]
    refused: Mapping[str, frozenset[str]]
    nodes: Mapping[str, str]
    #: By session, the classes that were not recorded, and why.
    unrecorded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Recordings that should be in the store, but are not.
    missing: Sequence[Missing] = ()
    #: By session, the providers and scopes of which an oracle has a verdict.
    compared: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    #: By id of a stall without an end, up to when it is known to have lasted: then its
    #: thread went on, or its end may have been among what was lost.
    seen: Mapping[int, int] = field(default_factory=dict)

    def damaged(self, sid: str, provider: str) -> list[str]:
        """Why what ``provider`` recorded may be wrong."""
        caps = list(self.caps.get(sid, ()))
        if any(_is_of(provider, name) for name in self.refused.get(sid, ())):
            caps.append(f"its oracle disagrees with {shown(provider)}")
        return caps

    def of(self, sid: str, provider: str, begin: int, end: int) -> list[str]:
        """Why claims from ``provider`` between two times cannot be `explains`."""
        caps = self.damaged(sid, provider)
        lost = {
            reason
            for t0, t1, reason in self.losses.get(sid, ())
            if t0 < end and t1 > begin and _concerns(reason, provider)
        }
        caps += [f"records were lost meanwhile ({shown(why)})" for why in sorted(lost)]
        return caps

    def uncompared(self, sources: Iterable[Source]) -> tuple[str, ...]:
        """The providers of those ``sources`` that were not compared there."""
        names = {
            source.provider
            for source in sources
            # An oracle also counts what further providers of that name see.
            if not any(
                f"{source.provider}+".startswith(f"{name}+") and _is_in(source, scope)
                for name, scope in self.compared.get(source.sid, ())
            )
        }
        return tuple(sorted(names))

    def whole(self, job: Job, rank: int) -> list[int]:
        """Positions of the steps of which ``--ring`` has not deleted any records."""
        deleted: dict[str, dict[int, int]] = {}
        for sid in {step.arrivals[rank].sid for step in job.steps}:
            # There may be many, but all from the begin of the recording.
            spans = deleted.setdefault(sid, {})
            for t0, t1, reason in self.losses.get(sid, ()):
                if reason == "ring":
                    spans[t0] = max(t1, spans.get(t0, t1))
        return [
            at
            for at, step in enumerate(job.steps)
            if not _overlaps(step.arrivals[rank], deleted[step.arrivals[rank].sid])
        ]


def examine(opened: duckdb.DuckDBPyConnection) -> tuple[Health, list[str]]:
    """What is wrong with the records of a store, and remarks that say so."""
    nodes = dict(opened.execute("SELECT sid, node FROM session").fetchall())
    caps: dict[str, list[str]] = {}
    words = (
        "records that end before they begin",
        "records whose duration is not the time between their ends",
        "records from outside of the recording",
    )
    for sid, *counts in opened.execute(_DAMAGE).fetchall():
        for count, what in zip(counts, words, strict=True):
            if count:
                caps.setdefault(sid, []).append(f"{count} {what}")
    for sid, count in opened.execute(_MARKS_OUTSIDE).fetchall():
        caps.setdefault(sid, []).append(f"{count} marks from outside of the recording")
    blocks = [name for name, rule in rules().classes.items() if rule.blocks]
    for sid, count in opened.execute(_MARKS_INSIDE, [blocks]).fetchall():
        text = f"{count} marks of threads that were stalled when they wrote them"
        caps.setdefault(sid, []).append(text)
    for sid, count in opened.execute(_ENQUEUED_INSIDE, [blocks]).fetchall():
        text = f"{count} collectives that were enqueued while their thread was stalled"
        caps.setdefault(sid, []).append(text)
    losses: dict[str, list[tuple[int, int, str]]] = {}
    for sid, t0, t1, reason in opened.execute(
        "SELECT sid, t0, t1, reason FROM loss"
    ).fetchall():
        begin = -LASTING if t0 is None else t0
        end = LASTING if t1 is None else t1
        losses.setdefault(sid, []).append((begin, end, reason or "unknown"))
    gone = missing.read(opened)
    boots = dict(opened.execute("SELECT sid, boot_id FROM session").fetchall())
    for sid, loss in missing.losses(gone, boots):
        losses.setdefault(sid, []).append(loss)
    refused: dict[str, set[str]] = {}
    compared: dict[str, set[tuple[str, str]]] = {}
    for sid, provider, scope, verdict in opened.execute(
        "SELECT sid, provider, coalesce(scope, 'all'), verdict FROM oracle "
        "WHERE verdict IN ('agrees', 'disagrees')"
    ).fetchall():
        compared.setdefault(sid, set()).add((provider, scope))
        if verdict == "disagrees":
            refused.setdefault(sid, set()).add(provider)
    remarks = [
        f"{shown(nodes[sid])}: {text}: no claim on it is more than `coincides`"
        for sid, texts in sorted(caps.items())
        for text in texts
    ]
    health = Health(
        caps={sid: tuple(texts) for sid, texts in caps.items()},
        losses={sid: tuple(intervals) for sid, intervals in losses.items()},
        refused={sid: frozenset(providers) for sid, providers in refused.items()},
        nodes=nodes,
        unrecorded=_unrecorded(opened),
        missing=gone,
        compared={sid: frozenset(scopes) for sid, scopes in compared.items()},
        seen=lasting(opened, losses, rules()),
    )
    remarks = [*missing.remarks(gone), *remarks, *_unrecorded_text(health)]
    return health, [*remarks, *_left_out(opened)]


def _left_out(opened: duckdb.DuckDBPyConnection) -> list[str]:
    """From when on the store knows, if what was before was not fetched."""
    rows = opened.execute(_LEFT_OUT, [LEFT_OUT]).fetchall()
    if not rows:
        return []
    nodes = list(dict.fromkeys(node for node, _ in rows))
    times = [real for _, real in rows if real is not None]
    when = f" {wall(max(times))}" if times else ", by clocks that are not known,"
    return [
        f"{listed(nodes)}: known from{when} on: what was before was not "
        "fetched (`--last`)"
    ]


def _unrecorded(opened: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    rows = opened.execute("SELECT sid, unrecorded FROM session").fetchall()
    return {sid: json.loads(text or "{}") for sid, text in rows}


def _unrecorded_text(health: Health) -> list[str]:
    """A line for each reason, with all nodes that have it."""
    nodes: dict[tuple[str, str], set[str]] = {}
    for sid, whys in health.unrecorded.items():
        for cls, why in whys.items():
            nodes.setdefault((cls, why), set()).add(health.nodes[sid])
    classes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (cls, why), affected in nodes.items():
        classes.setdefault((why, tuple(sorted(affected))), []).append(cls)
    lines = []
    for (why, where), names in classes.items():
        text = f"not recorded: {', '.join(names)} ({shown(why)})"
        lines.append(f"{listed(where)}: {text}")
    return lines


def listed(nodes: Sequence[str]) -> str:
    """The names of nodes, and how many more there are."""
    more = f" and {len(nodes) - _NODES} more" if len(nodes) > _NODES else ""
    return f"{', '.join(map(shown, nodes[:_NODES]))}{more}"


def lasting(
    opened: duckdb.DuckDBPyConnection,
    losses: Mapping[str, Sequence[tuple[int, int, str]]],
    limits: Rules,
) -> dict[int, int]:
    """`Health.seen`, as far as only these ``losses`` may have ends of stalls."""
    blocks = [name for name, rule in limits.classes.items() if rule.blocks]
    ends = {}
    for id_, sid, provider, t0, went_on in opened.execute(
        _UNENDED, [blocks]
    ).fetchall():
        lost = [
            max(t0, begin)
            for begin, end, reason in losses.get(sid, ())
            if end > t0 and _concerns(reason, provider)
        ]
        ends[id_] = min([*lost, LASTING if went_on is None else went_on])
    return ends


def _overlaps(arrival: Arrival, spans: Mapping[int, int]) -> bool:
    assert arrival.since is not None
    since, end = arrival.since, arrival.exit
    return any(t0 < end and t1 > since for t0, t1 in spans.items())


def _is_in(source: Source, scope: str) -> bool:
    """Whether an oracle of ``scope`` counted what is of ``source``."""
    kind, _, name = scope.partition(":")
    whole = {"cgroup": str(source.cgroup_id), "device": source.device}
    return kind not in whole or whole[kind] == name


def _is_of(provider: str, source: str) -> bool:
    """Whether a provider belongs to ``source``, by its name."""
    rest = provider.removeprefix(source)
    return provider.startswith(source) and rest[:1] in ("", "+", "/")


def is_cut(reason: str) -> bool:
    """Whether it is no loss by chance, but all of a provider, or what is shorter."""
    return _CUT.match(reason) is not None


def _concerns(reason: str, provider: str) -> bool:
    """Whether a loss may concern that provider; most losses may concern any."""
    match = _CUT.match(reason)
    return match is None or _is_of(provider, match[1]) or _is_of(match[1], provider)
