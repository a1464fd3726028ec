# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of events of which only the names are known.

`adopt` copies this file as the ``checks.py`` of a received series that is unknown, and
writes `FILE` beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from kstall.evidence import Evidence, Verdict

#: The `ReceivedEvents`, beside the copy.
FILE = "received.json"


class ReceivedEvents(NamedTuple):
    """The events with a record and the ``bare`` tracepoints of the patches.

    ``load`` is the workload, and ``named`` whether somebody has named a program for it
    that makes the events fire.
    """

    events: list[str]
    bare: list[str]
    load: str
    named: bool


def _received() -> ReceivedEvents:
    text = Path(__file__).with_name(FILE).read_text(encoding="utf-8")
    return ReceivedEvents(**json.loads(text))


def kernel_lists_them(ev: Evidence) -> Verdict:
    """Each event has a format, whose fields and holes are shown."""
    verdict = Verdict()
    events = _received().events
    for event in events:
        if (layout := ev.layouts.get(event)) is None:
            verdict.true(event, False, "the kernel has no such event")
            continue
        fields = ", ".join(f"{field.ctype} {field.name}" for field in layout.fields)
        holes = ", ".join(
            f"{hole.size} bytes before {hole.before}" for hole in layout.holes()
        )
        verdict.true(event, True, f"{fields}; holes: {holes or 'none'}")
    if not events:
        verdict.skip("bare tracepoints have no format")
    return verdict


def they_fire(ev: Evidence) -> Verdict:
    """Events that do not fire fail only if a workload was named to make them fire."""
    verdict = Verdict()
    received = _received()
    load = ev.workload(received.load)
    counts = {
        event: len(load.events(event.partition(":")[2])) for event in received.events
    }
    silent = [event for event, count in counts.items() if not count]
    if silent and not received.named:
        fired = [
            f"{event} fired, {count} times" for event, count in counts.items() if count
        ]
        why = "did not fire, and no workload was named to make them fire"
        verdict.skip("; ".join([f"{why}: {', '.join(silent)}", *fired]))
    elif received.bare and not received.events:
        verdict.skip(
            f"ftrace does not see bare tracepoints: {', '.join(received.bare)}"
        )
    else:
        for event, count in counts.items():
            verdict.at_least(event, count, 1, "events")
    return verdict
