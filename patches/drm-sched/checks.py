# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the drm-sched series.

The new events are checked only against independent sources: the times of the older
``_queue``, ``_add_dep``, ``_unschedulable``, ``_run`` and ``_done`` events, which exist
without the patches, dma_fence's own events, and what KUnit tests measure and print.

Of the new events the times serve, too, as marks by which a push or a signal was over.
They only narrow bounds; but if such an event is missing, it may be a dependency that
dependency_wait_is_told_apart calls wrong.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult, computed_once

MS = 1_000_000
SECOND = 1000 * MS
#: How long patch 4's tests hold back what a job waits for, by the clock.
HOLD_NS = 50 * MS
#: The kernel's own test holds it back for HZ ticks.  A guest that catches up on late
#: ticks shortens that; with less than half of it left nothing is judged.
TICKS_NS = SECOND // 2
#: ftrace prints microseconds, rounded, at both ends of a span.
ROUNDING_NS = 1000

Fence = tuple[int, int]
Span = tuple[int, int]
#: Jobs in each of patch 4's deep queues: the first one runs until all are queued, the
#: others for a millisecond each.
DEEP_JOBS = 100
#: The orders in which patch 4 signals the fences of a container, by their age: oldest
#: first, newest first, middle one last.
ORDERS = ((0, 1, 2), (2, 1, 0), (0, 2, 1))
#: When an event came, in which thread, and about which fence.
Mark = tuple[int, int, Fence]
NEW = ("drm_sched_job_wait", "drm_sched_job_no_credits")
_OF_DEPENDENCIES = ("ctx", "seqno", "deps", "order_deps", "lazy_deps")
_WORKLOADS = ("credits", "split", "deep-queue", "no-shortage")


@dataclass
class Job:
    """One job, reconstructed from the times of events, in ns.

    An event comes before or after what it reports, and the CPU can be taken away in
    between.  So the times are bounds, which also hold on a busy host: the job was
    pushed within ``pushed``, its fence signalled within ``signalled``.
    """

    fence: Fence
    dev: str
    pushed: Span
    deps: list[Fence] = field(default_factory=list)
    waited_for: set[Fence] = field(default_factory=set)
    #: The _run event before this one on the ring: its worker runs one at a time.
    previous: int = 0
    run: int = 0
    signalled: Span | None = None


@dataclass(frozen=True)
class Signal:
    """When a fence signalled, between two events of its CPU, and what made it do so."""

    span: Span
    #: The call that enables signaling found it ready to signal.
    looked_at: bool


def second_job_waits_for_credits(ev: Evidence) -> Verdict:
    """KUnit holds the ring's only credit for HZ ticks; the second job waits for it."""
    v = Verdict()
    load = ev.workload("credits")
    waits = load.record("drm_sched_job_wait")
    v.equal("drm_sched_job_wait events", len(waits), 2)
    if len(waits) != 2:
        return v
    jobs = _jobs(load)
    if len(_about_jobs(v, "credits", waits, jobs)) != 2:
        return v
    first, second = waits
    # The second job cannot run before the first one has given its credit back.
    low, high = _wait_limits(jobs[_fence(second)], jobs, _signals(load))
    release = jobs[_fence(first)].signalled
    low = max(low, release[0] - jobs[_fence(second)].pushed[1]) if release else low
    with v.excused("late ticks shortened the time for which the ring was kept full"):
        v.at_least("time the ring was kept full", low, TICKS_NS, "ns")
    v.within("wait_ns of the second job", second.number("wait_ns"), low, high, "ns")
    for name in (*_OF_DEPENDENCIES, "dep_ns"):
        v.equal(f"{name} of both", [w.number(name) for w in waits], [0, 0])
    v.equal("credits of both", [w.number("credits") for w in waits], [1, 1])
    stalls = load.record("drm_sched_job_no_credits")
    # Its last call before the first job is done finds the second one: a job that comes
    # to an empty queue makes another call.  The call that each job makes that is run
    # may have come before that.
    call = _last_call(load, before=_fence(first))
    came = call is not None and call.queued > 0 and not call.ran and call.ended
    with v.excused("the worker did not come to the second job in that time"):
        v.true("the worker came to the second job", came)
    if came and call:
        v.equal("its last call reported that", call.reported, 1)
    if not stalls:
        return v
    v.equal("jobs that lacked credits", {_fence(s) for s in stalls}, {_fence(second)})
    for name in ("credits", "credit_count", "credit_limit", "job_count"):
        v.equal(f"{name} of each", {s.number(name) for s in stalls}, {1})
    return v


