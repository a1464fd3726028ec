# SPDX-License-Identifier: GPL-2.0-or-later
"""What breaks a world of `fakeworld`, and what is asked of it then."""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import os
import re
import resource
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakeworld import Ran, World
from kstall.base import cache
from kstall.guest import guest
from processes import bury

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS of <sched.h>
# Of <linux/capability.h>: version 3, CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_CAPABILITY_VERSION = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2

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
ROOTLESS = """
with console.open("a") as file:
    file.write("[    1.000000] Kernel panic - not syncing: VFS: Unable to mount root "
        "fs on unknown-block(254,0)\\n")
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
#: It hangs, and by then its deadline has passed; see `impatient`.
HANGS = """
(control / "hangs").touch()
signal.pause()
"""
STARVED = """
with console.open("a") as file:
    file.write("[    1.000000] Out of memory: Killed process 7 (python3) anon-rss:1\\n")
(control / "status").write_text("137\\n")
sys.exit()
"""


def mounts(world: World) -> list[str]:
    """What is mounted in a world: elsewhere, others mount as they like."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    # Its fifth word is the mount point.
    return [line for line in lines if f"{world.root}/" in f"{line.split()[4]}/"]


def settled(world: World) -> None:
    """Nothing of any run is left but what the next one uses."""
    assert world.processes() == []
    assert world.free()
    assert world.leftovers() == []
    assert mounts(world) == []


@contextlib.contextmanager
def settling(world: World) -> Iterator[World]:
    """``world``, which has to be `settled` in the end."""
    yield world
    world.prepare.clear()
    settled(world)
    bury()


def save(world: World) -> World:
    """``world``, as which `restored` has it again."""
    _copy(world.root, world.root.with_name("saved"))
    return world


def restored(world: World) -> World:
    """``world`` as it was saved, whatever other tests have done in it, in any order.

    Files that are as they were are left alone: trees are known by their inodes, too.
    """
    _copy(world.root.with_name("saved"), world.root)
    return world


def _copy(top: Path, to: Path) -> None:
    to.mkdir(exist_ok=True)
    wanted = {path.name: path for path in top.iterdir()}
    for path in to.iterdir():
        source = wanted.get(path.name)
        if source is None or not _same(source, path):
            cache.remove(path)
    for name, source in wanted.items():
        if source.is_dir() and not source.is_symlink():
            _copy(source, to / name)
        elif not (to / name).is_symlink() and not (to / name).exists():
            shutil.copy2(source, to / name, follow_symlinks=False)
    shutil.copystat(top, to)


def _same(path: Path, other: Path) -> bool:
    return _print_of(path) == _print_of(other) and (
        not path.is_file() or filecmp.cmp(path, other, shallow=False)
    )


def _print_of(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        return (status.st_mode,)
    link = path.readlink() if path.is_symlink() else None
    return (status.st_mode, status.st_size, status.st_mtime_ns, link)


def forget(world: World, *kinds: str) -> None:
    """Remove all entries of these ``kinds`` from the cache."""
    for kind in kinds:
        shutil.rmtree(world.cache / kind, ignore_errors=True)


def require_proven(ran: Ran) -> None:
    assert ran.exit_code == 0, ran.output
    assert "verdict  PROVEN" in ran.output
    assert "a bug in kstall" not in ran.output


def require_stopped(ran: Ran, stage: str, *says: str) -> None:
    """It could not run: ``stage`` says why and what to do, and is no traceback."""
    assert ran.exit_code == 2, ran.output
    assert "Traceback" not in ran.output and "a bug in kstall" not in ran.output, (
        ran.output
    )
    outcome = ran.stage(stage)
    assert outcome.status == "error"
    error = outcome.error or ""
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


class _Clock:
    """The clock of `kstall.guest`, which leaps when the guest of a thread hangs."""

    def __init__(self) -> None:
        self.here = threading.local()

    def monotonic(self) -> float:
        control = getattr(self.here, "control", None)
        leaps = control is not None and (control / "hangs").exists()
        return time.monotonic() + (10**6 if leaps else 0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def impatient() -> None:
    """A guest's deadline has passed when it `HANGS`, and not before."""
    clock = _Clock()
    wait = guest._wait

    def until_it_hangs(child: Any, desk: Any, *words: Any) -> Any:
        # Until the next guest of this thread: how long this one took is asked later.
        clock.here.control = desk.control
        return wait(child, desk, *words)

    vars(guest).update(time=clock, _wait=until_it_hangs)


def without_rights() -> None:
    """From here on, this process may do with files what their modes say, even if it is
    root's."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # Effective, permitted and inheritable, of the first 32 and of the others.
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    sets[0] &= ~_OVERRIDES
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


def little() -> None:
    """Little memory, and a minute of a processor, of which others may take a share.

    What the process has from the tests before this one is not to be counted.
    """
    status = Path("/proc/self/status").read_text()
    (had,) = re.findall(r"(?m)^VmData:\s+(\d+) kB$", status)
    most = int(had) * 1024 + 2**27
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount a small disk"
)
