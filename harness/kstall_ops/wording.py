# SPDX-License-Identifier: GPL-2.0-or-later
"""An explanation in words: for a terminal as a whole, for the page in parts."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import chains, store, straggler
from .chains import Verdict
from .errors import shown
from .explain import Report, alike, title, titles
from .pending import Absent, Hung, Open
from .rules import Rules, rules
from .straggler import Job

#: How many ranks are named that may have been last instead.
_RIVALS = 4
#: How many remarks are named on process groups without a late rank.
_REMARKS = 8


def as_text(report: Report) -> str:
    """The report as text for a terminal."""
    limits = rules()
    lines = _sections(report, limits)
    if report.remarks:
        lines += ["", "what cannot be known, or only with doubt"]
        lines += [f"  - {text}" for text in report.remarks]
    if levels := meanings(report, limits):
        lines += ["", "how sure that is"]
        lines += [f"  {level.upper()}: {text}" for level, text in levels]
    return "\n".join(lines)


def thread(late: chains.Straggler) -> str:
    """The late thread of a straggler, as text."""
    return "unknown" if late.tid is None else str(late.tid)


def elsewhere(late: chains.Straggler) -> str | None:
    """The text on the cause if no event of the rank's thread shows it; else None."""
    share = late.elsewhere
    if share is None:
        return None
    if late.tid is None:
        return "not known, as it is not known which of its threads was late"
    text = "not in kernel events"
    if any(finding.level != "observed" for finding in late.findings):
        text += f" of its thread, which cover {share:.0%} of the lateness"
    return text + chains.without(late.unrecorded)


def uncompared(claim: chains.Finding | Absent) -> list[str]:
    """The text on providers of a claim that no oracle was compared with."""
    names = ", ".join(map(shown, claim.uncompared))
    return [f"not compared with an oracle: {names}"] if names else []


def unordered(late: chains.Straggler) -> list[str]:
    """A line for each rank that may have been last instead."""
    lines = []
    for rival in late.unordered[:_RIVALS]:
        within = "clocks are not aligned"
        if rival.within_ns is not None:
            within = f"within {math.ceil(rival.within_ns / 1000)} us"
        lines.append(
            f"rank {rival.rank} came about as late in {len(rival.steps)} of these "
            f"steps ({straggler.ranks_text(rival.steps)}): unordered ({within})"
        )
    if len(late.unordered) > _RIVALS:
        more = len(late.unordered) - _RIVALS
        lines.append(f"so did {more} more, in fewer steps or as many")
    return lines


def _sections(report: Report, limits: Rules) -> list[str]:
    lines: list[str] = []
    for stuck in report.hung:
        lines += _hung_text(stuck)
    lines += _jobs_text(report, limits)
    if not report.verdicts and not report.hung:
        lines.append("no job with marks: a table of lost time only")
    if report.open:
        lines += ["", "stalls without an end, when the recording ended"]
        lines += [f"  {open_text(stall)}" for stall in report.open[:20]]
        if len(report.open) > 20:
            lines.append(f"  … {len(report.open) - 20} more: kstall query --named open")
    if report.incidents:
        lines += ["", "serious on one occurrence, whether or not a rank was late"]
        for bad in report.incidents[:20]:
            where = f"{bad.cls} on {shown(bad.node)}"
            lines.append(f"  OBSERVED [high] {where}: {bad.text}; records: {bad.n}")
            lines += [f"    fix: {bad.fix}", f"    see: {bad.doc}"]
            lines.append(f"    this does not say: {bad.not_said}")
        if len(report.incidents) > 20:
            lines.append(f"  … {len(report.incidents) - 20} more: kstall query")
    if report.lost:
        lines += ["", "lost time, whether or not a rank was late"]
        rows = [
            (
                lost.node,
                lost.cls,
                lost.cause or None,
                lost.n,
                None if lost.lost_ns is None else lost.lost_ns / 1e6,
                None if lost.worst_ns is None else lost.worst_ns / 1e6,
                lost.provider,
            )
            for lost in report.lost[:20]
        ]
        head = ("node", "class", "cause", "n", "ms", "worst ms", "provider")
        lines += [f"  {line}" for line in store.table(head, rows).split("\n")]
        if len(report.lost) > 20:
            lines.append(f"  … {len(report.lost) - 20} more: kstall query --named lost")
    elif not report.verdicts:
        lines.append("no stall was recorded")
    return lines


def hung_title(hang: Hung) -> str:
    """Which ranks wait, in which step, for how long, and for which others."""
    name = f"job {shown(hang.job)}" if hang.job else "the job without a name"
    text = f"{name} hangs in step {hang.step}: {_ranks(hang.waiting, 'waits', 'wait')}"
    text += f", for {hang.waited_ns / 1e9:.1f} s so far"
    if hang.absent:
        absent = [rank.rank for rank in hang.absent]
        text += f"; {_ranks(absent, 'has not entered it', 'have not entered it')}"
    elif not (hang.unknown or hang.silent or hang.unseen):
        text += "; these are all"
    if hang.unknown:
        early = _ranks(hang.unknown, "is not known", "are not known")
        text += f"; {early}, as the recording ends too early"
    if hang.silent:
        text += f"; of {hang.silent} more there are no marks at all"
    if hang.unseen:
        text += f"; recordings are missing ({hang.unseen}), which may have more ranks"
    return text


