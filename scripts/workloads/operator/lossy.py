#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""More marks than a small buffer holds, while the recorder cannot read.

    lossy.py KSTALL_NODE OUT

The recorder is stopped, marks are written, it goes on and ends.  Prints JSON lines.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from throttled import left, recorder, say

INSTANCE = Path("/sys/kernel/tracing/instances/kstall")
MARKS = 5000


def main() -> None:
    """Write them all on one CPU."""
    node, out = sys.argv[1:]
    os.sched_setaffinity(0, {0})
    words = ("record", "-o", out, "--class", "throttle", "--buffer-kb", "32")
    started = recorder(node, *words)
    time.sleep(1)
    started.send_signal(signal.SIGSTOP)
    marker = os.open(INSTANCE / "trace_marker", os.O_WRONLY)
    for step in range(MARKS):
        os.write(marker, b"kstall step=%d phase=enter rank=0\n" % step)
    stats = (INSTANCE / "per_cpu/cpu0/stats").read_text()
    started.send_signal(signal.SIGCONT)
    time.sleep(1)
    # A job that goes on holds the marker open, and the instance stays, empty.
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    say(what="ended", status=started.returncode, errors=errors, stats=stats)
    say(what="held", **left(), on=(INSTANCE / "tracing_on").read_text().strip())
    again = recorder(node, *words)
    os.write(marker, b"kstall step=0 phase=exit rank=0\n")
    again.send_signal(signal.SIGINT)
    _, errors = again.communicate(timeout=60)
    say(what="again", status=again.returncode, errors=errors)
    os.close(marker)
    print(json.dumps({"what": "marks", "count": MARKS}))


if __name__ == "__main__":
    main()
