# SPDX-License-Identifier: GPL-2.0-or-later
"""What every package stands on: processes, the cache, errors, and the verdict.

In come a command, a key, or a function that compares; out come its output, a directory
that is whole, or a `CheckResult`.  It knows nothing of kernels, series or guests.
"""

from . import cache, parallel, process, sources, space, temporary, verdict
from .errors import DoesNotApply, FailedCheck, KstallError, NotJudged, explain
from .stage import Opened, Sink, Status
from .verdict import CheckResult, Comparison, Tainted, Verdict, run_check

__all__ = [
    "CheckResult",
    "Comparison",
    "DoesNotApply",
    "FailedCheck",
    "KstallError",
    "NotJudged",
    "Opened",
    "Sink",
    "Status",
    "Tainted",
    "Verdict",
    "cache",
    "explain",
    "parallel",
    "process",
    "run_check",
    "sources",
    "space",
    "temporary",
    "verdict",
]
