# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the sched-throttle series.

What is held against the new events is none of theirs: cpu.stat and cpu.stat.local,
which the kernel kept before, the CPU times of /proc, what the tasks saw on their own
clock, and older trace events.  No check has a time that is only thought to be enough:
the host may take the CPU away for long between any two instructions.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult

MS = 1_000_000
#: ftrace prints microseconds.
ROUNDING_NS = 1000
#: How often something is throttled in a workload, at least: it waits for more.
ENDS = 10
#: How exactly it is known for how long a CPU idled.
IDLE_US = 10_000

_WORKLOADS = (
    "lone",
    "three",
    "syscall",
    "move",
    "nested",
    "quiet",
    "trainer",
)
_QUEUE = ("sched_cfs_throttle", "sched_cfs_unthrottle")
_TASK = ("sched_cfs_throttle_task", "sched_cfs_unthrottle_task")


@dataclass(frozen=True)
class Run:
    """A workload: what it printed about itself, and what was recorded of it."""

    load: WorkloadResult
    facts: tuple[Mapping[str, Any], ...]

    def all(self, what: str) -> list[Mapping[str, Any]]:
        """The printed lines of one kind."""
        return [fact for fact in self.facts if fact["what"] == what]

    def group(self, name: str) -> Mapping[str, Any]:
        """What was printed last about a control group."""
        return [fact for fact in self.all("group") if fact["name"] == name][-1]

    def task(self, name: str) -> Mapping[str, Any]:
        """What a task printed."""
        return next(fact for fact in self.all("task") if fact["name"] == name)

    def step(self, name: str, task: str) -> Mapping[str, Any]:
        """What was done to a task, and when."""
        return next(
            fact
            for fact in self.all("step")
            if (fact["name"], fact["task"]) == (name, task)
        )

    def record(self, *names: str, **fields: int) -> list[Event]:
        """The recorded events of these names and values, in time order."""
        return [
            event
            for event in self.load.record()
            if event.name in names
            and all(event.fields.get(key) == value for key, value in fields.items())
        ]

    def chain(self, cgroup: int) -> Iterator[int]:
        """A group's id and those of its parents."""
        parents = {fact["cgroup"]: fact["parent"] for fact in self.all("group")}
        while cgroup in parents:
            yield cgroup
            cgroup = parents[cgroup]


def group_time_is_cpu_stat(ev: Evidence) -> Verdict:
    """Each group is new in its workload, so its counters are sums from zero."""
    v = Verdict()
    for run in (_run(ev, name) for name in _WORKLOADS):
        for name in dict.fromkeys(fact["name"] for fact in run.all("group")):
            group = run.group(name)
            ends = run.record("sched_cfs_unthrottle", cgroup=group["cgroup"])
            v.equal(
                f"{run.load.name}: {name}: sum of delta / 1000",
                sum(_delta(end) for end in ends) // 1000,
                group["stat"]["throttled_usec"],
            )
    for name, group_name in (("lone", "lone"), ("trainer", "loader")):
        group = _run(ev, name).group(group_name)
        used = group["stat"]["throttled_usec"]
        # All of its tasks would have run on the CPU that idled.
        v.at_least(
            f"{name}: {group_name}: throttled_usec",
            used,
            max(ENDS * IDLE_US, group["seen"]["idle_us"] - 2 * IDLE_US),
        )
    return v


def lone_task_is_its_group(ev: Evidence) -> Verdict:
    """What the queue's clock says at both ends is what the task's says."""
    v = Verdict()
    for name, group in (("lone", "lone"), ("nested", "pod")):
        run = _run(ev, name)
        facts = run.group(group)
        ends = run.record("sched_cfs_unthrottle", cgroup=facts["cgroup"])
        # Throttled, but let go before the task was back in user space: nothing lost.
        queue = [_delta(end) for end in ends if _delta(end)]
        task = run.record("sched_cfs_unthrottle_task", task=run.task(name)["pid"])
        grown = facts["seen"]["grown"]
        v.at_least(f"{name}: ends", len(task), max(ENDS, grown))
        v.equal(f"{name}: ends of the task and of its queue", len(task), len(queue))
        differing = sum(_delta(a) != b for a, b in zip(task, queue, strict=False))
        v.equal(f"{name}: of which differ by 1 ns or more", differing, 0)
        v.equal(
            f"{name}: sum of the task's delta / 1000",
            sum(map(_delta, task)) // 1000,
            facts["local"]["throttled_usec"],
        )
        starts = run.record("sched_cfs_throttle", cgroup=facts["cgroup"])
        # It counts periods; the last throttling is lifted, which ends none.
        v.at_least(
            f"{name}: nr_throttled", facts["stat"]["nr_throttled"], len(starts) - 1
        )
    return v


