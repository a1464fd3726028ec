# SPDX-License-Identifier: GPL-2.0-or-later
"""make's output directories: one for each series, so that none undoes another's work.

Two series with other configurations, or one that touches a header that everything
includes, would have each other's objects compiled anew at every turn.  So each keeps
its own output directory.  Only one is in use at a time, under a path that is the same
for all: the compiler writes that path into objects, and ccache into its keys.  The
others lie aside::

    builds/<base id>                    in use; kstall-slot.json says whose it is
    builds/.aside/<base id>/<slot>      the others

make goes by time stamps, and the sources are shared.  So an output directory knows
what content it last saw in each file that series touch, and with which time stamp:
the same content gets that time stamp back, any other one gets the present time.

A new one begins as a copy of the one of which most can be kept: kbuild finds for
itself what a changed symbol of the configuration has to have compiled again.

Directories for a few objects only, of kernels that nobody boots, are no such copies.
They are small, all series share them, and each has a path of its own::

    variants/<base id>/<name>

Those of another architecture than x86-64 have all that apart: ``builds-arm64``.
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
from ..tree import AppliedTree, Ever
from . import kconfig

# That of all series together, and those of the two kernels that watch themselves.  The
# ones used longest ago make room; what comes back is begun from its nearest neighbour.
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
    whose: Architecture = arch.X86_64,
) -> Path:
    """The output directory ``slot``, ready for make, with ``config`` as its .config.

    The caller has ``applied`` checked out.  Raises `space.NoSpace`.
    """
    builds = cache_dir / whose.place("builds")
    active = builds / applied.base.id
    aside = builds / ".aside" / applied.base.id
    _drop_orphans(builds, cache_dir / "trees")
    _set_aside(active, aside, slot, applied)
    known = active.exists() or _is_ours(aside / slot, applied)
    needed = _MORE_BYTES if known else _NEW_BYTES
    _make_room(cache_dir, aside, slot, needed)
    with space.guarded(cache_dir, needed, "a build"):
        if not active.exists():
            if not known:
                _seed(aside / slot, config, applied)
            (aside / slot).rename(active)
        os.utime(active)  # `_make_room` drops what was not used for longest
        _get_ready(active, slot, applied, config)
        _stamp(applied, [active])
    return active


def apart(
    applied: AppliedTree,
    name: str,
    cache_dir: Path,
    whose: Architecture = arch.X86_64,
) -> Path:
    """The output directory ``name`` for a few objects, which `turns` make ready.

    As `use`, but it begins empty, has its own path, and stays as long as its base.
    """
    variants = cache_dir / whose.place("variants")
    output = variants / applied.base.id / name
    _drop_orphans(variants, cache_dir / "trees")
    space.require(cache_dir, _FEW_BYTES, "a build of a few objects")
    with space.guarded(cache_dir, _FEW_BYTES, "a build of a few objects"):
        if not _is_ours(output, applied):
            _begin_anew(output, name, applied)
    return output


def turns(applied: AppliedTree, made: Mapping[Path, Path]) -> Iterator[list[Path]]:
    """Output directories by `apart`, each with a .config for it, made ready for make.

    They share the sources' time stamps, so make can be run at once in those that last
    saw the same files with the same stamps: these come together, and the others when
    the next ones are asked for.
    """
    alike: dict[str, list[Path]] = {}
    for output in made:
        seen = read(output / _SEEN, dict) or {}
        ours = [(path, seen.get(path)) for path in sorted(applied.ever)]
        alike.setdefault(cache.digest(ours), []).append(output)
    for turn in alike.values():
        with space.guarded(turn[0], 0, "a build of a few objects"):
            for output in turn:
                _get_ready(output, output.name, applied, made[output])
            _stamp(applied, turn)
        yield turn


def _get_ready(output: Path, slot: str, applied: AppliedTree, config: Path) -> None:
    """Have only what is whole in ``output``, and ``config``."""
    if _drop_torn(output) > _outwait_the_clock(output / _SLOT):
        # What changes now would look older than what was made of it before.
        cache.remark(
            f"the clock went back since {output} was last built in: nothing that is "
            "there is used"
        )
        _begin_anew(output, slot, applied)
    _install_config(config, output / ".config")


def forget(output: Path) -> None:
    """Delete an output directory that cannot be trusted; the next `use` begins anew."""
    _discard(output)


def unjudged(output: Path, applied: AppliedTree) -> None:
    """From here on the compiler may say something of a touched file.

    Until `judged`, a build that only warned, or was killed, would leave objects that
    make skips, and the warning would never come back.
    """
    cache.write_json(output / _UNJUDGED, sorted(applied.touched))


def judged(output: Path) -> None:
    """What the compiler said of the touched files has been read, to the end."""
    (output / _UNJUDGED).unlink()


# -- whose it is ---------------------------------------------------------------------


def _tree_mark(applied: AppliedTree) -> str:
    """Tells a tree from one that was removed and made anew, with other time stamps."""
    made = (applied.path.parent / "files").stat()
    return f"{made.st_ino}-{made.st_mtime_ns}"


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
    """What the JSON in ``path`` says; None if there is none, half of it, or another
    ``kind`` of it."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, kind) else None
    return None


def _discard(output: Path) -> None:
    """Delete ``output``; what is left of it, if we are killed, is nobody's."""
    (output / _SLOT).unlink(missing_ok=True)
    cache.remove(output)


