# SPDX-License-Identifier: GPL-2.0-or-later
"""A booted kernel: its job, and how it ended.

In come a `Kernel`, a root, a `Machine` and a series' job; out comes a directory of
results, or an error that says whether the kernel failed (`GuestFailed`) or nothing can
be concluded (`NotJudged`).  Results are not judged here.
"""

from . import accel, debugguest, guest, guestrun, hosttime, jobs
from .console import STAMP
from .debugguest import CYCLES, RELOADS, SHARE, TOGGLES, Flavour, Side, Watched
from .guestrun import (
    Guest,
    GuestEnded,
    forget,
    machine_for,
    matching_reports,
    run_guest,
)
from .kept import KeptResults
from .splats import KernelReport

__all__ = [
    "CYCLES",
    "RELOADS",
    "SHARE",
    "STAMP",
    "TOGGLES",
    "Flavour",
    "Guest",
    "GuestEnded",
    "KeptResults",
    "KernelReport",
    "Side",
    "Watched",
    "accel",
    "debugguest",
    "forget",
    "guest",
    "guestrun",
    "hosttime",
    "jobs",
    "machine_for",
    "matching_reports",
    "run_guest",
]
