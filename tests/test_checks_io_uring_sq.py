# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparisons of io_uring-sq's checks whose truth is a clock or a number of workers."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kstall.evidence import Event, Evidence, WorkloadResult
from kstall.verdict import run_check

MS = 1_000_000
PID, WORKER, FD, CTX = 101, 102, 3, 0xC0
QUEUE, START = "io_uring_queue_async_work", "io_uring_start_async_work"
OWN = {"pid": PID, "tid": PID, "fd": FD}
Record = dict[str, Any]
Line = dict[str, Any]


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/io_uring-sq/checks.py"
    spec = importlib.util.spec_from_file_location("io_uring_sq_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch().context() as patch:
        # Its dataclasses look for it there.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def _record(name: str, at: int, pid: int = PID, **fields: int | str) -> Record:
    return {
        "event": f"io_uring:{name}",
        "ts": at,
        "cpu": 0,
        "pid": pid,
        "tgid": PID,
        "comm": "x",
        "fields": {"ctx": CTX, **fields},
    }


def _queued(data: int, at: int) -> Record:
    return _record(QUEUE, at, req=0x1000 + data, user_data=data)


def _started(
    data: int, at: int, pid: int = WORKER, cancel: int = 0, ctx: int = CTX
) -> Record:
    request = {"ctx": ctx, "req": 0x1000 + data, "user_data": data, "cancel": cancel}
    return _record(START, at, pid, op_str="WRITE", opcode=23, **request)


def _evidence(place: Path, name: str, output: list[Line], records: list[Record]) -> Any:
    folder = place / name
    folder.mkdir()
    (folder / "stdout").write_text("".join(json.dumps(line) + "\n" for line in output))
    created = _record("io_uring_create", 1, fd=FD)
    lines = "".join(json.dumps(record) + "\n" for record in [created, *records])
    (folder / "record.jsonl").write_text(lines)
    return Evidence(place, {}, {name: WorkloadResult(name, folder, {}, {})}, {})


def _ring(case: str) -> Line:
    shape = {"kind": "ring", "sq_entries": 32, "flags": 0, "sq_thread": 0}
    return {**OWN, **shape, "case": case}


#: Six writes to one file: each is held for 50 ms, and the next begins 1 ms later.
BEGUN = [10 * MS + turn * 51 * MS for turn in range(6)]


def _file() -> tuple[list[Line], list[Record]]:
    writes = [
        [data, WORKER, at + MS // 2, at + 50 * MS] for data, at in enumerate(BEGUN, 1)
    ]
    line = {
        **OWN,
        "kind": "async",
        "case": "async-file",
        "workers": 4,
        "files": 1,
        "begin_ns": 8 * MS,
        "end_ns": 9 * MS,
        "cancel_ns": 0,
        "canceled_ns": 0,
        "writes": writes,
    }
    records = [_queued(data, 8 * MS + data) for data in range(1, 7)]
    records += [_started(data, at) for data, at in enumerate(BEGUN, 1)]
    return [_ring("async-file"), line], records


def _wrong(verdict: Any) -> set[str]:
    return {comparison.label for comparison in verdict.comparisons if not comparison.ok}


def _same(records: list[Record]) -> None:
    pass


def _too_early(records: list[Record]) -> None:
    """Before the write in front of it was let go."""
    records[-1]["ts"] = BEGUN[5] - 2 * MS


def _too_late(records: list[Record]) -> None:
    """After it was seen to run."""
    records[-1]["ts"] += MS


def _queued_too_late(records: list[Record]) -> None:
    records[5]["ts"] = 10 * MS


def _another_request(records: list[Record]) -> None:
    records[-1]["fields"]["req"] = 0x2000


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_same, set()),
        (_too_early, {"async-file: 6: in the queue"}),
        (_too_late, {"async-file: 6: in the queue"}),
        (_queued_too_late, {"async-file: 6: queued"}),
        (_another_request, {"async-file: joined by request"}),
    ],
)
def test_time_in_the_queue(
    checks: ModuleType,
    tmp_path: Path,
    change: Callable[[list[Record]], None],
    wrong: set[str],
) -> None:
    output, records = _file()
    change(records)
    evidence = _evidence(tmp_path, "async", output, records)
    assert _wrong(checks.time_in_the_queue_is_the_programs(evidence)) == wrong


def test_a_queue_that_was_never_long_proves_nothing(
    checks: ModuleType, tmp_path: Path
) -> None:
    output, records = _file()
    output[1]["writes"] = output[1]["writes"][:2]
    evidence = _evidence(tmp_path, "async", output, records[:2] + records[6:8])
    wrong = _wrong(checks.time_in_the_queue_is_the_programs(evidence))
    assert wrong == {"longest time in the queue, by the program"}


