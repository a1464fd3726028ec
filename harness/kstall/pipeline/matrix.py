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
from ..report import matrix, matrixviews
from ..series import Series
from ..tree import source
from . import run as runs
from . import validate
from .matrixfile import Wanted
from .ui import Ui


def prove(
    template: validate.Request,
    columns: Sequence[Wanted],
    ui: Ui,
    command: Sequence[str],
) -> tuple[Path, matrix.Matrix]:
    """Prove series on each tree, one after the other, or at the same time if others do
    the work; ``template`` says how.

    Its series have to be all that some column asks for.  Returns the directory of the
    matrix and what came of it.  A tree that cannot be had stops no other.
    `KeyboardInterrupt` leaves a matrix that says so; the same command goes on there.
    """
    began = time.monotonic()
    now = datetime.now(UTC)
    directory = runs.made(template.out, now)
    asked = {name for one in columns for name in one.series}
    found = matrix.Matrix(
        run=directory.name,
        kstall=__version__,
        started=now.isoformat(timespec="seconds"),
        command=list(command),
        series=[one.name for one in template.series if one.name in asked],
        columns=[
            matrix.Column(
                tree=one.tree,
                arch=one.arch,
                level=one.level,
                directory=one.directory,
                asked=list(one.series),
            )
            for one in columns
        ],
    )

    def save() -> None:
        found.seconds = round(time.monotonic() - began, 3)
        _save(found, directory, ui)

    try:
        save()
        runs.lead_latest(template.out, directory)
        bases = _bases(template, columns, ui)

        def column_of(number: int) -> None:
            wanted, column = columns[number], found.columns[number]
            ui.heading(f"{number + 1} of {len(columns)}: {column.name}")
            request = _request(template, wanted, directory, bases)
            try:
                _, report = validate.validate(request, ui, command)
                column.take(report)
            except BaseException:
                # What the run knows when it is cut short is on disk.
                with contextlib.suppress(KstallError):
                    column.take(validate.read_run(directory / column.directory))
                raise

        tasks = {
            number: functools.partial(column_of, number)
            for number in range(len(columns))
        }
        # Who only waits for workers need not wait for the other columns, too.
        at_once = 1 if template.away is None else len(columns)
        if at_once == 1:
            for task in tasks.values():
                task()
                save()
        else:
            parallel.each(tasks, at_once, lambda *_: save())
        found.settle()
    except KeyboardInterrupt:
        found.status = "interrupted"
        raise
    finally:
        if found.status == "running":
            # A bug of ours is on its way up: that is no result.
            found.status = "could-not-run"
        save()
    return directory, found


def draw(directory: Path) -> Path:
    """Write ``matrix.html`` of a matrix again, from its ``matrix.json``."""
    place = directory / "matrix.html"
    matrixviews.write_page(matrix.read(directory), place)
    return place


def _save(found: matrix.Matrix, directory: Path, ui: Ui) -> None:
    matrix.write(found, directory / matrix.FILE)
    for write, name in (
        (matrixviews.write_page, "matrix.html"),
        (matrixviews.write_junit, "junit.xml"),
    ):
        try:
            write(found, directory / name)
        except Exception as error:
            # The verdict stands in matrix.json: what draws it must not cost it.
            ui.say(f"{name} could not be made: {error!r}")


def _bases(
    template: validate.Request, columns: Sequence[Wanted], ui: Ui
) -> dict[Path | None, source.Base]:
    """The trees, each looked for once and before anything is built: a branch may move
    meanwhile, and who mistyped one wants to know now.

    Those that cannot be had are not in it; their runs say why.
    """
    found: dict[Path | None, source.Base] = {}
    kernels = dict.fromkeys(one.kernel for one in columns)
    for kernel in kernels:
        ui.begin(None, str(kernel or "tree"))
        try:
            found[kernel] = source.obtain(
                kernel, template.cache, ui.say, keep=len(kernels)
            )
        except (KstallError, OSError) as error:
            ui.say(f"cannot be had: {error}")
    return found


def _request(
    template: validate.Request,
    wanted: Wanted,
    directory: Path,
    bases: dict[Path | None, source.Base],
) -> validate.Request:
    """What the run of a column is asked."""
    series: dict[str, Series] = {one.name: one for one in template.series}
    return dataclasses.replace(
        template,
        kernel=wanted.kernel,
        arch=arch.named(wanted.arch),
        level=wanted.level,
        series=tuple(series[name] for name in wanted.series),
        base=bases.get(wanted.kernel),
        place=directory / wanted.directory,
        expected=wanted.expected,
    )
