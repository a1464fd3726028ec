# SPDX-License-Identifier: GPL-2.0-or-later
"""What can be false in an event: each operator, applied to values and to whole records.

`falsify` shows the result to all readers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..series import Series, Tracepoint
from .cexpr import Member
from .evidence import Evidence
from .printk import compile_fmt
from .records import Event

MS = 1_000_000
#: The field of a mutant that is about whole records.
RECORDS = "(records)"
_FOREIGN = "kstall-false"
Kind = Literal["number", "pointer", "text", "truth"]
Reading = Literal["text", "raw", "read"]
#: The reading nearest to the bytes, and so to the event's own time, first.
NEAREST: tuple[Reading, ...] = ("raw", "read", "text")
#: Sizes in bytes of what C calls a type, and whether it has a sign.
_TYPES = {
    **{f"u{bits}": (bits // 8, False) for bits in (8, 16, 32, 64)},
    **{f"s{bits}": (bits // 8, True) for bits in (8, 16, 32, 64)},
    "int": (4, True),
    "unsigned int": (4, False),
    "pid_t": (4, True),
    "long": (8, True),
    "unsigned long": (8, False),
    "bool": (1, False),
}

Values = dict[str, Member]


@dataclass(frozen=True)
class FieldMutant:
    """One thing made false: ``operator`` applied to ``field`` of all of ``event``.

    Events with the same fields can be of one class, which assigns them in one place:
    ``system:one+other`` falsifies both at once.

    With ``part`` only the records of that part of the event are false.
    """

    event: str
    field: str
    operator: str
    part: str = ""

    @property
    def events(self) -> tuple[str, ...]:
        """The events that are false, each as ``system:name``."""
        return split(self.event)


def split(event: str) -> tuple[str, ...]:
    """``system:one+other`` as ``system:one`` and ``system:other``."""
    system, _, names = event.partition(":")
    return tuple(f"{system}:{name}" for name in names.split("+"))


@dataclass(frozen=True)
class FieldType:
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
class Firing:
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
        for reading in NEAREST:
            if reading in self.readings:
                return self.readings[reading].fields
        raise AssertionError("a record without a reading")


def mutants(series: Series, saved: Evidence) -> Iterator[FieldMutant]:
    """Every operator for every field of every new event, and for its records."""
    for point in series.spec.tracepoint:
        kinds = types(point, saved)
        for part in ("", *(part.name for part in point.part)):
            yield from _of_fields(point.event, kinds, part)
            for name in _RECORD_OPERATORS:
                yield FieldMutant(point.event, RECORDS, name, part)
    for event, point in _classes(series):
        yield from _of_fields(event, types(point, saved))


def _of_fields(
    event: str, types: Mapping[str, FieldType], part: str = ""
) -> Iterator[FieldMutant]:
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
            yield FieldMutant(event, field, name, part)


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


def types(point: Tracepoint, saved: Evidence) -> dict[str, FieldType]:
    """Types of the declared fields; the booted kernel's, if the event has a record."""
    layout = saved.layouts.get(point.event)
    symbols: dict[str | None, tuple[int, ...]] = {}
    if layout is not None:
        symbols = {
            value.name: value.symbols for value in compile_fmt(layout.print_fmt).values
        }
    sizes = {field.name: field for field in layout.fields} if layout is not None else {}
    kinds = {}
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
        kinds[name] = FieldType(kind, size, signed, values)
    return kinds


def _operators(kind: FieldType) -> tuple[str, ...]:
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


def _fixed(column: _Column, kind: FieldType) -> Member:
    """A value of the field's kind that no record has, but close to those that occur."""
    seen = set(_numbers(column))
    step = 0x1000 if kind.kind == "pointer" else 1
    return next(
        kind.cut(value)
        for value in range(max(seen, default=0) + step, 1 << 70, step)
        if kind.cut(value) not in seen
    )


def _another_symbol(value: int, kind: FieldType) -> int:
    """The symbol after that of ``value``, or the first."""
    after = sorted(kind.symbols)
    return next((symbol for symbol in after if symbol > value), after[0])


def _stale(column: _Column) -> list[Member]:
    """The value of the record before; the first record keeps its own."""
    return [*column[:1], *column[:-1]]


_Change = Callable[[int, FieldType], int]
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


def changed(
    mutant: FieldMutant, rows: Sequence[Mapping[str, Member]], kind: FieldType
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


def followed(
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
        value = _fixed([*counts], FieldType("pointer", 8, False))
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


def copied(event: Event, **changes: Any) -> Event:
    """``event`` with ``changes``.

    Each of hundreds of mutants copies thousands of records: `dataclasses.replace`
    would take most of the time.
    """
    return Event(**(vars(event) | changes))


def _moved(offset_ns: int) -> Callable[[list[Firing]], list[Firing]]:
    def move(firings: list[Firing]) -> list[Firing]:
        return [
            replace(
                record,
                at=record.at + offset_ns,
                readings={
                    name: copied(event, ts_ns=event.ts_ns + offset_ns)
                    for name, event in record.readings.items()
                },
            )
            for record in firings
        ]

    return move


def _swapped(firings: list[Firing]) -> list[Firing]:
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


def _thread(record: Firing) -> int:
    return next(iter(record.readings.values())).pid


def _with_values_of(record: Firing, other: Firing) -> Firing:
    """``record``'s place and time with the values of ``other``."""
    readings = {
        name: copied(
            event, fields=other.readings[name].fields, text=other.readings[name].text
        )
        for name, event in record.readings.items()
    }
    return replace(record, readings=readings)


def _third_dropped(firings: list[Firing]) -> list[Firing]:
    return [record for place, record in enumerate(firings, 1) if place % 3]


def _doubled(firings: list[Firing]) -> list[Firing]:
    """Let one fire again 1 ns later, as no reader sees two firings at one time."""
    middle = len(firings) // 2
    again = _moved(1)(firings[middle : middle + 1])
    return [*firings[: middle + 1], *again, *firings[middle + 1 :]]


_RECORD_OPERATORS: Mapping[str, Callable[[list[Firing]], list[Firing]]] = {
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
    str, Mapping[str, Callable[[list[Firing]], list[Firing]]]
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


def of_records(operator: str) -> Callable[[list[Firing]], list[Firing]]:
    """The operator for whole records of that name, or the coarser variant."""
    for operators in (_RECORD_OPERATORS, *_COARSER_OPERATORS.values()):
        if operator in operators:
            return operators[operator]
    raise KeyError(operator)
