# SPDX-License-Identifier: GPL-2.0-or-later
"""Space on the disk of the cache, checked before and diagnosed after; free memory."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import KstallError, cause
from .process import CommandError

_FULL = (errno.ENOSPC, errno.EDQUOT)
# In the C locale, so programs have to be run in it inside `guarded`.
_MESSAGES = ("No space left on device", "Disk quota exceeded")
_FULL_BELOW = 2**22


class NoSpace(KstallError):
    """The disk of the cache is too small for what was to be written there."""

    def __init__(self, purpose: str, needed: int, cache: Path) -> None:
        free = available(cache)
        super().__init__(
            f"no room for {purpose}: it needs about {size(needed)}, and {cache} has "
            f"{size(free)} free",
            next="free some space, or use a larger disk: KSTALL_CACHE names the cache, "
            "and --out the place for runs",
        )
        self.needed = needed
        self.free = free


def require(cache: Path, needed: int, purpose: str) -> None:
    """Raise `NoSpace` unless ``needed`` bytes are free where ``cache`` is."""
    if available(cache) < needed:
        raise NoSpace(purpose, needed, cache)


@contextlib.contextmanager
def guarded(cache: Path, needed: int, purpose: str) -> Iterator[None]:
    """Turn every error that a full disk causes into `NoSpace`."""
    try:
        yield
    except OSError as error:
        if cause(error) in _FULL:
            raise NoSpace(purpose, needed, cache) from error
        raise
    except CommandError as error:
        # Git says "unable to write file", and not why.
        if missed(error, cache):
            raise NoSpace(purpose, needed, cache) from error
        raise


def missed(error: CommandError, place: Path | None = None) -> bool:
    """Whether a program failed for want of space: it says so, or ``place`` has none,
    where a shell that writes there says "I/O error"."""
    if place is not None and available(place) < _FULL_BELOW:
        return True
    return any(message in error.output for message in _MESSAGES)


def available(path: Path) -> int:
    """Bytes that we may still write where ``path`` is or will be."""
    existing = next(place for place in (path, *path.parents) if place.exists())
    return shutil.disk_usage(existing).free


def size(count: int) -> str:
    """``count`` bytes for a reader: "1.8 GB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def memory() -> int:
    """The bytes of memory that a new program can have without swapping."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    (line,) = (line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
