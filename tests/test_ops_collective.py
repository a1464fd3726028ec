# SPDX-License-Identifier: GPL-2.0-or-later
"""Collectives of imported dumps: whose they are, who was late, and what caps claims."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flightdumps
from flightdumps import REAL, Watched, entry, jsoned, pickled
from kstall_ops import (
    chains,
    cli,
    collective,
    explain,
    page,
    seal,
    store,
    timeline,
    window,
    wording,
)
from recordings import BEGAN, MS, SECOND, Node, Training, culprit

RANKS = range(3)


@pytest.fixture
def real(project_root: Path) -> Path:
    """What a gloo job of PyTorch 2.13 left: see the README beside it."""
    return project_root / "tests/data/flight"


def sealed(tmp_path: Path, nodes: list[Node]) -> Path:
    for number, node in enumerate({id(one): one for one in nodes}.values()):
        node.write(tmp_path / "rec" / f"r{number}")
    seal.seal([tmp_path / "rec"], tmp_path / "s.duckdb")
    return tmp_path / "s.duckdb"


def report(
    tmp_path: Path, nodes: list[Node], dumps: list[dict[str, Any]]
) -> explain.Report:
    made = sealed(tmp_path, nodes)
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    assert not done.left_out
    return explain.report(made)


def verdict(made: explain.Report) -> chains.Verdict:
    (one,) = made.verdicts
    return one


def rows(path: Path, columns: str = "*") -> list[tuple[Any, ...]]:
    return store.query(path, f"SELECT {columns} FROM collective ORDER BY rank, seq")[1]


# -- what PyTorch wrote ---------------------------------------------------------------


def test_a_real_dump_says_when_the_host_enqueued(real: Path, tmp_path: Path) -> None:
    """The job looked at its node's clock just before, and when it had left."""
    made = tmp_path / "s.duckdb"
    seal.seal([real / "recording"], made)
    done = collective.add([real / f"nccl_trace_rank_{rank}" for rank in RANKS], made)
    assert (len(done.added), done.collectives, done.left_out) == (3, 72, [])
    (remark,) = done.remarks
    assert remark.startswith("ranks 0-2: 1 collectives are left out: a rank may leave")
    lines = (real / "truth.jsonl").read_text().splitlines()
    truth = [json.loads(line) for line in lines]
    found = rows(
        made, "rank, t, bound, started_by, ended_by, lasted, op, world, thread"
    )
    assert len(found) == len(truth)
    for (rank, t, bound, *rest), said in zip(found, truth, strict=True):
        assert rank == said["rank"] and bound < 100_000
        assert said["enter"] - bound <= t <= said["exit"] + bound
        # Gloo notes nothing of an end, nor how long it was.
        assert rest == [None, None, None, "gloo:all_reduce", 3, "stack"]


def test_a_real_dump_names_who_was_late(real: Path, tmp_path: Path) -> None:
    made = tmp_path / "s.duckdb"
    words = ["seal", str(real / "recording"), "--flight-recorder", str(real)]
    assert cli.main([*words, "-o", str(made)]) == 0
    one = verdict(explain.report(made))
    (late,) = one.stragglers
    pids = dict(store.query(made, "SELECT DISTINCT rank, tgid FROM collective")[1])
    assert (late.rank, late.node, late.tid) == (1, "node0", pids[1])
    assert set(range(6, 26)) <= set(late.steps)
    assert 20 * 55 * MS < late.lateness_ns < 24 * 75 * MS
    said = wording.as_text(explain.report(made))
    assert (
        "job gloo, process group 0 (default_pg, gloo): ranks 0-2, 23 steps of 8" in said
    )
    assert (
        "arrives when its host enqueues it, if its tensors are not on a GPU\n" in said
    )
    assert "no marks" not in said


