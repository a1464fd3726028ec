# SPDX-License-Identifier: GPL-2.0-or-later
"""The record of a run, and all that is drawn from it.

In comes what the stages found, as `Report`, or reports of several trees, as `Matrix`;
out come ``report.json`` with its schema, HTML, JUnit, KTAP and KCIDB.  It finds nothing
out by itself, and never changes a verdict.
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
from .views import escape, word

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
    "report",
    "views",
    "word",
]
