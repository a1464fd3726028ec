# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparisons of iommu-iotlb's checks that must hold on a busy host, and not always."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest

from kstall.base import arch
from kstall.evidence import Event, Evidence, WorkloadResult
from kstall.series import Project
from kstall.verdict import Verdict, run_check
from kstall_guest import hosttime, waiting, workload
from workloadprograms import program

US = 1_000
MS = 1_000_000
PAGE = 4096
EVENTS = {"iotlb_sync": 40, "iotlb_fq_flush": 120}
#: Of each turn when it began and ended, and what was told in it: ts, duration.
TURNS = [(number * 50 * MS, number * 50 * MS + 40 * MS) for number in range(1, 121)]
TOLD = [(on + 5 * MS, 20 * US) for on, _ in TURNS[:40]]


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/iommu-iotlb/checks.py"
    spec = importlib.util.spec_from_file_location("iommu_iotlb_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for it there.
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def _toggled(place: Path, told: list[tuple[int, int]]) -> Evidence:
    """Evidence of the workload ``toggle`` with ``told`` for either event."""
    folder = place / "toggle"
    folder.mkdir()
    seen = [(*record, 0) for record in told]
    lines = [
        json.dumps(
            {"what": "toggle", "event": event, "turns": TURNS[:count], "told": seen}
        )
        for event, count in EVENTS.items()
    ]
    (folder / "stdout").write_text("\n".join(lines))
    load = WorkloadResult("toggle", folder, {}, {})
    return Evidence(place, {}, {"toggle": load}, {})


def _wrong(verdict: Verdict) -> set[str]:
    return {
        comparison.label.partition(": ")[2]
        for comparison in verdict.comparisons
        if not comparison.ok
    }


ON, OFF = TURNS[7]
#: Recorded a millisecond after the event was off, and begun before that.
LATE = (OFF + MS, 2 * MS)
MANY = {"after a turn, most for any"}
LONG = {"longer than it was on"}


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (TOLD, set()),
        # What was under way when it was switched off, in each of several turns.
        ([*TOLD, LATE], set()),
        ([*TOLD, *((off + MS, MS + 20 * US) for _, off in TURNS[:40])], set()),
        # The same, recorded so late that it had ended before it was switched off.
        ([*TOLD, (OFF + 3 * MS, 20 * US)], set()),
        # But one thread cannot have two of them,
        ([*TOLD, LATE, (LATE[0] + 20 * US, 20 * US)], MANY),
        # a time from before the event was on is wrong, by whatever it is,
        ([*TOLD, (ON + MS, MS + 2 * US)], LONG),
        ([*TOLD, (ON + MS, ON + MS)], LONG),
        ([*TOLD, (OFF + MS, OFF + 2 * MS - ON)], LONG),
        # and so is an event before all that.
        ([*TOLD, (TURNS[0][0] - MS, 1)], {"before all turns"}),
        (TOLD[:9], {"events of CPU 0"}),
    ],
)
def test_switched_on_half_way(
    checks: ModuleType, tmp_path: Path, told: list[tuple[int, int]], wrong: set[str]
) -> None:
    verdict = checks.switched_on_half_way(_toggled(tmp_path, told))
    assert _wrong(verdict) == wrong
    of_both = {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    }
    # Beside the thread there can be the timer.
    each = {"iotlb_sync"} if wrong == MANY else set(EVENTS)
    assert of_both == {f"{event}: {what}" for event in each for what in wrong}


def test_two_flushes_at_a_time_and_no_third(checks: ModuleType, tmp_path: Path) -> None:
    many = [(LATE[0] + number * US, LATE[1]) for number in range(3)]
    verdict = checks.switched_on_half_way(_toggled(tmp_path, [*TOLD, *many]))
    of_both = {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    }
    assert of_both == {f"{event}: {what}" for event in EVENTS for what in MANY}


# -- a lazy domain, on kernels of both kinds ------------------------------------------

#: Three requests of two pages each, and where each phase is in time.
SIZE = 8192
BUFFERS = [0x10000, 0x20000, 0x30000]
BEGINS = {"small": 0, "scattered": 1000 * MS, "adjacent": 2000 * MS}
DOMAIN = 0xFF11
DISK = "0000:00:05.0"


def _event(at: int, name: str, **fields: int | str) -> Event:
    return Event(at, 0, 1, "x", "iommu", name, fields)


@dataclass
class Lazy:
    """What is seen of a lazy disk by events, and by probes."""

    events: list[Event]
    entered: list[tuple[int, str]]
    waits: list[tuple[int, str, int, int, int, int, int, int, int]]
    requests: int = len(BUFFERS)

    def load(self, place: Path) -> WorkloadResult:
        """All of it as a workload's results; only scattered pages were read."""
        folder = place / "disk-lazy"
        folder.mkdir()
        facts: list[dict[str, object]] = [
            {
                "what": "phase",
                "name": name,
                "begin_ns": begin,
                "end_ns": begin + 900 * MS,
                "type": "DMA-FQ",
                "device": DISK,
                "requests": self.requests,
                "bytes": SIZE * len(BUFFERS),
                "runs": [2] * self.requests,
                "runs_after": [2] * self.requests,
            }
            for name, begin in BEGINS.items()
        ]
        facts.append({"what": "probes", "entered": self.entered, "waits": self.waits})
        (folder / "stdout").write_text("\n".join(map(json.dumps, facts)))
        load = WorkloadResult("disk-lazy", folder, {}, {})
        load.__dict__["_traced"] = tuple(self.events)
        return load

    def evidence(self, place: Path) -> Evidence:
        return Evidence(place, {}, {"disk-lazy": self.load(place)}, {})


