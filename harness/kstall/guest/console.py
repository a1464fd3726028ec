# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of trouble in a kernel's console, found in its text.

Only lines that carry printk's time stamp are read, and its own word of lines that it
lost: what a program prints cannot be taken for the kernel's word.  Shapes are those of
5.15 to 7.3.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

Kind = Literal[
    "panic",
    "kasan",
    "kcsan",
    "lockup",
    "rcu-stall",
    "hung-task",
    "lockdep",
    "oops",
    "bug",
    "ubsan",
    "warning",
]

# User space may leave the cursor in mid-line, so a stamp is looked for everywhere.
_STAMPED = re.compile(r"\[\s*\d+\.\d{6}\](?:\[\s*[TC]\d+\])? (?P<text>.*)$")

_LOST = re.compile(r"\*\* \d+ printk messages dropped \*\*")

_LOCKDEP_WARNING = (
    r"possible (?:circular locking|recursive locking|irq lock inversion|deadlock)"
    r"|[\w-]+-safe -> [\w-]+-unsafe lock order"
    r"|inconsistent lock state|suspicious RCU usage|bad (?:unlock|contention)"
    r"|Nested lock was not taken|held lock freed|lock held when returning"
    r"|chain_key collision|.* still has locks held"
)
# In order: the first that matches names the kind.
_FIRST_LINES: tuple[tuple[Kind, str], ...] = (
    ("panic", r"Kernel panic - not syncing"),
    ("kasan", r"BUG: K(?:A|M)SAN: |BUG: KFENCE: "),
    ("kcsan", r"BUG: KCSAN: "),
    ("lockup", r"(?:watchdog: )?BUG: soft lockup - "),
    ("lockup", r"(?:NMI )?watchdog: (?:Watchdog detected hard|CPU\d+: Watchdog)"),
    ("lockup", r"(?:workqueue: )?BUG: workqueue lockup - "),
    ("rcu-stall", r"(?:rcu: )?INFO: \w+ (?:self-)?detected (?:expedited )?stalls?"),
    ("hung-task", r"INFO: task .+ blocked (?:in I/O wait )?for more than "),
    ("lockdep", rf"WARNING: (?:{_LOCKDEP_WARNING})"),
    ("lockdep", r"INFO: trying to register non-static key"),
    ("lockdep", r"\[ BUG: "),
    ("oops", r"BUG: (?:kernel NULL pointer|unable to handle|.* stack guard page)"),
    ("oops", r"(?:Oops|double fault|stack segment): |general protection fault"),
    ("oops", r"PANIC: double fault"),
    ("bug", r"kernel BUG at "),
    # SLUB writes `BUG kmalloc-64 (Not tainted): Redzone overwritten`.
    ("bug", r"BUG(?::| \S+ \()"),
    ("ubsan", r"UBSAN: "),
    # printk's own words for a WARN, and what drivers give as much weight.
    ("warning", r"WARNING: "),
    ("warning", r"kmemleak: \d+ new suspected memory leaks"),
    # What watched no longer does, so that silence proves nothing from here on.
    ("warning", r"ODEBUG: Out of memory\. ODEBUG disabled"),
    ("warning", r"kmemleak: Kernel memory leak detector disabled"),
    ("warning", r"DMA-API: (?:debugging out of memory|cacheline tracking ENOMEM)"),
    ("warning", _LOST.pattern),
    ("warning", r"unregister_netdevice: waiting for "),
)
_ANY_FIRST_LINE = re.compile("|".join(pattern for _, pattern in _FIRST_LINES))
# A stack that belongs to none of them is a report whose words are not known here, but
# for those of memory that was refused and of dumps that somebody asked for.
_STACK = "Call Trace:"
_NO_REPORT = re.compile(
    r"FAULT_INJECTION: |.*(?:page allocation failure|vmalloc error|invoked oom-killer)"
    r"|task:|NMI backtrace for|sysrq: "
)
_LINES_TO_STACK = 25
_LAST_LINE = re.compile(r"---\[ end (?:trace|Kernel panic)")
# Sanitizers end with it, and lockdep begins with it: one more report is under way.
_RULE = re.compile(r"={20,}")
# These kinds end with a stack and have no line of their own for the end.
_END_WITH_STACK: frozenset[Kind] = frozenset(("hung-task", "lockdep", "lockup"))
# What a WARN or a BUG has to say comes before the line that names it.
_CUT_HERE = "[ cut here ]"
_LINES_TO_CUT = 8
# What may follow a first line without being a second incident: the CPU reports the
# same fault as `BUG: ...` and then as `Oops: ...`.
_SAME_INCIDENT: dict[Kind, frozenset[Kind]] = {
    "oops": frozenset(("oops",)),
    "bug": frozenset(("oops",)),
    "kasan": frozenset(("kasan",)),
}
_MOST_LINES = 60
# A chain of locks has a stack for each, and memory one for who got and who freed it.
_MOST_LINES_OF: dict[Kind, int] = {"lockdep": 250, "kasan": 150, "kcsan": 150}
# Of what a guest prints without end; no report is longer, and no line of one.
_LONGEST_REPORT = max(_MOST_LINES, *_MOST_LINES_OF.values())
_LONGEST_LINE = 2**12
_MOST_REPORTS = 1000
_MOST_SEEN = 10**5
_FIGURES = re.compile(r"[0-9a-f]{8,}|\d+")
# Bytes, as a million lines may be short or long.
_AT_ONCE = 2**21
_ABRIDGED = 2**22
# There was nothing to start: that is the word of a root image, or of who gave it to the
# guest, and no more of this kernel than its configuration.
_ROOTLESS = re.compile(
    r"Kernel panic - not syncing: (?:VFS: Unable to mount root fs|No working init found"
    r"|Requested init )"
)
_STARVED = b"Out of memory: Killed process "
_VICTIM = re.compile(rb"\] Out of memory: Killed process \d+ \(([^)]*)\)")
_SHOWN_VICTIMS = 3


