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
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from . import csource

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
    r"|per_cpu|\bgoto\b|work|timer|thread|list_|hash_|free|volatile|sem\b|_bh\b"
    r"|\b(?:up|down)(?:_\w+)?\(|seq(?:count|begin|retry)|complet|wake_up|wait_"
    r"|tasklet|napi|kref|refcount|guard\(|synchronize_|xa_|idr_|\b[rw]?mb\(|\bunion\b"
    r"|\b(?:break|continue)\b|^\s*#\s*(?:if|el|endif|undef)|\\$"
)
# What may go outside functions: it holds no data, and no code.
_NUMBER = r"\(?-?(?:0x)?[0-9a-fA-F]+[uUlL]*\)?"
_HARMLESS = re.compile(rf"|#\s*include\b.*|#\s*define\s+\w+\s+{_NUMBER}")
_DEFINE = re.compile(r"#\s*define\s+(?P<name>\w+)")
_ASSIGNED = re.compile(
    r"(?P<name>\w+)[\w\[\].>-]*\s*(?:(?:[-+*/|&^%]|<<|>>)?=(?!=)|\+\+|--)"
    r"|(?:\+\+|--)\s*(?P<later>\w+)"
)
_LABEL = re.compile(r"(?:case\b.*|default|\w+)\s*:")
# As many frames of a stack KCSAN keeps: there may be more.
_DEEPEST = 64


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
    what they name, ``kept`` the functions that lost no line, and of which new lines are
    whole statements that assign nothing old; ``orders`` is whether a new line, or one
    that is gone, looks as if it changed what orders accesses.
    """

    added: frozenset[int] = frozenset()
    words: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    orders: bool = False


#: What became of each touched source, by path.
Edits = Mapping[str, FileEdit]


def edit_of(before: str, after: str) -> FileEdit:
    """What became of a source, which is empty where there is none."""
    old, new = before.split("\n"), after.split("\n")
    ours, theirs = csource.functions(before), csource.functions(after)
    # One that is gone holds no line that may go.
    within = (
        _lines_of(before, [body for name, body in ours.items() if name in theirs]),
        _lines_of(after, theirs.values()),
    )
    named = frozenset(re.findall(r"\w+", before))
    added: set[int] = set()
    orders = False
    for kind, gone, end, first, last in _changes(old, new):
        if kind == "equal":
            continue
        for start, stop in _slides(new, first, last):
            added |= set(range(start, stop))
        orders |= any(
            _ORDER.search(_code(line)) for line in (*old[gone:end], *new[first:last])
        )
        orders |= any(
            not _HARMLESS.fullmatch(_code(old[number]))
            for number in range(gone, end)
            if number not in within[0]
        )
        orders |= any(
            _extends(new, number, named)
            for number in range(first, last)
            if number not in within[1]
        )
    return FileEdit(
        frozenset(number + 1 for number in added),
        frozenset(word for number in added for word in re.findall(r"\w+", new[number])),
        frozenset(
            name
            for name, body in theirs.items()
            if name in ours and _is_kept(ours[name], body)
        ),
        orders,
    )


def _extends(lines: Sequence[str], number: int, named: Collection[str]) -> bool:
    """Whether a new line goes on with a macro, or is another value of an old one."""
    code = _code(lines[number])
    define = _DEFINE.match(code)
    other = define is not None and define["name"] in named
    return (number > 0 and lines[number - 1].endswith("\\")) or (
        other and not _HARMLESS.fullmatch(code)
    )


def _lines_of(text: str, bodies: Iterable[str]) -> set[int]:
    """The indices of the lines of functions; without those that are defined twice."""
    lines: set[int] = set()
    for body in bodies:
        if (at := text.find(body)) >= 0:
            first = text.count("\n", 0, at)
            # And the brace that closes it.
            lines |= set(range(first, first + body.count("\n") + 2))
    return lines


def _is_kept(before: str, after: str) -> bool:
    """Whether a function lost no line, and new ones are statements of their own, which
    assign nothing that it had before."""
    old, new = before.split("\n"), after.split("\n")
    names = frozenset(re.findall(r"\w+", before))
    for kind, _, _, first, last in _changes(old, new):
        if kind in ("delete", "replace"):
            return False
        if kind == "insert" and not any(
            _stands_alone(new, start, stop) and not names & _assigned(new[start:stop])
            for start, stop in _slides(new, first, last)
        ):
            return False
    return True


def _stands_alone(lines: Sequence[str], start: int, stop: int) -> bool:
    """Whether no statement goes on into the new lines, in them, or behind them."""
    after = next(filter(None, map(_code, lines[stop:])), "")
    return (
        _ends(lines[:start])
        and _ends(lines[:stop])
        and re.match(r"\W*else\b", after) is None
    )


def _assigned(lines: Sequence[str]) -> set[str]:
    """The names that new lines assign to, or to a part of."""
    return {
        match["name"] or match["later"]
        for line in lines
        for match in _ASSIGNED.finditer(_code(line))
    }


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
    code = next(filter(None, map(_code, reversed(lines))), ";")
    return code.endswith((";", "{", "}")) or _LABEL.fullmatch(code) is not None


def _code(line: str) -> str:
    """``line`` without what is a comment, and blanks around it."""
    return _COMMENT.sub("", line).strip()


def _changes(
    old: Sequence[str], new: Sequence[str]
) -> Iterator[tuple[str, int, int, int, int]]:
    """As difflib's opcodes, which take seconds for a long file with equal ends."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    matcher = difflib.SequenceMatcher(
        None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False
    )
    for kind, *numbers in matcher.get_opcodes():
        first, last, start, stop = (number + head for number in numbers)
        yield kind, first, last, start, stop


