# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparisons of drm-sched's checks that must hold on a busy host, and not always."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from kstall.evidence import Event, Verdict
from kstall.verdict import run_check

WORKER, TESTER, IDLE = 30, 40, 0


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/drm-sched/checks.py"
    spec = importlib.util.spec_from_file_location("drm_sched_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch().context() as patch:
        # Its dataclasses look for it there.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Load:
    """A workload of which only the trace is asked for."""

    told: tuple[str, ...]

    def events(self, *names: str) -> tuple[Event, ...]:
        assert not names
        return tuple(_event(at, word) for at, word in enumerate(self.told))


def _event(at: int, word: str) -> Event:
    """Of a word such as ``run`` or ``start``, as the thread that has to tell it."""
    pid = {"queue": TESTER, "done": IDLE}.get(word, WORKER)
    if word in ("start", "end"):
        fields: dict[str, object] = {"work": 1, "function": "drm_sched_run_job_work"}
        name, system = f"workqueue_execute_{word}", "workqueue"
    elif word == "other":
        fields = {"work": 2, "function": "vmstat_update"}
        name, system = "workqueue_execute_start", "workqueue"
    else:
        fields = {}
        name, system = f"drm_sched_job_{word}", "gpu_scheduler"
    return Event(at * 1000, 0, pid, "x", system, name, fields)  # type: ignore[arg-type]


QUEUED = ("queue",) * 3
RUN = ("start", "run", "end")
STALL = ("start", "no_credits", "end")


@pytest.mark.parametrize(
    ("told", "silent"),
    [
        ((*QUEUED, *RUN, *STALL, "done"), 0),
        # The credit came back while the worker looked.
        ((*QUEUED, *RUN, "start", "done", "end", *RUN), 0),
        # It came late, and there was one.
        ((*QUEUED, *RUN, "done", *RUN), 0),
        # One job may still be on its way to the queue.
        (("queue", "start", "end"), 0),
        # Nothing in the queue, nothing to report.
        (("queue", *RUN, "start", "end"), 0),
        # Another work item.
        ((*QUEUED, *RUN, "other", "end"), 0),
        # By another policy than FIFO, a job comes up that depends on a later one.
        ((*QUEUED, *RUN, "start", "unschedulable", "end"), 0),
        # A report that was left out.
        ((*QUEUED, *RUN, "start", "end", "done"), 1),
        ((*QUEUED, *RUN, *STALL, "start", "end", "done"), 1),
    ],
)
def test_a_shortage_without_a_report_is_seen(
    checks: ModuleType, told: tuple[str, ...], silent: int
) -> None:
    passes = checks._passes(Load(told))
    assert sum(call.is_silent for call in passes) == silent


def test_two_reports_of_one_shortage_are_seen(checks: ModuleType) -> None:
    told = (*QUEUED, *RUN, "start", "no_credits", "no_credits", "end")
    passes = checks._passes(Load(told))
    assert [p.ran + p.reported for p in passes] == [1, 2]


def test_a_report_from_elsewhere_is_in_no_pass(checks: ModuleType) -> None:
    passes = checks._passes(Load((*QUEUED, *RUN, "no_credits")), least=0)
    assert sum(p.reported for p in passes) == 0


MS = 1_000_000
#: A job waits on a ring for a container of three fences, each of a ring of its own.
JOB, CONTAINER = (48, 2), (60, 1)
INSIDE = ((30, 1), (33, 1), (36, 1))


@dataclass(frozen=True)
class Told:
    """A workload of which these events were told."""

    told: tuple[Event, ...]

    def events(self, name: str | None = None) -> tuple[Event, ...]:
        return tuple(event for event in self.told if name in (None, event.name))

    record = events

    def older(self, *new: str) -> tuple[Event, ...]:
        return tuple(event for event in self.told if event.name not in new)


def _drm(
    ms: float, cpu: int, name: str, fence: tuple[int, int], /, **more: object
) -> Event:
    fields = {"fence_context": fence[0], "fence_seqno": fence[1], **more}
    pid = WORKER if name in ("run", "wait", "unschedulable") else TESTER
    known = "gpu_scheduler", f"drm_sched_job_{name}"
    return Event(int(ms * MS), cpu, pid, "x", *known, fields)  # type: ignore[arg-type]


def _dma(ms: float, cpu: int, name: str, fence: tuple[int, int]) -> Event:
    fields: dict[str, str | int | tuple[int, ...]] = {
        "context": fence[0],
        "seqno": fence[1],
    }
    known = "dma_fence", f"dma_fence_{name}"
    return Event(int(ms * MS), cpu, WORKER, "x", *known, fields)


def _container_case(order: tuple[int, ...], *, looked_at: bool) -> Told:
    """Fences that signal at 50, 100 and 150 ms, and what they are in after that."""
    told = [
        *(
            _drm(i, 0, "queue", fence, dev=f"link-{i}")
            for i, fence in enumerate(INSIDE)
        ),
        *(
            _drm(3 + i, 0, "run", fence, dev=f"link-{i}")
            for i, fence in enumerate(INSIDE)
        ),
        _drm(10, 0, "queue", JOB, dev="ring"),
        _drm(10.01, 0, "add_dep", JOB, ctx=CONTAINER[0], seqno=CONTAINER[1]),
    ]
    if looked_at:
        told.append(_drm(10.1, 1, "no_credits", JOB))
    else:
        told.append(_drm(10.1, 1, "unschedulable", JOB, ctx=60, seqno=1))
        told.append(_dma(10.2, 1, "enable_signal", CONTAINER))
    for number, which in enumerate(order):
        at = 60 + 50 * number
        told.append(_drm(at, 0, "done", INSIDE[which]))
        told.append(_dma(at + 0.01, 0, "signaled", INSIDE[which]))
    if looked_at:
        # It is said to be waited for before the look finds that it is done.
        told.append(_drm(200, 1, "unschedulable", JOB, ctx=60, seqno=1))
        told.append(_dma(201.2, 1, "enable_signal", CONTAINER))
        told.append(_dma(201.3, 1, "signaled", CONTAINER))
    else:
        told.append(_dma(160.5, 0, "signaled", CONTAINER))
    told.append(_drm(202, 1, "wait", JOB, wait_ns=192 * MS))
    told.append(_drm(202.1, 1, "run", JOB, dev="ring"))
    return Told(tuple(told))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1)])
