# SPDX-License-Identifier: GPL-2.0-or-later
"""What became of structs, and of the prototypes of tracepoints, between two kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..base import KstallError
from ..evidence import btf
from . import costs

_RECORD = "trace_event_raw_"
# What TRACE_EVENT() needs while it fills a record; none is ever stored.
_NO_RECORD = ("trace_event_data_offsets_",)


Pair = tuple[str, btf.Types, btf.Types]


def types(binaries: Iterable[tuple[str, Path, Path]]) -> Iterator[Pair]:
    """The types of binaries, as name, base, patched; the kernel itself is first."""
    kernels: tuple[btf.Types, btf.Types] | None = None
    for name, one, other in binaries:
        if kernels is None:
            before, after = kernels = btf.read(one), btf.read(other)
        else:
            try:
                before = btf.read(one, kernels[0])
                after = btf.read(other, kernels[1])
            except KstallError:
                continue  # a module without types of its own
        yield name, before, after


def add(found: costs.Footprint, pairs: Iterable[Pair]) -> None:
    """Add to ``found`` what changed or is new, each once, where it is first."""
    reported: set[str] = set()
    for name, before, after in pairs:
        for change in compare(name, before, after):
            if change.name not in reported:
                reported.add(change.name)
                found.structs.append(change)
        ours, theirs = before.prototypes(), after.prototypes()
        found.prototypes += prototypes(name, ours, theirs)
        found.same_prototypes += sum(theirs.get(key) == ours[key] for key in ours)


def prototypes(
    binary: str,
    base: Mapping[str, tuple[str, ...]],
    patched: Mapping[str, tuple[str, ...]],
) -> Iterator[costs.Prototype]:
    """The tracepoints whose arguments are not what they were."""
    for event in sorted({*base, *patched}):
        before, after = base.get(event), patched.get(event)
        if before != after:
            yield costs.Prototype(
                binary=binary,
                event=event,
                base=None if before is None else list(before),
                patched=None if after is None else list(after),
            )


def compare(
    binary: str, base: btf.Types, patched: btf.Types
) -> Iterator[costs.StructChange]:
    """What became of the structs of ``base``; those of one name are held together."""
    ours, theirs = _layouts(base), _layouts(patched)
    for name in sorted({*ours, *theirs}):
        before, after = ours.get(name, set()), theirs.get(name, set())
        if before == after or name.startswith(_NO_RECORD):
            continue
        one = max(before - after, key=_order, default=None)
        other = max(after - before, key=_order, default=None)
        if one is None and before:
            continue  # one of several with this name went or came
        moved, members = _moves(one, other) if one and other else ([], [])
        yield costs.StructChange(
            binary=binary,
            name=name,
            base=one.size if one else None,
            patched=other.size if other else None,
            base_holes=sum(hole.size for hole in one.holes) if one else None,
            patched_holes=sum(hole.size for hole in other.holes) if other else None,
            moved=moved,
            members=members,
            record=name.startswith(_RECORD),
        )


def _order(layout: btf.Layout) -> tuple[int, int]:
    return layout.size, len(layout.members)


def _layouts(types: btf.Types) -> dict[str, set[btf.Layout]]:
    found: dict[str, set[btf.Layout]] = {}
    for one in types.layouts():
        found.setdefault(one.name, set()).add(one)
    return found


def _moves(one: btf.Layout, other: btf.Layout) -> tuple[list[str], list[str]]:
    ours = {member.name: member for member in one.members if member.name}
    theirs = {member.name: member for member in other.members if member.name}
    moved = [
        f"{name}: {ours[name].offset // 8} -> {theirs[name].offset // 8}"
        for name in ours
        if name in theirs and ours[name].offset != theirs[name].offset
    ]
    members = [f"+{name}" for name in theirs if name not in ours]
    members += [f"-{name}" for name in ours if name not in theirs]
    return moved, members
