# SPDX-License-Identifier: GPL-2.0-or-later
"""Attaching sources: for each class the first that the kernel accepts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .catalogue import Source, of
from .errors import NodeError
from .pages import layout
from .tracefs import Instance, Refused, Tracefs

#: Members that may have several names, separated by ``|``, see `catalogue`.
_CHOSEN = ("dur", "value1", "value2", "join_key", "device", "cgroup_id", "comm", "tid")
_NO = "this kernel has no "
_COMMON = ("common_pid", "common_cpu")


class Attached(NamedTuple):
    """A source whose events are enabled; ``specs`` is its part of session.json."""

    source: Source
    specs: list[dict[str, Any]]
    #: event -> its member with the duration, which a filter can compare.
    durations: dict[str, str]


class Refusal(NamedTuple):
    """A source that is not used, and why."""

    provider: str
    cls: str
    why: str

    def as_json(self) -> dict[str, str]:
        """Its entry in session.json."""
        return {"provider": self.provider, "class": self.cls, "why": self.why}


def reasons(whys: Iterable[str]) -> str:
    """Why none of several sources can be used, each reason once."""
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
    """Why a source cannot be used here, without trying to attach it; None if it can."""
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
    """The members in an event's format; None for our probes, which need no check."""
    if event.startswith("{g}:"):
        return None
    system = event.partition(":")[0]
    try:
        return {*layout(tracefs.format(event), system).members, *_COMMON}
    except ValueError as error:
        raise NodeError(f"{event}: {error}") from None


def _resolved(spec: dict[str, Any], tracefs: Tracefs) -> dict[str, Any]:
    """A provider with each ``new|old`` replaced by the name that this kernel has."""
    has = _members(spec["end"], tracefs)
    if has is None:
        return spec
    resolved = dict(spec)
    for name, value in spec.items():
        if name in _CHOSEN and isinstance(value, str) and "|" in value:
            present = [member for member in value.split("|") if member in has]
            resolved[name] = present[0] if present else None
    if isinstance(spec.get("cause"), tuple):
        tables = [table for table in spec["cause"] if table["field"] in has]
        resolved["cause"] = tables[0] if tables else None
    if isinstance(spec.get("dur"), str):
        # Keep the unresolved text: `_unlike` then refuses the event.
        resolved["dur"] = resolved["dur"] or spec["dur"]
    return resolved


def _unlike(spec: dict[str, Any], tracefs: Tracefs) -> str | None:
    """Which member an event lacks without which it means something else, in words."""
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
    """A source's providers for session.json.

    The first has the source's name; providers that its oracle counts as well have a
    ``+`` after it, others a ``/``.
    """
    providers = []
    for number, spec in enumerate(source.specs):
        if tracefs is not None:
            spec = _resolved(spec, tracefs)  # noqa: PLW2901
        provider = {"provider": source.name, "class": source.cls, **spec}
        for end in ("begin", "end"):
            if end in provider:
                provider[end] = provider[end].replace("{g}", group)
        suffix = provider.pop("suffix", provider["end"].partition(":")[2])
        if number:
            mark = "+" if counts(source, number) else "/"
            provider["provider"] = f"{source.name}{mark}{suffix}"
        provider.setdefault("tid", "common_pid")
        provider.setdefault("cpu", "common_cpu")
        provider.update(min_ns=None, lost=source.lost or None, oracle=source.oracle)
        providers.append(provider)
    return providers


def events(specs: Iterable[dict[str, Any]]) -> list[str]:
    """The events of providers, each once."""
    names = [spec.get(end) for spec in specs for end in ("begin", "end")]
    return [name for name in dict.fromkeys(names) if name]


def counts(source: Source, number: int) -> bool:
    """Whether the oracle of a source counts this provider."""
    return number < source.counts


def counting(source: Source, tracefs: Tracefs, group: str) -> list[str]:
    """Define the probes of the oracle ``counted``; all events that it counts."""
    events = [event for event in source.counted if tracefs.has(event)]
    for probe in source.either:
        if tracefs.can_probe() or tracefs.function(probe.function) is False:
            continue
        try:
            tracefs.define(probe.text(group))
        except Refused:
            continue
        events.append(f"{group}:{probe.name}")
    return events


def attach(
    source: Source, tracefs: Tracefs, instance: Instance, group: str, min_ns: int
) -> Attached:
    """Define a source's probes and enable it.  Raises `Refused`: then nothing is on."""
    why = missing(source, tracefs)
    if why:
        raise Refused(why)
    providers = specs(source, group, tracefs)
    durations: dict[str, str] = {}
    enabled: list[str] = []
    try:
        for probe in source.probes:
            tracefs.define(probe.text(group))
        for probe in source.probes:
            if probe.filter:
                instance.filter(f"{group}:{probe.name}", probe.filter)
        for spec in providers:
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
        detach(providers, tracefs, instance, source, group)
        raise
    return Attached(source, providers, durations)


def detach(
    providers: list[dict[str, Any]],
    tracefs: Tracefs,
    instance: Instance,
    source: Source,
    group: str,
) -> None:
    """Disable a source's events and remove its probes, as far as it was attached."""
    for spec in providers:
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
    """The first source of a class that attaches, only later ones than ``after``.

    If ``only`` names sources of that class, no others are tried.
    """
    refused: list[Refusal] = []
    skipping = after is not None
    every = of(cls)
    for source in [source for source in every if source.name in only] or every:
        if skipping:
            skipping = source.name != after
            continue
        try:
            return attach(source, tracefs, instance, group, min_ns), refused
        except NodeError as error:
            refused.append(Refusal(source.name, cls, str(error)))
    return None, refused
