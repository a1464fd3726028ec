# SPDX-License-Identifier: GPL-2.0-or-later
"""KUnit's results: suites that pass, and cases that fail, which debugfs has or the
kernel's log."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from ..guest import STAMP
from ..verdict import Verdict
from .evidence import WorkloadResult

# Precedes each record of the kernel's log.
_STAMP = re.compile(f"{STAMP} ")
_RESULT = re.compile(r"(?P<indent> *)(?P<state>ok|not ok) \d+ (?P<name>[^#\n]*)")
_SUITE = re.compile(r" *# Subtest: (?P<name>\S+)")
_WRONG = re.compile(r" *# (?P<case>\S+): (?:EXPECTATION|ASSERTION) FAILED at ")
# A line of KUnit's own, which ends the message of an expectation.
_KTAP = re.compile(r" *(?:# |KTAP version |\d+\.\.\d+$|ok \d|not ok \d)")
# A console has a time stamp before each line of a message, and KUnit indents its lines.
_MORE = " " * 4


@dataclass(frozen=True)
class Failure:
    """A case of a ``suite`` that failed; ``lines`` are the expectations that failed."""

    suite: str
    case: str
    lines: tuple[str, ...]


def compare_suite(verdict: Verdict, load: WorkloadResult, suite: str) -> None:
    """Compare how ``load``, which runs nothing but ``suite``, ended, and what KUnit
    printed last: the result of all cases."""
    verdict.equal("exit status", load.exit_status, 0)
    last = load.stdout.splitlines()[-1:]
    verdict.equal("last line", last, [f"ok 1 {suite}"])


def failures(text: str) -> tuple[Failure, ...]:
    """The failed cases in ``text``, KTAP as KUnit prints it or a log that has it.

    A suite, or a case with parameters, of which only parts failed is not listed itself.
    A case without a result, because the kernel died in it, is listed with its messages.
    """
    return tuple(_failures(text))


def _failures(text: str) -> Iterator[Failure]:
    lines: list[str] = []
    collecting = False
    suite = ""
    # The indentation of the last failed result; a result that is indented less and has
    # no message of its own only sums it up.
    deeper = -1
    case = ""
    for line, stamped in _lines(text):
        if match := _WRONG.match(line):
            collecting, case = True, match["case"]
            lines.append(line.rstrip())
            continue
        if match := _SUITE.match(line):
            suite = match["name"]
        if match := _RESULT.match(line):
            collecting = False
            depth = len(match["indent"])
            name = match["name"].strip()
            if match["state"] == "not ok":
                if lines or depth >= deeper:
                    yield Failure(suite, name, _margin([*lines, line.rstrip()]))
                deeper = depth
            elif depth < deeper:
                deeper = -1
            lines, case = [], ""
        elif collecting and (
            _KTAP.match(line) or (stamped and not line.startswith(_MORE))
        ):
            collecting = False
        elif collecting and line.strip():
            lines.append(line.rstrip())
    if lines:
        yield Failure(suite, case, (*_margin(lines), "(no result)"))


def _margin(lines: list[str]) -> tuple[str, ...]:
    """``lines`` without their common indentation."""
    return tuple(textwrap.dedent("\n".join(lines)).splitlines())


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines without their time stamps, and whether they had any."""
    for line in text.splitlines():
        match = _STAMP.match(line)
        yield (line[match.end() :], True) if match else (line, False)
