# SPDX-License-Identifier: GPL-2.0-or-later
"""What is otherwise on another architecture: the one place that says so.

Whoever builds, boots or counts asks an `Architecture` for what it needs, and does not
look at its name.  How machine code is read says `kstall.cost`, by the file's own word.
"""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass

from .errors import KstallError


@dataclass(frozen=True)
class Architecture:
    """An architecture that kernels can be built for, and guests be of.

    ``name`` is what ``--arch`` takes, ``machine`` what uname(1) says, ``kbuild`` make's
    ARCH and the directory below ``arch/``, ``debian`` what its packages are for and
    ``triplet`` what its cross tools and library directories are called.  ``loader`` is
    the dynamic loader in a root.

    ``target`` has make build ``image``, a path in the output directory.  ``qemu`` is
    the emulator, ``hardware`` what it is told of every machine, and ``parameters`` what
    every kernel is.  ``vng`` is its name for virtme-ng.  ``counter`` says whether there
    is a counter that counts the host's time under emulation, and what the kernel may be
    told of it: a parameter without its value, in kHz.

    ``packages`` are those of Debian that bring compiler and emulator.
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
    parameters: tuple[str, ...]
    counter: str | None
    packages: tuple[str, ...]

    @property
    def native(self) -> bool:
        """Whether this machine is of it."""
        return platform.machine() == self.machine

    @property
    def prefix(self) -> str:
        """What stands before the names of binutils and gcc; empty if it is native."""
        return "" if self.native else f"{self.triplet}-"

    def tool(self, name: str) -> str:
        """The program ``name`` of binutils or gcc that works for it."""
        return f"{self.prefix}{name}"

    @property
    def make(self) -> tuple[str, ...]:
        """The variables by which make builds for it; none where that goes without."""
        if self.native:
            return ()
        return (f"ARCH={self.kbuild}", f"CROSS_COMPILE={self.prefix}")

    @property
    def key(self) -> tuple[str, ...]:
        """Its part in keys of the cache: results for x86-64 are older than others, and
        have none."""
        return () if self is X86_64 else (self.name,)

    def place(self, name: str) -> str:
        """The directory of the cache that has what is called ``name`` for it."""
        return "-".join((name, *self.key))

    def require(self) -> None:
        """Raise `KstallError` if what compiles or emulates it is not here."""
        programs = {self.tool("gcc"): "compiles for", self.qemu: "emulates"}
        lacking = [name for name in programs if shutil.which(name) is None]
        if lacking:
            what = ", ".join(f"{name}, which {programs[name]} it" for name in lacking)
            raise KstallError(
                f"--arch {self.name}: no {what}",
                next=f"apt-get install {' '.join(self.packages)}, or as root: "
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
    parameters=(
        "earlycon=uart8250,io,0x3f8,115200",
        # The check counts timer ticks in a busy loop, and panics when a busy host does
        # not let an emulated CPU run in time.
        "no_timer_check",
        # Nor let two of them compare their clocks: the clocksource watchdog limits that
        # by the very clock it doubts, and on a busy host was seen to spin there for
        # minutes.
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
    # virtme-ng takes a processor of 2012 with a GICv2.  This one has atomic
    # instructions, and a counter of those that were executed.
    hardware=("-machine", "gic-version=3", "-cpu", "neoverse-n1"),
    parameters=("earlycon=pl011,0x9000000",),
    # The architected timer tells its own frequency.
    counter=None,
    packages=("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-system-arm"),
)

_KNOWN = {one.name: one for one in (X86_64, ARM64)}
NAMES = tuple(_KNOWN)


def named(name: str) -> Architecture:
    """The architecture that is called ``name``, one of `NAMES`."""
    return _KNOWN[name]


def host() -> Architecture:
    """Whatever the machine is of; x86-64 where that is none of these."""
    return next((one for one in _KNOWN.values() if one.native), X86_64)
