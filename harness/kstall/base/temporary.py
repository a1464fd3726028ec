# SPDX-License-Identifier: GPL-2.0-or-later
"""Temporary directories; those of a killed run are deleted by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import cache, process

# Only a directory with this file is ours to delete, whatever its name.
_MARK = ".kstall-scratch"


@contextlib.contextmanager
def directory(purpose: str, base: Path | None = None) -> Iterator[Path]:
    """A directory ``kstall-<purpose>-...`` below ``base`` (default: that for temporary
    files), deleted with its content when the block ends.

    It is locked while its process lives.  Earlier ones that nobody holds any more are
    deleted first.
    """
    base = base or Path(tempfile.gettempdir())
    _sweep(base)
    path = Path(tempfile.mkdtemp(prefix=f"kstall-{purpose}-", dir=base))
    with _open(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # After it is locked: before, another run could take it for abandoned.
        (path / _MARK).touch()
        try:
            yield path
        finally:
            # A process being killed may still write; then the next run sweeps.
            with contextlib.suppress(OSError):
                _remove(path)


def _sweep(base: Path) -> None:
    for path in base.glob("kstall-*"):
        # Another user's, or gone meanwhile.
        with contextlib.suppress(OSError):
            if (path / _MARK).lstat().st_uid != os.geteuid():
                continue
            with _open(path) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)


def _remove(path: Path) -> None:
    """Delete ``path``, the mark last: without it no later run would finish the job."""
    try:
        for entry in path.iterdir():
            if entry.name != _MARK:
                cache.remove(entry)
    except PermissionError:
        # A killed mmdebstrap leaves files that belong to our subordinate ids: delete
        # them as root of a user namespace that maps these.
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
