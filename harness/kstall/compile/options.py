# SPDX-License-Identifier: GPL-2.0-or-later
"""The kconfig options that the code touched by a series depends on.

Found in the sources, so that nobody has to declare them: the preprocessor's conditions
around each changed line, IS_ENABLED() and the like in the lines next to it, and the
option by which a Makefile compiles the file.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from ..tree import File, tree
from . import kbuild

_OPTION = re.compile(r"\bCONFIG_(\w+?)(?:_MODULE)?\b")
_ASKED = re.compile(r"\bIS_(?:ENABLED|BUILTIN|MODULE|REACHABLE)\(CONFIG_(\w+)\)")
_CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|elifdef|else|endif)\b(.*)")
_RULE = re.compile(r"^[\w-]+-\$\(CONFIG_(\w+)\)\s*[:+]?=(.*)$", re.MULTILINE)
_MAKEFILES = ("Kbuild", "Makefile")
# Lines around a change that belong to it, as in a patch.
_CONTEXT = 3


def of(plan: tree.Plan) -> tuple[str, ...]:
    """The symbols, without ``CONFIG_``, sorted."""
    options: set[str] = set()
    states = [dict(state) for state in plan.states]
    for before, after in itertools.pairwise(states):
        for path, new in after.items():
            if before[path] != new and (
                kbuild.is_compiled(path) or kbuild.is_header(path)
            ):
                options |= around(_text(before[path]), _text(new))
    return tuple(sorted(options | compiling(plan)))


def around(old: str, new: str) -> set[str]:
    """The symbols that the changes between two texts of a file depend on."""
    ours, theirs = old.splitlines(), new.splitlines()
    changes = difflib.SequenceMatcher(None, ours, theirs).get_opcodes()
    options: set[str] = set()
    for lines, ranges in (
        (ours, [(change[1], change[2]) for change in changes if change[0] != "equal"]),
        (
            theirs,
            [(change[3], change[4]) for change in changes if change[0] != "equal"],
        ),
    ):
        context = {
            number
            for start, end in ranges
            for number in range(start - _CONTEXT, end + _CONTEXT)
        }
        for number, line in enumerate(lines):
            if number in context:
                options |= set(_ASKED.findall(line))
        for start, end, symbols in _blocks(lines):
            if any(start < last and first <= end for first, last in ranges):
                options |= symbols
    return options


def _blocks(lines: list[str]) -> Iterator[tuple[int, int, set[str]]]:
    """First line, last line and symbols of each part of a condition."""
    open_: list[tuple[int, set[str]]] = []
    for number, line in enumerate(lines):
        match = _CONDITION.match(line)
        if match is None:
            continue
        kind, symbols = match[1], set(_OPTION.findall(match[2]))
        if kind.startswith("if"):
            open_.append((number, symbols))
        elif open_:
            start, conditions = open_.pop()
            yield start, number, conditions
            if kind != "endif":
                open_.append((number, conditions | symbols))


def compiling(plan: tree.Plan) -> set[str]:
    """The symbols by which Makefiles compile touched sources."""
    sources = [path for path, _ in plan.states[-1] if kbuild.is_compiled(path)]
    folders = {
        str(folder)
        for path in sources
        for folder in list(PurePosixPath(path).parents)[:2]
    }
    names = [f"{folder}/{name}" for folder in folders for name in _MAKEFILES]
    untouched = [name for name in names if name not in plan.files]
    files = {**tree.pristine(plan.base, untouched), **plan.files}
    options: set[str] = set()
    for path in sources:
        target = PurePosixPath(kbuild.object_of(path))
        # It may be named in the Makefile of the directory above, too.
        for folder in list(target.parents)[:2]:
            relative = str(target.relative_to(folder))
            for name in _MAKEFILES:
                text = _text(files.get(f"{folder}/{name}")).replace("\\\n", " ")
                for symbol, objects in _RULE.findall(text):
                    if relative in objects.split():
                        options.add(symbol)
    return options


def _text(file: File | None) -> str:
    return "" if file is None else file.text
