# SPDX-License-Identifier: GPL-2.0-or-later
"""Tracepoints that patches add, found in the patched sources.

The sources are read as text: macros that expand to macros are not expanded.  The result
says where to look; the booted kernel shows which events exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..series import PatchFile
from ..tree import File, tree

_EVENT = re.compile(
    r"(?m)^[ \t]*(?:TRACE_EVENT(?:_(?:CONDITION|FN|FN_COND|SYSCALL|MAP))?\s*\(\s*(\w+)"
    r"|DEFINE_EVENT(?:_\w+)?\s*\(\s*\w+\s*,\s*(\w+))"
)
_BARE = re.compile(r"(?m)^[ \t]*DECLARE_TRACE(?:_CONDITION)?\s*\(\s*(\w+)")
_SYSTEM = re.compile(r"(?m)^#define[ \t]+TRACE_SYSTEM[ \t]+(\w+)")
# A function's name, where its definition begins: at the start of a line, as the
# kernel's style has it, and not a declaration.
_FUNCTION = re.compile(r"^[A-Za-z_][^;=#]*?\b(\w+)\(")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NOT_FUNCTIONS = frozenset(("if", "while", "for", "switch", "__attribute__"))
_MACRO = re.compile(r"^[A-Z][A-Z0-9_]*\(")


@dataclass(frozen=True)
class NewTracepoint:
    """A tracepoint that the base lacks, and the functions that can emit it.

    ``sites`` are (file, function) pairs; empty if no caller was found.
    """

    name: str
    system: str
    header: str
    bare: bool
    sites: tuple[tuple[str, str], ...]

    @property
    def event(self) -> str:
        """``system:name``."""
        return f"{self.system}:{self.name}"


def tracepoints(plan: tree.Plan) -> tuple[NewTracepoint, ...]:
    """The tracepoints that ``plan`` adds, by file and line."""
    before, after = dict(plan.states[0]), plan.files
    points = []
    for path in sorted(after):
        text, old = _text(after, path), _text(before, path)
        system = _SYSTEM.search(text)
        if system is None:
            continue
        old_names = {name for name, _ in declared(old)}
        for name, bare in declared(text):
            if name not in old_names:
                sites = tuple(_sites(name, after))
                points.append(NewTracepoint(name, system[1], path, bare, sites))
    return tuple(points)


def _text(files: Mapping[str, File | None], path: str) -> str:
    file = files.get(path)
    text = file.text if file else ""
    # Keep the number of lines, so that line numbers stay right.
    return _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)


def adding(plan: tree.Plan, point: NewTracepoint) -> PatchFile:
    """The patch of ``plan`` that adds ``point``."""
    for patch, state in zip(plan.patches, plan.states[1:], strict=True):
        text = _text(dict(state), point.header)
        if point.name in (name for name, _ in declared(text)):
            return patch
    raise ValueError(f"{point.event} is not in the plan")


def declared(text: str) -> Iterator[tuple[str, bool]]:
    """The tracepoints that a source declares, and whether each is bare."""
    for match in _EVENT.finditer(text):
        yield match[1] or match[2], False
    for match in _BARE.finditer(text):
        yield match[1], True


def _sites(name: str, files: Mapping[str, File | None]) -> Iterator[tuple[str, str]]:
    """Where ``trace_<name>()`` or ``trace_<name>_enabled()`` is called; each call is a
    NOP while the event is off.

    ``trace_call__<name>()`` is no NOP: its callers have checked that it is enabled.
    """
    call = re.compile(rf"\btrace_{name}(?:_tp)?(?:_enabled)?\(")
    seen = set()
    for path in sorted(files):
        if not path.endswith((".c", ".h")):
            continue
        function = None
        for line in _text(files, path).splitlines():
            if (match := _FUNCTION.match(line)) and match[1] not in _NOT_FUNCTIONS:
                function = None if _MACRO.match(line) else match[1]
            if function is not None and call.search(line):
                if (path, function) not in seen:
                    yield path, function
                seen.add((path, function))