@pytest.mark.parametrize("first", ["recording", "dumps"])
def test_two_that_write_one_store_at_once_lose_nothing(
    real: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: str,
) -> None:
    """Each copies the store and replaces it, so the second has to wait."""
    made = tmp_path / "s.duckdb"
    seal.seal([real / "recording"], made)
    rec = Node("other", "other").write(tmp_path / "rec")
    writers: list[Callable[[], object]] = [
        lambda: seal.seal([rec], made),
        lambda: collective.add([real / "nccl_trace_rank_0"], made),
    ]
    if first == "dumps":
        writers.reverse()
    other = threading.Thread(target=writers[1])
    copy = store.copy

    def meanwhile(*args: Any, **more: Any) -> None:
        copy(*args, **more)
        if other.ident is None:
            other.start()
            while other.is_alive() and "kstall: waiting" not in capsys.readouterr().err:
                time.sleep(0.01)

    monkeypatch.setattr(store, "copy", meanwhile)
    writers[0]()
    other.join()
    assert len(rows(made)) == 24
    assert len(store.query(made, "FROM session")[1]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rec", "s.duckdb"]


def test_a_part_of_the_time(real: Path, tmp_path: Path) -> None:
    made = tmp_path / "s.duckdb"
    words = ["seal", str(real / "recording"), "--flight-recorder", str(real)]
    assert cli.main([*words, "-o", str(made)]) == 0
    sql = "SELECT min_by(t_real - t_mono, t_mono) FROM clock"
    ((ahead,),) = store.query(made, sql)[1]
    times = {seq: t + ahead for seq, t in rows(made, "seq, t")}
    asked = window.Window(times[8], times[15])
    steps = verdict(explain.report(made, None, asked)).job.steps
    assert [step.number for step in steps] == list(range(9, 15))
    assert len(verdict(explain.report(made)).job.steps) == 23


# -- with timing: by each device's own clock ------------------------------------------


def skewed(rank: int) -> int:
    return rank * 37 * SECOND


def test_by_what_devices_waited_no_clock_is_compared(tmp_path: Path) -> None:
    """Clocks of nodes are 37 s apart, nobody knows by how much."""
    job = culprit()
    job.skew = skewed
    nodes = job.nodes()
    made = report(tmp_path, nodes, Watched().of(nodes, skewed))
    one = verdict(made)
    (late,) = one.stragglers
    assert (late.rank, late.node, late.tid) == (1, "node1", 4000)
    # Numbers of collectives begin with 1.
    assert late.steps == tuple(range(21, 41))
    assert abs(late.lateness_ns - 20 * 80 * MS) < 20 * MS
    (finding,) = late.findings
    assert (finding.cls, finding.level, finding.severity, finding.caps) == (
        *("throttle", "explains", "high"),
        (),
    )
    assert finding.coverage and finding.coverage > 0.95
    assert (finding.job, late.unordered) == ("train", ())
    said = wording.as_text(made)
    assert "ranks 0-2, 59 steps of 103.2 ms (median)" in said
    assert "a rank waits for as long as its device is in it\n" in said
    assert "thread 4000, late in 20 of 59 steps (21-40)" in said
    assert [one["bound_ns"] for one in made.clocks].count(None) == 0
    (told,) = json.loads(json.dumps(explain.as_json(made), default=str))["jobs"]
    assert (told["job"], told["process_group"]) == ("train", "0 (default_pg, nccl)")
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    assert "Rank 1 on node1 was late in 20" in (tmp_path / "page.html").read_text()
    assert timeline.write(tmp_path / "s.duckdb", tmp_path / "t.pftrace") > 3 * 59 * 4
    _, found, _ = explain.query(
        tmp_path / "s.duckdb", "SELECT job, process_group, level FROM finding"
    )
    assert found == [("train", "0 (default_pg, nccl)", "explains")]


def test_a_host_far_ahead_of_its_device_is_not_why(tmp_path: Path) -> None:
    """The device has work for longer than the host was kept from adding more."""
    job = culprit()
    nodes = job.nodes()
    dumps = Watched().of(nodes)
    for rank, dump in enumerate(dumps):
        for number, one in enumerate(dump["entries"]):
            # All was enqueued in one go long before.
            one["time_created_ns"] = dumps[rank]["entries"][0]["time_created_ns"]
            one["time_created_ns"] += number * MS
            one["time_discovered_started_ns"] = None
    (late,) = verdict(report(tmp_path, nodes, dumps)).stragglers
    assert late.rank == 1 and not late.explained
    timeline.write(tmp_path / "s.duckdb", tmp_path / "t.pftrace")
    made = explain.report(tmp_path / "s.duckdb")
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")


def two_late(interval: int) -> tuple[list[Node], list[dict[str, Any]]]:
    def slow(rank: int, step: int) -> int:
        return 80 * MS if rank in (1, 2) and 20 <= step < 50 else 0

    nodes = Training(extra=slow).nodes()
    for node in nodes:
        for t in (node.began, node.began + 60 * SECOND):
            clock = {"t_mono": t, "offset": 0, "bound": 1000, "t_real": None}
            node.fact("clock", peer="here", method="ping", **clock)
    return nodes, Watched(interval=interval).of(nodes)


@pytest.mark.parametrize("interval", [MS // 10, 100 * MS])
def test_how_often_a_watchdog_looks_limits_what_is_ordered(
    tmp_path: Path, interval: int
) -> None:
    """Both are as late; when devices arrived is known up to the next look only."""
    nodes, dumps = two_late(interval)
    one = verdict(report(tmp_path, nodes, dumps))
    stragglers = one.stragglers
    assert stragglers
    said = {
        row[:2]: row[2:]
        for row in rows(
            tmp_path / "s.duckdb", "seq, rank, t, bound, started_by, ended_by, lasted"
        )
    }
    for step in one.job.steps:
        for rank, arrival in step.arrivals.items():
            t, bound, started, ended, lasted = said[step.number, rank]
            latest = min(started, ended - lasted)
            assert (arrival.early, arrival.late) == (bound, bound + latest - t)
    for late in stragglers:
        seen = [one for one in late.unordered if one.rank in (1, 2)]
        if interval == MS // 10:
            unordered = {step for one in seen for step in one.steps}
            assert len(unordered) < len(late.steps) / 2
            continue
        (rival,) = seen
        assert len(rival.steps) > 0.9 * len(late.steps)
        assert rival.within_ns and 20 * MS < rival.within_ns < 110 * MS


def test_also_on_one_node(tmp_path: Path) -> None:
    """Which of two devices came first its one clock does not tell."""

    def slow(rank: int, step: int) -> int:
        return 80 * MS if rank in (1, 2) and 20 <= step < 50 else 0

    nodes = Training(extra=slow).nodes(one_node=True)
    for late in verdict(report(tmp_path, nodes, Watched().of(nodes))).stragglers:
        (rival,) = late.unordered
        assert {late.rank, rival.rank} == {1, 2}


# -- without: when hosts enqueued -----------------------------------------------------


def enqueued(
    tmp_path: Path,
    bound: int | None,
    backend: str = "nccl",
    job: Training | None = None,
) -> explain.Report:
    """Dumps without timing, of nodes whose clocks are known up to ``bound``."""
    job = job or culprit()
    job.skew = skewed
    nodes = job.nodes()
    dumps = Watched(timing=False, backend=backend).of(nodes, skewed)
    for rank, node in enumerate(nodes):
        for t in (node.began, node.began + 60 * SECOND):
            if bound is not None:
                clock = {"t_mono": t, "offset": -skewed(rank), "bound": bound}
                node.fact("clock", t_real=None, peer="here", method="ping", **clock)
    return report(tmp_path, nodes, dumps)


def test_who_enqueued_last_may_not_be_who_was_waited_for(tmp_path: Path) -> None:
    made = enqueued(tmp_path, MS)
    (late,) = verdict(made).stragglers
    assert (late.rank, late.steps) == (1, tuple(range(21, 41)))
    # At least so late, by clocks that may both be off, and drift until then.
    assert 20 * 77 * MS < late.lateness_ns < 20 * 79 * MS
    (finding,) = late.findings
    assert (finding.level, finding.severity) == ("coincides", "note")
    assert finding.caps == ("whether devices waited for its host is not in the dumps",)
    said = wording.as_text(made)
    assert "late to enqueue in 20 of 59 steps (21-40)" in said
    assert "TORCH_NCCL_ENABLE_TIMING=1 records it" in said
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    assert "was late to enqueue in 20" in (tmp_path / "page.html").read_text()


def test_whom_the_bounds_of_clocks_do_not_tell_apart(tmp_path: Path) -> None:
    """20 ms are more than a step is late from, and less than both may be off."""

    def slow(rank: int, step: int) -> int:
        return (0, 80, 60)[rank] * MS if 20 <= step < 50 else 0

    made = enqueued(tmp_path, 12 * MS, "gloo", Training(extra=slow))
    (late,) = verdict(made).stragglers
    assert late.rank == 1
    (rival,) = late.unordered
    assert (rival.rank, len(rival.steps)) == (2, len(late.steps))
    assert rival.within_ns and 24 * MS <= rival.within_ns < 26 * MS


def test_gloo_begins_when_it_is_told_to(tmp_path: Path) -> None:
    (late,) = verdict(enqueued(tmp_path, MS, "gloo")).stragglers
    (finding,) = late.findings
    assert (late.rank, finding.level, finding.caps) == (1, "explains", ())


@pytest.mark.parametrize("one_node", [True, False])
def test_of_several_in_one_go_the_first_was_waited_for(
    tmp_path: Path, one_node: bool
) -> None:
    """As buckets of gradients: a rank that is late for the first is so for all."""
    nodes = culprit().nodes(one_node)
    dumps = Watched(timing=False, backend="gloo").of(nodes)
    for dump in dumps:
        dump["entries"] = [
            entry(
                3 * one["collective_seq_id"] + at,
                one["time_created_ns"] + at * MS // 5,
                profiling_name="gloo:all_reduce",
            )
            for one in dump["entries"]
            for at in range(3)
        ]
    for node in nodes if not one_node else ():
        for t in (node.began, node.began + 60 * SECOND):
            clock = {"t_mono": t, "offset": 0, "bound": 100_000, "t_real": None}
            node.fact("clock", peer="here", method="ping", **clock)
    made = report(tmp_path, nodes, dumps)
    (late,) = verdict(made).stragglers
    assert abs(late.lateness_ns - 20 * 80 * MS) < 30 * MS
    assert late.steps == tuple(range(3 * 21, 3 * 41, 3))
    assert late.explained


def test_clocks_that_cannot_be_compared_say_nothing(tmp_path: Path) -> None:
    made = enqueued(tmp_path, None, "gloo")
    one = verdict(made)
    assert (one.job.steps, one.stragglers) == ([], [])
    said = wording.as_text(made)
    assert "60 steps are left out: the clocks of their nodes are not aligned" in said
    assert "no rank was late" not in said


def test_by_their_ends_clocks_are_known_up_to_a_watchdogs_interval(
    tmp_path: Path,
) -> None:
    """Nobody leaves before all have entered: a bound, and here a wide one."""
    made = enqueued(tmp_path, None)
    one = verdict(made)
    with store.reading(tmp_path / "s.duckdb") as opened:
        clocks = explain.clocks_of(opened).values()
    bounds = {clock.method: clock.points[0].bound for clock in clocks}
    assert bounds["reference"] == 0 and 10 * MS < bounds["collective"] < 100 * MS
    for late in one.stragglers:
        assert late.rank == 1 and not late.explained


def test_ranks_of_one_boot_need_no_bound(tmp_path: Path) -> None:
    """Against its neighbour a rank is late, whatever is known of other nodes."""
    nodes = culprit().nodes()
    dumps = Watched(timing=False, backend="gloo").of(nodes)
    nodes[1].boot_id = nodes[0].boot_id
    for node in nodes:
        for t in (node.began, node.began + 60 * SECOND):
            clock = {"t_mono": t, "offset": 0, "bound": 60 * MS, "t_real": None}
            node.fact("clock", peer="here", method="ping", **clock)
    (late,) = verdict(report(tmp_path, nodes, dumps)).stragglers
    assert (late.rank, late.steps) == (1, tuple(range(21, 41)))
    assert abs(late.lateness_ns - 20 * 80 * MS) < 20 * MS


def test_clocks_that_are_too_wide_make_nobody_late(tmp_path: Path) -> None:
    made = enqueued(tmp_path, 60 * MS)
    assert not verdict(made).stragglers
    assert "clocks of its nodes can be compared up to 6" in wording.as_text(made)


def test_one_clock_needs_no_bound(tmp_path: Path) -> None:
    """What watchdogs saw, each at its own times, does not come in."""
    nodes = culprit().nodes(one_node=True)
    made = report(tmp_path, nodes, Watched(timing=False).of(nodes))
    (late,) = verdict(made).stragglers
    assert (late.rank, late.steps, late.unordered) == (1, tuple(range(21, 41)), ())
    assert abs(late.lateness_ns - 20 * 80 * MS) < 20 * MS


def test_nothing_wrong_nothing_said(tmp_path: Path) -> None:
    for number, timing in enumerate((True, False)):
        nodes = Training().nodes(one_node=True)
        made = report(tmp_path / str(number), nodes, Watched(timing).of(nodes))
        assert verdict(made).outcome == "nothing"
        word = "late" if timing else "late to enqueue"
        assert f"  no rank was {word}\n" in wording.as_text(made) + "\n"


# -- which thread ---------------------------------------------------------------------


def test_without_a_stack_the_first_thread_is_assumed_and_no_more(
    tmp_path: Path,
) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    made = sealed(tmp_path, nodes)
    for rank, dump in enumerate(dumps):
        path = tmp_path / f"rank{rank}.json"
        path.write_bytes(jsoned(dump))
        collective.add([path], made)
    (late,) = verdict(explain.report(made)).stragglers
    (finding,) = late.findings
    assert (late.tid, finding.level) == (4000, "coincides")
    (cap,) = finding.caps
    assert cap == "which thread enqueued is not in its dump: the first is assumed"
    assert (
        "ranks 0-2: which thread enqueued is not in the dumps, the first"
        in wording.as_text(explain.report(made))
    )
    # The other form has the stacks: then it is known.
    collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    (late,) = verdict(explain.report(made)).stragglers
    assert late.explained


AUTOGRAD = {"thread_name": "pt_autograd_0", "frames": []}


@pytest.mark.parametrize("count", [1, 2])
def test_a_thread_that_has_a_name_of_its_own(tmp_path: Path, count: int) -> None:
    """As backward passes have: it was stalled, and the first thread was not."""
    nodes = culprit().nodes()
    for node in nodes:
        for number in range(count):
            node.proc(4001 + number, tgid=4000, comm="pt_autograd_0", rank=None)
        node.events = [
            (*one[:4], {**one[4], "task": 4001}) if "task" in one[4] else one
            for one in node.events
        ]
    dumps = Watched(more=dict.fromkeys(RANKS, AUTOGRAD)).of(nodes)
    (late,) = verdict(report(tmp_path, nodes, dumps)).stragglers
    (finding,) = late.findings
    threads = {row[0] for row in rows(tmp_path / "s.duckdb", "thread")}
    if count == 1:
        assert (late.tid, finding.level, threads) == (4001, "explains", {"name"})
    else:
        assert (late.tid, finding.level, threads) == (4000, "coincides", {"assumed"})


def test_a_rank_that_enqueues_from_two_threads(tmp_path: Path) -> None:
    """Forward from the first one, backward from autograd's: it was late in these."""
    nodes = culprit().nodes()
    for node in nodes:
        node.proc(4001, tgid=4000, comm="pt_autograd_0", rank=None)
    dumps = Watched().of(nodes)
    for dump in dumps:
        for one in dump["entries"][21:]:
            one |= AUTOGRAD
    (late,) = verdict(report(tmp_path, nodes, dumps)).stragglers
    assert late.tid == 4001


def test_a_name_that_the_first_thread_has_is_nobodys(tmp_path: Path) -> None:
    """Threads are born with it; one that lived for a moment was not even seen."""
    frames = [{"name": "_bootstrap", "filename": "threading.py", "line": 1}]
    nodes = culprit().nodes()
    dumps = Watched(more={1: {"frames": frames}}).of(nodes)
    made = report(tmp_path, nodes, dumps)
    (late,) = verdict(made).stragglers
    (finding,) = late.findings
    assert (late.tid, finding.level) == (None, "coincides")
    said = wording.as_text(made)
    assert "rank 1 on node1, thread unknown, late in" in said
    assert "cause: not known, as it is not known which of its threads was" in said
    assert "rank 1: which thread enqueued is not in the dumps, but not the" in said
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    timeline.write(tmp_path / "s.duckdb", tmp_path / "t.pftrace")


# -- dumps that are wrong, and not seen to be by their form ---------------------------


def _exchanged(dumps: list[dict[str, Any]]) -> None:
    """Started and completed."""
    a, b = "time_discovered_started_ns", "time_discovered_completed_ns"
    for dump in dumps:
        for one in dump["entries"]:
            one[a], one[b] = one[b], one[a]


def _nanoseconds(dumps: list[dict[str, Any]]) -> None:
    for dump in dumps:
        for one in dump["entries"]:
            one["duration_ms"] *= 1e6


def _microseconds(dumps: list[dict[str, Any]]) -> None:
    for dump in dumps:
        for one in dump["entries"]:
            for name in list(one):
                if name.endswith("_ns") and one[name]:
                    one[name] //= 1000


def _monotonic(dumps: list[dict[str, Any]]) -> None:
    for dump in dumps:
        for one in dump["entries"]:
            for name in list(one):
                if name.endswith("_ns"):
                    one[name] -= REAL


@pytest.mark.parametrize(
    ("mutate", "timing", "complaint"),
    [
        (_nanoseconds, True, "60 collectives are left out: their times do not fit"),
        (_microseconds, True, "60 collectives are left out: their times do not fit"),
        (_microseconds, False, "was recorded on node0 from 2027-01-15 08:01:40 to"),
        (_monotonic, True, "its collectives are of 1970-01-01 00:01:41 to 1970-"),
    ],
)
def test_mutants_of_dumps_are_refused(
    tmp_path: Path,
    mutate: Callable[[list[dict[str, Any]]], None],
    timing: bool,
    complaint: str,
) -> None:
    nodes = culprit().nodes()
    dumps = Watched(timing).of(nodes)
    mutate(dumps)
    made = sealed(tmp_path, nodes)
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    assert not done.added and len(done.left_out) == 3
    assert complaint in done.left_out[0]


def test_starts_taken_for_ends_explain_nothing(tmp_path: Path) -> None:
    """Where a watchdog saw both at one look they fit as well."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    _exchanged(dumps)
    made = sealed(tmp_path, nodes)
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    assert "their times do not fit each other" in done.remarks[0]
    late = verdict(explain.report(made)).stragglers
    assert not any(one.explained for one in late)


@pytest.mark.parametrize("timing", [True, False])
def test_exchanged_ranks_are_not_explained(tmp_path: Path, timing: bool) -> None:
    """No dump says whose it is; a thread that is stalled enqueues nothing."""
    nodes = culprit().nodes()
    dumps = Watched(timing, backend="nccl" if timing else "gloo").of(nodes)
    dumps[1], dumps[2] = dumps[2], dumps[1]
    for node in nodes:
        for t in (node.began, node.began + 60 * SECOND):
            clock = {"t_mono": t, "offset": 0, "bound": 1000, "t_real": None}
            node.fact("clock", peer="here", method="ping", **clock)
    made = report(tmp_path, nodes, dumps)
    assert not any(late.explained for late in verdict(made).stragglers)
    # Late by its dump is another one than who was throttled.
    assert [late.rank for late in verdict(made).stragglers] == [2]


def test_who_enqueued_while_its_thread_was_stalled_caps(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for one in dumps[1]["entries"][20:40]:
        # Within the stall that made it late.
        one["time_created_ns"] -= 100 * MS
    made = report(tmp_path, nodes, dumps)
    (late,) = verdict(made).stragglers
    assert not late.explained
    assert "20 collectives that were enqueued while their thread was stalled" in (
        wording.as_text(made)
    )


# -- whose dump it is -----------------------------------------------------------------


def one_dump(tmp_path: Path, rank: int = 1, **more: Any) -> tuple[Path, Path]:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    path = tmp_path / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickled(dumps[1] | more))
    return sealed(tmp_path, nodes), path


def refusal(store_: Path, *dumps: Path, job: str | None = None) -> str:
    done = collective.add(dumps, store_, job)
    assert not done.added
    (text,) = done.left_out
    assert "\n" not in text and text.startswith(f"{dumps[0]}: ")
    return text


def test_a_rank_that_nobody_recorded(tmp_path: Path) -> None:
    made, path = one_dump(tmp_path, rank=7, pg_config={})
    text = refusal(made, path)
    assert "no process of rank 7 is in" in text
    assert "which has ranks 0-2 of job train: seal the recording of its node" in text
    assert "of rank 7 of job other is in" in refusal(made, path, job="other")


def test_another_run(tmp_path: Path) -> None:
    late = [entry(1, REAL + BEGAN + 3600 * SECOND)]
    made, path = one_dump(tmp_path, entries=late)
    text = refusal(made, path)
    assert (
        "its collectives are of 2027-01-15 09:01:40 to 2027-01-15 09:01:40 UTC" in text
    )
    assert "rank 1 was recorded on node1 from 2027-01-15 08:01:40 to 20" in text
    assert text.endswith("not of that run")


def test_a_job_of_another_size(tmp_path: Path) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    made, path = one_dump(tmp_path, pg_config=config)
    text = refusal(made, path)
    assert "is of 4 ranks up to 3, but job train has 3: not a dump of this job" in text


def test_a_recording_without_real_time(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for node in nodes:
        node.facts = [fact for fact in node.facts if fact["kind"] != "clock"]
    path = tmp_path / "nccl_trace_rank_1"
    path.write_bytes(pickled(dumps[1]))
    text = refusal(sealed(tmp_path, nodes), path)
    assert "was recorded on node1, whose recording has no real time" in text


def test_two_jobs_at_one_time(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for rank in RANKS:
        nodes[rank].proc(9000, job="other\x1b", rank=rank, world=3)
    made = sealed(tmp_path, nodes)
    paths = flightdumps.write(dumps, tmp_path / "fr")
    done = collective.add(paths, made)
    assert len(done.left_out) == 3 and not done.added
    assert "in job other\\x1b, job train: say with --job which" in done.left_out[0]
    assert len(collective.add(paths, made, "train").added) == 3
    assert {row[0] for row in rows(made, "tgid")} == {4000}


def test_two_runs_of_one_name_at_one_time(tmp_path: Path) -> None:
    """As torchrun calls all that have no name."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    nodes[2].proc(9000, job="train", rank=0, world=3)
    made = sealed(tmp_path, nodes)
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    (text,) = done.left_out
    assert "rank 0 of job train was recorded at that time on node0, node2: seal" in text


def test_two_runs_of_one_name_on_one_node(tmp_path: Path) -> None:
    """Nothing tells which of them a dump is of."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for node in nodes:
        rank = node.facts[0]["rank"]
        for pid, threads in ((4000, 12), (9000, 9), (9100, 3)):
            if pid != 4000:
                node.proc(pid, job="train", rank=rank, world=3)
            for tid in range(pid + 1, pid + threads):
                node.proc(tid, f"t{tid}", tgid=pid, job="train", rank=rank, world=3)
    made = sealed(tmp_path, nodes)
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    (text,) = done.remarks
    assert text.startswith("ranks 0-2: 1 more processes of that rank and job on that")
    (late,) = verdict(explain.report(made)).stragglers
    assert (late.tid, late.explained, late.findings[0].level) == (
        *(4000, False),
        "coincides",
    )


def test_children_of_a_rank_are_not_taken_for_it(tmp_path: Path) -> None:
    """Loaders have its environment; one was there before the dump begins."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for node in nodes:
        rank = node.facts[0]["rank"]
        for pid, since in ((3000, 2), (5000, BEGAN + 2 * SECOND)):
            node.proc(pid, job="train", rank=rank, world=3, starttime=since)
    made = sealed(tmp_path, nodes)
    paths = flightdumps.write(dumps, tmp_path / "fr")
    assert len(collective.add(paths, made).added) == 3
    assert {row[0] for row in rows(made, "tgid")} == {4000}


def test_the_shell_that_began_a_rank_is_not_taken_for_it(tmp_path: Path) -> None:
    """It was there before, and to the end; what a launcher says of it may be else."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for node in nodes:
        rank, since = node.facts[0]["rank"], BEGAN + SECOND // 2
        node.proc(3000, "bash", job="train", rank=rank, world=3)
        node.proc(3001, "torchrun", job="77", rank=rank, world=1)
        for tid in range(3002, 3009):
            node.proc(tid, "torchrun", tgid=3001, job="77", rank=rank, world=1)
        node.facts[0]["starttime"] = since
        node.proc(4001, "pt_nccl_watchdg", tgid=4000, job="train", rank=rank, world=3)
    made = sealed(tmp_path, nodes)
    paths = flightdumps.write(dumps, tmp_path / "fr")
    assert len(collective.add(paths, made).added) == 3
    assert {row[0] for row in rows(made, "tgid")} == {4000}


def test_of_a_job_that_was_started_again_it_is_that_start(tmp_path: Path) -> None:
    """That the first one's process is gone was seen when the second one was there."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for node in nodes:
        rank, began = node.facts[0]["rank"], BEGAN + SECOND // 2
        node.proc(3000, job="train", rank=rank, world=3)
        node.fact("gone", pid=3000, starttime=1, t=began + 2 * SECOND)
        node.facts[0]["starttime"] = began
    made = sealed(tmp_path, nodes)
    assert (
        len(collective.add(flightdumps.write(dumps, tmp_path / "fr"), made).added) == 3
    )
    assert {row[0] for row in rows(made, "tgid")} == {4000}


def test_a_clock_that_was_set_meanwhile(tmp_path: Path) -> None:
    """What was enqueued between the looks before and after cannot be placed."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    nodes[1].facts = [fact for fact in nodes[1].facts if fact["kind"] != "clock"]
    for t in range(BEGAN, BEGAN + 70 * SECOND, 2 * SECOND):
        real = t + REAL + (3600 * SECOND if t > BEGAN + 4 * SECOND else 0)
        nodes[1].fact("clock", t_mono=t, t_real=real, bound=None, method="adjtimex")
    made = sealed(tmp_path, nodes)
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    (text,) = [one for one in done.remarks if "was set" in one]
    assert text.startswith("rank 1: ")
    found = [row[0] for row in rows(made, "t, rank") if row[1] == 1]
    assert found and all(t <= BEGAN + 4 * SECOND for t in found)


def test_a_clock_that_was_looked_at_for_days() -> None:
    """Each look is off by some microseconds; of 10 days there are 86,400."""
    pairs = [
        (at * 10 * SECOND, at * 10 * SECOND + REAL + at % 3 * 2000)
        for at in range(86_400)
    ]
    # Once it was set back, by 5 s.
    pairs[50_000:] = [(mono, real - 5 * SECOND) for mono, real in pairs[50_000:]]
    wall = collective._Wall(pairs)
    begun = time.process_time()
    for at in range(0, 86_400, 100):
        t = at * 10 * SECOND + 3 * SECOND
        real = t + REAL - (5 * SECOND if at >= 50_000 else 0)
        found = wall.at(real)
        assert found and abs(found[0] - t) <= found[1] <= 10_000
    assert time.process_time() - begun < 0.5
    # Then it was twice, or not known.
    assert wall.at(pairs[50_000][1] - SECOND) is None


def test_what_was_enqueued_before_the_recorder_is_left_out(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    early = dumps[0]["entries"][10]["time_created_ns"] - REAL - MS
    nodes[0].began = early
    nodes[0].events = [one for one in nodes[0].events if one[0] > early]
    made = sealed(tmp_path, nodes)
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    (text,) = done.remarks
    assert text.startswith("rank 0: 10 collectives are left out: they were enqueued")
    said = wording.as_text(explain.report(made))
    assert (
        "10 steps are left out: they are not in the dumps of all ranks, 10 not in what "
        "rank 0 left: dumps of one time have"
    ) in said
    assert "marks from outside" not in said


def test_a_recorder_that_was_started_again_has_the_rest(tmp_path: Path) -> None:
    """One process, in two recordings of one boot: each has what it was there for."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    at = dumps[0]["entries"][30]["time_created_ns"] - REAL - MS
    second = Node(nodes[0].name, nodes[0].boot_id, at, nodes[0].ended)
    second.facts = [fact for fact in nodes[0].facts if fact["kind"] != "clock"]
    for t in range(at, at + 30 * SECOND, 10 * SECOND):
        second.fact("clock", t_mono=t, t_real=t + REAL, bound=None, method="adjtimex")
    nodes[0].ended = at - 1
    made = sealed(tmp_path, [*nodes, second])
    done = collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    assert not done.remarks
    found = store.query(
        made, "SELECT count(*) FROM collective WHERE rank = 0 GROUP BY sid"
    )
    assert sorted(found[1]) == [(30,), (30,)]
    (late,) = verdict(explain.report(made)).stragglers
    assert late.rank == 1


def test_half_a_surrogate_pair_in_a_name(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    group = {"process_group": ("0", "x\ud800\0"), "thread_name": "\udfff\0"}
    group |= {"profiling_name": "nccl:all_reduce\ud800"}
    dumps = Watched(more=dict.fromkeys(RANKS, group)).of(nodes)
    made = sealed(tmp_path, nodes)
    paths = flightdumps.write(dumps, tmp_path / "fr")
    assert len(collective.add(paths, made).added) == 3
    assert len(collective.add(paths, made).same) == 3
    said = wording.as_text(explain.report(made))
    assert "process group 0 (x" in said and said.encode()


# -- groups ---------------------------------------------------------------------------


def test_who_is_late_as_it_waited_in_another_group(tmp_path: Path) -> None:
    """Rank 3 keeps its peer, which is throttled at that time, and through it all."""

    def slow(rank: int, step: int) -> int:
        return (0, 0, 80, 79)[rank] * MS if 20 <= step < 40 else 0

    nodes = Training(ranks=4, extra=slow, throttled=slow).nodes()
    dumps = Watched().of(nodes)
    made = sealed(tmp_path, nodes)
    collective.add(flightdumps.write(dumps, tmp_path / "alone"), made)
    (late,) = verdict(explain.report(made)).stragglers
    assert late.rank == 2 and late.explained
    for rank, dump in enumerate(dumps):
        number, pair = str(1 + rank // 2), [rank // 2 * 2, rank // 2 * 2 + 1]
        dump["pg_config"][number] = {"name": number, "desc": "tp", "ranks": str(pair)}
        for one in list(dump["entries"]):
            step = one["collective_seq_id"] - 1
            before = 90 * MS + slow(rank, step)
            waits = 5 + (80 if rank == 2 and 20 <= step < 40 else 0)
            ended = one["time_created_ns"] - before + 200 * MS
            more = {"process_group": (number, "tp"), "duration_ms": float(waits)}
            more |= {"time_created_ns": one["time_created_ns"] - before, "pg_id": 1}
            more |= {"time_discovered_started_ns": None}
            dump["entries"].append(one | more | {"time_discovered_completed_ns": ended})
    collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    found = {one.job.group: one for one in explain.report(made).verdicts}
    (late,) = found["0 (default_pg, nccl)"].stragglers
    assert late.rank == 2 and not late.explained
    waited = (
        "waited 1600.0 ms longer than else in process group 2 (tp, ranks 2-3, nccl)"
    )
    assert late.findings[0].caps == (f"it {waited}, before",)
    assert f"  ! rank 2 {waited} before it was late here: look there" in (
        wording.as_text(explain.report(made))
    )
    (late,) = found["2 (tp, ranks 2-3, nccl)"].stragglers
    assert late.rank == 3
    assert not any(
        "longer than else" in text
        for text in found["2 (tp, ranks 2-3, nccl)"].job.remarks
    )


@pytest.mark.parametrize("split", [False, True])
def test_each_process_group_is_judged_by_itself(tmp_path: Path, split: bool) -> None:
    """Ranks 0 and 1 have one more, whose numbers are its own, and 2 and 3.

    Older versions of PyTorch call all by one name that a group is split into.
    """
    nodes = Training(ranks=4).nodes(one_node=True)
    dumps = Watched().of(nodes)
    name = "\x1b[2Jtp"
    for rank, dump in enumerate(dumps):
        pair = "[0, 1]" if rank < 2 else "[2, 3]"
        number = "5" if split else str(5 + rank // 2)
        dump["pg_config"][number] = {"name": number, "desc": name, "ranks": pair}
        for one in list(dump["entries"]):
            more = dict(one, pg_id=1, process_group=(number, name))
            more["time_created_ns"] -= 10 * MS * (rank == 2)
            more["duration_ms"] += 10 * (rank == 2)
            dump["entries"].append(more)
    made = report(tmp_path, nodes, dumps)
    found = [(one.job.group, one.job.ranks, one.outcome) for one in made.verdicts]
    assert found == [
        ("0 (default_pg, nccl)", (0, 1, 2, 3), "nothing"),
        (f"5 ({name}, ranks 0-1, nccl)", (0, 1), "nothing"),
        (f"{number} ({name}, ranks 2-3, nccl)", (2, 3), "straggler"),
    ]
    (late,) = made.verdicts[2].stragglers
    assert late.rank == 3
    said = wording.as_text(made)
    title = f"job train, process group {number} (\\x1b[2Jtp, ranks 2-3, nccl): "
    assert f"{title}ranks 2-3, 59 steps" in said
    assert "\x1b" not in said
    assert len(explain.report(tmp_path / "s.duckdb", "train").verdicts) == 3


def test_many_groups_in_which_nobody_was_late(tmp_path: Path) -> None:
    """Who was late is not to be looked for among all of these."""
    nodes = Training(ranks=16).nodes(one_node=True)
    dumps = Watched().of(nodes)
    for rank, dump in enumerate(dumps):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        dump["pg_config"]["1"] = {"name": "1", "desc": "tp", "ranks": str(pair)}
        dump["pg_config"]["2"] = {"name": "2", "desc": "pp", "ranks": f"[{rank}]"}
        for one in list(dump["entries"]):
            pp = one | {"pg_id": 2, "process_group": ("2", "pp")}
            more = one | {"pg_id": 1, "process_group": ("1", "tp")}
            more["time_created_ns"] -= 10 * MS * (rank == 14)
            more["duration_ms"] += 10 * (rank == 14)
            dump["entries"] += [more, pp]
    made = report(tmp_path, nodes, dumps)
    lines = wording.as_text(made).splitlines()
    assert lines[0].startswith("job train, process group 1 (tp, ranks 14-15, nccl): ")
    assert lines[2].startswith("  straggler: rank 15 on ")
    (at,) = [at for at, line in enumerate(lines) if "24 process groups (" in line]
    assert lines[at].startswith(
        "job train, 24 process groups (0 (default_pg, nccl); 1 ("
    )
    assert lines[at].endswith("; and 20 more): ranks 0-15 in all")
    assert lines[at + 1].startswith("  ! imported from dumps of the Flight Recorder, ")
    assert lines[at + 2] == "  no rank was late in 8 of them; the others cannot tell"
    (one,) = [line for line in lines if "one rank: there is no other" in line]
    assert one.startswith("  - job train, 16 process groups (2 (pp, rank 0, nccl); 2 (")
    assert len(lines) < 25
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert html.count("<h3>Lateness by rank and step</h3>") == 1
    late, quiet = html.split("<h2>Process groups in which no late rank was seen</h2>")
    assert "Rank 15 on " in late and "24 process groups" not in late
    assert "; and 20 more): ranks 0-15 in all</strong>" in quiet
    assert "<p>No rank was late in 8 of them; the others cannot tell.</p>" in quiet


def test_backends_of_one_group_number_for_themselves(tmp_path: Path) -> None:
    """As of a job that has tensors on CPUs as well."""
    nodes = culprit().nodes(one_node=True)
    dumps = Watched().of(nodes)
    made = sealed(tmp_path, nodes)
    collective.add(flightdumps.write(dumps, tmp_path / "nccl"), made)
    for dump in dumps:
        for number, one in enumerate(dump["entries"]):
            ended = {"time_discovered_completed_ns": None, "duration_ms": None}
            one |= {"profiling_name": "gloo:barrier", **ended}
            one |= {"time_discovered_started_ns": None}
            one["time_created_ns"] += number * 1000
    done = collective.add(flightdumps.write(dumps, tmp_path / "gloo"), made)
    assert (len(done.added), done.left_out) == (3, [])
    found = [
        (one.job.group, len(one.job.steps)) for one in explain.report(made).verdicts
    ]
    assert found == [("0 (default_pg, gloo)", 59), ("0 (default_pg, nccl)", 59)]


def test_a_rank_without_a_dump_may_be_the_late_one(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    made = sealed(tmp_path, nodes)
    paths = flightdumps.write(dumps, tmp_path / "fr")
    collective.add([paths[0], paths[2]], made)
    said = wording.as_text(explain.report(made))
    assert "dumps of 2 of 3 ranks: a rank that is missing may be the one that" in said
    assert "  of these ranks none was late" in said


def test_a_group_of_which_no_dump_says_how_many_it_has(tmp_path: Path) -> None:
    """Gloo's are all written under one name."""
    nodes = Training().nodes(one_node=True)
    more = {"process_group": ("7", "undefined")}
    dumps = Watched(more=dict.fromkeys(RANKS, more)).of(nodes)
    for dump in dumps:
        dump["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0]"}}
    made = report(tmp_path, nodes, dumps)
    assert verdict(made).job.group == "7 (nccl)"
    said = wording.as_text(made)
    assert "the number of ranks in the process group is not in the dumps" in said
    assert "  of these ranks none was late" in said


def test_ranks_that_disagree_on_what_it_is(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    dumps[2]["entries"][7]["profiling_name"] = "nccl:_all_gather_base"
    said = wording.as_text(report(tmp_path, nodes, dumps))
    assert "1 steps are left out: ranks disagree on what they are" in said


# -- the store ------------------------------------------------------------------------


def test_the_same_again_changes_nothing(real: Path, tmp_path: Path) -> None:
    made, other = tmp_path / "s.duckdb", tmp_path / "other.duckdb"
    seal.seal([real / "recording"], made)
    shutil.copy(made, other)
    paths = [real / f"nccl_trace_rank_{rank}" for rank in RANKS]
    collective.add(paths, made)
    before = made.read_bytes()
    again = collective.add(paths, made)
    assert (len(again.same), again.added, again.collectives) == (3, [], 0)
    assert made.read_bytes() == before
    # In any order, one by one, and both forms.
    for path in (
        real / "json_rank_1.json",
        *reversed(paths),
        real / "json_rank_1.json",
    ):
        collective.add([path], other)
    assert rows(other) == rows(made)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other.duckdb",
        "s.duckdb",
    ]


def test_a_later_dump_knows_how_it_ended(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    made = sealed(tmp_path, nodes)
    late = flightdumps.write(dumps, tmp_path / "late")
    for dump in dumps:
        last = dump["entries"][29]
        del last["duration_ms"]
        last |= {"time_discovered_started_ns": None, "state": "scheduled"}
        last |= {"time_discovered_completed_ns": None}
        dump["entries"] = dump["entries"][:30]
    early = flightdumps.write(dumps, tmp_path / "early")
    collective.add(early, made)
    assert store.query(made, "SELECT count(*), count(ended_by) FROM collective")[1] == [
        (90, 87)
    ]
    done = collective.add(late, made)
    assert (len(done.added), done.collectives) == (3, 93)
    found = rows(made)
    assert len(found) == 180 and all(row[-1] is not None for row in found)
    # And the early ones add nothing to that.
    assert len(collective.add(early, made).same) == 3
    assert rows(made) == found


def test_two_ranks_under_one_name_are_not_mixed(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    made = sealed(tmp_path, nodes)
    collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    before = rows(made)
    path = tmp_path / "nccl_trace_rank_1"
    path.write_bytes(pickled(dumps[2]))
    text = refusal(made, path)
    assert (
        "collective 1 of process group 0 (default_pg, nccl) was enqueued at another"
        in text
    )
    assert rows(made) == before


def test_a_recording_that_grew_keeps_what_was_imported(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    ended = nodes[1].ended
    nodes[1].ended = None
    made = sealed(tmp_path, nodes)
    collective.add(flightdumps.write(dumps, tmp_path / "fr"), made)
    before = rows(made)
    nodes[1].ended = ended
    nodes[1].write(tmp_path / "grown")
    assert len(seal.seal([tmp_path / "grown"], made).added) == 1
    assert rows(made) == before
    assert verdict(explain.report(made)).stragglers[0].explained
    # Nor does a damaged copy of it take them away, or bring them twice.
    shutil.copytree(tmp_path / "grown", tmp_path / "bad")
    nodes[1].fact("mark", t="no time")
    nodes[1].fact("cgroup", cgroup_id=1)
    shutil.rmtree(tmp_path / "bad")
    nodes[1].write(tmp_path / "bad")
    Node("more", "more").write(tmp_path / "more")
    assert len(seal.seal([tmp_path / "bad", tmp_path / "more"], made).left_out) == 1
    assert rows(made) == before


def test_a_recording_has_no_collectives_of_its_own(tmp_path: Path) -> None:
    node = Node()
    node.fact("collective", t=1, rank=0, seq=1, process_group="0")
    seal.seal([node.write(tmp_path / "rec")], tmp_path / "s.duckdb")
    assert rows(tmp_path / "s.duckdb") == []


def test_beside_marks_of_the_jobs_own(tmp_path: Path) -> None:
    """Both are judged, and neither is taken for the other."""
    nodes = culprit().nodes()
    marks = [list(node.events) for node in nodes]
    dumps = Watched().of(nodes)
    for node, events in zip(nodes, marks, strict=True):
        node.events = events
    made = report(tmp_path, nodes, dumps)
    assert [(one.job.group, len(one.job.steps)) for one in made.verdicts] == [
        (None, 59),
        ("0 (default_pg, nccl)", 59),
    ]
    assert [one.stragglers[0].explained for one in made.verdicts] == [True, True]
    assert not made.hung


def test_a_collective_that_had_not_ended_is_not_said_to_hang(tmp_path: Path) -> None:
    """When the dump was written it does not say: it may have ended a moment later."""
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for dump in dumps[:2]:
        dump["entries"].append(entry(61, dump["entries"][-1]["time_created_ns"] + MS))
    made = report(tmp_path, nodes, dumps)
    assert not made.hung
    assert verdict(made).stragglers[0].explained


# -- the command ----------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = culprit().nodes()
    dumps = Watched().of(nodes)
    for number, node in enumerate(nodes):
        node.write(tmp_path / "rec" / f"r{number}")
    paths = flightdumps.write(dumps, tmp_path / "fr")
    made = str(tmp_path / "s.duckdb")
    words = ["seal", str(tmp_path / "rec"), "--flight-recorder", str(tmp_path / "fr")]
    assert cli.main([*words, "-o", made]) == 0
    said = capsys.readouterr().out
    assert f"{made}: 3 dumps imported, 180 collectives; 0 were there already\n" in said
    # What fleet pull brought is in a store only.
    assert cli.main(["seal", "-o", made, "--flight-recorder", *map(str, paths)]) == 0
    said = capsys.readouterr().out
    assert said == f"{made}: 0 dumps imported, 0 collectives; 3 were there already\n"
    paths[1].write_bytes(b"\x80\x02X")
    assert cli.main(["seal", "-o", made, "--flight-recorder", *map(str, paths)]) == 3
    said = capsys.readouterr().out
    assert "rank_1: truncated: its end is missing" in said and "; left out\n" in said
    assert "2 were there already; 1 left out\n" in said
    for number in range(3, 33):
        (tmp_path / "fr" / f"nccl_trace_rank_{number}").write_bytes(b"{")
    assert (
        cli.main(["seal", "-o", made, "--flight-recorder", str(paths[0].parent)]) == 3
    )
    said = capsys.readouterr().out
    assert said.count("truncated, or not JSON") == 19 and "copy it again; left" in said
    assert "  ! … 11 more; left out\n" in said and "; 31 left out\n" in said
    assert cli.main(["query", made, "--named", "collectives"]) == 0
    assert (
        "train  0 (default_pg, nccl)  1     node1  stack   60"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "give a DIR, or --flight-recorder DUMP, or both"),
        (["--flight-recorder", "none_0"], "none_0: No such file or directory; nothing"),
        (["--flight-recorder", "rec"], "rec: a recording; name it before --flight"),
        (["--flight-recorder", "empty"], "no file in it ends in a rank"),
    ],
)
def test_what_cannot_be_imported_is_one_line(
    tmp_path: Path,
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    seal.seal([Node().write(Path("rec"))], Path("s.duckdb"))
    Path("empty").mkdir()
    before = Path("s.duckdb").read_bytes()
    assert cli.main(["seal", *words, "-o", "s.duckdb"]) == 2
    said = capsys.readouterr()
    assert complaint in said.err and said.err.count("\n") == 1 and not said.out
    assert Path("s.duckdb").read_bytes() == before
    assert cli.main(["seal", *words, "-o", "none.duckdb"]) == 2
    assert not Path("none.duckdb").exists()


def test_without_dumps_it_says_that_there_may_be_some(tmp_path: Path) -> None:
    made = sealed(tmp_path, [Node()])
    assert "`kstall seal --flight-recorder`" in wording.as_text(explain.report(made))
