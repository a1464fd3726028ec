# SPDX-License-Identifier: GPL-2.0-or-later
"""The results of a guest, and the checks that judge them.

In comes a directory of results; out come `Evidence` and verdicts on it.  Judging is
pure: it boots nothing, so that an old run can be judged again.  The ``checks.py`` of a
series import from here, and from nowhere else.
"""

from ..verdict import Verdict
from . import (
    btf,
    common,
    debugcheck,
    evidence,
    falsity,
    kunit,
    mutate,
    records,
    traceabi,
)
from .evidence import Evidence, WorkloadResult
from .falsity import Row
from .records import Event, Injected, computed_once

__all__ = [
    "Event",
    "Evidence",
    "Injected",
    "Row",
    "Verdict",
    "WorkloadResult",
    "btf",
    "common",
    "computed_once",
    "debugcheck",
    "evidence",
    "falsity",
    "kunit",
    "mutate",
    "records",
    "traceabi",
]
