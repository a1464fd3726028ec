# SPDX-License-Identifier: GPL-2.0-or-later
"""Trace excerpts in texts: mails show the lines of the run that they quote.

A line without a time, as in a cover letter, is replaced by the most similar record.
Consecutive lines with times are an excerpt, which is replaced by as many lines of one
workload, in that order.  A line that is too wide for a mail is wrapped with an indent.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..evidence import Event, Evidence, WorkloadResult
from ..lint import patchtext
from ..series import Series, Tracepoint

_TRACED = re.compile(
    r"\s*(?P<task>\S.{0,15}-\d+) +(?P<cpu>\[\d+\]) (?P<flags>\S+) +"
    r"(?P<time>\d+\.\d{6}): (?P<name>\w+): (?P<body>.*)"
)
_SHOWN = re.compile(
    r"(?P<indent> +)(?:(?P<head>\S.*-\d+ .*?\d+\.\d{6}): +)?(?P<name>\w+):"
    r"(?: +(?P<body>.*))?"
)
_PAIR = re.compile(r"([\w.]+)[=:] ?([^\s,]+)")
_WORDS = re.compile(r"([\w.]+) ([^\s,]+)")
#: Where a field of a record of ``key=value`` begins.
_FIELD = re.compile(r" (?=[\w.]+=)")
_HANG = 4


@dataclass(frozen=True)
class Line:
    """A record; ``head`` is its task, CPU, flags and time, or empty."""

    head: str
    name: str
    body: str

    @property
    def record(self) -> str:
        """As ftrace prints it, without ``head``."""
        return f"{self.name}: {self.body}"

    @property
    def features(self) -> frozenset[tuple[str, str]]:
        """What similar lines have in common: fields, and the task's name."""
        find = _PAIR if _PAIR.search(self.body) else _WORDS
        task = re.sub(r"\d+", "", self.head.partition("-")[0])
        return frozenset((*find.findall(self.body), ("task", task)))

    def text(self, indent: str) -> str:
        """For a mail: later lines hang, and no word is broken."""
        line = f"{self.head}: {self.record}" if self.head else self.record
        return textwrap.fill(
            line,
            patchtext.WIDTH,
            initial_indent=indent,
            subsequent_indent=indent + " " * _HANG,
            break_long_words=False,
            break_on_hyphens=False,
        )


@dataclass(frozen=True)
class RunTrace:
    """All lines of a run, by workload, in their order."""

    workloads: tuple[tuple[Line, ...], ...]

    def records(self) -> dict[str, tuple[Line, ...]]:
        """The distinct records by event, without heads."""
        records: dict[str, dict[Line, None]] = {}
        for lines in self.workloads:
            for line in lines:
                bare = Line("", line.name, line.body)
                records.setdefault(line.name, {})[bare] = None
        return {name: tuple(lines) for name, lines in records.items()}


def trace(results: Evidence, series: Series) -> RunTrace:
    """The output of ftrace, and that of bpftrace for bare tracepoints."""
    return RunTrace(
        tuple(tuple(_lines(load, series)) for load in results.workloads.values())
    )


def _lines(load: WorkloadResult, series: Series) -> list[Line]:
    timed: list[tuple[float, Line]] = []
    path = load.dir / "trace.txt"
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if match := _TRACED.match(line.rstrip("\n")):
                    head = " ".join(match.group("task", "cpu", "flags", "time"))
                    traced = Line(head, match["name"], match["body"])
                    timed.append((float(match["time"]), traced))
    if (load.dir / "record.jsonl").exists():
        for point in series.spec.tracepoint:
            if point.kind == "bare":
                for event in load.record(point.name, partly=True):
                    timed.append((event.ts_ns / 1e9, _bare(event, point)))
    timed.sort(key=lambda pair: pair[0])
    return [line for _, line in timed]


def _bare(event: Event, point: Tracepoint) -> Line:
    """A line for an event without a print format; pointers are in hex."""
    pairs = (
        f"{key}={value:#x}"
        if point.fields.get(key, "").endswith("*") and isinstance(value, int)
        else f"{key}={value}"
        for key, value in event.fields.items()
    )
    time = f"{event.ts_ns / 1e9:.6f}"
    head = f"{event.comm}-{event.pid} [{event.cpu:03}] {time}"
    return Line(head, point.symbol, " ".join(pairs))


@dataclass(frozen=True)
class _Sample:
    """Lines ``first`` to ``last`` (excluded) of a text, which show ``line``."""

    first: int
    last: int
    indent: str
    line: Line


