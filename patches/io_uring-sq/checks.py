# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the io_uring-sq series.

What is held against the new events is the workload's own record: what its system calls
returned, the ring's indices and ``sq_dropped`` around them, the CQEs, how many failures
failslab handed out, and CLOCK_MONOTONIC before and after each call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult, records

MS = 1_000_000
EAGAIN, ENOMEM = -11, -12
SQPOLL = 1 << 1
WAIT, SHORT, OVERFLOW = (
    "io_uring_sqring_wait",
    "io_uring_short_submit",
    "io_uring_sq_overflow",
)
PROGRAM = "sq-pressure"

Line = Mapping[str, Any]
#: (process, file descriptor): no ring is closed before its process ends.
RingId = tuple[int, int]
#: submitted, left, error, sq_dropped
Stop = tuple[int, int, int, int]


@dataclass(frozen=True)
class Seen:
    """An event of one ring."""

    event: Event
    ring: RingId

    @property
    def stop(self) -> Stop:
        """What a short_submit says."""
        submitted, left, error, dropped = (
            _int(self.event, key)
            for key in ("submitted", "left", "error", "sq_dropped")
        )
        return submitted, left, error, dropped


def sqe_error_stops_the_batch(ev: Evidence) -> Verdict:
    """The error is the CQE's, the rest is what enter and the ring say."""
    v = Verdict()
    load = ev.workload("short")
    _stops_match(v, load, ("sqe", "sqpoll-sqe", "sqpoll-bad-all"))
    for case in ("sqe", "sqpoll-sqe", "sqpoll-bad-all"):
        failed = {res for line in _case(load, case) for _, res in line["cqes"]} - {0}
        errors = {seen.stop[2] for seen in _of_case(load, case, SHORT)}
        v.equal(f"{case}: errors of events and of CQEs", errors, failed)
    return v


def dropped_sqe_is_told(ev: Evidence) -> Verdict:
    """There is no CQE for it: the ring's counter is the only witness."""
    v = Verdict()
    load = ev.workload("short")
    cases = ("drop", "drop-first", "drop-last", "all-drop", "sqpoll-drop")
    _stops_match(v, load, cases)
    for case in cases:
        lines = _case(load, case)
        counted = lines[-1]["dropped_after"] - lines[0]["dropped_before"]
        zeros = [seen for seen in _of_case(load, case, SHORT) if seen.stop[2] == 0]
        v.equal(f"{case}: events with error 0, by sq_dropped", len(zeros), counted)
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


def no_memory_is_told(ev: Evidence) -> Verdict:
    """failslab counts down: a denied request takes two of its failures."""
    v = Verdict()
    load = ev.workload("short")
    _stops_match(v, load, ("nomem", "nomem-partial", "sqpoll-nomem"))
    for line in _lines(load, "failslab"):
        case = line["case"]
        denied, odd = divmod(line["set"] - line["left"], 2)
        v.equal(f"{case}: failures that make no pair", odd, 0)
        v.at_least(f"{case}: requests denied", denied, 1)
        stops = [seen.stop for seen in _of_case(load, case, SHORT)]
        v.equal(f"{case}: events, by requests denied", len(stops), denied)
        v.equal(f"{case}: errors", {stop[2] for stop in stops}, {EAGAIN})
        submitted = sum(len(one["cqes"]) for one in _case(load, case))
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
    errors = [seen.stop[2] for seen in _of_case(load, "nomem-prep", SHORT)]
    v.equal("errors of events", errors, [ENOMEM])
    return v


def overflow_is_counted(ev: Evidence) -> Verdict:
    """CQEs tell which SQE was run twice and which one never."""
    v = Verdict()
    load = ev.workload("short")
    for case in ("overflow", "sqpoll-overflow"):
        lines = _case(load, case)
        wanted = [pair for line in lines for pair in _overflows(load, line)]
        v.at_least(f"{case}: overflows that the program made", len(wanted), 1)
        found = [
            (_int(seen.event, "sq_entries"), _int(seen.event, "queued"))
            for seen in _of_case(load, case, OVERFLOW)
        ]
        v.equal(f"{case}: sq_entries, queued", found, wanted)
        late = sum(_after_the_first_sqe(load, line) for line in lines)
        v.equal(f"{case}: told after the first SQE was taken", late, 0)
        batch = lines[0]["batch"]
        told = Counter(data for line in lines for data, _ in line["cqes"])
        v.equal(f"{case}: CQEs of the first SQE", told[batch[0]], 0)
        v.equal(f"{case}: CQEs of the last SQE", told[batch[-1]], 2)
        v.equal(f"{case}: short_submit", len(_of_case(load, case, SHORT)), 0)
    return v


