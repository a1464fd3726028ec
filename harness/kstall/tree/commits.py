# SPDX-License-Identifier: GPL-2.0-or-later
"""Plans as commits of a small repository, for git commands that need commits.

It has just the files that the series touch, with their content in the base, so that
diffstats, patch ids and range-diffs are those of the whole tree.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import git, tree
from .am import File

# With a date the same plan has the same ids.
_IDENTITY = {
    **git.IDENTITY,
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}
_NOTHING = "0" * 40
#: Columns of text for a mail.
_WIDTH = 72


class Repository:
    """A repository below ``scratch``, which the caller removes.

    A plan's commits are their ids: that with index n has the files after n patches.
    """

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._work = Path(tempfile.mkdtemp(prefix="commits-", dir=scratch))
        self._git("init", "-q", "--template=", ".")
        git.keep_exact(self._work / ".git")

    def _git(self, *words: str | Path, input: bytes | None = None) -> str:
        return git.printed(self._work, *words, env=_IDENTITY, input=input)

    def add(
        self, plan: tree.Plan, messages: Sequence[str], others: Sequence[str] = ()
    ) -> list[str]:
        """Commit ``plan``, a commit a patch, each with its subject and message.

        ``others`` are paths of another plan that it is to be compared with.
        """
        extra = tree.pristine(plan.base, others)
        ids: list[str] = []
        texts = ["base"]
        for patch, message in zip(plan.patches, messages, strict=True):
            texts.append(f"{patch.subject}\n\n{message}\n")
        for state, text in zip(plan.states, texts, strict=True):
            written = self._tree({**extra, **dict(state)})
            parents = [word for parent in ids[-1:] for word in ("-p", parent)]
            commit = self._git("commit-tree", written, *parents, input=text.encode())
            ids.append(commit.strip())
        return ids

    def _tree(self, files: dict[str, File | None]) -> str:
        """The id of a tree of ``files``."""
        self._git("read-tree", "--empty")
        entries = index_info(files, self._store)
        self._git("update-index", "-z", "--index-info", input=entries)
        return self._git("write-tree").strip()

    def _store(self, data: bytes) -> str:
        return self._git("hash-object", "-w", "--stdin", input=data).strip()

    def diffstat(self, ids: Sequence[str]) -> str:
        """What all patches together change, file by file."""
        words = ("diff", f"--stat={_WIDTH}", "--summary", "-M", ids[0], ids[-1])
        return self._git(*words).rstrip("\n")

    def range_diff(self, old: Sequence[str], new: Sequence[str]) -> str:
        """How the patches of ``old`` changed in ``new``, as git prints it."""
        ranges = (f"{ids[0]}..{ids[-1]}" for ids in (old, new))
        words = ("range-diff", "--no-color", "--no-notes", *ranges)
        return self._git(*words).rstrip("\n")

    def patch_ids(self, ids: Sequence[str]) -> tuple[str, ...]:
        """git's id of each patch, which does not depend on its place in the files."""
        patches = []
        for before, after in itertools.pairwise(ids):
            diff = self._git("diff-tree", "-p", before, after)
            output = self._git("patch-id", "--stable", input=diff.encode())
            patches.append(output.split()[0] if output.split() else "")
        return tuple(patches)


def index_info(
    files: Mapping[str, File | None], store: Callable[[bytes], str]
) -> bytes:
    """Input for `git update-index -z --index-info` that adds ``files``, and removes
    those that are None; ``store`` stores a content and returns its id."""
    entries = []
    for path, file in files.items():
        if file is None:
            entries.append(f"0 {_NOTHING}\t{path}\0")
        else:
            mode = "100755" if file.executable else "100644"
            entries.append(f"{mode} {store(file.data)}\t{path}\0")
    return "".join(entries).encode()