def dependency_wait_is_told_apart(ev: Evidence) -> Verdict:
    """Each job of patch 4's cases is compared with bounds from the older events."""
    v = Verdict()
    load = ev.workload("split")
    jobs, signals = _jobs(load), _signals(load)
    waits = _about_jobs(v, "split", load.record("drm_sched_job_wait"), jobs)
    for wait in waits:
        job = jobs[_fence(wait)]
        deps, order, low, high = _expected(job, jobs, signals)
        v.equal(f"deps of {_name(job)}", wait.number("deps"), deps, record=wait)
        v.equal(
            f"order_deps of {_name(job)}", wait.number("order_deps"), order, record=wait
        )
        lazy = len(_containers(job, jobs))
        v.equal(
            f"lazy_deps of {_name(job)}", wait.number("lazy_deps"), lazy, record=wait
        )
        v.within(
            f"dep_ns of {_name(job)}",
            wait.number("dep_ns"),
            low,
            high,
            "ns",
            record=wait,
        )
    held_waits = [wait for wait in waits if wait.number("dep_ns") >= HOLD_NS]
    # A dependency; the same, watched late; before credits, and after them; a chain and
    # an array before credits; a dependency and a chain behind a job ahead, and both
    # times that job; a chain before a dependency, and one behind it; one that must not
    # be pipelined; the same, flagged too late, beside a job that still runs; one that
    # fails.  And three dependencies, an array and a chain of three, each signalled in
    # three orders.
    v.equal("jobs that waited for a dependency", len(held_waits), 24)
    # The one whose flag comes too late is not waited for.
    beside = [wait for wait in held_waits if _beside_running(jobs[_fence(wait)], jobs)]
    v.equal("of these, with one of their ring not done", len(beside), 1)
    both = [
        w for w in held_waits if w.number("wait_ns") - w.number("dep_ns") >= HOLD_NS
    ]
    v.at_least("of these, kept back for longer by something else", len(both), 3)
    unseen = [wait for wait in both if not jobs[_fence(wait)].waited_for]
    v.at_least("of these, not seen by _unschedulable", len(unseen), 2)
    _last_ones_are_named(v, waits, jobs, signals)
    _containers_are_timed(v, [jobs[_fence(wait)] for wait in held_waits], jobs, signals)
    return v


def a_late_look_is_marked(ev: Evidence) -> Verdict:
    """Older events show where dep_ns is longer than the fences took, and why."""
    v = Verdict()
    load = ev.workload("split")
    jobs = _jobs(load)
    short = {_fence(stall) for stall in load.events("drm_sched_job_no_credits")}
    longer = []
    misnamed = []
    for wait in _about_jobs(v, "split", load.record("drm_sched_job_wait"), jobs):
        job = jobs[_fence(wait)]
        deps = [*_completed(job, jobs), *_members(job, jobs)]
        ends = [dep.signalled[1] for dep in deps if dep.signalled]
        if not ends:
            continue
        excess = wait.number("dep_ns") - max(max(ends) - job.pushed[0], 0)
        if wait.number("lazy_deps") == 0:
            v.at_most(f"dep_ns of {_name(job)}, longer by", excess, ROUNDING_NS, "ns")
        elif _other(wait) in _ended_before_others(job, jobs):
            misnamed.append(wait)
        elif excess >= HOLD_NS - ROUNDING_NS:
            longer.append(wait)
    # A chain and an array on a full ring, and a chain behind a job that waits.
    v.equal("jobs with a dep_ns that is longer by a hold", len(longer), 3)
    v.equal("lazy_deps of these", [w.number("lazy_deps") for w in longer], [1, 1, 1])
    # The worker looks at a chain only after the dependency that was added before it.
    v.equal("jobs that name what ended a hold before another", len(misnamed), 1)
    v.equal("lazy_deps of that", [w.number("lazy_deps") for w in misnamed], [1])
    silent = [wait for wait in longer if _fence(wait) not in short]
    v.equal("of these, with no report of missing credits", len(silent), 1)
    for wait in silent:
        job = jobs[_fence(wait)]
        ahead = [
            other
            for other in jobs.values()
            if other.fence[0] == job.fence[0] and other.fence[1] < job.fence[1]
        ]
        delays = [other.run - job.pushed[1] for other in ahead if other.waited_for]
        v.at_least("time for which a job was ahead", max(delays, default=0), HOLD_NS)
    return v


def _last_ones_are_named(
    v: Verdict,
    waits: Iterable[Event],
    jobs: Mapping[Fence, Job],
    signals: Mapping[Fence, Signal],
) -> None:
    """What ended dep_ns must be what signalled last, by the older events."""
    sure = Counter[bool]()
    for wait in waits:
        job = jobs[_fence(wait)]
        possible = _last(job, jobs, signals)
        v.true(
            f"the last dependency of {_name(job)} is one of {sorted(possible)}",
            _other(wait) in possible,
        )
        sure[len(possible) == 1 and _NO_FENCE not in possible] += 1
    v.equal("waits that only one dependency can have ended", sure[True], 24)


def _containers_are_timed(
    v: Verdict,
    held: Iterable[Job],
    jobs: Mapping[Fence, Job],
    signals: Mapping[Fence, Signal],
) -> None:
    """Compare the containers that patch 4 makes with dma_fence's own events."""
    orders = Counter[tuple[int, ...]]()
    looked_at: list[int] = []
    wrapped = 0
    for job in held:
        inside = sorted(_members(job, jobs), key=lambda member: member.fence)
        for container in _containers(job, jobs):
            wrapped += 1
            if container not in signals:
                continue
            ends = [member.signalled[0] for member in inside if member.signalled]
            v.at_least(
                f"when the container of {_name(job)} signalled, after all in it",
                signals[container].span[1] - max(ends, default=_NEVER),
                0,
                "ns",
            )
            orders[tuple(sorted(range(len(ends)), key=ends.__getitem__))] += 1
            if signals[container].looked_at:
                looked_at.append(len(inside))
    v.equal("jobs that waited for a container", wrapped, 11)
    expected: Counter[tuple[int, ...]] = Counter({(0,): 5})
    expected.update(dict.fromkeys(ORDERS, 2))
    # Of a chain and of an array each.  Of one fence: both while the ring is full, a
    # chain behind a job ahead, one with a dependency after it, and one before it.
    v.equal(
        "orders in which the fences in containers signalled",
        dict(sorted(orders.items())),
        dict(sorted(expected.items())),
    )
    # The worker looks at these when it has credits, when the job ahead is gone, or when
    # the dependency before has ended.
    v.equal("fences in containers that signalled when looked at", looked_at, [1] * 4)


