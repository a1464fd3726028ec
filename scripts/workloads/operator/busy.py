#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""More records a second than are allowed, while threads are throttled.

    busy.py KSTALL_NODE OUT

The recorder suspends what it cannot filter, and says so.  Prints JSON lines.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from throttled import TOP, TRACING, left, recorder, say, spin

INSTANCE = TRACING / "instances/kstall"


def enabled() -> list[str]:
    """Events that are on in the recorder's instance."""
    return [
        path.parent.name
        for path in (INSTANCE / "events").glob("*/*/enable")
        if path.read_text().strip().startswith("1")
    ]


def main() -> None:
    """A thread that is throttled in each period makes twenty records a second."""
    node, out = sys.argv[1:]
    (TOP / "cgroup.subtree_control").write_text("+cpu")
    group: Path = TOP / "kstall-busy"
    group.mkdir()
    words = ("record", "-o", out, "--class", "throttle", "--max-rate", "10")
    started = recorder(node, *words)
    say(what="before", events=enabled())
    (group / "cpu.max").write_text("20000 100000")
    pid = spin(group, 0)
    until = time.monotonic() + 30
    while enabled() and time.monotonic() < until:
        time.sleep(0.1)
    at = time.monotonic_ns()
    say(what="suspended", events=enabled(), at=at)
    # Throttling from now on is not recorded.
    time.sleep(2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    group.rmdir()
    say(what="ended", status=started.returncode, errors=errors)
    say(what="left", **left())


if __name__ == "__main__":
    main()
