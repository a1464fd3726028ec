# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the io_uring-sq series.

The new events are checked against the workload's own record: what its system calls
returned, the ring's indices and ``sq_dropped`` around them, the CQEs, how many failures
failslab injected, and CLOCK_MONOTONIC before and after each call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult, records

MS = 1_000_000
HOLD = 200 * MS
ENOENT, EAGAIN, ENOMEM, EALREADY = -2, -11, -12, -114
SQPOLL = 1 << 1
WAIT, WAIT_END, SHORT = (
    "io_uring_sqring_wait",
    "io_uring_sqring_wait_end",
    "io_uring_short_submit",
)
QUEUE, START = "io_uring_queue_async_work", "io_uring_start_async_work"
#: enum io_short_submit_reason
NO_REQ, DROPPED, SQE_ERROR = 1, 2, 3
ECANCELED = -125
#: Where a cancel found the work, by its result: on the list of io-wq, or with a worker.
LISTED, TAKEN = 0, EALREADY
FSYNC, WRITE = (3, "FSYNC"), (23, "WRITE")
PROGRAM = "sq-pressure"

Line = Mapping[str, Any]
#: (process, file descriptor): no ring is closed before its process ends.
RingId = tuple[int, int]
#: ret, left, reason, sq_dropped
Stop = tuple[int, int, int, int]


@dataclass(frozen=True)
class Seen:
    """An event of one ring."""

    event: Event
    ring: RingId

    @property
    def stop(self) -> Stop:
        """The fields of a short_submit."""
        ret, left, reason, dropped = (
            self.event.number(key) for key in ("ret", "left", "reason", "sq_dropped")
        )
        return ret, left, reason, dropped


def sqe_error_stops_the_batch(ev: Evidence) -> Verdict:
    """The error is that of the CQE; the rest comes from enter and the ring."""
    v = Verdict()
    load = ev.workload("short")
    _stops_match(v, load, ("sqe", "sqpoll-sqe", "sqpoll-bad-all"))
    for case in ("sqe", "sqpoll-sqe", "sqpoll-bad-all"):
        errors = [res for line in _case(load, case) for _, res in line["cqes"] if res]
        v.at_least(f"{case}: CQEs with an error", len(errors), 1)
        reasons = {seen.stop[2] for seen in _of_case(load, case, SHORT)}
        v.equal(f"{case}: reasons", reasons, {SQE_ERROR})
    return v


def dropped_sqe_is_reported(ev: Evidence) -> Verdict:
    """There is no CQE for it: the ring's counter is the only witness."""
    v = Verdict()
    load = ev.workload("short")
    cases = ("drop", "drop-first", "drop-last", "all-drop", "sqpoll-drop")
    _stops_match(v, load, cases)
    for case in cases:
        lines = _case(load, case)
        counted = lines[-1]["dropped_after"] - lines[0]["dropped_before"]
        stops = [s for s in _of_case(load, case, SHORT) if s.stop[2] == DROPPED]
        v.equal(f"{case}: events, by sq_dropped", len(stops), counted)
        cqes = sum(len(line["cqes"]) for line in lines)
        v.equal(f"{case}: CQEs for four SQEs", cqes, 4 - counted)
    return v


def sq_thread_reports_what_enter_hides(ev: Evidence) -> Verdict:
    """Success for the caller, and the thread's id and name on every event."""
    v = Verdict()
    load = ev.workload("short")
    cases = ("sqpoll-sqe", "sqpoll-bad-all", "sqpoll-drop")
    _stops_match(v, load, cases)
    for case in (*cases, "sqpoll-nomem"):
        (line,) = _case(load, case)
        v.equal(f"{case}: enter returned", line["ret"], line["to_submit"])
        ring = _rings(load)[_id(line)]
        events = [seen.event for seen in _of_case(load, case, SHORT)]
        v.equal(f"{case}: threads", {e.pid for e in events}, {ring["sq_thread"]})
        name = f"iou-sqp-{line['pid']}"[:15]
        v.equal(f"{case}: names", {e.comm for e in events}, {name})
    return v


def no_memory_is_reported(ev: Evidence) -> Verdict:
    """failslab counts down: a denied request takes two of its failures."""
    v = Verdict()
    load = ev.workload("short")
    _stops_match(v, load, ("nomem", "nomem-partial", "sqpoll-nomem"))
    for line in _lines(load, "failslab"):
        case = line["case"]
        denied, odd = divmod(line["set"] - line["left"], 2)
        v.equal(f"{case}: failures without a pair", odd, 0)
        v.at_least(f"{case}: requests denied", denied, 1)
        stops = [seen.stop for seen in _of_case(load, case, SHORT)]
        v.equal(f"{case}: events, by requests denied", len(stops), denied)
        v.equal(f"{case}: reasons", {stop[2] for stop in stops}, {NO_REQ})
        submitted = sum(len(line["cqes"]) for line in _case(load, case))
        queued = 17 if case == "nomem-partial" else 4
        v.equal(f"{case}: CQEs in the end", submitted, queued)
    (partial,) = [s.stop for s in _of_case(load, "nomem-partial", SHORT)]
    v.at_least("nomem-partial: submitted, which hides it", partial[0], 1)
    return v


