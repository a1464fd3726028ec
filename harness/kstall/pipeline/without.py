# SPDX-License-Identifier: GPL-2.0-or-later
"""What the bugs that a series fixes look like without it: the same workloads and the
same checks, on a guest of the base kernel.

A check proves a fix only if it fails where the bug is.  And it has to fail in just
those comparisons that `[[shown]]` names, or it is not the bug that was seen but a
workload that did not run.  A bug of which the kernel complains has to be complained of
here; what `[[shown]]` does not name is no word of the bug, and ends the guest's run as
it does with the patches.  If the bug ends the kernel, its complaint is all there is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..base import FailedCheck, KstallError, NotJudged
from ..build import kernel
from ..evidence import evidence
from ..guest import GuestEnded, complaints, run_guest
from ..report import report
from ..series import Series, Shown
from ..verdict import Check, Comparison, Verdict, run_check
from . import trials

#: The check that each bug is seen without the patches.
CHECK = "fails_without_the_patches"
_CLAIM = (
    "Without the patches, each of these checks fails in what it says, and only there, "
    "and the kernel complains where it says so."
)
#: What the kernel said of the bug of a check, by its name; see `Shown.complaint`.
Complaints = dict[str, tuple[str, ...]]


def prove(bench: trials.Bench, base: kernel.Kernel) -> None:
    """Boot ``base`` with the workloads of what is shown, and add the check about it.

    Raises `runs.StageStopped` if nothing can be said.
    """
    entry, run = bench.entry, bench.run
    series = part(bench.series)
    wanted = {
        one.check: one.complaint for one in bench.series.spec.shown if one.complaint
    }
    guest = dataclasses.replace(bench.guest, kernel=base)
    with run.stage("without", entry) as stage:
        checks: Sequence[Check] = ()
        for number in (1, 2):
            out = bench.dir / ("without" if number == 1 else f"without-{number}")
            stage.log = out / "guest.log"
            try:
                booted = run_guest(
                    bench.context,
                    series,
                    guest,
                    stage.log,
                    out=out,
                    fresh=bench.again or number > 1,
                    keep=trials.is_whole,
                    expected=tuple(wanted.values()),
                )
                stage.reused = booted.reused
                checks = evidence.judge(series, evidence.load(booted.results))
            except GuestEnded:
                break
            except FailedCheck as error:
                # The base has no verdict to be given.
                raise KstallError(
                    f"without the patches: {error.what}", log=error.log, next=error.next
                ) from error
            except NotJudged:
                if number > 1:
                    raise
                checks = ()
            if checks and not any(one.tainted for one in checks):
                break
            if number == 1:
                run.ui.say("could not judge the guest without the patches: once more")
        said: Complaints = {
            check: tuple(one.headline for one in complaints(out / "results", text))
            for check, text in wanted.items()
        }
        entry.shown = [
            report.Shown(
                check=one.check,
                looks=" ".join(one.looks.split()),
                comparisons=[
                    *_complaint(said.get(one.check, ())),
                    *(c for c in (check.comparisons if check else ()) if not c.ok),
                ],
            )
            for one, check in _pairs(bench.series, checks)
        ]
        entry.checks.append(
            run_check(CHECK, "positive", _CLAIM, _judge, (bench.series, checks, said))
        )
        failed = sum(one.status == "fail" for one in checks)
        stage.summary = (
            f"{failed} of {len(checks)} checks fail on the base kernel"
            if checks
            else "the base kernel does not come to the end"
        )
        if any(said.values()):
            stage.summary += ", which complains" if checks else ", and complains"


def part(series: Series) -> Series:
    """``series`` with only the checks that show something, and their workloads."""
    names = {one.check for one in series.spec.shown}
    checks = tuple(one for one in series.spec.check if one.name in names)
    loads = {name for one in checks for name in one.workloads}
    workloads = tuple(one for one in series.spec.workload if one.name in loads)
    spec = series.spec.model_copy(update={"check": checks, "workload": workloads})
    return dataclasses.replace(series, spec=spec)


def _pairs(series: Series, checks: Sequence[Check]) -> list[tuple[Shown, Check | None]]:
    known = {one.name: one for one in checks}
    return [(one, known.get(one.check)) for one in series.spec.shown]


def _complaint(said: Sequence[str]) -> Sequence[Comparison]:
    """What was ``said`` as a comparison that does not hold, the first of it."""
    v = Verdict()
    if said:
        v.equal("complaint of the kernel", said[0], "none")
    return v.comparisons


def _judge(saved: tuple[Series, Sequence[Check], Complaints]) -> Verdict:
    series, checks, said = saved
    v = Verdict()
    for one, check in _pairs(series, checks):
        if one.complaint is not None:
            v.true(
                f"{one.check}: the kernel complains",
                bool(said[one.check]),
                said[one.check][0] if said[one.check] else f"not of {one.complaint}",
            )
        if check is None:
            # The kernel came to its end before the check had anything to judge.
            if one.fails:
                v.undecide(f"{one.check}, without the patches: the kernel ended")
            continue
        if check.status == "error":
            v.undecide(f"{one.check}, without the patches: {check.detail}")
        status = "fail" if one.fails else "pass"
        v.equal(f"{one.check}: without the patches", check.status, status)
        failing = [c.label for c in check.comparisons if not c.ok]
        v.equal(f"{one.check}: what fails", sorted(failing), sorted(one.fails))
    return v
