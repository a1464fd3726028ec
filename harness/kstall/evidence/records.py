# SPDX-License-Identifier: GPL-2.0-or-later
"""Parsers of guest results: trace text, recorder lines, bpftrace output.

Pure: text in, values out, so that saved results can be judged again.  Two readers
give the same `Event`: `trace` (ftrace's text: time rounded to the nearest
microsecond) and `recorded` (the generated bpftrace recorder: nanoseconds).  Both
clocks are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import functools
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from kstall_guest.layout import Field, Hole, Layout

from ..ftrace import Event, Malformed, parse_layout
from .printk import Printed, Unreadable, compile_fmt

__all__ = [
    "Bucket",
    "Event",
    "Field",
    "Hole",
    "Injected",
    "Layout",
    "Malformed",
    "Output",
    "bpftrace",
    "computed_once",
    "injected",
    "parse_layout",
    "recorded",
    "trace",
]

# comm is at most 15 bytes and printed as "%16s", so the dash stands in column 17 (or
# before, if a byte is not a character) whatever the name contains; leading blanks of
# a name cannot be told from padding.
_LINE = re.compile(
    r"(?P<comm>.{1,16})-(?P<pid>\d+) +(?:\([ \d-]{7}\) )?\[(?P<cpu>\d{3,})\] "
    r"(?:\S{4,8} +| +)?(?P<s>\d+)\.(?P<us>\d{6}): (?P<name>\w+): ?(?P<body>.*)",
    re.S,
)
_LOST = re.compile(r"CPU:\d+ \[LOST (?:\d+ )?EVENTS\]")
_STARTED = re.compile(r"#+ CPU \d+ buffer started #+")


_P = ParamSpec("_P")
_R = TypeVar("_R")
_CACHED = 128


def computed_once(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Cache the results of ``function``, which depends on its arguments alone.

    Tuples of records are compared by identity, as comparing their contents would take
    as long as computing the result.  That works because a falsified run shares the
    objects of all records that it does not change.  Other arguments are compared by
    value.  The result is shared, so callers must not modify it.
    """
    cache: OrderedDict[tuple[Hashable, ...], tuple[object, _R]] = OrderedDict()

    @functools.wraps(function)
    def once(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        arguments = (*args, *sorted(kwargs.items()))
        key = tuple(
            id(argument) if _recorded(argument) else argument for argument in arguments
        )
        if key not in cache:
            # The arguments are kept, so that no other object gets their ids.
            cache[key] = arguments, function(*args, **kwargs)
            if len(cache) > _CACHED:
                cache.popitem(last=False)
        cache.move_to_end(key)
        return cache[key][1]

    return once


def _recorded(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Event)


def trace(text: str, layouts: Iterable[Layout]) -> tuple[Event, ...]:
    """Read a trace file with the formats of the events that were enabled.

    Gaps that the text mentions are skipped: the agent counts what was lost.

    Raises `Malformed`, with the line, on an event without a format, on one whose print
    fmt cannot be read, and on text that its print fmt cannot have produced.
    """
    formats: dict[str, list[tuple[Layout, Printed]]] = {}
    unreadable: dict[str, Unreadable] = {}
    for layout in layouts:
        try:
            entry = (layout, compile_fmt(layout.print_fmt))
        except Unreadable as error:
            # Other events can still be read.
            unreadable[layout.name] = error
            continue
        formats.setdefault(layout.name, []).append(entry)
    events: list[Event] = []
    for number, line in _records(text):
        if _LOST.fullmatch(line) or _STARTED.fullmatch(line):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise Malformed(f"trace line {number}: not an event: {line!r}")
        name = match["name"]
        if name in unreadable and name not in formats:
            cause = unreadable[name]
            raise Malformed(f"trace line {number}: {name}: {cause}") from cause
        events.append(_event(match, formats.get(name, []), number))
    return tuple(events)


def _records(text: str) -> list[tuple[int, str]]:
    """(line number, text) of each record; names and values may hold line ends."""
    records: list[tuple[int, str]] = []
    pending = ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#") and not pending and not _STARTED.fullmatch(line):
            continue
        candidate = f"{pending}\n{line}" if pending else line
        if any(pattern.fullmatch(candidate) for pattern in (_LINE, _LOST, _STARTED)):
            records.append((number, candidate))
            pending = ""
        elif _LINE.fullmatch(line):
            # What was pending belongs to the event before it.
            _append_to_last(records, pending, number)
            records.append((number, line))
            pending = ""
        else:
            pending = candidate
    _append_to_last(records, pending, 0)
    return records


def _append_to_last(records: list[tuple[int, str]], pending: str, number: int) -> None:
    if not pending.strip("\n"):
        return
    if not records:
        raise Malformed(f"trace line {number}: not an event: {pending!r}")
    at, line = records[-1]
    records[-1] = (at, f"{line}\n{pending}")


def _event(
    match: re.Match[str], formats: Sequence[tuple[Layout, Printed]], number: int
) -> Event:
    if not formats:
        raise Malformed(f"trace line {number}: no format for event {match['name']}")
    body = match["body"].rstrip("\n")
    for layout, printed in formats:
        fields = printed.match(body)
        if fields is not None:
            return Event(
                ts_ns=int(match["s"]) * 1_000_000_000 + int(match["us"]) * 1000,
                cpu=int(match["cpu"]),
                pid=int(match["pid"]),
                comm=match["comm"].lstrip(" "),
                system=layout.system,
                name=layout.name,
                fields=fields,
                text=body,
            )
    raise Malformed(
        f"trace line {number}: {match['name']}: not what its print fmt prints: {body!r}"
    )


def recorded(text: str) -> tuple[Event, ...]:
    """Read record.jsonl, the recorder's lines.  Raises `Malformed`."""
    events = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        value = _decode(line, f"record line {number}")
        system, _, name = str(value["event"]).partition(":")
        events.append(
            Event(
                ts_ns=value["ts"],
                cpu=value["cpu"],
                pid=value["pid"],
                comm=value["comm"],
                system=system,
                name=name,
                fields={
                    key: tuple(entry) if isinstance(entry, list) else entry
                    for key, entry in value["fields"].items()
                },
            )
        )
    return tuple(events)


@dataclass(frozen=True)
class Injected:
    """A step that QEMU's monitor performed; ``answers`` are (command, reply, error).

    ``error`` is None if all went well.
    """

    step: str
    error: str | None
    answers: tuple[tuple[str, Any, str | None], ...]


def injected(text: str) -> tuple[Injected, ...]:
    """Read injected.json, which the host wrote.  Raises `Malformed`."""
    try:
        return tuple(
            Injected(
                entry["step"],
                entry["error"],
                tuple(
                    (answer["command"], answer["reply"], answer["error"])
                    for answer in entry["answers"]
                ),
            )
            for entry in json.loads(text)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(f"injected.json: {error!r}") from error


@dataclass(frozen=True)
class Bucket:
    """``count`` values from ``low`` to ``high``, both included; None: unbounded."""

    low: int | None
    high: int | None
    count: int


@dataclass(frozen=True)
class Output:
    """What one bpftrace run printed as JSON.

    ``maps`` and ``hists`` are by map name ("@wait"), then by key; the key of a map
    without one is "", of several parts "a,b" (bpftrace's own joining, so a comma within
    a string key is not told apart).  A map that was printed repeatedly has its last
    value.  ``lines`` are the text of printf().
    """

    maps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hists: Mapping[str, Mapping[str, tuple[Bucket, ...]]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    lost: int = 0


def bpftrace(text: str) -> Output:
    """Read the JSON that bpftrace (0.23 to 0.26) wrote.  Raises `Malformed`."""
    maps: dict[str, dict[str, Any]] = {}
    hists: dict[str, dict[str, tuple[Bucket, ...]]] = {}
    printed: list[str] = []
    lost = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        value = _decode(line, f"bpftrace line {number}")
        kind = value.get("type")
        data: Any = value.get("data")
        match kind:
            case "map":
                maps |= {name: _keyed(entry) for name, entry in data.items()}
            case "hist":
                hists |= {name: _histogram(entry) for name, entry in data.items()}
            case "printf" | "time" | "cat" | "join" | "syscall":
                printed.append(data)
            case "lost_events":
                lost += data["events"] if isinstance(data, dict) else 1
            case "attached_probes" | "stats" | "value" | "helper_error":
                # No check reads the first three; the agent has reported the last.
                pass
            case _:
                raise Malformed(f"bpftrace line {number}: unknown type {kind!r}")
    return Output(
        maps=maps,
        hists=hists,
        lines=tuple("".join(printed).splitlines()),
        lost=lost,
    )


def _decode(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise Malformed(f"{place}: {error}: {line[:120]!r}") from error
    if not isinstance(value, dict):
        raise Malformed(f"{place}: not an object: {line[:120]!r}")
    return value


def _keyed(entry: Any) -> dict[str, Any]:
    return dict(entry) if isinstance(entry, dict) else {"": entry}


def _histogram(entry: Any) -> dict[str, tuple[Bucket, ...]]:
    return {
        key: tuple(
            Bucket(bucket.get("min"), bucket.get("max"), bucket["count"])
            for bucket in buckets
        )
        for key, buckets in _keyed(entry).items()
    }
