# SPDX-License-Identifier: GPL-2.0-or-later
"""What may be claimed, and what may not: each claim has jobs that must not get it."""

from __future__ import annotations

import calendar
import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kstall.ftrace import Member
from kstall_ops import (
    align,
    chains,
    cli,
    decode,
    errors,
    explain,
    health,
    order,
    page,
    runs,
    seal,
    store,
    straggler,
    window,
    wording,
)
from kstall_ops.rules import rules
from recordings import (
    BEGAN,
    MESSAGES,
    MS,
    PROVIDERS,
    QUEUES,
    RDMA,
    SECOND,
    Node,
    Training,
    culprit,
    restarted,
)


def report(tmp_path: Path, nodes: list[Node]) -> explain.Report:
    for number, node in enumerate(dict.fromkeys(map(id, nodes))):
        one = next(x for x in nodes if id(x) == node)
        one.write(tmp_path / "rec" / f"r{number}")
    seal.seal([tmp_path / "rec"], tmp_path / "s.duckdb")
    return explain.report(tmp_path / "s.duckdb")


def verdict(made: explain.Report) -> chains.Verdict:
    (one,) = made.verdicts
    return one


def test_a_quota_on_one_rank_that_is_lifted_again(tmp_path: Path) -> None:
    made = report(tmp_path, culprit().nodes())
    (late,) = verdict(made).stragglers
    assert (late.rank, late.node, late.steps) == (1, "node1", tuple(range(20, 40)))
    (finding,) = late.findings
    assert (finding.cls, finding.level, finding.severity) == (
        "throttle",
        "explains",
        "high",
    )
    assert finding.coverage and finding.coverage > 0.95
    assert finding.lost_ns == 20 * 80 * MS
    assert (finding.late, finding.covered, finding.caps) == (20, 20, ())
    control = finding.control
    assert control and (control.steps_with, control.steps_without) == (20, 39)
    assert control.p == 1 / (rules().permutations + 1)
    said = wording.as_text(made)
    assert "straggler: rank 1 on node1" in said
    assert "raise cpu.max or cpu.max.burst of /pod-7/train" in said
    assert "does not say: NCCL is slow" in said
    assert json.loads(json.dumps(explain.as_json(made), default=str))["schema"] == 1


def test_ids_of_evidence_survive_a_reader_of_doubles(tmp_path: Path) -> None:
    """As jq and JavaScript are: they find the records by text."""
    made = report(tmp_path, culprit().nodes())
    said = json.loads(json.dumps(explain.as_json(made)), parse_int=float)
    (finding,) = said["jobs"][0]["stragglers"][0]["findings"]
    ids = ", ".join(f"'{one}'" for one in finding["evidence_ids"])
    sql = f"SELECT class, count(*) FROM stall WHERE id IN ({ids}) GROUP BY class"
    assert store.query(tmp_path / "s.duckdb", sql)[1] == [("throttle", 5)]
    numbers = {int(one) for one in finding["evidence"]}
    assert numbers != set(map(int, finding["evidence_ids"])), "or no test of it"


def test_who_has_not_read_the_manual_is_told_how_sure_that_is(tmp_path: Path) -> None:
    said = wording.as_text(report(tmp_path, culprit().nodes()))
    assert "ranks 0-2, 59 steps of 103.1 ms (median); late is 5.2 ms or more\n" in said
    assert "in 20 of 20 late steps, there 77% of a median step on average" in said
    assert "\nhow sure that is\n  EXPLAINS: on the late thread itself, " in said
    assert "COINCIDES: " not in said and "OBSERVED: " not in said


def test_what_was_left_out_is_said_in_words(tmp_path: Path) -> None:
    nodes = culprit().nodes()[:1]
    nodes[0].fact(
        "loss", t0=BEGAN, t1=None, n=None, reason="threshold mmu/start 4000 ns"
    )
    nodes[0].fact("loss", t0=BEGAN, t1=None, n=None, reason="suspended aer")
    said = wording.as_text(report(tmp_path, nodes))
    assert "job train: rank 0, 59 steps" in said
    assert "node0: of mmu/start what is shorter than 4000 ns was left out" in said
    assert "node0: aer was switched off: too many records (suspended aer)" in said
    assert "how sure that is" not in said


def test_what_many_have_in_common_is_said_in_one_line(tmp_path: Path) -> None:
    """As of 64 nodes with 128 processors each, or of a node with 1,000 groups."""
    nodes = [Node(f"n{at}", f"boot{at}") for at in range(6)]
    for node in nodes:
        for cpu in range(8):
            node.fact("loss", cpu=cpu, t0=BEGAN, t1=BEGAN + 1, n=None, reason="dropped")
        node.fact("loss", cpu=3, t0=BEGAN, t1=BEGAN + 1, n=5, reason="overrun")
        for group in range(10):
            oracle = {"provider": "throttle/fprobe", "metric": "sum_ns"}
            theirs = 0 if group < 2 else None
            node.fact("oracle", **oracle, scope=f"cgroup:{group}", theirs=theirs)
    for group in (3, 4, 5):
        oracle = {"provider": "throttle/other", "metric": "count"}
        theirs = 100 * group
        nodes[1].fact("oracle", **oracle, scope=f"cgroup:{group}", theirs=theirs)
    nodes[1].fact("loss", cpu=4, t0=BEGAN, t1=BEGAN + 1, n=None, reason="overrun")
    made = report(tmp_path, nodes)
    assert made.remarks[-4:] == [
        "n1: throttle/other is refused: it says 0 records, its oracle 500 records; "
        "they disagree on 2 more groups or devices",
        "n0, n1, n2, n3 and 2 more: throttle/fprobe was compared with no oracle for 48 "
        "of 60 groups or devices",
        "n0, n1, n2, n3 and 2 more: an unknown number of events lost on 48 CPUs "
        "(dropped)",
        "n0, n1, n2, n3 and 2 more: at least 30 events lost on 7 CPUs (overrun)",
    ]


# -- order across nodes ------------------------------------------------------------


def two_late(bound: int | None) -> list[Node]:
    """Ranks 1 and 2 are as late as each other; clocks are known up to ``bound``."""

    def slow(rank: int, step: int) -> int:
        return 80 * MS if rank in (1, 2) and 20 <= step < 50 else 0

    nodes = Training(extra=slow, skew=lambda rank: rank * SECOND).nodes()
    for rank, node in enumerate(nodes):
        if bound is not None:
            clock = {"t_mono": node.began, "offset": -rank * SECOND, "bound": bound}
            # What a crystal drifts in the time until then is in the bound as well.
            for t in (node.began, node.began + 60 * SECOND):
                clock["t_mono"] = t
                node.fact("clock", t_real=None, peer="here", method="ping", **clock)
    return nodes


def test_below_the_bound_of_the_clocks_is_unordered(tmp_path: Path) -> None:
    """Which of two was last, a jitter decides: nobody may read more into it."""
    made = report(tmp_path, two_late(2 * MS))
    stragglers = verdict(made).stragglers
    assert stragglers
    for late in stragglers:
        (rival,) = late.unordered
        assert {late.rank, rival.rank} == {1, 2}
        assert rival.steps == late.steps
        assert rival.within_ns and 4 * MS <= rival.within_ns < 5 * MS
    late = stragglers[0]
    line = (
        f"rank {late.unordered[0].rank} came about as late in {len(late.steps)} of "
        f"these steps ({straggler.ranks_text(late.steps)}): unordered (within 4"
    )
    assert f"    {line}" in wording.as_text(made)
    said = explain.as_json(made)["jobs"][0]["stragglers"][0]["unordered"]
    assert said[0]["within_ns"] == late.unordered[0].within_ns
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    assert f"R{line[1:]}" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("at", [0, 60])
def test_the_bound_of_a_clock_is_its_largest_in_the_recording(
    tmp_path: Path, at: int
) -> None:
    """What is known of it at one time only is less sure before and after."""
    nodes = Training().nodes()
    for node in nodes:
        node.ended = node.began + 60 * SECOND
        t = node.began + at * SECOND
        node.fact("clock", t_mono=t, t_real=REAL + t, bound=MS, method="adjtimex")
    made = report(tmp_path, nodes)
    assert [clock["bound_ns"] for clock in made.clocks] == [37 * MS] * 3


