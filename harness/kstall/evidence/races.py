# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a data race is of accesses that the base has as well; pure.

KCSAN samples: it sees a rare race in one boot of the patched kernel and in none of the
base.  But it prints where both accesses are, and a line that no patch added, in a
function of which none is gone, raced before the patches.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_FRAME = re.compile(
    r"(?m)\s(?P<function>[A-Za-z_][\w.]*)\+(?P<offset>0x[0-9a-f]+)/0x[0-9a-f]+"
    r"(?P<module> \[[^]]*\])?$"
)
_ACCESS = re.compile(r" to 0x[0-9a-f]+ of \d+ bytes ")
_CLONE = re.compile(r"\.(?:constprop|isra|part|cold|llvm)(?:\.\d+)*")


@dataclass(frozen=True)
class Frame:
    """A line of a stack: ``offset`` in bytes, that of where the call returns to."""

    function: str
    offset: int
    in_module: bool


@dataclass(frozen=True)
class SourceLine:
    """A line of the patched sources; ``file`` below the top of the tree."""

    function: str
    file: str
    number: int


#: The lines of a frame, those of inlined functions first; none if they are unknown.
Places = Mapping[Frame, tuple[SourceLine, ...]]


@dataclass(frozen=True)
class Edit:
    """What patches did to the sources.

    ``added`` has the numbers of new lines of each touched file, as they are in the
    patched tree, and ``rewritten`` the functions that are new, or of which a line is
    gone or another.
    """

    added: Mapping[str, frozenset[int]] = field(default_factory=dict)
    rewritten: frozenset[str] = frozenset()


def frames(report: str) -> Iterator[Frame]:
    """All frames of a report of KCSAN, also those of an interrupted task."""
    for match in _FRAME.finditer(report):
        yield Frame(
            match["function"], int(match["offset"], 16), match["module"] is not None
        )


def added(before: str, after: str) -> frozenset[int]:
    """The numbers of the lines of ``after`` that ``before`` does not have."""
    return frozenset(
        number + 1
        for kind, _, _, first, last in _changes(before, after)
        if kind in ("insert", "replace")
        for number in range(first, last)
    )


def is_rewritten(before: str | None, after: str) -> bool:
    """Whether a function is new, or a line of ``before`` is gone or another."""
    return before is None or any(
        kind in ("delete", "replace") for kind, *_ in _changes(before, after)
    )


def _changes(before: str, after: str) -> Sequence[tuple[str, int, int, int, int]]:
    matcher = difflib.SequenceMatcher(
        None, before.splitlines(), after.splitlines(), autojunk=False
    )
    return matcher.get_opcodes()


def kept(
    report: str, places: Places, edit: Edit, touched: Collection[str]
) -> tuple[SourceLine, ...]:
    """The lines in touched files on the stacks of ``report``, if the base has them all.

    None if a patch added one, or rewrote a function that one is in, or if it is not
    known where a frame is, and its function is ``touched`` or in a module.  Nor if
    KCSAN does not know the second access.
    """
    if len(_ACCESS.findall(report)) != 2:
        return ()
    lines: dict[SourceLine, None] = {}
    for frame in frames(report):
        found = places.get(frame, ())
        if not found and (frame.in_module or _name(frame.function) in touched):
            return ()
        for line in found:
            if line.file not in edit.added:
                continue
            if line.number in edit.added[line.file]:
                return ()
            if _name(line.function) in edit.rewritten:
                return ()
            lines[line] = None
    return tuple(lines)


def _name(function: str) -> str:
    return _CLONE.sub("", function)
