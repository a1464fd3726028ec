# SPDX-License-Identifier: GPL-2.0-or-later
"""The private copies of kernel sources in the cache, each made once and shared.

A copy is a directory ``trees/<id>/``, published atomically::

    src/        the sources; `tree` applies series here and takes them off again
    files       what each file was when it was made: mode, blob id, size, mtime
    base.json   the version, and the digest of ``files``; its mtime is when the copy
                was last used
    lock        held by whoever changes ``src``

``trees/.lock`` is held while one is being made, in ``trees/.import-*``.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import fcntl
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import KstallError, cache, process, scope, space
from . import listing

Say = Callable[[str], None]
_keep: contextvars.ContextVar[int | None] = contextvars.ContextVar("keep", default=None)

# An edited plain directory makes a new copy each time it is used.
KEPT = 3
_IDLE_S = 600.0
# An in-tree build leaves these; kbuild refuses to build elsewhere until they are gone.
_BUILT = (".config", "include/config", "include/generated")


class NotAKernel(KstallError):
    """What ``KERNEL=`` names holds no kernel sources."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is no Linux source tree: {reason}",
            next="give KERNEL= the top of a kernel checkout, REPO#BRANCH, a source "
            "directory or a tarball (.tar, .tar.gz, .tar.xz, .tar.zst), debian:X.Y, or "
            "nothing for Debian's newest",
        )


@dataclass(frozen=True)
class CopyJob:
    """How to make one copy: ``fill`` puts ``src`` into the directory it is given.

    It returns the blob ids by path where it knows them.  ``needed`` is in bytes.
    ``lookup`` returns the copy's id, if that is known; ``record`` is called with it
    once the copy is there.  ``tree`` is the git tree id, if known.
    """

    named: Path
    needed: int
    fill: Callable[[Path], Mapping[str, str] | None]
    lookup: Callable[[], str | None]
    record: Callable[[str], None] = lambda _: None
    tree: str | None = None


def keeping(count: int) -> AbstractContextManager[object]:
    """Have ``count`` copies stay when a new one is made while the block runs: as many
    as trees are used in turn, lest each remove the copy of the next one."""
    return scope.bound(_keep, max(count, KEPT))


def prepare(cache_dir: Path) -> None:
    """Make the directory for the copies, and clear what killed runs left there."""
    trees = _trees(cache_dir)
    with space.guarded(cache_dir, 0, "the cache"):
        trees.mkdir(parents=True, exist_ok=True)
    if _leftovers(trees):
        with _try_lock(trees / ".lock") as locked:
            for leftover in _leftovers(trees) if locked else ():
                cache.remove(leftover)


def obtain(job: CopyJob, cache_dir: Path, say: Say) -> str:
    """The id of the copy that ``job`` makes, made now unless it is there.

    Raises `KstallError`; nothing half-made stays.
    """

    def present() -> str | None:
        base = job.lookup()
        return base if base is not None and is_complete(base, cache_dir) else None

    if (base := present()) is not None:
        return base
    trees = _trees(cache_dir)

    def waiting(holder: str) -> None:
        say(f"waiting for {holder}, which is copying kernel sources")

    with cache.lock(trees / ".lock", waiting=waiting):
        if (base := present()) is not None:
            return base
        for leftover in _leftovers(trees):
            cache.remove(leftover)
        purpose = f"a private copy of {job.named}"
        # What was begun is deleted last: the lack of space is diagnosed while it lasts.
        with contextlib.ExitStack() as cleanup:
            try:
                with space.reserved(cache_dir, job.needed, purpose):
                    say(f"making {purpose} (about {space.size(job.needed)}, once)")
                    scratch = Path(tempfile.mkdtemp(prefix=".import-", dir=trees))
                    cleanup.callback(cache.remove, scratch)
                    base = _make(job, scratch, cache_dir)
            except process.CommandError as error:
                raise _copy_error(job, error) from error
        # Under the lock, so that a run that waits for it finds what we made.
        job.record(base)
        _prune(cache_dir, base, say)
    return base


