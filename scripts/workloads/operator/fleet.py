#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""One node of a job that has a rank on each of several machines, and its agent.

    fleet.py NODE OUT RANK WORLD STEPS PPM     the machine
    fleet.py rank STEPS QUOTA...               its rank, in which steps under a quota

The ranks wait for each other at a serial port: a line out when one has arrived, and one
back when all have.  PPM is the error of this machine's clock.  When the job is over the
recorder ends, and agents answer on other ports until "done" comes over the first.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

TOP = Path("/sys/fs/cgroup")
GROUP = TOP / "kstall-rank"
PORTS = Path("/sys/class/virtio-ports")
MARKER = Path("/sys/kernel/tracing/instances/kstall/trace_marker")
HERE = Path(__file__).resolve().parent
WORK_S = 0.05
_ADJ_FREQUENCY = 2


class Timex(ctypes.Structure):
    """The beginning of struct timex."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("rest", ctypes.c_long * 64),
    )


def port(name: str) -> int:
    """Open a virtio port; its other end is the test's, on the host."""
    for path in PORTS.glob("*/name"):
        if path.read_text(encoding="ascii").strip() == name:
            return os.open(Path("/dev") / path.parent.name, os.O_RDWR)
    raise SystemExit(f"no port {name}")


def line(handle: int) -> str:
    """The next line from a port."""
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(handle, 1)
        if not piece:
            time.sleep(0.01)
        text += piece
    return text.decode().strip()


def rank(steps: int, quota: range) -> None:
    """Compute, wait for the others, and write marks."""
    hub = port("kstall.hub")
    with MARKER.open("w") as marks:
        for step in range(steps):
            if quota and step in (quota.start, quota.stop):
                on = step == quota.start
                (GROUP / "cpu.max").write_text("20000 100000" if on else "max 100000")
            until = time.process_time() + WORK_S
            while time.process_time() < until:
                pass
            print(f"kstall step={step} phase=enter", file=marks, flush=True)
            os.write(hub, f"{step}\n".encode())
            if line(hub) != f"{step}":
                raise SystemExit("the ranks are out of step")
            print(f"kstall step={step} phase=exit", file=marks, flush=True)


def serve(name: str, program: Path, out: str) -> None:
    """Run an agent for each client that connects."""
    handle = port(name)
    ready = select.poll()
    ready.register(handle, select.POLLIN)
    while True:
        events = dict(ready.poll(1000)).get(handle, 0)
        if events & select.POLLHUP or not events & select.POLLIN:
            time.sleep(0.1)
            continue
        argv = [sys.executable, str(program), "agent", "--stdio", out]
        subprocess.run(argv, stdin=handle, stdout=handle, check=False)


def machine(node: str, out: str, words: list[str]) -> None:
    """Record while the rank runs, then answer."""
    number, world, steps, ppm = map(int, words)
    socket.sethostname(f"node{number}")
    wrong = Timex(modes=_ADJ_FREQUENCY, freq=ppm << 16)
    if ctypes.CDLL(None).adjtimex(ctypes.byref(wrong)) < 0:
        raise SystemExit("adjtimex was refused")
    (TOP / "cgroup.subtree_control").write_text("+cpu")
    GROUP.mkdir()
    words = [node, "record", "-o", out, "--class", "throttle"]
    recorder = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True
    )
    assert recorder.stderr is not None
    for text in recorder.stderr:
        print(text, end="", flush=True)
        if "recording into" in text:
            break
    env = {**os.environ, "RANK": str(number), "WORLD_SIZE": str(world)}
    env["TORCHELASTIC_RUN_ID"] = "train"
    # In the middle third, so that there are steps before and after to compare with.
    quota = [steps // 3, 2 * steps // 3] if number == 1 else [0, 0]
    argv = [sys.executable, __file__, "rank", str(steps), *map(str, quota)]
    job = subprocess.Popen(argv, env=env)
    (GROUP / "cgroup.procs").write_text(str(job.pid))
    if job.wait():
        raise SystemExit(f"the rank ended with {job.returncode}")
    recorder.send_signal(signal.SIGINT)
    print(recorder.communicate(timeout=60)[1], end="", flush=True)
    for name, program in (("kstall.agent", node), ("kstall.old", f"{node}-old")):
        if os.fork() == 0:
            serve(name, Path(program), out)
    hub = port("kstall.hub")
    os.write(hub, b"ready\n")
    if line(hub) != "done":
        raise SystemExit("the host did not say that it is done")


def main() -> None:
    """Be the machine, or its rank."""
    if sys.argv[1] == "rank":
        steps, first, last = map(int, sys.argv[2:])
        rank(steps, range(first, last))
    else:
        machine(sys.argv[1], sys.argv[2], sys.argv[3:])


if __name__ == "__main__":
    main()