def _ranks(ranks: Sequence[int], singular: str, plural: str) -> str:
    return f"{straggler.ranks_named(ranks)} {singular if len(ranks) == 1 else plural}"


def absent_title(absent: Absent) -> str:
    """The last mark of a rank, and its age."""
    last = "had entered" if absent.phase == "enter" else "had left"
    text = (
        f"rank {absent.rank} on {shown(absent.node)}, thread {absent.tid}, {last} step "
    )
    return f"{text}{absent.step} {absent.age_ns / 1e9:.1f} s before"


def _hung_text(hang: Hung) -> list[str]:
    lines = [f"{hung_title(hang)}"]
    for absent in hang.absent[:20]:
        lines.append(f"  {absent_title(absent)}")
        if absent.cls is None:
            lines.append(f"    cause: {absent.text}")
            lines += [f"      {text}" for text in absent.caps]
            continue
        lines.append(
            f"    COINCIDES [high] {absent.cls}: {absent.text}, "
            f"{absent.coverage:.0%} of that time"
        )
        lines += [f"      {text}" for text in (*absent.caps, *uncompared(absent))]
        lines += [f"      fix: {absent.fix}", f"      see: {absent.doc}"]
        lines.append(f"      this does not say: {absent.not_said}")
    if len(hang.absent) > 20:
        lines.append(f"  … {len(hang.absent) - 20} more")
    return lines


def open_text(stall: Open) -> str:
    """A stall without an end, in one line."""
    who = "no thread" if stall.tid is None else f"thread {stall.tid}"
    if stall.comm:
        who += f" ({shown(stall.comm)})"
    text = f"{stall.cls} on {shown(stall.node)}, {who}: {stall.text}"
    if stall.doubts:
        text += f"; or its end was not seen: {', '.join(stall.doubts)}"
    return text


def measure(job: Job) -> tuple[str, str]:
    """The ranks and the steps that were judged, as text."""
    if not job.steps:
        return straggler.ranks_named(job.ranks), "no whole step"
    text = f"{len(job.steps)} steps of {job.median / 1e6:.1f} ms (median)"
    return (
        straggler.ranks_named(job.ranks),
        f"{text}; late is {job.limit / 1e6:.1f} ms or more",
    )


def nobody(verdict: Verdict, limits: Rules, *, hangs: bool) -> str | None:
    """The text on a job in which no rank is to blame; None if one is, or who knows."""
    job = verdict.job
    if verdict.outcome != "nothing" or len(job.ranks) < 2 or not job.steps:
        return None
    before = "before that " if hangs else ""
    if count := len(job.late_steps()):
        return (
            f"{before}no straggler: {count} late steps, no rank in {limits.late_steps} "
            "of them, or none more often than by chance"
        )
    none = "of these ranks none" if job.partial else "no rank"
    return f"{before}{none} was {job.word}"


def slowed(verdict: Verdict) -> list[tuple[str, str, tuple[str, ...]]]:
    """For each class that slows all ranks a heading, a text, and why it is doubtful."""
    heading = f"all slowed{'' if verdict.stragglers else ', no straggler'}"
    every = "each of these ranks" if verdict.job.partial else "every rank"
    return [
        (
            heading,
            f"{every} loses {row.share:.0%} or more of its time to {cls}",
            row.caps,
        )
        for cls, row in sorted(verdict.slowed.items())
    ]


def _job_text(verdict: Verdict, limits: Rules, *, hangs: bool) -> list[str]:
    job = verdict.job
    lines = [f"{title(job)}: {', '.join(measure(job))}"]
    lines += [f"  ! {text}" for text in job.remarks]
    if (text := nobody(verdict, limits, hangs=hangs)) is not None:
        lines.append(f"  {text}")
    for heading, text, caps in slowed(verdict):
        lines.append(f"  {heading}: {text}")
        lines += [f"    doubtful, as {cap}" for cap in caps]
    for late in verdict.stragglers:
        lines.append(
            f"  straggler: rank {late.rank} on {shown(late.node)}, "
            f"thread {thread(late)}, {job.word} in {len(late.steps)} of "
            f"{len(job.steps)} steps "
            f"({straggler.ranks_text(late.steps)}), "
            f"{late.lateness_ns / 1e6:.1f} ms in all"
        )
        lines += [f"    {text}" for text in unordered(late)]
        if (cause := elsewhere(late)) is not None:
            lines.append(f"    cause: {cause}")
        for finding in late.findings:
            lines += _finding_text(finding, limits.coverage)
    return lines


