# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer-inject series: each shows a fault of the kernel without it.

What the kernel did is judged by means that exist without the patches: `ras:aer_event`,
its counters in sysfs, and kprobes on its functions.
"""

from __future__ import annotations

from kstall.evidence import Evidence, Verdict

CORRECTABLE = 2
RXERR, BADTLP = 0x1, 0x40


def overridden_error_is_reported(ev: Evidence) -> Verdict:
    """aer_event leaves out errors that are masked."""
    v = Verdict()
    (turn,) = ev.workload("override").objects()
    v.equal("writes to aer_inject that failed", sum(map(bool, turn["errors"])), 0)
    v.equal("the mask has the error", turn["mask"] & RXERR, RXERR)
    v.equal("and another one", turn["mask"] & BADTLP, BADTLP)
    v.equal("messages received", turn["grown"]["root"]["total_err_cor"], 1)
    v.equal(
        "status of aer_event",
        ev.workload("override").values("aer_event", "status", severity=CORRECTABLE),
        [RXERR],
    )
    counted = turn["grown"]["ep2"].get("correctable RxErr", 0)
    v.equal("RxErr counted", counted, 1)
    v.equal("correctable mask written", turn["written"], [])
    v.equal("uncorrectable mask written", turn["uncor_written"], [])
    v.equal("correctable mask afterwards", turn["after"], turn["mask"])
    return v


def refused_error_is_forgotten(ev: Evidence) -> Verdict:
    """The first one is masked, the second one is not."""
    v = Verdict()
    (turn,) = ev.workload("refused").objects()
    v.equal("the first one", turn["refusal"], "EINVAL")
    v.equal("the second one failed", sum(map(bool, turn["errors"])), 0)
    v.equal(
        "status of aer_event",
        ev.workload("refused").values("aer_event", "status", severity=CORRECTABLE),
        [BADTLP],
    )
    counted = turn["grown"]["ep2"].get("correctable RxErr", 0)
    v.equal("RxErr counted", counted, 0)
    return v
