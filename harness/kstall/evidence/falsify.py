# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants: evidence with one thing made false, as a wrong patch would have shown it.

A patch that puts a wrong value into an event shows it to all readers of the event:
ftrace's text is printed from the record, the raw pages hold the record, and bpftrace
reads the same record or, for a bare tracepoint, the same arguments.  So a record is
falsified in all readings at once, as the kernel would have done.  What the recorder
reads through an argument of a bare tracepoint follows the argument.

Output of other readers of the event would be false as well, and genuine output would
catch what nothing had caught there.  So it is withheld: that of the scripts of
`scripts/`, of the decoders, and lines of a workload's program that show the event's
records, as ``shows-events`` of series.toml says.  All else is kept.  If the kernel's
own tests read the event themselves, they could only have noticed more.

Readings are matched by order: each reader sees the events of a CPU in the order in
which they fired there.  So the n-th record of a CPU is the same event in every reading,
however exact the reader's time stamps are.  But where SRCU guards the readers of a
tracepoint, as in 7.2, a thread can move from CPU to CPU between one reader and the
next: then records are matched by their values and thread.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..base import KstallError
from ..series import Series
from . import operators, records
from .cexpr import Member, Unknown
from .evidence import Evidence, EvidenceError, WorkloadResult
from .operators import (
    NEAREST,
    RECORDS,
    FieldMutant,
    Firing,
    Reading,
    Values,
    copied,
)
from .printk import PrintedValue, compile_fmt
from .records import Event, Layout

_DECIMAL = 10
#: Digits of an address.
_ADDRESS = 16
_READINGS: tuple[Reading, ...] = ("text", "raw", "read")
#: A CPU, and a record's number on that CPU, from 0.
_Key = tuple[int, int]


class Withheld(EvidenceError):
    """Output that a mutant's evidence lacks, because it would be false as well."""


class Unmatched(KstallError):
    """Readings of one event that do not have the same records."""


class Genuine:
    """A run's evidence, read once; mutants share what they do not change."""

    def __init__(self, series: Series, saved: Evidence) -> None:
        self._saved = saved
        #: Output that was asked for and withheld, newest last.
        self.refused: list[str] = []
        self._types = {
            point.event: operators.types(point, saved)
            for point in series.spec.tracepoint
        }
        self._reads = {point.event: point.reads for point in series.spec.tracepoint}
        self._parts = {
            (point.event, part.name): part
            for point in series.spec.tracepoint
            for part in point.part
        }
        self._loads = {
            load.name: _Load(saved.workload(load.name), load.shows_events)
            for load in series.spec.workload
        }

    @functools.cached_property
    def withheld(self) -> Evidence:
        """The genuine evidence, without what is withheld from mutants."""
        return self._evidence({})

    def falsified(self, mutant: FieldMutant) -> tuple[Evidence, frozenset[str]]:
        """The evidence of ``mutant``, and the workloads in which it differs.

        There is none if the mutant changes nothing.
        """
        changes: dict[str, _Readings] = {}
        for name, load in self._loads.items():
            false = load.genuine
            for event in mutant.events:
                if before := load.records(event):
                    false = self._false(mutant, event, load, before, false)
            if false is not load.genuine:
                changes[name] = false
        return self._evidence(changes), frozenset(changes)

    def _false(
        self,
        mutant: FieldMutant,
        event: str,
        load: _Load,
        before: list[Firing],
        readings: _Readings,
    ) -> _Readings:
        """``readings``, with ``event`` made false if that makes a difference."""
        rest: list[Firing] = []
        if mutant.part:
            before, rest = self._divided(mutant.part, event, load)
            if not before:
                return readings
        if mutant.field == RECORDS:
            after = operators.of_records(mutant.operator)(before)
            if after == before:
                return readings
            return load.falsified(event, [*rest, *after])
        kind = self._types[event][mutant.field]
        rows = [record.values for record in before] if mutant.part else load.rows(event)
        changes = operators.changed(mutant, rows, kind)
        changes = operators.followed(mutant, self._reads[event], rows, changes)
        if not any(changes):
            return readings
        return load.changed(event, before, changes, readings)

    def _divided(
        self, name: str, event: str, load: _Load
    ) -> tuple[list[Firing], list[Firing]]:
        """The records of ``event`` that are of the part ``name``, and the others."""
        part = self._parts[event, name]
        mine, rest = list[Firing](), list[Firing]()
        for record in load.records(event):
            is_mine = not part.workloads or load.workload.name in part.workloads
            is_mine = is_mine and all(
                record.values[field] in values for field, values in part.where.items()
            )
            (mine if is_mine else rest).append(record)
        return mine, rest

    def _evidence(self, changes: Mapping[str, _Readings]) -> Evidence:
        return Evidence(
            self._saved.dir,
            self._saved.agent,
            {
                name: _Result(
                    name=load.workload.name,
                    dir=load.workload.dir,
                    layouts=load.workload.layouts,
                    facts=load.workload.facts,
                    load=load,
                    false=changes.get(name) or load.genuine,
                    refused=self.refused,
                )
                for name, load in self._loads.items()
            },
            self._saved.layouts,
            self._saved.unreadable,
        )


