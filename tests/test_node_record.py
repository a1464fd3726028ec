# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall-node on a node that is made of files; the analysis reads what it leaves."""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kstall_node import __main__ as start
from kstall_node import agent, catalogue, cli, record, sources
from kstall_node.errors import NodeError
from kstall_node.facts import NOBODY, Facts, Rank, rank_of
from kstall_node.host import Host
from kstall_node.journal import Journal
from kstall_node.oracles import Oracle, Tally, Union, Verdict, judge
from kstall_node.pages import Layout, Member, Record
from kstall_node.tracefs import Instance, Tracefs
from kstall_ops import explain, recording, seal, store, wording
from node_root import README, Node
from recordings import format_text
from ringpages import entry, page

MS = 1_000_000
THROTTLE = ("record", "--class", "throttle", "--seconds", "0.3")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def run(node: Node, out: Path, *words: str) -> int:
    return cli.main(["--root", str(node.root), *(words or THROTTLE), "-o", str(out)])


def only(out: Path) -> Path:
    (found,) = out.iterdir()
    return found


def facts(rec: Path, kind: str) -> list[dict[str, Any]]:
    lines = (rec / "facts.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["kind"] == kind]


def test_what_is_recorded_is_what_was_in_the_pages(node: Node, tmp_path: Path) -> None:
    when = time.monotonic_ns()
    node.process(4000, environ=b"RANK=1\0WORLD_SIZE=3\0TORCHELASTIC_RUN_ID=train\0")
    group = node.group("t", 0)
    stalls = [(when + n * MS, 4000, 5 * MS + n) for n in range(100)]
    node.throttled(0, *stalls)
    assert run(node, tmp_path / "o") == 0
    rec = only(tmp_path / "o")
    seal.seal([rec], tmp_path / "s")
    _, rows, _ = store.query(
        tmp_path / "s",
        "SELECT count(*), sum(dur), min(t1), any_value(cgroup_id) FROM stall",
    )
    assert rows == [(100, sum(d for _, _, d in stalls), when, group)]
    _, ranks, _ = store.query(tmp_path / "s", "SELECT job, rank, world FROM proc")
    assert ranks == [("train", 1, 3)]
    loaded = recording.load(rec)
    assert loaded.remarks == [] and loaded.session["ended"] is not None
    assert loaded.session["kernel"] == "7.3.4"
    assert len(facts(rec, "clock")) == 2
    # Nothing is left on, and nothing of the reserve.
    assert node.last("tracing_on") == "0" and node.last("events/enable") == "0"
    assert not list(rec.glob(".*"))


def test_an_oracle_that_disagrees_is_said_and_kept(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.process(4000)
    group = node.group("t", 0)
    when = time.monotonic_ns()
    node.throttled(0, *[(when + n * MS, 4000, MS // 2) for n in range(100)])

    class Late(record.Recorder):
        """While it records the kernel counts 22 % more."""

        def _loop(self) -> None:
            super()._loop()
            node.group("t", 61_000)

    settings = record.Settings(tmp_path / "o", ["throttle"], seconds=0.2)
    assert Late(Host(str(node.root)), settings).run() == 0
    assert "disagrees with cpu.stat.threads" in capsys.readouterr().err
    rec = only(tmp_path / "o")
    (oracle,) = facts(rec, "oracle")
    assert (oracle["scope"], oracle["ours"]) == (f"cgroup:{group}", 50 * MS)
    assert (oracle["theirs"], oracle["verdict"]) == (61 * MS - 1000, "disagrees")
    (refused,) = [
        one
        for one in json.loads((rec / "session.json").read_text())["refused"]
        if one["provider"] == "sched:sched_stat_throttled"
    ]
    assert refused["why"] == "disagrees with cpu.stat.threads"
    seal.seal([rec], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT verdict FROM oracle")
    assert rows == [("disagrees",)]


def test_recording_goes_on_without_what_was_refused(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what was refused no stall is open, and no threshold is raised."""
    node.process(4000)
    node.group("t", 0)

    class Refusing(record.Recorder):
        """In the middle an oracle finds its only source to lie."""

        def _loop(self) -> None:
            (one,) = self.attached
            said = Verdict("cgroup:1", "ns", 12 * MS, 18 * MS, "disagrees")
            self._replace(one, [said])
            self._period()
            self.limiter.count({"sched:sched_stat_throttled": 10**6})
            self.limiter.look(time.monotonic(), 10**9, self._active)

    settings = record.Settings(tmp_path / "o", ["throttle"])
    assert Refusing(Host(str(node.root)), settings).run() == 0
    said = capsys.readouterr().err
    assert "the kernel says 18000000 ns; refused" in said
    assert "records a second" not in said
    (refused,) = [
        one
        for one in json.loads((only(tmp_path / "o") / "session.json").read_text())[
            "refused"
        ]
        if "disagrees" in one["why"]
    ]
    assert refused["provider"] == "sched:sched_stat_throttled"


@pytest.mark.parametrize("oracle", ["cpu.stat.threads", None])
def test_what_ends_while_a_source_is_replaced(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: str | None
) -> None:
    """It is recorded, and may be counted before the oracle can be read again."""
    group = node.group("t", 0)
    name = "throttle/tracepoints"
    known = [
        one._replace(oracle=oracle) if one.name == name else one
        for one in catalogue.SOURCES
    ]
    monkeypatch.setattr(catalogue, "SOURCES", tuple(known))
    node.write("sys/kernel/tracing/dynamic_events", "")
    node.write("sys/kernel/tracing/README", README)
    members = [("u64 task", 8), ("u64 cgroup", 8), ("u32 on", 4)]
    enable = Instance.enable

    def ending(self: Instance, event: str, on: bool = True) -> None:
        enable(self, event, on)
        if on and event.endswith(":unthrottle_task"):
            node.group("t", 30_000)

    monkeypatch.setattr(Instance, "enable", ending)

    class Replacing(record.Recorder):
        """Of the second source one stall is recorded."""

        def _loop(self) -> None:
            for number, end in enumerate(("throttle_task", "unthrottle_task"), 3300):
                here = f"events/{self.group}/{end}"
                text = format_text(end, number, members)
                node.write(f"sys/kernel/tracing/{here}/format", text)
                node.trace(f"{here}/enable", "")
            (one,) = self.attached
            said = Verdict("cgroup:1", "ns", 12 * MS, 18 * MS, "disagrees")
            self._replace(one, [said])
            for end, t in (("throttle_task", 0), ("unthrottle_task", 30 * MS)):
                values = {"task": 1, "cgroup": group, "on": 0}
                event = _record(f"{self.group}:{end}", t, **values)
                self.tallies[name].take(event, self.facts)

    replacing = Replacing(
        Host(str(node.root)), record.Settings(tmp_path / "o", ["throttle"])
    )
    assert replacing.run() == 0
    rec = only(tmp_path / "o")
    assert (rec / "formats" / replacing.group / "unthrottle_task").exists()
    last = [
        (one["ours"], one["verdict"])
        for one in facts(rec, "oracle")
        if one["provider"] == name
    ]
    assert last == ([(30 * MS, "agrees")] if oracle else [])


def _record(event: str, t: int, **values: int) -> Record:
    members, data = {}, bytes(8)
    for name, value in values.items():
        members[name] = Member(len(data), 8, False, False)
        data += value.to_bytes(8, "little")
    return Record(t, 0, Layout(event, 1, members), data)


def test_the_recipe_that_lies_is_refused(node: Node) -> None:
    """rq->clock less throttled_clock, which 6.12 has not brought up to date yet."""
    (source,) = [one for one in catalogue.SOURCES if one.name == "throttle/clock"]
    for lie, verdict in ((0, "agrees"), (22, "disagrees")):
        group = node.group("t", 0)
        watched = Facts(Host(str(node.root)))
        oracle = Oracle("cpu.stat.queues", watched.host, watched)
        oracle.before()
        oracle.began()
        tally = Tally(source, sources.specs(source, "g"))
        for n in range(30):
            clock = 10**9 + 80 * MS * (100 - lie) // 100
            event = _record(
                "g:unthrottle_clock",
                2 * 10**9 + n,
                clock=clock,
                start=10**9,
                cgroup=group,
                on=0,
            )
            tally.take(event, watched)
        node.group("t", 30 * 80_000)
        now = oracle.read()
        (said,) = oracle.verdicts(tally, now, now)
        assert said.verdict == verdict, lie


def _stalls(name: str, group: int, first: int, stalls: int) -> list[Record]:
    """Ends of a source's stalls of 10 ms, with their beginnings; the first has none."""
    begin, end = {
        "throttle/tracepoints": ("throttle_task", "unthrottle_task"),
        "throttle/threads": ("throttled", "unthrottled"),
        "throttle/queues": ("throttle", "unthrottle"),
    }[name]
    members = {"tg": 5, "task": 6, "cfs_rq": 7, "cgroup": group, "on": 0}
    events = []
    for n in range(stalls):
        t = (first + 100 * n) * MS
        events.append(_record(f"g:{begin}", t - 10 * MS, **members))
        events.append(_record(f"g:{end}", t, **members))
    return events


@pytest.mark.parametrize(
    "name", ["throttle/tracepoints", "throttle/threads", "throttle/queues"]
)
@pytest.mark.parametrize(("share", "verdict"), [(100, "agrees"), (78, "disagrees")])
def test_a_stall_that_had_begun_before_tracing_did(
    node: Node, name: str, share: int, verdict: str
) -> None:
    """The kernel counts all of it when it ends, and there is no record of how long it
    was.  From the next period on it does not matter, and a liar is found nevertheless.
    """
    (source,) = [one for one in catalogue.SOURCES if one.name == name]
    group = node.group("t", 0)
    watched = Facts(Host(str(node.root)))
    oracle = Oracle(source.oracle or "", watched.host, watched)
    oracle.before()
    oracle.began()
    tally = Tally(source, sources.specs(source, "g"))
    for record_ in _stalls(name, group, 100, 50)[1:]:
        tally.take(record_, watched)
    # The first one had lasted for 60 ms.
    node.group("t", 550_000)
    now = oracle.read()
    (said,) = oracle.verdicts(tally, now, now)
    assert (said.ours, said.verdict) == (490 * MS, "unknown")
    oracle.look(tally, now, now, 1)
    assert oracle._looks == {}
    oracle.settle(tally, now, now)
    for record_ in _stalls(name, group, 10_000, 50):
        tally.take(record_, watched)
    node.group("t", 550_000 + 50_000_000 // share)
    now = oracle.read()
    (said,) = oracle.verdicts(tally, now, now)
    assert (said.ours, said.verdict) == (990 * MS, verdict)
    (said,) = oracle.verdicts(tally, now, now, whole=False)
    assert said.verdict == "unknown"


def test_more_than_the_kernel_counted_is_wrong_in_any_case(node: Node) -> None:
    """Also with a stall that had begun before tracing did; and of a group that came
    later none had."""
    name = "throttle/queues"
    (source,) = [one for one in catalogue.SOURCES if one.name == name]
    for later, usec in ((False, 300_000), (True, 550_000)):
        group = node.group(f"t{later}", 0)
        watched = Facts(Host(str(node.root)))
        oracle = Oracle("cpu.stat.queues", watched.host, watched)
        if not later:
            oracle.before()
            oracle.began()
        tally = Tally(source, sources.specs(source, "g"))
        for record_ in _stalls(name, group, 100, 50)[1:]:
            tally.take(record_, watched)
        node.group(f"t{later}", usec)
        now = oracle.read()
        verdicts = {one.scope: one for one in oracle.verdicts(tally, now, now)}
        assert verdicts[f"cgroup:{group}"].verdict == "disagrees"


def test_a_right_source_is_not_replaced_for_an_early_stall(
    node: Node, tmp_path: Path
) -> None:
    """On a node with many quotas some group is throttled whenever a recorder starts."""
    node.process(4000)
    group = node.group("t", 0)
    when = time.monotonic_ns() - 1000 * MS

    class Looked(record.Recorder):
        """It has one period; half of the stalls come after it."""

        def _stalled(self, first: int, usec: int) -> None:
            stalls = [(when + n * MS, 4000, MS // 2) for n in range(first, first + 100)]
            node.throttled(0, *stalls)
            os.lseek(self.buffers.handles[0], 0, os.SEEK_SET)
            self._drain(0)
            node.group("t", usec)

        def _loop(self) -> None:
            (tally,) = self.tallies.values()
            tally.early_groups.add(group)
            self._stalled(0, 110_000)
            self._period()
            self._stalled(100, 160_000)

    settings = record.Settings(tmp_path / "o", ["throttle"])
    assert Looked(Host(str(node.root)), settings).run() == 0
    rec = only(tmp_path / "o")
    last = facts(rec, "oracle")[-1]
    assert (last["ours"], last["verdict"]) == (100 * MS, "agrees")
    seal.seal([rec], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT ours, verdict FROM oracle")
    assert rows == [(100 * MS, "agrees")]


def test_threads_of_a_queue_are_counted_once() -> None:
    """Two of one queue wait together, and one that woke up later for less."""
    (source,) = [one for one in catalogue.SOURCES if one.name == "throttle/threads"]
    tally = Tally(source, sources.specs(source, "g"))
    nobody = Facts(Host("/nonexistent"))
    for t in (100, 130):
        event = _record("g:throttled", t, tg=1, on=0, cgroup=7, held=1)
        tally.take(event, nobody)
    tally.take(_record("g:unthrottled", 200, tg=2, on=0), nobody)
    tally.take(_record("g:unthrottled", 300, tg=1, on=0), nobody)
    assert (tally.union(7), tally.sums[7], tally.still_open) == (200, 370, 0)


@pytest.mark.parametrize(("threads", "over"), [(0, True), (1, False)])
def test_who_has_ended_and_was_not_waited_for(
    node: Node, threads: int, over: bool
) -> None:
    """With a thread that goes on it is a process whose first thread has ended."""
    node.process(4000, environ=b"RANK=1\0WORLD_SIZE=3\0", threads=threads)
    watched = Facts(Host(str(node.root)))
    watched.scan()
    for stat in node.root.glob("proc/**/4000/stat"):
        stat.write_text(stat.read_text().replace(") S ", ") Z "))
    watched.scan()
    kinds = [fact["kind"] for fact in watched.take()]
    assert ("gone" in kinds) == over and "proc" in kinds


def test_union_of_many() -> None:
    """It takes the memory of a few."""
    union = Union()
    for n in range(10_000):
        union.add(10 * n, 10 * n + 5)
        union.add(10 * n + 2, 10 * n + 4)
    assert union.total() == 50_000
    assert len(union._spans) <= 64


@pytest.mark.parametrize("late", [0, 30])
def test_union_is_exact(late: int) -> None:
    """Stalls come in the order of their ends, or nearly; a long one covers several."""
    random = Random(late)
    ends = sorted(random.randrange(200, 3000) for _ in range(300))
    spans = [(end - random.choice((1, 5, 40, 200)), end) for end in ends]
    spans.sort(key=lambda span: span[1] + random.randrange(late + 1))
    union, covered = Union(), set[int]()
    for begin, end in spans:
        union.add(begin, end)
        covered.update(range(begin, end))
    assert union.total() == len(covered)


def test_what_stalls_are_known_by_is_not_kept_for_ever() -> None:
    """Each job of a GPU has a number of its own."""
    (source,) = [one for one in catalogue.SOURCES if one.name.endswith("job_queue")]
    tally = Tally(source, sources.specs(source, "g"))
    nobody = Facts(Host("/nonexistent"))
    for n in range(20_000):
        for end in ("queue", "run"):
            job = {"fence_context": 1, "fence_seqno": n}
            event = _record(f"gpu_scheduler:drm_sched_job_{end}", n, **job)
            tally.take(event, nobody)
    # What has no beginning among the last ones has begun before tracing.
    for n in (19_999, 20_001):
        event = _record(
            "gpu_scheduler:drm_sched_job_run", n, fence_context=1, fence_seqno=n
        )
        tally.take(event, nobody)
    assert (tally.begun, tally.ended) == (20_000, 20_000)
    assert (tally.astray, tally.early) == (2, 1)
    assert len(tally._seen) < 20_000 and not tally.sums and not tally._unions


@pytest.mark.parametrize(
    ("ours", "span", "metric", "verdict"),
    [
        (100 * MS, (100 * MS, 100 * MS), "ns", "agrees"),
        (102 * MS, (100 * MS, 100 * MS), "ns", "agrees"),
        (103 * MS, (100 * MS, 100 * MS), "ns", "disagrees"),
        (100 * MS, (0, 100 * MS), "ns", "unknown"),
        (100 * MS, (200 * MS, 300 * MS), "ns", "disagrees"),
        (100 * MS, None, "ns", "unknown"),
        (None, (5, 5), "count", "unknown"),
        (5, (5, 5), "count", "agrees"),
        (4, (5, 5), "count", "disagrees"),
    ],
)
def test_verdicts(
    ours: int | None, span: tuple[int, int] | None, metric: str, verdict: str
) -> None:
    assert judge("all", metric, ours, span).verdict == verdict


def test_losses_are_counted(node: Node, tmp_path: Path) -> None:
    node.stats(0, dropped=7)
    assert run(node, tmp_path / "o") == 0
    (lost,) = facts(only(tmp_path / "o"), "loss")
    assert (lost["cpu"], lost["n"], lost["reason"]) == (0, 7, "dropped events"[:7])


def test_a_recording_that_goes_on_is_compared(node: Node, tmp_path: Path) -> None:
    """It may be fetched before it ends; what did not change is noted once."""
    node.process(4000)
    group = node.group("t", 0)
    when = time.monotonic_ns() - 100 * MS
    node.throttled(0, *[(when + n * MS, 4000, MS // 2) for n in range(100)])

    class Fetched(record.Recorder):
        """It is looked at while it records."""

        def _loop(self) -> None:
            self._drain(0)
            self.buffers.seal(0)
            node.group("t", 50_000)
            self._period()
            self._period()
            shutil.copytree(self.journal.dir, tmp_path / "copy")

    settings = record.Settings(tmp_path / "o", ["throttle"])
    assert Fetched(Host(str(node.root)), settings).run() == 0
    (one,) = facts(tmp_path / "copy", "oracle")
    assert (one["scope"], one["verdict"]) == (f"cgroup:{group}", "agrees")
    assert one["until"] == facts(tmp_path / "copy", "complete")[0]["until"]
    seal.seal([tmp_path / "copy"], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT ours, verdict FROM oracle")
    assert rows == [(50 * MS, "agrees")]


@pytest.mark.parametrize("full", [False, True])
def test_a_node_with_many_processors_is_not_busy(tmp_path: Path, *, full: bool) -> None:
    """Each has a page, with a record in it.  If pages are full, threads of later ones
    are named nevertheless."""
    node = Node(tmp_path, cpus=50)
    group = node.group("t", 0)
    when = time.monotonic_ns() - 1000 * MS
    for cpu in range(50):
        node.process(4000 + cpu)
        stalls = [(when + cpu * MS, 4000 + cpu, MS)] * (240 if full else 1)
        node.throttled(cpu, *stalls, each=120)

    class Looked(record.Recorder):
        """A second later there is a new thread."""

        def _loop(self) -> None:
            for cpu in self.buffers.handles:
                self._drain(cpu)
            self._tally()
            node.group("t", 50_000)
            self._busy = 0
            node.process(5000)
            node.throttled(0, (when + 500 * MS, 5000, 1))
            os.lseek(self.buffers.handles[0], 0, os.SEEK_SET)
            self._drain(0)
            self._tally()

    settings = record.Settings(tmp_path / "o", ["throttle"])
    assert Looked(Host(str(node.root)), settings).run() == 0
    rec = only(tmp_path / "o")
    (one,) = facts(rec, "oracle")
    assert (one["scope"], one["ours"] is None) == (f"cgroup:{group}", full)
    named = {one["pid"] for one in facts(rec, "proc")}
    assert 5000 in named and ({*range(4000, 4050)} <= named) is not full


def test_a_little_is_not_noted_before_the_end(node: Node, tmp_path: Path) -> None:
    """A stall that goes on at a reading is in neither sum, and then in one."""
    node.process(4000)
    node.group("t", 0)
    node.throttled(0, (time.monotonic_ns(), 4000, 5 * MS))

    class Looked(record.Recorder):
        """It is looked at when the kernel has counted twice as much."""

        def _loop(self) -> None:
            self._drain(0)
            self.buffers.seal(0)
            node.group("t", 10_000)
            self._period()
            assert facts(self.journal.dir, "complete") and not facts(
                self.journal.dir, "oracle"
            )

    settings = record.Settings(tmp_path / "o", ["throttle"])
    assert Looked(Host(str(node.root)), settings).run() == 0
    (one,) = facts(only(tmp_path / "o"), "oracle")
    assert (one["verdict"], one["until"]) == ("disagrees", None)


class Busy(record.Recorder):
    """At each look its buffer has counted a million records more, of the pages left."""

    seen = 1

    def _look_at_rate(self, now: float) -> None:
        Busy.seen += 1
        self.buffers.stats[0] = {"read": Busy.seen * 1_000_000}
        super()._look_at_rate(now)


def busy(node: Node, out: Path, *classes: str) -> Path:
    """A recording with two looks at a rate that is too high."""

    class Twice(Busy):
        def _loop(self) -> None:
            self._look_at_rate(time.monotonic())
            self._drain(0)
            self._look_at_rate(time.monotonic())
            super()._loop()

    settings = record.Settings(out, classes, max_rate=100, seconds=0.1)
    assert Twice(Host(str(node.root)), settings).run() == 0
    return only(out)


def test_thresholds_rise_above_the_rate(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.throttled(0, (time.monotonic_ns(), 1, 1))
    rec = busy(node, tmp_path / "o", "throttle")
    rule = (node.instance / "events/sched/sched_stat_throttled/filter").read_text()
    assert rule == "delay >= 1000"
    (lost,) = facts(rec, "loss")
    assert lost["reason"] == "threshold sched:sched_stat_throttled 1000 ns"
    assert lost["n"] is None and lost["t0"] > 0
    (spec,) = json.loads((rec / "session.json").read_text())["providers"]
    assert spec["min_ns"] == 1000
    assert "records a second" in capsys.readouterr().err
    assert all(one["verdict"] == "unknown" for one in facts(rec, "oracle"))


def test_the_busiest_event_is_cut(node: Node, tmp_path: Path) -> None:
    """Not the first that has a threshold, nor the last that has not."""
    when = time.monotonic_ns()
    node.with_pairs()
    node.throttled(0, (when, 1, 1))
    raw = node.instance / "per_cpu/cpu0/trace_pipe_raw"
    one = raw.read_bytes()
    node.pairs(0, ("begin", when, 1), ("end", when + 1, 1), ("begin", when + 2, 1))
    raw.write_bytes(raw.read_bytes() + one)
    rec = busy(node, tmp_path / "o", "mmu", "throttle")
    (lost,) = facts(rec, "loss")
    assert lost["reason"] == "suspended mmu_notifier:mmu_notifier_callback_end"
    ends = [f"mmu_notifier/mmu_notifier_callback_{end}" for end in ("begin", "end")]
    assert [node.last(f"events/{end}/enable") for end in ends] == ["0", "0"]
    assert node.last("events/sched/sched_stat_throttled/enable") == "1"


def test_counters_of_buffers_are_read_once_a_round(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be hundreds; they serve for the rate, too."""
    read = []
    stats = Instance.stats

    def counted(self: Instance, cpu: int) -> dict[str, int]:
        read.append(cpu)
        return stats(self, cpu)

    monkeypatch.setattr(Instance, "stats", counted)

    class Round(record.Recorder):
        def _loop(self) -> None:
            read.clear()
            self._round()
            self._look_at_rate(time.monotonic())
            assert read == [0]

    settings = record.Settings(tmp_path / "o", ["throttle"])
    assert Round(Host(str(node.root)), settings).run() == 0


@pytest.mark.parametrize("endless", [False, True])
def test_a_large_buffer_is_read_as_a_whole(
    node: Node, tmp_path: Path, *, endless: bool
) -> None:
    """A round promises that all before it is in the pages, if more comes meanwhile."""
    count = 1500
    node.throttled(0, *[(n, 1, 1) for n in range(1, count + 1)], each=1)
    read = []

    class Round(record.Recorder):
        """Of its buffers it knows only how large they are."""

        def _drain(self, cpu: int) -> int:
            read.append(super()._drain(cpu))
            return read[-1]

        def _loop(self) -> None:
            raw = self.buffers.handles[0]
            if endless:
                self.buffers.handles[0] = os.open("/dev/zero", os.O_RDONLY)
            (node.instance / "per_cpu/cpu0/stats").unlink()
            self._round()
            if endless:
                os.close(self.buffers.handles[0])
                self.buffers.handles[0] = raw
            assert count <= sum(read) <= 4 * count
            read.clear()

    settings = record.Settings(tmp_path / "o", ["throttle"], buffer_kb=8192)
    assert Round(Host(str(node.root)), settings).run() == 0
    assert endless or sum(read) == 0


def test_marks_cut_nothing(node: Node, tmp_path: Path) -> None:
    """Any user may write them, in a loop."""
    data = (5).to_bytes(2, "little") + bytes(14) + b"kstall step=1 phase=enter\n\0\0"
    marks = page(time.monotonic_ns(), [entry(0, data)] * 60)
    node.trace("per_cpu/cpu0/trace_pipe_raw", marks * 200)
    assert facts(busy(node, tmp_path / "o", "throttle"), "loss") == []


def test_only_the_busy_part_of_a_source_is_suspended(
    node: Node, tmp_path: Path
) -> None:
    """Requests to workers are many, and waits for the queue are few."""
    names = ["sqring_wait", "sqring_wait_end", "short_submit"]
    names += ["queue_async_work", "start_async_work"]
    members = [("u64 ctx", 8), ("u64 req", 8), ("u32 left", 4), ("u32 reason", 4)]
    for number, name in enumerate(names, 3200):
        text = format_text(f"io_uring_{name}", number, members)
        here = f"events/io_uring/io_uring_{name}"
        node.write(f"sys/kernel/tracing/{here}/format", text)
        node.trace(f"{here}/enable", "")
    work = (3204).to_bytes(2, "little") + bytes(30)
    wait = (3200).to_bytes(2, "little") + bytes(30)
    records = page(time.monotonic_ns(), [entry(1, data) for data in (wait, work, work)])
    node.trace("per_cpu/cpu0/trace_pipe_raw", records)
    rec = busy(node, tmp_path / "o", "io_uring")
    (lost,) = facts(rec, "loss")
    name = "io_uring:io_uring_sqring_wait_end"
    assert lost["reason"] == f"suspended {name}/io_uring_start_async_work"
    on = [node.last(f"events/io_uring/io_uring_{name}/enable") for name in names]
    assert on == ["1", "1", "1", "0", "0"]
    specs = json.loads((rec / "session.json").read_text())["providers"]
    assert ["suspended" in spec for spec in specs] == [False, False, True]


def test_a_ring_keeps_the_newest(node: Node, tmp_path: Path) -> None:
    """Segments of a page each, and room for a megabyte."""
    when = time.monotonic_ns()
    count = 300
    node.throttled(0, *[(when + n, 1, 1) for n in range(count)], each=1)

    class Small(record.Recorder):
        """Each page is a segment."""

        def _write_pages(self, cpu: int, data: bytes) -> None:
            for at in range(0, len(data), 4096):
                super()._write_pages(cpu, data[at : at + 4096])
                self.buffers.seal(cpu)

    settings = record.Settings(
        tmp_path / "o", ["throttle"], seconds=2.5, ring=True, max_mb=1
    )
    assert Small(Host(str(node.root)), settings).run() == 0
    rec = only(tmp_path / "o")
    left = recording.load(rec)
    assert left.pages == (1 << 20) // 4096
    # The newest ones, and that others were there is no mistake but a loss.
    assert max(one.seq for one in left.segments) == count - 1
    lost = facts(rec, "loss")
    assert {one["reason"] for one in lost} == {"ring"}
    assert len(lost) == count - left.pages
    for one in lost:
        assert one["t0"] == left.session["began"] < one["t1"] < left.session["ended"]
    seal.seal([rec], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT min(t1), count(*) FROM stall")
    assert rows == [(when + count - left.pages, left.pages)]
    # What is not there any more no oracle can be compared with.
    assert {one["verdict"] for one in facts(rec, "oracle")} <= {"unknown"}


def test_a_group_that_is_made_again(node: Node, tmp_path: Path) -> None:
    """Its counter begins anew, as that of a container that was started again."""
    node.process(4000)
    old = node.group("t", 500_000)
    here = node.root / "sys/fs/cgroup/t"
    when = time.monotonic_ns()

    class Again(record.Recorder):
        """Its group has the same path, and another number."""

        def _loop(self) -> None:
            here.rename(here.with_name("gone"))
            self.new = node.group("t", 0)
            shutil.rmtree(here.with_name("gone"))
            node.throttled(0, *[(when + n * MS, 4000, MS // 2) for n in range(100)])
            self._drain(0)
            self._tally()
            node.group("t", 50_000)

    again = Again(Host(str(node.root)), record.Settings(tmp_path / "o", ["throttle"]))
    assert again.run() == 0
    rec = only(tmp_path / "o")
    (oracle,) = facts(rec, "oracle")
    assert old != again.new and oracle["scope"] == f"cgroup:{again.new}"
    assert (oracle["ours"], oracle["verdict"]) == (50 * MS, "agrees")
    assert [one["cgroup_id"] for one in facts(rec, "cgroup")] == [old, again.new]


def test_what_is_gone_is_not_kept(node: Node) -> None:
    node.group("t", 0)
    node.process(4000, environ=b"RANK=0\0WORLD_SIZE=1\0", threads=2)
    node.process(5000)
    watched = Facts(Host(str(node.root)))
    watched.scan()
    watched.thread(5000)
    assert len(watched._reported) == 4 and len(watched._groups) == 1
    for path in (*node.root.glob("proc/[45]*"), node.root / "sys/fs/cgroup/t"):
        shutil.rmtree(path)
    watched.scan()
    assert not watched._reported and not watched._groups


def test_a_ring_loses_what_is_oldest(tmp_path: Path) -> None:
    """Of all processors, not of the one that has most."""
    node = Node(tmp_path, cpus=2)
    when = time.monotonic_ns()
    node.throttled(0, *[(when + n, 1, 1) for n in range(100)], each=1)
    node.throttled(1, *[(when + n, 1, 1) for n in range(200)], each=1)

    class Sealed(record.Recorder):
        """That with fewer pages came first."""

        def _loop(self) -> None:
            for cpu in (0, 1):
                self._drain(cpu)
                self.buffers.seal(cpu)
            self._keep_within()

    settings = record.Settings(tmp_path / "o", ["throttle"], ring=True, max_mb=1)
    assert Sealed(Host(str(node.root)), settings).run() == 0
    (segment,) = recording.load(only(tmp_path / "o")).segments
    assert segment.cpu == 1


def test_files_of_a_group_are_not_looked_at(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are dozens in each, and hundreds of groups."""
    for name in ("a", "a/b", "c"):
        node.group(name, 0)
        for number in range(50):
            node.write(f"sys/fs/cgroup/{name}/memory.{number}", "")
    looked = []
    stat = Path.stat

    def counted(path: Path, **how: bool) -> os.stat_result:
        looked.append(path)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", counted)
    top = "/sys/fs/cgroup"
    groups = {*Facts(Host(str(node.root))).groups()}
    assert groups == {top, f"{top}/a", f"{top}/a/b", f"{top}/c"}
    assert len(looked) < 5


# -- the older hierarchy --------------------------------------------------------------


def test_groups_of_the_older_hierarchy(tmp_path: Path) -> None:
    """cgroup v1: quota, period and what was throttled stand in other files."""
    node = Node(tmp_path)
    here = "sys/fs/cgroup/cpu/docker/job"
    node.write(f"{here}/cpu.cfs_quota_us", "20000\n")
    node.write(f"{here}/cpu.cfs_period_us", "100000\n")
    node.write(f"{here}/cpu.stat", "nr_periods 1\nnr_throttled 0\nthrottled_time 0\n")
    node.process(4000)
    text = "5:memory:/elsewhere\n4:cpuacct,cpu:/docker/job\n0::/init\n"
    node.write("proc/4000/cgroup", text)
    when = time.monotonic_ns()
    node.throttled(0, *[(when + n * 10 * MS, 4000, 5 * MS) for n in range(10)])

    class Counting(record.Recorder):
        """Meanwhile the kernel counts, in ns."""

        def _loop(self) -> None:
            super()._loop()
            node.write(
                f"{here}/cpu.stat", f"nr_throttled 10\nthrottled_time {50 * MS}\n"
            )

    settings = record.Settings(tmp_path / "o", ["throttle"], seconds=0.3)
    assert Counting(Host(str(node.root)), settings).run() == 0
    rec = only(tmp_path / "o")
    group = (node.root / here).stat().st_ino
    (oracle,) = facts(rec, "oracle")
    assert (oracle["scope"], oracle["ours"]) == (f"cgroup:{group}", 50 * MS)
    assert oracle["verdict"] == "agrees"
    said = [(one["path"], one["cpu_max"]) for one in facts(rec, "cgroup")]
    assert ("/docker/job", "20000 100000") in said
    seal.seal([rec], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT DISTINCT cgroup_id FROM stall")
    assert rows == [(group,)]
    node.write(f"{here}/cpu.cfs_quota_us", "-1\n")
    assert Facts(Host(str(node.root))).cpu_max(f"/{here}") == "max 100000"


# -- processors that are down ---------------------------------------------------------


def unreadable(monkeypatch: pytest.MonkeyPatch, error: int) -> list[int]:
    """Processor 1's buffer fails to be read; the list grows with each attempt."""
    read, open_raw = os.read, Instance.open_raw
    handles, attempts = list[int](), list[int]()

    def opened(self: Instance, cpu: int) -> int:
        if cpu == 0:
            return open_raw(self, cpu)
        # As the kernel's, it is always ready, and with an error.
        reader, writer = os.pipe()
        os.close(reader)
        handles.append(writer)
        return writer

    def failing(handle: int, size: int) -> bytes:
        if handle not in handles:
            return read(handle, size)
        attempts.append(handle)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Instance, "open_raw", opened)
    monkeypatch.setattr(os, "read", failing)
    return attempts


def test_a_processor_that_was_never_up_has_no_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once a period, as it may come up, and at the end."""
    node = Node(tmp_path, cpus=2)
    node.throttled(0, (time.monotonic_ns(), 1, 1))
    attempts, tried = unreadable(monkeypatch, errno.ENODEV), list[int]()
    monkeypatch.setattr(record, "PERIOD", 0.1)

    class Twice(record.Recorder):
        """It ends with its second period."""

        def _period(self) -> None:
            super()._period()
            tried.append(len(attempts))
            self.stopping = len(tried) == 2

    settings = record.Settings(tmp_path / "o", ["throttle"])
    assert Twice(Host(str(node.root)), settings).run() == 0
    assert (tried, len(attempts)) == ([1, 2], 3)
    rec = only(tmp_path / "o")
    assert recording.load(rec).pages == 1 and facts(rec, "loss") == []


def test_one_buffer_that_cannot_be_read_costs_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = Node(tmp_path, cpus=2)
    node.throttled(0, (time.monotonic_ns(), 1, 1))
    unreadable(monkeypatch, errno.EIO)
    assert run(node, tmp_path / "o") == 1
    assert "cpu1: its buffer cannot be read" in capsys.readouterr().err
    loaded = recording.load(only(tmp_path / "o"))
    assert loaded.session["ended"] is not None
    assert loaded.pages == 1 and all(segment.sealed for segment in loaded.segments)
    (lost,) = facts(loaded.dir, "loss")
    assert (lost["cpu"], lost["reason"]) == (1, "not read")
    assert facts(loaded.dir, "complete") == []


# -- what goes wrong ------------------------------------------------------------------


def test_a_full_disk_costs_the_open_segment_only(tmp_path: Path) -> None:
    node = Node(tmp_path)
    when = time.monotonic_ns()
    node.throttled(0, *[(when + n, 1, 1) for n in range(900)], each=1)
    limited = [
        *(sys.executable, "-c"),
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "from kstall_node.cli import main\n"
        "sys.exit(main(sys.argv[1:]))",
    ]
    words = ["--root", str(node.root), *THROTTLE, "-o", str(tmp_path / "o")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20
    done = subprocess.run(
        [*limited, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "the disk is full; recording ends, sealed segments are kept" in done.stderr
    assert "Traceback" not in done.stderr
    rec = only(tmp_path / "o")
    loaded = recording.load(rec)
    assert loaded.pages == (1 << 20) // 4096
    assert all(one.sealed for one in loaded.segments)
    assert "disk full" in {one["reason"] for one in facts(rec, "loss")}
    assert node.last("tracing_on") == "0"
    seal.seal([rec], tmp_path / "s")


def test_a_fact_that_does_not_fit_leaves_nothing(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is noted once there is room again would follow it on the same line."""
    write = os.write

    room: list[int] = []
    make_room = Journal.make_room

    class Full(record.Recorder):
        """Its disk has room for a part of a line, until it makes room."""

        def _loop(self) -> None:
            room.append(20)
            self.journal.note_clock()

    def made(self: Journal) -> None:
        make_room(self)
        room.clear()

    def narrow(handle: int, data: memoryview) -> int:
        if room and handle == recorder.journal._facts:
            if not room[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[: room[0]]
            room[0] -= len(data)
        return write(handle, data)

    recorder = Full(Host(str(node.root)), record.Settings(tmp_path / "o", ["throttle"]))
    monkeypatch.setattr(Journal, "make_room", made)
    monkeypatch.setattr(os, "write", narrow)
    assert recorder.run() == 1
    rec = only(tmp_path / "o")
    assert recording.load(rec).remarks == []
    assert [fact["reason"] for fact in facts(rec, "loss")] == ["not read"]


def test_starts_on_a_full_disk_leave_nothing(
    node: Node,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A supervisor starts it again and again, until somebody has made room."""

    def full(size: int) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "urandom", full)
    assert run(node, tmp_path / "o") == 1
    assert "the disk is full" in capsys.readouterr().err
    assert not any((tmp_path / "o").iterdir())
    # What is in the directory of recordings is not its own.
    (tmp_path / "o/.reserve").write_text("of somebody else")
    (node.tracing / "events/sched/sched_stat_throttled/format").unlink()
    assert run(node, tmp_path / "o") == 1
    assert [path.name for path in (tmp_path / "o").iterdir()] == [".reserve"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    node = Node(tmp_path)
    node.throttled(0, (time.monotonic_ns(), 1, 1))
    argv = [sys.executable, "-m", "kstall_node", "--root", str(node.root)]
    argv += ["record", "--class", "throttle", "-o", str(tmp_path / "o")]
    started = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    for line in started.stderr:
        if "recording into" in line:
            break
    rec = only(tmp_path / "o")
    until = time.monotonic() + 300
    while not any(file.stat().st_size for file in rec.glob("segments/*.pages")):
        assert time.monotonic() < until
        time.sleep(0.01)
    second = cli.main([*argv[3:], "--seconds", "0"])
    assert second == 1, "two at once would take pages from each other"
    started.send_signal(number)
    _, said = started.communicate(timeout=300)
    assert "Traceback" not in said
    session = json.loads((rec / "session.json").read_text())
    if number != signal.SIGKILL:
        assert started.returncode == 0 and session["ended"] is not None
        assert recording.load(rec).remarks == []
        return
    assert session["ended"] is None
    assert len(recording.load(rec).segments) == 1
    # Probes of the dead are removed, those of the living are not.
    mine = Host(str(node.root)).starttime(1)
    assert mine is None
    node.write("proc/77/stat", f"77 (x) {' '.join(['S', *['0'] * 18, '50', '0'])}\n")
    alive = Host(str(node.root)).starttime(77)
    node.write(
        "sys/kernel/tracing/dynamic_events",
        f"f:kstall_1_5/throttled throttle_cfs_rq_work a=b\nf:kstall_77_{alive}/a b\n",
    )
    tracefs = Tracefs(Host(str(node.root)))
    assert tracefs.living() == 77
    tracefs.remove_dead()
    written = (node.tracing / "dynamic_events").read_text()
    assert "-:kstall_1_5/throttled\n" in written and "-:kstall_77" not in written


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("no tracefs", "no tracefs: mount -t tracefs"),
        ("no events", "this kernel has no sched:sched_stat_throttled"),
        ("no fprobe", "no fprobe events (before 6.5"),
        ("no dynamic", "no dynamic_events"),
        ("no format", "not a format file"),
        ("a file", "Not a directory"),
    ],
)
def test_one_clear_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: str, said: str
) -> None:
    node = Node(tmp_path)
    out = tmp_path / "o"
    events = node.tracing / "events/sched/sched_stat_throttled"
    if spoil == "no tracefs":
        node.tracing.rename(tmp_path / "elsewhere")
    elif spoil == "no format":
        (events / "format").write_text("nonsense")
    elif spoil == "a file":
        out.write_text("")
    else:
        (events / "format").unlink()
        if spoil != "no dynamic":
            node.write("sys/kernel/tracing/dynamic_events", "")
        node.write("sys/kernel/tracing/README", "" if spoil == "no fprobe" else README)
        node.write("sys/kernel/tracing/available_filter_functions", "schedule\n")
    assert run(node, out) == 1
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
    assert err.count("\n") == 1 or "removed" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-mb", "500"), "--max-mb is what --ring keeps: give both"),
        (("--ring", "--max-mb", "0"), "'0' is no number of 1 or more"),
        (("--buffer-kb", "0"), "'0' is no number of 1 or more"),
        (("--max-rate", "0"), "'0' is no number of 1 or more"),
        (("--min-ns", "x"), "'x' is no number of 0 or more"),
        (("--seconds", "nan"), "'nan' is no number of seconds"),
        (("--seconds", "-1"), "'-1' is no number of seconds"),
    ],
)
def test_what_would_not_be_done_is_refused(
    node: Node,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    """Without --ring nothing bounds a recording, and nan seconds never end."""
    with pytest.raises(SystemExit) as ended:
        run(node, tmp_path / "o", *THROTTLE, *words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err and not (tmp_path / "o").exists()


def test_whoever_started_it_is_told_what_to_do_next(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.throttled(0, (time.monotonic_ns(), 1, 1))
    assert run(node, tmp_path / "o") == 0
    said = capsys.readouterr().err
    assert "for 0.3 s\n" in said
    assert ": 4 KB of records; next, where you analyse: kstall fleet pull" in said


def test_marks_alone_if_that_is_asked_for(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They name the late rank on a kernel of which no class can be recorded."""
    (node.tracing / "events/sched/sched_stat_throttled/format").unlink()
    node.process(4321, environ=b"RANK=2\0WORLD_SIZE=3\0SLURM_JOB_ID=9\0")
    text = b"kstall step=1 phase=enter\n\0"
    data = (5).to_bytes(2, "little") + bytes(2) + (4321).to_bytes(4, "little")
    data = (data + bytes(8) + text).ljust(44, b"\0")
    node.trace(
        "per_cpu/cpu0/trace_pipe_raw", page(time.monotonic_ns(), [entry(0, data)])
    )
    assert run(node, tmp_path / "o") == 1
    assert "; --marks-alone records who was late" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
    assert run(node, tmp_path / "o", *THROTTLE, "--marks-alone") == 0
    said = capsys.readouterr().err
    assert "throttle: not recorded: this kernel has no sched:sched_stat" in said
    assert "kstall-node: no class is recorded, only the marks of jobs: " in said
    made = tmp_path / "s"
    seal.seal([only(tmp_path / "o")], made)
    _, rows, _ = store.query(made, "SELECT job, rank, step FROM mark")
    assert rows == [("9", 2, 1)]
    told = wording.as_text(explain.report(made))
    assert "node7: not recorded: throttle (this kernel has no sched:" in told
    # A kernel without those as well leaves nothing to record.
    (node.tracing / "events/ftrace/print/format").unlink()
    assert run(node, tmp_path / "o", *THROTTLE, "--marks-alone") == 1
    assert "; nor marks, as it has no ftrace:print" in capsys.readouterr().err


def test_jobs_of_all_users_may_write_marks_if_that_is_asked_for(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No more of tracefs is opened than the way to the marker."""
    marker = node.instance / "trace_marker"
    assert run(node, tmp_path / "o", *THROTTLE, "--open-marker") == 1
    assert f"{marker}: No such file" in capsys.readouterr().err
    marker.touch()
    way = [node.tracing, node.tracing / "instances", node.instance]
    for path, mode in (*[(path, 0o750) for path in way], (marker, 0o220)):
        path.chmod(mode)
    modes = {path: path.stat().st_mode for path in node.tracing.rglob("*")}
    modes[node.tracing] = node.tracing.stat().st_mode
    assert run(node, tmp_path / "o") == 0
    assert all(path.stat().st_mode == mode for path, mode in modes.items())
    assert run(node, tmp_path / "o", *THROTTLE, "--open-marker") == 0
    modes |= {path: modes[path] | 0o001 for path in way}
    modes[marker] |= 0o002
    assert all(path.stat().st_mode == mode for path, mode in modes.items())


def test_an_old_python_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, project_root: Path
) -> None:
    """RHEL 8's python3 is 3.6: it has to be able to read so far."""
    path = project_root / "harness/kstall_node/__main__.py"
    ast.parse(path.read_text(), feature_version=(3, 6))
    assert "__future__" not in path.read_text()
    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    with pytest.raises(SystemExit) as ended:
        start.run()
    assert str(ended.value).startswith("kstall-node: Python 3.9 or later is needed")


def test_each_reason_is_reported_once() -> None:
    whys = ["no fprobe events", "this kernel has no a:b", "no fprobe events"]
    whys.append("this kernel has no c:d")
    said = "this kernel has no a:b, c:d; no fprobe events"
    assert sources.reasons(whys) == said
    assert sources.reasons([]) == "unknown"


@pytest.mark.parametrize("words", [("doctor",), ("agent", "--stdio")])
def test_a_reader_that_has_seen_enough(node: Node, words: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", "kstall_node", "--root", str(node.root), *words]
    # Before it says a word.
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            argv, input=b"x\n", stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)

    def denied(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(NodeError, match="needs root"):
        Tracefs(Host(str(node.root)))


# -- whose threads they are -----------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (b"RANK=1\0LOCAL_RANK=0\0WORLD_SIZE=4\0TORCHELASTIC_RUN_ID=j", ("j", 1, 0, 4)),
        (b"RANK=1\0TORCHELASTIC_RUN_ID=none\0SLURM_JOB_ID=9", ("9", 1, None, None)),
        (b"RANK=1\0TORCHELASTIC_RUN_ID=none", (None, 1, None, None)),
        (b"SLURM_PROCID=3\0SLURM_LOCALID=1\0SLURM_NTASKS=8\0SLURM_JOB_ID=9", "slurm"),
        (b"OMPI_COMM_WORLD_RANK=2\0OMPI_COMM_WORLD_SIZE=4", (None, 2, None, 4)),
        (b"RANK=9\0WORLD_SIZE=4", None),
        (b"RANK=-1\0WORLD_SIZE=4", None),
        (b"RANK=x", None),
        (b"", None),
        (b"\xff\xfe=\xff\0=\0\0RANK", None),
    ],
)
def test_ranks(environ: bytes, rank: Any) -> None:
    wanted = Rank("9", 3, 1, 8) if rank == "slurm" else Rank(*rank) if rank else NOBODY
    assert rank_of(environ) == wanted


def test_hostile_names(node: Node, tmp_path: Path) -> None:
    hostile = ") S 1 (\x1b[31m\n'\"; DROP TABLE proc;--"
    node.process(4000, comm=hostile, environ=b"RANK=0\0SLURM_JOB_ID=a\x1b]0;b\0")
    node.write("proc/sys/kernel/hostname", "../../no\x1b[1m de\n")
    assert run(node, tmp_path / "o") == 0
    rec = only(tmp_path / "o")
    assert rec.parent == tmp_path / "o" and "/" not in rec.name
    (proc,) = facts(rec, "proc")
    assert (proc["comm"], proc["rank"]) == (hostile, 0)
    seal.seal([rec], tmp_path / "s")


def test_ten_thousand_threads(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.process(10, threads=10_000, environ=b"RANK=0\0WORLD_SIZE=1\0")
    watched = Facts(Host(str(node.root)))
    began = time.process_time()
    watched.scan()
    first = time.process_time() - began
    assert len([one for one in watched.take() if one["kind"] == "proc"]) == 10_001
    looked = Counter[str]()
    text = watched.host.text

    def counted(path: str) -> str | None:
        looked[path] += 1
        return text(path)

    monkeypatch.setattr(watched.host, "text", counted)
    watched.scan()
    assert watched.take() == [], "what was said is not said again"
    # All that /proc lists is looked at, which are no threads where it is a real one.
    groups = sum(n for path, n in looked.items() if path.endswith("/cgroup"))
    assert groups < 3, "nor read again"
    # But if the process has moved, and all its threads with it.
    node.group("u", 0)
    for tid in (10, 11, 10_010):
        for where in (f"proc/{tid}", f"proc/10/task/{tid}"):
            node.write(f"{where}/cgroup", "0::/u\n")
    watched.scan()
    moved = [one["pid"] for one in watched.take() if one["kind"] == "proc"]
    assert sorted(moved) == [10, 11, 10_010]
    assert first < 30


@pytest.mark.parametrize("slept", [0, 3600 * 10**9 + 1234])
def test_when_a_process_began_all_say_alike(
    node: Node, monkeypatch: pytest.MonkeyPatch, slept: int
) -> None:
    """Though whoever reads two clocks may lose the processor in between."""
    now = 7200 * 10**9
    pauses = iter([0, 5 * MS, 0, 0, 2 * MS] + [0] * 100)

    def monotonic() -> int:
        nonlocal now
        now += 100 + next(pauses)
        return now

    monkeypatch.setattr(time, "monotonic_ns", monotonic)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: monotonic() + slept)
    node.process(5)
    node.write("proc/5/stat", f"5 (x) {' '.join(['S', *['0'] * 18, '500000', '0'])}\n")
    said = {Host(str(node.root)).starttime(5) for _ in range(5)}
    assert len(said) == 1
    if slept == 0:
        assert said == {500_000 * 10**9 // os.sysconf("SC_CLK_TCK")}


def test_a_number_that_is_used_again(node: Node) -> None:
    watched = Facts(Host(str(node.root)))
    # As this machine may have been, for longer than the node is up.
    watched.host._slept = 0
    node.process(5, comm="old")
    watched.thread(5)
    node.write("proc/5/stat", f"5 (new) {' '.join(['S', *['0'] * 18, '999', '0'])}\n")
    watched.forget()
    watched.thread(5)
    said = [(one["comm"], one["starttime"]) for one in watched.take() if "comm" in one]
    assert [name for name, _ in said] == ["old", "new"] and said[0][1] < said[1][1]


# -- doctor and agent -----------------------------------------------------------------


def test_unknown_never_passes(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--root", str(node.root), "doctor", "--json"]) == 3
    checks = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert checks["provider throttle"]["status"] == "pass"
    assert checks["provider mmu"]["status"] == "warn"
    assert {checks[name]["status"] for name in ("rdma", "iommu", "aer")} == {"unknown"}
    node.group("t", 7)
    node.write("sys/fs/cgroup/t/cgroup.threads", "1\n2\n3\n")
    node.write("proc/sys/kernel/numa_balancing", "1\n")
    cli.main(["--root", str(node.root), "doctor"])
    said = capsys.readouterr().out
    assert "/t: 0.2 CPUs for 3 threads, throttled 1 times" in said
    assert "warn    numa_balancing" in said


def test_the_screen_of_a_bmc_is_no_gpu(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is on conventional PCI, so that nobody knows its link."""
    top = "sys/bus/pci/devices"
    bmc, others = "0000:03:00.0", {"0x030000", "0x030200", "0x038000", "0x120000"}
    node.write(f"{top}/{bmc}/class", "0x030000\n")
    node.write(f"{top}/{bmc}/numa_node", "0\n")
    for number, cls in enumerate(sorted(others), 0x41):
        here = f"{top}/0000:{number:x}:00.0"
        node.write(f"{here}/class", f"{cls}\n")
        for which in ("current", "max"):
            node.write(f"{here}/{which}_link_speed", "32.0 GT/s PCIe\n")
            node.write(f"{here}/{which}_link_width", "16\n")
    cli.main(["--root", str(node.root), "doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)
    links = [one for one in checks if one["name"] == "pcie link"]
    assert len(links) == len(others) and {one["status"] for one in links} == {"pass"}
    assert bmc not in str(checks)


def test_the_agent_sends_what_is_sealed(node: Node, tmp_path: Path) -> None:
    node.throttled(0, (time.monotonic_ns(), 1, 1))
    run(node, tmp_path / "o")
    rec = only(tmp_path / "o")
    (rec / "segments/cpu3-0.pages").write_bytes(bytes(4096))
    session = json.loads((rec / "session.json").read_text())

    def pulled() -> set[str]:
        requests = (
            b'{"op":"hello","version":1}\n{"op":"ping","n":4}\n{"op":"pull"}\nx\n'
        )
        answers = io.BytesIO()
        host = Host(str(node.root))
        assert agent.serve(host, tmp_path / "o", io.BytesIO(requests), answers) == 0
        answers.seek(0)
        hello, pong = (json.loads(answers.readline()) for _ in "12")
        assert (hello["node"], hello["version"], pong["n"]) == ("node7", 1, 4)
        assert hello["boot_id"] == session["boot_id"]
        found = set()
        while (said := json.loads(answers.readline()))["op"] == "file":
            data = answers.read(said["size"])
            name = said["path"].split("/", 1)[1]
            assert data == (rec / name).read_bytes()
            found.add(name)
        assert said == {"op": "end"}
        assert json.loads(answers.readline())["op"] == "error"
        return found

    whole = pulled()
    assert {"session.json", "facts.jsonl", "segments/cpu3-0.pages"} <= whole
    # The same of one that goes on: what is open is not sent.
    pid, since = os.getpid(), 1_230_000_000
    node.process(pid)
    session |= {"ended": None, "recorder": {"pid": pid, "starttime": since}}
    (rec / "session.json").write_text(json.dumps(session))
    host = Host(str(node.root))
    session["recorder"]["starttime"] = host.starttime(pid)
    (rec / "session.json").write_text(json.dumps(session))
    assert pulled() == whole - {"segments/cpu3-0.pages"}


def test_it_needs_the_standard_library_of_3_9_only(project_root: Path) -> None:
    for path in (project_root / "harness/kstall_node").glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names | {"kstall_node"}, path


def test_each_class_has_a_source_and_each_source_a_name() -> None:
    names = [one.name for one in catalogue.SOURCES]
    assert len(names) == len(set(names))
    assert {one.cls for one in catalogue.SOURCES} == set(catalogue.CLASSES)
    for source in catalogue.SOURCES:
        for spec in sources.specs(source, "kstall_1_2"):
            assert bool(spec.get("begin")) == bool(spec.get("key"))
        probes = [
            probe.name for one in catalogue.of(source.cls) for probe in one.probes
        ]
        assert len(probes) >= len(set(probes))


def test_who_marks_is_looked_up(node: Node, tmp_path: Path) -> None:
    """A rank that began after the last look, and of which there is no stall."""
    number = 5
    text = b"kstall step=1 phase=enter\n\0"
    data = number.to_bytes(2, "little") + bytes(2) + (4321).to_bytes(4, "little")
    data += bytes(8) + text
    pages_ = page(time.monotonic_ns(), [entry(0, data.ljust((len(data) + 3) & ~3))])

    class Later(record.Recorder):
        """It comes when all have been looked at."""

        def _loop(self) -> None:
            node.process(4321, environ=b"RANK=2\0WORLD_SIZE=3\0SLURM_JOB_ID=9\0")
            node.trace("per_cpu/cpu0/trace_pipe_raw", pages_)
            super()._loop()

    settings = record.Settings(tmp_path / "o", ["throttle"], seconds=0.3)
    assert Later(Host(str(node.root)), settings).run() == 0
    seal.seal([only(tmp_path / "o")], tmp_path / "s")
    _, rows, _ = store.query(tmp_path / "s", "SELECT job, rank, step FROM mark")
    assert rows == [("9", 2, 1)]
