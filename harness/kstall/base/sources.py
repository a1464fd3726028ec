# SPDX-License-Identifier: GPL-2.0-or-later
"""Our own source code as a part of the cache keys of what it makes."""

from __future__ import annotations

import functools
from pathlib import Path

from . import cache

_HARNESS = Path(__file__).parents[2]


def digest(*packages: str) -> str:
    """Changes with any module or data file of ``packages``, such as ``kstall.build``.

    For the key of what they make: another version of them may make something else.
    Name the packages that affect the result beyond what they put into the key.
    """
    return _digest(_HARNESS, packages)


def is_byte_code(path: Path) -> bool:
    """Whether Python made ``path`` of a module, or is writing it under another name."""
    return path.parent.name == "__pycache__"


@functools.cache
def _digest(harness: Path, packages: tuple[str, ...]) -> str:
    files = {
        str(path.relative_to(harness)): cache.file_digest(path)
        for package in packages
        for path in (harness / package.replace(".", "/")).rglob("*")
        if path.is_file() and not is_byte_code(path)
    }
    return cache.digest(sorted(files.items()))