def test_a_container_is_done_with_the_last_of_its_fences(
    checks: ModuleType, order: tuple[int, ...]
) -> None:
    load = _container_case(order, looked_at=False)
    jobs, signals = checks._jobs(load), checks._signals(load)
    deps, ordering, low, high = checks._expected(jobs[JOB], jobs, signals)
    assert (deps, ordering) == (1, 0)
    # Neither when the first, nor when the second fence signalled, nor at the run.
    assert 149.9 * MS < low < high < 150.6 * MS
    assert not signals[CONTAINER].looked_at


def test_a_container_that_nobody_had_looked_at_is_late(checks: ModuleType) -> None:
    load = _container_case((0, 1, 2), looked_at=True)
    jobs, signals = checks._jobs(load), checks._signals(load)
    _, _, low, high = checks._expected(jobs[JOB], jobs, signals)
    # Though _unschedulable told of it before: that comes before the look.
    assert low < 191.25 * MS < high
    assert low > 191 * MS
    assert signals[CONTAINER].looked_at


@pytest.mark.parametrize(
    ("forget", "wrong"),
    [
        ("none", set()),
        ("a look", {"fences in containers that signalled when looked at"}),
        ("an order", {"orders in which the fences in containers signalled"}),
        ("a container", {"jobs that waited for a container"}),
    ],
)
def test_what_the_containers_did_is_held_against_what_they_hold(
    checks: ModuleType, forget: str, wrong: set[str]
) -> None:
    held, jobs, signals = [], {}, {}
    cases = [(order, False) for order in checks.ORDERS for _ in range(2)]
    cases += [((0,), looked_at) for looked_at in (True, True, True, True, False)]
    if forget == "a look":
        cases[-2] = ((0,), False)
    elif forget == "an order":
        cases[2] = cases[0]
    for number, (order, looked_at) in enumerate(cases):
        load = _later(_container_case(order, looked_at=looked_at), number)
        jobs.update(checks._jobs(load))
        signals.update(checks._signals(load))
        held.append(jobs[JOB[0] + 100 * number, JOB[1]])
    if forget == "a container":
        held[0].deps.clear()
    verdict = Verdict()
    checks._containers_are_timed(verdict, held, jobs, signals)
    failed = {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    }
    assert failed >= wrong
    assert bool(failed) == bool(wrong)


def test_the_last_dependency_is_the_one_that_signalled_last(
    checks: ModuleType,
) -> None:
    load = _container_case((0, 1, 2), looked_at=False)
    jobs, signals = checks._jobs(load), checks._signals(load)
    assert checks._last(jobs[JOB], jobs, signals) == {CONTAINER}
    # As dependencies of their own they are in nothing, and the last to end is named.
    jobs[JOB].deps[:] = [*INSIDE, checks._STUB]
    assert checks._last(jobs[JOB], jobs, signals) == {INSIDE[2]}
    jobs[JOB].deps[:] = [checks._STUB]
    assert checks._last(jobs[JOB], jobs, signals) == {checks._NO_FENCE}