def task_saw_the_gaps_itself(ev: Evidence) -> Verdict:
    """The task looks at CLOCK_MONOTONIC all the time, and cannot when throttled."""
    v = Verdict()
    run = _run(ev, "lone")
    task = run.task("lone")
    # A period can end as soon as the task is throttled, and what is shorter than all
    # gaps lies in none.
    seen = [pair for pair in _gaps(run, task) if _delta(pair.end) > task["gap_ns"]]
    v.at_least("throttled while it looked", len(seen), ENDS)
    longer = [pair for pair in seen if pair.gap is None]
    v.equal("of which in no gap", len(longer), 0)
    rests = [pair.gap[1] - pair.gap[0] - _delta(pair.end) for pair in seen if pair.gap]
    v.at_least("gap - delta, least", min(rests, default=-1), 0, "ns")
    every = _gaps(run, task)
    throttled = sum(_delta(pair.end) for pair in every)
    wall = task["end_ns"] - task["begin_ns"] + sum(_both(run, task, every))
    v.at_most("run + throttled", task["run_ns"] + throttled, wall, "ns")
    return v


def older_events_do_not_tell(ev: Evidence) -> Verdict:
    """What the commit messages claim about mainline, seen."""
    v = Verdict()
    run = _run(ev, "lone")
    task = run.task("lone")
    pid = task["pid"]
    switches = run.load.events("sched_switch")
    states: Counter[str] = Counter()
    for start in run.record(_TASK[0], task=pid):
        after = next(
            switch
            for switch in switches
            if switch.cpu == start.fields["on"]
            and switch.ts_ns >= start.ts_ns - ROUNDING_NS
        )
        who = "it" if after.fields["prev_pid"] == pid else "another"
        states[f"{who} in {after.fields['prev_state']}"] += 1
    v.true(
        "the next sched_switch after each start",
        bool(states) and set(states) <= {"it in R", "it in R+"},
        ", ".join(f"{count} x {what}" for what, count in sorted(states.items())),
    )
    seen = _gaps(run, task)
    throttled = sum(_delta(pair.end) for pair in seen)
    v.at_least("throttled", throttled, ENDS * 10 * MS, "ns")
    # All gaps are within the task's own loop, which never sleeps.
    woken = [
        wakeup
        for wakeup in run.load.events("sched_wakeup")
        if wakeup.fields["pid"] == pid
        and any(p.gap and p.gap[0] <= wakeup.ts_ns <= p.gap[1] for p in seen)
    ]
    v.equal("sched_wakeup while throttled or at the end", len(woken), 0)
    told = sum(
        _int(event, "delay")
        for name in ("wait", "sleep", "iowait", "blocked")
        for event in run.load.events(f"sched_stat_{name}")
        if event.fields["pid"] == pid
        and task["begin_ns"] <= event.ts_ns - _int(event, "delay")
        and event.ts_ns <= task["end_ns"]
    )
    both = _both(run, task, seen)
    rest = task["end_ns"] - task["begin_ns"] - task["run_ns"] - throttled + sum(both)
    v.at_most("sched_stat_{wait,sleep,iowait,blocked}", told, rest, "ns")
    # Its clock starts only when the task is switched out.
    least = throttled - sum(both)
    v.at_least("run_delay", task["run_delay_ns"], least, "ns")
    if least < 10 * MS:
        v.undecide("too little of its time is known to be throttled")
    return v


