# SPDX-License-Identifier: GPL-2.0-or-later
"""The share of one series in the footprint of several that are in one kernel.

Nothing is left out: what cannot be attributed to any series is attributed to all, and
judged for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import costs

_NO_SITE = re.compile(r"no site of (\w+) in any binary")


@dataclass(frozen=True)
class SeriesPart:
    """The names by which a change is attributed to a series.

    ``events`` maps the symbol of a tracepoint to functions with a site.  The source of
    ``functions`` differs from the base, or they call such a function in a file that the
    series changes; ``words`` are in lines that it adds.  ``exempt`` are functions and
    structs that it declares exemptions for.
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

    parts: tuple[SeriesPart, ...]

    @property
    def events(self) -> dict[str, tuple[str, ...]]:
        """The functions with a site, by the symbol of the tracepoint, of all."""
        return {
            event: names for part in self.parts for event, names in part.events.items()
        }

    @property
    def hot(self) -> frozenset[str]:
        """The functions that any of them declares hot."""
        return frozenset(name for part in self.parts for name in part.hot)

    def of(self, series: str, footprint: costs.Footprint) -> costs.Footprint:
        """The share of ``series`` in ``footprint``: all that is its own, or may be."""
        part = next(part for part in self.parts if part.name == series)
        sited = _sited(footprint.sites)
        owners = _Owners(self.parts, sited, footprint)

        def is_ours(change: costs.FunctionPaths | costs.NewFunction) -> bool:
            return series in owners.of_function(change.name, change.binary)

        functions = [
            size for size in footprint.functions if series in owners.of_symbol(size)
        ]
        return costs.Footprint(
            nops=footprint.nops,
            sites=[site for site in footprint.sites if site.event in part.events],
            functions=functions,
            sections=list(
                _sections(footprint, functions, self._alone(footprint, owners, series))
            ),
            paths=[paths for paths in footprint.paths if is_ours(paths)],
            new=[function for function in footprint.new if is_ours(function)],
            same_paths=footprint.same_paths,
            unchanged=footprint.unchanged,
            structs=[
                change
                for change in footprint.structs
                if series in owners.of_struct(change)
            ],
            prototypes=[
                prototype
                for prototype in footprint.prototypes
                # A change of an existing prototype is attributed to all.
                if prototype.base is not None
                or prototype.event in part.events
                or prototype.event not in self.events
            ],
            same_prototypes=footprint.same_prototypes,
            limits=[*self._limits(part, footprint)],
        )

    def _limits(self, part: SeriesPart, footprint: costs.Footprint) -> Iterator[str]:
        for text in footprint.limits:
            match = _NO_SITE.fullmatch(text)
            if match is None or match[1] in part.events:
                yield text
        others = ", ".join(
            other.name for other in self.parts if other.name != part.name
        )
        yield (
            f"{others} are in the same kernel: of a binary that they change as well, "
            "sizes are those of functions that are attributed to this series"
        )

    def _alone(
        self, footprint: costs.Footprint, owners: _Owners, series: str
    ) -> frozenset[str]:
        """The binaries that only ``series`` changes."""
        changed: dict[str, set[str]] = {}
        for size in footprint.functions:
            names = changed.setdefault(size.binary, set())
            names |= owners.of_symbol(size)
        return frozenset(name for name, names in changed.items() if names == {series})


def _sited(sites: Iterable[costs.Site]) -> dict[str, set[str]]:
    """The events with a site in a function, by its name in the source."""
    events: dict[str, set[str]] = {}
    for site in sites:
        events.setdefault(_plain(site.function), set()).add(site.event)
    return events


def _plain(name: str) -> str:
    return name.partition(".")[0]


def _sections(
    footprint: costs.Footprint,
    functions: Sequence[costs.FunctionSize],
    alone: frozenset[str],
) -> Iterator[costs.SectionSize]:
    """The sections; if several series change a binary, the sums of ``functions``."""
    for section in footprint.sections:
        if section.binary in alone:
            yield section
            continue
        members = [
            function
            for function in functions
            if (function.binary, function.section) == (section.binary, section.section)
        ]
        base, patched = (
            sum(size or 0 for size in sizes)
            for sizes in (
                [function.base for function in members],
                [function.patched for function in members],
            )
        )
        if base != patched:
            yield costs.SectionSize(
                binary=section.binary,
                section=section.section,
                base=base,
                patched=patched,
            )


class _Owners:
    """The owners of changes, as names of series."""

    def __init__(
        self,
        parts: Sequence[SeriesPart],
        sited: Mapping[str, set[str]],
        footprint: costs.Footprint,
    ) -> None:
        self._parts = parts
        self._sited = sited
        self._every = frozenset(part.name for part in parts)
        # The series that changes in a module are attributed to, if to any.
        self._in_module: dict[str, frozenset[str]] = {}
        changed = {(paths.binary, paths.name) for paths in footprint.paths}
        changed |= {(size.binary, size.name) for size in footprint.functions}
        for binary, name in changed:
            if binary != "vmlinux":
                series = self._in_module.get(binary, frozenset())
                self._in_module[binary] = series | self._attributed(name)

    def of_function(self, symbol: str, binary: str) -> frozenset[str]:
        """Series that change its source or have an event in it; else those that exempt
        it, or those that change other functions of its module."""
        name = _plain(symbol)
        exempting = frozenset(part.name for part in self._parts if name in part.exempt)
        neighbours = self._in_module.get(binary)
        return self._attributed(symbol) or exempting or neighbours or self._every

    def _attributed(self, symbol: str) -> frozenset[str]:
        name = _plain(symbol)
        events = self._sited.get(name, set())
        return frozenset(
            part.name
            for part in self._parts
            if name in part.functions or events & part.events.keys()
        )

    def of_symbol(self, size: costs.FunctionSize) -> frozenset[str]:
        """As `of_function`; code generated by TRACE_EVENT() belongs to its event."""
        if size.part == "event":
            name = _plain(size.name)
            owners = frozenset(
                part.name
                for part in self._parts
                if any(name.endswith(f"_{event}") for event in part.events)
            )
            return owners or self._every
        return self.of_function(size.name, size.binary)

    def of_struct(self, change: costs.StructChange) -> frozenset[str]:
        """Series that create or exempt it, or name a member that is new or gone.

        One that exempts it does so for its own members only: with the same exemption a
        member of another series would not fail.
        """
        names = {member[1:] for member in change.members} or {change.name}
        if change.record:
            names = {change.name.removeprefix("trace_event_raw_")}
            makers = frozenset(
                part.name for part in self._parts if names & part.events.keys()
            )
            return makers or self._every
        exempting = [part for part in self._parts if change.name in part.exempt]
        for part in exempting:
            names -= part.words
        naming = [part for part in self._parts if names & part.words]
        return frozenset(part.name for part in exempting + naming) or self._every
