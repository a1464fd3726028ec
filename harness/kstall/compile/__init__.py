# SPDX-License-Identifier: GPL-2.0-or-later
"""Each state of a series compiled in each variant: what the compilers find.

In come a `Plan` and a `Toolchain`; out come an `Outcome` for each state and variant,
and the checks that judge them.  It knows nothing of what a guest does.
"""

from . import compilecheck, compiling, kbuild, options, sparse, variants
from .compilecheck import Tried
from .compiling import Job, Outcome
from .variants import Variant

__all__ = [
    "Job",
    "Outcome",
    "Tried",
    "Variant",
    "compilecheck",
    "compiling",
    "kbuild",
    "options",
    "sparse",
    "variants",
]
