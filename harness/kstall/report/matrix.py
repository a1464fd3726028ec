# SPDX-License-Identifier: GPL-2.0-or-later
"""``matrix.json``: the results of series on several trees, and its schema.

A column is a run with a report of its own; a cell is its result for one series.
Version 1: fields may be added; a field that changes or goes away makes version 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from ..base import KstallError, Status
from ..verdict import Model
from .report import EXIT, Report, RunStatus, SeriesReport, run_status, worst_run
from .views import check_summary

FILE = "matrix.json"
# It is in the reason for each check that is left to another level.
_LEVEL = "LEVEL="


class Skip(Model):
    """A check of a series that was skipped in a column."""

    check: str
    cause: str = Field(description="why, in one line")


class Cell(Model):
    """A series in a column."""

    series: str
    status: Status
    expected: bool | None = Field(
        default=None, description="whether it is expected to apply; None: undeclared"
    )
    applies: bool = Field(default=False, description="all its patches applied")
    why: str = Field(default="", description="what decides the status, in one line")
    seconds: float = Field(default=0, description="of its own stages")
    skipped: list[Skip] = Field(
        default=[],
        description="checks that neither passed nor failed, for example because of "
        "the architecture or the tree; without those that the level leaves out",
    )

    @property
    def unexpected(self) -> bool:
        """Whether it applies where it was not expected to."""
        return self.expected is False and self.applies


class Column(Model):
    """A tree, for an architecture, at a level: one run."""

    tree: str = Field(description="its name in the file, or --kernel")
    arch: str
    level: str
    directory: str = Field(description="of the run, in that of the matrix")
    status: RunStatus = "running"
    why: str = Field(
        default="",
        description="what decides the status, in one line, if no series shows it",
    )
    version: str | None = Field(default=None, description="from the tree's Makefile")
    describe: str | None = None
    commit: str | None = None
    id: str | None = Field(default=None, description="changes with the tree's contents")
    seconds: float = Field(default=0, description="wall-clock time")
    asked: list[str] = Field(description="series")
    cells: list[Cell] = []

    @property
    def name(self) -> str:
        """A name that is unique among the columns."""
        return f"{self.tree} {self.arch} {self.level}"

    @property
    def exit_code(self) -> int:
        """That of the run by itself."""
        return EXIT[self.status]

    def cell(self, series: str) -> Cell | None:
        """The cell of ``series``; None if it was not requested here."""
        if series not in self.asked:
            return None
        cell = next((cell for cell in self.cells if cell.series == series), None)
        return cell or Cell(series=series, status="error", why="not reached")

    def take(self, report: Report) -> None:
        """Fill in the results of the run's report."""
        self.status, self.seconds = report.status, report.seconds
        if (tree := report.tree) is not None:
            self.version, self.describe = tree.version, tree.describe
            self.commit, self.id = tree.commit, tree.id
        self.cells = [_cell(series, report) for series in report.series]
        self.why = ""
        shown = [cell.status for name in self.asked if (cell := self.cell(name))]
        if EXIT[run_status(shown)] != self.exit_code:
            self.why = _stopped(report)


class Matrix(Model):
    """Series x trees, architectures and levels."""

    schema_version: Literal[1] = 1
    run: str = Field(description="name of the directory")
    kstall: str
    started: str = Field(description="UTC, ISO 8601")
    seconds: float = Field(default=0, description="wall-clock time")
    status: RunStatus = "running"
    command: list[str]
    series: list[str]
    columns: list[Column]

    @property
    def exit_code(self) -> int:
        """The exit code of the worst column, by the rule for the series of a run."""
        return EXIT[self.status]

    def settle(self) -> None:
        """Set the status from the columns'."""
        self.status = worst_run(column.status for column in self.columns)


def _cell(series: SeriesReport, report: Report) -> Cell:
    return Cell(
        series=series.name,
        status=series.status,
        expected=series.expected,
        applies=series.applies,
        why=_why(series, report),
        seconds=round(sum(stage.seconds for stage in series.stages), 3),
        skipped=[
            Skip(check=check.name, cause=" ".join(check.detail.split()))
            for check in series.checks
            if check.status == "skip" and _LEVEL not in check.detail
        ],
    )


def _stopped(report: Report) -> str:
    """Where the run stopped, in one line."""
    for status in ("fail", "error"):
        for stage in report.stages:
            if stage.status == status:
                return f"{stage.name}: {stage.summary}"
    return report.status


def _why(series: SeriesReport, report: Report) -> str:
    """What decides the status, in one line; the run's own report has the rest."""
    if series.status in ("pass", "skip"):
        return ""
    facts = [
        (stage.status, f"{stage.name}: {stage.summary}")
        for stage in (*report.stages, *series.stages)
    ]
    facts += [
        (check.status, f"{check.name}: {check_summary(check)}")
        for check in series.checks
    ]
    reasons = [text for status, text in facts if status == series.status]
    rest = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    stopped = [text for status, text in facts if status in ("fail", "error")]
    return reasons[0] + rest if reasons else (stopped or ["not reached"])[0]


def read(directory: Path) -> Matrix:
    """The matrix in ``directory``; `KstallError` if it has no valid one."""
    try:
        text = (directory / FILE).read_text(encoding="utf-8")
        return Matrix.model_validate_json(text)
    except (OSError, ValueError) as error:
        raise KstallError(
            f"{directory} holds no {FILE} of a matrix: {str(error).splitlines()[0]}",
            next="name the directory of a matrix, such as out/latest",
        ) from error
