# SPDX-License-Identifier: GPL-2.0-or-later
"""Show the bugs that a series fixes: its workloads and checks on the base kernel.

A check proves a fix only if it fails where the bug is, and in exactly the comparisons
that `[[shown]]` names: else a workload that did not run might look like the bug.  If
`[[shown]]` expects a complaint of the kernel, it has to appear here; a complaint that
is not expected ends the guest, as it does with the patches.  If the bug crashes the
kernel, the complaint is the only evidence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import FailedCheck, KstallError, NotJudged, cache, explain
from ..evidence import Evidence, evidence
from ..guest import (
    Guest,
    GuestEnded,
    forget,
    guestrun,
    matching_reports,
    run_guest,
)
from ..report import report
from ..series import Context, Project, Series, ShownBug
from ..verdict import Check, Comparison, Verdict, run_check
from . import run as runs
from . import trials
from .kernels import Built

#: The check that each bug shows without the patches.
CHECK = "fails_without_the_patches"
_CLAIM = (
    "Without the patches, each of these checks fails in the comparisons that are "
    "listed, and only there, and the kernel complains where that is expected."
)
#: The first lines of the kernel's reports of a bug, by check; `ShownBug.complaint`.
Headlines = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Seen:
    """How bugs showed in a base guest, and the check `CHECK` of it."""

    check: Check
    shown: list[report.Shown]


def guest_of(series: Series, guest: Guest, built: Built) -> Guest | None:
    """The base guest of ``series``, like ``guest`` of the patched kernel; None if it
    shows no bugs, or the base was not built."""
    if not series.spec.shown or built.base is None:
        return None
    own, _ = built.own.get(series.name, (None, None))
    return dataclasses.replace(guest, kernel=built.base, extra=own)


def key_of(project: Project, series: Series, base: Guest) -> str:
    """Changes with all that the check of a base guest depends on, but for the series'
    checks and the packages below this one."""
    expected = _expressions(series).values()
    key = guestrun.key_of(project, part(series), base, *expected)
    # Another version of this module may judge otherwise.
    return cache.digest(key, cache.file_digest(Path(__file__)))


def prove(bench: trials.Bench, base: Guest) -> None:
    """Boot ``base`` with the workloads that show bugs, and add the check `CHECK`.

    A guest that could not be judged because of the apparatus is booted once more, as
    the one with the patches.  Raises `runs.StageStopped` if it cannot be judged.
    """
    entry, run = bench.entry, bench.run
    for number in (1, 2):
        out = bench.dir / ("without" if number == 1 else f"without-{number}")
        try:
            with run.stage("without", entry) as stage:
                booted = _stage(bench, base, out, stage, fresh=number > 1)
        except runs.StageStopped as stopped:
            entry.base_tries.append(trials.noted(bench, number, out, (), "without"))
            trials.mention_first_try(entry.base_tries, ())
            if number > 1 or not isinstance(stopped.__cause__, NotJudged):
                raise
        else:
            checks = booted.checks
            entry.base_tries.append(trials.noted(bench, number, out, checks, "without"))
            if number > 1 or not any(check.tainted for check in checks):
                trials.mention_first_try(entry.base_tries, checks)
                seen = _seen(bench.series, booted)
                entry.shown = seen.shown
                entry.checks.append(seen.check)
                return
        trials.forget_stages(bench, "without")
        run.ui.say("could not judge the guest without the patches: booting it again")


def many(bench: trials.Bench, base: Guest, count: int) -> Evidence | None:
    """As `trials.many`, with the check `CHECK` of a boot of ``base`` in each run.

    How the bugs look is reported as in the first run with the worst outcome of it.
    """
    all_seen: list[Seen] = []

    def check(out: Path) -> Check:
        log = out.parent / "without.log"
        all_seen.append(afresh(bench.context, bench.series, base, out, log))
        return all_seen[-1].check

    saved = trials.many(bench, count, check)
    status = report.worst([seen.check.status for seen in all_seen])
    if status == "fail":
        # Else the next run would reuse results that showed the bugs.
        expected = _expressions(bench.series).values()
        forget(bench.context, part(bench.series), base, *expected)
    for seen in all_seen:
        if seen.check.status == status:
            bench.entry.shown = seen.shown
            break
    return saved


def afresh(context: Context, series: Series, base: Guest, out: Path, log: Path) -> Seen:
    """Boot ``base`` once, and use its results for nothing else.

    Whatever keeps it from being judged is an error of the check.
    """
    try:
        booted = _boot(context, series, base, out, log, fresh=True, kept=False)
    except (KstallError, OSError) as error:
        check = Check(name=CHECK, kind="positive", claim=_CLAIM, status="error")
        check.detail = explain(error)
        return Seen(check, [])
    return _seen(series, booted)


@dataclass(frozen=True)
class _Booted:
    """The checks of a base guest, none if an expected complaint ended it, and what it
    complained of."""

    checks: Sequence[Check]
    headlines: Headlines
    reused: bool


def _boot(
    context: Context,
    series: Series,
    base: Guest,
    out: Path,
    log: Path,
    *,
    fresh: bool,
    kept: bool,
) -> _Booted:
    """Boot ``base``, or take its results from an earlier run unless ``fresh`` ones are
    asked for; ``kept``: later runs may use them."""
    expressions = _expressions(series)

    def keep(results: Path) -> bool:
        return kept and trials.is_complete(results)

    def keep_end(results: Path) -> bool:
        """Whether the end of the kernel is all that has to be seen."""
        headlines = _headlines(results, expressions)
        return kept and _verdict(series, (), headlines).status == "pass"

    checks: Sequence[Check] = ()
    try:
        booted = run_guest(
            context,
            part(series),
            base,
            log,
            out=out,
            fresh=fresh,
            keep=keep,
            keep_end=keep_end,
            expected=tuple(expressions.values()),
        )
        reused = booted.reused
        checks = evidence.judge(part(series), evidence.load(booted.results))
    except GuestEnded as end:
        reused = end.reused
    except FailedCheck as error:
        # A failure of the base is no verdict on the series.
        raise KstallError(
            f"without the patches: {error.what}", log=error.log, next=error.next
        ) from error
    return _Booted(checks, _headlines(out / "results", expressions), reused)


def _stage(
    bench: trials.Bench, base: Guest, out: Path, stage: runs.Opened, *, fresh: bool
) -> _Booted:
    """Boot ``base`` in a ``stage``, and summarize it there."""
    stage.log = out / "guest.log"
    booted = _boot(
        bench.context,
        bench.series,
        base,
        out,
        stage.log,
        fresh=bench.again or fresh,
        kept=bench.kept,
    )
    stage.reused, checks = booted.reused, booted.checks
    failed = sum(check.status == "fail" for check in checks)
    stage.summary = (
        f"{failed} of {len(checks)} checks fail on the base kernel"
        if checks
        else "the base kernel ends early"
    )
    if any(booted.headlines.values()):
        stage.summary += ", which complains" if checks else ", and complains"
    return booted


def _seen(series: Series, booted: _Booted) -> Seen:
    """How the bugs show, and the check that they do."""
    checks, headlines = booted.checks, booted.headlines
    shown = [
        report.Shown(
            check=bug.check,
            looks=bug.looks,
            comparisons=[
                *_complaint(headlines.get(bug.check, ())),
                *(
                    comparison
                    for comparison in (check.comparisons if check else ())
                    if not comparison.ok
                ),
            ],
        )
        for bug, check in _pairs(series, checks)
    ]
    return Seen(_verdict(series, checks, headlines), shown)


def _expressions(series: Series) -> dict[str, str]:
    """What the kernel is expected to complain of, by check."""
    return {
        shown.check: shown.complaint for shown in series.spec.shown if shown.complaint
    }


def part(series: Series) -> Series:
    """``series`` with only the checks that show bugs, and their workloads."""
    names = {shown.check for shown in series.spec.shown}
    checks = tuple(check for check in series.spec.check if check.name in names)
    loads = {name for check in checks for name in check.workloads}
    workloads = tuple(
        workload for workload in series.spec.workload if workload.name in loads
    )
    spec = series.spec.model_copy(update={"check": checks, "workload": workloads})
    return dataclasses.replace(series, spec=spec)


def _pairs(
    series: Series, checks: Sequence[Check]
) -> list[tuple[ShownBug, Check | None]]:
    by_name = {check.name: check for check in checks}
    return [(shown, by_name.get(shown.check)) for shown in series.spec.shown]


def _complaint(headlines: Sequence[str]) -> Sequence[Comparison]:
    """The first of ``headlines``, as a comparison that does not hold."""
    verdict = Verdict()
    if headlines:
        verdict.equal("complaint of the kernel", headlines[0], "none")
    return verdict.comparisons


def _headlines(results: Path, expressions: Mapping[str, str]) -> Headlines:
    return {
        check: tuple(splat.headline for splat in matching_reports(results, text))
        for check, text in expressions.items()
    }


def _verdict(series: Series, checks: Sequence[Check], headlines: Headlines) -> Check:
    return run_check(CHECK, "positive", _CLAIM, _judge, (series, checks, headlines))


def _judge(saved: tuple[Series, Sequence[Check], Headlines]) -> Verdict:
    series, checks, headlines = saved
    verdict = Verdict()
    for shown, check in _pairs(series, checks):
        if shown.complaint is not None:
            verdict.true(
                f"{shown.check}: the kernel complains",
                bool(headlines[shown.check]),
                headlines[shown.check][0]
                if headlines[shown.check]
                else f"not of {shown.complaint}",
            )
        if check is None:
            # The kernel ended before the check had anything to judge.
            if shown.fails:
                verdict.undecide(
                    f"{shown.check}, without the patches: the kernel ended"
                )
            continue
        if check.status == "error":
            verdict.undecide(f"{shown.check}, without the patches: {check.detail}")
            continue
        status = "fail" if shown.fails else "pass"
        verdict.equal(f"{shown.check}: without the patches", check.status, status)
        failing = [
            comparison.label for comparison in check.comparisons if not comparison.ok
        ]
        verdict.equal(
            f"{shown.check}: what fails", sorted(failing), sorted(shown.fails)
        )
    return verdict
