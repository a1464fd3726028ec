# SPDX-License-Identifier: GPL-2.0-or-later
"""Evidence with one thing made false, as a wrong patch would have shown it.

A patch that puts a wrong value into an event shows it to whoever reads the event:
ftrace's text is printed from the record, the raw pages hold the record, and bpftrace
reads the same record or, of a bare tracepoint, the same arguments.  So a record is
falsified in all readings at once, which is what the kernel would have done; nothing
else in the evidence depends on the new event's value, with two exceptions.  What the
scripts of `scripts/` and the decoders printed would be false as well: it is withheld.
And what the workloads' own programs and the kernel's own tests say is kept: where they
read the event themselves they would only have noticed more.  What the recorder reads
through an argument of a bare tracepoint follows the argument.

Readings are matched by order: each reader sees the events of a CPU in the order in
which they fired there.  So the n-th record of a CPU is the same event in every reading,
however exact the reader's time stamps are.  But where SRCU guards the readers of a
tracepoint, as in 7.2, a thread can be moved from CPU to CPU between one and the next:
then values and the thread tell.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..base import KstallError
from ..series import Series, Tracepoint
from . import records
from .cexpr import Member, Unknown
from .evidence import Evidence, EvidenceError, WorkloadResult
from .printk import Value, compile_fmt
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
#: The nearest to the bytes first, and so to the event's own time.
_NEAREST: tuple[Reading, ...] = ("raw", "read", "text")
#: Sizes in bytes of what C calls a type, and whether it has a sign.
_TYPES = {
    **{f"u{bits}": (bits // 8, False) for bits in (8, 16, 32, 64)},
    **{f"s{bits}": (bits // 8, True) for bits in (8, 16, 32, 64)},
    **{"int": (4, True), "unsigned int": (4, False), "pid_t": (4, True)},
    **{"long": (8, True), "unsigned long": (8, False), "bool": (1, False)},
}

Values = dict[str, Member]
#: A CPU, and as its how manieth a record was made.
_Key = tuple[int, int]


class Withheld(EvidenceError):
    """What a mutant's evidence does not have: output that would be false as well."""


class Unmatched(KstallError):
    """Readings of one event that do not have the same records."""


@dataclass(frozen=True)
class Mutant:
    """One thing made false: ``operator`` applied to ``field`` of all of ``event``.

    Events that have the same fields can be of one class, whose assignments are written
    once: ``system:one+other`` is both at once.
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
    """What a field is, as far as that says what can be wrong with it."""

    kind: Kind
    size: int
    signed: bool
    symbols: tuple[int, ...] = ()

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
    """One time that an event fired.

    ``at`` is when, in ns; ``readings`` what each reader has of it, and ``places`` where
    among all of its records that stands.
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
        raise AssertionError("a record that nobody has read")


def mutants(series: Series, saved: Evidence) -> Iterator[Mutant]:
    """Every operator for every field of every new event, and for its records."""
    for point in series.spec.tracepoint:
        types = _types(point, saved)
        yield from _of_fields(point.event, types)
        for name in _OF_RECORDS:
            yield Mutant(point.event, RECORDS, name)
    for event, point in _classes(series):
        yield from _of_fields(event, _types(point, saved))


def _of_fields(event: str, types: Mapping[str, _Type]) -> Iterator[Mutant]:
    for field, kind in types.items():
        others = [
            name
            for name, other in types.items()
            if name != field and other.alike == kind.alike
        ]
        names = [*_operators(kind), *(f"from {name}" for name in others)]
        # Both ways it is the same.
        behind = [*types][[*types].index(field) :]
        names += [f"swapped with {name}" for name in others if name in behind]
        for name in names:
            yield Mutant(event, field, name)


def _classes(series: Series) -> Iterator[tuple[str, Tracepoint]]:
    """Events that can share what assigns their fields, and one of them."""
    alike: dict[str, list[Tracepoint]] = defaultdict(list)
    for point in series.spec.tracepoint:
        if point.kind == "event":
            alike[f"{point.system} {[*point.fields.items()]}"].append(point)
    for points in alike.values():
        if len(points) > 1:
            names = "+".join(point.name for point in points)
            yield f"{points[0].system}:{names}", points[0]


