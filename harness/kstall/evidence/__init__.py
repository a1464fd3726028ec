# SPDX-License-Identifier: GPL-2.0-or-later
"""The results of guests and compilers, and the checks that judge them.

In come a directory of a guest's results, or a series' compile trials; out come
`Evidence` and verdicts.  Judging is pure: it boots and compiles nothing, so that an old
run can be judged again.  The ``checks.py`` of a series imports from here, and from
nowhere else.
"""

from ..verdict import Verdict
from . import (
    btf,
    common,
    compilecheck,
    debugcheck,
    evidence,
    falsity,
    kunit,
    mutate,
    races,
    readers,
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
    "compilecheck",
    "computed_once",
    "debugcheck",
    "evidence",
    "falsity",
    "kunit",
    "mutate",
    "races",
    "readers",
    "records",
    "traceabi",
]