def own_enomem_is_not_lack_of_a_request(ev: Evidence) -> Verdict:
    """The CQE says -ENOMEM, so there was a request."""
    v = Verdict()
    load = ev.workload("short")
    _stops_match(v, load, ("nomem-prep",))
    results = [res for line in _case(load, "nomem-prep") for _, res in line["cqes"]]
    v.equal("CQEs with -ENOMEM", results.count(ENOMEM), 1)
    reasons = [seen.stop[2] for seen in _of_case(load, "nomem-prep", SHORT)]
    v.equal("reasons of events", reasons, [SQE_ERROR])
    return v


def nothing_left_no_event(ev: Evidence) -> Verdict:
    """Silence counts only if SQEs went in: older events name each of them."""
    v = Verdict()
    load = ev.workload("short")
    requests = {
        event.number("user_data")
        for name in ("io_uring_submit_req", "io_uring_req_failed")
        for event in load.events(name)
    }
    cases = ("none", "less", "more", "last", "link", "all-sqe", "sqpoll-none", "shared")
    for case in cases:
        lines = _case(load, case)
        queued = {data for line in lines for data in line["batch"]}
        v.equal(
            f"{case}: SQEs seen by older events", len(queued & requests), len(queued)
        )
        counts = [min(line["to_submit"], line["queued_before"]) for line in lines]
        if case not in ("sqpoll-none", "shared"):
            v.equal(f"{case}: enter returned", [n["ret"] for n in lines], counts)
        v.equal(f"{case}: left queued", lines[-1]["queued_after"], 0)
        for name in (SHORT, WAIT, WAIT_END):
            v.equal(f"{case}: {name}", len(_of_case(load, case, name)), 0)
    errors = [res for _, res in _case(load, "all-sqe")[0]["cqes"] if res < 0]
    v.equal("all-sqe: CQEs with an error", len(errors), 1)
    return v


def full_ring_wait_is_timed(ev: Evidence) -> Verdict:
    """At least from when it is seen asleep to the wake-up, at most the whole call."""
    v = Verdict()
    load = ev.workload("wait")
    _waits_match(v, load, "wait")
    return v


def signal_leaves_it_full(ev: Evidence) -> Verdict:
    """The indices are read by the program after the call."""
    v = Verdict()
    load = ev.workload("wait")
    (line,) = _case(load, "wait-signal", "wait")
    v.equal("enter returned", line["ret"], 0)
    v.equal("queued after the call", line["queued_after"], 4)
    _waits_match(v, load, "wait-signal")
    return v


def every_waiter_has_its_own(ev: Evidence) -> Verdict:
    """Each record of the program has its event, by thread id."""
    v = Verdict()
    load = ev.workload("wait")
    for case in ("wait-two", "wait-other"):
        lines = _case(load, case, "wait")
        v.equal(f"{case}: threads", len({line["tid"] for line in lines}), 2)
        _waits_match(v, load, case)
    owners = {line["pid"] for line in _lines(load, "wait")}
    v.equal("processes", len(owners), 2)
    return v


def room_needs_no_wait(ev: Evidence) -> Verdict:
    """The calls returned; nothing would have woken them from a sleep."""
    v = Verdict()
    load = ev.workload("wait")
    for case in ("wait-room", "wait-no-thread"):
        lines = _case(load, case, "wait")
        v.equal(f"{case}: enter returned", {line["ret"] for line in lines}, {0})
        for name in (WAIT, WAIT_END):
            v.equal(f"{case}: {name}", len(_of_case(load, case, name)), 0)
    queued = [line["queued_before"] for line in _case(load, "wait-room", "wait")]
    v.equal("wait-room: SQEs queued, of 4", queued, [0, 3, 5])
    (line,) = _case(load, "wait-no-thread", "wait")
    v.equal("wait-no-thread: SQEs queued, of 4", line["queued_before"], 4)
    return v


