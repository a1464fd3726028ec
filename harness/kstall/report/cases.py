# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Report` in the terms of every CI format: suites of cases with a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..base import Status
from ..verdict import Check
from . import explain
from .report import Report, RunStatus, SeriesReport, Stage
from .views import check_summary, status_word

#: The suite of the stages that all series share.
RUN = "run"
# Why a run that stands there has no verdict.
_UNENDED: dict[RunStatus, str] = {
    "running": "the run did not end",
    "interrupted": "the run was interrupted",
}


@dataclass(frozen=True)
class Case:
    """A stage, a check, or what is to be said of the whole suite: ``message`` is one
    line, ``text`` has all details.

    ``seconds`` of wall-clock time; None for a check, which takes none.
    """

    name: str
    kind: Literal["stage", "check", "suite"]
    status: Status
    message: str
    text: str
    seconds: float | None = None


@dataclass(frozen=True)
class Suite:
    """The cases of a series, or the stages that all series share; never empty.

    ``status`` and ``message`` are set if the cases do not show them: when the series
    does not apply.
    """

    name: str
    cases: tuple[Case, ...]
    status: Status | None = None
    message: str = ""


def suites(report: Report) -> tuple[Suite, ...]:
    """The shared stages first, then the series in their order."""
    shared = [*map(_of_stage, report.stages)]
    if report.status in _UNENDED:
        shared.append(_no_verdict(_UNENDED[report.status]))
    run = [Suite(RUN, tuple(shared))] if shared else []
    return (*run, *(_suite(series, report) for series in report.series))


def _suite(series: SeriesReport, report: Report) -> Suite:
    unfit = next(
        (stage for stage in series.stages if stage.status == "does-not-apply"), None
    )
    cases = tuple(_cases(series, report))
    if unfit is not None and series.status == "does-not-apply":
        return Suite(series.name, cases, "skip", _message(unfit))
    return Suite(series.name, cases)


def _cases(series: SeriesReport, report: Report) -> list[Case]:
    if not series.stages:
        # An empty suite would look as if the series had been removed.
        reason = "not reached: an earlier stage stopped the run"
        return [Case("reached", "suite", "error", reason, "")]
    cases = [*map(_of_stage, series.stages), *map(_of_check, series.checks)]
    if series.status == "error" and not any(
        case.status in ("fail", "error") for case in cases
    ):
        cases.append(_no_verdict(_unjudged(report)))
    return cases


def _unjudged(report: Report) -> str:
    """Why a series has no verdict, if nothing of its own says that."""
    if report.status in _UNENDED:
        return _UNENDED[report.status]
    for stage in report.stages:
        if stage.status in ("fail", "error"):
            return f"{stage.name}: {_message(stage)}"
    return "nothing but its patches was judged"


def _no_verdict(reason: str) -> Case:
    return Case("verdict", "suite", "error", reason, "")


def _message(stage: Stage) -> str:
    if stage.status == "does-not-apply":
        return f"{status_word(stage.status)}: {stage.summary}"
    return stage.summary


def _of_stage(stage: Stage) -> Case:
    text = "\n".join(filter(None, (stage.error, *explain.lines(stage.explanation))))
    return Case(
        stage.name,
        "stage",
        # No format has this status; it is no failure.
        "skip" if stage.status == "does-not-apply" else stage.status,
        _message(stage),
        text,
        stage.seconds,
    )


def _of_check(check: Check) -> Case:
    lines = [
        f"{'ok' if comparison.ok else 'NOT OK'}: {comparison.label}: "
        f"{comparison.seen}, expected {comparison.wanted}"
        for comparison in check.comparisons
    ]
    explanation = explain.lines(check.explanation)
    text = "\n".join(filter(None, (check.claim, *lines, check.detail, *explanation)))
    return Case(check.name, "check", check.status, check_summary(check), text)
