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
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..base import KstallError
from ..series import Series, Tracepoint
from . import records
from .cexpr import Member, Unknown
from .evidence import Evidence, EvidenceError, WorkloadResult
from .printk import PrintedValue, compile_fmt
from .records import Event, Layout

MS = 1_000_000
#: The field of a mutant that is about whole records.
RECORDS = "(records)"
_FOREIGN = "kstall-false"
_DECIMAL = 10
#: Digits of an address.
_ADDRESS = 16
Kind = Literal["number", "pointer", "text", "truth"]
Reading = Literal["text", "raw", "read"]
_READINGS: tuple[Reading, ...] = ("text", "raw", "read")
#: The reading nearest to the bytes, and so to the event's own time, first.
_NEAREST: tuple[Reading, ...] = ("raw", "read", "text")
#: Sizes in bytes of what C calls a type, and whether it has a sign.
_TYPES = {
    **{f"u{bits}": (bits // 8, False) for bits in (8, 16, 32, 64)},
    **{f"s{bits}": (bits // 8, True) for bits in (8, 16, 32, 64)},
    **{"int": (4, True), "unsigned int": (4, False), "pid_t": (4, True)},
    **{"long": (8, True), "unsigned long": (8, False), "bool": (1, False)},
}

Values = dict[str, Member]
#: A CPU, and a record's number on that CPU, from 0.
_Key = tuple[int, int]


class Withheld(EvidenceError):
    """Output that a mutant's evidence lacks, because it would be false as well."""


class Unmatched(KstallError):
    """Readings of one event that do not have the same records."""


@dataclass(frozen=True)
class FieldMutant:
    """One thing made false: ``operator`` applied to ``field`` of all of ``event``.

    Events with the same fields can be of one class, which assigns them in one place:
    ``system:one+other`` falsifies both at once.
    """

    event: str
    field: str
    operator: str

    @property
    def events(self) -> tuple[str, ...]:
        """The events that are false, each as ``system:name``."""
        return split(self.event)


def split(event: str) -> tuple[str, ...]:
    """``system:one+other`` as ``system:one`` and ``system:other``."""
    system, _, names = event.partition(":")
    return tuple(f"{system}:{name}" for name in names.split("+"))


@dataclass(frozen=True)
class _Type:
    """A field's type, as far as it decides what can be wrong with its values."""

    kind: Kind
    size: int
    signed: bool
    symbols: tuple[int, ...] = ()

    @property
    def is_flag(self) -> bool:
        """Whether it is 0 or 1, and the type does not say so."""
        return self.kind == "number" and {*self.symbols} == {0, 1}

    @property
    def alike(self) -> tuple[Kind, int, bool]:
        """Equal for two fields that a line of C can confuse without a warning."""
        return self.kind, self.size, self.signed

    def cut(self, value: int) -> int:
        """``value`` as a member of this size holds it."""
        value &= (1 << 8 * self.size) - 1
        return value - (1 << 8 * self.size) if self._negative(value) else value

    def _negative(self, value: int) -> bool:
        return self.signed and bool(value >> (8 * self.size - 1))


@dataclass(frozen=True)
class _Record:
    """One firing of an event.

    ``at`` is its time in ns, ``readings`` each reader's record of it, and ``places``
    the index of that record among all of the reader's.
    """

    at: int
    readings: Mapping[Reading, Event]
    places: Mapping[Reading, int]

    @property
    def values(self) -> Mapping[str, Member]:
        """What the event carried, from the reading that is nearest to the bytes."""
        for reading in _NEAREST:
            if reading in self.readings:
                return self.readings[reading].fields
        raise AssertionError("a record without a reading")


def mutants(series: Series, saved: Evidence) -> Iterator[FieldMutant]:
    """Every operator for every field of every new event, and for its records."""
    for point in series.spec.tracepoint:
        types = _types(point, saved)
        yield from _of_fields(point.event, types)
        for name in _RECORD_OPERATORS:
            yield FieldMutant(point.event, RECORDS, name)
    for event, point in _classes(series):
        yield from _of_fields(event, _types(point, saved))


def _of_fields(event: str, types: Mapping[str, _Type]) -> Iterator[FieldMutant]:
    for field, kind in types.items():
        others = [
            name
            for name, other in types.items()
            if name != field and other.alike == kind.alike
        ]
        names = [*_operators(kind), *(f"from {name}" for name in others)]
        # A swap is symmetric: one of the two is enough.
        behind = [*types][[*types].index(field) :]
        names += [f"swapped with {name}" for name in others if name in behind]
        for name in names:
            yield FieldMutant(event, field, name)


def _classes(series: Series) -> Iterator[tuple[str, Tracepoint]]:
    """Events that can be of one class, and one of them."""
    groups: dict[str, list[Tracepoint]] = defaultdict(list)
    for point in series.spec.tracepoint:
        if point.kind == "event":
            groups[f"{point.system} {[*point.fields.items()]}"].append(point)
    for points in groups.values():
        if len(points) > 1:
            names = "+".join(point.name for point in points)
            yield f"{points[0].system}:{names}", points[0]


def _types(point: Tracepoint, saved: Evidence) -> dict[str, _Type]:
    """Types of the declared fields; the booted kernel's, if the event has a record."""
    layout = saved.layouts.get(point.event)
    symbols: dict[str | None, tuple[int, ...]] = {}
    if layout is not None:
        symbols = {
            value.name: value.symbols for value in compile_fmt(layout.print_fmt).values
        }
    sizes = {field.name: field for field in layout.fields} if layout is not None else {}
    types = {}
    for name, ctype in point.fields.items():
        plain = re.sub(r"\bconst\b|__data_loc|\s+", " ", ctype).strip()
        size, signed = _TYPES.get(plain, (8, False))
        if name in sizes:
            size, signed = sizes[name].size, sizes[name].signed
        kind: Kind = "number"
        if "char" in plain.split("[")[0].split():
            kind, size, signed = "text", 0, False
        elif "*" in plain:
            kind, size, signed = "pointer", 8, False
        elif plain == "bool":
            kind = "truth"
        values = point.values.get(name) or symbols.get(name, ())
        types[name] = _Type(kind, size, signed, values)
    return types


def _operators(kind: _Type) -> tuple[str, ...]:
    """The operators for a field of this kind that involve no other field."""
    match kind.kind:
        case "text":
            return ("empty", "another string", "cut short", "stale")
        case "truth":
            return ("zero", "always", "inverted", "stale")
        case "pointer":
            return ("zero", "one more", "one less", "fixed", "stale", "32 bits")
    names = ["zero", "one more", "one less", "half", "double", "fixed", "stale"]
    names += ["always"] if kind.is_flag else []
    names += ["inverted"] if kind.is_flag or kind.size == 1 else []
    names += ["x1000", "/1000", "32 bits"] if kind.size == 8 else []
    names += ["another enum value"] if kind.symbols and not kind.is_flag else []
    return tuple(names)


_Column = Sequence[Member]


def _numbers(column: _Column) -> list[int]:
    return [value for value in column if isinstance(value, int)]


def _fixed(column: _Column, kind: _Type) -> Member:
    """A value of the field's kind that no record has, but close to those that occur."""
    seen = set(_numbers(column))
    step = 0x1000 if kind.kind == "pointer" else 1
    return next(
        kind.cut(value)
        for value in range(max(seen, default=0) + step, 1 << 70, step)
        if kind.cut(value) not in seen
    )


def _another_symbol(value: int, kind: _Type) -> int:
    """The symbol after that of ``value``, or the first."""
    after = sorted(kind.symbols)
    return next((symbol for symbol in after if symbol > value), after[0])


def _stale(column: _Column) -> list[Member]:
    """The value of the record before; the first record keeps its own."""
    return [*column[:1], *column[:-1]]


_Change = Callable[[int, _Type], int]
_NUMBER_OPERATORS: Mapping[str, _Change] = {
    "zero": lambda value, kind: 0,
    "one more": lambda value, kind: value + 1,
    "one less": lambda value, kind: value - 1,
    "half": lambda value, kind: value // 2 if value > 0 else -(-value // 2),
    "double": lambda value, kind: value * 2,
    "x1000": lambda value, kind: value * 1000,
    "/1000": lambda value, kind: value // 1000,
    "32 bits": lambda value, kind: value & 0xFFFFFFFF,
    "always": lambda value, kind: 1,
    "inverted": lambda value, kind: int(not value),
    "another enum value": _another_symbol,
}
_TEXT_OPERATORS: Mapping[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "another string": lambda text: _FOREIGN,
    "cut short": lambda text: text[:-1],
}


def _changed(
    mutant: FieldMutant, rows: Sequence[Mapping[str, Member]], kind: _Type
) -> list[Values]:
    """The values that ``mutant`` changes in each of ``rows``."""
    field, operator = mutant.field, mutant.operator
    column = [row[field] for row in rows]
    action, _, source = operator.rpartition(" ")
    if action == "swapped with":
        return [
            {field: row[source], source: value} if value != row[source] else {}
            for row, value in zip(rows, column, strict=True)
        ]
    false: list[Member]
    if action == "from":
        false = [row[source] for row in rows]
    elif operator == "stale":
        false = _stale(column)
    elif operator == "fixed":
        false = [_fixed(column, kind)] * len(rows)
    elif kind.kind == "text":
        change = _TEXT_OPERATORS[operator]
        false = [change(str(value)) for value in column]
    else:
        alter = _NUMBER_OPERATORS[operator]
        false = [
            kind.cut(alter(value, kind)) if isinstance(value, int) else value
            for value in column
        ]
    return [
        {field: value} if value != before else {}
        for value, before in zip(false, column, strict=True)
    ]


def _follow_pointers(
    mutant: FieldMutant,
    reads: Mapping[str, str],
    rows: Sequence[Mapping[str, Member]],
    changes: list[Values],
) -> list[Values]:
    """``changes``, with what the recorder would have read through a false pointer.

    ``reads`` are a bare tracepoint's C expressions by name.  Another record's pointer
    leads to what that record read; any other pointer is invalid, which bpftrace reads
    as 0.
    """
    names = [name for name, text in reads.items() if _root(text) == mutant.field]
    if not names:
        return changes
    if mutant.operator == "fixed":
        changes = _other_object(mutant.field, rows)
    linked: list[Values] = []
    for place, change in enumerate(changes):
        nowhere = mutant.operator not in ("stale", "fixed")
        source = (
            place - 1
            if mutant.operator == "stale"
            else _nearest(change.get(mutant.field), mutant.field, rows, place)
        )
        if not change:
            linked.append({})
        elif nowhere or source is None:
            linked.append({**change, **dict.fromkeys(names, 0)})
        else:
            linked.append({**change, **{name: rows[source][name] for name in names}})
    return linked


def _root(expression: str) -> str:
    return expression.partition("->")[0].strip("( ")


def _other_object(field: str, rows: Sequence[Mapping[str, Member]]) -> list[Values]:
    """Make all records refer to one object, that of the fewest records."""
    counts = Counter(row[field] for row in rows)
    value = min(counts, key=lambda pointer: (counts[pointer], str(pointer)))
    if len(counts) == 1:
        value = _fixed([*counts], _Type("pointer", 8, False))
    return [{} if row[field] == value else {field: value} for row in rows]


def _nearest(
    value: Member | None, field: str, rows: Sequence[Mapping[str, Member]], place: int
) -> int | None:
    """The index of the record with this pointer that is nearest to ``place``."""
    for distance in range(1, len(rows)):
        for other in (place - distance, place + distance):
            if 0 <= other < len(rows) and rows[other][field] == value:
                return other
    return None


def _copy(event: Event, **changes: Any) -> Event:
    """``event`` with ``changes``.

    Each of hundreds of mutants copies thousands of records: `dataclasses.replace`
    would take most of the time.
    """
    return Event(**(vars(event) | changes))


def _moved(offset_ns: int) -> Callable[[list[_Record]], list[_Record]]:
    def move(firings: list[_Record]) -> list[_Record]:
        return [
            replace(
                record,
                at=record.at + offset_ns,
                readings={
                    name: _copy(event, ts_ns=event.ts_ns + offset_ns)
                    for name, event in record.readings.items()
                },
            )
            for record in firings
        ]

    return move


def _swapped(firings: list[_Record]) -> list[_Record]:
    """Swap the values of two neighbours, of one thread if possible.

    Of all such pairs the one that differs most: a difference below what the instrument
    resolves would only be noticed by chance.
    """
    pairs = [
        (index, index + 1)
        for index in range(len(firings) - 1)
        if firings[index].values != firings[index + 1].values
    ]
    # From the middle on, as the first and last records are often special.
    pairs.sort(key=lambda pair: abs(pair[0] - len(firings) // 2))
    pairs.sort(
        key=lambda pair: -_difference(*(firings[index].values for index in pair))
    )
    pairs.sort(key=lambda pair: len({_thread(firings[index]) for index in pair}))
    for left, right in pairs[:1]:
        first, second = firings[left], firings[right]
        if first.readings.keys() == second.readings.keys():
            firings = [*firings]
            firings[left] = _with_values_of(first, second)
            firings[right] = _with_values_of(second, first)
    return firings


def _difference(left: Mapping[str, Member], right: Mapping[str, Member]) -> float:
    """How far apart two records are: at most 1 a field; for numbers, relative."""
    total = 0.0
    for name, value in left.items():
        counterpart = right.get(name)
        if isinstance(value, int) and isinstance(counterpart, int):
            total += min(
                1, abs(value - counterpart) / max(abs(value), abs(counterpart), 1)
            )
        else:
            total += value != counterpart
    return total


def _thread(record: _Record) -> int:
    return next(iter(record.readings.values())).pid


def _with_values_of(record: _Record, other: _Record) -> _Record:
    """``record``'s place and time with the values of ``other``."""
    readings = {
        name: _copy(
            event, fields=other.readings[name].fields, text=other.readings[name].text
        )
        for name, event in record.readings.items()
    }
    return replace(record, readings=readings)


def _third_dropped(firings: list[_Record]) -> list[_Record]:
    return [record for place, record in enumerate(firings, 1) if place % 3]


def _doubled(firings: list[_Record]) -> list[_Record]:
    """Let one fire again 1 ns later, as no reader sees two firings at one time."""
    middle = len(firings) // 2
    again = _moved(1)(firings[middle : middle + 1])
    return [*firings[: middle + 1], *again, *firings[middle + 1 :]]


_RECORD_OPERATORS: Mapping[str, Callable[[list[_Record]], list[_Record]]] = {
    "first dropped": lambda firings: firings[1:],
    "last dropped": lambda firings: firings[:-1],
    "every third dropped": _third_dropped,
    "one doubled": _doubled,
    "two swapped": _swapped,
    "1 ms later": _moved(MS),
    "1 ms earlier": _moved(-MS),
}
# Coarser variants, for evidence in which the reference for an event's time is further
# away: how far depends on the host and its load.
_COARSER_OPERATORS: Mapping[
    str, Mapping[str, Callable[[list[_Record]], list[_Record]]]
] = {
    f"1 ms {to}": {f"{by} ms {to}": _moved(sign * by * MS) for by in (10, 100)}
    for to, sign in (("later", 1), ("earlier", -1))
}


def coarser(mutant: FieldMutant) -> Iterator[FieldMutant]:
    """Coarser variants of a mutant, each by more than the last, if there are any."""
    for name in _COARSER_OPERATORS.get(mutant.operator, ()):
        yield replace(mutant, operator=name)


def moved_ms(noticed: str) -> int:
    """By how many ms the mutant is moved that ``noticed`` begins with; 0 if by none."""
    match = re.match(r"(\d+) ms ", noticed)
    return int(match[1]) if match else 0


def _of_records(operator: str) -> Callable[[list[_Record]], list[_Record]]:
    for operators in (_RECORD_OPERATORS, *_COARSER_OPERATORS.values()):
        if operator in operators:
            return operators[operator]
    raise KeyError(operator)


class Genuine:
    """A run's evidence, read once; mutants share what they do not change."""

    def __init__(self, series: Series, saved: Evidence) -> None:
        self._saved = saved
        #: Output that was asked for and withheld, newest last.
        self.refused: list[str] = []
        self._types = {
            point.event: _types(point, saved) for point in series.spec.tracepoint
        }
        self._reads = {point.event: point.reads for point in series.spec.tracepoint}
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
        before: list[_Record],
        readings: _Readings,
    ) -> _Readings:
        """``readings``, with ``event`` made false if that makes a difference."""
        if mutant.field == RECORDS:
            after = _of_records(mutant.operator)(before)
            if after == before:
                return readings
            return load.falsified(event, after)
        kind = self._types[event][mutant.field]
        rows = load.rows(event)
        changes = _changed(mutant, rows, kind)
        changes = _follow_pointers(mutant, self._reads[event], rows, changes)
        if not any(changes):
            return readings
        return load.changed(event, before, changes, readings)

    def _evidence(self, changes: Mapping[str, _Readings]) -> Evidence:
        return Evidence(
            self._saved.dir,
            self._saved.agent,
            {
                name: _Result(
                    *(
                        load.workload.name,
                        load.workload.dir,
                        load.workload.layouts,
                        load.workload.facts,
                    ),
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
        self._records: dict[str, list[_Record]] = {}
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

    def records(self, event: str) -> list[_Record]:
        """The records of ``event``, in the order in which they fired."""
        if event not in self._records:
            self._records[event] = self._joined(event)
        return self._records[event]

    def rows(self, event: str) -> list[Mapping[str, Member]]:
        """The values of `records`."""
        if event not in self._rows:
            self._rows[event] = [record.values for record in self.records(event)]
        return self._rows[event]

    def _joined(self, event: str) -> list[_Record]:
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
            _Record(
                next(readings[way].ts_ns for way in _NEAREST if way in readings),
                readings,
                places[key],
            )
            for key, readings in joined.items()
        ]
        return sorted(firings, key=lambda record: record.at)

    def changed(
        self,
        event: str,
        before: Sequence[_Record],
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
            self._names[event] = _Names(before, self.workload.layouts.get(event))
        names = self._names[event]
        return _False(readings, event.partition(":")[2], make)

    def _changed(
        self, record: _Record, reading: Reading, change: Values, names: _Names
    ) -> Event:
        event = record.readings[reading]
        if reading == "text" and names.printed is not None:
            return names.reprinted(record, change)
        return _copy(event, fields={**event.fields, **change})

    def falsified(self, event: str, after: Sequence[_Record]) -> _Readings:
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

    def __init__(self, firings: Sequence[_Record], layout: Layout | None) -> None:
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

    def reprinted(self, record: _Record, change: Values) -> Event:
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
        return _copy(event, fields=fields, text=body)

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