def deep_queue_matches_the_tests_own_clock(ev: Evidence) -> Verdict:
    """The test prints how long the jobs took from the release of the queue."""
    v = Verdict()
    load = ev.workload("deep-queue")
    printed = re.findall(rf"{DEEP_JOBS - 1} jobs of 1000 us took (\d+) us", load.kmsg)
    v.equal("figures printed by the tests", len(printed), 2)
    jobs = _jobs(load)
    halves = _by_dev(_about_jobs(v, "all", load.events("drm_sched_job_wait"), jobs))
    stalls = _by_dev(load.events("drm_sched_job_no_credits"))
    v.equal("rings", len(halves), 2)
    for (dev, waits), text in zip(halves.items(), printed, strict=False):
        v.equal(f"waits on {dev}", len(waits), DEEP_JOBS)
        truth = int(text) * 1000 + ROUNDING_NS
        last = waits[-1]
        release = jobs[_fence(waits[0])].signalled
        v.true(f"the first job on {dev} has ended", release is not None)
        before = release[0] - jobs[_fence(last)].pushed[0] if release else 0
        since = last.number("wait_ns") - before
        # The test's clock goes on until the last job has ended and the test is awake
        # again.  All but it and the first took a millisecond each before it.
        pushed = jobs[_fence(last)].pushed
        after = jobs[_fence(last)].previous - release[1] if release else 0
        v.within(
            f"wait_ns of the last job on {dev}, from the release on",
            since,
            max(after, (DEEP_JOBS - 2) * MS) - (pushed[1] - pushed[0]) - ROUNDING_NS,
            truth,
            "ns",
        )
        short = {_fence(stall) for stall in stalls.get(dev, ())}
        v.true(
            f"the first job on {dev} never lacked credits",
            _fence(waits[0]) not in short,
        )
        # A worker that comes late finds the credit free already.
        with v.excused(f"the worker on {dev} was always late"):
            v.at_least(f"jobs on {dev} that lacked credits", len(short), 1)
    passes = _passes(load)
    v.at_least(
        "times that the worker came to a queue with jobs",
        len(passes),
        2 * DEEP_JOBS - 4,
    )
    silent = sum(call.is_silent for call in passes)
    v.equal("of which nothing was run or reported", silent, 0)
    double = sum(call.ran + call.reported > 1 for call in passes)
    v.equal("of which more than one job was run or reported", double, 0)
    inside = sum(call.reported for call in _passes(load, least=0))
    v.equal("reports within all of them", inside, sum(map(len, stalls.values())))
    return v


def chain_on_one_ring_is_order_only(ev: Evidence) -> Verdict:
    """The second case of the suite makes each job depend on the one before."""
    v = Verdict()
    load = ev.workload("deep-queue")
    halves = list(_by_dev(load.events("drm_sched_job_wait")).values())
    v.equal("rings", len(halves), 2)
    expected = ({0: DEEP_JOBS}, {0: 1, 1: DEEP_JOBS - 1})
    for name, waits, order in zip(
        ("independent", "chained"), halves, expected, strict=False
    ):
        counts = Counter(wait.number("order_deps") for wait in waits)
        v.equal(f"order_deps of {name} jobs", dict(sorted(counts.items())), order)
        v.equal(f"deps of {name} jobs", sum(w.number("deps") for w in waits), 0)
        for none in ("dep_ns", "ctx", "seqno", "lazy_deps"):
            v.equal(f"{none} of {name} jobs", sum(w.number(none) for w in waits), 0)
    added = len(load.events("drm_sched_job_add_dep"))
    v.equal("dependencies that _add_dep saw", added, DEEP_JOBS - 1)
    return v


def no_shortage_no_report(ev: Evidence) -> Verdict:
    """Silence counts only if jobs ran: the older _run event says how many."""
    v = Verdict()
    load = ev.workload("no-shortage")
    waits = load.events("drm_sched_job_wait")
    v.at_least("jobs run", len(load.events("drm_sched_job_run")), 128)
    stalls = load.events("drm_sched_job_no_credits")
    v.none("drm_sched_job_no_credits events", stalls)
    for name in (*_OF_DEPENDENCIES, "dep_ns"):
        v.equal(f"sum of {name}", sum(wait.number(name) for wait in waits), 0)
    return v


def exactly_full_is_no_shortage(ev: Evidence) -> Verdict:
    """One case of patch 4 fills a ring to its limit of 4, as the _run event shows."""
    v = Verdict()
    load = ev.workload("split")
    case = "drm_sched_trace_credits_limit."
    runs, stalls = (
        [e for e in load.events(name) if str(e.fields["dev"]).startswith(case)]
        for name in ("drm_sched_job_run", "drm_sched_job_no_credits")
    )
    used = [run.number("hw_job_count") for run in runs]
    v.equal("credits in use at each run", used, [1, 4])
    v.none("drm_sched_job_no_credits events", stalls)
    return v


