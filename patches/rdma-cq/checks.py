# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the rdma-cq series.

The new events are checked only against independent sources: what the programs posted
and polled, which asynchronous events they read, the kernel's own list of resources and
its counters, and the older cq_poll.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult

Fact = dict[str, Any]

# enum ib_event_type and enum ib_wc_status
CQ_ERR, QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR = 0, 1, 2, 3
LOC_PROT_ERR, FLUSHED = 4, 5
# enum ib_qp_state, enum ib_qp_type
RTS, ERR = 3, 6
RC, XRC_TGT = 2, 10
#: scq_id and rcq_id of a queue pair without such a queue.
NONE = 2**32 - 1
#: Entries in an NVMe controller's queue of admin commands.
ADMIN_DEPTH = 32
#: ftrace prints microseconds.
ROUNDING_NS = 1000

_USER = ("flush", "room", "unpolled", "polled", "badkey", "follow")


def overrun_names_device_queue_owner_and_depth(ev: Evidence) -> Verdict:
    """Each run has one queue that is too small, and all its figures differ."""
    v = Verdict()
    load = ev.workload("flush")
    runs = [f for f in load.objects("cq") if f["cq"] == "receive"]
    v.equal(
        "devices and ways to create a queue",
        sorted(":".join(run["run"].split(":")[:2]) for run in runs),
        ["rxe0:ioctl", "rxe0:write", "siw0:ioctl", "siw0:write"],
    )
    for run in runs:
        name = run["run"]
        v.equal(f"{name}: polled, all flushed", run["polled"], run["depth"])
        v.equal(f"{name}: flushed", run["flushed"], run["depth"])
        v.at_least(f"{name}: lost", run["posted"] - run["polled"], 1)
        v.equal(f"{name}: pid in the kernel's list", run["listed_pid"], run["maker"])
        v.true(
            f"{name}: thread and process differ",
            run["maker"] != run["process"],
            f"{run['maker']} and {run['process']}",
        )
        events = _of_cq(load, run)
        v.equal(f"{name}: events", len(events), 1)
        for event in events:
            v.equal(f"{name}: event", _shown(event), _shown(_expected(run)))
    # A run ends when its program has read the asynchronous event.
    order = [
        (e.fields["device"], e.fields["cq_id"]) for e in load.record("cq_async_event")
    ]
    expected = [(run["device"], run["id"]) for run in runs]
    v.equal("in the order of the runs", order, expected)
    v.equal("cq_async_event of other queues", _strangers(load, runs), 0)
    return v


def owner_is_reported_after_its_exit(ev: Evidence) -> Verdict:
    """In the runs named gone the thread has exited before the queue overruns."""
    v = Verdict()
    load = ev.workload("flush")
    for run in load.objects("cq"):
        if run["cq"] != "receive" or not run["run"].endswith(":gone"):
            continue
        (event,) = _of_cq(load, run) or (None,)
        fields = event and [event.fields[key] for key in ("pid", "tgid", "owner")]
        v.equal(run["run"], fields, [run["maker"], run["process"], run["comm"]])
    return v


def the_task_that_runs_is_not_the_owner(ev: Evidence) -> Verdict:
    """The tracer says which task ran, not the event's own fields."""
    v = Verdict()
    load = ev.workload("flush")
    for run in load.objects("cq"):
        for event in _of_cq(load, run):
            if run["device"] == "siw0":
                v.equal(f"{run['run']}: ran", event.pid, run["process"], record=event)
            else:
                v.true(
                    f"{run['run']}: ran a kernel thread",
                    event.comm.startswith("kworker/"),
                    event.comm,
                    record=event,
                )
            v.true(
                f"{run['run']}: ran another than the owner",
                event.pid != run["maker"],
                f"{event.pid}, not {run['maker']}",
                record=event,
            )
    return v


