# SPDX-License-Identifier: GPL-2.0-or-later
"""What had not ended: a stall that lasts, and a collective in which ranks wait."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from kstall_node import record
from kstall_node.facts import Facts
from kstall_node.host import Host
from kstall_ops import (
    cli,
    explain,
    page,
    pending,
    recording,
    seal,
    store,
    timeline,
    wording,
)
from node_root import Node as FileNode
from recordings import BEGAN, MS, QUEUES, SECOND, Node, Training, restarted
from test_ops_explain import report

END = BEGAN + 100 * SECOND


def hanging(step: int = 30, ranks: int = 3) -> list[Node]:
    """All nodes record until `END`; rank 1 never enters a step, so the others wait."""
    nodes = Training(ranks=ranks).nodes()
    for rank, node in enumerate(nodes):
        node.ended = END
        entered = {f"step={step} phase=enter"} if rank != 1 else set()
        node.events = [
            one
            for one in node.events
            if one[3] != "print" or _step(one[4]["buf"]) < step or _is(one, entered)
        ]
    return nodes


def _step(text: object) -> int:
    return int(str(text).partition("step=")[2].split()[0])


def _is(one: tuple[object, ...], wanted: set[str]) -> bool:
    fields = one[4]
    assert isinstance(fields, dict)
    return any(text in str(fields["buf"]) for text in wanted)


def _last(node: Node) -> int:
    return max(t for t, *_ in node.events)


def test_a_collective_that_hangs_and_what_the_absent_one_is_in(tmp_path: Path) -> None:
    nodes = hanging()
    began = _last(nodes[1]) + 20 * MS
    nodes[1].event(began, 0, 4000, "throttle_in", cgroup=77, task=4000)
    made = report(tmp_path, nodes)
    (hung,) = made.hung
    assert (hung.step, hung.waiting, hung.silent, hung.unknown) == (30, (0, 2), 0, ())
    assert hung.waited_ns == END - min(_last(nodes[0]), _last(nodes[2]))
    (absent,) = hung.absent
    assert (absent.rank, absent.node, absent.tid) == (1, "node1", 4000)
    assert (absent.step, absent.phase, absent.gone_ns) == (29, "exit", None)
    assert absent.cls == "throttle" and absent.caps == ()
    assert absent.uncompared == ("throttle/fprobe",)
    assert absent.coverage == (END - began) / absent.age_ns > 0.99
    (stall,) = made.open
    assert (stall.cls, stall.tid, stall.comm) == ("throttle", 4000, "python3")
    assert (stall.lasted_ns, stall.doubts) == (END - began, ())
    said = wording.as_text(made)
    assert said.startswith("job train hangs in step 30: ranks 0, 2 wait, for ")
    assert " s so far; rank 1 has not entered it\n" in said
    assert "before that no rank was late" in said
    assert "COINCIDES [high] throttle: the thread lost " in said
    assert "no end seen, 100% of that time" in said
    assert "      not compared with an oracle: throttle/fprobe\n" in said
    assert "raise cpu.max" in said
    told = json.loads(json.dumps(explain.as_json(made), default=str))
    assert told["hung"][0]["absent"][0]["rank"] == 1
    assert told["open"][0]["lasted_ns"] == END - began
    page.write(tmp_path / "s.duckdb", made, tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert "hangs in step 30" in text and "no end seen" in text


@pytest.mark.parametrize(("after", "seconds"), [(-SECOND, None), (MS, 3)])
def test_an_absent_one_is_in_a_stall_for_as_long_as_that_is_known(
    tmp_path: Path, after: int, seconds: int | None
) -> None:
    """If it has gone on since, not at all; else until the provider was suspended."""
    nodes = hanging()
    last = _last(nodes[1])
    nodes[1].event(last + after, 0, 4000, "throttle_in", cgroup=77, task=4000)
    reason = "suspended throttle/fprobe"
    nodes[1].fact("loss", t0=last + MS + 3 * SECOND, t1=None, n=None, reason=reason)
    (absent,) = report(tmp_path, nodes).hung[0].absent
    if seconds is None:
        assert absent.cls is None and "not in kernel events" in absent.text
    else:
        assert absent.coverage == seconds * SECOND / absent.age_ns
        assert absent.text.startswith("the thread lost 3000.0 ms to the CPU quota of ")
        assert absent.caps == (f"records were lost meanwhile ({reason})",)


def test_a_rank_that_computes_for_ever_is_not_in_kernel_events(tmp_path: Path) -> None:
    made = report(tmp_path, hanging())
    (absent,) = made.hung[0].absent
    said = "not in kernel events; not recorded there: drm, rdma, iotlb, mmu"
    assert (absent.rank, absent.cls, absent.text) == (1, None, said)
    assert made.open == []
    assert "cause: not in kernel events" in wording.as_text(made)


def test_many_stalls_that_ended_are_what_it_is_in_as_well(tmp_path: Path) -> None:
    """A quota of next to nothing: no stall is long, and none is open."""
    nodes = hanging()
    for at in range(_last(nodes[1]), END - SECOND, 100 * MS):
        nodes[1].throttle(at, at + 99 * MS, 4000)
    made = report(tmp_path, nodes)
    (absent,) = made.hung[0].absent
    assert absent.cls == "throttle" and absent.coverage > 0.95
    assert "no end seen" not in absent.text
    assert made.open == []


def test_all_have_entered(tmp_path: Path) -> None:
    nodes = hanging()
    nodes[1].mark(_last(nodes[0]), 4000, 30, "enter")
    made = report(tmp_path, nodes)
    (hung,) = made.hung
    assert (hung.waiting, hung.absent) == ((0, 1, 2), ())
    assert "s so far; these are all" in wording.as_text(made)


def test_a_rank_of_which_nothing_came_is_counted(tmp_path: Path) -> None:
    nodes = hanging()
    (hung,) = report(tmp_path, [nodes[0], nodes[2]]).hung
    assert (hung.waiting, hung.absent, hung.silent) == ((0, 2), (), 1)
    assert "of 1 more there are no marks at all" in wording.hung_title(hung)


def test_a_hang_in_the_first_step(tmp_path: Path) -> None:
    nodes = hanging(step=0)
    nodes[1].events = []
    made = report(tmp_path, nodes)
    (hung,) = made.hung
    assert (hung.step, hung.waiting, hung.silent) == (0, (0, 2), 1)
    assert "no job with marks" not in wording.as_text(made)
    assert explain.report(tmp_path / "s.duckdb", "train").hung == [hung]


# -- and what is no hang ------------------------------------------------------------


def test_a_job_that_ended(tmp_path: Path) -> None:
    nodes = Training().nodes()
    for node in nodes:
        node.ended = END
    assert report(tmp_path, nodes).hung == []


def test_a_job_that_was_killed_in_the_middle(tmp_path: Path) -> None:
    nodes = hanging()
    for node in nodes:
        node.fact("gone", pid=4000, starttime=1, t=_last(node) + SECOND)
    made = report(tmp_path, nodes)
    assert made.hung == []
    _, rows, _ = store.query(tmp_path / "s.duckdb", "SELECT ended FROM proc")
    assert sorted(rows) == sorted((_last(node) + SECOND,) for node in nodes)


def test_one_whose_process_is_gone_is_named(tmp_path: Path) -> None:
    nodes = hanging()
    nodes[1].fact("gone", pid=4000, starttime=1, t=_last(nodes[1]) + SECOND)
    made = report(tmp_path, nodes)
    (absent,) = made.hung[0].absent
    assert absent.gone_ns == END - _last(nodes[1]) - SECOND
    assert "cause: its process ended" in wording.as_text(made)


@pytest.mark.parametrize(
    ("reason", "said"),
    [("overrun", True), ("suspended throttle/fprobe", False), ("", False)],
)
@pytest.mark.parametrize("gone", [True, False])
def test_one_whose_marks_may_have_been_lost_is_named_with_doubt(
    tmp_path: Path, reason: str, said: bool, gone: bool
) -> None:
    nodes = hanging()
    last = _last(nodes[1])
    if reason:
        until = last + 2 * SECOND
        nodes[1].fact("loss", cpu=0, t0=last, t1=until, n=3, reason=reason)
    if gone:
        nodes[1].fact("gone", pid=4000, starttime=1, t=last + SECOND)
    made = report(tmp_path, nodes)
    (absent,) = made.hung[0].absent
    text = "records were lost meanwhile (overrun)"
    assert absent.caps == ((text,) if said else ())
    assert (f"\n      {text}\n" in wording.as_text(made)) is said
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    assert (text in (tmp_path / "page.html").read_text()) is said


@pytest.mark.parametrize("later", [True, False])
def test_one_that_crashed_after_the_recorder_was_started_again(
    tmp_path: Path, later: bool
) -> None:
    """Whether or not it had written a mark since: the other recorder saw it end."""
    nodes = hanging()
    crashed = _last(nodes[1])
    again = crashed + (-SECOND if later else 2 * MS)
    halves = [half for node in nodes for half in restarted(node, again)]
    halves[3].fact("gone", pid=4000, starttime=1, t=crashed + SECOND)
    made = report(tmp_path, halves)
    (hung,) = made.hung
    assert (hung.waiting, hung.unknown) == ((0, 2), ())
    (absent,) = hung.absent
    assert (absent.rank, absent.step, absent.phase) == (1, 29, "exit")
    assert absent.gone_ns == END - crashed - SECOND
    assert absent.text == "its process ended"


def test_what_an_absent_one_is_in_began_before_the_recorder_did(
    tmp_path: Path,
) -> None:
    """Its last mark is in one recording, and what it waits for in the next."""
    nodes = hanging()
    again = _last(nodes[1]) + 2 * MS
    halves = [half for node in nodes for half in restarted(node, again)]
    halves[3].event(again + SECOND, 0, 4000, "throttle_in", cgroup=77, task=4000)
    halves[3].fact("loss", cpu=0, t0=again, t1=END, n=3, reason="overrun")
    made = report(tmp_path, halves)
    (absent,) = made.hung[0].absent
    assert (absent.cls, absent.age_ns) == ("throttle", END - again + 2 * MS)
    assert absent.coverage == (END - again - SECOND) / absent.age_ns
    assert absent.caps == ("records were lost meanwhile (overrun)",)


def test_a_recording_that_ends_too_early_blames_nobody(tmp_path: Path) -> None:
    nodes = hanging()
    nodes[1].ended = _last(nodes[1]) + 50 * MS
    made = report(tmp_path, nodes)
    (hung,) = made.hung
    assert (hung.absent, hung.unknown) == ((), (1,))
    assert "rank 1 is not known, as the recording ends too early" in wording.as_text(
        made
    )


@pytest.mark.parametrize("note", [True, False])
def test_a_cpu_that_is_known_for_longer_makes_nobody_wait(
    tmp_path: Path, note: bool
) -> None:
    """Its segment was full; what others have in theirs comes with the next copy."""
    nodes = hanging()
    until = max(map(_last, nodes)) + 100 * MS
    for node in nodes:
        node.ended = None
        node.event(END, 1, 0, "aer_event", dev_name="0000:00:01.0", severity=0)
        if note:
            node.fact("complete", until=until, segments={"0": 1, "1": 0})
    # Where nothing is known to be complete, all that there is counts.
    assert [hang.waiting for hang in report(tmp_path, nodes).hung] == (
        [] if note else [(0, 2)]
    )


def test_a_step_that_had_just_begun(tmp_path: Path) -> None:
    nodes = hanging()
    for node in nodes:
        node.ended = max(map(_last, nodes)) + 400 * MS
    assert report(tmp_path, nodes).hung == []


def test_one_of_two_collectives_of_a_step(tmp_path: Path) -> None:
    """Who has left the first of them has not left the second."""
    nodes = hanging()
    for rank, node in enumerate(nodes):
        at = max(map(_last, nodes))
        if rank == 1:
            node.mark(at + MS, 4000, 30, "enter")
        node.mark(at + 2 * MS, 4000, 30, "exit")
    for node in (nodes[0], nodes[2]):
        node.mark(_last(node) + 30 * MS, 4000, 30, "enter")
    (hung,) = report(tmp_path, nodes).hung
    assert (hung.waiting, [one.rank for one in hung.absent]) == ((0, 2), [1])


def test_a_job_that_was_started_again_is_the_newer_one(tmp_path: Path) -> None:
    nodes = hanging(step=5)
    for node in nodes:
        node.fact("gone", pid=3000, starttime=1, t=BEGAN + 900 * MS)
        node.proc(3000, job="train", rank=node.facts[0]["rank"], world=3)
        node.mark(BEGAN + 800 * MS, 3000, 500, "enter")
    (hung,) = report(tmp_path, nodes).hung
    assert (hung.step, hung.waiting) == (5, (0, 2))


def test_a_job_that_was_started_again_with_fewer_ranks(tmp_path: Path) -> None:
    """Nobody waits for the rank that only the start before had."""
    nodes = hanging(step=5)
    for rank in range(4):
        node = nodes[rank % 3]
        pid = 3000 + rank
        node.fact("gone", pid=pid, starttime=1, t=BEGAN + 900 * MS)
        node.proc(pid, job="train", rank=rank, world=4)
        node.mark(BEGAN + 800 * MS, pid, 500, "enter")
    (hung,) = report(tmp_path, nodes).hung
    assert (hung.step, hung.waiting, hung.silent) == (5, (0, 2), 0)
    assert [absent.rank for absent in hung.absent] == [1]


@pytest.mark.parametrize("step", [0, 5])
def test_a_start_before_whose_end_nobody_saw_hides_no_hang(
    tmp_path: Path, step: int
) -> None:
    """Its ranks ran elsewhere, where clocks are ahead and the recorder was killed."""
    real = 1_800_000_000 * SECOND
    before, now = Training(skew=lambda rank: 9000 * SECOND).nodes(), hanging(step)
    for nodes, ahead in ((before, real - 10_000 * SECOND), (now, real)):
        for node in nodes:
            t = node.began
            node.fact("clock", t_mono=t, t_real=t + ahead, bound=MS, method="adjtimex")
    for number, node in enumerate(before):
        node.name, node.boot_id, node.ended = f"old{number}", f"old{number}", None
    if not step:
        now[1].events = []
    (hung,) = report(tmp_path, [*before, *now]).hung
    assert (hung.step, hung.waiting) == (step, (0, 2))
    assert [absent.rank for absent in hung.absent] == ([1] if step else [])
    assert hung.silent == (0 if step else 1)


# -- open stalls --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "doubt"),
    [
        ("", ""),
        ("mark", "its thread wrote marks since"),
        ("loss", "records were lost meanwhile (overrun)"),
        ("before", ""),
        ("oracle", "its oracle disagrees with throttle/fprobe"),
    ],
)
def test_an_end_that_may_not_have_been_seen(
    tmp_path: Path, spoil: str, doubt: str
) -> None:
    node = Node()
    node.event(BEGAN + SECOND, 0, 40, "throttle_in", cgroup=77, task=40)
    if spoil == "mark":
        node.mark(BEGAN + 2 * SECOND, 40, 1, "enter")
    elif spoil == "oracle":
        node.fact(
            "oracle",
            provider="throttle/fprobe",
            scope="all",
            metric="count",
            ours=1,
            theirs=9,
            verdict="disagrees",
        )
    elif spoil:
        t1 = BEGAN + SECOND // 2 if spoil == "before" else BEGAN + 3 * SECOND
        node.fact("loss", cpu=0, t0=BEGAN, t1=t1, n=3, reason="overrun")
    made = report(tmp_path, [node])
    (one,) = made.open
    assert one.doubts == ((doubt,) if doubt else ())
    assert one.lasted_ns == 99 * SECOND
    assert ("or its end was not seen" in wording.as_text(made)) is bool(doubt)


def test_what_is_open_in_a_group_whose_quota_changed_is_listed_once(
    tmp_path: Path,
) -> None:
    node = Node()
    node.event(BEGAN + SECOND, 0, 40, "throttle_in", cgroup=77, task=40)
    for quota in ("20000 100000", "max 100000"):
        node.fact("cgroup", cgroup_id=77, path="/pod-7/train", cpu_max=quota)
    (stall,) = report(tmp_path, [node]).open
    assert stall.text.endswith("to the CPU quota of /pod-7/train")


def test_what_is_open_without_a_thread_is_of_the_node(tmp_path: Path) -> None:
    node = Node(providers=[QUEUES])
    node.fact("cgroup", cgroup_id=5, path="/pod")
    node.event(BEGAN + SECOND, 0, 40, "throttle_in", cgroup=5, task=40)
    (one,) = report(tmp_path, [node]).open
    assert one.text == "on its node, /pod lost 99000.0 ms to its CPU quota"


def test_what_had_only_begun_is_not_told(tmp_path: Path) -> None:
    node = Node()
    node.event(END - SECOND // 2, 0, 40, "throttle_in", cgroup=77, task=40)
    assert report(tmp_path, [node]).open == []


def test_what_is_open_has_its_length_on_the_timeline(tmp_path: Path) -> None:
    node = Node(ended=None)
    node.event(BEGAN + SECOND, 0, 40, "throttle_in", cgroup=77, task=40)
    node.mark(BEGAN + 9 * SECOND, 41, 1, "enter")
    report(tmp_path, [node])
    with store.reading(tmp_path / "s.duckdb") as opened:
        assert list(pending.known_until(opened).values()) == [BEGAN + 9 * SECOND]
    words = ["timeline", str(tmp_path / "s.duckdb"), "-o", str(tmp_path / "t")]
    assert cli.main(words) == 0
    _, rows, _ = store.query(tmp_path / "s.duckdb", store.NAMED["open"])
    assert [row[4] for row in rows] == [40]


def test_on_the_timeline_it_ends_when_its_thread_goes_on(tmp_path: Path) -> None:
    node = Node()
    node.event(BEGAN + SECOND, 0, 40, "throttle_in", cgroup=77, task=40)
    node.mark(BEGAN + 9 * SECOND, 40, 1, "enter")
    report(tmp_path, [node])
    timeline.write(tmp_path / "s.duckdb", tmp_path / "t")
    trace = pb.Trace.FromString((tmp_path / "t").read_bytes())
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    assert events[0].track_event.name == "throttle: quota (no end seen)"
    begin, end = (packet.timestamp for packet in events)
    assert end - begin == 8 * SECOND


# -- a recording that goes on -------------------------------------------------------


@pytest.mark.parametrize(
    ("segments", "known"),
    [
        ({"0": 1, "1": 1}, True),
        ({"0": 1, "1": 0, "2": 0}, True),
        ({"0": 2, "1": 1}, False),
        ({"0": 1, "7": 1}, False),
        ("x", False),
        ({"0": "x"}, False),
    ],
)
def test_up_to_when_a_recording_without_an_end_is_whole(
    tmp_path: Path, segments: object, known: bool
) -> None:
    """A segment of which the recorder spoke, and which is not here, is missing."""
    node = Node(ended=None)
    node.throttle(BEGAN + MS, BEGAN + 5 * MS, 40)
    node.fact("complete", until=BEGAN + SECOND, segments={"0": 0, "1": 0})
    node.fact("complete", until=BEGAN + 2 * SECOND, segments=segments)
    loaded = recording.load(node.write(tmp_path / "rec"))
    assert loaded.complete == BEGAN + (2 if known else 1) * SECOND
    seal.seal([tmp_path / "rec"], tmp_path / "s.duckdb")
    _, rows, _ = store.query(tmp_path / "s.duckdb", "SELECT t0, t1, reason FROM loss")
    assert rows == [(loaded.complete, None, "recorder gone")]


@pytest.mark.parametrize(("deleted", "known"), [(2, True), (1, False)])
def test_of_an_idle_cpu_a_ring_may_have_deleted_all(
    tmp_path: Path, deleted: int, known: bool
) -> None:
    """Its segments are the oldest; one that is neither here nor deleted is missing."""
    node = Node(ended=None, config={"ring": True})
    node.throttle(BEGAN + MS, BEGAN + 5 * MS, 40)
    for _ in range(deleted):
        node.fact("loss", cpu=7, t0=BEGAN, t1=BEGAN + MS, n=None, reason="ring")
    node.fact("complete", until=BEGAN + SECOND, segments={"0": 1, "7": 2})
    loaded = recording.load(node.write(tmp_path / "rec"))
    assert loaded.complete == (BEGAN + SECOND if known else None)


def test_of_notes_of_completeness_only_the_last_are_kept(tmp_path: Path) -> None:
    """The last one, and the last whose segments are here; each names all CPUs."""
    node = Node(ended=None)
    node.throttle(BEGAN + MS, BEGAN + 5 * MS, 40)
    for minute in range(60):
        here = {"0": 1, "1": 0}
        away = {"0": minute, "1": minute}
        until = BEGAN + minute * SECOND
        node.fact("complete", until=until, segments=here if minute < 40 else away)
    loaded = recording.load(node.write(tmp_path / "rec"))
    kept = [fact["until"] for fact in loaded.facts if "until" in fact]
    assert kept == [BEGAN + 39 * SECOND, BEGAN + 59 * SECOND]
    assert loaded.complete == BEGAN + 39 * SECOND
    # Copies are compared by how many facts they have.
    assert len(loaded.facts) == 60
    session = json.loads((tmp_path / "rec/session.json").read_text())
    (tmp_path / "rec/session.json").write_text(json.dumps(session | {"ended": until}))
    gaps = recording.load(tmp_path / "rec").gaps
    assert gaps == [recording.Gap(0, 1, 59), recording.Gap(1, 1, 59)]


def test_of_comparisons_of_one_scope_only_the_last_are_kept(tmp_path: Path) -> None:
    node = Node(ended=None)
    node.throttle(BEGAN + MS, BEGAN + 5 * MS, 40)
    said = {"provider": "throttle/fprobe", "metric": "ns", "verdict": "agrees"}
    for minute in range(60):
        at = {"until": BEGAN + minute * SECOND}
        node.fact("complete", segments={"0": 1 if minute < 40 else 9}, **at)
        for group in (77, 78):
            node.fact("oracle", scope=f"cgroup:{group}", theirs=minute, **said, **at)
    loaded = recording.load(node.write(tmp_path / "rec"))
    kept = [fact["theirs"] for fact in loaded.facts if fact["kind"] == "oracle"]
    assert (kept, len(loaded.facts)) == ([39, 39, 59, 59], 180)


def test_what_was_before_is_not_capped_by_an_end_that_is_missing(
    tmp_path: Path,
) -> None:
    nodes = hanging()
    for node in nodes:
        node.ended = None
        node.fact("complete", until=END, segments={"0": 1})
    began = _last(nodes[1]) + MS
    nodes[1].event(began, 0, 4000, "throttle_in", cgroup=77, task=4000)
    (hung,) = report(tmp_path, nodes).hung
    assert hung.waited_ns == END - min(_last(nodes[0]), _last(nodes[2]))
    assert hung.absent[0].caps == ()


def test_the_recorder_says_how_far_it_is_and_what_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each once; and what it has sealed by then a collector gets."""
    monkeypatch.setattr(record, "PERIOD", 0.3)
    monkeypatch.setattr("kstall_node.segments.SECONDS", 0.5)
    node = FileNode(tmp_path)
    node.with_pairs()
    now = time.monotonic_ns()
    node.process(40, comm="py\x1bthon")
    node.pairs(0, ("begin", now, 40), ("begin", now + 1, 41), ("end", now + 2, 41))
    settings = record.Settings(tmp_path / "o", ["mmu"], seconds=1.4)
    assert record.Recorder(Host(str(node.root)), settings).run() == 0
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if "no end seen" in line]
    assert "mmu: thread 40 (py\\x1bthon): no end seen for" in line
    (rec,) = (tmp_path / "o").iterdir()
    facts = list(map(json.loads, (rec / "facts.jsonl").read_text().splitlines()))
    whole = [one for one in facts if one["kind"] == "complete"]
    assert whole and whole[-1]["segments"] == {"0": 1}
    assert now < whole[-1]["until"] < time.monotonic_ns()
    # The thread is known, though its stall never ended.
    assert [one["comm"] for one in facts if one.get("pid") == 40] == ["py\x1bthon"]


def test_a_rank_that_is_gone_is_a_fact(tmp_path: Path) -> None:
    node = FileNode(tmp_path)
    node.process(4000, environ=b"RANK=1\0WORLD_SIZE=3\0")
    node.process(5000)
    facts = Facts(Host(str(node.root)))
    facts.scan()
    (one,) = facts.take()
    for path in (node.root / "proc").glob("[45]000/stat"):
        path.unlink()
    facts.scan()
    (gone,) = facts.take()
    assert (gone["kind"], gone["pid"]) == ("gone", 4000)
    assert gone["starttime"] == one["starttime"]