def one_wait_for_each_run(ev: Evidence) -> Verdict:
    """Fence, ring and client have to be the same as in the event that follows."""
    v = Verdict()
    for name in _WORKLOADS:
        load = ev.workload(name)
        waits = Counter(_identity(w) for w in load.events("drm_sched_job_wait"))
        runs = Counter(_identity(r) for r in load.events("drm_sched_job_run"))
        v.at_least(f"{name}: runs", runs.total(), 2)
        double = sum(1 for count in waits.values() if count > 1)
        v.equal(f"{name}: fences with more than one wait", double, 0)
        v.equal(f"{name}: waits without a run", (waits - runs).total(), 0)
        v.equal(f"{name}: runs without a wait", (runs - waits).total(), 0)
        v.equal(f"{name}: waits after their run", _late(load), 0)
    return v


def times_agree_with_older_events(ev: Evidence) -> Verdict:
    """Both ends of a wait lie between events that were there before the series."""
    v = Verdict()
    for name in _WORKLOADS:
        load = ev.workload(name)
        jobs, signals = _jobs(load), _signals(load)
        waits = _about_jobs(v, name, load.events("drm_sched_job_wait"), jobs)
        v.at_least(f"{name}: waits", len(waits), 2)
        outside = 0
        for wait in waits:
            low, high = _wait_limits(jobs[_fence(wait)], jobs, signals)
            outside += not low <= wait.number("wait_ns") <= high
        v.equal(f"{name}: waits outside of what the events allow", outside, 0)
        # The event comes after the wait, so not before wait_ns can have passed.
        early = [
            wait
            for wait in waits
            if wait.ts_ns - wait.number("wait_ns")
            < jobs[_fence(wait)].pushed[0] - ROUNDING_NS
        ]
        v.none(f"{name}: waits reported before their time has passed", early)
        v.equal(
            f"{name}: jobs with other dependencies than _add_dep saw",
            sum(
                wait.number("deps") + wait.number("order_deps")
                != len(jobs[_fence(wait)].deps)
                for wait in waits
            ),
            0,
        )
        strange = sum(
            _other(wait) not in {_NO_FENCE, *jobs[_fence(wait)].deps}
            or (_other(wait) == _NO_FENCE) != (wait.number("dep_ns") == 0)
            for wait in waits
        )
        v.equal(f"{name}: last dependencies that _add_dep did not see", strange, 0)
        lazy = sum(
            wait.number("lazy_deps") != len(_containers(jobs[_fence(wait)], jobs))
            for wait in waits
        )
        v.equal(f"{name}: jobs with other chains and arrays", lazy, 0)
        taken, sure = _wrong_credits(load)
        v.at_least(f"{name}: runs on a ring that was empty", sure, 1)
        v.equal(f"{name}: runs that took other credits", taken, 0)
    return v


def _wrong_credits(load: WorkloadResult) -> tuple[int, int]:
    """How many jobs' credits contradict those in use, and how many rings were empty.

    _run reports those in use, including the job's own.  A job returns its credits
    before its _done event, and takes them before its _run event: between the two it
    may hold some, outside of them none.
    """
    needs = {_fence(w): w.number("credits") for w in load.events("drm_sched_job_wait")}
    running: dict[str, dict[Fence, int]] = {}
    ring_of: dict[Fence, str] = {}
    wrong = sure = 0
    for event in _scheduler(load):
        fence = _fence(event)
        if event.name == "drm_sched_job_run":
            ring_of[fence] = str(event.fields["dev"])
            others = running.setdefault(ring_of[fence], {})
            most = event.number("hw_job_count")
            least = max(most - sum(others.values()), 1)
            sure += not others
            wrong += not least <= needs.get(fence, 0) <= most
            others[fence] = needs.get(fence, 0)
        elif event.name == "drm_sched_job_done" and fence in ring_of:
            running[ring_of[fence]].pop(fence, None)
    return wrong, sure


