# SPDX-License-Identifier: GPL-2.0-or-later
"""What can be said of each patch without a compiler.

In come a series and its `Plan`; out come checks, each finding held against the state
before its patch and against what the series argues.  It knows nothing of stages.
"""

from . import checkpatch, discover, patchcheck, patches, patchtext, reading
from .discover import Found
from .patchcheck import Finding

__all__ = [
    "Finding",
    "Found",
    "checkpatch",
    "discover",
    "patchcheck",
    "patches",
    "patchtext",
    "reading",
]