def _event(record: Record) -> Event:
    system, _, name = record["event"].partition(":")
    return Event(
        record["ts"], 0, record["pid"], "x", system, name, record["fields"], ""
    )


@pytest.mark.parametrize(
    ("trace", "wrong"),
    [
        ([_queued(1, 5), _queued(2, 6), _started(1, 7)], set()),
        # It looks as if nothing were stuck.
        (
            [_queued(1, 5), _queued(2, 6), _started(1, 7), _started(2, 8)],
            {"started", "queued still"},
        ),
        # What runs looks stuck, too.
        ([_queued(1, 5), _queued(2, 6)], {"started", "queued still"}),
        ([_queued(1, 5), _started(1, 7)], {"queued still"}),
        # Not for as long as nothing moved.
        ([_queued(1, 5), _started(1, 7), _queued(2, 2 * MS)], {"2: for"}),
    ],
)
def test_a_stall_that_lasts(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trace: list[Record],
    wrong: set[str],
) -> None:
    # Of two files, then of one, whose worker has begun the second write of three.
    chain = [_queued(data, 4) for data in (3, 4, 5)] + [_started(3, 5), _started(4, 6)]
    output: list[Line] = []
    for case, begun, count in (
        ("async-stall", [1], 2),
        ("async-stall-file", [3, 4], 3),
    ):
        own = {**OWN, "case": case}
        # What has begun is let go after that, and then the others begin.
        writes = [[begun[0] + turn, WORKER, 7, 250 * MS] for turn in range(count)]
        writes[len(begun) :] = [
            [data, WORKER, 251 * MS, 300 * MS] for data, *_ in writes[len(begun) :]
        ]
        if len(begun) > 1:
            writes[0][3] = 8
        at = {"at_ns": 201 * MS, "begun": begun, "trace": [case]}
        record = {"writes": writes, "workers": 1, "files": 1}
        output += [
            _ring(case),
            {**own, **at, "kind": "stall"},
            {**own, **record, "kind": "async"},
        ]
    traces = {"async-stall": trace, "async-stall-file": chain}
    reader = SimpleNamespace(
        trace=lambda text, layouts: tuple(map(_event, traces[text]))
    )
    monkeypatch.setattr(checks, "records", reader)
    evidence = _evidence(tmp_path, "async", output, [])
    labels = {f"async-stall: {label}" for label in wrong}
    assert _wrong(checks.stall_shows_while_it_lasts(evidence)) == labels
    traces = {"async-stall": traces["async-stall"], "async-stall-file": chain[:-1]}
    labels |= {"async-stall-file: started", "async-stall-file: queued still"}
    assert _wrong(checks.stall_shows_while_it_lasts(evidence)) == labels


@pytest.mark.parametrize(
    ("seen_ns", "trace", "wrong", "status"),
    [
        # The second worker came while the trace was awaited, or just after that.
        (202, [1, 2], set(), "pass"),
        (202, [1], set(), "pass"),
        # It had begun, but was not seen in it before the first write was let go.
        (251, [1, 2], {"started", "queued still"}, "error"),
        # More than there are workers, or another than the one that is seen.
        (202, [1, 2, 3], {"started", "queued still"}, "fail"),
        (251, [1, 2, 3], {"started", "queued still"}, "fail"),
        (251, [2], {"started", "queued still"}, "error"),
    ],
)
def test_a_worker_that_comes_late(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seen_ns: int,
    trace: list[int],
    wrong: set[str],
    status: str,
) -> None:
    output: list[Line] = []
    for case in ("async-stall", "async-stall-file"):
        own = {**OWN, "case": case}
        writes = [
            [1, WORKER, 7, 250 * MS],
            [2, WORKER + 1, seen_ns * MS, 300 * MS],
            [3, WORKER, 310 * MS, 350 * MS],
        ]
        begun = [1]
        if case == "async-stall-file":
            writes, begun = [[1, WORKER, 7, 8], [2, WORKER, 9, 250 * MS]], [1, 2]
            writes.append([3, WORKER, 310 * MS, 350 * MS])
        at = {"at_ns": 201 * MS, "begun": begun, "trace": [case]}
        record = {"writes": writes, "workers": 2, "files": 3}
        if case == "async-stall-file":
            record |= {"workers": 1, "files": 1}
        output += [
            _ring(case),
            {**own, **at, "kind": "stall"},
            {**own, **record, "kind": "async"},
        ]
    queued = [_queued(data, data) for data in (1, 2, 3)]
    traces = {
        "async-stall": [*queued, *(_started(data, 10 + data) for data in trace)],
        "async-stall-file": [*queued, _started(1, 11), _started(2, 12)],
    }
    reader = SimpleNamespace(
        trace=lambda text, layouts: tuple(map(_event, traces[text]))
    )
    monkeypatch.setattr(checks, "records", reader)
    evidence = _evidence(tmp_path, "async", output, [])
    labels = {f"async-stall: {label}" for label in wrong}
    judge = checks.stall_shows_while_it_lasts
    assert _wrong(judge(evidence)) == labels
    assert run_check("it", "positive", "", judge, evidence).status == status


