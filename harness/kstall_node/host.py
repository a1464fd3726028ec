# SPDX-License-Identifier: GPL-2.0-or-later
"""The node as files: /proc, /sys and /run, or copies of them for tests."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

_STA_UNSYNC = 0x0040
_MS = 1_000_000
#: How often two clocks are read to compare them.
_READINGS = 9


class Host:
    """A node whose file system is at ``root``."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        #: How far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC: the time in suspend.
        self._slept = _slept()
        self._hertz = os.sysconf("SC_CLK_TCK")

    def path(self, name: str) -> Path:
        """``/name`` of the node."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """A small file's text, stripped; None if it cannot be read."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read(1 << 20).decode("utf-8", "replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """The number in a file; None if it cannot be read or is no number."""
        try:
            return int(self.text(name) or "")
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """The names in a directory, sorted; none if it cannot be read."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []

    @property
    def node(self) -> str:
        """The host's name."""
        return self.text("/proc/sys/kernel/hostname") or os.uname().nodename

    @property
    def boot_id(self) -> str:
        """The id of this boot."""
        return self.text("/proc/sys/kernel/random/boot_id") or "unknown"

    @property
    def kernel(self) -> str:
        """The release, as in ``uname -r``."""
        return self.text("/proc/sys/kernel/osrelease") or os.uname().release

    def since(self, ticks: int) -> int:
        """A start time of /proc as ns of CLOCK_MONOTONIC."""
        return max(0, ticks * 1_000_000_000 // self._hertz - self._slept)

    def starttime(self, pid: int) -> int | None:
        """When a process or a thread began; None if it does not exist."""
        stat = self.text(f"/proc/{pid}/stat")
        return None if stat is None else self.stat_since(stat)

    def is_over(self, pid: int) -> bool:
        """Whether a process is a zombie, whose PID stays until its parent waits.

        In a container whose first process never waits, that is for ever.  A process
        is not over if only its first thread has ended.
        """
        state = (self.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()[:1]
        return state in (["Z"], ["X"]) and len(self.names(f"/proc/{pid}/task")) <= 1

    def stat_since(self, stat: str) -> int | None:
        """The same from the text of a stat file; names may have spaces and ``)``."""
        try:
            return self.since(int(stat.rpartition(")")[2].split()[19]))
        except (IndexError, ValueError):
            return None


def _slept() -> int:
    """For how many ns this machine was suspended; who asks later gets the same, unless
    it was suspended again.

    That has to be so, as processes know each other by start times.  The difference of
    two readings is too small by what passes in between: some hundred ns, or as long as
    another process has the processor.
    """
    differences = (
        time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        for _ in range(_READINGS)
    )
    return max(0, -(-max(differences) // _MS) * _MS)


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 64),
    )


def clock_pair() -> tuple[int, int, int | None]:
    """(monotonic, real, bound) in ns; the bound is the kernel's maxerror, if it is set.

    Real time is read between two readings of the monotonic clock, three times; the
    pair that is closest counts.
    """
    best: tuple[int, int, int] | None = None
    for _ in range(3):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, real)
    assert best is not None
    wide, mono, real = best
    error = _maxerror()
    return mono, real, None if error is None else error + wide


def _maxerror() -> int | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = _Timex()
        if libc.adjtimex(ctypes.byref(timex)) < 0 or timex.status & _STA_UNSYNC:
            return None
    except (OSError, AttributeError):
        return None
    return int(timex.maxerror) * 1000