def test_what_had_ended_before_the_push_need_not_be_named(checks: ModuleType) -> None:
    load = _container_case((0, 1, 2), looked_at=False)
    jobs, signals = checks._jobs(load), checks._signals(load)
    jobs[JOB].deps[:] = [INSIDE[0]]
    jobs[INSIDE[0]].signalled = (5 * MS, 6 * MS)
    assert checks._last(jobs[JOB], jobs, signals) == {checks._NO_FENCE}
    # It may have been while the job was pushed.
    jobs[INSIDE[0]].signalled = (5 * MS, 50 * MS)
    assert checks._last(jobs[JOB], jobs, signals) == {INSIDE[0], checks._NO_FENCE}


@pytest.mark.parametrize(("done_at", "running"), [(50, False), (110, True)])
def test_a_job_beside_is_not_waited_for(
    checks: ModuleType, done_at: int, running: bool
) -> None:
    beside = (30, 1)
    told = [
        _drm(0, 0, "queue", beside, dev="ring"),
        _drm(1, 1, "run", beside, dev="ring"),
        _drm(10, 0, "queue", JOB, dev="ring"),
        _drm(10.1, 0, "add_dep", JOB, ctx=beside[0], seqno=beside[1]),
        _drm(100, 1, "run", JOB, dev="ring"),
        _drm(done_at, 0, "done", beside),
    ]
    told.sort(key=lambda event: event.ts_ns)
    jobs = checks._jobs(Told(tuple(told)))
    assert checks._beside_running(jobs[JOB], jobs) == running
    assert not checks._beside_running(jobs[beside], jobs)


@pytest.mark.parametrize(
    ("credits", "wrong"),
    [
        ((1, 4, 2), 0),
        # On an empty ring it is what is in use.
        ((2, 4, 2), 1),
        ((1, 3, 2), 1),
        ((1, 6, 2), 1),
        # The first job is not told to be done: it may have given its credit back.
        ((1, 5, 2), 0),
        ((1, 4, 1), 1),
    ],
)
def test_a_job_takes_by_what_those_in_use_grow(
    checks: ModuleType, credits: tuple[int, ...], wrong: int
) -> None:
    told = []
    for number, (needs, used) in enumerate(zip(credits, (1, 5, 2), strict=True)):
        fence = (30, number)
        if number == 2:
            told += [_drm(25 + i, 0, "done", (30, i)) for i in range(2)]
        told.append(_drm(10 * number, 1, "wait", fence, credits=needs))
        told.append(_drm(10 * number + 1, 1, "run", fence, dev="r", hw_job_count=used))
    assert checks._wrong_credits(Told(tuple(told))) == (wrong, 2)


def _later(load: Told, number: int) -> Told:
    """The same once more, ``number`` seconds later and with other fences."""

    def moved(event: Event) -> Event:
        fields = {
            name: value + 100 * number
            if name in ("context", "fence_context", "ctx") and isinstance(value, int)
            else value
            for name, value in event.fields.items()
        }
        return replace(event, ts_ns=event.ts_ns + number * 1000 * MS, fields=fields)

    return Told(tuple(map(moved, load.told)))


class _Run:
    """Evidence of one workload."""

    def __init__(self, load: Told) -> None:
        self._load = load

    def workload(self, name: str) -> Told:
        assert name == "split"
        return self._load


def _late_look(number: int, lazy: int, behind: str) -> Told:
    """A container is looked at too late, behind a full ring, a job or a dependency."""
    told = list(_container_case((0, 1, 2), looked_at=True).told)
    wait = next(event for event in told if event.name == "drm_sched_job_wait")
    named = {"ctx": CONTAINER[0], "seqno": CONTAINER[1]}
    fields = {**wait.fields, **named, "dep_ns": 251 * MS, "lazy_deps": lazy}
    # What comes after all in it has ended comes 60 ms later.
    told = [
        replace(event, ts_ns=event.ts_ns + 60 * MS)
        if event.ts_ns >= 200 * MS
        else event
        for event in told
        if event is not wait
    ]
    told.append(replace(wait, ts_ns=262 * MS, fields=fields))
    other, before = (90, 1), (JOB[0], JOB[1] - 1)
    if behind != "ring":
        told = [event for event in told if event.name != "drm_sched_job_no_credits"]
    if behind == "job":
        told += [
            _drm(9, 0, "queue", before, dev="ring"),
            _drm(9.1, 0, "add_dep", before, ctx=other[0], seqno=other[1]),
            _drm(9.5, 1, "unschedulable", before, ctx=other[0], seqno=other[1]),
            _drm(10.05, 0, "queue", other, dev="elsewhere"),
            _drm(10.06, 1, "run", other, dev="elsewhere"),
            _drm(240, 1, "run", before, dev="ring"),
        ]
    elif behind.startswith("dependency"):
        # Of one that ends too early for that, the look is late for no reason.
        at = 180 if behind.endswith("done") else 250
        told += [
            _drm(9, 0, "queue", other, dev="elsewhere"),
            _drm(9.5, 1, "run", other, dev="elsewhere"),
            _drm(10.005, 0, "add_dep", JOB, ctx=other[0], seqno=other[1]),
            _drm(10.1, 1, "unschedulable", JOB, ctx=other[0], seqno=other[1]),
            _drm(at, 0, "done", other),
            _dma(at + 0.01, 0, "signaled", other),
        ]
    told.sort(key=lambda event: event.ts_ns)
    return _later(Told(tuple(told)), number)


