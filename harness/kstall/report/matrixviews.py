# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Matrix` for people and for CI: terminal, ``matrix.html``, ``junit.xml``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import junitparser
from rich.console import Console
from rich.table import Table

from ..base import Status, cache
from . import explain
from .cases import RUN
from .html import environment
from .junit import RESULTS, write_document
from .matrix import Cell, Column, Matrix, Skip
from .plain import printable, shortened
from .views import STYLE, VERDICT, escape

#: The words for a cell's status, the worst first.
WORDS: dict[Status, str] = {
    "fail": "FAILED",
    "error": "NOT JUDGED",
    "does-not-apply": "does not apply",
    "pass": "proven",
    "skip": "skipped",
}
_COUNTED: dict[Status, str] = {
    **{status: word.lower() for status, word in WORDS.items()},
    "does-not-apply": "not applying",
}
_FEW = 3
_NOTED = "applies, though it was not expected to"


@dataclass(frozen=True)
class Reason:
    """The common reason for the status of some series in some columns; without series,
    for that of the runs."""

    status: Status
    series: tuple[str, ...]
    columns: tuple[Column, ...]
    why: str

    @property
    def who(self) -> str:
        """The series, in few words."""
        if not self.series:
            return "the run"
        if _all_of(self.series, self.columns) and len(self.series) > _FEW:
            return f"all {len(self.series)} series"
        return ", ".join(self.series)


@dataclass(frozen=True)
class SkippedChecks:
    """Checks that were skipped for one cause, each of them in each of some proven
    series in each of some columns."""

    checks: tuple[str, ...]
    series: tuple[str, ...]
    columns: tuple[Column, ...]
    cause: str

    @property
    def what(self) -> str:
        """The checks and series, in few words."""
        who = ", ".join(self.series)
        if self.counted:
            every = "all " if _all_of(self.series, self.columns) else ""
            who = f"{every}{len(self.series)} series"
        return f"{', '.join(self.checks)} of {who}"

    @property
    def counted(self) -> bool:
        """Whether `what` has the number of series, and not their names."""
        return len(self.series) > _FEW


def _all_of(series: Sequence[str], columns: Sequence[Column]) -> bool:
    """Whether ``series`` are all that were requested in each of ``columns``."""
    return all({*column.asked} == {*series} for column in columns)


def titles(matrix: Matrix) -> dict[str, str]:
    """The heading of each column, by its directory: as short as is unique.

    Axes with a single value are left out.
    """
    archs = len({column.arch for column in matrix.columns}) > 1
    levels = len({column.level for column in matrix.columns}) > 1
    return {
        column.directory: " ".join(
            (
                column.tree,
                *([column.arch] if archs else []),
                *([column.level] if levels else []),
            )
        )
        for column in matrix.columns
    }


def reasons(matrix: Matrix) -> list[Reason]:
    """Why cells and runs are not proven, the worst first, and what is unexpected.

    A series that does not apply where it is not expected to needs no reason.
    """
    grouped: dict[tuple[Status, str, str], list[Column]] = {}
    for name in matrix.series:
        for column in matrix.columns:
            cell = column.cell(name)
            if cell is None:
                continue
            if cell.unexpected and cell.status == "pass":
                grouped.setdefault(("pass", name, _NOTED), []).append(column)
            elif cell.status in ("fail", "error") or (
                cell.status == "does-not-apply" and cell.expected is not False
            ):
                grouped.setdefault((cell.status, name, cell.why), []).append(column)
    # A tree that could not be obtained is a reason for all its series.
    common: dict[tuple[Status, str, tuple[str, ...]], list[str]] = {}
    by_place = {column.directory: column for column in matrix.columns}
    for (status, name, why), columns in grouped.items():
        places = tuple(column.directory for column in columns)
        common.setdefault((status, why, places), []).append(name)
    entries = [
        Reason(status, tuple(names), tuple(by_place[place] for place in places), why)
        for (status, why, places), names in common.items()
    ]
    entries += [
        Reason(_status(column), (), (column,), column.why)
        for column in matrix.columns
        if column.why
    ]
    order = list(WORDS)
    return sorted(entries, key=lambda reason: order.index(reason.status))


def _status(column: Column) -> Status:
    """The status of a run that no series shows, in the words for cells."""
    return "fail" if column.status == "failed" else "error"


