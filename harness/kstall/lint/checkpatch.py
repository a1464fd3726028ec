# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tree's own checkpatch.pl says of a patch mail.

It runs on copies, outside of any tree: inside one it leaves a file behind.
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
class Remark:
    """A thing that checkpatch does not like: ERROR, WARNING or CHECK, and its kind."""

    file: str
    line: int
    level: str
    kind: str
    text: str


def run(
    base: Base, files: Sequence[Path], scratch: Path, *, signed: bool
) -> tuple[Remark, ...]:
    """All remarks on ``files``, with --strict; without ``signed`` a sign-off may lack.

    Raises `KstallError` for a tree without the script.
    """
    here = scratch / "checkpatch"
    for path, file in tree.pristine(base, _READS).items():
        if file is None:
            if path == _SCRIPT:
                raise KstallError(
                    f"the tree {base.origin} has no {path}",
                    next="give KERNEL= a whole kernel tree",
                )
            continue
        target = here / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
    done = process.run(
        (
            *("perl", _SCRIPT, "--no-tree", "--strict", "--terse", "--show-types"),
            *("--no-summary", "--color=never"),
            *(() if signed else ("--no-signoff",)),
            "--",
            *(file.absolute() for file in files),
        ),
        cwd=here,
        env={"HOME": str(scratch), "LC_ALL": "C.UTF-8"},
        check=False,
        timeout=_TIMEOUT_S,
    )
    found = parse(done.stdout)
    if done.returncode != 0 and not found:
        raise process.CommandError(done.argv, done.returncode, done.stdout)
    return found


def parse(said: str) -> tuple[Remark, ...]:
    """The remarks in what `checkpatch.pl --terse --show-types` printed."""
    return tuple(
        Remark(
            Path(match["file"]).name,
            int(match["line"]),
            match["level"],
            match["kind"],
            line[match.end() :],
        )
        for line in said.splitlines()
        if (match := _LINE.match(line))
    )


def summary(remarks: Sequence[Remark]) -> str:
    """How many of which level, and their kinds, in a line."""
    if not remarks:
        return "clean"
    levels = Counter(one.level for one in remarks)
    counts = ", ".join(
        f"{levels[level]} {level.lower()}{'s' if levels[level] > 1 else ''}"
        for level in ("ERROR", "WARNING", "CHECK")
        if levels[level]
    )
    kinds = Counter(one.kind for one in remarks)
    return f"{counts} ({', '.join(f'{k} {n}' for k, n in kinds.most_common())})"
