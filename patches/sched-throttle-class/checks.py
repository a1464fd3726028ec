# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the sched-throttle-class series: what fails without its patch.

Whether a task was asleep shows in how its wait ended, and whether it was in another
class in its priority; both are what any program can see.
"""

from __future__ import annotations

import json
from typing import Any

from kstall.evidence import Evidence, Verdict

MS = 1_000_000
#: For how long a task sleeps, and for how long at least it is seen to stand still.
_SLEEP_NS, _STILL_NS = 300 * MS, 100 * MS
#: As /proc has it: SCHED_FIFO of priority 1, also where boosted, and a nice value of 0.
_FIFO, _FAIR = -2, 20
#: How often each scene is played.
_TURNS = {
    "not throttled": 1,
    "limit elsewhere": 1,
    "policy in time": 1,
    "boosted in time": 1,
    "by policy": 3,
    "boosted": 3,
    "forked by policy": 3,
    "forked boosted": 3,
}
_Turns = list[dict[str, Any]]


def task_that_came_back_sleeps(ev: Evidence) -> Verdict:
    """The other scenes show that the same steps are harmless one by one."""
    v = Verdict()
    scenes = _scenes(ev, v)
    for name in ("by policy", "boosted", "not throttled", "limit elsewhere"):
        _judge(v, name, scenes[name])
    _boosts(ev, v, scenes["boosted"])
    return v


def child_of_one_that_left_sleeps(ev: Evidence) -> Verdict:
    """Its parent is in another class until it has ended."""
    v = Verdict()
    scenes = _scenes(ev, v)
    for name in ("forked by policy", "forked boosted"):
        _judge(v, name, scenes[name])
    _boosts(ev, v, scenes["forked boosted"])
    return v


def who_is_back_in_time_is_throttled_again(ev: Evidence) -> Verdict:
    """It stands still once more, until the limit is lifted, and then it sleeps."""
    v = Verdict()
    scenes = _scenes(ev, v)
    for name in ("policy in time", "boosted in time"):
        _judge(v, name, scenes[name])
        _stood_still(v, name, scenes[name])
    return v


def who_came_back_is_held_to_a_new_limit(ev: Evidence) -> Verdict:
    """It would use the whole CPU if it were queued in spite of the limit."""
    v = Verdict()
    turns = [json.loads(line) for line in ev.workload("limited").stdout.splitlines()]
    v.equal("turns", len(turns), 1)
    _judge(v, "limited", turns)
    _stood_still(v, "limited", turns)
    return v


def _scenes(ev: Evidence, v: Verdict) -> dict[str, _Turns]:
    """The turns of each scene."""
    scenes: dict[str, _Turns] = {name: [] for name in _TURNS}
    for line in ev.workload("leave").stdout.splitlines():
        turn = json.loads(line)
        scenes[turn["scene"]].append(turn)
    v.equal("turns", {name: len(turns) for name, turns in scenes.items()}, _TURNS)
    return scenes


def _judge(v: Verdict, name: str, turns: _Turns) -> None:
    """It was throttled, left, came back without a limit, and its wait timed out."""
    limits = int(name == "limit elsewhere")
    v.equal(f"{name}: limits before", {turn["limits_before"] for turn in turns}, {0})
    if name != "not throttled":
        least = min((turn["throttled_ns"] for turn in turns), default=0)
        v.at_least(f"{name}: throttled", least, _STILL_NS, "ns")
    v.equal(f"{name}: priority, away", {turn["priority"] for turn in turns}, {_FIFO})
    v.equal(f"{name}: limits, away", {turn["limits"] for turn in turns}, {limits})
    slept = [turn["slept"] for turn in turns]
    v.equal(f"{name}: priority, back", {one["priority"] for one in slept}, {_FAIR})
    timed_out = [one for one in slept if one["ended"] == "EAGAIN"]
    v.equal(f"{name}: waits that timed out", len(timed_out), len(turns))
    least = min((one["ns"] for one in timed_out), default=_SLEEP_NS)
    v.at_least(f"{name}: and took", least, _SLEEP_NS, "ns")


def _stood_still(v: Verdict, name: str, turns: _Turns) -> None:
    """It was throttled once more."""
    least = min((turn["again_ns"] for turn in turns), default=0)
    v.at_least(f"{name}: throttled again", least, _STILL_NS, "ns")


def _boosts(ev: Evidence, v: Verdict, turns: _Turns) -> None:
    """An older event tells that its priority is not its own."""
    boosted = {
        event.fields["pid"] for event in ev.workload("leave").events("sched_pi_setprio")
    }
    pids = {turn["pid"] for turn in turns}
    v.equal("tasks boosted by PI", pids & boosted, pids)
