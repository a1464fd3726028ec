# SPDX-License-Identifier: GPL-2.0-or-later
"""From a late rank to what its thread waited for, at three levels of claim.

- observed: there are records of the stall.
- coincides: a stall overlaps a window in which the rank was late, on one of its
  threads, or on its node if it is not known whose thread it was.
- explains: the stalls are on the very thread that arrived late, before it arrived, and
  cover most of the lateness in several late steps; steps without them were not late.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from .errors import shown
from .health import LASTING, Health, Source
from .order import Rival
from .recording import digest
from .rules import Class, Rules
from .straggler import Arrival, Job, Step, chance, ranks_named, union

#: With less coverage than that, most of the lateness has another cause.
_MOST = 0.5
LEVELS = ("observed", "coincides", "explains")

_OVERLAPS = """
WITH windows AS (SELECT unnest(?::STRUCT(
    rank INTEGER, sid VARCHAR, tid INTEGER, tgid INTEGER, step BIGINT, w0 BIGINT,
    w1 BIGINT)[], recursive := true))
SELECT w.rank, w.step, s.class, coalesce(s.cause, ''), s.cgroup_id,
    [s.device, s.join_key], coalesce(s.tid = w.tid, false) AS mine,
    s.tgid IS NOT NULL AS joined,
    coalesce(s.t0, s.t1), s.t1, s.id, s.provider
FROM windows w JOIN stall s ON s.sid = w.sid
WHERE (s.tid = w.tid OR s.tgid = w.tgid OR s.tid IS NULL)
    AND coalesce(s.t0, s.t1) < w.w1 AND coalesce(s.t1, 9223372036854775807) > w.w0
ORDER BY w.rank, w.step, s.t0, s.id
"""
# The groups of each process, and those above them, whose quota it is under as well.
_GROUPS = """
WITH own AS (SELECT DISTINCT sid, tgid, cgroup_id FROM proc WHERE cgroup_id IS NOT NULL)
SELECT sid, tgid, cgroup_id FROM own
UNION SELECT own.sid, own.tgid, above.cgroup_id
FROM own JOIN cgroup below USING (sid, cgroup_id) JOIN cgroup above ON
    above.sid = own.sid AND starts_with(below.path, rtrim(above.path, '/') || '/')
"""


@dataclass(frozen=True)
class Control:
    """Lateness with the cause and without; how likely that difference is by chance."""

    with_ns: int
    without_ns: int
    steps_with: int
    steps_without: int
    p: float
    #: How many of each were drawn for ``p``; None if all were compared.
    drawn: int | None = None


@dataclass(frozen=True)
class Finding:
    """One claim about a rank and a class of stalls, at one level."""

    id: str
    job: str
    rank: int | None
    node: str
    sid: str
    cls: str
    cause: str
    level: str
    severity: str
    #: Median share of a late step's lateness that it covers; None without lateness.
    coverage: float | None
    #: Explained lateness of a late step, as a share of the median step.
    impact: float | None
    n: int
    lost_ns: int
    late: int
    covered: int
    control: Control | None
    caps: tuple[str, ...]
    #: Its providers that no oracle was compared with.
    uncompared: tuple[str, ...]
    evidence: tuple[int, ...]
    #: The steps it covers, as numbers.
    steps: tuple[int, ...]
    text: str
    fix: str
    doc: str
    not_said: str


@dataclass(frozen=True)
class Straggler:
    """A rank that was late, and what explains that, if anything does."""

    rank: int
    node: str
    sid: str
    #: None if it is not known which of its threads was late.
    tid: int | None
    steps: tuple[int, ...]
    lateness_ns: int
    findings: tuple[Finding, ...]
    #: Classes that were not recorded where it ran.
    unrecorded: tuple[str, ...] = ()
    #: Ranks that may have been last instead, in some of these steps.
    unordered: tuple[Rival, ...] = ()

    @property
    def elsewhere(self) -> float | None:
        """The share of its lateness that kernel events cover; None if it is most."""
        best = max((finding.coverage or 0.0 for finding in self.findings), default=0.0)
        return None if best >= _MOST else best

    @property
    def explained(self) -> bool:
        """Whether there is a finding of the highest level."""
        return any(finding.level == "explains" for finding in self.findings)


@dataclass(frozen=True)
class Slowed:
    """That all ranks lose time to one class of stalls."""

    #: The least share of the median step that any rank loses.
    share: float
    #: What is wrong with these records, and those of which ranks.
    caps: tuple[str, ...]
    #: Whether the share may be less because of that: losses only make it more.
    doubtful: bool


@dataclass
class Verdict:
    """The result for one job."""

    job: Job
    stragglers: list[Straggler] = field(default_factory=list)
    #: By class.
    slowed: dict[str, Slowed] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """One of: nothing, slowed, straggler."""
        if self.stragglers:
            return "straggler"
        return "slowed" if self.slowed else "nothing"


@dataclass
class Part:
    """Stalls of one class in the windows of one rank, by step."""

    spans: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    ids: dict[int, None] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    #: By device its records.
    devices: dict[str, dict[int, None]] = field(default_factory=dict)
    sources: dict[Source, None] = field(default_factory=dict)


@dataclass
class Overlap:
    """The stalls of one class in the windows of one rank, by whose they are."""

    #: Of the late thread, before it arrived.
    mine: Part = field(default_factory=Part)
    #: Of the late thread, until just before it left the collective before.
    kept: Part = field(default_factory=Part)
    #: Of other threads of its process, or of any if it is not known which was late.
    process: Part = field(default_factory=Part)
    #: Of the node, without a thread that is known.
    node: Part = field(default_factory=Part)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, those that say most of the late thread first."""
        return self.mine, self.kept, self.process, self.node

    @property
    def said(self) -> Part:
        """The part that a claim is about."""
        return next((part for part in self.parts if part.ids), self.node)


