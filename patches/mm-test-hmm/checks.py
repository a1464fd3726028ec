# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the mm-test-hmm series: what fails without its patches."""

from __future__ import annotations

import json
import re
from typing import Any

from kstall.evidence import Evidence, Verdict

_PAGES = 16
_HUGE = 512
#: Pages in a chunk of 256 MiB, and how many of them are left.
_CHUNK = 65536
_FEW = 100
_ENOMEM = 12
#: The outcome of each migration of a few pages, or of too few.
_PARTS = ("pieces mapped", "error", "pages")


def nobody_waits_for_ever(ev: Evidence) -> Verdict:
    """Stacks show who waits for whom, rather than a time limit."""
    v = Verdict()
    turns = _turns(v, ev)
    for name, mapped in (("memory to spare", 0), ("memory used up", 1)):
        turn = turns[name]
        v.equal(f"{name}: wait for each other", turn["stuck"], [])
        # Also if a task had to be killed for that.
        v.equal(f"{name}: the processor went", turn["offline_error"], 0)
        v.equal(f"{name}: pieces mapped", turn["mapped"], mapped)
        v.equal(f"{name}: error", turn["error"], 0)
        v.equal(f"{name}: pages", turn["pages"], _PAGES)
    return v


def both_sizes_are_mapped(ev: Evidence) -> Verdict:
    """What was written is read by the device, and then back in system memory."""
    v = Verdict()
    turn = _turns(v, ev)["both sizes"]
    v.equal("kB of huge pages before", turn["huge_kb"], 2048)
    v.equal("pieces mapped", turn["mapped"], 2)
    v.equal("error", turn["error"], 0)
    v.equal("pages", turn["pages"], _PAGES + _HUGE)
    v.equal("pages with other contents", turn["wrong"], 0)
    return v


def too_few_pages_are_put_back(ev: Evidence) -> Verdict:
    """The migrations before and after it have the memory that they need."""
    v = Verdict()
    lines = map(json.loads, ev.workload("short").stdout.splitlines())
    turns = {turn["turn"]: turn for turn in lines}
    v.equal("turns", list(turns), ["hole", "huge page"])
    for name, turn in turns.items():
        v.equal(f"{name}: status of the process", turn["status"], 0)
        v.equal(f"{name}: kB of huge pages before", turn["huge_kb"], 2048)
        migrations = {
            "all but a few": (turn["most"], [1, 0, _CHUNK - _FEW]),
            "the huge one": (turn["huge"], [0, _ENOMEM]),
            "the few": (turn["few"], [0, 0, _FEW]),
        }
        for label, (outcome, expected) in migrations.items():
            for part, actual, value in zip(_PARTS, outcome, expected, strict=False):
                v.equal(f"{name}: {label}: {part}", actual, value)
        v.equal(f"{name}: bytes with other contents", turn["wrong"], 0)
    return v


def hmm_tests_pass(ev: Evidence) -> Verdict:
    """The tests for coherent device memory are skipped."""
    v = Verdict()
    load = ev.workload("hmm-tests")
    v.equal("exit status", load.exit_status, 0)
    totals = re.findall(r"(?m)^# Totals: (.*)$", load.stdout)
    v.equal("totals", len(totals), 1)
    counts = {
        name: int(count)
        for line in totals
        for name, count in re.findall(r"(\w+):(\d+)", line)
    }
    v.at_least("passed", counts.get("pass", 0), 30)
    v.equal("failed", counts.get("fail", 0) + counts.get("error", 0), 0)
    return v


def _turns(v: Verdict, ev: Evidence) -> dict[str, dict[str, Any]]:
    lines = ev.workload("chunk").stdout.splitlines()
    turns = {turn["turn"]: turn for turn in map(json.loads, lines)}
    v.equal("turns", len(turns), 3)
    return turns
