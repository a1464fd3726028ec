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
_LAST_JOB = "while selected, its last job"
#: How many jobs are run in all other scenes; the rest has to be killed.
_RUN = {
    "not killed": 2,
    "before it is selected": 0,
    _LAST_JOB: 1,
    "after a job has run": 1,
}
#: Two in all but two scenes.
_JOBS = {"while selected, more jobs": 3, _LAST_JOB: 1}


def _scenes(ev: Evidence, v: Verdict, names: tuple[str, ...]) -> Iterator[Any]:
    """Each of the scenes, by each policy, with its label."""
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
    """``run`` of its jobs, no more afterwards, all others killed, and the entity left
    alone while another one's job is run."""
    jobs = _JOBS.get(scene["scene"], 2)
    if scene["scene"] in (*_SELECTED, _LAST_JOB):
        v.equal(f"{where}: stopped in time", scene["window"], 1)
    v.equal(f"{where}: by this policy", scene["set"], True)
    v.equal(f"{where}: came to the moment", scene["met"], 1)
    v.equal(f"{where}: jobs", scene["jobs"], jobs)
    # Else the worker can select it again, just when what kills it goes on.
    v.equal(f"{where}: in the tree in run_job()", scene["tree_in_run"], 0)
    v.equal(f"{where}: in the tree", scene["tree"], 0)
    v.equal(f"{where}: written to", scene["written"], 0)
    v.equal(f"{where}: run", scene["ran"], [run, run])
    v.equal(f"{where}: done", scene["done"], run)
    v.equal(f"{where}: killed", scene["killed"], jobs - run)
    v.equal(f"{where}: the other entity's job", scene["other"], 1)
    v.equal(f"{where}: freed", scene["freed"], jobs + 1)


def killed_entity_is_off_the_run_queue(ev: Evidence) -> Verdict:
    """By the tree, which the worker walks through, while its job is run and after that,
    and by the entity's memory."""
    v = Verdict()
    for where, scene in _scenes(ev, v, _SELECTED):
        _judge(v, where, scene, 1)
    return v


def others_are_served_and_killed_as_ever(ev: Evidence) -> Verdict:
    """None of these scenes shows the bug, so that the base kernel passes, too."""
    v = Verdict()
    for where, scene in _scenes(ev, v, tuple(_RUN)):
        _judge(v, where, scene, _RUN[scene["scene"]])
    return v


def killed_entities_have_their_own_tests(ev: Evidence) -> Verdict:
    """KUnit prints the result of each case of the suite by name."""
    v = Verdict()
    load = ev.workload("suite")
    v.equal("exit status", load.exit_status, 0)
    cases = re.findall(r"(?m)^ +(ok|not ok) \d+ (\w+)", load.stdout)
    passed = [(name, result) for result, name in cases]
    expected = ("drm_sched_kill_queued", "drm_sched_kill_selected")
    v.equal("cases", passed, [(name, "ok") for name in expected])
    return v