def _common(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many lines at the beginning are the same."""
    pairs = zip(ours, theirs, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def frames(report: str) -> Iterator[Frame]:
    """The frames of both accesses of a report of KCSAN."""
    for stack in _stacks(report) or ():
        yield from stack


def _stacks(report: str) -> list[list[Frame]] | None:
    """The stacks of both accesses; None if the report does not have them whole."""
    stacks: list[list[Frame]] = []
    depth = 0
    inside = interrupt = skipping = False
    for line in report.split("\n"):
        text = _STAMP.sub("", line)
        if _END in text:
            return stacks if len(stacks) == 2 and all(stacks) else None
        if access := _ACCESS.fullmatch(text.strip()):
            if "unknown origin" in access["kind"]:
                return None
            stacks.append([])
            depth, inside, skipping = 0, True, False
            interrupt = " by interrupt on " in text
        elif not text.strip():
            inside = False
        elif inside:
            match = _FRAME.fullmatch(text)
            depth += 1
            if match is None or depth >= _DEEPEST:
                return None
            if skipping:
                continue
            stacks[-1].append(
                Frame(
                    match["function"],
                    int(match["offset"], 16),
                    match["module"] is not None,
                )
            )
            skipping = interrupt and bool(_INTERRUPTED.fullmatch(match["function"]))
    return None


def kept(report: str, places: Places, edits: Edits) -> tuple[SourceLine, ...]:
    """The lines in touched files on the stacks of ``report``, if the race is taken for
    the base's; else, or if a frame's place is not known, none."""
    lines: dict[SourceLine, None] = {}
    directories: set[PurePosixPath] = set()
    words = frozenset().union(*(file.words for file in edits.values()))
    for frame in frames(report):
        found = places.get(frame, ())
        if frame.in_module or not found:
            return ()
        for line in found:
            name = _name(line.function)
            path = PurePosixPath(line.file)
            # Without a directory it is no path below the top.
            if name in words or len(path.parts) < 2:
                return ()
            directories |= {*path.parents}
            if (file := edits.get(line.file)) is None:
                continue
            if line.number in file.added or name not in file.kept or file.orders:
                return ()
            lines[line] = None
    return () if _headers_order(edits, directories) else tuple(lines)


def _headers_order(edits: Edits, directories: Collection[PurePosixPath]) -> bool:
    """Whether a header for code in ``directories``, or for all, orders accesses.

    Those of events do not: if an event is called, that is a new line.
    """
    return any(
        file.orders
        and path.endswith(".h")
        and not path.startswith("include/trace/")
        and ("include" in PurePosixPath(path).parts or _parent(path) in directories)
        for path, file in edits.items()
    )


def _parent(path: str) -> PurePosixPath:
    return PurePosixPath(path).parent


def _name(function: str) -> str:
    return _CLONE.sub("", function)
