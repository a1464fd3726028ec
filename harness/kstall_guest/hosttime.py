# SPDX-License-Identifier: GPL-2.0-or-later
"""Deadlines that count only time in which the host let this machine run.

A guest's clock goes on while the host runs something else.  The host saves how many
seconds that were so far, and deadlines are extended by as much.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

# What the host writes, see ``kstall.guest.hosttime``.
_LOST = Path("/run/kstall-control/lost")
# The most that a busy host can extend a deadline, as a factor; the host has the same.
_PATIENCE = 6.0
_LOOK_S = 1.0


def lost() -> float | None:
    """Seconds in which this machine could not run so far; None if they are unknown."""
    return _reported(0)


def waits() -> float | None:
    """Seconds that its processors had to wait so far, as a sum, because all may have to
    wait for one of them; None if they are unknown."""
    return _reported(1)


def _reported(number: int) -> float | None:
    try:
        return float(_LOST.read_text(encoding="ascii").split()[number])
    except (OSError, ValueError, IndexError):
        return None


class Countdown:
    """A deadline in ``seconds`` from now, not counting those that the host took."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        before = lost()
        self._known = before is not None
        self._before = before or 0.0
        self._extension = 0.0

    def left(self) -> float:
        """Seconds that are left, as far as is known now; below 0 after the deadline."""
        if (now := lost()) is not None:
            self._known = True
            self._extension = max(self._extension, now - self._before)
        allowed = min(self._seconds + self._extension, self._seconds * _PATIENCE)
        return self._began + allowed - time.monotonic()

    def excuse(self) -> str | None:
        """Why an expired deadline proves nothing, or None."""
        if self.left() > 0:
            return None
        if not self._known:
            return "the host does not tell how much of that it gave"
        had = time.monotonic() - self._began - self._extension
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
            # The host may have extended the deadline meanwhile.
            time.sleep(min(_LOOK_S, 0.01 * seconds))
    return child.wait(0)
