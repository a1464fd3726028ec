# SPDX-License-Identifier: GPL-2.0-or-later
"""Dumps of a hung guest: its tasks, or its registers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import monitor

# SysRq keys for blocked tasks, what runs on each CPU, and all tasks; and the first line
# of each answer.
_KEYS = {
    "w": b"sysrq: Show Blocked State",
    "l": b"sysrq: Show backtrace of all active CPUs",
    "t": b"sysrq: Show State",
}
_BREAK = monitor.QemuCommand("chardev-send-break", {"id": "console"})
_REGISTERS = monitor.QemuCommand("info registers -a", human=True, reply=".*")
_POLL = 0.05
# Guest seconds for an answer to begin, to pause, and to end.
_BEGIN, _QUIET, _END = 3.0, 1.0, 15.0
# Host seconds for a guest second, at most.
_PATIENCE = 10


def tasks(
    serial_path: Path,
    qmp: Path,
    console: Path,
    registers: Path,
    spent: Callable[[], float] = time.monotonic,
) -> None:
    """Have a hung kernel print its tasks; if it cannot, ask QEMU for registers.

    The kernel is asked by SysRq over its serial console, whose socket is
    ``serial_path``; its answer goes to ``console``, like all its output.  ``spent`` is
    a clock in seconds that stands still while the host keeps the guest waiting.
    """
    with (
        contextlib.suppress(OSError, monitor.MonitorError),
        _connected(serial_path) as serial,
    ):
        threading.Thread(target=_drain, args=(serial,), daemon=True).start()
        before = _size(console)
        for key, headline in _KEYS.items():
            size = _size(console)
            monitor.perform(qmp, [_BREAK])
            # The guest has to handle the break before the key.
            time.sleep(0.2)
            serial.sendall(key.encode())
            if not _answered(console, size, headline, spent):
                break
            _settle(console, spent)
        if _size(console) == before:
            (answer,) = monitor.perform(qmp, [_REGISTERS])
            registers.write_text(str(answer.reply), encoding="utf-8")


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        try:
            yield connection
        finally:
            # close() alone would not wake up the thread that waits in recv().
            connection.shutdown(socket.SHUT_RDWR)


def _drain(connection: socket.socket) -> None:
    """Discard all input: QEMU waits for a client that does not read."""
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass


def _answered(
    console: Path, before: int, headline: bytes, spent: Callable[[], float]
) -> bool:
    """Wait for ``headline`` on the console behind ``before`` bytes; False if late."""
    for _ in _while(lambda since: since < _BEGIN, spent, _BEGIN):
        if _size(console) > before:
            with console.open("rb") as file:
                file.seek(before)
                if headline in file.read():
                    return True
    return False


def _settle(console: Path, spent: Callable[[], float]) -> None:
    """Wait until the console has not grown for a while."""
    size, grown = _size(console), 0.0

    def grows(since: float) -> bool:
        nonlocal size, grown
        if (now := _size(console)) != size:
            size, grown = now, since
        return since < min(grown + _QUIET, _END)

    for _ in _while(grows, spent, _END):
        pass


def _while(
    condition: Callable[[float], bool], spent: Callable[[], float], most: float
) -> Iterator[None]:
    """Poll as long as ``condition`` holds for the seconds ``spent`` since the start."""
    began, limit = spent(), time.monotonic() + most * _PATIENCE
    while condition(spent() - began) and time.monotonic() < limit:
        yield
        time.sleep(_POLL)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
