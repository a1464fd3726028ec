# SPDX-License-Identifier: GPL-2.0-or-later
"""From raw pages to rows: stalls, marks and what was lost in between.

The recording itself defines which record ends which stall, by a `Provider` for each
enabled event; the only event that this module knows by name is ftrace:print.
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


#: A completion with IB_WC_WR_FLUSH_ERR of the kernel, and a better word for it.
_FLUSHED = ("completion with an error", 5)
_FLUSH = "completion flushed"


@dataclass(frozen=True)
class Provider:
    """How records of one kind become stalls, by names of their members.

    A stall has either an event at its ``begin`` with the same ``key``, or a member of
    its end with its duration (``dur``).  An event with neither is a point.
    """

    provider: str
    cls: str
    end: str
    begin: str | None = None
    key: tuple[str, ...] = ()
    #: A member, or two whose difference is the duration.
    dur: str | tuple[str, ...] | None = None
    #: One end ends all stalls with its key, such as those of all threads in a queue.
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
    #: (member, member, bit): the domain, and the Requester ID from that bit on, of the
    #: device that sent a message, which becomes ``join_key``.
    sender: tuple[str, str, int] | None = None
    #: (member, mask, value): only ends that match all of these.
    when: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def read(cls, entry: object) -> Provider:
        """One entry of a session's providers.  Raises `ValueError`."""
        if not isinstance(entry, dict):
            raise ValueError("is no object")
        known = {name for name in cls.__dataclass_fields__ if name != "cls"}
        values = {name: entry[name] for name in known & entry.keys()}
        klass = entry.get("class")
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
        values["sender"] = _sender(values.get("sender"))
        for name, value in values.items():
            if name in ("many", "when", "sender"):
                continue
            words = value if isinstance(value, tuple) else [value]
            if name == "cause" and isinstance(value, dict):
                words = [value.get("field")]
                if not isinstance(value.get("values", {}), dict | None):
                    raise ValueError("cause has no table of values")
            if not all(word is None or isinstance(word, str) for word in words):
                raise ValueError(f"{name} is {shown(value)}, not a name")
        return cls(cls=klass, **values)


def _conditions(entries: object) -> tuple[tuple[str, int, int], ...]:
    if not isinstance(entries, list | tuple):
        raise ValueError("when is no list")
    for condition in entries:
        words = condition if isinstance(condition, list) else []
        if [type(word) for word in words] != [str, int, int]:
            raise ValueError(
                f"when has {shown(condition)}, not a member, a mask and a value"
            )
    return tuple((member, mask, value) for member, mask, value in entries)


def _sender(entry: object) -> tuple[str, str, int] | None:
    if entry is None:
        return None
    words = entry if isinstance(entry, list) else []
    if [type(word) for word in words] != [str, str, int] or not 0 <= words[2] < 64:
        raise ValueError(f"sender is {shown(entry)}, not two members and a bit")
    domain, number, bit = words
    return domain, number, bit


