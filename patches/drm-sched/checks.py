# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the drm-sched series.

What is held against the new events is none of theirs: the times of the older
``_queue``, ``_add_dep``, ``_unschedulable``, ``_run`` and ``_done`` events, which were
there before the patches, and what the kernel's own tests measure and print.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from kstall.evidence import Evidence, Verdict, WorkloadResult
from kstall.records import Event

MS = 1_000_000
SECOND = 1000 * MS
#: What an emulated guest's CPU may be away for between an event and the stamp beside
#: it; the waits that are told apart here are 50 ms and more.
SLACK_NS = 20 * MS
#: ftrace prints microseconds.
ROUNDING_NS = 1000
HOLD_NS = 50 * MS

Fence = tuple[int, int]
_WORKLOADS = ("credits", "split", "deep-queue", "no-shortage")


@dataclass
class Job:
    """One job as the older events tell it; times are ns, None where there is none."""

    fence: Fence
    dev: str
    ring: str
    client: int
    queued: int
    deps: list[Fence] = field(default_factory=list)
    waited_for: set[Fence] = field(default_factory=set)
    run: int | None = None
    done: int | None = None


def second_job_waits_for_credits(ev: Evidence) -> Verdict:
    """KUnit keeps the ring's one credit for HZ ticks, in which the second job waits."""
    v = Verdict()
    load = ev.workload("credits")
    waits = load.record("drm_sched_job_wait")
    v.equal("drm_sched_job_wait events", len(waits), 2)
    if len(waits) != 2:
        return v
    first, second = waits
    jobs = _jobs(load)
    truth = _span(jobs[_fence(second)])
    v.at_least("time from _queue to _run of the second job", truth, SECOND, "ns")
    wait = _int(second, "wait_ns")
    v.within("wait_ns of the second job", wait, 0.99 * SECOND, truth, "ns")
    v.at_most("wait_ns of the first job", _int(first, "wait_ns"), SLACK_NS, "ns")
    for name in ("dep_ns", "deps", "order_deps"):
        v.equal(f"{name} of both", [_int(w, name) for w in waits], [0, 0])
    stalls = load.record("drm_sched_job_no_credits")
    v.at_least("drm_sched_job_no_credits events", len(stalls), 1)
    v.equal("jobs that lacked credits", {_fence(s) for s in stalls}, {_fence(second)})
    for name in ("credits", "credit_count", "credit_limit", "job_count"):
        v.equal(f"{name} of each", {_int(s, name) for s in stalls}, {1})
    return v


def dependency_wait_is_told_apart(ev: Evidence) -> Verdict:
    """Each job of patch 4's cases, held against a model made of the older events."""
    v = Verdict()
    load = ev.workload("split")
    jobs = _jobs(load)
    waits = load.record("drm_sched_job_wait")
    errors = []
    for wait in waits:
        job = jobs[_fence(wait)]
        deps, order, dep_ns = _expected(job, jobs)
        v.equal(f"deps of {_name(job)}", _int(wait, "deps"), deps)
        v.equal(f"order_deps of {_name(job)}", _int(wait, "order_deps"), order)
        error = abs(_int(wait, "dep_ns") - dep_ns)
        v.at_most(f"dep_ns of {_name(job)} is off by", error, SLACK_NS, "ns")
        errors.append(error)
    held = [wait for wait in waits if _int(wait, "dep_ns") >= HOLD_NS]
    # dep, enabled late (of which only the watched job is late), credits then dep,
    # dep then credits, failed dep, and the one that must not be pipelined.
    v.equal("jobs that waited for a dependency", len(held), 6)
    both = [
        wait for wait in held if _int(wait, "wait_ns") - _int(wait, "dep_ns") >= HOLD_NS
    ]
    v.equal("of which the ring was full for longer", len(both), 2)
    unseen = [wait for wait in both if not jobs[_fence(wait)].waited_for]
    v.at_least("of these, not seen by _unschedulable", len(unseen), 1)
    v.at_most("dep_ns is off by, in the median", median(errors), MS, "ns")
    return v


