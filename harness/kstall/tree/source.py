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
# Products of a build, gigabytes, which `make mrproper` would only delete again.
_PRODUCTS = re.compile(r"(.*\.(o|ko|a|dwo)|\..*\.cmd|vmlinux|vmlinux\.unstripped)")
# A cache of checkpatch.pl's; with it, the same sources would be another base.
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

    @property
    def repository(self) -> Path | None:
        """The repository on this machine that has the history of its commit, if any."""
        if self.commit is None:
            return None
        branch = remote.named(Path(self.origin))
        return Path(self.origin) if branch is None else branch.path

    def as_json(self) -> dict[str, str]:
        """The base for another process, without its path."""
        return {"id": self.id, "version": self.version, "describe": self.describe}

    @staticmethod
    def of_json(raw: Mapping[str, str], cache_dir: Path) -> Base:
        """The base that `as_json` was called on, of which this cache has a copy."""
        version = store.use(raw["id"], cache_dir)
        path = store.place(raw["id"], cache_dir) / "src"
        return Base(raw["id"], path, "directory", version, raw["id"], raw["describe"])


def obtain(
    kernel: Path | None, cache_dir: Path, say: Say, *, keep: int = store.KEPT
) -> Base:
    """The base for what the user named, or for Debian's newest kernel source.

    ``debian:6.12`` names the newest ``linux-source-6.12`` that Debian has, and
    ``REPO#BRANCH`` what a branch of a repository is now.  A copy is made only when
    there is none yet, and then ``keep`` of them stay, the ones used last; none is
    removed while what is returned exists.  ``say`` prints what was chosen and the
    progress of long steps.  Raises `KstallError`, and leaves nothing half-made.
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
    origin = kernel.expanduser().absolute()
    if branch is not None:
        if branch.path is not None:
            _require_outside(branch.path, cache_dir)
        store.prepare(cache_dir)
        checkout = remote.read(branch, cache_dir, say)
        return _from_branch(branch, checkout, cache_dir, say)
    _require_there(kernel)
    _require_outside(origin, cache_dir)
    store.prepare(cache_dir)
    if (base := store.owner(origin.resolve(), cache_dir)) is not None:
        return _base(base, cache_dir, "directory", str(origin), base)
    if origin.is_file():
        return _from_tarball(origin, cache_dir, say)
    if os.path.lexists(origin / ".git"):
        return _from_git(origin, cache_dir, say)
    return _from_directory(origin, cache_dir, say)


def require(kernel: Path | None) -> None:
    """Raise `KstallError` if ``kernel`` names no tree, as far as this machine knows.

    It is cheap: commands call it before they fetch or copy anything.
    """
    if kernel is None or debian_version(kernel) is not None:
        return
    if (branch := remote.named(kernel)) is not None:
        remote.require(branch)
    else:
        _require_there(kernel)


def require_apart(kernel: Path | None, out: Path) -> None:
    """Raise `KstallError` if ``out`` lies in the plain directory ``kernel``.

    What is written there would be sources of the next run.  In a git checkout it is
    not: only what is committed is.
    """
    if kernel is None or debian_version(kernel) is not None or remote.named(kernel):
        return
    tree = kernel.expanduser().absolute()
    plain = not os.path.lexists(tree / ".git")
    if plain and out.resolve().is_relative_to(tree.resolve()):
        raise KstallError(
            f"{out} lies inside the kernel tree {tree}, and would be part of its "
            "sources the next time",
            next="name a directory outside of it with --out",
        )


def _require_there(kernel: Path) -> None:
    origin = kernel.expanduser().absolute()
    if origin.exists():
        return
    if str(kernel).startswith("debian:"):
        raise KstallError(
            f"{kernel} names no version of Debian's kernel source",
            next="name it as debian:X.Y, such as debian:" + _DEBIAN_VERSION,
        )
    raise NotAKernel(origin, "there is no such file or directory")


def _require_outside(tree: Path, cache_dir: Path) -> None:
    if cache_dir.resolve().is_relative_to(tree.resolve()):
        raise KstallError(
            f"the cache {cache_dir} lies inside the kernel tree {tree}",
            next="set KSTALL_CACHE to a directory outside of it",
        )


def debian_version(kernel: Path) -> str | None:
    """The version in ``debian:7.2``; None for any other path."""
    match = _OF_DEBIAN.fullmatch(str(kernel))
    return match[1] if match else None


# -- the four places that sources come from --------------------------------------


def _from_debian(package: str, cache_dir: Path, say: Say) -> Base:
    with space.guarded(cache_dir, _PACKAGE_BYTES, package):
        debs = cache_dir / "sources"
        deb = apt.newest(package, debs, say, now=time.time())
    base = _archive(deb.path, cache_dir, say)
    return _base(base, cache_dir, "debian", deb.package, deb.version)


def _from_tarball(origin: Path, cache_dir: Path, say: Say) -> Base:
    base = _archive(origin, cache_dir, say)
    return _base(base, cache_dir, "tarball", str(origin), origin.name)


def _from_directory(origin: Path, cache_dir: Path, say: Say) -> Base:
    store.require_kernel(origin, origin)
    key = cache.digest("directory", str(origin.resolve()))
    entries = listing.scan(origin)
    state = listing.fingerprint(entries)
    files = _without_products(origin, entries)

    def lookup() -> str | None:
        memory = store.recall(cache_dir, key)
        return memory.get("base") if memory.get("state") == state else None

    def fill(scratch: Path) -> Mapping[str, str]:
        if count := len(entries) - len(files):
            say(f"{origin}: leaving out {count} files that its own tools made")
        with ThreadPoolExecutor(1) as pool:
            # At the same time, so that the disk reads each file once for both.
            ids = pool.submit(listing.blobs, origin, files)
            _copy(origin, [entry.path for entry in files], scratch / "src")
        if listing.fingerprint(listing.scan(origin)) != state:
            raise KstallError(
                f"{origin} changed while it was being copied", next="run it again"
            )
        return ids.result()

    def record(base: str) -> None:
        facts = {"state": state, "base": base, "origin": str(origin)}
        store.remember(cache_dir, key, facts)

    needed = listing.disk_bytes(files)
    base = store.obtain(
        store.CopyJob(origin, needed, fill, lookup, record), cache_dir, say
    )
    return _base(base, cache_dir, "directory", str(origin), f"files {state[:12]}")


def _from_git(origin: Path, cache_dir: Path, say: Say) -> Base:
    checkout = git.read(origin)
    base = _committed(origin, "HEAD", checkout, cache_dir, say)
    key = cache.digest("git", str(origin.resolve()))
    keep = cache_dir / "sources" / "checkouts" / key
    with cache.lock(keep / "lock"):
        dirty = git.changes(checkout, keep)
    if dirty:
        shown = ", ".join(dirty[:3]) + (", ..." if len(dirty) > 3 else "")
        say(
            f"{origin} has {len(dirty)} changed files that are not committed "
            f"({shown}): what is proven is its HEAD, {checkout.commit[:12]}"
        )
    memory = store.recall(cache_dir, key)
    if memory.get("commit") != checkout.commit:
        memory = {"commit": checkout.commit, "describe": git.describe(checkout)}
        store.remember(cache_dir, key, memory)
    return _base(
        base, cache_dir, "git", str(origin), memory["describe"], checkout.commit, dirty
    )


def _from_branch(
    branch: remote.Branch, checkout: git.Checkout, cache_dir: Path, say: Say
) -> Base:
    base = _committed(Path(str(branch)), branch.branch, checkout, cache_dir, say)
    # What was fetched has no history to count from.
    state = checkout.commit[:12] if branch.url else git.describe(checkout)
    return _base(
        base,
        cache_dir,
        "git",
        origin=str(branch),
        describe=f"{branch.branch} at {state}",
        commit=checkout.commit,
    )


def _committed(
    origin: Path, revision: str, checkout: git.Checkout, cache_dir: Path, say: Say
) -> str:
    """The id of the base that the commit of ``checkout`` is."""
    makefile = git.show(checkout, "Makefile")
    version = store.version_of((makefile or b"").decode("utf-8", "replace"))
    if version is None or git.show(checkout, "Kbuild") is None:
        place = f"its {revision} {checkout.commit[:12]}"
        raise NotAKernel(origin, f"{place} has no Makefile with VERSION, or no Kbuild")
    base = store.name(version, checkout.tree)

    def lookup() -> str | None:
        return base if store.is_complete(base, cache_dir) else None

    def fill(scratch: Path) -> Mapping[str, str]:
        git.export(checkout, scratch / "src", scratch)
        return {path: blob for path, (blob, _) in files.items()}

    files = {} if lookup() else git.sizes(checkout)
    needed = sum(size // 4096 * 4096 + 4096 for _, size in files.values())
    job = store.CopyJob(origin, needed, fill, lookup, tree=checkout.tree)
    return store.obtain(job, cache_dir, say)


def _archive(path: Path, cache_dir: Path, say: Say) -> str:
    """The id of the base that a tarball, or a Debian package of one, unpacks to."""
    key = cache.digest("file", str(path.resolve()))
    status = path.stat()
    state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    memory = store.recall(cache_dir, key)
    if memory.get("state") != state:
        memory = {"state": state, "sha256": cache.file_digest(path)}
        store.remember(cache_dir, key, memory)
    content = cache.digest("content", memory["sha256"])

    def lookup() -> str | None:
        return store.recall(cache_dir, content).get("base")

    def fill(scratch: Path) -> None:
        _unpack(path, scratch)

    def record(base: str) -> None:
        store.remember(cache_dir, content, {"base": base, "origin": str(path)})

    needed = int(status.st_size * _GROWTH.get(path.suffix, _MOST_GROWTH))
    job = store.CopyJob(path, needed, fill, lookup, record)
    return store.obtain(job, cache_dir, say)


# -- filling a scratch directory with sources ------------------------------------


def _without_products(
    tree: Path, entries: Sequence[listing.Entry]
) -> tuple[listing.Entry, ...]:
    """``entries`` without the files that tools of the tree left in it.

    These are most of the products of an in-tree build, if there was one.
    """
    patterns = [_MEMORY, *([_PRODUCTS] if store.is_built(tree) else [])]
    return tuple(
        entry
        for entry in entries
        if not any(
            pattern.fullmatch(entry.path.rpartition("/")[2]) for pattern in patterns
        )
    )


def _copy(tree: Path, paths: Sequence[str], target: Path) -> None:
    """Copy the files ``paths`` from below ``tree`` to below ``target``."""
    for folder in sorted({os.path.dirname(path) for path in paths}):  # noqa: PTH120
        (target / folder).mkdir(parents=True, exist_ok=True)
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    # Two at a time: the time goes into opening 95,000 files, not into the disk.
    process.run(
        (
            *("xargs", "-0", "-r", "-n", "4000", "-P", "2"),
            *("cp", "--parents", "--no-dereference", "--preserve=timestamps"),
            *("--reflink=auto", "-t", target, "--"),
        ),
        cwd=tree,
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
    # A link may lead to the user's own tree.
    folders = (item for item in inside.iterdir() if not item.is_symlink())
    tops = [inside, *(item for item in folders if item.is_dir())]
    source = next((top for top in tops if (top / "Makefile").is_file()), None)
    if source is None or (len(tops) > 2 and source != inside):
        raise NotAKernel(path, "it does not unpack to one directory with a Makefile")
    source.rename(scratch / "src")


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
    home = store.place(base, cache_dir)
    held = Base(base, home / "src", kind, version, origin, describe, commit, dirty)
    # Other runs make copies while this one takes hours.
    cache.hold_for(held, home)
    return held
