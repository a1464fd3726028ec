# SPDX-License-Identifier: GPL-2.0-or-later
"""Where work that is done is kept, and how it gets there whole.

An entry is made in a temporary sibling and renamed into place, so what a name leads
to is always complete.  One `flock` per thing that changes keeps two runs apart; the
kernel drops it when its holder dies, however it dies.

Complete is not yet undamaged: disks fill up, lose power and rot.  So an entry that is
to be used again has a list of what is in it, and one that is not as listed is as good
as none (`keep`, `kept`).
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import cause

#: What lists the content of an entry, in the entry.
LIST = "kstall-entry.json"
# Of a larger file only so much of both ends is read: a kernel has hundreds of
# megabytes, and what is cut short or was never written out shows at the end.
_END = 2**15
_NO_KEEPING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_remarks: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "remarks", default=None
)


@contextlib.contextmanager
def remarked() -> Iterator[list[str]]:
    """What there is to say of the cache while the block runs: entries that were found
    damaged, and those that could not be kept."""
    remarks: list[str] = []
    token = _remarks.set(remarks)
    try:
        yield remarks
    finally:
        _remarks.reset(token)


def remark(text: str) -> None:
    """Have ``text`` said to whoever listens with `remarked`."""
    if (remarks := _remarks.get()) is not None and text not in remarks:
        remarks.append(text)


@dataclass
class Used:
    """Entries that were found or made; ``made`` are only the latter."""

    every: set[Path] = field(default_factory=set)
    made: set[Path] = field(default_factory=set)


_used: contextvars.ContextVar[Used | None] = contextvars.ContextVar(
    "used", default=None
)


@contextlib.contextmanager
def used() -> Iterator[Used]:
    """The entries that `kept` finds and `keep` makes while the block runs."""
    entries = Used()
    token = _used.set(entries)
    try:
        yield entries
    finally:
        _used.reset(token)


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


@contextlib.contextmanager
def keep(target: Path) -> Iterator[Path]:
    """As `publish`, with a list of what is in it, by which `kept` knows it again."""
    with publish(target) as scratch:
        yield scratch
        write_json(scratch / LIST, _listed(scratch))
    if (entries := _used.get()) is not None:
        entries.every.add(target)
        entries.made.add(target)


@contextlib.contextmanager
def keep_if_possible(target: Path) -> Iterator[Path]:
    """As `keep`, for a result that counts without being kept.

    A disk that is full or read-only costs the entry, with a `remark`, and no more.
    """
    try:
        with keep(target) as scratch:
            yield scratch
    except OSError as error:
        number = cause(error)
        if number not in _NO_KEEPING:
            raise
        remark(
            f"{target} could not be kept ({os.strerror(number)}): this result counts, "
            "but the next run has to find it out again"
        )


def kept(target: Path) -> bool:
    """Whether ``target`` is an entry as `keep` left it.

    One that is damaged counts as none, with a `remark`; whoever makes it anew replaces
    it.  One without a list is from before there were any, and gets one as it is.
    """
    if not _is_kept(target):
        return False
    if (entries := _used.get()) is not None:
        entries.every.add(target)
    return True


def _is_kept(target: Path) -> bool:
    if not target.is_dir():
        return False
    try:
        wanted = json.loads((target / LIST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            write_json(target / LIST, _listed(target))
        return True
    except (OSError, ValueError):
        return damaged(target, f"{LIST} cannot be read")
    try:
        found = _listed(target)
    except OSError as error:
        return damaged(target, f"{error.filename} cannot be read")
    if found == wanted:
        return True
    if not isinstance(wanted, dict):
        return damaged(target, f"{LIST} cannot be read")
    strange = min(dict(found.items() ^ wanted.items()))
    return damaged(target, f"{strange} is not what it was")


def damaged(target: Path, how: str) -> Literal[False]:
    """Have said that ``target`` is damaged; the answer is that it is no entry."""
    remark(f"{target} is damaged ({how}): it is not used, but made anew")
    return False


def _listed(top: Path) -> dict[str, str]:
    """What each file and link below ``top`` is, by path; the list itself is left out.

    Sizes, digests of what is small, and of both ends of what is not.
    """
    found = {}
    pending = [os.fspath(top)]
    start = len(pending[0]) + 1
    while pending:
        with os.scandir(pending.pop()) as items:
            for item in items:
                name = item.path[start:]
                if item.is_dir(follow_symlinks=False):
                    pending.append(item.path)
                elif item.is_symlink():
                    found[name] = f"-> {os.readlink(item.path)}"  # noqa: PTH115
                elif not name.removeprefix(".").startswith(LIST):
                    found[name] = _print_of(Path(item.path))
    return found


def _print_of(path: Path) -> str:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        text = file.read(2 * _END if size <= 2 * _END else _END)
        if size > 2 * _END:
            file.seek(-_END, os.SEEK_END)
            text += file.read(_END)
    return f"{size} {hashlib.sha256(text).hexdigest()}"


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


def prune(directory: Path, *, keep: int) -> None:
    """Delete all but the ``keep`` entries that were used last."""
    if directory.is_dir():
        entries = [path for path in directory.iterdir() if path.name[0] != "."]
        entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in entries[keep:]:
            remove(path)


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
