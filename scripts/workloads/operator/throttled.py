#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Threads under a CPU quota while `kstall-node record` runs, and what the kernel says.

    throttled.py KSTALL_NODE OUT

Three processes in a group with 20 ms of 100, two on one CPU and one on another, are
recorded into OUT; a second instance of ftrace records the same events as a witness.
Then a recorder is killed, and another has to clean up after it.  Prints JSON lines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
TOP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")
#: How often the group is throttled before it is enough.
ENOUGH = 60


def say(**facts: object) -> None:
    """Print one JSON line of the truth."""
    print(json.dumps(facts), flush=True)


def recorder(*words: str) -> subprocess.Popen[str]:
    """Start a recorder; returns when it records."""
    started = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    for line in started.stderr:
        say(what="said", line=line.rstrip())
        if "recording into" in line:
            return started
    raise SystemExit(f"the recorder ended with status {started.wait()}")


def left() -> dict[str, object]:
    """What recorders have in the kernel."""
    instances = [path.name for path in (TRACING / "instances").iterdir()]
    return {
        "instances": [name for name in instances if name != "witness"],
        "probes": (TRACING / "dynamic_events").read_text().splitlines(),
    }


def stat(group: Path) -> dict[str, int]:
    """cpu.stat."""
    lines = (group / "cpu.stat").read_text().splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def spin(group: Path, cpu: int) -> int:
    """A process of the group that uses up its CPU."""
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {cpu})
        (group / "cgroup.procs").write_text(str(os.getpid()))
        while True:
            pass
    return pid


def witness() -> Path:
    """A buffer of its own for the events that the recorder has enabled."""
    path = TRACING / "instances/witness"
    path.mkdir()
    (path / "trace_clock").write_text("mono")
    names = [
        enable.parent
        for enable in (TRACING / "instances/kstall/events").glob("*/*/enable")
        if enable.read_text().strip().startswith("1")
    ]
    for name in names:
        target = path / "events" / name.parent.name / name.name
        rule = (name / "filter").read_text().strip()
        if rule != "none":
            (target / "filter").write_text(rule)
        (target / "enable").write_text("1")
    say(
        what="enabled",
        events=sorted(f"{name.parent.name}:{name.name}" for name in names),
    )
    return path


def main() -> None:
    """Record, then kill."""
    node, out = sys.argv[1:]
    known = {name: (CPUS / name).read_text().strip() for name in ("possible", "online")}
    say(what="cpus", **known)
    (TOP / "cgroup.subtree_control").write_text("+cpu")
    group = TOP / "kstall-throttled"
    words = (node, "record", "-o", out, "--class", "throttle")
    started = recorder(*words)
    instance = witness()
    group.mkdir()
    (group / "cpu.max").write_text("20000 100000")
    pids = [spin(group, cpu) for cpu in (0, 0, 1)]
    until = time.monotonic() + 60
    while stat(group)["nr_throttled"] < ENOUGH and time.monotonic() < until:
        time.sleep(0.1)
    # So that each throttling is over, and counted, before they are killed.
    (group / "cpu.max").write_text("max")
    time.sleep(0.5)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    (instance / "tracing_on").write_text("0")
    lines = [
        line
        for line in (instance / "trace").read_text().splitlines()
        if line[:1] != "#"
    ]
    say(what="witness", lines=lines)
    # A probe that anybody has enabled cannot be removed.
    instance.rmdir()
    say(what="group", id=group.stat().st_ino, stat=stat(group), pids=pids)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    say(what="ended", status=started.returncode, errors=errors)
    group.rmdir()
    say(what="left", **left())

    killed = recorder(*words)
    killed.kill()
    killed.wait()
    say(what="killed", **left())
    process = subprocess.run(
        [sys.executable, *words, "--seconds", "0.5"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    say(what="cleaned", status=process.returncode, errors=process.stderr, **left())


if __name__ == "__main__":
    main()