def each_dropped_completion_is_an_event(ev: Evidence) -> Verdict:
    """Soft RoCE drops what does not fit, reports each, and goes on."""
    v = Verdict()
    load = ev.workload("unpolled")
    runs = [f for f in load.objects("cq") if f["cq"] == "send"]
    v.equal("depths", sorted(run["depth"] for run in runs), [15, 31])
    v.equal("processes", len({run["process"] for run in runs}), 2)
    for run in runs:
        name = run["run"]
        lost = run["posted"] - run["polled"]
        v.equal(f"{name}: polled", run["polled"], run["depth"])
        events = _of_cq(load, run)
        v.equal(f"{name}: events", len(events), lost)
        v.equal(f"{name}: asynchronous events that it read", run["errors"], lost)
        expected = _shown(_expected(run))
        wrong = [_shown(event) for event in events if _shown(event) != expected]
        v.equal(f"{name}: events with other figures", len(wrong), 0)
    v.equal("cq_async_event of other queues", _strangers(load, runs), 0)
    for qp in load.objects("qp"):
        v.equal(f"{qp['run']}: state of the {qp['qp']}", qp["state"], RTS)
    return v


def bad_key_is_an_event_of_the_target(ev: Evidence) -> Verdict:
    """The writer only gets a completion, which reports the same error."""
    v = Verdict()
    load = ev.workload("badkey")
    qps = load.objects("qp")
    for qp in qps:
        name = f"{qp['run']}: {qp['qp']}"
        v.equal(f"{name}: state", qp["state"], ERR)
        expected = 1 if qp["qp"] == "target" and qp["run"] != "immediate" else 0
        events = _of_qp(load, qp)
        v.equal(f"{name}: events", len(events), expected)
        v.equal(f"{name}: asynchronous events", qp["access_errors"], expected)
        v.equal(f"{name}: others", qp["others"], 0)
        expected_fields = {
            "qp_num": qp["number"],
            "event": QP_ACCESS_ERR,
            "qp_type": RC,
            "scq_id": qp["scq"],
            "rcq_id": qp["rcq"],
            "pid": qp["maker"],
            "tgid": qp["process"],
            "device": qp["device"],
            "owner": qp["comm"],
        }
        for event in events:
            v.equal(f"{name}: event", _shown(event), _shown(expected_fields))
    numbers = {qp["number"] for qp in qps}
    others = [
        event
        for event in load.record("qp_async_event")
        if event.fields["qp_num"] not in numbers
    ]
    v.none("qp_async_event of other queue pairs", others)
    for run in ("plain", "immediate"):
        failed = {f["cq"]: f["failed"] for f in load.objects("cq") if f["run"] == run}
        per_queue = {"send": 1, "receive": int(run == "immediate")}
        v.equal(f"{run}: failed completions that were polled", failed, per_queue)
        cqs = [f for f in load.objects("cq") if f["run"] == run]
        v.equal(f"{run}: cq_async_event", sum(len(_of_cq(load, f)) for f in cqs), 0)
    return v


def qp_event_names_its_queues(ev: Evidence) -> Verdict:
    """Three completions are dropped before the wrong key, and its own after it.

    The queue pair dies of the key: the ids only join two events.
    """
    v = Verdict()
    load = ev.workload("badkey")
    facts = {(f["run"], f.get("cq") or f["qp"]): f for f in load.objects()}
    send, target = facts["overrun", "send"], facts["overrun", "target"]
    failures = _of_cq(load, send)
    v.equal("cq_async_event", len(failures), send["posted"] - send["polled"])
    expected = _shown(_expected(send))
    wrong = [_shown(event) for event in failures if _shown(event) != expected]
    v.equal("of these with other figures", len(wrong), 0)
    v.equal("of these it read", send["errors"], len(failures))
    events = _of_qp(load, target)
    v.equal("qp_async_event", len(events), 1)
    if not failures or not events:
        return v
    v.equal("its scq_id", events[0].fields["scq_id"], failures[0].fields["cq_id"])
    before = [e for e in failures if e.ts_ns < events[0].ts_ns]
    v.equal("cq_async_event before it", len(before), 3)
    after = [e for e in failures if e.ts_ns > events[0].ts_ns]
    v.equal("cq_async_event after it", len(after), 1)
    return v


