# SPDX-License-Identifier: GPL-2.0-or-later
"""Directories for a while, which the next run removes if this one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import cache, process

# Only what has it is ours to remove, whatever it is called.
_MARK = ".kstall-scratch"


@contextlib.contextmanager
def directory(purpose: str, base: Path | None = None) -> Iterator[Path]:
    """A directory ``kstall-<purpose>-...`` below ``base`` (default: that for temporary
    files), removed with all that is in it.

    It is locked while its process lives.  Those that nobody holds any more are removed
    first.
    """
    base = base or Path(tempfile.gettempdir())
    _sweep(base)
    made = Path(tempfile.mkdtemp(prefix=f"kstall-{purpose}-", dir=base))
    with _open(made) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # After it is locked: before, others could take it for left behind.
        (made / _MARK).touch()
        try:
            yield made
        finally:
            # What is being killed may write for a moment yet; then the next one sweeps.
            with contextlib.suppress(OSError):
                _remove(made)


def _sweep(base: Path) -> None:
    for path in base.glob("kstall-*"):
        # Of somebody else, or gone meanwhile: not ours to care for.
        with contextlib.suppress(OSError):
            if (path / _MARK).lstat().st_uid != os.geteuid():
                continue
            with _open(path) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)


def _remove(path: Path) -> None:
    """Delete ``path``, the mark last: without it nobody would do what is left to do."""
    try:
        for one in path.iterdir():
            if one.name != _MARK:
                cache.remove(one)
    except PermissionError:
        # As root in a namespace with all ids that are ours: whose mmdebstrap is killed
        # is left with files of those ids, and not of their own.
        ids = ("unshare", "--map-root-user", "--map-auto")
        rm = ("rm", "-rf", "--one-file-system", path)
        process.run([*ids, *rm], check=False, namespace=False)
    cache.remove(path)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
