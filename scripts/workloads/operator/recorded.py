#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run the workload of a series while `kstall-node record` runs beside its tracers.

    recorded.py CLASS PROVIDER PROGRAM [ARGUMENT...]

PROVIDER is the recorder's --provider, or "any".  The recording and what the recorder
printed are put where the workload's results are; the output and the exit status are
PROGRAM's, so that all of its checks can judge them as usual.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Record, run, end."""
    cls, provider, program, *arguments = sys.argv[1:]
    results = Path(os.environ["KSTALL_TROUBLE"]).parent
    words = [str(HERE / "kstall-node"), "record", "-o", str(results / "rec")]
    words += ["--class", cls]
    if provider != "any":
        words += ["--provider", provider]
    recorder = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True
    )
    assert recorder.stderr is not None
    lines = []
    for line in recorder.stderr:
        lines.append(line)
        if "recording into" in line:
            break
    else:
        print("".join(lines), file=sys.stderr)
        return 1
    status = subprocess.run([HERE / program, *arguments], check=False).returncode
    recorder.send_signal(signal.SIGINT)
    _, rest = recorder.communicate(timeout=120)
    facts = {"status": recorder.returncode, "said": "".join(lines) + rest}
    (results / "recorder.json").write_text(json.dumps(facts))
    if recorder.returncode:
        print(facts["said"], file=sys.stderr)
    return status or recorder.returncode


if __name__ == "__main__":
    sys.exit(main())
