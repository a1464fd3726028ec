# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the iommu-iotlb series.

The new events are checked only against independent sources: the older iommu:map and
iommu:unmap, probes with a clock of their own on what is timed and on the driver's
functions, the times of the DMA map benchmark, the block layer's counters, and where the
pages are in physical memory.  Except in "crowd" one CPU does everything, so all events
of a workload have one order; in two workloads the other CPU only switches things.
"""

from __future__ import annotations

import bisect
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Event, Evidence, Verdict, WorkloadResult

#: ftrace prints whole microseconds, rounded.
US = 1000
PAGE = 4096
FQ_ENTRIES = 255  # of a ring of 256, one is never used
STRICT_PHASES = ("one", "sixteen", "tables")
READS = ("small", "scattered", "adjacent")
#: What is done for a second, or until enough is seen, says nothing if it is less.
LEAST = 10


@dataclass(frozen=True)
class Wait:
    """An unmapping that was invalidated, as probes saw it; times in us."""

    asked: int
    device: str
    begin: int
    end: int
    sync_begin: int
    sync_end: int
    first: int
    last: int
    domain: int


@dataclass(frozen=True)
class Flush:
    """A flush of a queue as probes saw it; times in us, 0 if it never happened."""

    timer: int
    domain: int
    begin: int
    end: int
    first: int
    last: int
    freed: int
    cpu: int


@dataclass(frozen=True)
class Account:
    """What was queued in a phase, how much of it flushes freed, and the most that they
    can have ``missed``; and by cause, how many flushes freed too much or too little."""

    queued: int
    freed: int
    missed: int
    wrong: Mapping[str, int]


@dataclass(frozen=True)
class Phase:
    """What was recorded while a program did one thing, and what it printed about it."""

    name: str
    facts: Mapping[str, Any]
    events: tuple[Event, ...]

    def named(self, name: str) -> list[Event]:
        """The events of one name, in their order."""
        return [event for event in self.events if event.name == name]

    @property
    def queued(self) -> list[Event]:
        """The unmappings that no iotlb_sync followed."""
        return [unmap for unmap, sync in _unmappings(self.events) if sync is None]


def strict_unmapping_waits(ev: Evidence) -> Verdict:
    """A probe saw the driver's function called, with the same range."""
    v = Verdict()
    load = ev.workload("bench-strict")
    waits = _waits(load)
    for phase in _phases(load, STRICT_PHASES):
        name = phase.name
        v.equal(f"{name}: type of the group", phase.facts["type"], "DMA")
        pairs = _unmappings(phase.events)
        if not _enough(v, f"{name}: unmappings", len(pairs)):
            continue
        alone = sum(sync is None for _, sync in pairs)
        v.equal(f"{name}: of which without an iotlb_sync", alone, 0)
        size = phase.facts["granule"] * PAGE
        sizes = {sync.number("size") for _, sync in pairs if sync}
        v.equal(f"{name}: sizes", sizes, {size})
        syncs = phase.named("iotlb_sync")
        v.equal(f"{name}: iotlb_sync of no unmapping", len(syncs) - len(pairs), 0)
        v.equal(f"{name}: lazy", {sync.fields["lazy"] for sync in syncs}, {0})
        v.true(f"{name}: its device", _devices(syncs) == {phase.facts["device"]})
        inside = _waits_in(waits, phase)
        v.equal(f"{name}: calls of the driver", len(inside), len(syncs))
        wrong = _misnamed(syncs, inside)
        v.equal(f"{name}: other than probes saw it", wrong, dict.fromkeys(wrong, 0))
    return v


def unmapping_and_waiting_are_timed_apart(ev: Evidence) -> Verdict:
    """Probes on both functions give the lower bound, events around them the upper."""
    v = Verdict()
    load = ev.workload("bench-strict")
    waits = _waits(load)
    for phase in _phases(load, STRICT_PHASES):
        name = phase.name
        syncs = phase.named("iotlb_sync")
        inside = _waits_in(waits, phase)
        if not _enough(v, f"{name}: probed", len(inside)):
            continue
        v.equal(f"{name}: iotlb_sync", len(syncs), len(inside))
        wrong = _mistimed(syncs, inside)
        v.equal(f"{name}: other than probes saw it", wrong, dict.fromkeys(wrong, 0))
        waited = sum(map(_spent, syncs))
        # Two averages of the benchmark, each cut to 100 ns.
        most = (phase.facts["avg_unmap_100ns"] + 2) * 100 * len(syncs)
        v.within(f"{name}: sum of both", waited, 1, most, "ns")
    return v


