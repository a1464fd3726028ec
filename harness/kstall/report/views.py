# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Report` for people: tables on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich import markup
from rich.console import Console
from rich.table import Table

from ..base import Status
from ..cost import Mode, Overhead
from ..evidence import Row
from ..verdict import Check, Explanation
from . import explain
from .plain import printable
from .report import Repeats, Report, SeriesReport

# More comparisons that do not hold say less; the page has them all.
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


def word(status: str) -> str:
    """What people call ``status`` of a stage, a check or a series."""
    return _WORDS.get(status, status.replace("-", " "))


def escape(text: str) -> str:
    """``text`` without markup of rich's, and without what a terminal would obey."""
    return markup.escape(printable(text))


def _mark(status: Status) -> str:
    shown = "skip" if status == "skip" else word(status)
    return f"[{STYLE.get(status, 'bold')}]{shown.upper()}[/]"


def fact(check: Check) -> str:
    """The comparison that decides: the first that fails, else one and their number;
    of what could not be judged the reason."""
    detail = check.detail.strip().splitlines()
    if check.status == "error" and detail:
        return explain.reason(check)
    if check.status == "skip":
        return detail[-1] if detail else ""
    if wrong := explain.first_wrong(check):
        return f"{wrong.label}: {wrong.seen}, expected {wrong.wanted}"
    more = "; ".join(detail[-1:])
    # The last is about the outcome; the first are often about how much was looked at.
    if not check.comparisons:
        return more
    shown = check.comparisons[-1]
    held = f"{len(check.comparisons):>3} hold, {shown.label}: {shown.seen}"
    return f"{held}; {more}" if more else held


def terminal(report: Report, directory: Path, console: Console) -> None:
    """Print the run's outcome: what failed stands out, the verdict comes last."""
    for series in report.series:
        _series(series, report, console)
    _reasons(report, directory, console)
    skips = [one for one in explain.skipped(report) if one.count > 1]
    if skips:
        console.print("skipped  neither passed nor failed:", highlight=False)
    for one in skips:
        console.print(
            f"         {escape('; '.join(names_of(one)))}: {escape(one.reason)}",
            highlight=False,
        )
    tree = report.tree
    if tree is not None:
        console.print(
            f"tree     {escape(tree.describe)} ({tree.kind})", highlight=False
        )
        if tree.dirty:
            console.print(
                f"         [yellow]{len(tree.dirty)} uncommitted paths in the tree are "
                "not part of this run[/]",
                highlight=False,
            )
    for series in report.series:
        if series.evidence and series.status != "pass":
            place = escape(str(directory / series.evidence))
            console.print(f"evidence {place}", highlight=False)
    console.print(f"report   {escape(str(directory / 'report.json'))}", highlight=False)
    page = directory / "report.html"
    if page.exists():
        console.print(f"page     {escape(str(page))}", highlight=False)
    counts = _counts(report)
    verdict = VERDICT.get(report.status, word(report.status).upper())
    console.print(f"verdict  {verdict}  {counts}", highlight=False)


def names_of(one: explain.Cause) -> list[str]:
    """What was not judged, and of which series, as people say it."""
    return [
        ", ".join(names) + (f" of {', '.join(series)}" if any(series) else "")
        for names, series in one.what
    ]


def _reasons(report: Report, directory: Path, console: Console) -> None:
    """All that did not pass, each with what explains it; nothing is said twice."""
    said: set[str] = set()
    again: dict[str, None] = {}
    for name, stages in [
        ("", report.stages),
        *((one.name, one.stages) for one in report.series),
    ]:
        for stage in stages:
            if stage.error:
                where = f"{name}: {stage.name}" if name else stage.name
                console.print(
                    f"{_mark(stage.status)} {escape(where)}:", highlight=False
                )
                console.print(escape(stage.error), style="none", highlight=False)
                _explain(stage.explanation, directory, console, said, again)
    for series in report.series:
        for checks in _alike(series):
            _check(checks, console)
            _explain(_together(checks), directory, console, said, again)
    for command in again:
        console.print(f"again    {escape(command)}", highlight=False, soft_wrap=True)


