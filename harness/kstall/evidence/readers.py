# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether every reader of a new event gets what its record holds.

The kernel's own text is compared with the bytes in ftrace's buffer, record by record.
perf and trace-cmd never ask the kernel for text: they evaluate the print fmt over the
bytes themselves, by libtraceevent, which does not know all that a TP_printk may call.
Their output is compared with the kernel's text.

Bare tracepoints have no record and no print fmt, so none of this concerns them.
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
# A task's name may hold anything, but hardly what follows it here.
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
                workload = saved.workload(load.name)
                with verdict.about(load.name):
                    compared += _compare_raw(verdict, workload, point.name, printed)
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


def _compare_raw(
    verdict: Verdict, workload: WorkloadResult, name: str, printed: Printed
) -> int:
    """Compare one workload's text with its raw records; returns their number."""
    texts, raws = by_cpu(workload.events(name)), by_cpu(workload.raw(name))
    differences: list[str] = []
    names: set[tuple[int | str, int | str]] = set()
    for cpu in sorted({*texts, *raws}):
        for text, raw in zip_longest(texts.get(cpu, ()), raws.get(cpu, ())):
            differences += _differences(text, raw, printed, names)
    label = f"{workload.name}: {name}"
    count = sum(map(len, raws.values()))
    if count or differences:
        verdict.equal(f"{label}: unlike the record", _first(differences), _NONE)
    if names:
        # Only the kernel knows the name of an address, but it has one name for each.
        unclear = [
            f"{key}: {', '.join(map(str, sorted(others, key=str)))}"
            for pairs in (names, {(address, name) for name, address in names})
            for key, others in _grouped(pairs).items()
            if len(others) > 1
        ]
        verdict.equal(f"{label}: ambiguous names", _first(unclear), _NONE)
    return count


def _grouped(
    pairs: Iterable[tuple[int | str, int | str]],
) -> dict[int | str, set[int | str]]:
    groups: dict[int | str, set[int | str]] = defaultdict(set)
    for key, value in pairs:
        groups[key].add(value)
    return groups


def by_cpu(events: Iterable[Event]) -> dict[int, list[Event]]:
    """``events`` in their order, by CPU."""
    groups: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        groups[event.cpu].append(event)
    return groups


def printed_values(
    workload: WorkloadResult, event: Event
) -> tuple[int | str, ...] | None:
    """What the kernel's text of ``event`` prints, as decoders' output is compared; None
    if it is not as its print fmt has it."""
    (layout, *_) = (
        layout for layout in workload.layouts.values() if layout.name == event.name
    )
    return compile_fmt(layout.print_fmt).read(event.text)


def _differences(
    text: Event | None,
    raw: Event | None,
    printed: Printed,
    names: set[tuple[int | str, int | str]],
) -> Iterator[str]:
    """The differences of ``text`` from ``raw``; adds the names of functions to
    ``names``."""
    if text is None or raw is None:
        yield f"text without a record: {text}" if text else f"no text for {raw}"
        return
    values = printed.read(text.text)
    # Text has microseconds, rounded.
    if values is None or abs(text.ts_ns - raw.ts_ns) > 1000 or text.pid != raw.pid:
        yield f"{text.text!r} at {text.ts_ns} for a record of {raw.ts_ns}"
        return
    for value, printed_value in zip(printed.values, values, strict=True):
        try:
            recorded_value = value.of(raw.fields)
        except Unknown as error:
            yield f"cannot be evaluated: {error}"
            continue
        if value.function:
            names.add((printed_value, recorded_value))
        elif printed_value != recorded_value:
            yield (
                f"{value.argument}: printed {printed_value!r}, "
                f"recorded {recorded_value!r}"
            )


