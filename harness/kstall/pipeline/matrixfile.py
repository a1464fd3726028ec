# SPDX-License-Identifier: GPL-2.0-or-later
"""Which series are proven on which trees: by ``--kernel`` more than once, or a file.

The file names trees, series, architectures and levels; each mistake in it has its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from ..series import Level, Project, tables
from ..tree import remote, source

#: What guests and kernels can be for.
ARCHITECTURES = ("x86_64",)
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
    archs: Annotated[tuple[Text, ...], Field(min_length=1)] = ARCHITECTURES[:1]
    levels: Annotated[tuple[Level, ...], Field(min_length=1)] = ("full",)


class Tree(tables.Table):
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


class File(tables.Table):
    """A matrix file."""

    matrix: Defaults
    tree: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Wanted:
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
) -> tuple[Wanted, ...]:
    """A column for each of ``kernels``, the first if one is named twice."""
    trees = [
        Tree(name=str(one), kernel=str(one))
        for one in dict.fromkeys(map(_as_named, kernels))
    ]
    return tuple(_columns(trees, Defaults(archs=(arch,), levels=(level,)), series))


def _as_named(kernel: Path) -> Path:
    """``kernel`` as the user wrote it, where a path has swallowed a slash."""
    branch = remote.named(kernel)
    return Path(str(branch)) if branch is not None and branch.url else kernel


def read(path: Path, project: Project) -> tuple[Wanted, ...]:
    """The columns of the file at ``path``.

    Raises `MatrixError`, with each mistake as ``file:line: message``.
    """
    try:
        found, text = tables.read(path, File, MatrixError, "matrix-file")
    except FileNotFoundError as error:
        raise MatrixError(
            f"{path}: no such file",
            next="write it; `kstall schema matrix-file` says what it holds",
        ) from error
    except (IsADirectoryError, PermissionError) as error:
        raise MatrixError(f"{path}: {error.strerror}") from error
    if faults := list(_contradictions(found, project)):
        raise tables.mistakes(path, text, faults, MatrixError, "matrix-file")
    trees = [
        *(Tree(name=_called(one), kernel=one) for one in found.matrix.trees),
        *found.tree,
    ]
    here = path.absolute().parent
    trees = [
        one.model_copy(update={"kernel": _from(here, one.kernel)}) for one in trees
    ]
    return tuple(_columns(trees, found.matrix, found.matrix.series or project.names()))


def narrowed(
    columns: Sequence[Wanted], series: Sequence[str], level: Level | None
) -> tuple[Wanted, ...]:
    """``columns`` with no other ``series``, if any are named, and at ``level``."""
    found: dict[tuple[str, str, Level], Wanted] = {}
    for one in columns:
        left = tuple(name for name in one.series if not series or name in series)
        at = level or one.level
        if left:
            key = (one.tree, one.arch, at)
            found.setdefault(key, replace(one, series=left, level=at))
    if not found:
        raise MatrixError(f"no tree of the matrix is for {', '.join(series)}")
    return tuple(found.values())


def schema_text() -> str:
    """The JSON Schema of a matrix file, as ``kstall schema matrix-file`` prints it."""
    return json.dumps(File.model_json_schema(), indent=2) + "\n"


def _from(here: Path, kernel: str) -> str:
    """``kernel``, a path that is relative to ``here`` as an absolute one."""
    path = Path(kernel)
    branch = remote.named(path)
    if source.debian_version(path) is not None or (branch and branch.url):
        return kernel
    return kernel if kernel.startswith("~") else str(here / kernel)


def _called(kernel: str) -> str:
    """A short name for what ``kernel`` names."""
    if source.debian_version(Path(kernel)) is not None:
        return kernel
    repository, mark, branch = kernel.rpartition("#")
    where = (repository if mark else kernel).rstrip("/").rpartition("/")[2]
    return f"{where.removesuffix('.git')}{mark}{branch if mark else ''}" or kernel


def _contradictions(found: File, project: Project) -> Iterator[tables.Fault]:
    known = project.names()
    if not found.matrix.trees and not found.tree:
        yield ("matrix",), "no tree: name some as trees = [...], or in [[tree]]"
    places: list[tuple[tuple[int | str, ...], Defaults | Tree]] = [
        (("matrix",), found.matrix),
        *((("tree", n), one) for n, one in enumerate(found.tree)),
    ]
    names = [_called(one) for one in found.matrix.trees]
    for at, name in enumerate(names):
        if name in names[:at]:
            yield ("matrix", "trees"), f"two are called {name}: name them in [[tree]]"
    for place, one in places:
        if isinstance(one, Tree):
            if one.name in names:
                yield (*place, "name"), f"second tree called {one.name}"
            names.append(one.name)
        for name in one.series or ():
            if name not in known:
                choice = ", ".join(known)
                yield (*place, "series"), f"no series called {name}; there are {choice}"
        if one.series == ():
            yield (*place, "series"), "no series: leave it out for all of them"
        for name in one.archs or ():
            if name not in ARCHITECTURES:
                choice = ", ".join(ARCHITECTURES)
                yield (*place, "archs"), f"nothing is proven on {name}; only {choice}"


def _columns(
    trees: Sequence[Tree], defaults: Defaults, series: Sequence[str]
) -> Iterator[Wanted]:
    taken: set[str] = set()
    several = (
        len({arch for one in trees for arch in one.archs or defaults.archs}) > 1,
        len({level for one in trees for level in one.levels or defaults.levels}) > 1,
    )
    for one in trees:
        for arch in dict.fromkeys(one.archs or defaults.archs):
            for level in dict.fromkeys(one.levels or defaults.levels):
                words = [_called(one.name)]
                words += [
                    x for x, many in zip((arch, level), several, strict=True) if many
                ]
                directory = _unused("-".join(words), taken)
                yield Wanted(
                    *(one.name, Path(one.kernel), arch, level),
                    *(tuple(dict.fromkeys(one.series or series)), directory),
                    one.expected,
                )


def _unused(name: str, taken: set[str]) -> str:
    """``name`` as the name of a directory that no other column has."""
    plain = _SPECIAL.sub("-", name).strip("-.") or "tree"
    made, number = plain, 2
    while made in taken:
        made, number = f"{plain}-{number}", number + 1
    taken.add(made)
    return made