def _unmapped(at: int, iova: int) -> Event:
    return _event(at, "unmap", iova=iova, size=SIZE, unmapped_size=SIZE)


def _wait(at: int, iova: int) -> tuple[int, str, int, int, int, int, int, int, int]:
    """Asked, device, unmapped from, to, invalidated from, to, and what, as probed."""
    return (at, DISK, at + 1, at + 2, at + 3, at + 12, iova, iova + SIZE - 1, DOMAIN)


def _waiting() -> Lazy:
    """A kernel on which dma_iova_destroy() goes through dma_iova_unlink()."""
    lazy = Lazy([], [], [])
    for number, iova in enumerate(BUFFERS):
        at = BEGINS["scattered"] + (number + 1) * MS
        names = ("dma_iova_destroy", "dma_iova_unlink")
        lazy.entered += [(at // US, name) for name in names]
        lazy.events.append(_unmapped(at + 2 * US, iova))
        lazy.waits.append(_wait(at // US, iova))
        lazy.events.append(
            _event(
                at + 13 * US, "iotlb_sync", iova=iova, size=SIZE, unmap_ns=2 * US,
                sync_ns=10 * US, domain=DOMAIN, lazy=1, device=DISK,
            )
        )  # fmt: skip
    return lazy


def _queueing() -> Lazy:
    """A kernel on which it frees the IOVA itself, so that the queue takes it."""
    lazy = Lazy([], [], [])
    for number, iova in enumerate(BUFFERS):
        at = BEGINS["scattered"] + (number + 1) * MS
        lazy.entered.append((at // US, "dma_iova_destroy"))
        lazy.events.append(_unmapped(at + 2 * US, iova))
    lazy.events.append(
        _event(
            BEGINS["scattered"] + 13 * MS, "iotlb_fq_flush", flush_ns=US, free_ns=US,
            domain=DOMAIN, freed=len(BUFFERS), full=0,
        )
    )  # fmt: skip
    return lazy


def _without_sync(lazy: Lazy) -> None:
    del lazy.events[1]


def _also_queued(lazy: Lazy) -> None:
    lazy.events = _queueing().events


def _also_waited(lazy: Lazy) -> None:
    lazy.events = _waiting().events


def _looks_strict(lazy: Lazy) -> None:
    for event in lazy.events:
        if "lazy" in event.fields:
            cast(dict[str, object], event.fields)["lazy"] = 0


def _timed(field: str, ns: int) -> Callable[[Lazy], None]:
    def change(lazy: Lazy) -> None:
        for event in lazy.events:
            if field in event.fields:
                cast(dict[str, object], event.fields)[field] = ns

    return change


def _elsewhere(lazy: Lazy) -> None:
    # As many bytes, and still after the unmapping that it belongs to.
    lazy.waits[0] = _wait(lazy.waits[0][0], 0x40000)


def _another_s(lazy: Lazy) -> None:
    for event in lazy.events:
        if "device" in event.fields:
            cast(dict[str, object], event.fields)["device"] = "0000:00:04.0"


def _mixed(lazy: Lazy) -> None:
    del lazy.entered[-1]


def _other_requests(lazy: Lazy) -> None:
    del lazy.entered[:2]


def _one_not_freed(lazy: Lazy) -> None:
    cast(dict[str, object], lazy.events[-1].fields)["freed"] = len(BUFFERS) - 1


SYNCS = "iotlb_sync, one for each dma_iova_unlink()"
QUEUED = "unmappings left to the queue"
PROBED = "range, domain and device as probes saw them"
TIMES = "times other than probes saw them"
ALL = "all calls of the driver"


@pytest.mark.parametrize(
    ("make", "change", "wrong"),
    [
        (_waiting, None, set()),
        (_queueing, None, set()),
        (
            _waiting,
            _without_sync,
            {SYNCS, "sum of size", PROBED,
             QUEUED, ALL},
        ),
        # Which of both it has to be is not the events' to say.
        (
            _waiting,
            _also_queued,
            {SYNCS, "lazy", "sum of size", QUEUED, "freed by flushes", "flushes",
             PROBED, "its device", ALL},
        ),
        (
            _queueing,
            _also_waited,
            {SYNCS, "lazy", "sum of size", QUEUED, "freed by flushes", PROBED,
             "its device", ALL},
        ),
        (_waiting, _looks_strict, {"lazy"}),
        (_waiting, _another_s, {PROBED, "its device"}),
        (_waiting, _elsewhere, {PROBED}),
        (_waiting, _timed("unmap_ns", 0), {TIMES}),
        (_waiting, _timed("unmap_ns", 20 * US), {TIMES}),
        (_waiting, _timed("sync_ns", 0), {TIMES}),
        (_waiting, _timed("sync_ns", 100 * US), {TIMES}),
        (
            _waiting,
            _mixed,
            {"all take one path", SYNCS, QUEUED, "freed by flushes"},
        ),
        (_queueing, _other_requests, {"dma_iova_destroy()"}),
        (_queueing, _one_not_freed, {"freed by flushes"}),
    ],
)  # fmt: skip
def test_scattered_reads(
    checks: ModuleType,
    tmp_path: Path,
    make: Callable[[], Lazy],
    change: Callable[[Lazy], None] | None,
    wrong: set[str],
) -> None:
    lazy = make()
    if change is not None:
        change(lazy)
    verdict = checks.scattered_io_waits_in_lazy_mode(lazy.evidence(tmp_path))
    assert {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    } == wrong


def _flush(at: int, freed: int, full: int = 0, cpu: int = 0) -> Event:
    """One that was over at ``at``, and took 40 us."""
    fields = {"flush_ns": 30 * US, "free_ns": 10 * US, "domain": DOMAIN}
    fields |= {"freed": freed, "full": full}
    return Event(at, cpu, 1, "x", "iommu", "iotlb_fq_flush", fields)


def _at(*times: int) -> list[Event]:
    return [_unmapped(at, 0x10000) for at in times]


_OFTEN = "queued and freed"
_FLUSH = "flushes that freed too much or little"


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([*_at(MS, 2 * MS), _flush(9 * MS, 2)], set()),
        ([*_at(MS, 2 * MS), _flush(9 * MS, 1)], {_OFTEN}),
        ([*_at(MS, 2 * MS, 3 * MS), _flush(9 * MS, 1)], {_OFTEN, _FLUSH}),
        ([*_at(MS, 2 * MS), _flush(9 * MS, 3)], {_OFTEN, _FLUSH}),
        # The one that found the queue full is freed by the next flush.
        ([*_at(MS, 2 * MS), _flush(3 * MS, 1, 1), _flush(9 * MS, 1)], set()),
        ([*_at(MS, 2 * MS), _flush(3 * MS, 2, 1), _flush(9 * MS, 0)], {_FLUSH}),
        # An unmapping amid the timer's flush has freed what that came for,
        (
            [*_at(MS, 2 * MS, 9 * MS - 5 * US), _flush(9 * MS, 0),
             _flush(19 * MS, 1)],
            set(),
        ),
        # but not what is unmapped later,
        (
            [*_at(MS, 9 * MS - 5 * US), _flush(9 * MS, 0),
             *_at(10 * MS, 11 * MS, 12 * MS, 13 * MS), _flush(19 * MS, 1)],
            {_OFTEN, _FLUSH},
        ),
        # and no flush can free more than there was.
        (
            [*_at(MS, 2 * MS, 9 * MS - 5 * US), _flush(9 * MS, 4)],
            {_OFTEN, _FLUSH},
        ),
        # A timer on another CPU does not keep this one from unmapping.
        ([*_at(MS, 2 * MS), _flush(9 * MS, 0, cpu=1)], set()),
    ],
)  # fmt: skip
def test_freed_once(
    checks: ModuleType, tmp_path: Path, events: list[Event], wrong: set[str]
) -> None:
    loads = {}
    for load, phases in (
        ("bench-lazy", ("full", "timer")),
        ("disk-lazy", tuple(BEGINS)),
        ("switch", ("lazy",)),
    ):
        folder = tmp_path / load
        folder.mkdir()
        facts = [
            {"what": "phase", "name": name, "begin_ns": at * 1000 * MS,
             "end_ns": at * 1000 * MS + 900 * MS}
            for at, name in enumerate(phases)
        ]  # fmt: skip
        (folder / "stdout").write_text("\n".join(map(json.dumps, facts)))
        loads[load] = WorkloadResult(load, folder, {}, {})
        # The others are quiet.
        of = events if load == "disk-lazy" else []
        loads[load].__dict__["_traced"] = tuple(of)
    verdict = checks.each_unmapping_is_freed_once(Evidence(tmp_path, {}, loads, {}))
    labels = {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    }
    assert labels == {f"disk-lazy: small: {what}" for what in wrong}


def _named(place: Path, named: list[tuple[int, int, str]], full: int = 1) -> Evidence:
    """Two flushes of a full queue, told at 100 and at 300 us."""
    (place / "bench-lazy").mkdir()
    facts = [
        {"what": "phase", "name": "full", "begin_ns": 0, "end_ns": MS,
         "device": DISK},
        {"what": "named", "named": named},
    ]  # fmt: skip
    (place / "bench-lazy/stdout").write_text("\n".join(map(json.dumps, facts)))
    load = WorkloadResult("bench-lazy", place / "bench-lazy", {}, {})
    events = [_flush(100 * US, 255, full), _flush(300 * US, 255, full)]
    load.__dict__["_traced"] = tuple(events)
    return Evidence(place, {}, {"bench-lazy": load}, {})


_TOLD = [(101, 1, DISK), (301, 1, DISK)]
_DEVICE = {"device of the dma_unmap_phys after each"}


@pytest.mark.parametrize(
    ("named", "full", "wrong"),
    [
        (_TOLD, 1, set()),
        (_TOLD, 0, {"flushes of a full queue", *_DEVICE}),
        (_TOLD[:1], 1, _DEVICE),
        # Before the event, of another task, of another device.
        ([(99, 1, DISK), _TOLD[1]], 1, _DEVICE),
        ([(101, 2, DISK), _TOLD[1]], 1, _DEVICE),
        ([(101, 1, "0000:00:04.0"), _TOLD[1]], 1, _DEVICE),
    ],
)
def test_the_device_of_a_full_queue(
    checks: ModuleType,
    tmp_path: Path,
    named: list[tuple[int, int, str]],
    full: int,
    wrong: set[str],
) -> None:
    verdict = checks.full_flush_is_before_its_device(_named(tmp_path, named, full))
    assert {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    } == wrong


@pytest.mark.parametrize(
    ("make", "change", "wrong"),
    [
        (_waiting, None, set()),
        (_queueing, None, set()),
        (_waiting, _without_sync, {"disk-lazy: sum of size"}),
        (_queueing, _also_waited, {"disk-lazy: sum of size"}),
    ],
)
def test_sizes_add_up(
    checks: ModuleType,
    tmp_path: Path,
    make: Callable[[], Lazy],
    change: Callable[[Lazy], None] | None,
    wrong: set[str],
) -> None:
    lazy = make()
    if change is not None:
        change(lazy)
    loads = {"disk-lazy": lazy.load(tmp_path)}
    for name, phase in (
        ("bench-strict", "one"),
        ("disk-strict", "small"),
        ("switch", "strict"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        fact = {"what": "phase", "name": phase, "begin_ns": 0, "end_ns": 2000 * MS}
        (folder / "stdout").write_text(json.dumps(fact))
        loads[name] = WorkloadResult(name, folder, {}, {})
        loads[name].__dict__["_traced"] = tuple(_waiting().events)
    verdict = checks.sizes_add_up(Evidence(tmp_path, {}, loads, {}))
    assert {
        comparison.label for comparison in verdict.comparisons if not comparison.ok
    } == wrong


# -- both times of an unmapping --------------------------------------------------------


def _strict(place: Path, change: Callable[[dict[str, object]], None]) -> Evidence:
    """Evidence of a strict bench whose events are changed; probes stay as they were."""
    folder = place / "bench-strict"
    folder.mkdir()
    events: list[Event] = []
    waits = []
    facts: list[dict[str, object]] = []
    for number, (name, granule) in enumerate(
        (("one", 2), ("sixteen", 2), ("tables", 2))
    ):
        begin = number * 1000 * MS
        for turn in range(12):
            at = begin + (turn + 1) * MS
            waits.append(_wait(at // US, 0x10000))
            events.append(_unmapped(at + 2 * US, 0x10000))
            fields: dict[str, object] = {
                "iova": 0x10000,
                "size": SIZE,
                "unmap_ns": 1900,
                "sync_ns": 9500,
                "domain": DOMAIN,
                "lazy": 0,
                "device": DISK,
            }
            change(fields)
            told = cast(dict[str, int | str], fields)
            events.append(_event(at + 13 * US, "iotlb_sync", **told))
        facts.append(
            {
                "what": "phase",
                "name": name,
                "begin_ns": begin,
                "device": DISK,
                "end_ns": begin + 900 * MS,
                "type": "DMA",
                "granule": granule,
                "avg_unmap_100ns": 150,
            }
        )
    facts.append({"what": "probes", "waits": waits})
    (folder / "stdout").write_text("\n".join(map(json.dumps, facts)))
    load = WorkloadResult("bench-strict", folder, {}, {})
    load.__dict__["_traced"] = tuple(events)
    return Evidence(place, {}, {"bench-strict": load}, {})


def _as_it_was(_: dict[str, object]) -> None:
    pass


def _swapped(fields: dict[str, object]) -> None:
    fields["unmap_ns"], fields["sync_ns"] = fields["sync_ns"], fields["unmap_ns"]


def _nothing(field: str) -> Callable[[dict[str, object]], None]:
    return lambda fields: fields.update({field: 0})


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_as_it_was, False),
        (_swapped, True),
        (_nothing("sync_ns"), True),
        (lambda fields: fields.update(unmap_ns=12_000), True),
    ],
)
def test_both_times_of_an_unmapping(
    checks: ModuleType,
    tmp_path: Path,
    change: Callable[[dict[str, object]], None],
    wrong: bool,
) -> None:
    evidence = _strict(tmp_path, change)
    verdict = checks.unmapping_and_waiting_are_timed_apart(evidence)
    assert ("other than probes saw it" in _wrong(verdict)) == wrong
    assert not _wrong(checks.strict_unmapping_waits(evidence))


@pytest.mark.parametrize("field", ["iova", "domain", "device"])
def test_identity(checks: ModuleType, tmp_path: Path, field: str) -> None:
    other: dict[str, object] = {"iova": 0x20000, "domain": 1, "device": "0000:00:04.0"}
    evidence = _strict(tmp_path, lambda fields: fields.update({field: other[field]}))
    assert "other than probes saw it" in _wrong(checks.strict_unmapping_waits(evidence))


#: Above 4 GiB.
HIGH = 0xFFFF_FFFF_0000


def _strict_disk(
    place: Path, told: dict[str, int | str], *, probed: bool = True
) -> Evidence:
    """256 requests of each kind; all events have what is ``told`` in place of the
    truth, and without ``probed`` the program had no probes."""
    folder = place / "disk-strict"
    folder.mkdir()
    events: list[Event] = []
    waits = []
    facts: list[dict[str, object]] = []
    for name, begin in BEGINS.items():
        for turn in range(256):
            at = begin + (turn + 1) * MS
            last = HIGH + PAGE - 1
            waits.append((*_wait(at // US, HIGH)[:6], HIGH, last, DOMAIN))
            fields: dict[str, int | str] = {
                "iova": HIGH,
                "size": PAGE,
                "unmap_ns": 1900,
                "sync_ns": 9500,
                "domain": DOMAIN,
                "lazy": 0,
                "device": DISK,
            }
            events.append(_event(at + 13 * US, "iotlb_sync", **fields | told))
        runs = [2 if name == "scattered" else 1] * 256
        facts.append(
            {
                "what": "phase",
                "name": name,
                "begin_ns": begin,
                "end_ns": begin + 900 * MS,
                "type": "DMA",
                "device": DISK,
                "requests": 256,
                "bytes": 256 * PAGE,
                "sectors": 256 * PAGE // 512,
                "runs": runs,
                "runs_after": runs,
            }
        )
    if probed:
        facts.append({"what": "probes", "waits": waits})
    (folder / "stdout").write_text("\n".join(map(json.dumps, facts)))
    load = WorkloadResult("disk-strict", folder, {}, {})
    load.__dict__["_traced"] = tuple(events)
    return Evidence(place, {}, {"disk-strict": load}, {})


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({}, set()),
        *(
            ({field: value}, {"other than probes saw it"})
            for field, value in (
                ("iova", 0),
                ("iova", HIGH & 0xFFFF_FFFF),
                ("domain", 0),
                ("unmap_ns", 0),
                ("unmap_ns", 9500),
                ("sync_ns", 0),
                ("sync_ns", 1900),
            )
        ),
        ({"device": "0000:00:04.0"}, {"its device", "other than probes saw it"}),
    ],
)
def test_a_strict_disk(
    checks: ModuleType, tmp_path: Path, told: dict[str, int | str], wrong: set[str]
) -> None:
    saved = _strict_disk(tmp_path, told)
    assert _wrong(checks.disk_bytes_are_bytes_invalidated(saved)) == wrong


def test_a_strict_disk_without_probes(checks: ModuleType, tmp_path: Path) -> None:
    verdict = checks.disk_bytes_are_bytes_invalidated(
        _strict_disk(tmp_path, {}, probed=False)
    )
    assert _wrong(verdict) == {"calls of the driver"}


@pytest.mark.parametrize("on", [arch.X86_64, arch.ARM64])
def test_a_disk_has_addresses_above_4_gib(
    project_copy: Project, on: arch.Architecture
) -> None:
    (series,) = project_copy.load(["iommu-iotlb"])
    spec = series.on(on).spec
    assert "iommu.forcedac=1" in spec.machine.append
    assert not any("iova" in argument.fields for argument in spec.unproven)


NIC = "0000:00:04.0"


@pytest.mark.parametrize(
    ("second", "domain", "flushed", "wrong"),
    [
        (NIC, DOMAIN + 1, DOMAIN + 1, set()),
        # As it was in the event before.
        (DISK, DOMAIN + 1, DOMAIN + 1, {"devices", "other than probes saw it"}),
        (NIC, DOMAIN, DOMAIN + 1, {"other than probes saw it"}),
        (
            NIC,
            DOMAIN + 1,
            DOMAIN,
            {"domains that were flushed", "each as a probe saw it"},
        ),
        (NIC, DOMAIN + 1, DOMAIN + 2, {"each as a probe saw it"}),
    ],
)
def test_two_devices(
    checks: ModuleType,
    tmp_path: Path,
    second: str,
    domain: int,
    flushed: int,
    wrong: set[str],
) -> None:
    (tmp_path / "operator").mkdir()
    last = 0x10000 + SIZE - 1
    waits = [_wait(0, 0x10000), (MS, NIC, 1, 2, 3, 4, 0x10000, last, DOMAIN + 1)]
    events = [
        _event(
            13 * US, "iotlb_sync", iova=0x10000, size=SIZE, device=of, domain=its,
        )
        for of, its in ((DISK, DOMAIN), (second, domain))
    ] + [
        _event(14 * US, "iotlb_fq_flush", domain=its) for its in (DOMAIN, flushed)
    ]  # fmt: skip
    flushes = [[13, its, 13, 14, 0, 0, 0, 0] for its in (DOMAIN, DOMAIN + 1)]
    facts = [
        {"what": "probes", "waits": waits, "entered": []},
        {"what": "flushes", "flushes": flushes},
    ]
    (tmp_path / "operator/stdout").write_text("\n".join(map(json.dumps, facts)))
    load = WorkloadResult("operator", tmp_path / "operator", {}, {})
    load.__dict__["_traced"] = tuple(events)
    evidence = Evidence(tmp_path, {}, {"operator": load}, {})
    assert _wrong_labels(checks.either_device_is_reported(evidence)) == wrong


def _wrong_labels(verdict: Verdict) -> set[str]:
    return {comparison.label for comparison in verdict.comparisons if not comparison.ok}


# -- two processors, and a type that changes late --------------------------------------


def _crowded(place: Path, *, others: int = 3, **told: int) -> Evidence:
    """A flush of a full queue on each of two CPUs; the second event is changed."""
    (place / "crowd").mkdir()
    flushes, events = [], []
    for cpu in (0, 1):
        at = 100 * (cpu + 1)
        # [timer, domain, begin, end, first, last, freed, cpu] in us
        flushes.append([0, DOMAIN, at + 1, at + 9, at + 10, at + 19, 255, cpu])
        fields = {"flush_ns": 8500, "free_ns": 9500, "domain": DOMAIN, "freed": 255}
        fields |= {"full": 1, **(told if cpu else {})}
        at *= US
        events += [
            Event(at, cpu, 1, "x", "iommu", "unmap", {}),
            Event(at + 20 * US, cpu, 1, "x", "iommu", "iotlb_fq_flush", {**fields}),
        ]
    events += [Event(MS, 0, 1, "x", "iommu", "unmap", {})] * 512
    facts: list[dict[str, object]] = [
        {
            "what": "phase",
            "name": "crowd",
            "begin_ns": 0,
            "end_ns": 9 * MS,
            "type": "DMA-FQ",
            "device": NIC,
        },
        {"what": "flushes", "flushes": flushes, "others": others},
    ]
    (place / "crowd/stdout").write_text("\n".join(map(json.dumps, facts)))
    load = WorkloadResult("crowd", place / "crowd", {}, {})
    load.__dict__["_traced"] = tuple(events)
    return Evidence(place, {}, {"crowd": load}, {})


_PROBED = "CPU 1: other than probes saw it"


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({}, set()),
        ({"freed": 254}, {_PROBED}),
        ({"freed": 256}, {_PROBED, "CPU 1: freed by one, at most"}),
        ({"domain": 1}, {_PROBED}),
        ({"full": 0}, {_PROBED, "CPU 1: flushes of a full queue"}),
        ({"free_ns": 0}, {_PROBED}),
        (
            {"freed": 600, "full": 0},
            {_PROBED, "CPU 1: flushes of a full queue", "freed by flushes",
             "freed by either"},
        ),
        ({"others": 0}, {"freed without an event, by probe"}),
        ({"others": 5}, {"freed by either"}),
    ],
)  # fmt: skip
def test_two_cpus(
    checks: ModuleType, tmp_path: Path, told: dict[str, int], wrong: set[str]
) -> None:
    verdict = checks.two_cpus_flush(_crowded(tmp_path, **told))
    assert _wrong_labels(verdict) == wrong


def _switched(place: Path, lazy: int, at: int) -> Evidence:
    """A strict unmapping, asked for at 0 us and invalidated from 3 us on."""
    (place / "switch-late").mkdir()
    facts: list[dict[str, object]] = [
        {"what": "written", "type": "DMA-FQ", "lazy": [at]},
        {"what": "probes", "waits": [_wait(0, 0x10000)], "entered": []},
    ]
    (place / "switch-late/stdout").write_text("\n".join(map(json.dumps, facts)))
    load = WorkloadResult("switch-late", place / "switch-late", {}, {})
    told = (_event(13 * US, "iotlb_sync", lazy=lazy),)
    load.__dict__["_traced"] = told
    return Evidence(place, {}, {"switch-late": load}, {})


@pytest.mark.parametrize(
    ("lazy", "at", "wrong", "undecided"),
    [
        (0, 2, set(), False),
        (1, 2, {"lazy"}, False),
        # Not in the course of it: that says nothing.
        (1, 3, set(), True),
    ],
)
def test_a_type_that_changes_late(
    checks: ModuleType,
    tmp_path: Path,
    lazy: int,
    at: int,
    wrong: set[str],
    undecided: bool,
) -> None:
    evidence = _switched(tmp_path, lazy, at)
    verdict = checks.lazy_is_what_the_caller_must_not_use(evidence)
    assert _wrong_labels(verdict) == wrong
    assert bool(verdict.undecided) == undecided


# -- tables that go with what is left to the queue ------------------------------------


def _tables(place: Path, walks: int, *, walking: bool, syncs: int = 0) -> Evidence:
    """Twelve unmappings of either kind, and ``walks`` invalidations amid the latter."""
    folder = place / "lazy-tables"
    folder.mkdir()
    events, lines = [], []
    for number, name in enumerate(("pages", "tables")):
        begin = number * 1000 * MS
        facts = {"what": "phase", "name": name, "type": "DMA-FQ", "device": DISK}
        lines.append({**facts, "begin_ns": begin, "end_ns": begin + 900 * MS})
        events += [_unmapped(begin + at * MS, at << 21) for at in range(1, 13)]
        events.append(_event(begin + 800 * MS, "iotlb_fq_flush", freed=12))
    events += [_event(1500 * MS, "iotlb_sync") for _ in range(syncs)]
    probed = [
        [1000 * at, 1000 * at + 7, 0, 1 << 21] for at in range(1001, 1001 + walks)
    ]
    lines.append({"what": "probes", "waits": [], "walks": probed, "walking": walking})
    (folder / "stdout").write_text("\n".join(map(json.dumps, lines)))
    load = WorkloadResult("lazy-tables", folder, {}, {})
    load.__dict__["_traced"] = tuple(events)
    return Evidence(place, {}, {"lazy-tables": load}, {})


@pytest.mark.parametrize(
    ("walks", "walking", "syncs", "wrong"),
    [
        (12, True, 0, set()),
        (0, False, 0, set()),
        (11, True, 0, {"12 invalidations amid unmappings, by probe"}),
        (1, False, 0, {"0 invalidations amid unmappings, by probe"}),
        (12, True, 1, {"iotlb_sync"}),
    ],
)
def test_tables_in_a_lazy_domain(
    checks: ModuleType,
    tmp_path: Path,
    *,
    walks: int,
    walking: bool,
    syncs: int,
    wrong: set[str],
) -> None:
    saved = _tables(tmp_path, walks, walking=walking, syncs=syncs)
    assert _wrong(checks.lazy_tables_are_silent(saved)) == wrong


# -- too little in the time that the host gave ----------------------------------------


def _unhurried(place: Path, flushed: int, told: int) -> Evidence:
    """Queues that the timer empties, by probe and by event; one IOVA each time."""
    folder = place / "bench-lazy"
    folder.mkdir()
    phase = {"what": "phase", "name": "timer", "type": "DMA-FQ", "device": DISK}
    probed = [[1000 * at, 1, 1000 * at, 0, 0, 0, 1, 0] for at in range(1, 1 + flushed)]
    lines = [
        {**phase, "begin_ns": 0, "end_ns": 900 * MS},
        {"what": "flushes", "flushes": probed},
    ]
    (folder / "stdout").write_text("\n".join(map(json.dumps, lines)))
    events = [_unmapped(at * MS, at << 21) for at in range(1, 1 + told)]
    events += [
        _event(at * MS + US, "iotlb_fq_flush", freed=1, full=0)
        for at in range(1, 1 + told)
    ]
    load = WorkloadResult("bench-lazy", folder, {}, {})
    load.__dict__["_traced"] = tuple(events)
    return Evidence(place, {}, {"bench-lazy": load}, {})


def _status(judge: Callable[[Evidence], Verdict], saved: Evidence) -> str:
    return run_check("it", "positive", "", judge, saved).status


@pytest.mark.parametrize(
    ("flushed", "told", "status"),
    [
        *((10, 10, "pass"), (9, 9, "error"), (0, 0, "error")),
        # However little there is, it has to be right.
        *((10, 9, "fail"), (9, 8, "fail"), (1, 0, "fail")),
    ],
)
def test_a_timer_that_seldom_expires(
    checks: ModuleType, tmp_path: Path, flushed: int, told: int, status: str
) -> None:
    saved = _unhurried(tmp_path, flushed, told)
    assert _status(checks.timer_frees_the_rest, saved) == status


@pytest.mark.parametrize(
    ("unmaps", "syncs", "flushes", "status"),
    [
        (10, 10, 2, "pass"),
        (9, 9, 2, "error"),
        (0, 0, 0, "error"),
        (9, 8, 2, "fail"),
        # The timer was late, or nothing was invalidated.
        (10, 10, 1, "pass"),
        (10, 10, 0, "fail"),
        (10, 9, 2, "fail"),
    ],
)
def test_a_type_that_changes(
    checks: ModuleType,
    tmp_path: Path,
    unmaps: int,
    syncs: int,
    flushes: int,
    status: str,
) -> None:
    folder = tmp_path / "switch"
    folder.mkdir()
    lines, events = [], []
    for number, (name, kind) in enumerate((("strict", "DMA"), ("lazy", "DMA-FQ"))):
        begin = number * 1000 * MS
        facts = {"what": "phase", "name": name, "type": kind, "device": DISK}
        lines.append({**facts, "begin_ns": begin, "end_ns": begin + 900 * MS})
        for at in range(1, 1 + unmaps):
            events.append(_unmapped(begin + at * MS, at << 21))
    own = {"domain": DOMAIN}
    events += [_event(at * MS, "iotlb_sync", **own) for at in range(1, 1 + syncs)]
    events += [
        _event((1000 + at) * MS, "iotlb_fq_flush", **own)
        for at in range(1, 1 + flushes)
    ]
    (folder / "stdout").write_text("\n".join(map(json.dumps, lines)))
    load = WorkloadResult("switch", folder, {}, {})
    load.__dict__["_traced"] = tuple(events)
    saved = Evidence(tmp_path, {}, {"switch": load}, {})
    assert _status(checks.strict_to_lazy_in_one_boot, saved) == status


@pytest.mark.parametrize(
    ("count", "syncs", "status"), [(11, 0, "error"), (11, 1, "fail"), (0, 0, "pass")]
)
def test_too_few_unmappings_for_silence(
    checks: ModuleType, tmp_path: Path, count: int, syncs: int, status: str
) -> None:
    saved = _tables(tmp_path, 12, walking=True, syncs=syncs)
    load = saved.workload("lazy-tables")
    pages = [e for e in load.events("unmap") if e.ts_ns < 1000 * MS]
    # The flush frees as many as there are.
    left = [e for e in load.events() if e not in pages[:count]]
    load.__dict__["_traced"] = tuple(
        _event(e.ts_ns, e.name, freed=12 - count)
        if e.name == "iotlb_fq_flush" and e.ts_ns < 1000 * MS
        else e
        for e in left
    )
    assert _status(checks.lazy_tables_are_silent, saved) == status


@pytest.mark.parametrize(("needed", "owed"), [(45, 0.0), (1000, 0.0), (1000, 99.0)])
def test_an_event_is_switched_on_until_it_comes(
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    needed: int,
    owed: float,
) -> None:
    module = program(project_root, monkeypatch, "iommu-iotlb/iotlb")
    turns = 0

    class Trace:
        """CPU 0 is not run in most turns."""

        def __init__(self, name: str) -> None: ...
        def __enter__(self) -> Trace:
            return self

        def __exit__(self, *_: object) -> None: ...
        def enable(self, event: str, on: bool) -> None:
            nonlocal turns
            turns += on and event != "iommu/unmap"
            if turns > 41:
                lost.write_text(f"{owed} 0")

        def count(self, cpu: str = "*") -> int:
            return next(unmapped) if cpu == "*" else 10 * (turns >= needed)

        def lines(self) -> list[str]:
            return []

    unmapped = iter(range(1 << 30))
    lost = tmp_path / "lost"
    lost.write_text("0 0")
    monkeypatch.setenv("KSTALL_TROUBLE", str(tmp_path / workload.TROUBLE))
    monkeypatch.setattr(hosttime, "_LOST", lost)
    monkeypatch.setattr(module, "ENOUGH_S", 0.1)
    monkeypatch.setattr(module, "Trace", Trace)
    for name in ("edu", "Benchmark", "move_to"):
        monkeypatch.setattr(module, name, MagicMock())
    monkeypatch.setattr(
        module, "running", lambda _: contextlib.nullcontext(lambda: None)
    )
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    # Time goes on by being asked for, so that it is not short on a busy host.
    now = itertools.count(step=0.001)
    clock = SimpleNamespace(monotonic=lambda: next(now), sleep=lambda _: None)
    monkeypatch.setattr(hosttime, "time", clock)
    monkeypatch.setattr(waiting, "time", clock)
    module.toggle()
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    if needed == 45:
        assert len(first["turns"]) == needed
    else:
        assert len(first["turns"]) > 40
    kinds = {trouble.kind for trouble in workload.troubles(tmp_path)}
    assert kinds == ({"not-in-time"} if owed else set())


def test_the_fastest_machine_does_not_fill_a_buffer(
    project_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = program(project_root, monkeypatch, "iommu-iotlb/iotlb")
    bench = MagicMock()
    module.placed(bench)
    crowd = bench.run.call_args.kwargs
    room = 8192 << 10
    # Bytes of a record, with its header: dma:dma_unmap_phys, two probes, iommu:unmap.
    alone, both = 10**9 // module.FAST_NS, 10**9 // crowd["pause_ns"]
    assert alone * 68 <= room
    for size in (2 * 20, 36):
        assert crowd["seconds"] * both * size <= room


def test_a_crowd_is_not_over_before_all_is_freed(
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = program(project_root, monkeypatch, "iommu-iotlb/crowd")
    freed = iter([3, 3, 5, 5, 5])

    class Trace(contextlib.nullcontext[object]):
        """The other CPU frees the rest when it is run again."""

        def __init__(self, name: str) -> None:
            super().__init__(self)
            self.name = name

        def enable(self, event: str, on: bool) -> None: ...
        def count(self) -> int:
            return next(freed) if self.name == "crowd-freed" else 5

        def lines(self) -> list[str]:
            return []

    device = MagicMock()
    device.type.return_value = "DMA-FQ"
    monkeypatch.setattr(module, "Trace", Trace)
    monkeypatch.setattr(module, "edu", lambda: device)
    for name in ("define", "Benchmark"):
        monkeypatch.setattr(module, name, MagicMock())
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    monkeypatch.setattr(module.sys, "argv", ["crowd", "calm"])
    module.main()
    facts = json.loads(capsys.readouterr().out)
    assert (facts["taken"], facts["freed"]) == (5, 5)
