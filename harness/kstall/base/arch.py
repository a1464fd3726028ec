# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever depends on the architecture, in one place.

Code that builds, boots or counts asks an `Architecture` for what it needs and does not
look at its name.  Only machine code is read elsewhere, in `kstall.cost`, by what the
file's own header says.
"""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass

from .errors import KstallError


@dataclass(frozen=True)
class Architecture:
    """An architecture to build kernels for and to boot guests of.

    ``name`` is what ``--arch`` takes, ``machine`` what uname(1) prints, ``kbuild``
    make's ARCH and the directory below ``arch/``, ``debian`` the architecture of its
    packages and ``triplet`` the name of its cross tools and library directories.
    ``loader`` is the dynamic loader in a root.

    ``target`` has make build ``image``, a path in the output directory.  ``qemu`` is
    the emulator, ``hardware`` its arguments for every machine that it emulates,
    ``under_kvm`` those under KVM, and ``parameters`` the command line of every kernel.
    ``vng`` is virtme-ng's name for it.  ``counter`` is the kernel parameter, without
    its value in kHz, that gives the frequency of a counter of the host's time
    under emulation; None if there is none.

    ``packages`` are the Debian packages of compiler and emulator.
    """

    name: str
    machine: str
    kbuild: str
    debian: str
    triplet: str
    loader: str
    target: str
    image: str
    qemu: str
    vng: str
    hardware: tuple[str, ...]
    under_kvm: tuple[str, ...]
    parameters: tuple[str, ...]
    counter: str | None
    packages: tuple[str, ...]

    @property
    def native(self) -> bool:
        """Whether this machine has this architecture."""
        return platform.machine() == self.machine

    @property
    def prefix(self) -> str:
        """The prefix of the names of binutils and gcc; empty if it is native."""
        return "" if self.native else f"{self.triplet}-"

    def tool(self, name: str) -> str:
        """The program ``name`` of binutils or gcc for this architecture."""
        return f"{self.prefix}{name}"

    @property
    def make(self) -> tuple[str, ...]:
        """The variables of make for a cross build; none for a native one."""
        if self.native:
            return ()
        return (f"ARCH={self.kbuild}", f"CROSS_COMPILE={self.prefix}")

    @property
    def key(self) -> tuple[str, ...]:
        """Its part in keys of the cache; empty for x86-64, whose keys are older than
        the choice of an architecture."""
        return () if self is X86_64 else (self.name,)

    def hardware_for(self, kind: str) -> tuple[str, ...]:
        """The emulator's arguments for every machine under ``kind``, kvm or tcg."""
        return self.under_kvm if kind == "kvm" else self.hardware

    def place(self, name: str) -> str:
        """The name of the cache's directory ``name`` for this architecture."""
        return "-".join((name, *self.key))

    def require(self) -> None:
        """Raise `KstallError` if its compiler or its emulator is not installed."""
        programs = {self.tool("gcc"): "compiles for", self.qemu: "emulates"}
        missing = [name for name in programs if shutil.which(name) is None]
        if missing:
            tools = ", ".join(f"{name}, which {programs[name]} it" for name in missing)
            raise KstallError(
                f"--arch {self.name}: no {tools}",
                next=f"sudo apt-get install {' '.join(self.packages)}, or as root: "
                f"make setup ARCH={self.name}",
            )


X86_64 = Architecture(
    name="x86_64",
    machine="x86_64",
    kbuild="x86",
    debian="amd64",
    triplet="x86_64-linux-gnu",
    loader="lib64/ld-linux-x86-64.so.2",
    target="bzImage",
    image="arch/x86/boot/bzImage",
    qemu="qemu-system-x86_64",
    vng="amd64",
    hardware=(),
    # virtme-ng asks for a q35 only if it is emulated; QEMU's own default has no PCIe.
    under_kvm=("-machine", "q35"),
    parameters=(
        "earlycon=uart8250,io,0x3f8,115200",
        # The check counts timer ticks in a busy loop, and panics when a busy host does
        # not let an emulated CPU run in time.
        "no_timer_check",
        # The clocksource watchdog limits its comparison of two CPUs by the very clock
        # that it doubts, and on a busy host was seen to spin there for minutes.
        "tsc=reliable",
    ),
    counter="tsc_early_khz",
    packages=("gcc-x86-64-linux-gnu", "qemu-system-x86"),
)
ARM64 = Architecture(
    name="arm64",
    machine="aarch64",
    kbuild="arm64",
    debian="arm64",
    triplet="aarch64-linux-gnu",
    loader="lib/ld-linux-aarch64.so.1",
    target="Image",
    image="arch/arm64/boot/Image",
    qemu="qemu-system-aarch64",
    vng="arm64",
    # virtme-ng's default is a processor of 2012 with a GICv2.  This one has atomic
    # instructions, and counts the instructions that it executes.
    hardware=("-machine", "gic-version=3", "-cpu", "neoverse-n1"),
    # virtme-ng asks for the host's processor and interrupt controller.
    under_kvm=(),
    parameters=("earlycon=pl011,0x9000000",),
    # The architected timer reports its own frequency.
    counter=None,
    packages=("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-system-arm"),
)

_ARCHITECTURES = {architecture.name: architecture for architecture in (X86_64, ARM64)}
NAMES = tuple(_ARCHITECTURES)


def named(name: str) -> Architecture:
    """The architecture that is called ``name``, one of `NAMES`."""
    return _ARCHITECTURES[name]


def host() -> Architecture:
    """The machine's own architecture; x86-64 where that is none of these."""
    for architecture in _ARCHITECTURES.values():
        if architecture.native:
            return architecture
    return X86_64
