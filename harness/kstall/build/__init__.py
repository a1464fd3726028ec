# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds: a configuration resolved, an image with its modules, programs of the tree.

In come a `Plan`, fragments of a configuration and a `Toolchain`; out come `Configured`
and `Kernel`, cached under keys of all inputs.  A `BuildError` is the tree's fault, any
other error is not.  It boots nothing.
"""

from . import extra, kconfig, kernel, outputs, programs, resolve
from .ground import Ground
from .kconfig import Setting
from .kernel import Configured, Kernel, Toolchain

__all__ = [
    "Configured",
    "Ground",
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