def queue_pairs_follow_their_queue(ev: Evidence) -> Verdict:
    """Three targets do the same, and differ only in the queue they receive into.

    The first overruns it; the second, with one receive and only after that, finds it
    full; the third has another.  Their states are those that the driver returns.
    """
    v = Verdict()
    load = ev.workload("follow")
    cqs = {f["cq"]: f for f in load.objects("cq")}
    qps = {f["qp"]: f for f in load.objects("qp")}
    (died,) = load.objects("died")
    shared, own = cqs["shared"], cqs["own"]
    v.equal("first target", qps["first"]["state"], ERR)
    v.equal("second target", qps["second"]["state"], ERR)
    v.equal("third target", qps["third"]["state"], RTS)
    v.equal("completions in the shared queue", shared["polled"], shared["depth"])
    v.equal("lost", shared["posted"] - shared["polled"], 2)
    v.equal("users of it", shared["users"], 2)
    v.equal("completions in the third's", own["polled"], own["posted"])
    events = _of_cq(load, shared)
    expected = _shown(_expected(shared))
    v.equal("events", [_shown(e) for e in events], [expected] * 2)
    v.equal("cq_async_event of other queues", _strangers(load, [shared]), 0)
    # Soft RoCE reports nothing of a queue pair that dies of its queue.  With a shared
    # receive queue it does, by its code: IB_EVENT_QP_LAST_WQE_REACHED.  None is here.
    v.none("qp_async_event", load.record("qp_async_event"))
    if len(events) == 2:
        at = [event.ts_ns for event in events]
        v.true("failed before the first was seen to be dead", at[0] <= died["first"])
        v.true(
            "again after that, and before the second was",
            died["first"] < at[1] + ROUNDING_NS and at[1] <= died["second"],
        )
    return v


def script_says_what_failed_before_a_qp(ev: Evidence) -> Verdict:
    """The script says the order, not the cause, which here was the key."""
    v = Verdict()
    load = ev.workload("badkey")
    facts = {(f["run"], f.get("cq") or f["qp"]): f for f in load.objects()}
    send, target = facts["overrun", "send"], facts["overrun", "target"]
    failures, events = _of_cq(load, send), _of_qp(load, target)
    lines = [
        line
        for line in load.bpftrace("rdma-cq-errors").lines
        if line.startswith(f"rxe0 QP {target['number']} ")
    ]
    v.equal("lines of the script about it", len(lines), 1)
    before = [e for e in failures if events and e.ts_ns < events[0].ts_ns]
    after = [e.ts_ns for e in failures if events and e.ts_ns > events[0].ts_ns]
    if len(before) < 3 or not after or not lines:
        v.true("events before and after it", False)
        return v
    words = lines[0].split()
    # The script looks at the clock by itself, some time within each event: not after
    # the next one.
    v.within(
        "time between the two that it says",
        int(words[words.index("us") - 1]),
        (before[2].ts_ns - before[1].ts_ns) // 1000 - 1,
        (after[0] - int(load.facts["began_ns"])) // 1000,
        "us",
    )
    v.true(
        "the queue that it names",
        lines[0].endswith(f"after its send CQ {send['id']} failed"),
        lines[0],
    )
    return v


