# SPDX-License-Identifier: GPL-2.0-or-later
"""Lines of a trace that a text shows: what is sent has those of the run that it quotes.

A line without a time, as in a cover letter, gets the record that is most like it.
Consecutive lines with times are an excerpt: they get as many lines of one workload, in
that order.  A line that is too wide for a mail goes on below, further in.
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
    """A record, and who emitted it when: ``head`` is empty where that is not told."""

    head: str
    name: str
    body: str

    @property
    def record(self) -> str:
        """As ftrace prints it, without who and when."""
        return f"{self.name}: {self.body}"

    @property
    def features(self) -> frozenset[tuple[str, str]]:
        """What it has in common with lines like it: fields, and the task's name."""
        find = _PAIR if _PAIR.search(self.body) else _WORDS
        task = re.sub(r"\d+", "", self.head.partition("-")[0])
        return frozenset((*find.findall(self.body), ("task", task)))

    def text(self, indent: str) -> str:
        """For a mail: later lines hang, and no word is broken."""
        whole = f"{self.head}: {self.record}" if self.head else self.record
        return textwrap.fill(
            whole,
            patchtext.WIDTH,
            initial_indent=indent,
            subsequent_indent=indent + " " * _HANG,
            break_long_words=False,
            break_on_hyphens=False,
        )


def name_of(point: Tracepoint) -> str:
    """What programs attach to: a bare tracepoint has a suffix in the kernel."""
    return f"{point.name}_tp" if point.kind == "bare" else point.name


@dataclass(frozen=True)
class Trace:
    """All lines of a run: those of each workload, in their order."""

    workloads: tuple[tuple[Line, ...], ...]

    def records(self) -> dict[str, tuple[Line, ...]]:
        """By event, each that differs, without who and when."""
        found: dict[str, dict[Line, None]] = {}
        for lines in self.workloads:
            for line in lines:
                bare = Line("", line.name, line.body)
                found.setdefault(line.name, {})[bare] = None
        return {name: tuple(lines) for name, lines in found.items()}


