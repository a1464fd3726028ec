# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's bug reports, found in the text of its console.

Only lines with printk's time stamp are read, and printk's notes about lost lines, so
that the output of a program is not taken for the kernel's.  The formats are those of
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

#: printk's time stamp, in seconds; with CONFIG_PRINTK_CALLER the task or processor
#: follows.
STAMP = r"\[ *(\d+\.\d{6})\](?:\[ *[TC]\d+\])?"
# User space may leave the cursor in mid-line, so a stamp may be anywhere in a line.
_STAMPED = re.compile(rf"{STAMP} (?P<text>.*)$")

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
    # arm64 has words of its own for the same two lines.
    ("oops", r"Unable to handle kernel .* at virtual address |Internal error: "),
    ("bug", r"kernel BUG at "),
    # SLUB writes `BUG kmalloc-64 (Not tainted): Redzone overwritten`.
    ("bug", r"BUG(?::| \S+ \()"),
    ("ubsan", r"UBSAN: "),
    # WARN prints this, and drivers that consider a message as serious.
    ("warning", r"WARNING: "),
    ("warning", r"kmemleak: \d+ new suspected memory leaks"),
    # A debugging feature gave up, so that silence proves nothing from here on.
    ("warning", r"ODEBUG: Out of memory\. ODEBUG disabled"),
    ("warning", r"kmemleak: Kernel memory leak detector disabled"),
    ("warning", r"DMA-API: (?:debugging out of memory|cacheline tracking ENOMEM)"),
    ("warning", _LOST.pattern),
    ("warning", r"unregister_netdevice: waiting for "),
)
_ANY_FIRST_LINE = re.compile("|".join(pattern for _, pattern in _FIRST_LINES))
# A stack that belongs to none of them is an unknown kind of report, except after failed
# allocations and in dumps that were requested.
_STACKS = ("Call Trace:", "Call trace:")
_NO_REPORT = re.compile(
    r"FAULT_INJECTION: |.*(?:page allocation failure|vmalloc error|invoked oom-killer)"
    r"|task:|NMI backtrace for|sysrq: "
)
_LINES_TO_STACK = 25
_LAST_LINE = re.compile(r"---\[ end (?:trace|Kernel panic)")
# Sanitizers end a report with it, and lockdep begins one.
_RULE = re.compile(r"={20,}")
# These kinds end with a stack and have no line of their own for the end.
_END_WITH_STACK: frozenset[Kind] = frozenset(("hung-task", "lockdep", "lockup"))
# The message of a WARN or a BUG comes before the line that names it.
_CUT_HERE = "[ cut here ]"
_LINES_TO_CUT = 8
# Kinds that may follow a first line without being a second incident: the CPU reports
# the same fault as `BUG: ...` and then as `Oops: ...`.
_SAME_INCIDENT: dict[Kind, frozenset[Kind]] = {
    "oops": frozenset(("oops",)),
    "bug": frozenset(("oops",)),
    "kasan": frozenset(("kasan",)),
}
_MOST_LINES = 60
# A chain of locks has a stack for each; memory has one for its allocation and one for
# its release.
_MOST_LINES_OF: dict[Kind, int] = {"lockdep": 250, "kasan": 150, "kcsan": 150}
# Limits for a guest that prints without end; no report and no line of one is longer.
_LONGEST_REPORT = max(_MOST_LINES, *_MOST_LINES_OF.values())
_LONGEST_LINE = 2**12
_MOST_REPORTS = 1000
_MOST_SEEN = 10**5
_FIGURES = re.compile(r"[0-9a-f]{8,}|\d+")
# In bytes, as lines may be short or long.
_AT_ONCE = 2**21
_ABRIDGED = 2**22
# There was nothing to start: the fault of the root image, of how the guest got it, or
# at most of the kernel's configuration.
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

    ``headline`` is the line that names it, without its time stamp, ``line`` that line's
    number, from 1, and ``excerpt`` the whole report, as printed.
    """

    kind: Kind
    line: int
    headline: str
    excerpt: str


def scan_file(path: Path) -> tuple[Splat, ...]:
    """The reports on a console, in order of appearance.

    A guest may print without end: after the first thousand reports, only those with a
    new headline are added, up to a thousand, and a panic.
    """
    with path.open("rb") as file:
        splats = tuple(itertools.islice(_streamed(file), _MOST_REPORTS))
        if len(splats) < _MOST_REPORTS or panicked(splats):
            return splats
        file.seek(0)
        return (*splats, *_new_reports(file, {splat.headline for splat in splats}))


def _streamed(file: BinaryIO) -> Iterator[Splat]:
    lines: list[str] = []
    before = 0  # lines of the file that are no longer in ``lines``
    begin = 0
    while True:
        chunk = [_text(raw) for raw in _next_lines(file)]
        lines += chunk
        # A report that may continue in the next lines waits for them.
        settled = len(lines) - (_LONGEST_REPORT if chunk else 0)
        for splat, end in _reports(lines, begin):
            if splat.line > settled:
                break
            begin = end
            yield dataclasses.replace(splat, line=before + splat.line)
        if not chunk:
            return
        begin = max(begin, settled)
        consumed = max(0, begin - max(_LINES_TO_CUT, _LINES_TO_STACK))
        del lines[:consumed]
        before, begin = before + consumed, begin - consumed


def _new_reports(file: BinaryIO, headlines: set[str]) -> Iterator[Splat]:
    """Reports with none of the ``headlines``, apart from figures, to the first panic.

    Texts that were seen before are skipped at once, as there may be a million lines.
    """
    beginnings = {_FIGURES.sub("", headline) for headline in headlines}
    seen = headlines
    most = len(beginnings) + _MOST_REPORTS
    rest = enumerate(_raw(file))
    for number, raw in rest:
        text = _message(_text(raw))
        if text is None or text in seen or _kind(text) is None:
            continue
        if len(seen) < _MOST_SEEN:
            seen.add(text)
        if _FIGURES.sub("", text) in beginnings:
            continue
        following = itertools.islice(rest, _LONGEST_REPORT)
        lines = [_text(raw), *(_text(line) for _, line in following)]
        for splat, _ in _reports(lines):
            begins = _FIGURES.sub("", splat.headline)
            if splat.kind == "panic" or (
                begins not in beginnings and len(beginnings) < most
            ):
                beginnings.add(begins)
                yield dataclasses.replace(splat, line=number + splat.line)
            if splat.kind == "panic":
                return


def _next_lines(file: BinaryIO) -> Iterator[bytes]:
    """The next lines, two megabytes of them."""
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
    """The offset in bytes of each of these ``lines``, which are numbered from 1."""
    positions = {}
    numbers = frozenset(lines)
    place = 0
    with path.open("rb") as file:
        for number, raw in enumerate(_raw(file) if numbers else (), 1):
            if number in numbers:
                positions[number] = place
                if len(positions) == len(numbers):
                    break
            place += len(raw)
    return positions


def victims(path: Path) -> tuple[str, ...]:
    """Names of the first few processes that the kernel killed for want of memory.

    Those of a control group with a limit do not count: a workload may intend that.
    """
    with path.open("rb") as file:
        killed = (_VICTIM.search(raw) for raw in _raw(file) if _STARVED in raw)
        names = (match[1].decode("utf-8", "replace") for match in killed if match)
        return tuple(itertools.islice(names, _SHOWN_VICTIMS))


def abridge(console: Path, target: Path) -> None:
    """Copy ``console``; only the beginning and the end of a very long one."""
    size = console.stat().st_size
    if size <= 2 * _ABRIDGED:
        shutil.copy2(console, target)
        return
    with console.open("rb") as source, target.open("wb") as file:
        file.write(source.read(_ABRIDGED))
        file.write(b"\n[kstall: %d bytes are left out here]\n" % (size - 2 * _ABRIDGED))
        source.seek(-_ABRIDGED, os.SEEK_END)
        file.write(source.read())


def is_abridged(path: Path) -> bool:
    """Whether `abridge` left something out when it wrote ``path``."""
    return path.stat().st_size > 2 * _ABRIDGED


def is_loss(splat: Splat) -> bool:
    """Whether the report only says that the kernel's log lost messages."""
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
        if text in _STACKS and not _was_requested(lines, start):
            kind = "warning"
        if text is None or kind is None:
            start += 1
            continue
        end = _end(lines, start, kind)
        excerpt = "\n".join(lines[_cut(lines, start) : end]).rstrip()
        yield Splat(kind, start + 1, text, excerpt), end
        start = end