LONGER = "jobs with a dep_ns that is longer by a hold"
MISNAMED = "jobs that name what ended a hold before another"


@pytest.mark.parametrize(
    ("cases", "wrong"),
    [
        ("1 ring, 1 ring, 1 job, 1 dependency", set()),
        # One is not marked: then it is no upper limit, but wrong.
        (
            "1 ring, 0 ring, 1 job, 1 dependency",
            {LONGER, "lazy_deps of these", "dep_ns of 148:2, longer by"},
        ),
        # Behind a job nothing else tells of it; behind a full ring a report does.
        (
            "1 ring, 1 ring, 1 ring, 1 dependency",
            {"of these, with no report of missing credits"},
        ),
        ("1 ring, 1 ring, 1 job", {MISNAMED, "lazy_deps of that"}),
        (
            "1 ring, 1 ring, 1 job, 0 dependency",
            {MISNAMED, "lazy_deps of that", "dep_ns of 348:2, longer by"},
        ),
        # This one had ended long before the look, and is no excuse.
        (
            "1 ring, 1 ring, 1 job, 1 dependency done",
            {
                *(MISNAMED, "lazy_deps of that", LONGER, "lazy_deps of these"),
                "of these, with no report of missing credits",
                "time for which a job was ahead",
            },
        ),
    ],
)
def test_a_late_look_has_to_be_marked(
    checks: ModuleType, cases: str, wrong: set[str]
) -> None:
    told: list[Event] = []
    for number, case in enumerate(cases.split(", ")):
        lazy, behind = case.split(" ", 1)
        told += _late_look(number, int(lazy), behind).told
    verdict = checks.a_late_look_is_marked(_Run(Told(tuple(told))))
    failed = {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    }
    assert failed == wrong


@pytest.mark.parametrize(
    ("stalled", "wrong"),
    [
        ((), set()),
        # Of the job that fills the ring, before it runs.
        ((0.5,), {"drm_sched_job_no_credits events"}),
    ],
)
def test_a_ring_that_is_exactly_full_may_not_be_reported(
    checks: ModuleType, stalled: tuple[float, ...], wrong: set[str]
) -> None:
    ring = {"dev": "drm_sched_trace_credits_limit.drm-mock-scheduler-73"}
    told = (
        _drm(0, 0, "run", (50, 1), hw_job_count=1, **ring),
        *(_drm(ms, 0, "no_credits", (51, 1), **ring) for ms in stalled),
        _drm(1, 0, "run", (51, 1), hw_job_count=4, **ring),
    )
    verdict = checks.exactly_full_is_no_shortage(_Run(Told(told)))
    failed = {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    }
    assert failed == wrong


# -- times that the host has changed ---------------------------------------------------

CREDIT_JOBS = ((70, 1), (70, 2))


def _call(ms: float, name: str) -> Event:
    """The scheduler's worker begins or ends."""
    fields: dict[str, str | int | tuple[int, ...]] = {
        "function": "drm_sched_run_job_work [gpu_sched]"
    }
    known = "workqueue", f"workqueue_execute_{name}"
    return Event(int(ms * MS), 1, WORKER, "x", *known, fields)


