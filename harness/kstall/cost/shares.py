# SPDX-License-Identifier: GPL-2.0-or-later
"""What one series has in the footprint of several that are in one kernel.

Nothing is left out: what cannot be told to be somebody's is everybody's, and is judged
as each one's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import costs

_NO_SITE = re.compile(r"no site of (\w+) in any binary")


@dataclass(frozen=True)
class Part:
    """What a series has to do with, by name: a reason why a change is its own.

    ``events`` maps the symbol of a tracepoint to functions with a site.  ``functions``
    of source files are not as in the base, or call such a one in a file that the series
    changes; ``words`` are in lines that it adds.  What it asks an exemption for is in
    ``exempt``, functions and structs alike.
    """

    name: str
    events: Mapping[str, tuple[str, ...]]
    hot: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Shares:
    """All series of a kernel."""

    parts: tuple[Part, ...]
    _of: dict[str, Part] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        self._of.update((one.name, one) for one in self.parts)

    @property
    def events(self) -> dict[str, tuple[str, ...]]:
        """The functions with a site, by the symbol of the tracepoint, of all."""
        return {
            event: names for one in self.parts for event, names in one.events.items()
        }

    @property
    def hot(self) -> frozenset[str]:
        """The functions that any of them calls hot."""
        return frozenset(name for one in self.parts for name in one.hot)

    def of(self, series: str, whole: costs.Footprint) -> costs.Footprint:
        """What is the part of ``series`` in ``whole``, or may be."""
        mine = self._of[series]
        sited = _sited(whole.sites)
        owners = _Owners(self.parts, sited, whole)

        def is_ours(one: costs.FunctionPaths) -> bool:
            return series in owners.of_function(one.name, one.binary)

        functions = [one for one in whole.functions if series in owners.of_symbol(one)]
        return costs.Footprint(
            nops=whole.nops,
            sites=[one for one in whole.sites if one.event in mine.events],
            functions=functions,
            sections=list(
                _sections(whole, functions, self._alone(whole, owners, series))
            ),
            paths=[one for one in whole.paths if is_ours(one)],
            same_paths=whole.same_paths,
            unchanged=whole.unchanged,
            structs=[one for one in whole.structs if series in owners.of_struct(one)],
            prototypes=[
                one
                for one in whole.prototypes
                # What became of one that was there before is everybody's.
                if one.base is not None
                or one.event in mine.events
                or one.event not in self.events
            ],
            same_prototypes=whole.same_prototypes,
            limits=[*self._limits(mine, whole)],
        )

    def _limits(self, mine: Part, whole: costs.Footprint) -> Iterator[str]:
        for text in whole.limits:
            match = _NO_SITE.fullmatch(text)
            if match is None or match[1] in mine.events:
                yield text
        others = ", ".join(one.name for one in self.parts if one.name != mine.name)
        yield (
            f"{others} are in the same kernel: of a binary that they change as well, "
            "sizes are those of functions that are told to be of this series"
        )

    def _alone(
        self, whole: costs.Footprint, owners: _Owners, series: str
    ) -> frozenset[str]:
        """The binaries that only ``series`` changes."""
        changed: dict[str, set[str]] = {}
        for one in whole.functions:
            found = changed.setdefault(one.binary, set())
            found |= owners.of_symbol(one)
        return frozenset(name for name, found in changed.items() if found == {series})


def _sited(sites: Iterable[costs.Site]) -> dict[str, set[str]]:
    """The events with a site in a function, by its name in the source."""
    found: dict[str, set[str]] = {}
    for one in sites:
        found.setdefault(_plain(one.function), set()).add(one.event)
    return found


def _plain(name: str) -> str:
    return name.partition(".")[0]


def _sections(
    whole: costs.Footprint,
    functions: Sequence[costs.FunctionSize],
    alone: frozenset[str],
) -> Iterator[costs.SectionSize]:
    """Of binaries of several, what functions of one make of the section."""
    for one in whole.sections:
        if one.binary in alone:
            yield one
            continue
        here = [
            each
            for each in functions
            if (each.binary, each.section) == (one.binary, one.section)
        ]
        base, patched = (
            sum(size or 0 for size in sizes)
            for sizes in (
                [each.base for each in here],
                [each.patched for each in here],
            )
        )
        if base != patched:
            yield costs.SectionSize(
                binary=one.binary, section=one.section, base=base, patched=patched
            )


class _Owners:
    """Whose a change is; names of series."""

    def __init__(
        self,
        parts: Sequence[Part],
        sited: Mapping[str, set[str]],
        whole: costs.Footprint,
    ) -> None:
        self._parts = parts
        self._sited = sited
        self._every = frozenset(one.name for one in parts)
        # Whose functions are in a module, as far as they are told to be somebody's.
        self._in_module: dict[str, frozenset[str]] = {}
        changed = {(one.binary, one.name) for one in whole.paths}
        changed |= {(one.binary, one.name) for one in whole.functions}
        for binary, name in changed:
            if binary != "vmlinux":
                known = self._in_module.get(binary, frozenset())
                self._in_module[binary] = known | self._told(name)

    def of_function(self, symbol: str, binary: str) -> frozenset[str]:
        """Whose source changed, or whose event it has; else who argues for it, or
        changes others of its module."""
        name = _plain(symbol)
        argued = frozenset(one.name for one in self._parts if name in one.exempt)
        beside = self._in_module.get(binary)
        return self._told(symbol) or argued or beside or self._every

    def _told(self, symbol: str) -> frozenset[str]:
        name = _plain(symbol)
        events = self._sited.get(name, set())
        return frozenset(
            one.name
            for one in self._parts
            if name in one.functions or events & one.events.keys()
        )

    def of_symbol(self, size: costs.FunctionSize) -> frozenset[str]:
        """As `of_function`; what TRACE_EVENT() makes is its event's."""
        if size.part == "event":
            name = _plain(size.name)
            owners = frozenset(
                one.name
                for one in self._parts
                if any(name.endswith(f"_{event}") for event in one.events)
            )
            return owners or self._every
        return self.of_function(size.name, size.binary)

    def of_struct(self, change: costs.StructChange) -> frozenset[str]:
        """Who makes it, argues for it, or names a member that came or went."""
        names = {member[1:] for member in change.members} or {change.name}
        if change.record:
            names = {change.name.removeprefix("trace_event_raw_")}
            made = frozenset(
                one.name for one in self._parts if names & one.events.keys()
            )
            return made or self._every
        argued = frozenset(one.name for one in self._parts if change.name in one.exempt)
        told = frozenset(one.name for one in self._parts if names & one.words)
        return argued or told or self._every