def nothing_left_no_event(ev: Evidence) -> Verdict:
    """Silence counts only if SQEs went in: older events name each of them."""
    v = Verdict()
    load = ev.workload("short")
    known = {
        _int(event, "user_data")
        for name in ("io_uring_submit_req", "io_uring_req_failed")
        for event in load.events(name)
    }
    cases = ("none", "less", "more", "last", "link", "all-sqe", "sqpoll-none", "shared")
    for case in cases:
        lines = _case(load, case)
        queued = {data for line in lines for data in line["batch"]}
        v.equal(f"{case}: SQEs seen by older events", len(queued & known), len(queued))
        wanted = [min(line["to_submit"], line["queued_before"]) for line in lines]
        if case not in ("sqpoll-none", "shared"):
            v.equal(f"{case}: enter returned", [n["ret"] for n in lines], wanted)
        v.equal(f"{case}: left queued", lines[-1]["queued_after"], 0)
        for name in (SHORT, OVERFLOW, WAIT):
            v.equal(f"{case}: {name}", len(_of_case(load, case, name)), 0)
    errors = [res for _, res in _case(load, "all-sqe")[0]["cqes"] if res < 0]
    v.equal("all-sqe: CQEs with an error", len(errors), 1)
    return v


def full_ring_wait_is_timed(ev: Evidence) -> Verdict:
    """Asleep from being seen so until the wake-up, at least, at most the call."""
    v = Verdict()
    load = ev.workload("wait")
    _waits_match(v, load, "wait", _of_case(load, "wait", WAIT))
    return v


def signal_leaves_it_full(ev: Evidence) -> Verdict:
    """The indices are read by the program after the call."""
    v = Verdict()
    load = ev.workload("wait")
    (line,) = _case(load, "wait-signal", "wait")
    v.equal("enter returned", line["ret"], 0)
    v.equal("queued after the call", line["queued_after"], 4)
    _waits_match(v, load, "wait-signal", _of_case(load, "wait-signal", WAIT))
    return v


def every_waiter_has_its_own(ev: Evidence) -> Verdict:
    """By thread id: each record of the program has its event."""
    v = Verdict()
    load = ev.workload("wait")
    for case in ("wait-two", "wait-other"):
        lines = _case(load, case, "wait")
        v.equal(f"{case}: threads", len({line["tid"] for line in lines}), 2)
        _waits_match(v, load, case, _of_case(load, case, WAIT))
    owners = {line["pid"] for line in _lines(load, "wait")}
    v.equal("processes", len(owners), 2)
    return v


def room_needs_no_wait(ev: Evidence) -> Verdict:
    """The calls were made, and not one of them took the time of a sleep."""
    v = Verdict()
    load = ev.workload("wait")
    for case in ("wait-room", "wait-no-thread"):
        lines = _case(load, case, "wait")
        v.equal(f"{case}: enter returned", {line["ret"] for line in lines}, {0})
        v.equal(f"{case}: {WAIT}", len(_of_case(load, case, WAIT)), 0)
    queued = [line["queued_before"] for line in _case(load, "wait-room", "wait")]
    v.equal("wait-room: SQEs queued, of 4", queued, [0, 3, 5])
    (line,) = _case(load, "wait-no-thread", "wait")
    v.equal("wait-no-thread: SQEs queued, of 4", line["queued_before"], 4)
    return v


