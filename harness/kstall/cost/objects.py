# SPDX-License-Identifier: GPL-2.0-or-later
"""What single objects show about kernels that are not built.

Without ``CONFIG_JUMP_LABEL`` a tracepoint that is off is no NOP: its site loads a key,
tests it and branches, so the code grows.  With the mitigations that distributions
enable, compilers generate other code for all functions: that a disabled event is a NOP
there as well, and nothing else, is checked as in a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import costs, elf, footprint

#: Objects by their path in the tree: of the base, and of the patched tree.
Pairs = Mapping[str, tuple[Path, Path]]


@dataclass(frozen=True)
class ObjectCosts:
    """The fields of an `Overhead` that come from objects, under the same names."""

    worst: list[costs.FunctionSize]
    mitigated: costs.Footprint | None
    unmitigated: str | None = None


def pairs(base: Path, patched: Path) -> Pairs:
    """The objects that both directories have."""
    objects = {}
    for ours in sorted(base.rglob("*.o")):
        theirs = patched / ours.relative_to(base)
        if theirs.exists():
            objects[str(ours.relative_to(base))] = (ours, theirs)
    return objects


def sizes(objects: Pairs) -> list[costs.FunctionSize]:
    """The functions whose size changed, in bytes of code; ``binary`` is the object."""
    return [
        size
        for name, (ours, theirs) in _changed(objects).items()
        for size in footprint.sizes(name, elf.load(ours), elf.load(theirs))
    ]


def compare(objects: Pairs, declaration: footprint.Declaration) -> costs.Footprint:
    """As `footprint.compare` for kernels, but for structs and prototypes; ``binary`` is
    the object."""
    total = costs.Footprint()
    for name, (ours, theirs) in _changed(objects).items():
        footprint.add(total, footprint.binaries(name, ours, theirs, declaration))
    return total


def _changed(objects: Pairs) -> Pairs:
    return {
        name: (ours, theirs)
        for name, (ours, theirs) in objects.items()
        if ours.read_bytes() != theirs.read_bytes()
    }
