# SPDX-License-Identifier: GPL-2.0-or-later
"""Guest: what becomes of real ones, and that none outlives us.

The `kernel_image` and `guest_root` fixtures give what is booted; a kernel cannot be
built in a test's time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kstall.base import arch
from kstall.debian import Root
from kstall.guest import guest, guestrun
from kstall.guest.guest import Accel, GuestRun, Machine, Share
from kstall.series import Project
from processes import descendants

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[1]
BOOT_ONCE = ROOT / "tests/boot_once.py"


@dataclass(frozen=True)
class Bench:
    """What is booted, and where all that comes of it goes."""

    image: Path
    root: Root
    out: Path
    desks: Path

    @property
    def share(self) -> Path:
        return self.out / "share"

    def boot(self, *command: str, deadline: float = 120.0) -> GuestRun:
        run = guest.boot(
            self.image,
            self.root,
            Accel("tcg", "for the test"),
            Machine(),
            (Share("/run/share", self.share, writable=True),),
            command,
            out=self.out / "out",
            deadline=deadline,
            say=lambda _: None,
        )
        if run.status != "completed":
            # For a test that did not expect it: the files are soon deleted.
            for name in ("guest.log", "console.log", "job.log"):
                with contextlib.suppress(FileNotFoundError):
                    text = (self.out / "out" / name).read_text(errors="replace")
                    print(f"== {name}", *text.splitlines()[-20:], sep="\n")
        return run

    def qemus(self) -> list[int]:
        """The process ids of the guests that have their sockets on our desks."""
        pids = []
        for number in descendants():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{number}/cmdline").read_bytes()
                if b"qemu" in line.split(b"\0")[0] and bytes(self.desks) in line:
                    pids.append(number)
        return pids

    def await_job(self, file: Path, runs: Callable[[], bool]) -> None:
        """Wait for ``file``, which the job makes, for as long as the guest ``runs``."""
        while not file.exists():
            assert runs(), "the guest's job did not begin"
            time.sleep(0.1)


def spent(run: GuestRun) -> float:
    """Seconds that the guest had, however busy the host is."""
    return run.seconds - run.lost


@pytest.fixture
def bench(
    kernel_image: Path,
    guest_root: Root,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp") as desks:
        monkeypatch.setattr(tempfile, "tempdir", desks)
        bench = Bench(kernel_image, guest_root, tmp_path / "with space", Path(desks))
        bench.share.mkdir(parents=True)
        yield bench
        assert bench.qemus() == [], "a guest was left behind"


def test_command_completes(bench: Bench) -> None:
    run = bench.boot("sh", "-c", "uname -r > /run/share/release; echo printed")
    assert (run.status, run.exit_status) == ("completed", 0)
    assert run.splats == ()
    assert (bench.share / "release").read_text().strip()
    assert "Linux version" in run.console.read_text()
    assert run.first_line_seconds is not None
    assert 0.5 < run.first_line_seconds < run.seconds
    assert (bench.out / "out/job.log").read_text() == "printed\n"
    assert list(bench.desks.iterdir()) == []


def test_exit_status_is_passed_on(bench: Bench) -> None:
    run = bench.boot("sh", "-c", "exit 37")
    assert (run.status, run.exit_status) == ("completed", 37)


def test_tmp_takes_files_without_a_name(bench: Bench) -> None:
    program = "import os; os.open('/tmp', os.O_TMPFILE | os.O_RDWR)"
    run = bench.boot("python3", "-c", program)
    assert (run.status, run.exit_status) == ("completed", 0)


@pytest.mark.fault("guest panics", "a real kernel")
def test_panic_ends_the_guest_at_once(bench: Bench) -> None:
    run = bench.boot("sh", "-c", "echo c > /proc/sysrq-trigger; sleep 600")
    assert (run.status, run.exit_status) == ("panic", None)
    assert spent(run) < 120
    assert [splat.kind for splat in run.splats] == ["panic"]
    assert "sysrq triggered crash" in run.splats[0].headline


@pytest.mark.fault("guest hangs", "a real kernel")
def test_hang_is_ended_after_a_dump(bench: Bench) -> None:
    run = bench.boot("sleep", "1000", deadline=30.0)
    assert (run.status, run.exit_status) == ("hang", None)
    assert spent(run) < 90
    text = run.console.read_text()
    assert "sysrq: Show Blocked State" in text
    assert "sysrq: Show backtrace of all active CPUs" in text
    assert "sysrq: Show State" in text
    assert "task:sleep" in text
    assert not (bench.out / "out/registers.txt").exists()


@pytest.mark.fault("QEMU killed", "a real one")
def test_killed_qemu_is_lost(bench: Bench) -> None:
    over = threading.Event()

    def kill() -> None:
        bench.await_job(bench.share / "up", lambda: not over.is_set())
        for pid in bench.qemus():
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run = bench.boot("sh", "-c", "touch /run/share/up; sleep 1000")
    finally:
        over.set()
    killer.join()
    assert (run.status, run.exit_status) == ("lost", None)
    assert spent(run) < 60


@pytest.mark.fault("killed", "while a real guest runs")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_guest_outlives_us(bench: Bench, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, BOOT_ONCE, bench.image, bench.root.path, bench.share],
        env={**os.environ, "TMPDIR": str(bench.desks)},
        stderr=subprocess.DEVNULL,
    )
    bench.await_job(bench.share / "up", lambda: parent.poll() is None)
    assert len(bench.qemus()) == 1
    parent.send_signal(number)
    # Its job sleeps for longer than that.
    parent.wait(60)
    limit = time.monotonic() + 60
    while bench.qemus() and time.monotonic() < limit:
        time.sleep(0.1)
    assert bench.qemus() == []
    if number is signal.SIGINT:
        assert list(bench.desks.iterdir()) == []


@pytest.mark.parametrize("name", Project(ROOT).names())
def test_a_machine_under_kvm_takes_each_series_devices(name: str) -> None:
    """Under KVM virtme-ng names no machine; emulated ones are booted elsewhere."""
    architecture = arch.X86_64
    if shutil.which(architecture.qemu) is None:
        pytest.skip(f"no {architecture.qemu} is installed")
    (series,) = Project(ROOT).load([name])
    machine = guest._with_files(guestrun.machine_for(series), ROOT / "scripts")
    ended = subprocess.run(
        [
            *(architecture.qemu, "-accel", "tcg", "-display", "none", "-S"),
            *("-monitor", "stdio", *architecture.hardware_for("kvm")),
            *machine.devices,
        ],
        input="quit\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
