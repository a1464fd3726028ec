# SPDX-License-Identifier: GPL-2.0-or-later
"""The explanation of a store: which rank was late, why, and what is not known."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from . import (
    align,
    chains,
    enqueued,
    missing,
    order,
    pending,
    schema,
    store,
    straggler,
    window,
)
from .chains import Verdict
from .errors import OpsError, shown
from .health import Health, examine, listed
from .missing import Missing
from .pending import Hung, Open
from .recording import LEFT_OUT
from .rules import Rules, rules
from .runs import NAME, TABLE, Runs, runs
from .straggler import Job
from .window import ALL, Window

#: How many process groups without a late rank are named.
_GROUPS = 4
#: Making the table takes as long as `explain`, so it is made only for such queries.
_MAY_MEAN_FINDING = re.compile(
    r"finding|show\b|information_schema|duckdb_(tables|columns)", re.IGNORECASE
)
_LOST = f"""
WITH {window.TABLE}
SELECT node, class, coalesce(cause, ''), provider, count(*), sum(dur)::BIGINT, max(dur)
FROM stall JOIN session USING (sid) JOIN asked USING (sid) WHERE {window.OVERLAPS}
GROUP BY ALL ORDER BY 6 DESC NULLS LAST, 1, 2, 3, 4
"""  # noqa: S608
_CAUSES = f"""
WITH {window.TABLE}
SELECT node, class, coalesce(cause, ''), device,
    CASE WHEN list_contains(?::VARCHAR[], class) THEN join_key END, count(*)
FROM stall JOIN session USING (sid) JOIN asked USING (sid) WHERE {window.OVERLAPS}
GROUP BY ALL ORDER BY ALL
"""  # noqa: S608
#: What a report on a part of the time does not limit.
_ALL_TIME = (
    "what had not ended, what was lost or left out, and oracles are of all its time"
)
# A rank had not entered a collective before it was enqueued, and none left it after it
# was seen to have ended.
_COLLECTIVES = f"""
WITH {TABLE}, c AS (SELECT *, {NAME} AS name FROM collective)
SELECT e.sid, coalesce(e.job, '') || chr(0) || r.run, e.step, min(e.t), max(x.t)
FROM mark e JOIN runs r ON coalesce(e.job, '') = r.job AND e.rank = r.rank
    AND e.sid = r.sid AND e.tid = r.tid
    JOIN mark x ON e.sid = x.sid AND e.tid = x.tid AND e.step = x.step
    AND e.rank = x.rank AND e.job IS NOT DISTINCT FROM x.job
WHERE e.phase = 'enter' AND x.phase = 'exit' GROUP BY ALL HAVING count(*) = 1
    AND max(x.t) >= any_value(r.w0) AND min(e.t) < any_value(r.w1)
UNION ALL
SELECT c.sid, c.name || chr(0) || r.run, c.seq, c.t - c.bound, c.ended_by + c.bound
FROM c JOIN runs r ON c.name = r.job AND c.rank = r.rank AND c.sid = r.sid
    AND c.tgid = r.tid WHERE c.ended_by IS NOT NULL AND c.t >= r.w0 AND c.t < r.w1
