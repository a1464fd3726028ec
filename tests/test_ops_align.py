# SPDX-License-Identifier: GPL-2.0-or-later
"""Clocks of nodes: the true offset is within the bound, or it is not claimed."""

from __future__ import annotations

import random

import pytest

from kstall_ops import align
from kstall_ops.align import Collective

S = 1_000_000_000
#: What a clock may be slewed by meanwhile.
SLEW = 300_000
Rows = list[tuple[str, int, int | None, str | None, int | None, int | None, str]]


def pings(
    sid: str, ahead: int, ppm: float, seed: int, sign: int = 1
) -> tuple[Rows, dict[int, int]]:
    """What a collector notes of a node, and the node's time at each true one."""
    chance = random.Random(seed)
    rows: Rows = []
    there = {t: t + ahead + round(t * ppm / 1e6) for t in range(0, 200 * S, 10 * S)}
    for t, node in there.items():
        out, back = chance.randrange(50_000, 900_000), chance.randrange(50_000, 900_000)
        middle = ((t - out) + (t + back)) // 2
        bound = (out + back) // 2 + 1
        rows.append((sid, node, None, "c", sign * (middle - node), bound, "ping"))
    return rows, there


@pytest.mark.parametrize("seed", range(5))
def test_pings(seed: int) -> None:
    a, at_a = pings("a", 37 * S, 200, seed)
    b, at_b = pings("b", -5 * S // 2, -200, seed + 100)
    made = align.clocks(["a", "b"], [*a, *b], [], {"a": "x", "b": "y"})
    for sid, there in (("a", at_a), ("b", at_b)):
        assert made[sid].method == "ping"
        for true, node in there.items():
            found, bound = made[sid].at(node)
            assert abs(found - true) <= bound < 2_000_000
        # Later than all pings the bound grows, and still holds.
        node = 400 * S + {"a": 37 * S, "b": -5 * S // 2}[sid]
        node += round(400 * S * {"a": 200, "b": -200}[sid] / 1e6)
        found, bound = made[sid].at(node)
        assert abs(found - 400 * S) <= bound


def shared(skews: dict[str, int], steps: int = 10) -> list[Collective]:
    found = []
    for step in range(steps):
        enters = {sid: step * S + 1000 * at for at, sid in enumerate(skews)}
        leave = max(enters.values()) + 50_000
        for sid, skew in skews.items():
            one = Collective(sid, "j", step, enters[sid] + skew, leave + skew)
            found.append(one)
    return found


@pytest.mark.parametrize("sign", [1, -1])
def test_a_skew_of_the_wrong_sign_is_refuted(sign: int) -> None:
    skews = {"a": 37 * S, "b": -5 * S // 2}
    rows = [
        row for sid, skew in skews.items() for row in pings(sid, skew, 0, 1, sign)[0]
    ]
    made = align.clocks(["a", "b"], rows, shared(skews), {"a": "x", "b": "y"})
    assert [made[sid].known for sid in "ab"] == [sign == 1] * 2


def test_by_realtime() -> None:
    rows: Rows = [("a", 100, 100 + 5 * S, None, None, 1000, "adjtimex")]
    rows.append(("b", 900, 900 + 7 * S, None, None, 2000, "adjtimex"))
    made = align.clocks(["a", "b"], rows, [], {"a": "x", "b": "y"})
    assert made["a"].at(100) == (100 + 5 * S, 1000)
    assert made["b"].at(900) == (900 + 7 * S, 2000)
    # One of them says nothing of its error: nothing is known of either.
    rows[1] = ("b", 900, 900 + 7 * S, None, None, None, "adjtimex")
    made = align.clocks(["a", "b"], rows, [], {"a": "x", "b": "y"})
    assert not made["b"].known


@pytest.mark.parametrize(("later", "method"), [(S, "ping"), (3600 * S, "adjtimex")])
def test_pings_of_a_later_pull_displace_no_closer_bounds(
    later: int, method: str
) -> None:
    """A copy that was fetched has two pings, which tell little of an hour before."""
    rows: Rows = []
    for sid, ahead in (("a", 0), ("b", 9 * S)):
        for at in range(10):
            t = ahead + at * 10 * S
            rows.append((sid, t, t - ahead + 7 * S, None, None, 3_000_000, "adjtimex"))
        for t in (ahead + 90 * S + later, ahead + 91 * S + later):
            rows.append((sid, t, None, "c", -ahead, 200_000, "ping"))
    steps = shared({"a": 88 * S, "b": 97 * S}, steps=2)
    made = align.clocks(["a", "b"], rows, steps, {"a": "x", "b": "y"})
    for sid, ahead in (("a", 0), ("b", 9 * S)):
        assert made[sid].method == method
        t, error = made[sid].at(ahead + 89 * S)
        assert t - 89 * S == (0 if method == "ping" else 7 * S)
        assert error < 10_000_000


def test_a_node_whose_clock_is_far_off_leaves_the_others_theirs() -> None:
    rows: Rows = []
    for sid, bound in (("a", 1_000_000), ("b", 2_000_000), ("c", 16 * S)):
        rows.append((sid, S, 9 * S, None, None, bound, "adjtimex"))
        rows.append((sid, 1000 * S, None, "x", 0, 1000, "ping"))
    steps = shared({"a": 0, "b": 0, "c": 0}, steps=2)
    made = align.clocks(["a", "b", "c"], rows, steps, {sid: sid for sid in "abc"})
    assert [made[sid].method for sid in "abc"] == ["adjtimex"] * 3


@pytest.mark.parametrize("count", [2, 3, 20])
@pytest.mark.parametrize("by", [0, SLEW, -S, 3600 * S])
def test_a_clock_that_was_set_meanwhile_is_not_aligned(count: int, by: int) -> None:
    """Two points are enough to see a jump; in between a line would be believed."""
    rows: Rows = [("a", S, 5 * S, None, None, 1000, "adjtimex")]
    for at in range(count):
        t = (10 + 10 * at) * S
        moved = by * at // count if by == SLEW else by * (at >= count // 2)
        rows.append(("b", t, t + 7 * S + moved, None, None, 1000, "adjtimex"))
    made = align.clocks(["a", "b"], rows, [], {"a": "x", "b": "y"})
    assert made["b"].known is (by in (0, SLEW))
    assert ("jumped" in made["b"].method) is (by not in (0, SLEW))


def test_by_collectives() -> None:
    skews = {"a": 0, "b": 12345 * S, "c": -77 * S}
    made = align.clocks(list(skews), [], shared(skews), {})
    for sid, skew in skews.items():
        found, bound = made[sid].at(9 * S + skew)
        assert abs(found - 9 * S) <= bound <= 100_000
    # One that jumped meanwhile is not aligned at all.
    jumped = [
        Collective(
            o.sid, o.job, o.step, o.enter + S * (o.step > 5), o.exit + S * (o.step > 5)
        )
        if o.sid == "b"
        else o
        for o in shared(skews)
    ]
    assert not align.clocks(list(skews), [], jumped, {})["b"].known


def test_below_the_bound_is_unordered() -> None:
    assert align.order((100, 10), (121, 10)) == "before"
    assert align.order((100, 10), (120, 10)) == "unordered"
    assert align.order((121, 10), (100, 10)) == "after"


def test_one_boot_has_one_clock() -> None:
    made = align.clocks(["a", "b"], [], [], {"a": "x", "b": "x"})
    assert (made["b"].method, made["b"].at(9 * S)) == ("same", (9 * S, 0))


def test_a_clock_that_jumped_beside_shared_collectives() -> None:
    """It has no time to compare, which was an error of ours and no answer."""
    rows = [
        ("a", 0, 100, None, None, 1, "adjtimex"),
        ("a", 1000, 1100, None, None, 1, "adjtimex"),
        ("b", 0, 100, None, None, 1, "adjtimex"),
        ("b", 1000, 9000, None, None, 1, "adjtimex"),
    ]
    shared = [Collective(sid, "j", 1, 10, 20) for sid in "ab"]
    made = align.clocks(["a", "b"], rows, shared, {"a": "1", "b": "2"})
    assert made["a"].known and not made["b"].known
    assert "jumped" in made["b"].method
