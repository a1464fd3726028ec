# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the drm-sched-tests series: what fails without its patch."""

from __future__ import annotations

import json

from kstall.evidence import Evidence, Verdict, kunit

_SUITE = "drm_sched_concurrent_tests"
#: Jobs of the first of the suite's two cases; the second one has more.
_JOBS = 16 * 8
#: A delay, and how long the second case waits for a job, in ms.  There can be a delay
#: each time that all jobs so far are done, more often if the guest is slow, and no job
#: begins meanwhile: with so many delays, a job can be late because of them alone.
_DELAY_MS, _PATIENCE_MS = 250, 2000
_MANY = _PATIENCE_MS // _DELAY_MS


def suite_passes(ev: Evidence) -> Verdict:
    """KUnit's result, which is that of both of its cases."""
    v = Verdict()
    kunit.compare_suite(v, ev.workload("suite"), _SUITE)
    return v


def jobs_outlive_the_scheduler(ev: Evidence) -> Verdict:
    """Judged by the order of three functions: the tests themselves pass either way."""
    v = Verdict()
    lines = ev.workload("memory").stdout.splitlines()
    runs = {run["run"]: run for run in map(json.loads, lines)}
    v.equal("runs", list(runs), ["worker in time", "worker late"])
    with v.excused("the worker was made late too rarely"):
        v.at_least("delays of the worker", runs["worker late"]["delayed"], 2)
    for name, run in runs.items():
        many = run["delayed"] >= _MANY
        with v.excused("a job may have waited for the delays alone" if many else ""):
            v.equal(f"{name}: exit status of the suite", run["status"], 0)
        v.at_least(f"{name}: jobs", run["jobs"], 2 * _JOBS)
        v.equal(f"{name}: given back", run["back"], run["jobs"])
    late = runs["worker late"]["late"]
    v.equal("worker late: given back after they were freed", late, 0)
    return v
