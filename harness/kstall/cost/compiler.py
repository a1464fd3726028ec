# SPDX-License-Identifier: GPL-2.0-or-later
"""Which compiler a kernel is of: the number of instructions is one compiler's."""

from __future__ import annotations

import re

from ..build import Kernel

_VERSION = re.compile(r"^CONFIG_(GCC|CLANG)_VERSION=([1-9]\d*)$", re.MULTILINE)


def compiler_of(kernel: Kernel) -> str:
    """Architecture, compiler and its major version, as ``x86_64 gcc 12``.

    Empty if the kernel's configuration does not say it.
    """
    if not kernel.config.exists():
        return ""
    match = _VERSION.search(kernel.config.read_text(encoding="utf-8"))
    if match is None:
        return ""
    # As in 120200 for 12.2.0.
    return f"{kernel.arch.name} {match[1].lower()} {int(match[2]) // 10000}"