def deep_queue_matches_the_tests_own_clock(ev: Evidence) -> Verdict:
    """The test prints how long 1000 jobs of 1 ms took from the release of the queue."""
    v = Verdict()
    load = ev.workload("deep-queue")
    actual = [
        int(us) * 1000
        for us in re.findall(r"Expected 1000000us, actual (\d+)us", load.kmsg)
    ]
    v.equal("figures printed by the tests", len(actual), 2)
    halves = _by_dev(load.events("drm_sched_job_wait"))
    stalls = _by_dev(load.events("drm_sched_job_no_credits"))
    v.equal("rings", len(halves), 2)
    if len(halves) != 2 or len(actual) != 2:
        return v
    for (dev, waits), truth in zip(halves.items(), actual, strict=True):
        v.equal(f"waits on {dev}", len(waits), 1001)
        last = _int(waits[-1], "wait_ns")
        v.within(f"last wait_ns on {dev}", last, 0.9 * truth, 1.1 * truth, "ns")
        short = {_fence(stall) for stall in stalls.get(dev, ())}
        v.true(
            f"the first job on {dev} never lacked credits",
            _fence(waits[0]) not in short,
        )
        # A worker that comes late can find the credit free already.
        v.at_least(f"jobs on {dev} that lacked credits", len(short), 900)
    return v


def chain_on_one_ring_is_order_only(ev: Evidence) -> Verdict:
    """The second test of the suite makes each job depend on the one before."""
    v = Verdict()
    load = ev.workload("deep-queue")
    halves = list(_by_dev(load.events("drm_sched_job_wait")).values())
    v.equal("rings", len(halves), 2)
    for name, waits, chained in zip(
        ("independent", "chained"), halves, (0, 1), strict=False
    ):
        told = Counter(_int(wait, "order_deps") for wait in waits)
        v.equal(
            f"order_deps of {name} jobs",
            dict(told),
            {0: 1, 1: 1000} if chained else {0: 1001},
        )
        v.equal(f"deps of {name} jobs", sum(_int(w, "deps") for w in waits), 0)
        v.equal(f"dep_ns of {name} jobs", sum(_int(w, "dep_ns") for w in waits), 0)
    added = len(load.events("drm_sched_job_add_dep"))
    v.equal("dependencies that _add_dep saw", added, 1000)
    return v


def no_shortage_no_report(ev: Evidence) -> Verdict:
    """Silence counts only if jobs ran: the older _run event says how many."""
    v = Verdict()
    load = ev.workload("no-shortage")
    waits = load.events("drm_sched_job_wait")
    v.at_least("jobs run", len(load.events("drm_sched_job_run")), 128)
    stalls = load.events("drm_sched_job_no_credits")
    v.equal("drm_sched_job_no_credits events", len(stalls), 0)
    for name in ("dep_ns", "deps", "order_deps"):
        v.equal(f"sum of {name}", sum(_int(wait, name) for wait in waits), 0)
    return v


def one_wait_for_each_run(ev: Evidence) -> Verdict:
    """Fence, ring and client have to be the same as in the event that follows."""
    v = Verdict()
    for name in _WORKLOADS:
        load = ev.workload(name)
        ids: list[Counter[tuple[Fence, str, str, int]]] = []
        for event, ring in (
            ("drm_sched_job_wait", "ring"),
            ("drm_sched_job_run", "name"),
        ):
            ids.append(
                Counter(
                    (
                        _fence(one),
                        str(one.fields["dev"]),
                        str(one.fields[ring]),
                        _int(one, "client_id"),
                    )
                    for one in load.events(event)
                )
            )
        waits, runs = ids
        v.at_least(f"{name}: runs", runs.total(), 2)
        v.equal(f"{name}: fences with more than one wait", _more_than_one(waits), 0)
        v.equal(f"{name}: waits without a run", (waits - runs).total(), 0)
        # The tests of patch 4 are about one job each, ftrace is about them all.
        v.equal(f"{name}: runs without a wait", (runs - waits).total(), 0)
        v.equal(f"{name}: waits not before their run", _late(load), 0)
    return v


