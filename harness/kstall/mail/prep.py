# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread as a b4 prep branch in a tree that the contributor names.

The commits and the branch are made of git's objects alone: no file of the work tree is
written, and what is checked out there stays so.  The cover letter is the first commit,
where b4 looks for it, with To:, Cc: and the change-id as b4 keeps them.
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

# b4's own, with which it finds the commit again.
_MARKER = "--- b4-submit-tracking ---"
# What b4 runs on each patch if nothing is configured.
_CHECK = "./scripts/checkpatch.pl -q --terse --no-summary --mailback --showfile"


def branch(done: Exported, named: Path) -> str:
    """Make the branch for ``done`` in the checkout ``named``; its name comes back.

    Raises `KstallError` if nobody has signed off, if the checkout's HEAD is not what
    the series was proven on, and if the branch is there already.
    """
    if done.signed is None:
        raise KstallError(
            "a b4 branch is its contributor's, and this is a draft",
            next=f"kstall series {done.series.name} --sign-off",
        )
    top = named.expanduser().absolute()
    if not (top / ".git").exists():
        raise KstallError(
            f"{top} is no git checkout, so there is nothing to make a branch in",
            next="name the top of a checkout of what the series was proven on",
        )
    checkout = git.read(top)
    base = done.plan.base
    if not checkout.tree.startswith(base.id.rpartition("-")[2]):
        raise KstallError(
            f"{checkout.top}: its HEAD {checkout.commit[:12]} is not the source that "
            f"{done.series.name} was proven on, {base.id}",
            next=f"make validate SERIES={done.series.name} KERNEL={checkout.top}",
        )
    name = f"b4/{done.series.name}"
    reference = f"refs/heads/{name}"
    if git.git("for-each-ref", reference, cwd=checkout.top):
        raise KstallError(
            f"{checkout.top} has a branch {name} already",
            next=f"if it is of no use any more: git -C {checkout.top} branch -D {name}",
        )
    with tempfile.TemporaryDirectory(prefix="kstall-prep-") as scratch:
        writer = _Writer(checkout.top, Path(scratch) / "index", done.signed)
        tip = writer.commit(checkout.tree, checkout.commit, _cover(done))
        writer.start(checkout.tree)
        subjects = [patch.subject for patch in done.series.patches]
        states = done.plan.states[1:]
        for subject, text, state in zip(subjects, done.messages, states, strict=True):
            tip = writer.commit(writer.tree(dict(state)), tip, f"{subject}\n\n{text}\n")
    setting = f"branch.{name}.b4-prep-cover-strategy"
    git.git("config", setting, "commit", cwd=checkout.top)
    git.git("update-ref", "-m", "kstall series", reference, tip, "", cwd=checkout.top)
    _leave_out_what_is_argued(done, checkout.top, name)
    return name


def _leave_out_what_is_argued(done: Exported, top: Path, name: str) -> None:
    """Have `b4 prep --check` on the branch ``name``, and on no other, pass over it.

    It cannot be told of files, so a kind of remark is only left out if each of them is
    argued.  The letter has the reasons; so has the file of settings.
    """
    left = {one.kind for one in done.remarks if one not in done.argued}
    reasons = {
        remark.kind: " ".join(one.because.split())
        for remark, one in done.argued.items()
        # b4 does without --strict.
        if remark.level != "CHECK" and remark.kind not in left
    }
    if not reasons:
        return
    ours = f"kstall/b4-{done.series.name}"
    said = git.git("rev-parse", "--git-common-dir", cwd=top).decode()
    file = top / said.strip() / ours
    file.parent.mkdir(exist_ok=True)
    kinds = ",".join(sorted(reasons))
    lines = [
        f"# For the branch {name}: what checkpatch says and the series argues.",
        *(f"# {kind}: {why}" for kind, why in sorted(reasons.items())),
        "[b4]",
        f"\tprep-perpatch-check-cmd = {_CHECK} --ignore {kinds}",
    ]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    setting = f"includeIf.onbranch:{name}.path"
    git.git("config", "--replace-all", setting, ours, cwd=top)


class _Writer:
    """Writes objects, with an index of its own."""

    def __init__(self, top: Path, index: Path, who: Person) -> None:
        self._top = top
        self._env = {
            "GIT_INDEX_FILE": str(index),
            **{
                f"GIT_{role}_{part}": value
                for role in ("AUTHOR", "COMMITTER")
                for part, value in (("NAME", who.name), ("EMAIL", who.address))
            },
        }

    def _git(self, *words: str, input: bytes | None = None) -> str:
        said = git.git(*words, cwd=self._top, env=self._env, input=input)
        return said.decode("utf-8", "replace").strip()

    def start(self, tree: str) -> None:
        """Begin with all files of ``tree``."""
        self._git("read-tree", tree)

    def tree(self, files: Mapping[str, File | None]) -> str:
        """What is there now, with ``files`` as they are to be."""
        listed = commits.index_info(files, self._store)
        self._git("update-index", "-z", "--index-info", input=listed)
        return self._git("write-tree")

    def _store(self, data: bytes) -> str:
        return self._git("hash-object", "-w", "--stdin", input=data)

    def commit(self, tree: str, parent: str, message: str) -> str:
        """A commit of ``tree`` on ``parent``."""
        return self._git("commit-tree", tree, "-p", parent, input=message.encode())


def _cover(done: Exported) -> str:
    """The message of b4's cover commit."""
    # b4 takes lines that begin with # for comments, unless they are quoted like this.
    lines = [f">{x}" if x.startswith("#") else x for x in done.body.splitlines()]
    tracking = {
        "series": {
            "revision": done.thread.version,
            "change-id": done.thread.change_id,
            "prefixes": ["RFC"] if done.thread.rfc else [],
            "presubject": "",
        }
    }
    return "\n".join(
        [
            done.series.spec.title,
            "",
            *lines,
            "",
            *_trailers("To", [one for one in done.recipients.cover if one.to]),
            *_trailers("Cc", [one for one in done.recipients.cover if not one.to]),
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
        f'{field}: "{quote(one.name)}" <{one.address}>'
        if one.name
        else f"{field}: {one.address}"
        for one in recipients
    ]
