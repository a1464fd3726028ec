# SPDX-License-Identifier: GPL-2.0-or-later
"""make's output directories: one for each series, so that none undoes another's work.

Two series with different configurations, or one that touches a header that everything
includes, would have each other's objects compiled again at every turn.  So each keeps
its own output directory.  Only one is in use at a time, under a path that is the same
for all: it is in kbuild's commands and in the keys of ccache.  The others are set
aside::

    builds/<base id>                    in use; kstall-slot.json says whose it is
    builds/.aside/<base id>/<slot>      the others

make compares time stamps, and the sources are shared.  So an output directory records
what content it last saw in each file that series touch, and with which time stamp:
the same content gets that time stamp back, any other one gets the present time.

A new one begins as a copy of the one with the most objects to reuse: kbuild itself
finds what has to be compiled again for a changed symbol of the configuration.

Directories for a few objects only, of kernels that nobody boots, are no such copies.
They are small, all series share them, and each has a path of its own::

    variants/<base id>/<name>

Other architectures than x86-64 have separate directories: ``builds-arm64``.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..base import Architecture, arch, cache, process, space
from ..tree import AppliedTree, TouchedFile
from . import kconfig

# That of all series together, and those of the two debug kernels (KASAN + lockdep;
# KCSAN).  The least recently used one makes room; if it is needed again, it begins as
# a copy of its nearest neighbour.
_KEEP = 3
# A new directory, and what a build adds to one that is there: measured 1.9 and 0.3 GB.
_NEW_BYTES = 25 * 10**8
_MORE_BYTES = 10**9
# Of one for a few objects: the programs and headers that kbuild makes before any.
_FEW_BYTES = 3 * 10**8
_SLOT = "kstall-slot.json"
_SEEN = "kstall-sources.json"
_UNJUDGED = "kstall-unjudged.json"
_Kind = TypeVar("_Kind", bound=object)


def use(
    applied: AppliedTree,
    slot: str,
    config: Path,
    cache_dir: Path,
    architecture: Architecture = arch.X86_64,
) -> Path:
    """The output directory ``slot``, ready for make, with ``config`` as its .config.

    The caller has ``applied`` checked out.  Raises `space.NoSpace`.
    """
    builds = cache_dir / architecture.place("builds")
    active = builds / applied.base.id
    aside = builds / ".aside" / applied.base.id
    _drop_orphans(builds, cache_dir / "trees")
    _set_aside(active, aside, slot, applied)
    reusable = active.exists() or _is_ours(aside / slot, applied)
    needed = _MORE_BYTES if reusable else _NEW_BYTES
    _make_room(cache_dir, aside, slot, needed)
    with space.guarded(cache_dir, needed, "a build"):
        if not active.exists():
            if not reusable:
                _seed(aside / slot, config, applied)
            (aside / slot).rename(active)
        os.utime(active)  # `_make_room` drops the least recently used
        _get_ready(active, slot, applied, config)
        _stamp(applied, [active])
    return active


def apart(
    applied: AppliedTree,
    name: str,
    cache_dir: Path,
    architecture: Architecture = arch.X86_64,
) -> Path:
    """The output directory ``name`` for a few objects, which `turns` make ready.

    As `use`, but it begins empty, has its own path, and stays as long as its base.
    """
    variants = cache_dir / architecture.place("variants")
    output = variants / applied.base.id / name
    _drop_orphans(variants, cache_dir / "trees")
    with space.reserved(cache_dir, _FEW_BYTES, "a build of a few objects"):
        if not _is_ours(output, applied):
            _begin_anew(output, name, applied)
    return output


def turns(applied: AppliedTree, configs: Mapping[Path, Path]) -> Iterator[list[Path]]:
    """Get output directories of `apart` ready for make, with their .config.

    They share the sources' time stamps, so make can run at the same time only in those
    that last saw the same files with the same stamps.  Each list has such ones, which
    are ready until the next list is asked for.
    """
    alike: dict[str, list[Path]] = {}
    for output in configs:
        seen = read(output / _SEEN, dict) or {}
        state = [(path, seen.get(path)) for path in sorted(applied.ever_touched)]
        alike.setdefault(cache.digest(state), []).append(output)
    for turn in alike.values():
        with space.guarded(turn[0], 0, "a build of a few objects"):
            for output in turn:
                _get_ready(output, output.name, applied, configs[output])
            _stamp(applied, turn)
        yield turn


def _get_ready(output: Path, slot: str, applied: AppliedTree, config: Path) -> None:
    """Remove incomplete targets from ``output``, and install ``config``."""
    if _drop_torn(output) > _outwait_the_clock(output / _SLOT):
        # A source that changes now would look older than its object.
        cache.remark(
            f"the clock went back since {output} was last built in: it is rebuilt "
            "from scratch"
        )
        _begin_anew(output, slot, applied)
    _install_config(config, output / ".config")


def discard(output: Path) -> None:
    """Delete ``output``, its owner first: if we are killed, nothing uses the rest.

    The next `use` of one that could not be trusted begins anew.
    """
    (output / _SLOT).unlink(missing_ok=True)
    cache.remove(output)


def mark_unread(output: Path, applied: AppliedTree) -> None:
    """Record that from here on the compiler may warn about a touched file unseen.

    Until `mark_read`, a build that only warned, or was killed, would leave objects that
    make skips, and the warning would never come back.
    """
    cache.write_json(output / _UNJUDGED, sorted(applied.touched))


def mark_read(output: Path) -> None:
    """Record that all warnings about touched files have been read."""
    (output / _UNJUDGED).unlink()


# -- whose it is ---------------------------------------------------------------------


def _tree_mark(applied: AppliedTree) -> str:
    """Tells a tree from one that was removed and made anew, with other time stamps."""
    status = (applied.path.parent / "files").stat()
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _slot_of(output: Path, applied: AppliedTree) -> str | None:
    """Whose directory it is; None if it was not made from this tree, or is broken."""
    facts = read(output / _SLOT, dict) or {}
    seen = read(output / _SEEN, dict)
    if facts.get("tree") != _tree_mark(applied) or seen is None:
        return None
    slot: str | None = facts.get("slot")
    return slot


def _is_ours(output: Path, applied: AppliedTree) -> bool:
    return _slot_of(output, applied) == output.name


def read(path: Path, kind: type[_Kind]) -> _Kind | None:
    """The JSON value in ``path``; None if it is missing, truncated or not of type
    ``kind``."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, kind) else None
    return None


