# SPDX-License-Identifier: GPL-2.0-or-later
"""What KUnit says of cases that fail: in what debugfs or the kernel's log has of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

# Before each record, in the kernel's log.
_STAMP = re.compile(r"\[ *\d+\.\d{6}\](?:\[ *[TC]\d+\])? ")
_RESULT = re.compile(r"(?P<indent> *)(?P<state>ok|not ok) \d+ (?P<name>[^#\n]*)")
_SUITE = re.compile(r" *# Subtest: (?P<name>\S+)")
_WRONG = re.compile(r" *# (?P<case>\S+): (?:EXPECTATION|ASSERTION) FAILED at ")
# What is KUnit's, so that it ends what an expectation has to say.
_KTAP = re.compile(r" *(?:# |KTAP version |\d+\.\.\d+$|ok \d|not ok \d)")
# A console has a time stamp before each line of a message, and KUnit's stand in.
_MORE = " " * 4


@dataclass(frozen=True)
class Failure:
    """A case that failed, of a ``suite``, and what of it did not hold, line by line."""

    suite: str
    case: str
    lines: tuple[str, ...]


def failures(text: str) -> tuple[Failure, ...]:
    """The failed cases in ``text``, KTAP as KUnit prints it or a log that has it.

    A suite, or a case with parameters, of which parts failed is not there by itself.
    A case that has no result, as the kernel died in it, is there with what it said.
    """
    return tuple(_failures(text))


def _failures(text: str) -> Iterator[Failure]:
    said: list[str] = []
    saying = False
    suite = ""
    # How far the last failed result stood in; one that stands further out and has
    # nothing to say of its own only sums it up.
    deeper = -1
    case = ""
    for line, stamped in _lines(text):
        if found := _WRONG.match(line):
            saying, case = True, found["case"]
            said.append(line.rstrip())
            continue
        if found := _SUITE.match(line):
            suite = found["name"]
        if found := _RESULT.match(line):
            saying = False
            depth = len(found["indent"])
            name = found["name"].strip()
            if found["state"] == "not ok":
                if said or depth >= deeper:
                    yield Failure(suite, name, _margin([*said, line.rstrip()]))
                deeper = depth
            elif depth < deeper:
                deeper = -1
            said, case = [], ""
        elif saying and (_KTAP.match(line) or (stamped and not line.startswith(_MORE))):
            saying = False
        elif saying and line.strip():
            said.append(line.rstrip())
    if said:
        yield Failure(suite, case, (*_margin(said), "(and no result of it)"))


def _margin(lines: list[str]) -> tuple[str, ...]:
    """``lines``, of which one stands at the margin."""
    return tuple(textwrap.dedent("\n".join(lines)).splitlines())


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines without their time stamps, and whether they had any."""
    for line in text.splitlines():
        found = _STAMP.match(line)
        yield (line[found.end() :], True) if found else (line, False)
