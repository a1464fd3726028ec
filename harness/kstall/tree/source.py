# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel sources, from wherever the user has them to a private copy in the cache.

A *base* is one such copy, named by its version and by the id that git gives its
content, so that a checkout, a directory and a tarball of the same sources are one
base.  `store` keeps it.

The user's own tree is only ever read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..base import KstallError, cache, process, space
from ..debian import apt
from . import git, listing, remote, store
from .store import NotAKernel, Say

_DEBIAN_VERSION = "7.3"
# What names a kernel source of Debian's in the place of a path.
_OF_DEBIAN = re.compile(r"debian:(\d+\.\d+)")
_PACKAGE_BYTES = 200 * 10**6
Kind = Literal["git", "directory", "tarball", "debian"]

# How many times its size an archive of kernel sources takes on disk: xz, the best at
# it, makes a tenth; and 95,000 files leave half a block unused each.
_GROWTH = {".tar": 1.25, ".gz": 8, ".tgz": 8}
_MOST_GROWTH = 12
# What `make mrproper` would only delete again, of which a built tree has gigabytes.
_PRODUCTS = re.compile(r"(.*\.(o|ko|a|dwo)|\..*\.cmd|vmlinux|vmlinux\.unstripped)")
# What checkpatch.pl remembers; with it, the same sources would be another base.
_MEMORY = re.compile(r"\.checkpatch-camelcase\..*")


@dataclass(frozen=True)
class Base:
    """A private, clean copy of the sources at ``path``: only kstall writes there.

    ``version`` is what `make kernelversion` says; ``origin`` is what the user named, or
    the Debian package; ``describe`` tells which state of that it was.  ``dirty`` names
    files of a checkout whose changes are in no commit, and so not in the base either.
    """

    id: str
    path: Path
    kind: Kind
    version: str
    origin: str
    describe: str
    commit: str | None = None
    dirty: tuple[str, ...] = ()

    def as_json(self) -> dict[str, str]:
        """What another process has to know of it, but for its place."""
        return {"id": self.id, "version": self.version, "describe": self.describe}

    @staticmethod
    def of_json(raw: Mapping[str, str], cache_dir: Path) -> Base:
        """The base that `as_json` tells of, of which the cache there has a copy."""
        version = store.use(raw["id"], cache_dir)
        path = store.place(raw["id"], cache_dir) / "src"
        return Base(raw["id"], path, "directory", version, raw["id"], raw["describe"])


def obtain(
    kernel: Path | None, cache_dir: Path, say: Say, *, keep: int = store.KEPT
) -> Base:
    """The base for what the user named, or for Debian's newest kernel source.

    ``debian:6.12`` names the newest ``linux-source-6.12`` that Debian has, and
    ``REPO#BRANCH`` what a branch of a repository is now.  A copy is made only when
    there is none yet, and then ``keep`` of them stay, the ones used last; ``say``
    prints what was chosen and the progress of long steps.  Raises `KstallError`, and
    leaves nothing half-made.
    """
    with store.keeping(keep):
        return _obtain(kernel, cache_dir, say)


def _obtain(kernel: Path | None, cache_dir: Path, say: Say) -> Base:
    if re.search(r"[\s:]", str(cache_dir)):
        raise KstallError(
            f"{cache_dir}: kernels cannot be built below a path with a space or colon",
            next="set KSTALL_CACHE to another directory",
        )
    version = _DEBIAN_VERSION if kernel is None else debian_version(kernel)
    if kernel is None or version is not None:
        store.prepare(cache_dir)
        return _from_debian(f"linux-source-{version}", cache_dir, say)
    branch = remote.named(kernel)
    named = kernel.expanduser().absolute()
    if branch is not None:
        if branch.path is not None:
            _require_outside(branch.path, cache_dir)
        store.prepare(cache_dir)
        checkout = remote.read(branch, cache_dir, say)
        return _from_branch(branch, checkout, cache_dir, say)
    if not named.exists():
        raise NotAKernel(named, "there is no such file or directory")
    _require_outside(named, cache_dir)
    store.prepare(cache_dir)
    if (own := store.owner(named.resolve(), cache_dir)) is not None:
        return _base(own, cache_dir, "directory", str(named), own)
    if named.is_file():
        return _from_tarball(named, cache_dir, say)
    if os.path.lexists(named / ".git"):
        return _from_git(named, cache_dir, say)
    return _from_directory(named, cache_dir, say)


