# SPDX-License-Identifier: GPL-2.0-or-later
"""From raw pages to rows: stalls, marks and what was lost in between.

Which record ends which stall the recording says itself, a `Provider` for each event
that was enabled; this module knows no event by name but ftrace:print.
"""

from __future__ import annotations

import bisect
import heapq
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kstall.ftrace import Event, Malformed, Member, ring

from . import schema
from .errors import NotARecording, shown
from .recording import Recording, digest

Rows = Iterator[tuple[str, dict[str, Any]]]
_MARK = re.compile(
    r"kstall step=(?P<step>\d{1,18}) phase=(?P<phase>enter|exit)"
    r"(?: rank=(?P<rank>\d{1,9}))?(?: job=(?P<job>\S{1,200}))?\s*"
)
_I64 = (1 << 63) - 1
#: common_flags: in a hard interrupt, a soft one, an NMI.
_INTERRUPT = 0x08 | 0x10 | 0x40


@dataclass(frozen=True)
class Provider:
    """How records of one kind become stalls; the names are of their members.

    A stall has either an event at its ``begin`` with the same ``key``, or a member of
    its end that tells how long it lasted (``dur``).  What has neither is a point.
    """

    provider: str
    cls: str
    end: str
    begin: str | None = None
    key: tuple[str, ...] = ()
    #: A member, or two of which the difference is meant.
    dur: str | tuple[str, ...] | None = None
    #: One end ends all that are open with its key: a queue's, and its threads'.
    many: bool = False
    tid: str | None = "common_pid"
    cpu: str | None = "common_cpu"
    cause: str | Mapping[str, Any] | None = None
    value1: str | None = None
    value2: str | None = None
    join_key: str | None = None
    device: str | None = None
    cgroup_id: str | None = None
    comm: str | None = None
    #: (member, mask, value): only ends of which all of these hold.
    when: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def read(cls, said: object) -> Provider:
        """One entry of a session's providers.  Raises `ValueError`."""
        if not isinstance(said, dict):
            raise ValueError("is no object")
        known = {name for name in cls.__dataclass_fields__ if name != "cls"}
        values = {name: said[name] for name in known & said.keys()}
        klass = said.get("class")
        if klass not in schema.CLASSES:
            raise ValueError(f"class {shown(klass)} is not one of kstall's")
        values["key"] = tuple(values.get("key") or ())
        for name in ("provider", "end"):
            if not isinstance(values.get(name), str):
                raise ValueError(f"{name} is missing")
        if not isinstance(values.get("many", False), bool):
            raise ValueError(f"many is {shown(values['many'])}, not true or false")
        if isinstance(values.get("dur"), list):
            values["dur"] = tuple(values["dur"])
            if len(values["dur"]) != 2:
                raise ValueError("dur is neither a member nor two")
        values["when"] = _conditions(values.get("when") or ())
        for name, value in values.items():
            if name in ("many", "when"):
                continue
            words = value if isinstance(value, tuple) else [value]
            if name == "cause" and isinstance(value, dict):
                words = [value.get("field")]
                if not isinstance(value.get("values", {}), dict | None):
                    raise ValueError("cause has no table of values")
            if not all(word is None or isinstance(word, str) for word in words):
                raise ValueError(f"{name} is {shown(value)}, not a name")
        return cls(cls=klass, **values)


def _conditions(said: object) -> tuple[tuple[str, int, int], ...]:
    if not isinstance(said, list | tuple):
        raise ValueError("when is no list")
    for one in said:
        kinds = [type(word) for word in one] if isinstance(one, list) else []
        if kinds != [str, int, int]:
            raise ValueError(f"when has {shown(one)}, not a member, a mask and a value")
    return tuple((member, mask, value) for member, mask, value in said)


