# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes of structs, and of prototypes of tracepoints, between two kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..base import KstallError
from ..evidence import btf
from . import costs

_RECORD = "trace_event_raw_"
# What TRACE_EVENT() needs while it fills a record; none is ever stored.
_NO_RECORD = ("trace_event_data_offsets_",)


#: A binary's name, and its types in base and patched; None: they cannot be read.
Pair = tuple[str, btf.Types | None, btf.Types | None]


def types(binaries: Iterable[tuple[str, Path, Path]]) -> Iterator[Pair]:
    """The types of binaries, base and patched; the kernel itself is first."""
    kernels: tuple[btf.Types, btf.Types] | None = None
    for name, base, patched in binaries:
        if kernels is None:
            before, after = kernels = btf.read(base), btf.read(patched)
        else:
            try:
                before = btf.read(base, kernels[0])
                after = btf.read(patched, kernels[1])
            except KstallError:
                yield name, None, None
                continue
        yield name, before, after


def add(footprint: costs.Footprint, pairs: Iterable[Pair]) -> None:
    """Add what changed or is new to ``footprint``, each once, for its first binary.

    Changes of structs of one name that differ are of structs that only share it.
    """
    reported: set[str] = set()
    for name, before, after in pairs:
        if before is None or after is None:
            footprint.limits.append(
                f"{name} has no types: its structs are not compared"
            )
            continue
        for change in compare(name, before, after):
            key = change.model_dump_json(exclude={"binary"})
            if key not in reported:
                reported.add(key)
                footprint.structs.append(change)
        ours, theirs = before.prototypes(), after.prototypes()
        footprint.prototypes += prototypes(name, ours, theirs)
        footprint.same_prototypes += sum(theirs.get(key) == ours[key] for key in ours)


def prototypes(
    binary: str,
    base: Mapping[str, tuple[str, ...]],
    patched: Mapping[str, tuple[str, ...]],
) -> Iterator[costs.Prototype]:
    """The tracepoints whose arguments changed."""
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
    """The structs that changed; those of one name are compared as a set."""
    ours, theirs = _layouts(base), _layouts(patched)
    old_names = _renamed(ours, theirs)
    for name in sorted({*ours, *theirs} - {*old_names.values()}):
        was = old_names.get(name, "")
        before, after = ours.get(was or name, set()), theirs.get(name, set())
        if before == after or name.startswith(_NO_RECORD):
            continue
        old_layout = max(before - after, key=_order, default=None)
        new_layout = max(after - before, key=_order, default=None)
        if old_layout is None and before:
            continue  # another struct of this name was added
        moved, members = (
            _moves(old_layout, new_layout) if old_layout and new_layout else ([], [])
        )
        yield costs.StructChange(
            binary=binary,
            name=name,
            was=was,
            base=old_layout.size if old_layout else None,
            patched=new_layout.size if new_layout else None,
            base_holes=sum(hole.size for hole in old_layout.holes)
            if old_layout
            else None,
            patched_holes=sum(hole.size for hole in new_layout.holes)
            if new_layout
            else None,
            moved=moved,
            members=members,
            record=name.startswith(_RECORD),
        )


def _renamed(
    base: Mapping[str, set[btf.Layout]], patched: Mapping[str, set[btf.Layout]]
) -> dict[str, str]:
    """Old names of structs by new ones: all members of one that is gone are in one
    that is new, which may have more."""
    gone, new = (
        {
            name: max(layouts[name], key=_order)
            for name in sorted(layouts.keys() - others.keys())
            if not name.startswith((_RECORD, *_NO_RECORD))
        }
        for layouts, others in ((base, patched), (patched, base))
    )
    names: dict[str, str] = {}
    for name, layout in gone.items():
        members = _member_names(layout)
        heirs = [
            heir
            for heir in new
            if heir not in names and members <= _member_names(new[heir])
        ]
        # Many structs have one member of the same name.
        if heirs and len(members) > 1:
            names[min(heirs, key=lambda heir: new[heir].size)] = name
    return names


def _member_names(layout: btf.Layout) -> set[str]:
    return {member.name for member in layout.members if member.name}


def _order(layout: btf.Layout) -> tuple[int, int]:
    return layout.size, len(layout.members)


def _layouts(types: btf.Types) -> dict[str, set[btf.Layout]]:
    layouts: dict[str, set[btf.Layout]] = {}
    for layout in types.layouts():
        layouts.setdefault(layout.name, set()).add(layout)
    return layouts


def _moves(base: btf.Layout, patched: btf.Layout) -> tuple[list[str], list[str]]:
    ours = {member.name: member for member in base.members if member.name}
    theirs = {member.name: member for member in patched.members if member.name}
    moved = [
        f"{name}: {ours[name].offset // 8} -> {theirs[name].offset // 8}"
        for name in ours
        if name in theirs and ours[name].offset != theirs[name].offset
    ]
    members = [f"+{name}" for name in theirs if name not in ours]
    members += [f"-{name}" for name in ours if name not in theirs]
    return moved, members