def _make(job: CopyJob, scratch: Path, cache_dir: Path) -> str:
    blobs = job.fill(scratch)
    source = scratch / "src"
    if source.is_symlink():
        raise NotAKernel(job.named, "it is a symbolic link")
    version = require_kernel(source, job.named)
    if job.tree is None and is_built(source):
        _require_no_exit(source, job.named)
        _clean(source)
    entries = listing.scan(source)
    if _clamp_mtimes(source, entries):
        entries = listing.scan(source)
    if blobs is None:
        blobs = listing.blobs(source, entries)
    base = name(version, job.tree or listing.tree_id(entries, blobs))
    if not is_complete(base, cache_dir):
        copy = scratch / "made"
        copy.mkdir()
        copy.chmod(0o755)
        source.rename(copy / "src")
        listing.save(copy / "files", entries, blobs)
        facts = {"version": version, "files": cache.file_digest(copy / "files")}
        cache.write_json(copy / "base.json", facts)
        _drop_damaged(base, cache_dir)
        copy.rename(place(base, cache_dir))
    return base


def _clamp_mtimes(source: Path, entries: Iterable[listing.Entry]) -> bool:
    """Clamp mtimes that lie in the future, which make would misjudge."""
    now = time.time_ns()
    ahead = [entry.path for entry in entries if entry.mtime_ns > now]
    for path in ahead:
        os.utime(source / path, ns=(now, now), follow_symlinks=False)
    return bool(ahead)


def _drop_damaged(base: str, cache_dir: Path) -> None:
    """Remove a copy that `is_complete` rejects."""
    home = place(base, cache_dir)
    if not home.exists():
        return
    with _try_lock(home / "lock") as locked:
        if not locked:
            raise KstallError(
                f"{home} is damaged, and another run is using it",
                next="run it again when that one has ended",
            )
        doomed = _trees(cache_dir) / f".removed-{base}"
        home.rename(doomed)
        cache.remove(doomed)


def _copy_error(job: CopyJob, error: process.CommandError) -> KstallError:
    """``error`` in terms of what the user gave."""
    lines = error.output.strip().splitlines() or [error.what]
    return KstallError(
        f"{job.named} could not be copied: {lines[0]}",
        next="check that it is complete, and that all of it may be read",
    )


def _require_no_exit(source: Path, named: Path) -> None:
    """Raise `KstallError` if `make mrproper` could follow a link out of ``source``."""
    top = source.resolve()
    for entry in listing.scan(source):
        path = source / entry.path
        if (
            stat.S_ISLNK(entry.mode)
            and path.is_dir()
            and not path.resolve().is_relative_to(top)
        ):
            raise KstallError(
                f"{named}: it holds an in-tree build, and {entry.path}, a link out of "
                "it: to delete the one could delete files behind the other",
                next="run `make mrproper` in that tree, or remove the link",
            )


def _clean(source: Path) -> None:
    """Undo an in-tree build, in a copy that is ours."""
    # MAKEFLAGS carries KERNEL= and all from the make that may have called us.
    env = {"MAKEFLAGS": "", "MFLAGS": "", "MAKELEVEL": "", "LC_ALL": "C"}
    process.run(["make", "-C", source, "KBUILD_OUTPUT=", "O=", "mrproper"], env=env)
    if is_built(source):
        raise KstallError("`make mrproper` left parts of an in-tree build")


def is_built(source: Path) -> bool:
    """Whether `make` was run in ``source`` itself, without O=."""
    return any(os.path.lexists(source / path) for path in _BUILT)


def require_kernel(source: Path, named: Path) -> str:
    """The version of the kernel in ``source``, or `NotAKernel` about ``named``."""
    makefile = source / "Makefile"
    if not source.is_dir():
        raise NotAKernel(named, "it is neither a directory nor a file")
    if not makefile.is_file():
        raise NotAKernel(named, "it has no Makefile")
    version = version_of(makefile.read_text(encoding="utf-8", errors="replace"))
    if version is None:
        raise NotAKernel(named, "its Makefile sets no VERSION and PATCHLEVEL")
    if not (source / "Kbuild").is_file():
        raise NotAKernel(named, "it has no Kbuild")
    return version


def version_of(makefile: str) -> str | None:
    """What `make kernelversion` says, from the text of the top Makefile."""
    variables: dict[str, str] = dict(
        re.findall(
            r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)[ \t]*=[ \t]*(\S*)",
            makefile,
            re.MULTILINE,
        )
    )
    if not variables.get("VERSION") or not variables.get("PATCHLEVEL"):
        return None
    numbers = [
        variables["VERSION"],
        variables["PATCHLEVEL"],
        variables.get("SUBLEVEL", ""),
    ]
    return ".".join(filter(None, numbers)) + variables.get("EXTRAVERSION", "")


def name(version: str, tree: str) -> str:
    """The id of the copy of ``version`` whose content git calls ``tree``."""
    return re.sub(r"[^\w.-]", "_", f"{version}-{tree[:12]}")


