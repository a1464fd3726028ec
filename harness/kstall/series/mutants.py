# SPDX-License-Identifier: GPL-2.0-or-later
"""Patches that are broken on purpose: ``patches/<name>/mutants.toml``.

Each names the checks that have to catch it.  Only the tests boot mutants; here they are
read, validated against their series, and made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from . import tables
from .series import Series
from .spec import EventName, Expression, Identifier, SeriesError, Text
from .tables import Fault, Table

FILE = "mutants.toml"


class Falsified(Table):
    """What a mutant does to an event's records, as `kstall mutate` calls it."""

    event: EventName
    field: Identifier
    operator: Text


class Mutant(Table):
    """A broken ``patch``, and the checks that it is ``caught_by``.

    ``old`` are lines of the patch, or parts of lines, that occur there once; they are
    replaced with ``new``, of as many removed and added lines.  Or the patch is
    ``left_out``.  ``falsifies`` says which falsified record looks the same to a check.

    If the kernel is to report the bug, ``complaint`` matches its report.  Then no check
    is judged, and those that are named only say which workloads are run.
    """

    name: Text
    patch: Text
    old: Annotated[str, Field(min_length=1)] | None = None
    new: str | None = None
    left_out: bool = False
    caught_by: Annotated[tuple[Identifier, ...], Field(min_length=1)]
    falsifies: Falsified | None = None
    complaint: Expression | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Mutant:
        edits = {self.old is None, self.new is None}
        if edits != {self.left_out}:
            raise ValueError("either old and new, or left-out")
        if self.complaint is not None and re.search(self.complaint, ""):
            raise ValueError("complaint matches any report")
        return self


class MutantsFile(Table):
    """``mutants.toml``, typed."""

    mutant: tuple[Mutant, ...] = ()


def load(series: Series) -> tuple[Mutant, ...]:
    """The mutants of ``series``; none if it has no such file.

    Raises `SeriesError` with file and line of each that contradicts the series.
    """
    path = series.dir / FILE
    try:
        file, text = tables.read(path, MutantsFile, SeriesError, path.stem)
    except FileNotFoundError:
        return ()
    if faults := list(_contradictions(series, file.mutant)):
        raise tables.mistakes(path, text, faults, SeriesError, path.stem)
    return file.mutant


def make(folder: Path, mutant: Mutant) -> None:
    """Break the patches in ``folder``, a copy of the series' directory.

    Where a changed line is context of a later patch, it is changed there, too.
    """
    if mutant.left_out:
        _leave_out(folder, mutant.patch)
        return
    assert mutant.old is not None
    assert mutant.new is not None
    patch = folder / mutant.patch
    patch.write_text(patch.read_text().replace(mutant.old, mutant.new))
    before, after = mutant.old.splitlines(), mutant.new.splitlines()
    # A line that is only moved stays the same.
    added = [
        (old[1:], new[1:])
        for old, new in zip(before, after, strict=False)
        if old not in after and old[0] == new[0] == "+"
    ]
    for later in folder.glob("*.patch"):
        if later.name > mutant.patch:
            text = later.read_text()
            for old, new in added:
                text = text.replace(f"\n {old}\n", f"\n {new}\n")
            later.write_text(text)


def _leave_out(folder: Path, patch: str) -> None:
    (folder / patch).unlink()
    toml = folder / "series.toml"
    lines = toml.read_text().splitlines(keepends=True)
    remaining = [line for line in lines if line.strip() != f'"{patch}",']
    assert len(remaining) == len(lines) - 1
    toml.write_text("".join(remaining))


def _contradictions(series: Series, mutants: tuple[Mutant, ...]) -> Iterator[Fault]:
    checks = {check.name for check in series.spec.check}
    fields = {point.event: point.fields for point in series.spec.tracepoint}
    names: set[str] = set()
    for position, mutant in enumerate(mutants):
        place = ("mutant", position)
        if mutant.name in names:
            yield (*place, "name"), f"second mutant called {mutant.name}"
        names.add(mutant.name)
        for check in mutant.caught_by:
            if check not in checks:
                yield (*place, "caught-by"), f"no [[check]] called {check}"
        falsified = mutant.falsifies
        if falsified is not None and falsified.field not in fields.get(
            falsified.event, {}
        ):
            yield (
                (*place, "falsifies"),
                f"no field {falsified.field} in {falsified.event}",
            )
        if mutant.patch not in series.spec.patches:
            yield (*place, "patch"), f"no such patch: {mutant.patch}"
        elif mutant.old is not None and mutant.new is not None:
            text = (series.dir / mutant.patch).read_text()
            if (count := text.count(mutant.old)) != 1:
                yield (*place, "old"), f"occurs {count} times in {mutant.patch}"
            if _lines(mutant.old) != _lines(mutant.new):
                yield (*place, "new"), "the hunk's line counts would be wrong"
            if mutant.old == mutant.new:
                yield (*place, "new"), "changes nothing"


def _lines(hunk: str) -> tuple[int, int]:
    """How many lines of the old file and of the new one are in part of a hunk."""
    lines = hunk.splitlines()
    return sum(line[0] in " -" for line in lines), sum(
        line[0] in " +" for line in lines
    )
