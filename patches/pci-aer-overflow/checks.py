# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer-overflow series: what fails without its patch.

What is judged is what the kernel did by older means: `ras:aer_event`, its counters in
sysfs, the log, and the status registers.
"""

from __future__ import annotations

import json
from typing import Any

from kstall.evidence import Evidence, Verdict

NONFATAL = 0
TIMEOUT = 0x4000
#: Records that the kernel has room for.
ROOM = 128


def late_error_is_recovered(ev: Evidence) -> Verdict:
    """The driver of ports takes part in it; the kernel logs how it ended."""
    v = Verdict()
    load = ev.workload("overflow")
    for turn, senders in zip(_facts(ev, "overflow"), _SENDERS, strict=True):
        name = turn["name"]
        v.equal(f"{name}: errors that failed", sum(map(bool, turn["errors"])), 0)
        v.equal(f"{name}: messages", len(turn["errors"]), ROOM + len(senders))
        v.equal(f"{name}: taken before the last", turn["taken"], 0)
        total = turn["grown"]["root"]["total_err_cor"]
        v.equal(f"{name}: correctable messages", total, ROOM)
        low, high = turn["began_ns"], turn["ended_ns"]
        reports = {
            str(event.fields["dev_name"]): event.fields["status"]
            for event in load.record("aer_event")
            if event.fields["severity"] == NONFATAL and low <= event.ts_ns <= high
        }
        wanted = {turn["addresses"][sender]: TIMEOUT for sender in senders}
        v.equal(f"{name}: non-fatal aer_event", reports, wanted)
        v.equal(f"{name}: recovered", turn["recovered"], len(senders))
        v.equal(f"{name}: status left", set(turn["left"].values()), {0})
    return v


_SENDERS = (("ep2",), ("ep2", "root"))


def _facts(ev: Evidence, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ev.workload(name).stdout.splitlines()]
