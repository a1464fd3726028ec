# SPDX-License-Identifier: GPL-2.0-or-later
"""Children end with us, and what they said is kept."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstall.base import process
from processes import descendants, is_killed


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


def _alive(fifo: int, within: float) -> bool:
    """Whether somebody has a FIFO open for writing ``within`` seconds from now on."""
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        with contextlib.suppress(BlockingIOError):
            if os.read(fifo, 4096) == b"":
                return False
        time.sleep(0.01)
    return True


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[int]:
    """The reading end of ``tmp_path/fifo``; it never blocks."""
    os.mkfifo(tmp_path / "fifo")
    end = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    yield end
    os.close(end)


def test_deadline_ends_grandchildren(tmp_path: Path, fifo: int) -> None:
    script = f"exec 3>{tmp_path}/fifo; echo begun >&3; sleep 1000 & sleep 1000"
    # One that begins only after its deadline proves nothing.
    for seconds in (0.3, 3, 30, 300):
        late = rf"longer than {seconds} s\n  next: run it by itself"
        with pytest.raises(process.Deadline, match=late):
            process.run(["sh", "-c", script], timeout=seconds)
        if select.select([fifo], [], [], 0)[0] and os.read(fifo, 6) == b"begun\n":
            break
    else:
        raise AssertionError("it never began")
    assert not _alive(fifo, 60)


def test_input_larger_than_a_pipe() -> None:
    data = b"x" * (1 << 20)
    done = process.run(["cat"], input=data)
    assert len(done.stdout) == len(data)


@pytest.mark.parametrize("namespace", [False, True])
def test_input_arrives(namespace: bool) -> None:
    assert process.run(["cat"], input=b"hi", namespace=namespace).stdout == "hi"


def test_lines_arrive_as_they_are_printed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    seen = []

    def on_line(line: str) -> None:
        seen.append(line)
        if line == "a":  # It waits for that; else we would wait for each other.
            (tmp_path / "go").write_text("go on")

    script = f"echo a; cat {tmp_path}/go >/dev/null; echo b"
    process.run(["sh", "-c", script], on_line=on_line, timeout=60)
    assert seen == ["a", "b"]


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
    code = f"from kstall.base import process; process.run(['touch', {str(mark)!r}])"
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    child = os.pidfd_open(int((tmp_path / "begun").read_text()))
    parent.kill()
    parent.wait()
    (tmp_path / "go").write_text("go on")
    assert select.select([child], [], [], 60)[0]
    os.close(child)
    assert not mark.exists()


def test_sigkill_of_the_parent_leaves_nothing(tmp_path: Path, fifo: int) -> None:
    """A grandchild in a session of its own dies as well when we are killed."""
    if "--pid" not in process._namespaces():
        pytest.skip("this machine grants no PID namespace")
    script = f"setsid sh -c 'exec 3>{tmp_path}/fifo; echo begun >&3; sleep 1000' & wait"
    code = f"from kstall.base import process; process.run(['sh', '-c', {script!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    assert select.select([fifo], [], [], 60)[0], "the grandchild never ran"
    assert os.read(fifo, 6) == b"begun\n"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not _alive(fifo, 60)


def test_sigkill_of_the_parent_ends_the_group_without_a_namespace(
    tmp_path: Path, fifo: int
) -> None:
    """As what may not be in one of ours: it makes user namespaces itself."""
    if not process._namespaces():
        pytest.skip("no setpriv is installed")
    script = f"sh -c 'exec 3>{tmp_path}/fifo; echo begun >&3; sleep 1000' & wait"
    words = f"['sh', '-c', {script!r}], namespace=False"
    code = f"from kstall.base import process; process.run({words})"
    parent = subprocess.Popen([sys.executable, "-c", code])
    assert select.select([fifo], [], [], 60)[0], "the grandchild never ran"
    assert os.read(fifo, 6) == b"begun\n"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not _alive(fifo, 60)


def test_the_status_is_the_childs_without_a_namespace() -> None:
    done = process.run(["sh", "-c", "exit 37"], namespace=False, check=False)
    assert done.returncode == 37


@pytest.mark.parametrize("handled", [True, False])
def test_a_child_that_is_interrupted_as_it_starts_is_ended(
    monkeypatch: pytest.MonkeyPatch, handled: bool
) -> None:
    """Nobody knows of it yet, and without the handler nobody ever does."""
    begun: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            begun.append(self)
            os.kill(os.getpid(), signal.SIGINT)
            # Not later than here, a handler that raises has done so.
            time.sleep(0.1)

    handler = process.interrupt if handled else signal.default_int_handler
    before = signal.signal(signal.SIGINT, handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", Popen)
            with pytest.raises(KeyboardInterrupt):
                process.run(["sleep", "600"])
        (child,) = begun
        assert (child.returncode is not None) is handled
        # The next one starts as ever, and is interrupted at once.
        assert process.run(["true"]).returncode == 0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
    finally:
        signal.signal(signal.SIGINT, before)
        for child in begun:
            child.kill()
            child.wait()


def test_what_nobody_kills_would_be_seen_as_left_behind() -> None:
    """Also in a process group of its own, and while a signal waits that is no kill."""
    with subprocess.Popen(
        ["sh", "-c", "trap '' TERM; sleep 600 & echo; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"\n"
            os.kill(child.pid, signal.SIGTERM)
            pids = {child.pid, *descendants(child.pid)}
            assert len(pids) == 2
            assert [is_killed(pid) for pid in pids] == [False, False]
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert is_killed(child.pid)