def either_device_is_reported(ev: Evidence) -> Verdict:
    """Over a whole workload, in which one device comes after the other."""
    v = Verdict()
    load = ev.workload("operator")
    syncs = load.events("iotlb_sync")
    waits = _waits(load)
    v.equal("devices", len(_devices(syncs)), 2)
    v.equal("iotlb_sync", len(syncs), len(waits))
    wrong = _misnamed(syncs, waits)
    v.equal("other than probes saw it", wrong, dict.fromkeys(wrong, 0))
    flushes = load.events("iotlb_fq_flush")
    domains = [flush.number("domain") for flush in flushes]
    (facts,) = _facts(load, "flushes")
    probed = [Flush(*flush).domain for flush in facts["flushes"]]
    v.equal("domains that were flushed", len(set(domains)), 2)
    v.true(
        "each as a probe saw it", domains == probed, f"{len(domains)} and {len(probed)}"
    )
    return v


def disk_bytes_are_bytes_invalidated(ev: Evidence) -> Verdict:
    """The block layer counts requests and sectors without knowing of an IOMMU."""
    v = Verdict()
    load = ev.workload("disk-strict")
    waits = _waits(load)
    for phase in _phases(load, READS):
        name = phase.name
        _check_placement(v, phase)
        v.equal(f"{name}: type of the group", phase.facts["type"], "DMA")
        syncs = phase.named("iotlb_sync")
        v.equal(f"{name}: iotlb_sync", len(syncs), phase.facts["requests"])
        total = sum(sync.number("size") for sync in syncs)
        v.equal(f"{name}: sum of size", total, phase.facts["bytes"])
        v.equal(f"{name}: sum of size / 512", total // 512, phase.facts["sectors"])
        v.equal(f"{name}: lazy", {sync.fields["lazy"] for sync in syncs}, {0})
        v.true(f"{name}: its device", _devices(syncs) == {phase.facts["device"]})
        inside = _waits_in(waits, phase)
        v.equal(f"{name}: calls of the driver", len(inside), len(syncs))
        wrong = _misnamed(syncs, inside) | _mistimed(syncs, inside)
        v.equal(f"{name}: other than probes saw it", wrong, dict.fromkeys(wrong, 0))
    # Also of what the driver does before and after.
    v.equal("all: calls of the driver", len(waits), len(load.events("iotlb_sync")))
    (small,) = _phases(load, ("small",))
    sizes = Counter(sync.number("size") for sync in small.named("iotlb_sync"))
    v.equal("small: sizes", dict(sizes), {PAGE: 256})
    return v


def full_queue_frees_255(ev: Evidence) -> Verdict:
    """The ring has 256 entries, and one is never used."""
    v = Verdict()
    (phase,) = _phases(ev.workload("bench-lazy"), ("full",))
    flushes = phase.named("iotlb_fq_flush")
    full = [flush.number("freed") for flush in flushes if flush.fields["full"]]
    v.at_least("flushes of a full queue", len(full), 1)
    v.equal("freed", set(full), {FQ_ENTRIES})
    rest = [flush.number("freed") for flush in flushes if not flush.fields["full"]]
    v.at_most("freed by the timer, at most", max(rest, default=0), FQ_ENTRIES)
    return v


def flush_and_free_are_timed_apart(ev: Evidence) -> Verdict:
    """Probes on the driver's flush, on the timer, and on what frees an IOVA."""
    v = Verdict()
    load = ev.workload("bench-lazy")
    (facts,) = _facts(load, "flushes")
    probed = [Flush(*flush) for flush in facts["flushes"]]
    for phase in _phases(load, ("full", "timer")):
        name = phase.name
        events, inside = phase.named("iotlb_fq_flush"), _flushes_in(probed, phase)
        asked = f"{name}: flushes that the driver was asked for"
        if not _enough(v, asked, len(inside)):
            continue
        _as_probed(v, name, events, inside, phase.events)
        v.equal(
            f"{name}: IOVAs freed, by probe",
            sum(flush.freed for flush in inside),
            len(phase.named("unmap")),
        )
    return v


def two_cpus_flush(ev: Evidence) -> Verdict:
    """Each CPU has a queue, and a probe in each flush says on which CPU it ran."""
    v = Verdict()
    load = ev.workload("crowd")
    (facts,) = _facts(load, "flushes")
    (phase,) = _phases(load, ("crowd",))
    v.equal("type of the group", phase.facts["type"], "DMA-FQ")
    probed = _flushes_in([Flush(*flush) for flush in facts["flushes"]], phase)
    for cpu in (0, 1):
        events = [event for event in phase.events if event.cpu == cpu]
        flushes = [event for event in events if event.name == "iotlb_fq_flush"]
        inside = [flush for flush in probed if flush.cpu == cpu]
        full = [event.number("freed") for event in flushes if event.fields["full"]]
        v.at_least(f"CPU {cpu}: flushes of a full queue", len(full), 1)
        most = max(full, default=0)
        v.at_most(f"CPU {cpu}: freed by one, at most", most, FQ_ENTRIES)
        _as_probed(v, f"CPU {cpu}", flushes, inside, events)
    unmaps = len(phase.named("unmap"))
    freed = sum(event.number("freed") for event in phase.named("iotlb_fq_flush"))
    v.at_most("freed by flushes", freed, unmaps)
    # A full queue's flush covers entries of other queues too: their CPU's next
    # unmapping frees these.
    with v.excused("no CPU unmapped anything in the course of the other's flush"):
        v.at_least("freed without an event, by probe", facts["others"], 1)
    v.at_most("freed by either", freed + facts["others"], unmaps)
    return v


def _account(phase: Phase) -> Account:
    """Compare what flushes freed with what was queued, in their order.

    An unmapping in the middle of a timer's flush can free what that has flushed but not
    freed yet, and no event reports this: a disk unmaps in an interrupt, which may come
    there.  These are at most what was unmapped by then and not reported.  A thread on
    the CPU of the timer cannot unmap meanwhile.
    """
    count = freed = missed = 0
    wrong = {"full": 0, "timer": 0}
    queued = {id(unmap) for unmap in phase.queued}
    at: list[int] = []
    cpus: set[int] = set()
    for event in phase.events:
        if id(event) in queued:
            count += 1
            at.append(event.ts_ns)
            cpus.add(event.cpu)
        elif event.name == "iotlb_fq_flush":
            freed += event.number("freed")
            if event.fields["full"]:
                # The unmapping that found the queue full is not in it yet.
                wrong["full"] += not freed <= count - 1 <= freed + missed
                continue
            began = event.ts_ns - event.number("flush_ns") - event.number("free_ns")
            before = bisect.bisect_left(at, began - US)
            if before < count or cpus - {event.cpu}:
                missed = max(count - freed, 0)
            # One entry can be unmapped and not in the queue yet.
            wrong["timer"] += not before - 1 - missed <= freed <= count
    return Account(count, freed, missed, wrong)


def _flushes_in(flushes: Iterable[Flush], phase: Phase) -> list[Flush]:
    begin, end = phase.facts["begin_ns"] // US, phase.facts["end_ns"] // US
    return [flush for flush in flushes if begin <= flush.begin <= end]


def _as_probed(
    v: Verdict,
    name: str,
    flushes: Sequence[Event],
    probed: Sequence[Flush],
    events: Sequence[Event],
) -> None:
    """Compare each event with its flush; these, and ``events``, are of one CPU."""
    v.equal(f"{name}: iotlb_fq_flush", len(flushes), len(probed))
    times = [event.ts_ns // US for event in events]
    wrong = Counter[str](domain=0, full=0, freed=0, flush_ns=0, free_ns=0, time=0)
    for event, flush in zip(flushes, probed, strict=False):
        at = event.ts_ns // US
        wrong["domain"] += event.number("domain") != flush.domain
        wrong["full"] += event.number("full") != int(not flush.timer)
        wrong["freed"] += event.number("freed") != flush.freed
        # A thread that finds its queue full has just traced its unmapping.
        since = flush.timer or times[bisect.bisect(times, flush.begin) - 1]
        wrong["flush_ns"] += not _lasted(
            event.number("flush_ns"),
            (flush.begin, flush.end),
            (since, flush.first or at),
        )
        wrong["free_ns"] += not _lasted(
            event.number("free_ns"), (flush.first, flush.last), (flush.end, at)
        )
        wrong["time"] += at < max(flush.end, flush.last)
    v.equal(f"{name}: other than probes saw it", dict(wrong), dict.fromkeys(wrong, 0))


def _misnamed(syncs: Iterable[Event], waits: Iterable[Wait]) -> dict[str, int]:
    """How many do not say whose unmapping it was as probes saw it."""
    wrong = {"range": 0, "device": 0, "domain": 0}
    for sync, wait in zip(syncs, waits, strict=False):
        last = sync.number("iova") + sync.number("size") - 1
        wrong["range"] += (wait.first, wait.last) != (sync.number("iova"), last)
        wrong["device"] += wait.device != sync.fields["device"]
        wrong["domain"] += wait.domain != sync.number("domain")
    return wrong


def _mistimed(syncs: Iterable[Event], waits: Iterable[Wait]) -> dict[str, int]:
    """How many have a time that is outside the limits that probes give."""
    wrong = {"unmap_ns": 0, "sync_ns": 0, "time": 0}
    for sync, wait in zip(syncs, waits, strict=False):
        at = sync.ts_ns // US
        wrong["unmap_ns"] += not _lasted(
            sync.number("unmap_ns"),
            (wait.begin, wait.end),
            (wait.asked, wait.sync_begin),
        )
        wrong["sync_ns"] += not _lasted(
            sync.number("sync_ns"), (wait.sync_begin, wait.sync_end), (wait.end, at)
        )
        wrong["time"] += at < wait.sync_end
    return wrong


def _lasted(ns: int, inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    """Whether ``ns`` is as long as ``inner``, and not longer than ``outer``.

    Both are spans in us between rounded timestamps: each can be a microsecond
    shorter or longer than it really was.
    """
    least, most = (inner[1] - inner[0] - 1), (outer[1] - outer[0] + 1)
    return least * US < ns < most * US


def timer_frees_the_rest(ev: Evidence) -> Verdict:
    """The queue is never full: the benchmark waits as long as the timer.

    A flush may find nothing to free: one that comes after an entry is queued and before
    the timer is started for it frees the entry, and the timer is started all the same.
    """
    v = Verdict()
    load = ev.workload("bench-lazy")
    (phase,) = _phases(load, ("timer",))
    (facts,) = _facts(load, "flushes")
    inside = _flushes_in((Flush(*flush) for flush in facts["flushes"]), phase)
    if not _enough(v, "flushes that the driver was asked for", len(inside)):
        return v
    flushes = phase.named("iotlb_fq_flush")
    v.equal("flushes", len(flushes), len(inside))
    v.equal("of which for a full queue", sum(f.number("full") for f in flushes), 0)
    freed = sum(flush.number("freed") for flush in flushes)
    v.equal("sum of freed", freed, len(phase.named("unmap")))
    return v


def each_unmapping_is_freed_once(ev: Evidence) -> Verdict:
    """The order of unmappings and flushes bounds how many each flush can free."""
    v = Verdict()
    for load, phase in _lazy_phases(ev):
        name = f"{load}: {phase.name}"
        account = _account(phase)
        queued = account.queued
        least = queued - account.missed
        v.within(f"{name}: queued and freed", account.freed, least, queued)
        v.equal(f"{name}: flushes that freed too much or little", account.wrong, {
            "full": 0, "timer": 0,
        })  # fmt: skip
    return v


def full_flush_is_before_its_device(ev: Evidence) -> Verdict:
    """Joined by time and task with the DMA API's older event, from its own trace."""
    v = Verdict()
    load = ev.workload("bench-lazy")
    (phase,) = _phases(load, ("full",))
    (facts,) = _facts(load, "named")
    full = [e for e in phase.named("iotlb_fq_flush") if e.fields["full"]]
    v.at_least("flushes of a full queue", len(full), 1)
    devices = Counter[str]()
    # For each flush, what was unmapped between it and the next one.
    times = [*(event.ts_ns for event in full), phase.facts["end_ns"]]
    for event, end in zip(full, times[1:], strict=True):
        after = [
            device
            for at, pid, device in facts["named"]
            if event.ts_ns // US <= at <= end // US and pid == event.pid
        ]
        devices[after[0] if after else "none"] += 1
    expected = {phase.facts["device"]: len(full)}
    v.equal("device of the dma_unmap_phys after each", dict(devices), expected)
    return v


def scattered_io_waits_in_lazy_mode(ev: Evidence) -> Verdict:
    """The same disk, domain and bytes as in the other phases; only the pages differ.

    A probe shows which path of the kernel a request takes: dma_iova_unlink() keeps the
    IOVA for its caller, so it has to wait whatever the domain's type.  In 7.3 all calls
    of dma_iova_destroy() take this path.  Before, it frees the IOVA along with the
    mapping, as everything else that is lazy: then nothing waits, and flushes have to
    free each IOVA.
    """
    v = Verdict()
    load = ev.workload("disk-lazy")
    phases = _phases(load, READS)
    (phase,) = (phase for phase in phases if phase.name == "scattered")
    _check_placement(v, phase)
    v.equal("type of the group", phase.facts["type"], "DMA-FQ")
    requests, total = phase.facts["requests"], phase.facts["bytes"]
    passed = _entered(load, phase)
    v.equal("dma_iova_destroy()", passed["dma_iova_destroy"], requests)
    waiting = passed["dma_iova_unlink"]
    v.true("all take one path", waiting in (0, requests), f"{waiting} unlinked")
    unmaps = phase.named("unmap")
    v.equal("bytes unmapped", sum(u.number("unmapped_size") for u in unmaps), total)
    syncs = phase.named("iotlb_sync")
    v.equal("iotlb_sync, one for each dma_iova_unlink()", len(syncs), waiting)
    lazy = {sync.fields["lazy"] for sync in syncs}
    v.equal("lazy", lazy, {1} if waiting else set())
    traced = [
        (
            sync.number("iova"),
            sync.number("size"),
            sync.number("domain"),
            sync.fields["device"],
        )
        for sync in syncs
    ]
    v.equal("sum of size", sum(size for _, size, *_ in traced), total if waiting else 0)
    waits = _waits(load)
    v.equal("all calls of the driver", len(waits), len(load.events("iotlb_sync")))
    inside = _waits_in(waits, phase)
    probed = [
        (wait.first, wait.last + 1 - wait.first, wait.domain, wait.device)
        for wait in inside
    ]
    v.true("range, domain and device as probes saw them", traced == probed)
    wrong = _mistimed(syncs, inside)
    v.equal("times other than probes saw them", wrong, dict.fromkeys(wrong, 0))
    devices = {phase.facts["device"]} if waiting else set()
    v.true("its device", _devices(syncs) == devices)
    queued = requests - waiting
    v.equal("unmappings left to the queue", len(phase.queued), queued)
    flushes = phase.named("iotlb_fq_flush")
    account = _account(phase)
    v.within("freed by flushes", account.freed, queued - account.missed, queued)
    if waiting:
        v.none("flushes", flushes)
    domains = {
        event.number("domain")
        for phase in phases
        for event in phase.events
        if "domain" in event.fields
    }
    v.equal("domains of all phases", len(domains), 1)
    return v


def strict_to_lazy_in_one_boot(ev: Evidence) -> Verdict:
    """The type is changed in sysfs between the two phases."""
    v = Verdict()
    strict, lazy = _phases(ev.workload("switch"), ("strict", "lazy"))
    v.equal("type of the group", strict.facts["type"], "DMA")
    v.equal("type of the group, afterwards", lazy.facts["type"], "DMA-FQ")
    syncs, flushes = strict.named("iotlb_sync"), lazy.named("iotlb_fq_flush")
    for phase in (strict, lazy):
        unmaps = len(phase.named("unmap"))
        if not _enough(v, f"{phase.name}: unmappings", unmaps):
            return v
    v.equal("strict: iotlb_sync", len(syncs), len(strict.named("unmap")))
    v.none("strict: iotlb_fq_flush", strict.named("iotlb_fq_flush"))
    # How many depends on when the timer expires.
    v.at_least("lazy: iotlb_fq_flush", len(flushes), 1)
    v.none("lazy: iotlb_sync", lazy.named("iotlb_sync"))
    before = {sync.number("domain") for sync in syncs}
    after = {flush.number("domain") for flush in flushes}
    v.equal("domains", len(before), 1)
    v.true("the same one in both", before == after, _hex(before | after))
    return v


def lazy_is_what_the_caller_must_not_use(ev: Evidence) -> Verdict:
    """The unmapping thread had already looked for a queue, and found none."""
    v = Verdict()
    load = ev.workload("switch-late")
    (facts,) = _facts(load, "written")
    v.equal("type of the group, afterwards", facts["type"], "DMA-FQ")
    waits = _waits(load)
    # Had it found the queue, it would not have waited at all.
    late = sum(
        wait.asked < at < wait.sync_begin for at in facts["lazy"] for wait in waits
    )
    if not late:
        v.undecide("no domain became lazy in the middle of an unmapping")
        return v
    v.at_least("unmappings during which the domain got a queue", late, 1)
    (probes,) = _facts(load, "probes")
    v.equal("dma_iova_unlink(), which must not queue", len(probes["entered"]), 0)
    syncs = load.events("iotlb_sync")
    v.equal("iotlb_sync", len(syncs), len(waits))
    v.equal("lazy", {sync.fields["lazy"] for sync in syncs}, {0})
    return v


def other_users_are_silent(ev: Evidence) -> Verdict:
    """No hardware, no DMA API: the tests call iommu_map() and iommu_unmap()."""
    v = Verdict()
    load = ev.workload("kunit")
    suites = _facts(load, "suite")
    v.equal("suites", len(suites), 2)
    for suite in suites:
        v.equal(f"{suite['name']}", suite["last"], f"ok 1 {suite['name']}")
        v.at_least(f"{suite['name']}: tests passed", suite["passed"], 2)
        v.equal(f"{suite['name']}: tests failed", suite["failed"], 0)
    v.at_least("unmappings", len(load.events("unmap")), 10)
    for reader in (load.events, load.record):
        syncs = reader("iotlb_sync")
        v.none(f"iotlb_sync, {reader.__name__}", syncs)
    return v


def switched_on_half_way(ev: Evidence) -> Verdict:
    """There is no recorder and no other listener: they would keep the events on."""
    v = Verdict()
    load = ev.workload("toggle")
    for event, count, late_at_most in (
        # An operation that runs when the event is switched off is reported later, but
        # ends before the next turn begins.  There is one thread that unmaps,
        ("iotlb_sync", 40, 1),
        # and beside a full queue of that thread's there can be the timer.
        ("iotlb_fq_flush", 120, 2),
    ):
        (facts,) = (t for t in _facts(load, "toggle") if t["event"] == event)
        turns, events = facts["turns"], facts["told"]
        v.at_least(f"{event}: turns", len(turns), count)
        # The program that switches the event runs on the other CPU, and goes on until
        # there are so many.
        of_cpu_0 = sum(not cpu for *_, cpu in events)
        v.at_least(f"{event}: events of CPU 0", of_cpu_0, LEAST)
        early = lost = 0
        late = Counter[int]()
        begins = [begin - US for begin, _ in turns]
        for at, took, _ in events:
            turn = bisect.bisect_left(begins, at) - 1
            if turn < 0:
                lost += 1
                continue
            begin, end = turns[turn]
            late[turn] += at - US > end
            early += at + US - took < begin
        v.equal(f"{event}: before all turns", lost, 0)
        most = max(late.values(), default=0)
        v.at_most(f"{event}: after a turn, most for any", most, late_at_most)
        v.equal(f"{event}: longer than it was on", early, 0)
    return v


def _enough(v: Verdict, label: str, count: int) -> bool:
    """Whether older events or probes saw anything that the new events can be held to.

    If it is too little, the check only says no, if one of its comparisons does.
    """
    with v.excused(f"{label}: only {count} in the time that the host gave"):
        v.at_least(label, count, LEAST)
    return count > 0


_TIMES = frozenset({"unmap_ns", "sync_ns", "flush_ns", "free_ns"})


def lazy_unmapping_is_silent(ev: Evidence) -> Verdict:
    """Silence counts only where something was unmapped."""
    v = Verdict()
    bench = _phases(ev.workload("bench-lazy"), ("full", "timer"))
    disk = _phases(ev.workload("disk-lazy"), ("small", "adjacent"))
    for phase in bench:
        v.equal(f"{phase.name}: type of the group", phase.facts["type"], "DMA-FQ")
        _enough(v, f"{phase.name}: unmappings", len(phase.named("unmap")))
        v.none(f"{phase.name}: iotlb_sync", phase.named("iotlb_sync"))
    for phase in disk:
        name = phase.name
        _check_placement(v, phase)
        v.equal(f"{name}: type of the group", phase.facts["type"], "DMA-FQ")
        unmaps = phase.named("unmap")
        v.equal(f"{name}: unmappings", len(unmaps), phase.facts["requests"])
        total = sum(unmap.number("unmapped_size") for unmap in unmaps)
        v.equal(f"{name}: bytes of these", total, phase.facts["bytes"])
        v.none(f"{name}: iotlb_sync", phase.named("iotlb_sync"))
    return v


def lazy_tables_are_silent(ev: Evidence) -> Verdict:
    """Freeing page tables waits outside of the queue, and has no event.

    A driver that invalidates what led to a table before it frees the table does so
    while it unmaps, whatever the domain's type.
    """
    v = Verdict()
    load = ev.workload("lazy-tables")
    (probes,) = _facts(load, "probes")
    for phase in _phases(load, ("pages", "tables")):
        name = phase.name
        v.equal(f"{name}: type of the group", phase.facts["type"], "DMA-FQ")
        unmaps = phase.named("unmap")
        _enough(v, f"{name}: unmappings", len(unmaps))
        v.none(f"{name}: iotlb_sync", phase.named("iotlb_sync"))
        freed = sum(flush.number("freed") for flush in phase.named("iotlb_fq_flush"))
        v.equal(f"{name}: freed by flushes", freed, len(unmaps))
        begin, end = phase.facts["begin_ns"] // US, phase.facts["end_ns"] // US
        inside = sorted(
            ended - began
            for began, ended, *_ in probes["walks"]
            if begin <= began <= end
        )
        walked = probes["walking"] and name == "tables"
        expected = len(unmaps) if walked else 0
        median = f", {inside[len(inside) // 2]} us each" if inside else ""
        v.true(
            f"{name}: {expected} invalidations amid unmappings, by probe",
            len(inside) == expected,
            f"{len(inside)}{median}",
        )
    return v


def strict_has_no_queue(ev: Evidence) -> Verdict:
    """Over both workloads as a whole."""
    v = Verdict()
    for name in ("bench-strict", "disk-strict"):
        load = ev.workload(name)
        _enough(v, f"{name}: unmappings", len(load.events("unmap")))
        for reader in (load.events, load.record):
            flushes = reader("iotlb_fq_flush")
            v.none(f"{name}: iotlb_fq_flush, {reader.__name__}", flushes)
    return v


def identity_is_silent(ev: Evidence) -> Verdict:
    """The disk was read all the same."""
    v = Verdict()
    for phase in _phases(ev.workload("disk-identity"), READS):
        name = phase.name
        _check_placement(v, phase)
        v.equal(f"{name}: type of the group", phase.facts["type"], "identity")
        v.equal(f"{name}: bytes", phase.facts["sectors"] * 512, phase.facts["bytes"])
        v.equal(f"{name}: events", Counter(e.name for e in phase.events), Counter())
    return v


def idle_is_silent(ev: Evidence) -> Verdict:
    """After unmappings, with the driver still bound."""
    v = Verdict()
    (phase,) = _phases(ev.workload("bench-lazy"), ("idle",))
    v.equal("type of the group", phase.facts["type"], "DMA-FQ")
    lasted = phase.facts["end_ns"] - phase.facts["begin_ns"]
    v.at_least("idle", lasted, 5_000_000_000, "ns")
    v.equal("events", Counter(event.name for event in phase.events), Counter())
    return v


def sizes_add_up(ev: Evidence) -> Verdict:
    """What the workload did decides whether an unmapping was queued, not the events."""
    v = Verdict()
    waiting: dict[str, tuple[str, ...]] = {
        "bench-strict": STRICT_PHASES,
        "disk-strict": READS,
        "disk-lazy": _unlinking(ev.workload("disk-lazy")),
        "switch": ("strict",),
    }
    for name, phases in waiting.items():
        load = ev.workload(name)
        unmapped = waited_for = traced = 0
        for phase in _all_phases(load):
            unmaps = phase.named("unmap")
            size = sum(unmap.number("unmapped_size") for unmap in unmaps)
            unmapped += size
            if phase.name in phases:
                waited_for += size
            traced += sum(sync.number("size") for sync in phase.named("iotlb_sync"))
            spent = sum(map(_spent, phase.events))
            lasted = phase.facts["end_ns"] - phase.facts["begin_ns"]
            v.at_most(f"{name}: {phase.name}: time in events", spent, lasted, "ns")
        v.at_least(f"{name}: bytes unmapped", unmapped, 1)
        if phases:
            v.at_least(f"{name}: of which not queued", waited_for, 1)
        v.equal(f"{name}: sum of size", traced, waited_for)
    return v


def scripts_add_up(ev: Evidence) -> Verdict:
    """Exact, with no rounding: the scripts add up what the events carry."""
    v = Verdict()
    load = ev.workload("operator")
    syncs, flushes = load.events("iotlb_sync"), load.events("iotlb_fq_flush")
    script = load.bpftrace("iommu-iotlb-who")
    for name, field in (
        ("@unmap_ns", "unmap_ns"),
        ("@sync_ns", "sync_ns"),
        ("@bytes", "size"),
        ("@waits", ""),
    ):
        sums: Counter[str] = Counter()
        for sync in syncs:
            sums[_script_key(sync)] += sync.number(field) if field else 1
        v.equal(name, _sorted(script.maps[name]), _sorted(sums))
    longest: Counter[str] = Counter()
    for sync in syncs:
        longest[_script_key(sync)] = max(longest[_script_key(sync)], _spent(sync))
    v.equal("@longest_ns", _sorted(script.maps["@longest_ns"]), _sorted(longest))
    for name, field in (
        ("@flushes", ""),
        ("@freed", "freed"),
        ("@flush_ns", "flush_ns"),
        ("@free_ns", "free_ns"),
    ):
        sums = Counter()
        for flush in flushes:
            cause = "queue full" if flush.fields["full"] else "timer"
            sums[cause] += flush.number(field) if field else 1
        v.equal(name, _sorted(script.maps[name]), _sorted(sums))
    spent = Counter[str]()
    for event in (*syncs, *flushes):
        spent[str(event.cpu)] += _spent(event)
    v.equal("@cpu_ns", _sorted(script.maps["@cpu_ns"]), _sorted(spent))
    lazy = [sync for sync in syncs if sync.fields["lazy"]]
    (probed,) = _facts(load, "probes")
    passed = Counter(name for _, name in probed["entered"])
    v.at_least("dma_iova_destroy() in a lazy domain", passed["dma_iova_destroy"], 1)
    # None on kernels that leave it to the queue, see scattered_io_waits_in_lazy_mode().
    v.equal("lazy and waited", len(lazy), passed["dma_iova_unlink"])
    stacks = script.maps.get("@not_queued", {})
    v.equal("@not_queued", sum(int(count) for count in stacks.values()), len(lazy))
    strangers = [stack for stack in stacks if "dma_iova_" not in stack]
    v.equal("stacks without dma_iova_*()", len(strangers), 0)
    _histograms(v, load, syncs)
    return v


def _histograms(v: Verdict, load: WorkloadResult, syncs: Sequence[Event]) -> None:
    hists = load.bpftrace("iommu-iotlb").hists
    for name, field in (("@ns", ""), ("@bytes", "size")):
        counts = {
            key: {b.low or 0: b.count for b in buckets if b.count}
            for key, buckets in hists[name].items()
        }
        expected: dict[str, Counter[int]] = {}
        for sync in syncs:
            value = sync.number(field) if field else _spent(sync)
            low = value if value < 2 else 1 << (value.bit_length() - 1)
            expected.setdefault(_histogram_key(sync), Counter())[low] += 1
        v.equal(
            name,
            {key: _sorted(counts[key]) for key in sorted(counts)},
            {key: _sorted(expected[key]) for key in sorted(expected)},
        )


def _spent(event: Event) -> int:
    return sum(event.number(key) for key in _TIMES & set(event.fields))


def _histogram_key(sync: Event) -> str:
    return f"{sync.fields['device']},{sync.fields['lazy']}"


def _script_key(sync: Event) -> str:
    # ftrace calls the idle task of any CPU <idle>; here it is that of CPU 0.
    comm = "swapper/0" if sync.comm == "<idle>" else sync.comm
    return f"{_histogram_key(sync)},{comm}"


def _devices(syncs: Iterable[Event]) -> set[Any]:
    return {sync.fields["device"] for sync in syncs}


def _sorted(mapping: Mapping[Any, int]) -> dict[Any, int]:
    return {key: int(mapping[key]) for key in sorted(mapping)}


def _check_placement(v: Verdict, phase: Phase) -> None:
    """Where the pages of a read were, which decides how the driver maps them."""
    runs = phase.facts["runs"]
    name = phase.name
    v.equal(f"{name}: requests", phase.facts["requests"], len(runs))
    v.true(f"{name}: pages stayed where they were", runs == phase.facts["runs_after"])
    if name == "scattered":
        v.at_least(f"{name}: pieces of a request, least", min(runs), 2)
    else:
        v.equal(f"{name}: pieces of a request", set(runs), {1})


def _unmappings(events: Iterable[Event]) -> list[tuple[Event, Event | None]]:
    """Each unmap, with the iotlb_sync of the same range if that comes next.

    A flush of the queue can come between the two: by a timer, in an interrupt.
    """
    pairs: list[tuple[Event, Event | None]] = []
    last: Event | None = None
    for event in events:
        if event.name == "unmap":
            if last is not None:
                pairs.append((last, None))
            last = event
        elif event.name == "map" and last is not None:
            pairs.append((last, None))
            last = None
        elif event.name == "iotlb_sync" and last is not None:
            same = (last.number("iova"), last.number("unmapped_size")) == (
                event.number("iova"),
                event.number("size"),
            )
            pairs.append((last, event if same else None))
            last = None
    if last is not None:
        pairs.append((last, None))
    return pairs


def _lazy_phases(ev: Evidence) -> list[tuple[str, Phase]]:
    """All phases in which an unmapping can be queued."""
    return [
        (name, phase)
        for name, names in (
            ("bench-lazy", ("full", "timer")),
            ("disk-lazy", READS),
            ("switch", ("lazy",)),
        )
        for phase in _phases(ev.workload(name), names)
    ]


def _waits(load: WorkloadResult) -> list[Wait]:
    probes = _facts(load, "probes")
    return [Wait(*wait) for facts in probes for wait in facts["waits"]]


def _entered(load: WorkloadResult, phase: Phase) -> Counter[str]:
    """How often each probed function was entered in a phase."""
    (probes,) = _facts(load, "probes")
    begin, end = phase.facts["begin_ns"] // US, phase.facts["end_ns"] // US
    return Counter(name for at, name in probes["entered"] if begin <= at <= end)


def _unlinking(load: WorkloadResult) -> tuple[str, ...]:
    """The phases of lazy reads in which nothing is left to the queue, by probe."""
    return tuple(
        phase.name
        for phase in _phases(load, READS)
        if _entered(load, phase)["dma_iova_unlink"]
    )


def _waits_in(waits: Iterable[Wait], phase: Phase) -> list[Wait]:
    begin, end = phase.facts["begin_ns"] // US, phase.facts["end_ns"] // US
    return [wait for wait in waits if begin <= wait.begin <= end]


def _phases(load: WorkloadResult, names: Sequence[str]) -> list[Phase]:
    by_name = {facts["name"]: facts for facts in _facts(load, "phase")}
    return [_phase(load, by_name[name]) for name in names]


def _all_phases(load: WorkloadResult) -> list[Phase]:
    return [_phase(load, facts) for facts in _facts(load, "phase")]


def _phase(load: WorkloadResult, facts: Mapping[str, Any]) -> Phase:
    # Events are rounded to microseconds, so cut the beginning.
    begin = facts["begin_ns"] // US * US
    events = tuple(e for e in load.events() if begin <= e.ts_ns <= facts["end_ns"])
    return Phase(facts["name"], facts, events)


def _facts(load: WorkloadResult, kind: str) -> list[dict[str, Any]]:
    lines = re.findall(r"(?m)^\{.*\}$", load.stdout)
    return [facts for facts in map(json.loads, lines) if facts["what"] == kind]


def _hex(values: Iterable[int]) -> str:
    return ", ".join(f"{value:#x}" for value in sorted(values))
