# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the mm-migrate series.

The new events are checked only against independent sources: what the programs print
about themselves (pages moved by move_pages()'s own status, page frames before and
after, clocks around each system call), and the kernel's older events (mm_migrate_pages,
lock contention, kvm_unmap_hva_range).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult

PAGE = 4096
EVERYTHING = (1 << 64) - 1
MS = 1_000_000
EAGAIN = 11
#: ftrace prints microseconds.
ROUNDING_NS = 1000
#: The threshold of the documented filter, and the delay of the callbacks in the middle
#: of which events are switched.
FILTERED_NS = 10 * MS
AMID_NS = 2000 * MS
BEGIN = "mmu_notifier_callback_begin"
END = "mmu_notifier_callback_end"
LOCKED = "mmap_lock_acquire_returned"
CALLBACK = "dmirror_interval_invalidate"
SLOW = "dmirror_slow_invalidate"
KVM = "kvm_mmu_notifier_invalidate_range_start"
FLAGS = ("ret", "blockable", "curr")
#: Causes, as text has them and as numbers of enum mmu_notifier_event.
MOVED = "migration_entry"
DEVICE = "migrate"
PROTECTED = "protection_vma"
_CAUSES = dict(
    enumerate(
        (
            *("unmap", "clear", PROTECTED, "protection_page", "soft_dirty"),
            *("release", DEVICE, "exclusive", MOVED),
        )
    )
)
#: The fields that both events of a callback share.
BOTH = (
    *("mm", "subscription", "function", "start", "end"),
    *("event", "pass", "blockable", "curr"),
)
_PAIRED = (
    *("one-mirror", "two-mirrors", "huge", "hold", "slow", "two-pass", "stuck"),
    *("numa", "compact", "odp", "device", "pinned", "reap", "others"),
)

Fact = dict[str, Any]
Pair = tuple[Event, Event]
Range = tuple[int, int]
Who = tuple[str, int, str, int, str]


def one_event_for_each_page(ev: Evidence) -> Verdict:
    """move_pages() reports each page's node; a new frame shows that it was moved."""
    v = Verdict()
    load = ev.workload("one-mirror")
    moves = load.objects("move")
    v.equal("rounds", len(moves), 3)
    for number, move in enumerate(moves, 1):
        pages = move["pages"]
        v.equal(f"round {number}: pages on the node", move["moved"], pages)
        v.equal(f"round {number}: frames that changed", move["changed"], pages)
        events = _during(_migrations(load), move)
        v.equal(f"round {number}: events", len(events), move["moved"])
        v.equal(
            f"round {number}: ranges that are not one page of the buffer",
            len(Counter(map(_range, events)) - Counter(_pages(move))),
            0,
        )
        v.equal(f"round {number}: pages", len({_range(e) for e in events}), pages)
        v.equal(
            f"round {number}: function, event, ret, blockable, curr, thread",
            _kinds(events),
            {(CALLBACK, MOVED, 0, 1, 1, move["tid"])},
        )
    entries = Counter(
        e.number("addr")
        for e in load.events("set_migration_pte")
        if _is_within_any(e, moves)
    )
    ranged = Counter(
        e.number("start") for e in _migrations(load) if _is_within_any(e, moves)
    )
    v.equal("migration entries without their event", (entries - ranged).total(), 0)
    v.equal("events without a migration entry", (ranged - entries).total(), 0)
    v.equal("mm", len({e.fields["mm"] for e in _invalidations(load)}), 1)
    for number, move in enumerate(moves, 1):
        _check_locked_mm(v, f"round {number}", load, move)
    _check_exit(v, load, moves, 1)
    return v


def two_mirrors_two_identities(ev: Evidence) -> Verdict:
    """Both mirrors share one callback, so only the subscription tells them apart."""
    v = Verdict()
    load = ev.workload("two-mirrors")
    (move,) = load.objects("move")
    v.equal("pages moved", move["moved"], move["pages"])
    events = _during(_migrations(load), move)
    v.equal("events", len(events), 2 * move["moved"])
    v.each("functions", events, _function, CALLBACK)
    counts = Counter(e.fields["subscription"] for e in events)
    v.equal("events by subscription", sorted(counts.values()), [move["moved"]] * 2)
    for number, subscription in enumerate(sorted(counts, key=str), 1):
        ranges = {_range(e) for e in events if e.fields["subscription"] == subscription}
        v.equal(f"mirror {number}: pages", ranges == set(_pages(move)), True)
    return v


def huge_page_is_one_event(ev: Evidence) -> Verdict:
    """smaps says that it is one huge page before and after."""
    v = Verdict()
    load = ev.workload("huge")
    (huge,) = load.objects("huge")
    v.equal("AnonHugePages after the moves, kB", huge["kb"], 2048)
    for number, move in enumerate(load.objects("move"), 1):
        v.equal(f"round {number}: moved", move["moved"], 1)
        events = _during(_migrations(load), move)
        expected = (move["addr"], move["addr"] + 512 * PAGE)
        v.equal(f"round {number}: ranges", [_range(e) for e in events], [expected])
    return v


def wait_is_the_time_that_the_mutex_was_held(ev: Evidence) -> Verdict:
    """The thread that holds the mutex prints when; the lock's own events agree."""
    v = Verdict()
    load = ev.workload("hold")
    reads = [(read["began"], read["ended"]) for read in load.objects("read")]
    frees, helds = load.objects("free"), load.objects("held")
    v.equal("moves", (len(frees), len(helds)), (12, 12))
    waits = _contention(load)
    met = 0
    for name, moves in (("free", frees), ("held", helds)):
        for number, move in enumerate(moves, 1):
            events = _recorded(load, move)
            v.equal(f"{name} {number}: events", len(events), 1)
            for event in events:
                began, ended = _migrate_pages(load, event)
                ns = event.number("duration_ns")
                # There is no other mutex on the way of one page.
                locked = [
                    (begin, end)
                    for begin, end in waits.get(event.pid, ())
                    if began <= begin and end <= event.ts_ns
                ]
                low = sum(max(e - b - ROUNDING_NS, 0) for b, e in locked)
                high = ended + ROUNDING_NS - began
                label = f"{name} {number}: duration_ns"
                v.within(label, ns, low, high, "ns", record=event)
                if name == "free":
                    v.equal(f"{name} {number}: waits for the mutex", len(locked), 0)
                elif locked:
                    met += 1
                    begin = locked[0][0]
                    amid = any(b <= begin <= e + ROUNDING_NS for b, e in reads)
                    label = f"{name} {number}: began to wait amid a read"
                    v.true(label, amid, record=event)
    with v.excused("the reader hardly had the mutex when pages were moved"):
        v.at_least("moves that met the mutex", met, 3)
    return v


