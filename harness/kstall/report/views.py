# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Report` for people: tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import markup
from rich.console import Console
from rich.table import Table

from ..base import KstallError, Status
from ..cost import Mode, Overhead
from ..evidence import Row, falsity
from ..verdict import Check, Comparison, Explanation
from . import explain
from .plain import printable, shortened
from .report import Repeats, Report, SeriesReport, Try

# The most failed comparisons to print; the page has them all.
_WRONG = 10
_DETAIL = 40
_FILES = 3
_WORDS: dict[str, str] = {"skip": "skipped", "error": "could not judge"}

STYLE: dict[Status, str] = {
    "pass": "green",
    "fail": "bold red",
    "skip": "yellow",
    "error": "bold magenta",
    "does-not-apply": "yellow",
}
VERDICT = {
    "proven": "[bold green]PROVEN[/]",
    "failed": "[bold red]FAILED[/]",
    "could-not-run": "[bold magenta]COULD NOT JUDGE[/]",
    "does-not-apply": "[bold yellow]DOES NOT APPLY[/]",
    "interrupted": "[bold magenta]INTERRUPTED[/]",
    "running": "[bold]RUNNING[/]",
}


def status_word(status: str) -> str:
    """The word for ``status`` of a stage, a check or a series."""
    return _WORDS.get(status, status.replace("-", " "))


def escape(text: str) -> str:
    """``text`` without rich's markup and without terminal control characters."""
    return markup.escape(printable(text))


def _mark(status: Status) -> str:
    text = "skip" if status == "skip" else status_word(status)
    return f"[{STYLE.get(status, 'bold')}]{text.upper()}[/]"


def not_sent(series: SeriesReport) -> str:
    """That the series is not to be sent, and why; empty if it is."""
    return f"not to be sent: {series.not_sent}" if series.not_sent else ""


def check_summary(check: Check) -> str:
    """The deciding comparison: the first that fails, else the last and their number; or
    the reason why the check could not be judged."""
    detail = check.detail.strip().splitlines()
    if check.status == "error" and detail:
        return explain.reason(check)
    if check.status == "skip":
        return detail[-1] if detail else ""
    if wrong := explain.first_wrong(check):
        seen = _in_one_line(wrong).seen
        return f"{wrong.label}: {seen}, expected {wrong.wanted}"
    note = "; ".join(detail[-1:])
    # The last is about the outcome; the first are often about the amount of evidence.
    if not check.comparisons:
        return note
    last = check.comparisons[-1]
    summary = f"{len(check.comparisons):>3} hold, {last.label}: {last.seen}"
    return f"{summary}; {note}" if note else summary


def terminal(report: Report, directory: Path, console: Console) -> None:
    """Print the run's outcome: what failed stands out, the verdict comes last."""
    for series in report.series:
        _series(series, report, console)
    _reasons(report, directory, console)
    skips = [cause for cause in explain.skipped(report) if cause.count > 1]
    if skips:
        console.print("skipped  neither passed nor failed:")
    for cause in skips:
        console.print(
            f"         {escape('; '.join(names_of(cause)))}: {escape(cause.reason)}"
        )
    for series in report.series:
        if series.not_sent:
            console.print(f"mails    {escape(series.name)}: {escape(not_sent(series))}")
    tree = report.tree
    if tree is not None:
        console.print(f"tree     {escape(tree.describe)} ({tree.kind})")
        if tree.dirty:
            console.print(
                f"         [yellow]{len(tree.dirty)} uncommitted paths in the tree are "
                "not part of this run[/]"
            )
    for series in report.series:
        if series.evidence and series.status != "pass":
            place = escape(str(directory / series.evidence))
            console.print(f"evidence {place}")
    console.print(f"report   {escape(str(directory / 'report.json'))}")
    page = directory / "report.html"
    if page.exists():
        console.print(f"page     {escape(str(page))}")
    counts = _counts(report)
    verdict = VERDICT.get(report.status, status_word(report.status).upper())
    console.print(f"verdict  {verdict}  {counts}")


def names_of(cause: explain.Cause) -> list[str]:
    """The stages and checks without a verdict, each group with its series."""
    return [
        ", ".join(names) + (f" of {', '.join(series)}" if any(series) else "")
        for names, series in cause.what
    ]


