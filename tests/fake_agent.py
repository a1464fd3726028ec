# SPDX-License-Identifier: GPL-2.0-or-later
"""An agent as a node would run it: ``fake_agent.py DIR [HOW]``, on stdio.

HOW: ok, many, rebooted, bootless, old, stopped, killed, garbage, deep, escape, error,
slow; AHEAD in the environment is what its clock is ahead of ours by, in ns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path


def say(**fields: object) -> None:
    """One line."""
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def _boot(top: Path, how: str) -> str:
    """The boot of what it has, or of a later one."""
    for path in top.rglob("session.json") if how != "rebooted" else ():
        with contextlib.suppress(ValueError):
            return str(json.loads(path.read_text())["boot_id"])
    return "later"


def main() -> None:
    """Answer until the collector has gone."""
    top, how = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "ok"
    ahead = int(os.environ.get("AHEAD", "0"))
    if how == "dead":
        print("ssh: connect to host: No route to host", file=sys.stderr)
        sys.exit(255)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["op"] == "hello":
            if how == "stopped":
                time.sleep(1000)
            if how == "garbage":
                banner = b"\x1b[1mWelcome to \xfcber-node7!\r\n"
                sys.stdout.buffer.write(banner)
                sys.stdout.buffer.flush()
            if how == "deep":
                print("[" * 60_000, flush=True)
            boot = {} if how == "bootless" else {"boot_id": _boot(top, how)}
            say(op="hello", version=0 if how == "old" else 1, node="n", **boot)
        elif request["op"] == "ping":
            say(op="pong", n=request["n"], mono=time.monotonic_ns() + ahead)
        elif request["op"] == "pull":
            if how == "error":
                say(op="error", text="no recording\x1b[31m in /var/lib/kstall")
            while how == "slow":
                say(op="file", path=f"rec/formats/a/{time.monotonic_ns()}", size=0)
                time.sleep(0.05)
            if how == "escape":
                say(op="file", path="rec/../../../etc/cron.d/x", size=1)
            for path in sorted(top.rglob("*")):
                if path.is_file():
                    data = path.read_bytes()
                    # Of many each directory is a recording.
                    below = "" if how == "many" else "rec/"
                    name = f"{below}{path.relative_to(top)}"
                    say(op="file", path=name, size=len(data))
                    if how == "killed" and path.suffix == ".pages":
                        sys.stdout.buffer.write(data[:100])
                        sys.stdout.buffer.flush()
                        os.kill(os.getpid(), 9)
                    sys.stdout.buffer.write(data)
            say(op="end")


if __name__ == "__main__":
    main()