class _Readings:
    """The three readings of a workload, each made when it is first used."""

    def __init__(self, make: Callable[[Reading], tuple[Event, ...]]) -> None:
        self._make = make
        self._cache: dict[tuple[Reading, str | None], tuple[Event, ...]] = {}
        self._older: dict[tuple[str, ...], tuple[Event, ...]] = {}

    def get(self, reading: Reading, name: str | None) -> tuple[Event, ...]:
        """The records called ``name``, or all; the same object each time."""
        key = (reading, name)
        if key not in self._cache:
            if name is None:
                self._cache[key] = self._make(reading)
            else:
                events = self.get(reading, None)
                self._cache[key] = tuple(
                    event for event in events if event.name == name
                )
        return self._cache[key]

    def older(self, new: tuple[str, ...]) -> tuple[Event, ...]:
        """The text's records except those called ``new``; the same object each time."""
        if new not in self._older:
            events = self.get("text", None)
            self._older[new] = tuple(event for event in events if event.name not in new)
        return self._older[new]


class _False(_Readings):
    """Readings with other records of one event; the rest is ``genuine``'s."""

    def __init__(
        self,
        genuine: _Readings,
        name: str,
        make: Callable[[Reading], tuple[Event, ...]],
    ) -> None:
        super().__init__(make)
        self._genuine = genuine
        self._name = name

    def get(self, reading: Reading, name: str | None) -> tuple[Event, ...]:
        if name is not None and name != self._name:
            return self._genuine.get(reading, name)
        return super().get(reading, name)

    def older(self, new: tuple[str, ...]) -> tuple[Event, ...]:
        if self._name in new:
            return self._genuine.older(new)
        return super().older(new)


class _Load:
    """The results of one workload, read once.

    ``shows`` are the kinds of lines in which its program shows records of new events.
    """

    def __init__(self, workload: WorkloadResult, shows: Collection[str] = ()) -> None:
        self.workload = workload
        self.shows = shows
        self.texts: dict[str, str] = {}
        ways: Mapping[Reading, Callable[[], tuple[Event, ...]]] = {
            "text": workload.events,
            "raw": workload.raw,
            "read": lambda: workload._recorded,
        }
        self.genuine = _Readings(lambda reading: ways[reading]())
        self._records: dict[str, list[Firing]] = {}
        self._rows: dict[str, list[Mapping[str, Member]]] = {}
        self._names: dict[str, _Names] = {}

    @functools.cached_property
    def stdout(self) -> str:
        """The program's output without the lines that show records of new events."""
        text = self.workload.stdout
        if not self.shows:
            return text
        return "".join(
            line
            for line in text.splitlines(keepends=True)
            if json.loads(line)["what"] not in self.shows
        )

    def _has(self, reading: Reading) -> bool:
        file = {"text": "trace.txt", "raw": "pages", "read": "record.jsonl"}[reading]
        return (self.workload.dir / file).exists()

    def records(self, event: str) -> list[Firing]:
        """The records of ``event``, in the order in which they fired."""
        if event not in self._records:
            self._records[event] = self._joined(event)
        return self._records[event]

    def rows(self, event: str) -> list[Mapping[str, Member]]:
        """The values of `records`."""
        if event not in self._rows:
            self._rows[event] = [record.values for record in self.records(event)]
        return self._rows[event]

    def _joined(self, event: str) -> list[Firing]:
        system, _, name = event.partition(":")
        joined: dict[tuple[int, int], dict[Reading, Event]] = defaultdict(dict)
        places: dict[tuple[int, int], dict[Reading, int]] = defaultdict(dict)
        counts = {}
        for reading in _READINGS:
            if not self._has(reading):
                continue
            slots = [
                (place, entry)
                for place, entry in enumerate(self.genuine.get(reading, None))
                if (entry.system, entry.name) == (system, name)
            ]
            raw = {
                key: readings["raw"]
                for key, readings in joined.items()
                if "raw" in readings
            }
            keys = _keys(
                [entry for _, entry in slots], raw if reading == "read" else {}
            )
            for key, (place, entry) in zip(keys, slots, strict=True):
                joined[key][reading], places[key][reading] = entry, place
            if slots and len({*keys} - raw.keys()):
                counts[reading] = dict(sorted(Counter(cpu for cpu, _ in keys).items()))
        if len({str(count) for count in counts.values()}) > 1:
            raise Unmatched(
                f"{self.workload.name}: the readers of {event} have different numbers "
                f"of records, by CPU: {counts}",
                next="see what nothing_lost and readers_agree say of this run",
            )
        firings = [
            Firing(
                next(readings[way].ts_ns for way in NEAREST if way in readings),
                readings,
                places[key],
            )
            for key, readings in joined.items()
        ]
        return sorted(firings, key=lambda record: record.at)

    def changed(
        self,
        event: str,
        before: Sequence[Firing],
        changes: Sequence[Values],
        readings: _Readings,
    ) -> _Readings:
        """``readings`` with ``changes`` made to the fields of the records."""

        def make(reading: Reading) -> tuple[Event, ...]:
            events = [*readings.get(reading, None)]
            for record, change in zip(before, changes, strict=True):
                if change and reading in record.readings:
                    events[record.places[reading]] = self._changed(
                        record, reading, change, names
                    )
            return tuple(events)

        if event not in self._names:
            layout = self.workload.layouts.get(event)
            self._names[event] = _Names(self.records(event), layout)
        names = self._names[event]
        return _False(readings, event.partition(":")[2], make)

    def _changed(
        self, record: Firing, reading: Reading, change: Values, names: _Names
    ) -> Event:
        event = record.readings[reading]
        if reading == "text" and names.printed is not None:
            return names.reprinted(record, change)
        return copied(event, fields={**event.fields, **change})

    def falsified(self, event: str, after: Sequence[Firing]) -> _Readings:
        """The readings with ``after`` in the place of the event's records."""
        system, _, name = event.partition(":")

        def make(reading: Reading) -> tuple[Event, ...]:
            slots = [
                (place, entry)
                for place, entry in enumerate(self.genuine.get(reading, None))
                if (entry.system, entry.name) != (system, name)
            ]
            slots += [
                (record.places[reading], record.readings[reading])
                for record in after
                if reading in record.readings
            ]
            # Raw records are CPU by CPU.
            slots.sort(
                key=lambda slot: (
                    reading == "raw" and slot[1].cpu,
                    slot[1].ts_ns,
                    slot[0],
                )
            )
            return tuple(entry for _, entry in slots)

        return _False(self.genuine, name, make)


