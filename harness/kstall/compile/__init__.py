# SPDX-License-Identifier: GPL-2.0-or-later
"""Each state of a series compiled in each variant: what the compilers find.

In come a `Plan` and a `Toolchain`, as `CompileWork`; out comes `Compiled`: a `Trial` of
each variant, and the objects of two of them.  It judges nothing, and knows nothing of
what a guest does.
"""

from . import compiling, variants
from .builds import Compiled, CompileWork, ahead, compiled, perform
from .compiling import CompileOutcome, CompilerRemark, Trial

__all__ = [
    "CompileOutcome",
    "CompileWork",
    "Compiled",
    "CompilerRemark",
    "Trial",
    "ahead",
    "compiled",
    "compiling",
    "perform",
    "variants",
]