def times_agree_with_older_events(ev: Evidence) -> Verdict:
    """wait_ns starts after _queue and ends before _run, so it can only be shorter."""
    v = Verdict()
    for name in _WORKLOADS:
        load = ev.workload(name)
        jobs = _jobs(load)
        waits = load.events("drm_sched_job_wait")
        short = [_span(jobs[_fence(w)]) - _int(w, "wait_ns") for w in waits]
        v.at_least(f"{name}: waits", len(short), 2)
        v.at_least(
            f"{name}: _run - _queue - wait_ns, least", min(short), -ROUNDING_NS, "ns"
        )
        v.at_most(f"{name}: the same, median", median(short), MS, "ns")
        # In 2000 jobs a few meet a moment in which the host runs something else.
        v.at_most(
            f"{name}: the same, of 99 in 100 jobs",
            sorted(short)[(len(short) * 99 - 1) // 100],
            SLACK_NS,
            "ns",
        )
        over = [w for w in waits if _int(w, "dep_ns") > _int(w, "wait_ns")]
        v.equal(f"{name}: events with dep_ns > wait_ns", len(over), 0)
        counted = Counter(
            {_fence(w): _int(w, "deps") + _int(w, "order_deps") for w in waits}
        )
        added = Counter(_fence(e) for e in load.events("drm_sched_job_add_dep"))
        v.equal(
            f"{name}: jobs with other dependencies than _add_dep saw",
            len((counted - added) | (added - counted)),
            0,
        )
    return v


def shortage_is_real_and_lasts_until_the_wait_ends(ev: Evidence) -> Verdict:
    """A report that raced with a credit's return would show enough of them."""
    v = Verdict()
    for name in ("credits", "split", "deep-queue"):
        load = ev.workload(name)
        jobs = _jobs(load)
        stalls = load.events("drm_sched_job_no_credits")
        v.at_least(f"{name}: reports", len(stalls), 1)
        enough = [
            s
            for s in stalls
            if _int(s, "credits") + _int(s, "credit_count") <= _int(s, "credit_limit")
        ]
        v.equal(f"{name}: reports with enough credits", len(enough), 0)
        outside = [
            s
            for s in stalls
            if not jobs[_fence(s)].queued <= s.ts_ns <= _ran(jobs[_fence(s)])
        ]
        v.equal(f"{name}: reports outside of _queue .. _run", len(outside), 0)
        empty = [s for s in stalls if _int(s, "job_count") < 1]
        v.equal(f"{name}: reports without a queued job", len(empty), 0)
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """No rounding anywhere: the scripts add up what the events carry."""
    v = Verdict()
    for name in ("credits", "split", "deep-queue"):
        load = ev.workload(name)
        waits = load.events("drm_sched_job_wait")
        maps = load.bpftrace("drm-sched-why").maps
        v.equal(f"{name}: @jobs", _total(maps, "@jobs"), len(waits))
        for field_name in ("wait_ns", "dep_ns"):
            v.equal(
                f"{name}: @{field_name}",
                _total(maps, f"@{field_name}"),
                sum(_int(wait, field_name) for wait in waits),
            )
        parts = ("@dep_ns", "@in_order_ns", "@ring_full_ns", "@other_ns")
        v.equal(
            f"{name}: the parts of @wait_ns together",
            sum(_total(maps, part) for part in parts),
            _total(maps, "@wait_ns"),
        )
    held = _total(
        ev.workload("credits").bpftrace("drm-sched-why").maps, "@ring_full_ns"
    )
    v.within("credits: @ring_full_ns", held, 0.99 * SECOND, 1.5 * SECOND, "ns")
    for name in ("credits", "deep-queue"):
        load = ev.workload(name)
        told = Counter[int]()
        for buckets in load.bpftrace("drm-sched-wait").hists["@wait_us"].values():
            for bucket in buckets:
                if bucket.count:
                    told[bucket.low or 0] += bucket.count
        us = (_int(w, "wait_ns") // 1000 for w in load.events("drm_sched_job_wait"))
        counted = Counter(_bucket(value) for value in us)
        v.equal(
            f"{name}: histogram of wait_ns / 1000",
            sorted(told.items()),
            sorted(counted.items()),
        )
    return v


def _jobs(load: WorkloadResult) -> dict[Fence, Job]:
    """The jobs of a workload, by fence, from the older events only."""
    jobs: dict[Fence, Job] = {}
    for event in load.events():
        match event.name:
            case "drm_sched_job_queue":
                fence = _fence(event)
                jobs[fence] = Job(
                    fence,
                    str(event.fields["dev"]),
                    str(event.fields["name"]),
                    _int(event, "client_id"),
                    event.ts_ns,
                )
            case "drm_sched_job_add_dep":
                jobs[_fence(event)].deps.append(_other(event))
            case "drm_sched_job_unschedulable":
                jobs[_fence(event)].waited_for.add(_other(event))
            case "drm_sched_job_run":
                jobs[_fence(event)].run = event.ts_ns
            case "drm_sched_job_done":
                jobs[_fence(event)].done = event.ts_ns
    return jobs


def _expected(job: Job, jobs: Mapping[Fence, Job]) -> tuple[int, int, int]:
    """(deps, order_deps, dep_ns) that the older events make one expect."""
    deps = order = dep_ns = 0
    for context, seqno in job.deps:
        on = jobs.get((context, seqno))
        if on is not None and not _order_only(job, on):
            deps += 1
            done = job.queued if on.done is None else on.done
            dep_ns = max(dep_ns, done - job.queued)
        elif on is not None or (context + 1, seqno) in jobs:
            # A job's scheduled fence is of the context before its finished one's.
            order += 1
        else:
            # No job's fence: the tests' stub, which signalled when the kernel booted.
            deps += 1
    return deps, order, dep_ns


def _order_only(job: Job, on: Job) -> bool:
    """Same entity, or same ring unless the scheduler waited for the end of ``on``."""
    same_entity = on.fence[0] == job.fence[0]
    return same_entity or (on.dev == job.dev and on.fence not in job.waited_for)


def _fence(event: Event) -> Fence:
    return _int(event, "fence_context"), _int(event, "fence_seqno")


def _other(event: Event) -> Fence:
    return _int(event, "ctx"), _int(event, "seqno")


def _int(event: Event, name: str) -> int:
    value = event.fields[name]
    if not isinstance(value, int):
        raise TypeError(f"{event.name}: {name} is {value!r}, not a number")
    return value


def _ran(job: Job) -> int:
    if job.run is None:
        raise ValueError(f"{_name(job)} has no _run event")
    return job.run


def _span(job: Job) -> int:
    return _ran(job) - job.queued


def _name(job: Job) -> str:
    return f"{job.fence[0]}:{job.fence[1]}"


def _late(load: WorkloadResult) -> int:
    """Waits that come after the run of their fence."""
    running: set[Fence] = set()
    late = 0
    for event in load.events():
        if event.name == "drm_sched_job_run":
            running.add(_fence(event))
        elif event.name == "drm_sched_job_wait":
            late += _fence(event) in running
    return late


def _by_dev(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(str(event.fields["dev"]), []).append(event)
    return found


def _more_than_one(counts: Counter[tuple[Fence, str, str, int]]) -> int:
    return sum(1 for count in counts.values() if count > 1)


def _total(maps: Mapping[str, Mapping[str, int]], name: str) -> int:
    return sum(int(value) for value in maps[name].values())


def _bucket(value: int) -> int:
    """The lower end of bpftrace's power-of-two bucket of ``value``."""
    return value if value < 2 else 1 << (value.bit_length() - 1)
