# SPDX-License-Identifier: GPL-2.0-or-later
"""What every package builds on: processes, the cache, errors.

In come a command or a key; out come its output, or a complete directory.  It knows
nothing of kernels, series or guests, and needs only the standard library, because it
also runs where nothing is installed yet.
"""

from . import (
    arch,
    cache,
    elsewhere,
    parallel,
    places,
    process,
    scope,
    sources,
    space,
    temporary,
)
from .arch import Architecture
from .called import program
from .errors import DoesNotApply, FailedCheck, KstallError, NotJudged, explain
from .few import few
from .once import once
from .stage import Sink, StageFigure, Status, figure, figures

__all__ = [
    "Architecture",
    "DoesNotApply",
    "FailedCheck",
    "KstallError",
    "NotJudged",
    "Sink",
    "StageFigure",
    "Status",
    "arch",
    "cache",
    "elsewhere",
    "explain",
    "few",
    "figure",
    "figures",
    "once",
    "parallel",
    "places",
    "process",
    "program",
    "scope",
    "sources",
    "space",
    "temporary",
]
