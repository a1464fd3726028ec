# SPDX-License-Identifier: GPL-2.0-or-later
"""Accelerator: what overrides the probe, what ends it early, what is remembered."""

from __future__ import annotations

import grp
import json
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import KstallError
from kstall.debian import Root
from kstall.guest import accel
from kstall.guest.guest import Accel, GuestRun

ROOT = Root("k", Path("/nowhere"), {}, reused=True)
IMAGE = Path("/nowhere/bzImage")
MSR = "qemu-system-x86_64: error: failed to set MSR 0x10a to 0xc000069"
ASSERTION = "qemu-system-x86_64: target/i386/kvm/kvm.c:3849: Assertion failed."


class Guest:
    """Stands in for `boot`: ends as told, and counts."""

    def __init__(
        self,
        status: Any,
        exit_status: int | None,
        printed: str = "$ vng --qemu-opts=kvm\n",
        messages: str = "[    1.000000] Linux\n",
    ) -> None:
        self.status = status
        self.exit_status = exit_status
        self.printed = printed
        self.messages = messages
        self.runs = 0

    def boot(self, *args: Any, out: Path, **_: Any) -> GuestRun:
        self.runs += 1
        assert args[2] == Accel("kvm", "on trial")
        out.mkdir(parents=True, exist_ok=True)
        (out / "guest.log").write_text(self.printed)
        console = out / "console.log"
        console.write_text(self.messages)
        return GuestRun(self.status, self.exit_status, console, 1.0, None, (), ())


def probe(tmp_path: Path, **environment: str) -> Accel:
    device = tmp_path / "kvm"
    return accel.probe(
        tmp_path / "cache",
        IMAGE,
        ROOT,
        lambda _: None,
        environment=environment,
        device=device,
    )


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "kvm"
    path.touch()
    return path


def test_a_device_of_somebody_else_says_who_may(
    tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = grp.getgrall()[-1]
    status = SimpleNamespace(st_gid=group.gr_gid, st_mode=0o20660)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(accel, "version_of", lambda *_: "QEMU emulator version 10.0.2")
    assert probe(tmp_path).why == f"{device} cannot be opened"
    monkeypatch.setattr(Path, "stat", lambda _: status)
    user = pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert probe(tmp_path).why == (
        f"{device} cannot be opened (`sudo usermod -aG {group.gr_name} {user}`, "
        "and a new login, changes that)"
    )


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "machine_key", lambda *_: "this-machine")
    monkeypatch.setattr(
        accel, "version_of", lambda *_: "QEMU emulator version 10.0.2 (x)"
    )


@pytest.mark.parametrize(
    ("version", "one_thread"),
    [("7.2.18 (Debian 1:7.2+dfsg-7)", True), ("8.0.0", True), ("8.1.0", False)],
)
def test_an_old_emulator_runs_in_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, one_thread: bool
) -> None:
    monkeypatch.setattr(
        accel, "version_of", lambda *_: f"QEMU emulator version {version}"
    )
    accelerator = probe(tmp_path, KSTALL_ACCEL="tcg")
    assert accelerator.one_thread is one_thread
    assert ("in one thread" in accelerator.why) is one_thread


@pytest.mark.parametrize("kind", ["kvm", "tcg"])
def test_environment_overrides(tmp_path: Path, kind: str) -> None:
    assert probe(tmp_path, KSTALL_ACCEL=kind).kind == kind
    assert not (tmp_path / "cache").exists()


def test_nonsense_in_the_environment_is_an_error(tmp_path: Path) -> None:
    wrong = "KSTALL_ACCEL=hvf: neither kvm nor tcg\n  next: set it to one of these"
    with pytest.raises(KstallError, match=wrong):
        probe(tmp_path, KSTALL_ACCEL="hvf")


def test_without_device_no_guest_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = Guest("completed", 0)
    monkeypatch.setattr(accel, "boot", guest.boot)
    assert probe(tmp_path).kind == "tcg"
    assert guest.runs == 0


def test_working_guest_means_kvm_and_is_remembered(
    tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = Guest("completed", 0)
    monkeypatch.setattr(accel, "boot", guest.boot)
    assert probe(tmp_path).kind == "kvm"
    assert probe(tmp_path).kind == "kvm"
    assert guest.runs == 1


@pytest.mark.parametrize(
    ("guest", "why", "runs"),
    [
        (
            Guest("lost", None, f"$ vng\n{MSR}\n{ASSERTION}\n"),
            f"QEMU exits under KVM ({MSR})",
            1,
        ),
        (Guest("lost", None), "QEMU exits under KVM", 2),
        (
            Guest("hang", None, messages=""),
            "a guest under KVM did not finish in 20 s",
            1,
        ),
        (Guest("hang", None), "a guest under KVM did not finish in 20 s", 2),
        (Guest("panic", None), "a guest's kernel panics under KVM", 2),
        (Guest("completed", 139), "`true` exited 139 in a guest under KVM", 2),
    ],
)
def test_failing_guest_means_tcg(
    tmp_path: Path,
    device: Path,
    monkeypatch: pytest.MonkeyPatch,
    guest: Guest,
    why: str,
    runs: int,
) -> None:
    """It is tried again if its kernel may be to blame, which can be a patched one."""
    monkeypatch.setattr(accel, "boot", guest.boot)
    assert probe(tmp_path) == Accel("tcg", why)
    assert probe(tmp_path) == Accel("tcg", why)
    assert guest.runs == runs


def test_another_machine_is_tried_anew(
    tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = Guest("completed", 0)
    monkeypatch.setattr(accel, "boot", guest.boot)
    probe(tmp_path)
    monkeypatch.setattr(accel, "machine_key", lambda *_: "after an upgrade")
    probe(tmp_path)
    assert guest.runs == 2
    assert len(json.loads((tmp_path / "cache/accel.json").read_text())) == 2


@pytest.mark.fault("truncated", "what is remembered of the accelerator")
@pytest.mark.fault("corrupted", "what is remembered of the accelerator")
@pytest.mark.parametrize(
    "text", [b"{", b"", b"\xff\0", b"[]", b'{"this-machine": 1}', bytes(40)]
)
def test_broken_memory_is_made_anew(
    tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/accel.json").write_bytes(text)
    guest = Guest("completed", 0)
    monkeypatch.setattr(accel, "boot", guest.boot)
    assert probe(tmp_path).kind == "kvm"
