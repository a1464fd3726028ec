# SPDX-License-Identifier: GPL-2.0-or-later
"""Apply a series to a base: first to copies, then in the base's one workspace.

`plan` lets git apply the patches to copies of the few files they touch.  `workspace`
then makes the base's own ``src`` match the result.  There is one workspace a base,
and not one a series, because then source paths, and with them the keys of the compiler
cache, stay the same for all series (for objects see `outputs`).

Before a file is first changed, its pristine content and then its name are saved for
good.  So whatever a killed run left behind, the next checkout knows every file that may
be wrong, and what it should be::

    trees/<id>/pristine/...      the content of each file ever touched
    trees/<id>/pristine.json     their modes; null for a file that the base lacks
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache, elsewhere, space
from ..series import PatchFile
from . import am, listing, store
from .am import File
from .source import Base

_REGULAR = ("100644", "100755")
_MARGIN = 16 * 2**20
# The content of the files that were ever touched, and their modes.
_KEPT = ("pristine", "pristine.json")


@dataclass(frozen=True)
class Plan:
    """What the files of ``base`` should be under ``patches``.

    ``states[n]`` holds, after n patches, each touched file by path: None where there
    is none.  All states have the same paths.  ``offsets`` has the patch of each hunk
    that did not apply at the line it names.
    """

    base: Base
    patches: tuple[PatchFile, ...]
    states: tuple[tuple[tuple[str, File | None], ...], ...]
    offsets: tuple[Path, ...]

    @property
    def files(self) -> dict[str, File | None]:
        """Every touched file as it should be in the end."""
        return dict(self.states[-1])

    @property
    def touched(self) -> tuple[str, ...]:
        """The files that differ from the base in the end, sorted."""
        pristine = dict(self.states[0])
        return tuple(
            path for path, file in self.states[-1] if file != pristine.get(path)
        )

    @property
    def content(self) -> str:
        """A digest of the whole tree; that of the bare base with nothing touched."""
        return self._digest(self.touched)

    @property
    def compiled(self) -> str:
        """A digest of all that a build can read: `content` without prose."""
        return self._digest(path for path in self.touched if not is_prose(path))

    def _digest(self, paths: Iterable[str]) -> str:
        files = self.files
        facts = [
            (path, None if (file := files[path]) is None else file.facts())
            for path in paths
        ]
        return cache.digest(self.base.id, facts)

    def upto(self, count: int) -> Plan:
        """The plan for the first ``count`` patches; 0 is the bare base."""
        if not 0 <= count <= len(self.patches):
            raise ValueError(f"{count} of {len(self.patches)} patches")
        patches = self.patches[:count]
        paths = {patch.path for patch in patches}
        offsets = tuple(path for path in self.offsets if path in paths)
        return Plan(self.base, patches, self.states[: count + 1], offsets)


@dataclass(frozen=True)
class TouchedFile:
    """A file that this or another series touched: git's ids of it now and in the base.

    None where there is no file; ``base_mtime_ns`` is the time stamp it began with.
    """

    blob: str | None
    base_blob: str | None
    base_mtime_ns: int


@dataclass(frozen=True)
class AppliedTree:
    """The workspace at ``path`` while it is ours; see `Plan` for the rest.

    ``ever_touched`` has each file that any series touched in it so far, by path.
    """

    path: Path
    base: Base
    touched: tuple[str, ...]
    ever_touched: Mapping[str, TouchedFile]


def plan(
    base: Base, patches: Sequence[PatchFile], scratch: Path, *, log: Path | None = None
) -> Plan:
    """Apply ``patches`` with `git am` to copies of the files they touch.

    ``scratch`` is a directory for a repository that is gone afterwards.  What git says
    of a patch that does not fit goes to ``log``.  Raises `am.ApplyError`, `am.BadPatch`
    (a failed check), and `KstallError` for a base that was meddled with.  The workspace
    is only read, and may be in use by another run.
    """
    if not base.path.is_dir():
        raise _gone(base)
    records = _records(base)
    for patch in patches:
        for path in patch.touches:
            _require_no_link(patch, path, records)
    paths = sorted({path for patch in patches for path in patch.touches})
    pristine = _read_pristine(base, paths, records)
    with contextlib.ExitStack() as stack:
        stack.enter_context(space.guarded(scratch, _MARGIN, "applying a series"))
        scratch.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix="am-", dir=scratch)
        stack.enter_context(place)
        try:
            states, offsets = am.apply(pristine, patches, Path(place.name))
        except am.ApplyError as error:
            if log is not None and error.output:
                cache.write_text(log, error.output)
                error.log = log
            raise
    ordered = tuple(tuple(sorted(state.items())) for state in states)
    return Plan(base, tuple(patches), ordered, tuple(offsets))


def combined(patches: Sequence[PatchFile], parts: Sequence[Plan]) -> Plan:
    """The plan of ``patches``, which those of ``parts`` are in another order.

    No two parts touch the same file, and each has its patches in their order here, so
    nothing has to be applied again.  All parts are of one base.
    """
    counts = [0] * len(parts)
    part_of = {
        patch.path: number
        for number, part in enumerate(parts)
        for patch in part.patches
    }
    current = dict(item for part in parts for item in part.states[0])
    states = [tuple(sorted(current.items()))]
    offsets: list[Path] = []
    for patch in patches:
        number = part_of[patch.path]
        counts[number] += 1
        current.update(parts[number].states[counts[number]])
        states.append(tuple(sorted(current.items())))
        offsets += (path for path in parts[number].offsets if path == patch.path)
    return Plan(parts[0].base, tuple(patches), tuple(states), tuple(offsets))


@contextlib.contextmanager
def workspace(
    base: Base, say: Callable[[str], None]
) -> Iterator[Callable[[Plan], AppliedTree]]:
    """The workspace of ``base``, ours for as long as the block lasts; another run that
    wants it waits until then.

    The function that is yielded checks out a plan, one after the other.  Before the
    first it verifies that nobody else wrote to the workspace.  Only files that differ
    are written; `outputs` gives them the time stamps that make has to see.  Raises
    `KstallError` if the base is gone, or somebody did.
    """
    home = base.path.parent

    def waiting(holder: str) -> None:
        say(f"waiting for {holder}, which is using {base.path}")

    @functools.cache
    def records() -> Mapping[str, listing.Record]:
        # Once is enough as long as the lock is ours: it takes a second.
        recorded = _records(base)
        _require_untouched(base, recorded)
        return recorded

    def put(plan: Plan) -> AppliedTree:
        with space.guarded(home, _MARGIN, "a patched file"):
            ever_touched = _sync(plan, records(), say)
        return AppliedTree(base.path, base, plan.touched, ever_touched)

    if not base.path.is_dir():
        raise _gone(base)
    with cache.lock(home / "lock", waiting=waiting):
        # It may have been removed, as the least used, while we waited.
        if not (home / "base.json").exists():
            raise _gone(base)
        yield put


class Trees(elsewhere.EntryKind):
    """The copies of sources, whose workspace is packed without any patch, but with what
    is known of the files that were ever touched in it."""

    def is_complete(self, place: Path) -> bool:
        """Whether the copy at ``place`` is whole."""
        return store.is_complete(place.name, place.parents[1])

    @contextlib.contextmanager
    def packed(self, place: Path) -> Iterator[Sequence[str]]:
        """The sources without any patch, which nobody else uses meanwhile."""
        base = Base(place.name, place / "src", "directory", "", "", "")
        with workspace(base, lambda _: None) as put:
            put(Plan(base, (), ((),), ()))
            # Files that a series touched have other time stamps than in the records.
            kept = [name for name in _KEPT if (place / name).exists()]
            yield ("src", "files", "base.json", *kept)

    def prune(self, place: Path) -> None:
        """Delete all but the copies used last, and those of the last minutes."""
        store.prune(place.parents[1], place.name)


def _gone(base: Base) -> KstallError:
    return KstallError(f"{base.path} is gone from the cache", next="run it again")


def _sync(
    plan: Plan, records: Mapping[str, listing.Record], say: Callable[[str], None]
) -> dict[str, TouchedFile]:
    home = plan.base.path.parent
    _keep_pristine(plan.base, plan.files, records)
    # By content: a file that is kept aside may be damaged.
    originals = _read_pristine(plan.base, _kept_modes(home), records)
    files = {**originals, **plan.files}
    # Deletions first: one series' file may be where another has a directory.
    order = sorted(files, key=lambda path: (files[path] is not None, path))
    changed = [path for path in order if _write(home, path, files[path])]
    if changed:
        say(f"{len(changed)} source files changed in the workspace")
    return {
        path: _touched_file(file, records.get(path)) for path, file in files.items()
    }


def _touched_file(file: File | None, record: listing.Record | None) -> TouchedFile:
    return TouchedFile(
        blob=None if file is None else listing.blob_id(file.data),
        base_blob=None if record is None else record.blob,
        base_mtime_ns=0 if record is None else record.mtime_ns,
    )


def _require_untouched(base: Base, records: Mapping[str, listing.Record]) -> None:
    """Raise `KstallError` if anyone but us wrote to the workspace.

    Files that series touch are left out: those are compared by content anyway.
    """
    touched = _kept_modes(base.path.parent)
    changed = [
        path
        for path in listing.differing(listing.scan(base.path), records)
        if path not in touched
    ]
    if changed:
        raise _meddled(base, changed)


def _meddled(base: Base, paths: Sequence[str]) -> KstallError:
    shown = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
    return KstallError(
        f"{base.path} is kstall's own, and somebody changed {len(paths)} files in it: "
        f"{shown}",
        next=f"remove {base.path.parent}: the next run makes it anew",
    )


def pristine(base: Base, paths: Iterable[str]) -> dict[str, File | None]:
    """The content that ``paths`` have in the base; None where there is none.

    The workspace is only read, and may be in use by another run.  Raises `KstallError`
    if the base is gone, or somebody changed it.
    """
    if not base.path.is_dir():
        raise _gone(base)
    return _read_pristine(base, paths, _records(base))


def is_prose(path: str) -> bool:
    """Whether no build ever reads ``path``."""
    folder, _, name = path.rpartition("/")
    if folder.partition("/")[0] == "Documentation":
        return not name.startswith(("Kconfig", "Makefile"))
    return path in ("MAINTAINERS", "CREDITS")


def contents(base: Base) -> Iterator[tuple[str, str, bytes]]:
    """Path, mode as git writes it, and content of every file of the base; of a link
    where it leads to.

    The workspace is only read, and may be in use by another run.  Raises `KstallError`
    if the base is gone, or somebody changed it.
    """
    if not base.path.is_dir():
        raise _gone(base)
    home = base.path.parent
    for path, record in _records(base).items():
        aside, current = home / "pristine" / path, base.path / path
        if record.git_mode == "120000":
            content: bytes | None = os.fsencode(current.readlink())
        else:
            content = _first_that_is(record.blob, (aside, current, aside))
        if content is None:
            raise _meddled(base, [path])
        yield path, record.git_mode, content


def regular(base: Base) -> tuple[str, ...]:
    """The paths of all regular files of the base.

    Raises `KstallError` if it is gone.
    """
    if not base.path.is_dir():
        raise _gone(base)
    records = _records(base)
    return tuple(
        path for path, record in records.items() if record.git_mode in _REGULAR
    )


def _records(base: Base) -> Mapping[str, listing.Record]:
    path = base.path.parent / "files"
    status = path.stat()
    return _read_records(path, status.st_ino, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=2)  # 95,000 of them take a third of a second
def _read_records(path: Path, *_status: int) -> Mapping[str, listing.Record]:
    return listing.load(path)


# -- pristine content ----------------------------------------------------------------


def _kept_modes(home: Path) -> dict[str, str | None]:
    path = home / "pristine.json"
    if not path.exists():
        return {}
    modes: dict[str, str | None] = json.loads(path.read_text(encoding="utf-8"))
    return modes


def _read_pristine(
    base: Base, paths: Iterable[str], records: Mapping[str, listing.Record]
) -> dict[str, File | None]:
    """The content that ``paths`` have in the base, whatever is applied to it now."""
    home = base.path.parent
    files: dict[str, File | None] = {}
    for path in paths:
        record = records.get(path)
        if record is None:
            files[path] = None
            continue
        aside = home / "pristine" / path
        content = _first_that_is(record.blob, (aside, base.path / path, aside))
        if content is None:
            raise _meddled(base, [path])
        files[path] = File(content, record.git_mode == "100755")
    return files


def _first_that_is(blob: str, places: Sequence[Path]) -> bytes | None:
    """The content with git's id ``blob``, from the first of ``places`` that has it.

    Another run may be putting its series into the workspace as we read: it keeps a
    file aside before it changes it, so looking there first and last finds it.
    """
    for place in places:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            content = place.read_bytes()
            if listing.blob_id(content) == blob:
                return content
    return None


def _require_no_link(
    patch: PatchFile, path: str, records: Mapping[str, listing.Record]
) -> None:
    """Writing through a link could leave the tree: refuse to."""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        place = "/".join(parts[:count])
        record = records.get(place)
        if record is not None and record.git_mode not in _REGULAR:
            raise am.ApplyError(patch.path, path, f"{place} is a symbolic link")


def _keep_pristine(
    base: Base, paths: Iterable[str], records: Mapping[str, listing.Record]
) -> None:
    """Save the content that ``paths`` have in the base, and then their names."""
    home = base.path.parent
    modes = _kept_modes(home)
    missing = [path for path in paths if path not in modes]
    if not missing:
        return
    for path, file in _read_pristine(base, missing, records).items():
        if file is not None:
            _replace(home, home / "pristine" / path, file)
        modes[path] = None if file is None else records[path].git_mode
    cache.write_json(home / "pristine.json", modes)


# -- the workspace -------------------------------------------------------------------


def _write(home: Path, path: str, file: File | None) -> bool:
    """Make the workspace's ``path`` match ``file``; False if it did already."""
    target = home / "src" / path
    if target.is_symlink():
        target.unlink()
    changed = am.read(target) != file
    if file is None:
        if changed:
            target.unlink()
        # Also when nothing changed: a killed run may have come no further than that.
        _drop_empty(target.parent, home / "src")
    elif changed:
        _replace(home, target, file)
    return changed


def _drop_empty(folder: Path, top: Path) -> None:
    """Git knows no empty directories, so a tree made afresh would not have it."""
    while folder != top:
        if folder.is_dir():
            if any(folder.iterdir()):
                return
            folder.rmdir()
        folder = folder.parent


def _replace(home: Path, target: Path, file: File) -> None:
    """Write ``target`` by renaming, from a place that no build looks at."""
    temporary = home / "new-file"
    temporary.unlink(missing_ok=True)
    file.write(temporary)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, target)  # noqa: PTH105
