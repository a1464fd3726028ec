# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading a git checkout that is not ours, without writing a byte to it.

Git refreshes indexes, starts monitors and fetches what is missing as it sees fit.  So
it hardly ever works in the user's repository: it works in a repository of our own,
which borrows the user's objects, and there nothing of the user's can be written.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, process

# The settings that decide whether a file in a work tree counts as changed.
_COMPARING = frozenset(
    (
        *("core.autocrlf", "core.checkstat", "core.eol", "core.filemode"),
        *("core.ignorecase", "core.symlinks", "core.trustctime"),
    )
)
_SETTINGS = {
    # Root may read other people's repositories: what root runs here is ours.
    "safe.directory": "*",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    # A partial clone must not fetch, for that writes to it.
    "protocol.allow": "never",
    "gc.auto": "0",
}
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding\n"
#: The environment for our own commits, independent of the user's configuration.
IDENTITY = {
    "GIT_AUTHOR_NAME": "kstall",
    "GIT_AUTHOR_EMAIL": "noreply@kstall.invalid",
    "GIT_COMMITTER_NAME": "kstall",
    "GIT_COMMITTER_EMAIL": "noreply@kstall.invalid",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
# For our own repositories, too.
_OURS = {
    "commit.gpgSign": "false",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.fsync": "none",
    "core.quotePath": "false",
    "advice.mergeConflict": "false",
}
_DESCRIBE_S = 20.0
_HEARD_S = 1.0
_TAIL = 4096
_LACKING = re.compile(r"unable to read (sha1 file|tree|[0-9a-f]{40})|bad object")


class GitError(process.CommandError):
    """Git exited non-zero."""


@dataclass(frozen=True)
class Checkout:
    """A user's work tree at ``top`` and what its HEAD is; ``objects`` is their store.

    ``tree`` is the id of HEAD's tree, in ``object_format`` (sha1, sha256).
    """

    top: Path
    objects: Path
    index: Path
    commit: str
    tree: str
    object_format: str


def git(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    input: bytes | None = None,
    timeout: float | None = None,
    merge_stderr: bool = False,
    heard: Callable[[bytes], None] | None = None,
    fed: Iterable[bytes] = (),
) -> bytes:
    """Run git, apart from the GIT_* of our own environment, and return its stdout.

    ``settings`` are added to configuration for this one command.  ``heard`` is called
    every second with the end of git's stderr so far; ``fed`` is its input where that is
    too much to be held at once.  Raises `GitError`.
    """
    configuration = {**_SETTINGS, **(settings or {})}
    environment = {
        "GIT_CONFIG_COUNT": str(len(configuration)),
        **{f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(configuration)},
        **{
            f"GIT_CONFIG_VALUE_{n}": value
            for n, value in enumerate(configuration.values())
        },
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        "LANGUAGE": "",
        **(env or {}),
    }
    # We may run from a hook or a rebase, whose GIT_DIR is another repository's.
    inherited = [name for name in os.environ if name.startswith("GIT_")]
    unset = [
        word for name in inherited if name not in environment for word in ("-u", name)
    ]
    argv = ("env", *unset, "git", *map(str, words))
    with (
        tempfile.TemporaryFile() as errors,
        process.start(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE if input is not None or fed else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if merge_stderr else errors.fileno(),
        ) as child,
    ):
        if fed:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                # If it ends before it has read all, its exit status says why.
                for chunk in fed:
                    child.stdin.write(chunk)
        while True:
            try:
                step = timeout if heard is None else _HEARD_S
                output, _ = child.communicate(input, step)
                break
            except subprocess.TimeoutExpired as late:
                if heard is None:
                    text = f"git {words[0]} ran over {timeout:g} s"
                    raise process.Deadline(text) from late
                end = os.fstat(errors.fileno()).st_size
                start = max(0, end - _TAIL)
                heard(os.pread(errors.fileno(), end - start, start))
        if child.returncode != 0:
            errors.seek(0)
            message = (output + errors.read()).decode("utf-8", "replace")
            raise GitError(("git", *map(str, words)), child.returncode, message)
    return output


def printed(
    work: Path,
    *words: str | Path,
    env: Mapping[str, str] = IDENTITY,
    settings: Mapping[str, str] | None = None,
    input: bytes | None = None,
    merge_stderr: bool = False,
) -> str:
    """As `git`, in ``work``, one of our own work trees: what git prints, as text."""
    return git(
        *words,
        cwd=work,
        env=env,
        settings={**_OURS, **(settings or {})},
        input=input,
        merge_stderr=merge_stderr,
    ).decode("utf-8", "replace")


def read(top: Path) -> Checkout:
    """What the checkout at ``top`` has as HEAD.  Raises `KstallError` if git cannot."""
    try:
        answer = git(
            "rev-parse",
            *("--show-toplevel", "--show-object-format"),
            *("--git-path", "objects", "--git-path", "index"),
            cwd=top,
        )
        head = git("rev-parse", "HEAD^{commit}", "HEAD^{tree}", cwd=top)
    except GitError as error:
        unborn = "ambiguous argument 'HEAD" in error.output
        reason = "it has no commit" if unborn else error.reason
        raise KstallError(
            f"{top}: has a .git, but git cannot read its HEAD: {reason}",
            next="give KERNEL= a checkout that `git log` works in, or remove its .git",
        ) from error
    toplevel, kind, objects, index = os.fsdecode(answer).splitlines()
    if Path(toplevel).resolve() != top.resolve():
        raise KstallError(
            f"{top}: is part of the git work tree {toplevel}, not its top"
        )
    commit, tree = head.decode().split()
    return Checkout(top, top / objects, top / index, commit, tree, kind)


def show(checkout: Checkout, path: str) -> bytes | None:
    """The content of ``path`` at HEAD, or None where HEAD has no such file."""
    try:
        return git("cat-file", "blob", f"{checkout.tree}:{path}", cwd=checkout.top)
    except GitError as error:
        if "does not exist in" in error.output:
            return None
        raise _incomplete(checkout, error.reason) from error


def describe(checkout: Checkout) -> str:
    """`git describe` of HEAD, or its id where that takes too long."""
    words = ("describe", "--always", "--abbrev=12", checkout.commit)
    try:
        answer = git(*words, cwd=checkout.top, timeout=_DESCRIBE_S)
        return os.fsdecode(answer).strip()
    except (GitError, process.Deadline):
        return checkout.commit[:12]


@dataclass(frozen=True)
class Commit:
    """A commit with its full ``id``; ``ancestor``: the history in question has it."""

    id: str
    subject: str
    ancestor: bool


def is_shallow(top: Path) -> bool:
    """Whether the history of the checkout at ``top`` is cut off somewhere."""
    answer = git("rev-parse", "--is-shallow-repository", cwd=top)
    return answer.strip() == b"true"


def resolve(top: Path, name: str, kind: str = "commit") -> str | None:
    """The full id of the ``kind`` of object that ``name`` stands for: a ref, or an id,
    which may be abbreviated.  None if there is no such object, or more than one."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    with contextlib.suppress(GitError):
        return git(*words, f"{name}^{{{kind}}}", cwd=top).decode().strip()
    return None


def commit(top: Path, name: str, head: str) -> Commit | None:
    """The commit ``name``, as seen from ``head``; see `resolve`."""
    full_id = resolve(top, name)
    if full_id is None:
        return None
    subject = git("show", "--no-patch", "--format=%s", full_id, cwd=top)
    try:
        git("merge-base", "--is-ancestor", full_id, head, cwd=top)
    except GitError as error:
        if error.returncode != 1:
            raise
        ancestor = False
    else:
        ancestor = True
    return Commit(full_id, subject.decode("utf-8", "replace").strip(), ancestor)


def author(top: Path, commit_id: str, head: str) -> tuple[str, str]:
    """Name and address of a commit's author, by the .mailmap of the commit ``head``."""
    words = ("show", "--no-patch", "--format=%aN%n%aE", commit_id)
    answer = git(*words, cwd=top, settings={"mailmap.blob": f"{head}:.mailmap"})
    name, _, address = answer.decode("utf-8", "replace").strip("\n").partition("\n")
    return name, address


def changes(checkout: Checkout, keep: Path) -> tuple[str, ...]:
    """Tracked files that differ from HEAD, staged or not, sorted.

    ``keep`` is a directory of ours in which the refreshed copy of the user's index
    lives on: an index whose stat data are stale (a copied checkout) would otherwise
    mean reading 95,000 files every time, for it may not be refreshed in place.
    """
    repository = keep / "git"
    if not repository.exists():
        _borrow(checkout, repository)
    else:
        _lend(checkout, repository)
    _copy_index(checkout, repository)
    env = {
        "GIT_DIR": str(repository),
        "GIT_WORK_TREE": str(checkout.top),
        # The index is our own copy, so git may refresh it.
        "GIT_OPTIONAL_LOCKS": "1",
    }
    (repository / "HEAD").write_text(f"{checkout.commit}\n")
    answer = git(
        *("status", "--porcelain=v1", "-z", "--no-renames"),
        *("--untracked-files=no", "--ignore-submodules=all"),
        cwd=checkout.top,
        env=env,
        settings=_comparing(checkout),
    )
    return tuple(sorted(line[3:] for line in os.fsdecode(answer).split("\0") if line))


def sizes(checkout: Checkout) -> dict[str, tuple[str, int]]:
    """Blob id and size in bytes of every file at HEAD."""
    answer = git("ls-tree", "-r", "-l", "-z", checkout.tree, cwd=checkout.top)
    files = {}
    for line in os.fsdecode(answer).split("\0")[:-1]:
        facts, _, path = line.partition("\t")
        _, kind, blob, length = facts.split()
        if kind != "blob":
            continue
        if not length.isdigit():
            raise _incomplete(checkout, path)
        files[path] = (blob, int(length))
    return files


def keep_exact(repository: Path) -> None:
    """Let git leave files unchanged in ``repository``, one of our git directories.

    Attributes may rewrite lines, ids and whole files on checkout.
    """
    (repository / "info").mkdir(exist_ok=True)
    (repository / "info" / "attributes").write_text(_ATTRIBUTES)


def export(checkout: Checkout, target: Path, scratch: Path) -> None:
    """Write HEAD's files, blob for blob, into the new directory ``target``.

    ``scratch`` is for a repository of ours, which the caller removes.
    """
    repository = scratch / "export.git"
    _borrow(checkout, repository)
    keep_exact(repository)
    target.mkdir()
    env = {
        "GIT_DIR": str(repository),
        "GIT_WORK_TREE": str(target),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    settings = {"checkout.workers": "0", "core.autocrlf": "false"}
    try:
        git("read-tree", checkout.tree, cwd=target, env=env)
        git("checkout-index", "-a", "-q", cwd=target, env=env, settings=settings)
    except GitError as error:
        if _LACKING.search(error.output):
            raise _incomplete(checkout, error.reason) from error
        raise


def _incomplete(checkout: Checkout, missing: str) -> KstallError:
    return KstallError(
        f"{checkout.top}: its repository lacks files of HEAD (a partial clone?): "
        f"{missing}",
        next="give KERNEL= a clone made without --filter",
    )


def _borrow(checkout: Checkout, repository: Path) -> None:
    """A repository of our own on the user's objects."""
    kind = f"--object-format={checkout.object_format}"
    git("init", "-q", "--bare", "--template=", kind, repository)
    _lend(checkout, repository)


def _lend(checkout: Checkout, repository: Path) -> None:
    info = repository / "objects" / "info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "alternates").write_bytes(os.fsencode(checkout.objects.resolve()) + b"\n")


def _copy_index(checkout: Checkout, repository: Path) -> None:
    """Copy the user's index, unless ours stems from the one that is there now."""
    source = checkout.index
    mark = repository / "copied-from"
    if not source.exists():
        (repository / "index").unlink(missing_ok=True)
        return
    status = source.stat()
    state = f"{source} {status.st_size} {status.st_mtime_ns} {status.st_ino}\n"
    if mark.exists() and mark.read_text() == state:
        return
    mark.unlink(missing_ok=True)
    for part in (source, *source.parent.glob("sharedindex.*")):
        name = "index" if part == source else part.name
        shutil.copyfile(part, repository / name)
    mark.write_text(state)


def _comparing(checkout: Checkout) -> dict[str, str]:
    answer = os.fsdecode(git("config", "--list", "-z", cwd=checkout.top))
    settings = {}
    for line in answer.split("\0")[:-1]:
        key, _, value = line.partition("\n")
        if key in _COMPARING:
            settings[key] = value or "true"
    return settings
