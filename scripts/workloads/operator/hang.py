#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A job that hangs while it is recorded, and what a collector gets of that meanwhile.

    hang.py NODE OUT JOB [ARGUMENT...]

JOB is started beside `kstall-node record`.  110 s later, when it hangs for so long that
all that it did is in segments that are sealed, what the agent would send is copied to
OUT/meanwhile.  Then the job is killed; what the recording is in the end is OUT/end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 110


def sent(node: str, rec: Path, out: Path) -> None:
    """What an agent sends of a recording that goes on."""
    sys.path.insert(0, node)
    from kstall_node import agent  # noqa: PLC0415
    from kstall_node.host import Host  # noqa: PLC0415

    for path in agent._files(Host(), rec):
        target = out / rec.name / path.relative_to(rec)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def main() -> None:
    """Record, hang, look, end."""
    node, top, *job = sys.argv[1:]
    out = Path(top)
    words = [sys.executable, node, "record", "-o", "/run/rec", "--class", "throttle"]
    recorder = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert recorder.stderr is not None
    for line in recorder.stderr:
        print(line, end="", flush=True)
        if "recording into" in line:
            break
    # A session of its own: all ranks are killed at once.
    started = subprocess.Popen([sys.executable, *job], start_new_session=True)
    time.sleep(SECONDS)
    (rec,) = Path("/run/rec").iterdir()
    sent(node, rec, out / "meanwhile")
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    recorder.send_signal(signal.SIGINT)
    print(recorder.communicate(timeout=60)[1], flush=True)
    shutil.copytree("/run/rec", out / "end")


if __name__ == "__main__":
    main()
