# SPDX-License-Identifier: GPL-2.0-or-later
"""What Sphinx says of a few documents, with the tree's own conf.py and extensions.

Only they are read, and not the three thousand others: whether what they refer to is
there is then looked up in the sources of those.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base import process
from .patchcheck import CannotTell, Finding

_DOCUMENTS = "Documentation"
_END = ".rst"
_ROOT = f"index{_END}"
# Before, it had no list of what to read.
_LEAST = (5, 1)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_SAID = re.compile(
    r"(?P<file>/[^:]+)(?::(?P<line>\d+))?: (?:WARNING|ERROR|CRITICAL|SEVERE): "
    r"(?P<text>.*?)(?: \[[\w.]+\])?"
)
_NO_DOCUMENT = re.compile(
    r"(?:toctree contains reference to (?:nonexisting|excluded) document"
    r"|unknown document:) ['\"]?(?P<name>[^'\"]+)['\"]?.*"
)
_NO_LABEL = re.compile(r"undefined label: ['\"]?(?P<name>[^'\"]+)['\"]?.*")
_NO_TREE = re.compile(r"document isn't included in any toctree.*")
# What other documents have, and is in no line that could be looked for.
_ELSEWHERE = re.compile(r"term not in glossary|unknown option")
_TIMEOUT_S = 1800.0


class Sphinx:
    """A `reading.Reader`: sphinx-build, on documents, and on those that take comments
    out of touched code."""

    title = "sphinx"
    package = "python3-sphinx"
    program = "sphinx-build"
    apart = False

    def version(self) -> str:
        """What it calls itself; a program that is not there raises what `process.run`
        does."""
        return process.run([self.program, "--version"]).stdout.strip()

    def reads(self, path: str) -> bool:
        """Whether what it says can change with such a file."""
        if path.startswith(f"{_DOCUMENTS}/"):
            return path.endswith((_END, ".py"))
        return path.endswith((".c", ".h")) and not path.startswith("tools/")

    def more(self, tree: Path, paths: Sequence[str]) -> tuple[str, ...]:
        """The documents that take comments out of ``paths``."""
        code = [re.escape(path) for path in paths if path.endswith((".c", ".h"))]
        if not code:
            return ()
        pattern = rf"^\s*\.\. kernel-doc::\s+({'|'.join(code)})\s*$"
        done = process.run(
            ["grep", "-rlE", f"--include=*{_END}", "-e", pattern, "--", _DOCUMENTS],
            cwd=tree,
            env={"LC_ALL": "C"},
            check=False,  # 1 is for none
        )
        return tuple(sorted(done.stdout.splitlines()))

    def read(
        self,
        tree: Path,
        paths: Sequence[str],
        scratch: Path,
        log: Path,
        progress: Callable[[int, int, str], None],
    ) -> tuple[list[Finding], list[str]]:
        """All findings in the documents among ``paths`` of ``tree``; the second list
        is empty.

        Raises `CannotTell` if it cannot read the tree's documents at all.
        ``scratch`` is a directory that the caller removes.
        """
        found = _VERSION.search(self.version())
        if found is None or (int(found[1]), int(found[2])) < _LEAST:
            raise CannotTell(f"{self.version()} is too old: 5.1 has lists of documents")
        names = [
            path.removeprefix(f"{_DOCUMENTS}/")
            for path in paths
            if path.startswith(f"{_DOCUMENTS}/") and path.endswith(_END)
        ]
        if not names:
            return [], []
        progress(0, 1, f"{len(names)} documents")
        top = tree / _DOCUMENTS
        # Of the document at the root nobody asks in which toctree it is.
        if (top / _ROOT).exists():
            names = list(dict.fromkeys([_ROOT, *names]))
        done = process.run(
            (
                *(self.program, "-b", "dummy", "-q", "-N", "-c", top),
                *("-d", scratch / "doctrees"),
                *("-D", f"include_patterns={','.join(names)}"),
                *("-D", f"master_doc={names[0].removesuffix(_END)}"),
                *(top, scratch / "out"),
            ),
            cwd=tree,
            env={
                "srctree": str(tree),
                "BUILDDIR": str(scratch),
                "KERNELVERSION": "0",
                "KERNELRELEASE": "0",
                # The tree is not to get bytecode.
                "PYTHONDONTWRITEBYTECODE": "1",
                "LC_ALL": "C.UTF-8",
            },
            log=log,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if done.returncode < 0 or done.returncode > 128:
            raise process.CommandError(done.argv, done.returncode, done.stdout)
        if done.returncode:
            last = (done.stdout.strip().splitlines() or ["it says nothing"])[-1]
            raise CannotTell(f"sphinx-build exits with {done.returncode}: {last}")
        progress(1, 1, f"{len(names)} documents")
        return list(_findings(done.stdout, tree)), []


def _findings(said: str, tree: Path) -> list[Finding]:
    found = []
    for line in dict.fromkeys(said.splitlines()):
        match = _SAID.fullmatch(line)
        if match is None:
            continue
        file = os.path.relpath(match["file"], tree)
        if not _is_there(match["text"], file, tree):
            number = int(match["line"] or 0)
            found.append(Finding(file, number, "sphinx", match["text"]))
    return found


def _is_there(text: str, file: str, tree: Path) -> bool:
    """Whether what ``text`` misses is in a document that was not read."""
    if _ELSEWHERE.match(text):
        return True
    if match := _NO_DOCUMENT.fullmatch(text):
        name = match["name"].removesuffix(_END)
        home = tree / _DOCUMENTS if name.startswith("/") else (tree / file).parent
        places = (home / name.lstrip("/"), tree / _DOCUMENTS / name)
        return any(one.with_name(f"{one.name}{_END}").exists() for one in places)
    if match := _NO_LABEL.fullmatch(text):
        return _mentions(tree, rf"^\s*\.\. _`?{re.escape(match['name'])}`?:")
    if _NO_TREE.fullmatch(text):
        name = Path(file).with_suffix("")
        # As an entry, alone or behind a title, from whichever directory.
        return _mentions(
            tree, rf"^\s+(.* <)?(/?[^ <]*/)?{re.escape(name.name)}(\.rst)?>?$"
        )
    return False


def _mentions(tree: Path, pattern: str) -> bool:
    """Whether a line of a document matches."""
    done = process.run(
        ["grep", "-rqiE", f"--include=*{_END}", "-e", pattern, "--", _DOCUMENTS],
        cwd=tree,
        env={"LC_ALL": "C"},
        check=False,
    )
    return done.returncode == 0