def shortage_is_real_and_lasts_until_the_wait_ends(ev: Evidence) -> Verdict:
    """A report that raced with a credit's return would show enough of them."""
    v = Verdict()
    for name in ("credits", "split", "deep-queue"):
        load = ev.workload(name)
        jobs = _jobs(load)
        stalls = _about_jobs(v, name, load.events("drm_sched_job_no_credits"), jobs)
        # Only patch 4's own tests wait for a report.
        with v.excused("" if name == "split" else f"{name}: the worker came too late"):
            v.at_least(f"{name}: reports", len(stalls), 1)
        # No report says how full a ring gets: the older _run event has its credits
        # in use, and every ring that lacks credits is full at some time.
        most = _most_credits(load)
        for ring in sorted({str(s.fields["dev"]) for s in stalls}):
            limits = {
                s.number("credit_limit") for s in stalls if s.fields["dev"] == ring
            }
            v.equal(f"{name}: credit_limit of {ring}", limits, {most.get(ring, 0)})
        fits = [
            s
            for s in stalls
            if s.number("credits") + s.number("credit_count")
            <= most.get(str(s.fields["dev"]), 0)
        ]
        v.none(f"{name}: reports of jobs that _run shows to fit", fits)
        outside = [
            s
            for s in stalls
            if not jobs[_fence(s)].pushed[0] <= s.ts_ns <= jobs[_fence(s)].run
        ]
        v.none(f"{name}: reports outside of _queue .. _run", outside)
        empty = [s for s in stalls if s.number("job_count") < 1]
        v.none(f"{name}: reports without a queued job", empty)
        for field_name, count in _wrong_figures(load).items():
            v.equal(f"{name}: reports with another {field_name}", count, 0)
    # In one case of patch 4 all figures differ, so that no two can be swapped.
    figures = ("credits", "credit_count", "credit_limit", "job_count")
    reports = [
        tuple(s.number(figure) for figure in figures)
        for s in ev.workload("split").record("drm_sched_job_no_credits")
        if str(s.fields["dev"]).startswith("drm_sched_trace_credits_figures.")
    ]
    # After the job itself the two behind it may have to wait, for one credit each.
    behind = {(1, 5, 5, 2), (1, 5, 5, 1)}
    v.equal(f"{', '.join(figures)}", set(reports) - behind, {(4, 2, 5, 3)})
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """No rounding anywhere: the scripts add up what the events carry."""
    v = Verdict()
    for name in ("credits", "split", "deep-queue"):
        load = ev.workload(name)
        waits = load.events("drm_sched_job_wait")
        maps = load.bpftrace("drm-sched-why").maps
        v.equal(f"{name}: @jobs", _total(maps, "@jobs"), len(waits))
        exact = [wait for wait in waits if not wait.number("lazy_deps")]
        lazy = [wait for wait in waits if wait.number("lazy_deps")]
        for key, field_name, events in (
            ("@wait_ns", "wait_ns", waits),
            ("@dep_ns", "dep_ns", exact),
            ("@dep_or_full_ns", "dep_ns", lazy),
        ):
            total = sum(wait.number(field_name) for wait in events)
            v.equal(f"{name}: {key}", _total(maps, key), total)
        parts = (
            *("@dep_ns", "@dep_or_full_ns"),
            *("@in_order_ns", "@ring_full_ns", "@other_ns"),
        )
        v.equal(
            f"{name}: the parts of @wait_ns together",
            sum(_total(maps, part) for part in parts),
            _total(maps, "@wait_ns"),
        )
    maps = ev.workload("credits").bpftrace("drm-sched-why").maps
    _ring_was_full(v, _total(maps, "@ring_full_ns"), _total(maps, "@wait_ns"))
    for name in ("credits", "split", "deep-queue"):
        load = ev.workload(name)
        parts_of = load.bpftrace("drm-sched-why").maps["@in_order_ns"]
        low, high = _in_order_limits(load)
        total = sum(int(value) for value in parts_of.values())
        v.within(f"{name}: @in_order_ns", total, low, high, "ns")
        waits = load.events("drm_sched_job_wait")
        exact = [wait for wait in waits if not wait.number("lazy_deps")]
        lazy = [wait for wait in waits if wait.number("lazy_deps")]
        for key, field_name, events in (
            ("@wait_us", "wait_ns", waits),
            ("@dep_us", "dep_ns", exact),
            ("@dep_or_full_us", "dep_ns", lazy),
        ):
            _same_histogram(v, name, load, key, [w.number(field_name) for w in events])
    # How much of the wait this is depends on how long the worker waits for a processor,
    # so it is bounded by the events above; but it is not nothing.
    maps = ev.workload("deep-queue").bpftrace("drm-sched-why").maps
    v.at_least("deep-queue: @in_order_ns", _total(maps, "@in_order_ns"), 1)
    return v


def _ring_was_full(v: Verdict, full_ns: int, wait_ns: int) -> None:
    """It counts from the first report, which a worker makes that gets a CPU."""
    v.within("credits: @ring_full_ns", full_ns, 1, wait_ns, "ns")
    with v.excused("it was reported late, or not for long, that the ring was full"):
        v.at_least("credits: @ring_full_ns, of a second", full_ns, TICKS_NS, "ns")


