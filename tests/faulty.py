# SPDX-License-Identifier: GPL-2.0-or-later
"""What breaks a world of `fakeworld`, and what is asked of it then."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakeworld import Ran, World

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS of <sched.h>

#: What guests do after a workload; see `fakeworld.VNG`.
RUNNING = """
agent["workloads"][-1]["status"] = "running"
(results / "agent.json").write_text(json.dumps(agent))
"""
PANIC = """
with console.open("a") as file:
    file.write("[    1.000000] Kernel panic - not syncing: out of ideas\\n")
sys.exit()
"""
KILLED = """
# It is the first of its PID namespace, which no signal of its own would end.
qemu = os.fork()
if qemu == 0:
    signal.pause()
os.kill(qemu, signal.SIGKILL)
os.waitpid(qemu, 0)
sys.exit("QEMU is gone")
"""
STARVED = """
with console.open("a") as file:
    file.write("[    1.000000] Out of memory: Killed process 7 (python3) anon-rss:1\\n")
(control / "status").write_text("137\\n")
sys.exit()
"""


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def settled(world: World) -> None:
    """Nothing of any run is left but what the next one uses."""
    assert world.processes() == []
    assert world.free()
    assert world.leftovers() == []


@contextlib.contextmanager
def settling(world: World) -> Iterator[World]:
    """``world``, which has to be `settled` in the end, and nothing new mounted."""
    before = mounts()
    yield world
    world.prepare.clear()
    settled(world)
    assert mounts() == before


def forget(world: World, *kinds: str) -> None:
    """Remove all entries of these ``kinds`` from the cache."""
    for kind in kinds:
        shutil.rmtree(world.cache / kind, ignore_errors=True)


def require_proven(ran: Ran) -> None:
    assert ran.exit_code == 0, ran.said
    assert "verdict  PROVEN" in ran.said
    assert "a bug in kstall" not in ran.said


def require_stopped(ran: Ran, stage: str, *says: str) -> None:
    """It could not run: ``stage`` says why and what to do, and is no traceback."""
    assert ran.exit_code == 2, ran.said
    assert "Traceback" not in ran.said and "a bug in kstall" not in ran.said, ran.said
    found = ran.stage(stage)
    assert found.status == "error"
    error = found.error or ""
    for text in (*says, "next: "):
        assert text in error, error


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def own_mounts() -> None:
    """From here on, what this process mounts nobody else sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(_NEW_MOUNTS) == 0, os.strerror(ctypes.get_errno())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def small_disk(place: Path, size: str) -> Callable[[], None]:
    def mount() -> None:
        own_mounts()
        place.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        subprocess.run(words, check=True)

    return mount


def tiny_disk(place: Path) -> Callable[[], None]:
    """What gives a process a full disk at ``place``."""

    def mount() -> None:
        small_disk(place, "64k")()
        with (place / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    return mount


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount a small disk"
)
