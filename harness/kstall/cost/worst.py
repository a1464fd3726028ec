# SPDX-License-Identifier: GPL-2.0-or-later
"""What the code grows by where nothing can be patched at run time.

Without ``CONFIG_JUMP_LABEL`` a tracepoint that is off is no NOP: its site loads a key,
tests it and branches.  No kernel of that kind is built; the objects tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import costs, elf, footprint

#: Objects by their path in the tree: of the base, and of the patched tree.
Pairs = Mapping[str, tuple[Path, Path]]


def pairs(base: Path, patched: Path) -> Pairs:
    """The objects that both directories have."""
    found = {}
    for ours in sorted(base.rglob("*.o")):
        theirs = patched / ours.relative_to(base)
        if theirs.exists():
            found[str(ours.relative_to(base))] = (ours, theirs)
    return found


def sizes(objects: Pairs) -> list[costs.FunctionSize]:
    """The functions whose size changed, in bytes of code; ``binary`` is the object."""
    return [
        one
        for name, (ours, theirs) in objects.items()
        if ours.read_bytes() != theirs.read_bytes()
        for one in footprint.sizes(name, elf.load(ours), elf.load(theirs))
    ]
