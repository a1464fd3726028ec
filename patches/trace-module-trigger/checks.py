# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the trace-module-trigger series: what fails without its patch.

What is judged is what the sample module says itself: its event has a function that is
called when the last probe goes, and logs that.
"""

from __future__ import annotations

import json

from kstall.evidence import Evidence, Verdict

#: The turns of the workload, and whether the event fires in them.
_TURNS = {
    "enabled": True,
    "trigger removed": False,
    "trigger": True,
    "trigger and enabled": True,
    "two triggers": True,
    "instance": True,
}


def trigger_does_not_keep_the_probe(ev: Evidence) -> Verdict:
    """Those without a trigger are the controls."""
    v = Verdict()
    lines = ev.workload("unload").stdout.splitlines()
    turns = {turn["turn"]: turn for turn in map(json.loads, lines)}
    v.equal("turns", list(turns), list(_TURNS))
    for name, fires in _TURNS.items():
        turn = turns[name]
        v.equal(f"{name}: fired", turn["fired"], fires)
        v.equal(f"{name}: registered", turn["registered"], 1)
        v.equal(f"{name}: unregistered", turn["unregistered"], 1)
    return v
