# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sections of MAINTAINERS a file belongs to, by its F:, N: and X: lines, and
what is wrong with a section.

get_maintainer.pl tells people and not sections, and falls back on THE REST, which has
every file; whether somebody in particular looks after a new one has to be read here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

THE_REST = "THE REST"
_FIELD = re.compile(r"([A-Z]):\s*(\S.*)")


@dataclass(frozen=True)
class Section:
    """An entry: ``files`` and ``excluded`` are patterns, ``names`` regular expressions
    that are searched for in a path.  ``people`` are its M:, R: and L:, and ``status``
    its S:."""

    title: str
    files: tuple[str, ...]
    names: tuple[str, ...]
    excluded: tuple[str, ...]
    people: tuple[str, ...] = ()
    status: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Those of F: and X:, which name files and directories."""
        return (*self.files, *self.excluded)

    def has(self, path: str) -> bool:
        """Whether ``path``, relative to the tree, is one of its files."""
        if any(matches(pattern, path) for pattern in self.excluded):
            return False
        return any(matches(pattern, path) for pattern in self.files) or any(
            re.search(name, path) for name in self.names
        )


def sections(text: str) -> tuple[Section, ...]:
    """The entries of a MAINTAINERS file, in its order."""
    return tuple(_sections(text))


def of(path: str, known: tuple[Section, ...]) -> tuple[str, ...]:
    """The titles of the sections that have ``path``, but for the one that has all."""
    return tuple(one.title for one in known if one.title != THE_REST and one.has(path))


def faults(known: Sequence[Section]) -> Iterator[tuple[str, str]]:
    """The title of a section, and what it lacks, as get_maintainer.pl's self-test has
    it; what its patterns match is not looked at."""
    titles = Counter(one.title for one in known)
    for one in known:
        if titles[one.title] > 1:
            yield one.title, "the title is there twice"
        if not one.people and "orphan" not in "".join(one.status).lower():
            yield one.title, "nobody to write to (M:, R: or L:)"
        if not one.status:
            yield one.title, "no status (S:)"
        if not (one.files or one.names):
            yield one.title, "no files (F: or N:)"


def _sections(text: str) -> Iterator[Section]:
    title = ""
    found: dict[str, list[str]] = {}
    # An entry is a title and fields below it; an empty line ends it.
    for line in [*text.splitlines(), ""]:
        if field := _FIELD.fullmatch(line.rstrip()):
            found.setdefault(field[1], []).append(field[2])
        else:
            if title and found:
                files, names, excluded, status = (
                    tuple(found.get(key, ())) for key in "FNXS"
                )
                people = tuple(one for key in "MRL" for one in found.get(key, ()))
                yield Section(title, files, names, excluded, people, status)
            title, found = line.strip(), {}


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern of F: or X: has ``path``.

    As MAINTAINERS describes it: ``dir/`` has all below, ``*`` stays in a directory,
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
