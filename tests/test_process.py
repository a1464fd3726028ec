# SPDX-License-Identifier: GPL-2.0-or-later
"""Children end with us, and what they said is kept."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kstall import process


def test_output_and_log(tmp_path: Path) -> None:
    log = tmp_path / "a" / "log"
    done = process.run(["sh", "-c", "echo out; echo err >&2"], log=log)
    assert done.stdout == "out\nerr\n"
    assert log.read_text() == "$ sh -c 'echo out; echo err >&2'\nout\nerr\n"


def test_failure_names_command_and_output(tmp_path: Path) -> None:
    with pytest.raises(process.CommandError) as caught:
        process.run(["sh", "-c", "echo why; exit 3"], log=tmp_path / "log")
    assert caught.value.returncode == 3
    assert "exited 3:\nwhy" in str(caught.value)
    assert f"log: {tmp_path / 'log'}" in str(caught.value)


def test_missing_program() -> None:
    with pytest.raises(process.NotInstalled, match="no-such-program"):
        process.run(["no-such-program"])


def test_deadline_ends_grandchildren(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"(sleep 1.5; touch {mark}) & sleep 30"
    began = time.monotonic()
    with pytest.raises(process.Deadline, match=r"longer than 0\.3 s"):
        process.run(["sh", "-c", script], timeout=0.3)
    assert time.monotonic() - began < 10
    time.sleep(1.8)
    assert not mark.exists()


def test_input_larger_than_a_pipe() -> None:
    data = b"x" * (1 << 20)
    done = process.run(["cat"], input=data)
    assert len(done.stdout) == len(data)


def test_lines_arrive_as_they_are_printed() -> None:
    times: list[float] = []
    process.run(
        ["sh", "-c", "echo a; sleep 0.5; echo b"],
        on_line=lambda _: times.append(time.monotonic()),
    )
    assert times[1] - times[0] > 0.3


def test_commands_are_recorded() -> None:
    with process.recorded() as commands:
        process.run(["true"])
        process.run(["false"], check=False)
    assert [(c.argv, c.returncode) for c in commands] == [
        (("true",), 0),
        (("false",), 1),
    ]


@pytest.mark.fault("killed", "between two steps of starting a program")
def test_sigkill_while_a_child_starts_leaves_nothing(tmp_path: Path) -> None:
    """The child asks to die with its parent when that is dead already."""
    real = shutil.which("setpriv")
    if real is None:
        pytest.skip("no setpriv is installed")
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "setpriv").write_text(
        f'#!/bin/sh\ncase "$*" in *mark*) echo $$ >{tmp_path}/begun\n'
        f'cat {tmp_path}/go ;; esac\nexec {real} "$@"\n'
    )
    (tmp_path / "setpriv").chmod(0o755)
    mark = tmp_path / "mark"
    code = f"from kstall import process; process.run(['touch', {str(mark)!r}])"
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    child = os.pidfd_open(int((tmp_path / "begun").read_text()))
    parent.kill()
    parent.wait()
    (tmp_path / "go").write_text("go on")
    assert select.select([child], [], [], 20)[0]
    os.close(child)
    assert not mark.exists()


def test_sigkill_of_the_parent_leaves_nothing(tmp_path: Path) -> None:
    """A grandchild in a session of its own dies as well when we are killed."""
    if "--pid" not in process._namespaces():
        pytest.skip("this machine grants no PID namespace")
    pidfile = tmp_path / "alive"
    script = f"setsid sh -c 'while :; do date +%s%N >{pidfile}; sleep 0.1; done' & wait"
    code = f"from kstall import process; process.run(['sh', '-c', {script!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while not pidfile.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pidfile.exists(), "the grandchild never ran"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    time.sleep(0.5)
    before = pidfile.read_text()
    time.sleep(0.5)
    assert pidfile.read_text() == before