def busy_writer_adds_up(ev: Evidence) -> Verdict:
    """The pairs come one after the other, each within one of the writer's calls."""
    v = Verdict()
    load = ev.workload("wait")
    (line,) = _lines(load, "press")
    calls = line["waits"]
    events = sorted(
        (
            seen.event
            for name in (WAIT, WAIT_END)
            for seen in _of_case(load, "press", name)
        ),
        key=lambda event: event.ts_ns,
    )
    if not events:
        v.undecide("the writer was so slow that it never had to sleep")
        return v
    v.at_least("sleeps", len(events) // 2, 1)
    names = [event.name for event in events]
    v.equal("pairs", names, [WAIT, WAIT_END] * (len(names) // 2))
    outside = split = 0
    for begin, end in zip(events[::2], events[1::2], strict=False):
        inside = [
            call for call in calls if call[0] <= begin.ts_ns and end.ts_ns <= call[1]
        ]
        outside += not inside
        split += len(inside) > 1
    v.equal("sleeps outside of a call", outside, 0)
    v.equal("sleeps in two calls", split, 0)
    v.equal("sizes", {event.number("sq_entries") for event in events}, {8})
    begun = [event.number("queued") for event in events if event.name == WAIT]
    # The SQ thread may have taken some since the ring was seen full.
    v.at_most("queued when a sleep begins", max(begun), 8)
    most = max(event.number("queued") for event in events)
    v.at_most("queued when it ends", most, 8)
    room = grown = 0
    for since, until, after in calls:
        inside = [event for event in events if since <= event.ts_ns <= until]
        left = [event.number("queued") for event in inside if event.name == WAIT_END]
        # Only the writer queues: to sleep again within a call it must have found the
        # ring full, and what is queued only falls until the call has returned.
        room += sum(queued < 8 for queued in left[:-1])
        queued = [*(event.number("queued") for event in inside), after]
        grown += queued != sorted(queued, reverse=True)
    v.equal("sleeps that were ended by room, and followed by one more", room, 0)
    v.equal("calls in which the number queued rises", grown, 0)
    # The SQ thread wakes the writer after it has taken some, and nobody else does.
    ended = [event.number("queued") for event in events if event.name == WAIT_END]
    v.at_least("sleeps that end with room", sum(queued < 8 for queued in ended), 1)
    v.equal("threads", {event.pid for event in events}, {line["tid"]})
    return v


def well_behaved_load_is_silent(ev: Evidence) -> Verdict:
    """The older event shows that the rings worked while they were watched."""
    v = Verdict()
    load = ev.workload("quiet")
    (press,) = _lines(load, "press")
    loops = _lines(load, "nop")
    v.equal("press: calls to wait for room", len(press["waits"]), 0)
    for line in loops:
        v.equal("nop: CQEs", line["done"], line["nops"])
        v.equal("nop: short returns of enter", line["short_returns"], 0)
    total = press["nops"] + sum(line["nops"] for line in loops)
    submitted = len(load.events("io_uring_submit_req"))
    v.equal("io_uring_submit_req events", submitted, total)
    for name in (WAIT, WAIT_END, SHORT):
        v.none(f"{name} events", load.events(name))
    return v


def switched_on_midway(ev: Evidence) -> Verdict:
    """The program switches its own tracefs instance and prints what it holds."""
    v = Verdict()
    load = ev.workload("midway")
    for case, names in (
        ("mid-on", [WAIT, WAIT_END]),
        ("mid-on-late", [WAIT_END]),
        ("mid-off", [WAIT]),
        ("mid-off-on", [WAIT, WAIT_END]),
        ("mid-on-again", [WAIT, WAIT_END]),
    ):
        (line,) = _case(load, case, "wait")
        events = _own_trace(ev, load, case)
        asleep = line["act_ns"] - line["asleep_ns"]
        v.at_least(f"{case}: asleep", asleep, 200 * MS, "ns")
        v.equal(f"{case}: events", [event.name for event in events], names)
        if len(events) == 2:
            _wait_fits(v, case, line, events)
    return v


def events_are_where_the_program_was(ev: Evidence) -> Verdict:
    """Every event, not only those that a case looks for."""
    v = Verdict()
    for name in ("short", "wait"):
        load = ev.workload(name)
        rings = _rings(load)
        calls = list(_calls(load))
        for event_name in (WAIT, WAIT_END, SHORT):
            recorded = load.record(event_name)
            seen = _seen(load, event_name)
            v.equal(f"{name}: {event_name}: on own rings", len(seen), len(recorded))
            outside = [
                seen_event
                for seen_event in seen
                if not any(
                    ring == seen_event.ring
                    and begin <= seen_event.event.ts_ns <= end
                    and seen_event.event.pid in (tid, rings[ring]["sq_thread"])
                    for ring, tid, begin, end in calls
                )
            ]
            v.equal(f"{name}: {event_name}: outside of a call", len(outside), 0)
        count = sum(len(_stops(load, line)) for line in _lines(load, "submit"))
        v.equal(f"{name}: all {SHORT}", len(load.record(SHORT)), count)
    v.none("short: waits", ev.workload("short").record(WAIT))
    return v


def failed_sqe_joins(ev: Evidence) -> Verdict:
    """Same ring pointer in the text, same thread, nothing submitted in between."""
    v = Verdict()
    load = ev.workload("short")
    cqes = {data: res for line in _lines(load, "submit") for data, res in line["cqes"]}
    last: dict[int, Event] = {}
    joined = wrong = 0
    for event in load.events():
        if event.name in ("io_uring_submit_req", "io_uring_req_failed"):
            last[event.pid] = event
        elif event.name == SHORT and event.fields["reason"] == "sqe_error":
            before = last[event.pid]
            joined += 1
            wrong += not (
                before.name == "io_uring_req_failed"
                and before.fields["ctx"] == event.fields["ctx"]
                and cqes[before.number("user_data")] == before.fields["error"]
            )
    v.at_least("events with an SQE's error", joined, 1)
    v.equal("of these, not preceded by that SQE's failure", wrong, 0)
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """The expected values come from the lines that the program prints."""
    v = Verdict()
    load = ev.workload("short")
    stops: Counter[tuple[str, ...]] = Counter()
    left: Counter[tuple[str, ...]] = Counter()
    for line in _lines(load, "submit"):
        ring = _id(line)
        key = str(ring[0]), str(_created(load)[ring].number("ctx"))
        for _, rest, reason, _ in _stops(load, line):
            stops[*key, str(reason)] += 1
            left[key] += rest
    maps = load.bpftrace("io_uring-sq-why").maps
    v.equal("@stops", _map(maps, "@stops"), dict(stops))
    v.equal("@left", _map(maps, "@left"), dict(left))
    quiet = ev.workload("quiet").bpftrace("io_uring-sq-why")
    v.equal("quiet: entries in maps", sum(map(len, quiet.maps.values())), 0)
    load = ev.workload("wait")
    slept: Counter[tuple[str, ...]] = Counter()
    for name, buckets in load.bpftrace("io_uring-sq-wait").hists["@wait_us"].items():
        _, *owner = name.split(",")
        slept[tuple(owner)] += sum(bucket.count for bucket in buckets)
    asleep: Counter[tuple[str, ...]] = Counter()
    for line in _lines(load, "wait"):
        if line["asleep_ns"]:
            asleep[str(line["pid"]), str(line["tid"]), "4"] += 1
    (press,) = _lines(load, "press")
    busy = slept.pop((str(press["pid"]), str(press["tid"]), "8"), 0)
    v.equal("@wait_us", dict(slept), dict(asleep))
    ends = _of_case(load, "press", WAIT_END)
    v.equal("@wait_us, the busy writer", busy, len(ends))
    load = ev.workload("async")
    script = load.bpftrace("io_uring-async")
    completed: Counter[str] = Counter()
    for name, buckets in script.hists["@queued_us"].items():
        completed[name] += sum(bucket.count for bucket in buckets)
    canceled = {key: int(n) for key, n in script.maps["@canceled"].items()}
    expected: Counter[str] = Counter()
    canceled_writes: Counter[str] = Counter()
    for line in _lines(load, "async"):
        writes = line["writes"][:1] if _linked(line) else line["writes"]
        # Writes to files are hashed.
        expected[f"{line['pid']},1"] += sum(write[2] > 0 for write in writes)
        canceled_writes[str(line["pid"])] += sum(write[2] == 0 for write in writes)
    (links,) = _lines(load, "chains")
    # Three writes, and the fsync that had to be queued.
    expected[f"{links['pid']},1"] += 3
    expected[f"{links['pid']},0"] += 1
    (killed,) = _lines(load, "killed")
    own = str(killed["pid"])
    total = completed.pop(f"{own},1", 0) + canceled.pop(own, 0)
    v.equal("async: writes of the killed process", total, len(killed["writes"]))
    v.equal("async: writes that ran", dict(completed), dict(expected))
    v.equal("async: canceled", canceled, dict(+canceled_writes))
    v.equal("async: still queued", len(script.maps.get("@queued", {})), 0)
    return v


def async_start_is_seen_twice(ev: Evidence) -> Verdict:
    """userfaultfd names each write's worker and page; the event comes before that."""
    v = Verdict()
    load = ev.workload("async")
    for line in _lines(load, "async"):
        case = line["case"]
        events = [seen.event for seen in _of_case(load, case, START)]
        starts = {event.number("user_data"): event for event in events}
        queued = {
            seen.event.number("user_data"): seen.event
            for seen in _of_case(load, case, QUEUE)
        }
        ids = [write[0] for write in line["writes"]]
        v.equal(f"{case}: queued", sorted(queued), ids[:1] if _linked(line) else ids)
        v.equal(f"{case}: started", sorted(starts), ids)
        v.equal(f"{case}: events", len(events), len(ids))
        for data, worker, seen_ns, release_ns in line["writes"]:
            # A start that is missing is said above.
            if not seen_ns or data not in starts:
                continue
            event = starts[data]
            v.equal(f"{case}: {data}: worker", event.pid, worker)
            v.equal(f"{case}: {data}: cancel", event.number("cancel"), 0)
            v.equal(f"{case}: {data}: opcode", _opcode(event), WRITE)
            if data in queued:
                request = queued[data].fields["req"]
                v.equal(f"{case}: {data}: request", event.fields["req"], request)
            # Not before its worker was free, that is, had its last write let go.
            before = [
                other[3]
                for other in line["writes"]
                if other[1] == worker and other[2] < seen_ns
            ]
            least = max(before, default=line["begin_ns"])
            v.within(f"{case}: {data}: start", event.ts_ns, least, seen_ns, "ns")
            v.at_most(f"{case}: {data}: let go after it", event.ts_ns, release_ns, "ns")
    for name in (QUEUE, START):
        count = len(_seen(load, name))
        v.equal(f"{name}: on own rings", count, len(load.record(name)))
    return v


def time_in_the_queue_is_the_programs(ev: Evidence) -> Verdict:
    """Bounds come from the program's clock and how many writes its workers can hold."""
    v = Verdict()
    load = ev.workload("async")
    longest = 0
    for line in _lines(load, "async"):
        case = line["case"]
        if _linked(line):
            continue
        limit = min(line["workers"], line["files"])
        let_go = sorted(write[3] for write in line["writes"] if write[3])
        seen_ns = {write[0]: write[2] for write in line["writes"]}
        held = 0
        for queued, start in _joined(load, case):
            data, waited = start.number("user_data"), start.ts_ns - queued.ts_ns
            # An SQ thread may queue at any time until the write is seen.
            latest = seen_ns[data] if _sqpoll(load, line) else line["end_ns"]
            at = queued.ts_ns
            v.within(f"{case}: {data}: queued", at, line["begin_ns"], latest, "ns")
            if start.number("cancel"):
                least, most = _canceled_within(line)
            else:
                # All that can be running are held until one of them is let go.
                least = at if held < limit else let_go[held - limit]
                most = seen_ns[data]
                held += 1
            least, most = max(0, least - latest), most - line["begin_ns"]
            v.within(f"{case}: {data}: in the queue", waited, least, most, "ns")
            longest = max(longest, least)
        v.equal(f"{case}: joined by request", held, len(let_go))
    # A write is let go when nothing has started for HOLD / 4, and six are in a row.
    v.at_least("longest time in the queue, by the program", longest, HOLD, "ns")
    return v


def linked_work_waits_as_well(ev: Evidence) -> Verdict:
    """By the order in which the program let writes go, and the completions by then."""
    v = Verdict()
    load = ev.workload("async")
    (line,) = _case(load, "async-chains", "chains")
    requests = {request[0]: request[1:] for request in line["requests"]}
    first, write_1, fsync_1, write_2, fsync_2 = requests
    queued, started = (
        {match.event.number("user_data"): match.event for match in matches}
        for matches in (_of_case(load, "async-chains", name) for name in (QUEUE, START))
    )
    for name, events, ids in (
        # The worker went on with the second fsync right away.
        (QUEUE, queued, [first, write_1, fsync_1, write_2]),
        (START, started, [first, write_1, fsync_1, write_2, fsync_2]),
    ):
        v.equal(f"{name}: requests", sorted(events), ids)
        count = len(_of_case(load, "async-chains", name))
        v.equal(f"{name}: events", count, len(ids))
    joined = [
        queued[data].fields["req"] == started[data].fields["req"] for data in queued
    ]
    v.equal("joined by request", joined, [True] * 4)
    for fsync in (fsync_1, fsync_2):
        v.equal(f"{fsync}: opcode", _opcode(started[fsync]), FSYNC)
        v.equal(f"{fsync}: cancel", started[fsync].number("cancel"), 0)
    worker, held_ns, let_go, completions = requests[write_2]
    when = queued[fsync_1].ts_ns
    v.within("first fsync: queued", when, requests[write_1][2], held_ns, "ns")
    completed = [data for data, _ in line["cqes"]][:completions]
    v.equal("complete while the second write is held", completed, [first, write_1])
    when = started[fsync_1].ts_ns
    v.within("first fsync: started", when, let_go, line["over_ns"], "ns")
    v.at_least(
        "it was queued for", when - queued[fsync_1].ts_ns, let_go - held_ns, "ns"
    )
    when = started[fsync_2].ts_ns
    v.within("second fsync: started", when, let_go, started[fsync_1].ts_ns, "ns")
    v.equal("workers", {event.pid for event in started.values()}, {worker})
    return v


def stall_shows_while_it_lasts(ev: Evidence) -> Verdict:
    """The program reads its own trace instance when nothing has moved for HOLD."""
    v = Verdict()
    load = ev.workload("async")
    # Of one file's writes, the worker has taken all off the list, and is in the second.
    for case, least in (("async-stall", 1), ("async-stall-file", 2)):
        (line,) = _case(load, case, "stall")
        (record,) = _case(load, case, "async")
        events = records.trace("\n".join(line["trace"]), ev.layouts.values())
        queued, started = (
            {event.fields["req"]: event for event in events if event.name == name}
            for name in (QUEUE, START)
        )
        unknown = len(started.keys() - queued.keys())
        v.equal(f"{case}: started without being queued", unknown, 0)
        begun, at_ns = set(line["begun"]), line["at_ns"]
        ids = sorted(event.number("user_data") for event in started.values())
        late, tardy = _begun_late(record, at_ns, begun), ""
        if set(ids) - begun - late and len(ids) <= _most_begun(record, at_ns):
            tardy = f"{case}: a worker had begun a write, but not to read its page"
        pending = {write[0] for write in record["writes"]} - begun
        waiting = {
            queued[req].number("user_data"): queued[req].ts_ns
            for req in queued.keys() - started.keys()
        }
        with v.excused(tardy):
            known = [data for data in ids if data not in late]
            v.equal(f"{case}: started", known, sorted(begun))
            v.equal(f"{case}: queued still", set(waiting) - late, pending - late)
        v.at_least(f"{case}: begun, by userfaultfd", len(line["begun"]), least)
        v.at_least(f"{case}: not begun, by userfaultfd", len(pending), 1)
        for data, since in waiting.items():
            v.at_least(f"{case}: {data}: for", at_ns - since, HOLD, "ns")
    return v


def _begun_late(record: Line, at_ns: int, begun: set[int]) -> set[int]:
    """The writes that were seen only after the trace was read, and before anything was
    let go: they began in the meantime."""
    writes = record["writes"]
    let_go = min((write[3] for write in writes if write[3] > at_ns), default=at_ns)
    return {write[0] for write in writes if at_ns < write[2] < let_go} - begun


def _most_begun(record: Line, at_ns: int) -> int:
    """How many writes can have begun by then: those let go, and one for each worker."""
    let_go = sum(write[3] <= at_ns for write in record["writes"])
    return int(let_go + min(record["workers"], record["files"]))


def canceled_work_leaves_the_queue(ev: Evidence) -> Verdict:
    """CQE and userfaultfd show whether it ran, the cancel's result who had it."""
    v = Verdict()
    load = ev.workload("async")
    for case, place in (("async-cancel", LISTED), ("async-cancel-file", TAKEN)):
        (line,) = _case(load, case, "async")
        results = dict(line["cqes"])
        *others, (data, worker, seen_ns, _) = line["writes"]
        result = results[data + 1]
        events = [
            seen.event
            for seen in _of_case(load, case, START)
            if seen.event.number("user_data") == data
        ]
        v.equal(f"{case}: opcodes", [_opcode(event) for event in events], [WRITE])
        queued = _requests(load, case)
        requests = [event.fields["req"] for event in events]
        v.equal(f"{case}: requests", requests, [queued.get(data)])
        unseen = [write[0] for write in others if not write[2]]
        v.equal(f"{case}: others that never ran", unseen, [])
        cancel = [event.number("cancel") for event in events]
        if place == TAKEN and seen_ns:
            # Older kernels look only at what a worker has begun: this one ran.
            v.equal(f"{case}: result of a cancel that finds nothing", result, ENOENT)
            v.equal(f"{case}: CQE", results[data], results[data - 1])
            v.equal(f"{case}: cancel of what ran", cancel, [0])
            v.equal(f"{case}: worker", [event.pid for event in events], [worker])
            continue
        v.equal(f"{case}: seen in the last write", seen_ns, 0)
        v.equal(f"{case}: CQE", results[data], ECANCELED)
        v.equal(f"{case}: cancel", cancel, [1])
        if (place, result) == (LISTED, TAKEN):
            v.undecide(f"{case}: a worker had the write before it was canceled")
        else:
            v.equal(f"{case}: result of the cancel", result, place)
        # A worker that has taken it off the list has what was in front as well.
        thread = line["tid"] if result == LISTED else others[-1][1]
        for event in events:
            v.equal(f"{case}: thread", event.pid, thread, record=event)
            v.within(
                f"{case}: when",
                event.ts_ns,
                *_canceled_within(line),
                "ns",
                record=event,
            )
    return v


def killed_work_leaves_the_queue(ev: Evidence) -> Verdict:
    """Each request has one event, whether a worker ran it or it was canceled."""
    v = Verdict()
    load = ev.workload("async")
    (line,) = _case(load, "async-kill", "killed")
    (gone,) = _case(load, "async-kill", "gone")
    ids = [write[0] for write in line["writes"]]
    held = {write[0] for write in line["writes"] if write[2]}
    queued = [s.event.number("user_data") for s in _of_case(load, "async-kill", QUEUE)]
    v.equal("queued", sorted(queued), ids)
    v.at_least("held when it was killed", len(held), 1)
    events = {
        seen.event.number("user_data"): seen.event
        for seen in _of_case(load, "async-kill", START)
    }
    v.equal("events", len(_of_case(load, "async-kill", START)), len(ids))
    v.equal("started or canceled", sorted(events), ids)
    requests = _requests(load, "async-kill")
    for data, event in events.items():
        v.equal(f"{data}: opcode", _opcode(event), WRITE)
        v.equal(f"{data}: request", event.fields["req"], requests.get(data))
        least, most = line["over_ns"], gone["gone_ns"]
        if data in held:
            v.equal(f"{data}: cancel", event.number("cancel"), 0)
            least, most = line["begin_ns"], line["over_ns"]
        v.within(f"{data}: when", event.ts_ns, least, most, "ns", record=event)
    return v


def fdinfo_shows_the_rings_counters(ev: Evidence) -> Verdict:
    """Read by another process; the program maps the ring, and counts its CQEs."""
    v = Verdict()
    load = ev.workload("counters")
    expected = {"before": (0, 0), "dropped": (3, 0), "kept": (3, 0), "lost": (3, 4)}
    lines = _case(load, "counters", "fdinfo")
    v.equal("readings", [line["when"] for line in lines], list(expected))
    for line in lines + _case(load, "idle", "fdinfo"):
        case, when = line["case"], line["when"]
        counts = line["dropped"], line["overflow"]
        counters = (0, 0) if case == "idle" else expected[when]
        v.equal(f"{case}, {when}: the ring's counters", counts, counters)
        v.equal(f"{case}, {when}: fdinfo", _counters(line["lines"]), counts)
    (line,) = _case(load, "counters", "counters")
    v.equal("NOPs", line["nops"], 7)
    v.equal("CQEs on the ring", [res for _, res in line["cqes"]], [0, 0])
    v.equal("CQEs that were kept", [res for _, res in line["kept"]], [0])
    lost = line["nops"] - len(line["cqes"]) - len(line["kept"])
    v.equal("CQEs that never came", lost, lines[-1]["overflow"])
    v.equal("CqOverflowList", _kept(lines[-1]["lines"]), [line["kept"][0][0]])
    overflows = load.events("io_uring_cqe_overflow")
    v.equal("io_uring_cqe_overflow", len(overflows), lost + len(line["kept"]))
    v.equal(
        "of these, without memory", sum(not e.number("ocqe") for e in overflows), lost
    )
    return v


def _counters(lines: Sequence[str]) -> tuple[int, ...]:
    """SqDropped and CqOverflow of fdinfo, which have to be there once each."""
    fields = [line.partition(":\t") for line in lines]
    return tuple(
        int(value)
        for name in ("SqDropped", "CqOverflow")
        for key, _, value in fields
        if key == name
    )


def _kept(lines: Sequence[str]) -> list[int]:
    """The user_data of CQEs in the CqOverflowList."""
    at = lines.index("CqOverflowList:")
    return [
        int(line.split("=")[1].split(",")[0])
        for line in lines[at + 1 :]
        if line.startswith("  user_data=")
    ]


def _linked(line: Line) -> bool:
    """Whether only the first write is queued: the worker runs its links right away."""
    return bool(line["case"] == "async-linked")


def _opcode(event: Event) -> tuple[int, object]:
    return event.number("opcode"), event.fields["op_str"]


def _canceled_within(line: Line) -> tuple[int, int]:
    """When it can be canceled: in the cancel's call, or when a worker comes to it."""
    writes = line["writes"]
    if dict(line["cqes"])[writes[-1][0] + 1] == LISTED:
        return line["cancel_ns"], line["canceled_ns"]
    # With several files, what is held at that time is in front.
    last = line["over_ns"] if line["files"] == 1 else line["cancel_ns"]
    return max(write[3] for write in writes if write[2] <= last), line["over_ns"]


def _sqpoll(load: WorkloadResult, line: Line) -> bool:
    return bool(_rings(load)[_id(line)]["flags"] & SQPOLL)


def _requests(load: WorkloadResult, case: str) -> dict[int, object]:
    """The kernel's address of each request that was queued, by user_data."""
    return {
        seen.event.number("user_data"): seen.event.fields["req"]
        for seen in _of_case(load, case, QUEUE)
    }


def _joined(load: WorkloadResult, case: str) -> list[tuple[Event, Event]]:
    """(queued, started) by request, in the order in which they started."""
    pairs: list[tuple[Event, Event]] = []
    queued: dict[int, Event] = {}
    events = [
        seen.event for name in (QUEUE, START) for seen in _of_case(load, case, name)
    ]
    for event in sorted(events, key=lambda event: event.ts_ns):
        if event.name == QUEUE:
            queued[event.number("req")] = event
        elif event.number("req") in queued:
            pairs.append((queued.pop(event.number("req")), event))
    return pairs


def _lines(load: WorkloadResult, kind: str) -> list[Line]:
    """The program's own lines of one kind, in order."""
    lines: Iterable[Line] = map(json.loads, load.stdout.splitlines())
    return [line for line in lines if line["kind"] == kind]


def _case(load: WorkloadResult, case: str, kind: str = "submit") -> list[Line]:
    lines = [line for line in _lines(load, kind) if line["case"] == case]
    if not lines:
        raise ValueError(f"the program has no {kind} line of case {case}")
    return lines


def _id(line: Line) -> RingId:
    return line["pid"], line["fd"]


def _rings(load: WorkloadResult) -> dict[RingId, Line]:
    return {_id(line): line for line in _lines(load, "ring")}


def _created(load: WorkloadResult) -> dict[RingId, Event]:
    """The older io_uring_create of each ring, which has the kernel's address."""
    events = {
        (event.pid, event.number("fd")): event
        for event in load.record("io_uring_create")
    }
    return {
        ring: events[line["tid"], line["fd"]] for ring, line in _rings(load).items()
    }


def _seen(load: WorkloadResult, name: str) -> list[Seen]:
    """The events on the program's rings.

    A ring can get the address of one that is gone, so the time decides which it is.
    """
    created = sorted(
        (
            (event.ts_ns, event.number("ctx"), ring)
            for ring, event in _created(load).items()
        ),
        reverse=True,
    )
    matches = []
    for event in load.record(name):
        for since, ctx, ring in created:
            if ctx == event.number("ctx") and since <= event.ts_ns:
                matches.append(Seen(event, ring))
                break
    return matches


def _of_case(load: WorkloadResult, case: str, name: str) -> list[Seen]:
    rings = _rings(load)
    return [seen for seen in _seen(load, name) if rings[seen.ring]["case"] == case]


def _stops(load: WorkloadResult, line: Line) -> list[Stop]:
    """The short submissions that one call must cause, by what the program knows."""
    ring = _rings(load)[_id(line)]
    if ring["flags"] & SQPOLL:
        return list(_denied(load, line)) + list(_thread_stops(ring, line))
    count = min(line["to_submit"], line["queued_before"], ring["sq_entries"])
    ret, dropped = line["ret"], line["dropped_after"]
    if ret == count:
        return []
    if ret < 0:
        return [(EAGAIN, count, NO_REQ, dropped)]
    if dropped > line["dropped_before"]:
        return [(ret, count - ret - 1, DROPPED, dropped)]
    result = dict(line["cqes"])[line["batch"][ret - 1]]
    # All that were submitted succeeded, so the next one had no request.
    reason = SQE_ERROR if result < 0 else NO_REQ
    return [(ret, count - ret, reason, dropped)]


def _denied(load: WorkloadResult, line: Line) -> Iterator[Stop]:
    """The thread retries until failslab has no failures left, two each time."""
    for lab in _lines(load, "failslab"):
        if _id(lab) == _id(line):
            for _ in range((lab["set"] - lab["left"]) // 2):
                yield EAGAIN, line["queued_before"], NO_REQ, line["dropped_before"]


def _thread_stops(ring: Line, line: Line) -> Iterator[Stop]:
    """What stops an SQ thread, by its CQEs: nobody sees its return value."""
    results = dict(line["cqes"])
    left = _order(ring, line)
    dropped = line["dropped_before"]
    while left:
        taken = left[: ring["sq_entries"]]
        consumed = len(taken)
        for position, data in enumerate(taken):
            rest = len(taken) - position
            if data not in results:
                dropped += 1
                yield position, rest - 1, DROPPED, dropped
            elif results[data] < 0 and rest > 1:
                yield position + 1, rest - 1, SQE_ERROR, dropped
            else:
                continue
            consumed = position + 1
            break
        left = left[consumed:]


def _order(ring: Line, line: Line) -> list[int]:
    """The SQEs as the kernel finds them: the first ones may be overwritten."""
    batch = list(line["batch"])
    for position in range(len(batch) - ring["sq_entries"]):
        batch[position] = batch[position + ring["sq_entries"]]
    return batch


def _stops_match(v: Verdict, load: WorkloadResult, cases: Sequence[str]) -> None:
    for case in cases:
        stops = [stop for line in _case(load, case) for stop in _stops(load, line)]
        v.at_least(f"{case}: stops, by the program", len(stops), 1)
        events = [seen.stop for seen in _of_case(load, case, SHORT)]
        v.equal(f"{case}: ret, left, reason, sq_dropped", events, stops)


def _waits_match(v: Verdict, load: WorkloadResult, case: str) -> None:
    lines = {line["tid"]: line for line in _case(load, case, "wait")}
    for name in (WAIT, WAIT_END):
        events = _of_case(load, case, name)
        tids = sorted(seen.event.pid for seen in events)
        v.equal(f"{case}: threads of {name}", tids, sorted(lines))
    for tid, line in lines.items():
        own = [
            seen.event
            for name in (WAIT, WAIT_END)
            for seen in _of_case(load, case, name)
            if seen.event.pid == tid
        ]
        _wait_fits(v, case, line, own)


def _wait_fits(v: Verdict, case: str, line: Line, pair: Sequence[Event]) -> None:
    """A wait begins before it is seen asleep and ends after what ends it."""
    v.equal(f"{case}: a beginning and an end", [e.name for e in pair], [WAIT, WAIT_END])
    if len(pair) != 2:
        return
    begin, end = pair
    size = line["queued_before"]
    v.within(f"{case}: begins", begin.ts_ns, line["begin_ns"], line["asleep_ns"], "ns")
    v.within(f"{case}: ends", end.ts_ns, line["act_ns"], line["end_ns"], "ns")
    for event in pair:
        v.equal(f"{case}: sq_entries", event.number("sq_entries"), size, record=event)
    v.equal(f"{case}: queued before", begin.number("queued"), size)
    v.equal(f"{case}: queued after", end.number("queued"), line["queued_after"])


def _own_trace(ev: Evidence, load: WorkloadResult, case: str) -> tuple[Event, ...]:
    (line,) = _case(load, case, "mid")
    return records.trace("\n".join(line["trace"]), ev.layouts.values())


def _calls(load: WorkloadResult) -> Iterator[tuple[RingId, int, int, int]]:
    """(ring, thread, begin, end) of each call that may cause an event."""
    for kind in ("submit", "wait"):
        for line in _lines(load, kind):
            yield _id(line), line["tid"], line["begin_ns"], line["end_ns"]
    for line in _lines(load, "press"):
        for begin, end, _ in line["waits"]:
            yield _id(line), line["tid"], begin, end


def _map(
    maps: Mapping[str, Mapping[str, int]],
    name: str,
    together: Callable[[Iterable[int]], int] = sum,
) -> dict[tuple[str, ...], int]:
    """A map of a script, with the threads of each process combined by ``together``."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for key, n in maps.get(name, {}).items():
        groups.setdefault(_without_thread(key), []).append(int(n))
    return {key: together(numbers) for key, numbers in groups.items()}


def _without_thread(key: str) -> tuple[str, ...]:
    """A key as bpftrace prints it (process, thread, others), without the thread."""
    process, _, *rest = key.split(",")
    return process, *rest