def _reasons(report: Report, directory: Path, console: Console) -> None:
    """Print all that did not pass, each with its explanation; nothing twice."""
    printed: set[str] = set()
    again: dict[str, None] = {}
    for owner, stage in report.all_stages():
        if stage.error:
            where = f"{owner.name}: {stage.name}" if owner else stage.name
            console.print(f"{_mark(stage.status)} {escape(where)}:")
            console.print(escape(stage.error))
            _explain(stage.explanation, directory, console, printed, again)
    for series in report.series:
        for checks in _alike(series):
            _check(checks, console)
            _explain(_together(checks), directory, console, printed, again)
    for command in again:
        console.print(f"again    {escape(command)}", soft_wrap=True)


def _explain(
    explanation: Explanation | None,
    directory: Path,
    console: Console,
    printed: set[str],
    again: dict[str, None],
) -> None:
    """Print an explanation; what was ``printed`` before is only named."""
    if explanation is None:
        return
    again |= dict.fromkeys(explanation.again)
    for excerpt in explanation.excerpts:
        repeated = excerpt.model_dump_json() in printed
        printed.add(excerpt.model_dump_json())
        tail = ": see above" if repeated else ""
        console.print(f"    {escape(excerpt.title)}{tail}")
        if not repeated:
            for line in excerpt.lines:
                console.print(f"        {escape(line)}", style="dim")
    rest = Explanation(files=explanation.files)
    for line in explain.lines(rest, directory):
        if line not in printed:
            console.print(f"    {escape(line)}", soft_wrap=True)
        printed.add(line)


def mutations(report: Report, console: Console, *, everything: bool) -> None:
    """Print the results on falsified evidence: what escaped, or everything."""
    for series in report.series:
        mutation = series.mutation
        if mutation is None:
            console.print(f"{escape(series.name)}: no event to falsify")
            continue
        table = _table(console, "field", "caught", "argued", "escaped", title="")
        for row in mutation.rows():
            caught = sum(map(len, row.caught.values()))
            total = caught + sum(map(len, row.argued.values())) + len(row.escaped)
            table.add_row(
                escape(f"{row.event.partition(':')[2]}: {row.field}"),
                f"{caught} of {total}",
                str(sum(map(len, row.argued.values())) or ""),
                f"[bold red]{len(row.escaped)}[/]" if row.escaped else "",
                escape("; ".join(_met(row, everything))),
            )
        console.print(f"[bold]{escape(series.name)}[/]")
        console.print(table)
        if everything:
            for line in mutation.unproven():
                console.print(f"argued: {escape(line)}")
            for line in mutation.unchanged():
                console.print(f"changes nothing: {escape(line)}")
        for mutant in mutation.mutants:
            if mutant.outcome == "escaped" and mutant.broke:
                where = f"{mutant.where} {mutant.field}: {mutant.operator}"
                console.print(escape(f"{where}: {mutant.broke[0]}"))
        for stale in mutation.stale:
            console.print("[bold red]does not hold:[/] " + escape(_argument(stale)))
        for spare in mutation.spare:
            console.print("not needed by this run: " + escape(_argument(spare)))
        for check in series.checks:
            console.print(f"{_mark(check.status)} {escape(check_summary(check))}")


def _argument(refuted: falsity.RefutedArgument) -> str:
    where = f"{refuted.where} {refuted.field}"
    return f"[[unproven]] {where}: {refuted.operator}: {refuted.why}"


def _met(row: Row, everything: bool) -> list[str]:
    words = []
    if not row.tried:
        words.append("no such record, or none that changes")
    if row.escaped:
        words.append(f"escaped: {', '.join(row.escaped)}")
    words += [f"argued: {', '.join(names)}" for names in row.argued.values()]
    if row.untried:
        words.append(f"changes nothing, not argued: {', '.join(row.untried)}")
    if everything:
        words += [f"changes nothing: {', '.join(names)}" for names in row.idle.values()]
        words += [f"{check}: {', '.join(names)}" for check, names in row.caught.items()]
    return words


def _counts(report: Report) -> str:
    states: list[str] = [
        check.status for series in report.series for check in series.checks
    ]
    names = {
        "pass": "pass",
        "fail": "fail",
        "skip": "skip",
        "error": status_word("error"),
    }
    parts = [
        f"{states.count(status)} {name}"
        for status, name in names.items()
        if status in states
    ]
    stopped = [
        stage.name
        for _, stage in report.all_stages()
        if stage.status in explain.UNSETTLED
    ]
    words = f"checks: {', '.join(parts)}" if parts else "no check was reached"
    return words + (f"; stopped in: {', '.join(stopped)}" if stopped else "")


