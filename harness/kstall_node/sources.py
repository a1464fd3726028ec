# SPDX-License-Identifier: GPL-2.0-or-later
"""Attaching: of each class the first source that the kernel takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from .catalogue import Source, of
from .errors import NodeError
from .tracefs import Instance, Refused, Tracefs


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


def missing(source: Source, tracefs: Tracefs) -> str | None:
    """Why a source cannot be had here, as far as looking tells; None if it can."""
    for event in source.unless:
        if tracefs.has(event):
            return f"this kernel has {event}"
    for event in source.events():
        if not tracefs.has(event):
            return f"this kernel has no {event}"
    if not source.probes:
        return None
    cannot = tracefs.can_probe()
    if cannot:
        return cannot
    for probe in source.probes:
        if tracefs.function(probe.function) is False:
            return f"this kernel has no function {probe.function} that can be probed"
    return None


def specs(source: Source, group: str) -> list[dict[str, Any]]:
    """Its providers as a recording has them."""
    made = []
    for number, spec in enumerate(source.specs):
        said = {"provider": source.name, "class": source.cls, **spec}
        for end in ("begin", "end"):
            if end in said:
                said[end] = said[end].replace("{g}", group)
        if number:
            said["provider"] = f"{source.name}+{said['end'].partition(':')[2]}"
        said.setdefault("tid", "common_pid")
        said.setdefault("cpu", "common_cpu")
        said.update(min_ns=None, lost=source.lost or None, oracle=source.oracle)
        made.append(said)
    return made


def attach(
    source: Source, tracefs: Tracefs, instance: Instance, group: str, min_ns: int
) -> Attached:
    """Define what it needs and enable it.  Raises `Refused`, and then nothing is on."""
    why = missing(source, tracefs)
    if why:
        raise Refused(why)
    made = specs(source, group)
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
) -> tuple[Attached | None, list[Refusal]]:
    """The first source of a class that attaches, of those ``after`` that one."""
    refused: list[Refusal] = []
    skipping = after is not None
    for source in of(cls):
        if skipping:
            skipping = source.name != after
            continue
        try:
            return attach(source, tracefs, instance, group, min_ns), refused
        except NodeError as error:
            refused.append(Refusal(source.name, cls, str(error)))
    return None, refused
