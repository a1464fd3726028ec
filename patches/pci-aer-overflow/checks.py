# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer-overflow series: what fails without its patch.

What the kernel did is judged by means that exist without the patches: `ras:aer_event`,
its counters in sysfs, the log, and the status registers.
"""

from __future__ import annotations

from kstall.evidence import Evidence, Verdict

NONFATAL, FATAL = 0, 1
TIMEOUT = 0x4000
#: Records of correctable errors that the kernel has room for, and how many are sent.
ROOM, BURST = 128, 260

#: What devices send after them: the severity, the status in each aer_event, and how
#: many of their records have a correctable error as well.  The status of a fatal error
#: is not read, as the link may be down, unless it is that of a Root Port, an RCEC or a
#: Downstream Port; ep2 is an Upstream Port.
_TURNS = {
    "one": (NONFATAL, {"ep2": TIMEOUT}, 0),
    "two": (NONFATAL, {"ep2": TIMEOUT, "root": TIMEOUT}, 0),
    "fatal": (FATAL, {"ep2": 0}, 0),
    "both": (NONFATAL, {"ep2": TIMEOUT}, 1),
}


def late_error_is_recovered(ev: Evidence) -> Verdict:
    """The port driver takes part in the recovery; the kernel logs how it ended."""
    v = Verdict()
    load = ev.workload("overflow")
    turns = load.objects()
    v.equal("turns", [turn["name"] for turn in turns], list(_TURNS))
    for turn in turns:
        name = turn["name"]
        severity, senders, both = _TURNS[name]
        v.equal(f"{name}: errors that failed", sum(map(bool, turn["errors"])), 0)
        v.equal(f"{name}: messages", len(turn["errors"]), BURST + len(senders))
        v.equal(f"{name}: taken before the last", turn["taken"], 0)
        total = turn["grown"]["root"]["total_err_cor"]
        v.equal(f"{name}: correctable messages", total, ROOM + both)
        low, high = turn["began_ns"], turn["ended_ns"]
        reports = {
            str(event.fields["dev_name"]): event.fields["status"]
            for event in load.record("aer_event")
            if event.fields["severity"] == severity and low <= event.ts_ns <= high
        }
        expected = {turn["addresses"][key]: status for key, status in senders.items()}
        v.equal(f"{name}: aer_event", reports, expected)
        v.equal(f"{name}: recovered", turn["recovered"], len(senders))
        v.equal(f"{name}: status left", set(turn["left"].values()), {0})
    return v
