# SPDX-License-Identifier: GPL-2.0-or-later
"""Warnings of the tree's own kernel-doc, run on copies outside of any tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..base import KstallError, process
from ..tree import Base, File, tree

# Its path, from the newest kernels to the oldest, and the modules that it loads.
_SCRIPTS = ("tools/docs/kernel-doc", "scripts/kernel-doc.py", "scripts/kernel-doc")
_LOADS = ("tools/lib/python/", "scripts/lib/")
# The Python script prints "Warning: file:1 text", the Perl script of older kernels
# "file:1: warning: text".
_REMARK = re.compile(
    r"(?:[Ww]arning|[Ee]rror): (?P<file>\S+?):(?P<line>\d+):? "
    r"|(?P<file_>\S+?):(?P<line_>\d+): (?:warning|error): "
)
_WARNS = re.compile(r"\b(?:warning|error)\b", re.IGNORECASE)
_TIMEOUT_S = 120.0


def has(content: bytes) -> bool:
    """Whether a source file has comments that kernel-doc reads."""
    return b"\n/**\n" in content or b"\n\t/**\n" in content


class KernelDoc:
    """The script of ``base``, copied below ``scratch``, which the caller removes.

    Raises `KstallError` for a tree that has none.
    """

    def __init__(self, base: Base, scratch: Path) -> None:
        paths = tree.regular(base)
        name = next((path for path in _SCRIPTS if path in paths), None)
        if name is None:
            raise KstallError(
                f"the tree {base.origin} has no kernel-doc",
                next="give KERNEL= a whole kernel tree",
            )
        modules = [path for path in paths if path.startswith(_LOADS)]
        directory = scratch / "kernel-doc"
        for path, file in tree.pristine(base, [name, *modules]).items():
            if file is not None:
                file.write(directory / path)
        self._script = directory / name
        self._scratch = scratch

    def remarks(
        self, files: Mapping[str, File], where: str
    ) -> dict[str, tuple[tuple[int, str], ...]]:
        """Line and text of each warning on ``files``, by path; ``where`` is the name of
        a new directory for their copies."""
        directory = self._scratch / where
        for path, file in files.items():
            file.write(directory / path)
        if not files:
            return {}
        completed = process.run(
            (self._script.absolute(), "-none", "-Wall", *files),
            cwd=directory,
            env={"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"},
            check=False,
            timeout=_TIMEOUT_S,
        )
        # It exits with 3 if warnings count as errors.
        if completed.returncode not in (0, 3):
            raise completed.failure()
        remarks = parse(completed.stdout, files)
        if _WARNS.search(completed.stdout) and not any(remarks.values()):
            raise KstallError(
                f"the output of this tree's {self._script.name} cannot be read: "
                f"{completed.stdout.splitlines()[0]}",
                next="this output format is not supported yet: report it",
            )
        return remarks


def parse(output: str, files: Iterable[str]) -> dict[str, tuple[tuple[int, str], ...]]:
    """Line and text of each warning that kernel-doc printed, for each of ``files``."""
    remarks: dict[str, list[tuple[int, str]]] = {path: [] for path in files}
    # Each warning is printed once for every pass over the file.
    for line in dict.fromkeys(output.splitlines()):
        if match := _REMARK.match(line):
            file = match["file"] or match["file_"]
            number = match["line"] or match["line_"]
            if file in remarks:
                remarks[file].append((int(number), line[match.end() :]))
    return {path: tuple(lines) for path, lines in remarks.items()}
