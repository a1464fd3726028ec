#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Stands in for the program that switches events: its status, its signals.

Each time its status is written, ten more turns were taken.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

READERS = ("ftrace", "perf", "bpf", "raw")


def main() -> int:
    status, listing = map(Path, sys.argv[1:3])
    options = sys.argv[3:]
    state = {"parked": 0, "over": 0}
    signal.signal(signal.SIGUSR1, lambda *_: state.update(parked=len(READERS)))
    signal.signal(signal.SIGUSR2, lambda *_: state.update(parked=0))
    signal.signal(signal.SIGTERM, lambda *_: state.update(over=1))
    hooks = [line.split() for line in listing.read_text().splitlines()]
    if any(words[0] == "event" and words[2] == "die" for words in hooks):
        print("no such thing", file=sys.stderr)
        return 1
    names = [":".join(words[1:3]) for words in hooks if words[0] == "event"]
    turns = 0
    while True:
        turns += 10
        count = {"toggles": turns, "seen": turns, "absent": 0, "failed": 0, "error": ""}
        readers = {reader: dict.fromkeys(names, count) for reader in READERS}
        part = status.with_suffix(".part")
        part.write_text(
            json.dumps(
                {"parked": state["parked"], "readers": readers, "options": options}
            )
        )
        os.replace(part, status)  # noqa: PTH105
        if state["over"]:
            return 0
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
