# SPDX-License-Identifier: GPL-2.0-or-later
"""The processes that tests start: theirs alone, whatever else runs on the machine."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from pathlib import Path

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
_KILL = 1 << (signal.SIGKILL - 1)
#: PF_EXITING and PF_SIGNALED of <linux/sched.h>, which /proc/PID/stat shows.
_ENDING = 0x00000004 | 0x00000400


def adopt() -> None:
    """What we start and loses its parent becomes our child, and not that of init."""
    assert ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0) == 0


def expect_signals() -> None:
    """Have signals mean what they mean to a program that a terminal starts.

    A shell starts background jobs, and nohup what it runs, with some ignored, and what
    is ignored is so in all that we start.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def descendants(of: int | None = None) -> set[int]:
    """The processes that we started, and those that they did, also as orphans; or those
    of another process."""
    pids: set[int] = set()
    pending = [of or os.getpid()]
    while pending:
        tasks: list[Path] = []
        # Of one that ends meanwhile the children are ours by then.
        with contextlib.suppress(OSError):
            tasks += Path(f"/proc/{pending.pop()}/task").glob("*/children")
        for task in tasks:
            with contextlib.suppress(OSError):
                new = set(map(int, task.read_text().split())) - pids
                pids |= new
                pending += new
    return pids


def is_killed(pid: int) -> bool:
    """Whether SIGKILL waits for the process, or for the first one of its PID namespace,
    an ancestor, whose end kills the others; or has ended either's last system call."""
    number = pid
    while number not in (0, 1, os.getpid()):
        try:
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return True
        facts = dict(line.split(":", 1) for line in lines)
        waiting = int(facts["SigPnd"], 16) | int(facts["ShdPnd"], 16)
        # It waits no longer once the process has taken it, which may still have memory,
        # and children that it has not killed yet.
        killed = waiting & _KILL or int(state[6]) & _ENDING
        if killed and (number == pid or facts["NSpid"].split()[-1] == "1"):
            return True
        number = int(facts["PPid"])
    return False


def bury() -> None:
    """Wait for orphans that have ended; nobody else waits for them."""
    # Those of this module are waited for where they are known, and here.
    known = {child.pid for child in multiprocessing.active_children()}
    children: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        # A thread that an earlier test has left behind may end meanwhile.
        with contextlib.suppress(OSError):
            children |= set(map(int, task.read_text().split()))
    for number in children - known:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{number}/stat").read_text()
            if status.rpartition(")")[2].split()[0] == "Z":
                os.waitpid(number, os.WNOHANG)