def _decoded(
    series: Series, saved: Evidence, file: str, pattern: re.Pattern[str]
) -> Verdict:
    """Raises `Incomplete` if perf could not get all, and nothing else fails."""
    verdict = Verdict()
    short: list[Incomplete] = []
    for point in _events(series):
        printed = compile_fmt(saved.layout(point.event).print_fmt)
        total = 0
        before = len(short)
        for load in series.spec.workload:
            if not load.decode or point.event not in load.events:
                continue
            workload = saved.workload(load.name)
            # trace-cmd prints the event's name without its system.
            lines = [
                line
                for line in _lines(workload.decoded(file), pattern)
                if line.event.rpartition(":")[2] == point.name
                and line.event in (point.event, point.name)
            ]
            # trace-cmd reads the pages of ftrace, which is complete.
            skipped = (workload.skipped or {}) if file == decoders.PERF else {}
            with verdict.about(load.name):
                try:
                    total += _compare_decoded(
                        verdict,
                        workload,
                        point.name,
                        printed,
                        lines,
                        skipped.get(point.name, 0),
                    )
                except Incomplete as error:
                    short.append(error)
        if len(short) == before:
            verdict.at_least(f"{point.name}: decoded", total, 1, "records")
    if short and all(comparison.ok for comparison in verdict.comparisons):
        raise short[0]
    return verdict


def _compare_decoded(
    verdict: Verdict,
    workload: WorkloadResult,
    name: str,
    printed: Printed,
    lines: Sequence[_Line],
    skipped: int,
) -> int:
    """Compare ``lines`` with ftrace's text; returns how many were read.

    An event that fires while its CPU runs a BPF program goes neither to the programs
    attached to it nor to perf: raises `Incomplete` if no more are missing than the
    ``skipped`` ones that bpftrace's recorder did not get, and nothing else fails.
    """
    label = f"{workload.name}: {name}"
    expected = Counter(printed.read(event.text) for event in workload.events(name))
    if not expected and not lines:
        return 0
    names = _names(workload, name, printed)
    decoded: Counter[_Values | None] = Counter()
    outside: Counter[_Values | None] = Counter()
    undecoded = []
    for line in lines:
        values = printed.read(line.body)
        if values is None:
            undecoded.append(line.body)
            continue
        inside = _while_running(workload, line.ts_ns)
        values = tuple(names.get(value, value) for value in values)
        (decoded if inside else outside)[values] += 1
    verdict.equal(f"{label}: not decoded", _first(undecoded), _NONE)
    # perf records a little longer, so it may have seen events from before and after.
    missing = expected - decoded - outside
    surplus = decoded - expected
    if 0 < missing.total() <= skipped and not undecoded and not surplus:
        raise Incomplete(
            f"workload {workload.name}: perf missed some {name}, of which the kernel "
            f"withheld {skipped} from bpftrace's recorder"
        )
    verdict.equal(f"{label}: missing", _first(map(str, missing.elements())), _NONE)
    verdict.equal(
        f"{label}: not in ftrace", _first(map(str, surplus.elements())), _NONE
    )
    return decoded.total()


def _names(
    workload: WorkloadResult, name: str, printed: Printed
) -> dict[int | str, int | str]:
    """The names of the functions that the kernel prints, by address as in text.

    perf looks symbols up when it starts, so for a function of a module that was loaded
    later it prints the address that the record holds.
    """
    texts, raws = by_cpu(workload.events(name)), by_cpu(workload.raw(name))
    names: set[tuple[int | str, int | str]] = set()
    for cpu in sorted({*texts, *raws}):
        for text, raw in zip_longest(texts.get(cpu, ()), raws.get(cpu, ())):
            for _ in _differences(text, raw, printed, names):
                pass
    return {
        f"{address:#x}": symbol for symbol, address in names if isinstance(address, int)
    }


def _while_running(workload: WorkloadResult, ts_ns: int) -> bool:
    """Whether the workload's program ran at ``ts_ns``."""
    return bool(workload.facts["began_ns"] <= ts_ns <= workload.facts["ended_ns"])


def _lines(text: str, pattern: re.Pattern[str]) -> Iterator[_Line]:
    for line in text.splitlines():
        if match := pattern.fullmatch(line.strip()):
            yield _Line(
                int(match["s"]) * 1_000_000_000 + int(match["ns"]),
                match["event"],
                match["body"],
            )


def _first(problems: Iterable[str]) -> str:
    """The first of ``problems``, and how many more there are."""
    lines = list(problems)
    if not lines:
        return _NONE
    return lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")