def _keys(entries: Sequence[Event], raw: Mapping[_Key, Event]) -> list[_Key]:
    """The CPU of each of ``entries``, and its number on that CPU.

    The recorder may have skipped some of the ``raw`` records, and a thread that moves
    between two readers has its record on a different CPU in each: in that case a record
    is matched with the next one of its thread that has its values.
    """
    counts: dict[int, int] = defaultdict(int)
    ordered = []
    for entry in entries:
        ordered.append((entry.cpu, counts[entry.cpu]))
        counts[entry.cpu] += 1
    if not raw or all(
        key in raw and raw[key].fields == entry.fields
        for key, entry in zip(ordered, entries, strict=True)
    ):
        return ordered
    if (by_thread := _by_thread(entries, raw)) is not None:
        return by_thread
    return ordered


def _by_thread(
    entries: Sequence[Event], raw: Mapping[_Key, Event]
) -> list[_Key] | None:
    """The keys in ``raw`` of ``entries``, matched in the order of each thread; None if
    one has no match."""
    left: dict[tuple[int, str], list[_Key]] = defaultdict(list)
    for key, entry in sorted(raw.items(), key=lambda item: item[1].ts_ns):
        left[entry.pid, _values(entry)].append(key)
    keys = []
    for entry in entries:
        candidates = left[entry.pid, _values(entry)]
        if not candidates:
            return None
        same_cpu = [key for key in candidates if key[0] == entry.cpu]
        keys.append((same_cpu or candidates)[0])
        candidates.remove(keys[-1])
    return keys


def _values(entry: Event) -> str:
    return str(sorted(entry.fields.items()))


