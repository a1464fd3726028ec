# SPDX-License-Identifier: GPL-2.0-or-later
"""Attaching: of each class the first source that the kernel takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .catalogue import Source, of
from .errors import NodeError
from .pages import layout
from .tracefs import Instance, Refused, Tracefs

#: What a provider may have by several names, see `catalogue`.
_CHOSEN = ("dur", "value1", "value2", "join_key", "device", "cgroup_id", "comm", "tid")
_NO = "this kernel has no "
_COMMON = ("common_pid", "common_cpu")


class Attached(NamedTuple):
    """A source whose events are enabled, as it stands in session.json."""

    source: Source
    specs: list[dict[str, Any]]
    #: Those with a member that a filter can ask to be at least so long.
    durations: dict[str, str]


class Refusal(NamedTuple):
    """A source that is not used, and why."""

    provider: str
    cls: str
    why: str

    def as_json(self) -> dict[str, str]:
        """As it stands in session.json."""
        return {"provider": self.provider, "class": self.cls, "why": self.why}


def reasons(whys: Iterable[str]) -> str:
    """Why none of several sources can be had, each reason once."""
    lacks, others = [], []
    for why in dict.fromkeys(whys):
        if why.startswith(_NO):
            lacks.append(why[len(_NO) :])
        else:
            others.append(why)
    if lacks:
        others.insert(0, f"{_NO}{', '.join(lacks)}")
    return "; ".join(others) or "unknown"


def missing(source: Source, tracefs: Tracefs) -> str | None:
    """Why a source cannot be had here, as far as looking tells; None if it can."""
    for event in source.events():
        if not tracefs.has(event):
            return f"{_NO}{event}"
    for spec in source.specs:
        why = _unlike(_resolved(spec, tracefs), tracefs)
        if why:
            return why
    if not source.probes:
        return None
    cannot = tracefs.can_probe()
    if cannot:
        return cannot
    for probe in source.probes:
        if probe.kind == "f" and tracefs.function(probe.function) is False:
            return f"{_NO}function {probe.function} that can be probed"
    return None


def _members(event: str, tracefs: Tracefs) -> set[str] | None:
    """Those that an event's own format has; None of a probe, which is as we want it."""
    if event.startswith("{g}:"):
        return None
    system = event.partition(":")[0]
    try:
        return {*layout(tracefs.format(event), system).members, *_COMMON}
    except ValueError as error:
        raise NodeError(f"{event}: {error}") from None


def _resolved(spec: dict[str, Any], tracefs: Tracefs) -> dict[str, Any]:
    """A provider whose members are those that this kernel's event has."""
    has = _members(spec["end"], tracefs)
    if has is None:
        return spec
    made = dict(spec)
    for name, value in spec.items():
        if name in _CHOSEN and isinstance(value, str) and "|" in value:
            found = [member for member in value.split("|") if member in has]
            made[name] = found[0] if found else None
    if isinstance(spec.get("cause"), tuple):
        tables = [table for table in spec["cause"] if table["field"] in has]
        made["cause"] = tables[0] if tables else None
    if isinstance(spec.get("dur"), str):
        # That it has none of them is said, not passed over.
        made["dur"] = made["dur"] or spec["dur"]
    return made


def _unlike(spec: dict[str, Any], tracefs: Tracefs) -> str | None:
    """What an event lacks without which it means something else."""
    for end in ("end", "begin"):
        has = _members(spec[end], tracefs) if spec.get(end) else None
        if has is None:
            continue
        needed = list(spec.get("key", ()))
        if end == "end":
            dur = spec.get("dur")
            needed += [dur] if isinstance(dur, str) else dur or []
            needed += [member for member, _, _ in spec.get("when", ())]
        for member in needed:
            if member not in has:
                return f"this kernel's {spec[end]} has no {member}"
    return None


