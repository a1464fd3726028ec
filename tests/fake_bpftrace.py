#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Stands in for bpftrace 0.23: its order of events, its words, its ways to fail.

The "script" is a list of directives, one a line; see the branches below.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    split = sys.argv.index("--")
    options, rest = sys.argv[1:split], sys.argv[split + 1 :]
    output = Path(options[options.index("-o") + 1])
    output.write_text("")
    script = Path(rest[0])
    steps = [line.split(" ", 1) for line in script.read_text().splitlines()]
    late = []

    def write(line: str) -> None:
        with output.open("a") as file:
            file.write(line + "\n")

    def emit(value: object) -> None:
        write(json.dumps(value))

    # As the real one: before anything is loaded, let alone attached.
    emit({"type": "attached_probes", "data": {"probes": len(steps)}})
    for step, *words in steps:
        argument = words[0] if words else ""
        if step == "delay":
            time.sleep(float(argument))
        elif step == "stderr":
            print(argument, file=sys.stderr)
        elif step == "die":
            return int(argument)
        elif step == "raise":
            os.kill(os.getpid(), int(argument))
        elif step == "hang":
            time.sleep(1000)
        elif step == "witness":
            # Before it says so: from then on it may be stopped.
            Path(argument).write_text("attached")
        elif step == "ring":
            pages = os.environ["BPFTRACE_PERF_RB_PAGES"]
            emit({"type": "printf", "data": pages + "\n"})
        else:
            late.append((step, argument))
    print("__BPFTRACE_NOTIFY_PROBES_ATTACHED", flush=True)
    for step, argument in late:
        if step == "leave":
            return int(argument)
        elif step == "emit":
            write(argument)
    # Instead of -c's cat, whose end of the pipe this is.
    sys.stdin.buffer.read()
    for step, argument in late:
        if step == "exit":
            return int(argument)
        if step == "deaf":
            time.sleep(1000)
        if step == "cut":
            # On a full disk the rest is lost, which it does not notice.
            output.write_text(output.read_text() + argument)
            return 0
    emit({"type": "map", "data": {"@end": 1}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