def _require_outside(tree: Path, cache_dir: Path) -> None:
    if cache_dir.resolve().is_relative_to(tree.resolve()):
        raise KstallError(
            f"the cache {cache_dir} lies inside the kernel tree {tree}",
            next="set KSTALL_CACHE to a directory outside of it",
        )


def debian_version(kernel: Path) -> str | None:
    """The version in ``debian:7.2``; None for any other path."""
    named = _OF_DEBIAN.fullmatch(str(kernel))
    return named[1] if named else None


# -- the four places that sources come from --------------------------------------


def _from_debian(package: str, cache_dir: Path, say: Say) -> Base:
    with space.guarded(cache_dir, _PACKAGE_BYTES, package):
        debs = cache_dir / "sources"
        deb = apt.newest(package, debs, say, now=time.time())
    found = _archive(deb.path, cache_dir, say)
    return _base(found, cache_dir, "debian", deb.package, deb.version)


def _from_tarball(named: Path, cache_dir: Path, say: Say) -> Base:
    found = _archive(named, cache_dir, say)
    return _base(found, cache_dir, "tarball", str(named), named.name)


def _from_directory(named: Path, cache_dir: Path, say: Say) -> Base:
    store.require_kernel(named, named)
    key = cache.digest("directory", str(named.resolve()))
    entries = listing.scan(named)
    state = listing.fingerprint(entries)
    wanted = _without_products(named, entries)

    def found() -> str | None:
        memory = store.recall(cache_dir, key)
        return memory.get("base") if memory.get("state") == state else None

    def fill(scratch: Path) -> Mapping[str, str]:
        if left := len(entries) - len(wanted):
            say(f"{named}: leaving out {left} files that its own tools made")
        with ThreadPoolExecutor(1) as pool:
            # At the same time, so that the disk reads each file once for both.
            ids = pool.submit(listing.blobs, named, wanted)
            _copy(named, [entry.path for entry in wanted], scratch / "src")
        if listing.fingerprint(listing.scan(named)) != state:
            raise KstallError(
                f"{named} changed while it was being copied", next="run it again"
            )
        return ids.result()

    def made(base: str) -> None:
        facts = {"state": state, "base": base, "origin": str(named)}
        store.remember(cache_dir, key, facts)

    needed = listing.disk_bytes(wanted)
    base = store.obtain(store.Job(named, needed, fill, found, made), cache_dir, say)
    return _base(base, cache_dir, "directory", str(named), f"files {state[:12]}")


def _from_git(named: Path, cache_dir: Path, say: Say) -> Base:
    checkout = git.read(named)
    base = _committed(named, "HEAD", checkout, cache_dir, say)
    key = cache.digest("git", str(named.resolve()))
    keep = cache_dir / "sources" / "checkouts" / key
    with cache.lock(keep / "lock"):
        dirty = git.changes(checkout, keep)
    if dirty:
        shown = ", ".join(dirty[:3]) + (", ..." if len(dirty) > 3 else "")
        say(
            f"{named} has {len(dirty)} changed files that are not committed ({shown}): "
            f"what is proven is its HEAD, {checkout.commit[:12]}"
        )
    memory = store.recall(cache_dir, key)
    if memory.get("commit") != checkout.commit:
        memory = {"commit": checkout.commit, "describe": git.describe(checkout)}
        store.remember(cache_dir, key, memory)
    return _base(
        base, cache_dir, "git", str(named), memory["describe"], checkout.commit, dirty
    )


def _from_branch(
    branch: remote.Branch, checkout: git.Checkout, cache_dir: Path, say: Say
) -> Base:
    base = _committed(Path(str(branch)), branch.branch, checkout, cache_dir, say)
    # What was fetched has no history to count from.
    state = checkout.commit[:12] if branch.url else git.describe(checkout)
    return _base(
        *(base, cache_dir, "git", str(branch)),
        *(f"{branch.branch} at {state}", checkout.commit),
    )