def _set_aside(active: Path, aside: Path, slot: str, applied: AppliedTree) -> None:
    """Set the active directory aside, unless it is ``slot``."""
    owner = _slot_of(active, applied)
    if owner is None:
        discard(active)
    elif owner != slot:
        aside.mkdir(parents=True, exist_ok=True)
        discard(aside / owner)
        active.rename(aside / owner)


def _make_room(cache_dir: Path, aside: Path, slot: str, needed: int) -> None:
    """Remove the least recently used until there is room for a build."""
    for leftover in aside.glob(".*"):
        cache.remove(leftover)  # of a run that was killed: the tree's lock is ours
    others = [path for path in aside.glob("*") if path.name != slot]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    while others and (len(others) >= _KEEP or space.available(cache_dir) < needed):
        discard(others.pop())
    space.require(cache_dir, needed, "a build")


def _drop_orphans(builds: Path, trees: Path) -> None:
    """Delete the output directories of bases that are gone from the cache."""
    for path in (*builds.glob("[!.]*"), *(builds / ".aside").glob("*")):
        if not (trees / path.name).exists():
            cache.remove(path)


# -- what is in it -------------------------------------------------------------------


def _seed(target: Path, config: Path, applied: AppliedTree) -> None:
    """Begin ``target`` with the objects of its nearest neighbour, if there is one."""
    neighbours = [
        path
        for path in target.parent.glob("[!.]*")
        if _is_ours(path, applied) and (path / ".config").exists()
    ]
    with cache.publish(target) as scratch:
        if neighbours:
            symbols = kconfig.parse_config(config)
            nearest = min(
                neighbours, key=lambda neighbour: _stale(neighbour, symbols, applied)
            )
            process.run(
                ["cp", "-a", "--reflink=auto", f"{nearest}/.", str(scratch)],
                env={"LC_ALL": "C"},
            )
        else:
            cache.write_json(scratch / _SEEN, {})
        _claim(scratch, target.name, applied)


def _begin_anew(active: Path, slot: str, applied: AppliedTree) -> None:
    """Make ``active`` an empty directory of ``slot``."""
    discard(active)
    with cache.publish(active) as scratch:
        cache.write_json(scratch / _SEEN, {})
        _claim(scratch, slot, applied)


def _claim(output: Path, slot: str, applied: AppliedTree) -> None:
    cache.write_json(output / _SLOT, {"slot": slot, "tree": _tree_mark(applied)})


