# SPDX-License-Identifier: GPL-2.0-or-later
"""The cache: results are written atomically, and verified before they are used again.

An entry is made in a temporary sibling and renamed into place, so an entry that exists
is complete.  One `flock` per thing that changes keeps two runs apart; the kernel drops
it when its holder dies, however it dies.

A complete entry may still be damaged: disks fill up, lose power and rot.  So an entry
that is to be used again lists its content, and counts as missing if that has changed
(`keep`, `is_complete`).  A result that is only data is one file (`retain`, `recall`).
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
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from . import process, scope
from .errors import cause

_T = TypeVar("_T")

#: The file that lists the content of the entry it is in.
LIST = "kstall-entry.json"
# Of a larger file only this much of both ends is read: a kernel has hundreds of
# megabytes, and a file that was cut short or never written out shows it at the end.
_END = 2**15
#: How many files of one kind `retain` leaves, of up to a few hundred kilobytes each.
RETAINED = 1000
#: Free bytes of a disk on which more is kept than one run needs.
PLENTY = 20 * 10**9
#: Kernels that stay, of 0.2 GB each: those of some runs; at most, those of a run of all
#: series on debug kernels too, of which there are over forty, or of a matrix.
KERNELS = (10, 120)
# How often a run that waits for another says so, and how much of the other's command.
_REMIND_S = 300.0
_COMMAND = 100
# How long one that has to wait looks for the other's name, which is written only when
# the lock is held.
_NAMELESS_S = 1.0
# How often it looks whether the lock is free: threads of one run wait for each other.
_LOCK_S = 0.1
# Marks what was an entry.
_REMOVED = "removed"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_remarks: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "remarks", default=None
)


def remarked() -> AbstractContextManager[list[str]]:
    """The remarks on the cache while the block runs: entries that were damaged, and
    results that could not be kept."""
    return scope.bound(_remarks, [])


def remark(text: str) -> None:
    """Add ``text`` to the remarks of the enclosing `remarked` block."""
    if (remarks := _remarks.get()) is not None and text not in remarks:
        remarks.append(text)


@dataclass
class Used:
    """Entries that were found or made; ``new`` are only the latter."""

    every: set[Path] = field(default_factory=set)
    new: set[Path] = field(default_factory=set)


_used: contextvars.ContextVar[Used | None] = contextvars.ContextVar(
    "used", default=None
)


def used() -> AbstractContextManager[Used]:
    """The entries that `is_complete` finds and `keep` makes while the block runs."""
    return scope.bound(_used, Used())


def default_dir() -> Path:
    """``$KSTALL_CACHE``, else ``kstall`` below the user's cache directory."""
    if path := os.environ.get("KSTALL_CACHE"):
        return Path(path).absolute()
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
    """A directory to fill, which becomes ``target`` when the block succeeds.

    Left-overs of earlier, killed attempts at the same target are removed first, and not
    the directory of another run that is at it: the one that ends last counts.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}.tmp-*"):
        _remove_unheld(leftover)
    scratch = _sibling(target)
    with held(scratch):
        try:
            yield scratch
            if target.exists():
                # Whoever reads the old one is not left without any while it is deleted.
                old = _sibling(target)
                target.rename(old)
                scratch.rename(target)
                remove(old)
            else:
                scratch.rename(target)
        except BaseException:
            remove(scratch)
            raise


def sweep(directory: Path) -> None:
    """Delete what killed attempts at entries of ``directory`` left.

    Nobody else may begin one meanwhile; one that is under way is not touched.
    """
    for leftover in directory.glob(".*.tmp-*"):
        _remove_unheld(leftover)


def _sibling(target: Path, mark: str = "tmp") -> Path:
    """A new directory that counts as a left-over of ``target``."""
    path = Path(tempfile.mkdtemp(prefix=f".{target.name}.{mark}-", dir=target.parent))
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def keep(target: Path) -> Iterator[Path]:
    """As `publish`, with a list of the content for `is_complete` to verify."""
    with publish(target) as scratch:
        yield scratch
        write_json(scratch / LIST, _listing(scratch))
    if (entries := _used.get()) is not None:
        entries.every.add(target)
        entries.new.add(target)


@contextlib.contextmanager
def keep_if_possible(target: Path) -> Iterator[Path]:
    """As `keep`, for a result that is valid even if it cannot be kept.

    A disk that is full or read-only costs only the entry, with a `remark`.
    """
    begun = False
    try:
        with keep(target) as scratch:
            begun = True
            yield scratch
    except OSError as error:
        if cause(error) not in _UNWRITABLE:
            raise
        _remark_unkept(target, error)
    if not begun:
        # The caller has something to write all the same.
        with tempfile.TemporaryDirectory(prefix="kstall-") as elsewhere:
            yield Path(elsewhere)


def _remark_unkept(target: Path, error: OSError) -> None:
    remark(
        f"{target} could not be kept ({os.strerror(cause(error))}): this result is "
        "valid, but the next run has to compute it again"
    )


def is_complete(target: Path) -> bool:
    """Whether ``target`` is an entry as `keep` left it, which then counts as used now.

    A damaged one counts as missing, with a `remark`; making it again replaces it.
    """
    if not _is_intact(target):
        return False
    with contextlib.suppress(OSError):  # a cache that is read-only, say
        os.utime(target)  # `prune` drops what was not used for longest
    if (entries := _used.get()) is not None:
        entries.every.add(target)
    return True


def _is_intact(target: Path) -> bool:
    if not target.is_dir():
        return False
    try:
        record = json.loads((target / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return damaged(target, f"{LIST} cannot be read")
    try:
        listing = _listing(target)
    except OSError as error:
        return damaged(target, f"{error.filename} cannot be read")
    if listing == record:
        return True
    if not isinstance(record, dict):
        return damaged(target, f"{LIST} cannot be read")
    name = min(dict(listing.items() ^ record.items()))
    return damaged(target, f"{name} is not what it was")


def recall(path: Path, parse: Callable[[Any], _T]) -> _T | None:
    """What ``parse`` makes of the data that `retain` wrote to ``path``, or None.

    A file that is damaged, or that ``parse`` refuses with a `ValueError`, counts as
    missing, with a `remark`; any other counts as used now.
    """
    try:
        mark, _, text = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        damaged(path, os.strerror(cause(error)))
        return None
    if mark != _mark(text):
        damaged(path, "it is not what it was")
        return None
    try:
        result = parse(json.loads(text))
    except ValueError:
        damaged(path, "it cannot be read")
        return None
    with contextlib.suppress(OSError):  # a cache that is read-only, say
        os.utime(path)
    return result


def retain(path: Path, data: object) -> None:
    """Keep ``data``, as JSON, at ``path``, beside those of its kind used last.

    That needs no lock.  If it is not possible, only the result is not kept, with a
    `remark`.
    """
    text = json.dumps(data)
    try:
        write_text(path, f"{_mark(text.encode()).decode()}\n{text}")
    except OSError as error:
        _remark_unkept(path, error)
        return
    with contextlib.suppress(OSError):  # an old file of another user, say
        prune(path.parent, keep=RETAINED)


def _mark(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def damaged(target: Path, reason: str) -> Literal[False]:
    """Remark that ``target`` is damaged, and return False for the caller to return."""
    remark(f"{target} is damaged ({reason}): it is not used, but made anew")
    return False


def _listing(top: Path) -> dict[str, str]:
    """Each file and link below ``top`` by path, without the list itself.

    A link is listed with its target, a file with its size and a digest, which for a
    large file covers only both ends.
    """
    listing = {}
    pending = [os.fspath(top)]
    start = len(pending[0]) + 1
    while pending:
        with os.scandir(pending.pop()) as items:
            for item in items:
                name = item.path[start:]
                if item.is_dir(follow_symlinks=False):
                    pending.append(item.path)
                elif item.is_symlink():
                    listing[name] = f"-> {os.readlink(item.path)}"  # noqa: PTH115
                elif not name.removeprefix(".").startswith(LIST):
                    listing[name] = _fingerprint(Path(item.path))
    return listing


def _fingerprint(path: Path) -> str:
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


def discard(entry: Path) -> None:
    """Delete ``entry``, also one that is `held`; nobody finds it half deleted."""
    with held(entry):  # else `prune` may delete it as well
        _discard(entry)


def _discard(entry: Path) -> None:
    if entry.is_dir():
        doomed = _sibling(entry, _REMOVED)
        entry.rename(doomed)
        entry = doomed
    remove(entry)


@contextlib.contextmanager
def held(entry: Path) -> Iterator[None]:
    """Keep `prune` from deleting ``entry``, in any process, while the block runs.

    It counts as used now.  One that does not exist is not an error here.
    """
    handle = _lease(entry)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def hold_for(owner: object, entry: Path) -> None:
    """As `held`, as long as ``owner`` exists: there may be others of the same value."""
    handle = _lease(entry)
    if handle is not None:
        weakref.finalize(owner, os.close, handle)


def _lease(entry: Path) -> int | None:
    """A descriptor that, while it is open, keeps ``entry`` from being pruned."""
    try:
        handle = os.open(entry, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # a cache that is read-only, say
        fcntl.flock(handle, fcntl.LOCK_SH)
        os.utime(entry)
    return handle


def prune(directory: Path, *, keep: int, most: int = 0) -> None:
    """Delete all but the ``keep`` entries that were used last, and those `held`.

    Up to ``most`` stay while the disk has `PLENTY`, as those of several trees and
    architectures are used in turn; those that were used least recently go first.  What
    a killed run left of an entry that it deleted goes in any case.
    """
    if directory.is_dir():
        for leftover in directory.glob(f".*.{_REMOVED}-*"):
            _remove_unheld(leftover)
        entries = [path for path in directory.iterdir() if path.name[0] != "."]
        entries.sort(key=_last_use, reverse=True)
        for path in entries[max(keep, most) :]:
            _remove_unheld(path, _discard)
        for path in reversed(entries[keep:most]):
            if shutil.disk_usage(directory).free >= PLENTY:
                break
            _remove_unheld(path, _discard)


def _last_use(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another run deletes as well


def _remove_unheld(entry: Path, delete: Callable[[Path], None] = remove) -> None:
    try:
        handle = os.open(entry, os.O_RDONLY)
    except FileNotFoundError:
        return  # another run deletes as well
    try:
        # Some network filesystems refuse this lock: then nothing can be held there.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        delete(entry)
    finally:
        os.close(handle)


def _holder() -> str:
    """The process and its command, for those that wait for its lock."""
    program, *words = sys.argv or [""]
    text = " ".join((Path(program).name or "python", *words))
    shown = text if len(text) <= _COMMAND else f"{text[:_COMMAND]}..."
    return f"process {os.getpid()} ({shown})"


@contextlib.contextmanager
def _reminded(waiting: Callable[[str], None] | None, holder: str) -> Iterator[None]:
    """Tell ``waiting`` now and from time to time, for as long as the block lasts."""
    if waiting is None:
        yield
        return
    over = threading.Event()
    # What is said is labelled with the stage, which is a context variable.
    context = contextvars.copy_context()

    def remind() -> None:
        while not over.wait(_REMIND_S):
            context.run(waiting, holder)

    waiting(holder)
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


@contextlib.contextmanager
def lock(path: Path, *, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold ``path`` exclusively; ``waiting`` gets the holder before a wait, and again
    every `_REMIND_S` seconds of it.  A wait in a run that is ending raises `Ended`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        limit = time.monotonic() + _NAMELESS_S
        while not locked_if_free(file):
            file.seek(0)
            holder = file.read().strip()
            if not holder and time.monotonic() < limit:
                time.sleep(0.01)
                continue
            if holder == _holder():
                holder = "another part of this run"
            with _reminded(waiting, holder or "another run"):
                # flock() itself would go on waiting in a thread when the run ends.
                while not locked_if_free(file):
                    process.require_going()
                    time.sleep(_LOCK_S)
            break
        file.seek(0)
        file.truncate()
        file.write(_holder())
        file.flush()
        try:
            yield
        finally:
            # Else we would be taken for the next holder, until that has written its
            # name.
            with contextlib.suppress(OSError):
                file.seek(0)
                file.truncate()


def locked_if_free(file: TextIO) -> bool:
    """Lock ``file``, unless somebody else has; whether it is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