def trace(results: Evidence, series: Series) -> Trace:
    """What ftrace printed, and of bare tracepoints what bpftrace read."""
    return Trace(
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
                    made = Line(head, match["name"], match["body"])
                    timed.append((float(match["time"]), made))
    if (load.dir / "record.jsonl").exists():
        for point in series.spec.tracepoint:
            if point.kind == "bare":
                for event in load.record(point.name, partly=True):
                    timed.append((event.ts_ns / 1e9, _bare(event, point)))
    timed.sort(key=lambda one: one[0])
    return [line for _, line in timed]


def _bare(event: Event, point: Tracepoint) -> Line:
    """A line for what has no text of its own; pointers are as hex."""
    pairs = (
        f"{key}={value:#x}"
        if point.fields.get(key, "").endswith("*") and isinstance(value, int)
        else f"{key}={value}"
        for key, value in event.fields.items()
    )
    time = f"{event.ts_ns / 1e9:.6f}"
    head = f"{event.comm}-{event.pid} [{event.cpu:03}] {time}"
    return Line(head, name_of(point), " ".join(pairs))


@dataclass(frozen=True)
class _Sample:
    """Lines ``first`` to ``last`` (excluded) of a text, which show ``line``."""

    first: int
    last: int
    indent: str
    line: Line


def _samples(lines: Sequence[str], names: Iterable[str]) -> Iterator[_Sample]:
    """What is a line of a trace: it has a time, or the name of an event."""
    known = frozenset(names)
    at = 0
    while at < len(lines):
        match = _SHOWN.fullmatch(lines[at])
        first, at = at, at + 1
        if match is None or not (match["head"] or match["name"] in known):
            continue
        body = [match["body"] or ""]
        while at < len(lines) and lines[at].startswith(match["indent"] + " "):
            body.append(lines[at].strip())
            at += 1
        head = " ".join((match["head"] or "").split())
        line = Line(head, match["name"], " ".join(filter(None, body)))
        yield _Sample(first, at, match["indent"], line)


@dataclass(frozen=True)
class Replaced:
    """A text with a run's records; ``shown`` are the events that it shows.

    ``strange`` are its lines of a trace of which the run has none like.
    """

    text: str
    shown: frozenset[str]
    strange: tuple[str, ...]


def replaced(text: str, run: Trace) -> Replaced:
    """``text`` with records of ``run`` in the place of those that it shows."""
    lines = text.splitlines()
    records = run.records()
    found = list(_samples(lines, records))
    made: list[str] = []
    shown, strange = set(), []
    at = 0
    for block in _blocks(found):
        made += lines[at : block[0].first]
        at = block[-1].last
        wanted = [one.line for one in block]
        got = _excerpt(wanted, run) if wanted[0].head else _record(wanted[0], records)
        if got is None:
            made += lines[block[0].first : at]
            strange += [line.record for line in wanted]
            continue
        shown |= {line.name for line in got}
        made += [one.text(block[0].indent) for one in got]
    made += lines[at:]
    return Replaced("\n".join(made) + "\n", frozenset(shown), tuple(strange))


def _blocks(found: Sequence[_Sample]) -> Iterator[list[_Sample]]:
    """Lines with times that follow one another belong together."""
    block: list[_Sample] = []
    for one in found:
        goes_on = block and one.first == block[-1].last
        if goes_on and one.line.head and block[-1].line.head:
            block.append(one)
            continue
        if block:
            yield block
        block = [one]
    if block:
        yield block


def _record(
    wanted: Line, records: Mapping[str, Sequence[Line]]
) -> tuple[Line, ...] | None:
    features = wanted.features
    return (max(records[wanted.name], key=lambda line: len(features & line.features)),)


def _excerpt(wanted: Sequence[Line], run: Trace) -> tuple[Line, ...] | None:
    """Of the workload that has the most alike; None if none has such lines."""
    best = None
    for lines in run.workloads:
        found = _alike(wanted, lines)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None:
        return None
    return tuple(_only(line, one) for line, one in zip(best[1], wanted, strict=True))


def _alike(
    wanted: Sequence[Line], lines: Sequence[Line]
) -> tuple[int, tuple[Line, ...]] | None:
    """The lines, in order, that have most in common with ``wanted``, and how much.

    Of those that are equally like, the ones that lie closest together.
    """
    features = [one.features for one in wanted]
    # For each beginning of ``wanted``: score, number of the first line, lines.
    best: list[tuple[int, int, tuple[Line, ...]] | None] = [(0, 0, ())]
    best += [None] * len(wanted)
    whole: tuple[tuple[int, int], tuple[Line, ...]] | None = None
    names = {one.name for one in wanted}
    for number, line in enumerate(lines):
        if line.name not in names:
            continue
        mine = line.features
        for length in range(len(wanted), 0, -1):
            before = best[length - 1]
            if before is None or line.name != wanted[length - 1].name:
                continue
            score = before[0] + len(mine & features[length - 1])
            first = number if length == 1 else before[1]
            chain = (*before[2], line)
            here = best[length]
            if here is None or (score, first) > here[:2]:
                best[length] = (score, first, chain)
            if length == len(wanted):
                quality = (score, first - number)
                if whole is None or quality > whole[0]:
                    whole = (quality, chain)
    return None if whole is None else (whole[0][0], whole[1])


def _only(line: Line, wanted: Line) -> Line:
    """``line`` without the fields that ``wanted`` leaves out."""
    keys = {part.partition("=")[0] for part in _FIELD.split(f" {wanted.body}")}
    parts = [
        part
        for part in _FIELD.split(f" {line.body}")
        if "=" not in part or part.partition("=")[0] in keys
    ]
    return Line(line.head, line.name, " ".join(parts).strip())