def _was_requested(lines: Sequence[str], stack: int) -> bool:
    """Whether the stack belongs to no report, by the lines before it."""
    before = map(_message, lines[max(0, stack - _LINES_TO_STACK) : stack])
    return any(text and _NO_REPORT.match(text) for text in before)


def _end(lines: Sequence[str], start: int, kind: Kind) -> int:
    """The index behind the last line of the report that starts at ``start``."""
    most = min(len(lines), start + _MOST_LINES_OF.get(kind, _MOST_LINES))
    ends_with_stack = kind in _END_WITH_STACK or _message(lines[start]) in _STACKS
    for number in range(start + 1, most):
        text = _message(lines[number])
        if text is None:
            continue
        if _LAST_LINE.search(text):
            return number + 1
        if ends_with_stack and text.strip() == "</TASK>":
            return number + 1
        next_kind = _kind(text)
        if next_kind is not None and next_kind not in _SAME_INCIDENT.get(
            kind, frozenset()
        ):
            return number
        if _CUT_HERE in text or _RULE.fullmatch(text.strip()):
            # This cut is the next report's: that of a BUG comes before it.
            return number
    return most


def _cut(lines: Sequence[str], start: int) -> int:
    """The line of the cut mark before the headline at ``start``, if it is nearby."""
    for number in range(start - 1, max(-1, start - _LINES_TO_CUT), -1):
        if _CUT_HERE in lines[number]:
            return number
    return start


def _message(line: str) -> str | None:
    match = _STAMPED.search(line)
    if match is None:
        return line if _LOST.match(line) else None
    return match["text"]


def _kind(text: str) -> Kind | None:
    if not _ANY_FIRST_LINE.match(text):
        return None
    for kind, pattern in _FIRST_LINES:
        if re.match(pattern, text):
            return kind
    return None