def busy_writer_adds_up(ev: Evidence) -> Verdict:
    """The writer's clock runs around each of its calls."""
    v = Verdict()
    load = ev.workload("wait")
    (line,) = _lines(load, "press")
    calls = [(begin, end) for begin, end in line["waits"]]
    events = [seen.event for seen in _of_case(load, "press", WAIT)]
    v.within("events, by calls", len(events), 1, len(calls))
    used: Counter[int] = Counter()
    longer = early = 0
    for event in events:
        inside = [n for n, (b, e) in enumerate(calls) if b <= event.ts_ns <= e]
        for number in inside:
            begin, end = calls[number]
            used[number] += 1
            longer += _int(event, "wait_ns") > end - begin
            early += event.ts_ns - _int(event, "wait_ns") < begin
    v.equal("events inside of a call", used.total(), len(events))
    v.equal("calls with two", sum(count > 1 for count in used.values()), 0)
    v.equal("events longer than their call", longer, 0)
    v.equal("events that began before their call", early, 0)
    total = sum(_int(event, "wait_ns") for event in events)
    v.within("sum of wait_ns", total, 1, sum(e - b for b, e in calls), "ns")
    v.equal("sizes", {_int(event, "sq_entries") for event in events}, {8})
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
    for name in (WAIT, SHORT, OVERFLOW):
        v.equal(f"{name} events", len(load.events(name)), 0)
    return v


def switched_on_midway(ev: Evidence) -> Verdict:
    """The program switches its own tracefs instance and prints what it holds."""
    v = Verdict()
    load = ev.workload("midway")
    for case, count in (
        ("mid-on", 1),
        ("mid-on-late", 0),
        ("mid-off", 0),
        ("mid-off-on", 1),
        ("mid-on-again", 1),
    ):
        (line,) = _case(load, case, "wait")
        events = _own_trace(ev, load, case)
        asleep = line["act_ns"] - line["asleep_ns"]
        v.at_least(f"{case}: asleep", asleep, 200 * MS, "ns")
        v.equal(f"{case}: events", len(events), count)
        for event in events:
            _wait_fits(v, case, line, event)
    return v


def switched_on_between_wakeups(ev: Evidence) -> Verdict:
    """The SQ thread has no memory, and wakes the waiter at each attempt."""
    v = Verdict()
    load = ev.workload("midway")
    (line,) = _case(load, "mid-wakeups", "wait")
    (mid,) = _case(load, "mid-wakeups", "mid")
    events = _own_trace(ev, load, "mid-wakeups")
    before = mid["since_ns"] - line["asleep_ns"]
    v.at_least("asleep before it was switched on", before, 100 * MS, "ns")
    v.equal("events", len(events), 1)
    for event in events:
        wait = _int(event, "wait_ns")
        v.at_most("wait_ns", wait, line["end_ns"] - mid["since_ns"], "ns")
        # From the first wake-up after it on, and those come all the time.
        least = (line["act_ns"] - mid["until_ns"]) // 2
        v.at_least("wait_ns", wait, least, "ns")
        v.equal("full", _int(event, "full"), 0)
    return v


def events_are_where_the_program_was(ev: Evidence) -> Verdict:
    """Every event, not only those that a case looks for."""
    v = Verdict()
    for name in ("short", "wait"):
        load = ev.workload(name)
        rings = _rings(load)
        calls = list(_calls(load))
        for event_name in (WAIT, SHORT, OVERFLOW):
            all_of_it = load.record(event_name)
            seen = _seen(load, event_name)
            v.equal(f"{name}: {event_name}: on own rings", len(seen), len(all_of_it))
            outside = [
                one
                for one in seen
                if not any(
                    ring == one.ring
                    and begin <= one.event.ts_ns <= end
                    and one.event.pid in (tid, rings[ring]["sq_thread"])
                    for ring, tid, begin, end in calls
                )
            ]
            v.equal(f"{name}: {event_name}: outside of a call", len(outside), 0)
        wanted = sum(len(_stops(load, one)) for one in _lines(load, "submit"))
        v.equal(f"{name}: all {SHORT}", len(load.record(SHORT)), wanted)
        over = sum(len(_overflows(load, one)) for one in _lines(load, "submit"))
        v.equal(f"{name}: all {OVERFLOW}", len(load.record(OVERFLOW)), over)
    v.equal("short: waits", len(ev.workload("short").record(WAIT)), 0)
    return v


