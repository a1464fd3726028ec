# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own selftests as workloads: when a timeout of a test proves nothing.

Their harness ends each test after half a minute by the clock, unless the test declares
more.  It does not know that the host may have stopped the guest for most of that time.
"""

from __future__ import annotations

import re

from .errors import NotInTime

# stderr has the test's own name; on stdout that of its fixture precedes it.
_GAVE_UP = re.compile(r"(?m)^# (\S+): Test terminated by timeout$")
_FAILED = re.compile(r"(?m)^not ok \d+ (?:\S+\.)?([^\s.]+)")
#: Half of a test's time: a shorter wait excuses nothing.
_MISSED_S = 15.0


def late(stdout: str, stderr: str, kept_s: float | None) -> NotInTime | None:
    """An error if all tests that failed timed out, and the host may have kept this
    machine waiting for most of their time.

    ``kept_s`` is for how long it did, None if that is unknown.
    """
    names = _GAVE_UP.findall(stderr)
    if not names or set(_FAILED.findall(stdout)) - set(names):
        return None
    if kept_s is not None and kept_s < _MISSED_S:
        return None
    reason = "does not tell how much time it gave"
    if kept_s is not None:
        reason = f"kept the guest waiting for {kept_s:.0f} s"
    return NotInTime(f"{names[0]} gave up, and the host {reason}")