def test_one_collective_aligns_clocks_at_one_time(tmp_path: Path) -> None:
    """Between two times that are the same there is no drift to divide by."""
    made = report(tmp_path, Training(steps=1).nodes())
    assert [clock["method"] for clock in made.clocks] == [
        "reference",
        *["collective"] * 2,
    ]
    assert [clock["drift_ppm"] for clock in made.clocks] == [0, None, None]


def test_pings_of_a_later_boot_order_nothing(tmp_path: Path) -> None:
    """They are from before the recording began, by a clock that began anew."""
    nodes = two_late(2 * MS)
    for node in nodes:
        for fact in node.facts:
            if fact["kind"] == "clock":
                fact["t_mono"] -= 2 * BEGAN
    made = report(tmp_path, nodes)
    assert "ping" not in {clock["method"] for clock in made.clocks}


def test_what_clocks_tell_apart_is_ordered(tmp_path: Path) -> None:
    for late in verdict(report(tmp_path, two_late(1000))).stragglers:
        unordered = {step for one in late.unordered for step in one.steps}
        # But for steps in which they differ by less than nodes leave one.
        assert len(unordered) < len(late.steps) / 2


def test_clocks_that_are_not_known_order_nothing(tmp_path: Path) -> None:
    made = report(tmp_path, two_late(None))
    one = verdict(made)
    away = {sid: align.Clock(sid, "unknown") for sid in made_sids(one)}
    late = one.stragglers[0]
    (rival,) = order.rivals(one.job, late.rank, away, {})
    assert (rival.steps, rival.within_ns) == (late.steps, None)
    late = dataclasses.replace(late, unordered=(rival,))
    assert wording.unordered(late)[0].endswith("unordered (clocks are not aligned)")


def made_sids(one: chains.Verdict) -> set[str]:
    return {a.sid for step in one.job.steps for a in step.arrivals.values()}


def test_on_one_node_and_far_behind_it_is_known_who_was_last(tmp_path: Path) -> None:
    for number, nodes in enumerate((culprit().nodes(), culprit().nodes(True))):
        made = report(tmp_path / str(number), nodes)
        (late,) = verdict(made).stragglers
        assert late.unordered == ()
        assert "unordered" not in wording.as_text(made)


# -- a job that was started again --------------------------------------------------


def again(
    first: Training, second: Training, gap: int, ahead: list[int | None]
) -> list[Node]:
    """Recordings of two starts on the same nodes, of which clocks are ``ahead``."""
    made = []
    for job, later in ((first, 0), (second, gap)):
        for node, real in zip(job.nodes(), ahead, strict=False):
            node.events = [(e[0] + later, *e[1:]) for e in node.events]
            node.began += later
            node.ended = node.began + 60 * SECOND
            if real is not None:
                t = node.began
                node.fact("clock", t_mono=t, t_real=t + real, bound=MS, method="x")
            made.append(node)
    return made


REAL = 1_800_000_000 * SECOND