def failed_sqe_joins(ev: Evidence) -> Verdict:
    """Same ring pointer as printed, same thread, nothing submitted in between."""
    v = Verdict()
    load = ev.workload("short")
    cqes = {data: res for line in _lines(load, "submit") for data, res in line["cqes"]}
    last: dict[int, Event] = {}
    joined = wrong = 0
    for event in load.events():
        if event.name in ("io_uring_submit_req", "io_uring_req_failed"):
            last[event.pid] = event
        elif event.name == SHORT and _int(event, "error") not in (0, EAGAIN):
            before = last[event.pid]
            joined += 1
            wrong += not (
                before.name == "io_uring_req_failed"
                and before.fields["ctx"] == event.fields["ctx"]
                and before.fields["error"] == event.fields["error"]
                and cqes[_int(before, "user_data")] == event.fields["error"]
            )
    v.at_least("events with an SQE's error", joined, 1)
    v.equal("of these, not preceded by that SQE's failure", wrong, 0)
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """Expected from the program's lines; only nanoseconds are from the events."""
    v = Verdict()
    for name in ("short", "wait"):
        load = ev.workload(name)
        maps = load.bpftrace("io_uring-sq-why").maps
        stalls, queued, lost, overwritten = _by_cause(load)
        v.equal(f"{name}: @stalls", _map(maps, "@stalls"), stalls)
        v.equal(f"{name}: @left_queued", _map(maps, "@left_queued"), queued)
        v.equal(f"{name}: @lost", _map(maps, "@lost"), lost)
        found = _map(maps, "@overwritten", together=max)
        v.equal(f"{name}: @overwritten", found, overwritten)
        printed = [
            text
            for text in load.bpftrace("io_uring-sq-why").lines
            if text.startswith(PROGRAM)
        ]
        losses = sum(
            count
            for (*_, cause), count in stalls.items()
            if cause in ("SQE dropped", "SQ overflow")
        )
        v.equal(f"{name}: lines about lost SQEs", len(printed), losses)
        slept: Counter[tuple[str, ...]] = Counter()
        for seen in _seen(load, WAIT):
            slept[_key(load, seen.ring)] += _int(seen.event, "wait_ns")
        v.equal(f"{name}: @slept_ns", _map(maps, "@slept_ns"), dict(slept))
    quiet = ev.workload("quiet").bpftrace("io_uring-sq-why")
    v.equal("quiet: entries in maps", sum(map(len, quiet.maps.values())), 0)
    load = ev.workload("wait")
    short = load.bpftrace("io_uring-sq-wait")
    counted: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    for seen in _seen(load, WAIT):
        pid = str(seen.ring[0])
        counted[PROGRAM, pid, str(_int(seen.event, "sq_entries"))] += 1
        total[PROGRAM, pid] += _int(seen.event, "wait_ns")
    hist = Counter[tuple[str, ...]]()
    for key, buckets in short.hists["@wait_us"].items():
        hist[_without_thread(key)] += sum(bucket.count for bucket in buckets)
    v.equal("wait: events in @wait_us", dict(hist), dict(counted))
    v.equal("wait: @total_ns", _map(short.maps, "@total_ns"), dict(total))
    return v


def _lines(load: WorkloadResult, kind: str) -> list[Line]:
    """The program's own lines of one kind, in order."""
    lines: Iterable[Line] = map(json.loads, load.stdout.splitlines())
    return [line for line in lines if line["kind"] == kind]


def _case(load: WorkloadResult, case: str, kind: str = "submit") -> list[Line]:
    found = [line for line in _lines(load, kind) if line["case"] == case]
    if not found:
        raise ValueError(f"the program has no {kind} line of case {case}")
    return found


def _id(line: Line) -> RingId:
    return line["pid"], line["fd"]


def _rings(load: WorkloadResult) -> dict[RingId, Line]:
    return {_id(line): line for line in _lines(load, "ring")}


def _created(load: WorkloadResult) -> dict[RingId, Event]:
    """The older io_uring_create of each ring, which has the kernel's address."""
    events = {
        (event.pid, _int(event, "fd")): event
        for event in load.record("io_uring_create")
    }
    return {
        ring: events[line["tid"], line["fd"]] for ring, line in _rings(load).items()
    }


def _seen(load: WorkloadResult, name: str) -> list[Seen]:
    """The events on the program's rings.

    A ring can get the address of one that is gone, so it is a matter of time.
    """
    created = sorted(
        (
            (event.ts_ns, _int(event, "ctx"), ring)
            for ring, event in _created(load).items()
        ),
        reverse=True,
    )
    found = []
    for event in load.record(name):
        for since, ctx, ring in created:
            if ctx == _int(event, "ctx") and since <= event.ts_ns:
                found.append(Seen(event, ring))
                break
    return found


