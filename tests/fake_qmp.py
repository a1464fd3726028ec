# SPDX-License-Identifier: GPL-2.0-or-later
"""Stands in for QEMU's QMP server: its greeting, its negotiation, its replies."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_GREETING = {
    "QMP": {
        "version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""},
        "capabilities": [],
    }
}


@dataclass
class FakeQemu:
    """``commands`` are the commands received, in order; ``replies`` are the answers to
    them: a value, or an exception, which becomes an error.  A command in ``silent`` is
    never answered, and a command in ``deadly`` closes the connection."""

    path: Path
    replies: dict[str, Any] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    deadly: frozenset[str] = frozenset()
    commands: list[str] = field(default_factory=list)

    def serve(self, connection: socket.socket) -> None:
        """Answer one client until either side hangs up."""
        with connection:
            self._send(connection, _GREETING)
            for request in _requests(connection):
                # The library numbers all requests except the negotiation.
                same = {"id": request["id"]} if "id" in request else {}
                name = request["execute"]
                if name == "qmp_capabilities":
                    self._send(connection, {"return": {}, **same})
                    continue
                if name == "human-monitor-command":
                    name = request["arguments"]["command-line"]
                self.commands.append(name)
                if name in self.deadly:
                    return
                if name in self.silent:
                    continue
                reply = self.replies.get(name, {})
                answer = (
                    {"error": {"class": "GenericError", "desc": str(reply)}}
                    if isinstance(reply, Exception)
                    else {"return": reply}
                )
                self._send(connection, {**answer, **same})

    def _send(self, connection: socket.socket, message: dict[str, Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\r\n")


def _requests(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """JSON objects in sequence, with or without separators."""
    pending = ""
    decoder = json.JSONDecoder()
    while chunk := connection.recv(65536):
        pending += chunk.decode()
        while pending := pending.lstrip():
            try:
                request, end = decoder.raw_decode(pending)
            except ValueError:
                break
            yield request
            pending = pending[end:]


@contextmanager
def fake_qemu(path: Path, **facts: Any) -> Iterator[FakeQemu]:
    """A monitor at ``path`` that serves one client at a time."""
    qemu = FakeQemu(path, **facts)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    qemu.serve(connection)
                except OSError:
                    continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield qemu
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
