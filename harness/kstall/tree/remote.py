# SPDX-License-Identifier: GPL-2.0-or-later
"""Branches of git repositories, named as ``REPO#BRANCH``.

A repository on this machine is read in place.  From another machine the branch is
fetched, without its history, into a repository of ours in the cache: `sources/git`.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache, process, space
from . import git
from .store import Say

# A Path collapses // to /, and no other scheme begins with one slash only.
_URL = re.compile(r"(https?|git|ssh|file):/+(.*)", re.DOTALL)
# As scp and git take it, but for debian:7.3.
_HOST = re.compile(r"(?!debian:)[\w.-]+@?[\w.-]*:(?!/?/).+", re.DOTALL)
_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_NAME = re.compile(r"(?![-/.])[^\s~^:?*\[\\\x00-\x1f\x7f]+(?<![/.])")
_ALIKE = 5
# A kernel without its history, packed; a later fetch brings what changed.
_FETCH_BYTES = 600 * 10**6
_PACKS = 30
_QUIET_S = 20.0
_PERCENT = re.compile(rb"(Receiving objects|Resolving deltas): +(\d+)%")
_FETCHING = {
    "protocol.allow": "never",
    **{
        f"protocol.{scheme}.allow": "always"
        for scheme in ("https", "http", "git", "ssh")
    },
    "protocol.file.allow": "always",
    "fetch.writeCommitGraph": "false",
    "maintenance.auto": "false",
    # End a stalled connection rather than wait for it.
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
_FETCH_ENV = {
    # Nobody can type a password.
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=30",
    "GIT_NO_LAZY_FETCH": "0",
}


@dataclass(frozen=True)
class Branch:
    """``branch`` of the repository at ``path``, or else at ``url``."""

    branch: str
    path: Path | None = None
    url: str | None = None

    @property
    def repository(self) -> str:
        """Its address, as a person would write it."""
        return self.url or str(self.path)

    def __str__(self) -> str:
        """As the user named it."""
        return f"{self.repository}#{self.branch}"


def named(kernel: Path) -> Branch | None:
    """The branch that ``kernel`` names; None for any other path.

    An existing file or directory of that name takes precedence, except over an address
    with a scheme.  An address without a branch stands for the HEAD there.
    """
    text = str(kernel)
    repository, mark, branch = text.rpartition("#")
    if not mark:
        repository, branch = text, "HEAD"
    if _URL.fullmatch(repository):
        return Branch(branch, url=written(Path(repository)))
    if os.path.lexists(kernel.expanduser()):
        return None
    if _HOST.fullmatch(repository) and not os.path.lexists(repository):
        return Branch(branch, url=repository)
    if not mark:
        return None
    return Branch(branch, path=Path(repository or ".").expanduser().absolute())


def written(kernel: Path) -> str:
    """``kernel`` as the user wrote it: of an address, a Path has lost slashes."""
    if match := _URL.fullmatch(str(kernel)):
        slashes = ":///" if match[1] == "file" else "://"
        return f"{match[1]}{slashes}{match[2]}"
    return str(kernel)


def read(branch: Branch, cache_dir: Path, say: Say) -> git.Checkout:
    """The present commit of ``branch``.  Raises `KstallError` if there is no such
    branch or repository, or if it cannot be reached."""
    _require_name(branch)
    if branch.path is not None:
        return _read_here(branch, branch.path)
    assert branch.url is not None
    return _fetched(branch, branch.url, cache_dir, say)


def require(branch: Branch) -> None:
    """Raise `KstallError` if ``branch`` is a mistake, as far as this machine knows."""
    _require_name(branch)
    if branch.path is not None:
        _read_here(branch, branch.path)


def _require_name(branch: Branch) -> None:
    if branch.branch != "HEAD" and not _NAME.fullmatch(branch.branch):
        raise KstallError(
            f"{branch}: {branch.branch!r} is not a valid name of a branch",
            next="name a tree as REPO#BRANCH",
        )


# -- on this machine -----------------------------------------------------------------


def _read_here(branch: Branch, path: Path) -> git.Checkout:
    if not path.exists():
        raise KstallError(
            f"{branch}: there is no {path}", next="name a tree as REPO#BRANCH"
        )
    try:
        answer = git.git(
            "rev-parse", "--show-object-format", "--git-path", "objects", cwd=path
        )
    except (git.GitError, NotADirectoryError) as error:
        raise KstallError(
            f"{branch}: {path} is no git repository",
            next="name a directory or a tarball without #BRANCH",
        ) from error
    kind, objects = os.fsdecode(answer).splitlines()
    if (ids := _commit(path, branch.branch)) is None:
        raise _unknown(branch, _names_here(path))
    place = path / objects
    return git.Checkout(path, place, place.parent / "index", *ids, kind)


def _commit(place: Path, name: str) -> tuple[str, str] | None:
    """The ids of the commit ``name`` and of its tree, if the repository has both."""
    commit = git.resolve(place, name)
    tree = None if commit is None else git.resolve(place, commit, "tree")
    return None if commit is None or tree is None else (commit, tree)


def _names_here(path: Path) -> list[str]:
    words = ("for-each-ref", "--format=%(refname:short)")
    answer = git.git(*words, "refs/heads", "refs/remotes", "refs/tags", cwd=path)
    return os.fsdecode(answer).split()


def _unknown(branch: Branch, names: Sequence[str]) -> KstallError:
    alike = difflib.get_close_matches(branch.branch, names, _ALIKE, 0.5)
    # Without any similar name, the first ones at least show what names look like.
    shown = ", ".join(alike or list(names)[:_ALIKE]) or "none at all"
    return KstallError(
        f"{branch.repository} has no branch, tag or commit {branch.branch!r}",
        next=f"it has {'such as ' if not alike else ''}{shown}",
    )


# -- elsewhere -----------------------------------------------------------------------


def repository(cache_dir: Path) -> Path:
    """The repository of ours; its lock is beside it."""
    return cache_dir / "sources" / "git"


@contextlib.contextmanager
def locked(cache_dir: Path, say: Say) -> Iterator[Path]:
    """Our repository, locked so that only we write to it."""
    place = repository(cache_dir)

    def waiting(holder: str) -> None:
        say(f"waiting for {holder}, which is fetching kernel sources")

    with cache.lock(place.with_suffix(".lock"), waiting=waiting):
        if not (place / "HEAD").exists():
            cache.remove(place)
            with cache.publish(place) as scratch:
                git.git("init", "-q", "--bare", "--template=", scratch)
        # Of runs that were killed: nobody else may write here now.
        for leftover in (
            *place.glob("*.lock"),
            *place.glob("refs/**/*.lock"),
            *place.glob("objects/pack/tmp_*"),
            *place.glob("objects/pack/.tmp-*"),
            *place.glob("fast_import_crash_*"),
        ):
            cache.remove(leftover)
        yield place


def _fetched(branch: Branch, url: str, cache_dir: Path, say: Say) -> git.Checkout:
    with locked(cache_dir, say) as place:
        name, commit = _look_up(branch, url, place)
        if (ids := _commit(place, commit)) is None:
            say(f"fetching {branch}, without its history")
            with space.reserved(cache_dir, _FETCH_BYTES, f"a fetch of {branch}"):
                ids = _commit(place, _fetch(branch, url, name, place, say))
        if ids is None:
            raise KstallError(
                f"{branch}: {branch.branch} is no commit",
                next="name a branch, or a tag of a commit",
            )
        _tidy(place, say)
    return git.Checkout(place, place / "objects", place / "index", *ids, "sha1")


def _look_up(branch: Branch, url: str, place: Path) -> tuple[str, str]:
    """The full name of ``branch`` in the other repository, and its commit there."""
    name = branch.branch
    if _ID.fullmatch(name):
        return name, name
    refs = _refs(branch, url, place)
    for ref in (f"refs/heads/{name}", name, f"refs/tags/{name}"):
        if ref in refs:
            return ref, refs.get(f"{ref}^{{}}", refs[ref])
    names = [re.sub(r"^refs/(heads|tags)/", "", ref) for ref in refs]
    raise _unknown(branch, [name for name in names if "^" not in name])


def _refs(branch: Branch, url: str, place: Path) -> dict[str, str]:
    try:
        answer = _remote(url, ("ls-remote", "-q"), (), place)
    except git.GitError as error:
        raise _unreachable(branch, error) from error
    lines = os.fsdecode(answer).splitlines()
    return {
        name: commit for commit, _, name in (line.partition("\t") for line in lines)
    }


def _fetch(branch: Branch, url: str, name: str, place: Path, say: Say) -> str:
    # Flat: one side's sched and another's sched/core cannot both be names here.
    ref = f"refs/kstall/branches/{cache.digest(url, branch.branch)}"
    words = ("fetch", "--depth=1", "--no-tags", "--no-write-fetch-head", "--progress")
    try:
        _remote(url, words, (f"+{name}:{ref}",), place, say)
    except git.GitError as error:
        raise _unreachable(branch, error) from error
    return ref


def _remote(
    url: str,
    words: Sequence[str],
    refs: Sequence[str],
    place: Path,
    say: Say | None = None,
) -> bytes:
    """Run a git command on the repository at ``url``."""
    options: tuple[str, ...] = ()
    if url.startswith("file:"):
        # Root may read other people's repositories; nothing in them is run.
        options = ("--upload-pack=git -c safe.directory=* upload-pack",)
    return git.git(
        *(*words, *options, "--", url, *refs),
        cwd=place,
        env=_FETCH_ENV,
        settings=_FETCHING,
        heard=None if say is None else _Progress(say),
    )


class _Progress:
    """Reports git's progress as a line now and then."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._spoke = time.monotonic()

    def __call__(self, text: bytes) -> None:
        matches = _PERCENT.findall(text)
        if matches and time.monotonic() - self._spoke >= _QUIET_S:
            self._spoke = time.monotonic()
            step, share = matches[-1]
            self._say(f"{step.decode()}: {share.decode()}%")


def _unreachable(branch: Branch, error: process.CommandError) -> KstallError:
    lines = error.output.strip().splitlines()
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "ssh:"))]
    reason = telling[0] if telling else error.reason
    return KstallError(
        f"{branch}: git cannot read {branch.repository}: {reason}",
        next="check the address and the network; passwords cannot be typed: use a key "
        "or a credential helper",
    )


def _tidy(place: Path, say: Say) -> None:
    """Delete old commits of branches now and then: each fetch adds a pack."""
    if len(list(place.glob("objects/pack/*.pack"))) > _PACKS:
        say("tidying up fetched kernel sources")
        git.git("gc", "-q", "--prune=2.weeks.ago", cwd=place)
