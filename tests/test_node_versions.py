# SPDX-License-Identifier: GPL-2.0-or-later
"""Providers by the event's own format; oracles that count; what is no thread's."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kstall.ftrace import parse_layout
from kstall_node import catalogue, record, sources
from kstall_node.errors import NodeError
from kstall_node.facts import Facts
from kstall_node.host import Host
from kstall_node.oracles import Oracle, Tally
from kstall_node.pages import layout, records
from kstall_node.tracefs import Counter, Tracefs
from kstall_ops import health, seal, store
from kstall_ops.errors import NotARecording
from kstall_ops.rules import rules
from node_root import README, Node
from recordings import BEGAN, MS, format_text
from recordings import Node as Made
from ringpages import entry, page
from ringpages import record as raw

U64, U32 = 8, 4
#: Fields of events that differ between versions: (declaration, size).
_SYNC = {
    1: [
        *(("u64 iova", U64), ("u64 size", U64), ("u64 duration_ns", U64)),
        *(("const void * domain", U64), ("u32 type", U32), ("u32 tables", U32)),
    ],
    2: [
        *(("u64 iova", U64), ("u64 size", U64), ("u64 unmap_ns", U64)),
        *(("u64 sync_ns", U64), ("const void * domain", U64), ("u32 lazy", U32)),
        ("__data_loc char[] device", U32),
    ],
    3: [("u64 iova", U64), ("u64 lasted_ns", U64)],
}
_FLUSH = [("u64 flush_ns", U64), ("u64 free_ns", U64), ("u32 freed", U32)]
AER = format_text(
    "pcie_aer_msg",
    901,
    [
        *(("__data_loc char[] port_name", U32), ("int domain", U32)),
        *(("u32 root_status", U32), ("u32 err_src", U32), ("u32 dropped", U32)),
    ],
)


def source(name: str) -> catalogue.Source:
    (found,) = [one for one in catalogue.SOURCES if one.name == name]
    return found


def with_sync(tmp_path: Path, version: int) -> Tracefs:
    node = Node(tmp_path)
    events = "sys/kernel/tracing/events/iommu"
    text = format_text("iotlb_sync", 801, _SYNC[version])
    node.write(f"{events}/iotlb_sync/format", text)
    text = format_text("iotlb_fq_flush", 802, _FLUSH)
    node.write(f"{events}/iotlb_fq_flush/format", text)
    return Tracefs(Host(str(node.root)))


@pytest.mark.parametrize(
    ("version", "dur", "value2", "device", "field"),
    [
        (1, "duration_ns", "tables", None, "type"),
        (2, "sync_ns", "unmap_ns", "device", "lazy"),
    ],
)
def test_members_are_those_of_the_format(
    tmp_path: Path, version: int, dur: str, value2: str, device: str, field: str
) -> None:
    tracefs = with_sync(tmp_path, version)
    one = source("iommu:iotlb_sync")
    assert sources.missing(one, tracefs) is None
    sync, flush = sources.specs(one, "g", tracefs)
    assert (sync["dur"], sync["value2"], sync["device"]) == (dur, value2, device)
    assert sync["cause"]["field"] == field
    assert flush["provider"] == "iommu:iotlb_sync/iotlb_fq_flush"
    # What stands in a recording a reader of format 1 understands.
    assert "|" not in json.dumps([sync, flush])


def test_an_event_that_means_something_else_is_another_one(tmp_path: Path) -> None:
    tracefs = with_sync(tmp_path, 3)
    why = sources.missing(source("iommu:iotlb_sync"), tracefs)
    assert why == "this kernel's iommu:iotlb_sync has no sync_ns|duration_ns"


# -- bits of a register ---------------------------------------------------------------


def _messages(*seen: tuple[int, int]) -> bytes:
    made = parse_layout(AER, "pci")
    entries = [
        entry(
            MS,
            raw(
                made,
                0,
                {
                    "port_name": "0000:00:01.0",
                    "domain": 0,
                    "root_status": status,
                    "err_src": 0x0800,
                    "dropped": full,
                },
            ),
        )
        for status, full in seen
    ]
    return page(BEGAN, entries)


SEEN = ((0x01, 0), (0x05, 0), (0x64, 0), (0x02, 0), (0x01, 1))
CAUSES = {
    "correctable": 2,
    "nonfatal": 1,
    "fatal": 1,
    "more of them": 1,
    "not looked into": 1,
}


def test_a_record_is_each_message_that_it_tells_of(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write("sys/kernel/tracing/events/pci/pcie_aer_msg/format", AER)
    for name in ("enable", "filter"):
        node.trace(f"events/pci/pcie_aer_msg/{name}", "")
    node.trace("per_cpu/cpu0/trace_pipe_raw", _messages(*SEEN))
    port = "sys/bus/pci/devices/0000:00:01.0/aer_rootport_total_err"
    for kind in ("cor", "nonfatal", "fatal"):
        node.write(f"{port}_{kind}", "0\n")

    class Counted(record.Recorder):
        """Meanwhile the Root Port counts what its thread looks into."""

        def _loop(self) -> None:
            super()._loop()
            for kind, count in (("cor", 2), ("nonfatal", 1), ("fatal", 1)):
                node.write(f"{port}_{kind}", f"{count}\n")

    settings = record.Settings(tmp_path / "o", ["aer"], seconds=0.3)
    assert Counted(Host(str(node.root)), settings).run() == 0
    (rec,) = (tmp_path / "o").iterdir()
    seal.seal([rec], tmp_path / "s")
    _, rows, _ = store.query(
        tmp_path / "s", "SELECT cause, count(*) FROM stall GROUP BY cause"
    )
    assert dict(rows) == CAUSES
    _, rows, _ = store.query(tmp_path / "s", "SELECT scope, ours, verdict FROM oracle")
    assert rows == [("device:0000:00:01.0", 4, "agrees")]


@pytest.mark.parametrize(
    "when", [3, [["a", 1]], [[1, 1, 1]], ["abc"], [["a", True, 1]]]
)
def test_conditions_that_are_none(tmp_path: Path, when: Any) -> None:
    rec = Made().write(tmp_path / "rec")
    session = json.loads((rec / "session.json").read_text())
    session["providers"][0]["when"] = when
    (rec / "session.json").write_text(json.dumps(session))
    with pytest.raises(NotARecording, match="provider 0: when"):
        seal.seal([rec], tmp_path / "s")


def test_an_oracle_of_one_device_is_not_about_another(tmp_path: Path) -> None:
    node = Made()
    for n, device in enumerate(("0000:01:00.0", "0000:01:00.0", "0000:02:00.0")):
        node.event(BEGAN + n * MS, 0, 0, "aer_event", dev_name=device, severity=0)
    for device, theirs in (("0000:01:00.0", 2), ("0000:02:00.0", 2)):
        node.fact(
            "oracle",
            provider="ras:aer_event",
            scope=f"device:{device}",
            metric="count",
            ours=0,
            theirs=theirs,
            verdict="agrees",
        )
    seal.seal([node.write(tmp_path / "rec")], tmp_path / "s")
    _, rows, _ = store.query(
        tmp_path / "s", "SELECT scope, ours, verdict FROM oracle ORDER BY scope"
    )
    assert rows == [
        ("device:0000:01:00.0", 2, "agrees"),
        ("device:0000:02:00.0", 1, "disagrees"),
    ]


# -- whose it is not ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "tid"), [(0, 5), (0x01, 5), (0x04, 5), (0x08, None), (0x10, None)]
)
def test_whom_an_interrupt_interrupts_is_not_blamed(
    tmp_path: Path, flags: int, tid: int | None
) -> None:
    rec = Made()
    rec.event(BEGAN + MS, 0, 5, "io_uring_sqring_wait", ctx=1, wait_ns=7)
    made = rec.write(tmp_path / "rec")
    segment = made / "segments/cpu0-0.pages"
    data = bytearray(segment.read_bytes())
    # Of the only record: page header, its own header, the event's number.
    assert data[16 + 4 : 16 + 6] == (2003).to_bytes(2, "little")
    data[16 + 6] = flags
    segment.write_bytes(data)
    segment.with_suffix(".json").unlink()
    seal.seal([made], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT tid, dur FROM stall")
    assert rows == [(tid, 7)]
    # The recorder's own reader says the same.
    text = (made / "formats/io_uring/io_uring_sqring_wait").read_text()
    known = layout(text, "io_uring")
    (one,) = records(bytes(data), 0, {known.id: known})
    assert one.interrupted == (tid is None)


def test_what_the_kernel_made_for_itself_is_nobodys(tmp_path: Path) -> None:
    rec = Made()
    rec.event(BEGAN + MS, 0, 5, "throttle_in", cgroup=77, task=0)
    rec.event(BEGAN + 2 * MS, 0, 5, "throttle_out", cgroup=77, task=0)
    seal.seal([rec.write(tmp_path / "rec")], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT tid, dur FROM stall")
    assert rows == [(None, MS)]


# -- counted on the side --------------------------------------------------------------


def test_a_counter_has_all_that_was_written(tmp_path: Path) -> None:
    node = Node(tmp_path, cpus=2)
    node.write(
        "sys/kernel/tracing/instances/kstall/per_cpu/cpu0/stats",
        "entries: 3\noverrun: 40\ndropped events: 9\nread events: 2\n",
    )
    assert Counter(node.instance).total() == 45


@pytest.mark.parametrize(
    ("counted", "whole", "verdict", "theirs"),
    [
        (5, True, "agrees", 5),
        (4, True, "disagrees", 5),
        (6, True, "disagrees", 5),
        (5, False, "unknown", None),
    ],
)
def test_what_was_counted_is_what_was_recorded(
    tmp_path: Path, counted: int, whole: bool, verdict: str, theirs: int | None
) -> None:
    node = Node(tmp_path)
    watched = Facts(Host(str(node.root)))
    counter = Counter(node.instance)
    one = source("gpu_scheduler:drm_sched_job_wait")
    oracle = Oracle("counted", watched.host, watched, counter)
    node.stats(0, overrun=100)
    oracle.before()
    oracle.began()
    tally = Tally(one, sources.specs(one, "g"))
    tally.counted = counted
    node.stats(0, overrun=102, read=3)
    now = oracle.read()
    (said,) = oracle.verdicts(tally, now, now, whole=whole)
    assert (said.verdict, said.theirs) == (verdict, theirs)


def test_each_site_of_an_event_is_counted(project_root: Path) -> None:
    """A function that is not leaves more records than were counted."""
    one = source("rdma_core:cq_async_event")
    text = (project_root / "patches/rdma-cq/series.toml").read_text()
    events = {spec["end"].partition(":")[2] for spec in one.specs[: one.counts]}
    sites = {
        site["function"]
        for tracepoint in tomllib.loads(text)["tracepoint"]
        if tracepoint["name"] in events
        for site in tracepoint["site"]
    }
    assert {probe.function for probe in one.either} == sites


def test_a_device_that_fails_is_named_once() -> None:
    """Of the events that are no error of a queue pair no claim is made."""
    errors = {"0", "1", "2", "3", "7", "8"}
    once = rules().classes["rdma"].counts_once
    causes = catalogue._IB_EVENT
    assert {number for number, cause in causes.items() if once(cause)} == errors


def test_without_a_counter_nothing_is_known(tmp_path: Path) -> None:
    watched = Facts(Host(str(Node(tmp_path).root)))
    one = source("gpu_scheduler:drm_sched_job_wait")
    oracle = Oracle("counted", watched.host, watched)
    oracle.before()
    oracle.began()
    (said,) = oracle.verdicts(Tally(one, sources.specs(one, "g")), {}, {})
    assert said.verdict == "unknown"


def test_dma_of_user_space_is_in_nobodys_events(tmp_path: Path) -> None:
    node = Node(tmp_path)
    watched = Facts(Host(str(node.root)))
    one = source("iommu:iotlb_sync")
    for bound, verdict in ((False, "disagrees"), (True, "unknown")):
        if bound:
            node.write("sys/bus/pci/drivers/vfio-pci/0000:01:00.0", "")
        node.stats(0)
        oracle = Oracle("counted", watched.host, watched, Counter(node.instance))
        oracle.before()
        oracle.began()
        node.stats(0, read=9)
        now = oracle.read()
        tally = Tally(one, sources.specs(one, "g"))
        tally.counted = 4
        (said,) = oracle.verdicts(tally, now, now)
        assert said.verdict == verdict


def test_counters_of_the_dead_are_removed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    left = node.tracing / "instances/kstall_1_5_count_drm"
    left.mkdir()
    tracefs = Tracefs(Host(str(node.root)))
    assert any("process 1 counted" in said for said in tracefs.remove_dead())
    assert not left.exists()
    node.process(77)
    since = Host(str(node.root)).starttime(77)
    theirs = node.tracing / f"instances/kstall_77_{since}_count_drm"
    theirs.mkdir()
    assert tracefs.living() == 77
    tracefs.remove_dead()
    assert theirs.exists()


def test_only_the_provider_that_was_asked_for(node_with_probes: Node) -> None:
    tracefs = Tracefs(Host(str(node_with_probes.root)))
    instance = tracefs.instance(4)
    found, refused = sources.choose(
        "throttle", tracefs, instance, "g", 0, only=["throttle/queues"]
    )
    assert found is None
    assert [one.provider for one in refused] == ["throttle/queues"]
    found, _ = sources.choose("throttle", tracefs, instance, "g", 0, only=["iotlb/amd"])
    assert found is not None and found.source.name == "sched:sched_stat_throttled"


@pytest.fixture
def node_with_probes(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.write("sys/kernel/tracing/dynamic_events", "")
    node.write("sys/kernel/tracing/README", README)
    node.write("sys/kernel/tracing/available_filter_functions", "schedule\n")
    return node


# -- what is lost of one is not lost of another ---------------------------------------


@pytest.mark.parametrize(
    ("reason", "provider", "concerns"),
    [
        ("threshold a:b 1000 ns", "a:b", True),
        ("threshold a:b/c 1000 ns", "a:b", True),
        ("threshold a:b 1000 ns", "a:bc", False),
        ("suspended iommu:iotlb_sync", "iommu:iotlb_sync/iotlb_fq_flush", True),
        ("suspended iommu:iotlb_sync", "throttle/threads", False),
        ("refused throttle/clock", "throttle/queues", False),
        ("overrun", "throttle/queues", True),
        ("ring", "throttle/queues", True),
    ],
)
def test_whom_a_loss_concerns(reason: str, provider: str, concerns: bool) -> None:
    losses = {"s": ((0, 10, reason),)}
    known = health.Health({}, losses, {}, {})
    assert bool(known.of("s", provider, 2, 5)) == concerns


def test_no_format_at_all(tmp_path: Path) -> None:
    tracefs = with_sync(tmp_path, 2)
    (tracefs.top / "events/iommu/iotlb_sync/format").write_text("nonsense")
    with pytest.raises(NodeError, match="iotlb_sync"):
        sources.missing(source("iommu:iotlb_sync"), tracefs)


def test_it_does_not_begin_before_it_could(tmp_path: Path) -> None:
    """A duration that is longer than the time since boot is not believed."""
    rec = Made()
    rec.event(BEGAN, 0, 5, "io_uring_sqring_wait", ctx=1, wait_ns=BEGAN + 1)
    seal.seal([rec.write(tmp_path / "rec")], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT t0, dur FROM stall")
    assert rows == [(None, None)]


# -- groups that are gone before the recorder is --------------------------------------


def test_a_group_that_is_gone_is_compared_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container's is; the last look at it counts, and what had ended by then."""
    node = Node(tmp_path)
    node.process(4000)
    when = time.monotonic_ns()
    here = node.root / "sys/fs/cgroup/t"
    monkeypatch.setattr(record, "PERIOD", 1.0)
    monkeypatch.setattr(record, "_READ", 0.5)

    class Ends(record.Recorder):
        """The group comes after the beginning, and goes before the end."""

        looks = 0

        def _loop(self) -> None:
            node.group("t", 0)
            node.throttled(
                0, *[(when - n * 10 * MS, 4000, 5 * MS) for n in range(9, -1, -1)]
            )
            super()._loop()

        def _period(self) -> None:
            Ends.looks += 1
            if Ends.looks == 1:
                node.group("t", 50_000)
            super()._period()
            if Ends.looks == 1:
                shutil.rmtree(here)

    settings = record.Settings(tmp_path / "o", ["throttle"], seconds=2.5)
    assert Ends(Host(str(node.root)), settings).run() == 0
    (rec,) = (tmp_path / "o").iterdir()
    seal.seal([rec], tmp_path / "s")
    _, rows, _ = store.query(
        tmp_path / "s", "SELECT ours, theirs, verdict, until FROM oracle"
    )
    ((ours, theirs, verdict, until),) = rows
    assert (ours, theirs, verdict) == (50 * MS, 50 * MS, "agrees")
    assert when - 90 * MS < until < time.monotonic_ns()