def _table(console: Console, *fixed: str, title: str | None = None) -> Table:
    """A table whose last, nameless column takes the width that the others leave."""
    # Elsewhere lines have no width to fill or to be cut at.
    filling = console.is_terminal
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, expand=filling
    )
    for name in fixed:
        # Without a minimum rich shrinks all columns alike when the line is short.
        table.add_column(name, no_wrap=True, min_width=len(name) or 5)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _stages(series: SeriesReport, report: Report, console: Console) -> Table:
    table = _table(console, "stage", "", "seconds", title=series.name)
    for stage in [*report.stages, *series.stages]:
        prefix = "[dim]reused[/] " if stage.reused else ""
        table.add_row(
            stage.name,
            _mark(stage.status),
            f"{stage.seconds:7.1f}",
            prefix + escape(stage.summary),
        )
    if series.not_sent:
        table.add_row("mails", "", "", escape(not_sent(series)))
    return table


def _checks(series: SeriesReport, console: Console) -> Table:
    width = max(len(check.name) for check in series.checks)
    table = _table(console, "check".ljust(width), "", "kind")
    causes: dict[str, list[Check]] = {}
    for check in series.checks:
        if check.status == "skip":
            causes.setdefault(check.detail, []).append(check)
    for check in series.checks:
        name, text = check.name, check_summary(check)
        if check.status == "skip":
            first, *others = causes[check.detail]
            if check is not first:
                continue
            if others:
                name += f" +{len(others)}"
                text += f"; also {', '.join(check.name for check in others)}"
        table.add_row(escape(name), _mark(check.status), check.kind, escape(text))
    return table


def _series(series: SeriesReport, report: Report, console: Console) -> None:
    """Print the tables of a series."""
    console.print(_stages(series, report, console))
    if series.checks:
        console.print(_checks(series, console))
    if series.shown:
        console.print(_shown(series, console))
    for title, tries in (
        ("try", series.tries),
        ("without the patches: try", series.base_tries),
    ):
        if len(tries) > 1:
            console.print(_tries(title, tries, console))
    if series.repeats is not None:
        console.print(_tally(series.repeats, console))
    if series.overhead is not None:
        _costs(series.overhead, console)


def _shown(series: SeriesReport, console: Console) -> Table:
    """How the bugs show on the base kernel."""
    table = _table(console, "without the patches", "seen", "expected")
    for bug in series.shown:
        for comparison in bug.comparisons[:1]:
            label = f"{bug.looks}: {comparison.label}"
            table.add_row(
                escape(label), escape(comparison.seen), escape(comparison.wanted)
            )
    return table


def _tries(title: str, tries: Sequence[Try], console: Console) -> Table:
    """The result of each boot of a guest that had to be tried again."""
    table = _table(console, title, "guest", "not judged")
    for attempt in tries:
        causes = dict.fromkeys(miss.cause for miss in attempt.unjudged)
        error = KstallError(attempt.guest.error or "").headline
        text = escape("; ".join(filter(None, (error, *causes, attempt.evidence))))
        count = str(len(attempt.unjudged)) if not attempt.guest.error else "all"
        table.add_row(str(attempt.number), _mark(attempt.guest.status), count, text)
    return table


def _tally(repeats: Repeats, console: Console) -> Table:
    """The counted results of each check, then the odd runs."""
    unsteady = [tally for tally in repeats.tally if tally.passed != len(repeats.runs)]
    title = f"{len(repeats.runs)} runs"
    table = _table(console, title, "passed", "failed", "not judged", "skipped")
    for tally in unsteady:
        counts = (tally.passed, tally.failed, tally.unjudged, tally.skipped)
        table.add_row(tally.check, *map(str, counts))
    same = len(repeats.tally) - len(unsteady)
    table.add_row(f"{same} others", str(len(repeats.runs)), "0", "0", "0")
    for run in repeats.runs:
        if run.odd:
            reasons = dict.fromkeys(
                (*run.failed, *(miss.cause for miss in run.unjudged), run.error or "")
            )
            text = escape("; ".join(filter(None, (*reasons, run.evidence))))
            table.add_row(f"run {run.number}", "", "", "", "", text)
    return table