def _types(point: Tracepoint, saved: Evidence) -> dict[str, _Type]:
    """The declared fields; of what has a record, as the booted kernel says."""
    layout = saved.layouts.get(point.event)
    symbols: dict[str | None, tuple[int, ...]] = {}
    if layout is not None:
        symbols = {
            value.name: value.symbols for value in compile_fmt(layout.print_fmt).values
        }
    sizes = {one.name: one for one in layout.fields} if layout is not None else {}
    found = {}
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
        found[name] = _Type(kind, size, signed, symbols.get(name, ()))
    return found


def _operators(kind: _Type) -> tuple[str, ...]:
    """Names of what can be done to a field of this kind without looking at others."""
    match kind.kind:
        case "text":
            return ("empty", "another string", "cut short", "stale")
        case "truth":
            return ("zero", "always", "inverted", "stale")
        case "pointer":
            return ("zero", "one more", "one less", "fixed", "stale", "32 bits")
    names = ["zero", "one more", "one less", "half", "double", "fixed", "stale"]
    names += ["inverted"] if kind.size == 1 else []
    names += ["x1000", "/1000", "32 bits"] if kind.size == 8 else []
    names += ["another enum value"] if kind.symbols else []
    return tuple(names)


_Column = Sequence[Member]


def _numbers(column: _Column) -> list[int]:
    return [value for value in column if isinstance(value, int)]


def _fixed(column: _Column, kind: _Type) -> Member:
    """A value of the field's kind that no record has, and near to those that it has."""
    seen = set(_numbers(column))
    step = 0x1000 if kind.kind == "pointer" else 1
    return next(
        kind.cut(value)
        for value in range(max(seen, default=0) + step, 1 << 70, step)
        if kind.cut(value) not in seen
    )


def _another_symbol(value: int, kind: _Type) -> int:
    """The symbol after that of ``value``, round and round."""
    after = sorted(kind.symbols)
    return next((one for one in after if one > value), after[0])


def _stale(column: _Column) -> list[Member]:
    """What the record before had; the first one has nothing before it."""
    return [*column[:1], *column[:-1]]


