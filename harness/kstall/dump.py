# SPDX-License-Identifier: GPL-2.0-or-later
"""What a hung guest can still tell."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

from . import monitor

# Blocked tasks, what runs on each CPU, then every task.
_KEYS = "wlt"
_BREAK = monitor.Command("chardev-send-break", {"id": "console"})
_REGISTERS = monitor.Command("info registers -a", human=True, reply=".*")
_POLL = 0.05


def tasks(serial_path: Path, qmp: Path, console: Path, registers: Path) -> None:
    """Have a hung kernel print its tasks; if it cannot, ask QEMU for registers.

    The kernel is asked by SysRq over its serial console, whose socket is
    ``serial_path``; what it says goes to ``console``, as all else.
    """
    with (
        contextlib.suppress(OSError, monitor.MonitorError),
        contextlib.closing(_connect(serial_path)) as serial,
    ):
        threading.Thread(target=_drain, args=(serial,), daemon=True).start()
        before = _size(console)
        for key in _KEYS:
            monitor.perform(qmp, [_BREAK])
            # The guest has to take the break before the key.
            time.sleep(0.2)
            serial.sendall(key.encode())
            _settle(console)
        if _size(console) == before:
            (said,) = monitor.perform(qmp, [_REGISTERS])
            registers.write_text(str(said.reply), encoding="utf-8")


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


def _drain(connection: socket.socket) -> None:
    """Throw away what comes in: QEMU waits for a client that does not read."""
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass


def _settle(console: Path, *, quiet: float = 1.0, most: float = 15.0) -> None:
    """Wait until the console has not grown for ``quiet`` seconds."""
    limit = time.monotonic() + most
    size, since = _size(console), time.monotonic()
    while time.monotonic() < min(limit, since + quiet):
        time.sleep(_POLL)
        if (now := _size(console)) != size:
            size, since = now, time.monotonic()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