def specs(
    source: Source, group: str, tracefs: Tracefs | None = None
) -> list[dict[str, Any]]:
    """Its providers as a recording has them.

    The first has the source's name, those that its oracle counts as well have a ``+``
    behind it, and what else it tells a ``/``.
    """
    made = []
    for number, spec in enumerate(source.specs):
        if tracefs is not None:
            spec = _resolved(spec, tracefs)  # noqa: PLW2901
        said = {"provider": source.name, "class": source.cls, **spec}
        for end in ("begin", "end"):
            if end in said:
                said[end] = said[end].replace("{g}", group)
        suffix = said.pop("suffix", said["end"].partition(":")[2])
        if number:
            mark = "+" if counts(source, number) else "/"
            said["provider"] = f"{source.name}{mark}{suffix}"
        said.setdefault("tid", "common_pid")
        said.setdefault("cpu", "common_cpu")
        said.update(min_ns=None, lost=source.lost or None, oracle=source.oracle)
        made.append(said)
    return made


def counts(source: Source, number: int) -> bool:
    """Whether the oracle of a source speaks of this provider of its."""
    return number < source.counts


def counting(source: Source, tracefs: Tracefs, group: str) -> list[str]:
    """Events of which the oracle ``counted`` takes the number; probes are defined."""
    found = [event for event in source.counted if tracefs.has(event)]
    for probe in source.either:
        if tracefs.can_probe() or tracefs.function(probe.function) is False:
            continue
        try:
            tracefs.define(probe.text(group))
        except Refused:
            continue
        found.append(f"{group}:{probe.name}")
    return found


def attach(
    source: Source, tracefs: Tracefs, instance: Instance, group: str, min_ns: int
) -> Attached:
    """Define what it needs and enable it.  Raises `Refused`, and then nothing is on."""
    why = missing(source, tracefs)
    if why:
        raise Refused(why)
    made = specs(source, group, tracefs)
    durations: dict[str, str] = {}
    enabled: list[str] = []
    try:
        for probe in source.probes:
            tracefs.define(probe.text(group))
        for probe in source.probes:
            if probe.filter:
                instance.filter(f"{group}:{probe.name}", probe.filter)
        for spec in made:
            if isinstance(spec.get("dur"), str):
                durations[spec["end"]] = spec["dur"]
                if min_ns:
                    instance.filter(spec["end"], f"{spec['dur']} >= {min_ns}")
                    spec["min_ns"] = min_ns
            for name in (spec["end"], spec.get("begin")):
                if name and name not in enabled:
                    instance.enable(name)
                    enabled.append(name)
    except Refused:
        detach(made, tracefs, instance, source, group)
        raise
    return Attached(source, made, durations)


def detach(
    made: list[dict[str, Any]],
    tracefs: Tracefs,
    instance: Instance,
    source: Source,
    group: str,
) -> None:
    """Switch a source off again, as far as it was on."""
    for spec in made:
        for name in (spec["end"], spec.get("begin")):
            if not name:
                continue
            for act in (instance.enable, instance.filter):
                try:
                    if act == instance.enable:
                        instance.enable(name, False)
                    else:
                        instance.filter(name, "0")
                except Refused:
                    continue
    ours = {probe.name for probe in source.probes}
    tracefs.remove_probes(group, ours)


def choose(
    cls: str,
    tracefs: Tracefs,
    instance: Instance,
    group: str,
    min_ns: int,
    *,
    after: str | None = None,
    only: Sequence[str] = (),
) -> tuple[Attached | None, list[Refusal]]:
    """The first source of a class that attaches, of those ``after`` that one.

    If ``only`` names some of that class, no others are tried.
    """
    refused: list[Refusal] = []
    skipping = after is not None
    every = of(cls)
    for source in [one for one in every if one.name in only] or every:
        if skipping:
            skipping = source.name != after
            continue
        try:
            return attach(source, tracefs, instance, group, min_ns), refused
        except NodeError as error:
            refused.append(Refusal(source.name, cls, str(error)))
    return None, refused