def judge(
    opened: duckdb.DuckDBPyConnection, job: Job, health: Health, limits: Rules
) -> Verdict:
    """Name the ranks that were late, and attribute their lateness."""
    verdict = Verdict(job)
    if len(job.ranks) < 2 or not job.steps:
        return verdict
    _discount(opened, job, health, limits)
    late = {rank: steps for rank in job.ranks if (steps := job.late(rank))}
    total = sum(map(len, late.values()))
    suspects = [rank for rank, steps in late.items() if len(steps) >= limits.late_steps]
    # Looking at all ranks takes long, so only if all of them may be slowed.
    everybody = _all_may_be_slowed(opened, job, limits)
    ranks = job.ranks if everybody else suspects
    overlaps = overlaps_of(opened, job, ranks, health.seen, limits)
    if everybody:
        verdict.slowed = _slowed(job, overlaps, health, limits)
    all_slowed = not all(slowed.doubtful for slowed in verdict.slowed.values())
    level = limits.p / len(job.ranks)
    for rank in suspects:
        steps = late[rank]
        here = steps[0].arrivals[rank]
        findings = [
            _finding(opened, job, rank, cls, overlap, health, limits)
            for cls, overlap in sorted(overlaps[rank].items())
        ]
        findings.sort(
            key=lambda finding: (-LEVELS.index(finding.level), -(finding.impact or 0))
        )
        straggler = Straggler(
            rank=rank,
            node=health.nodes.get(here.sid, here.sid),
            sid=here.sid,
            # Forward and backward pass may run on different threads.
            tid=statistics.mode(step.arrivals[rank].tid for step in steps),
            steps=tuple(step.number for step in steps),
            lateness_ns=sum(step.lateness(rank) for step in steps),
            findings=tuple(findings),
            unrecorded=tuple(health.unrecorded.get(here.sid, ())),
        )
        # On a busy node every rank is late now and then.  A straggler is late more
        # often than by chance, or for longer, or its lateness is explained by something
        # that does not slow all ranks.
        often = chance(len(steps), total, len(job.ranks)) < level
        explained = straggler.explained and not all_slowed
        if often or explained or job.run(rank) < level:
            verdict.stragglers.append(straggler)
            if deleted := len(job.steps) - len(health.whole(job, rank)):
                job.remarks.append(
                    f"rank {rank}: in {deleted} of {len(job.steps)} steps the cause is "
                    "not known: --ring had deleted records of that time"
                )
    verdict.stragglers.sort(key=lambda straggler: -straggler.lateness_ns)
    return verdict


