# SPDX-License-Identifier: GPL-2.0-or-later
"""Room on the disk that holds the cache: asked for before, and missed after; memory."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import KstallError, cause
from .process import CommandError

_FULL = (errno.ENOSPC, errno.EDQUOT)
# In the C locale, which whoever runs a program inside `guarded` has to set.
_MESSAGES = ("No space left on device", "Disk quota exceeded")
_NOTHING = 2**22


class NoSpace(KstallError):
    """The disk of the cache is too small for what was to be written there."""

    def __init__(self, what: str, needed: int, cache: Path) -> None:
        free = available(cache)
        super().__init__(
            f"no room for {what}: it needs about {size(needed)}, and {cache} has "
            f"{size(free)} free",
            next="free some space, or use a larger disk: KSTALL_CACHE names the cache, "
            "and --out the place for runs",
        )
        self.needed = needed
        self.free = free


def require(cache: Path, needed: int, what: str) -> None:
    """Raise `NoSpace` unless ``needed`` bytes are free where ``cache`` is."""
    if available(cache) < needed:
        raise NoSpace(what, needed, cache)


@contextlib.contextmanager
def guarded(cache: Path, needed: int, what: str) -> Iterator[None]:
    """Turn the ways in which a full disk shows itself into one `NoSpace`."""
    try:
        yield
    except OSError as error:
        if cause(error) in _FULL:
            raise NoSpace(what, needed, cache) from error
        raise
    except CommandError as error:
        # Git says "unable to write file", and not why.
        if missed(error, cache):
            raise NoSpace(what, needed, cache) from error
        raise


def missed(error: CommandError, place: Path | None = None) -> bool:
    """Whether a program that failed says that it had no room, or has none at ``place``:
    a shell that writes there says "I/O error"."""
    if place is not None and available(place) < _NOTHING:
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
    (line,) = (one for one in text.splitlines() if one.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
