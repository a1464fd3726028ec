# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own selftests as workloads: when one that gave up says nothing.

Their harness ends each test after half a minute by the clock, unless the test asks for
more.  It does not know that the host may have stopped the guest for most of that time.
"""

from __future__ import annotations

import re

from .errors import NotInTime

# On stderr, by its own name; and on stdout, behind that of its fixture.
_GAVE_UP = re.compile(r"(?m)^# (\S+): Test terminated by timeout$")
_FAILED = re.compile(r"(?m)^not ok \d+ (?:\S+\.)?([^\s.]+)")
#: Half of what a test has; with less a machine is not judged by the clock.
_MISSED_S = 15.0


def late(stdout: str, stderr: str, kept_s: float | None) -> NotInTime | None:
    """The trouble with tests that printed this, if all that failed gave up and the host
    kept this machine waiting for most of their time.

    ``kept_s`` is for how long it did meanwhile, None if it does not tell.
    """
    names = _GAVE_UP.findall(stderr)
    if not names or set(_FAILED.findall(stdout)) - set(names):
        return None
    if kept_s is not None and kept_s < _MISSED_S:
        return None
    told = "does not tell how much time it gave"
    if kept_s is not None:
        told = f"kept the guest waiting for {kept_s:.0f} s"
    return NotInTime(f"{names[0]} gave up, and the host {told}")
