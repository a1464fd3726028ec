# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks that hold for every series, whatever it traces."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator

from kstall_guest import errors

from ..series import Series
from ..verdict import Check, Verdict, claim_of
from . import readers
from .evidence import Evidence, WorkloadResult, judge_check

_Check = Callable[[Series, Evidence], Verdict]


def judge(series: Series, saved: Evidence) -> tuple[Check, ...]:
    """All common checks, in the order in which a reader would ask.

    For a series that adds no tracepoint, only the checks of its workloads and of the
    events that these record.
    """
    return tuple(
        judge_check(
            function.__name__,
            "harness",
            claim_of(function),
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
        # A discovered series does not declare what its records hold or what fires them.
        unknown = fixes or series.spec.discovered
        if unknown and check in (record_layout, events_fire):
            continue
        if unknown and check is nothing_lost and not watched:
            continue
        if check is readers_agree and not (twice or (formatted and not unknown)):
            continue
        # Without a record and a print fmt there is nothing to read.
        if check is record_layout and not formatted:
            continue
        if check in _READERS and (series.spec.discovered or not formatted):
            continue
        yield check


def booted_kernel(series: Series, saved: Evidence) -> Verdict:
    """Every declared workload ran to its end, watched, on the kernel that was built."""
    verdict = Verdict()
    verdict.equal("agent", saved.agent.get("status"), "completed")
    for load in series.spec.workload:
        workload = saved.workload(load.name)
        unknown = [error for error in workload.errors if not workload.is_known(error)]
        with verdict.about(load.name):
            status = str(workload.facts.get("status"))
            if unknown:
                status += f": {unknown[0].get('message')}"
            elif workload.errors and workload.exit_status is not None:
                # ftrace has the events that the recorder missed.
                status = "exited"
            verdict.equal(f"{load.name}", status, "exited")
            verdict.equal(f"{load.name}: exit status", workload.exit_status, 0)
        for error in unknown:
            if errors.fault_of(error) == "series":
                with verdict.about(load.name, firm=True):
                    label = f"{load.name}: {error.get('kind')}"
                    verdict.equal(label, error.get("message"), "none")
    return verdict


def record_layout(series: Series, saved: Evidence) -> Verdict:
    """Each new record has the declared fields, in order, and no hole."""
    verdict = Verdict()
    for point in series.spec.tracepoint:
        if point.kind == "bare":
            continue
        layout = saved.layout(point.event)
        fields = [(field.name, _plain(field.ctype)) for field in layout.fields]
        expected = [(name, _plain(kind)) for name, kind in point.fields.items()]
        verdict.equal(f"{point.name}: fields", _shown(fields), _shown(expected))
        holes = [f"{hole.size} bytes before {hole.before}" for hole in layout.holes()]
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
                workload = saved.workload(load.name)
                count += len(workload.record(point.name, partly=True))
        verdict.at_least(f"{point.name}", count, 1, "events")
    return verdict


def nothing_lost(series: Series, saved: Evidence) -> Verdict:
    """No reader lost an event, or it is known which, so that counts are exact."""
    verdict = Verdict()
    for load in series.spec.workload:
        workload = saved.workload(load.name)
        facts = workload.facts
        with verdict.about(load.name):
            if load.events:
                verdict.equal(
                    f"{load.name}: ftrace", (facts.get("trace") or {}).get("lost"), 0
                )
            for name in [
                *(file.removesuffix(".bt") for file in load.scripts),
                "record",
            ]:
                if name != "record" or load.record:
                    lost = workload.bpftrace(name).lost
                    verdict.equal(f"{load.name}: bpftrace {name}", lost, 0)
                    # Events that fired while their CPU ran another BPF program.
                    missed = facts.get("tracers", {}).get(name, {}).get("missed", 0)
                    skipped = (
                        sum((workload.skipped or {}).values())
                        if name == "record"
                        else 0
                    )
                    label = f"{load.name}: bpftrace {name}: missed"
                    label += ", and recorded by ftrace" if skipped else ""
                    verdict.equal(label, missed, skipped)
    return verdict


def readers_agree(series: Series, saved: Evidence) -> Verdict:
    """ftrace's text and the raw record read through BPF hold the same values."""
    verdict = Verdict()
    compared: Counter[str] = Counter()
    for load in series.spec.workload:
        for event in sorted(set(load.events) & set(load.record)):
            with verdict.about(load.name):
                compared[event] += _compare_readers(
                    verdict, saved.workload(load.name), event
                )
    for point in series.spec.tracepoint:
        if point.kind != "bare" and not series.spec.discovered:
            verdict.at_least(f"{point.name}: both", compared[point.event], 1, "records")
    return verdict


def _compare_readers(verdict: Verdict, workload: WorkloadResult, event: str) -> int:
    """Compare ftrace's records of one event with bpftrace's; returns how many the
    latter are.

    Records that the recorder is known to have skipped are only in ftrace's, and those
    from before or after the workload may be only in the recorder's: all others have to
    be the same.
    """
    name = event.partition(":")[2]
    agreement = workload.agreement(name)
    traced, recorded = workload.events(name), agreement.inside
    skipped = (workload.skipped or {}).get(name, 0)
    remark = f", and {skipped} that it skipped" if skipped else ""
    if agreement.outside:
        remark += f", without {agreement.outside} from before or after"
    label = f"{workload.name}: {name}"
    verdict.equal(f"{label}: records{remark}", len(recorded) + skipped, len(traced))
    if traced and recorded:
        verdict.true(f"{label}: a field in both", bool(agreement.common))
    differing = (agreement.recorded - agreement.traced).total()
    if not skipped:
        differing = max(differing, (agreement.traced - agreement.recorded).total())
    verdict.equal(f"{label}: differing", differing, 0)
    # The counts of each name, or its number, must still agree.
    for key in sorted(agreement.named):
        left, right = (
            sorted(
                Counter(record.fields[key] for record in side).values(), reverse=True
            )
            for side in (traced, recorded)
        )
        if skipped and len(right) <= len(left):
            # Skipped records may be missing from any of the counts.
            padded = right + [0] * (len(left) - len(right))
            if all(a >= b for a, b in zip(left, padded, strict=True)):
                right = left
        verdict.equal(f"{label}: {key}", right, left)
    return len(recorded)


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
    """A C type in a spelling that series.toml and tracefs have in common."""
    return re.sub(r"\s+", " ", ctype.replace("__data_loc ", "")).strip()


def _shown(fields: list[tuple[str, str]]) -> str:
    return ", ".join(f"{kind} {name}" for name, kind in fields)