def _costs(overhead: Overhead, console: Console) -> None:
    """Print the costs of the events: their sites, and counted instructions."""
    if overhead.footprint is not None:
        table = _table(console, "event", "bytes run while off", "bytes not run")
        for site in overhead.footprint.sites:
            place = f"{site.function}+{site.offset:#x}"
            where = f"{place} [{site.binary}]" if site.binary != "vmlinux" else place
            table.add_row(site.event, str(site.nop), str(site.cold_bytes), where)
        console.print(table)
    if overhead.measurements:
        modes: tuple[Mode, ...] = ("base", "off", "ftrace", "bpftrace")
        table = _table(console, "instructions", *modes, "resolution", "hits")
        for measurement in overhead.measurements:
            medians = {
                mode: f"{median:,.2f}" for mode, median in measurement.medians.items()
            }
            hits = measurement.hits
            table.add_row(
                measurement.workload,
                *(medians.get(mode, "-") for mode in modes),
                f"{measurement.resolution:.2g}",
                "-" if hits is None else f"{hits:.3g}",
                f"per {escape(measurement.operation)}",
            )
        console.print(table)
    if overhead.worst is not None:
        own = [function for function in overhead.worst if function.part != "event"]
        growth = sum(function.growth for function in own)
        console.print(
            f"worst    {growth:+,} bytes of code (functions: {len(own)}) without jump "
            "labels, where each site is a load, a test and a branch"
        )
    if overhead.mitigated is not None:
        sites = overhead.mitigated.sites
        nops = sum(site.nop in overhead.mitigated.nops for site in sites)
        longer = [
            f"{path.name} {path.cost:+}" for path in overhead.longer_with_mitigations
        ]
        console.print(
            f"guarded  with mitigations {nops} of {len(sites)} sites are a NOP; "
            f"longer paths than without: {', '.join(longer) or 'none'}"
        )
    for exemption in overhead.exemptions:
        name = exemption.function or f"struct {exemption.struct}"
        unit = "instructions" if exemption.function else "bytes"
        # Earlier versions saved it wrapped.
        reason = " ".join(exemption.because.split())
        console.print(f"exempt   {name}: {exemption.allowed} {unit}: {escape(reason)}")


def _together(checks: list[Check]) -> Explanation:
    """One explanation of ``checks``, with all their excerpts once, but few files."""
    explanations = [
        check.explanation for check in checks if check.explanation is not None
    ]
    files = dict.fromkeys(
        path for explanation in explanations for path in explanation.files
    )
    return Explanation(
        excerpts=list(
            {
                excerpt.model_dump_json(): excerpt
                for explanation in explanations
                for excerpt in explanation.excerpts
            }.values()
        ),
        files=list(files)[:_FILES],
        again=list(
            dict.fromkeys(
                words for explanation in explanations for words in explanation.again
            )
        ),
    )


def _alike(series: SeriesReport) -> list[list[Check]]:
    """Checks that did not pass, in groups of those with the same reason."""
    groups: dict[str, list[Check]] = {}
    for check in series.checks:
        if check.status == "fail":
            groups[f"fail {check.name}"] = [check]
        elif check.status == "error":
            groups.setdefault(f"error {check.detail}", []).append(check)
    return list(groups.values())


def _in_one_line(comparison: Comparison) -> Comparison:
    """``comparison`` with only the first line of what else was seen."""
    first, *others = comparison.detail.splitlines() or [""]
    detail = f"{first} […]" if others else first
    return comparison.model_copy(update={"detail": detail})


def _check(checks: list[Check], console: Console) -> None:
    """Print a check that did not pass: its claim, and what does not hold.

    ``checks`` are several if they could not be judged for the same reason.
    """
    check = checks[0]
    title = (
        f"{check.name}: {check.claim}"
        if len(checks) == 1
        else ", ".join(check.name for check in checks)
    )
    console.print(f"{_mark(check.status)} {escape(title)}")
    wrong = [
        comparison
        for check in checks
        for comparison in check.comparisons
        if not comparison.ok
    ]
    shown = {
        excerpt.lines[0]
        for check in checks
        if check.explanation is not None
        for excerpt in check.explanation.excerpts
        if excerpt.lines
    }
    for comparison in wrong[:_WRONG]:
        seen = comparison.seen
        # An excerpt follows that begins like this.
        if shortened(comparison.detail.partition("\n")[0], explain.WIDTH) in shown:
            seen = _in_one_line(comparison).seen
        console.print(
            f"    {escape(comparison.label)}: observed {escape(seen)}, "
            f"expected {escape(comparison.wanted)}"
        )
    if len(wrong) > _WRONG:
        console.print(f"    and {len(wrong) - _WRONG} more")
    if check.detail:
        tail = "\n".join(check.detail.strip().splitlines()[-_DETAIL:])
        console.print(escape(tail), style="dim")