@dataclass(frozen=True)
class Splat:
    """One report.

    ``headline`` is the line that names it, without its time stamp, and ``line`` that
    line's number, from 1; ``excerpt`` is all of it, as it was printed.
    """

    kind: Kind
    line: int
    headline: str
    excerpt: str


def scan(text: str) -> tuple[Splat, ...]:
    """Every report in a console's text, in order of appearance."""
    lines = text.replace("\r", "").split("\n")
    return tuple(splat for splat, _ in _reports(lines))


def scan_file(path: Path) -> tuple[Splat, ...]:
    """As `scan`, of a file of any size: a guest may print without end.

    Of more than a thousand reports only those are added that begin like none before,
    up to a thousand, and a panic.
    """
    with path.open("rb") as file:
        found = tuple(itertools.islice(_streamed(file), _MOST_REPORTS))
        if len(found) < _MOST_REPORTS or panicked(found):
            return found
        file.seek(0)
        return (*found, *_others(file, {one.headline for one in found}))


def _streamed(file: BinaryIO) -> Iterator[Splat]:
    lines: list[str] = []
    before = 0  # lines of the file that are no longer in ``lines``
    begin = 0
    while True:
        more = [_text(raw) for raw in _piece(file)]
        lines += more
        # A report that may go on in what is not read yet is left for then.
        settled = len(lines) - (_LONGEST_REPORT if more else 0)
        for splat, end in _reports(lines, begin):
            if splat.line > settled:
                break
            begin = end
            yield dataclasses.replace(splat, line=before + splat.line)
        if not more:
            return
        begin = max(begin, settled)
        done = max(0, begin - _LINES_TO_CUT)
        del lines[:done]
        before, begin = before + done, begin - done


def _others(file: BinaryIO, headlines: set[str]) -> Iterator[Splat]:
    """Reports that begin like none of ``headlines``, to the first panic.

    Of a million lines most are looked at once: what they say was seen before.
    """
    known = {_FIGURES.sub("", one) for one in headlines}
    seen = headlines
    most = len(known) + _MOST_REPORTS
    rest = enumerate(_raw(file))
    for number, raw in rest:
        text = _message(_text(raw))
        if text is None or text in seen or _kind(text) is None:
            continue
        if len(seen) < _MOST_SEEN:
            seen.add(text)
        if _FIGURES.sub("", text) in known:
            continue
        more = itertools.islice(rest, _LONGEST_REPORT)
        lines = [_text(raw), *(_text(one) for _, one in more)]
        for splat, _ in _reports(lines):
            begins = _FIGURES.sub("", splat.headline)
            if splat.kind == "panic" or (begins not in known and len(known) < most):
                known.add(begins)
                yield dataclasses.replace(splat, line=number + splat.line)
            if splat.kind == "panic":
                return


def _piece(file: BinaryIO) -> Iterator[bytes]:
    """The next lines, until they are two megabytes together."""
    size = 0
    for raw in _raw(file):
        yield raw
        size += len(raw)
        if size >= _AT_ONCE:
            return


