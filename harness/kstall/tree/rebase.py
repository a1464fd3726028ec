# SPDX-License-Identifier: GPL-2.0-or-later
"""A series carried over from the tree that it was made for to another one.

Patches alone are not enough for a three-way merge: no repository has the files that
they were made from.  So both trees are commits in our repository in the cache, the
series is committed onto the first, and git cherry-picks its commits onto the second.

That happens in a repository of its own, where a person may have to resolve conflicts::

    tree/           the work tree: only the directories that the series touches
    state.json      the series and the trees that it was begun with, and the commits
                    that the new tree was found to have
    patches/        the result, once no conflict is left
    range-diff.txt  how each patch changed
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..base import DoesNotApply, KstallError, cache, space
from ..series import PatchFile, Series, patchfile
from . import git, remote, tree
from .source import Base, Say

OLD, SERIES, NEW, REBASED = "kstall-old", "series", "kstall-new", "rebased"
_STATE = "state.json"
_BASES = 6
_IMPORT_BYTES = 700 * 10**6
_QUIET_S = 20.0
_IDLE_S = 3600.0
_FILES = 100_000
_SETTINGS = {
    "rerere.enabled": "false",
    "merge.renames": "true",
    "merge.conflictStyle": "zdiff3",
    # All files could be renamed ones, and few are.
    "merge.renameLimit": "20000",
}
_IDENTITY = {**git.IDENTITY, "GIT_EDITOR": "true"}
# Most of a small patch may change on another tree, and it is the same patch still.
_RANGE_DIFF = ("range-diff", "--no-color", "--no-notes", "--creation-factor=95")
_MARK = re.compile(rb"(?m)^<<<<<<< ")
# As git ends the message of a commit that it could not merge, resolved or not.
_CONFLICTS = re.compile(rb"(?m)^.? ?Conflicts:$")


@dataclass(frozen=True)
class MergeConflict:
    """A patch that git could not merge.

    ``places`` are ``file:line`` of each conflict, or a file and what became of it.
    ``resolved``: no conflict is left, and git has only to go on.
    """

    patch: PatchFile
    number: int
    places: tuple[str, ...]
    resolved: bool = False


@dataclass(frozen=True)
class RebaseResult:
    """The result for a series: a `conflict`, or ``patches``, in their order.

    ``gone`` are those that the new tree has already, and ``dropped`` those that are
    missing without that.  ``range_diff`` is git's.
    """

    directory: Path
    count: int
    conflict: MergeConflict | None = None
    gone: tuple[PatchFile, ...] = ()
    dropped: tuple[PatchFile, ...] = ()
    patches: tuple[PatchFile, ...] = ()
    range_diff: str = ""

    @property
    def tree(self) -> Path:
        """The work tree."""
        return self.directory / "tree"

    def commands(self, command: Sequence[str]) -> list[str]:
        """What a person types to go on after a conflict; ``command`` is the one that
        ended with it."""
        assert self.conflict is not None
        work = f"git -C {shlex.quote(str(self.tree))}"
        settle = []
        if not self.conflict.resolved:
            settle = [
                f"{work} show CHERRY_PICK_HEAD    # the patch, as it was",
                f"{work} diff                     # where both trees differ",
                f"{work} add -u                   # once no <<<<<<< is left",
            ]
        return [
            *settle,
            f"{work} cherry-pick --continue   # until nothing is left to pick",
            shlex.join(command),
        ]


def port(
    series: Series, old: Base, new: Base, directory: Path, cache_dir: Path, say: Say
) -> RebaseResult:
    """Carry ``series`` over from ``old`` to ``new``, in ``directory``.

    One that was begun there goes on, with the conflicts that were resolved meanwhile.
    Raises `KstallError` if the series does not even apply to ``old``, or if the
    directory was begun from something else.
    """
    _require_outside(directory, new)
    state = {"series": series.name, "digest": series.digest}
    state |= {"old": old.id, "new": new.id}
    if directory.exists():
        _require_same(directory, state)
    else:
        _begin(series, old, new, directory, cache_dir, say, state)
    return _go_on(series, directory)


def _require_outside(directory: Path, new: Base) -> None:
    origin = Path(new.origin)
    if (named := remote.named(origin)) is not None:
        if named.path is None:
            return
        origin = named.path
    if new.kind != "debian" and directory.resolve().is_relative_to(origin.resolve()):
        raise KstallError(
            f"{directory} lies inside the kernel tree {origin}, which is only read",
            next="name another place with --out",
        )


def _require_same(directory: Path, state: dict[str, str]) -> None:
    try:
        earlier = _state(directory)
    except (OSError, ValueError) as error:
        raise KstallError(
            f"{directory} exists, and no series was carried over in it",
            next="name another place with --out, or remove it",
        ) from error
    words = {
        "series": "of another series",
        "digest": "from other patches, or another series.toml",
        "old": "from another tree",
        "new": "onto another tree",
    }
    differences = [words[key] for key in words if earlier.get(key) != state[key]]
    if differences:
        raise KstallError(
            f"{directory} was begun {' and '.join(differences)}",
            next="its content is yours: remove it once it is not needed, and run this "
            "again",
        )


# -- beginning -----------------------------------------------------------------------


def _begin(
    series: Series,
    old: Base,
    new: Base,
    directory: Path,
    cache_dir: Path,
    say: Say,
    state: dict[str, str],
) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with cache.publish(directory) as scratch:
        try:
            plan = tree.plan(old, series.patches, scratch / "plan")
        except DoesNotApply as error:
            # Which is no conflict.
            raise KstallError(
                f"{series.name} does not apply to the tree that it is to be carried "
                f"over from, {old.version} ({old.describe}): {error.headline}",
                next="name the tree that it applies to with --from",
            ) from error
        cache.remove(scratch / "plan")
        with remote.locked(cache_dir, say) as store:
            commits = [_imported(base, store, cache_dir, say) for base in (old, new)]
            _hold(store, directory, commits)
        _commit(series, plan, commits, store, scratch / "tree")
        cache.write_json(scratch / _STATE, state)


def _commit(
    series: Series, plan: tree.Plan, commits: Sequence[str], store: Path, work: Path
) -> None:
    """Make the repository in ``work``: the series on the old tree, and the new one."""
    work.mkdir()
    _git(work, "init", "-q", "--template=", "-b", OLD, ".")
    info = work / ".git" / "objects" / "info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "alternates").write_bytes(os.fsencode(store.resolve() / "objects") + b"\n")
    git.keep_exact(work / ".git")
    if shallow := _shallow(store):
        (work / ".git" / "shallow").write_text(shallow)
    # For the person who goes on there, too.
    for name in ("rerere.enabled", "merge.conflictStyle", "merge.renameLimit"):
        _git(work, "config", name, _SETTINGS[name])
    if not _has_identity(work):
        _git(work, "config", "user.name", _IDENTITY["GIT_COMMITTER_NAME"])
        _git(work, "config", "user.email", _IDENTITY["GIT_COMMITTER_EMAIL"])
    old, new = commits
    _git(work, "branch", OLD, old)
    _git(work, "branch", NEW, new)
    folders = {str(PurePosixPath(path).parent) for path, _ in plan.states[0]}
    _git(work, "sparse-checkout", "set", "--cone", *sorted(folders - {"."}))
    _git(work, "switch", "-q", "-c", SERIES, OLD)
    words = ("am", "-q", "--no-3way", "--no-gpg-sign", "--no-scissors", "--keep-cr")
    for patch in series.patches:
        _git(work, *words, "--", patch.path.absolute())
    _git(work, "switch", "-q", "-c", REBASED, NEW)


def _shallow(store: Path) -> str:
    path = store / "shallow"
    return path.read_text() if path.exists() else ""


def _has_identity(work: Path) -> bool:
    with contextlib.suppress(git.GitError):
        return bool(git.git("config", "--get", "user.email", cwd=work).strip())
    return False


def _git(work: Path, *words: str | Path) -> str:
    return git.printed(work, *words, env=_IDENTITY, settings=_SETTINGS)


# -- trees as commits ----------------------------------------------------------------


def _imported(base: Base, store: Path, cache_dir: Path, say: Say) -> str:
    """The commit of ``base`` in our repository: the original one, if that has it."""
    ref = f"refs/kstall/bases/{base.id}"
    if (commit := git.resolve(store, ref)) is not None:
        return commit
    if base.commit is not None and git.resolve(store, base.commit) is not None:
        git.git("update-ref", ref, base.commit, cwd=store)
        return base.commit
    say(f"importing {base.version} into a repository of kstall's, once")
    with space.reserved(cache_dir, _IMPORT_BYTES, f"a commit of {base.version}"):
        git.git(
            *("fast-import", "--quiet", "--depth=0", "--force"),
            cwd=store,
            settings={"core.compression": "1", "fastimport.unpackLimit": "0"},
            fed=_stream(base, ref, say),
        )
    commit = git.resolve(store, ref)
    tree_id = git.resolve(store, ref, "tree")
    if commit is None or tree_id is None:
        raise KstallError(f"{store}: git did not store {base.version}")
    _forget(store, ref)
    return commit


def _stream(base: Base, ref: str, say: Say) -> Iterator[bytes]:
    """Input for `git fast-import` that makes one commit of ``base``."""
    text = f"Linux {base.version}\n\n{base.describe}, {base.origin}\n".encode(
        "utf-8", "replace"
    )
    who = f"kstall <noreply@kstall.invalid> {int(time.time())} +0000"
    yield f"commit {ref}\ncommitter {who}\ndata {len(text)}\n".encode() + text
    spoke = time.monotonic()
    for number, (path, mode, content) in enumerate(tree.contents(base)):
        name = os.fsencode(path)
        if name.startswith(b'"') or b"\n" in name:
            name = name.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            name = b'"' + name.replace(b"\n", b"\\n") + b'"'
        yield b"M %s inline %s\ndata %d\n" % (mode.encode(), name, len(content))
        yield content
        yield b"\n"
        if time.monotonic() - spoke >= _QUIET_S:
            spoke = time.monotonic()
            say(f"{number} of about {_FILES} files")


def _forget(store: Path, newest: str) -> None:
    """Delete all but the newest trees; those that a person works on are held."""
    words = ("for-each-ref", "--sort=-committerdate", "--format=%(refname)")
    refs = os.fsdecode(git.git(*words, "refs/kstall/bases", cwd=store)).split()
    for ref in refs[_BASES:]:
        if ref != newest:
            git.git("update-ref", "-d", ref, cwd=store)


def _hold(store: Path, directory: Path, commits: Sequence[str]) -> None:
    """Keep ``commits`` for as long as ``directory`` is there."""
    holds = store / "held"
    holds.mkdir(exist_ok=True)
    for path in holds.iterdir():
        # Another run may be about to make the directory that it has named.
        idle = time.time() - path.stat().st_mtime > _IDLE_S
        if idle and not Path(os.fsdecode(path.read_bytes())).exists():
            for side in (OLD, NEW):
                ref = f"refs/kstall/held/{path.name}/{side}"
                git.git("update-ref", "-d", ref, cwd=store)
            path.unlink()
    key = cache.digest(str(directory.absolute()))
    (holds / key).write_bytes(os.fsencode(directory.absolute()))
    for side, commit in zip((OLD, NEW), commits, strict=True):
        git.git("update-ref", f"refs/kstall/held/{key}/{side}", commit, cwd=store)


# -- picking -------------------------------------------------------------------------


def _go_on(series: Series, directory: Path) -> RebaseResult:
    work = directory / "tree"
    if not (work / ".git").is_dir():
        raise KstallError(
            f"{work} is gone from {directory}", next=f"remove {directory}, run it again"
        )
    begun = git.resolve(work, "HEAD") != git.resolve(work, NEW)
    stopped = git.resolve(work, "CHERRY_PICK_HEAD") is not None
    waiting = (work / ".git" / "sequencer").exists()
    if not begun and not stopped and not waiting:
        _pick(work, "cherry-pick", f"{OLD}..{SERIES}")
    _skip_applied(directory)
    picked = _picked(work)
    if (conflict := _conflict(series, work)) is not None:
        return RebaseResult(directory, picked, conflict)
    _require_whole(work)
    return _finished(series, directory)


def _pick(work: Path, *words: str) -> None:
    try:
        _git(work, *words)
    except git.GitError as error:
        if git.resolve(work, "CHERRY_PICK_HEAD") is None:
            raise KstallError(
                f"{work}: git cannot pick the series: {error.reason}"
            ) from error


def _skip_applied(directory: Path) -> None:
    """Leave out patches that the new tree has, and record them: git stops at each.

    One that a person has resolved to nothing is left out, but not recorded.
    """
    work = directory / "tree"
    while (
        (head := git.resolve(work, "CHERRY_PICK_HEAD")) is not None
        and not _unmerged(work)
        and not _git(work, "status", "--porcelain", "--untracked-files=no").strip()
    ):
        if not _CONFLICTS.search((work / ".git" / "MERGE_MSG").read_bytes()):
            state = _state(directory)
            state["had"] = [*state.get("had", ()), head]
            cache.write_json(directory / _STATE, state)
        _pick(work, "cherry-pick", "--skip")


def _state(directory: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((directory / _STATE).read_text(encoding="utf-8"))
    return state


def _unmerged(work: Path) -> list[str]:
    return _git(work, "diff", "--name-only", "-z", "--diff-filter=U").split("\0")[:-1]


def _picked(work: Path) -> int:
    return int(_git(work, "rev-list", "--count", f"{NEW}..HEAD"))


def _conflict(series: Series, work: Path) -> MergeConflict | None:
    head = git.resolve(work, "CHERRY_PICK_HEAD")
    if head is None:
        if (work / ".git" / "sequencer").exists():
            # The person has committed by hand; the next patch is to be picked.
            todo = (work / ".git/sequencer/todo").read_text().split()
            head = git.resolve(work, todo[1]) if len(todo) > 1 else None
        if head is None:
            return None
    number = _commits(work).index(head)
    places = tuple(place for path in _unmerged(work) for place in _places(work, path))
    return MergeConflict(
        series.patches[number], number + 1, places, resolved=not places
    )


def _commits(work: Path) -> list[str]:
    """The commit of each patch on the old tree."""
    return _git(work, "rev-list", "--reverse", f"{OLD}..{SERIES}").split()


def _places(work: Path, path: str) -> Iterator[str]:
    file = work / path
    content = file.read_bytes() if file.is_file() else b""
    marks = [
        content.count(b"\n", 0, mark.start()) + 1 for mark in _MARK.finditer(content)
    ]
    for line in marks:
        yield f"{path}:{line}"
    if not marks:
        stages = _git(work, "ls-files", "--unmerged", "--", path)
        settled = re.search(r" 2\t", stages) is not None
        yield f"{path} ({'settled, not added' if settled else 'not in the new tree'})"


def _require_whole(work: Path) -> None:
    """Raise `KstallError` if the work tree is in no state to take patches from."""
    if _git(work, "status", "--porcelain", "--untracked-files=no").strip():
        raise KstallError(
            f"{work} has changes that are not committed",
            next="commit them, or `git restore .` there, and run this again",
        )
    try:
        _git(work, "merge-base", "--is-ancestor", NEW, "HEAD")
    except git.GitError as error:
        raise KstallError(
            f"{work}: its HEAD is not on top of the new tree",
            next=f"git switch {REBASED}",
        ) from error
    if _git(work, "rev-list", "--merges", f"{NEW}..HEAD").strip():
        raise KstallError(f"{work}: a merge is no patch", next="rebase it away")


def _finished(series: Series, directory: Path) -> RebaseResult:
    work = directory / "tree"
    count = _picked(work)
    folder = directory / "patches"
    if count:
        with cache.publish(folder) as scratch:
            words = ("format-patch", "-q", "--zero-commit", "--no-signature")
            numbered = "-n" if count > 1 else "-N"
            span = f"{NEW}..HEAD"
            _git(work, *words, numbered, "-o", scratch.absolute(), span)
    else:
        cache.remove(folder)
    spans = (f"{OLD}..{SERIES}", f"{NEW}..HEAD")
    # Git refuses an empty range.
    range_diff = _git(work, *_RANGE_DIFF, *spans).rstrip("\n") if count else ""
    cache.write_text(directory / "range-diff.txt", range_diff + "\n")
    files = sorted(folder.glob("*.patch")) if count else []
    patches = tuple(patchfile.parse(path) for path in files)
    # What git pairs with a new one: "2:  abcdef ! 1:  abcdef subject".
    paired = {
        int(n)
        for n in re.findall(r"(?m)^ {0,3}(\d+): +[0-9a-f]+ [=!] +\d+:", range_diff)
    }
    subjects = {patch.subject for patch in patches}
    missing = {
        commit: patch
        for number, (commit, patch) in enumerate(
            zip(_commits(work), series.patches, strict=True), 1
        )
        if number not in paired and patch.subject not in subjects
    }
    had = _state(directory).get("had", ())
    return RebaseResult(
        directory,
        count,
        gone=tuple(patch for commit, patch in missing.items() if commit in had),
        dropped=tuple(patch for commit, patch in missing.items() if commit not in had),
        patches=patches,
        range_diff=range_diff,
    )
