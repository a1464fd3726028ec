# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the sched-throttle series.

The new events are checked only against independent sources: cpu.stat and
cpu.stat.local, which exist without the patches, the CPU times of /proc, what the tasks
saw on their own clock, and older trace events.  No check relies on a time that ought to
be enough: the host may take the CPU away for long between any two instructions.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult

MS = 1_000_000
#: ftrace prints microseconds.
ROUNDING_NS = 1000
#: The least number of throttlings in a workload, which waits for more.
ENDS = 10
#: The least growth of throttled_usec, each time that it was seen to grow.
SEEN_US = 10_000

_WORKLOADS = ("lone", "three", "syscall", "move", "nested", "quiet", "trainer", "io-wq")
_QUEUE = ("sched_cfs_throttle", "sched_cfs_unthrottle")
_TASK = ("sched_cfs_throttle_task", "sched_cfs_unthrottle_task")
#: SCHED_CFS_UNTHROTTLE_*.
REFILL, CHANGE, CLASS = 0, 1, 2


@dataclass(frozen=True)
class Run:
    """A workload: what it printed about itself, and what was recorded of it."""

    load: WorkloadResult
    facts: tuple[Mapping[str, Any], ...]

    def all(self, kind: str) -> list[Mapping[str, Any]]:
        """The printed lines of one kind."""
        return [fact for fact in self.facts if fact["what"] == kind]

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
        # Idle time gives no better bound: a CPU idles on after the end of a throttling
        # until it gets the interrupt, for as long as its host lets it wait.
        group = _run(ev, name).group(group_name)
        v.at_least(
            f"{name}: {group_name}: throttled_usec",
            group["stat"]["throttled_usec"],
            max(ENDS, group["seen"]["grown"]) * SEEN_US,
        )
    return v


def lone_task_is_its_group(ev: Evidence) -> Verdict:
    """cpu.stat.local counts from a group's first task off the CPU to the refill."""
    v = Verdict()
    for name, group, limited in (
        ("lone", "lone", "lone"),
        ("nested", "train", "pod"),
    ):
        run = _run(ev, name)
        spans = _spans(run, run.task(name)["pid"])
        grown = run.group(limited)["seen"]["grown"]
        v.at_least(f"{name}: ends", len(spans), max(ENDS, grown))
        v.equal(
            f"{name}: sum of the task's times / 1000",
            sum(span.ns for span in spans) // 1000,
            run.group(group)["local"]["throttled_usec"],
        )
        starts = run.record(_QUEUE[0], cgroup=run.group(limited)["cgroup"])
        # It counts periods; the last throttling is lifted, which ends no period.
        v.at_least(
            f"{name}: nr_throttled",
            run.group(limited)["stat"]["nr_throttled"],
            len(starts) - 1,
        )
        reasons = {span.end.number("reason") for span in spans}
        v.equal(f"{name}: reasons", reasons, {REFILL})
    return v


def task_saw_the_gaps_itself(ev: Evidence) -> Verdict:
    """The task reads CLOCK_MONOTONIC all the time, and cannot when throttled."""
    v = Verdict()
    run = _run(ev, "lone")
    task = run.task("lone")
    # A period can end just after the task is throttled, and what is shorter than all
    # gaps lies in none.
    seen = [pair for pair in _gaps(run, task) if pair.span.ns > task["gap_ns"]]
    v.at_least("throttled while it looked", len(seen), ENDS)
    longer = [pair for pair in seen if pair.gap is None]
    v.equal("of which in no gap", len(longer), 0)
    rests = [pair.gap[1] - pair.gap[0] - pair.span.ns for pair in seen if pair.gap]
    v.at_least("gap - time, least", min(rests, default=-1), 0, "ns")
    pairs = _gaps(run, task)
    throttled = sum(pair.span.ns for pair in pairs)
    wall = task["end_ns"] - task["begin_ns"] + sum(_overlaps(run, task, pairs))
    v.at_most("run + throttled", task["run_ns"] + throttled, wall, "ns")
    return v


