#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run a program whose instructions are counted while `kstall-node record` runs.

    each.py CLASS PROGRAM [ARGUMENT...]

Both are beside it; the output and the exit status are the program's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Record, run, end."""
    cls, program, *arguments = sys.argv[1:]
    words = [HERE / "kstall-node", "record", "-o", "/run/rec", "--class", cls]
    recorder = subprocess.Popen(
        # What is above the rate would not be recorded, and cost nothing.
        [sys.executable, *words, "--max-rate", "100000000"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert recorder.stderr is not None
    for line in recorder.stderr:
        print(line, end="", file=sys.stderr)
        if "recording into" in line:
            break
    status = subprocess.run([HERE / program, *arguments], check=False).returncode
    recorder.send_signal(signal.SIGINT)
    print(recorder.communicate(timeout=600)[1], file=sys.stderr)
    return status or recorder.returncode


if __name__ == "__main__":
    sys.exit(main())
