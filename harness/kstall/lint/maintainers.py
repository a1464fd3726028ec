# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sections of MAINTAINERS a file belongs to, by its F:, N: and X: lines.

get_maintainer.pl tells people and not sections, and falls back on THE REST, which has
every file; whether somebody in particular looks after a new one has to be read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

THE_REST = "THE REST"
_FIELD = re.compile(r"([A-Z]):\s*(\S.*)")


@dataclass(frozen=True)
class Section:
    """An entry: ``files`` and ``excluded`` are patterns, ``names`` regular expressions
    that are searched for in a path."""

    title: str
    files: tuple[str, ...]
    names: tuple[str, ...]
    excluded: tuple[str, ...]

    def has(self, path: str) -> bool:
        """Whether ``path``, relative to the tree, is one of its files."""
        if any(_matches(pattern, path) for pattern in self.excluded):
            return False
        return any(_matches(pattern, path) for pattern in self.files) or any(
            re.search(name, path) for name in self.names
        )


def sections(text: str) -> tuple[Section, ...]:
    """The entries of a MAINTAINERS file, in its order."""
    return tuple(_sections(text))


def of(path: str, known: tuple[Section, ...]) -> tuple[str, ...]:
    """The titles of the sections that have ``path``, but for the one that has all."""
    return tuple(one.title for one in known if one.title != THE_REST and one.has(path))


def _sections(text: str) -> Iterator[Section]:
    title = ""
    found: dict[str, list[str]] = {}
    # An entry is a title and fields below it; an empty line ends it.
    for line in [*text.splitlines(), ""]:
        if field := _FIELD.fullmatch(line.rstrip()):
            found.setdefault(field[1], []).append(field[2])
        else:
            if title and found:
                patterns = (tuple(found.get(key, ())) for key in "FNX")
                yield Section(title, *patterns)
            title, found = line.strip(), {}


def _matches(pattern: str, path: str) -> bool:
    """As MAINTAINERS describes it: ``dir/`` has all below, ``*`` stays in a directory,
    and what names a directory without a slash has what is in it."""
    if pattern.endswith("/"):
        expression = _expression(pattern) + ".*"
    else:
        expression = _expression(pattern) + "(/.*)?"
        if "*" in pattern or "?" in pattern:
            expression = _expression(pattern)
    return re.fullmatch(expression, path) is not None


def _expression(pattern: str) -> str:
    signs = {"*": "[^/]*", "?": "[^/]"}
    return "".join(signs.get(sign) or re.escape(sign) for sign in pattern)