def older_events_do_not_tell(ev: Evidence) -> Verdict:
    """What the commit messages claim about mainline, observed."""
    v = Verdict()
    run = _run(ev, "lone")
    task = run.task("lone")
    pid = task["pid"]
    switches = run.load.events("sched_switch")
    states: Counter[str] = Counter()
    for start in run.record(_TASK[0], task=pid):
        # The switch to the task can be as near to the start as times are rounded.
        following = next(
            switch
            for switch in switches
            if switch.cpu == start.fields["on"]
            and switch.ts_ns >= start.ts_ns - ROUNDING_NS
            and not (
                switch.fields["next_pid"] == pid
                and switch.ts_ns <= start.ts_ns + ROUNDING_NS
            )
        )
        subject = "it" if following.fields["prev_pid"] == pid else "another"
        states[f"{subject} in {following.fields['prev_state']}"] += 1
    v.true(
        "the next sched_switch after each start",
        bool(states) and set(states) <= {"it in R", "it in R+"},
        ", ".join(f"{count} x {state}" for state, count in sorted(states.items())),
    )
    pairs = _gaps(run, task)
    throttled = sum(pair.span.ns for pair in pairs)
    v.at_least("throttled", throttled, ENDS * 10 * MS, "ns")
    # All gaps are within the task's own loop, which never sleeps.
    woken = [
        wakeup
        for wakeup in run.load.events("sched_wakeup")
        if wakeup.fields["pid"] == pid
        and any(p.gap and p.gap[0] <= wakeup.ts_ns <= p.gap[1] for p in pairs)
    ]
    v.none("sched_wakeup while throttled or at the end", woken)
    delays = sum(
        event.number("delay")
        for name in ("wait", "sleep", "iowait", "blocked")
        for event in run.load.events(f"sched_stat_{name}")
        if event.fields["pid"] == pid
        and task["begin_ns"] <= event.ts_ns - event.number("delay")
        and event.ts_ns <= task["end_ns"]
    )
    overlaps = _overlaps(run, task, pairs)
    rest = (
        task["end_ns"] - task["begin_ns"] - task["run_ns"] - throttled + sum(overlaps)
    )
    v.at_most("sched_stat_{wait,sleep,iowait,blocked}", delays, rest, "ns")
    # run_delay starts only when the task is switched out.
    least = throttled - sum(overlaps)
    v.at_least("run_delay", task["run_delay_ns"], least, "ns")
    if least < 10 * MS:
        v.undecide("too little of its time is known to be throttled")
    return v