def kernel_queues_are_seen(ev: Evidence) -> Verdict:
    """Each case has a device of its own, so that ids begin anew."""
    v = Verdict()
    load = ev.workload("kernel")
    for case in ("overrun", "interrupt", "handler"):
        v.true(f"KUnit: {case}", _passed(load, case))
    common: dict[str, Any] = {"device": "mock0", "owner": "rdma_cq_kunit"}
    common |= {"event": CQ_ERR, "pid": 0, "tgid": 0}
    expected = [
        {"cq_id": 1, "cqe": 3, "usecnt": 0},
        {"cq_id": 0, "cqe": 7, "usecnt": 0},
        {"cq_id": 1, "cqe": 6, "usecnt": 1},
    ]
    v.equal(
        "events",
        [_shown(event) for event in load.record("cq_async_event")],
        [_shown({**common, **fields}) for fields in expected],
    )
    made = {e.fields["nr_cqe"]: e.fields["cq_id"] for e in load.events("cq_alloc")}
    for fields in expected[:2]:
        depth = fields["cqe"]
        v.equal(f"{depth} entries: cq_alloc", made.get(depth), fields["cq_id"])
    return v


def kernel_queue_pairs_are_seen(ev: Evidence) -> Verdict:
    """A queue pair of the kernel, and an XRC target that two users have opened.

    The second event of the former has no device, as if its P_Key were forbidden."""
    v = Verdict()
    load = ev.workload("kernel")
    for case in ("qp_event", "shared_qp_event"):
        v.true(f"KUnit: {case}", _passed(load, case))
    common: dict[str, Any] = {"device": "mock0", "owner": "rdma_cq_kunit"}
    common |= {"qp_num": 0x57, "pid": 0, "tgid": 0}
    events = [_shown(event) for event in load.record("qp_async_event")]
    # Ids begin anew with each device: its first queue sends, its second receives.
    own = {"qp_type": RC, "scq_id": 0, "rcq_id": 1}
    shared = {
        "event": QP_ACCESS_ERR,
        "qp_type": XRC_TGT,
        "scq_id": NONE,
        "rcq_id": NONE,
    }
    v.equal(
        "events",
        events,
        [
            _shown({**common, **fields})
            for fields in (
                {**own, "event": QP_REQ_ERR},
                {**own, "event": QP_FATAL},
                shared,
            )
        ],
    )
    return v


def failed_completions_of_the_kernel(ev: Evidence) -> Verdict:
    """The other five succeed, and reading their queue pair would oops."""
    v = Verdict()
    load = ev.workload("kernel")
    v.true("KUnit: failures", _passed(load, "failures"))
    (polled,) = [e for e in load.events("cq_poll") if e.fields["rc"] == 7] or (None,)
    v.true("seven completions in one poll", polled is not None)
    errors = load.record("cq_wc_error")
    v.equal("events", len(errors), 2)
    if len(errors) != 2 or polled is None:
        return v
    common: dict[str, Any] = {"device": "mock0", "owner": "rdma_cq_kunit"}
    common["cq_id"] = polled.fields["cq_id"]
    for event, status in zip(errors, (LOC_PROT_ERR, FLUSHED), strict=True):
        fields = {key: value for key, value in event.fields.items() if key != "done"}
        v.equal(
            f"status {status}", _shown(fields), _shown({**common, "status": status})
        )
    for event in load.events("cq_wc_error"):
        v.equal("done", _handler(event), "consumer_done")
    return v


def end_of_a_connection_is_flushes(ev: Evidence) -> Verdict:
    """The driver posts a receive for each entry of a queue, and posts it again when
    it has completed: at the end they are all there."""
    v = Verdict()
    load = ev.workload("storage")
    (fact,) = load.objects("storage")
    v.equal("queues: of admin commands and of I/O", fact["queues"], 2)
    events = load.events("cq_wc_error")
    receives = [e for e in events if _handler(e) == "nvme_rdma_recv_done"]
    v.equal(
        "receives flushed, of both queue pairs, by completion queue",
        list(Counter(e.fields["cq_id"] for e in receives).values()),
        [fact["sqsize"] + 1 + ADMIN_DEPTH],
    )
    v.equal("events without a poll that returned them", _unpolled(load), 0)
    drains = [e for e in events if _handler(e) == "ib_drain_qp_done"]
    v.equal("markers of ib_drain_qp(), two a queue pair of both ends", len(drains), 8)
    _check_markers(v, events, fact["sqsize"] + 1)
    failed = Counter(e.fields["cq_id"] for e in events)
    polled = Counter[Any]()
    for event in load.events("cq_poll"):
        if event.ts_ns + ROUNDING_NS >= fact["deleting"]:
            polled[event.fields["cq_id"]] += int(str(event.fields["rc"]))
    v.equal("by queue, more than cq_poll has after that", dict(failed - polled), {})
    for key, value in (
        ("status", "WR_FLUSH_ERR"),
        ("device", "rxe0"),
        ("owner", "ib_core"),
    ):
        v.equal(f"{key} of all events", {e.fields[key] for e in events}, {value})
    early = [e for e in events if e.ts_ns + ROUNDING_NS < fact["deleting"]]
    v.none("before the controller was taken away", early)
    v.none("cq_async_event", load.events("cq_async_event"))
    return v