def delay_is_measured(ev: Evidence) -> Verdict:
    """The mirror sleeps by the clock; the move cannot be shorter than its callback."""
    v = Verdict()
    load = ev.workload("slow")
    moves = load.objects("move")
    v.equal("moves", len(moves), 8)
    for number, move in enumerate(moves, 1):
        events = _during(_migrations(load), move)
        v.equal(f"move {number}: events", len(events), 1)
        wall = move["ended"] - move["began"]
        for event in events:
            label, ns = f"move {number}: duration_ns", event.number("duration_ns")
            v.within(label, ns, 30 * MS, wall, "ns", record=event)
        v.each(f"move {number}: functions", events, _function, SLOW)
    v.none("second passes", _second(load.events(END)))
    return v


def documented_filter_keeps_what_took_long(ev: Evidence) -> Verdict:
    """The delay and the clock around each move say which callbacks took 10 ms."""
    v = Verdict()
    load = ev.workload("slow")
    (records,) = load.objects("records")
    durations = [
        (record["start"], record["duration_ns"]) for record in load.objects("record")
    ]
    for number, move in enumerate(load.objects("move"), 1):
        count = sum(start == move["addr"] for start, _ in durations)
        v.equal(f"move {number}, with a delay of 30 ms: records", count, 1)
    quick = [m for m in load.objects("quick") if m["ended"] - m["began"] <= FILTERED_NS]
    if not quick:
        v.undecide("each move without a delay took 10 ms, too")
    moved = sum(move["moved"] for move in quick)
    v.equal("pages moved in less than 10 ms", moved, len(quick))
    starts = {move["addr"] for move in quick}
    v.equal("records of these", sum(start in starts for start, _ in durations), 0)
    ends = [
        (e.number("start"), e.number("duration_ns"))
        for e in _traced(load)
        if e.number("duration_ns") > FILTERED_NS
        and records["began"] < e.ts_ns < records["read"]
    ]
    v.equal(
        "unfiltered, without a record", (Counter(ends) - Counter(durations)).total(), 0
    )
    short = [ns for _, ns in durations if ns <= FILTERED_NS]
    v.equal("records of 10 ms or less", len(short), 0)
    return v


def second_pass_is_told_apart(ev: Evidence) -> Verdict:
    """Each mirror notes its deadline in the first pass, and sleeps in the second.

    The older sched_switch says for how long.  Only the first of the second passes may
    have anything left to wait for, as both deadlines lie together.
    """
    v = Verdict()
    load = ev.workload("two-pass")
    moves = load.objects("move")
    v.equal("moves", len(moves), 4)
    asleep = _asleep(load)
    for number, move in enumerate(moves, 1):
        ends = [e for e in load.record(END) if _is_of(e, move)]
        first, second = _first(ends), _second(ends)
        v.equal(f"move {number}: events", (len(first), len(second)), (2, 2))
        if len(first) != 2 or len(second) != 2:
            continue
        v.equal(
            f"move {number}: subscriptions in order",
            [e.fields["subscription"] for e in second],
            [e.fields["subscription"] for e in first],
        )
        wall = move["ended"] - move["began"]
        spent = sum(event.number("duration_ns") for event in ends)
        v.at_most(f"move {number}: both passes of both", spent, wall, "ns")
        first_begins = [e for e in _first(load.record(BEGIN)) if _is_of(e, move)]
        v.equal(f"move {number}: begins of the first pass", len(first_begins), 2)
        for begin, end in zip(first_begins, second, strict=False):
            v.at_least(
                f"move {number}: from the first pass to the end of the second",
                end.ts_ns - begin.ts_ns,
                30 * MS,
                "ns",
                record=end,
            )
        v.at_least(
            f"move {number}: from the last first pass to the first second pass",
            second[0].ts_ns - second[0].number("duration_ns") - first[-1].ts_ns,
            0,
            "ns",
        )
        traced = _during(_migrations(load, 2), move)
        v.equal(f"move {number}: ranges", [_range(e) for e in traced], _pages(move) * 2)
        v.equal(
            f"move {number}: function, event, ret, blockable, curr, thread",
            _kinds(traced),
            {("dmirror_invalidate_finish", MOVED, 0, 1, 1, move["tid"])},
        )
        begins = [e for e in _second(load.events(BEGIN)) if e.pid == move["tid"]]
        for event in traced:
            since = max(e.ts_ns for e in begins if e.ts_ns <= event.ts_ns)
            slept = sum(
                until_ns - since_ns
                for since_ns, until_ns in asleep.get(event.pid, ())
                if since <= since_ns and until_ns <= event.ts_ns
            )
            # Two times that are cut to microseconds.
            least = max(slept - ROUNDING_NS, 0)
            ns = event.number("duration_ns")
            label = f"move {number}: second pass, with its sleep"
            v.within(label, ns, least, wall, "ns", record=event)
    # Every invalidation has both passes, whatever its cause.
    first_passes, second_passes = (
        Counter(_common_fields(e) for e in passes(load.events(END)))
        for passes in (_first, _second)
    )
    v.equal("first passes without a second", (first_passes - second_passes).total(), 0)
    v.equal("second passes without a first", (second_passes - first_passes).total(), 0)
    _check_exit(v, load, moves, 2)
    functions = Counter(map(_function, load.events(END)))
    v.at_least("first passes", functions["dmirror_invalidate_start"], 8)
    v.at_least("second passes", functions["dmirror_invalidate_finish"], 8)
    v.equal("second passes of a move", len(_migrations(load, 2)), 8)
    return v


