# SPDX-License-Identifier: GPL-2.0-or-later
"""What new events cost: in the binaries, in instructions, in time.

In come two kernels, with the patches and without; out come the parts of an `Overhead`
and the checks of its gate.  It knows nothing of stages or of how it is shown.
"""

from . import costs, counting, footprint, gate, lines, objects, shares
from .compiler import compiler_of
from .costs import (
    Exemption,
    Footprint,
    FunctionSize,
    Measurement,
    Mode,
    Overhead,
    Part,
)
from .counting import Kernels

__all__ = [
    "Exemption",
    "Footprint",
    "FunctionSize",
    "Kernels",
    "Measurement",
    "Mode",
    "Overhead",
    "Part",
    "compiler_of",
    "costs",
    "counting",
    "footprint",
    "gate",
    "lines",
    "objects",
    "shares",
]