def skipped_checks(matrix: Matrix) -> list[SkippedChecks]:
    """The checks that were skipped in proven cells, by cause, in the order of the
    matrix; the level leaves out others, which are not among them."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for name in matrix.series:
        for column in matrix.columns:
            cell = column.cell(name)
            for skip in skips(cell) if cell is not None else ():
                key = (skip.cause, name, skip.check)
                places.setdefault(key, []).append(column.directory)
    # First the checks with the same columns, and then the series with the same checks.
    checks: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (cause, name, check), directories in places.items():
        checks.setdefault((cause, name, tuple(directories)), []).append(check)
    series: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (cause, name, where), names in checks.items():
        series.setdefault((cause, where, tuple(names)), []).append(name)
    by_place = {column.directory: column for column in matrix.columns}
    return [
        SkippedChecks(
            checks=names,
            series=tuple(owners),
            columns=tuple(by_place[place] for place in where),
            cause=cause,
        )
        for (cause, where, names), owners in series.items()
    ]


def skips(cell: Cell) -> list[Skip]:
    """The skipped checks of a proven cell: any other one has more to say."""
    return cell.skipped if cell.status == "pass" else []


def counts(matrix: Matrix) -> str:
    """The number of cells by status, the worst first."""
    statuses = Counter(cell.status for _, cell in _cells(matrix))
    return ", ".join(
        f"{statuses[status]} {word}"
        for status, word in _COUNTED.items()
        if statuses[status]
    )


def _cells(matrix: Matrix) -> Iterator[tuple[Column, Cell]]:
    for column in matrix.columns:
        for name in matrix.series:
            if (cell := column.cell(name)) is not None:
                yield column, cell


def terminal(matrix: Matrix, directory: Path, console: Console) -> None:
    """Print the table, the reasons for what is not proven, and last the verdict."""
    heads = titles(matrix)
    table = Table(box=None, pad_edge=False)
    table.add_column("series", no_wrap=True)
    for column in matrix.columns:
        version = column.version or "no tree"
        table.add_column(f"{escape(heads[column.directory])}\n{escape(version)}")
    for name in matrix.series:
        row = [_shown(column.cell(name)) for column in matrix.columns]
        table.add_row(escape(name), *row)
    console.print(table)
    console.print()
    for reason in reasons(matrix):
        where = ", ".join(heads[column.directory] for column in reason.columns)
        mark = f"[{STYLE[reason.status]}]{WORDS[reason.status]:<14}[/]"
        console.print(
            f"{mark} {escape(reason.who)} on {escape(where)}: {escape(reason.why)}",
            soft_wrap=True,
        )
    if left_out := skipped_checks(matrix):
        console.print("skipped  neither passed nor failed in series that are proven:")
    for group in left_out:
        where = ", ".join(heads[column.directory] for column in group.columns)
        cause = shortened(group.cause, explain.WIDTH)
        console.print(
            f"         {escape(group.what)} on {escape(where)}: {escape(cause)}",
            soft_wrap=True,
        )
    for column in matrix.columns:
        if column.status not in ("proven", "does-not-apply"):
            place = directory / column.directory / "report.html"
            console.print(f"page     {escape(str(place))}")
    console.print(f"matrix   {escape(str(directory / 'matrix.html'))}")
    verdict = VERDICT[matrix.status]
    console.print(f"verdict  {verdict}  {counts(matrix)}")


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "[dim]-[/]"
    note = " (unexpected)" if cell.unexpected else ""
    if left_out := len(skips(cell)):
        note += f", [{STYLE['skip']}]{left_out} skipped[/]"
    return f"[{STYLE[cell.status]}]{WORDS[cell.status]}[/]{note}"


def write_page(matrix: Matrix, path: Path) -> None:
    """Write ``matrix.html``, atomically."""
    template = environment().get_template("matrix.html.j2")
    text = template.render(
        matrix=matrix,
        titles=titles(matrix),
        reasons=reasons(matrix),
        skipped_checks=skipped_checks(matrix),
        skips=skips,
        counts=counts(matrix),
        cell_words=WORDS,
    )
    cache.write_text(path, text)


def write_junit(matrix: Matrix, path: Path) -> None:
    """Write ``junit.xml``, atomically: a suite per column, a case per series, and a
    skipped one for each check that was skipped in a proven series; and one for the run
    if that is not proven, and no series shows it."""
    document = junitparser.JUnitXml(name=f"kstall {matrix.run}")
    for column in matrix.columns:
        suite = junitparser.TestSuite(f"kstall.{column.name}")
        for name in matrix.series:
            if (cell := column.cell(name)) is not None:
                suite.add_testcases([_case(column, cell), *_skipped(column, cell)])
        if column.why:
            suite.add_testcase(_run_case(column))
        document.add_testsuite(suite)
    write_document(document, path)


def _skipped(column: Column, cell: Cell) -> Iterator[junitparser.TestCase]:
    """Cases of the checks that the case of a proven series does not show."""
    for skip in skips(cell):
        test_case = junitparser.TestCase(
            skip.check, classname=f"kstall.{column.directory}.{cell.series}"
        )
        test_case.result = [RESULTS["skip"](printable(skip.cause))]
        yield test_case


def _run_case(column: Column) -> junitparser.TestCase:
    test_case = junitparser.TestCase(RUN, classname=f"kstall.{column.directory}")
    test_case.result = [RESULTS[_status(column)](printable(column.why))]
    return test_case


def _case(column: Column, cell: Cell) -> junitparser.TestCase:
    test_case = junitparser.TestCase(
        cell.series, classname=f"kstall.{column.directory}", time=cell.seconds
    )
    # No format has a status for what does not apply.
    status = "skip" if cell.status == "does-not-apply" else cell.status
    if status in RESULTS:
        word = "does not apply: " if cell.status == "does-not-apply" else ""
        test_case.result = [RESULTS[status](printable(f"{word}{cell.why}"))]
    elif cell.unexpected:
        test_case.system_out = _NOTED
    return test_case