"""  # noqa: S608


@dataclass
class Lost:
    """Stalls of one class on one node, whether or not a rank was late."""

    node: str
    cls: str
    cause: str
    provider: str
    n: int
    lost_ns: int | None
    worst_ns: int | None


@dataclass
class Incident:
    """Stalls that are serious on one occurrence, whether or not a rank was late."""

    node: str
    cls: str
    cause: str
    device: str | None
    n: int
    text: str
    fix: str
    doc: str
    not_said: str


@dataclass
class Report:
    """The explanation, ready to be printed in any form."""

    nodes: list[str]
    verdicts: list[Verdict]
    #: Collectives and stalls that had not ended when the recording did.
    hung: list[Hung]
    open: list[Open]
    incidents: list[Incident]
    lost: list[Lost]
    oracles: list[dict[str, Any]]
    losses: list[dict[str, Any]]
    clocks: list[dict[str, Any]]
    remarks: list[str] = field(default_factory=list)
    #: Recordings that should be in the store, but are not.
    missing: list[Missing] = field(default_factory=list)
    #: The time that it is limited to.
    asked: Window = ALL
    #: `Health.seen`.
    seen: Mapping[int, int] = field(default_factory=dict)


def report(path: Path, job: str | None = None, asked: Window = ALL) -> Report:
    """Explain the store at ``path``, or one job in it, or only the time ``asked``.

    Raises `OpsError`.
    """
    limits = rules()
    with store.reading(path) as opened:
        health, remarks = examine(opened)
        starts = runs(opened, asked)
        clocks = clocks_of(opened, starts)
        jobs = straggler.jobs(opened, limits, starts)
        jobs += enqueued.jobs(opened, limits, starts, clocks)
        if asked != ALL:
            if starts.rows and not jobs:
                raise window.nothing(opened, asked)
            remarks.insert(
                0, f"only what was {asked}, by the clocks of its nodes; {_ALL_TIME}"
            )
        for each in jobs:
            _partial(each, health)
        until = pending.known_until(opened)
        hung = pending.hung(opened, jobs, starts, until, health, limits)
        if job is not None:
            names = list(dict.fromkeys(each.of for each in jobs))
            names += [hang.job for hang in hung if hang.job not in names]
            jobs = [each for each in jobs if each.of == job]
            hung = [hang for hang in hung if hang.job == job]
            if job not in names:
                known = ", ".join(map(shown, names)) or "none has marks"
                raise OpsError(f"no job {shown(job)} in {path}; known: {known}")
        result = Report(
            nodes=sorted(set(health.nodes.values())),
            verdicts=[
                _ordered(opened, chains.judge(opened, each, health, limits), clocks)
                for each in jobs
            ],
            hung=hung,
            open=pending.stalls(opened, until, health, limits),
            incidents=_incidents(opened, limits, asked),
            lost=_lost(opened, asked),
            oracles=_dicts(opened, store.NAMED["oracles"]),
            losses=_dicts(opened, store.NAMED["losses"]),
            clocks=_clocks(opened, clocks, until),
            remarks=remarks,
            missing=list(health.missing),
            asked=asked,
            seen=health.seen,
        )
    result.remarks += _unknown(result, jobs)
    return result


def _ordered(
    opened: duckdb.DuckDBPyConnection,
    verdict: Verdict,
    clocks: Mapping[str, align.Clock],
) -> Verdict:
    """Note for each straggler which other ranks may have been last instead."""
    boots = dict(opened.execute("SELECT sid, boot_id FROM session").fetchall())
    verdict.stragglers = [
        dataclasses.replace(
            late,
            unordered=tuple(order.rivals(verdict.job, late.rank, clocks, boots)),
        )
        for late in verdict.stragglers
    ]
    return verdict


def _partial(job: Job, health: Health) -> None:
    """Note which missing recordings may have ranks of the job."""
    job.unseen = missing.unseen(health.missing, job.world, len(job.ranks))
    if job.unseen:
        job.remarks.append(
            f"recordings are missing ({job.unseen}): a rank of which nothing came may "
            "be the one that was late; no claim is more than `coincides`"
        )


def _lost(opened: duckdb.DuckDBPyConnection, asked: Window) -> list[Lost]:
    rows = opened.execute(_LOST, [asked.spans(opened)]).fetchall()
    return [Lost(*row) for row in rows]


def _incidents(
    opened: duckdb.DuckDBPyConnection, limits: Rules, asked: Window
) -> list[Incident]:
    sent = [name for name, rule in limits.classes.items() if rule.sent]
    rows = opened.execute(_CAUSES, [asked.spans(opened), sent]).fetchall()
    counts: dict[tuple[str, str, str, str | None], int] = {}
    for node, cls, cause, received, sender, n in rows:
        key = (node, cls, cause, limits.classes[cls].device(received, sender))
        counts[key] = counts.get(key, 0) + n
    incidents = []
    for (node, cls, cause, device), n in counts.items():
        rule = limits.classes[cls]
        if not rule.counts_once(cause):
            continue
        names = {
            "n": str(n),
            "cause": shown(cause) or "cause unknown",
            "device": "a device" if device is None else shown(device),
        }
        incidents.append(
            Incident(
                node=node,
                cls=cls,
                cause=cause,
                device=device,
                n=n,
                text=chains.filled(rule.once_say, names),
                fix=chains.filled(rule.fix, names),
                doc=rule.doc,
                not_said=rule.not_said,
            )
        )
    return incidents


def _dicts(opened: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    result = opened.execute(sql)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def clocks_of(
    opened: duckdb.DuckDBPyConnection, starts: Runs | None = None
) -> dict[str, align.Clock]:
    """The clock of each session, aligned as far as possible.

    ``starts`` are those of all jobs, if they are known already.
    """
    sessions = opened.execute(
        "SELECT sid, boot_id FROM session ORDER BY node, began"
    ).fetchall()
    rows = opened.execute(
        # A ping from before the recording is of a later boot.
        'SELECT sid, t_mono, t_real, peer, "offset", bound, method FROM clock '
        "JOIN session USING (sid) WHERE t_mono IS NOT NULL "
        "AND (method IS DISTINCT FROM 'ping' OR t_mono >= began)"
    ).fetchall()
    starts = starts or runs(opened)
    collectives = opened.execute(_COLLECTIVES, [starts.rows]).fetchall()
    shared = [align.Collective(*row) for row in collectives]
    return align.clocks([sid for sid, _ in sessions], rows, shared, dict(sessions))


def _clocks(
    opened: duckdb.DuckDBPyConnection,
    clocks: Mapping[str, align.Clock],
    until: Mapping[str, int],
) -> list[dict[str, Any]]:
    """How each clock was aligned; its bound is the largest in the recording."""
    rows = opened.execute("SELECT sid, node, began FROM session").fetchall()
    sessions = {sid: (node, began) for sid, node, began in rows}
    entries = []
    for sid, clock in clocks.items():
        node, began = sessions[sid]
        bound = None
        if clock.points:
            bound = max(clock.at(t)[1] for t in (began, until[sid]))
        drift = None
        if len(clock.points) > 1:
            first, last = clock.points
            drift = (last.offset - first.offset) / (last.t - first.t) * 1e6
        entries.append(
            {
                "node": node,
                "method": "refuted by a collective" if clock.refuted else clock.method,
                "offset_ns": clock.points[0].offset if clock.points else None,
                "drift_ppm": drift,
                "bound_ns": bound if clock.known else None,
            }
        )
    return entries


def _unknown(report: Report, jobs: Sequence[Job]) -> list[str]:
    """What is not known from this store, in words."""
    remarks = []
    if not jobs and not report.hung:
        remarks.append(
            "no marks of collectives: which rank was late cannot be known; the job has "
            "to write `kstall step=N phase=enter`, and exit, to "
            "/sys/kernel/tracing/instances/kstall/trace_marker (docs/operator.md), or "
            "PyTorch's dumps have to be imported: `kstall seal --flight-recorder`"
        )
    for affected, what in (
        (
            [job for job in jobs if len(job.ranks) < 2],
            "one rank: there is no other to be late for",
        ),
        ([job for job in jobs if not job.steps], "no whole step of all ranks"),
    ):
        remarks += [f"{titles(group)}: {what}" for group in alike(affected)]
    for entry in report.clocks:
        if entry["bound_ns"] is None:
            remarks.append(
                f"{shown(entry['node'])}: its clock cannot be aligned "
                f"({entry['method']}): order across nodes is unordered"
            )
    return [*remarks, *_oracles_text(report.oracles), *_losses_text(report.losses)]


def _oracles_text(oracles: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each provider that a node's oracle refuses, or that none knows."""
    refused: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    scopes: dict[str, set[tuple[str, str]]] = {}
    unknown: dict[str, dict[tuple[str, str], None]] = {}
    for entry in oracles:
        provider, place = entry["provider"], (entry["node"], entry["scope"])
        scopes.setdefault(provider, set()).add(place)
        if entry["verdict"] == "disagrees":
            refused.setdefault((entry["node"], provider), []).append(entry)
        elif entry["verdict"] == "unknown":
            unknown.setdefault(provider, {})[place] = None
    lines = []
    for (node, provider), entries in refused.items():
        worst = max(entries, key=lambda entry: abs(_far(entry)))
        ours, theirs = _amount(worst, "ours"), _amount(worst, "theirs")
        text = f"it says {ours}, its oracle {theirs}"
        if len(entries) > 1:
            text += f"; they disagree on {len(entries) - 1} more groups or devices"
        lines.append(f"{shown(node)}: {shown(provider)} is refused: {text}")
    for provider, places in unknown.items():
        nodes = list(dict.fromkeys(node for node, _ in places))
        text = f"{shown(provider)} was compared with no oracle"
        if len(places) < len(scopes[provider]):
            text += f" for {len(places)} of {len(scopes[provider])} groups or devices"
        lines.append(f"{listed(nodes)}: {text}")
    return lines