def _same_histogram(
    v: Verdict, name: str, load: WorkloadResult, key: str, values: Iterable[int]
) -> None:
    counts = Counter[int]()
    for buckets in load.bpftrace("drm-sched-wait").hists.get(key, {}).values():
        for bucket in buckets:
            counts[bucket.low or 0] += bucket.count
    v.equal(
        f"{name}: {key}, the histogram in us",
        dict(sorted((+counts).items())),
        dict(sorted(Counter(_bucket(value // 1000) for value in values).items())),
    )


def _in_order_limits(load: WorkloadResult) -> Span:
    """Bounds of what drm-sched-why.bt adds up as in_order, by the _run events.

    The script reads the clock between the kernel, for wait_ns, and the _run event.
    """
    jobs = _jobs(load)
    last: dict[int, Span] = {}
    least = most = 0
    for wait in load.events("drm_sched_job_wait"):
        job = jobs[_fence(wait)]
        pushed = job.pushed[0] + wait.number("wait_ns") - ROUNDING_NS
        at = (pushed, job.run + ROUNDING_NS)
        ready = wait.number("wait_ns") - wait.number("dep_ns")
        if before := last.get(job.fence[0]):
            least += max(ready - (at[1] - before[0]), 0)
            most += max(ready - (at[0] - before[1]), 0)
        last[job.fence[0]] = at
    return least, most


def _wrong_figures(load: WorkloadResult) -> Counter[str]:
    """How many reports of missing credits contradict the older events, by field.

    The credits that a job needs are in none of those: they are taken from its report,
    and are one if there is none.  A report's thread can be off its CPU while it
    reports: the credits in use were read between the thread's previous event and the
    report, the length of the queue between the report and the thread's next event.
    """
    wrong = Counter[str](credit_count=0, job_count=0, identity=0)
    needs = {
        _fence(s): s.number("credits") for s in load.events("drm_sched_job_no_credits")
    }
    pushed: dict[Fence, Event] = {}
    running: dict[str, dict[Fence, int]] = {}
    used: dict[str, _Level] = {}
    queued: dict[int, _Level] = {}
    reports: list[tuple[int, Event, int]] = []
    by_thread: dict[int, list[int]] = {}
    for at, event in enumerate(_scheduler(load)):
        # _done comes from an interrupt, in whatever thread runs at the time.
        if event.name != "drm_sched_job_done":
            by_thread.setdefault(event.pid, []).append(at)
        fence = _fence(event)
        if event.name == "drm_sched_job_queue":
            pushed[fence] = event
            queued.setdefault(fence[0], _Level()).step(at, 1)
        elif event.name == "drm_sched_job_run":
            queued[fence[0]].step(at, -1)
            dev = str(event.fields["dev"])
            running.setdefault(dev, {})[fence] = needs.get(fence, 1)
            used.setdefault(dev, _Level()).step(at, needs.get(fence, 1))
        elif event.name == "drm_sched_job_done":
            dev = str(pushed[fence].fields["dev"])
            used[dev].step(at, -running[dev].pop(fence))
        elif event.name == "drm_sched_job_no_credits":
            busy = running.get(str(event.fields["dev"]), {})
            reports.append((at, event, max(busy.values(), default=0)))
    for at, event, largest in reports:
        thread = by_thread[event.pid]
        position = bisect.bisect_left(thread, at)
        before = thread[position - 1] if position else -1
        after = thread[position + 1] if position + 1 < len(thread) else _NEVER
        low, high = used.get(str(event.fields["dev"]), _Level()).span(before, at)
        # A job's credits are back before the event that says it is done.
        low -= largest
        wrong["credit_count"] += not low <= event.number("credit_count") <= high
        fence = _fence(event)
        low, high = queued.get(fence[0], _Level()).span(at, after)
        # The last push may not have come to the queue yet.
        wrong["job_count"] += not low - 1 <= event.number("job_count") <= high
        job = pushed.get(fence)
        same = job and _identity(event) == _identity(job)
        wrong["identity"] += not same
    return wrong


def _most_credits(load: WorkloadResult) -> dict[str, int]:
    """The most credits in use at any time, by ring: its limit, if it was ever full."""
    most: dict[str, int] = {}
    for run in load.events("drm_sched_job_run"):
        dev = str(run.fields["dev"])
        most[dev] = max(most.get(dev, 0), run.number("hw_job_count"))
    return most


@dataclass
class _Pass:
    """A call of the scheduler's worker, and how many events came during it."""

    queued: int
    ran: int = 0
    reported: int = 0
    #: Jobs whose turn it was, and which have to wait for a fence first.
    unschedulable: int = 0
    #: From interrupts, on any CPU: then there were credits again.
    done: int = 0
    ended: bool = False

    @property
    def is_silent(self) -> bool:
        """Nothing came of it, though there was a job, and no credits came back.

        By another policy than FIFO the next job may depend on one behind it.
        """
        return not (self.ran or self.reported or self.unschedulable or self.done)


def _passes(load: WorkloadResult, *, least: int = 2) -> list[_Pass]:
    """The calls that found ``least`` jobs or more in the queue, by older events.

    One of the jobs may still have been on its way there: its event comes first.
    """
    return [call for call in _calls(load.events()) if call.queued >= least]


def _last_call(load: WorkloadResult, *, before: Fence) -> _Pass | None:
    """The last call that began before that job was done, as it was by then."""
    events = load.events()
    done = next(
        (
            place
            for place, event in enumerate(events)
            if event.name == "drm_sched_job_done" and _fence(event) == before
        ),
        0,
    )
    return next(reversed(_calls(events[:done])), None)


def _calls(events: Iterable[Event]) -> list[_Pass]:
    passes: list[_Pass] = []
    open_: dict[int, _Pass] = {}
    stray = _Pass(0)
    queued = 0
    for event in events:
        if event.system == "workqueue":
            if not str(event.fields["function"]).startswith("drm_sched_run_job_work"):
                continue
            if event.name == "workqueue_execute_start":
                open_[event.pid] = _Pass(queued)
                passes.append(open_[event.pid])
            elif call := open_.pop(event.pid, None):
                call.ended = True
        elif event.name == "drm_sched_job_queue":
            queued += 1
        elif event.name == "drm_sched_job_run":
            queued -= 1
            open_.get(event.pid, stray).ran += 1
        elif event.name == "drm_sched_job_no_credits":
            open_.get(event.pid, stray).reported += 1
        elif event.name == "drm_sched_job_unschedulable":
            open_.get(event.pid, stray).unschedulable += 1
        elif event.name == "drm_sched_job_done":
            for call in open_.values():
                call.done += 1
    return passes


def _scheduler(load: WorkloadResult) -> list[Event]:
    """The scheduler's events, old and new."""
    return [event for event in load.events() if event.system == "gpu_scheduler"]


class _Level:
    """A number that events raise and lower, and what it was between two of them."""

    def __init__(self) -> None:
        self._at = [-1]
        self._values = [0]

    def step(self, at: int, by: int) -> None:
        self._at.append(at)
        self._values.append(self._values[-1] + by)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Least and most from right after event ``first`` to right before ``last``."""
        begin = bisect.bisect_right(self._at, first) - 1
        end = bisect.bisect_left(self._at, last)
        values = self._values[max(begin, 0) : end]
        return min(values), max(values)


def _about_jobs(
    v: Verdict, name: str, events: Iterable[Event], jobs: Mapping[Fence, Job]
) -> list[Event]:
    """The ``events`` about jobs that were queued, as all of them have to be."""
    events = list(events)
    matching = [event for event in events if _fence(event) in jobs]
    v.equal(f"{name}: events about no job", len(events) - len(matching), 0)
    return matching


def _jobs(load: WorkloadResult) -> Mapping[Fence, Job]:
    """The jobs of a workload, by fence; of the new events only the times are used."""
    new_events = [event for name in NEW for event in load.events(name)]
    marks = sorted((event.ts_ns, event.pid, _fence(event)) for event in new_events)
    return _jobs_from(load.older(*NEW), tuple(marks))


@computed_once
def _jobs_from(older: Sequence[Event], marks: Sequence[Mark]) -> Mapping[Fence, Job]:
    jobs: dict[Fence, Job] = {}
    pushing: dict[int, Job] = {}
    signalling: dict[int, list[Job]] = {}
    last_run: dict[str, int] = {}
    entries: list[tuple[int, int, Fence, Event | None]] = [
        (event.ts_ns, event.pid, _fence(event), event)
        for event in older
        if event.system == "gpu_scheduler" or event.name == "dma_fence_signaled"
    ]
    entries += [(*mark, None) for mark in marks]
    for ts, pid, fence, event in sorted(entries, key=lambda entry: entry[0]):
        if event is not None and event.system == "dma_fence":
            _ended(jobs.get(fence), signalling, ts)
            continue
        # A thread's next event comes after what its last one reported.
        for job in signalling.pop(pid, []):
            job.signalled = (job.signalled[0], ts) if job.signalled else None
        if event is None:
            _pushed_by(pushing, pid, ts)
            for pusher in [pid for pid, job in pushing.items() if job.fence == fence]:
                _pushed_by(pushing, pusher, ts)
            continue
        if event.name == "drm_sched_job_queue":
            _pushed_by(pushing, event.pid, ts)
            job = Job(fence, str(event.fields["dev"]), (ts, ts))
            jobs[fence] = pushing[event.pid] = job
            continue
        job = jobs[fence]
        if event.name == "drm_sched_job_add_dep":
            job.deps.append(_other(event))
            job.pushed = (ts, ts)
            continue
        # A timer interrupt can signal in the middle of a push, in the pushing thread.
        if event.name != "drm_sched_job_done":
            _pushed_by(pushing, event.pid, ts)
        for pusher in [pid for pid, other in pushing.items() if other is job]:
            _pushed_by(pushing, pusher, ts)
        if event.name == "drm_sched_job_unschedulable":
            job.waited_for.add(_other(event))
        elif event.name == "drm_sched_job_run":
            job.previous = last_run.get(job.dev, 0)
            job.run = last_run[job.dev] = ts
        elif event.name == "drm_sched_job_done":
            # Until the thread's next event, if it has one.
            job.signalled = (ts, _NEVER)
            signalling.setdefault(event.pid, []).append(job)
    return jobs


_NEVER = 1 << 63


def _signals(load: WorkloadResult) -> Mapping[Fence, Signal]:
    """When each fence signalled, of those that belong to no job."""
    return _signalled(load.older(*NEW))


@computed_once
def _signalled(older: Sequence[Event]) -> Mapping[Fence, Signal]:
    """A fence takes its timestamp and traces it with interrupts off: on one CPU.

    Whoever waits for a fence first enables signaling, which is traced; a container of
    which all fences have signalled by then does so on the spot.
    """
    signals: dict[Fence, Signal] = {}
    last: dict[int, Event] = {}
    for event in older:
        before = last.get(event.cpu)
        last[event.cpu] = event
        if event.name != "dma_fence_signaled":
            continue
        looked_at = (
            before is not None
            and before.name == "dma_fence_enable_signal"
            and _fence(before) == _fence(event)
        )
        since = before.ts_ns if before else 0
        signals[_fence(event)] = Signal((since, event.ts_ns), looked_at)
    return signals


def _ended(job: Job | None, signalling: dict[int, list[Job]], ts: int) -> None:
    """The fence of ``job`` was traced, so no later event has to bound its time."""
    if job is None or job.signalled is None:
        return
    job.signalled = (job.signalled[0], ts)
    for others in signalling.values():
        others[:] = [other for other in others if other is not job]


def _pushed_by(pushing: dict[int, Job], pid: int, ts: int) -> None:
    if job := pushing.pop(pid, None):
        job.pushed = (job.pushed[0], ts)


def _expected(
    job: Job, jobs: Mapping[Fence, Job], signals: Mapping[Fence, Signal]
) -> tuple[int, int, int, int]:
    """(deps, order_deps, least dep_ns, most dep_ns) by the older events."""
    completed = _completed(job, jobs)
    containers = _containers(job, jobs)
    deps = len(completed) + len(containers) + job.deps.count(_STUB)
    order = len(job.deps) - deps
    ends = [dep.signalled for dep in completed if dep.signalled]
    # A container signals after what it holds: by irq_work, or when somebody looks.
    ends += [
        signals[container].span for container in containers if container in signals
    ]
    # So it does not signal before that.
    inside = [member.signalled for member in _members(job, jobs) if member.signalled]
    least = max((end[0] for end in ends + inside), default=0)
    most = min(max((end[1] for end in ends), default=0), job.run)
    low = least - job.pushed[1] - ROUNDING_NS
    high = most - job.pushed[0] + ROUNDING_NS
    # What had signalled before the push took no time.
    return deps, order, max(low, 0), max(high, 0) if ends else 0


def _completed(job: Job, jobs: Mapping[Fence, Job]) -> list[Job]:
    """The jobs that had to end before ``job`` could run."""
    deps = [dep for dep in map(jobs.get, job.deps) if dep is not None]
    return [dep for dep in deps if not _order_only(job, dep)]


def _beside_running(job: Job, jobs: Mapping[Fence, Job]) -> bool:
    """``job`` depends on a job of its ring which was not done when ``job`` ran."""
    deps = [dep for dep in map(jobs.get, job.deps) if dep is not None]
    return any(
        dep.dev == job.dev and (dep.signalled is None or dep.signalled[0] > job.run)
        for dep in deps
    )


#: The fence that ended dep_ns, where none did.
_NO_FENCE = (0, 0)


def _last(
    job: Job, jobs: Mapping[Fence, Job], signals: Mapping[Fence, Signal]
) -> set[Fence]:
    """The dependencies of ``job`` that can have been the last to signal."""
    spans = {dep.fence: dep.signalled for dep in _completed(job, jobs) if dep.signalled}
    inside = [member.signalled[0] for member in _members(job, jobs) if member.signalled]
    for container in _containers(job, jobs):
        if container in signals:
            low, high = signals[container].span
            spans[container] = (max(low, *inside) if inside else low, high)
    latest = max((low for low, _ in spans.values()), default=0)
    candidates = {fence for fence, (_, high) in spans.items() if high >= latest}
    after = {fence for fence in candidates if spans[fence][1] > job.pushed[0]}
    # A fence that may have signalled before the push may not count.
    return after | ({_NO_FENCE} if latest <= job.pushed[1] else set())


def _members(job: Job, jobs: Mapping[Fence, Job]) -> list[Job]:
    """The jobs in the containers that ``job`` waits for, if it waits for any.

    No event names them.  In the tests, which run one by one, they are those that ended
    on another ring while the job waited, and that no job depends on directly.
    """
    if not _containers(job, jobs):
        return []
    direct = {fence for other in jobs.values() for fence in other.deps}
    return [
        other
        for other in jobs.values()
        if other.dev != job.dev
        and other.fence not in direct
        and other.signalled
        and job.pushed[0] <= other.signalled[0] <= job.run
    ]


def _ended_before_others(job: Job, jobs: Mapping[Fence, Job]) -> list[Fence]:
    """The container of ``job``, if all in it ended a hold before another dependency."""
    inside = [member.signalled[1] for member in _members(job, jobs) if member.signalled]
    others = [dep.signalled[0] for dep in _completed(job, jobs) if dep.signalled]
    if not inside or not others:
        return []
    early = max(others) - max(inside) >= HOLD_NS - ROUNDING_NS
    return _containers(job, jobs) if early else []


#: dma_fence_get_stub(), which signalled when the kernel booted.
_STUB = (0, 0)


def _containers(job: Job, jobs: Mapping[Fence, Job]) -> list[Fence]:
    """Dependencies which are neither a job's finished nor its scheduled fence.

    The context of a scheduled fence is the one before that of the finished fence.
    """
    return [
        (context, seqno)
        for context, seqno in job.deps
        if (context, seqno) != _STUB
        and (context, seqno) not in jobs
        and (context + 1, seqno) not in jobs
    ]


def _order_only(job: Job, dep: Job) -> bool:
    """Same entity, or same ring unless the scheduler waited for the end of ``dep``."""
    same_entity = dep.fence[0] == job.fence[0]
    return same_entity or (dep.dev == job.dev and dep.fence not in job.waited_for)


def _wait_limits(
    job: Job, jobs: Mapping[Fence, Job], signals: Mapping[Fence, Signal]
) -> Span:
    """The least and the most that wait_ns can be."""
    _, _, dep_ns, _ = _expected(job, jobs, signals)
    low = max(job.previous - job.pushed[1] - ROUNDING_NS, dep_ns, 0)
    return low, job.run - job.pushed[0] + ROUNDING_NS


def _fence(event: Event) -> Fence:
    prefix = "" if event.system == "dma_fence" else "fence_"
    return event.number(f"{prefix}context"), event.number(f"{prefix}seqno")


def _other(event: Event) -> Fence:
    return event.number("ctx"), event.number("seqno")


def _identity(event: Event) -> tuple[Fence, str, str, int]:
    dev, name = str(event.fields["dev"]), str(event.fields["name"])
    return _fence(event), dev, name, event.number("client_id")


def _name(job: Job) -> str:
    return f"{job.fence[0]}:{job.fence[1]}"


def _late(load: WorkloadResult) -> int:
    """How many waits come after the run of their fence."""
    running: set[Fence] = set()
    late = 0
    for event in load.events():
        if event.name == "drm_sched_job_run":
            running.add(_fence(event))
        elif event.name == "drm_sched_job_wait":
            late += _fence(event) in running
    return late


def _by_dev(events: Iterable[Event]) -> dict[str, Sequence[Event]]:
    groups: dict[str, list[Event]] = {}
    for event in events:
        groups.setdefault(str(event.fields["dev"]), []).append(event)
    return dict(groups)


def _total(maps: Mapping[str, Mapping[str, int]], name: str) -> int:
    return sum(int(value) for value in maps[name].values())


def _bucket(value: int) -> int:
    """The lower end of bpftrace's power-of-two bucket of ``value``."""
    return value if value < 2 else 1 << (value.bit_length() - 1)
