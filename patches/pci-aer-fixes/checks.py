# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer-fixes series: each shows the fault without the patch.

What the kernel did is judged by means that exist without the patch: `ras:aer_event`,
its counters in sysfs, and the registers.
"""

from __future__ import annotations

from kstall.evidence import Evidence, Verdict

NONFATAL, CORRECTABLE = 0, 2
RXERR, BADTLP, ADVISORY = 0x1, 0x40, 0x2000
TIMEOUT, UNEXPECTED = 0x4000, 0x10000


def late_error_is_reported(ev: Evidence) -> Verdict:
    """In the order in which they were injected."""
    v = Verdict()
    (turn,) = ev.workload("unreported").objects()
    v.equal("writes to aer_inject that failed", sum(map(bool, turn["errors"])), 0)
    v.equal("messages received", turn["grown"]["root"]["total_err_cor"], 2)
    v.equal(
        "status of aer_event",
        ev.workload("unreported").values("aer_event", "status", severity=CORRECTABLE),
        [RXERR, BADTLP],
    )
    for name in ("RxErr", "BadTLP"):
        counted = turn["grown"]["ep2"].get(f"correctable {name}", 0)
        v.equal(f"{name} counted", counted, 1)
    return v


def late_advisory_is_reported(ev: Evidence) -> Verdict:
    """Each is reported as correctable, and again under the error's own name.

    Since 7.3; the second report has the severity of the first.
    """
    v = Verdict()
    turn, left = ev.workload("advisory").objects()
    v.equal("errors that could not be injected", sum(map(bool, turn["errors"])), 0)
    v.equal("messages received", turn["grown"]["root"]["total_err_cor"], 2)
    reports = ev.workload("advisory").record("aer_event")
    statuses = [event.fields["status"] for event in reports]
    expected = [ADVISORY, TIMEOUT, ADVISORY, UNEXPECTED]
    v.equal("aer_event of advisory errors", statuses, expected)
    for name in ("CmpltTO", "UnxCmplt"):
        counted = turn["grown"]["ep2"].get(f"nonfatal {name}", 0)
        v.equal(f"{name} counted", counted, 1)
    v.equal("status that is left", left["status"], [0, 0])
    recoveries = ev.workload("advisory").kmsg.count("device recovery")
    v.equal("recoveries", recoveries, 0)
    return v


def others_are_handled(ev: Evidence) -> Verdict:
    """Recovery is what clears the status of an Uncorrectable Error."""
    v = Verdict()
    load = ev.workload("others")
    two, late = load.objects()
    errors = two["errors"] + late["errors"]
    v.equal("errors that could not be injected", sum(map(bool, errors)), 0)
    v.equal("messages of two", two["grown"]["root"].get("total_err_cor", 0), 1)
    reports = [
        (
            str(event.fields["dev_name"]),
            event.fields["severity"],
            event.fields["status"],
        )
        for event in load.record("aer_event")
    ]
    expected = [
        (two["addresses"]["root"], CORRECTABLE, BADTLP),
        (two["addresses"]["ep2"], CORRECTABLE, RXERR),
        (late["addresses"]["switch"], NONFATAL, TIMEOUT),
    ]
    v.equal("aer_event", sorted(reports), sorted(expected))
    v.equal("correctable status that is left", two["left"], [0, 0])
    v.equal("uncorrectable status that is left", late["left"], [0])
    recoveries = load.kmsg.count("device recovery successful")
    v.equal("recoveries", recoveries, 1)
    return v
