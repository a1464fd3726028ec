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
from pathlib import Path

from ..base import FailedCheck, KstallError, NotJudged
from ..build import kernel
from ..evidence import evidence
from ..guest import Guest, GuestEnded, matching_reports, run_guest
from ..report import report
from ..series import Series, ShownBug
from ..verdict import Check, Comparison, Verdict, run_check
from . import run as runs
from . import trials

#: The check that each bug shows without the patches.
CHECK = "fails_without_the_patches"
_CLAIM = (
    "Without the patches, each of these checks fails in the comparisons that are "
    "listed, and only there, and the kernel complains where that is expected."
)
#: The first lines of the kernel's reports of a bug, by check; `ShownBug.complaint`.
Headlines = dict[str, tuple[str, ...]]


def prove(bench: trials.Bench, base: kernel.Kernel, extra: Path | None = None) -> None:
    """Boot ``base`` with the workloads that show bugs, and add the check `CHECK`.

    ``extra`` is where the workloads' own modules for it are.  A guest that could not be
    judged because of the apparatus is booted once more, as the one with the patches.
    Raises `runs.StageStopped` if it cannot be judged.
    """
    entry, run = bench.entry, bench.run
    guest = dataclasses.replace(bench.guest, kernel=base, extra=extra)
    for number in (1, 2):
        out = bench.dir / ("without" if number == 1 else f"without-{number}")
        try:
            with run.stage("without", entry) as stage:
                checks, headlines = _boot(bench, guest, out, stage, fresh=number > 1)
        except runs.StageStopped as stopped:
            entry.base_tries.append(trials.noted(bench, number, out, (), "without"))
            trials.mention_first_try(entry.base_tries, ())
            if number > 1 or not isinstance(stopped.__cause__, NotJudged):
                raise
        else:
            entry.base_tries.append(trials.noted(bench, number, out, checks, "without"))
            if number > 1 or not any(check.tainted for check in checks):
                trials.mention_first_try(entry.base_tries, checks)
                _report(bench, checks, headlines)
                return
        trials.forget_stages(bench, "without")
        run.ui.say("could not judge the guest without the patches: booting it again")


def _boot(
    bench: trials.Bench, guest: Guest, out: Path, stage: runs.Opened, *, fresh: bool
) -> tuple[Sequence[Check], Headlines]:
    """The checks of a base guest, none if an expected complaint ended it, and what it
    complained of."""
    expressions = _expressions(bench.series)

    def shows(results: Path) -> bool:
        """Whether the end of the kernel is all that has to be seen."""
        headlines = _headlines(results, expressions)
        shown = _verdict(bench.series, (), headlines).status == "pass"
        return bench.kept and shown

    stage.log = out / "guest.log"
    checks: Sequence[Check] = ()
    try:
        booted = run_guest(
            bench.context,
            part(bench.series),
            guest,
            stage.log,
            out=out,
            fresh=bench.again or fresh,
            keep=bench.keep,
            keep_end=shows,
            expected=tuple(expressions.values()),
        )
        stage.reused = booted.reused
        checks = evidence.judge(part(bench.series), evidence.load(booted.results))
    except GuestEnded as end:
        stage.reused = end.reused
    except FailedCheck as error:
        # A failure of the base is no verdict on the series.
        raise KstallError(
            f"without the patches: {error.what}", log=error.log, next=error.next
        ) from error
    headlines = _headlines(out / "results", expressions)
    failed = sum(check.status == "fail" for check in checks)
    stage.summary = (
        f"{failed} of {len(checks)} checks fail on the base kernel"
        if checks
        else "the base kernel ends early"
    )
    if any(headlines.values()):
        stage.summary += ", which complains" if checks else ", and complains"
    return checks, headlines


def _report(bench: trials.Bench, checks: Sequence[Check], headlines: Headlines) -> None:
    """Add how the bugs show, and the check that they do."""
    bench.entry.shown = [
        report.Shown(
            check=shown.check,
            looks=shown.looks,
            comparisons=[
                *_complaint(headlines.get(shown.check, ())),
                *(
                    comparison
                    for comparison in (check.comparisons if check else ())
                    if not comparison.ok
                ),
            ],
        )
        for shown, check in _pairs(bench.series, checks)
    ]
    bench.entry.checks.append(_verdict(bench.series, checks, headlines))


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
        status = "fail" if shown.fails else "pass"
        verdict.equal(f"{shown.check}: without the patches", check.status, status)
        failing = [
            comparison.label for comparison in check.comparisons if not comparison.ok
        ]
        verdict.equal(
            f"{shown.check}: what fails", sorted(failing), sorted(shown.fails)
        )
    return verdict