def arranged(report: Report) -> tuple[list[Verdict], list[list[Job]]]:
    """All jobs, process groups with a straggler first; then the groups without a late
    rank in lists by job, as there may be hundreds."""
    quiet = [verdict.job for verdict in report.verdicts if _is_quiet(verdict)]
    rest = [verdict for verdict in report.verdicts if not _is_quiet(verdict)]
    rest.sort(key=lambda entry: entry.job.group is not None and not entry.stragglers)
    return rest, alike(quiet)


def _jobs_text(report: Report, limits: Rules) -> list[str]:
    hung = {stuck.job for stuck in report.hung}
    rest, quiet = arranged(report)
    lines: list[str] = []
    for verdict in rest:
        lines += _job_text(verdict, limits, hangs=verdict.job.name in hung)
    for groups in quiet:
        summary = quiet_text(groups)
        lines += [summary.title, *(f"  ! {text}" for text in summary.remarks)]
        lines += [f"  {summary.verdict}"] if summary.verdict else []
    return lines


def _is_quiet(verdict: Verdict) -> bool:
    """Whether it is a process group without a late rank."""
    return (
        verdict.job.group is not None
        and verdict.outcome == "nothing"
        and not verdict.job.late_steps()
    )


@dataclass(frozen=True)
class Quiet:
    """The text on process groups without a late rank."""

    title: str
    remarks: tuple[str, ...]
    verdict: str | None


def quiet_text(jobs: Sequence[Job]) -> Quiet:
    """The common text on one or several process groups of a job."""
    heard = [job for job in jobs if job.steps and len(job.ranks) > 1]
    if len(jobs) == 1:
        heading = f"{title(jobs[0])}: {', '.join(measure(jobs[0]))}"
    else:
        ranks = sorted({rank for job in jobs for rank in job.ranks})
        heading = f"{titles(jobs)}: {straggler.ranks_named(ranks)} in all"
    texts = collections.Counter(text for job in jobs for text in job.remarks)
    remarks = [
        text if count == len(jobs) else f"{count} of them: {text}"
        for text, count in texts.most_common(_REMARKS)
    ]
    if len(texts) > _REMARKS:
        remarks.append(f"… {len(texts) - _REMARKS} more: kstall explain --json")
    verdict = None
    if heard:
        partial = any(job.partial for job in heard)
        none = "of these ranks none" if partial else "no rank"
        verdict = f"{none} was {heard[0].word}"
        if len(heard) < len(jobs):
            verdict += f" in {len(heard)} of them; the others cannot tell"
    return Quiet(heading, tuple(remarks), verdict)


def evidence(finding: chains.Finding, coverage: float) -> str:
    """How much of the lateness a finding covers, as text."""
    text = f"covers {finding.coverage or 0:.0%} of the lateness (median)"
    text += (
        f", at least {coverage:.0%} in {finding.covered} of {finding.late} late steps"
    )
    if finding.impact is not None:
        text += f", there {finding.impact:.0%} of a median step on average"
    return f"{text}; {finding.n} record{'s' * (finding.n != 1)}"


def control(c: chains.Control) -> str:
    """How late steps with the cause and without it were, as text."""
    text = (
        f"median lateness {c.with_ns / 1e6:.1f} ms in the {c.steps_with} steps with "
        f"it, {c.without_ns / 1e6:.1f} ms in the {c.steps_without} without, "
        f"p = {c.p:.4f}"
    )
    if c.drawn is not None:
        text += f" (for {c.drawn} of each, drawn at random)"
    return text


def meanings(report: Report, limits: Rules) -> list[tuple[str, str]]:
    """The meaning of each level that the report uses, for readers new to kstall."""
    findings = [
        finding
        for verdict in report.verdicts
        for late in verdict.stragglers
        for finding in late.findings
    ]
    levels = {finding.level for finding in findings}
    levels |= {"coincides" for hang in report.hung for rank in hang.absent if rank.cls}
    levels |= {"observed"} if report.incidents else set()
    texts = {
        "explains": "on the late thread itself, before it arrived, and steps without "
        "it are less late; p is how likely that is by chance; [warn] from "
        f"{limits.warn:.0%} of a median step on, [high] from {limits.high:.0%}",
        "coincides": "at that time, on a thread of that rank, or on its node if the "
        "thread is not known; it may not be the reason",
        "observed": "it was recorded; nothing ties it to who was late",
    }
    return [(level, text) for level, text in texts.items() if level in levels]


def _finding_text(finding: chains.Finding, coverage: float) -> list[str]:
    level = f"{finding.level.upper()} [{finding.severity}]"
    lines = [f"    {level} {finding.cls}: {finding.text}"]
    if finding.coverage is not None:
        lines.append(f"      evidence: {evidence(finding, coverage)}")
    if finding.control is not None:
        lines.append(f"      control: {control(finding.control)}")
    lines += [f"      not more, as {cap}" for cap in finding.caps]
    lines += [f"      {text}" for text in uncompared(finding)]
    if finding.level == "explains" or finding.severity == "high":
        lines.append(f"      fix: {finding.fix}")
        lines.append(f"      see: {finding.doc}")
    lines.append(f"      this does not say: {finding.not_said}")
    return lines