def overlaps_of(
    opened: duckdb.DuckDBPyConnection,
    job: Job,
    ranks: Iterable[int],
    seen: Mapping[int, int],
    limits: Rules,
) -> dict[int, dict[str, Overlap]]:
    """By rank and class, the stalls that overlap the time between its collectives.

    ``seen`` is `Health.seen`.
    That includes stalls of its node without a thread: a message from a device may
    concern any rank, and the quota of a group those in it.
    """
    groups: dict[tuple[str, int], set[int]] = {}
    for sid, tgid, group in opened.execute(_GROUPS).fetchall():
        groups.setdefault((sid, tgid), set()).add(group)
    windows = [
        _window(step.arrivals[rank], at, before=job.limit)
        for rank in ranks
        for at, step in enumerate(job.steps)
    ]
    overlaps: dict[int, dict[str, Overlap]] = {rank: {} for rank in ranks}
    for row in opened.execute(_OVERLAPS, [windows]).fetchall():
        rank, at, cls, cause, group, device, mine, joined, t0, t1, id_, provider = row
        arrival = job.steps[at].arrivals[rank]
        since = arrival.since
        assert since is not None
        t1 = seen.get(id_, LASTING) if t1 is None else t1
        if t1 <= since - job.limit:
            continue
        mine_or_above = groups.get((arrival.sid, arrival.tgid), {group})
        if not (joined or group is None or group in mine_or_above):
            continue
        # If a stall ended just before the thread left the last collective, the stall
        # may have kept it there, or it may have waited for others anyway.
        outside = t1 <= since
        if outside and not (mine and joined and t1 > t0):
            continue
        overlap = overlaps[rank].setdefault(cls, Overlap())
        part = overlap.process if joined else overlap.node
        if mine and joined:
            part = overlap.kept if outside else overlap.mine
        part.spans.setdefault(at, []).append((t0, t1))
        part.ids[id_] = None
        part.sources[Source(arrival.sid, provider, group, device[0])] = None
        lasted = max(0, t1 - t0) + 1
        part.causes[cause] = part.causes.get(cause, 0) + lasted
        if group is not None:
            part.groups[group] = part.groups.get(group, 0) + lasted
        if (name := limits.classes[cls].device(*device)) is not None:
            part.devices.setdefault(name, {})[id_] = None
    return overlaps


def _window(arrival: Arrival, at: int, before: int | None = None) -> dict[str, Any]:
    """A row for `_OVERLAPS`: the time in a collective, or before it if ``before``."""
    begin, end = arrival.enter, arrival.exit
    if before is not None:
        assert arrival.since is not None
        begin, end = arrival.since - before, arrival.enter
    return {
        "rank": arrival.rank,
        "sid": arrival.sid,
        "tid": arrival.tid,
        "tgid": arrival.tgid,
        "step": at,
        "w0": begin,
        "w1": end,
    }


def _discount(
    opened: duckdb.DuckDBPyConnection, job: Job, health: Health, limits: Rules
) -> None:
    """In steps with a late rank, note which threads were stalled in the collective.

    A thread that is stalled when others leave seems to wait longer than it did, and
    would make all other ranks look late.
    """
    if job.group is not None:
        # Imported collectives are not compared by when threads left them.
        return
    late = [
        at for at, step in enumerate(job.steps) if step.lateness(step.last) >= job.limit
    ]
    windows = [
        _window(arrival, at)
        for at in late
        for arrival in job.steps[at].arrivals.values()
    ]
    if not windows:
        return
    stalled: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in opened.execute(_OVERLAPS, [windows]).fetchall():
        rank, at, cls, _, _, _, mine, _, t0, t1, id_, _ = row
        t1 = health.seen.get(id_, LASTING) if t1 is None else t1
        if mine and limits.classes[cls].blocks:
            stalled.setdefault((at, rank), []).append((t0, t1))
    for at in {at for at, _ in stalled}:
        arrivals = {
            rank: dataclasses.replace(
                arrival,
                kept=union(
                    stalled.get((at, rank), ()), arrival.enter, arrival.released
                ),
            )
            for rank, arrival in job.steps[at].arrivals.items()
        }
        job.steps[at] = dataclasses.replace(job.steps[at], arrivals=arrivals)


