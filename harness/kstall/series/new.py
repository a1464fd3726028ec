# SPDX-License-Identifier: GPL-2.0-or-later
"""A new series: an example that is proven as it stands, to be replaced piece by piece.

Its files are `templates/new/`.  They trace changes of a task's personality, which any
program can cause and hardly any does.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import jinja2

from ..base import KstallError, program
from .series import Project

_TEMPLATES = Path(__file__).parent / "templates/new"
_PATCH = "0001-exec_domain-Add-task_personality-trace-event.patch"
_PLAIN, _PROGRAM = 0o644, 0o755
# Template, where it goes below the project, and the permissions that it gets.
_FILES = (
    ("series.toml.j2", "patches/{name}/series.toml", _PLAIN),
    ("cover.txt", "patches/{name}/cover.txt", _PLAIN),
    ("checks.py.j2", "patches/{name}/checks.py", _PLAIN),
    (_PATCH, "patches/{name}/" + _PATCH, _PLAIN),
    ("mutants.toml.j2", "patches/{name}/mutants.toml", _PLAIN),
    ("kconfig.config.j2", "kconfigs/{name}.config", _PLAIN),
    ("workload", "scripts/workloads/{name}/personality", _PROGRAM),
    ("script.bt.j2", "scripts/{name}.bt", _PLAIN),
)
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
#: Directories and suites of a run itself.
_RESERVED = ("run", "shared")


class NewError(KstallError):
    """A series that cannot be created under that name."""


@dataclass(frozen=True)
class _Target:
    """A file that is to be written."""

    path: Path
    text: str
    mode: int


def write(project: Project, name: str) -> tuple[Path, ...]:
    """Write the example as series ``name`` and return its files.

    Raises `NewError` if the name is invalid, or any file exists already.  Either all
    files are written or none.
    """
    if not _NAME.fullmatch(name):
        raise NewError(
            f"{name!r} is not a valid name for a series",
            next="begin with a letter; a-z, 0-9, - and _ may follow",
        )
    if name in _RESERVED:
        raise NewError(
            f"{name!r} is no name for a series: each run has results of that name",
            next="choose another name",
        )
    if not (project.kconfigs / "base.config").is_file():
        raise NewError(
            f"{project.root} is no checkout of kstall: no kconfigs/base.config",
            next="run kstall in its checkout, or name that with --project",
        )
    if obstacles := _taken(project, name):
        raise NewError(
            f"{name}: there already: {', '.join(obstacles)}",
            next="choose another name; nothing was written",
        )
    targets = _targets(project, name)
    written: list[Path] = []
    try:
        for target in targets:
            target.path.parent.mkdir(parents=True, exist_ok=True)
            # A file that was made meanwhile is not overwritten, either.
            with target.path.open("x", encoding="utf-8") as file:
                written.append(target.path)
                file.write(target.text)
            target.path.chmod(target.mode)
    except OSError:
        _remove(written)
        raise
    return tuple(written)


def advice(project: Project, name: str, written: tuple[Path, ...]) -> str:
    """Where everything is, and what to do next."""
    lines = [f"wrote     {path.relative_to(project.root)}" for path in written]
    lines += [
        f"next      {program()} validate --level quick {name}",
        "          It is proven as it stands.  Then replace it piece by piece: the",
        "          patch, what series.toml declares of it, the workload, the checks.",
        "          CONTRIBUTING.md goes through it, from here to the mails.",
    ]
    return "\n".join(lines)


def _targets(project: Project, name: str) -> list[_Target]:
    # What is written is source code.
    environment = jinja2.Environment(  # noqa: S701
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return [
        _Target(
            project.root / place.format(name=name),
            environment.get_template(template).render(name=name),
            mode,
        )
        for template, place, mode in _FILES
    ]


def _taken(project: Project, name: str) -> list[str]:
    """The paths that exist: of the series' own directories, and of its other files."""
    own = ("patches/{name}", "scripts/workloads/{name}")
    files = (place for _, place, _ in _FILES if not place.startswith(own))
    places = [place.format(name=name) for place in (*own, *files)]
    # A dangling link is in the way, too.
    return [place for place in places if os.path.lexists(project.root / place)]


def _remove(written: list[Path]) -> None:
    """Delete what was written, and the directories that are empty without it."""
    for path in reversed(written):
        path.unlink(missing_ok=True)
    for parent in {path.parent for path in written}:
        # Those of a series only: others have more than its files.
        if not any(parent.iterdir()):
            parent.rmdir()
