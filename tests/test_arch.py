# SPDX-License-Identifier: GPL-2.0-or-later
"""Another architecture: what is otherwise there, and that x86-64 stayed as it was."""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fakeworld import World
from faulty import require_stopped
from kstall.base import KstallError, arch, cache, process
from kstall.build import Toolchain, kconfig, kernel
from kstall.debian import Root, root
from kstall.guest import accel, guest
from kstall.guest.guest import Accel, GuestError, Machine
from kstall.pipeline import Request
from kstall.series import Project

X86, ARM = arch.X86_64, arch.ARM64


@pytest.fixture(autouse=True)
def on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine is that tests run on."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_a_machine_is_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (arch.host(), X86.prefix, ARM.prefix) == (X86, "", "aarch64-linux-gnu-")
    assert (X86.make, ARM.tool("gcc")) == ((), "aarch64-linux-gnu-gcc")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert (arch.host(), ARM.prefix, X86.prefix) == (ARM, "", "x86_64-linux-gnu-")
    assert (ARM.make, ARM.tool("strip")) == ((), "strip")
    # Its results are others' even where nothing is cross-compiled.
    assert ARM.place("builds") == "builds-arm64"
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert arch.host() is X86


def test_unless_it_is_said_a_request_is_for_the_machine_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    request = Request(Project(tmp_path), (), None, tmp_path, tmp_path)
    assert request.arch is ARM


def test_what_is_lacking_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    ARM.require()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(KstallError) as caught:
        ARM.require()
    assert caught.value.what == (
        "--arch arm64: no aarch64-linux-gnu-gcc, which compiles for it, "
        "qemu-system-aarch64, which emulates it"
    )
    assert "sudo apt-get install gcc-aarch64-linux-gnu" in str(caught.value.next)


def test_a_run_stops_before_it_makes_a_root_for_it(tmp_path: Path) -> None:
    world = World(tmp_path / "world", level="quick")
    which, compiler = shutil.which, ARM.tool("gcc")

    def none(name: str, *words: Any, **how: Any) -> str | None:
        return None if name == compiler else which(name, *words, **how)

    world.prepare.append(lambda: setattr(shutil, "which", none))
    ran = world.validate("--arch", "arm64")
    require_stopped(ran, "root", f"--arch arm64: no {compiler}, which compiles for it")
    assert not (world.cache / "roots").exists()


def test_setup_installs_what_the_error_names(project_root: Path) -> None:
    listing = project_root / "scripts/host-packages-arm64.txt"
    assert root.packages(listing) == ARM.packages


def test_keys_of_x86_64_are_those_of_before() -> None:
    """Computed as they were when there was no other architecture."""
    assert (X86.key, X86.place("builds")) == ((), "builds")
    left_out = (*root._LEFT_OUT, "/usr/lib/x86_64-linux-gnu/gconv/*")
    assert root.key_of(["kmod"]) == cache.digest(
        root._RECIPE, root.SUITE, ["kmod", "mount"], left_out
    )
    tools = Toolchain(("CC=gcc",), "gcc 12", "v1.30", False, ())
    assert tools.id == cache.digest("gcc 12", "v1.30")
    assert guest.kernel_parameters(Machine(append=("quiet",)), X86) == (
        *("loglevel=7", "earlycon=uart8250,io,0x3f8,115200", "no_timer_check"),
        *("tsc=reliable", "oops=panic", "nokaslr", "kunit.autorun=0", "quiet"),
    )


def test_another_has_other_keys() -> None:
    assert root.key_of(["kmod"], whose=ARM) != root.key_of(["kmod"])
    first, other = (
        Toolchain(("CC=gcc",), "gcc 12", "v1.30", False, (), whose)
        for whose in (X86, ARM)
    )
    assert first.id != other.id


def test_its_packages_are_unpacked_and_not_run(project_root: Path) -> None:
    names = root.packages_for(project_root / "scripts", ARM)
    assert {*root.packages_for(project_root / "scripts", X86)} < {*names}
    argv = root.mmdebstrap_argv(names, "http://m", Path("/k"), Path("/r.tar"), ARM)
    assert "--variant=extract" in argv
    assert "--architectures=arm64" in argv
    assert "--include=?essential" in argv
    native = root.mmdebstrap_argv(names, "http://m", Path("/k"), Path("/r.tar"))
    assert "--variant=essential" in native
    assert not [word for word in native if "arm" in word or "hook" in word]


