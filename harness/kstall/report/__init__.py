# SPDX-License-Identifier: GPL-2.0-or-later
"""The record of a run, and its views.

In come the results of stages, as `Report`, or reports of several trees, as `Matrix`;
out come ``report.json`` with its schema, HTML, JUnit, KTAP and KCIDB.  It measures
nothing itself, and never changes a verdict.
"""

from . import (
    comparison,
    comparisonviews,
    explain,
    html,
    junit,
    kcidb,
    ktap,
    matrix,
    matrixviews,
    plain,
    report,
    views,
)
from .report import (
    Repeat,
    Repeats,
    Report,
    SeriesReport,
    Stage,
    Tally,
    Try,
    Unjudged,
)
from .views import escape, status_word

__all__ = [
    "Repeat",
    "Repeats",
    "Report",
    "SeriesReport",
    "Stage",
    "Tally",
    "Try",
    "Unjudged",
    "comparison",
    "comparisonviews",
    "escape",
    "explain",
    "html",
    "junit",
    "kcidb",
    "ktap",
    "matrix",
    "matrixviews",
    "plain",
    "report",
    "status_word",
    "views",
]
