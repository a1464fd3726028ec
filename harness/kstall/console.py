# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of trouble in a kernel's console, found in its text.

Only lines that carry printk's time stamp are read: what a program prints cannot be
taken for the kernel's word.  Shapes are those of 5.15 to 7.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "panic",
    "kasan",
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
    ("kasan", r"BUG: K(?:A|C|M)SAN: |BUG: KFENCE: "),
    ("lockup", r"(?:watchdog: )?BUG: soft lockup - "),
    ("lockup", r"(?:NMI )?watchdog: (?:Watchdog detected hard|CPU\d+: Watchdog)"),
    ("lockup", r"(?:workqueue: )?BUG: workqueue lockup - "),
    ("rcu-stall", r"(?:rcu: )?INFO: \w+ (?:self-)?detected (?:expedited )?stalls?"),
    ("hung-task", r"INFO: task \S+ blocked (?:in I/O wait )?for more than "),
    ("lockdep", rf"WARNING: (?:{_LOCKDEP_WARNING})"),
    ("lockdep", r"INFO: trying to register non-static key"),
    ("oops", r"BUG: (?:kernel NULL pointer|unable to handle|.* stack guard page)"),
    ("oops", r"(?:Oops|general protection fault|double fault|stack segment): ?"),
    ("oops", r"Oops(?:: |\[)|PANIC: double fault"),
    ("bug", r"kernel BUG at "),
    # SLUB writes `BUG kmalloc-64 (Not tainted): Redzone overwritten`.
    ("bug", r"BUG(?::| \S+ \()"),
    ("ubsan", r"UBSAN: "),
    # printk's own words for a WARN, and what drivers give as much weight.
    ("warning", r"WARNING: "),
    ("warning", r"kmemleak: \d+ new suspected memory leaks"),
    ("warning", r"unregister_netdevice: waiting for "),
)
_LAST_LINE = re.compile(r"---\[ end (?:trace|Kernel panic)")
# What may follow a first line without being a second incident: the CPU reports the
# same fault as `BUG: ...` and then as `Oops: ...`.
_SAME_INCIDENT: dict[Kind, frozenset[Kind]] = {
    "oops": frozenset(("oops",)),
    "bug": frozenset(("oops",)),
    "kasan": frozenset(("kasan",)),
}
_MOST_LINES = 60


@dataclass(frozen=True)
class Splat:
    """One report: ``line`` counts from 1 in the text, ``excerpt`` has time stamps."""

    kind: Kind
    line: int
    excerpt: str

    @property
    def headline(self) -> str:
        """The kernel's own first line, without the time stamp."""
        first = self.excerpt.partition("\n")[0]
        found = _STAMPED.search(first)
        return found["text"] if found else first


def scan(text: str) -> tuple[Splat, ...]:
    """Every report in a console's text, in order of appearance."""
    lines = text.replace("\r", "").split("\n")
    return tuple(_reports(lines))


def panicked(splats: Sequence[Splat]) -> bool:
    """Whether one of the reports ended the kernel."""
    return any(splat.kind == "panic" for splat in splats)


def _reports(lines: Sequence[str]) -> Iterator[Splat]:
    open_kind: Kind | None = None
    start = 0
    for number, line in enumerate(lines):
        text = _message(line)
        kind = _kind(text) if text is not None else None
        if open_kind is not None:
            if kind in _SAME_INCIDENT.get(open_kind, frozenset()):
                kind = None
            ends = text is not None and _LAST_LINE.search(text) is not None
            long = number - start >= _MOST_LINES
            if kind is not None or long:
                yield _splat(open_kind, start, lines[start:number])
                open_kind = None
            elif ends:
                yield _splat(open_kind, start, lines[start : number + 1])
                open_kind = None
                continue
        if kind is not None:
            open_kind, start = kind, number
    if open_kind is not None:
        yield _splat(open_kind, start, lines[start : start + _MOST_LINES])


def _splat(kind: Kind, start: int, lines: Sequence[str]) -> Splat:
    return Splat(kind, start + 1, "\n".join(lines).rstrip())


def _message(line: str) -> str | None:
    found = _STAMPED.search(line)
    return found["text"] if found else None


def _kind(text: str) -> Kind | None:
    for kind, pattern in _FIRST_LINES:
        if re.match(pattern, text):
            return kind
    return None