def three_tasks_wait_for_one_queue(ev: Evidence) -> Verdict:
    """They stop one after the other and go on together."""
    v = Verdict()
    run = _run(ev, "three")
    cgroup = run.group("three")["cgroup"]
    pids = [task["pid"] for task in run.all("task")]
    v.equal("tasks", len(pids), 3)
    # Each of them stood still whenever their CPU idled; see the workload's Watch.
    known = max(ENDS, run.group("three")["seen"]["stood"] // 2)
    for pid in pids:
        count = len(run.record(_TASK[1], task=pid))
        v.at_least(f"ends of task {pids.index(pid)}", count, known)
    tasks = run.record(_TASK[1], cgroup=cgroup)
    queue = [end for end in run.record(_QUEUE[1], cgroup=cgroup) if _delta(end)]
    together = {
        _clock(end): [_delta(t) for t in tasks if _clock(t) == _clock(end)]
        for end in queue
    }
    v.equal(
        "tasks that end with their queue", sum(map(len, together.values())), len(tasks)
    )
    # How many stop before there is quota again is for the scheduler to say, and for the
    # host; those that did go on.
    held: set[int] = set()
    differing = 0
    for event in run.record(*_TASK, _QUEUE[1], cgroup=cgroup):
        if event.name == _TASK[0]:
            held.add(_int(event, "task"))
        elif event.name == _TASK[1]:
            held.discard(_int(event, "task"))
        elif _clock(event) in together:
            differing += len(together[_clock(event)]) != len(held)
    v.equal("queues that let others go than stood still", differing, 0)
    most = max(map(len, together.values()), default=0)
    v.within("of one queue, most", most, 2, len(pids))
    longest = [max(together[_clock(end)], default=0) - _delta(end) for end in queue]
    v.equal("queues whose first task has another delta", sum(map(bool, longest)), 0)
    return v


def system_call_is_not_interrupted(ev: Evidence) -> Verdict:
    """Syscall events say when the call ended; a debt of n quotas takes n periods."""
    v = Verdict()
    run = _run(ev, "syscall")
    task, group = run.task("syscall"), run.group("syscall")
    quota, period = group["quota_us"] * 1000, group["period_us"] * 1000
    call = task["call"]
    enter, leave = _call(run.load, task["pid"], call)
    kernel = leave - enter
    v.within(
        "sys_enter to sys_exit", kernel, 3 * quota, call["end_ns"] - call["begin_ns"]
    )
    during = [
        event
        for event in run.record(_QUEUE[0], cgroup=group["cgroup"])
        if enter < event.ts_ns < leave
    ]
    v.at_least("sched_cfs_throttle in the call", len(during), 1)
    pairs = _alternating(run.record(*_TASK, task=task["pid"]), _TASK, ("task",)).pairs
    inside = [a for a, b in pairs if a.ts_ns < leave and enter < b.ts_ns]
    v.equal("throttled in the call", len(inside), 0)
    # Before the first instruction of user space after it, that is.
    after = [(a, b) for a, b in pairs if leave < a.ts_ns and b.ts_ns < call["end_ns"]]
    v.at_least("throttled between sys_exit and user space", len(after), 1)
    if not after:
        return v
    start, end = after[0]
    v.at_most("delta", _delta(end), call["end_ns"] - leave, "ns")
    debt = -_int(start, "remaining")
    # Charged until then is what the task ran, but for what it did after the call.
    lost = sum(_delta(b) for a, b in pairs if leave < b.ts_ns < call["after_ns"])
    charged = call["run_ns"] - (call["after_ns"] - leave - lost)
    # The queue and the group each had one quota at most; one came in each period.
    least = charged - (kernel // period + 3) * quota
    v.at_least("debt, with all quotas it can have had", least, quota, "ns")
    v.within("debt at that time", debt, least, call["cpu_ns"], "ns")
    # One refill may have been due already, another one comes within a period.
    v.at_least("delta", _delta(end), (debt // quota - 1) * period, "ns")
    return v


def leaving_the_group_ends_it(ev: Evidence) -> Verdict:
    """The driver saw the task stand still, and from then on move."""
    v = Verdict()
    run = _run(ev, "move")
    step = run.step("leave", "by-group")
    _one_end(v, run, step)
    ends = _during(run, step, _TASK[1])
    there = {end.fields["cgroup"] for end in ends}
    v.equal("group of the event", there, {run.group("free")["cgroup"]})
    later = [
        event
        for event in run.record(*_TASK, task=step["pid"])
        if event.ts_ns > step["after_ns"]
    ]
    v.equal("events of the task afterwards", len(later), 0)
    return v


def changing_the_cpu_ends_it(ev: Evidence) -> Verdict:
    """There and back: the way back is to a queue that still is throttled."""
    v = Verdict()
    run = _run(ev, "move")
    there, back = run.step("cpu1", "by-cpu"), run.step("back", "by-cpu")
    _one_end(v, run, there)
    v.equal(
        "CPU of the event", [e.fields["on"] for e in _during(run, there, _TASK[1])], [1]
    )
    again = [
        event
        for event in run.record(_TASK[0], task=there["pid"])
        if there["before_ns"] <= event.ts_ns <= back["before_ns"]
    ]
    v.equal("CPUs of its next starts", [e.fields["on"] for e in again], [1])
    v.equal("events on the way back", len(_during(run, back, *_TASK)), 0)
    lift = run.step("lift", "by-cpu")
    _one_end(v, run, lift)
    v.equal(
        "CPU at the end", [e.fields["on"] for e in _during(run, lift, _TASK[1])], [0]
    )
    return v


def changing_the_class_ends_it(ev: Evidence) -> Verdict:
    """The second start is the only one that is not the task's own doing."""
    v = Verdict()
    run = _run(ev, "move")
    fifo, fair = run.step("fifo", "by-class"), run.step("fair", "by-class")
    _one_end(v, run, fifo)
    between = [
        event
        for event in run.record(*_TASK, task=fifo["pid"])
        if fifo["after_ns"] < event.ts_ns < fair["before_ns"]
    ]
    v.equal("events while SCHED_FIFO", len(between), 0)
    starts = _during(run, fair, _TASK[0])
    v.equal("starts when SCHED_OTHER again", len(starts), 1)
    (driver,) = run.all("driver")
    v.equal("current in these", {event.pid for event in starts}, {driver["pid"]})
    v.equal("ends then", len(_during(run, fair, _TASK[1])), 0)
    _one_end(v, run, run.step("lift", "by-class"))
    return v


def nested_limit_is_told_apart(ev: Evidence) -> Verdict:
    """The pod has the limit, its child has the task."""
    v = Verdict()
    run = _run(ev, "nested")
    pod, train = run.group("pod"), run.group("train")
    for events, group in ((_QUEUE, pod), (_TASK, train)):
        seen = {event.fields["cgroup"] for event in run.record(*events)}
        v.equal(f"groups of {events[0]}", seen, {group["cgroup"]})
    v.equal("throttled_usec of the child", train["stat"]["throttled_usec"], 0)
    v.equal(
        "sum of the task's delta / 1000",
        sum(map(_delta, run.record(_TASK[1]))) // 1000,
        train["local"]["throttled_usec"],
    )
    return v


def switched_on_half_way(ev: Evidence) -> Verdict:
    """No recorder here: it would switch on what stands beside sched_stat_throttled."""
    v = Verdict()
    turns = _run(ev, "late").all("late")
    v.equal("turns", len(turns), 2)
    for number, turn in enumerate(turns, 1):
        delays = [
            int(found[1])
            for line in turn["lines"]
            if (found := re.search(r" sched_stat_throttled: .* delay=(\d+) ", line))
        ]
        v.equal(f"turn {number}: events", len(delays), 1)
        delay = max(delays, default=0)
        # A difference of two counters that are cut to microseconds.
        used = turn["throttled_usec"]
        v.within(f"turn {number}: delay / 1000", delay // 1000, used - 1, used + 1)
        v.at_least(
            f"turn {number}: throttled before it was on",
            turn["on_ns"] - turn["seen_ns"],
            100 * MS,
            "ns",
        )
        known = turn["lifted_ns"] - turn["seen_ns"]
        v.at_least(f"turn {number}: delay", delay, known, "ns")
        v.at_least(
            f"turn {number}: then throttled unseen", turn["unseen_usec"], 100_000
        )
    return v


def free_group_is_silent(ev: Evidence) -> Verdict:
    """Silence counts only beside a task that is throttled."""
    v, run = _quiet(ev, "free")
    v.at_least("CPU time", run.task("free")["run_ns"], 500 * MS, "ns")
    return v


def moderate_use_is_silent(ev: Evidence) -> Verdict:
    """It asks for slices and gets them."""
    v, run = _quiet(ev, "duty")
    task = run.task("duty")
    v.at_least("CPU time", task["run_ns"], 100 * MS, "ns")
    periods = run.group("duty")["stat"]["nr_periods"]
    v.at_least("nr_periods", periods, 2)
    return v


def real_time_is_silent(ev: Evidence) -> Verdict:
    """The quota is not for it."""
    v, run = _quiet(ev, "fifo")
    # In no more than a period a task of the fair class has two quotas of 20 ms at most,
    # and some of a tick.
    most = [cpu for wall, cpu in run.task("fifo")["bursts"] if wall <= 100 * MS]
    if not most:
        v.undecide("the host has stretched each burst beyond a period")
        return v
    v.at_least("CPU time within a period, most", max(most), 50 * MS, "ns")
    return v


def moving_is_silent(ev: Evidence) -> Verdict:
    """Ten rounds of what ends the throttling of a task that is throttled."""
    v, run = _quiet(ev, "moved")
    periods = run.group("moved")["stat"]["nr_periods"]
    v.at_least("nr_periods", periods, 1)
    v.at_least("CPU time", run.task("moved")["run_ns"], 100 * MS, "ns")
    return v


def ends_match_starts(ev: Evidence) -> Verdict:
    """The clock is read from the queue by the recorder, not by the events."""
    v = Verdict()
    for run in (_run(ev, name) for name in _WORKLOADS):
        name = run.load.name
        queues = _alternating(run.record(*_QUEUE), _QUEUE, ("cgroup", "on"))
        tasks = _alternating(run.record(*_TASK), _TASK, ("task",))
        v.at_least(f"{name}: tasks throttled", len(tasks.pairs), 1)
        v.equal(f"{name}: tasks, out of turn or left open", tasks.odd, 0)
        v.equal(f"{name}: queues, out of turn or left open", queues.odd, 0)
        same = [(a, b) for a, b in tasks.pairs if a.fields["on"] == b.fields["on"]]
        wrong = [(a, b) for a, b in same if _delta(b) != _clock(b) - _clock(a)]
        v.equal(f"{name}: tasks, other than the clock's difference", len(wrong), 0)
        starts = run.record(_TASK[0])
        wrong = [
            (a, b)
            for a, b in queues.pairs
            if _delta(b) != _since_first(run, starts, a, b)
        ]
        v.equal(f"{name}: queues, other than the clock's difference", len(wrong), 0)
    return v


def records_come_when_the_clock_is_read(ev: Evidence) -> Verdict:
    """The recorder reads CLOCK_MONOTONIC, and the clock of the event's queue.

    How far these are from each other is what they are apart when all is at its fastest:
    the least over dozens of records, as a host that takes the CPU away only adds to it.
    """
    v = Verdict()
    for name in ("lone", "three", "nested", "quiet", "trainer"):
        run = _run(ev, name)
        ages = {
            event: [e.ts_ns - _clock(e) for e in run.record(event)]
            for event in (*_QUEUE, *_TASK)
        }
        for event, own in ages.items():
            others = [min(a) for other, a in ages.items() if a and other != event]
            v.at_least(f"{name}: {event}", len(own), ENDS)
            if own and others:
                apart = abs(min(own) - min(others))
                label = f"{name}: {event}: least time from the clock, and of the others"
                v.at_most(label, apart, MS // 2, "ns")
    return v


def some_quota_is_to_blame(ev: Evidence) -> Verdict:
    """What the script does to find the group, done over."""
    v = Verdict()
    for run in (_run(ev, name) for name in _WORKLOADS):
        blamed = [group for _, group in _blame(run)]
        v.at_least(f"{run.load.name}: throttled tasks", len(blamed), 1)
        nobody = sum(group is None for group in blamed)
        v.equal(f"{run.load.name}: with no queue throttled", nobody, 0)
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """The names are the workload's, the nanoseconds the recorder's."""
    v = Verdict()
    run = _run(ev, "trainer")
    comms = _names(run)
    groups = {fact["cgroup"]: fact["name"] for fact in run.all("group")}
    whose = {
        (start.ts_ns, start.cpu): groups.get(group or 0) for start, group in _blame(run)
    }
    lost: Counter[str] = Counter()
    times: Counter[str] = Counter()
    pairs = _alternating(run.record(*_TASK), _TASK, ("task",)).pairs
    for start, end in pairs:
        own = groups[_int(end, "cgroup")]
        key = f"{comms[_int(end, 'task')]},{own},{whose[start.ts_ns, start.cpu]}"
        lost[key] += _delta(end)
        times[key] += 1
    maps = run.load.bpftrace("sched-throttle-who").maps
    v.equal("@lost_ns", sorted(maps["@lost_ns"].items()), sorted(lost.items()))
    v.equal("@times", sorted(maps["@times"].items()), sorted(times.items()))
    wanted = {
        "NCCL Progress,train,pod-7",
        "python3,train,pod-7",
        "pt_data_worker,loader,loader",
    }
    v.equal("threads, groups and whose quota", set(lost), wanted)
    v.equal(
        "@group_ns / 1000",
        {name: int(ns) // 1000 for name, ns in maps["@group_ns"].items()},
        {n: run.group(n)["stat"]["throttled_usec"] for n in ("loader", "pod-7")},
    )
    hists = run.load.bpftrace("sched-throttle").hists["@ms"]
    told = {
        comm: {b.low or 0: b.count for b in buckets if b.count}
        for comm, buckets in hists.items()
    }
    counted: dict[str, Counter[int]] = defaultdict(Counter)
    for _, end in pairs:
        counted[comms[_int(end, "task")]][_bucket(_delta(end) // MS)] += 1
    v.equal("histograms of delay in ms", _plain(told), _plain(counted))
    return v


# -- what was said


def _run(ev: Evidence, name: str) -> Run:
    load = ev.workload(name)
    return Run(load, tuple(json.loads(line) for line in load.stdout.splitlines()))


def _names(run: Run) -> dict[int, str]:
    """What tasks and their threads are called, by thread id."""
    names = {task["pid"]: task["name"] for task in run.all("task")}
    names |= {step["pid"]: step["task"] for step in run.all("step")}
    for task in run.all("task"):
        names |= {tid: name for name, tid in task.get("threads", {}).items()}
    return names


def _int(event: Event, name: str) -> int:
    return int(event.fields[name])  # type: ignore[arg-type]


def _delta(event: Event) -> int:
    return _int(event, "delta")


def _clock(event: Event) -> int:
    return _int(event, "clock")


@dataclass(frozen=True)
class Seen:
    """A task's throttling, and the gap in its own looks at the clock around it."""

    start: Event
    end: Event
    gap: tuple[int, int] | None


def _gaps(run: Run, task: Mapping[str, Any]) -> list[Seen]:
    """Throttling in the time in which the task looked at its clock."""
    pairs = _alternating(run.record(*_TASK, task=task["pid"]), _TASK, ("task",)).pairs
    return [
        Seen(
            start,
            end,
            next(
                (
                    (here, there)
                    for here, there in task["gaps"]
                    if here <= start.ts_ns and end.ts_ns <= there
                ),
                None,
            ),
        )
        for start, end in pairs
        if task["begin_ns"] <= start.ts_ns and end.ts_ns <= task["last_ns"]
    ]


def _both(run: Run, task: Mapping[str, Any], pairs: Sequence[Seen]) -> list[int]:
    """For how long at most each throttled time is CPU time as well, in ns.

    The task is taken off its queue on the way to user space, and uses the CPU until it
    is switched out: no earlier than its last look at the clock, which precedes both.
    """
    switches = run.load.events("sched_switch")
    return [
        next(
            switch.ts_ns + ROUNDING_NS
            for switch in switches
            if switch.fields["prev_pid"] == task["pid"]
            and switch.ts_ns >= pair.start.ts_ns - ROUNDING_NS
        )
        - (pair.gap[0] if pair.gap else pair.start.ts_ns - task["gap_ns"])
        for pair in pairs
    ]


def _during(run: Run, step: Mapping[str, Any], *names: str) -> list[Event]:
    """The events of a task while something was done to it."""
    return [
        event
        for event in run.record(*names, task=step["pid"])
        if step["before_ns"] <= event.ts_ns <= step["after_ns"]
    ]


def _one_end(v: Verdict, run: Run, step: Mapping[str, Any]) -> None:
    name = f"{step['task']}: {step['name']}"
    ends = _during(run, step, _TASK[1])
    v.equal(f"{name}: ends while it was done", len(ends), 1)
    if ends:
        # The driver had seen it stand still by then, and left it so for a while.
        known = step["before_ns"] - step["seen_ns"]
        v.at_least(f"{name}: throttled before", known, 100 * MS, "ns")
        v.at_least(f"{name}: delta", _delta(ends[0]), known, "ns")


def _call(load: WorkloadResult, pid: int, said: Mapping[str, Any]) -> tuple[int, int]:
    """When the mmap() that a task said it made began and ended in the kernel, in ns."""
    enter, spans = 0, [(0, 0)]
    for event in load.record():
        if event.pid == pid and event.name == "sys_enter_mmap":
            enter = event.ts_ns
        elif event.pid == pid and event.name == "sys_exit_mmap":
            spans.append((enter, event.ts_ns))
    inside = [
        (enter, leave)
        for enter, leave in spans
        if said["begin_ns"] <= enter and leave <= said["end_ns"]
    ]
    return max(inside, key=lambda span: span[1] - span[0], default=(0, 0))


def _quiet(ev: Evidence, name: str) -> tuple[Verdict, Run]:
    """No event of the task and none of its group, in a run that had some."""
    v = Verdict()
    run = _run(ev, "quiet")
    limited = run.task("limited")
    v.at_least("ends of the limited task", len(run.record(_TASK[1])), ENDS)
    v.equal(
        "of which others",
        len(run.record(_TASK[1])) - len(run.record(_TASK[1], task=limited["pid"])),
        0,
    )
    group = run.group(name)
    v.equal("nr_throttled", group["stat"]["nr_throttled"], 0)
    for event in (*_QUEUE, *_TASK):
        seen = len(run.record(event, cgroup=group["cgroup"]))
        v.equal(f"{event} of the group", seen, 0)
    seen = len(run.record(*_TASK, task=run.task(name)["pid"]))
    v.equal("events of the task", seen, 0)
    return v, run


# -- what was recorded


@dataclass(frozen=True)
class Paired:
    """Starts with their ends; ``odd`` counts those that have no other."""

    pairs: tuple[tuple[Event, Event], ...]
    odd: int


def _alternating(
    events: Sequence[Event], names: tuple[str, str], keys: tuple[str, ...]
) -> Paired:
    open_: dict[tuple[int, ...], Event] = {}
    pairs, odd = [], 0
    for event in events:
        key = tuple(_int(event, name) for name in keys)
        start = open_.pop(key, None)
        if event.name == names[0]:
            odd += start is not None
            open_[key] = event
        elif start is None:
            odd += 1
        else:
            pairs.append((start, event))
    return Paired(tuple(pairs), odd + len(open_))


def _since_first(run: Run, starts: Sequence[Event], a: Event, b: Event) -> int:
    """How long the first task had been off the CPU when queue ``b`` was let go.

    The kernel's time of a queue does not begin when it is throttled but when a task
    of it, or of a queue below it, first stops.
    """
    for start in starts:
        if (
            start.fields["on"] == a.fields["on"]
            and a.ts_ns <= start.ts_ns <= b.ts_ns
            and _int(a, "cgroup") in run.chain(_int(start, "cgroup"))
        ):
            return _clock(b) - _clock(start)
    return 0


def _blame(run: Run) -> list[tuple[Event, int | None]]:
    """For each throttled task, the nearest group that is throttled on that CPU."""
    throttled: set[tuple[int, int]] = set()
    found: list[tuple[Event, int | None]] = []
    for event in run.record(*_QUEUE, _TASK[0]):
        place = (_int(event, "cgroup"), _int(event, "on"))
        if event.name == _QUEUE[0]:
            throttled.add(place)
        elif event.name == _QUEUE[1]:
            throttled.discard(place)
        else:
            groups: Iterator[int] = run.chain(place[0])
            found.append(
                (event, next((g for g in groups if (g, place[1]) in throttled), None))
            )
    return found


def _bucket(value: int) -> int:
    """The lower end of bpftrace's power-of-two bucket of ``value``."""
    return value if value < 2 else 1 << (value.bit_length() - 1)


def _plain(hists: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    return {name: dict(sorted(hist.items())) for name, hist in sorted(hists.items())}