@dataclass
class Decoder:
    """Decodes one recording; afterwards ``records`` and ``unpaired`` are known."""

    recording: Recording
    records: int = 0
    #: Ends whose beginning was not seen, and beginnings without an end.
    unpaired: int = 0
    _open: dict[tuple[object, ...], list[tuple[int, Event]]] = field(
        default_factory=dict
    )

    def rows(self) -> Rows:
        """(table, row) of all that the pages hold.  Raises `NotARecording`."""
        providers = self._providers()
        begins: dict[str, list[Provider]] = {}
        ends: dict[str, list[Provider]] = {}
        for one in providers:
            ends.setdefault(one.end, []).append(one)
            if one.begin:
                begins.setdefault(one.begin, []).append(one)
        people = _People(self.recording)
        lost: list[dict[str, Any]] = []
        here = {segment.cpu for segment in self.recording.segments}
        cpus = sorted(here | {gap.cpu for gap in self.recording.gaps})
        streams = [self._events(cpu, lost) for cpu in cpus]
        last = 0
        for when, _, number, event in heapq.merge(*streams):
            self.records += 1
            last = max(last, when)
            name = f"{event.system}:{event.name}"
            if name == "ftrace:print":
                mark = _mark(event, people)
                if mark:
                    yield "mark", self._of_us(mark)
                continue
            # An end first: one event may end a stall and begin the next.
            for one in ends.get(name, ()):
                for row in self._stalls(one, number, event, people):
                    yield "stall", self._of_us(row)
            for one in begins.get(name, ()):
                key = (one.provider, *_key(one.key, event))
                if key in self._open and not one.many:
                    # It ended, nobody knows when: not at all would be for ever.
                    ((place, begun),) = self._open.pop(key)
                    self.unpaired += 1
                    row = self._row(one, place, begun, people)
                    at = {"t0": begun.ts_ns, "t1": begun.ts_ns}
                    yield "stall", self._of_us(row | at)
                self._open.setdefault(key, []).append((number, event))
        for (provider, *_), begun_ones in self._open.items():
            (one,) = (one for one in providers if one.provider == provider)
            for number, event in begun_ones:
                self.unpaired += 1
                row = self._row(one, number, event, people)
                yield "stall", self._of_us(row | {"t0": event.ts_ns})
        for gap in lost:
            yield "loss", self._of_us(gap)

    def _of_us(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"sid": self.recording.sid, **row}

    def _providers(self) -> list[Provider]:
        found = []
        for number, said in enumerate(self.recording.session["providers"]):
            try:
                found.append(Provider.read(said))
            except (ValueError, TypeError) as error:
                raise NotARecording(
                    f"{self.recording.dir}: provider {number}: {error}"
                ) from None
        names = [one.provider for one in found]
        for name in names:
            if names.count(name) > 1:
                raise NotARecording(
                    f"{self.recording.dir}: provider {shown(name)} is there twice"
                )
        return found

    def _events(
        self, cpu: int, lost: list[dict[str, Any]]
    ) -> Iterator[tuple[int, int, int, Event]]:
        """(time, CPU, place, event) of one CPU, in order; gaps go to ``lost``."""
        layouts = self.recording.layouts
        before = int(self.recording.session["began"])
        gaps = {gap.after for gap in self.recording.gaps if gap.cpu == cpu}
        away = {"cpu": cpu, "n": None, "reason": "segment missing"}
        for segment in self.recording.segments:
            if segment.cpu != cpu:
                continue
            is_after = segment.seq in gaps
            gaps.discard(segment.seq)
            for number, page in segment.pages():
                try:
                    found = list(ring.placed(page, cpu, layouts))
                except (Malformed, ValueError, IndexError, struct.error) as error:
                    raise _unreadable(segment.path.name, number, error) from None
                if is_after and found:
                    lost.append(away | {"t0": before, "t1": found[0][1].ts_ns})
                    is_after = False
                gap = ring.missed(page)
                if gap != 0 and found:
                    lost.append(
                        {
                            "cpu": cpu,
                            "t0": before,
                            "t1": found[0][1].ts_ns,
                            "n": gap,
                            "reason": "overrun",
                        }
                    )
                for at, event in found:
                    before = max(before, event.ts_ns)
                    yield event.ts_ns, cpu, (number << 12) | at, event
        if gaps:
            ended = self.recording.session.get("ended")
            lost.append(away | {"t0": before, "t1": ended})

    def _stalls(
        self, provider: Provider, number: int, event: Event, people: _People
    ) -> Iterator[dict[str, Any]]:
        if not _holds(provider, event):
            return
        if not provider.begin:
            yield self._stall(provider, number, event, people)
            return
        found = self._open.pop((provider.provider, *_key(provider.key, event)), [])
        if not found and not provider.many:
            self.unpaired += 1
            yield self._row(provider, number, event, people) | {"t1": event.ts_ns}
        for place, begun in found:
            # Whose it was the beginning knows: an interrupt may end it.  Of many each
            # has its own identity, which is its beginning's.
            row = self._row(
                provider, place if provider.many else number, event, people, begun
            )
            t0, t1 = begun.ts_ns, event.ts_ns
            yield row | {"t0": t0, "t1": t1, "dur": t1 - t0}

    def _stall(
        self, provider: Provider, number: int, event: Event, people: _People
    ) -> dict[str, Any]:
        row = self._row(provider, number, event, people)
        if provider.dur:
            lasted = _lasted(event, provider.dur)
            if lasted is None or lasted > event.ts_ns:
                return row | {"t1": event.ts_ns}
            began = event.ts_ns - lasted
            return row | {"t0": began, "t1": event.ts_ns, "dur": lasted}
        return row | {"t0": event.ts_ns, "t1": event.ts_ns}

    def _row(
        self,
        provider: Provider,
        number: int,
        event: Event,
        people: _People,
        begun: Event | None = None,
    ) -> dict[str, Any]:
        owner = begun or event
        tid = _number(owner, provider.tid) if provider.tid else None
        if tid is not None and (
            # Whom an interrupt interrupts has nothing to do with it; and what the
            # kernel made for itself is nobody's.
            owner.flags & _INTERRUPT if provider.tid == "common_pid" else not tid
        ):
            tid = None
        row: dict[str, Any] = {
            "id": int.from_bytes(
                digest(
                    self.recording.sid,
                    owner.cpu if provider.many else event.cpu,
                    number,
                    provider.provider,
                ),
                "big",
            ),
            "tid": tid,
            "cpu": _number(event, provider.cpu) if provider.cpu else None,
            "class": provider.cls,
            "cause": _cause(provider, event),
            "provider": provider.provider,
        }
        for name in ("value1", "value2"):
            member = getattr(provider, name)
            value = _number(event, member) if member else None
            row[name] = value
        for name in ("join_key", "device", "comm"):
            member = getattr(provider, name)
            text = _value(event, member) if member else None
            row[name] = None if text is None else str(text)
        if provider.cgroup_id:
            # Where both ends have it the beginning's: that is whose it was.
            row["cgroup_id"] = _number(owner, provider.cgroup_id, unsigned=True)
            if row["cgroup_id"] is None:
                row["cgroup_id"] = _number(event, provider.cgroup_id, unsigned=True)
        if tid is not None:
            for name, value in people.at(tid, owner.ts_ns).items():
                if row.get(name) is None:
                    row[name] = value
        return row


