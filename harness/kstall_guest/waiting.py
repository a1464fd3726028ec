# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting, in a workload's program, for what is to come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import NotInTime
from .hosttime import Countdown
from .workload import complain

_Found = TypeVar("_Found")


def until(
    holds: Callable[[], _Found],
    seconds: float,
    what: str,
    *,
    patched: bool = False,
    pause_s: float = 0.05,
) -> _Found:
    """What ``holds`` returns once that is true, or after so many ``seconds`` that this
    machine could use.

    If ``what`` did not come in time, this reports to the agent that the workload cannot
    be judged.  What ``patched`` code has to bring about is left to the checks, unless
    the host had no time for it.
    """
    countdown = Countdown(seconds)
    # What the host owes is not asked before it matters: that takes work of its own.
    over = time.monotonic() + countdown.left()
    while not (found := holds()):
        if time.monotonic() >= over:
            if (left := countdown.left()) <= 0:
                break
            over = time.monotonic() + left
        time.sleep(pause_s)
    if not found:
        excuse = countdown.excuse()
        if excuse or not patched:
            late = NotInTime(f"no {what} in {seconds:g} s")
            complain(NotInTime(f"{late}: {excuse}") if excuse else late)
    return found
