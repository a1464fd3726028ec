# SPDX-License-Identifier: GPL-2.0-or-later
"""Monitor: steps that a guest asks for, against a QMP server that is not QEMU."""

from __future__ import annotations

import json
import os
import pty
import socket
import tempfile
import threading
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_qmp import fake_qemu
from kstall.evidence import records
from kstall.guest import monitor
from kstall.guest.monitor import MonitorError, MonitorStep, QemuCommand
from kstall_guest import monitor as guest_side
from kstall_guest import workload
from kstall_guest.errors import StepFailed

OK = "OK id: ep0 root bus: pcie.0, bus: 3 devfn: 0.0"
ERROR = "pcie_aer_inject_error ep0 0x1"
INJECT = QemuCommand(ERROR, human=True, reply="OK id: ep0 .*")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose sockets have names short enough for the kernel."""
    with tempfile.TemporaryDirectory(prefix="km-", dir="/tmp") as name:
        yield Path(name)


def test_commands_of_both_kinds_are_answered_in_order(place: Path) -> None:
    status = {"status": "running"}
    with fake_qemu(
        place / "qmp", replies={ERROR: f"{OK}\r\n", "query-status": status}
    ) as qemu:
        commands = [
            QemuCommand("stop"),
            INJECT,
            QemuCommand("query-status"),
            QemuCommand("info pci", human=True),
        ]
        qemu.replies["info pci"] = ""
        answers = monitor.perform(qemu.path, commands)
        # A second client after the first, as for a look at a hung guest.
        monitor.perform(qemu.path, [QemuCommand("cont")])
    assert [answer.reply for answer in answers] == [{}, OK, status, ""]
    assert [answer.error for answer in answers] == [None] * 4
    assert qemu.commands == ["stop", ERROR, "query-status", "info pci", "cont"]


def test_what_fails_is_named_and_the_rest_is_done(place: Path) -> None:
    replies = {ERROR: "error: device not found\r\n", "nmi": RuntimeError("no NMI")}
    with fake_qemu(place / "qmp", replies=replies) as qemu:
        answers = monitor.perform(
            qemu.path,
            [QemuCommand("stop"), INJECT, QemuCommand("nmi"), QemuCommand("cont")],
        )
    assert answers[1].error == (
        "it printed 'error: device not found', not 'OK id: ep0 .*'"
    )
    assert answers[2].error == "no NMI"
    assert qemu.commands[-1] == "cont"


def test_words_from_a_command_that_has_none_are_an_error(place: Path) -> None:
    with fake_qemu(place / "qmp", replies={"x": "unknown command: 'x'\r\n"}) as qemu:
        (answer,) = monitor.perform(qemu.path, [QemuCommand("x", human=True)])
    assert answer.error is not None


def test_a_monitor_that_does_not_answer_is_given_up(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "DEADLINE", 0.2)
    with (
        fake_qemu(place / "qmp", silent=frozenset({"stop"})) as qemu,
        pytest.raises(MonitorError, match=r"did not answer within 0\.2 s"),
    ):
        monitor.perform(qemu.path, [QemuCommand("stop")])


def test_a_monitor_that_is_gone_is_named(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MonitorError, match="QEMU's monitor: "):
        monitor.perform(place / "none", [QemuCommand("stop")])
    with (
        fake_qemu(place / "qmp", deadly=frozenset({"stop"})) as qemu,
        pytest.raises(MonitorError, match="QEMU's monitor: "),
    ):
        monitor.perform(qemu.path, [QemuCommand("stop")])
    assert capfd.readouterr().err == "", "qemu.qmp has its own idea of logging"


class Port:
    """QEMU's end of the guest's port: text written here comes from the guest."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))

    def accept(self) -> None:
        self.listener.listen()
        self.connection, _ = self.listener.accept()
        self.stream = self.connection.makefile("rwb")

    def ask(self, request: Any) -> dict[str, Any]:
        text = request if isinstance(request, bytes) else json.dumps(request).encode()
        self.stream.write(text + b"\n")
        self.stream.flush()
        answer: dict[str, Any] = json.loads(self.stream.readline())
        return answer

    def close(self) -> None:
        self.stream.close()
        self.connection.close()
        self.listener.close()


