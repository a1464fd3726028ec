# SPDX-License-Identifier: GPL-2.0-or-later
"""Each state of a series compiled in each variant: what the compilers find.

In come a `Plan` and a `Toolchain`, as `CompileWork`; out comes `Compiled`: the checks,
and the objects of two variants.  It knows nothing of what a guest does.
"""

from . import variants
from .builds import Compiled, CompileWork, ahead, compiled, perform

__all__ = ["CompileWork", "Compiled", "ahead", "compiled", "perform", "variants"]
