# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sections of MAINTAINERS a file belongs to, by its F:, N: and X: lines, and
what is wrong with a section.

get_maintainer.pl prints people, not sections, and falls back on THE REST, which has
every file; so it cannot tell whether a new file has a maintainer of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

THE_REST = "THE REST"
_FIELD = re.compile(r"([A-Z]):\s*(\S.*)")


@dataclass(frozen=True)
class MaintainersEntry:
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
        """The patterns of F: and X:, which name files and directories."""
        return (*self.files, *self.excluded)

    def has(self, path: str) -> bool:
        """Whether ``path``, relative to the tree, is one of its files."""
        if any(matches(pattern, path) for pattern in self.excluded):
            return False
        return any(matches(pattern, path) for pattern in self.files) or any(
            re.search(name, path) for name in self.names
        )


def sections(text: str) -> tuple[MaintainersEntry, ...]:
    """The entries of a MAINTAINERS file, in its order."""
    return tuple(_sections(text))


def titles_of(path: str, entries: tuple[MaintainersEntry, ...]) -> tuple[str, ...]:
    """The titles of the sections that have ``path``, except THE REST."""
    return tuple(
        section.title
        for section in entries
        if section.title != THE_REST and section.has(path)
    )


def faults(entries: Sequence[MaintainersEntry]) -> Iterator[tuple[str, str]]:
    """Title and fault of each incomplete section, by the rules of get_maintainer.pl
    --self-test; whether its patterns match files is not checked."""
    titles = Counter(section.title for section in entries)
    for section in entries:
        if titles[section.title] > 1:
            yield section.title, "the title is a duplicate"
        if not section.people and "orphan" not in "".join(section.status).lower():
            yield section.title, "no address (M:, R: or L:)"
        if not section.status:
            yield section.title, "no status (S:)"
        if not (section.files or section.names):
            yield section.title, "no files (F: or N:)"


def _sections(text: str) -> Iterator[MaintainersEntry]:
    title = ""
    fields: dict[str, list[str]] = {}
    # An entry is a title and fields below it; an empty line ends it.
    for line in [*text.splitlines(), ""]:
        if field := _FIELD.fullmatch(line.rstrip()):
            fields.setdefault(field[1], []).append(field[2])
        else:
            if title and fields:
                files, names, excluded, status = (
                    tuple(fields.get(key, ())) for key in "FNXS"
                )
                people = tuple(
                    address for key in "MRL" for address in fields.get(key, ())
                )
                yield MaintainersEntry(title, files, names, excluded, people, status)
            title, fields = line.strip(), {}


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern of F: or X: has ``path``.

    As MAINTAINERS describes it: ``dir/`` matches everything below, ``*`` stays in a
    directory, and a directory's name without a slash matches what is in it."""
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