def test_a_guest_asks_and_what_was_done_is_kept(place: Path) -> None:
    steps = [
        MonitorStep("merge", "hit", (INJECT,)),
        MonitorStep("merge", "miss", (QemuCommand("nmi"),)),
    ]
    replies = {ERROR: OK, "nmi": RuntimeError("no NMI")}
    with fake_qemu(place / "qmp", replies=replies) as qemu:
        with monitor.answering(place / "port", qemu.path, steps) as done:
            port = Port(place / "port")
            port.accept()
            request = {"id": "7-1", "workload": "merge"}
            assert port.ask({**request, "step": "hit"}) == {
                "id": "7-1",
                "error": None,
                "replies": [OK],
            }
            assert port.ask({**request, "step": "miss"})["error"] == "nmi: no NMI"
            assert port.ask({**request, "step": "none"})["error"] == (
                "workload merge declares no step none"
            )
            assert "not a request" in port.ask(b"\xff{}")["error"]
            assert "not a request" in port.ask([1])["error"]
            port.close()
        assert qemu.commands == [ERROR, "nmi"]
    text = json.dumps([step.as_json() for step in done])
    hit, miss, none = records.injected(text)
    assert (hit.step, hit.error, hit.answers) == ("hit", None, ((ERROR, OK, None),))
    assert (miss.step, miss.error) == ("miss", "nmi: no NMI")
    assert (none.step, none.answers) == ("none", ())
    assert 0 <= done[0].at <= done[1].at
    assert done[0].seconds > 0


def test_a_port_is_there_before_anybody_listens(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU may lose the processor between the two."""
    refused = threading.Event()
    connects = monitor._connects

    def tried(connection: socket.socket, path: Path) -> bool:
        connected = connects(connection, path)
        refused.set()
        return connected

    monkeypatch.setattr(monitor, "_connects", tried)
    port = Port(place / "port")
    with monitor.answering(
        place / "port", place / "qmp", [MonitorStep("merge", "hit", ())]
    ):
        assert refused.wait(60)
        port.accept()
        request = {"id": "7-1", "workload": "merge", "step": "none"}
        assert "declares no step none" in port.ask(request)["error"]
        port.close()


def test_a_guest_that_never_comes_keeps_nobody(place: Path) -> None:
    # Threads of other tests may end meanwhile.
    before = {*threading.enumerate()}
    with monitor.answering(
        place / "port", place / "qmp", [MonitorStep("a", "b", ())]
    ) as done:
        assert len({*threading.enumerate()} - before) == 1
    with monitor.answering(place / "port", place / "qmp", []):
        assert {*threading.enumerate()} <= before
    assert {*threading.enumerate()} <= before
    assert done == []


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The host's end of the guest's port."""
    host, guest = pty.openpty()
    tty.setraw(guest)
    # O_NOCTTY: a session without a terminal would make it its controlling terminal, and
    # get SIGHUP when it is closed; the real port is no terminal.
    plain = os.open
    monkeypatch.setattr(os, "open", lambda path, how: plain(path, how | os.O_NOCTTY))
    monkeypatch.setattr(guest_side, "_device", lambda: Path(os.ttyname(guest)))
    monkeypatch.setenv(workload._MARK, "merge-42")
    yield host
    os.close(host)
    os.close(guest)


def _host(line: int, *answers: dict[str, Any]) -> threading.Thread:
    """Read one request, then send ``answers``; "id" None stands for the request's."""

    def speak() -> None:
        request = json.loads(os.read(line, 4096))
        assert (request["workload"], request["step"]) == ("merge", "hit")
        for answer in answers:
            answer.setdefault("id", request["id"])
            os.write(line, json.dumps(answer).encode() + b"\n")

    thread = threading.Thread(target=speak)
    thread.start()
    return thread


def test_the_program_gets_the_answer_to_its_own_request(line: int) -> None:
    late = {"id": "1-1", "error": None, "replies": ["of another"]}
    host = _host(line, late, {"error": None, "replies": [OK]})
    assert guest_side.ask("hit") == [OK]
    host.join()


def test_the_program_gets_the_error(line: int) -> None:
    host = _host(line, {"error": "nmi: no NMI", "replies": [None]})
    with pytest.raises(StepFailed, match="step hit: nmi: no NMI"):
        guest_side.ask("hit")
    host.join()


def test_the_program_does_not_wait_for_ever(line: int) -> None:
    with pytest.raises(StepFailed, match="step hit: no answer in time"):
        guest_side.ask("hit", deadline_s=0.1)


def test_a_guest_without_a_port_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_side, "_PORTS", Path("/nowhere"))
    with pytest.raises(StepFailed, match="no workload of this guest declares steps"):
        guest_side.ask("hit")


def test_both_sides_mean_the_same_port() -> None:
    assert guest_side._PORT == monitor.PORT
