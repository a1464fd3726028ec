# SPDX-License-Identifier: GPL-2.0-or-later
"""Steps that QEMU's monitor performs on this machine for a workload.

A workload's program names a step that ``series.toml`` declares for it, and goes on when
the step is done.  ``python3 -m kstall_guest.monitor STEP`` is for shell scripts, and
prints the monitor's replies, a line a command.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from . import hosttime
from .errors import StepFailed
from .workload import complain, current

_PORT = "kstall.monitor"
_PORTS = Path("/sys/class/virtio-ports")


def ask(step: str, *, deadline_s: float = 60.0) -> list[Any]:
    """Have the host perform ``step``; returns the monitor's reply to each command.

    Raises `StepFailed` if it is not declared, a command fails, or no answer comes
    within ``deadline_s`` seconds; the failure is also recorded for the agent.
    """
    try:
        return _ask(step, deadline_s)
    except StepFailed as error:
        complain(error)
        raise


def _ask(step: str, deadline_s: float) -> list[Any]:
    number = f"{os.getpid()}-{time.monotonic_ns()}"
    request = {"id": number, "workload": current(), "step": step}
    try:
        handle = os.open(_device(), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(handle, json.dumps(request).encode() + b"\n")
            answer = _await(handle, number, step, hosttime.Countdown(deadline_s))
        finally:
            os.close(handle)
    except OSError as error:
        raise StepFailed(f"step {step}: the port: {error.strerror}") from error
    if answer["error"]:
        raise StepFailed(f"step {step}: {answer['error']}")
    return list(answer["replies"])


def _device() -> Path:
    for name in sorted(_PORTS.glob("*/name")):
        if name.read_text(encoding="ascii").strip() == _PORT:
            return Path("/dev") / name.parent.name
    raise StepFailed("no workload of this guest declares steps for the monitor")


def _await(
    handle: int, number: str, step: str, countdown: hosttime.Countdown
) -> dict[str, Any]:
    """The answer to ``number``; answers to earlier requests are ignored."""
    pending = b""
    ready = select.poll()
    ready.register(handle, select.POLLIN)
    while (rest := countdown.left()) > 0:
        for _, events in ready.poll(rest * 1000):
            if not events & select.POLLIN:
                raise StepFailed(f"step {step}: the host has left")
            *lines, pending = (pending + os.read(handle, 65536)).split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                if answer["id"] in (number, None):
                    return answer
    raise StepFailed(f"step {step}: no answer in time")


if __name__ == "__main__":
    try:
        for reply in ask(sys.argv[1]):
            print(reply)
    except StepFailed as error:
        sys.exit(str(error))
