# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the pci-aer-fixes series: each shows a fault of the kernel without it.

What is judged is what the kernel did by older means: `ras:aer_event`, its counters in
sysfs, kprobes on its functions, and the symbols of a module.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from kstall.evidence import Evidence, Verdict

CORRECTABLE = 2
RXERR, BADTLP = 0x1, 0x40


def removed_device_is_released(ev: Evidence) -> Verdict:
    """The same device, before any message and after 50 in a row."""
    v = Verdict()
    facts = _facts(ev, "reference")
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


def late_error_is_reported(ev: Evidence) -> Verdict:
    """In the order in which they were injected."""
    v = Verdict()
    (turn,) = _facts(ev, "unreported")
    v.equal("writes to aer_inject that failed", sum(map(bool, turn["errors"])), 0)
    v.equal("messages received", turn["grown"]["root"]["total_err_cor"], 2)
    v.equal("status of aer_event", _reported(ev, "unreported"), [RXERR, BADTLP])
    for name in ("RxErr", "BadTLP"):
        counted = turn["grown"]["ep2"].get(f"correctable {name}", 0)
        v.equal(f"{name} counted", counted, 1)
    return v


def registers_are_freed(ev: Evidence) -> Verdict:
    """Both functions are given the address."""
    v = Verdict()
    (fact,) = _facts(ev, "unknown")
    v.equal("reports taken", fact["taken"], [True, True])
    queued = Counter(hit["regs"] for hit in fact["queued"])
    freed = Counter(hit["regs"] for hit in fact["freed"])
    v.equal("copies of registers queued", queued.total(), 4)
    v.equal("copies freed", freed.total(), 4)
    v.equal("queued and not freed", (queued - freed).total(), 0)
    v.equal("freed and not queued", (freed - queued).total(), 0)
    reports = ev.workload("unknown").record("aer_event")
    names = [event.fields["dev_name"] for event in reports]
    v.equal("devices in aer_event", names, [fact["address"]] * 2)
    log = ev.workload("unknown").kmsg.count("no pci_dev found")
    v.equal("the other one in the log", log, 2)
    return v


def header_has_no_prefixes(ev: Evidence) -> Verdict:
    """The line that the AER code logs; GHES has one of its own, without prefixes."""
    v = Verdict()
    (turn,) = _facts(ev, "header")
    v.true("the report was taken", turn["taken"])
    counted = turn["grown"]["root"].get("nonfatal UnsupReq", 0)
    v.equal("UnsupReq counted", counted, 1)
    lines = re.findall(r"AER: +TLP Header[^:]*: (.*)", ev.workload("header").kmsg)
    wanted = " ".join(f"{word:#010x}" for word in turn["header"])
    v.equal("TLP header", lines, [wanted])
    return v


def only_these_masks_are_overridden(ev: Evidence) -> Verdict:
    """Each mask is written twice: for the injection, and as it was."""
    v = Verdict()
    (fact,) = _facts(ev, "override")
    mask, uncor = fact["mask"], fact["uncor_mask"]
    v.equal("writes to aer_inject that failed", sum(map(bool, fact["errors"])), 0)
    v.equal("the mask has the error", mask & RXERR, RXERR)
    v.true("and others", mask != RXERR, f"{mask:#x}")
    v.equal("correctable mask written", fact["written"], [mask & ~RXERR, mask])
    v.equal("uncorrectable mask written", fact["uncor_written"], [uncor, uncor])
    return v


def refused_error_is_forgotten(ev: Evidence) -> Verdict:
    """The first one is masked, the second one is not."""
    v = Verdict()
    (turn,) = _facts(ev, "refused")
    v.equal("the first one", turn["refusal"], "EINVAL")
    v.equal("the second one failed", sum(map(bool, turn["errors"])), 0)
    v.equal("status of aer_event", _reported(ev, "refused"), [BADTLP])
    counted = turn["grown"]["ep2"].get("correctable RxErr", 0)
    v.equal("RxErr counted", counted, 0)
    return v


def extlog_calls_the_aer_code(ev: Evidence) -> Verdict:
    """A symbol that is not found would be said so before the machine is looked at."""
    v = Verdict()
    _refers(v, ev, "pci_print_aer")
    return v


def extlog_calls_the_cxl_code(ev: Evidence) -> Verdict:
    """modprobe loads cxl_core for it."""
    v = Verdict()
    _refers(v, ev, "cxl_cper_handle_prot_err")
    return v


def _refers(v: Verdict, ev: Evidence, symbol: str) -> None:
    (fact,) = _facts(ev, "extlog")
    v.true(f"refers to {symbol}", symbol in fact["undefined"])
    v.true("stops at the machine", "No such device" in fact["said"], fact["said"])


def _facts(ev: Evidence, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ev.workload(name).stdout.splitlines()]


def _reported(ev: Evidence, name: str) -> list[object]:
    return [
        event.fields["status"]
        for event in ev.workload(name).record("aer_event")
        if event.fields["severity"] == CORRECTABLE
    ]