def test_what_scripts_of_packages_would_have_made(tmp_path: Path) -> None:
    for name in ("etc", "usr/bin", "usr/sbin", "usr/share/base-passwd"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/mawk").touch()
    for name in ("passwd", "group"):
        (tmp_path / f"usr/share/base-passwd/{name}.master").write_text("root:x:0\n")
    root._configure(tmp_path)
    assert (tmp_path / "usr/bin/awk").resolve() == tmp_path / "usr/bin/mawk"
    assert (tmp_path / "etc/passwd").read_text() == "root:x:0\n"
    off = tmp_path / "usr/sbin/poweroff"
    assert off.stat().st_mode & 0o111
    assert "sysrq-trigger" in off.read_text()
    assert not (tmp_path / "usr/bin/which").is_symlink()


def test_it_powers_off_without_the_disk_that_its_programs_are_on(
    tmp_path: Path,
) -> None:
    """Power goes some time after it was asked for; init must not end before."""
    for name in ("sync", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    asked = tmp_path / "asked"
    script = tmp_path / "poweroff"
    script.write_text(root._POWER_OFF.replace("/proc/sysrq-trigger", str(asked)))
    with subprocess.Popen(["sh", script], env={"PATH": str(tmp_path)}) as init:
        try:
            while not (asked.exists() and asked.read_text() == "o\n"):
                assert init.poll() is None
                time.sleep(0.01)
            with pytest.raises(subprocess.TimeoutExpired):
                init.wait(1)
        finally:
            init.kill()


def test_its_python_is_compiled_by_one_that_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []

    def run(argv: list[object], *, env: dict[str, str], log: Path) -> None:
        calls.append(([str(word) for word in argv], env))

    monkeypatch.setattr(process, "run", run)
    for name in ("usr/lib/python3", "usr/lib/python3.13"):
        (tmp_path / name).mkdir(parents=True)
    root._compile(tmp_path, _root(X86), tmp_path / "log")
    ((argv, env),) = calls
    assert argv[0] == "/nowhere/tree/lib64/ld-linux-x86-64.so.2"
    # Times of files are others there, and nobody can write what is compiled anew.
    assert "unchecked-hash" in argv
    assert argv[-2:] == [
        str(tmp_path / name) for name in ("usr/lib/python3", "usr/lib/python3.13")
    ]
    assert env == {"PYTHONHOME": "/nowhere/tree/usr"}


def _root(whose: arch.Architecture) -> Root:
    return Root("k", Path("/nowhere"), {}, reused=True, arch=whose)


def test_its_guests_are_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "version_of", lambda _: "QEMU emulator version 10.0.2")
    accelerator = accel.probe(
        Path("/nowhere"),
        Path("/nowhere/Image"),
        _root(ARM),
        lambda _: None,
        environment={"KSTALL_ACCEL": "kvm"},
    )
    assert accelerator == Accel("tcg", "guests for arm64 are emulated on this machine")


def test_command_line(tmp_path: Path) -> None:
    (tmp_path / "desk").mkdir()
    argv = guest.vng_argv(
        Path("/k/Image"),
        _root(ARM),
        Accel("tcg", "test"),
        Machine(devices=("-x",)),
        (),
        ("true",),
        desk=guest._Desk(tmp_path / "desk"),
        console=tmp_path / "console.log",
    )
    assert "--arch=arm64" in argv
    assert "--append=earlycon=pl011,0x9000000" in argv
    assert not [word for word in argv if "tsc" in word or "8250" in word]
    (qemu,) = (word for word in argv if word.startswith("--qemu-opts="))
    # What a series asks for stands last, so that it wins.
    assert qemu.endswith("-machine gic-version=3 -cpu neoverse-n1 -x")


def test_kernel_parameters_are_counted(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match="do not fit"):
        guest._check_length(Machine(append=("x" * 1500,)), (), ["true"], ARM)


FRAGMENT = """\
CONFIG_BOTH=y
# optional: a reason
# only x86_64: a PC's
CONFIG_PC=y
CONFIG_PC_TOO=m
# only arm64: virt's
# or: CONFIG_OLD=y (before 7.0)
CONFIG_VIRT=y

CONFIG_LAST=y
"""


def _fragment(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "f.config"
    path.write_text(text)
    return path


def test_symbols_of_one_architecture(tmp_path: Path) -> None:
    path = _fragment(tmp_path, FRAGMENT)
    assert [*kconfig.combine([path])] == ["BOTH", "PC", "PC_TOO", "LAST"]
    requests = kconfig.combine([path], ARM)
    assert [*requests] == ["BOTH", "VIRT", "LAST"]
    assert requests["VIRT"].alternatives[0].values == (("OLD", "y"),)
    assert kconfig.combine([path])["PC_TOO"].need == "optional"


def test_what_both_ask_for_in_another_way_is_no_contradiction(tmp_path: Path) -> None:
    path = _fragment(
        tmp_path, "# only x86_64: a\nCONFIG_A=m\n# only arm64: b\nCONFIG_A=y\n"
    )
    assert kconfig.combine([path])["A"].value == "m"
    assert kconfig.combine([path], ARM)["A"].value == "y"


@pytest.mark.parametrize("line", ["# only mips: a", "# only arm64", "# only arm64:"])
def test_a_misspelt_architecture_is_an_error(tmp_path: Path, line: str) -> None:
    path = _fragment(tmp_path, f"{line}\nCONFIG_A=y\n")
    with pytest.raises(kconfig.KconfigError, match=r"f\.config:1: not of the form"):
        kconfig.combine([path])


def test_a_compiler_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **_: Any) -> Any:
        return type("Done", (), {"stdout": f"{argv[0]} 12\n"})

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    tools = kernel.toolchain(Path("/pahole"), tmp_path, _root(ARM))
    through = tmp_path / "cc-arm64"
    assert tools.make == (
        *("ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"),
        *(f"CC={through}", "PAHOLE=/pahole"),
    )
    assert "exec ccache aarch64-linux-gnu-gcc" in through.read_text()
    assert tools.compiler == "aarch64-linux-gnu-gcc 12"
    assert tools.libraries[1] == "-L/nowhere/tree/usr/lib/aarch64-linux-gnu"
    assert kernel.toolchain(Path("/pahole"), tmp_path).make[0].endswith("/cc")


def test_an_image_that_is_not_packed_is_its_own_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "build_id", lambda _: "ab" * 20)
    image = tmp_path / ARM.image
    image.parent.mkdir(parents=True)
    image.write_bytes(b"code" + b"\xab" * 20 + b"more")
    kernel._require_own_image(tmp_path, ARM, tmp_path / "log")
    image.write_bytes(b"code" + b"\xac" * 20 + b"more")
    with pytest.raises(KstallError, match="Image holds another kernel than vmlinux"):
        kernel._require_own_image(tmp_path, ARM, tmp_path / "log")