# -- waiting for room ------------------------------------------------------------------


def _waited(case: str, queued: int) -> Line:
    """A call that took a second, of which the host kept the guest waiting for most."""
    times = {"begin_ns": 10 * MS, "end_ns": 1010 * MS, "asleep_ns": 0}
    own = {**OWN, **times, "case": case, "kind": "wait", "ret": 0}
    return {**own, "queued_before": queued, "queued_after": queued}


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([], set()),
        (
            [_record("io_uring_sqring_wait", 11 * MS)],
            {"wait-room: io_uring_sqring_wait"},
        ),
    ],
)
def test_a_call_that_does_not_sleep_may_take_long(
    checks: ModuleType, tmp_path: Path, records: list[Record], wrong: set[str]
) -> None:
    rooms = [_waited("wait-room", queued) for queued in (0, 3, 5)]
    other = {**_waited("wait-no-thread", 4), "fd": FD + 1}
    rings = [_ring("wait-room"), {**_ring("wait-no-thread"), "fd": FD + 1}]
    records = [_record("io_uring_create", 1, fd=FD + 1) | {"ts": 2}, *records]
    records[0]["fields"]["ctx"] = CTX + 1
    evidence = _evidence(tmp_path, "wait", [*rings, *rooms, other], records)
    assert _wrong(checks.room_needs_no_wait(evidence)) == wrong


def test_a_writer_that_never_slept_proves_nothing(
    checks: ModuleType, tmp_path: Path
) -> None:
    press = {**OWN, "case": "press", "kind": "press", "nops": 9, "waits": []}
    evidence = _evidence(tmp_path, "wait", [_ring("press"), press], [])
    check = run_check("it", "positive", "", checks.busy_writer_adds_up, evidence)
    assert check.status == "error"
    assert check.detail == "the writer was so slow that it never had to sleep"


RISES, ROOM = "calls in which the number queued rises", "sleeps that end with room"


@pytest.mark.parametrize(
    ("queued", "wrong"),
    [
        ((8, 0, 8, 2), set()),
        # The SQ thread was faster than the event.
        ((3, 0, 8, 2), set()),
        ((3, 8, 8, 2), {RISES}),
        ((0, 0, 0, 2), {RISES}),
        # Less than the writer finds afterwards.
        ((8, 0, 8, 0), {RISES}),
        ((8, 8, 8, 8), {ROOM}),
    ],
)
def test_a_writer_alone_fills_the_ring(
    checks: ModuleType, tmp_path: Path, queued: tuple[int, ...], wrong: set[str]
) -> None:
    press: Line = {"case": "press", "kind": "press", "nops": 9}
    press["waits"] = [[10, 20, 0], [30, 40, 1]]
    names = ("io_uring_sqring_wait", "io_uring_sqring_wait_end") * 2
    records = [
        _record(name, at, sq_entries=8, queued=number)
        for name, at, number in zip(names, (11, 19, 31, 39), queued, strict=True)
    ]
    evidence = _evidence(tmp_path, "wait", [_ring("press"), {**OWN, **press}], records)
    assert _wrong(checks.busy_writer_adds_up(evidence)) == wrong