@pytest.mark.parametrize(
    ("until", "ours", "verdict"),
    [(BEGAN + 16 * MS, 5 * MS, "agrees"), (None, 10 * MS, "disagrees")],
)
def test_what_ended_later_is_not_in_a_look(
    tmp_path: Path, until: int | None, ours: int, verdict: str
) -> None:
    node = Made()
    for t in (10, 20):
        node.throttle(BEGAN + t * MS, BEGAN + (t + 5) * MS, 11)
    said = {"provider": "throttle/fprobe", "scope": "cgroup:77", "ours": 0}
    fact = {**said, "theirs": 5 * MS, "verdict": "agrees", "until": until}
    for metric in ("ns", "union_ns"):
        node.fact("oracle", **fact, metric=metric)
    seal.seal([node.write(tmp_path / "rec")], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT ours, verdict FROM oracle")
    assert rows == [(ours, verdict)] * 2


def test_a_group_that_nobody_saw_is_unknown(tmp_path: Path) -> None:
    node = Node(tmp_path)
    watched = Facts(Host(str(node.root)))
    one = source("throttle/queues")
    oracle = Oracle("cpu.stat.queues", watched.host, watched)
    oracle.before()
    oracle.began()
    tally = Tally(one, sources.specs(one, "g"))
    tally.sums[99] = 5
    (said,) = oracle.verdicts(tally, {}, {})
    assert (said.scope, said.theirs, said.verdict) == ("cgroup:99", None, "unknown")