def _samples(lines: Sequence[str], names: Iterable[str]) -> Iterator[_Sample]:
    """The trace lines among ``lines``: those with a time, or the name of an event."""
    events = frozenset(names)
    position = 0
    while position < len(lines):
        match = _SHOWN.fullmatch(lines[position])
        first, position = position, position + 1
        if match is None or not (match["head"] or match["name"] in events):
            continue
        body = [match["body"] or ""]
        while position < len(lines) and lines[position].startswith(
            match["indent"] + " "
        ):
            body.append(lines[position].strip())
            position += 1
        head = " ".join((match["head"] or "").split())
        line = Line(head, match["name"], " ".join(filter(None, body)))
        yield _Sample(first, position, match["indent"], line)


@dataclass(frozen=True)
class Replaced:
    """A text with a run's records; ``shown`` are the events that it shows.

    ``strange`` are its trace lines for which the run has no similar line.
    """

    text: str
    shown: frozenset[str]
    strange: tuple[str, ...]


def replaced(text: str, run: RunTrace) -> Replaced:
    """``text`` with its trace lines replaced by those of ``run``."""
    lines = text.splitlines()
    records = run.records()
    samples = list(_samples(lines, records))
    output: list[str] = []
    shown, strange = set(), []
    position = 0
    for block in _blocks(samples):
        output += lines[position : block[0].first]
        position = block[-1].last
        shown_lines = [sample.line for sample in block]
        replacement = (
            _excerpt(shown_lines, run)
            if shown_lines[0].head
            else _record(shown_lines[0], records)
        )
        if replacement is None:
            output += lines[block[0].first : position]
            strange += [line.record for line in shown_lines]
            continue
        shown |= {line.name for line in replacement}
        output += [line.text(block[0].indent) for line in replacement]
    output += lines[position:]
    return Replaced("\n".join(output) + "\n", frozenset(shown), tuple(strange))


def _blocks(samples: Sequence[_Sample]) -> Iterator[list[_Sample]]:
    """``samples`` in groups of consecutive lines with times; others are alone."""
    block: list[_Sample] = []
    for sample in samples:
        goes_on = block and sample.first == block[-1].last
        if goes_on and sample.line.head and block[-1].line.head:
            block.append(sample)
            continue
        if block:
            yield block
        block = [sample]
    if block:
        yield block


def _record(
    sample: Line, records: Mapping[str, Sequence[Line]]
) -> tuple[Line, ...] | None:
    features = sample.features
    return (max(records[sample.name], key=lambda line: len(features & line.features)),)


def _excerpt(samples: Sequence[Line], run: RunTrace) -> tuple[Line, ...] | None:
    """The most similar lines of any workload; None if no workload has such lines."""
    best = None
    for lines in run.workloads:
        match = _best_match(samples, lines)
        if match is not None and (best is None or match[0] > best[0]):
            best = match
    if best is None:
        return None
    return tuple(
        _trimmed(line, sample) for line, sample in zip(best[1], samples, strict=True)
    )


def _best_match(
    samples: Sequence[Line], lines: Sequence[Line]
) -> tuple[int, tuple[Line, ...]] | None:
    """The lines, in order, that are most similar to ``samples``, and their score.

    Of equally similar ones, those that are closest together.
    """
    features = [sample.features for sample in samples]
    # For each prefix of ``samples``: score, number of the first line, lines.
    best: list[tuple[int, int, tuple[Line, ...]] | None] = [(0, 0, ())]
    best += [None] * len(samples)
    complete: tuple[tuple[int, int], tuple[Line, ...]] | None = None
    names = {sample.name for sample in samples}
    for number, line in enumerate(lines):
        if line.name not in names:
            continue
        line_features = line.features
        for length in range(len(samples), 0, -1):
            before = best[length - 1]
            if before is None or line.name != samples[length - 1].name:
                continue
            score = before[0] + len(line_features & features[length - 1])
            first = number if length == 1 else before[1]
            chain = (*before[2], line)
            current = best[length]
            if current is None or (score, first) > current[:2]:
                best[length] = (score, first, chain)
            if length == len(samples):
                quality = (score, first - number)
                if complete is None or quality > complete[0]:
                    complete = (quality, chain)
    return None if complete is None else (complete[0][0], complete[1])


def _trimmed(line: Line, sample: Line) -> Line:
    """``line`` without the fields that ``sample`` leaves out."""
    keys = {part.partition("=")[0] for part in _FIELD.split(f" {sample.body}")}
    parts = [
        part
        for part in _FIELD.split(f" {line.body}")
        if "=" not in part or part.partition("=")[0] in keys
    ]
    return Line(line.head, line.name, " ".join(parts).strip())
