# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a kernel tree may run code on the machine that proves a stranger's series."""

from __future__ import annotations

from pathlib import Path

import pytest

import kerneltree
from kstall.mail import hostcode
from kstall.series import Level
from kstall.tree import Base

FILES = {
    "Makefile": "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\n"
    "KBUILD_HOSTCFLAGS := -Wall \\\n\t-I $(srctree)/scripts/include\n",
    "lib/crc/Makefile": "obj-y += crc32.o\n"
    "hostprogs := gen_crc32table \\\n\tgen_crc64\n"
    "gen_crc64-objs := first.o second.o\ncrc32-objs := kernel.o\n",
    "lib/crc/gen_crc32table.c": "#include <stdio.h>\n"
    ' #  include "../../include/linux/crc32poly.h"\n',
    "lib/crc/second.c": "int x;\n",
    "lib/crc/crc32.c": "#include <linux/crc32.h>\n",
    "include/linux/crc32poly.h": "#include <poly.h>\n",
    "scripts/include/poly.h": '#include "../../kernel/deeper.h"\n',
    "arch/x86/boot/Makefile": "hostprogs\t+= mkcpustr\n"
    "HOST_EXTRACFLAGS += -I$(srctree)/tools/include -I$(srctree)/include/uapi\n",
    "arch/x86/boot/mkcpustr.c": '#include "../include/asm/cpufeatures.h"\n'
    "#include <linux/types.h>\n",
    "drivers/gpu/Kbuild": "hostprogs-always-$(CONFIG_GPU) := ../mkregs\n",
    "drivers/own/Makefile": "mk: mk.c\n\t$(HOSTCC) -o $@ $<\n",
    "drivers/own/mk.c": '#include "../queue.h"\n',
    "Documentation/core-api/crc.rst": "CRC\n===\n\n.. kernel-doc:: lib/crc/crc32.c\n"
    "   :export:\n",
}
RISKY = (
    # Scripts that builds call, wherever they are.
    *("arch/x86/kernel/cpu/mkcapflags.sh", "kernel/gen_kheaders.sh"),
    *("lib/crypto/x86/poly1305-x86_64-cryptogams.pl", "lib/build_OID_registry"),
    *("kernel/time/timeconst.bc", "lib/raid/raid6/unroll.awk"),
    *("Documentation/conf.py", "Documentation/sphinx/kerneldoc.py"),
    # Their input.
    *("arch/x86/lib/x86-opcode-map.txt", "arch/x86/entry/syscalls/syscall_64.tbl"),
    *("GNUmakefile", "makefile", "lib/Makefile", "lib/Kconfig.debug", "rust/helper.rs"),
    *("scripts/mod/modpost.c", "tools/include/linux/types.h", "usr/gen_init_cpio.c"),
    *("arch/x86/tools/relocs.h", "arch/arm64/boot/new.c", "Documentation/Makefile"),
    # Programs of the base's Makefiles.
    *("lib/crc/gen_crc32table.c", "lib/crc/gen_crc64.c", "lib/crc/first.c"),
    *("lib/crc/second.c", "drivers/mkregs.c", "drivers/own/mk.c"),
    # Headers that they include, or would include if there were such a file.
    *("include/linux/crc32poly.h", "kernel/deeper.h", "lib/crc/stdio.h"),
    *("arch/x86/include/asm/cpufeatures.h", "include/uapi/linux/types.h"),
    "drivers/queue.h",
)
HARMLESS = (
    *("lib/crc/crc32.c", "lib/crc/kernel.c", "include/linux/crc32.h", "lib/Makefile.c"),
    *("include/linux/types.h", "include/trace/events/sched.h", "mm/new.c"),
    *("arch/x86/lib/memcpy_64.S", "MAINTAINERS", "Documentation/trace/events.rst"),
    *("Documentation/x.txt", "Documentation/devicetree/bindings/x.yaml"),
    "Documentation/ABI/testing/sysfs-devices",
)


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """The demo tree, with programs that its build would run."""
    linux = kerneltree.directory(tmp_path / "linux")
    for name, text in FILES.items():
        path = linux / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return kerneltree.base(linux, tmp_path / "cache")


@pytest.mark.parametrize("level", ["quick", "full", "deep"])
def test_all_but_code_of_the_kernel_and_prose_may_run_here(
    base: Base, level: Level
) -> None:
    assert hostcode.among(RISKY, base, level) == RISKY


def test_code_of_the_kernel_and_prose_run_nothing_here(base: Base) -> None:
    assert hostcode.among(HARMLESS, base, "full") == ()


def test_sphinx_runs_what_documents_and_comments_in_them_say(base: Base) -> None:
    documents = tuple(path for path in HARMLESS if path.startswith("Documentation/"))
    assert hostcode.among(HARMLESS, base, "deep") == ("lib/crc/crc32.c", *documents)
