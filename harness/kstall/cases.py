# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Report` as what every format for CI knows: suites of cases that have a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .report import Check, Report, SeriesReport, Stage, Status
from .views import fact

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
    """The cases of a series, or of what all series share; never without a case."""

    name: str
    cases: tuple[Case, ...]


def suites(report: Report) -> tuple[Suite, ...]:
    """The shared stages first, then the series in their order."""
    found = [Suite(RUN, tuple(map(_of_stage, report.stages)))] if report.stages else []
    return (*found, *(Suite(one.name, _cases(one)) for one in report.series))


def _cases(series: SeriesReport) -> tuple[Case, ...]:
    if not series.stages:
        # A suite without a case would look as if the series had gone away.
        why = "not reached: an earlier stage stopped the run"
        return (Case("reached", "reached", "error", why, ""),)
    return (*map(_of_stage, series.stages), *map(_of_check, series.checks))


def _of_stage(stage: Stage) -> Case:
    return Case(
        stage.name,
        "stage",
        stage.status,
        stage.summary,
        stage.error or "",
        stage.seconds,
    )


def _of_check(check: Check) -> Case:
    lines = [
        f"{'ok' if item.ok else 'NOT OK'}: {item.label}: {item.seen}, "
        f"expected {item.wanted}"
        for item in check.comparisons
    ]
    text = "\n".join([check.claim, *lines, check.detail])
    return Case(check.name, "check", check.status, fact(check), text)
