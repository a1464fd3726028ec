# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer-leaks series: each shows a fault of the kernel without it.

What the kernel did is judged by means that exist without the patches: `ras:aer_event`,
its counters in sysfs, and kprobes on its functions.
"""

from __future__ import annotations

from collections import Counter

from kstall.evidence import Evidence, Verdict


def removed_device_is_released(ev: Evidence) -> Verdict:
    """The same device, before any message and after 50 in a row."""
    v = Verdict()
    facts = ev.workload("reference").objects()
    for name in ("no-error", "merged"):
        (removed,) = [f for f in facts if f["what"] == "removed" and f["name"] == name]
        v.equal(f"{name}: released", removed["released"], 1)
    (turn,) = [f for f in facts if f["what"] == "turn"]
    v.equal("writes to aer_inject", turn["writes"], 50)
    v.equal("of which failed", sum(map(bool, turn["errors"])), 0)
    v.equal("messages received", turn["grown"]["root"]["total_err_cor"], 50)
    total = turn["grown"]["ep2"]["correctable TOTAL_ERR_COR"]
    v.equal("of which with details", total, 1)
    return v


def registers_are_freed(ev: Evidence) -> Verdict:
    """The functions that queue and that free them are given the same address.

    A patch could also free less than was taken.
    """
    v = Verdict()
    (fact,) = ev.workload("unknown").objects()
    v.equal("reports taken", fact["taken"], [True, True])
    queued = Counter(hit["regs"] for hit in fact["queued"])
    freed = Counter(hit["regs"] for hit in fact["freed"])
    v.equal("copies of registers queued", queued.total(), 4)
    v.equal("copies freed", freed.total(), 4)
    v.equal("queued and not freed", (queued - freed).total(), 0)
    v.equal("freed and not queued", (freed - queued).total(), 0)
    # Those of the device that is there are freed by code that was always right.
    v.equal("sizes freed", len({hit["size"] for hit in fact["freed"]}), 1)
    reports = ev.workload("unknown").record("aer_event")
    names = [event.fields["dev_name"] for event in reports]
    v.equal("devices in aer_event", names, [fact["address"]] * 2)
    log = ev.workload("unknown").kmsg.count("no pci_dev found")
    v.equal("the unknown device in the log", log, 2)
    return v
