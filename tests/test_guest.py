# SPDX-License-Identifier: GPL-2.0-or-later
"""Guest: the virtme-ng command line, and what becomes of real guests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstall.debian import Root
from kstall.guest import guest, hostclock, hosttime
from kstall.guest.guest import Accel, GuestError, Machine, Share

TCG = Accel("tcg", "for the test")
ROOT = Root("k", Path("/cache/roots/k"), {}, reused=True)


@pytest.fixture
def desk(tmp_path: Path) -> guest._Desk:
    (tmp_path / "desk").mkdir()
    return guest._Desk(tmp_path / "desk")


def argv(
    desk: guest._Desk,
    *,
    accel: Accel = TCG,
    machine: Machine | None = None,
    shares: tuple[Share, ...] = (),
    command: tuple[str, ...] = ("true",),
) -> tuple[str, ...]:
    return guest.vng_argv(
        Path("/cache/kernels/a b/bzImage"),
        ROOT,
        accel,
        machine or Machine(),
        shares,
        command,
        desk=desk,
        console=Path("/out/it's here/console.log"),
    )


def test_golden_command_line(
    desk: guest._Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostclock, "khz", lambda: 2596130)
    machine = Machine(
        cpus=1, memory="512M", append=("numa=fake=2",), devices=("-device", "edu")
    )
    shares = (Share("/run/kstall/modules", Path("/m x"), writable=False),)
    got = argv(desk, machine=machine, shares=shares, command=("echo", "a b"))
    assert got[0].endswith("/bin/vng")
    d = desk.path
    assert list(got[1:]) == [
        "--run",
        f"{d}/image",
        "--root-disk",
        f"{d}/root",
        "--name=kstall",
        "--user=root",
        "--force-9p",
        "--disable-microvm",
        "--cpus=1",
        "--memory=512M",
        "--disable-kvm",
        f"--rwdir=/run/kstall-control={d}/share0",
        f"--rodir=/run/kstall/modules={d}/share1",
        "--append=loglevel=7",
        "--append=earlycon=uart8250,io,0x3f8,115200",
        "--append=no_timer_check",
        "--append=tsc=reliable",
        "--append=oops=panic",
        "--append=nokaslr",
        "--append=kunit.autorun=0",
        "--append=numa=fake=2",
        "--append=tsc_early_khz=2596130",
        "--exec=sh /run/kstall-control/guest-job.sh echo 'a b'",
        f"--qemu-opts=-qmp unix:{d}/monitor,server=on,wait=off "
        "-name debug-threads=on "
        "-set chardev.console.backend=socket "
        f"-set chardev.console.path={d}/serial "
        "-set chardev.console.server=on -set chardev.console.wait=off "
        f"-set chardev.console.logfile={d}/out/console.log -device edu",
    ]
    assert (d / "share1").readlink() == Path("/m x")


def test_devices_find_their_files(desk: guest._Desk) -> None:
    link = desk.link("scripts", Path("/share of/scripts"))
    machine = Machine(devices=("-acpitable", "sig=HEST,data={scripts}/hest.dat"))
    got = guest._with_files(machine, link).devices
    assert got == ("-acpitable", f"sig=HEST,data={desk.path}/scripts/hest.dat")


def test_no_path_of_the_user_reaches_virtme_ngs_shell(desk: guest._Desk) -> None:
    shares = (Share("/run/x", Path("/home/O'Neil; rm -rf ~")),)
    line = " ".join(argv(desk, shares=shares))
    assert "O'Neil" not in line
    assert "it's here" not in line
    assert "a b" not in line


def test_steps_come_through_a_port_of_their_own(desk: guest._Desk) -> None:
    line = argv(desk, machine=guest._with_port(Machine(devices=("-device", "x")), desk))
    assert line[-1].endswith(
        "-device x "
        f"-chardev socket,id=kstall-steps,path={desk.path}/steps,server=on,wait=off "
        "-device virtio-serial-pci,id=kstall-serial "
        "-device virtserialport,bus=kstall-serial.0,chardev=kstall-steps,"
        "name=kstall.monitor"
    )


class _Child:
    """QEMU, as far as `_wait` looks at it: at each look the next thing happens."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)

    def poll(self) -> int | None:
        if not self.steps:
            return 0
        self.steps.pop(0)()
        return None

    def wait(self, timeout: float) -> int:
        return 0


@pytest.mark.fault("clock", "it is set while a guest boots")
@pytest.mark.parametrize("when", [0, 2**33])
def test_a_clock_that_is_set_does_not_tell_how_long_a_guest_took(
    desk: guest._Desk, tmp_path: Path, when: int
) -> None:
    def began() -> None:
        desk.control.mkdir()
        (desk.control / "began").touch()
        os.utime(desk.control / "began", (when, when))

    child: Any = _Child(desk.monitor.touch, began)
    remarks: list[str] = []
    times = hosttime.Watch(1, tmp_path / "console", tmp_path / "lost")
    watch = guest._wait(child, desk, time.monotonic(), 900, times, remarks.append)
    assert not watch.hung
    assert watch.first_line is not None and 0 <= watch.first_line < 600
    assert remarks == [f"booted in {watch.first_line:.1f} s"]


def test_an_old_emulator_gets_one_thread(desk: guest._Desk) -> None:
    assert "thread=single" not in " ".join(argv(desk))
    line = argv(desk, accel=Accel("tcg", "old", one_thread=True))[-1]
    assert line.endswith("-accel tcg,thread=single")


def test_kvm_is_left_on(desk: guest._Desk) -> None:
    assert "--disable-kvm" not in argv(desk, accel=Accel("kvm", "works"))


def test_a_machine_under_kvm_has_pcie_too(desk: guest._Desk) -> None:
    assert "-machine q35" in argv(desk, accel=Accel("kvm", "works"))[-1]
    # For one that is emulated virtme-ng asks itself.
    assert "q35" not in argv(desk)[-1]


def test_command_that_cannot_fit_is_refused(desk: guest._Desk) -> None:
    with pytest.raises(GuestError, match="do not fit onto the kernel's command line"):
        argv(desk, command=("echo", "x" * 800))


def test_a_qemu_that_does_not_start_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sh", "-c", "echo cannot allocate memory >&2; exit 1"]
    monkeypatch.setattr(guest, "vng_argv", lambda *_, **__: words)
    with pytest.raises(GuestError, match="QEMU did not start") as caught:
        guest.boot(
            tmp_path / "bzImage",
            ROOT,
            TCG,
            Machine(memory="3G"),
            (),
            ("true",),
            out=tmp_path / "out",
            deadline=60,
            say=print,
        )
    assert "cannot allocate memory" in caught.value.what
    assert "host has 3G of memory to spare" in str(caught.value.next)