class _Names:
    """How the kernel prints an event's values, as far as its records show."""

    def __init__(self, firings: Sequence[Firing], layout: Layout | None) -> None:
        self.printed = compile_fmt(layout.print_fmt) if layout is not None else None
        self._spans_in: dict[str, tuple[tuple[int, int], ...]] = {}
        self._printing: dict[tuple[str, ...], list[tuple[int, PrintedValue]]] = {}
        # Only the text has the names of functions.
        self._functions: dict[Member, str] = {}
        functions = [
            (place, value)
            for place, value in enumerate(self.printed.values if self.printed else ())
            if value.function
        ]
        for record in firings if functions else ():
            if {"text", "raw"} <= record.readings.keys():
                text = record.readings["text"].text
                spans = self._spans(text)
                for place, value in functions:
                    address = value.of(record.readings["raw"].fields)
                    # With its module, which readers leave out.
                    begin, end = spans[place]
                    self._functions[address] = text[begin:end]

    def _spans(self, text: str) -> tuple[tuple[int, int], ...]:
        assert self.printed is not None
        if text not in self._spans_in:
            spans = self.printed.spans(text)
            if spans is None:
                raise Unmatched(f"not what its print fmt prints: {text!r}")
            self._spans_in[text] = spans
        return self._spans_in[text]

    def _that_print(self, members: tuple[str, ...]) -> list[tuple[int, PrintedValue]]:
        """What is printed of ``members``, each with its place, the last first."""
        assert self.printed is not None
        if members not in self._printing:
            self._printing[members] = [
                (place, value)
                for place, value in reversed([*enumerate(self.printed.values)])
                if not value.members.isdisjoint(members)
            ]
        return self._printing[members]

    def reprinted(self, record: Firing, change: Values) -> Event:
        """The text of ``record`` as the kernel would print it with ``change``."""
        event = record.readings["text"]
        before = record.values
        after = {**before, **change}
        fields, body = dict(event.fields), event.text
        spans = self._spans(body)
        # From the end on, as a replacement may have another length.
        for place, value in self._that_print(tuple(change)):
            try:
                new_value = value.of(after)
                if new_value == value.of(before):
                    continue
            except Unknown:
                new_value = str(change.get(value.name or "", ""))
            begin, end = spans[place]
            text = self._text(value, new_value, after, event.text[begin:end])
            body = body[:begin] + text + body[end:]
            if value.name is not None:
                fields[value.name] = value.parse(text)
        return copied(event, fields=fields, text=body)

    def _text(
        self,
        value: PrintedValue,
        new_value: int | str,
        after: Mapping[str, Member],
        old_text: str,
    ) -> str:
        """How ``new_value`` is printed in the place of ``old_text``."""
        if isinstance(new_value, str):
            return new_value
        if value.function:
            return self._functions.get(new_value, f"0x{new_value:x}")
        own = after.get(value.name or "")
        if value.base == _DECIMAL:
            return str(own if isinstance(own, int) and own < 0 else new_value)
        digits = old_text.removeprefix("0x")
        # Leading zeros, or the length of an address: then the number is padded.
        filled = digits.startswith("0") or len(digits) == _ADDRESS
        text = f"{new_value:x}".zfill(len(digits) if filled else 0)
        return f"0x{text}" if old_text.startswith("0x") else text


@dataclass(frozen=True)
class _Result(WorkloadResult):
    """The results of a workload, with the event's records as the mutant has them."""

    load: _Load
    false: _Readings
    refused: list[str]

    @property
    def kmsg(self) -> str:
        """The genuine log, read once for all mutants."""
        return self._text("kmsg.txt")

    def events(self, name: str | None = None) -> tuple[Event, ...]:
        """The mutant's records, as ftrace would have printed them."""
        return self.false.get("text", name)

    def older(self, *new: str) -> tuple[Event, ...]:
        """The genuine records, unless one of these events is the false one."""
        return self.false.older(new)

    def raw(self, name: str | None = None) -> tuple[Event, ...]:
        """The mutant's records, as they would have been in memory."""
        return self.false.get("raw", name)

    def record(
        self, name: str | None = None, *, partly: bool = False
    ) -> tuple[Event, ...]:
        """The mutant's records, as the recorder would have read them."""
        if not partly:
            # Raises `Incomplete` for a mutant as for the genuine records.
            self.load.workload.record(name)
        return self.false.get("read", name)

    @property
    def _recorded(self) -> tuple[Event, ...]:
        return self.record()

    @property
    def stdout(self) -> str:
        """The program's output without the lines that show records of new events."""
        return self.load.stdout

    def objects(self, what: str | None = None) -> list[dict[str, Any]]:
        """The objects that show no records of new events; others are refused."""
        if what in self.load.shows:
            self.refused.append(f"{what} of {self.name}")
            raise Withheld(
                f"{what} of {self.name} shows the records, so it cannot prove them"
            )
        return super().objects(what)

    def decoded(self, file: str) -> str:
        """Refused: it was printed from genuine records."""
        self.refused.append(file)
        raise Withheld(
            f"{file} was printed from the records, so it cannot prove them", next=None
        )

    def bpftrace(self, script: str) -> records.Output:
        """Only the recorder's own output: scripts read the events."""
        if script != "record":
            self.refused.append(script)
            raise Withheld(
                f"{script} reads the events, so it cannot prove them", next=None
            )
        return super().bpftrace(script)

    def _text(self, name: str) -> str:
        if name not in self.load.texts:
            self.load.texts[name] = super()._text(name)
        return self.load.texts[name]
