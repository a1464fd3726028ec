# SPDX-License-Identifier: GPL-2.0-or-later
"""What sched-throttle's checks say of records that are right, and of wrong ones."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kstall.evidence import Event, Evidence, WorkloadResult
from kstall.verdict import run_check
from workloadprograms import program

MS = 1_000_000
GROUP = 37
QUEUE = 0xFFFF888000000000
PIDS = (101, 102, 103)
WORKER = 201
#: SCHED_CFS_UNTHROTTLE_*.
REFILL, CHANGE, CLASS, BLOCK = range(4)
Record = dict[str, Any]


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/sched-throttle/checks.py"
    spec = importlib.util.spec_from_file_location("sched_throttle_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch().context() as patch:
        # Its dataclasses look for it there.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def _record(name: str, ts: int, **fields: int) -> Record:
    return {
        "event": f"sched:sched_cfs_{name}",
        "ts": ts,
        "cpu": 0,
        "pid": 0,
        "tgid": 0,
        "comm": "x",
        "fields": {"cfs_rq": QUEUE, "cgroup": GROUP, "on": 0, "clock": ts, **fields},
    }


def _records(held: list[tuple[int, ...]]) -> list[Record]:
    """A period for each of ``held``, the tasks that stop in it, and go on."""
    records: list[Record] = []
    for number, tasks in enumerate(held):
        begin, end = number * 100 * MS, number * 100 * MS + 50 * MS
        records.append(_record("throttle", begin))
        for late, task in enumerate(tasks):
            records.append(_record("throttle_task", begin + late * MS, task=task))
        records.append(_record("unthrottle", end, delta=50 * MS))
        for task in tasks:
            records.append(_record("unthrottle_task", end, task=task, reason=REFILL))
    return records


def _gaps(records: list[Record], pid: int) -> list[list[int]]:
    """What a task that looks at its clock sees of ``records``."""
    of_it = [record["ts"] for record in records if record["fields"].get("task") == pid]
    return [
        [start - MS // 2, end + MS // 2]
        for start, end in zip(of_it[::2], of_it[1::2], strict=True)
    ]


def _evidence(
    place: Path, name: str, records: list[Record], *facts: dict[str, Any]
) -> Evidence:
    folder = place / name
    folder.mkdir()
    (folder / "stdout").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "record.jsonl").write_text(lines)
    return Evidence(place, {}, {name: WorkloadResult(name, folder, {}, {})}, {})


def _wrong(verdict: Any) -> set[str]:
    return {comparison.label for comparison in verdict.comparisons if not comparison.ok}


def _nothing(_records: list[Record]) -> None:
    pass


def _last(records: list[Record], event: str, task: int | None = None) -> Record:
    return next(
        record
        for record in reversed(records)
        if record["event"] == f"sched:sched_cfs_{event}"
        and task in (None, record["fields"].get("task"))
    )


def _without_ends(records: list[Record]) -> None:
    """The ends of one task are lost, all but a few."""
    ends = [
        record
        for record in records
        if record["event"].endswith("unthrottle_task")
        and record["fields"]["task"] == PIDS[1]
    ]
    for record in ends[3:]:
        records.remove(record)


def _late_end(records: list[Record]) -> None:
    """An end comes later by more than the task could have seen."""
    _last(records, "unthrottle_task", PIDS[0])["fields"]["clock"] += 2 * MS


def _early_ends(records: list[Record]) -> None:
    for record in records:
        if record["event"].endswith("unthrottle_task"):
            record["fields"]["clock"] -= MS


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_nothing, set()),
        (
            _without_ends,
            {"ends of task 1", "task 1: throttled while it looked"},
        ),
        (_late_end, {"task 0: of which in no gap, or longer than it"}),
        (_early_ends, {"sum of the longest of each end / 1000"}),
    ],
)
def test_three_tasks(
    checks: ModuleType,
    tmp_path: Path,
    change: Callable[[list[Record]], None],
    wrong: set[str],
) -> None:
    records = _records([PIDS] * 12)
    facts = [
        {
            "what": "group",
            "name": "three",
            "cgroup": GROUP,
            "parent": 1,
            "local": {"throttled_usec": 12 * 50_000},
            "seen": {"grown": 12, "stood": 24},
        }
    ]
    facts += [
        {
            "what": "task",
            "name": f"three-{pid}",
            "pid": pid,
            "gap_ns": MS,
            "begin_ns": 0,
            "last_ns": 10_000 * MS,
            "gaps": _gaps(records, pid),
        }
        for pid in PIDS
    ]
    change(records)
    evidence = _evidence(tmp_path, "three", records, *facts)
    assert _wrong(checks.three_tasks_wait_for_one_queue(evidence)) == wrong


@pytest.mark.parametrize(
    ("before_ns", "out", "wrong"),
    [
        (2000, "R+", False),
        # As far as times are rounded, it is switched to at the start.
        (900, "R+", False),
        (-900, "R+", False),
        (900, "S", True),
        (-2000, "R+", True),
    ],
)
def test_the_next_switch(
    checks: ModuleType, tmp_path: Path, before_ns: int, out: str, wrong: bool
) -> None:
    """A task is switched to so long before it is throttled, and then from."""
    start, end, pid = 50 * MS, 130 * MS, PIDS[0]
    records = [
        _record("throttle_task", start, task=pid),
        _record("unthrottle_task", end, task=pid, reason=REFILL),
    ]
    task = {
        "what": "task",
        "name": "lone",
        "pid": pid,
        "gap_ns": MS,
        "begin_ns": 0,
        "last_ns": 200 * MS,
        "end_ns": 200 * MS,
        "run_ns": 120 * MS,
        "run_delay_ns": 80 * MS,
        "gaps": _gaps(records, pid),
    }
    evidence = _evidence(tmp_path, "lone", records, task)
    switches = [
        _switch(start - before_ns, WORKER, pid, "I"),
        _switch(start + 50_000, pid, WORKER, out),
    ]
    evidence.workload("lone").__dict__["_traced"] = tuple(switches)
    label = "the next sched_switch after each start"
    assert (label in _wrong(checks.older_events_do_not_tell(evidence))) == wrong


def _switch(ts: int, before: int, then: int, state: str) -> Event:
    fields: Record = {"prev_pid": before, "next_pid": then, "prev_state": state}
    return Event(ts, 0, before, "x", "sched", "sched_switch", fields)


def _boosted() -> list[Record]:
    """A throttled owner, one that waits for it, and a new start at the unlock."""
    waits = {"pid": 300}
    return [
        _record("throttle_task", 10 * MS, task=PIDS[0]),
        _record("unthrottle_task", 320 * MS, task=PIDS[0], reason=CLASS) | waits,
        _record("throttle_task", 500 * MS, task=PIDS[0]),
    ]


def _as_a_change(records: list[Record]) -> None:
    records[1]["fields"]["reason"] = CHANGE


def _of_the_root(records: list[Record]) -> None:
    """The end names the queue of the CPU."""
    records[1]["fields"] |= {"cfs_rq": QUEUE + 64, "cgroup": 1}


def _by_another(records: list[Record]) -> None:
    records[1]["pid"] = 7


def _no_end(records: list[Record]) -> None:
    del records[1]


def _no_new_start(records: list[Record]) -> None:
    del records[2]


def _start_in_between(records: list[Record]) -> None:
    records.insert(2, _record("throttle_task", 380 * MS, task=PIDS[0]))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_nothing, set()),
        (_as_a_change, {"by-pi: boost: reasons"}),
        (_of_the_root, {"by-pi: boost: queue"}),
        (_by_another, {"current in these"}),
        (_no_new_start, {"starts once it has unlocked"}),
        (_start_in_between, {"events while it is boosted"}),
        (
            _no_end,
            {
                *(f"by-pi: boost: {what}" for what in ("reasons", "CPUs")),
                "by-pi: boost: ends while it was done",
                "by-pi: boost: the last event on that CPU",
                "current in these",
            },
        ),
    ],
)
def test_a_pi_futex(
    checks: ModuleType,
    tmp_path: Path,
    change: Callable[[list[Record]], None],
    wrong: set[str],
) -> None:
    records = _boosted()
    change(records)
    step = {
        "what": "step",
        "name": "boost",
        "task": "by-pi",
        "pid": PIDS[0],
        "seen_ns": 200 * MS,
        "before_ns": 310 * MS,
        "after_ns": 350 * MS,
    }
    waiter = {"what": "waiter", "pid": 300, "release_ns": 400 * MS}
    evidence = _evidence(tmp_path, "move", records, step, waiter)
    assert _wrong(checks.waiting_for_a_pi_futex_ends_it(evidence)) == wrong


def _of_no_worker(records: list[Record]) -> None:
    records[:] = [
        record for record in records if record["fields"].get("task") != WORKER
    ]


def _blocked(records: list[Record]) -> None:
    _last(records, "unthrottle_task")["fields"]["reason"] = BLOCK


def _stretched(records: list[Record]) -> None:
    for record in records:
        record["fields"]["clock"] = record["fields"]["clock"] * 6 // 5


def _too_long(records: list[Record]) -> None:
    _last(records, "unthrottle_task")["fields"]["clock"] += 5_000 * MS


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_nothing, set()),
        (
            _of_no_worker,
            {"times that they were throttled", "sum of all times / 1000", "reasons"},
        ),
        (_blocked, {"reasons"}),
        (_too_long, {"worker 0: time and CPU time"}),
        # As when the clock is a fifth too fast.
        (_stretched, {"worker 0: time and CPU time"}),
        (_early_ends, {"sum of all times / 1000"}),
    ],
)
def test_workers_of_io_uring(
    checks: ModuleType,
    tmp_path: Path,
    change: Callable[[list[Record]], None],
    wrong: set[str],
) -> None:
    records = _records([(WORKER,)] * 12)
    change(records)
    task = {
        "what": "task",
        "name": "io-wq",
        "pid": PIDS[0],
        "workers": [WORKER],
        "begin_ns": 0,
        "end_ns": 1_300 * MS,
        "run_ns": [620 * MS],
    }
    group = {
        "what": "group",
        "name": "io-wq",
        "cgroup": GROUP,
        "parent": 1,
        "local": {"throttled_usec": 12 * 50_000},
    }
    evidence = _evidence(tmp_path, "io-wq", records, task, group)
    switches = [
        Event(turn * 100 * MS, 0, WORKER, "x", "sched", "sched_switch", {
            "prev_pid": WORKER,
        })
        for turn in range(12)
    ]  # fmt: skip
    load = evidence.workload("io-wq")
    load.__dict__["_traced"] = tuple(switches)
    assert _wrong(checks.workers_stop_in_the_kernel(evidence)) == wrong


LATE = ["unthrottle 37 500000999", "unthrottle_task 101 0"]
NEXT = ["throttle 37", "throttle_task 101"]


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (LATE + NEXT, set()),
        (
            ["unthrottle 37 488281", *LATE[1:], *NEXT],
            {"delta / 1000", "delta"},
        ),
        (["unthrottle 38 500000999", *LATE[1:], *NEXT], {"group"}),
        ([LATE[0], "unthrottle_task 101 1", *NEXT], {"task and reason"}),
        ([*NEXT, *LATE], {"the first two", "the next two"}),
        (LATE, {"the next two"}),
        ([*LATE, NEXT[0], "throttle_task 7"], {"task that is throttled"}),
    ],
)
def test_switched_on_half_way(
    checks: ModuleType, tmp_path: Path, lines: list[str], wrong: set[str]
) -> None:
    late = {
        "what": "late",
        "pid": PIDS[0],
        "throttled_usec": 500_000,
        "lines": lines,
        "seen_ns": 100 * MS,
        "on_ns": 250 * MS,
        "lifted_ns": 400 * MS,
    }
    group = {"what": "group", "name": "late", "cgroup": GROUP, "parent": 1}
    evidence = _evidence(tmp_path, "late", [], late, group)
    assert _wrong(checks.switched_on_half_way(evidence)) == wrong


# -- a task that gets another nice value or class, and groups that go ------------------


@pytest.mark.parametrize(
    ("lost", "reason", "wrong"),
    [
        (None, CHANGE, set()),
        (None, CLASS, {"reasons"}),
        ("throttle_task", CHANGE, {"events"}),
        ("unthrottle_task", CHANGE, {"events", "reasons"}),
    ],
)
def test_another_nice_value(
    checks: ModuleType, tmp_path: Path, lost: str | None, reason: int, wrong: set[str]
) -> None:
    driver = 5
    of_it = {"task": PIDS[0]}
    records = [
        _record("throttle_task", 0, **of_it),
        _record("unthrottle_task", 500 * MS, reason=reason, **of_it) | {"pid": driver},
        _record("throttle_task", 500 * MS + 1, **of_it) | {"pid": driver},
        _record("unthrottle_task", 900 * MS, reason=REFILL, **of_it),
    ]
    records = [
        record
        for record in records
        if record["pid"] != driver or record["event"] != f"sched:sched_cfs_{lost}"
    ]
    steps: list[Record] = [
        {
            "what": "step",
            "name": name,
            "task": "by-nice",
            "pid": PIDS[0],
            "seen_ns": seen * MS,
            "before_ns": before * MS,
            "after_ns": after * MS,
        }
        for name, seen, before, after in (
            ("nice", 200, 499, 502),
            ("lift", 700, 899, 902),
        )
    ]
    facts: list[Record] = [*steps, {"what": "driver", "pid": driver}]
    evidence = _evidence(tmp_path, "move", records, *facts)
    labels = _wrong(checks.changing_the_nice_value_ends_it(evidence))
    assert {label for label in labels if ":" not in label} == wrong


@pytest.mark.parametrize(
    ("by", "at_ms", "reason", "wrong"),
    [
        # With the bug that sched-throttle-class fixes, and without.
        (5, 650, CLASS, set()),
        (PIDS[0], 660, CLASS, set()),
        (6, 650, CLASS, {"others that are current in these"}),
        (
            PIDS[0],
            600,
            CLASS,
            {"events while SCHED_FIFO", "starts when SCHED_OTHER again"},
        ),
        (None, 0, CLASS, {"starts when SCHED_OTHER again"}),
        (5, 650, CHANGE, {"by-class: fifo: reasons"}),
    ],
)
def test_another_class(
    checks: ModuleType,
    tmp_path: Path,
    by: int | None,
    at_ms: int,
    reason: int,
    wrong: set[str],
) -> None:
    of_it = {"task": PIDS[0]}
    records = [
        _record("throttle_task", 0, **of_it),
        _record("unthrottle_task", 500 * MS, reason=reason, **of_it),
        _record("throttle_task", at_ms * MS, **of_it) | {"pid": by},
        _record("unthrottle_task", 900 * MS, reason=REFILL, **of_it),
    ]
    if by is None:
        del records[2]
    steps = _by_class(("fifo", 200, 499), ("fair", 0, 649), ("lift", 700, 899))
    facts: list[Record] = [*steps, {"what": "driver", "pid": 5}, _group("by-class")]
    evidence = _evidence(tmp_path, "move", records, *facts)
    labels = _wrong(checks.changing_the_class_ends_it(evidence))
    assert {label for label in labels if not label.endswith(": time")} == wrong


def test_another_class_starts_once(checks: ModuleType, tmp_path: Path) -> None:
    """By the driver; the task itself may, each time that it is put back."""
    steps: list[Record] = [
        {
            "what": "step",
            "name": name,
            "task": "by-class",
            "pid": PIDS[0],
            "seen_ns": 0,
            "before_ns": at * MS,
            "after_ns": (at + 2) * MS,
        }
        for name, at in (("fifo", 499), ("fair", 649), ("lift", 899))
    ]
    facts: list[Record] = [*steps, {"what": "driver", "pid": 5}, _group("by-class")]
    label = "starts, if one is the driver's"
    for pid, wrong in ((5, True), (PIDS[0], False)):
        records = [
            _record("throttle_task", at * MS, task=PIDS[0]) | {"pid": pid}
            for at in (650, 651)
        ]
        (place := tmp_path / str(pid)).mkdir()
        evidence = _evidence(place, "move", records, *facts)
        labels = _wrong(checks.changing_the_class_ends_it(evidence))
        assert (label in labels) == wrong


def _by_class(*steps: tuple[str, int, int]) -> list[Record]:
    """Steps of 3 ms: name, when the task was seen to stand still, begin, both in ms."""
    return [
        {
            "what": "step",
            "name": name,
            "task": "by-class",
            "pid": PIDS[0],
            "seen_ns": seen * MS,
            "before_ns": at * MS,
            "after_ns": (at + 3) * MS,
        }
        for name, seen, at in steps
    ]


def _group(name: str) -> Record:
    return {"what": "group", "name": name, "cgroup": GROUP, "parent": 1}


@pytest.mark.parametrize(
    ("at_ms", "on", "status"),
    [
        (740, 0, "error"),
        # Before it was SCHED_OTHER again, once the limit is lifted, or elsewhere.
        (600, 0, "fail"),
        (901, 0, "fail"),
        (740, 1, "fail"),
    ],
)
def test_a_debt_that_is_paid_before_the_limit_is_lifted(
    checks: ModuleType, tmp_path: Path, at_ms: int, on: int, status: str
) -> None:
    """The task has quota again, and is throttled once more."""
    of_it = {"task": PIDS[0]}
    records = [
        _record("throttle_task", 0, **of_it),
        _record("unthrottle_task", 500 * MS, reason=CLASS, **of_it),
        _record("throttle_task", 651 * MS, **of_it) | {"pid": 5},
        _record("unthrottle_task", 740 * MS, reason=REFILL, **of_it),
        _record("throttle_task", 760 * MS, **of_it) | {"pid": PIDS[0]},
        _record("unthrottle_task", 900 * MS, reason=REFILL, **of_it),
        _record("unthrottle", at_ms * MS, on=on),
    ]
    steps = _by_class(("fifo", 200, 499), ("fair", 0, 650), ("lift", 780, 899))
    facts: list[Record] = [*steps, {"what": "driver", "pid": 5}, _group("by-class")]
    records.sort(key=lambda record: int(record["ts"]))
    evidence = _evidence(tmp_path, "move", records, *facts)
    judge = checks.changing_the_class_ends_it
    assert "starts, if one is the driver's" in _wrong(judge(evidence))
    check = run_check("it", "positive", "", judge, evidence)
    assert check.status == status, check.comparisons


@pytest.mark.parametrize(
    ("back_ms", "paid_ms", "wrong", "status"),
    [
        (900, None, False, "pass"),
        # Its old queue is not throttled any more when it comes back.
        (None, 700, True, "error"),
        (None, None, True, "fail"),
        (None, 950, True, "fail"),
    ],
)
def test_another_cpu_and_back(
    checks: ModuleType,
    tmp_path: Path,
    back_ms: int | None,
    paid_ms: int | None,
    wrong: bool,
    status: str,
) -> None:
    of_it, there = {"task": PIDS[0]}, {"cfs_rq": QUEUE + 64, "on": 1}
    records = [
        _record("throttle_task", 0, **of_it),
        _record("unthrottle_task", 400 * MS, reason=CHANGE, **of_it),
        _record("throttle_task", 410 * MS, **of_it, **there),
        _record("unthrottle_task", 900 * MS, reason=CHANGE, **of_it, **there),
        _record("throttle_task", (back_ms or 960) * MS + 1, **of_it),
        _record("unthrottle_task", 1300 * MS, reason=REFILL, **of_it),
    ]
    if paid_ms:
        records.append(_record("unthrottle", paid_ms * MS))
    records.sort(key=lambda record: int(record["ts"]))
    steps: list[Record] = [
        {
            "what": "step",
            "name": name,
            "task": "by-cpu",
            "pid": PIDS[0],
            "seen_ns": (at - 200) * MS,
            "before_ns": (at - 1) * MS,
            "after_ns": (at + 2) * MS,
        }
        for name, at in (("cpu1", 400), ("back", 900), ("lift", 1300))
    ]
    evidence = _evidence(tmp_path, "move", records, *steps, _group("by-cpu"))
    judge = checks.changing_the_cpu_ends_it
    assert ("events on the way back" in _wrong(judge(evidence))) == wrong
    check = run_check("it", "positive", "", judge, evidence)
    assert check.status == status, check.comparisons


@pytest.mark.parametrize("sample_us", [40_000, 9_000, 800, 170])
def test_a_long_call_owes_many_quotas_on_any_machine(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, sample_us: int
) -> None:
    """By what it takes to clear 16 MB: at 0.4, 1.9, 21 and 99 GB/s."""
    quota = program(project_root, monkeypatch, "sched-throttle/quota.py")
    monkeypatch.setattr(quota, "populate", lambda _: {"run_ns": sample_us * 1000})
    call = quota.long_call()
    assert call.ns // 1000 == sample_us * call.megabytes // 16 <= 400_000
    quotas = [call.quota_us(), call.quota_us(80)]
    assert min(quotas) >= 1000
    assert call.ns // 1000 // max(quotas) >= 8
    waited: list[int] = []
    monkeypatch.setattr(quota, "wait_used", lambda _, used_us: waited.append(used_us))
    call.wait(None)
    assert 2 * max(quotas) <= waited[0] <= call.ns // 1000 // 2


def _removed(place: Path, used: int, *names: str, rmdir: int = 1) -> Evidence:
    """A group with a millisecond in each period, that is removed after 200 ms."""
    records = [_record(name, (at + 1) * 50 * MS) for at, name in enumerate(names)]
    gone: Record = {"event": "cgroup:cgroup_rmdir", "fields": {"id": GROUP}}
    records += [_record("", 201 * MS) | gone] * rmdir
    records.sort(key=lambda record: int(record["ts"]))
    group: Record = {
        "what": "group",
        "name": "removed-0",
        "cgroup": GROUP,
        "parent": 1,
        "quota_us": 1000,
        "stat": {"usage_usec": used, "nr_periods": 2},
        "period_us": 100_000,
        "read_ns": 199 * MS,
    }
    turn: Record = {"what": "removed", "name": "removed-0"}
    turn |= {"before_ns": 200 * MS, "after_ns": 202 * MS}
    return _evidence(place, "removed", records, group, turn)


_BEFORE = "removed-0: the last event before"


@pytest.mark.parametrize(
    ("used", "names", "rmdir", "wrong", "undecided"),
    [
        (9000, ["throttle"], 1, set(), False),
        (9000, ["throttle", "unthrottle", "throttle"], 1, set(), False),
        (9000, [], 1, {_BEFORE, "of which never unthrottled"}, False),
        (
            9000,
            ["throttle", "unthrottle"],
            1,
            {_BEFORE, "of which never unthrottled"},
            False,
        ),
        (9000, ["throttle"], 0, {"removed-0: cgroup_rmdir"}, False),
        # It may owe nothing, or no more by then.
        (4000, ["throttle"], 1, set(), True),
        (5000, ["throttle"], 1, set(), False),
    ],
)
def test_a_group_that_goes(
    checks: ModuleType,
    tmp_path: Path,
    used: int,
    names: list[str],
    rmdir: int,
    wrong: set[str],
    undecided: bool,
) -> None:
    verdict = checks.removed_group_has_no_end(
        _removed(tmp_path, used, *names, rmdir=rmdir)
    )
    assert _wrong(verdict) == wrong
    assert bool(verdict.undecided) == undecided


@pytest.mark.parametrize(
    ("paid_ms", "wrong", "status"),
    [
        # At 199 ms it owes five periods' quotas, of which one may come at once.
        (650, {"of which never unthrottled"}, "error"),
        (
            550,
            {"of which never unthrottled", "removed-0: ends before it had paid"},
            "fail",
        ),
    ],
)
def test_a_group_that_has_paid_before_it_is_gone(
    checks: ModuleType, tmp_path: Path, paid_ms: int, wrong: set[str], status: str
) -> None:
    saved = _removed(tmp_path, 8000, "throttle")
    load = saved.workload("removed")
    line = json.dumps(_record("unthrottle", paid_ms * MS))
    with (load.dir / "record.jsonl").open("a") as file:
        file.write(f"{line}\n")
    judge = checks.removed_group_has_no_end
    assert _wrong(judge(saved)) == wrong
    assert run_check("it", "positive", "", judge, saved).status == status


@pytest.mark.parametrize(
    ("events", "rmdir", "wrong", "undecided"),
    [
        ([150], 1, set(), True),
        ([250], 1, set(), False),
        ([], 1, set(), True),
        (
            [250],
            0,
            {"exiting-0: cgroup_rmdir", "of which throttled after cgroup_rmdir"},
            False,
        ),
    ],
)
def test_a_group_that_goes_first(
    checks: ModuleType,
    tmp_path: Path,
    events: list[int],
    rmdir: int,
    wrong: set[str],
    undecided: bool,
) -> None:
    gone: Record = {"event": "cgroup:cgroup_rmdir", "fields": {"id": GROUP}}
    records = [_record("throttle", at * MS) for at in events]
    records += [_record("", 201 * MS) | gone] * rmdir
    records.sort(key=lambda record: int(record["ts"]))
    group = {"what": "group", "name": "exiting-0", "cgroup": GROUP, "parent": 1}
    verdict = checks.removal_can_come_first(
        _evidence(tmp_path, "removed", records, group)
    )
    assert _wrong(verdict) == wrong
    assert bool(verdict.undecided) == undecided


def _beside_one(
    place: Path, name: str, task: Record, stat: Record, throttled: bool
) -> Evidence:
    """A task and its group, beside a task that is throttled ten times."""
    facts: list[Record] = [
        {"what": "task", "name": "limited", "pid": 7},
        {"what": "task", "name": name, "pid": 8} | task,
        {"what": "group", "name": name, "parent": 1, "cgroup": 900, "stat": stat},
    ]
    records = []
    for number in range(10):
        records.append(_record("throttle_task", number * MS, task=7))
        records.append(_record("unthrottle_task", (number + 1) * MS - 1, task=7))
    if throttled:
        own = _record("throttle_task", 20 * MS, task=8)
        own["fields"]["cgroup"] = 900
        records.append(own)
    return _evidence(place, "quiet", records, *facts)


@pytest.mark.parametrize(
    ("wall", "cpu", "throttled", "status"),
    [
        (60 * MS, 55 * MS, False, "pass"),
        # The host had the CPU for part of each burst, or for too long.
        (60 * MS, 45 * MS, False, "error"),
        (101 * MS, 55 * MS, False, "error"),
        (60 * MS, 45 * MS, True, "fail"),
    ],
)
def test_a_real_time_task(
    checks: ModuleType,
    tmp_path: Path,
    wall: int,
    cpu: int,
    throttled: bool,
    status: str,
) -> None:
    task = {"bursts": [[wall, cpu]] * 3}
    saved = _beside_one(tmp_path, "fifo", task, {"nr_throttled": 0}, throttled)
    check = run_check("it", "negative", "", checks.real_time_is_silent, saved)
    assert check.status == status


@pytest.mark.parametrize(
    ("stalls", "rest", "throttled", "status"),
    [
        ({}, 20, False, "pass"),
        ({}, 20, True, "fail"),
        ({3: 200}, 20, True, "fail"),
        # The host had the CPU for long, twice in a second or not.
        ({3: 200, 9: 200}, 20, True, "error"),
        ({3: 200, 9: 200}, 20, False, "pass"),
        ({3: 200, 20: 200}, 20, True, "fail"),
        # Or between two bursts.
        ({3: 200}, 220, True, "error"),
    ],
)
def test_a_task_of_moderate_use(
    checks: ModuleType,
    tmp_path: Path,
    stalls: dict[int, int],
    rest: int,
    throttled: bool,
    status: str,
) -> None:
    """Bursts of 10 ms of CPU time, some of which take longer; ``rest`` is other use."""
    used = [(10 + stalls.get(number, 0)) * MS for number in range(30)]
    task = {"run_ns": sum(used), "bursts": [[cpu, cpu] for cpu in used]}
    stat = {"nr_periods": 3, "nr_throttled": int(throttled)}
    stat |= {"usage_usec": sum(used) // 1000 + rest * 1000}
    saved = _beside_one(tmp_path, "duty", task, stat, throttled)
    check = run_check("it", "negative", "", checks.moderate_use_is_silent, saved)
    assert check.status == status


@pytest.mark.parametrize(
    ("usage", "status"), [(1_499_999, "fail"), (1_500_000, "error")]
)
def test_a_task_with_more_than_it_can_use(
    checks: ModuleType, tmp_path: Path, usage: int, status: str
) -> None:
    task = {"run_ns": 500 * MS}
    stat = {"nr_periods": 3, "nr_throttled": 1, "usage_usec": usage}
    saved = _beside_one(tmp_path, "moved", task, stat, throttled=True)
    check = run_check("it", "negative", "", checks.moving_is_silent, saved)
    assert check.status == status


def test_a_throttled_task_is_no_failure_of_another(
    checks: ModuleType, tmp_path: Path
) -> None:
    records = _records([(7,)] * 10)
    records += [_record("throttle_task", 1100 * MS, task=8) | {"pid": 8}]
    facts: list[Record] = [
        {"what": "task", "name": "limited", "pid": 7},
        {"what": "task", "name": "duty", "pid": 8},
        {"what": "task", "name": "free", "pid": 9, "run_ns": 600 * MS},
        {"what": "group", "name": "free", "parent": 1, "cgroup": 900},
    ]
    facts[-1]["stat"] = {"nr_throttled": 0}
    saved = _evidence(tmp_path, "quiet", records, *facts)
    assert _wrong(checks.free_group_is_silent(saved)) == set()
    records[-1]["fields"]["task"] = 10
    (tmp_path / "other").mkdir()
    saved = _evidence(tmp_path / "other", "quiet", records, *facts)
    label = "events of tasks that are none of these"
    assert _wrong(checks.free_group_is_silent(saved)) == {label}


def _long_call(place: Path, wall_ms: int, remaining: int, ns: int) -> Evidence:
    """A call of 400 ms of CPU time, after which the task is throttled for ``ns``."""
    leave = (1000 + wall_ms) * MS
    call = {"begin_ns": 999 * MS, "end_ns": leave + ns + 2 * MS}
    call |= {"run_ns": 400 * MS, "cpu_ns": 410 * MS, "after_ns": leave + ns + 3 * MS}
    facts = [
        {"what": "task", "name": "syscall", "pid": 7, "call": call},
        {
            "what": "group",
            "name": "syscall",
            "cgroup": GROUP,
            "parent": 1,
            "quota_us": 10_000,
            "period_us": 50_000,
        },
    ]
    start = _record("throttle_task", leave + MS, task=7)
    start["fields"] |= {"remaining": remaining, "clock": 0}
    end = _record("unthrottle_task", leave + MS + ns, task=7)
    end["fields"] |= {"clock": ns}
    records: list[Record] = [
        _record("", 1000 * MS) | {"event": "syscalls:sys_enter_mmap", "pid": 7},
        _record("throttle", 1010 * MS),
        _record("", leave) | {"event": "syscalls:sys_exit_mmap", "pid": 7},
        *(start, end),
    ]
    return _evidence(place, "syscall", records, *facts)


@pytest.mark.parametrize(
    ("wall_ms", "remaining", "ns", "wrong", "status"),
    [
        (400, -300 * MS, 1500 * MS, set(), "pass"),
        # The quotas of four seconds pay for all that the call used.
        (4000, -1 * MS, 50 * MS, {"debt, with all quotas it can have had"}, "error"),
        (400, -1 * MS, 50 * MS, {"debt at that time"}, "fail"),
    ],
)
def test_a_call_that_the_host_stretches(
    checks: ModuleType,
    tmp_path: Path,
    wall_ms: int,
    remaining: int,
    ns: int,
    wrong: set[str],
    status: str,
) -> None:
    saved = _long_call(tmp_path, wall_ms, remaining, ns)
    judge = checks.system_call_is_not_interrupted
    assert _wrong(judge(saved)) == wrong
    assert run_check("it", "positive", "", judge, saved).status == status


def _let_go(records: list[Record]) -> None:
    records.insert(3, _record("unthrottle", 510 * MS, delta=MS))


def _not_anew(records: list[Record]) -> None:
    del records[-1]


def _removed_meanwhile(records: list[Record]) -> None:
    gone: Record = {"event": "cgroup:cgroup_rmdir", "fields": {"id": GROUP}}
    records.insert(3, _record("", 510 * MS) | gone)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_nothing, set()),
        (_let_go, {"its events until the controller was enabled"}),
        (_not_anew, {"the next of the same id and CPU"}),
        (_removed_meanwhile, {"cgroup_rmdir until then"}),
    ],
)
def test_a_controller_that_is_disabled(
    checks: ModuleType,
    tmp_path: Path,
    change: Callable[[list[Record]], None],
    wrong: set[str],
) -> None:
    of_it = {"task": PIDS[0]}
    records = [
        _record("throttle", 100 * MS),
        _record("throttle_task", 101 * MS, **of_it),
        _record("unthrottle_task", 500 * MS, reason=CHANGE, **of_it),
        _record("throttle", 700 * MS),
    ]
    change(records)
    step: Record = {
        "what": "step",
        "name": "disable",
        "task": "disabled",
        "pid": PIDS[0],
        "seen_ns": 300 * MS,
        "before_ns": 499 * MS,
        "after_ns": 520 * MS,
    }
    group: Record = {
        "what": "group",
        "name": "disabled",
        "cgroup": GROUP,
        "parent": 1,
        "enabled_ns": 600 * MS,
        "limited_ns": 900 * MS,
    }
    evidence = _evidence(tmp_path, "removed", records, step, group)
    assert _wrong(checks.disabled_controller_is_no_end(evidence)) == wrong


# -- what a queue's time begins with


@pytest.mark.parametrize(("by_itself", "delta"), [(True, 40), (False, 30)])
def test_only_a_task_that_stops_by_itself_begins_the_time(
    checks: ModuleType, tmp_path: Path, by_itself: bool, delta: int
) -> None:
    """A task that is moved to the queue is held up, and not counted by the kernel."""
    first, second = PIDS[:2]
    own, other = {"pid": first if by_itself else 7}, {"pid": second}
    records = [
        _record("throttle", 0),
        _record("throttle_task", 10 * MS, task=first) | own,
        _record("throttle_task", 20 * MS, task=second) | other,
        _record("unthrottle", 50 * MS, delta=delta * MS),
        _record("unthrottle_task", 50 * MS, task=first, reason=REFILL),
        _record("unthrottle_task", 50 * MS, task=second, reason=REFILL),
    ]
    assert _wrong(_matched(checks, tmp_path / "right", records)) == set()
    records[3]["fields"]["delta"] += MS
    assert _wrong(_matched(checks, tmp_path / "wrong", records)) == {
        f"{name}: queues, other than the clock's difference"
        for name in checks._WORKLOADS
    }


@pytest.mark.parametrize("field", ["cfs_rq", "cgroup", "on"])
def test_a_task_s_end_names_the_queue_of_its_beginning(
    checks: ModuleType, tmp_path: Path, field: str
) -> None:
    of_it = {"task": PIDS[0]}
    records = [
        _record("throttle_task", 10 * MS, **of_it),
        _record("unthrottle_task", 50 * MS, reason=CHANGE, **of_it),
    ]
    assert _wrong(_matched(checks, tmp_path / "right", records)) == set()
    records[1]["fields"][field] = 1
    assert _wrong(_matched(checks, tmp_path / "wrong", records)) == {
        f"{name}: tasks, ends on another queue" for name in checks._WORKLOADS
    }


def _matched(checks: ModuleType, place: Path, records: list[Record]) -> Any:
    """The verdict on these ``records`` of each workload."""
    place.mkdir()
    group = {"what": "group", "name": "x", "cgroup": GROUP, "parent": 1}
    loads = {
        name: _evidence(place, name, records, group).workload(name)
        for name in checks._WORKLOADS
    }
    return checks.ends_match_starts(Evidence(place, {}, loads, {}))
