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


@contextlib.contextmanager
def reserved(cache: Path, needed: int, purpose: str) -> Iterator[None]:
    """As `guarded`, and begun only if ``needed`` bytes are free."""
    require(cache, needed, purpose)
    with guarded(cache, needed, purpose):
        yield


def missed(error: CommandError, place: Path) -> bool:
    """Whether a program failed for want of space: it says so, or ``place`` has none,
    where a shell that writes there says "I/O error"."""
    return available(place) < _FULL_BELOW or any(
        message in error.output for message in _MESSAGES
    )


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


def memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The bytes of memory that a new program can have without swapping.

    What the machine has, or less if our control group or one above it may have less.
    """
    text = (proc / "meminfo").read_text(encoding="ascii")
    (line,) = (line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return min([int(line.split()[1]) * 1024, *_left_to_groups(proc, groups)])


def _left_to_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What our control groups may still have, those of version 2 and of version 1.

    Pages of files that nobody has used lately are given back.
    """
    unified = ("memory.max", "memory.current", "inactive_file")
    legacy = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        tops, names = [groups / "memory"], legacy
        if controllers == "":
            tops, names = [groups, groups / "unified"], unified
        elif "memory" not in controllers.split(","):
            continue
        # A container sees its own group as the topmost one, whatever its path is.
        for top in tops:
            own = top / path.lstrip("/")
            for place in (own, *own.parents):
                if place.is_relative_to(top) and ".." not in place.parts:
                    with contextlib.suppress(OSError, ValueError):
                        yield _left(place, *names)


def _left(group: Path, limit: str, usage: str, unused: str) -> int:
    """What one group may still have.  Raises `ValueError` if it has no limit."""
    most = int((group / limit).read_text(encoding="ascii"))
    used = int((group / usage).read_text(encoding="ascii"))
    stat = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    spare = int(dict(line.split() for line in stat).get(unused, 0))
    return max(0, most - used + spare)
