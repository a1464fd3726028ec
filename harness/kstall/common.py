# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that hold for every series, whatever it traces."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator

from . import readers
from .evidence import CheckResult, Evidence, Verdict, run_check
from .series import Series

_Check = Callable[[Series, Evidence], Verdict]


def judge(series: Series, saved: Evidence) -> tuple[CheckResult, ...]:
    """All common checks, in the order in which a reader would ask.

    Of a series that adds no tracepoint, only those that are about its workloads, and
    about events that these record.
    """
    return tuple(
        run_check(
            function.__name__,
            "harness",
            (function.__doc__ or "").strip(),
            functools.partial(function, series),
            saved,
        )
        for function in _checks_for(series)
    )


def _checks_for(series: Series) -> Iterator[_Check]:
    """`_CHECKS` without those that would have nothing to compare."""
    loads = series.spec.workload
    fixes = not series.spec.tracepoint
    watched = any(load.events or load.record or load.scripts for load in loads)
    twice = any(set(load.events) & set(load.record) for load in loads)
    formatted = any(point.kind != "bare" for point in series.spec.tracepoint)
    for check in _CHECKS:
        # Of a discovered series nobody knows what should be in a record, or fire it.
        unknown = fixes or series.spec.discovered
        if unknown and check in (record_layout, events_fire):
            continue
        if unknown and check is nothing_lost and not watched:
            continue
        if unknown and check is readers_agree and not twice:
            continue
        # Without a record and a print fmt there is nothing to read.
        if check in _READERS and (series.spec.discovered or not formatted):
            continue
        yield check


def booted_kernel(series: Series, saved: Evidence) -> Verdict:
    """Every declared workload ran to its end, watched, on the kernel that was built."""
    verdict = Verdict()
    verdict.equal("agent", saved.agent.get("status"), "completed")
    for load in series.spec.workload:
        facts = saved.workload(load.name).facts
        problem = (facts.get("error") or {}).get("message")
        seen = f"{facts.get('status')}" + (f": {problem}" if problem else "")
        verdict.equal(f"{load.name}", seen, "exited")
        verdict.equal(f"{load.name}: exit status", facts.get("exit_status"), 0)
    return verdict


def record_layout(series: Series, saved: Evidence) -> Verdict:
    """Each new record has the declared fields, in order, and no hole."""
    verdict = Verdict()
    for point in series.spec.tracepoint:
        if point.kind == "bare":
            continue
        layout = saved.layout(point.event)
        found = [(field.name, _plain(field.ctype)) for field in layout.fields]
        wanted = [(name, _plain(kind)) for name, kind in point.fields.items()]
        verdict.equal(f"{point.name}: fields", _shown(found), _shown(wanted))
        holes = [f"{h.size} bytes before {h.before}" for h in layout.holes()]
        verdict.equal(f"{point.name}: holes", ", ".join(holes) or "none", "none")
    return verdict


def events_fire(series: Series, saved: Evidence) -> Verdict:
    """Each new event fired for real in at least one workload."""
    verdict = Verdict()
    for point in series.spec.tracepoint:
        count = 0
        for load in series.spec.workload:
            if point.event in load.events:
                count += len(saved.workload(load.name).events(point.name))
            elif point.kind == "bare" and point.event in load.record:
                count += len(saved.workload(load.name).record(point.name))
        verdict.at_least(f"{point.name}", count, 1, "events")
    return verdict


def nothing_lost(series: Series, saved: Evidence) -> Verdict:
    """No reader lost an event, so that counts are counts."""
    verdict = Verdict()
    for load in series.spec.workload:
        facts = saved.workload(load.name).facts
        if load.events:
            verdict.equal(
                f"{load.name}: ftrace", (facts.get("trace") or {}).get("lost"), 0
            )
        for name in [*(file.removesuffix(".bt") for file in load.scripts), "record"]:
            if name != "record" or load.record:
                lost = saved.workload(load.name).bpftrace(name).lost
                verdict.equal(f"{load.name}: bpftrace {name}", lost, 0)
                # Those that fired while their CPU ran another BPF program.
                missed = facts.get("tracers", {}).get(name, {}).get("missed", 0)
                verdict.equal(f"{load.name}: bpftrace {name}: missed", missed, 0)
    return verdict


def readers_agree(series: Series, saved: Evidence) -> Verdict:
    """ftrace's text and the raw record read through BPF hold the same values."""
    verdict = Verdict()
    compared: Counter[str] = Counter()
    for load in series.spec.workload:
        for event in sorted(set(load.events) & set(load.record)):
            name = event.partition(":")[2]
            one = [dict(e.fields) for e in saved.workload(load.name).events(name)]
            two = [dict(e.fields) for e in saved.workload(load.name).record(name)]
            verdict.equal(f"{load.name}: {name}: records", len(two), len(one))
            compared[event] += len(two)
            common = set(one[0]) & set(two[0]) if one and two else set()
            if one and two:
                verdict.true(f"{load.name}: {name}: both tell a field", bool(common))
            # ftrace prints an enum or a function by name; how often must still agree.
            named = {
                key
                for key in common
                if isinstance(one[0][key], str) and isinstance(two[0][key], int)
            }
            keys = sorted(common - named)
            # Events of two CPUs within one microsecond may stand in either order.
            left = sorted(str([record[key] for key in keys]) for record in one)
            right = sorted(str([record[key] for key in keys]) for record in two)
            differing = sum(a != b for a, b in zip(left, right, strict=False))
            verdict.equal(f"{load.name}: {name}: differing", differing, 0)
            for key in sorted(named):
                counts = [
                    sorted(Counter(record[key] for record in side).values())
                    for side in (one, two)
                ]
                verdict.equal(f"{load.name}: {name}: {key}", counts[1], counts[0])
    for point in series.spec.tracepoint:
        if point.kind != "bare" and not series.spec.discovered:
            verdict.at_least(f"{point.name}: both", compared[point.event], 1, "records")
    return verdict


_READERS: tuple[_Check, ...] = (
    readers.text_is_the_record,
    readers.listed_by_perf,
    readers.decoded_by_perf,
    readers.decoded_by_trace_cmd,
)
_CHECKS: tuple[_Check, ...] = (
    booted_kernel,
    record_layout,
    events_fire,
    nothing_lost,
    readers_agree,
    *_READERS,
)


def _plain(ctype: str) -> str:
    """A C type as series.toml and tracefs both may spell it."""
    return re.sub(r"\s+", " ", ctype.replace("__data_loc ", "")).strip()


def _shown(fields: list[tuple[str, str]]) -> str:
    return ", ".join(f"{kind} {name}" for name, kind in fields)
