# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the drm-sched-stop series: what fails without its first patch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from kstall.evidence import Evidence, Verdict

_POLICIES = ("round robin", "fifo", "fair")
#: Scenes in which the worker has selected the entity, and other jobs are behind.
_SELECTED = (
    "while selected",
    "while selected, more jobs",
    "while selected, and once more",
)
#: What is run in all others; whatever else there is has to be killed.
_RUN = {
    "not killed": 2,
    "before it is selected": 0,
    "while selected, its last job": 1,
    "after a job has run": 1,
}
#: Two in all but two scenes.
_JOBS = {"while selected, more jobs": 3, "while selected, its last job": 1}


def _scenes(ev: Evidence, v: Verdict, names: tuple[str, ...]) -> Iterator[Any]:
    """Each of them, by each policy, with what to call it."""
    lines = ev.workload("kill").stdout.splitlines()
    scenes = {
        (scene["policy"], scene["scene"]): scene for scene in map(json.loads, lines)
    }
    v.equal("scenes", len(scenes), len(_POLICIES) * (len(_SELECTED) + len(_RUN)))
    for policy in _POLICIES:
        for name in names:
            if (policy, name) in scenes:
                yield f"{policy}, {name}", scenes[policy, name]


def _judge(v: Verdict, where: str, scene: Any, run: int) -> None:
    """``run`` of its jobs, no more afterwards, and all others killed."""
    jobs = _JOBS.get(scene["scene"], 2)
    v.equal(f"{where}: by this policy", scene["set"], True)
    v.equal(f"{where}: came to the moment", scene["met"], 1)
    v.equal(f"{where}: jobs", scene["jobs"], jobs)
    v.equal(f"{where}: in the tree", scene["tree"], 0)
    v.equal(f"{where}: run", scene["ran"], [run, run])
    v.equal(f"{where}: done", scene["done"], run)
    v.equal(f"{where}: killed", scene["killed"], jobs - run)
    v.equal(f"{where}: freed", scene["freed"], jobs)


def killed_entity_is_off_the_run_queue(ev: Evidence) -> Verdict:
    """By the tree itself, which the worker walks through, after the entity's end."""
    v = Verdict()
    for where, scene in _scenes(ev, v, _SELECTED):
        v.equal(f"{where}: stopped in time", scene["window"], 1)
        _judge(v, where, scene, 1)
    return v


def others_are_served_and_killed_as_ever(ev: Evidence) -> Verdict:
    """Neither is the bug, so that the base kernel passes, too."""
    v = Verdict()
    for where, scene in _scenes(ev, v, tuple(_RUN)):
        _judge(v, where, scene, _RUN[scene["scene"]])
    return v


def killed_entity_has_its_own_test(ev: Evidence) -> Verdict:
    """One case of the suite; the others are the tree's own."""
    v = Verdict()
    load = ev.workload("suite")
    v.equal("exit status", load.exit_status, 0)
    cases = re.findall(r"(?m)^ +(ok|not ok) \d+ (drm_sched_\w+)", load.stdout)
    results = {name: result for result, name in cases}
    v.equal("the case", results.get("drm_sched_basic_entity_kill"), "ok")
    return v