@pytest.mark.parametrize(
    "ahead",
    [
        [REAL, REAL + MS, REAL - MS],
        # Nobody looked at the clock, or one of them is far off: by their number.
        [None, None, None],
        [REAL, REAL + 3600 * SECOND, REAL],
    ],
)
def test_a_job_that_was_started_again_is_two(
    tmp_path: Path, ahead: list[int | None]
) -> None:
    """Yesterday's recordings are in the same directory, and steps begin anew."""
    made = report(tmp_path, again(culprit(), Training(), 500 * SECOND, ahead))
    bad, good = made.verdicts
    (late,) = bad.stragglers
    assert (late.rank, late.steps, late.explained) == (1, tuple(range(20, 40)), True)
    assert (good.outcome, good.job.remarks) == ("nothing", [])
    said = wording.as_text(made)
    assert "job train, start 1 of 2" in said and "job train, start 2 of 2" in said
    if ahead[2] == REAL - MS:
        assert "start 2 of 2, 2027-01-15 08:10:01 UTC: ranks 0-2" in said
        assert "refuted" not in said
    starts = [one["start"] for one in explain.as_json(made)["jobs"]]
    assert all(start.startswith("start ") for start in starts)
    assert explain.report(tmp_path / "s.duckdb", "train").verdicts == made.verdicts


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_recorder_that_was_started_again_starts_no_job(
    tmp_path: Path, nodes: int
) -> None:
    """The first start is in two recordings of some nodes, or of all."""
    made = again(culprit(), Training(), 500 * SECOND, [REAL, REAL, REAL])
    halves = [restarted(node, node.began + 5 * SECOND // 2) for node in made[:nodes]]
    made[:nodes] = [half for both in halves for half in both]
    bad, good = report(tmp_path, made).verdicts
    assert (bad.job.start, good.job.start) == (
        "start 1 of 2, 2027-01-15 08:01:41 UTC",
        "start 2 of 2, 2027-01-15 08:10:01 UTC",
    )
    (late,) = bad.stragglers
    assert (late.rank, late.steps, late.explained) == (1, tuple(range(20, 40)), True)
    assert good.outcome == "nothing"


def test_a_job_may_be_started_again_with_fewer_ranks(tmp_path: Path) -> None:
    """A node was taken out, so that each start has its own number of ranks."""
    nodes = again(Training(ranks=4), culprit(), 500 * SECOND, [REAL, REAL, REAL, REAL])
    whole, fewer = report(tmp_path, nodes).verdicts
    assert (whole.job.ranks, whole.job.world) == ((0, 1, 2, 3), 4)
    assert (fewer.job.ranks, fewer.job.world, fewer.job.silent) == ((0, 1, 2), 3, 0)
    assert whole.job.remarks == fewer.job.remarks == []
    (late,) = fewer.stragglers
    assert (late.rank, late.explained) == (1, True)


def test_of_one_start_a_node_has_no_recording(tmp_path: Path) -> None:
    """Clocks tell which start the others are of; by number it would be another."""
    nodes = again(culprit(), Training(), 500 * SECOND, [REAL, REAL, REAL])
    nodes += again(Training(), Training(), 500 * SECOND, [REAL, REAL, REAL])[3:]
    for node in nodes[6:]:
        node.began += 2000 * SECOND
        node.ended = node.began + 60 * SECOND
        node.events = [(e[0] + 2000 * SECOND, *e[1:]) for e in node.events]
    # Two starts are left of each, but not the same.
    for number in (8, 4, 0):
        del nodes[number]
    found = [one.job.ranks for one in report(tmp_path, nodes).verdicts]
    assert found == [(1, 2), (0, 2), (0, 1)]


def test_who_says_twice_at_a_time_to_be_one_rank_is_not_two_starts(
    tmp_path: Path,
) -> None:
    nodes = again(culprit(), Training(), SECOND, [REAL, REAL, REAL])
    made = report(tmp_path, nodes)
    (one,) = made.verdicts
    assert one.job.start == "" and one.job.remarks and not one.job.steps
    # Of no step at all nobody knows whether somebody was late.
    said = wording.as_text(made)
    assert "job train: ranks 0-2, no whole step\n" in said
    assert "no rank was late" not in said
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    assert "o rank was late" not in (tmp_path / "page.html").read_text()


# -- negatives ----------------------------------------------------------------------


def test_nothing_wrong_nothing_said(tmp_path: Path) -> None:
    made = report(tmp_path, Training().nodes())
    one = verdict(made)
    assert (one.outcome, one.stragglers, one.slowed) == ("nothing", [], {})
    assert made.lost == []
    assert "no rank was late" in wording.as_text(made)


def test_what_was_not_recorded_is_said_where_nothing_is_found(tmp_path: Path) -> None:
    """A kernel without the event: whether it was that, no record of it can say."""
    busy = Training(extra=lambda rank, step: 50 * MS if rank == 2 else 0)
    nodes = busy.nodes()
    for node in nodes:
        node.config = {"classes": ["throttle", "rdma", "io_uring"]}
        node.refused = {"rdma": "this kernel has no rdma_core:cq_async_event"}
    nodes[2].refused = {"throttle": "\x1b[2Jno fprobe", "rdma": "no fprobe"}
    made = report(tmp_path, nodes)
    said = wording.as_text(made)
    away = "drm, aer, iotlb, mmu"
    assert (
        "    cause: not in kernel events; "
        "not recorded there: throttle, drm, rdma, aer, iotlb, mmu\n"
    ) in said
    assert f"  - node0, node1, node2: not recorded: {away} (not asked for)\n" in said
    why = "this kernel has no rdma_core:cq_async_event"
    assert f"  - node0, node1: not recorded: rdma ({why})\n" in said
    assert "  - node2: not recorded: throttle (\\x1b[2Jno fprobe)\n" in said
    (late,) = explain.as_json(made)["jobs"][0]["stragglers"]
    assert late["unrecorded"][0] == "throttle"


def test_of_ranks_without_marks_nothing_is_said(tmp_path: Path) -> None:
    """That of the others none was late does not say that nobody was."""
    nodes = culprit().nodes()
    made = report(tmp_path, [nodes[0], nodes[2]])
    said = wording.as_text(made)
    assert "marks of 2 of 3 ranks" in said and "seal the recordings of its node" in said
    assert "  of these ranks none was late" in said and "no rank was late" not in said


def test_noise_names_nobody(tmp_path: Path) -> None:
    chance = random.Random(3)
    noise = Training(extra=lambda rank, step: chance.randrange(4 * MS))
    assert verdict(report(tmp_path, noise.nodes())).outcome == "nothing"


def test_noise_of_a_busy_node_names_nobody(tmp_path: Path) -> None:
    """Somebody is late in each step, each of them in more than eight."""
    chance = random.Random(3)
    noise = Training(extra=lambda rank, step: chance.randrange(40 * MS))
    made = report(tmp_path, noise.nodes())
    one = verdict(made)
    assert min(len(one.job.late(rank)) for rank in one.job.ranks) >= 8
    assert one.outcome == "nothing"
    text = f"o straggler: {len(one.job.late_steps())} late steps, no rank in 8 of them,"
    assert f"  n{text} or none more often than by chance\n" in wording.as_text(made)
    # The page says the same, not that nobody was late.
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    assert f">N{text} or none more" in (tmp_path / "page.html").read_text()


def test_a_cause_is_seen_through_noise(tmp_path: Path) -> None:
    """Steps without it are late as well, but by far less than those with it."""
    chance = random.Random(3)
    job = culprit()
    slow = job.extra
    job.extra = lambda rank, step: slow(rank, step) + chance.randrange(12 * MS)
    (late,) = verdict(report(tmp_path, job.nodes())).stragglers
    (finding,) = late.findings
    assert (late.rank, finding.level) == (1, "explains")


@pytest.mark.parametrize("spread", [0, 70])
def test_all_are_slowed(tmp_path: Path, spread: int) -> None:
    """Alike in each step, or now this one and now that one: no rank is to blame."""

    def slow(rank: int, step: int) -> int:
        return (20 + random.Random(rank * 1000 + step).randrange(spread + 1)) * MS

    made = report(tmp_path, Training(extra=slow, throttled=slow).nodes())
    one = verdict(made)
    assert (one.outcome, list(one.slowed)) == ("slowed", ["throttle"])
    assert one.slowed["throttle"].share > 0.1
    assert "all slowed, no straggler" in wording.as_text(made)


@pytest.mark.parametrize(
    ("fact", "cap", "outcome"),
    [
        (
            {"kind": "loss", "t0": BEGAN, "t1": BEGAN + 3 * SECOND, "reason": "x"},
            "rank 0: records were lost meanwhile (x)",
            "slowed",
        ),
        (
            {"kind": "oracle", "provider": "throttle/fprobe", "theirs": 1},
            "rank 0: its oracle disagrees with throttle/fprobe",
            "straggler",
        ),
    ],
)
def test_that_all_are_slowed_is_doubtful_if_records_are(
    tmp_path: Path, fact: dict[str, object], cap: str, outcome: str
) -> None:
    """Losses leave at least that share; records that are wrong, nothing to go by."""

    def slow(rank: int, step: int) -> int:
        return 80 * MS if step % 3 == rank else 0

    nodes = Training(extra=slow, throttled=slow).nodes()
    nodes[0].facts.append(fact)
    made = report(tmp_path, nodes)
    one = verdict(made)
    assert (one.outcome, one.slowed["throttle"].caps) == (outcome, (cap,))
    assert f"    doubtful, as {cap}\n" in wording.as_text(made)
    assert explain.as_json(made)["jobs"][0]["slowed_caps"] == {"throttle": (cap,)}
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    said = f"<dt>doubtful, as</dt><dd>{cap}</dd>"
    assert said in (tmp_path / "page.html").read_text()


def test_all_are_slowed_and_one_more_than_others(tmp_path: Path) -> None:
    def slow(rank: int, step: int) -> int:
        return (45 if rank == 2 and step >= 30 else 30) * MS

    made = report(tmp_path, Training(extra=slow, throttled=slow).nodes())
    (late,) = verdict(made).stragglers
    assert late.rank == 2


def test_a_busy_loop_is_not_in_kernel_events(tmp_path: Path) -> None:
    busy = Training(extra=lambda rank, step: 50 * MS if rank == 2 else 0)
    made = report(tmp_path, busy.nodes())
    (late,) = verdict(made).stragglers
    assert (late.rank, late.findings, late.explained) == (2, (), False)
    assert "cause: not in kernel events" in wording.as_text(made)


def test_a_busy_loop_beside_small_stalls_of_its_own(tmp_path: Path) -> None:
    """They overlap each late step, and cover next to nothing of it."""
    busy = Training(
        extra=lambda rank, step: 50 * MS if rank == 2 and step > 30 else 0,
        throttled=lambda rank, step: MS if rank == 2 else 0,
    )
    made = report(tmp_path, busy.nodes())
    (late,) = verdict(made).stragglers
    (finding,) = late.findings
    assert (finding.level, finding.severity) == ("coincides", "note")
    assert finding.covered == 0 and "8 are needed" in finding.caps[0]
    assert (
        "cause: not in kernel events of its thread, which cover 2% of the lateness"
        in wording.as_text(made)
    )


def test_a_throttled_loader_of_a_punctual_rank_is_observed_only(tmp_path: Path) -> None:
    nodes = Training().nodes()
    nodes[1].proc(5000, comm="pt_data_worker")
    for step in range(50):
        begin = BEGAN + SECOND + step * 100 * MS
        nodes[1].throttle(begin, begin + 60 * MS, 5000)
    made = report(tmp_path, nodes)
    assert verdict(made).outcome == "nothing"
    (lost,) = made.lost
    assert (lost.node, lost.cls, lost.n) == ("node1", "throttle", 50)


def by_a_helper(nodes: list[Node]) -> None:
    """Make the stalls of rank 1 those of another thread of its process."""
    nodes[1].events = [
        (*one[:2], 4001 if one[2] == 4000 else one[2], one[3], {**one[4], "task": 4001})
        if one[3].startswith("throttle")
        else one
        for one in nodes[1].events
    ]
    nodes[1].proc(4001, tgid=4000, comm="helper")


def unknown_thread(path: Path) -> chains.Verdict:
    """The verdict on the job in the store, if it is not known which thread was late."""
    with store.reading(path) as opened:
        (job,) = straggler.jobs(opened, rules())
        job.steps = [
            dataclasses.replace(
                step,
                arrivals={
                    rank: dataclasses.replace(arrival, tid=None)
                    for rank, arrival in step.arrivals.items()
                },
            )
            for step in job.steps
        ]
        known, _ = health.examine(opened)
        return chains.judge(opened, job, known, rules())


def test_another_thread_of_the_late_rank_coincides(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    by_a_helper(nodes)
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    (finding,) = late.findings
    assert (finding.level, finding.covered) == ("coincides", 0)
    lost = "of its process lost 1600.0 ms to the CPU quota of /pod-7/train"
    assert (finding.text, finding.cause) == (f"other threads {lost}", "quota")
    # Where it is not known which was late, it may be this one.
    (late,) = unknown_thread(tmp_path / "s.duckdb").stragglers
    (finding,) = late.findings
    assert (finding.level, finding.text) == ("coincides", f"threads {lost}")


def test_of_the_late_thread_and_others_a_claim_is_on_the_former(tmp_path: Path) -> None:
    """What others lost, in another group and at the same time, is not in its sum."""
    nodes = culprit().nodes()
    nodes[1].proc(4001, tgid=4000, comm="helper")
    nodes[1].fact("cgroup", cgroup_id=5, path="/loaders")
    for t, _, _, name, fields in list(nodes[1].events):
        if name == "throttle_in":
            nodes[1].throttle(t - 10 * MS, t + 70 * MS, 4001, cgroup=5)
            assert fields["task"] == 4000
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    (finding,) = late.findings
    assert (finding.level, finding.n) == ("explains", 20)
    assert finding.text == (
        "the thread lost 1600.0 ms to the CPU quota of /pod-7/train"
    )


@pytest.mark.parametrize("path", ["/pod-7", "/dcgm-exporter"])
def test_a_quota_of_others_is_none_of_a_thread_that_is_not_known(
    tmp_path: Path, path: str
) -> None:
    """Neither the stall nor the late arrival has a thread: that does not join them."""
    nodes = culprit().nodes()
    nodes[1].providers = [QUEUES]
    nodes[1].events = [
        (*event[:4], {**event[4], "cgroup": 5}) if "task" in event[4] else event
        for event in nodes[1].events
    ]
    nodes[1].fact("cgroup", cgroup_id=5, path=path)
    report(tmp_path, nodes)
    (late,) = unknown_thread(tmp_path / "s.duckdb").stragglers
    text = "on its node, /pod-7 lost 1600.0 ms to its CPU quota"
    assert [one.text for one in late.findings] == ([text] if path == "/pod-7" else [])


def kept(rank: int, step: int) -> int:
    """Rank 2 cannot leave the collectives of some steps."""
    return 80 * MS if rank == 2 and step in range(20, 50, 2) else 0


@pytest.mark.parametrize("one_node", [True, False])
def test_who_cannot_leave_makes_nobody_else_late(
    tmp_path: Path, one_node: bool
) -> None:
    """It waits for long, but for its quota; in the next step it is the late one."""
    job = Training(kept=kept)
    (late,) = verdict(report(tmp_path, job.nodes(one_node))).stragglers
    assert (late.rank, late.steps) == (2, tuple(range(21, 51, 2)))
    (finding,) = late.findings
    # Of one clock it is known when the others left; of three it is not.
    assert finding.level == ("explains" if one_node else "coincides")
    assert finding.text.startswith("the thread lost 1200.0 ms to the CPU quota of ")


def test_who_can_never_leave_is_not_blamed_without_a_clock(tmp_path: Path) -> None:
    """Each rank on its own node: it may have waited for others while it was stalled."""

    def always(rank: int, step: int) -> int:
        return 80 * MS if rank == 2 and 20 <= step < 40 else 0

    made = report(tmp_path, Training(kept=always).nodes())
    assert verdict(made).outcome == "nothing"
    assert [lost.n for lost in made.lost] == [20]


def test_on_one_clock_no_record_is_needed_for_that(tmp_path: Path) -> None:
    job = Training(kept=kept, by_quota=False)
    (late,) = verdict(report(tmp_path, job.nodes(one_node=True))).stragglers
    assert (late.rank, late.steps, late.findings) == (2, tuple(range(21, 51, 2)), ())


def test_a_rank_that_was_always_late_has_no_control(tmp_path: Path) -> None:
    made = report(tmp_path, culprit(begin=0, end=60).nodes())
    (late,) = verdict(made).stragglers
    (finding,) = late.findings
    assert finding.level == "coincides"
    assert finding.caps == ("there are no steps without it to compare with",)


def test_steps_without_the_cause_are_as_late(tmp_path: Path) -> None:
    """Late all the time, and kept off the CPU in a third of it: not the reason."""
    both = Training(
        extra=lambda rank, step: 80 * MS if rank == 1 else 0,
        throttled=lambda rank, step: 79 * MS if rank == 1 and step % 3 == 0 else 0,
    )
    (late,) = verdict(report(tmp_path, both.nodes())).stragglers
    (finding,) = late.findings
    assert finding.level == "coincides"
    assert "steps without it are" in " ".join(finding.caps)


def test_marks_that_a_stalled_thread_wrote_are_found_in_one_pass(
    tmp_path: Path,
) -> None:
    """As many as by comparing each mark with each stall, which may take hours."""
    chooser = random.Random(11)
    node = Node()
    for step in range(300):
        tid = chooser.randrange(40, 43)
        begin = BEGAN + SECOND + chooser.randrange(2000) * MS + step
        node.mark(begin, tid, step, "enter")
        tid = chooser.randrange(40, 43)
        begin = BEGAN + SECOND + chooser.randrange(2000) * MS + step
        node.event(begin, 1, tid, "io_uring_sqring_wait", ctx=1, wait_ns=MS * tid)
    report(tmp_path, [node])
    inside = (
        "SELECT sid, count(*) FROM mark m WHERE EXISTS (FROM stall s WHERE "
        "s.sid = m.sid AND s.tid = m.tid AND s.t0 < m.t AND m.t < s.t1) GROUP BY sid"
    )
    with store.reading(tmp_path / "s.duckdb") as opened:
        found = opened.execute(health._MARKS_INSIDE, [["io_uring"]]).fetchall()
        assert found == opened.execute(inside).fetchall()
        assert 0 < found[0][1] < 300
        plan = opened.execute(f"EXPLAIN {health._MARKS_INSIDE}", [["io_uring"]])
        assert "Join" not in str(plan.fetchall())
        assert "Join" in str(opened.execute(f"EXPLAIN {inside}").fetchall())


def test_of_very_many_steps_some_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test takes as long for a day of steps as for an hour, and says so."""
    few = dataclasses.replace(rules(), drawn=15)
    monkeypatch.setattr(explain, "rules", lambda: few)
    made = report(tmp_path, culprit().nodes())
    again = explain.report(tmp_path / "s.duckdb")
    assert wording.as_text(made) == wording.as_text(again)
    (finding,) = verdict(made).stragglers[0].findings
    control = finding.control
    assert control and (control.drawn, finding.level) == (15, "explains")
    assert (control.steps_with, control.steps_without) == (20, 39)
    text = "in the 39 without, p = 0.0001 (for 15 of each, drawn at random)"
    assert text in wording.as_text(made)
    page.write(tmp_path / "s.duckdb", made, tmp_path / "p.html")
    assert "(for 15 of each, drawn at random)" in (tmp_path / "p.html").read_text()


def test_steps_that_are_drawn_tell_no_cause_from_noise(tmp_path: Path) -> None:
    few = dataclasses.replace(rules(), drawn=100)
    chooser = random.Random(7)
    some = [chooser.randrange(1000) for _ in range(200)]
    many = [chooser.randrange(1000) for _ in range(900)]
    p, drawn = chains._permuted(some, many, few)
    assert (drawn, p > 0.01) == (100, True)
    p, drawn = chains._permuted([number + 500 for number in some], many, few)
    assert (drawn, p < 0.01) == (100, True)
    # One side is as small as that: all are compared.
    assert chains._permuted(some[:100], many, few)[1] is None


@pytest.mark.parametrize(("count", "level"), [(7, None), (8, "explains")])
def test_how_often_before_anything_is_said(
    tmp_path: Path, count: int, level: str | None
) -> None:
    one = verdict(report(tmp_path, culprit(end=20 + count).nodes()))
    levels = [finding.level for late in one.stragglers for finding in late.findings]
    assert levels == ([level] if level else [])


def test_one_that_rotates_is_not_averaged_away(tmp_path: Path) -> None:
    def turn(rank: int, step: int) -> int:
        return 60 * MS if step >= 10 and (step // 10) % 3 == rank else 0

    one = verdict(report(tmp_path, Training(extra=turn, throttled=turn).nodes()))
    assert sorted(late.rank for late in one.stragglers) == [0, 1, 2]
    assert all(late.explained for late in one.stragglers)


def test_messages_of_a_device_never_explain(tmp_path: Path) -> None:
    def slow(rank: int, step: int) -> int:
        return 60 * MS if rank == 1 and step >= 30 else 0

    nodes = Training(extra=slow).nodes()
    for one in list(nodes[1].events):
        if one[3] == "print" and "phase=enter" in str(one[4]["buf"]):
            step = int(str(one[4]["buf"]).split("step=")[1].split()[0])
            if step >= 30:
                nodes[1].event(
                    one[0] - 30 * MS, 0, 9, "aer_event", dev_name="01:00.0", severity=0
                )
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    (finding,) = late.findings
    assert (finding.cls, finding.level) == ("aer", "coincides")
    assert "01:00.0" in finding.text


@pytest.mark.parametrize(
    ("status", "err_src", "sender"),
    [
        # Correctable: the lower half.  Else the upper one: the lower is an older one's.
        (0x01, 0x0B01_0208, "0001:02:01.0"),
        (0x24, 0x0B01_0208, "0001:0b:00.1"),
        # Of more messages it is not known who sent them.
        (0x02, 0x0B01_0208, "a device at or below 0001:00:01.0"),
    ],
)
def test_messages_are_of_the_device_that_sent_them(
    tmp_path: Path, status: int, err_src: int, sender: str
) -> None:
    """The record names the Root Port, which only received them."""
    busy = Training(extra=lambda rank, step: 60 * MS if rank == 2 and step >= 30 else 0)
    nodes = busy.nodes()
    nodes[2].providers = MESSAGES
    port: dict[str, Member] = {"port_name": "0001:00:01.0", "domain": 1, "dropped": 0}
    for one in list(nodes[2].events):
        if one[3] == "print" and "phase=enter" in str(one[4]["buf"]):
            message = port | {"root_status": status, "err_src": err_src}
            nodes[2].event(one[0] - 30 * MS, 0, 9, "pcie_aer_msg", **message)
    # Of another device there are more in all, but fewer from any one.
    for at in range(60):
        message = port | {"root_status": 0x01, "err_src": 0x300 + at}
        nodes[2].event(BEGAN + SECOND + at * MS, 0, 9, "pcie_aer_msg", **message)
    late = verdict(report(tmp_path, nodes)).stragglers
    (finding,) = next(one for one in late if one.rank == 2).findings
    assert finding.text == f"at least 59 error messages from {sender}"
    assert finding.fix == f"look at link and slot of {sender}"


def test_who_sent_a_fatal_error_is_said_on_one_occurrence(tmp_path: Path) -> None:
    node = Node(providers=MESSAGES)
    port: dict[str, Member] = {"port_name": "0000:00:01.0", "domain": 0, "dropped": 0}
    for at, bus in enumerate((2, 2, 3)):
        message = port | {"root_status": 0x54, "err_src": bus << 24}
        node.event(BEGAN + at * MS, 0, 9, "pcie_aer_msg", **message)
    said = [(bad.device, bad.n) for bad in report(tmp_path, [node]).incidents]
    assert said == [("0000:02:00.0", 2), ("0000:03:00.0", 1)]


@pytest.mark.parametrize("sender", [3, ["a", "b"], ["a", "b", 64], ["a", 1, 0], "abc"])
def test_a_sender_that_is_none(sender: Any) -> None:
    with pytest.raises(ValueError, match="sender is "):
        decode.Provider.read(MESSAGES[0] | {"sender": sender})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/pod-7/train", True),
        ("/pod-7", True),
        ("/", True),
        ("/pod-7/train/worker", False),
        ("/pod-70", False),
        ("/dcgm-exporter", False),
        # It may be gone already, so that it is not known.
        (None, False),
    ],
)
def test_a_quota_without_a_thread_concerns_ranks_below_its_group(
    tmp_path: Path, path: str | None, said: bool
) -> None:
    nodes = culprit().nodes()
    nodes[1].providers = [QUEUES]
    group = 77 if path == "/pod-7/train" else 5
    nodes[1].events = [
        (*event[:4], {**event[4], "cgroup": group}) if "task" in event[4] else event
        for event in nodes[1].events
    ]
    if path and group != 77:
        nodes[1].fact("cgroup", cgroup_id=5, path=path)
    made = report(tmp_path, nodes)
    (late,) = verdict(made).stragglers
    text = f"on its node, {path} lost 1600.0 ms to its CPU quota"
    assert [finding.text for finding in late.findings] == ([text] if said else [])
    assert (
        "COINCIDES: at that time, on a thread of that rank, or"
        in (wording.as_text(made))
    ) is said
    # Whose it was is in the table of lost time in any case.
    assert [lost.n for lost in made.lost] == [20]


@pytest.mark.parametrize(("severity", "said"), [(0, 0), (1, 1)])
def test_a_fatal_error_is_said_on_one_occurrence(
    tmp_path: Path, severity: int, said: int
) -> None:
    nodes = Training().nodes()
    nodes[1].event(
        BEGAN + MS, 0, 9, "aer_event", dev_name="01:00.0\x1b", severity=severity
    )
    made = report(tmp_path, nodes)
    assert verdict(made).outcome == "nothing"
    assert len(made.incidents) == said
    text = wording.as_text(made)
    assert text.count(r"[high] aer on node1: fatal errors from 01:00.0\x1b") == said
    assert len(explain.as_json(made)["incidents"]) == said


@pytest.mark.parametrize(
    ("event", "fields", "said"),
    [
        ("qp_async_event", {"event": 0}, "completion queue error"),
        ("qp_async_event", {"event": 1}, "queue pair fatal"),
        ("qp_async_event", {"event": 3}, "queue pair access error"),
        ("cq_wc_error", {"status": 12}, "completion with an error"),
        # A connection comes or goes.
        ("qp_async_event", {"event": 4}, None),
        ("qp_async_event", {"event": 5}, None),
        ("qp_async_event", {"event": 6}, None),
        ("qp_async_event", {"event": 16}, None),
        ("qp_async_event", {"event": 99}, None),
        ("cq_wc_error", {"status": 5}, None),
    ],
)
def test_only_failures_of_queues_are_said_on_one_occurrence(
    tmp_path: Path, event: str, fields: dict[str, Member], said: str | None
) -> None:
    node = Node(providers=RDMA)
    node.event(BEGAN + MS, 0, 9, event, **fields)
    made = report(tmp_path, [node])
    assert [incident.cause for incident in made.incidents] == ([said] if said else [])
    text = f"a completion queue or queue pair failed ({said})"
    assert (text in wording.as_text(made)) is bool(said)
    assert len(made.lost) == 1


# -- doubts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "level"),
    [("inside", "coincides"), ("open", "coincides"), ("before", "explains")],
)
def test_loss_caps(tmp_path: Path, where: str, level: str) -> None:
    nodes = culprit().nodes()
    t0 = BEGAN if where == "before" else BEGAN + 3 * SECOND
    t1 = None if where == "open" else t0 + MS
    nodes[1].fact("loss", cpu=0, t0=t0, t1=t1, n=None, reason="overrun")
    made = report(tmp_path, nodes)
    (late,) = verdict(made).stragglers
    assert late.findings[0].level == level
    assert "an unknown number of events lost on CPU 0 (overrun)" in wording.as_text(
        made
    )
    if level == "coincides":
        assert late.findings[0].caps == ("records were lost meanwhile (overrun)",)


_OF_IT, _OF_ANOTHER = "throttle/fprobe", "iotlb/intel"


@pytest.mark.parametrize(
    ("reason", "capped"),
    [
        ("dropped", True),
        ("commit overrun", True),
        ("not read", True),
        ("disk full", True),
        ("ring", True),
        (f"threshold {_OF_IT} 4000 ns", True),
        (f"suspended {_OF_IT}", True),
        (f"refused {_OF_IT}", True),
        # What another one's records would have said is not in this claim.
        (f"threshold {_OF_ANOTHER} 4000 ns", False),
        (f"suspended {_OF_ANOTHER}", False),
        (f"refused {_OF_ANOTHER}", False),
    ],
)
def test_each_reason_caps_what_it_should(
    tmp_path: Path, reason: str, capped: bool
) -> None:
    nodes = culprit().nodes()
    # In the middle of the late steps; of a threshold nobody knows an end.
    t1 = None if reason.startswith(("threshold", "suspended")) else BEGAN + 4 * SECOND
    nodes[1].fact("loss", cpu=None, t0=BEGAN + 3 * SECOND, t1=t1, n=None, reason=reason)
    made = report(tmp_path, nodes)
    (late,) = verdict(made).stragglers
    finding = late.findings[0]
    assert finding.level == ("coincides" if capped else "explains")
    assert finding.caps == ((f"records were lost meanwhile ({reason})",) * capped)
    # Said it is whether it caps or not, and who is late is known all the same.
    assert f"({reason})" in wording.as_text(made)
    assert late.steps == tuple(range(20, 40))


@pytest.mark.parametrize(
    ("fact", "cap"),
    [
        (None, None),
        (
            {"kind": "loss", "t0": BEGAN + 4 * SECOND, "n": 500_000, "reason": "x"},
            "records were lost meanwhile (x)",
        ),
        (
            {"kind": "loss", "t0": BEGAN, "reason": "threshold throttle 9 ns"},
            "records were lost meanwhile (threshold throttle 9 ns)",
        ),
        (
            {"kind": "oracle", "provider": "throttle/fprobe", "theirs": 1},
            "its oracle disagrees with throttle/fprobe",
        ),
    ],
)
def test_what_is_wrong_after_the_recorder_was_started_again_caps(
    tmp_path: Path, fact: dict[str, object] | None, cap: str | None
) -> None:
    nodes = [
        half
        for node in culprit().nodes()
        for half in restarted(node, BEGAN + 2 * SECOND)
    ]
    if fact:
        nodes[3].facts.append(fact)
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    (finding,) = late.findings
    assert (late.rank, late.steps) == (1, tuple(range(20, 40)))
    assert finding.level == ("coincides" if cap else "explains")
    assert finding.caps == ((cap,) if cap else ())


@pytest.mark.parametrize(
    ("until", "late_steps", "control", "cap"),
    [
        (SECOND // 2, 20, 39, None),
        # Among the late steps: what was before tells nothing of the cause.
        (3 * SECOND, 20, 20, None),
        (5 * SECOND, 9, 20, None),
        (6 * SECOND, 3, 20, "in 3 late steps, 8 are needed"),
        # No late step is left, so that all count.
        (8 * SECOND, 20, 39, "records were lost meanwhile (ring)"),
    ],
)
def test_old_segments_that_made_room_cap_what_was_before(
    tmp_path: Path, until: int, late_steps: int, control: int, cap: str | None
) -> None:
    nodes = culprit().nodes()
    nodes[1].fact("loss", cpu=3, t0=BEGAN, t1=BEGAN + until, n=None, reason="ring")
    made = report(tmp_path, nodes)
    (late,) = verdict(made).stragglers
    (finding,) = late.findings
    assert finding.level == ("coincides" if cap else "explains")
    assert (cap or "") in " ".join(finding.caps) and bool(finding.caps) is bool(cap)
    assert late.steps == tuple(range(20, 40)) and finding.late == late_steps
    assert finding.control and finding.control.steps_without == control
    said = "rank 1: in 19 of 59 steps the cause is not known: --ring had deleted"
    assert (f"  ! {said} records of that time" in wording.as_text(made)) is (
        until == 3 * SECOND
    )


def test_a_killed_recorder_caps(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    nodes[1].ended = None
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    assert late.findings[0].level == "coincides"


def test_a_tenth_dropped_in_silence_is_seen_by_the_oracle(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    nodes[1].fact(
        "oracle",
        provider="throttle/fprobe",
        scope="cgroup:77",
        metric="sum_ns",
        theirs=20 * 80 * MS,
    )
    good = report(tmp_path / "good", nodes)
    assert verdict(good).stragglers[0].explained
    ins = [one for one in nodes[1].events if one[3] == "throttle_in"]
    outs = [one for one in nodes[1].events if one[3] == "throttle_out"]
    for one in (*ins[3::10], *outs[3::10]):
        nodes[1].events.remove(one)
    made = report(tmp_path / "bad", nodes)
    (late,) = verdict(made).stragglers
    assert late.findings[0].level == "coincides"
    assert late.findings[0].caps == ("its oracle disagrees with throttle/fprobe",)
    assert (
        "throttle/fprobe is refused: it says 1440000000 ns, its oracle 1600000000 ns"
        in (wording.as_text(made))
    )


@pytest.mark.parametrize(
    ("oracle", "compared"),
    [
        (None, False),
        ({"provider": "throttle/fprobe", "theirs": None}, False),
        ({"provider": "throttle/fprob", "theirs": 1600 * MS}, False),
        ({"provider": "throttle/fprobe", "theirs": 1600 * MS}, True),
    ],
)
def test_what_no_oracle_has_seen_is_said_with_the_claim(
    tmp_path: Path, oracle: dict[str, object] | None, compared: bool
) -> None:
    nodes = culprit().nodes()
    if oracle:
        nodes[1].fact("oracle", scope="all", metric="sum_ns", **oracle)
    made = report(tmp_path, nodes)
    (late,) = verdict(made).stragglers
    (finding,) = late.findings
    assert finding.level == "explains"
    assert finding.uncompared == (() if compared else ("throttle/fprobe",))
    said = "not compared with an oracle: throttle/fprobe"
    assert (f"      {said}\n" in wording.as_text(made)) is not compared
    page.write(tmp_path / "s.duckdb", made, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert ("not compared with an oracle" in text) is not compared


@pytest.mark.parametrize(("theirs", "compared"), [(None, False), (1600 * MS, True)])
def test_that_another_group_was_compared_tells_nothing_of_this_one(
    tmp_path: Path, theirs: int | None, compared: bool
) -> None:
    """Its own was gone between two looks of the recorder."""
    nodes = culprit().nodes()
    oracle = {"provider": "throttle/fprobe", "metric": "sum_ns"}
    nodes[1].fact("oracle", **oracle, scope="cgroup:7", theirs=0)
    nodes[1].fact("oracle", **oracle, scope="cgroup:77", theirs=theirs)
    made = report(tmp_path, nodes)
    assert "agrees" in {entry["verdict"] for entry in made.oracles}
    (late,) = verdict(made).stragglers
    assert late.findings[0].uncompared == (() if compared else ("throttle/fprobe",))


def test_of_two_recordings_one_was_not_compared(tmp_path: Path) -> None:
    """The second goes on, so that its recorder has not compared anything yet."""
    nodes = [
        half
        for node in culprit().nodes()
        for half in restarted(node, BEGAN + 5 * SECOND)
    ]
    lost = sum(event[3] == "throttle_out" for event in nodes[2].events) * 80 * MS
    oracle = {"provider": "throttle/fprobe", "scope": "all", "metric": "sum_ns"}
    nodes[2].fact("oracle", **oracle, theirs=lost)
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    assert late.findings[0].uncompared == ("throttle/fprobe",)


# -- mutants: what a mistake in a recorder or in here would make of the data ----------


def _swapped(node: Node) -> None:
    """Start and end of stalls exchanged."""
    names = {"throttle_in": "throttle_out", "throttle_out": "throttle_in"}
    node.events = [(*one[:3], names.get(one[3], one[3]), one[4]) for one in node.events]


def _microseconds(node: Node) -> None:
    """A member that is said to be ns, and is not."""
    node.events = [one for one in node.events if one[3] != "throttle_out"] + [
        (one[0], one[1], 4000, "io_uring_sqring_wait", {"ctx": 1, "wait_ns": 80_000})
        for one in node.events
        if one[3] == "throttle_out"
    ]


def _other_thread(node: Node) -> None:
    """A number that another process had."""
    node.events = [
        (*one[:4], {**one[4], "task": 4999}) if "task" in one[4] else one
        for one in node.events
    ]
    node.proc(4999, comm="other")


def _mark_swapped(node: Node) -> None:
    node.events = [
        (
            *one[:4],
            {
                **one[4],
                "buf": str(one[4]["buf"]).translate(str.maketrans("", ""))
                .replace("enter", "#").replace("exit", "enter").replace("#", "exit"),
            },
        )
        if one[3] == "print"
        else one
        for one in node.events
    ]  # fmt: skip


@pytest.mark.parametrize(
    "mutate", [_swapped, _microseconds, _other_thread], ids=lambda one: one.__name__
)
def test_mutants_explain_nothing(
    tmp_path: Path, mutate: Callable[[Node], None]
) -> None:
    nodes = culprit().nodes()
    mutate(nodes[1])
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    assert late.rank == 1
    assert not late.explained


def test_a_stall_that_never_ended_although_its_thread_went_on(tmp_path: Path) -> None:
    """An end that was not recorded would cover all that comes after it."""
    busy = Training(extra=lambda rank, step: 50 * MS if rank == 1 and step > 30 else 0)
    nodes = busy.nodes()
    for t, _, tid, name, fields in list(nodes[1].events):
        if name == "print" and "step=31 phase=enter" in str(fields["buf"]):
            nodes[1].event(t - 60 * MS, 0, tid, "throttle_in", cgroup=77, task=tid)
    made = report(tmp_path, nodes)
    (late,) = verdict(made).stragglers
    (finding,) = late.findings
    assert finding.level == "coincides"
    said = "marks of threads that were stalled when they wrote them"
    assert said in " ".join(finding.caps)
    # It went on at the next mark, so the stall had ended by then.
    assert (finding.covered, finding.lost_ns) == (1, 60 * MS)


@pytest.mark.parametrize(
    ("reason", "lost"),
    [("suspended drm/pairs", 10 * MS), ("suspended aer/other", None)],
)
def test_a_stall_whose_end_may_be_among_what_was_lost(
    tmp_path: Path, reason: str, lost: int | None
) -> None:
    """A thread that submits a job goes on, so its marks do not tell of an end."""
    busy = Training(extra=lambda rank, step: 50 * MS if rank == 1 and step > 30 else 0)
    nodes = busy.nodes()
    nodes[1].providers = [PROVIDERS[0] | {"class": "drm", "provider": "drm/pairs"}]
    for t, _, tid, name, fields in list(nodes[1].events):
        if name == "print" and "step=31 phase=enter" in str(fields["buf"]):
            nodes[1].event(t - 60 * MS, 0, tid, "throttle_in", cgroup=77, task=tid)
            nodes[1].fact("loss", t0=t - 50 * MS, t1=None, n=None, reason=reason)
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    (finding,) = late.findings
    assert finding.level == ("coincides" if lost else "explains")
    assert (finding.lost_ns == lost) if lost else (finding.lost_ns > 3 * SECOND)


def test_who_had_the_number_before_is_not_blamed(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    nodes[1].facts[0]["starttime"] = BEGAN + SECOND // 2
    nodes[1].proc(4000, comm="before", starttime=1)
    for at in range(20):
        begin = BEGAN + at * 20 * MS
        nodes[1].throttle(begin, begin + 10 * MS, 4000)
    made = report(tmp_path, nodes)
    (late,) = verdict(made).stragglers
    assert (late.findings[0].lost_ns, late.findings[0].n) == (20 * 80 * MS, 20)
    _, rows, _ = store.query(
        tmp_path / "s.duckdb", "SELECT comm, count(*) FROM stall GROUP BY 1 ORDER BY 1"
    )
    assert rows == [("before", 20), ("python3", 20)]


def test_marks_of_which_start_and_end_are_exchanged(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    for node in nodes:
        _mark_swapped(node)
    made = report(tmp_path, nodes)
    assert not verdict(made).stragglers
    assert "one left before all had entered: the marks are damaged" in wording.as_text(
        made
    )


def test_times_from_outside_of_the_recording_cap(tmp_path: Path) -> None:
    """As after a clock that jumped, or us that were taken for ns."""
    nodes = culprit().nodes()
    nodes[1].ended = BEGAN + 5 * SECOND
    made = report(tmp_path, nodes)
    assert not any(late.explained for late in verdict(made).stragglers)
    assert "marks from outside of the recording" in wording.as_text(made)


def test_the_same_numbers_on_all_nodes_are_kept_apart(tmp_path: Path) -> None:
    """Thread 4000 is on each of them, throttled on one, and in cgroup 77."""
    nodes = culprit().nodes()
    nodes[0].facts = [
        {**fact, "path": "/another"} if fact["kind"] == "cgroup" else fact
        for fact in nodes[0].facts
    ]
    (late,) = verdict(report(tmp_path, nodes)).stragglers
    assert "/pod-7/train" in late.findings[0].text
    assert [one.node for one in explain.report(tmp_path / "s.duckdb").lost] == ["node1"]


def test_all_ranks_on_one_node(tmp_path: Path) -> None:
    made = report(tmp_path, culprit().nodes(one_node=True))
    (late,) = verdict(made).stragglers
    assert (late.rank, late.tid, late.explained) == (1, 4010, True)
    assert [one["method"] for one in made.clocks] == ["same"]


# -- what cannot be known -----------------------------------------------------------


def test_without_marks_a_table_of_lost_time(tmp_path: Path) -> None:
    node = Node()
    node.throttle(BEGAN + 1, BEGAN + 10 * MS, 40)
    made = report(tmp_path, [node])
    said = wording.as_text(made)
    assert "a table of lost time only" in said
    assert "which rank was late cannot be known" in said


def test_a_rank_of_which_nothing_came(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    made = report(tmp_path, [nodes[0], nodes[2]])
    assert verdict(made).outcome == "nothing"
    assert "marks of 2 of 3 ranks" in wording.as_text(made)


def test_which_start_is_which_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was late and whose clock is which need the same answer."""
    asked = []

    def counted(opened: duckdb.DuckDBPyConnection, when: window.Window) -> runs.Runs:
        asked.append(opened)
        return found(opened, when)

    found = runs.runs
    for module in (explain, straggler):
        monkeypatch.setattr(module, "runs", counted)
    assert verdict(report(tmp_path, culprit().nodes())).stragglers
    assert len(asked) == 1


def test_two_processes_that_say_they_are_the_same_rank(tmp_path: Path) -> None:
    nodes = culprit().nodes()
    nodes[2].facts[0]["rank"] = 1
    said = wording.as_text(report(tmp_path, nodes))
    assert "two processes say they are the same rank" in said


def at_night(tmp_path: Path) -> tuple[Path, list[str]]:
    """A store with a rank that is late early, and one that is late later.

    Clocks of nodes are hours apart, and the words are for the minute of the later one.
    """
    real = calendar.timegm((2026, 11, 27, 3, 0, 0)) * SECOND

    def slow(rank: int, step: int) -> int:
        return 80 * MS if (rank, step // 20) in ((1, 1), (2, 10)) else 0

    job = Training(steps=260, extra=slow, throttled=slow)
    job.skew = lambda rank: rank * 3700 * SECOND
    for node in job.nodes():
        node.facts.append(
            {
                "kind": "clock",
                "t_mono": node.began,
                "t_real": real,
                "bound": 1000,
                "method": "adjtimex",
            }
        )
        node.write(tmp_path / "rec" / node.name)
    made = tmp_path / "s.duckdb"
    seal.seal([tmp_path / "rec"], made)
    # A step takes 0.1 s, and the first begins after a second.
    return made, [
        "--from",
        "2026-11-27 03:00:18 UTC",
        "--until",
        "2026-11-27T03:00:31Z",
    ]


def test_a_night_of_which_a_minute_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No object is made of what is outside; the step that was begun then is whole."""
    made, words = at_night(tmp_path)
    marks: list[int] = []
    arrival = straggler.Arrival

    def counted(*what: Any) -> straggler.Arrival:
        marks.append(1)
        return arrival(*what)

    monkeypatch.setattr(straggler, "Arrival", counted)
    late = [late.rank for late in verdict(explain.report(made)).stragglers]
    assert (sorted(late), len(marks)) == ([1, 2], 3 * 260)
    marks.clear()
    assert cli.main(["explain", str(made), *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (job,) = said["jobs"]
    assert [late["rank"] for late in job["stragglers"]] == [2]
    assert job["stragglers"][0]["findings"][0]["level"] == "explains"
    assert len(marks) == 3 * job["steps"] < 3 * 130
    assert job["remarks"] == []
    assert [(lost["node"], lost["n"]) for lost in said["lost"]] == [("node2", 20)]
    assert said["unknown"][0] == (
        "only what was from 2026-11-27 03:00:18 UTC until 2026-11-27 03:00:31 UTC, by "
        "the clocks of its nodes; what had not ended, what was lost or left out, and "
        "oracles are of all its time"
    )
    page_ = tmp_path / "p.html"
    for some, count in (([], 40), (words, 20)):
        argv = ["explain", str(made), *some, "--html", str(page_)]
        assert cli.main(argv) == 0
        assert f"{count} stalls" in page_.read_text()


@pytest.mark.parametrize("fraction", ["", ".250000", ".000001", ".999999"])
def test_a_time_is_kept_to_the_microsecond(fraction: str) -> None:
    text = f"2026-11-27 03:00:18{fraction} UTC"
    when = window.moment(text)
    whole = calendar.timegm((2026, 11, 27, 3, 0, 18)) * SECOND
    assert when - whole == int(fraction[1:] or 0) * 1000
    assert str(window.Window(when)) == f"from {text}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--from", "2026-11-28"],
            "no marks from 2026-11-28 00:00:00 UTC; there are some from 2026-11-27 "
            "03:00:01 UTC until 2026-11-27 03:00:",
        ),
        (["--until", "03:00"], "'03:00' is no time, such as '2026-11-27 03:00' or "),
        (["--from", "yesterday"], "'yesterday' is no time, such as "),
    ],
)
def test_a_time_of_which_nothing_is_known(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    made, _ = at_night(tmp_path)
    try:
        status: object = cli.main(["explain", str(made), *words])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_two_jobs_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [*culprit().nodes(), *Training().nodes()]
    for node in nodes[3:]:
        node.name, node.boot_id = f"x{node.name}", f"x{node.boot_id}"
        node.facts[0]["job"] = "other"
    made = report(tmp_path, nodes)
    assert [(one.job.name, one.outcome) for one in made.verdicts] == [
        ("other", "nothing"),
        ("train", "straggler"),
    ]
    path = tmp_path / "s.duckdb"
    assert len(explain.report(path, "other").verdicts) == 1
    with pytest.raises(errors.OpsError, match=r"no job x in .*; known: other, train"):
        explain.report(path, "x")
    assert cli.main(["explain", str(path), "--job", "train", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert job["stragglers"][0]["findings"][0]["level"] == "explains"


def test_chance() -> None:
    assert straggler.chance(0, 10, 3) == pytest.approx(1)
    assert straggler.chance(10, 10, 2) == pytest.approx(1 / 1024)
    assert straggler.chance(900, 2000, 1000) < 1e-300


def test_of_many_steps_the_first_are_named() -> None:
    assert straggler.ranks_text([7, 0, 1, 2]) == "0-2, 7"
    said = straggler.ranks_text(range(0, 1000, 3))
    assert said.endswith("30, 33, … 999") and len(said) < 60


def test_the_union_of_intervals() -> None:
    found = [(0, 10), (5, 20), (30, 40), (35, 36), (90, 200)]
    assert straggler.union(found, 2, 100) == 18 + 10 + 10
    assert straggler.union([(10, 0)], 0, 100) == 0


def test_rules_are_about_the_classes_that_there_are() -> None:
    from kstall_ops.schema import CLASSES

    assert set(rules().classes) == set(CLASSES)
    for rule in rules().classes.values():
        assert all(dataclasses.asdict(rule)[name] for name in ("say", "fix", "doc"))
