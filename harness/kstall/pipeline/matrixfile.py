# SPDX-License-Identifier: GPL-2.0-or-later
"""Which series are proven on which trees: by ``--kernel`` more than once, or a file.

The file names trees, series, architectures and levels; each mistake in it has its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from ..base import arch
from ..report import plain
from ..series import Level, Project, tables
from ..tree import remote, source

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
_SPECIAL = re.compile(r"[^\w.+-]+")


class MatrixError(tables.TableError):
    """A matrix file that is malformed, or names what is not there."""


class Defaults(tables.Table):
    """``[matrix]``: each of ``trees``, for each architecture, at each level.

    ``trees`` are as ``--kernel`` takes them, relative paths from the file's directory;
    without ``series`` it is all of them.
    """

    trees: tuple[Text, ...] = ()
    series: tuple[Text, ...] | None = None
    archs: Annotated[tuple[Text, ...], Field(min_length=1)] = (arch.host().name,)
    levels: Annotated[tuple[Level, ...], Field(min_length=1)] = ("full",)


class TreeSpec(tables.Table):
    """``[[tree]]``: one with a name, and with what is otherwise there.

    ``expected``: whether its series are expected to apply, where that is not for
    series.toml to say, as on a subsystem's own branch.
    """

    name: Text
    kernel: Text
    series: tuple[Text, ...] | None = None
    archs: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    levels: Annotated[tuple[Level, ...], Field(min_length=1)] | None = None
    expected: bool | None = None


class MatrixFile(tables.Table):
    """A matrix file."""

    matrix: Defaults
    tree: tuple[TreeSpec, ...] = ()


@dataclass(frozen=True)
class ColumnPlan:
    """A column: ``kernel`` is as for `source.obtain`, ``tree`` what it is called.

    ``directory`` is where its run goes, in that of the matrix.
    """

    tree: str
    kernel: Path | None
    arch: str
    level: Level
    series: tuple[str, ...]
    directory: str
    expected: bool | None = None


def of_kernels(
    kernels: Sequence[Path], series: Sequence[str], arch: str, level: Level
) -> tuple[ColumnPlan, ...]:
    """A column for each of ``kernels``, the first if one is named twice."""
    trees = [
        # Not validated: a path may contain bytes that are no text.
        TreeSpec.model_construct(name=plain.escaped(kernel), kernel=kernel)
        for kernel in dict.fromkeys(map(_as_named, kernels))
    ]
    return tuple(_columns(trees, Defaults(archs=(arch,), levels=(level,)), series))


def _as_named(kernel: Path) -> str:
    """``kernel`` as the user wrote it: `Path` makes one slash of an address's two."""
    branch = remote.named(kernel)
    return str(branch if branch is not None and branch.url else kernel)


def read(path: Path, project: Project) -> tuple[ColumnPlan, ...]:
    """The columns of the file at ``path``.

    Raises `MatrixError`, with each mistake as ``file:line: message``.
    """
    try:
        file, text = tables.read(path, MatrixFile, MatrixError, "matrix-file")
    except FileNotFoundError as error:
        raise MatrixError(
            f"{path}: no such file",
            next="write it; `kstall schema matrix-file` says what it holds",
        ) from error
    except (IsADirectoryError, PermissionError) as error:
        raise MatrixError(f"{path}: {error.strerror}") from error
    if faults := list(_contradictions(file, project)):
        raise tables.mistakes(path, text, faults, MatrixError, "matrix-file")
    trees = [
        *(
            TreeSpec(name=_called(kernel), kernel=kernel)
            for kernel in file.matrix.trees
        ),
        *file.tree,
    ]
    top = path.absolute().parent
    trees = [
        tree.model_copy(update={"kernel": _from(top, tree.kernel)}) for tree in trees
    ]
    return tuple(_columns(trees, file.matrix, file.matrix.series or project.names()))


