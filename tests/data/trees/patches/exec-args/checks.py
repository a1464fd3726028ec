# SPDX-License-Identifier: GPL-2.0-or-later
"""What the program says of each process it made is held against the events of that."""

from __future__ import annotations

import json
from typing import Any

from kstall.evidence import Event, Evidence, Verdict


def _said(ev: Evidence, what: str) -> list[dict[str, Any]]:
    lines = map(json.loads, ev.workload("execs").stdout.splitlines())
    return [line for line in lines if line["what"] == what]


def _of(ev: Evidence, pid: int) -> list[Event]:
    load = ev.workload("execs")
    return [one for one in load.events("task_exec_args") if one.pid == pid]


def arguments_are_counted(ev: Evidence) -> Verdict:
    """The program chose the numbers; no two programs have the same pair."""
    verdict = Verdict()
    begun = _said(ev, "begun")
    verdict.equal("programs", len(begun), 6)
    for one in begun:
        seen = [
            (event.fields["argc"], event.fields["envc"])
            for event in _of(ev, one["pid"])
        ]
        verdict.equal(
            f"{one['argc']}, {one['envc']}", seen, [(one["argc"], one["envc"])]
        )
    return verdict


def nothing_begun_no_event(ev: Evidence) -> Verdict:
    """And the older event, which is at the same place, is not there either."""
    verdict = Verdict()
    for what in ("missing", "none"):
        (one,) = _said(ev, what)
        verdict.equal(f"{what}: events", len(_of(ev, one["pid"])), 0)
        older = [
            event
            for event in ev.workload("execs").events("sched_process_exec")
            if event.pid == one["pid"]
        ]
        verdict.equal(f"{what}: sched_process_exec", len(older), 0)
    return verdict
