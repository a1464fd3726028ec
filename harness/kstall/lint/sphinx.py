# SPDX-License-Identifier: GPL-2.0-or-later
"""Warnings of Sphinx on a few documents, with the tree's own conf.py and extensions.

Only these are read, not the other three thousand; the targets of their references are
looked up in the sources of the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base import process
from .patchcheck import CannotTell, Finding, ProgramFailed

_DOCUMENTS = "Documentation"
_END = ".rst"
_ROOT = f"index{_END}"
# Documents that the tree's conf.py generates from YAML in any build, which take longer
# than all requested documents.
_GENERATED = "netlink/specs/**"
# The first version with include_patterns.
_LEAST = (5, 1)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_REMARK = re.compile(
    r"(?P<file>/[^:]+)(?::(?P<line>\d+))?: (?:WARNING|ERROR|CRITICAL|SEVERE): "
    r"(?P<text>.*?)(?: \[[\w.]+\])?"
)
_NO_DOCUMENT = re.compile(
    r"(?:toctree contains reference to (?:nonexisting|excluded) document"
    r"|unknown document:) ['\"]?(?P<name>[^'\"]+)['\"]?.*"
)
_NO_LABEL = re.compile(r"undefined label: ['\"]?(?P<name>[^'\"]+)['\"]?.*")
_NO_TREE = re.compile(r"document isn't included in any toctree.*")
# Targets in other documents that no search for a line finds.
_ELSEWHERE = re.compile(r"term not in glossary|unknown option")
_TIMEOUT_S = 1800.0


class Sphinx:
    """A `reading.Reader`: sphinx-build, on touched documents, and on those that include
    kernel-doc of touched code."""

    title = "sphinx"
    package = "python3-sphinx"
    program = "sphinx-build"
    apart = False

    def version(self) -> str:
        """Its version line; raises as `process.run` does if it is not installed."""
        return process.run([self.program, "--version"]).stdout.strip()

    def reads(self, path: str) -> bool:
        """Whether its findings can change with ``path``."""
        if path.startswith(f"{_DOCUMENTS}/"):
            return path.endswith((_END, ".py"))
        return path.endswith((".c", ".h")) and not path.startswith("tools/")

    def more(self, tree: Path, paths: Sequence[str]) -> tuple[str, ...]:
        """The documents that include kernel-doc of ``paths``."""
        code = [re.escape(path) for path in paths if path.endswith((".c", ".h"))]
        if not code:
            return ()
        pattern = rf"^\s*\.\. kernel-doc::\s+({'|'.join(code)})\s*$"
        completed = process.run(
            ["grep", "-rlE", f"--include=*{_END}", "-e", pattern, "--", _DOCUMENTS],
            cwd=tree,
            env={"LC_ALL": "C"},
            check=False,  # 1: no match
        )
        return tuple(sorted(completed.stdout.splitlines()))

    def read(
        self,
        tree: Path,
        paths: Sequence[str],
        scratch: Path,
        log: Path,
        progress: Callable[[int, int, str], None],
    ) -> tuple[list[Finding], list[str], list[str]]:
        """All findings in the documents among ``paths`` of ``tree``; the other lists
        are empty.

        Raises `CannotTell` if it cannot read the tree's documents at all.
        ``scratch`` is a directory that the caller removes.
        """
        match = _VERSION.search(self.version())
        if match is None or (int(match[1]), int(match[2])) < _LEAST:
            raise CannotTell(
                f"{self.version()} is too old: include_patterns came in 5.1"
            )
        names = [
            path.removeprefix(f"{_DOCUMENTS}/")
            for path in paths
            if path.startswith(f"{_DOCUMENTS}/") and path.endswith(_END)
        ]
        if not names:
            return [], [], []
        progress(0, 1, f"{len(names)} documents")
        top = tree / _DOCUMENTS
        # Sphinx does not miss the root document in a toctree.
        if (top / _ROOT).exists():
            names = list(dict.fromkeys([_ROOT, *names]))
        completed = process.run(
            (
                *(self.program, "-b", "dummy", "-q", "-N", "-c", top),
                *("-d", scratch / "doctrees"),
                *("-D", f"include_patterns={','.join(names)}"),
                *("-D", f"master_doc={names[0].removesuffix(_END)}"),
                *("-D", f"exclude_patterns={_GENERATED}"),
                *(top, scratch / "out"),
            ),
            cwd=tree,
            env={
                "srctree": str(tree),
                "BUILDDIR": str(scratch),
                "KERNELVERSION": "0",
                "KERNELRELEASE": "0",
                # Keep bytecode out of the tree.
                "PYTHONDONTWRITEBYTECODE": "1",
                "LC_ALL": "C.UTF-8",
            },
            log=log,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if completed.returncode < 0 or completed.returncode > 128:
            raise completed.failure()
        if completed.returncode:
            last = (completed.stdout.strip().splitlines() or ["no output"])[-1]
            raise ProgramFailed(
                f"sphinx-build exits with {completed.returncode}: {last}"
            )
        progress(1, 1, f"{len(names)} documents")
        return list(_findings(completed.stdout, tree)), [], []


def _findings(output: str, tree: Path) -> list[Finding]:
    findings = []
    for line in dict.fromkeys(output.splitlines()):
        match = _REMARK.fullmatch(line)
        if match is None:
            continue
        file = os.path.relpath(match["file"], tree)
        if not _exists(match["text"], file, tree):
            number = int(match["line"] or 0)
            findings.append(Finding(file, number, "sphinx", match["text"]))
    return findings


def _exists(text: str, file: str, tree: Path) -> bool:
    """Whether the target that ``text`` misses is in a document that was not read."""
    if _ELSEWHERE.match(text):
        return True
    if match := _NO_DOCUMENT.fullmatch(text):
        name = match["name"].removesuffix(_END)
        home = tree / _DOCUMENTS if name.startswith("/") else (tree / file).parent
        places = (home / name.lstrip("/"), tree / _DOCUMENTS / name)
        return any(place.with_name(f"{place.name}{_END}").exists() for place in places)
    if match := _NO_LABEL.fullmatch(text):
        return _mentions(tree, rf"^\s*\.\. _`?{re.escape(match['name'])}`?:")
    if _NO_TREE.fullmatch(text):
        name = Path(file).with_suffix("")
        # As a toctree entry, with or without a title, relative to any directory.
        return _mentions(
            tree, rf"^\s+(.* <)?(/?[^ <]*/)?{re.escape(name.name)}(\.rst)?>?$"
        )
    return False


def _mentions(tree: Path, pattern: str) -> bool:
    """Whether a line of a document matches."""
    completed = process.run(
        ["grep", "-rqiE", f"--include=*{_END}", "-e", pattern, "--", _DOCUMENTS],
        cwd=tree,
        env={"LC_ALL": "C"},
        check=False,
    )
    return completed.returncode == 0