def _far(entry: Mapping[str, Any]) -> int:
    """By how much a provider disagrees with its oracle."""
    return int(entry["ours"] or 0) - int(entry["theirs"] or 0)


def _losses_text(losses: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each reason, with all nodes that have it."""
    reasons: dict[str, list[Mapping[str, Any]]] = {}
    for entry in losses:
        if entry["reason"] != LEFT_OUT:
            reason = entry["reason"] or "no reason given"
            reasons.setdefault(reason, []).append(entry)
    return [
        f"{listed(list(dict.fromkeys(entry['node'] for entry in entries)))}: "
        f"{_loss_text(shown(reason), entries)}"
        for reason, entries in reasons.items()
    ]


def _amount(entry: Mapping[str, Any], name: str) -> str:
    unit = "records" if entry["metric"] == "count" else "ns"
    return "nothing" if entry[name] is None else f"{entry[name]} {unit}"


def _loss_text(reason: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Losses in words, followed by the recorder's own reason."""
    word, _, rest = reason.partition(" ")
    provider, _, least = rest.partition(" ")
    if word == "threshold":
        text = (
            f"of {provider} what is shorter than {least} was left out: too many records"
        )
    elif word == "suspended":
        text = f"{provider} was switched off: too many records"
    elif word == "refused":
        text = f"nothing is claimed from {provider}, with which its oracle disagreed"
    else:
        known = [entry["events"] for entry in entries if entry["events"] is not None]
        count = f"{sum(known)}" if known else "an unknown number of"
        if 0 < len(known) < len(entries):
            count = f"at least {count}"
        cpus = [entry["cpu"] for entry in entries if entry["cpu"] is not None]
        where = f" on {len(cpus)} CPUs" if len(cpus) > 1 else ""
        where = f" on CPU {cpus[0]}" if len(cpus) == 1 else where
        text = f"{count} events lost{where}"
    return f"{text} ({reason})"


def alike(jobs: Iterable[Job]) -> list[list[Job]]:
    """Process groups in lists by job, as there may be hundreds."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        key = (job.of, job.word) if job.group is not None else (job.name, job.start, "")
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def titles(jobs: Sequence[Job]) -> str:
    """The title of a job, a process group, or several groups of a job."""
    if len(jobs) == 1:
        return title(jobs[0])
    names = [shown(job.group) for job in jobs[:_GROUPS]]
    more = len(jobs) - len(names)
    return f"{_named(jobs[0])}, {len(jobs)} process groups ({'; '.join(names)}" + (
        f"; and {more} more)" if more else ")"
    )


def _named(job: Job) -> str:
    return f"job {shown(job.of)}" if job.of else "the job without a name"


def title(job: Job) -> str:
    """The title of a job or of a process group."""
    text = _named(job)
    if job.group is not None:
        text += f", process group {shown(job.group)}"
    return f"{text}, {job.start}" if job.start else text


def as_json(report: Report) -> dict[str, Any]:
    """The report for programs; `schema` is raised when a key changes its meaning."""
    return {
        "schema": 1,
        "nodes": report.nodes,
        "jobs": [
            {
                "job": verdict.job.of,
                "process_group": verdict.job.group,
                "start": verdict.job.start or None,
                "ranks": list(verdict.job.ranks),
                "steps": len(verdict.job.steps),
                "median_step_ns": verdict.job.median,
                "late_from_ns": verdict.job.limit,
                "verdict": verdict.outcome,
                "slowed": {cls: row.share for cls, row in verdict.slowed.items()},
                "slowed_caps": {cls: row.caps for cls, row in verdict.slowed.items()},
                "remarks": verdict.job.remarks,
                "stragglers": [_straggler_json(s) for s in verdict.stragglers],
            }
            for verdict in report.verdicts
        ],
        "hung": [dataclasses.asdict(hang) for hang in report.hung],
        "open": [dataclasses.asdict(stall) for stall in report.open],
        "incidents": [dataclasses.asdict(incident) for incident in report.incidents],
        "lost": [dataclasses.asdict(row) for row in report.lost],
        "oracles": report.oracles,
        "losses": report.losses,
        "clocks": report.clocks,
        "missing": [row._asdict() for row in report.missing],
        "unknown": report.remarks,
    }


def _straggler_json(late: chains.Straggler) -> dict[str, Any]:
    entry = dataclasses.asdict(late)
    for finding in entry["findings"]:
        # JavaScript and jq round numbers above 2^53; SQL accepts text as ids, too.
        finding["evidence_ids"] = [str(number) for number in finding["evidence"]]
    return entry


def findings(path: Path) -> list[tuple[Any, ...]]:
    """Rows for `schema.FINDING`; a rank that nothing explains has a row of NULLs.

    Raises `OpsError`.
    """
    rows = []
    for verdict in report(path).verdicts:
        for late in verdict.stragglers:
            who: dict[str, Any] = {
                "job": verdict.job.of,
                "process_group": verdict.job.group,
                "start": verdict.job.start or None,
                "rank": late.rank,
                "node": late.node,
                "sid": late.sid,
                "tid": late.tid,
                "late": len(late.steps),
            }
            for finding in late.findings or (None,):
                row = dict(who)
                if finding is not None:
                    p = finding.control.p if finding.control else None
                    row = {**vars(finding), **who, "class": finding.cls, "p": p}
                rows.append(tuple(row.get(name) for name in schema.FINDING))
    return rows


@functools.lru_cache(maxsize=1)
def _findings(path: Path, _state: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """`findings` of a store that is in that state."""
    return findings(path)


def query(
    path: Path, sql: str, *, rows: int | None = None, seconds: float | None = None
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """`store.query`, with the table `finding` if the query may use it.

    That table is made before the ``seconds`` begin, and again only for another store.
    """
    extra = None
    if _MAY_MEAN_FINDING.search(sql) and path.is_file():
        stat = path.stat()
        extra = _findings(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return store.query(path, sql, rows=rows, seconds=seconds, findings=extra)
