# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread as a b4 prep branch in a tree that the contributor names.

Commits and branch are written to the object database only: work tree and HEAD stay as
they are.  The cover letter is the first commit, where b4 looks for it, with To:, Cc:
and the change-id as b4 stores them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from email.utils import quote
from pathlib import Path

from ..base import KstallError
from ..tree import File, commits, git
from .contributor import Person
from .export import Exported
from .recipients import Recipient

# The marker by which b4 finds its cover commit.
_MARKER = "--- b4-submit-tracking ---"
# b4's default for prep-perpatch-check-cmd.
_CHECK = "./scripts/checkpatch.pl -q --terse --no-summary --mailback --showfile"


def branch(exported: Exported, path: Path) -> str:
    """Create the branch for ``exported`` in the checkout ``path``; return its name.

    Raises `KstallError` if nobody has signed off, if the checkout's HEAD is not what
    the series was proven on, and if the branch exists already.
    """
    if exported.signed is None:
        raise KstallError(
            "a b4 branch needs a contributor, and this is a draft",
            next=f"kstall series {exported.series.name} --sign-off",
        )
    top = path.expanduser().absolute()
    if not (top / ".git").exists():
        raise KstallError(
            f"{top} is no git checkout, so no branch can be created",
            next="name the top of a checkout of what the series was proven on",
        )
    checkout = git.read(top)
    base = exported.plan.base
    if not checkout.tree.startswith(base.id.rpartition("-")[2]):
        raise KstallError(
            f"{checkout.top}: its HEAD {checkout.commit[:12]} is not the source that "
            f"{exported.series.name} was proven on, {base.id}",
            next=f"make validate SERIES={exported.series.name} KERNEL={checkout.top}",
        )
    name = f"b4/{exported.series.name}"
    reference = f"refs/heads/{name}"
    if git.git("for-each-ref", reference, cwd=checkout.top):
        raise KstallError(
            f"{checkout.top} has a branch {name} already",
            next=f"delete it to replace it: git -C {checkout.top} branch -D {name}",
        )
    with tempfile.TemporaryDirectory(prefix="kstall-prep-") as scratch:
        writer = _Writer(checkout.top, Path(scratch) / "index", exported.signed)
        tip = writer.commit(checkout.tree, checkout.commit, _cover(exported))
        writer.start(checkout.tree)
        subjects = [patch.subject for patch in exported.series.patches]
        states = exported.plan.states[1:]
        for subject, text, state, author in zip(
            subjects, exported.messages, states, exported.authors, strict=True
        ):
            message = f"{subject}\n\n{text}\n"
            tip = writer.commit(writer.tree(dict(state)), tip, message, author)
    setting = f"branch.{name}.b4-prep-cover-strategy"
    git.git("config", setting, "commit", cwd=checkout.top)
    git.git("update-ref", "-m", "kstall series", reference, tip, "", cwd=checkout.top)
    _ignore_argued_remarks(exported, checkout.top, name)
    return name


def _ignore_argued_remarks(exported: Exported, top: Path, name: str) -> None:
    """Make `b4 prep --check` ignore argued remarks on the branch ``name`` only.

    b4 has no setting per file, so a kind of remark is only ignored if all remarks of
    that kind are argued.  The letter and the configuration file have the reasons.
    """
    unargued = {
        remark.kind for remark in exported.remarks if remark not in exported.argued
    }
    reasons = {
        remark.kind: exemption.because
        for remark, exemption in exported.argued.items()
        # b4 runs checkpatch without --strict.
        if remark.level != "CHECK" and remark.kind not in unargued
    }
    if not reasons:
        return
    config = f"kstall/b4-{exported.series.name}"
    git_dir = git.git("rev-parse", "--git-common-dir", cwd=top).decode()
    file = top / git_dir.strip() / config
    file.parent.mkdir(exist_ok=True)
    kinds = ",".join(sorted(reasons))
    lines = [
        f"# For the branch {name}: remarks of checkpatch that the series argues.",
        *(f"# {kind}: {reason}" for kind, reason in sorted(reasons.items())),
        "[b4]",
        f"\tprep-perpatch-check-cmd = {_CHECK} --ignore {kinds}",
    ]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    setting = f"includeIf.onbranch:{name}.path"
    git.git("config", "--replace-all", setting, config, cwd=top)


class _Writer:
    """Writes objects, with an index of its own."""

    def __init__(self, top: Path, index: Path, committer: Person) -> None:
        self._top = top
        self._committer = committer
        self._env = {
            "GIT_INDEX_FILE": str(index),
            "GIT_COMMITTER_NAME": committer.name,
            "GIT_COMMITTER_EMAIL": committer.address,
        }

    def _git(self, *words: str, input: bytes | None = None, **env: str) -> str:
        output = git.git(*words, cwd=self._top, env=self._env | env, input=input)
        return output.decode("utf-8", "replace").strip()

    def start(self, tree: str) -> None:
        """Begin with all files of ``tree``."""
        self._git("read-tree", tree)

    def tree(self, files: Mapping[str, File | None]) -> str:
        """The tree of the index with ``files`` updated."""
        listed = commits.index_info(files, self._store)
        self._git("update-index", "-z", "--index-info", input=listed)
        return self._git("write-tree")

    def _store(self, data: bytes) -> str:
        return self._git("hash-object", "-w", "--stdin", input=data)

    def commit(
        self, tree: str, parent: str, message: str, author: Person | None = None
    ) -> str:
        """A commit of ``tree`` on ``parent``, by the committer or by ``author``."""
        author = author or self._committer
        return self._git(
            *("commit-tree", tree, "-p", parent),
            input=message.encode(),
            GIT_AUTHOR_NAME=author.name,
            GIT_AUTHOR_EMAIL=author.address,
        )


def _cover(exported: Exported) -> str:
    """The message of b4's cover commit."""
    # b4 takes unquoted lines that begin with # for comments.
    lines = [
        f">{line}" if line.startswith("#") else line
        for line in exported.body.splitlines()
    ]
    tracking = {
        "series": {
            "revision": exported.thread.version,
            "change-id": exported.thread.change_id,
            "prefixes": ["RFC"] if exported.thread.rfc else [],
            "presubject": "",
        }
    }
    return "\n".join(
        [
            exported.series.spec.title,
            "",
            *lines,
            "",
            *_trailers("To", exported.recipients.cover),
            *_trailers("Cc", exported.recipients.cover),
            "",
            _MARKER,
            "# This section is used internally by b4 prep for tracking purposes.",
            json.dumps(tracking, indent=2),
            "",
        ]
    )


def _trailers(field: str, recipients: Sequence[Recipient]) -> list[str]:
    """One line each, not encoded: this is no mail yet."""
    return [
        f'{field}: "{quote(recipient.name)}" <{recipient.address}>'
        if recipient.name
        else f"{field}: {recipient.address}"
        for recipient in recipients
        if recipient.field == field
    ]