def place(base: str, cache_dir: Path) -> Path:
    """The directory of the copy called ``base``."""
    return _trees(cache_dir) / base


def is_complete(base: str, cache_dir: Path) -> bool:
    """Whether the copy called ``base`` exists, and its metadata is intact.

    Its ``src`` is compared with ``files`` only when it is used.
    """
    home = place(base, cache_dir)
    if not home.is_dir():
        return False
    try:
        facts = _facts(home)
        for path in home.glob("*.json"):
            json.loads(path.read_text(encoding="utf-8"))
        # Older copies have no digest there.
        digest = facts.get("files", "")
        intact = not digest or cache.file_digest(home / "files") == digest
    except (OSError, ValueError, TypeError, KeyError) as error:
        return cache.damaged(home, str(error))
    if (home / "src").is_symlink():
        return cache.damaged(home, "src is a symbolic link")
    return intact or cache.damaged(home, "files is not what it was")


def _facts(home: Path) -> dict[str, str]:
    """What ``base.json`` says; raises `ValueError` and others if it is damaged."""
    facts: dict[str, str] = json.loads((home / "base.json").read_text(encoding="utf-8"))
    if not isinstance(facts["version"], str):
        raise TypeError("base.json names no version")
    return facts


def owner(path: Path, cache_dir: Path) -> str | None:
    """The copy whose ``src`` is at ``path``, if any is."""
    base = path.parent
    if base.parent == _trees(cache_dir).resolve() and path.name == "src":
        return base.name if is_complete(base.name, cache_dir) else None
    return None


def use(base: str, cache_dir: Path) -> str:
    """The version of the copy called ``base``, which is now the last one used."""
    path = place(base, cache_dir) / "base.json"
    os.utime(path)
    return _facts(path.parent)["version"]


def recall(cache_dir: Path, key: str) -> dict[str, Any]:
    """What `remember` was given for ``key``, or nothing."""
    path = cache_dir / "sources" / "seen" / f"{key}.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def remember(cache_dir: Path, key: str, facts: Mapping[str, Any]) -> None:
    """Store ``facts`` that are small, and expensive to determine again."""
    cache.write_json(cache_dir / "sources" / "seen" / f"{key}.json", dict(facts))


def prune(cache_dir: Path, newest: str) -> None:
    """Remove all but ``newest`` and the copies used last, as `obtain` does when it has
    made one, and what killed runs left."""
    trees = _trees(cache_dir)
    with cache.lock(trees / ".lock"):
        for leftover in _leftovers(trees):
            cache.remove(leftover)
        _prune(cache_dir, newest, lambda _: None)


def _prune(cache_dir: Path, newest: str, say: Say) -> None:
    """Remove all but the copies used last; the caller holds ``trees/.lock``.

    One that was used minutes ago, or whose lock is held, may belong to another run; one
    that is `cache.held` belongs to a run that has obtained it, or to a worker's unit.
    """
    trees = _trees(cache_dir)
    copies = sorted(
        ((path.stat().st_mtime, path.parent) for path in trees.glob("[!.]*/base.json")),
        reverse=True,
    )
    for used, base in copies[_keep.get() or KEPT :]:
        if base.name == newest or time.time() - used < _IDLE_S:
            continue
        with _try_lock(base / "lock") as locked, _try_lease(base) as unused:
            if locked and unused:
                say(f"removing the private copy {base.name}, the least recently used")
                doomed = trees / f".removed-{base.name}"
                base.rename(doomed)
                cache.remove(doomed)


def _trees(cache_dir: Path) -> Path:
    return cache_dir / "trees"


def _leftovers(trees: Path) -> list[Path]:
    return [*trees.glob(".import-*"), *trees.glob(".removed-*")]


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock at ``path`` unless somebody else does; whether we hold it."""
    with path.open("a+", encoding="utf-8") as file:
        yield cache.locked_if_free(file)


@contextlib.contextmanager
def _try_lease(home: Path) -> Iterator[bool]:
    """Hold the copy at ``home`` unless it is `cache.held`; whether we hold it."""
    handle = os.open(home, os.O_RDONLY)
    try:
        yield _is_leased(handle)
    finally:
        os.close(handle)


def _is_leased(handle: int) -> bool:
    """Lock the directory ``handle``, unless somebody else has; whether it is ours."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network filesystems refuse this lock: then nothing can be held there.
        return error.errno != errno.EWOULDBLOCK
    return True