_One = Callable[[int, _Type], int]
_OF_NUMBERS: Mapping[str, _One] = {
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
_OF_TEXTS: Mapping[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "another string": lambda text: _FOREIGN,
    "cut short": lambda text: text[:-1],
}


def _changed(
    mutant: Mutant, rows: Sequence[Mapping[str, Member]], kind: _Type
) -> list[Values]:
    """What ``mutant`` makes of each of ``rows``: the values that become others."""
    field, operator = mutant.field, mutant.operator
    column = [row[field] for row in rows]
    how, _, other = operator.rpartition(" ")
    if how == "from":
        made = [{field: row[other]} for row in rows]
    elif how == "swapped with":
        made = [{field: row[other], other: row[field]} for row in rows]
    elif operator == "stale":
        made = [{field: value} for value in _stale(column)]
    elif operator == "fixed":
        value = _fixed(column, kind)
        made = [{field: value} for _ in rows]
    elif kind.kind == "text":
        change = _OF_TEXTS[operator]
        made = [{field: change(str(value))} for value in column]
    else:
        one = _OF_NUMBERS[operator]
        made = [
            {field: kind.cut(one(value, kind)) if isinstance(value, int) else value}
            for value in column
        ]
    return [
        {name: value for name, value in change.items() if row[name] != value}
        for row, change in zip(rows, made, strict=True)
    ]


def _led_to(
    mutant: Mutant,
    reads: Mapping[str, str],
    rows: Sequence[Mapping[str, Member]],
    made: list[Values],
) -> list[Values]:
    """``made``, with what the recorder would have read through a false pointer.

    ``reads`` are C expressions by name, as of a bare tracepoint.  Another record's
    pointer leads to what that record read; any other one to nothing, which bpftrace
    reads as 0.
    """
    names = [name for name, text in reads.items() if _root(text) == mutant.field]
    if not names:
        return made
    if mutant.operator == "fixed":
        made = _other_object(mutant.field, rows)
    led: list[Values] = []
    for place, change in enumerate(made):
        nowhere = mutant.operator not in ("stale", "fixed")
        source = (
            place - 1
            if mutant.operator == "stale"
            else _nearest(change.get(mutant.field), mutant.field, rows, place)
        )
        if not change:
            led.append({})
        elif nowhere or source is None:
            led.append({**change, **dict.fromkeys(names, 0)})
        else:
            led.append({**change, **{name: rows[source][name] for name in names}})
    return led


def _root(expression: str) -> str:
    return expression.partition("->")[0].strip("( ")


def _other_object(field: str, rows: Sequence[Mapping[str, Member]]) -> list[Values]:
    """All records tell of one object, that which the fewest of them told of."""
    seen = Counter(row[field] for row in rows)
    value = min(seen, key=lambda one: (seen[one], str(one)))
    if len(seen) == 1:
        value = _fixed([*seen], _Type("pointer", 8, False))
    return [{} if row[field] == value else {field: value} for row in rows]


def _nearest(
    value: Member | None, field: str, rows: Sequence[Mapping[str, Member]], place: int
) -> int | None:
    """Which record with this pointer is the nearest to that at ``place``."""
    for away in range(1, len(rows)):
        for other in (place - away, place + away):
            if 0 <= other < len(rows) and rows[other][field] == value:
                return other
    return None


def _moved(by: int) -> Callable[[list[_Record]], list[_Record]]:
    def move(found: list[_Record]) -> list[_Record]:
        return [
            replace(
                record,
                at=record.at + by,
                readings={
                    name: replace(event, ts_ns=event.ts_ns + by)
                    for name, event in record.readings.items()
                },
            )
            for record in found
        ]

    return move


def _swapped(found: list[_Record]) -> list[_Record]:
    """Two neighbours, of one thread if there are such, tell what the other one did.

    The two that differ most: what tells apart two that are alike but for less than the
    instrument resolves is chance.
    """
    pairs = [
        (one, one + 1)
        for one in range(len(found) - 1)
        if found[one].values != found[one + 1].values
    ]
    # From the middle on, as what begins and what ends is often special.
    pairs.sort(key=lambda pair: abs(pair[0] - len(found) // 2))
    pairs.sort(key=lambda pair: -_difference(*(found[one].values for one in pair)))
    pairs.sort(key=lambda pair: len({_thread(found[one]) for one in pair}))
    for one, other in pairs[:1]:
        first, second = found[one], found[other]
        if first.readings.keys() == second.readings.keys():
            found = [*found]
            found[one] = _telling(first, second)
            found[other] = _telling(second, first)
    return found


def _difference(one: Mapping[str, Member], other: Mapping[str, Member]) -> float:
    """How far apart two records are: at most 1 a field, of numbers their ratio."""
    apart = 0.0
    for name, value in one.items():
        beside = other.get(name)
        if isinstance(value, int) and isinstance(beside, int):
            apart += min(1, abs(value - beside) / max(abs(value), abs(beside), 1))
        else:
            apart += value != beside
    return apart


def _thread(record: _Record) -> int:
    return next(iter(record.readings.values())).pid


def _telling(record: _Record, other: _Record) -> _Record:
    """``record``'s place and time with what ``other`` tells."""
    readings = {
        name: replace(
            event, fields=other.readings[name].fields, text=other.readings[name].text
        )
        for name, event in record.readings.items()
    }
    return replace(record, readings=readings)


def _third_dropped(found: list[_Record]) -> list[_Record]:
    return [record for place, record in enumerate(found, 1) if place % 3]


def _doubled(found: list[_Record]) -> list[_Record]:
    middle = len(found) // 2
    return [*found[: middle + 1], *found[middle:]]


_OF_RECORDS: Mapping[str, Callable[[list[_Record]], list[_Record]]] = {
    "first dropped": lambda found: found[1:],
    "last dropped": lambda found: found[:-1],
    "every third dropped": _third_dropped,
    "one doubled": _doubled,
    "two swapped": _swapped,
    "1 ms later": _moved(MS),
    "1 ms earlier": _moved(-MS),
}
# The same by more, for evidence in which what an event is held against is further away:
# how far depends on the host, and on what else it does.
_COARSER: Mapping[str, Mapping[str, Callable[[list[_Record]], list[_Record]]]] = {
    f"1 ms {to}": {f"{by} ms {to}": _moved(sign * by * MS) for by in (10, 100)}
    for to, sign in (("later", 1), ("earlier", -1))
}


def coarser(mutant: Mutant) -> Iterator[Mutant]:
    """The same mutant, each time by more, where there is such a thing."""
    for name in _COARSER.get(mutant.operator, ()):
        yield replace(mutant, operator=name)


def _of_records(operator: str) -> Callable[[list[_Record]], list[_Record]]:
    for operators in (_OF_RECORDS, *_COARSER.values()):
        if operator in operators:
            return operators[operator]
    raise KeyError(operator)


class Genuine:
    """A run's evidence, read once, of which mutants keep what they do not touch."""

    def __init__(self, series: Series, saved: Evidence) -> None:
        self._saved = saved
        #: What was asked for and withheld, newest last.
        self.refused: list[str] = []
        self._types = {
            point.event: _types(point, saved) for point in series.spec.tracepoint
        }
        self._reads = {point.event: point.reads for point in series.spec.tracepoint}
        self._loads = {
            load.name: _Load(saved.workload(load.name)) for load in series.spec.workload
        }

    @functools.cached_property
    def withheld(self) -> Evidence:
        """As it is, but for what no mutant's evidence has either."""
        return self._evidence({})

    def fires_in(self, event: str) -> frozenset[str]:
        """The workloads of whose records some are of ``event``."""
        return frozenset(
            name for name, load in self._loads.items() if load.records(event)
        )

    def falsified(self, mutant: Mutant) -> tuple[Evidence, frozenset[str]]:
        """The evidence that ``mutant`` makes, and the workloads in which it differs.

        No workload: there is nothing that it would make false.
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
        mutant: Mutant,
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
        rows = [record.values for record in before]
        made = _changed(mutant, rows, kind)
        made = _led_to(mutant, self._reads[event], rows, made)
        if not any(made):
            return readings
        return load.changed(event, before, made, readings)

    def _evidence(self, changes: Mapping[str, _Readings]) -> Evidence:
        return Evidence(
            self._saved.dir,
            self._saved.agent,
            {
                name: _Result(
                    *(load.ran.name, load.ran.dir, load.ran.layouts, load.ran.facts),
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
    """The three readings of a workload; each is made when it is asked for."""

    def __init__(self, make: Callable[[Reading], tuple[Event, ...]]) -> None:
        self._make = make
        self._made: dict[tuple[Reading, str | None], tuple[Event, ...]] = {}
        self._older: dict[tuple[str, ...], tuple[Event, ...]] = {}

    def get(self, reading: Reading, name: str | None) -> tuple[Event, ...]:
        """The records called ``name``, or all; the same object each time."""
        key = (reading, name)
        if key not in self._made:
            if name is None:
                self._made[key] = self._make(reading)
            else:
                whole = self.get(reading, None)
                self._made[key] = tuple(one for one in whole if one.name == name)
        return self._made[key]

    def older(self, new: tuple[str, ...]) -> tuple[Event, ...]:
        """The text's records but for those called ``new``; the same object."""
        if new not in self._older:
            whole = self.get("text", None)
            self._older[new] = tuple(one for one in whole if one.name not in new)
        return self._older[new]


class _False(_Readings):
    """Readings in which one event's records are others; the rest is `genuine`'s."""

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
    """What one workload left, read once."""

    def __init__(self, ran: WorkloadResult) -> None:
        self.ran = ran
        self.texts: dict[str, str] = {}
        ways: Mapping[Reading, Callable[[], tuple[Event, ...]]] = {
            "text": ran.events,
            "raw": ran.raw,
            "read": lambda: ran._recorded,
        }
        self.genuine = _Readings(lambda reading: ways[reading]())
        self._records: dict[str, list[_Record]] = {}
        self._names: dict[str, _Names] = {}

    def _has(self, reading: Reading) -> bool:
        file = {"text": "trace.txt", "raw": "pages", "read": "record.jsonl"}[reading]
        return (self.ran.dir / file).exists()

    def records(self, event: str) -> list[_Record]:
        """The records of ``event``, in the order in which they fired."""
        if event not in self._records:
            self._records[event] = self._joined(event)
        return self._records[event]

    def _joined(self, event: str) -> list[_Record]:
        system, _, name = event.partition(":")
        joined: dict[tuple[int, int], dict[Reading, Event]] = defaultdict(dict)
        places: dict[tuple[int, int], dict[Reading, int]] = defaultdict(dict)
        counts = {}
        for reading in _READINGS:
            if not self._has(reading):
                continue
            found = [
                (place, one)
                for place, one in enumerate(self.genuine.get(reading, None))
                if (one.system, one.name) == (system, name)
            ]
            raw = {key: one["raw"] for key, one in joined.items() if "raw" in one}
            keys = _keys([one for _, one in found], raw if reading == "read" else {})
            for key, (place, one) in zip(keys, found, strict=True):
                joined[key][reading], places[key][reading] = one, place
            if found and len({*keys} - raw.keys()):
                counts[reading] = dict(sorted(Counter(cpu for cpu, _ in keys).items()))
        if len({str(count) for count in counts.values()}) > 1:
            raise Unmatched(
                f"{self.ran.name}: the readers of {event} do not have the same "
                f"records, by CPU: {counts}",
                next="see what nothing_lost and readers_agree say of this run",
            )
        made = [
            _Record(
                next(one[way].ts_ns for way in _NEAREST if way in one), one, places[key]
            )
            for key, one in joined.items()
        ]
        return sorted(made, key=lambda record: record.at)

    def changed(
        self,
        event: str,
        before: Sequence[_Record],
        changes: Sequence[Values],
        readings: _Readings,
    ) -> _Readings:
        """``readings`` with ``changes`` made to the fields of the records."""

        def make(reading: Reading) -> tuple[Event, ...]:
            whole = [*readings.get(reading, None)]
            for record, change in zip(before, changes, strict=True):
                if change and reading in record.readings:
                    whole[record.places[reading]] = self._changed(
                        record, reading, change, names
                    )
            return tuple(whole)

        if event not in self._names:
            self._names[event] = _Names(before, self.ran.layouts.get(event))
        names = self._names[event]
        return _False(readings, event.partition(":")[2], make)

    def _changed(
        self, record: _Record, reading: Reading, change: Values, names: _Names
    ) -> Event:
        one = record.readings[reading]
        if reading == "text" and names.printed is not None:
            return names.reprinted(record, change)
        return replace(one, fields={**one.fields, **change})

    def falsified(self, event: str, after: Sequence[_Record]) -> _Readings:
        """The readings with ``after`` in the place of the event's records."""
        system, _, name = event.partition(":")

        def make(reading: Reading) -> tuple[Event, ...]:
            whole = [
                (place, one)
                for place, one in enumerate(self.genuine.get(reading, None))
                if (one.system, one.name) != (system, name)
            ]
            whole += [
                (record.places[reading], record.readings[reading])
                for record in after
                if reading in record.readings
            ]
            # Raw records are CPU by CPU.
            whole.sort(
                key=lambda one: (reading == "raw" and one[1].cpu, one[1].ts_ns, one[0])
            )
            return tuple(one for _, one in whole)

        return _False(self.genuine, name, make)


def _keys(found: Sequence[Event], raw: Mapping[_Key, Event]) -> list[_Key]:
    """By which CPU, and as its how manieth, each of ``found`` was recorded.

    A recorder can have skipped some of the ``raw`` records, and a thread that is moved
    between two readers has its record on another CPU in each: where that is seen, a
    record is the next one of its thread with its values.
    """
    every: dict[int, int] = defaultdict(int)
    ordered = []
    for one in found:
        ordered.append((one.cpu, every[one.cpu]))
        every[one.cpu] += 1
    if not raw or all(
        key in raw and raw[key].fields == one.fields
        for key, one in zip(ordered, found, strict=True)
    ):
        return ordered
    if (by_thread := _by_thread(found, raw)) is not None:
        return by_thread
    return ordered


def _by_thread(found: Sequence[Event], raw: Mapping[_Key, Event]) -> list[_Key] | None:
    """The records of ``raw`` that those of ``found`` are, in the order of each thread;
    None if one is nowhere."""
    left: dict[tuple[int, str], list[_Key]] = defaultdict(list)
    for key, one in sorted(raw.items(), key=lambda item: item[1].ts_ns):
        left[one.pid, _values(one)].append(key)
    keys = []
    for one in found:
        alike = left[one.pid, _values(one)]
        if not alike:
            return None
        here = [key for key in alike if key[0] == one.cpu]
        keys.append((here or alike)[0])
        alike.remove(keys[-1])
    return keys


def _values(one: Event) -> str:
    return str(sorted(one.fields.items()))


class _Names:
    """How the kernel prints an event's values, as far as its records show it."""

    def __init__(self, found: Sequence[_Record], layout: Layout | None) -> None:
        self.printed = compile_fmt(layout.print_fmt) if layout is not None else None
        # What functions are called stands nowhere but in text.
        self._functions: dict[Member, str] = {}
        functions = [
            (place, value)
            for place, value in enumerate(self.printed.values if self.printed else ())
            if value.function
        ]
        for record in found if functions else ():
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
        spans = self.printed.spans(text)
        if spans is None:
            raise Unmatched(f"not what its print fmt prints: {text!r}")
        return spans

    def reprinted(self, record: _Record, change: Values) -> Event:
        """The text of ``record`` as the kernel had printed it with ``change``."""
        assert self.printed is not None
        event = record.readings["text"]
        before = record.values
        after = {**before, **change}
        fields, body = dict(event.fields), event.text
        spans = self._spans(body)
        # From the end on, as what is replaced may be longer than it was.
        for place, value in reversed([*enumerate(self.printed.values)]):
            if value.members.isdisjoint(change):
                continue
            try:
                now = value.of(after)
                if now == value.of(before):
                    continue
            except Unknown:
                now = str(change.get(value.name or "", ""))
            begin, end = spans[place]
            text = self._text(value, now, after, event.text[begin:end])
            body = body[:begin] + text + body[end:]
            if value.name is not None:
                fields[value.name] = value.parse(text)
        return replace(event, fields=fields, text=body)

    def _text(
        self, value: Value, now: int | str, after: Mapping[str, Member], was: str
    ) -> str:
        """What is printed of ``now`` where ``was`` stands."""
        if isinstance(now, str):
            return now
        if value.function:
            return self._functions.get(now, f"0x{now:x}")
        own = after.get(value.name or "")
        if value.base == _DECIMAL:
            return str(own if isinstance(own, int) and own < 0 else now)
        digits = was.removeprefix("0x")
        # Zeros before it, or as long as an address is: then it is filled up.
        filled = digits.startswith("0") or len(digits) == _ADDRESS
        text = f"{now:x}".zfill(len(digits) if filled else 0)
        return f"0x{text}" if was.startswith("0x") else text


@dataclass(frozen=True)
class _Result(WorkloadResult):
    """What a workload left, with the event's records as the mutant has them."""

    load: _Load
    false: _Readings
    refused: list[str]

    @property
    def kmsg(self) -> str:
        """As it is: read once for all mutants."""
        return self._text("kmsg.txt")

    def events(self, name: str | None = None) -> tuple[Event, ...]:
        """As ftrace would have printed them."""
        return self.false.get("text", name)

    def older(self, *new: str) -> tuple[Event, ...]:
        """As they are, unless one of them is the false one."""
        return self.false.older(new)

    def raw(self, name: str | None = None) -> tuple[Event, ...]:
        """As they would have stood in memory."""
        return self.false.get("raw", name)

    def record(
        self, name: str | None = None, *, partly: bool = False
    ) -> tuple[Event, ...]:
        """As the recorder would have read them."""
        if not partly:
            # It may refuse: then it does so of what is false as well.
            self.load.ran.record(name)
        return self.false.get("read", name)

    @property
    def _recorded(self) -> tuple[Event, ...]:
        return self.record()

    def decoded(self, file: str) -> str:
        """Nothing: it was printed from true records."""
        self.refused.append(file)
        raise Withheld(f"{file} was made from the records, and is no witness of them")

    def bpftrace(self, script: str) -> records.Output:
        """Nothing but the recorder's own account: scripts read the events."""
        if script != "record":
            self.refused.append(script)
            raise Withheld(f"{script} reads the events, and is no witness of them")
        return super().bpftrace(script)

    def _text(self, name: str) -> str:
        if name not in self.load.texts:
            self.load.texts[name] = super()._text(name)
        return self.load.texts[name]