def _check_markers(v: Verdict, events: Sequence[Event], receives: int) -> None:
    """A receive queue is flushed in its order, to the marker that was posted last.

    Both queue pairs of the host complete into one queue: first that of I/O, with so
    many ``receives``, and when both of its markers are back, that of admin commands.
    """
    queues: dict[object, list[str]] = {}
    for event in events:
        queues.setdefault(event.fields["cq_id"], []).append(_handler(event))
    for queue, handlers in queues.items():
        pairs = [handlers]
        if "nvme_rdma_recv_done" in handlers:
            pairs = [handlers[: receives + 2], handlers[receives + 2 :]]
        for number, pair in enumerate(pairs, 1):
            name = f"queue {queue}, pair {number}"
            v.equal(f"{name}: last handler", pair[-1:], ["ib_drain_qp_done"])
            v.equal(f"{name}: markers", pair.count("ib_drain_qp_done"), 2)


def _unpolled(load: WorkloadResult) -> int:
    """Failed completions that the last cq_poll of their thread did not return."""
    left: dict[int, tuple[object, int]] = {}
    wrong = 0
    for event in load.events():
        if event.name == "cq_poll":
            left[event.pid] = event.fields["cq_id"], int(str(event.fields["rc"]))
        elif event.name == "cq_wc_error":
            queue, count = left.get(event.pid, (None, 0))
            wrong += queue != event.fields["cq_id"] or not count
            left[event.pid] = queue, count - 1
    return wrong


def room_enough_is_silent(ev: Evidence) -> Verdict:
    """The same runs as in flush, except for the size of the queue."""
    v = Verdict()
    load = ev.workload("room")
    runs = [f for f in load.objects("cq") if f["cq"] == "receive"]
    v.equal("runs", len(runs), 4)
    for run in runs:
        v.equal(f"{run['run']}: flushed and polled", run["flushed"], run["posted"])
        v.at_least(f"{run['run']}: posted", run["posted"], 8)
    _check_silence(v, load)
    return v


def polled_queue_is_silent(ev: Evidence) -> Verdict:
    """It is filled to the last entry each time."""
    v = Verdict()
    load = ev.workload("polled")
    (send,) = [f for f in load.objects("cq") if f["cq"] == "send"]
    v.equal("depth", send["depth"], 15)
    v.equal("polled", send["polled"], 2000)
    v.equal("of these failed", send["failed"], 0)
    _check_silence(v, load)
    return v


def kernel_queue_under_load_is_silent(ev: Evidence) -> Verdict:
    """cq_poll sits in the same loop as cq_wc_error."""
    v = Verdict()
    load = ev.workload("storage")
    (fact,) = load.objects("storage")
    v.equal("blocks read", fact["reads"], 256)
    before = [e for e in load.events() if e.ts_ns + ROUNDING_NS < fact["deleting"]]
    polled = sum(int(str(e.fields["rc"])) for e in before if e.name == "cq_poll")
    # Command and data, and the answer, at one end; as many at the other.
    v.at_least("completions polled while it read", polled, 4 * fact["reads"])
    others = Counter(e.name for e in before if e.name != "cq_poll")
    v.equal("other events", dict(others), {})
    load = ev.workload("kernel")
    v.true("KUnit: polled", _passed(load, "polled"))
    rounds = [e for e in load.events("cq_poll") if e.fields["rc"] == 5]
    v.equal("polls that emptied a full queue of 5", len(rounds), 200)
    failed = {e.fields["status"] for e in load.record("cq_wc_error")}
    v.equal("statuses of failed completions", failed, {LOC_PROT_ERR, FLUSHED})
    return v