def _canceled() -> tuple[list[Line], dict[str, Record]]:
    """The last write's event: of four files, and of one whose worker had taken it."""
    output: list[Line] = []
    for case, files in (("async-cancel", 4), ("async-cancel-file", 1)):
        writes = [[1, WORKER, 10, 30], [2, WORKER, 31, 40], [3, 0, 0, 0]]
        times = {"cancel_ns": 20, "canceled_ns": 25, "over_ns": 50}
        res = -114 if files == 1 else 0
        cqes = {"cqes": [[1, 4096], [4, res], [2, 4096], [3, -125]]}
        fd = {"fd": FD + (files == 1)}
        line = {**OWN, **fd, **times, **cqes, "files": files, "writes": writes}
        output += [{**_ring(case), **fd}, {**line, "kind": "async", "case": case}]
    return output, {
        "created": _record("io_uring_create", 2, fd=FD + 1, ctx=CTX + 1),
        "queued": _queued(3, 5),
        "queued, too": _record(QUEUE, 6, ctx=CTX + 1, req=0x1003, user_data=3),
        "listed": _started(3, 22, PID, 1),
        "taken": _started(3, 45, WORKER, 1, CTX + 1),
    }


@pytest.mark.parametrize(
    ("which", "change", "wrong"),
    [
        ("listed", {}, set()),
        ("listed", {"pid": WORKER}, {"async-cancel: thread"}),
        ("listed", {"ts": 45}, {"async-cancel: when"}),
        # It can end no sooner than the write in front of it.
        ("taken", {"ts": 22}, {"async-cancel-file: when"}),
        ("taken", {"pid": PID}, {"async-cancel-file: thread"}),
        ("listed", {"fields": {"req": 0}}, {"async-cancel: requests"}),
        ("taken", {"fields": {"req": 0}}, {"async-cancel-file: requests"}),
    ],
)
def test_who_tells_of_a_canceled_write(
    checks: ModuleType, tmp_path: Path, which: str, change: Record, wrong: set[str]
) -> None:
    output, records = _canceled()
    fields = records[which]["fields"] | change.get("fields", {})
    records[which] |= change | {"fields": fields}
    evidence = _evidence(tmp_path, "async", output, [*records.values()])
    assert _wrong(checks.canceled_work_leaves_the_queue(evidence)) == wrong


@pytest.mark.parametrize(
    ("write", "cqes", "event", "wrong"),
    [
        ([3, WORKER, 46, 48], [[4, -2], [3, 4096]], {}, set()),
        # Of what ran it says that it was canceled.
        (
            [3, WORKER, 46, 48],
            [[4, -2], [3, 4096]],
            {"cancel": 1},
            {"cancel of what ran"},
        ),
        # What was canceled was there to be found.
        (
            [3, 0, 0, 0],
            [[4, -2], [3, -125]],
            {"cancel": 1},
            {"result of the cancel"},
        ),
        # Nobody saw it run, and it was not canceled.
        (
            [3, 0, 0, 0],
            [[4, -2], [3, 4096]],
            {},
            {"result of the cancel", "CQE", "cancel"},
        ),
        # It was found, and ran all the same.
        (
            [3, WORKER, 46, 48],
            [[4, -114], [3, 4096]],
            {},
            {"result of a cancel that finds nothing"},
        ),
    ],
)
def test_what_older_kernels_do_not_find_runs(
    checks: ModuleType,
    tmp_path: Path,
    write: list[int],
    cqes: list[list[int]],
    event: dict[str, int],
    wrong: set[str],
) -> None:
    output, records = _canceled()
    output[3]["writes"] = [*output[3]["writes"][:2], write]
    output[3]["cqes"] = [[1, 4096], [2, 4096], *cqes]
    records["taken"]["fields"] |= {"cancel": 0, **event}
    evidence = _evidence(tmp_path, "async", output, [*records.values()])
    labels = {f"async-cancel-file: {label}" for label in wrong}
    assert _wrong(checks.canceled_work_leaves_the_queue(evidence)) == labels


def test_canceled_work_without_an_event_is_still_queued(
    checks: ModuleType, tmp_path: Path
) -> None:
    output, records = _canceled()
    del records["taken"]
    evidence = _evidence(tmp_path, "async", output, [*records.values()])
    labels = {
        f"async-cancel-file: {label}" for label in ("opcodes", "requests", "cancel")
    }
    assert _wrong(checks.canceled_work_leaves_the_queue(evidence)) == labels


def test_a_worker_that_had_the_write_of_another_file(
    checks: ModuleType, tmp_path: Path
) -> None:
    # Two of the files share a hash: it is the worker's, after what was held.
    output, records = _canceled()
    output[1]["cqes"] = [[1, 4096], [4, -114], [2, 4096], [3, -125]]
    records["listed"] |= {"pid": WORKER, "ts": 30}
    evidence = _evidence(tmp_path, "async", output, [*records.values()])
    verdict = checks.canceled_work_leaves_the_queue(evidence)
    assert _wrong(verdict) == set()
    assert "async-cancel: a worker had the write" in (verdict.undecided or "")