def stuck_callback_is_seen(ev: Evidence) -> Verdict:
    """wchan showed the thread in the callback, at the first and at the last look."""
    v = Verdict()
    load = ev.workload("stuck")
    (stuck,) = load.objects("stuck")
    if not stuck["hung"]:
        v.undecide("the callback was over before it was let go")
        return v
    v.equal("pages moved", stuck["moved"], 1)
    begins = [e for e in load.record(BEGIN) if _is_of(e, stuck)]
    ends = [e for e in load.record(END) if _is_of(e, stuck)]
    v.equal("begins and ends", (len(begins), len(ends)), (1, 1))
    if len(begins) != 1 or len(ends) != 1:
        return v
    v.at_most("begin, before it was seen to hang", begins[0].ts_ns, stuck["seen"], "ns")
    v.at_least("end, after it was seen last", ends[0].ts_ns, stuck["still"], "ns")
    least = stuck["still"] - stuck["seen"]
    wall = stuck["ended"] - stuck["began"]
    v.within("duration_ns", ends[0].number("duration_ns"), least, wall, "ns")
    v.each("functions", _marked(_traced(load)), _function, SLOW)
    return v


def numa_scan_is_reported(ev: Evidence) -> Verdict:
    """/proc/vmstat counts the entries that the scan changed."""
    v = Verdict()
    load = ev.workload("numa")
    if skips := load.objects("skip"):
        v.skip(skips[0]["why"])
        return v
    (scan,), (own,) = load.objects("scan"), load.objects("mprotect")
    changes = _protections(load)
    own_events = [e for e in _during(changes, scan) if _touches(e, scan)]
    v.at_least("events of the scan", len(own_events), 1)
    v.each("curr of these", own_events, _curr, 1)
    pages = sum((end - start) // PAGE for start, end in map(_range, own_events))
    v.at_least("pages of these", pages, scan["updates"])
    v.equal("numa_pte_updates of mprotect()", own["updates"], 0)
    others = [e for e in _during(load.events(END), own) if _touches(e, own)]
    v.equal("event of mprotect()", [e.fields["event"] for e in others], [PROTECTED])
    early = [e for e in changes if _touches(e, scan) and e.ts_ns < scan["began"]]
    v.none("events of the scanned pages while it is off", early)
    inside = [
        event
        for event, reason in _with_reasons(load)
        if reason is not None and event in own_events
    ]
    v.none("of these within migrate_pages()", inside)
    return v


def numa_scan_shows_in_the_stack(ev: Evidence) -> Verdict:
    """The histogram is the kernel's, of an instance that the program has made."""
    v = Verdict()
    load = ev.workload("numa")
    if skips := load.objects("skip"):
        v.skip(skips[0]["why"])
        return v
    (scan,), (own,) = load.objects("scan"), load.objects("mprotect")
    (sums,) = load.objects("sums")
    changes = _protections(load)
    scans = _during(changes, scan)
    rest = [e for e in _during(changes, {**sums, "tid": own["tid"]}) if e not in scans]
    for name, symbol, events in (
        ("task_numa_work()", "task_numa_work+", scans),
        ("mprotect()", "mprotect", rest),
    ):
        hits = [hits for key, hits, _ in _summed(load) if symbol in key]
        v.at_least(f"stacks with {name}", len(hits), 1)
        v.equal(f"events with {name} in the stack", sum(hits), len(events))
    # Each is added to those that are there, as documented.
    keys = sorted(
        str(trigger["line"]).removeprefix("hist:keys=").partition(":")[0]
        for trigger in load.objects("trigger")
    )
    expected = ["function.sym,common_stacktrace", "function.sym,event"]
    v.equal("keys of the histograms", keys, expected)
    return v


def begins_pair_with_ends(ev: Evidence) -> Verdict:
    """Only a callback under way when the tracer starts or stops could lack one."""
    v = Verdict()
    for name in _PAIRED:
        load = ev.workload(name)
        if not load.objects("skip"):
            _check_pairs(v, load)
    return v


def third_party_is_told_apart(ev: Evidence) -> Verdict:
    """Frames before and after are the truth; compaction may try a page twice."""
    v = Verdict()
    load = ev.workload("compact")
    (changed,), (window,) = load.objects("changed"), load.objects("compact")
    with v.excused("there was little memory to be compacted"):
        v.at_least("pages whose frame changed", len(changed["at"]), 100)
    events = [e for e in _migrations(load) if e.pid == changed["child"]]
    addresses = {start for event in events for start in range(*_range(event), PAGE)}
    moved = {changed["addr"] + PAGE * page for page in changed["at"]}
    v.equal("of these, without an event of the compactor", len(moved - addresses), 0)
    v.each("curr of its events", events, _curr, 0)
    v.each("comm of its events", events, lambda e: e.comm, "compact")
    v.each("functions", events, _function, CALLBACK)
    late = [e for e in events if not _is_within(e, window)]
    v.none("events outside of the write to compact_memory", late)
    reasons = {
        reason
        for event, reason in _with_reasons(load)
        if event.pid == changed["child"] and _is_marked(event)
    }
    v.equal("reasons, by the thread's mm_migrate_pages", reasons, {"compaction"})
    own = [e for e in _migrations(load) if e.pid == changed["pid"]]
    v.none("migrations by the sleeping process itself", own)
    (cleared,) = load.objects("cleared")
    resets = [e for e in _during(load.events(END), cleared) if _range(e)[0] == 0]
    v.equal(
        "soft-dirty bits cleared: event, end, curr",
        [(e.fields["event"], _range(e)[1], e.number("curr")) for e in resets],
        [("soft_dirty", EVERYTHING, 0)],
    )
    return v


def histogram_has_who_is_kept_waiting(ev: Evidence) -> Verdict:
    """The documented histogram leaves out the exit, and has causes as numbers."""
    v = Verdict()
    load = ev.workload("compact")
    (sums,) = load.objects("sums")
    histogram: dict[tuple[str, str], tuple[int, int]] = {}
    for key, hits, spent in _summed(load):
        words = re.match(r"function: \[\w+\] (\S+) .*event: +(\d+)$", key.strip())
        assert words, key
        histogram[words[1], _CAUSES.get(int(words[2]), words[2])] = hits, spent
    # Others may be kept waiting while it is read, so there are two bounds.
    least, most = (
        [
            e
            for e in _traced(load)
            if not e.number("curr")
            and not _is_teardown(e)
            and sums["began"] < e.ts_ns <= sums[till]
        ]
        for till in ("read", "ended")
    )
    pairs = sorted({(_function(e), str(e.fields["event"])) for e in most})
    v.at_least("others kept waiting, by function and cause", len(pairs), 1)
    v.equal("keys only in the histogram", sorted(set(histogram) - set(pairs)), [])
    for function, cause in pairs:
        low, high = (
            [
                e.number("duration_ns")
                for e in events
                if (_function(e), e.fields["event"]) == (function, cause)
            ]
            for events in (least, most)
        )
        hits, spent = histogram.get((function, cause), (0, 0))
        name = f"histogram: {function}, {cause}"
        v.within(f"{name}: hits", hits, len(low), len(high))
        v.within(f"{name}: duration_ns", spent, sum(low), sum(high), "ns")
    return v


def kvm_is_notified_of_the_same_ranges(ev: Evidence) -> Verdict:
    """KVM already has an event of its own for each call, but without a duration."""
    v = Verdict()
    load = ev.workload("kvm")
    if skips := load.objects("skip"):
        v.skip(skips[0]["why"])
        return v
    moves = load.objects("move")
    v.equal("moves", len(moves), 2)
    events = [e for e in _invalidations(load) if "kvm" in _function(e)]
    v.each("functions", events, _function, KVM)
    ours = Counter((e.pid, _range(e)) for e in events)
    unmaps = load.events("kvm_unmap_hva_range")
    theirs = Counter((e.pid, _range(e)) for e in unmaps)
    v.at_least("kvm_unmap_hva_range events", theirs.total(), 128)
    v.equal("events without theirs", (ours - theirs).total(), 0)
    v.equal("theirs without an event", (theirs - ours).total(), 0)
    pairs = _check_pairs(v, load)
    outside = [e for e in unmaps if not any(_encloses(pair, e) for pair in pairs)]
    v.none("theirs outside of the callback", outside)
    v.equal("mm", len({e.fields["mm"] for e in events}), 1)
    machines = {e.fields["subscription"] for e in events}
    v.equal("subscriptions", len(machines), 2)
    spent = sum(e.number("duration_ns") for e in events)
    v.at_least("duration_ns of all", spent, 1, "ns")
    for number, move in enumerate(moves, 1):
        marked = _during(_marked(events), move)
        v.equal(f"round {number}: pages moved", move["moved"], move["pages"])
        v.equal(
            f"round {number}: function, event, ret, blockable, curr, thread",
            _kinds(marked),
            {(KVM, MOVED, 0, 1, 1, move["tid"])},
        )
        v.equal(
            f"round {number}: each page, for each virtual machine",
            Counter((e.fields["subscription"], _range(e)) for e in marked),
            Counter(product(machines, _pages(move))),
        )
    return v


def odp_region_and_nothing_outside(ev: Evidence) -> Verdict:
    """The region is part of what one system call moves."""
    v = Verdict()
    load = ev.workload("odp")
    (region,), (move,) = load.objects("region"), load.objects("move")
    v.equal("pages moved", move["moved"], move["pages"])
    events = _during(_migrations(load), move)
    v.equal("events", len(events), region["pages"])
    v.each("functions", events, _function, "rxe_ib_invalidate_range")
    same = {_range(e) for e in events} == set(_pages(region))
    v.true("they are the pages of the region", same)
    return v


def page_outside_the_interval_is_silent(ev: Evidence) -> Verdict:
    """Silence counts only because these pages were moved: their frames changed."""
    v = Verdict()
    load = ev.workload("odp")
    (region,), (move,) = load.objects("region"), load.objects("move")
    v.equal("pages whose frame changed", move["changed"], move["pages"])
    outside = set(_pages(move)) - set(_pages(region))
    v.equal("of these, outside of the region", len(outside), 16)
    events = [e for e in _invalidations(load) if _range(e) in outside]
    v.none("events of these", events)
    return v


def device_migration_has_its_cause(ev: Evidence) -> Verdict:
    """migrate_vma_*() has always had an event type of its own."""
    v = Verdict()
    load = ev.workload("device")
    (to,), (back,) = load.objects("to_device"), load.objects("to_system")
    v.equal("pages that the device has", (to["error"], to["done"]), (0, to["pages"]))
    events = [e for e in _invalidations(load) if e.fields["event"] == DEVICE]
    out = _during(events, to)
    expected = (to["addr"], to["addr"] + PAGE * to["pages"])
    v.equal("to the device: ranges", [_range(e) for e in out], [expected] * 2)
    mirrors = {e.fields["subscription"] for e in out}
    v.equal("to the device: mirrors", len(mirrors), 2)
    home = Counter(_range(e) for e in _during(events, back))
    v.equal("back: events for each page", home, Counter(_pages(back) * 2))
    return v


def eviction_is_a_migration_entry(ev: Evidence) -> Verdict:
    """pagemap has no frame for what the device has, and one for what was evicted."""
    v = Verdict()
    load = ev.workload("device")
    (evict,) = load.objects("evict")
    pages = evict["pages"]
    v.equal("pages without a frame before", evict["gone"], pages)
    v.equal("pages with a frame after", evict["there"], pages)
    events = [
        (e, reason)
        for e, reason in _with_reasons(load)
        if e.name == END and _is_within_any(e, [evict]) and _touches(e, evict)
    ]
    # The mirror that is closed is gone by then; the other one is not.
    ranges = Counter(_range(e) for e, _ in events)
    v.equal("events for each page", ranges, Counter(_pages(evict)))
    v.equal(
        "event, curr, reason of migrate_pages()",
        {(e.fields["event"], e.number("curr"), reason) for e, reason in events},
        {(MOVED, 1, None)},
    )
    return v


def failed_migration_still_waits(ev: Evidence) -> Verdict:
    """Status, frame and counts say that it stayed; how often it is tried may change."""
    v = Verdict()
    load = ev.workload("pinned")
    pinned, (loose,) = load.objects("pinned"), load.objects("loose")
    v.equal("attempts", len(pinned), 3)
    for number, move in enumerate(pinned, 1):
        v.equal(f"attempt {number}: moved", (move["moved"], move["changed"]), (0, 0))
        events = _during(_migrations(load), move)
        v.at_least(f"attempt {number}: events", len(events), 1)
        ended = [e for e in load.events("mm_migrate_pages") if _is_within(e, move)]
        v.equal(
            f"attempt {number}: nr_succeeded and nr_failed",
            [(e.fields["succeeded"], e.fields["failed"]) for e in ended],
            [(0, 1)],
        )
    v.equal("loose: moved", (loose["moved"], loose["changed"]), (1, 1))
    v.equal("loose: events", len(_during(_migrations(load), loose)), 1)
    return v


def reaper_does_not_wait(ev: Evidence) -> Verdict:
    """process_mrelease() says by its own errno whether it could reap all."""
    v = Verdict()
    load = ev.workload("reap")
    reaps = load.objects("reap")
    refused = {reap["victim"] for reap in reaps if reap["error"] == EAGAIN}
    with v.excused("no victim had the mutex when it was killed"):
        v.at_least("victims that could not be reaped at first", len(refused), 1)
    for number, reap in enumerate(reaps, 1):
        events = [e for e in _invalidations(load) if _is_within_any(e, [reap])]
        kinds = {(e.number("blockable"), e.number("curr")) for e in events}
        v.equal(f"reap {number}: other than blockable=0", kinds - {(0, 0)}, set())
        _check_locked_mm(v, f"reap {number}", load, reap)
        waits = sum(e.number("ret") == -EAGAIN for e in events)
        v.equal(
            f"reap {number}: a callback that would have had to wait",
            waits > 0,
            reap["error"] == EAGAIN,
        )
        v.equal(
            f"reap {number}: other results",
            {e.number("ret") for e in events} - {0, -EAGAIN},
            set(),
        )
    others = [
        e for e in _traced(load) if not any(_is_within_any(e, [reap]) for reap in reaps)
    ]
    v.each("blockable elsewhere", others, lambda e: e.number("blockable"), 1)
    # Only a callback that must not wait can return an error.
    v.each("ret elsewhere", others, lambda e: e.number("ret"), 0)
    return v


def no_mirror_no_event(ev: Evidence) -> Verdict:
    """Silence counts only if pages were moved, by mm_migrate_pages and their frames."""
    v = Verdict()
    load = ev.workload("no-mirror")
    moves = load.objects("move")
    v.equal("frames that changed", sum(m["changed"] for m in moves), 3 * 64)
    succeeded = sum(
        e.number("succeeded")
        for e in load.events("mm_migrate_pages")
        if _is_within_any(e, moves)
    )
    v.equal("nr_succeeded of mm_migrate_pages", succeeded, 3 * 64)
    v.none("events", _traced(load))
    return v


def other_causes_are_told_apart(ev: Evidence) -> Verdict:
    """Each is one system call on one mapping."""
    v = Verdict()
    load = ev.workload("others")
    for call, cause in (
        ("mprotect", PROTECTED),
        ("dontneed", "clear"),
        ("munmap", "unmap"),
    ):
        (fact,) = load.objects(call)
        events = [e for e in _during(_invalidations(load), fact) if _touches(e, fact)]
        v.equal(
            f"{call}: event, curr",
            [(e.fields["event"], e.number("curr")) for e in events],
            [(cause, 1)],
        )
    v.none("migrations", load.events("mm_migrate_pages_start"))
    (split,) = load.objects("split")
    others = [e for e in _migrations(load) if not _is_within_any(e, [split])]
    v.none("migration entries but those of the split", others)
    return v


def split_is_outside_of_migrate_pages(ev: Evidence) -> Verdict:
    """smaps shows the huge page before, and none afterwards."""
    v = Verdict()
    load = ev.workload("others")
    (split,), (huge,) = load.objects("split"), load.objects("huge")
    v.equal("AnonHugePages", (huge["kb_before"], huge["kb_after"]), (2048, 0))
    events = [
        (e, reason)
        for e, reason in _with_reasons(load)
        if _is_within_any(e, [split]) and _touches(e, split)
    ]
    v.at_least("events of the split", len(events), 1)
    v.equal(
        "event, reason of migrate_pages()",
        {(e.fields["event"], reason) for e, reason in events},
        {(MOVED, None)},
    )
    return v


def off_is_off(ev: Evidence) -> Verdict:
    """The function tracer saw each invalidation, also those that are not reported."""
    v = Verdict()
    load = ev.workload("toggle")
    for step, moved, begins, ends in (
        ("off", 16, 0, 0),
        ("begin alone", 16, 16, 0),
        ("both", 16, 16, 16),
        ("end alone", 16, 0, 16),
        ("off again", 16, 0, 0),
        ("on amid", 1, 0, 0),
        ("on, slow", 1, 1, 1),
        ("off amid", 1, 1, 0),
        ("end on amid", 1, 1, 1),
    ):
        (fact,) = load.objects(step)
        if step.endswith("amid") and not fact["amid"]:
            v.undecide(f"{step}: the callback was over before the events were switched")
            continue
        v.equal(f"{step}: pages moved", fact["moved"], moved)
        v.at_least(f"{step}: invalidations", fact["passages"], moved)
        v.equal(f"{step}: begins of migrations", fact["begins"], begins)
        v.equal(f"{step}: ends of migrations", fact["ends"], ends)
        if step in ("off", "off again"):
            v.equal(f"{step}: any reported", fact["events"], 0)
            v.equal(f"{step}: helpers entered", fact["helpers"], 0)
        if step == "both":
            v.equal(f"{step}: helpers entered", 2 * fact["helpers"], fact["events"])
        if step == "off amid":
            v.at_least(f"{step}: helpers entered", fact["helpers"], 1)
        if step == "end on amid":
            wall = fact["ended"] - fact["began"]
            ns = fact["duration_ns"]
            v.within(f"{step}: duration_ns", ns, AMID_NS, wall, "ns")
    return v


def hmm_tests_pass_with_the_event_on(ev: Evidence) -> Verdict:
    """The tests' own totals; those for device memory that is coherent are skipped."""
    v = Verdict()
    load = ev.workload("hmm-tests")
    v.equal("exit status", load.exit_status, 0)
    totals = _totals(load)
    v.at_least("passed", totals["pass"], 30)
    v.equal("failed", totals["fail"] + totals["error"], 0)
    for test in ("trace_invalidate", "trace_two_passes"):
        ours = re.findall(rf"(?m)^ok \d+ hmm\.(\w+)\.{test}$", load.stdout)
        v.equal(f"variants of {test} that passed", ours, ["hmm_device_private"])
    events = Counter(str(e.fields["event"]) for e in _traced(load))
    for cause in ("migrate", "clear", "unmap", "exclusive", MOVED):
        v.at_least(f"events with event={cause}", events[cause], 1)
    return v


def migration_tests_pass_with_the_event_on(ev: Evidence) -> Verdict:
    """A skipped test moved nothing, so all have to have passed."""
    v = Verdict()
    load = ev.workload("migration")
    v.equal("exit status", load.exit_status, 0)
    totals = _totals(load)
    v.equal("passed", totals["pass"], 6)
    v.equal("not passed", sum(totals.values()) - totals["pass"], 0)
    v.none("events", _traced(load))
    return v


def migrations_lie_within_migrate_pages(ev: Evidence) -> Verdict:
    """Thread, begin and end are the join that the events are documented to have."""
    v = Verdict()
    for name in (
        "one-mirror",
        "two-mirrors",
        "huge",
        "hold",
        "slow",
        "compact",
        "kvm",
        "odp",
        "pinned",
    ):
        load = ev.workload(name)
        if load.objects("skip"):
            continue
        events = [
            (event, reason)
            for event, reason in _with_reasons(load)
            if event.name == END and event.fields["event"] == MOVED
        ]
        v.at_least(f"{name}: events", len(events), 1)
        outside = [event for event, reason in events if reason is None]
        v.none(f"{name}: outside of migrate_pages()", outside)
        if name == "compact":
            continue
        moves = [
            move
            for kind in ("move", "free", "held", "pinned", "loose")
            for move in load.objects(kind)
        ]
        ended = [e for e in load.events("mm_migrate_pages") if _is_within_any(e, moves)]
        pages = sum(e.number("succeeded") for e in ended)
        size = 512 if name == "huge" else 1
        moved = sum(move["moved"] for move in moves) * size
        v.equal(f"{name}: nr_succeeded", pages, moved)
    return v


def durations_fit_into_the_system_calls(ev: Evidence) -> Verdict:
    """The clocks of user space and of the event are one: CLOCK_MONOTONIC."""
    v = Verdict()
    for name, kinds in (
        ("one-mirror", ("move",)),
        ("hold", ("free", "held")),
        ("two-pass", ("move",)),
    ):
        load = ev.workload(name)
        moves = [move for kind in kinds for move in load.objects(kind)]
        events = _marked(load.record(END))
        spare = [
            (e.ts_ns - e.number("duration_ns") - move["began"], move["ended"] - e.ts_ns)
            for move in moves
            for e in events
            if e.pid == move["tid"] and move["began"] <= e.ts_ns <= move["ended"]
        ]
        v.equal(
            f"{name}: events within a system call",
            len(spare),
            _expected_count(load, moves),
        )
        v.at_least(f"{name}: least time before", min(s[0] for s in spare), 0, "ns")
        v.at_least(f"{name}: least time after", min(s[1] for s in spare), 0, "ns")
        # A single one can be shorter than a tick of the clock.
        spent = sum(e.number("duration_ns") for e in events)
        v.at_least(f"{name}: duration_ns of all", spent, 1, "ns")
        # Also of those that end a process, which no system call encloses.
        v.at_least(f"{name}: least time between two", _least_pause(load), 0, "ns")
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """The scripts read the same events, independently."""
    v = Verdict()
    for name in ("one-mirror", "two-pass"):
        load = ev.workload(name)
        expected = Counter(map(_function, _marked(_traced(load))))
        hists = load.bpftrace("mm-migrate-callback").hists["@wait_us"]
        counts = {
            _plain(key): sum(bucket.count for bucket in buckets)
            for key, buckets in hists.items()
        }
        v.equal(f"{name}: events by function in the histogram", counts, dict(expected))
    for name, comm in (
        ("two-mirrors", "move"),
        ("two-pass", "slow"),
        ("compact", "compact"),
        ("pinned", "pinned"),
    ):
        load = ev.workload(name)
        out = load.bpftrace("mm-migrate-who")
        events = _traced(load)
        keys = Counter(
            _who(*pair) for pair in _with_reasons(load) if pair[0].name == END
        )
        calls = {_key(key): value for key, value in out.maps["@calls"].items()}
        v.equal(f"{name}: calls by who, whom and why", calls, dict(keys))
        total = sum(out.maps["@wait_ns"].values())
        v.equal(
            f"{name}: sum of the waits",
            total,
            sum(e.number("duration_ns") for e in events),
        )
        v.equal(
            f"{name}: the longest",
            max(out.maps["@longest_ns"].values()),
            max(e.number("duration_ns") for e in events),
        )
        for key, column in (("@moved", "succeeded"), ("@failed", "failed")):
            pages = sum(
                e.number(column)
                for e in load.events("mm_migrate_pages")
                if e.comm == comm
            )
            v.equal(f"{name}: {key}", out.maps[key][comm], pages)
    return v


def _totals(load: WorkloadResult) -> Counter[str]:
    """The last line of a kselftest: how many tests came out how."""
    line = re.search(r"(?m)^# Totals: (.*)$", load.stdout)
    words = [word.split(":") for word in line[1].split()] if line else []
    return Counter({name: int(count) for name, count in words})


def _traced(load: WorkloadResult) -> list[Event]:
    return list(load.events(END))


def _first(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if e.number("pass") == 1]


def _second(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if e.number("pass") == 2]


def _invalidations(load: WorkloadResult) -> list[Event]:
    return _first(load.events(END))


def _protections(load: WorkloadResult) -> list[Event]:
    return [e for e in _invalidations(load) if e.fields["event"] == PROTECTED]


def _is_marked(event: Event) -> bool:
    """Whether it is for migration; recorded events have the number of the cause."""
    cause = event.fields["event"]
    return (_CAUSES.get(cause) if isinstance(cause, int) else cause) in (MOVED, DEVICE)


def _marked(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if _is_marked(e)]


def _migrations(load: WorkloadResult, number: int = 1) -> list[Event]:
    """The ends of callbacks for migration, in this pass."""
    return [e for e in _marked(load.events(END)) if e.number("pass") == number]


def _recorded(load: WorkloadResult, move: Fact) -> list[Event]:
    return [e for e in _first(load.record(END)) if _is_of(e, move)]


def _is_of(event: Event, move: Fact) -> bool:
    """Whether the recorded event is of the migration ``move``."""
    return bool(
        _is_marked(event)
        and event.pid == move["tid"]
        and move["began"] <= event.ts_ns <= move["ended"]
    )


def _asleep(load: WorkloadResult) -> dict[int, list[Range]]:
    """By thread: from when to when it was off the CPU without being able to run."""
    since: dict[int, int] = {}
    sleeps: dict[int, list[Range]] = {}
    for switch in load.events("sched_switch"):
        out, back = switch.number("prev_pid"), switch.number("next_pid")
        if not str(switch.fields["prev_state"]).startswith("R"):
            since[out] = switch.ts_ns
        if back in since:
            sleeps.setdefault(back, []).append((since.pop(back), switch.ts_ns))
    return sleeps


def _is_within(event: Event, fact: Fact) -> bool:
    return bool(
        fact["began"] - ROUNDING_NS <= event.ts_ns <= fact["ended"] + ROUNDING_NS
    )


def _is_within_any(event: Event, moves: Sequence[Fact]) -> bool:
    return any(event.pid == m["tid"] and _is_within(event, m) for m in moves)


def _during(events: Iterable[Event], fact: Fact) -> list[Event]:
    return [e for e in events if _is_within_any(e, [fact])]


def _common_fields(event: Event) -> tuple[object, ...]:
    """The fields that both passes of an invalidation must share."""
    same = ("mm", "subscription", "start", "end", "ret", "event", "blockable", "curr")
    return tuple(event.fields[name] for name in same)


def _check_locked_mm(v: Verdict, name: str, load: WorkloadResult, fact: Fact) -> None:
    """mmap_lock's older events say whose address space the thread works on."""
    locked = {e.fields["mm"] for e in _during(load.events(LOCKED), fact)}
    spaces = {e.fields["mm"] for e in _during(_invalidations(load), fact)}
    # Of a process that is gone already, nothing is locked and nothing invalidated.
    v.at_most(f"{name}: address spaces that were locked", len(locked), 1)
    v.equal(f"{name}: mm, other than these", sorted(map(str, spaces - locked)), [])


def _check_pairs(v: Verdict, load: WorkloadResult) -> list[Pair]:
    """The begin and the end of each callback."""
    open_: dict[int, Event] = {}
    odd: list[Event] = []
    different: list[Event] = []
    longer: list[Event] = []
    pairs: list[Pair] = []
    for event in load.events():
        if event.name == BEGIN:
            if event.pid in open_:
                odd.append(open_[event.pid])
            open_[event.pid] = event
        elif event.name == END:
            begin = open_.pop(event.pid, None)
            if begin is None:
                odd.append(event)
                continue
            pairs.append((begin, event))
            if any(begin.fields[key] != event.fields[key] for key in BOTH):
                different.append(event)
            between = event.ts_ns - begin.ts_ns + ROUNDING_NS
            if event.number("duration_ns") > between:
                longer.append(event)
    name = load.name
    v.at_least(f"{name}: pairs", len(pairs), 1)
    v.none(f"{name}: begins or ends without the other", [*odd, *open_.values()])
    v.none(f"{name}: that say different things", different)
    v.none(f"{name}: longer than the time between the two", longer)
    return pairs


def _encloses(pair: Pair, event: Event) -> bool:
    """Whether the event, of the same range, lies in this callback."""
    begin, end = pair
    return bool(
        event.pid == begin.pid
        and _range(event) == _range(begin)
        and begin.ts_ns <= event.ts_ns <= end.ts_ns
    )


def _check_exit(
    v: Verdict, load: WorkloadResult, moves: Sequence[Fact], mirrors: int
) -> None:
    """An exit drops the address space first, and then tears it down as a whole."""
    last = max(move["ended"] for move in moves)
    for number in {e.number("pass") for e in load.events(END)}:
        ends = [
            (e.fields["event"], *_range(e), *(e.number(key) for key in FLAGS))
            for e in load.events(END)
            if e.ts_ns > last + ROUNDING_NS and e.number("pass") == number
        ]
        exits = [e for e in ends if e[1:3] == (0, EVERYTHING)]
        expected = [
            (cause, 0, EVERYTHING, 0, 1, 0)
            for cause in ("release", "unmap")
            for _ in range(mirrors)
        ]
        v.equal(f"pass {number}: at the exit", exits, expected)
    # These are the process's only events with curr=0, so that a filter can tell them.
    partial = [
        e
        for e in load.events(END)
        if e.pid in {move["tid"] for move in moves}
        and not e.number("curr")
        and not _is_teardown(e)
    ]
    v.none("curr=0 of its own, but for the exit", partial)


def _is_teardown(event: Event) -> bool:
    """Whether it is from the end of an mm: its range is the whole address space."""
    return event.fields["event"] in ("unmap", "release") and (
        _range(event)[1] == EVERYTHING
    )


def _summed(load: WorkloadResult) -> list[tuple[str, int, int]]:
    """Of a histogram: each key as the kernel prints it, its hits, and its sum of ns."""
    text = "\n".join(str(fact["line"]) for fact in load.objects("hist"))
    pattern = r"^\{(.*?)\} hitcount: +(\d+)(?: +duration_ns: +(\d+))?$"
    matches = re.findall(pattern, text, re.M | re.S)
    return [(key, int(hits), int(spent or 0)) for key, hits, spent in matches]


def _curr(event: Event) -> int:
    return event.number("curr")


def _range(event: Event) -> Range:
    return event.number("start"), event.number("end")


def _pages(fact: Fact) -> list[Range]:
    first, count = fact["addr"], fact["pages"]
    return [(first + PAGE * i, first + PAGE * (i + 1)) for i in range(count)]


def _touches(event: Event, fact: Fact) -> bool:
    start, end = _range(event)
    return bool(start < fact["addr"] + PAGE * fact["pages"] and fact["addr"] < end)


def _kinds(events: Iterable[Event]) -> set[tuple[object, ...]]:
    return {
        (
            _function(e),
            e.fields["event"],
            e.number("ret"),
            e.number("blockable"),
            e.number("curr"),
            e.pid,
        )
        for e in events
    }


def _contention(load: WorkloadResult) -> dict[int, list[Range]]:
    """By thread: when it waited for a lock, by the locks' own events."""
    begun: dict[tuple[int, object], int] = {}
    waits: dict[int, list[Range]] = {}
    for event in load.events():
        key = (event.pid, event.fields.get("lock_addr"))
        if event.name == "contention_begin" and "MUTEX" in str(event.fields["flags"]):
            # A mutex begins again when it turns from spinning to sleeping.
            begun.setdefault(key, event.ts_ns)
        elif event.name == "contention_end" and key in begun:
            waits.setdefault(event.pid, []).append((begun.pop(key), event.ts_ns))
    return waits


def _migrate_pages(load: WorkloadResult, event: Event) -> Range:
    """Begin and end of the migrate_pages() that an event lies in, by its own events."""
    began = max(
        e.ts_ns
        for e in load.events("mm_migrate_pages_start")
        if e.pid == event.pid and e.ts_ns <= event.ts_ns
    )
    ended = min(
        e.ts_ns
        for e in load.events("mm_migrate_pages")
        if e.pid == event.pid and e.ts_ns + ROUNDING_NS >= event.ts_ns
    )
    return began, ended


def _with_reasons(load: WorkloadResult) -> list[tuple[Event, str | None]]:
    """Each new event with the reason of the migrate_pages() that it lies in, if any.

    Of several the innermost: reclaim for a new page can migrate others.
    """
    inside: dict[int, list[str]] = {}
    pairs = []
    for event in load.events():
        if event.name == "mm_migrate_pages_start":
            inside.setdefault(event.pid, []).append(str(event.fields["reason"]))
        elif event.name == "mm_migrate_pages":
            if inside.get(event.pid):
                inside[event.pid].pop()
        elif event.name in (BEGIN, END):
            reasons = inside.get(event.pid)
            pairs.append((event, reasons[-1] if reasons else None))
    return pairs


def _who(event: Event, reason: str | None) -> Who:
    """The key that mm-migrate-who.bt has to give this event."""
    cause = str(event.fields["event"])
    why = "migrate_vma" if cause == DEVICE else cause
    if cause == MOVED and reason is not None:
        why = reason
    own = event.number("curr")
    return _function(event), event.number("subscription"), why, own, event.comm


def _key(text: str) -> Who:
    function, subscription, why, own, comm = text.split(",")
    return _plain(function), int(subscription, 0), why, int(own), comm


def _least_pause(load: WorkloadResult) -> int:
    """ns from the end of a callback to the begin of its thread's next one, at least."""
    ended: dict[int, int] = {}
    pauses = []
    for event in sorted(load.record(END), key=lambda e: e.ts_ns):
        if event.pid in ended:
            began = event.ts_ns - event.number("duration_ns")
            pauses.append(began - ended[event.pid])
        ended[event.pid] = event.ts_ns
    return min(pauses, default=-1)


def _expected_count(load: WorkloadResult, moves: Sequence[Fact]) -> int:
    """How many recorded events the moves must have: one per page, mirror and pass."""
    passes = 4 if load.name == "two-pass" else 1
    return passes * sum(int(move["moved"]) for move in moves)


def _function(event: Event) -> str:
    return _plain(str(event.fields["function"]))


def _plain(function: str) -> str:
    """A symbol without the module that ftrace adds to it."""
    return function.partition(" ")[0].partition("+")[0]