def _holds(provider: Provider, event: Event) -> bool:
    """Whether it is of those ends that the provider means."""
    for member, mask, value in provider.when:
        found = event.fields.get(member)
        if not isinstance(found, int) or found & mask != value:
            return False
    return True


def _unreadable(name: str, number: int, error: Exception) -> NotARecording:
    place = number & 0xFFFFFFFF
    return NotARecording(
        f"{name}, page {place}: {shown(error)}; the pages are not of these formats"
    )


class _People:
    """Who had a thread's number at a time: numbers are used again."""

    def __init__(self, recording: Recording) -> None:
        self._known: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
        for fact in recording.facts:
            pid, since = fact.get("pid"), fact.get("starttime")
            if fact["kind"] == "proc" and isinstance(pid, int):
                entry = (since if isinstance(since, int) else 0, fact)
                self._known.setdefault(pid, []).append(entry)
        for entries in self._known.values():
            entries.sort(key=lambda entry: entry[0])

    def at(self, tid: int, when: int) -> dict[str, Any]:
        entries = self._known.get(tid, [])
        found = bisect.bisect_right([since for since, _ in entries], when)
        if not found:
            return {}
        fact = entries[found - 1][1]
        names = ("tgid", "starttime", "comm", "cgroup_id")
        return {name: fact.get(name) for name in names}

    def job(self, tid: int, when: int) -> Mapping[str, Any]:
        entries = self._known.get(tid, [])
        found = bisect.bisect_right([since for since, _ in entries], when)
        return entries[found - 1][1] if found else {}


def _mark(event: Event, people: _People) -> dict[str, Any] | None:
    match = _MARK.fullmatch(str(event.fields.get("buf", "")))
    if match is None:
        return None
    fact = people.job(event.pid, event.ts_ns)
    rank = int(match["rank"]) if match["rank"] else fact.get("rank")
    return {
        "t": event.ts_ns,
        "tid": event.pid,
        "tgid": fact.get("tgid", event.pid),
        "job": match["job"] or fact.get("job"),
        "rank": rank,
        "step": int(match["step"]),
        "phase": match["phase"],
    }


def _value(event: Event, name: str) -> Member | None:
    if name == "common_pid":
        return event.pid
    if name == "common_cpu":
        return event.cpu
    return event.fields.get(name)


def _number(event: Event, name: str, *, unsigned: bool = False) -> int | None:
    """A member as a column takes it, None if it does not fit or is no number."""
    value = _value(event, name)
    if not isinstance(value, int):
        return None
    if unsigned:
        return value & ((1 << 64) - 1)
    return value if -_I64 <= value <= _I64 else None


def _lasted(event: Event, dur: str | tuple[str, ...]) -> int | None:
    """How long it lasted: a member, or the first of two less the second."""
    if isinstance(dur, str):
        return _number(event, dur)
    first, second = (_number(event, name) for name in dur)
    if first is None or second is None or second > first:
        return None
    return first - second


def _key(names: tuple[str, ...], event: Event) -> tuple[Member | None, ...]:
    return tuple(_value(event, name) for name in names)


def _cause(provider: Provider, event: Event) -> str | None:
    if not isinstance(provider.cause, Mapping):
        return provider.cause
    value = _value(event, str(provider.cause.get("field")))
    words = provider.cause.get("values") or {}
    if value is None:
        return None
    return str(words.get(str(value), value))
