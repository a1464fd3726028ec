# SPDX-License-Identifier: GPL-2.0-or-later
"""The stages of a run in their order, from series to verdict.

In comes a `Request`; out come a run directory and its report.  Only this package writes
to a report; the work of the stages is done by the packages below.
"""

from . import again, attempts, matrix, matrixfile, rebasing, stability, units, validate
from .request import Request
from .run import command_line
from .ui import Ui

__all__ = [
    "Request",
    "Ui",
    "again",
    "attempts",
    "command_line",
    "matrix",
    "matrixfile",
    "rebasing",
    "stability",
    "units",
    "validate",
]