@dataclass
class Decoder:
    """Decodes one recording; ``records`` and ``unpaired`` are complete afterwards."""

    recording: Recording
    records: int = 0
    #: Ends whose beginning was not seen, and beginnings without an end.
    unpaired: int = 0
    _open: dict[tuple[object, ...], list[tuple[int, Event]]] = field(
        default_factory=dict
    )

    def rows(self) -> Rows:
        """(table, row) for everything in the pages.  Raises `NotARecording`."""
        providers = self._providers()
        begins: dict[str, list[Provider]] = {}
        ends: dict[str, list[Provider]] = {}
        for provider in providers:
            ends.setdefault(provider.end, []).append(provider)
            if provider.begin:
                begins.setdefault(provider.begin, []).append(provider)
        threads = _Threads(self.recording)
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
                mark = _mark(event, threads)
                if mark:
                    yield "mark", self._with_sid(mark)
                continue
            # An end first: one event may end a stall and begin the next.
            for provider in ends.get(name, ()):
                for row in self._stalls(provider, number, event, threads):
                    yield "stall", self._with_sid(row)
            for provider in begins.get(name, ()):
                key = (provider.provider, *_key(provider.key, event))
                if key in self._open and not provider.many:
                    # Its end was lost.  A row without an end would last for ever.
                    ((place, begun),) = self._open.pop(key)
                    self.unpaired += 1
                    row = self._row(provider, place, begun, threads)
                    at = {"t0": begun.ts_ns, "t1": begun.ts_ns}
                    yield "stall", self._with_sid(row | at)
                self._open.setdefault(key, []).append((number, event))
        for (label, *_), begun_events in self._open.items():
            (provider,) = (entry for entry in providers if entry.provider == label)
            for number, event in begun_events:
                self.unpaired += 1
                row = self._row(provider, number, event, threads)
                yield "stall", self._with_sid(row | {"t0": event.ts_ns})
        for gap in lost:
            yield "loss", self._with_sid(gap)

    def _with_sid(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"sid": self.recording.sid, **row}

    def _providers(self) -> list[Provider]:
        providers = []
        for number, entry in enumerate(self.recording.session["providers"]):
            try:
                providers.append(Provider.read(entry))
            except (ValueError, TypeError) as error:
                raise NotARecording(
                    f"{self.recording.dir}: provider {number}: {error}"
                ) from None
        names = [provider.provider for provider in providers]
        for name in names:
            if names.count(name) > 1:
                raise NotARecording(
                    f"{self.recording.dir}: provider {shown(name)} is there twice"
                )
        return providers

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
                    events = list(ring.placed(page, cpu, layouts))
                except (Malformed, ValueError, IndexError, struct.error) as error:
                    raise _unreadable(segment.path.name, number, error) from None
                if is_after and events:
                    lost.append(away | {"t0": before, "t1": events[0][1].ts_ns})
                    is_after = False
                gap = ring.missed(page)
                if gap != 0 and events:
                    lost.append(
                        {
                            "cpu": cpu,
                            "t0": before,
                            "t1": events[0][1].ts_ns,
                            "n": gap,
                            "reason": "overrun",
                        }
                    )
                for at, event in events:
                    before = max(before, event.ts_ns)
                    yield event.ts_ns, cpu, (number << 12) | at, event
        if gaps:
            ended = self.recording.session.get("ended")
            lost.append(away | {"t0": before, "t1": ended})

    def _stalls(
        self, provider: Provider, number: int, event: Event, threads: _Threads
    ) -> Iterator[dict[str, Any]]:
        if not _holds(provider, event):
            return
        if not provider.begin:
            yield self._stall(provider, number, event, threads)
            return
        beginnings = self._open.pop((provider.provider, *_key(provider.key, event)), [])
        if not beginnings and not provider.many:
            self.unpaired += 1
            yield self._row(provider, number, event, threads) | {"t1": event.ts_ns}
        for place, begun in beginnings:
            # The beginning identifies the thread, as an interrupt may end the stall.
            # With ``many``, stalls share an end, so the beginning identifies each.
            row = self._row(
                provider, place if provider.many else number, event, threads, begun
            )
            t0, t1 = begun.ts_ns, event.ts_ns
            yield row | {"t0": t0, "t1": t1, "dur": t1 - t0}

    def _stall(
        self, provider: Provider, number: int, event: Event, threads: _Threads
    ) -> dict[str, Any]:
        row = self._row(provider, number, event, threads)
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
        threads: _Threads,
        begun: Event | None = None,
    ) -> dict[str, Any]:
        owner = begun or event
        tid = _number(owner, provider.tid) if provider.tid else None
        if tid is not None and (
            # An interrupt does not belong to the thread that it interrupts; thread 0
            # stands for objects of the kernel itself.
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
        if (row["cause"], row["value1"]) == _FLUSHED:
            row["cause"] = _FLUSH
        for name in ("join_key", "device", "comm"):
            member = getattr(provider, name)
            text = _value(event, member) if member else None
            row[name] = None if text is None else str(text)
        if provider.sender:
            row["join_key"] = _requester(event, provider.sender)
        if provider.cgroup_id:
            # If both events have it, the beginning's: that is the stalled thread's.
            row["cgroup_id"] = _number(owner, provider.cgroup_id, unsigned=True)
            if row["cgroup_id"] is None:
                row["cgroup_id"] = _number(event, provider.cgroup_id, unsigned=True)
        if tid is not None:
            for name, value in threads.at(tid, owner.ts_ns).items():
                if row.get(name) is None:
                    row[name] = value
        return row


def _holds(provider: Provider, event: Event) -> bool:
    """Whether an end matches the provider's conditions."""
    for member, mask, value in provider.when:
        actual = event.fields.get(member)
        if not isinstance(actual, int) or actual & mask != value:
            return False
    return True


def _unreadable(name: str, number: int, error: Exception) -> NotARecording:
    place = number & 0xFFFFFFFF
    return NotARecording(
        f"{name}, page {place}: {shown(error)}; the pages are not of these formats"
    )


class _Threads:
    """Which thread had a TID at a time, as TIDs are reused."""

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
        count = bisect.bisect_right([since for since, _ in entries], when)
        if not count:
            return {}
        fact = entries[count - 1][1]
        names = ("tgid", "starttime", "comm", "cgroup_id")
        return {name: fact.get(name) for name in names}

    def job(self, tid: int, when: int) -> Mapping[str, Any]:
        entries = self._known.get(tid, [])
        count = bisect.bisect_right([since for since, _ in entries], when)
        return entries[count - 1][1] if count else {}


def _mark(event: Event, threads: _Threads) -> dict[str, Any] | None:
    match = _MARK.fullmatch(str(event.fields.get("buf", "")))
    if match is None:
        return None
    fact = threads.job(event.pid, event.ts_ns)
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
    """A member as a column stores it; None if it does not fit or is no number."""
    value = _value(event, name)
    if not isinstance(value, int):
        return None
    if unsigned:
        return value & ((1 << 64) - 1)
    return value if -_I64 <= value <= _I64 else None


def _requester(event: Event, sender: tuple[str, str, int]) -> str | None:
    """The name of the PCI device with that domain and Requester ID."""
    domain, number = (_number(event, name) for name in sender[:2])
    if domain is None or number is None:
        return None
    place = number >> sender[2]
    bus, slot, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def _lasted(event: Event, dur: str | tuple[str, ...]) -> int | None:
    """The duration: a member, or the first of two minus the second."""
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
