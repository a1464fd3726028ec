# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether every reader of a new event gets what its record holds.

The kernel's own text is held against the bytes in ftrace's buffer, record by record.
perf and trace-cmd never ask the kernel for text: they evaluate the print fmt over the
bytes themselves, by libtraceevent, which does not know all that a TP_printk may call.
What they print is held against the kernel's text.

Bare tracepoints have no record and no print fmt, so nothing of this is about them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kstall_guest import decoders

from ..series import Series, Tracepoint
from ..verdict import Verdict
from .cexpr import Unknown
from .evidence import Evidence, Incomplete, WorkloadResult
from .printk import Printed, TooFewArguments, compile_fmt
from .records import Event

_PERF = re.compile(
    r"\[(?P<cpu>\d+)\] +(?P<s>\d+)\.(?P<ns>\d{9}): +(?P<event>\w+:\w+): *(?P<body>.*)"
)
# A task's name may hold anything, but what follows it here is hardly part of one.
_TRACE_CMD = re.compile(
    r".*-\d+ +\[(?P<cpu>\d+)\] +(?:\S+ +)?(?P<s>\d+)\.(?P<ns>\d{9}): "
    r"+(?P<event>\w+): *(?P<body>.*)"
)
_NONE = "none"

_Values = tuple[int | str, ...]


@dataclass(frozen=True)
class _Line:
    """One record as a decoder printed it; ``ts_ns`` is CLOCK_MONOTONIC."""

    ts_ns: int
    event: str
    body: str


def text_is_the_record(series: Series, saved: Evidence) -> Verdict:
    """All that TP_printk writes of a new event, read back, is what its record holds."""
    verdict = Verdict()
    for point in _events(series):
        try:
            printed = compile_fmt(saved.layout(point.event).print_fmt)
        except TooFewArguments as error:
            verdict.true(f"{point.name}: all that is printed", False, str(error))
            continue
        compared = 0
        for load in series.spec.workload:
            if point.event in load.events:
                ran = saved.workload(load.name)
                with verdict.about(load.name):
                    compared += _compare(verdict, ran, point.name, printed)
        verdict.at_least(f"{point.name}: records compared", compared, 1, "records")
        hidden = [
            field.name
            for field in saved.layout(point.event).fields
            if field.name not in printed.members
        ]
        verdict.true(
            f"{point.name}: members printed",
            bool(printed.members),
            detail=f"not printed: {', '.join(hidden) or _NONE}",
        )
    return verdict


def listed_by_perf(series: Series, saved: Evidence) -> Verdict:
    """`perf list` names each new event."""
    verdict = Verdict()
    listed = {
        word
        for load in series.spec.workload
        if load.decode
        for line in saved.workload(load.name).decoded(decoders.LISTED).splitlines()
        if "[Tracepoint event]" in line
        for word in line.split()[:1]
    }
    for point in _events(series):
        seen = point.event if point.event in listed else _NONE
        verdict.equal(f"{point.name}: listed", seen, point.event)
    return verdict


def decoded_by_perf(series: Series, saved: Evidence) -> Verdict:
    """perf prints each record of a new event with the values that the kernel prints."""
    return _decoded(series, saved, decoders.PERF, _PERF)


def decoded_by_trace_cmd(series: Series, saved: Evidence) -> Verdict:
    """trace-cmd prints each record of a new event with the kernel's values, too."""
    return _decoded(series, saved, decoders.TRACE_CMD, _TRACE_CMD)


def _events(series: Series) -> Iterator[Tracepoint]:
    return (point for point in series.spec.tracepoint if point.kind != "bare")


def _compare(verdict: Verdict, ran: WorkloadResult, name: str, printed: Printed) -> int:
    """Hold one workload's text against its raw records; how many of these there are."""
    texts, raws = _by_cpu(ran.events(name)), _by_cpu(ran.raw(name))
    found: list[str] = []
    names: set[tuple[int | str, int | str]] = set()
    for cpu in sorted({*texts, *raws}):
        for text, raw in zip_longest(texts.get(cpu, ()), raws.get(cpu, ())):
            found += _differences(text, raw, printed, names)
    label = f"{ran.name}: {name}"
    count = sum(map(len, raws.values()))
    if count or found:
        verdict.equal(f"{label}: unlike the record", _first(found), _NONE)
    if names:
        # Only the kernel knows what it calls an address, but it has one name for each.
        unclear = [
            f"{one}: {', '.join(map(str, sorted(others, key=str)))}"
            for pairs in (names, {(address, name) for name, address in names})
            for one, others in _grouped(pairs).items()
            if len(others) > 1
        ]
        verdict.equal(f"{label}: names not for one address", _first(unclear), _NONE)
    return count


def _grouped(
    pairs: Iterable[tuple[int | str, int | str]],
) -> dict[int | str, set[int | str]]:
    found: dict[int | str, set[int | str]] = defaultdict(set)
    for one, other in pairs:
        found[one].add(other)
    return found


def _by_cpu(events: Iterable[Event]) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        found[event.cpu].append(event)
    return found


