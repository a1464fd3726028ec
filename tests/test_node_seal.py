# SPDX-License-Identifier: GPL-2.0-or-later
"""What the recorder's providers need of `kstall seal`."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kstall_node.oracles import judge
from kstall_ops import seal, store
from kstall_ops.errors import NotARecording
from recordings import BEGAN, MS, Node


def sealed(node: Node, top: Path, **spec: Any) -> Path:
    """With the first provider changed."""
    rec = node.write(top / "rec")
    session = json.loads((rec / "session.json").read_text())
    session["providers"][0].update(spec)
    (rec / "session.json").write_text(json.dumps(session))
    seal.seal([rec], top / "s")
    return top / "s"


def three() -> Node:
    """Threads 11, 12 and 13 of one queue; its time is 90 ms."""
    node = Node()
    for tid, t in ((11, 10), (12, 20), (13, 30)):
        node.event(BEGAN + t * MS, 0, tid, "throttle_in", cgroup=77, task=tid)
    node.event(BEGAN + 100 * MS, 0, 0, "throttle_out", cgroup=77, task=0)
    return node


def test_one_end_ends_many(tmp_path: Path) -> None:
    made = sealed(three(), tmp_path, key=["cgroup"], many=True)
    _, rows, _ = store.query(made, "SELECT tid, t0, dur FROM stall ORDER BY tid")
    assert rows == [
        (tid, BEGAN + t * MS, (100 - t) * MS)
        for tid, t in ((11, 10), (12, 20), (13, 30))
    ]
    _, ids, _ = store.query(made, "SELECT count(DISTINCT id) FROM stall")
    assert ids == [(3,)]


@pytest.mark.parametrize(
    ("metric", "theirs", "verdict"),
    [
        ("union_ns", 90 * MS, "agrees"),
        ("ns", 90 * MS, "disagrees"),
        ("ns", 240 * MS, "agrees"),
        ("union_ns", 115 * MS, "disagrees"),
    ],
)
def test_a_queue_counts_once(
    tmp_path: Path, metric: str, theirs: int, verdict: str
) -> None:
    node = three()
    said = {"provider": "throttle/fprobe", "scope": "cgroup:77", "metric": metric}
    node.fact("oracle", **said, ours=0, theirs=theirs, verdict="agrees")
    made = sealed(node, tmp_path, key=["cgroup"], many=True)
    _, rows, _ = store.query(made, "SELECT verdict FROM oracle")
    assert rows == [(verdict,)]


@pytest.mark.parametrize(
    ("low", "high", "theirs", "verdict"),
    [(3, 9, 3, "agrees"), (1, 5, 3, "agrees"), (4, 9, 4, "disagrees")],
)
def test_a_count_is_known_as_an_interval(
    tmp_path: Path, low: int, high: int, theirs: int, verdict: str
) -> None:
    """The middle of it is no number that the kernel has said."""
    node = three()
    said = judge("all", "count", None, (low, high))
    node.fact(**said.fact("throttle/fprobe"))
    made = sealed(node, tmp_path, key=["cgroup"], many=True)
    _, rows, _ = store.query(made, "SELECT ours, theirs, verdict FROM oracle")
    assert rows == [(3, theirs, verdict)]


@pytest.mark.parametrize(
    ("high", "verdict"), [(260, "agrees"), (9000, "unknown"), (90, "disagrees")]
)
def test_a_time_that_is_hardly_known_agrees_with_nothing(
    tmp_path: Path, high: int, verdict: str
) -> None:
    node = three()
    said = judge("cgroup:77", "ns", None, (0 if high > 1000 else high, high * MS))
    node.fact(**said.fact("throttle/fprobe"))
    if verdict != "unknown":
        node.facts[-1] |= {"low": (high - 20) * MS}
    made = sealed(node, tmp_path, key=["cgroup"], many=True)
    _, rows, _ = store.query(made, "SELECT ours, verdict FROM oracle")
    assert rows == [(240 * MS, verdict)]


@pytest.mark.parametrize("metric", ["count", "ns", "union_ns"])
def test_recorder_and_seal_judge_alike(metric: str) -> None:
    """Each has the rule of its own, as neither imports the other."""
    random, seen = Random(metric), set[str]()
    for _ in range(2000):
        low = random.choice((0, 500, MS, 100 * MS, 5000 * MS))
        high = low + random.choice((0, 0, 500, 30 * MS, 45 * MS, 300 * MS))
        share = random.choice((-3, -2, 0, 0, 2, 3)) / 100
        ours = int((1 + share) * random.choice((low, (low + high) // 2, high)))
        said = judge("all", metric, ours, (low, high))
        assert seal.judge(metric, ours, low, high) == (said.theirs, said.verdict)
        seen.add(said.verdict)
    assert {"agrees", "disagrees"} <= seen
    assert ("unknown" in seen) is (metric != "count")


def test_of_a_recording_that_goes_on(tmp_path: Path) -> None:
    """The last comparison counts, up to where the copy is complete."""
    node = three()
    node.ended = None
    scope = {"provider": "throttle/fprobe", "scope": "cgroup:77", "metric": "ns"}
    for until, theirs in ((50, 7), (101, 240), (200, 999)):
        node.fact("complete", until=BEGAN + 110 * MS, segments={"0": 1})
        said = {"ours": 0, "theirs": theirs * MS, "until": BEGAN + until * MS}
        node.fact("oracle", **scope, **said, verdict="agrees")
    made = sealed(node, tmp_path, key=["cgroup"], many=True)
    _, rows, _ = store.query(made, "SELECT ours, theirs, verdict FROM oracle")
    assert rows == [(240 * MS, 240 * MS, "agrees")]


def test_what_began_counts_where_beginnings_were_counted(tmp_path: Path) -> None:
    node = three()
    scope = {"provider": "throttle/fprobe", "scope": "all", "metric": "count"}
    until = {"ours": 0, "verdict": "agrees", "until": BEGAN + 25 * MS}
    node.fact("oracle", **scope, **until, theirs=2)
    made = sealed(node, tmp_path, key=["cgroup"], many=True, oracle="pairs")
    _, rows, _ = store.query(made, "SELECT ours, verdict FROM oracle")
    assert rows == [(2, "agrees")]


@pytest.mark.parametrize("partial", [False, True])
def test_what_a_ring_has_deleted_is_not_compared(tmp_path: Path, partial: bool) -> None:
    """A later recorder may delete it, when the comparison has been noted."""
    node = three()
    said = {"provider": "throttle/fprobe", "scope": "cgroup:77", "metric": "ns"}
    node.fact("oracle", **said, ours=900 * MS, theirs=900 * MS, verdict="agrees")
    node.fact("loss", cpu=0, t0=BEGAN, t1=BEGAN + MS, n=None, reason="ring")
    if partial:
        node.fact("left out", until=BEGAN, segments={})
    made = sealed(node, tmp_path, key=["cgroup"], many=True)
    _, rows, _ = store.query(made, "SELECT theirs, verdict FROM oracle")
    assert rows == [(None, "unknown")]


def test_a_duration_of_two_members(tmp_path: Path) -> None:
    node = Node()
    node.event(BEGAN + MS, 0, 5, "throttle_out", cgroup=900, task=300)
    made = sealed(node, tmp_path, begin=None, key=[], dur=["cgroup", "task"], tid=None)
    _, rows, _ = store.query(made, "SELECT dur, t1 - t0 FROM stall")
    assert rows == [(600, 600)]


@pytest.mark.parametrize("spec", [{"many": 1}, {"dur": ["a"]}, {"dur": [1, 2]}])
def test_nonsense_is_refused(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(NotARecording, match="provider 0"):
        sealed(Node(), tmp_path, **spec)