def what_user_space_polls_is_not_seen(ev: Evidence) -> Verdict:
    """The events are about the kernel's own polling, as the cover letter says."""
    v = Verdict()
    for name in ("flush", "badkey", "polled"):
        load = ev.workload(name)
        taken = sum(fact["polled"] for fact in load.objects("cq"))
        v.at_least(f"{name}: completions that it polled", taken, 1)
        for event in ("cq_poll", "cq_wc_error"):
            v.none(f"{name}: {event}", load.events(event))
    return v


def each_async_event_was_traced(ev: Evidence) -> Verdict:
    """uverbs returns how many it delivered when a queue is destroyed."""
    v = Verdict()
    for name in _USER:
        load = ev.workload(name)
        cqs, qps = load.objects("cq"), load.objects("qp")
        traced = Counter(
            (e.fields["device"], e.fields["cq_id"])
            for e in load.events("cq_async_event")
        )
        read = Counter[Any]()
        for fact in cqs:
            read[fact["device"], fact["id"]] += fact["errors"]
        v.equal(f"{name}: by queue", dict(traced), dict(+read))
        v.equal(
            f"{name}: delivered, as the kernel says",
            sum(fact["reported"] for fact in cqs),
            sum(read.values()),
        )
        traced = Counter(
            (e.fields["device"], e.fields["qp_num"])
            for e in load.events("qp_async_event")
        )
        read = Counter()
        for fact in qps:
            read[fact["device"], fact["number"]] += (
                fact["access_errors"] + fact["others"]
            )
        v.equal(f"{name}: by queue pair", dict(traced), dict(+read))
        v.equal(
            f"{name}: delivered of these, as the kernel says",
            sum(fact["reported"] for fact in qps),
            sum(read.values()),
        )
    return v


def soft_iwarp_logs_nothing(ev: Evidence) -> Verdict:
    """So for some drivers the event is the only sign outside of the program.

    What they log is not the series': a kernel where that differs is not judged.
    """
    v = Verdict()
    load = ev.workload("flush")
    lines = load.kmsg.splitlines()
    siw = [line for line in lines if "siw0" in line]
    rxe = [line for line in lines if "rxe0" in line and "queue full" in line]
    named = [line for line in rxe if "cq-maker" in line]
    if siw or len(rxe) != 2 or named:
        return v.skip(
            f"this kernel logs {len(siw)} lines of soft iWARP and {len(rxe)} of soft "
            f"RoCE, {len(named)} of them with the owner, not 0, 2 and 0"
        )
    events = [e for e in load.events("cq_async_event") if e.fields["device"] == "siw0"]
    v.equal("events of siw0", len(events), 2)
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """Each map of a script is the traced events, counted by the same key."""
    v = Verdict()
    for name in ("flush", "unpolled", "badkey", "follow", "kernel"):
        load = ev.workload(name)
        out = load.bpftrace("rdma-cq-errors")
        keys: tuple[str, ...] = ("device", "cq_id", "owner", "tgid", "cqe")
        counted = Counter(_key(e, keys) for e in load.record("cq_async_event"))
        v.equal(f"{name}: @cq_errors", out.maps.get("@cq_errors", {}), dict(counted))
        keys = ("device", "owner", "tgid", "event")
        counted = Counter(_key(e, keys) for e in load.record("qp_async_event"))
        v.equal(f"{name}: @qp_errors", out.maps.get("@qp_errors", {}), dict(counted))
        first: dict[tuple[Any, Any], Event] = {}
        for event in load.record("cq_async_event"):
            first.setdefault((event.fields["device"], event.fields["cq_id"]), event)
        expected = sorted(
            "{device} CQ {cq_id} failed: of {owner}, process {tgid}, thread {pid}, "
            "{cqe} entries for {usecnt} work queues".format_map(event.fields)
            for event in first.values()
        )
        lines = sorted(line for line in out.lines if " CQ " in line and " of " in line)
        lines = [line for line in lines if " QP " not in line]
        v.equal(f"{name}: lines about a queue", lines, expected)
    for name in ("kernel", "storage"):
        load = ev.workload(name)
        maps = load.bpftrace("rdma-cq-completions").maps
        events = load.record("cq_wc_error")
        for name_of_map, flushed, keys in (
            ("@flushed", True, ("device", "cq_id")),
            ("@failed", False, ("device", "cq_id", "status")),
        ):
            counted = Counter(
                _key(e, keys)
                for e in events
                if (e.fields["status"] == FLUSHED) is flushed
            )
            totals = Counter[str]()
            for key, count in maps.get(name_of_map, {}).items():
                totals[key.rpartition(",")[0]] += int(count)
            v.equal(
                f"{name}: {name_of_map}, without the symbol",
                dict(totals),
                dict(counted),
            )
    symbols = [
        key.rpartition(",")[2]
        for key in ev.workload("kernel").bpftrace("rdma-cq-completions").maps["@failed"]
    ]
    v.equal("kernel: the symbol", symbols, ["consumer_done"])
    return v