def covered_of(step: Step, rank: int, intervals: Sequence[tuple[int, int]]) -> int:
    """How much of the time before ``rank`` arrived is covered by the intervals."""
    arrival = step.arrivals[rank]
    assert arrival.since is not None
    return union(intervals, arrival.since, arrival.enter)


def _covered(
    job: Job,
    rank: int,
    steps: Iterable[int],
    intervals: Mapping[int, Sequence[tuple[int, int]]],
) -> dict[int, int]:
    """`covered_of` by position, for those ``steps`` that have intervals."""
    return {
        at: covered_of(job.steps[at], rank, intervals[at])
        for at in steps
        if at in intervals
    }


def _all_may_be_slowed(
    opened: duckdb.DuckDBPyConnection, job: Job, limits: Rules
) -> bool:
    """Whether the threads of all ranks have enough stalls, anywhere in their steps."""
    threads = {
        (arrival.sid, arrival.tid): arrival.rank
        for step in job.steps
        for arrival in step.arrivals.values()
    }
    rows = opened.execute(
        "SELECT sid, tid, class, sum(coalesce(t1, 9223372036854775807) - t0) "
        "FROM stall WHERE tid IS NOT NULL AND t0 IS NOT NULL GROUP BY ALL"
    ).fetchall()
    lost: dict[str, dict[int, int]] = {}
    for sid, tid, cls, lasted in rows:
        rank = threads.get((sid, tid))
        if rank is not None:
            ranks = lost.setdefault(cls, {})
            ranks[rank] = ranks.get(rank, 0) + int(lasted)
    enough = limits.slowed * job.median * len(job.steps)
    return any(
        len(ranks) == len(job.ranks) and min(ranks.values()) >= enough
        for ranks in lost.values()
    )


def _slowed(
    job: Job,
    overlaps: Mapping[int, Mapping[str, Overlap]],
    health: Health,
    limits: Rules,
) -> dict[str, Slowed]:
    """Classes to which all ranks lose a large and about equal share of their steps."""
    slowed = {}
    for cls in {cls for overlap in overlaps.values() for cls in overlap}:
        parts = {rank: overlaps[rank].get(cls, Overlap()).mine for rank in job.ranks}
        shares = []
        for rank, part in parts.items():
            lost = sum(
                covered_of(job.steps[at], rank, intervals)
                for at, intervals in part.spans.items()
            )
            shares.append(lost / (job.median * len(job.steps)))
        if min(shares) >= limits.slowed and min(shares) >= max(shares) / 2:
            doubtful = any(
                health.damaged(source.sid, source.provider)
                for part in parts.values()
                for source in part.sources
            )
            slowed[cls] = Slowed(min(shares), _caps(job, parts, health), doubtful)
    return slowed


def _caps(job: Job, parts: Mapping[int, Part], health: Health) -> tuple[str, ...]:
    """What is wrong with the records of each rank's part, and the ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, part in parts.items():
        for text in _wrong(job, rank, part, range(len(job.steps)), health):
            ranks.setdefault(text, []).append(rank)
    return tuple(f"{ranks_named(those)}: {text}" for text, those in ranks.items())


def _control(
    job: Job, rank: int, steps: Sequence[int], covered: Mapping[int, int], limits: Rules
) -> Control | None:
    """Compare steps in which the cause was long enough to be late with the others.

    How a step is labelled depends on the cause alone, not on how late the step was.
    """
    late = [job.steps[at].lateness(rank) for at in steps]
    labels = [covered.get(at, 0) >= job.limit for at in steps]
    inside = [value for value, label in zip(late, labels, strict=True) if label]
    outside = [value for value, label in zip(late, labels, strict=True) if not label]
    if not inside:
        return None
    if not outside:
        lasted = int(statistics.median(inside))
        return Control(lasted, 0, len(inside), 0, 1.0)
    p, drawn = _permuted(inside, outside, limits)
    return Control(
        with_ns=int(statistics.median(inside)),
        without_ns=int(statistics.median(outside)),
        steps_with=len(inside),
        steps_without=len(outside),
        p=p,
        drawn=drawn,
    )


def _permuted(
    inside: Sequence[int], outside: Sequence[int], limits: Rules
) -> tuple[float, int | None]:
    """How likely it is by chance that ``inside`` is so much more; `Control.drawn`.

    Seeded, so that the same store always gives the same answer.
    """
    chooser = random.Random(len(inside) + len(outside))  # noqa: S311
    # A permutation takes as long as the smaller side is large.
    many = min(len(inside), len(outside)) > limits.drawn
    if many:
        inside = chooser.sample(inside, limits.drawn)
        outside = chooser.sample(outside, limits.drawn)
    size = min(len(inside), len(outside))
    bar = sum(inside) if size == len(inside) else sum(outside)
    both = [*inside, *outside]
    hits = 0
    for _ in range(limits.permutations):
        total = sum(chooser.sample(both, size))
        hits += total >= bar if size == len(inside) else total <= bar
    p = (hits + 1) / (limits.permutations + 1)
    return p, limits.drawn if many else None


@dataclass(frozen=True)
class Measure:
    """How much of a rank's lateness stalls of its thread cover; steps by position."""

    steps: Sequence[int]
    late: Sequence[int]
    #: By step for how long, and by late step which share of the lateness.
    covered: Mapping[int, int]
    shares: Mapping[int, float]
    #: The late steps of which they cover most.
    well: Sequence[int]
    control: Control | None
    impact: float | None