def _of_case(load: WorkloadResult, case: str, name: str) -> list[Seen]:
    rings = _rings(load)
    return [seen for seen in _seen(load, name) if rings[seen.ring]["case"] == case]


def _stops(load: WorkloadResult, line: Line) -> list[Stop]:
    """The short submissions of one call, by what the program knows."""
    ring = _rings(load)[_id(line)]
    if ring["flags"] & SQPOLL:
        return list(_denied(load, line)) + list(_thread_stops(ring, line))
    wanted = min(line["to_submit"], line["queued_before"], ring["sq_entries"])
    ret, dropped = line["ret"], line["dropped_after"]
    if ret == wanted:
        return []
    if ret < 0:
        return [(0, wanted, EAGAIN, dropped)]
    if dropped > line["dropped_before"]:
        return [(ret, wanted - ret, 0, dropped)]
    result = dict(line["cqes"])[line["batch"][ret - 1]]
    # All that went in went well, so it was the next one that had no request.
    return [(ret, wanted - ret, result if result < 0 else EAGAIN, dropped)]


def _denied(load: WorkloadResult, line: Line) -> Iterator[Stop]:
    """The thread tries until failslab has nothing left, two failures a time."""
    for lab in _lines(load, "failslab"):
        if _id(lab) == _id(line):
            for _ in range((lab["set"] - lab["left"]) // 2):
                yield 0, line["queued_before"], EAGAIN, line["dropped_before"]


def _thread_stops(ring: Line, line: Line) -> Iterator[Stop]:
    """What stops an SQ thread: nobody sees its return value, but there are CQEs."""
    results = dict(line["cqes"])
    left = _order(ring, line)
    dropped = line["dropped_before"]
    while left:
        taken = left[: ring["sq_entries"]]
        done = len(taken)
        for position, data in enumerate(taken):
            rest = len(taken) - position
            if data not in results:
                dropped += 1
                yield position, rest, 0, dropped
            elif results[data] < 0 and rest > 1:
                yield position + 1, rest - 1, results[data], dropped
            else:
                continue
            done = position + 1
            break
        left = left[done:]


def _order(ring: Line, line: Line) -> list[int]:
    """The SQEs that the kernel finds: the first ones may be overwritten."""
    batch = list(line["batch"])
    for position in range(len(batch) - ring["sq_entries"]):
        batch[position] = batch[position + ring["sq_entries"]]
    return batch


def _overflows(load: WorkloadResult, line: Line) -> list[tuple[int, int]]:
    """(sq_entries, queued) of each submission that found too much on the ring."""
    size = _rings(load)[_id(line)]["sq_entries"]
    return [(size, line["queued_before"])] if line["queued_before"] > size else []


def _after_the_first_sqe(load: WorkloadResult, line: Line) -> int:
    """Overflows of a submission that come after the older event of its first SQE."""
    ctx = _int(_created(load)[_id(line)], "ctx")
    taken = False
    late = 0
    for event in load.events():
        if not line["begin_ns"] <= event.ts_ns <= line["end_ns"]:
            continue
        if event.fields.get("ctx") == ctx:
            taken |= event.name == "io_uring_submit_req"
            late += taken and event.name == OVERFLOW
    return late


def _stops_match(v: Verdict, load: WorkloadResult, cases: Sequence[str]) -> None:
    for case in cases:
        wanted = [stop for line in _case(load, case) for stop in _stops(load, line)]
        v.at_least(f"{case}: stops, by the program", len(wanted), 1)
        found = [seen.stop for seen in _of_case(load, case, SHORT)]
        v.equal(f"{case}: submitted, left, error, sq_dropped", found, wanted)


def _waits_match(
    v: Verdict, load: WorkloadResult, case: str, seen: Sequence[Seen]
) -> None:
    lines = {line["tid"]: line for line in _case(load, case, "wait")}
    events = {one.event.pid: one.event for one in seen}
    v.equal(f"{case}: events", len(seen), len(lines))
    v.equal(f"{case}: threads", sorted(events), sorted(lines))
    for tid in sorted(set(events) & set(lines)):
        line = lines[tid]
        _wait_fits(v, case, line, events[tid])
        inside = line["begin_ns"] <= events[tid].ts_ns <= line["end_ns"]
        v.true(f"{case}: at the end of the call", inside)


def _wait_fits(v: Verdict, case: str, line: Line, event: Event) -> None:
    """No shorter than it certainly slept, no longer than its system call."""
    v.within(
        f"{case}: wait_ns",
        _int(event, "wait_ns"),
        line["act_ns"] - line["asleep_ns"],
        line["end_ns"] - line["begin_ns"],
        "ns",
    )
    size = _int(event, "sq_entries")
    v.equal(f"{case}: sq_entries", size, line["queued_before"])
    v.equal(f"{case}: full", _int(event, "full"), int(line["queued_after"] == size))


def _own_trace(ev: Evidence, load: WorkloadResult, case: str) -> tuple[Event, ...]:
    (line,) = _case(load, case, "mid")
    return records.trace("\n".join(line["trace"]), ev.layouts.values()).events


def _calls(load: WorkloadResult) -> Iterator[tuple[RingId, int, int, int]]:
    """(ring, thread, begin, end) of each call that may cause an event."""
    for kind in ("submit", "wait"):
        for line in _lines(load, kind):
            yield _id(line), line["tid"], line["begin_ns"], line["end_ns"]
    for line in _lines(load, "press"):
        for begin, end in line["waits"]:
            yield _id(line), line["tid"], begin, end


def _by_cause(load: WorkloadResult) -> tuple[dict[tuple[str, ...], int], ...]:
    """What the script's maps have to hold.

    Stalls, SQEs left queued, dropped, and the most overwritten at once.
    """
    stalls: Counter[tuple[str, ...]] = Counter()
    queued: dict[tuple[str, ...], int] = {}
    lost: Counter[tuple[str, ...]] = Counter()
    overwritten: dict[tuple[str, ...], int] = {}
    for line in _lines(load, "submit"):
        key = _key(load, _id(line))
        for _, left, error, _ in _stops(load, line):
            cause = {0: "SQE dropped", EAGAIN: "no memory"}.get(error, "SQE error")
            stalls[*key, cause] += 1
            queued[key] = queued.get(key, 0) + left - (error == 0)
            lost[key] += error == 0
        for size, found in _overflows(load, line):
            stalls[*key, "SQ overflow"] += 1
            overwritten[key] = max(overwritten.get(key, 0), found - size)
    for line in _lines(load, "wait"):
        if line["asleep_ns"]:
            key = _key(load, _id(line))
            full = line["queued_after"] == line["queued_before"]
            stalls[*key, "SQ full until signal" if full else "SQ full"] += 1
    for line in _lines(load, "press"):
        # Which of its calls slept, the writer cannot know.
        key = _key(load, _id(line))
        stalls[*key, "SQ full"] = len(_of_case(load, line["case"], WAIT))
    dropped = {key: count for key, count in lost.items() if count}
    return dict(stalls), queued, dropped, overwritten


def _key(load: WorkloadResult, ring: RingId) -> tuple[str, ...]:
    """Process, its id and the ring's address, as bpftrace prints them."""
    return PROGRAM, str(ring[0]), str(_int(_created(load)[ring], "ctx"))


def _map(
    maps: Mapping[str, Mapping[str, int]],
    name: str,
    together: Callable[[Iterable[int]], int] = sum,
) -> dict[tuple[str, ...], int]:
    """A map of a script, the threads of each process taken ``together``."""
    found: dict[tuple[str, ...], list[int]] = {}
    for key, n in maps.get(name, {}).items():
        found.setdefault(_without_thread(key), []).append(int(n))
    return {key: together(numbers) for key, numbers in found.items()}


def _without_thread(key: str) -> tuple[str, ...]:
    """A key as bpftrace prints it: name, process, thread, and what else there is."""
    name, process, _, *rest = key.split(",")
    return name, process, *rest


def _int(event: Event, name: str) -> int:
    value = event.fields[name]
    if not isinstance(value, int):
        raise TypeError(f"{event.name}: {name} is {value!r}, not a number")
    return value
