# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a data race is between accesses that the base has as well; pure.

KCSAN samples: it can see a rare race in one boot of the patched kernel, and in none of
the base.  But it prints where both accesses are.  If no patch added any line on either
stack, none took one from their functions, and none touches what orders accesses in
their files, the race is taken for the base's.  That is a heuristic, which errs towards
a new race: "Not shown" in docs/proofs.md has its limits.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

_FRAME = re.compile(
    r"\s+(?P<function>[A-Za-z_][\w.]*)\+(?P<offset>0x[0-9a-f]+)/0x[0-9a-f]+"
    r"(?P<module> \[[^]]*\])?"
)
_STAMP = re.compile(r"^.*?\[ *\d+\.\d+\](?:\[[^]]*\])?")
_ACCESS = re.compile(r"(?P<kind>.*) to 0x[0-9a-f]+ of \d+ bytes by .*")
_END = "Reported by Kernel Concurrency Sanitizer"
# Below that is the stack of the interrupted code, which is not involved.
_INTERRUPTED = re.compile(r"asm_(?:sysvec_\w+|common_interrupt)")
_CLONE = re.compile(r"\.(?:constprop|isra|part|cold|llvm)(?:\.\d+)*")
_COMMENT = re.compile(r"/\*.*?\*/|/\*.*|//.*|^\s*\*(?:[\s/].*)?$")
# What orders accesses, has code run elsewhere, or makes data known to others.
_ORDER = re.compile(
    r"lock|mutex|rcu|irq|preempt|READ_ONCE|WRITE_ONCE|atomic|smp_|barrier|xchg|_bit\("
    r"|per_cpu|\bgoto\b|work|timer|thread|list_|hash_|free\(|volatile"
    r"|^\s*#\s*(?:if|el|endif|undef)"
)
# What may go outside functions: it holds no data, and no code.
_HARMLESS = re.compile(r"|#\s*include\b.*|#\s*define\s+\w+\s+\(?-?\w+\)?")
_WHOLE = (";", "{", "}", ":")


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
class FileEdit:
    """What patches did to a source.

    ``added`` has the numbers of new lines, as they are in the patched tree, ``words``
    what they name, ``kept`` the functions that lost no line, and ``orders`` is whether
    a new line, or one that is gone, may change what orders accesses.
    """

    added: frozenset[int] = frozenset()
    words: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    orders: bool = False


@dataclass(frozen=True)
class Edit:
    """What patches did to all sources, by path."""

    files: Mapping[str, FileEdit] = field(default_factory=dict)

    @cached_property
    def words(self) -> frozenset[str]:
        """What new lines name, in any file."""
        return frozenset().union(*(file.words for file in self.files.values()))

    @cached_property
    def header_orders(self) -> bool:
        """Whether a header may change what orders accesses, but for those of events,
        of which all code is new or the old one's."""
        return any(
            file.orders
            for path, file in self.files.items()
            if path.endswith(".h") and "/trace/" not in f"/{path}"
        )


def edit_of(
    before: str,
    after: str,
    functions: Mapping[str, tuple[str | None, str]],
) -> FileEdit:
    """What became of a source; ``functions`` are before and after the patches, those
    before as None if there were none."""
    old, new = before.split("\n"), after.split("\n")
    added: set[int] = set()
    changed: list[str] = []
    inside = {
        line
        for body, _ in functions.values()
        if body is not None
        for line in body.split("\n")
    }
    harmless = True
    for kind, gone, end, first, last in _changes(old, new):
        if kind == "equal":
            continue
        for start, stop in _slides(new, first, last):
            added |= {number + 1 for number in range(start, stop)}
        changed += [*old[gone:end], *new[first:last]]
        harmless &= all(
            line in inside or _HARMLESS.fullmatch(_code(line)) is not None
            for line in old[gone:end]
        )
    return FileEdit(
        frozenset(added),
        frozenset(
            word for number in added for word in re.findall(r"\w+", new[number - 1])
        ),
        frozenset(
            name
            for name, (body, now) in functions.items()
            if body is not None and _is_kept(body, now)
        ),
        not harmless or any(_ORDER.search(_code(line)) for line in changed),
    )


def _is_kept(before: str, after: str) -> bool:
    """Whether a function lost no line, and new ones are statements of their own."""
    old, new = before.split("\n"), after.split("\n")
    for kind, _, _, first, last in _changes(old, new):
        if kind in ("delete", "replace"):
            return False
        if kind == "insert" and not any(
            _ends(new[:start]) and _ends(new[:stop])
            for start, stop in _slides(new, first, last)
        ):
            return False
    return True


def _slides(lines: Sequence[str], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Where the new lines from ``first`` to before ``last`` may be as well: if the line
    before them is their last one, it may be the new one, and so on."""
    if first == last:
        return
    start, stop = first, last
    while start and lines[start - 1] == lines[stop - 1]:
        start, stop = start - 1, stop - 1
        yield start, stop
    start, stop = first, last
    yield start, stop
    while stop < len(lines) and lines[start] == lines[stop]:
        start, stop = start + 1, stop + 1
        yield start, stop


def _ends(lines: Sequence[str]) -> bool:
    """Whether no statement goes on behind ``lines``."""
    code = (_code(line) for line in reversed(lines))
    return next(filter(None, code), ";").endswith(_WHOLE)


def _code(line: str) -> str:
    """``line`` without what is a comment, and blanks around it."""
    return _COMMENT.sub("", line).strip()


def _changes(
    old: Sequence[str], new: Sequence[str]
) -> Sequence[tuple[str, int, int, int, int]]:
    return difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def frames(report: str) -> Iterator[Frame]:
    """The frames of both accesses of a report of KCSAN."""
    for stack in _stacks(report) or ():
        yield from stack


def _stacks(report: str) -> list[list[Frame]] | None:
    """The stacks of both accesses; None if the report does not have them whole."""
    stacks: list[list[Frame]] = []
    interrupt = skipping = False
    for line in report.split("\n"):
        text = _STAMP.sub("", line)
        if _END in text:
            whole = len(stacks) == 2 and all(stacks)
            return stacks if whole else None
        if access := _ACCESS.fullmatch(text.strip()):
            if "unknown origin" in access["kind"]:
                return None
            stacks.append([])
            interrupt, skipping = " by interrupt on " in text, False
        elif (match := _FRAME.fullmatch(text)) and stacks and not skipping:
            stacks[-1].append(
                Frame(
                    match["function"],
                    int(match["offset"], 16),
                    match["module"] is not None,
                )
            )
            skipping = interrupt and bool(_INTERRUPTED.fullmatch(match["function"]))
        elif stacks and not skipping and re.search(r"\+0x[0-9a-f]+/0x", text):
            return None  # a frame that is not understood
    return None


def kept(report: str, places: Places, edit: Edit) -> tuple[SourceLine, ...]:
    """The lines in touched files on the stacks of ``report``, if the race is taken for
    the base's; else, or if a frame's place is not known, none."""
    lines: dict[SourceLine, None] = {}
    for frame in frames(report):
        found = places.get(frame, ())
        if frame.in_module or not found:
            return ()
        for line in found:
            name = _name(line.function)
            # Without a directory it is no path below the top.
            if name in edit.words or len(PurePosixPath(line.file).parts) < 2:
                return ()
            if (file := edit.files.get(line.file)) is None:
                continue
            if line.number in file.added or name not in file.kept or file.orders:
                return ()
            lines[line] = None
    return () if edit.header_orders else tuple(lines)


def _name(function: str) -> str:
    return _CLONE.sub("", function)