def _of_cq(load: WorkloadResult, fact: Fact) -> list[Event]:
    """The recorded events of the queue of ``fact``."""
    return [
        event
        for event in load.record("cq_async_event")
        if (event.fields["device"], event.fields["cq_id"])
        == (fact["device"], fact["id"])
    ]


def _of_qp(load: WorkloadResult, fact: Fact) -> list[Event]:
    """The recorded events of the queue pair of ``fact``."""
    return [
        event
        for event in load.record("qp_async_event")
        if (event.fields["device"], event.fields["qp_num"])
        == (fact["device"], fact["number"])
    ]


def _strangers(load: WorkloadResult, facts: list[Fact]) -> int:
    """How many events are of none of these queues."""
    queues = {(fact["device"], fact["id"]) for fact in facts}
    return sum(
        (event.fields["device"], event.fields["cq_id"]) not in queues
        for event in load.record("cq_async_event")
    )


def _expected(fact: Fact) -> dict[str, Any]:
    """The fields of the event of a queue that overran."""
    return {
        "cq_id": fact["id"],
        "event": CQ_ERR,
        "cqe": fact["depth"],
        "usecnt": fact["users"],
        "pid": fact["maker"],
        "tgid": fact["process"],
        "device": fact["device"],
        "owner": fact["comm"],
    }


def _shown(fields: Event | Mapping[str, Any]) -> str:
    values = fields.fields if isinstance(fields, Event) else fields
    return " ".join(f"{key}={values[key]}" for key in sorted(values))


def _check_silence(v: Verdict, load: WorkloadResult) -> None:
    for name in ("cq_async_event", "qp_async_event", "cq_wc_error"):
        v.none(f"{name}", load.events(name))
    facts = load.objects("cq")
    v.equal("asynchronous events", sum(fact["errors"] for fact in facts), 0)


def _passed(load: WorkloadResult, case: str) -> bool:
    """Whether KUnit says that a case passed."""
    return any(
        line.split()[:1] == ["ok"] and line.split()[-1] == f"rdma_cq_{case}"
        for line in load.stdout.splitlines()
    )


def _handler(event: Event) -> str:
    """The symbol of a completion handler, without its module."""
    return str(event.fields["done"]).split()[0]


def _key(event: Event, names: tuple[str, ...]) -> str:
    """How bpftrace prints a key of these fields."""
    return ",".join(str(event.fields[name]) for name in names)