def _explain(
    found: Explanation | None,
    directory: Path,
    console: Console,
    said: set[str],
    again: dict[str, None],
) -> None:
    """What is known of one that did not pass; what was ``said`` is only named."""
    if found is None:
        return
    again |= dict.fromkeys(found.again)
    for one in found.excerpts:
        known = one.model_dump_json() in said
        said.add(one.model_dump_json())
        tail = ": see above" if known else ""
        console.print(f"    {escape(one.title)}{tail}", highlight=False)
        if not known:
            for line in one.lines:
                console.print(f"        {escape(line)}", style="dim", highlight=False)
    shown = Explanation(files=found.files)
    for line in explain.lines(shown, directory):
        if line not in said:
            console.print(f"    {escape(line)}", highlight=False, soft_wrap=True)
        said.add(line)


def mutations(report: Report, console: Console, *, everything: bool) -> None:
    """Print what became of falsified evidence: what escaped, or all of it."""
    for series in report.series:
        found = series.mutation
        if found is None:
            console.print(f"{escape(series.name)}: it has no event to falsify")
            continue
        table = _table(console, "field", "caught", "argued", "escaped", title="")
        for row in found.rows():
            caught = sum(map(len, row.caught.values()))
            of = caught + sum(map(len, row.argued.values())) + len(row.escaped)
            table.add_row(
                escape(f"{row.event.partition(':')[2]}: {row.field}"),
                f"{caught} of {of}",
                str(sum(map(len, row.argued.values())) or ""),
                f"[bold red]{len(row.escaped)}[/]" if row.escaped else "",
                escape("; ".join(_met(row, everything))),
            )
        console.print(f"[bold]{escape(series.name)}[/]", highlight=False)
        console.print(table)
        for one in found.mutants:
            if one.outcome == "escaped" and one.broke:
                where = f"{one.event} {one.field}: {one.operator}"
                console.print(escape(f"{where}: {one.broke[0]}"), highlight=False)
        for stale in found.stale:
            console.print(
                "[bold red]does not hold:[/] [[unproven]] "
                + escape(f"{stale.event} {stale.field}: {stale.operator}: {stale.why}"),
                highlight=False,
            )
        for spare in found.spare:
            console.print(
                "not needed by this run: [[unproven]] "
                + escape(f"{spare.event} {spare.field}: {spare.operator}: {spare.why}"),
                highlight=False,
            )
        for check in series.checks:
            console.print(f"{_mark(check.status)} {escape(fact(check))}")


def _met(row: Row, everything: bool) -> list[str]:
    words = []
    if row.escaped:
        words.append(f"escaped: {', '.join(row.escaped)}")
    words += [f"argued: {', '.join(names)}" for names in row.argued.values()]
    if everything:
        words += [f"{check}: {', '.join(names)}" for check, names in row.caught.items()]
    return words


def _counts(report: Report) -> str:
    states: list[str] = [
        check.status for series in report.series for check in series.checks
    ]
    names = {"pass": "pass", "fail": "fail", "skip": "skip", "error": word("error")}
    shown = [
        f"{states.count(status)} {name}"
        for status, name in names.items()
        if status in states
    ]
    stopped = [
        stage.name
        for stage in [*report.stages, *(s for one in report.series for s in one.stages)]
        if stage.status in ("fail", "error", "does-not-apply")
    ]
    words = f"checks: {', '.join(shown)}" if shown else "no check was reached"
    return words + (f"; stopped in: {', '.join(stopped)}" if stopped else "")


