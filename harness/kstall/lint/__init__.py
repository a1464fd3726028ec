# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of patches that need no compiler.

In come a series and its `Plan`; out come checks, each finding compared with the state
before its patch and with the exemptions of the series.  It knows nothing of stages.
"""

from . import checkpatch, discover, patchcheck, patches, patchtext, reading
from .discover import NewTracepoint
from .patchcheck import Finding

__all__ = [
    "Finding",
    "NewTracepoint",
    "checkpatch",
    "discover",
    "patchcheck",
    "patches",
    "patchtext",
    "reading",
]
