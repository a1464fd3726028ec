# SPDX-License-Identifier: GPL-2.0-or-later
"""Where work that is done is kept, and how it gets there whole.

An entry is made in a temporary sibling and renamed into place, so what a name leads
to is always complete.  One `flock` per thing that changes keeps two runs apart; the
kernel drops it when its holder dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def default_dir() -> Path:
    """``$KSTALL_CACHE``, else ``kstall`` below the user's cache directory."""
    if chosen := os.environ.get("KSTALL_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "kstall"


def digest(*parts: object) -> str:
    """16 hex digits that change when any part does (parts are JSON-encodable)."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def publish(target: Path) -> Iterator[Path]:
    """A directory to fill, which becomes ``target`` when the block ends well.

    Left-overs of earlier, killed attempts at the same target are removed first; the
    caller holds the lock that keeps a second attempt away.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob(f".{target.name}.tmp-*"):
        remove(stale)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
    scratch.chmod(0o755)
    try:
        yield scratch
        if target.exists():
            remove(target)
        scratch.rename(target)
    except BaseException:
        remove(scratch)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` so that a reader sees the old file or the new, never half."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """As `write_json`, for text; ``mode`` are the permissions of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def remove(path: Path) -> None:
    """Delete a directory tree, also one with read-only directories in it."""

    def make_writable(_: Callable[..., Any], name: str, __: BaseException) -> None:
        parent = Path(name).parent
        parent.chmod(parent.stat().st_mode | 0o700)
        target = Path(name)
        if target.is_dir() and not target.is_symlink():
            target.chmod(target.stat().st_mode | 0o700)
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    if path.is_dir() and not path.is_symlink():
        # onexc came with Python 3.12; onerror still works there.
        shutil.rmtree(path, onerror=make_writable)  # type: ignore[arg-type]
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock(path: Path, *, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold ``path`` exclusively; ``waiting`` is told who has it if we must wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another run"
            if waiting is not None:
                waiting(holder)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
