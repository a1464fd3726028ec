# SPDX-License-Identifier: GPL-2.0-or-later
"""``results.ktap``: a run in the kernel's own test protocol, KTAP version 1.

Documentation/dev-tools/ktap.rst: a series is a test, its stages and checks are its
subtests.  A result that is not ok has its reason behind a ``#`` and in the lines above.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..base import Status, cache
from .cases import Case, Suite, suites
from .plain import printable
from .report import Report, worst

_INDENT = "  "


def write(report: Report, path: Path) -> None:
    """Write ``results.ktap``, atomically."""
    cache.write_text(path, text(report))


def text(report: Report) -> str:
    """The run as KTAP."""
    test_suites = suites(report)
    lines = [*_head(len(test_suites))]
    for number, suite in enumerate(test_suites, 1):
        lines += [_INDENT + line for line in _subtests(suite)]
        state = worst([case.status for case in suite.cases])
        lines.append(_result(number, suite.name, suite.status or state, suite.message))
    return "\n".join(lines) + "\n"


def _head(count: int) -> tuple[str, str]:
    return ("KTAP version 1", f"1..{count}")


def _subtests(suite: Suite) -> Iterator[str]:
    yield from _head(len(suite.cases))
    causes: dict[str, list[str]] = {}
    for case in suite.cases:
        if case.status == "skip":
            causes.setdefault(" ".join(case.message.split()), []).append(case.name)
    for cause, names in causes.items():
        # Each also has a line of its own below, as the plan requires.
        if len(names) > 1:
            yield f"# skipped, {len(names)}: {printable(cause)}"
    for number, case in enumerate(suite.cases, 1):
        # A stage and a check may have the same name.
        name = f"{case.kind}.{case.name}" if case.kind != "suite" else case.name
        if case.status in ("fail", "error"):
            yield from _diagnostics(case)
        yield _result(number, name, case.status, case.message)


def _diagnostics(case: Case) -> Iterator[str]:
    for line in printable(case.text).splitlines():
        yield f"# {line}".rstrip()


def _result(number: int, name: str, status: Status, message: str) -> str:
    """A result line, with the reason unless it passed."""
    verdict = "ok" if status in ("pass", "skip") else "not ok"
    directive = {"skip": "SKIP", "error": "ERROR"}.get(status, "")
    # One line; its first # ends the name.
    reason = " ".join(printable(message).split()) if status != "pass" else ""
    tail = " ".join(filter(None, (directive, reason)))
    line = f"{verdict} {number} {name.replace('#', '')}"
    return f"{line} # {tail}" if tail else line
