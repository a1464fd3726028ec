# SPDX-License-Identifier: GPL-2.0-or-later
"""The record by which a check of two readers fails, found from what it compared.

Comparisons of such checks say by its values which record they are about.  Those of a
series' own checks carry the record, if they were given it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..evidence import Event, WorkloadResult, readers
from ..verdict import Comparison, described

# A value of a member, and not of an expression, as `text_is_the_record` reports it.
_UNLIKE = re.compile(
    r"REC->(?P<member>\w+): printed (?P<text>.*), recorded (?P<raw>.*?)"
    r"(?: \(and \d+ more\))?"
)
_MORE = re.compile(r" \(and \d+ more\)$")


@dataclass(frozen=True)
class DifferingRecord:
    """What readers have of a record; ``file``, of the workload, has the record."""

    file: str
    lines: list[str]


def first(
    check: str, workload: WorkloadResult, name: str, wrong: Comparison
) -> DifferingRecord | None:
    """The first record of ``name`` in ``workload`` because of which the comparison
    ``wrong`` of ``check``, one of `CHECKS`, does not hold.

    None if it cannot be told.  Raises `KstallError` if results are missing or broken.
    """
    return _LOOKS[check](workload, name, wrong)


def _line(reader: str, event: Event) -> str:
    return f"{reader}, {described(event)}"


def _only_one_has(
    workload: WorkloadResult, name: str, wrong: Comparison
) -> DifferingRecord | None:
    """The first record that only one of ftrace and bpftrace has."""
    agreement = workload.agreement(name)
    lines, events_of = [], []
    for reader, events, exclusive in (
        ("ftrace", workload.events(name), agreement.traced - agreement.recorded),
        (
            "bpftrace",
            workload.record(name, partly=True),
            agreement.recorded - agreement.traced,
        ),
    ):
        for event in events:
            if agreement.key(event) in exclusive:
                lines.append(_line(f"only {reader} has", event))
                events_of.append(event.fields)
                break
    if len(events_of) == 2:
        traced, recorded = events_of
        unlike = [
            f"{key}: {traced[key]} and {recorded[key]}"
            for key in sorted(agreement.common - agreement.named)
            if traced[key] != recorded[key]
        ]
        lines.append(f"they differ in {', '.join(unlike)}")
    return DifferingRecord("record.jsonl", lines) if lines else None


def _text_is_unlike(
    workload: WorkloadResult, name: str, wrong: Comparison
) -> DifferingRecord | None:
    """The first text with the value that was printed, of a record with the other."""
    unlike = _UNLIKE.fullmatch(str(wrong.observed))
    if unlike is None:
        # What is observed then has the text, and its time.
        return None
    texts = readers.by_cpu(workload.events(name))
    raws = readers.by_cpu(workload.raw(name))
    for cpu in sorted(texts):
        for text, raw in zip(texts[cpu], raws.get(cpu, ()), strict=False):
            values = [event.fields.get(unlike["member"]) for event in (text, raw)]
            if list(map(repr, values)) == [unlike["text"], unlike["raw"]]:
                lines = [_line("ftrace prints", text), _line("the record has", raw)]
                return DifferingRecord("trace.txt", lines)
    return None


def _decoded_is_unlike(file: str) -> Callable[..., DifferingRecord | None]:
    """What looks for the first record that a decoder left out of ``file``, or for the
    line there that is none."""

    def look(
        workload: WorkloadResult, name: str, wrong: Comparison
    ) -> DifferingRecord | None:
        subject = _MORE.sub("", str(wrong.observed))
        if wrong.label.endswith(": not decoded"):
            for line in workload.decoded(file).splitlines():
                if line.strip().endswith(subject):
                    return DifferingRecord(file, [line.strip()])
        elif wrong.label.endswith(": missing"):
            for event in workload.events(name):
                if str(readers.printed_values(workload, event)) == subject:
                    lines = [_line("only ftrace has", event)]
                    return DifferingRecord("trace.txt", lines)
        return None

    return look


_LOOKS: dict[
    str, Callable[[WorkloadResult, str, Comparison], DifferingRecord | None]
] = {
    "readers_agree": _only_one_has,
    "text_is_the_record": _text_is_unlike,
    "decoded_by_perf": _decoded_is_unlike("perf.txt"),
    "decoded_by_trace_cmd": _decoded_is_unlike("trace-cmd.txt"),
}
#: The checks of which the comparisons say which record they are about.
CHECKS = frozenset(_LOOKS)
