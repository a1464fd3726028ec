# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether an added ``#include`` keeps the order of a sorted block."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

_INCLUDE = re.compile(r'#\s*include\s+([<"])([^>"]+)[>"]')


def misplaced(before: str | None, after: str) -> tuple[tuple[int, str], ...]:
    """Line (from 1) and header of each added include that is out of order.

    ``before`` is None for a new file.  Blocks that were not sorted are skipped.
    """
    remaining = Counter(name for _, name in _all(before or ""))
    faults = []
    for block in _blocks(after):
        added = []
        for line, name in block:
            if remaining[name]:
                remaining[name] -= 1
            else:
                added.append((line, name))
        existing = [name for line, name in block if (line, name) not in added]
        names = [name for _, name in block]
        keys = [key for key in _KEYS if _sorted(existing, key)]
        if added and keys and not any(_sorted(names, key) for key in keys):
            faults += added
    return tuple(faults)


def _plain(name: str) -> str:
    return name


def _stem(name: str) -> str:
    """So that a.h stands before a-b.h."""
    return name.removesuffix(".h")


def _letters(name: str) -> str:
    """As `sort` orders in most locales."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


_KEYS: tuple[Callable[[str], str], ...] = (_plain, _stem, _letters)


def _sorted(names: Sequence[str], key: Callable[[str], str]) -> bool:
    keys = [key(name) for name in names]
    return keys == sorted(keys)


def _all(text: str) -> Iterator[tuple[int, str]]:
    for block in _blocks(text):
        yield from block


def _blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """Runs of consecutive #include lines, each run either of <> or of ""."""
    lines = [
        (number, _INCLUDE.match(line))
        for number, line in enumerate(text.splitlines(), 1)
    ]
    kinds = itertools.groupby(lines, lambda pair: pair[1] and pair[1][1])
    for kind, run in kinds:
        if kind:
            yield [(number, match[2]) for number, match in run if match]
