# SPDX-License-Identifier: GPL-2.0-or-later
"""`git am`, on nothing but the files that a series touches.

A repository with a kernel's 95,000 files takes minutes to make; git needs only the
files that a patch names, and its verdict is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import DoesNotApply, FailedCheck
from ..series import Hunk, PatchFile
from . import git

_SETTINGS = {"apply.whitespace": "nowarn", "apply.ignoreWhitespace": "no"}
_OFFSET = re.compile(r"(?m)^Hunk #\d+ succeeded at \d+ \(offset -?\d+ lines?\)")
_FAILED = re.compile(r"error: patch failed: (.+):(\d+)")
_OTHER = re.compile(r"error: (.+?): (.+)")


@dataclass(frozen=True)
class File:
    """A regular file's content and whether it may be executed."""

    data: bytes
    executable: bool

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")

    def write(self, path: Path) -> None:
        """Write it to ``path``, whose directories need not exist."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        path.chmod(0o755 if self.executable else 0o644)

    def facts(self) -> tuple[str, bool]:
        """A digest of the content, and the mode, in a form that JSON takes."""
        return hashlib.sha256(self.data).hexdigest(), self.executable


class ApplyError(DoesNotApply):
    """A patch that does not fit this tree.

    Names the patch, the file of the kernel and, for a conflict, the hunk (its number
    in that file, and the line it looks at).  ``applied``: the tree has this patch and
    all others of its series.  ``output`` is git's output about all hunks.
    """

    def __init__(
        self,
        patch: Path,
        file: str,
        why: str,
        *,
        line: int | None = None,
        hunk: Hunk | None = None,
        applied: bool = False,
        output: str = "",
    ) -> None:
        place = file if line is None else f"{file}:{line}"
        advice = (
            "leave the patch out, or name a tree that lacks it with KERNEL="
            if applied
            else "name a tree that the patch was made for with KERNEL=, or rebase it"
        )
        super().__init__(f"{patch.name}, {place}: {why}", next=advice)
        self.patch = patch
        self.file = file
        self.line = line
        self.hunk = hunk
        self.applied = applied
        self.output = output


class BadPatch(FailedCheck):
    """A patch that fits, but that `git am` refuses or that changes unnamed files."""


State = dict[str, File | None]


def apply(
    pristine: Mapping[str, File | None], patches: Sequence[PatchFile], scratch: Path
) -> tuple[list[State], list[Path]]:
    """The files after 0, 1, ... patches, and the patch of each hunk that moved.

    ``pristine`` has every path that a patch touches; ``scratch`` is an empty directory
    that the caller removes.  Raises `ApplyError` and `BadPatch`.
    """
    work = scratch / "work"
    work.mkdir()
    git.printed(work, "init", "-q", "--template=", ".")
    git.keep_exact(work / ".git")
    for path, file in pristine.items():
        if file is not None:
            file.write(work / path)
    git.printed(work, "add", "--all", "--force", ".")
    git.printed(work, "commit", "-q", "--allow-empty", "--no-verify", "-m", "base")
    states: list[State] = [dict(pristine)]
    offsets: list[Path] = []
    for patch in patches:
        offsets += [patch.path] * _moved(patch, patches, work, scratch)
        _am(patch, work)
        states.append({path: read(work / path) for path in pristine})
    _require_announced(patches, work)
    return states, offsets


def _moved(
    patch: PatchFile, patches: Sequence[PatchFile], work: Path, scratch: Path
) -> int:
    """How many hunks fit at another line than they name, as only `git apply` says.

    Raises `ApplyError` if one does not fit at all.
    """
    try:
        verdict = _apply(work, "--check", "--index", "-v", _diff(patch, work, scratch))
    except git.GitError as error:
        raise _conflict(patch, patches, error, work, scratch) from error
    return len(_OFFSET.findall(verdict))


def _diff(patch: PatchFile, work: Path, scratch: Path) -> Path:
    """The patch without its mail, in a file that the next one overwrites."""
    message, diff = scratch / "message", scratch / "diff"
    git.printed(work, "mailinfo", message, diff, input=patch.path.read_bytes())
    return diff


def _apply(work: Path, *words: str | Path) -> str:
    return git.printed(work, "apply", *words, settings=_SETTINGS, merge_stderr=True)


def _am(patch: PatchFile, work: Path) -> None:
    try:
        git.printed(
            work,
            *("am", "-q", "--no-3way", "--no-gpg-sign", "--no-scissors"),
            *("--", patch.path.absolute()),
            settings=_SETTINGS,
        )
    except git.GitError as error:
        raise BadPatch(
            f"{patch.path}: `git am` refuses it: {error.reason}",
            next="write patches with `git format-patch`",
        ) from error


def _require_announced(patches: Sequence[PatchFile], work: Path) -> None:
    """Raise `BadPatch` for files that no diff names: the states do not have them."""
    listed = git.printed(work, "ls-tree", "-r", "--name-only", "-z", "HEAD")
    announced = {path for patch in patches for path in patch.touches}
    if unannounced := set(listed.split("\0")[:-1]) - announced:
        raise BadPatch(
            f"{', '.join(str(patch.path) for patch in patches)}: create "
            f"{', '.join(sorted(unannounced))}, which no diff in them names"
        )


def _conflict(
    patch: PatchFile,
    patches: Sequence[PatchFile],
    error: git.GitError,
    work: Path,
    scratch: Path,
) -> ApplyError:
    """Why ``patch``, of ``patches``, does not apply, from git's ``error`` about it."""
    merged = _merged(patches, work, scratch)
    tail = ""
    if merged and len(patches) > 1:
        names = ", ".join(other.path.name for other in merged)
        tail = f"; the kernel has {len(merged)} of {len(patches)} patches: {names}"
    output = error.output
    if patch in merged:
        first = patch.hunks[0] if patch.hunks else None
        return ApplyError(
            patch.path,
            patch.touches[0],
            f"the kernel already has this patch{tail}",
            line=None if first is None else first.new[0],
            applied=len(merged) == len(patches),
            output=output,
        )
    if match := _FAILED.search(output):
        file, line = match[1], int(match[2])
        # Git stops at the first hunk that fails, and names the line it should be at.
        hunk = next(
            (h for h in patch.hunks if h.file == file and h.old[0] == line), None
        )
        label = f"hunk {hunk.number}" if hunk is not None else "a hunk"
        return ApplyError(
            patch.path,
            file,
            f"{label} does not fit: the kernel's lines are not those that the patch "
            f"expects{tail}",
            line=line,
            hunk=hunk,
            output=_every_hunk(work, _diff(patch, work, scratch)),
        )
    if match := _OTHER.search(output):
        why = match[2].replace("does not exist in index", "the kernel has no such file")
        why = why.replace("already exists in index", "the kernel already has this file")
        hunk = next((h for h in patch.hunks if h.file == match[1]), None)
        at = None if hunk is None else hunk.old[0] or hunk.new[0]
        return ApplyError(
            patch.path, match[1], why + tail, line=at, hunk=hunk, output=output
        )
    why = f"{error.reason}{tail}"
    return ApplyError(patch.path, patch.touches[0], why, output=output)


def _merged(patches: Sequence[PatchFile], work: Path, scratch: Path) -> list[PatchFile]:
    """Those of ``patches`` that the kernel has: they can be taken back from it, the
    last one first.  The work tree stays as it is, but not its index."""
    (base,) = git.printed(work, "rev-list", "--max-parents=0", "HEAD").split()
    git.printed(work, "read-tree", base)
    merged: list[PatchFile] = []
    for patch in reversed(patches):
        with contextlib.suppress(git.GitError):
            _apply(work, "--cached", "--reverse", _diff(patch, work, scratch))
            merged.insert(0, patch)
    return merged


def _every_hunk(work: Path, diff: Path) -> str:
    """What git says of each hunk; it leaves half-patched files in ``work``."""
    try:
        return _apply(work, "--reject", "-v", diff)
    except git.GitError as error:
        return error.output


def read(path: Path) -> File | None:
    """The regular file at ``path``, or None."""
    try:
        return File(path.read_bytes(), os.access(path, os.X_OK))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
