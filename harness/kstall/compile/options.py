# SPDX-License-Identifier: GPL-2.0-or-later
"""The options of the configuration that the code which a series touches hangs on.

Found in the sources, so that nobody has to declare them: the conditions of the
preprocessor around each changed line, what the lines next to it ask, and what the
Makefile asks before it compiles the file.
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
    found: set[str] = set()
    states = [dict(state) for state in plan.states]
    for before, after in itertools.pairwise(states):
        for path, new in after.items():
            if before[path] != new and (
                kbuild.is_compiled(path) or kbuild.is_header(path)
            ):
                found |= around(_text(before[path]), _text(new))
    return tuple(sorted(found | compiling(plan)))


def around(old: str, new: str) -> set[str]:
    """The symbols that what differs between two texts of a file hangs on."""
    ours, theirs = old.splitlines(), new.splitlines()
    changes = difflib.SequenceMatcher(None, ours, theirs).get_opcodes()
    found: set[str] = set()
    for lines, ranges in (
        (ours, [(one[1], one[2]) for one in changes if one[0] != "equal"]),
        (theirs, [(one[3], one[4]) for one in changes if one[0] != "equal"]),
    ):
        near = {
            number
            for start, end in ranges
            for number in range(start - _CONTEXT, end + _CONTEXT)
        }
        for number, line in enumerate(lines):
            if number in near:
                found |= set(_ASKED.findall(line))
        for start, end, symbols in _blocks(lines):
            if any(start < last and first <= end for first, last in ranges):
                found |= symbols
    return found


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
            start, known = open_.pop()
            yield start, number, known
            if kind != "endif":
                open_.append((number, known | symbols))


def compiling(plan: tree.Plan) -> set[str]:
    """The symbols by which Makefiles have touched sources compiled."""
    sources = [path for path, _ in plan.states[-1] if kbuild.is_compiled(path)]
    folders = {
        str(folder)
        for path in sources
        for folder in list(PurePosixPath(path).parents)[:2]
    }
    names = [f"{folder}/{name}" for folder in folders for name in _MAKEFILES]
    untouched = [name for name in names if name not in plan.files]
    files = {**tree.pristine(plan.base, untouched), **plan.files}
    found: set[str] = set()
    for path in sources:
        made = PurePosixPath(kbuild.object_of(path))
        # It may be named in the Makefile of the directory above, too.
        for folder in list(made.parents)[:2]:
            wanted = str(made.relative_to(folder))
            for name in _MAKEFILES:
                text = _text(files.get(f"{folder}/{name}")).replace("\\\n", " ")
                for symbol, objects in _RULE.findall(text):
                    if wanted in objects.split():
                        found.add(symbol)
    return found


def _text(file: File | None) -> str:
    return "" if file is None else file.data.decode("utf-8", "replace")
