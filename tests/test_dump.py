# SPDX-License-Identifier: GPL-2.0-or-later
"""What a hung guest is asked, however slowly it answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kstall.guest import dump

SAYS = {
    "w": "sysrq: Show Blocked State\ntask:sleep\n",
    "l": "sysrq: Show backtrace of all active CPUs\n",
    "t": "sysrq: Show State\n",
}


class Guest:
    """A serial console that answers each of ``keys`` after ``delay`` seconds."""

    def __init__(self, place: Path, delay: float = 0.0, keys: str = "wlt") -> None:
        self.serial = place / "serial"
        self.console = place / "console"
        self.registers = place / "registers"
        self.console.write_text("it began\n")
        self._delay, self._keys = delay, keys
        # How many seconds of the host it takes for one that it has itself.
        self.slowness = 1.0
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.serial))
        self._server.listen()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection, _ = self._server.accept()
        with contextlib.closing(connection), contextlib.closing(self._server):
            while key := connection.recv(1).decode():
                if key not in self._keys:
                    # Nobody need wait long for the answer that does not come.
                    self.slowness = 0.001
                    continue
                time.sleep(self._delay)
                with self.console.open("a") as file:
                    file.write(SAYS[key])

    def asked(self) -> str:
        """What stands on the console after the dump."""
        dump.tasks(
            self.serial,
            Path("qmp"),
            self.console,
            self.registers,
            spent=lambda: time.monotonic() / self.slowness,
        )
        self._thread.join()
        return self.console.read_text()


@pytest.fixture(autouse=True)
def monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reply:
        reply = "RIP=0"

    def perform(_: Path, __: Any) -> tuple[Reply]:
        return (Reply(),)

    monkeypatch.setattr(dump.monitor, "perform", perform)
    # This host may be slow as well.
    monkeypatch.setattr(dump, "_BEGIN", 60.0)
    monkeypatch.setattr(dump, "_QUIET", 0.1)


def test_a_guest_is_asked_everything(tmp_path: Path) -> None:
    guest = Guest(tmp_path)
    assert guest.asked() == "it began\n" + "".join(SAYS.values())
    assert not guest.registers.exists()


def test_so_is_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For half a second that it has the host takes a minute, if it may."""
    monkeypatch.setattr(dump, "_BEGIN", 0.5)
    monkeypatch.setattr(dump, "_QUIET", 0.001)
    monkeypatch.setattr(dump, "_PATIENCE", 1000)
    guest = Guest(tmp_path, delay=0.8)
    guest.slowness = 120.0
    assert guest.asked() == "it began\n" + "".join(SAYS.values())
    assert not guest.registers.exists()


def test_of_one_that_says_nothing_registers_are_kept(tmp_path: Path) -> None:
    guest = Guest(tmp_path, keys="")
    assert guest.asked() == "it began\n"
    assert guest.registers.read_text() == "RIP=0"


def test_one_that_stops_answering_is_not_asked_for_ever(tmp_path: Path) -> None:
    guest = Guest(tmp_path, keys="w")
    assert guest.asked() == "it began\n" + SAYS["w"]
    assert not guest.registers.exists()