def _stale(output: Path, symbols: Mapping[str, str], applied: AppliedTree) -> int:
    """How many objects in ``output`` would be compiled again for these ``symbols``."""
    theirs = kconfig.parse_config(output / ".config")
    seen = read(output / _SEEN, dict) or {}
    # As fixdep writes them, one to a line.
    changed = [
        f"$(wildcard include/config/{name}) "
        for name, _ in symbols.items() ^ theirs.items()
    ] + [
        f" {applied.path / path} "
        for path, file in applied.ever_touched.items()
        if _seen_blob(seen, path, file) != file.blob
    ]
    if not changed:
        return 0
    grep = ["grep", "--recursive", "--files-with-matches", "--fixed-strings"]
    completed = process.run(
        [*grep, "--file=-", "--include=.*.o.cmd", output],
        input="\n".join(changed).encode(),
        check=False,  # 1 is for none
    )
    return len(completed.stdout.splitlines())


def _seen_blob(seen: Mapping[str, Any], path: str, file: TouchedFile) -> str | None:
    """What the directory last saw in ``path``; the base's content if nothing else."""
    blob: str | None = seen[path][0] if path in seen else file.base_blob
    return blob


def _drop_torn(output: Path) -> int:
    """Remove targets that a killed make may have left incomplete, say without ORC.

    kbuild writes a target's .cmd after the target: an older one is of an earlier make.
    Only modules may be newer, as their BTF is added later.  Truncated objects are
    removed as well, for a linker accepts an empty one silently.  Returns the time stamp
    of the newest .cmd in ns, that is of what was built last.
    """
    killed = (output / _UNJUDGED).exists()
    newest = 0
    for command in output.rglob(".*.cmd"):
        target = command.with_name(command.name[1:-4])
        with contextlib.suppress(FileNotFoundError):
            built_ns = command.stat().st_mtime_ns
            newest = max(newest, built_ns)
            if target.suffix == ".ko" and not killed:
                continue
            torn = target.stat().st_mtime_ns > built_ns
            if torn or (target.suffix == ".o" and not _is_whole(target)):
                target.unlink()
    return newest


def _is_whole(target: Path) -> bool:
    """Whether the section headers of an object, which come last, lie within it."""
    with target.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(64)
    if len(head) < 52 or head[:4] != b"\x7fELF":
        return False
    wide = head[4] == 2
    (start,) = struct.unpack_from("<Q" if wide else "<I", head, 40 if wide else 32)
    entry_size, count = struct.unpack_from("<HH", head, 58 if wide else 46)
    return bool(start + entry_size * count <= size)


def _stamp(applied: AppliedTree, outputs: Sequence[Path]) -> None:
    """Give each file that series touch the time stamp that make in ``outputs`` needs.

    A file that a build may have warned about without anyone reading it counts as
    changed.
    """
    histories = [_History.of(output, applied) for output in outputs]
    now = max(_outwait_the_clock(output / _SLOT) for output in outputs)
    stamps: dict[str, tuple[str | None, int]] = {}
    for path, file in applied.ever_touched.items():
        earlier = [history.stamp(path, file) for history in histories]
        # The latest, if they differ after all: an earlier one would hide from make an
        # object that was compiled before it, from other content.
        known = [stamp for stamp in earlier if stamp is not None]
        stamp = max(known) if len(known) == len(earlier) else now
        stamps[path] = (file.blob, stamp)
        if file.blob is not None:
            os.utime(applied.path / path, ns=(now, stamp))
    for output in outputs:
        cache.write_json(output / _SEEN, stamps)


@dataclass(frozen=True)
class _History:
    """What an output directory has ``seen`` last.

    ``unread`` are files with warnings that nobody may have read: they count as changed.
    """

    seen: Mapping[str, Any]
    unread: frozenset[str]

    @classmethod
    def of(cls, output: Path, applied: AppliedTree) -> _History:
        """That of ``output``."""
        unread: frozenset[str] = frozenset()
        if (file := output / _UNJUDGED).exists():
            paths = read(file, list)
            unread = frozenset(applied.ever_touched if paths is None else paths)
        return cls(read(output / _SEEN, dict) or {}, unread)

    def stamp(self, path: str, file: TouchedFile) -> int | None:
        """The time stamp in ns that the content had when it was last seen; None if
        what was last seen is something else."""
        if path in self.unread or _seen_blob(self.seen, path, file) != file.blob:
            return None
        stamp: int = self.seen[path][1] if path in self.seen else file.base_mtime_ns
        return stamp


def _outwait_the_clock(file: Path) -> int:
    """The present, in ns, as a time later than that of any file written before.

    File times move in steps of a timer tick, and make takes equal for up to date.
    """
    os.utime(file)
    before = file.stat().st_mtime_ns
    while (now := file.stat().st_mtime_ns) == before:
        time.sleep(0.001)
        os.utime(file)
    return now


def _install_config(source: Path, target: Path) -> None:
    text = source.read_bytes()
    if not target.exists() or target.read_bytes() != text:
        target.write_bytes(text)