def _measure(
    job: Job, rank: int, overlap: Overlap, steps: Sequence[int], limits: Rules
) -> Measure:
    """Measure the stalls in ``steps``; in all if none of them was late."""
    late = sorted(set(job.late_at(rank)) & set(steps))
    if not late:
        late, steps = job.late_at(rank), range(len(job.steps))
    covered = _covered(job, rank, steps, overlap.mine.spans)
    shares = {
        at: min(1.0, covered.get(at, 0) / job.steps[at].lateness(rank)) for at in late
    }
    well = [at for at, share in shares.items() if share >= limits.coverage]
    impact = None
    if well and job.median:
        explained = [min(covered[at], job.steps[at].lateness(rank)) for at in well]
        impact = statistics.fmean(explained) / job.median
    control = _control(job, rank, steps, covered, limits)
    return Measure(steps, late, covered, shares, well, control, impact)


def _wrong(
    job: Job, rank: int, part: Part, steps: Iterable[int], health: Health
) -> list[str]:
    """What is wrong with the records of ``part`` in ``steps``, or with the rank."""
    wrong = list(job.caps.get(rank, ()))
    spans = _spans(job.steps[at].arrivals[rank] for at in steps)
    for provider in dict.fromkeys(source.provider for source in part.sources):
        for sid, (begin, end) in spans.items():
            wrong += health.of(sid, provider, begin, end)
    return list(dict.fromkeys(wrong))


def _level(
    overlap: Overlap, measure: Measure, lacking: Sequence[str], highest: str
) -> str:
    """The level of a claim that lacks ``lacking`` to be of the highest."""
    if not any(at in part.spans for part in overlap.parts for at in measure.late):
        return "observed"
    return "coincides" if lacking or highest != "explains" else "explains"


def _lost(job: Job, rank: int, steps: Iterable[int], overlap: Overlap) -> int:
    """How long the stalls lasted that a claim is about, together."""
    if overlap.said is not overlap.kept:
        return sum(_covered(job, rank, steps, overlap.said.spans).values())
    lost = 0
    for at in steps:
        if spans := overlap.kept.spans.get(at):
            # These had ended when the step began.
            lost += union(spans, min(spans)[0], max(t1 for _, t1 in spans))
    return lost


def _say(rule: Class, overlap: Overlap, *, known: bool) -> str:
    """The text of a claim; ``known`` is whether the late thread is known."""
    part = overlap.said
    if part is overlap.node:
        return rule.say_node
    if part is not overlap.process:
        return rule.say
    threads = "other threads" if known else "threads"
    return filled(rule.say_process, {"threads": threads})