def three_tasks_wait_for_one_queue(ev: Evidence) -> Verdict:
    """Bounds from either side: the kernel's counter, and the tasks' own clocks."""
    v = Verdict()
    run = _run(ev, "three")
    tasks = run.all("task")
    v.equal("tasks", len(tasks), 3)
    # Each of them stood still whenever their CPU idled; see the workload's Watch.
    least = max(ENDS, run.group("three")["seen"]["stood"] // 2)
    longest: dict[int, int] = {}
    for number, task in enumerate(tasks):
        spans = _spans(run, task["pid"])
        v.at_least(f"ends of task {number}", len(spans), least)
        for span in spans:
            at = _clock(span.end)
            longest[at] = max(longest.get(at, 0), span.ns)
        seen = [pair for pair in _gaps(run, task) if pair.span.ns > task["gap_ns"]]
        v.at_least(f"task {number}: throttled while it looked", len(seen), ENDS)
        v.equal(
            f"task {number}: of which in no gap, or longer than it",
            sum(
                pair.gap is None or pair.span.ns > pair.gap[1] - pair.gap[0]
                for pair in seen
            ),
            0,
        )
    # Tasks that stay on the list because their queue is throttled again while it is
    # unthrottled are held up, but not counted there until another one stops.
    v.at_least(
        "sum of the longest of each end / 1000",
        sum(longest.values()) // 1000,
        run.group("three")["local"]["throttled_usec"],
    )
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
    spans = _spans(run, task["pid"])
    # Charged until then is what the task ran, except for what it ran after the call.
    lost = sum(s.ns for s in spans if leave < s.end.ts_ns < call["after_ns"])
    charged = call["run_ns"] - (call["after_ns"] - leave - lost)
    # The queue and the group each had one quota at most; one came in each period.
    least = charged - (kernel // period + 3) * quota
    with v.excused("the host stretched the call over as many quotas as it used"):
        v.at_least("debt, with all quotas it can have had", least, quota, "ns")
    if least < quota:
        return v
    v.at_least("sched_cfs_throttle in the call", len(during), 1)
    inside = [s for s in spans if s.start.ts_ns < leave and enter < s.end.ts_ns]
    v.equal("throttled in the call", len(inside), 0)
    # Before the first instruction of user space after it, that is.
    after = [s for s in spans if leave < s.start.ts_ns and s.end.ts_ns < call["end_ns"]]
    v.at_least("throttled between sys_exit and user space", len(after), 1)
    if not after:
        return v
    first = after[0]
    v.at_most("time", first.ns, call["end_ns"] - leave, "ns")
    debt = -first.start.number("remaining")
    v.within("debt at that time", debt, least, call["cpu_ns"], "ns")
    # One refill may have been due already, another one comes within a period.
    v.at_least("time", first.ns, (debt // quota - 1) * period, "ns")
    return v


def leaving_the_group_ends_it(ev: Evidence) -> Verdict:
    """The driver saw the task stand still before, and run afterwards."""
    v = Verdict()
    run = _run(ev, "move")
    step = run.step("leave", "by-group")
    _check_end(v, run, step, CHANGE, 0)
    later = [
        event
        for event in run.record(*_TASK, task=step["pid"])
        if event.ts_ns > step["after_ns"]
    ]
    v.none("events of the task afterwards", later)
    return v


def changing_the_cpu_ends_it(ev: Evidence) -> Verdict:
    """There and back: the way back is to a queue that still is throttled."""
    v = Verdict()
    run = _run(ev, "move")
    move, back = run.step("cpu1", "by-cpu"), run.step("back", "by-cpu")
    _check_end(v, run, move, CHANGE, 0)
    # It may be throttled there before the driver has come back from its own call.
    left = max((e.ts_ns for e in _during(run, move, _TASK[1])), default=0)
    again = [
        event
        for event in run.record(_TASK[0], task=move["pid"])
        if left < event.ts_ns <= back["before_ns"]
    ]
    v.at_least("its next starts", len(again), 1)
    v.equal("CPUs of these", {e.fields["on"] for e in again}, {1})
    moves = _during(run, back, *_TASK)
    with v.excused(_let_go(run, back, move["before_ns"], back["after_ns"])):
        v.at_least("events on the way back", len(moves), 2)
        for event in moves[-1:]:
            v.equal("the last of them", event.name, _TASK[0])
            v.equal("CPU of it", event.fields["on"], 0, record=event)
    ends = [e for e in moves if e.name == _TASK[1]]
    v.equal("reasons on the way back", {e.number("reason") for e in ends}, {CHANGE})
    _check_end(v, run, run.step("lift", "by-cpu"), REFILL, 0)
    return v


def changing_the_nice_value_ends_it(ev: Evidence) -> Verdict:
    """It stands still before and after; the driver does both."""
    v = Verdict()
    run = _run(ev, "move")
    nice = run.step("nice", "by-nice")
    events = _during(run, nice, *_TASK)
    v.equal("events", [event.name for event in events], [_TASK[1], _TASK[0]])
    v.equal(
        "reasons", [e.number("reason") for e in events if e.name == _TASK[1]], [CHANGE]
    )
    v.equal("CPUs", {event.fields["on"] for event in events}, {0})
    (driver,) = run.all("driver")
    v.equal("current", {event.pid for event in events}, {driver["pid"]})
    least = nice["before_ns"] - nice["seen_ns"]
    v.at_least("throttled before", least, 100 * MS, "ns")
    _check_end(v, run, run.step("lift", "by-nice"), REFILL, 0)
    return v


def changing_the_class_ends_it(ev: Evidence) -> Verdict:
    """Without sched-throttle-class the driver starts it again, else the task."""
    v = Verdict()
    run = _run(ev, "move")
    fifo, fair = run.step("fifo", "by-class"), run.step("fair", "by-class")
    lift = run.step("lift", "by-class")
    _check_end(v, run, fifo, CLASS, 0)
    between = [
        event
        for event in run.record(*_TASK, task=fifo["pid"])
        if fifo["after_ns"] < event.ts_ns < fair["before_ns"]
    ]
    v.none("events while SCHED_FIFO", between)
    starts = [
        event
        for event in run.record(_TASK[0], task=fifo["pid"])
        if fair["before_ns"] <= event.ts_ns < lift["before_ns"]
    ]
    v.at_least("starts when SCHED_OTHER again", len(starts), 1)
    (driver,) = run.all("driver")
    others = {event.pid for event in starts} - {driver["pid"], fifo["pid"]}
    v.equal("others that are current in these", others, set())
    with v.excused(_let_go(run, fair, fair["before_ns"], lift["before_ns"])):
        if driver["pid"] in {event.pid for event in starts}:
            v.equal("starts, if one is the driver's", len(starts), 1)
        v.none("ends then", _during(run, fair, _TASK[1]))
    _check_end(v, run, lift, REFILL, 0)
    return v


def waiting_for_a_pi_futex_ends_it(ev: Evidence) -> Verdict:
    """The owner was seen to stand still, and to run once somebody waits for it."""
    v = Verdict()
    run = _run(ev, "move")
    boost = run.step("boost", "by-pi")
    _check_end(v, run, boost, CLASS, 0)
    (waiter,) = run.all("waiter")
    ends = _during(run, boost, _TASK[1])
    v.equal("current in these", {event.pid for event in ends}, {waiter["pid"]})
    between = [
        event
        for event in run.record(*_TASK, task=boost["pid"])
        if boost["after_ns"] < event.ts_ns < waiter["release_ns"]
    ]
    v.none("events while it is boosted", between)
    later = [
        event
        for event in run.record(_TASK[0], task=boost["pid"])
        if event.ts_ns > waiter["release_ns"]
    ]
    v.at_least("starts once it has unlocked", len(later), 1)
    return v


def workers_stop_in_the_kernel(ev: Evidence) -> Verdict:
    """They never are in user space; CPU time and names are those of /proc."""
    v = Verdict()
    run = _run(ev, "io-wq")
    task = run.task("io-wq")
    group = run.group("io-wq")
    v.at_least("workers", len(task["workers"]), 1)
    all_spans = [span for pid in task["workers"] for span in _spans(run, int(pid))]
    v.at_least("times that they were throttled", len(all_spans), ENDS)
    own = _spans(run, task["pid"])
    # It counts from the first that stops, and there is nobody else in the group.
    v.at_least(
        "sum of all times / 1000",
        sum(span.ns for span in (*all_spans, *own)) // 1000,
        group["local"]["throttled_usec"],
    )
    wall = task["end_ns"] - task["begin_ns"]
    switches = run.load.events("sched_switch")
    for number, (pid, used) in enumerate(
        zip(task["workers"], task["run_ns"], strict=True)
    ):
        spans = _spans(run, int(pid))
        lost = sum(span.ns for span in spans)
        # Until it is switched out it is both throttled and on the CPU.
        both = sum(
            _switched_out(switches, span.start, pid) - span.start.ts_ns + ROUNDING_NS
            for span in spans
        )
        v.at_most(f"worker {number}: time and CPU time", lost + used, wall + both, "ns")
    v.equal("reasons", {span.end.number("reason") for span in all_spans}, {REFILL})
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
    spans = _spans(run, run.task("nested")["pid"])
    v.equal(
        "sum of the task's times / 1000",
        sum(span.ns for span in spans) // 1000,
        train["local"]["throttled_usec"],
    )
    return v


def removed_group_has_no_end(ev: Evidence) -> Verdict:
    """What a group still owed follows from its usage in cpu.stat."""
    v = Verdict()
    run = _run(ev, "removed")
    turns = open_ = 0
    for turn in run.all("removed"):
        name, group = turn["name"], run.group(turn["name"])
        if _owed_us(group, turn["after_ns"]) <= 0:
            continue
        turns += 1
        queue = run.record(*_QUEUE, cgroup=group["cgroup"])
        before = [event for event in queue if event.ts_ns < turn["before_ns"]]
        names = [event.name for event in before]
        v.equal(f"{name}: the last event before", names[-1:], [_QUEUE[0]])
        gone = [
            e for e in run.record("cgroup_rmdir") if e.fields["id"] == group["cgroup"]
        ]
        v.equal(f"{name}: cgroup_rmdir", len(gone), 1)
        v.true(
            f"{name}: while it was removed",
            all(turn["before_ns"] <= e.ts_ns <= turn["after_ns"] for e in gone),
        )
        # A group that is removed may pay its debt before it is gone.
        open_ += [event.name for event in queue][-1:] == [_QUEUE[0]]
        ends = [e for e in queue if e.name == _QUEUE[1] and e.ts_ns > turn["before_ns"]]
        early = sum(_owed_us(group, end.ts_ns) > 0 for end in ends)
        v.equal(f"{name}: ends before it had paid", early, 0)
        tasks = _pair(run.record(*_TASK, cgroup=group["cgroup"]), _TASK, ("task",))
        v.equal(f"{name}: tasks, out of turn or left open", tasks.odd, 0)
    if not turns:
        v.undecide("no group owed anything when it was removed")
        return v
    v.at_least("groups that still owed something", turns, 1)
    with v.excused("each group had paid before it was gone"):
        v.at_least("of which never unthrottled", open_, 1)
    return v


def _owed_us(group: Mapping[str, Any], at_ns: int) -> int:
    """How much CPU time the group certainly owes at ``at_ns``, by its own counters.

    It had one quota in the beginning, and one in each period since.
    """
    stat = group["stat"]
    periods = (at_ns - group["read_ns"]) // (group["period_us"] * 1000) + 1
    quotas = stat["nr_periods"] + 1 + periods
    return int(stat["usage_usec"] - quotas * group["quota_us"])


def removal_can_come_first(ev: Evidence) -> Verdict:
    """A group may be removed as soon as its last task has begun to exit."""
    v = Verdict()
    run = _run(ev, "removed")
    names = dict.fromkeys(fact["name"] for fact in run.all("group"))
    groups = [run.group(name) for name in names if name.startswith("exiting-")]
    late = 0
    for group in groups:
        cgroup = group["cgroup"]
        gone = [e for e in run.record("cgroup_rmdir") if e.fields["id"] == cgroup]
        v.equal(f"{group['name']}: cgroup_rmdir", len(gone), 1)
        queue = run.record(_QUEUE[0], cgroup=cgroup)
        late += bool(gone) and any(e.ts_ns > gone[0].ts_ns for e in queue)
    v.at_least("groups", len(groups), 1)
    if all(comparison.ok for comparison in v.comparisons) and not late:
        v.undecide("none was throttled so late: the host took the CPU away")
        return v
    v.at_least("of which throttled after cgroup_rmdir", late, 1)
    return v


def disabled_controller_is_no_end(ev: Evidence) -> Verdict:
    """The debt takes long to pay, so only the driver could cause an end."""
    v = Verdict()
    run = _run(ev, "removed")
    group, step = run.group("disabled"), run.step("disable", "disabled")
    cgroup, enabled = group["cgroup"], group["enabled_ns"]
    _check_end(v, run, step, CHANGE, 0)
    queue = run.record(*_QUEUE, cgroup=cgroup, on=0)
    before = [event.name for event in queue if event.ts_ns < step["before_ns"]]
    v.equal("the queue's last event before", before[-1:], [_QUEUE[0]])
    until = [e.name for e in queue if step["before_ns"] <= e.ts_ns < enabled]
    v.equal("its events until the controller was enabled", until, [])
    gone = [
        event
        for event in run.record("cgroup_rmdir")
        if event.fields["id"] == cgroup and event.ts_ns < enabled
    ]
    v.none("cgroup_rmdir until then", gone)
    names = [e.name for e in queue if enabled <= e.ts_ns < group["limited_ns"]]
    v.equal("the next of the same id and CPU", names[:1], [_QUEUE[0]])
    return v


def switched_on_half_way(ev: Evidence) -> Verdict:
    """The workload runs a bpftrace of its own; all else comes from older interfaces."""
    v = Verdict()
    run = _run(ev, "late")
    (turn,) = run.all("late")
    cgroup, pid = run.group("late")["cgroup"], turn["pid"]
    lines = [line.split() for line in turn["lines"]]
    names = [words[0] for words in lines]
    # A throttling that is open when the probes attach has an end, but no start.
    v.equal("the first two", names[:2], ["unthrottle", "unthrottle_task"])
    if names[:2] == ["unthrottle", "unthrottle_task"]:
        used = turn["throttled_usec"]
        v.equal("group", int(lines[0][1]), cgroup)
        # A difference of two counters that are cut to microseconds.
        v.within("delta / 1000", int(lines[0][2]) // 1000, used - 1, used + 1)
        least = turn["lifted_ns"] - turn["seen_ns"]
        v.at_least("delta", int(lines[0][2]), least, "ns")
        v.equal("task and reason", lines[1][1:], [str(pid), str(REFILL)])
    v.at_least(
        "throttled before they were on", turn["on_ns"] - turn["seen_ns"], 100 * MS, "ns"
    )
    # And then another one, from its beginning.
    v.equal("the next two", names[2:4], ["throttle", "throttle_task"])
    if names[2:4] == ["throttle", "throttle_task"]:
        v.equal("group that is throttled", int(lines[2][1]), cgroup)
        v.equal("task that is throttled", int(lines[3][1]), pid)
    return v


def free_group_is_silent(ev: Evidence) -> Verdict:
    """Silence counts only beside a task that is throttled."""
    v, run = _quiet(ev, "free")
    v.at_least("CPU time", run.task("free")["run_ns"], 500 * MS, "ns")
    return v


def moderate_use_is_silent(ev: Evidence) -> Verdict:
    """It asks for slices and gets them."""
    run = _run(ev, "quiet")
    task, stat = run.task("duty"), run.group("duty")["stat"]
    used = [cpu for _, cpu in task["bursts"]]
    # They are 90 ms apart, so that no more than 12 of them have a part in a second.
    most = max((sum(used[n : n + 12]) for n in range(len(used))), default=0)
    rest = stat["usage_usec"] * 1000 - sum(used)
    v, _ = _quiet(ev, "duty", charged=most + rest >= 500 * MS)
    v.at_least("CPU time", task["run_ns"], 100 * MS, "ns")
    v.at_least("nr_periods", stat["nr_periods"], 2)
    return v


def real_time_is_silent(ev: Evidence) -> Verdict:
    """The quota does not apply to a real-time task."""
    v, run = _quiet(ev, "fifo")
    # Within one period a task of the fair class gets two quotas of 20 ms at most, and
    # part of a tick.
    bursts = run.task("fifo")["bursts"]
    most = max((cpu for wall, cpu in bursts if wall <= 100 * MS), default=0)
    with v.excused("no burst had its CPU time within a period"):
        v.at_least("CPU time within a period, most", most, 50 * MS, "ns")
    return v


def moving_is_silent(ev: Evidence) -> Verdict:
    """Ten rounds of the changes that end the throttling of a throttled task."""
    stat = _run(ev, "quiet").group("moved")["stat"]
    v, run = _quiet(ev, "moved", charged=stat["usage_usec"] >= 1_500_000)
    v.at_least("nr_periods", stat["nr_periods"], 1)
    v.at_least("CPU time", run.task("moved")["run_ns"], 100 * MS, "ns")
    return v


def ends_match_starts(ev: Evidence) -> Verdict:
    """The clock is read from the queue by the recorder, not by the events."""
    v = Verdict()
    for run in (_run(ev, name) for name in _WORKLOADS):
        name = run.load.name
        queues = _pair(run.record(*_QUEUE), _QUEUE, ("cgroup", "on"))
        tasks = _pair(run.record(*_TASK), _TASK, ("task",))
        v.at_least(f"{name}: tasks throttled", len(tasks.pairs), 1)
        v.equal(f"{name}: tasks, out of turn or left open", tasks.odd, 0)
        elsewhere = [b for a, b in tasks.pairs if _queue(a) != _queue(b)]
        v.none(f"{name}: tasks, ends on another queue", elsewhere)
        v.equal(f"{name}: queues, out of turn or left open", queues.odd, 0)
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

    Each event's distance between the two is the least over dozens of records, since a
    host that takes the CPU away only adds to it.
    """
    v = Verdict()
    for name in ("lone", "three", "nested", "quiet", "trainer"):
        run = _run(ev, name)
        ages = {
            event: [e.ts_ns - _clock(e) for e in run.record(event)]
            for event in (*_QUEUE, *_TASK)
        }
        for event, delays in ages.items():
            others = [min(a) for other, a in ages.items() if a and other != event]
            v.at_least(f"{name}: {event}", len(delays), ENDS)
            if delays and others:
                apart = abs(min(delays) - min(others))
                label = f"{name}: {event}: least time from the clock, and of the others"
                v.at_most(label, apart, MS // 2, "ns")
    return v


def some_quota_is_to_blame(ev: Evidence) -> Verdict:
    """By the queue events; the script looks at the queues themselves instead."""
    v = Verdict()
    for run in (_run(ev, name) for name in _WORKLOADS):
        blamed = [group for _, group in _blame(run)]
        v.at_least(f"{run.load.name}: throttled tasks", len(blamed), 1)
        limited = {
            fact["cgroup"] for fact in run.all("group") if fact["stat"]["nr_throttled"]
        }
        others = sum(group not in limited for group in blamed)
        v.equal(f"{run.load.name}: by a group that never is, by cpu.stat", others, 0)
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """Names come from the workload, nanoseconds from the recorder."""
    v = Verdict()
    run = _run(ev, "trainer")
    comms = _names(run)
    groups = {fact["cgroup"]: fact["name"] for fact in run.all("group")}
    limits = {
        (start.ts_ns, start.cpu): groups.get(group or 0) for start, group in _blame(run)
    }
    lost: Counter[str] = Counter()
    times: Counter[str] = Counter()
    spans = _spans(run)
    for span in spans:
        own = groups[span.end.number("cgroup")]
        limit = limits[span.start.ts_ns, span.start.cpu]
        key = f"{comms[span.end.number('task')]},{own},{limit}"
        lost[key] += span.ns
        times[key] += 1
    maps = run.load.bpftrace("sched-throttle-who").maps
    v.equal("@lost_ns", sorted(maps["@lost_ns"].items()), sorted(lost.items()))
    v.equal("@times", sorted(maps["@times"].items()), sorted(times.items()))
    expected = {
        "NCCL Progress,train,pod-7",
        "python3,train,pod-7",
        "pt_data_worker,loader,loader",
    }
    v.equal("threads, groups and whose quota", set(lost), expected)
    v.equal(
        "@group_ns / 1000",
        {name: int(ns) // 1000 for name, ns in maps["@group_ns"].items()},
        {n: run.group(n)["stat"]["throttled_usec"] for n in ("loader", "pod-7")},
    )
    hists = run.load.bpftrace("sched-throttle").hists["@ms"]
    counts = {
        comm: {b.low or 0: b.count for b in buckets if b.count}
        for comm, buckets in hists.items()
    }
    counted: dict[str, Counter[int]] = defaultdict(Counter)
    for span in spans:
        counted[comms[span.end.number("task")]][_bucket(span.ns // MS)] += 1
    v.equal("histograms in ms", _sorted(counts), _sorted(counted))
    return v


# -- what the programs printed


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


def _delta(event: Event) -> int:
    return event.number("delta")


def _clock(event: Event) -> int:
    return event.number("clock")


def _queue(event: Event) -> tuple[int, int, int]:
    """The queue that an event names, and the group and CPU of that queue."""
    return event.number("cfs_rq"), event.number("cgroup"), event.number("on")


@dataclass(frozen=True)
class Span:
    """A task's throttling."""

    start: Event
    end: Event

    @property
    def ns(self) -> int:
        """By the run queue's clock, which is another one on another CPU."""
        return _clock(self.end) - _clock(self.start)


def _spans(run: Run, pid: int | None = None) -> list[Span]:
    """The throttlings of a task, or of all, in order of their ends."""
    only = {} if pid is None else {"task": pid}
    pairs = _pair(run.record(*_TASK, **only), _TASK, ("task",)).pairs
    return [Span(start, end) for start, end in pairs]


@dataclass(frozen=True)
class Seen:
    """A task's throttling, and the gap in its own clock readings around it."""

    span: Span
    gap: tuple[int, int] | None


def _gaps(run: Run, task: Mapping[str, Any]) -> list[Seen]:
    """The throttlings of a task during the time in which it read its clock."""
    return [
        Seen(
            span,
            next(
                (
                    (left, right)
                    for left, right in task["gaps"]
                    if left <= span.start.ts_ns and span.end.ts_ns <= right
                ),
                None,
            ),
        )
        for span in _spans(run, task["pid"])
        if task["begin_ns"] <= span.start.ts_ns and span.end.ts_ns <= task["last_ns"]
    ]


def _overlaps(run: Run, task: Mapping[str, Any], pairs: Sequence[Seen]) -> list[int]:
    """For how long at most each throttled time is CPU time as well, in ns.

    The task is taken off its queue on the way to user space, and uses the CPU until it
    is switched out: no earlier than its last clock reading, which precedes both.
    """
    switches = run.load.events("sched_switch")
    return [
        _switched_out(switches, pair.span.start, task["pid"])
        - (pair.gap[0] if pair.gap else pair.span.start.ts_ns - task["gap_ns"])
        for pair in pairs
    ]


def _switched_out(switches: Sequence[Event], start: Event, pid: int) -> int:
    """When a task that begins to be throttled gave up the CPU, at the latest, in ns."""
    return next(
        switch.ts_ns + ROUNDING_NS
        for switch in switches
        if switch.fields["prev_pid"] == pid
        and switch.ts_ns >= start.ts_ns - ROUNDING_NS
    )


def _during(run: Run, step: Mapping[str, Any], *names: str) -> list[Event]:
    """The events of a task while something was done to it."""
    return [
        event
        for event in run.record(*names, task=step["pid"])
        if step["before_ns"] <= event.ts_ns <= step["after_ns"]
    ]


def _let_go(run: Run, step: Mapping[str, Any], begin_ns: int, end_ns: int) -> str:
    """An excuse, if the queue of a task's group on CPU 0 got quota in this time."""
    cgroup = run.group(step["task"])["cgroup"]
    ends = run.record(_QUEUE[1], cgroup=cgroup, on=0)
    paid = any(begin_ns <= event.ts_ns <= end_ns for event in ends)
    return "the debt was paid before the scene was over" if paid else ""


def _check_end(
    v: Verdict, run: Run, step: Mapping[str, Any], reason: int, on: int
) -> None:
    """What was done to a task ended its throttling, and for this reason.

    One change can be several in the kernel, with another throttling in between.
    """
    name = f"{step['task']}: {step['name']}"
    events = _during(run, step, *_TASK)
    ends = [event for event in events if event.name == _TASK[1]]
    v.at_least(f"{name}: ends while it was done", len(ends), 1)
    names = [event.name for event in events if event.fields["on"] == on]
    v.equal(f"{name}: the last event on that CPU", names[-1:], [_TASK[1]])
    v.equal(f"{name}: reasons", {end.number("reason") for end in ends}, {reason})
    v.equal(f"{name}: CPUs", {end.fields["on"] for end in ends}, {on})
    # The driver had seen it stand still by then, and left it so for a while.
    least = step["before_ns"] - step["seen_ns"]
    v.at_least(f"{name}: throttled before", least, 100 * MS, "ns")
    for span in _spans(run, step["pid"]):
        if span.end is ends[0]:
            v.at_least(f"{name}: time", span.ns, least, "ns")
            v.equal(f"{name}: queue", _queue(span.end), _queue(span.start))


def _call(load: WorkloadResult, pid: int, call: Mapping[str, Any]) -> tuple[int, int]:
    """When the mmap() that a task printed began and ended in the kernel, in ns."""
    enter, calls = 0, [(0, 0)]
    for event in load.record():
        if event.pid == pid and event.name == "sys_enter_mmap":
            enter = event.ts_ns
        elif event.pid == pid and event.name == "sys_exit_mmap":
            calls.append((enter, event.ts_ns))
    inside = [
        (enter, leave)
        for enter, leave in calls
        if call["begin_ns"] <= enter and leave <= call["end_ns"]
    ]
    return max(inside, key=lambda span: span[1] - span[0], default=(0, 0))


def _quiet(ev: Evidence, name: str, *, charged: bool = False) -> tuple[Verdict, Run]:
    """No event of the task and none of its group, in a run that had some.

    Time in which the host has the CPU may be ``charged`` to the group, and make up a
    quota in a period: it is throttled rightly then.
    """
    v = Verdict()
    run = _run(ev, "quiet")
    ends = run.record(_TASK[1], task=run.task("limited")["pid"])
    v.at_least("ends of the limited task", len(ends), ENDS)
    known = {task["pid"] for task in run.all("task")}
    strange = [e for e in run.record(*_TASK) if e.fields["task"] not in known]
    v.none("events of tasks that are none of these", strange)
    group = run.group(name)
    with v.excused("the host's time made up a quota" if charged else ""):
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
    """Starts with their ends; ``odd`` counts those without the other."""

    pairs: tuple[tuple[Event, Event], ...]
    odd: int


def _pair(
    events: Sequence[Event], names: tuple[str, str], keys: tuple[str, ...]
) -> Paired:
    open_: dict[tuple[int, ...], Event] = {}
    pairs, odd = [], 0
    for event in events:
        key = tuple(event.number(name) for name in keys)
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
    of it, or of a queue below it, first stops by itself.  A task that somebody else
    adds to the throttled ones does not begin it.
    """
    for start in starts:
        if (
            start.pid == start.fields["task"]
            and start.fields["on"] == a.fields["on"]
            and a.ts_ns <= start.ts_ns <= b.ts_ns
            and a.number("cgroup") in run.chain(start.number("cgroup"))
        ):
            return _clock(b) - _clock(start)
    return 0


def _blame(run: Run) -> list[tuple[Event, int | None]]:
    """For each throttled task, the nearest group that is throttled on that CPU."""
    throttled: set[tuple[int, int]] = set()
    pairs: list[tuple[Event, int | None]] = []
    for event in run.record(*_QUEUE, _TASK[0]):
        place = (event.number("cgroup"), event.number("on"))
        if event.name == _QUEUE[0]:
            throttled.add(place)
        elif event.name == _QUEUE[1]:
            throttled.discard(place)
        else:
            groups: Iterator[int] = run.chain(place[0])
            pairs.append(
                (event, next((g for g in groups if (g, place[1]) in throttled), None))
            )
    return pairs


def _bucket(value: int) -> int:
    """The lower end of bpftrace's power-of-two bucket of ``value``."""
    return value if value < 2 else 1 << (value.bit_length() - 1)


def _sorted(hists: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    return {name: dict(sorted(hist.items())) for name, hist in sorted(hists.items())}