def _committed(
    named: Path, revision: str, checkout: git.Checkout, cache_dir: Path, say: Say
) -> str:
    """The id of the base that the commit of ``checkout`` is."""
    makefile = git.show(checkout, "Makefile")
    version = store.version_of((makefile or b"").decode("utf-8", "replace"))
    if version is None or git.show(checkout, "Kbuild") is None:
        where = f"its {revision} {checkout.commit[:12]}"
        raise NotAKernel(named, f"{where} has no Makefile with VERSION, or no Kbuild")
    base = store.name(version, checkout.tree)

    def found() -> str | None:
        return base if store.is_there(base, cache_dir) else None

    def fill(scratch: Path) -> Mapping[str, str]:
        git.export(checkout, scratch / "src", scratch)
        return {path: blob for path, (blob, _) in files.items()}

    files = {} if found() else git.sizes(checkout)
    needed = sum(size // 4096 * 4096 + 4096 for _, size in files.values())
    job = store.Job(named, needed, fill, found, tree=checkout.tree)
    return store.obtain(job, cache_dir, say)


def _archive(path: Path, cache_dir: Path, say: Say) -> str:
    """The id of the base that a tarball, or a Debian package of one, unpacks to."""
    key = cache.digest("file", str(path.resolve()))
    found_stat = path.stat()
    state = [found_stat.st_size, found_stat.st_mtime_ns, found_stat.st_ctime_ns]
    memory = store.recall(cache_dir, key)
    if memory.get("state") != state:
        memory = {"state": state, "sha256": cache.file_digest(path)}
        store.remember(cache_dir, key, memory)
    content = cache.digest("content", memory["sha256"])

    def found() -> str | None:
        return store.recall(cache_dir, content).get("base")

    def fill(scratch: Path) -> None:
        _unpack(path, scratch)

    def made(base: str) -> None:
        store.remember(cache_dir, content, {"base": base, "origin": str(path)})

    needed = int(found_stat.st_size * _GROWTH.get(path.suffix, _MOST_GROWTH))
    job = store.Job(path, needed, fill, found, made)
    return store.obtain(job, cache_dir, say)


# -- filling a scratch directory with sources ------------------------------------


def _without_products(
    named: Path, entries: Sequence[listing.Entry]
) -> tuple[listing.Entry, ...]:
    """``entries`` but for what tools of the tree left in it.

    That is the bulk of what an in-tree build made, if there was one.
    """
    left = [_MEMORY, *([_PRODUCTS] if store.is_built(named) else [])]
    return tuple(
        entry
        for entry in entries
        if not any(one.fullmatch(entry.path.rpartition("/")[2]) for one in left)
    )


def _copy(named: Path, wanted: Sequence[str], target: Path) -> None:
    """Copy the files ``wanted`` from below ``named`` to below ``target``."""
    for folder in sorted({os.path.dirname(path) for path in wanted}):  # noqa: PTH120
        (target / folder).mkdir(parents=True, exist_ok=True)
    names = b"".join(os.fsencode(path) + b"\0" for path in wanted)
    # Two at a time: the time goes into opening 95,000 files, not into the disk.
    process.run(
        (
            *("xargs", "-0", "-r", "-n", "4000", "-P", "2"),
            *("cp", "--parents", "--no-dereference", "--preserve=timestamps"),
            *("--reflink=auto", "-t", target, "--"),
        ),
        cwd=named,
        env={"LC_ALL": "C"},
        input=names,
    )


def _unpack(path: Path, scratch: Path) -> None:
    """Unpack a tarball, or the one in a Debian package, to ``scratch/src``."""
    inside = scratch / "unpacked"
    inside.mkdir()
    archive = path
    try:
        if path.suffix == ".deb":
            process.run(["dpkg-deb", "-x", path, scratch / "deb"], env={"LC_ALL": "C"})
            archive = next((scratch / "deb" / "usr" / "src").glob("linux-source*.tar*"))
        process.run(
            (
                *("tar", "--extract", "--no-same-owner", "--no-same-permissions"),
                *("--directory", inside, "--file", archive),
            ),
            # As many threads as the file has blocks for.
            env={"LC_ALL": "C", "XZ_DEFAULTS": "-T0"},
        )
    except StopIteration as error:
        raise NotAKernel(path, "the package has no linux-source tarball") from error
    cache.remove(scratch / "deb")
    tops = [inside, *(item for item in inside.iterdir() if item.is_dir())]
    found = next((top for top in tops if (top / "Makefile").is_file()), None)
    if found is None or (len(tops) > 2 and found != inside):
        raise NotAKernel(path, "it does not unpack to one directory with a Makefile")
    found.rename(scratch / "src")


def _base(
    base: str,
    cache_dir: Path,
    kind: Kind,
    origin: str,
    describe: str,
    commit: str | None = None,
    dirty: tuple[str, ...] = (),
) -> Base:
    version = store.use(base, cache_dir)
    path = store.place(base, cache_dir) / "src"
    return Base(base, path, kind, version, origin, describe, commit, dirty)