def _set_aside(active: Path, aside: Path, slot: str, applied: AppliedTree) -> None:
    """Put what is in use aside, unless it is ``slot``."""
    owner = _slot_of(active, applied)
    if owner is None:
        _discard(active)
    elif owner != slot:
        aside.mkdir(parents=True, exist_ok=True)
        _discard(aside / owner)
        active.rename(aside / owner)


def _make_room(cache_dir: Path, aside: Path, slot: str, needed: int) -> None:
    """Remove what was used longest ago until there is room for a build."""
    for half in aside.glob(".*"):
        cache.remove(half)  # of a run that was killed: the tree's lock is ours
    others = [path for path in aside.glob("*") if path.name != slot]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    while others and (len(others) >= _KEEP or space.available(cache_dir) < needed):
        _discard(others.pop())
    space.require(cache_dir, needed, "a build")


def _drop_orphans(builds: Path, trees: Path) -> None:
    """Delete the output directories of bases that are gone from the cache."""
    for path in (*builds.glob("[!.]*"), *(builds / ".aside").glob("*")):
        if not (trees / path.name).exists():
            cache.remove(path)


# -- what is in it -------------------------------------------------------------------


def _seed(wanted: Path, config: Path, applied: AppliedTree) -> None:
    """Begin ``wanted`` with the objects of its nearest neighbour, if there is one."""
    neighbours = [
        path
        for path in wanted.parent.glob("[!.]*")
        if _is_ours(path, applied) and (path / ".config").exists()
    ]
    with cache.publish(wanted) as scratch:
        if neighbours:
            symbols = kconfig.parse_config(config)
            nearest = min(neighbours, key=lambda one: _stale(one, symbols, applied))
            process.run(
                ["cp", "-a", "--reflink=auto", f"{nearest}/.", str(scratch)],
                env={"LC_ALL": "C"},
            )
        else:
            cache.write_json(scratch / _SEEN, {})
        _claim(scratch, wanted.name, applied)


def _begin_anew(active: Path, slot: str, applied: AppliedTree) -> None:
    """Make ``active`` an empty directory of ``slot``."""
    _discard(active)
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
        for path, file in applied.ever.items()
        if _seen_blob(seen, path, file) != file.blob
    ]
    if not changed:
        return 0
    grep = ["grep", "--recursive", "--files-with-matches", "--fixed-strings"]
    found = process.run(
        [*grep, "--file=-", "--include=.*.o.cmd", output],
        input="\n".join(changed).encode(),
        check=False,  # 1 is for none
    )
    return len(found.stdout.splitlines())


def _seen_blob(seen: Mapping[str, Any], path: str, file: Ever) -> str | None:
    """What the directory last saw in ``path``; the base's content if nothing else."""
    blob: str | None = seen[path][0] if path in seen else file.base_blob
    return blob


def _drop_torn(output: Path) -> int:
    """Remove targets that a killed make may have left half made, such as without ORC.

    kbuild writes a target's .cmd after it: an older one is of the make before.  Only
    modules are newer by right, as their types are added later.  Objects that are cut
    short go as well, for a linker takes an empty one without a word.  Returns the time
    stamp of the newest .cmd in ns, that is of what was built last.
    """
    killed = (output / _UNJUDGED).exists()
    newest = 0
    for command in output.rglob(".*.cmd"):
        target = command.with_name(command.name[1:-4])
        with contextlib.suppress(FileNotFoundError):
            made = command.stat().st_mtime_ns
            newest = max(newest, made)
            if target.suffix == ".ko" and not killed:
                continue
            torn = target.stat().st_mtime_ns > made
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
    each, count = struct.unpack_from("<HH", head, 58 if wide else 46)
    return bool(start + each * count <= size)


def _stamp(applied: AppliedTree, made: Sequence[Path]) -> None:
    """Give each file that series touch the time stamp that make has to see in ``made``.

    A file that a build may have warned about without anyone reading it counts as
    changed.
    """
    histories = [_History.of(output, applied) for output in made]
    now = max(_outwait_the_clock(output / _SLOT) for output in made)
    stamps: dict[str, tuple[str | None, int]] = {}
    for path, file in applied.ever.items():
        before = [one.stamp(path, file) for one in histories]
        # Of several the latest, if they differ after all: an earlier one would hide
        # from make what was compiled before it, of other content, and not again since.
        known = [one for one in before if one is not None]
        stamp = max(known) if len(known) == len(before) else now
        stamps[path] = (file.blob, stamp)
        if file.blob is not None:
            os.utime(applied.path / path, ns=(now, stamp))
    for output in made:
        cache.write_json(output / _SEEN, stamps)


@dataclass(frozen=True)
class _History:
    """What an output directory has ``seen`` last, and what of it counts as changed."""

    seen: Mapping[str, Any]
    again: frozenset[str]

    @classmethod
    def of(cls, output: Path, applied: AppliedTree) -> _History:
        """That of ``output``."""
        again: frozenset[str] = frozenset()
        if (unread := output / _UNJUDGED).exists():
            known = read(unread, list)
            again = frozenset(applied.ever if known is None else known)
        return cls(read(output / _SEEN, dict) or {}, again)

    def stamp(self, path: str, file: Ever) -> int | None:
        """The time stamp in ns that the content had when it was last seen; None if
        what was last seen is something else."""
        if path in self.again or _seen_blob(self.seen, path, file) != file.blob:
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
