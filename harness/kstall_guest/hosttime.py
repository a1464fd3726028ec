# SPDX-License-Identifier: GPL-2.0-or-later
"""Deadlines that count only time in which the host let this machine run.

A guest's clock goes on while the host runs something else.  The host writes down how
many seconds that were so far, and a deadline is put off by as much.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

# What the host writes, see ``kstall.hosttime``.
_LOST = Path("/run/kstall-control/lost")
# A host that is busy without end shall not keep us for ever: as its own patience.
_PATIENCE = 6.0
_LOOK_S = 1.0


def lost() -> float | None:
    """Seconds that this machine did not get so far; None if the host does not tell."""
    return _told(0)


def waits() -> float | None:
    """Seconds that each of its processors was kept waiting so far, all together, as the
    others may have to wait for one that is; None if the host does not tell."""
    return _told(1)


def _told(number: int) -> float | None:
    try:
        return float(_LOST.read_text(encoding="ascii").split()[number])
    except (OSError, ValueError, IndexError):
        return None


class Countdown:
    """``seconds`` from now on that this machine can use."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        before = lost()
        self._told = before is not None
        self._before = before or 0.0
        self._put_off = 0.0

    def left(self) -> float:
        """Seconds that are left as things stand, below 0 when the time is over."""
        if (now := lost()) is not None:
            self._told = True
            self._put_off = max(self._put_off, now - self._before)
        allowed = min(self._seconds + self._put_off, self._seconds * _PATIENCE)
        return self._began + allowed - time.monotonic()

    def excuse(self) -> str | None:
        """Why it says nothing of what was awaited that the time is over, if so."""
        if self.left() > 0:
            return None
        if not self._told:
            return "the host does not tell how much of that it gave"
        had = time.monotonic() - self._began - self._put_off
        if had >= self._seconds:
            return None
        return f"the host gave {max(0.0, had):.0f} s of them"


def wait(child: subprocess.Popen[bytes], seconds: float) -> int:
    """`subprocess.Popen.wait` with such a deadline.  Raises `TimeoutExpired`."""
    countdown = Countdown(seconds)
    while (left := countdown.left()) > 0:
        try:
            return child.wait(max(0.01, left))
        except subprocess.TimeoutExpired:
            # The host may have found meanwhile that it owes us some.
            time.sleep(min(_LOOK_S, 0.01 * seconds))
    return child.wait(0)