def narrowed(
    columns: Sequence[ColumnPlan],
    series: Sequence[str],
    level: Level | None,
    arch: str | None = None,
) -> tuple[ColumnPlan, ...]:
    """``columns`` with no other ``series`` and no other ``arch``, if any are named, and
    at ``level``.

    Raises `MatrixError` for one of them that none is for.
    """
    archs = dict.fromkeys(column.arch for column in columns)
    if arch is not None and arch not in archs:
        raise MatrixError(
            f"no tree of the matrix is for {arch}, only for {', '.join(archs)}"
        )
    selected: dict[tuple[str, str, Level], ColumnPlan] = {}
    for column in columns:
        left = tuple(name for name in column.series if not series or name in series)
        at = level or column.level
        if left and arch in (None, column.arch):
            key = (column.tree, column.arch, at)
            selected.setdefault(key, replace(column, series=left, level=at))
    proven = {name for column in selected.values() for name in column.series}
    if missing := [name for name in dict.fromkeys(series) if name not in proven]:
        on = f" on {arch}" if arch is not None else ""
        raise MatrixError(f"no tree of the matrix is for {', '.join(missing)}{on}")
    return tuple(selected.values())


def _from(top: Path, kernel: str) -> str:
    """``kernel``, a path that is relative to ``here`` as an absolute one."""
    path = Path(kernel)
    branch = remote.named(path)
    if source.debian_version(path) is not None or (branch and branch.url):
        return kernel
    return kernel if kernel.startswith("~") else str(top / kernel)


def _called(kernel: str) -> str:
    """A short name for what ``kernel`` names."""
    if source.debian_version(Path(kernel)) is not None:
        return kernel
    repository, mark, branch = kernel.rpartition("#")
    name = (repository if mark else kernel).rstrip("/").rpartition("/")[2]
    return f"{name.removesuffix('.git')}{mark}{branch if mark else ''}" or kernel


def _contradictions(file: MatrixFile, project: Project) -> Iterator[tables.Fault]:
    all_series = project.names()
    if not file.matrix.trees and not file.tree:
        yield ("matrix",), "no tree: name some as trees = [...], or in [[tree]]"
    places: list[tuple[tuple[int | str, ...], Defaults | TreeSpec]] = [
        (("matrix",), file.matrix),
        *((("tree", n), tree) for n, tree in enumerate(file.tree)),
    ]
    names = [_called(kernel) for kernel in file.matrix.trees]
    for at, name in enumerate(names):
        if name in names[:at]:
            yield ("matrix", "trees"), f"two are called {name}: name them in [[tree]]"
    for place, table in places:
        if isinstance(table, TreeSpec):
            if table.name in names:
                yield (*place, "name"), f"second tree called {table.name}"
            names.append(table.name)
        for name in table.series or ():
            if name not in all_series:
                choice = ", ".join(all_series)
                yield (*place, "series"), f"no series called {name}; there are {choice}"
        if table.series == ():
            yield (*place, "series"), "no series: leave it out for all of them"
        for name in table.archs or ():
            if name not in arch.NAMES:
                choice = ", ".join(arch.NAMES)
                yield (*place, "archs"), f"no architecture {name}; there are {choice}"


def _columns(
    trees: Sequence[TreeSpec], defaults: Defaults, series: Sequence[str]
) -> Iterator[ColumnPlan]:
    taken: set[str] = set()
    several = (
        len({target for tree in trees for target in tree.archs or defaults.archs}) > 1,
        len({level for tree in trees for level in tree.levels or defaults.levels}) > 1,
    )
    for tree in trees:
        for target in dict.fromkeys(tree.archs or defaults.archs):
            for level in dict.fromkeys(tree.levels or defaults.levels):
                words = [_called(tree.name)]
                words += [
                    word
                    for word, many in zip((target, level), several, strict=True)
                    if many
                ]
                directory = _unused("-".join(words), taken)
                yield ColumnPlan(
                    tree=tree.name,
                    kernel=Path(tree.kernel),
                    arch=target,
                    level=level,
                    series=tuple(dict.fromkeys(tree.series or series)),
                    directory=directory,
                    expected=tree.expected,
                )


def _unused(name: str, taken: set[str]) -> str:
    """``name`` as the name of a directory that no other column has."""
    plain = _SPECIAL.sub("-", name).strip("-.") or "tree"
    directory, number = plain, 2
    while directory in taken:
        directory, number = f"{plain}-{number}", number + 1
    taken.add(directory)
    return directory
