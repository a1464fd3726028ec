# SPDX-License-Identifier: GPL-2.0-or-later
"""The host is busy as long as it should be, and not a moment longer."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kstall.base import KstallError
from kstall.pipeline import hostload

# Stands in for stress-ng; while it or anything of it lives, the FIFO is open.
_FAKE = """#!/bin/sh
exec 7>"$KSTALL_TEST_FIFO"
echo "$@" >>"$KSTALL_TEST_CALLS"
echo "stress-ng: info: dispatching hogs: 1 cpu"
sleep 1000 &
{then}
sleep 1000
"""


class Fake:
    """A stress-ng of ours, first on PATH."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.calls = place / "calls"
        fifo = place / "fifo"
        os.mkfifo(fifo)
        # Open before anybody writes: the end of file is then the end of all writers.
        self.fifo = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        monkeypatch.setenv("KSTALL_TEST_FIFO", str(fifo))
        monkeypatch.setenv("KSTALL_TEST_CALLS", str(self.calls))
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        self.install("")

    def install(self, then: str) -> None:
        """Have it do ``then`` after it has started its worker."""
        program = self.place / hostload.PROGRAM
        program.write_text(_FAKE.format(then=then))
        program.chmod(0o755)

    def gone(self) -> bool:
        """Whether each process of it ends, if not at once."""
        poll = select.poll()
        poll.register(self.fifo, select.POLLIN)
        limit = time.monotonic() + 300
        while time.monotonic() < limit:
            for _, events in poll.poll(100):
                if events & select.POLLHUP:
                    return True
        return False


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("times", "processors", "kinds"),
    [
        (4, 2, {"cpu": 4, "vm": 2, "hdd": 2}),
        (2, 2, {"cpu": 2, "vm": 1, "hdd": 1}),
        (2, 16, {"cpu": 16, "vm": 8, "hdd": 8}),
        (1, 1, {"cpu": 1, "vm": 1, "hdd": 1}),
    ],
)
def test_workers_of_each_kind(
    tmp_path: Path, times: int, processors: int, kinds: dict[str, int]
) -> None:
    commands = hostload.commands(times, processors, tmp_path)
    told = [command[1].removeprefix("--") for command in commands]
    assert {kind: told.count(kind) for kind in kinds} == kinds
    assert len(told) == sum(kinds.values())
    places = {command[command.index("--temp-path") + 1] for command in commands}
    assert len(places) == len(commands)


def test_it_ends_with_the_block(fake: Fake) -> None:
    remarks: list[str] = []
    with hostload.put(2, remarks.append) as required:
        required()
        assert len(fake.calls.read_text().splitlines()) == 4
    assert fake.gone()
    assert remarks == ["the host is busy: 4 workers on 2 processors"]


def test_it_ends_with_ctrl_c(fake: Fake) -> None:
    with pytest.raises(KeyboardInterrupt), hostload.put(2, print):
        raise KeyboardInterrupt
    assert fake.gone()


def test_it_ends_with_a_run_that_is_killed(fake: Fake) -> None:
    text = (
        "import os, time; from kstall.pipeline import hostload\n"
        "os.sched_getaffinity = lambda _: {0, 1}\n"
        "with hostload.put(2, lambda _: print('up', flush=True)):\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        run.send_signal(signal.SIGKILL)
    assert fake.gone()


def test_load_that_went_away_is_no_load(fake: Fake) -> None:
    fake.install("kill $!; echo out of memory; exit 3")
    died = r"ended by itself, exit status 3:\n(.*\n)*out of memory"
    with (
        pytest.raises(KstallError, match=died),
        hostload.put(2, print) as required,
    ):
        while True:
            required()
            time.sleep(0.01)
    assert fake.gone()


def test_load_that_does_not_begin_is_no_load(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostload, "_STARTED", b"never said")
    monkeypatch.setattr(hostload, "_STARTED_S", 0.1)
    late = r"did not begin in 0\.1 s\n  next: see whether"
    with (
        pytest.raises(KstallError, match=late),
        hostload.put(2, print),
    ):
        pass


def test_none_is_none(fake: Fake) -> None:
    with hostload.put(0, print) as required:
        required()
    assert not fake.calls.exists()


def test_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(KstallError, match="sudo apt-get install stress-ng"),
        hostload.put(2, print),
    ):
        pass
