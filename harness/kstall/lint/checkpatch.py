# SPDX-License-Identifier: GPL-2.0-or-later
"""Remarks of the tree's own checkpatch.pl on patch mails.

It runs on copies outside of any tree, because inside one it leaves a file behind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, process
from ..tree import Base, tree

_SCRIPT = "scripts/checkpatch.pl"
_READS = (_SCRIPT, "scripts/spelling.txt", "scripts/const_structs.checkpatch")
_LINE = re.compile(
    r"(?P<file>.*?):(?P<line>\d+): (?P<level>[A-Z]+):(?P<kind>[A-Z_]+): "
)
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class CheckpatchRemark:
    """A remark of checkpatch, with its level (ERROR, WARNING or CHECK) and kind."""

    file: str
    line: int
    level: str
    kind: str
    text: str


def run(
    base: Base, files: Sequence[Path], scratch: Path, *, signed: bool
) -> tuple[CheckpatchRemark, ...]:
    """All remarks on ``files``, with --strict; ``signed`` requires a sign-off.

    Raises `KstallError` for a tree without the script.
    """
    directory = scratch / "checkpatch"
    for path, file in tree.pristine(base, _READS).items():
        if file is None:
            if path == _SCRIPT:
                raise KstallError(
                    f"the tree {base.origin} has no {path}",
                    next="give KERNEL= a whole kernel tree",
                )
            continue
        file.write(directory / path)
    completed = process.run(
        (
            *("perl", _SCRIPT, "--no-tree", "--strict", "--terse", "--show-types"),
            *("--no-summary", "--color=never"),
            *(() if signed else ("--no-signoff",)),
            "--",
            *(file.absolute() for file in files),
        ),
        cwd=directory,
        env={"HOME": str(scratch), "LC_ALL": "C.UTF-8"},
        check=False,
        timeout=_TIMEOUT_S,
    )
    remarks = parse(completed.stdout)
    # It ends with 1 if it has remarks; if it died there may be others.
    if completed.returncode not in (0, 1) or (completed.returncode and not remarks):
        raise completed.failure()
    return remarks


def parse(output: str) -> tuple[CheckpatchRemark, ...]:
    """The remarks in the output of `checkpatch.pl --terse --show-types`."""
    return tuple(
        CheckpatchRemark(
            Path(match["file"]).name,
            int(match["line"]),
            match["level"],
            match["kind"],
            line[match.end() :],
        )
        for line in output.splitlines()
        if (match := _LINE.match(line))
    )


def summary(remarks: Sequence[CheckpatchRemark]) -> str:
    """The number of remarks by level and by kind, in one line."""
    if not remarks:
        return "clean"
    levels = Counter(remark.level for remark in remarks)
    counts = ", ".join(
        f"{levels[level]} {level.lower()}{'s' if levels[level] > 1 else ''}"
        for level in ("ERROR", "WARNING", "CHECK")
        if levels[level]
    )
    kinds = Counter(remark.kind for remark in remarks)
    return f"{counts} ({', '.join(f'{k} {n}' for k, n in kinds.most_common())})"
