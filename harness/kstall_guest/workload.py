# SPDX-License-Identifier: GPL-2.0-or-later
"""Running one workload: a program, a deadline, and nothing left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import hosttime
from .errors import CannotStart, GuestError, Shortage, Unkillable, is_shortage, kinds

# Every descendant inherits this, also one that left the process group and session.
_MARK = "KSTALL_WORKLOAD"
# Where what is part of a workload says that the host failed it.
_TROUBLE = "KSTALL_TROUBLE"
TROUBLE = "trouble.txt"
# The kernel's watchdog for hung tasks looks once a minute, at what has hung for one.
_DEATH_S = 130.0
# The longest that a process is waited for that may be about to execute a program.
_EXEC_S = 2.0
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD


@dataclass(frozen=True)
class Ended:
    """A workload that is over; times are CLOCK_MONOTONIC nanoseconds.

    ``exit_status`` is the program's, -N if signal N ended it, None at the deadline.
    ``strays`` processes had outlived the program and were killed.  ``waited_for`` is
    what each process did at the deadline.
    """

    exit_status: int | None
    began_ns: int
    ended_ns: int
    strays: int
    waited_for: tuple[str, ...] = ()

    @property
    def timed_out(self) -> bool:
        """Whether it had to be ended."""
        return self.exit_status is None

    @property
    def seconds(self) -> float:
        """How long it ran, by the guest's clock."""
        return (self.ended_ns - self.began_ns) / 1e9


def run(
    name: str,
    argv: Sequence[str],
    *,
    deadline_s: float,
    results: Path,
    proc: Path = Path("/proc"),
) -> Ended:
    """Run ``argv`` to its end or to the deadline; stdout and stderr go to ``results``.

    Raises `CannotStart`, and `Unkillable` when a process outlives SIGKILL.
    """
    mark = f"{name}-{os.getpid()}"
    with (
        (results / "stdout").open("wb") as stdout,
        (results / "stderr").open("wb") as stderr,
    ):
        began = time.monotonic_ns()
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd="/",
                env={**os.environ, _MARK: mark, _TROUBLE: str(results / TROUBLE)},
                start_new_session=True,
            )
        except OSError as error:
            refused = Shortage if is_shortage(error) else CannotStart
            raise refused(f"{argv[0]}: {error.strerror}") from error
        try:
            status: int | None = hosttime.wait(child, deadline_s)
        except subprocess.TimeoutExpired:
            status = None
        ended = time.monotonic_ns()
        waiting = [] if status is not None else _marked(mark, proc, child.pid)[0]
        states = tuple(_state(proc / str(pid)) for pid in waiting)
        strays = _kill_all(child, mark, proc)
    return Ended(status, began, ended, strays, states)


def current() -> str:
    """The name of the workload that this process is part of, or ""."""
    return os.environ.get(_MARK, "").rpartition("-")[0]


def complain(error: GuestError) -> None:
    """Have the agent know that what failed this workload was not the kernel."""
    if place := os.environ.get(_TROUBLE):
        text = str(error).replace("\n", " ")
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"{error.kind} {text}\n")


def troubles(results: Path) -> list[GuestError]:
    """What the program with these results has complained of."""
    place = results / TROUBLE
    if not place.exists():
        return []
    said = (line.partition(" ") for line in place.read_text().splitlines())
    return [kinds()[kind](text) for kind, _, text in said]


def _kill_all(child: subprocess.Popen[bytes], mark: str, proc: Path) -> int:
    """SIGKILL the program, if it still runs, and every process that it started."""
    running = child.poll() is None
    countdown = hosttime.Countdown(_DEATH_S)
    settling = hosttime.Countdown(_EXEC_S)
    strays: set[int] = set()
    while True:
        alive, unclear = _marked(mark, proc, child.pid)
        strays.update(alive)
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        settled = not unclear or settling.left() < 0
        if child.poll() is not None and not alive and settled:
            break
        if countdown.left() < 0:
            states = "; ".join(_state(proc / str(pid)) for pid in alive or [child.pid])
            raise Unkillable(f"still there after SIGKILL: {states}")
        time.sleep(0.02)
    return len(strays - {child.pid}) if running else len(strays)


def _marked(mark: str, proc: Path, program: int) -> tuple[list[int], list[int]]:
    """Live processes whose environment carries ``mark``; and those of which that is
    not clear: younger than ``program``, and without an environment.

    A process has none for a moment when it executes another program.
    """
    wanted = f"{_MARK}={mark}".encode()
    found, unclear = [], []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            environment = (entry / "environ").read_bytes()
            if wanted in environment.split(b"\0"):
                found.append(pid)
            # Their numbers are given in turn.
            elif not environment and pid > program and _executes(entry):
                unclear.append(pid)
        except OSError:
            continue  # gone meanwhile, or another user's
    return found, unclear


def _executes(process: Path) -> bool:
    """Whether it is neither a zombie nor a thread of the kernel: these have no
    environment, either."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[0] not in "ZX" and not int(fields[6]) & _KERNEL_THREAD


def _state(process: Path) -> str:
    """What a process is, and what it waits for in the kernel."""
    found = [process.name]
    for name in ("comm", "stat", "wchan", "syscall"):
        try:
            found.append((process / name).read_text().strip()[:120])
        except OSError as error:
            found.append(f"{name}: {error.strerror}")
    return ", ".join(found)