def _table(console: Console, *fixed: str, title: str | None = None) -> Table:
    """A table whose last, nameless column takes what the fixed ones leave."""
    # Elsewhere lines have no end that they should reach, and none to be cut at.
    filling = console.is_terminal
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, expand=filling
    )
    for name in fixed:
        # Without a floor rich takes from all columns alike when the line is short.
        table.add_column(name, no_wrap=True, min_width=len(name) or 5)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _stages(series: SeriesReport, report: Report, console: Console) -> Table:
    table = _table(console, "stage", "", "seconds", title=series.name)
    for stage in [*report.stages, *series.stages]:
        how = "[dim]reused[/] " if stage.reused else ""
        table.add_row(
            stage.name,
            _mark(stage.status),
            f"{stage.seconds:7.1f}",
            how + escape(stage.summary),
        )
    return table


def _checks(series: SeriesReport, console: Console) -> Table:
    width = max(len(check.name) for check in series.checks)
    table = _table(console, "check".ljust(width), "", "kind")
    causes: dict[str, list[Check]] = {}
    for check in series.checks:
        if check.status == "skip":
            causes.setdefault(check.detail, []).append(check)
    for check in series.checks:
        name, text = check.name, fact(check)
        if check.status == "skip":
            first, *others = causes[check.detail]
            if check is not first:
                continue
            if others:
                name += f" +{len(others)}"
                text += f"; so {', '.join(one.name for one in others)}"
        table.add_row(escape(name), _mark(check.status), check.kind, escape(text))
    return table


def _series(series: SeriesReport, report: Report, console: Console) -> None:
    """Its tables."""
    console.print(_stages(series, report, console))
    if series.checks:
        console.print(_checks(series, console))
    if series.shown:
        console.print(_shown(series, console))
    if len(series.tries) > 1:
        console.print(_tries(series, console))
    if series.repeats is not None:
        console.print(_tally(series.repeats, console))
    if series.overhead is not None:
        _costs(series.overhead, console)


def _shown(series: SeriesReport, console: Console) -> Table:
    """What the bugs look like on the base kernel."""
    table = _table(console, "without the patches", "seen", "expected")
    for one in series.shown:
        for found in one.comparisons[:1]:
            what = f"{one.looks}: {found.label}"
            table.add_row(escape(what), escape(found.seen), escape(found.wanted))
    return table


def _tries(series: SeriesReport, console: Console) -> Table:
    """What came of each boot of a guest that had to be tried again."""
    table = _table(console, "try", "guest", "not judged")
    for one in series.tries:
        causes = dict.fromkeys(miss.cause for miss in one.unjudged)
        why = one.guest.error.splitlines()[0] if one.guest.error else ""
        told = escape("; ".join(filter(None, (why, *causes, one.evidence))))
        count = str(len(one.unjudged)) if not one.guest.error else "all"
        table.add_row(str(one.number), _mark(one.guest.status), count, told)
    return table


def _tally(found: Repeats, console: Console) -> Table:
    """How often each check came out in which way; then where odd runs are."""
    shown = [one for one in found.tally if one.passed != len(found.runs)]
    title = f"{len(found.runs)} runs"
    table = _table(console, title, "passed", "failed", "not judged", "skipped")
    for one in shown:
        counts = (one.passed, one.failed, one.unjudged, one.skipped)
        table.add_row(one.check, *map(str, counts))
    same = len(found.tally) - len(shown)
    table.add_row(f"{same} others", str(len(found.runs)), "0", "0", "0")
    for ran in found.runs:
        if ran.odd:
            what = dict.fromkeys(
                (*ran.failed, *(miss.cause for miss in ran.unjudged), ran.error or "")
            )
            told = escape("; ".join(filter(None, (*what, ran.evidence))))
            table.add_row(f"run {ran.number}", "", "", "", "", told)
    return table