def _other(data: int, at: int, **fields: int | str) -> Record:
    """A start with other values."""
    record = _started(data, at)
    record["fields"] |= fields
    return record


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([_started(1, 15), _started(2, 25, cancel=1)], set()),
        # A worker ran it before it was canceled.
        ([_started(1, 15), _started(2, 25)], set()),
        ([_started(1, 15)], {"events", "started or canceled"}),
        ([_started(1, 15), _started(2, 25), _started(2, 26, cancel=1)], {"events"}),
        ([_started(1, 15), _started(2, 31, cancel=1)], {"2: when"}),
        ([_started(1, 25), _started(2, 25, cancel=1)], {"1: when"}),
        # It ran: the program saw it.
        ([_started(1, 15, cancel=1), _started(2, 25, cancel=1)], {"1: cancel"}),
        ([_started(1, 15), _other(2, 25, req=0)], {"2: request"}),
        ([_other(1, 15, opcode=3, op_str="FSYNC"), _started(2, 25)], {"1: opcode"}),
    ],
)
def test_who_is_killed_leaves_nothing_queued(
    checks: ModuleType, tmp_path: Path, records: list[Record], wrong: set[str]
) -> None:
    own = {**OWN, "case": "async-kill"}
    times = {"begin_ns": 10, "over_ns": 20}
    writes = [[1, WORKER, 15, 0], [2, 0, 0, 0]]
    output = [
        _ring("async-kill"),
        {**own, **times, "kind": "killed", "writes": writes},
        {**own, "kind": "gone", "gone_ns": 30},
    ]
    queued = [_queued(1, 11), _queued(2, 12)]
    evidence = _evidence(tmp_path, "async", output, queued + records)
    assert _wrong(checks.killed_work_leaves_the_queue(evidence)) == wrong


def _fdinfo(dropped: int, overflow: int, *kept: int) -> list[str]:
    return [
        *("CachedCqTail:\t2", f"SqDropped:\t{dropped}", f"CqOverflow:\t{overflow}"),
        *("SQEs:\t0", "PollList:", "CqOverflowList:"),
        *(f"  user_data={data}, res=0, flags=0" for data in kept),
    ]


#: What fdinfo has with the patch, at each reading, and of the ring that is idle.
RIGHT = [
    _fdinfo(0, 0),
    _fdinfo(3, 0),
    _fdinfo(3, 0, 3),
    _fdinfo(3, 4, 3),
    _fdinfo(0, 0),
]


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        (RIGHT, set()),
        # As it is without the patch.
        (
            [lines[3:] for lines in RIGHT],
            {
                "counters, before: fdinfo",
                "counters, dropped: fdinfo",
                "counters, kept: fdinfo",
                "counters, lost: fdinfo",
                "idle, lost: fdinfo",
            },
        ),
        # One is taken for the other.
        (
            [*RIGHT[:1], _fdinfo(0, 3), _fdinfo(0, 3), _fdinfo(4, 3, 3), *RIGHT[4:]],
            {
                "counters, dropped: fdinfo",
                "counters, kept: fdinfo",
                "counters, lost: fdinfo",
            },
        ),
        # Those of another ring.
        ([*RIGHT[:4], _fdinfo(3, 4)], {"idle, lost: fdinfo"}),
    ],
)
def test_counters_of_fdinfo(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: list[list[str]],
    wrong: set[str],
) -> None:
    counts = [(0, 0), (3, 0), (3, 0), (3, 4), (0, 0)]
    cases = [("counters", when) for when in ("before", "dropped", "kept", "lost")]
    output: list[Line] = [
        {
            **OWN,
            "kind": "fdinfo",
            "case": case,
            "when": when,
            "lines": lines,
            "dropped": dropped,
            "overflow": overflow,
        }
        for (case, when), (dropped, overflow), lines in zip(
            [*cases, ("idle", "lost")], counts, shown, strict=True
        )
    ]
    cqes = {"nops": 7, "cqes": [[1, 0], [2, 0]], "kept": [[3, 0]]}
    output.append({**OWN, **cqes, "kind": "counters", "case": "counters"})
    overflows = [{"ocqe": 1}] + [{"ocqe": 0}] * 4
    events = [
        _event(_record("io_uring_cqe_overflow", 9, **fields)) for fields in overflows
    ]
    evidence = _evidence(tmp_path, "counters", output, [])
    load = evidence.workload("counters")
    monkeypatch.setattr(type(load), "events", lambda self, name: tuple(events))
    assert _wrong(checks.fdinfo_shows_the_rings_counters(evidence)) == wrong