def _raw(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(_LONGEST_LINE):
        yield line


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\r", "").rstrip("\n")


def offsets(path: Path, lines: Sequence[int]) -> dict[int, int]:
    """How many bytes stand before each of these ``lines``, which are from 1."""
    found = {}
    wanted = frozenset(lines)
    place = 0
    with path.open("rb") as file:
        for number, raw in enumerate(_raw(file) if wanted else (), 1):
            if number in wanted:
                found[number] = place
                if len(found) == len(wanted):
                    break
            place += len(raw)
    return found


def victims(path: Path) -> tuple[str, ...]:
    """What the kernel killed because memory had run out, by name; the first few.

    That of a control group, which a workload may want, is none of these.
    """
    with path.open("rb") as file:
        killed = (_VICTIM.search(raw) for raw in _raw(file) if _STARVED in raw)
        names = (found[1].decode("utf-8", "replace") for found in killed if found)
        return tuple(itertools.islice(names, _SHOWN_VICTIMS))


def abridge(console: Path, target: Path) -> None:
    """Copy ``console``; of a very long one its beginning and its end."""
    size = console.stat().st_size
    if size <= 2 * _ABRIDGED:
        shutil.copy2(console, target)
        return
    with console.open("rb") as whole, target.open("wb") as file:
        file.write(whole.read(_ABRIDGED))
        file.write(b"\n[kstall: %d bytes are left out here]\n" % (size - 2 * _ABRIDGED))
        whole.seek(-_ABRIDGED, os.SEEK_END)
        file.write(whole.read())


def is_abridged(kept: Path) -> bool:
    """Whether `abridge` left something out of what it made."""
    return kept.stat().st_size > 2 * _ABRIDGED


def is_loss(splat: Splat) -> bool:
    """Whether it only says that the kernel's log lost messages."""
    return _LOST.match(splat.headline) is not None


def is_rootless(splat: Splat) -> bool:
    """Whether the kernel gave up only because it was given no user space."""
    return _ROOTLESS.match(splat.headline) is not None


def panicked(splats: Sequence[Splat]) -> bool:
    """Whether one of the reports ended the kernel."""
    return any(splat.kind == "panic" for splat in splats)


def _reports(lines: Sequence[str], start: int = 0) -> Iterator[tuple[Splat, int]]:
    """Reports from the line ``start`` on, and the index behind each."""
    while start < len(lines):
        text = _message(lines[start])
        kind = _kind(text) if text is not None else None
        if text == _STACK and not _is_asked_for(lines, start):
            kind = "warning"
        if text is None or kind is None:
            start += 1
            continue
        end = _end(lines, start, kind)
        excerpt = "\n".join(lines[_cut(lines, start) : end]).rstrip()
        yield Splat(kind, start + 1, text, excerpt), end
        start = end


def _is_asked_for(lines: Sequence[str], stack: int) -> bool:
    """Whether the stack is no report's, by what stands before it."""
    before = map(_message, lines[max(0, stack - _LINES_TO_STACK) : stack])
    return any(text and _NO_REPORT.match(text) for text in before)


def _end(lines: Sequence[str], start: int, kind: Kind) -> int:
    """The index behind the last line of the report that starts at ``start``."""
    most = min(len(lines), start + _MOST_LINES_OF.get(kind, _MOST_LINES))
    ends_with_stack = kind in _END_WITH_STACK or _message(lines[start]) == _STACK
    for number in range(start + 1, most):
        text = _message(lines[number])
        if text is None:
            continue
        if _LAST_LINE.search(text):
            return number + 1
        if ends_with_stack and text.strip() == "</TASK>":
            return number + 1
        other = _kind(text)
        if other is not None and other not in _SAME_INCIDENT.get(kind, frozenset()):
            return number
        if _CUT_HERE in text or _RULE.fullmatch(text.strip()):
            # A BUG has its cut before it, and so has what comes next.
            return number
    return most


def _cut(lines: Sequence[str], start: int) -> int:
    """Where the report whose headline is at ``start`` was cut from, if nearby."""
    for number in range(start - 1, max(-1, start - _LINES_TO_CUT), -1):
        if _CUT_HERE in lines[number]:
            return number
    return start


def _message(line: str) -> str | None:
    found = _STAMPED.search(line)
    if found is None:
        return line if _LOST.match(line) else None
    return found["text"]


def _kind(text: str) -> Kind | None:
    if not _ANY_FIRST_LINE.match(text):
        return None
    for kind, pattern in _FIRST_LINES:
        if re.match(pattern, text):
            return kind
    return None
