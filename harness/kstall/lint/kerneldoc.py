# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tree's own kernel-doc says of files, run on copies outside of any tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..base import KstallError, process
from ..tree import Base, tree

# Where it was, from the newest kernels to the oldest; and what it loads.
_SCRIPTS = ("tools/docs/kernel-doc", "scripts/kernel-doc.py", "scripts/kernel-doc")
_LOADS = ("tools/lib/python/", "scripts/lib/")
# The script in Python says "Warning: file:1 text", that in Perl, which kernels had
# before, "file:1: warning: text".
_SAID = re.compile(
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
        there = tree.regular(base)
        name = next((path for path in _SCRIPTS if path in there), None)
        if name is None:
            raise KstallError(
                f"the tree {base.origin} has no kernel-doc",
                next="give KERNEL= a whole kernel tree",
            )
        wanted = [path for path in there if path.startswith(_LOADS)]
        here = scratch / "kernel-doc"
        for path, file in tree.pristine(base, [name, *wanted]).items():
            if file is not None:
                target = here / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.data)
                target.chmod(0o755 if file.executable else 0o644)
        self._script = here / name
        self._scratch = scratch

    def remarks(
        self, files: Mapping[str, bytes], where: str
    ) -> dict[str, tuple[tuple[int, str], ...]]:
        """Line and text of each warning on ``files``, by path; ``where`` names a
        directory for them that was not used before."""
        here = self._scratch / where
        for path, data in files.items():
            target = here / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if not files:
            return {}
        done = process.run(
            (self._script.absolute(), "-none", "-Wall", *files),
            cwd=here,
            env={"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"},
            check=False,
            timeout=_TIMEOUT_S,
        )
        # It exits with 3 for warnings only when they are to be errors.
        if done.returncode not in (0, 3):
            raise process.CommandError(done.argv, done.returncode, done.stdout)
        found = parse(done.stdout, files)
        if _WARNS.search(done.stdout) and not any(found.values()):
            raise KstallError(
                f"{self._script.name} of this tree says what cannot be read: "
                f"{done.stdout.splitlines()[0]}",
                next="a kernel-doc of this form is not known yet: report it",
            )
        return found


def parse(said: str, files: Iterable[str]) -> dict[str, tuple[tuple[int, str], ...]]:
    """Line and text of each warning that kernel-doc printed, for each of ``files``."""
    found: dict[str, list[tuple[int, str]]] = {path: [] for path in files}
    # Each is told once for every pass over the file.
    for line in dict.fromkeys(said.splitlines()):
        if match := _SAID.match(line):
            file = match["file"] or match["file_"]
            number = match["line"] or match["line_"]
            if file in found:
                found[file].append((int(number), line[match.end() :]))
    return {path: tuple(lines) for path, lines in found.items()}