def _differences(
    text: Event | None,
    raw: Event | None,
    printed: Printed,
    names: set[tuple[int | str, int | str]],
) -> Iterator[str]:
    """What ``text`` says otherwise than ``raw``; the names of functions go to names."""
    if text is None or raw is None:
        yield f"text without a record: {text}" if text else f"no text for {raw}"
        return
    values = printed.read(text.text)
    # Text has microseconds, rounded.
    if values is None or abs(text.ts_ns - raw.ts_ns) > 1000 or text.pid != raw.pid:
        yield f"{text.text!r} at {text.ts_ns} for a record of {raw.ts_ns}"
        return
    for value, said in zip(printed.values, values, strict=True):
        try:
            held = value.of(raw.fields)
        except Unknown as error:
            yield f"cannot be told: {error}"
            continue
        if value.function:
            names.add((said, held))
        elif said != held:
            yield f"{value.argument}: printed {said!r}, recorded {held!r}"


def _decoded(
    series: Series, saved: Evidence, file: str, pattern: re.Pattern[str]
) -> Verdict:
    """Raises `Incomplete` if perf could not get all, and nothing else is wrong."""
    verdict = Verdict()
    short: list[Incomplete] = []
    for point in _events(series):
        printed = compile_fmt(saved.layout(point.event).print_fmt)
        total = 0
        before = len(short)
        for load in series.spec.workload:
            if not load.decode or point.event not in load.events:
                continue
            ran = saved.workload(load.name)
            # trace-cmd leaves the system out, so that one name is all there is.
            lines = [
                line
                for line in _lines(ran.decoded(file), pattern)
                if line.event.rpartition(":")[2] == point.name
                and line.event in (point.event, point.name)
            ]
            # trace-cmd reads the pages of ftrace, which has all.
            skipped = (ran.skipped or {}) if file == decoders.PERF else {}
            with verdict.about(load.name):
                try:
                    total += _agree(
                        verdict,
                        ran,
                        point.name,
                        printed,
                        lines,
                        skipped.get(point.name, 0),
                    )
                except Incomplete as error:
                    short.append(error)
        if len(short) == before:
            verdict.at_least(f"{point.name}: decoded", total, 1, "records")
    if short and all(one.ok for one in verdict.comparisons):
        raise short[0]
    return verdict


def _agree(
    verdict: Verdict,
    ran: WorkloadResult,
    name: str,
    printed: Printed,
    lines: Sequence[_Line],
    skipped: int,
) -> int:
    """Hold ``lines`` against ftrace's text; how many were read.

    An event that fires while its CPU runs a BPF program goes neither to the programs
    that wait for it nor to perf: raises `Incomplete` if no more are missing than the
    ``skipped`` ones that bpftrace's recorder did not get, and no more is wrong.
    """
    label = f"{ran.name}: {name}"
    wanted = Counter(printed.read(event.text) for event in ran.events(name))
    if not wanted and not lines:
        return 0
    names = _names(ran, name, printed)
    found: Counter[_Values | None] = Counter()
    outside: Counter[_Values | None] = Counter()
    unread = []
    for line in lines:
        values = printed.read(line.body)
        if values is None:
            unread.append(line.body)
            continue
        inside = _within(ran, line.ts_ns)
        values = tuple(names.get(value, value) for value in values)
        (found if inside else outside)[values] += 1
    verdict.equal(f"{label}: not decoded", _first(unread), _NONE)
    # perf watches a little longer, so what it saw before and after may be there.
    missing = wanted - found - outside
    surplus = found - wanted
    if 0 < missing.total() <= skipped and not unread and not surplus:
        raise Incomplete(
            f"workload {ran.name}: perf has not all {name}, of which the kernel "
            f"withheld {skipped} from bpftrace's recorder"
        )
    verdict.equal(f"{label}: not there", _first(map(str, missing.elements())), _NONE)
    verdict.equal(
        f"{label}: nobody else's", _first(map(str, surplus.elements())), _NONE
    )
    return found.total()


def _names(
    ran: WorkloadResult, name: str, printed: Printed
) -> dict[int | str, int | str]:
    """What the kernel calls the functions that it prints, by address as in text.

    perf looks symbols up when it begins, and prints the address of a function in a
    module that was loaded later: that is what the record holds.
    """
    texts, raws = _by_cpu(ran.events(name)), _by_cpu(ran.raw(name))
    names: set[tuple[int | str, int | str]] = set()
    for cpu in sorted({*texts, *raws}):
        for text, raw in zip_longest(texts.get(cpu, ()), raws.get(cpu, ())):
            for _ in _differences(text, raw, printed, names):
                pass
    return {
        f"{address:#x}": said for said, address in names if isinstance(address, int)
    }


def _within(ran: WorkloadResult, ts_ns: int) -> bool:
    """Whether the workload's program ran then."""
    return bool(ran.facts["began_ns"] <= ts_ns <= ran.facts["ended_ns"])


def _lines(text: str, pattern: re.Pattern[str]) -> Iterator[_Line]:
    for line in text.splitlines():
        if match := pattern.fullmatch(line.strip()):
            yield _Line(
                int(match["s"]) * 1_000_000_000 + int(match["ns"]),
                match["event"],
                match["body"],
            )


def _first(found: Iterable[str]) -> str:
    """The first of what is wrong, and how many more there are."""
    every = list(found)
    if not every:
        return _NONE
    return every[0] + (f" (and {len(every) - 1} more)" if len(every) > 1 else "")
