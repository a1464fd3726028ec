# SPDX-License-Identifier: GPL-2.0-or-later
"""Running one workload: a program with a deadline, all of whose processes are ended."""

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

# All descendants inherit this, also outside of the process group and session.
_MARK = "KSTALL_WORKLOAD"
# The file in which a workload's program reports faults of the apparatus.
_TROUBLE = "KSTALL_TROUBLE"
TROUBLE = "trouble.txt"
# The kernel's watchdog for hung tasks runs once a minute, and reports after a minute.
_DEATH_S = 130.0
# The longest wait for a process that may be about to execute a program.
_EXEC_S = 2.0
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD


@dataclass(frozen=True)
class Ended:
    """A workload that has ended; times are CLOCK_MONOTONIC nanoseconds.

    ``exit_status`` is the program's, -N if signal N ended it, None after a deadline.
    ``strays`` is the number of processes that outlived the program and were killed.
    ``waited_for`` has the state of each process at the deadline.
    """

    exit_status: int | None
    began_ns: int
    ended_ns: int
    strays: int
    waited_for: tuple[str, ...] = ()

    @property
    def timed_out(self) -> bool:
        """Whether it was killed at its deadline."""
        return self.exit_status is None

    @property
    def seconds(self) -> float:
        """Its duration by the guest's clock."""
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

    Raises `CannotStart`, and `Unkillable` if a process outlives SIGKILL.
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
    """The name of the workload to which this process belongs, or ""."""
    return os.environ.get(_MARK, "").rpartition("-")[0]


def complain(error: GuestError) -> None:
    """Report to the agent that this workload cannot be judged."""
    if place := os.environ.get(_TROUBLE):
        text = str(error).replace("\n", " ")
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"{error.kind} {text}\n")


def troubles(results: Path) -> list[GuestError]:
    """The errors that the program with these results has reported."""
    place = results / TROUBLE
    if not place.exists():
        return []
    lines = (line.partition(" ") for line in place.read_text().splitlines())
    return [kinds()[kind](text) for kind, _, text in lines]


def _kill_all(child: subprocess.Popen[bytes], mark: str, proc: Path) -> int:
    """SIGKILL the program, if it still runs, and all processes that it started.

    Returns the number of the latter.
    """
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
    """Live processes with ``mark`` in their environment, and younger processes than
    ``program`` without an environment.

    A process has none for a moment when it executes another program.
    """
    wanted = f"{_MARK}={mark}".encode()
    marked, unclear = [], []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            environment = (entry / "environ").read_bytes()
            if wanted in environment.split(b"\0"):
                marked.append(pid)
            # The kernel assigns ascending numbers.
            elif not environment and pid > program and _executes(entry):
                unclear.append(pid)
        except OSError:
            continue  # gone meanwhile, or another user's
    return marked, unclear


def _executes(process: Path) -> bool:
    """Whether it is neither a zombie nor a kernel thread, which have no environment,
    either."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[0] not in "ZX" and not int(fields[6]) & _KERNEL_THREAD


def _state(process: Path) -> str:
    """A process, its state, and where in the kernel it waits."""
    parts = [process.name]
    for name in ("comm", "stat", "wchan", "syscall"):
        try:
            parts.append((process / name).read_text().strip()[:120])
        except OSError as error:
            parts.append(f"{name}: {error.strerror}")
    return ", ".join(parts)