def _credits(held_ms: float, *, calls: str, wait_ms: float) -> Told:
    """A job that keeps the only credit for a while, and one behind it.

    The worker runs the first, and then comes again as often as there are ``calls``,
    each of which reports (r), is silent (s), or does not end before the job does (o);
    an empty queue (e) is found before the second job is pushed.
    """
    own: dict[str, object] = {"dev": "ring", "name": "x", "client_id": 1}
    none = dict.fromkeys((*("ctx", "seqno", "deps", "order_deps"), "lazy_deps"), 0)
    none |= {"dep_ns": 0, "credits": 1}
    full = dict.fromkeys(("credits", "credit_count", "credit_limit", "job_count"), 1)
    first, second = CREDIT_JOBS
    told = [
        _drm(0, 0, "queue", first, **own),
        _call(0.5, "start"),
        _drm(1, 1, "wait", first, **own, **none, wait_ns=MS),
        _drm(2, 1, "run", first, **own, hw_job_count=1),
        _call(2.5, "end"),
        *(_call(2.6, name) for name in ("start", "end") if "e" in calls),
        _drm(3, 0, "queue", second, **own),
        _drm(4, 0, "queue", (80, 1), **own),
    ]
    for number, call in enumerate(calls.replace("e", "")):
        began = 5 + number
        told.append(_call(began, "start"))
        if call == "r":
            report = _drm(began, 1, "no_credits", second, **own, **full)
            told.append(replace(report, pid=WORKER))
        if call != "o":
            told.append(_call(began + 0.5, "end"))
    at = 3 + held_ms
    told += [
        _drm(at, 0, "done", first, **own),
        _drm(at + 1, 1, "wait", second, **own, **none, wait_ns=int(wait_ms * MS)),
        _drm(at + 2, 1, "run", second, **own, hw_job_count=1),
    ]
    return Told(tuple(told))


class _Named(_Run):
    """The same as several workloads."""

    def workload(self, name: str) -> Told:
        return self._load


HELD = "time the ring was kept full"
CAME = "the worker came to the second job"


@pytest.mark.parametrize(
    ("held", "calls", "wait", "wrong", "status"),
    [
        (1000, "r", 1001, set(), "pass"),
        # Before the second job was pushed, and after that.
        (1000, "sr", 1001, set(), "pass"),
        # The CPU that counts ticks stood still before.
        (300, "r", 301, {HELD}, "error"),
        # The worker did not run meanwhile, or not to its end.
        (1000, "", 1001, {CAME}, "error"),
        (1000, "o", 1001, {CAME}, "error"),
        (1000, "e", 1001, {CAME}, "error"),
        # It looked, and said nothing.
        (1000, "s", 1001, {"its last call reported that"}, "fail"),
        (1000, "rs", 1001, {"its last call reported that"}, "fail"),
        (1000, "r", 900, {"wait_ns of the second job"}, "fail"),
        (300, "r", 900, {HELD, "wait_ns of the second job"}, "fail"),
    ],
)
def test_a_ring_that_is_kept_full(
    checks: ModuleType,
    held: float,
    calls: str,
    wait: float,
    wrong: set[str],
    status: str,
) -> None:
    evidence = _Named(_credits(held, calls=calls, wait_ms=wait))
    judge = checks.second_job_waits_for_credits
    verdict = judge(evidence)
    labels = {compared.label for compared in verdict.comparisons if not compared.ok}
    assert labels == wrong
    assert run_check("it", "positive", "", judge, evidence).status == status


def test_older_events_may_come_late(checks: ModuleType) -> None:
    """The host takes a CPU away for 10 ms between each wait and its run's event."""
    own: dict[str, object] = {"dev": "ring", "name": "x", "client_id": 1}
    none = dict.fromkeys((*("ctx", "seqno", "deps", "order_deps"), "lazy_deps"), 0)
    none |= {"dep_ns": 0, "credits": 1, "wait_ns": MS}
    told: list[Event] = []
    for number in range(101):
        fence, at = (90, number), 20 * number
        told += [
            _drm(at, 0, "queue", fence, **own),
            _drm(at + 1, 0, "queue", (92, number), **own),
            _drm(at + 2, 1, "wait", fence, **own, **none),
            _drm(at + 12, 1, "run", fence, **own, hw_job_count=1),
            _drm(at + 13, 1, "done", fence, **own),
        ]
    evidence = _Named(Told(tuple(told)))
    verdict = checks.times_agree_with_older_events(evidence)
    assert {c.label for c in verdict.comparisons if not c.ok} == set()


@pytest.mark.parametrize(
    ("full", "wait", "status"),
    [
        (900, 1001, "pass"),
        (100, 1001, "error"),
        (0, 1001, "fail"),
        (1002, 1001, "fail"),
    ],
)
def test_a_worker_that_reports_late(
    checks: ModuleType, full: int, wait: int, status: str
) -> None:
    def judge() -> Verdict:
        verdict = Verdict()
        checks._ring_was_full(verdict, full * MS, wait * MS)
        return verdict

    assert run_check("it", "positive", "", judge).status == status
