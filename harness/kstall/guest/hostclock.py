# SPDX-License-Identifier: GPL-2.0-or-later
"""The frequency of an emulated guest's time stamp counter, which is the host's.

A kernel measures it by counting ticks for some milliseconds of a timer that QEMU
emulates.  If the host takes the processor away meanwhile, the result is wrong, by a
factor of ten and more, and the kernel does not notice: its clock runs so fast that
timeouts end before what they wait for can have happened.
"""

from __future__ import annotations

import functools
import platform
import re
import statistics
from pathlib import Path

from ..base import KstallError, process, temporary
from .console import STAMP

_SOURCE = Path(__file__).with_suffix(".c")
#: The factor by which a guest's clock may run ahead of the host's, and how many seconds
#: more: lines from before it has a clock have the time 0.
AHEAD = 1.1
SPARE_S = 5.0
_STAMP = re.compile(rf"(?m)^{STAMP} ".encode())
_TAIL = 1 << 16
# The median of so many stamps is used: when an emergency takes the serial line from the
# printing thread a character is doubled, and 70 s read as 770 s.
_LINES = 9


@functools.cache
def khz() -> int | None:
    """The counter's frequency in kHz, measured in a quarter of a second; None if there
    is no such counter, or no compiler for the program that reads it."""
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
    """How far the clock of a guest that ran for ``seconds`` was ahead, or None."""
    if not console.exists():
        return None
    with console.open("rb") as file:
        file.seek(max(0, console.stat().st_size - _TAIL))
        stamps = _STAMP.findall(file.read())
    last = statistics.median_low([float(stamp) for stamp in stamps[-_LINES:]] or [0.0])
    if last <= seconds * AHEAD + SPARE_S:
        return None
    return f"its clock showed {last:.0f} s after {seconds:.0f} s of the host's"
