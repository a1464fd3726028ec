# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast the time stamp counter runs that an emulated guest goes by: the host's own.

A kernel finds that out by counting ticks for some milliseconds of a timer that QEMU
emulates.  Where the host takes the processor away meanwhile it is wrong, by a factor of
ten and more, and it does not notice: by its clock seconds pass in the tenth of a
second, and whatever waits for something gives up before that can have come.
"""

from __future__ import annotations

import functools
import platform
import re
import statistics
from pathlib import Path

from ..base import KstallError, process, temporary

_SOURCE = Path(__file__).with_suffix(".c")
#: By how much a guest's clock may run ahead of the host's, and how many seconds more:
#: what it prints before it has a clock has the time 0.
AHEAD = 1.1
SPARE_S = 5.0
# The kernel's own time, at the begin of each line that it prints.
_STAMP = re.compile(rb"(?m)^\[ *(\d+\.\d{6})\] ")
_TAIL = 1 << 16
# So many lines tell the time together.  A character comes twice where an emergency
# takes the serial line from the thread that prints, and then 70 s read as 770 s.
_LINES = 9


@functools.cache
def khz() -> int | None:
    """Its ticks in a millisecond, measured in a quarter of a second; None if there is
    no such counter, or no compiler for the program that looks at it."""
    if platform.machine() != "x86_64":
        return None
    try:
        with temporary.directory("hostclock") as place:
            program = place / "hostclock"
            process.run(["gcc", "-O2", "-o", program, _SOURCE])
            return int(process.run([program]).stdout)
    except (KstallError, ValueError):
        return None


def ahead(console: Path, seconds: float) -> str | None:
    """How far the clock of a guest ran ahead that was there for ``seconds``, if so."""
    if not console.exists():
        return None
    with console.open("rb") as file:
        file.seek(max(0, console.stat().st_size - _TAIL))
        stamps = _STAMP.findall(file.read())
    last = statistics.median_low([float(one) for one in stamps[-_LINES:]] or [0.0])
    if last <= seconds * AHEAD + SPARE_S:
        return None
    return f"its clock came to {last:.0f} s in {seconds:.0f} s of the host's"
