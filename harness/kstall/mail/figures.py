# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures in the prose of a series that the quoted run does not show."""

from __future__ import annotations

import re

from ..report import Report, SeriesReport

# A number that stands alone: no part of a name, a version, a path or an option.
_NUMBER = re.compile(
    r"(?<![\w.,=:/@+-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w/=:]|\.\d|,\d)"
)
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
#: Hashes, keys and build ids have digits, which count nothing.
_HASH = re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{12,}\b")
#: Figures with fewer digits are mostly counts of things that the text names.
_FIGURE = 3


def in_prose(text: str) -> tuple[str, ...]:
    """The figures of ``text``, as written there, each once.

    Indented lines, such as records and commands, are not prose.
    """
    figures: dict[str, None] = {}
    for line in text.splitlines():
        if line.startswith((" ", "\t")):
            continue
        for match in _NUMBER.finditer(line):
            if len(_plain(match[0])) >= _FIGURE:
                figures[match[0]] = None
    return tuple(figures)


def unfounded(text: str, report: Report, entry: SeriesReport) -> tuple[str, ...]:
    """The figures in the prose of ``text`` that do not occur in the report."""
    numbers = {
        number.rstrip("0").rstrip(".") if "." in number else number
        for part in (entry, report.environment, *([report.tree] if report.tree else []))
        for number in _DIGITS.findall(_HASH.sub("", part.model_dump_json()))
    }
    return tuple(figure for figure in in_prose(text) if _plain(figure) not in numbers)


def _plain(figure: str) -> str:
    return figure.replace(",", "")
