# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU's monitor: actions on a guest that are not possible from within.

A workload declares the steps that it needs, and its program asks for one when it is
ready for it.  The request comes over a virtio-serial port of its own.  A port keeps
the order of requests, wakes either side at once and ends with QEMU; a file in the
shared directory would have to be polled over 9p, which causes interrupts in the guest
just when it counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qemu.qmp import ExecuteError, QMPClient, QMPError

from ..base import KstallError

#: The name of the port in the guest; `kstall_guest.monitor` has the other end.
PORT = "kstall.monitor"
#: Seconds for all commands of a step; each takes QEMU milliseconds.
DEADLINE = 120.0
_POLL = 0.05


class MonitorError(KstallError):
    """QEMU's monitor could not be reached, or did not answer in time."""


@dataclass(frozen=True)
class QemuCommand:
    """One command: of QMP, or, if ``human``, a line for the human monitor.

    The human monitor has no error status, so all its output has to match ``reply``, a
    regular expression; by default it must print nothing.
    """

    text: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    human: bool = False
    reply: str = ""


@dataclass(frozen=True)
class Answer:
    """The result of a command; ``error`` is None if it succeeded."""

    command: str
    reply: Any
    error: str | None = None


@dataclass(frozen=True)
class MonitorStep:
    """Commands that a workload may ask for by ``name``."""

    workload: str
    name: str
    commands: tuple[QemuCommand, ...]


@dataclass(frozen=True)
class Performed:
    """A request and its answers.

    ``at`` is when it was begun, since the port was opened, and ``seconds`` how long it
    took, both in host seconds.
    """

    workload: str
    step: str
    at: float
    seconds: float
    answers: tuple[Answer, ...]
    error: str | None

    def as_json(self) -> dict[str, Any]:
        """For the evidence, see `records.injected`."""
        return asdict(self)


def perform(monitor: Path, commands: Sequence[QemuCommand]) -> tuple[Answer, ...]:
    """Give ``commands`` to the QMP socket ``monitor``, in order.

    All of them are given, even after one failed, or a `stop` would be left without its
    `cont`.  Raises `MonitorError` if QEMU is gone or does not answer within
    `DEADLINE` seconds.
    """
    # Losing QEMU is raised as an error; without a handler Python also prints it.
    log = logging.getLogger("qemu.qmp")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    try:
        return asyncio.run(_limited(monitor, commands))
    except TimeoutError as error:
        raise MonitorError(
            f"QEMU's monitor did not answer within {DEADLINE:g} s"
        ) from error
    except (QMPError, OSError, EOFError) as error:
        raise MonitorError(f"QEMU's monitor: {error}") from error


async def _limited(
    monitor: Path, commands: Sequence[QemuCommand]
) -> tuple[Answer, ...]:
    # Disconnecting takes a second at most, even from a QEMU that is stuck.
    client = QMPClient("kstall")
    try:
        async with asyncio.timeout(DEADLINE):
            await client.connect(str(monitor))
            return tuple([await _execute(client, command) for command in commands])
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.disconnect(), 1.0)


async def _execute(client: QMPClient, command: QemuCommand) -> Answer:
    try:
        if not command.human:
            return Answer(
                command.text, await client.execute(command.text, command.arguments)
            )
        reply = await client.execute(
            "human-monitor-command", {"command-line": command.text}
        )
    except ExecuteError as error:
        return Answer(command.text, None, str(error))
    output = str(reply).replace("\r\n", "\n").strip()
    if re.fullmatch(command.reply, output, re.S):
        return Answer(command.text, output)
    return Answer(command.text, output, f"it printed {output!r}, not {command.reply!r}")


@contextlib.contextmanager
def answering(
    port: Path, monitor: Path, steps: Sequence[MonitorStep]
) -> Iterator[list[Performed]]:
    """Answer a guest's requests while the block runs; the list grows with each.

    ``port`` is the socket of the guest's virtio-serial port.  QEMU has to end before
    the block does, or the guest's next request is lost.
    """
    actions: list[Performed] = []
    if not steps:
        yield actions
        return
    over = threading.Event()
    by_name = {(step.workload, step.name): step for step in steps}

    def answer() -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            while not _connects(connection, port):
                if over.wait(_POLL):
                    return
            connection.settimeout(_POLL)
            opened = time.monotonic()
            for line in _lines(connection, over):
                reply, performed = _answer(line, by_name, monitor, opened)
                if performed is not None:
                    actions.append(performed)
                connection.settimeout(DEADLINE)
                connection.sendall(json.dumps(reply).encode() + b"\n")
                connection.settimeout(_POLL)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield actions
    finally:
        over.set()
        thread.join()


def _connects(connection: socket.socket, port: Path) -> bool:
    """Connect to ``port``; False if nobody listens there yet.

    QEMU makes the file of its socket some time before it listens.
    """
    try:
        connection.connect(str(port))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


def _lines(connection: socket.socket, over: threading.Event) -> Iterator[bytes]:
    """The lines that come in, until the other side ends or ``over`` is set."""
    pending = b""
    while not over.is_set():
        try:
            chunk = connection.recv(65536)
        except TimeoutError:
            continue
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        yield from lines


def _answer(
    line: bytes,
    steps: Mapping[tuple[str, str], MonitorStep],
    monitor: Path,
    opened: float,
) -> tuple[dict[str, Any], Performed | None]:
    try:
        request = json.loads(line)
        number, workload = request["id"], str(request["workload"])
        name = str(request["step"])
    except (ValueError, KeyError, TypeError):
        return {"id": None, "error": f"not a request: {line[:80]!r}"}, None
    began = time.monotonic()
    answers: tuple[Answer, ...] = ()
    error: str | None = None
    if (step := steps.get((workload, name))) is None:
        error = f"workload {workload} declares no step {name}"
    else:
        try:
            answers = perform(monitor, step.commands)
        except MonitorError as failed:
            error = failed.what
        wrong = [
            f"{answer.command}: {answer.error}" for answer in answers if answer.error
        ]
        error = error or "; ".join(wrong) or None
    seconds = time.monotonic() - began
    performed = Performed(workload, name, began - opened, seconds, answers, error)
    reply = {
        "id": number,
        "error": error,
        "replies": [answer.reply for answer in answers],
    }
    return reply, performed
