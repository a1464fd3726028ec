# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Report` as what every format for CI knows: suites of cases that have a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..base import Status
from ..verdict import Check
from . import explain
from .report import Report, SeriesReport, Stage
from .views import fact, word

#: The suite of the stages that all series share.
RUN = "run"


@dataclass(frozen=True)
class Case:
    """A stage or a check: ``message`` is one line, ``text`` all that is to be said.

    ``seconds`` of wall-clock time, None for a check, which takes none.
    """

    name: str
    kind: Literal["stage", "check", "reached"]
    status: Status
    message: str
    text: str
    seconds: float | None = None


@dataclass(frozen=True)
class Suite:
    """The cases of a series, or of what all series share; never without a case.

    ``status`` is what the cases do not tell, with a ``message``: that they are few as
    the series does not apply.
    """

    name: str
    cases: tuple[Case, ...]
    status: Status | None = None
    message: str = ""


def suites(report: Report) -> tuple[Suite, ...]:
    """The shared stages first, then the series in their order."""
    found = [Suite(RUN, tuple(map(_of_stage, report.stages)))] if report.stages else []
    return (*found, *map(_suite, report.series))


def _suite(series: SeriesReport) -> Suite:
    unfit = next((s for s in series.stages if s.status == "does-not-apply"), None)
    if unfit is not None and series.status == "does-not-apply":
        return Suite(series.name, _cases(series), "skip", _message(unfit))
    return Suite(series.name, _cases(series))


def _cases(series: SeriesReport) -> tuple[Case, ...]:
    if not series.stages:
        # A suite without a case would look as if the series had gone away.
        why = "not reached: an earlier stage stopped the run"
        return (Case("reached", "reached", "error", why, ""),)
    return (*map(_of_stage, series.stages), *map(_of_check, series.checks))


def _message(stage: Stage) -> str:
    if stage.status == "does-not-apply":
        return f"{word(stage.status)}: {stage.summary}"
    return stage.summary


def _of_stage(stage: Stage) -> Case:
    text = "\n".join(filter(None, (stage.error, *explain.lines(stage.explanation))))
    return Case(
        stage.name,
        "stage",
        # No format has a word for it: nothing was asked, and that is no failure.
        "skip" if stage.status == "does-not-apply" else stage.status,
        _message(stage),
        text,
        stage.seconds,
    )


def _of_check(check: Check) -> Case:
    lines = [
        f"{'ok' if item.ok else 'NOT OK'}: {item.label}: {item.seen}, "
        f"expected {item.wanted}"
        for item in check.comparisons
    ]
    told = explain.lines(check.explanation)
    text = "\n".join(filter(None, (check.claim, *lines, check.detail, *told)))
    return Case(check.name, "check", check.status, fact(check), text)
