# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the trace-module-trigger series: what fails without its patches.

What is judged is what the kernel does while a module is unloaded: whether it
unregisters the probe of an event, how many triggers it frees, and whether what they
held is released.
"""

from __future__ import annotations

from typing import Any

from kstall.evidence import Evidence, Verdict

#: The turns of the workload: whether the event fires, and how many allocations are
#: triggers': one each, and a second one if it enables an event.  A line that removes a
#: trigger allocates one for that, too.
_TURNS = {
    "enabled": (True, 0),
    "trigger removed": (False, 2),
    "trigger": (True, 1),
    "trigger and enabled": (True, 1),
    "two triggers": (True, 2),
    "another module's event": (True, 2),
    "instance": (True, 1),
    "snapshot": (False, 1),
}
#: The turns whose trigger holds something else: the other module, the snapshot.
_HOLD = ("another module's event", "snapshot")


def trigger_does_not_keep_the_probe(ev: Evidence) -> Verdict:
    """The turns without a trigger are the controls."""
    v = Verdict()
    turns = _facts(v, ev)
    for name, (fires, _) in _TURNS.items():
        turn = turns[name]
        v.equal(f"{name}: fired", turn["fired"], fires)
        v.equal(f"{name}: unregistered", turn["unregistered"], 1)
    return v


def triggers_go_with_the_event(ev: Evidence) -> Verdict:
    """The trigger that was removed before is the control."""
    v = Verdict()
    turns = _facts(v, ev)
    for name, (_, triggers) in _TURNS.items():
        v.equal(f"{name}: freed", turns[name]["freed"], triggers)
    return v


def triggers_hold_nothing_when_gone(ev: Evidence) -> Verdict:
    """What each trigger holds before the unload is the control."""
    v = Verdict()
    turns = _facts(v, ev)
    for name in _HOLD:
        v.equal(f"{name}: held", turns[name]["held"], True)
        v.equal(f"{name}: released", turns[name]["released"], True)
    return v


def histogram_does_not_keep_the_probe(ev: Evidence) -> Verdict:
    """Patch 1 unregisters it: to patch 2, histograms are no triggers."""
    return _stays(ev, "histogram", "histogram")


def variable_does_not_keep_the_probe(ev: Evidence) -> Verdict:
    """To free such a histogram takes a lock that is held, so it must not be tried."""
    return _stays(ev, "variable", "histogram with a variable")


def _stays(ev: Evidence, workload: str, name: str) -> Verdict:
    v = Verdict()
    turns = ev.workload(workload).objects()
    v.equal("turns", [turn["turn"] for turn in turns], [name])
    for turn in turns:
        v.equal(f"{name}: fired", turn["fired"], True)
        v.equal(f"{name}: unregistered", turn["unregistered"], 1)
        v.equal(f"{name}: freed", turn["freed"], 0)
    return v


def _facts(v: Verdict, ev: Evidence) -> dict[str, dict[str, Any]]:
    turns = {turn["turn"]: turn for turn in ev.workload("unload").objects()}
    v.equal("turns", list(turns), list(_TURNS))
    return turns
