# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Report` for people: tables on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .costs import Mode, Overhead
from .report import Check, Report, SeriesReport, Status

_STYLE: dict[Status, str] = {
    "pass": "green",
    "fail": "bold red",
    "skip": "yellow",
    "error": "bold magenta",
}
_VERDICT = {
    "proven": "[bold green]PROVEN[/]",
    "failed": "[bold red]FAILED[/]",
    "could-not-run": "[bold magenta]COULD NOT RUN[/]",
    "interrupted": "[bold magenta]INTERRUPTED[/]",
    "running": "[bold]RUNNING[/]",
}


def _mark(status: Status) -> str:
    return f"[{_STYLE[status]}]{status.upper()}[/]"


def fact(check: Check) -> str:
    """The comparison that decides: the first that fails, else one and their number."""
    if check.detail:
        return check.detail.strip().splitlines()[-1]
    wrong = [item for item in check.comparisons if not item.ok]
    if wrong:
        return f"{wrong[0].label}: {wrong[0].seen}, expected {wrong[0].wanted}"
    # The last is about the outcome; the first are often about how much was looked at.
    if not check.comparisons:
        return ""
    shown = check.comparisons[-1]
    return f"{len(check.comparisons):>3} hold, {shown.label}: {shown.seen}"


def terminal(report: Report, directory: Path, console: Console) -> None:
    """Print the run's outcome: what failed stands out, the verdict comes last."""
    for series in report.series:
        console.print(_stages(series, report, console))
        if series.checks:
            console.print(_checks(series, console))
        if series.overhead is not None:
            _costs(series.overhead, console)
    for stage in [*report.stages, *(s for one in report.series for s in one.stages)]:
        if stage.error:
            console.print(
                f"{_mark(stage.status)} {escape(stage.name)}:", highlight=False
            )
            console.print(escape(stage.error), style="none", highlight=False)
    for series in report.series:
        for check in series.checks:
            if check.status in ("fail", "error"):
                _explain(check, console)
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
    console.print(f"verdict  {_VERDICT[report.status]}  {counts}", highlight=False)


def _counts(report: Report) -> str:
    states = [check.status for series in report.series for check in series.checks]
    kinds: tuple[Status, ...] = ("pass", "fail", "skip", "error")
    shown = [f"{states.count(kind)} {kind}" for kind in kinds if kind in states]
    stopped = [
        stage.name
        for stage in [*report.stages, *(s for one in report.series for s in one.stages)]
        if stage.status in ("fail", "error")
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
    for check in series.checks:
        table.add_row(check.name, _mark(check.status), check.kind, escape(fact(check)))
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
    for timed in found.timings:
        console.print(
            f"time     {timed.change} per {escape(timed.operation)}; under KVM, judged "
            "by no check",
            highlight=False,
        )
    if found.worst is not None:
        own = [one for one in found.worst if one.part != "event"]
        more = sum((one.patched or 0) - (one.base or 0) for one in own)
        console.print(
            f"worst    {more:+,} bytes of code (functions: {len(own)}) without jump "
            "labels, where each site is a load, a test and a branch",
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


def _explain(check: Check, console: Console) -> None:
    console.print(f"{_mark(check.status)} {check.name}: {escape(check.claim)}")
    for item in check.comparisons:
        if not item.ok:
            console.print(
                f"    {escape(item.label)}: observed {escape(item.seen)}, "
                f"expected {escape(item.wanted)}",
                highlight=False,
            )
    if check.detail:
        console.print(escape(check.detail), style="dim", highlight=False)


def printable(text: str) -> str:
    """``text`` without what XML has no place for, and a console excerpt has."""
    return "".join(
        c
        for c in text
        if c in "\n\t" or (ord(c) >= 32 and not "\ud800" <= c <= "\udfff")
        if c not in "\ufffe\uffff"
    )