def _finding(
    opened: duckdb.DuckDBPyConnection,
    job: Job,
    rank: int,
    cls: str,
    overlap: Overlap,
    health: Health,
    limits: Rules,
) -> Finding:
    rule, part = limits.classes[cls], overlap.said
    measure = _measure(job, rank, overlap, health.whole(job, rank), limits)
    missing = _missing(job, measure.well, measure.control, limits)
    doubts = _wrong(job, rank, part, measure.steps, health)
    if job.unseen:
        text = f"a rank may have been later of which nothing came ({job.unseen})"
        doubts.append(text)
    level = _level(overlap, measure, [*missing, *doubts], rule.highest)
    lost = _lost(job, rank, measure.steps, overlap)
    first = job.steps[0].arrivals[rank]
    cause = max(part.causes, key=part.causes.__getitem__, default="")
    device = max(part.devices, key=lambda name: len(part.devices[name]), default=None)
    names = {
        "ms": f"{lost / 1e6:.1f}",
        "cause": shown(cause) or "cause unknown",
        "n": str(len(part.ids if device is None else part.devices[device])),
        "device": "a device" if device is None else shown(device),
        "cgroup": _group(opened, first.sid, part),
    }
    severity = "note"
    if level == "explains" and measure.impact and measure.impact >= limits.warn:
        severity = "high" if measure.impact >= limits.high else "warn"
    if any(rule.counts_once(cause) for each in overlap.parts for cause in each.causes):
        severity = "high"
    shares = measure.shares.values()
    known = any(step.arrivals[rank].tid is not None for step in job.steps)
    return Finding(
        id=digest(job.name + job.start, rank, first.sid, cls, cause).hex(),
        job=job.of,
        rank=rank,
        node=health.nodes.get(first.sid, first.sid),
        sid=first.sid,
        cls=cls,
        cause=cause,
        level=level,
        severity=severity,
        coverage=statistics.median(shares) if shares else None,
        impact=measure.impact,
        n=len(part.ids),
        lost_ns=lost,
        late=len(measure.late),
        covered=len(measure.well),
        control=measure.control,
        caps=() if level == "explains" else (*missing, *doubts),
        uncompared=health.uncompared(part.sources),
        evidence=tuple(list(part.ids)[:5]),
        steps=tuple(job.steps[at].number for at in measure.well),
        text=filled(_say(rule, overlap, known=known), names),
        fix=filled(rule.fix, names),
        doc=rule.doc,
        not_said=rule.not_said,
    )


def _spans(arrivals: Iterable[Arrival]) -> dict[str, tuple[int, int]]:
    """The begin of the first step and the end of the last in each session.

    A recorder may have been started again meanwhile.
    """
    spans: dict[str, tuple[int, int]] = {}
    for arrival in arrivals:
        assert arrival.since is not None
        begin, _ = spans.get(arrival.sid, (arrival.since, 0))
        spans[arrival.sid] = begin, arrival.exit
    return spans


def _missing(
    job: Job, well: Sequence[int], control: Control | None, limits: Rules
) -> list[str]:
    """What the claim lacks to be `explains`, in words."""
    lacking = []
    if len(well) < limits.late_steps:
        lacking.append(
            f"it covers {limits.coverage:.0%} of the lateness in {len(well)} late "
            f"steps, {limits.late_steps} are needed"
        )
    if control is None:
        lacking.append("it never lasted as long as a step has to be late")
    elif not control.steps_without:
        lacking.append("there are no steps without it to compare with")
    elif control.p >= limits.p:
        lacking.append(f"steps without it are as late (p = {control.p:.3f})")
    elif control.without_ns >= max(
        # With that coverage, other causes have at most this lateness.
        job.limit,
        (1 - limits.coverage) * control.with_ns,
    ):
        lacking.append(
            f"steps without it are late as well ({control.without_ns / 1e6:.1f} ms)"
        )
    return lacking


def without(unrecorded: Sequence[str]) -> str:
    """The text after "not in kernel events": classes that were not recorded."""
    return f"; not recorded there: {', '.join(unrecorded)}" if unrecorded else ""


def filled(text: str, names: Mapping[str, str]) -> str:
    """``text`` of a rule with values for its names."""
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _group(opened: duckdb.DuckDBPyConnection, sid: str, part: Part) -> str:
    if not part.groups:
        return "a group that is not known"
    number = max(part.groups, key=part.groups.__getitem__)
    row: Any = opened.execute(
        "SELECT path FROM cgroup WHERE sid = ? AND cgroup_id = ?", [sid, number]
    ).fetchone()
    return shown(row[0]) if row and row[0] else f"cgroup {number}"
