#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What `kstall-node record` costs, where a nanosecond is an instruction (-icount).

    cost.py NODE OUT

Marks are written at several rates.  The recorder's CPU time is that of its schedstat;
the writer's is measured around its writes.  Prints JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

INSTANCE = Path("/sys/kernel/tracing/instances/kstall")
TEXT = b"kstall step=123456 phase=enter rank=1\n"
SECONDS = 6
#: Marks a second; 0 measures a recorder that is idle.
RATES = (0, 200, 1000, 5000, 20000)


def run_ns(pid: int) -> int:
    """For how long a process was on a CPU, in ns."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def write_marks(marker: int, rate: int) -> tuple[int, int]:
    """(marks, ns spent in the writes) in `SECONDS` at this rate."""
    began, spent, count = time.monotonic_ns(), 0, 0
    end = began + SECONDS * 1_000_000_000
    while (now := time.monotonic_ns()) < end:
        due = rate * (now - began) // 1_000_000_000
        before = time.monotonic_ns()
        while count < due:
            os.write(marker, TEXT)
            count += 1
        spent += time.monotonic_ns() - before
        time.sleep(0.01)
    return count, spent


def pages() -> int:
    """Bytes in all segments."""
    return sum(path.stat().st_size for path in Path(sys.argv[2]).rglob("*.pages"))


def main() -> None:
    """Each rate in turn, beside one recorder."""
    node, out = sys.argv[1:]
    words = [node, "record", "-o", out, "--class", "throttle"]
    words += ["--max-rate", "1000000", "--buffer-kb", "8192"]
    recorder = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True
    )
    assert recorder.stderr is not None
    for line in recorder.stderr:
        if "recording into" in line:
            break
    marker = os.open(INSTANCE / "trace_marker", os.O_WRONLY)
    for on in (True, False):
        # What a mark costs while it is recorded, and while nobody records it.
        (INSTANCE / "tracing_on").write_text(str(int(on)))
        before = time.monotonic_ns()
        for _ in range(1000):
            # EBADF while tracing is off, as a job sees it whose recorder has ended.
            with contextlib.suppress(OSError):
                os.write(marker, TEXT)
        took = time.monotonic_ns() - before
        print(json.dumps({"what": "mark", "on": on, "each": took / 1000}), flush=True)
    (INSTANCE / "tracing_on").write_text("1")
    time.sleep(3)
    for rate in RATES:
        before, held = run_ns(recorder.pid), pages()
        count, spent = write_marks(marker, rate)
        # Twice the time in which a buffer is read at the latest.
        time.sleep(4)
        costs = {"rate": rate, "count": count, "seconds": SECONDS + 4}
        costs |= {"ns": run_ns(recorder.pid) - before, "bytes": pages() - held}
        print(json.dumps({"what": "rate", **costs, "writer": spent}), flush=True)
    os.close(marker)
    recorder.send_signal(signal.SIGINT)
    recorder.communicate(timeout=600)
    print(json.dumps({"what": "ended", "status": recorder.returncode}))


if __name__ == "__main__":
    main()
