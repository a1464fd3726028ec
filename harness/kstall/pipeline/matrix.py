# SPDX-License-Identifier: GPL-2.0-or-later
"""Series on several trees: a run for each, and a view of all."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..base import KstallError, arch, parallel
from ..report import matrix, matrixviews, report
from ..series import Series
from ..tree import remote, source
from . import again, validate
from . import run as runs
from .matrixfile import ColumnPlan
from .request import Request
from .ui import Ui


def prove(
    template: Request,
    columns: Sequence[ColumnPlan],
    ui: Ui,
    command: Sequence[str],
) -> tuple[Path, matrix.Matrix]:
    """Prove series on each tree, one after the other, or at the same time if others do
    the work; ``template`` says how.

    It has to have the series of all columns.  Returns the directory of the matrix, and
    the matrix.  A tree that cannot be obtained does not stop the others.
    `KeyboardInterrupt` leaves a matrix that says so; the same command then goes on.
    """
    began = time.monotonic()
    now = datetime.now(UTC)
    directory = runs.new_directory(template.out, now)
    names = {name for column in columns for name in column.series}
    grid = matrix.Matrix(
        run=directory.name,
        kstall=__version__,
        started=now.isoformat(timespec="seconds"),
        command=list(command),
        series=[series.name for series in template.series if series.name in names],
        columns=[
            matrix.Column(
                tree=column.tree,
                arch=column.arch,
                level=column.level,
                directory=column.directory,
                asked=list(column.series),
            )
            for column in columns
        ],
    )

    def save() -> None:
        grid.seconds = round(time.monotonic() - began, 3)
        _save(grid, directory, ui)

    try:
        save()
        runs.lead_latest(template.out, directory)
        bases = _bases(template, columns, ui)
        _report_lacking(columns, ui)
        # A column that only waits for workers need not wait for other columns, too.
        at_once = 1 if template.away is None else len(columns)

        def column_of(number: int) -> None:
            spec, column = columns[number], grid.columns[number]
            ui.heading(f"{number + 1} of {len(columns)}: {column.name}")
            if at_once > 1:
                ui.apart(column.name)
            request = _request(template, spec, directory, bases)
            try:
                _, outcome = validate.validate(request, ui, command)
                column.take(outcome)
            except BaseException:
                # The report of an interrupted run is on disk.
                with contextlib.suppress(KstallError):
                    column.take(again.read_run(directory / column.directory))
                raise

        tasks = {
            number: functools.partial(column_of, number)
            for number in range(len(columns))
        }
        if at_once == 1:
            for task in tasks.values():
                task()
                save()
        else:
            parallel.each(tasks, at_once, lambda *_: save())
        grid.settle()
    except KeyboardInterrupt:
        grid.status = "interrupted"
        raise
    finally:
        if grid.status == "running":
            # An exception that is a bug of ours is no result.
            grid.status = "could-not-run"
        for column in grid.columns:
            if column.status == "running":
                # It was not reached, or ended before it could say how.
                column.status = grid.status
        save()
    return directory, grid


def draw(directory: Path) -> Path:
    """Write ``matrix.html`` of a matrix again, from its ``matrix.json``."""
    place = directory / "matrix.html"
    matrixviews.write_page(matrix.read(directory), place)
    return place


def _save(grid: matrix.Matrix, directory: Path, ui: Ui) -> None:
    printed = report.printable(grid)
    report.write(printed, directory / matrix.FILE)
    for write, name in (
        (matrixviews.write_page, "matrix.html"),
        (matrixviews.write_junit, "junit.xml"),
    ):
        try:
            write(printed, directory / name)
        except Exception as error:
            # The verdict is in matrix.json, and must not be lost by an error in these.
            ui.say(f"{name} could not be written: {error!r}")


def _bases(
    template: Request, columns: Sequence[ColumnPlan], ui: Ui
) -> dict[Path | None, source.Base]:
    """Obtain each tree, once and before anything is built: a branch may move meanwhile,
    and a typo is to be reported at once.

    Trees that cannot be obtained are left out; their runs say why.
    """
    bases: dict[Path | None, source.Base] = {}
    kernels = dict.fromkeys(column.kernel for column in columns)
    for kernel in kernels:
        ui.begin(None, "tree" if kernel is None else remote.written(kernel))
        try:
            bases[kernel] = source.obtain(
                kernel, template.cache, ui.say, keep=len(kernels)
            )
        except (KstallError, OSError) as error:
            ui.say(f"cannot be obtained: {error}")
    return bases


def _report_lacking(columns: Sequence[ColumnPlan], ui: Ui) -> None:
    """Say which programs an architecture needs that are not installed: its columns say
    so, too, but others may take hours before."""
    for name in dict.fromkeys(column.arch for column in columns):
        try:
            arch.named(name).require()
        except KstallError as error:
            ui.say(str(error))


def _request(
    template: Request,
    column: ColumnPlan,
    directory: Path,
    bases: dict[Path | None, source.Base],
) -> Request:
    """The request for the run of a column."""
    by_name: dict[str, Series] = {series.name: series for series in template.series}
    return dataclasses.replace(
        template,
        kernel=column.kernel,
        arch=arch.named(column.arch),
        level=column.level,
        series=tuple(by_name[name] for name in column.series),
        base=bases.get(column.kernel),
        place=directory / column.directory,
        expected=column.expected,
    )
