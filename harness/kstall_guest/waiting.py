# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting, in a workload's program, for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import NotInTime
from .hosttime import Countdown
from .workload import complain

_Value = TypeVar("_Value")


def until(
    holds: Callable[[], _Value],
    seconds: float,
    what: str,
    *,
    patched: bool = False,
    pause_s: float = 0.05,
) -> _Value:
    """Wait until ``holds`` returns a true value, or for so many ``seconds`` of this
    machine's own time; returns its last value.

    If ``what`` did not come in time, this reports to the agent that the workload cannot
    be judged.  If ``patched`` code has to cause it, checks judge that it did not come,
    unless the host gave too little time.
    """
    countdown = Countdown(seconds)
    # The host's extension is read only when it matters, as reading it takes time, too.
    over = time.monotonic() + countdown.left()
    while not (value := holds()):
        if time.monotonic() >= over:
            if (left := countdown.left()) <= 0:
                break
            over = time.monotonic() + left
        time.sleep(pause_s)
    if not value:
        excuse = countdown.excuse()
        if excuse or not patched:
            late = NotInTime(f"no {what} in {seconds:g} s")
            complain(NotInTime(f"{late}: {excuse}") if excuse else late)
    return value