def _costs(found: Overhead, console: Console) -> None:
    """What the events cost: where they are in the code, and counted instructions."""
    if found.footprint is not None:
        table = _table(console, "event", "bytes run while off", "bytes not run")
        for site in found.footprint.sites:
            place = f"{site.function}+{site.offset:#x}"
            where = f"{place} [{site.binary}]" if site.binary != "vmlinux" else place
            table.add_row(site.event, str(site.nop), str(site.cold_bytes), where)
        console.print(table)
    if found.measurements:
        modes: tuple[Mode, ...] = ("base", "off", "ftrace", "bpftrace")
        table = _table(console, "instructions", *modes, "seen from", "hits")
        for one in found.measurements:
            medians = {sample.mode: f"{sample.median:,.2f}" for sample in one.samples}
            hits = [s.hits for s in one.samples if s.hits is not None]
            table.add_row(
                one.workload,
                *(medians.get(mode, "-") for mode in modes),
                f"{one.resolution:.2g}",
                f"{hits[0]:.3g}" if hits else "-",
                f"per {escape(one.operation)}",
            )
        console.print(table)
    if found.worst is not None:
        own = [one for one in found.worst if one.part != "event"]
        more = sum((one.patched or 0) - (one.base or 0) for one in own)
        console.print(
            f"worst    {more:+,} bytes of code (functions: {len(own)}) without jump "
            "labels, where each site is a load, a test and a branch",
            highlight=False,
        )
    if found.mitigated is not None:
        sites = found.mitigated.sites
        nops = sum(site.nop in found.mitigated.nops for site in sites)
        longer = [
            f"{path.name} {path.work:+}"
            for path in found.mitigated.paths
            if path.work > 0
        ]
        console.print(
            f"guarded  with mitigations {nops} of {len(sites)} sites are a NOP; "
            f"instructions more on a path: {', '.join(longer) or 'none'}",
            highlight=False,
        )
    for exempt in found.exemptions:
        name = exempt.function or f"struct {exempt.struct}"
        what = "instructions" if exempt.function else "bytes"
        reason = " ".join(exempt.because.split())
        console.print(
            f"exempt   {name}: {exempt.allowed} {what}: {escape(reason)}",
            highlight=False,
        )


def _together(checks: list[Check]) -> Explanation:
    """What explains ``checks``, all that each has to show, but few files."""
    found = [one.explanation for one in checks if one.explanation is not None]
    files = dict.fromkeys(path for one in found for path in one.files)
    return Explanation(
        excerpts=[excerpt for one in found for excerpt in one.excerpts],
        files=list(files)[:_FILES],
        again=list(dict.fromkeys(words for one in found for words in one.again)),
    )


def _alike(series: SeriesReport) -> list[list[Check]]:
    """Checks that did not pass; what could not be judged for one reason together."""
    groups: dict[str, list[Check]] = {}
    for check in series.checks:
        if check.status == "fail":
            groups[f"fail {check.name}"] = [check]
        elif check.status == "error":
            groups.setdefault(f"error {check.detail}", []).append(check)
    return list(groups.values())


def _check(alike: list[Check], console: Console) -> None:
    """A check that did not pass: what it claims, and what does not hold.

    Of many that could not be judged for one reason that is said once.
    """
    check = alike[0]
    what = (
        f"{check.name}: {check.claim}"
        if len(alike) == 1
        else ", ".join(one.name for one in alike)
    )
    console.print(f"{_mark(check.status)} {escape(what)}", highlight=False)
    wrong = [item for one in alike for item in one.comparisons if not item.ok]
    for item in wrong[:_WRONG]:
        console.print(
            f"    {escape(item.label)}: observed {escape(item.seen)}, "
            f"expected {escape(item.wanted)}",
            highlight=False,
        )
    if len(wrong) > _WRONG:
        console.print(f"    and {len(wrong) - _WRONG} more", highlight=False)
    if check.detail:
        kept = "\n".join(check.detail.strip().splitlines()[-_DETAIL:])
        console.print(escape(kept), style="dim", highlight=False)
