# SPDX-License-Identifier: GPL-2.0-or-later
"""``junit.xml``: a suite a series, a case a stage and a check."""

from __future__ import annotations

import io
from pathlib import Path

import junitparser

from ..base import cache
from .cases import RUN, Case, suites
from .plain import printable
from .report import Report

#: The results of cases that did not pass.
RESULTS = {
    "fail": junitparser.Failure,
    "error": junitparser.Error,
    "skip": junitparser.Skipped,
}


def write(report: Report, path: Path) -> None:
    """Write ``junit.xml``, atomically."""
    document = junitparser.JUnitXml(name=f"kstall {report.run}")
    for suite in suites(report):
        test_suite = junitparser.TestSuite(f"kstall.{suite.name}")
        # One at a time, each would count all before it again.
        test_suite.add_testcases([_case(case, suite.name) for case in suite.cases])
        document.add_testsuite(test_suite)
    write_document(document, path)


def write_document(document: junitparser.JUnitXml, path: Path) -> None:
    """Write ``document`` for people and for programs, atomically."""
    content = io.BytesIO()
    document.write(content, pretty=True)
    cache.write_text(path, content.getvalue().decode())


def _case(case: Case, suite: str) -> junitparser.TestCase:
    tail = f".{case.kind}" if suite != RUN and case.kind != "suite" else ""
    test_case = junitparser.TestCase(
        case.name, classname=f"kstall.{suite}{tail}", time=case.seconds
    )
    if case.status in RESULTS:
        result = RESULTS[case.status](printable(case.message))
        result.text = printable(case.text)
        test_case.result = [result]
    elif case.text:
        test_case.system_out = printable(case.text)
    return test_case
