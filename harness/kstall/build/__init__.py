# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernels: a configuration resolved, an image with its modules, programs of the tree.

In come a `Plan`, fragments of a configuration and a `Toolchain`; out come `Configured`
and `Kernel`, kept under keys of all that went in.  A `BuildError` is what the compiler
held against the tree, any other error is not the tree's.  It boots nothing.
"""

from . import extra, kconfig, kernel, outputs, programs, resolve
from .kconfig import Setting
from .kernel import Configured, Kernel, Toolchain

__all__ = [
    "Configured",
    "Kernel",
    "Setting",
    "Toolchain",
    "extra",
    "kconfig",
    "kernel",
    "outputs",
    "programs",
    "resolve",
]
