# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the drm-sched-chain series: what fails without its patch."""

from __future__ import annotations

import json

from kstall.evidence import Evidence, Verdict, kunit

_SUITE = "drm_sched_basic_tests"
#: Three cases have a chain each, in which all jobs but the first wait for another.
_CHAINS = 3 * [99]


def suite_passes(ev: Evidence) -> Verdict:
    """KUnit's result, which is that of all its cases."""
    v = Verdict()
    kunit.compare_suite(v, ev.workload("suite"), _SUITE)
    return v


def late_tests_pass(ev: Evidence) -> Verdict:
    """Judged by the order of three functions, which shows that a test was late."""
    v = Verdict()
    lines = ev.workload("late").stdout.splitlines()
    runs = {run["run"]: run for run in map(json.loads, lines)}
    v.equal("runs", list(runs), ["in time", "late"])
    for name, run in runs.items():
        v.equal(f"{name}: exit status of the suite", run["status"], 0)
        v.equal(
            f"{name}: jobs that wait", [chain[0] for chain in run["chains"]], _CHAINS
        )
        v.equal(f"{name}: given back", run["back"], run["jobs"])
    with v.excused("the worker that gives jobs back was later than the test"):
        for number, (_, late) in enumerate(runs["late"]["chains"], 1):
            v.at_least(f"late: chain {number}: for one that was given back", late, 1)
    return v
