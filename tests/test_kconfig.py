# SPDX-License-Identifier: GPL-2.0-or-later
"""Fragments are read strictly, and a symbol that did not stick is explained."""

from __future__ import annotations

import concurrent.futures
import os
import re
from pathlib import Path

import pytest

from kstall.base import FailedCheck, arch, process
from kstall.build import kconfig

KCONFIG = """\
config MODULES
\tbool "modules"
\tmodules

config BUS
\tbool "a bus"

config CARD
\ttristate "a card"
\tdepends on BUS && !LEGACY

config LEGACY
\tbool "legacy"

config LIBRARY
\tbool

config USER
\tbool "a user of the library"
\tselect LIBRARY

config NEW
\tbool "newer syntax"
\tdepends on BUS if MODULES
\ttransitional
"""


def _fragment(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_fragment_lines(tmp_path: Path) -> None:
    path = _fragment(
        tmp_path / "f", '# why\nCONFIG_A=y\n\n# CONFIG_B is not set\nCONFIG_C="x y"\n'
    )
    requests = [(r.symbol, r.value, r.line) for r in kconfig.parse_fragment(path)]
    assert requests == [("A", "y", 2), ("B", "n", 4), ("C", '"x y"', 5)]


def test_a_line_that_is_no_assignment(tmp_path: Path) -> None:
    path = _fragment(tmp_path / "f", "CONFIG_A=y\nCONFIG_B\n")
    with pytest.raises(kconfig.KconfigError, match=r"f:2: not a kconfig assignment"):
        kconfig.parse_fragment(path)


def test_one_that_says_so_overrides_those_before(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    one.write_text("CONFIG_A=y\nCONFIG_B=y\n")
    two.write_text("# override: it costs too much\n# CONFIG_A is not set\n")
    three.write_text("CONFIG_A=y\n")
    requests = kconfig.combine([one, two])
    assert {name: request.value for name, request in requests.items()} == {
        "A": "n",
        "B": "y",
    }
    with pytest.raises(kconfig.KconfigError, match="three:1: CONFIG_A=y contradicts"):
        kconfig.combine([one, two, three])
    # It holds for the next line only.
    two.write_text("# override: A\n# CONFIG_A is not set\n# CONFIG_B is not set\n")
    with pytest.raises(kconfig.KconfigError, match="two:3: CONFIG_B=n contradicts"):
        kconfig.combine([one, two])


def test_fragments_that_contradict(tmp_path: Path) -> None:
    one = _fragment(tmp_path / "one", "CONFIG_A=y\n")
    two = _fragment(tmp_path / "two", "CONFIG_A=m\n")
    with pytest.raises(kconfig.KconfigError) as caught:
        kconfig.combine([one, two])
    assert "two:1: CONFIG_A=m contradicts one:1: CONFIG_A=y" in str(caught.value)


def test_missing_symbols(tmp_path: Path) -> None:
    asked = kconfig.combine(
        [_fragment(tmp_path / "f", "CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\n")]
    )
    lost = kconfig.missing(asked, {"A": "y", "B": "y", "C": "y"})
    assert [request.symbol for request in lost] == ["B", "C"]


def test_symbols_are_found_where_they_are_defined() -> None:
    text = "menuconfig A\n\tbool\nconfig B_2\n\tdepends on C\n# config D\n"
    assert kconfig.defined(text) == {"A", "B_2"}


@pytest.mark.parametrize(
    ("request_", "config", "why"),
    [
        ("CONFIG_CARD=y", "", "unmet dependency BUS [=n]"),
        ("CONFIG_CARD=y", "CONFIG_BUS=y\nCONFIG_LEGACY=y\n", "!LEGACY [=y]"),
        ("CONFIG_GONE=y", "", "this tree has no such symbol"),
        ("CONFIG_LIBRARY=y", "", "has no prompt; it is selected by one of USER"),
        ("# CONFIG_LIBRARY is not set", "CONFIG_USER=y\n", "selected by USER [=y]"),
        ("CONFIG_NEW=y", "CONFIG_MODULES=y\n", "unmet dependency"),
    ],
)
def test_why_a_symbol_did_not_stick(
    tmp_path: Path, request_: str, config: str, why: str
) -> None:
    (tmp_path / "Kconfig").write_text(KCONFIG)
    (tmp_path / ".config").write_text(config)
    asked = kconfig.parse_fragment(_fragment(tmp_path / "f", request_ + "\n"))
    (reason,) = kconfig.explain(tmp_path, tmp_path / ".config", asked, ())
    assert why in reason


def test_an_unreadable_kconfig_costs_only_the_explanation(tmp_path: Path) -> None:
    (tmp_path / "Kconfig").write_text("no such keyword\n")
    (tmp_path / ".config").write_text("")
    asked = kconfig.parse_fragment(_fragment(tmp_path / "f", "CONFIG_A=y\n"))
    (reason,) = kconfig.explain(tmp_path, tmp_path / ".config", asked, ())
    assert "could not be read to say why" in reason


def test_without_a_kconfig_that_can_be_read_nothing_is_off(tmp_path: Path) -> None:
    (tmp_path / "Kconfig").write_text("no such keyword\n")
    (tmp_path / ".config").write_text("")
    with pytest.raises(kconfig.KconfigError, match="cannot be read") as caught:
        kconfig.without(tmp_path, tmp_path / ".config", ["A"], ())
    assert not isinstance(caught.value, FailedCheck)


def test_programs_of_other_threads_do_not_get_the_variables(tmp_path: Path) -> None:
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    command = f"echo y >{tmp_path}/begun; cat {tmp_path}/go"
    (tmp_path / "Kconfig").write_text(
        f'config WAITS\n\tdef_bool "$(shell,{command})" != "no"\n'
    )
    (tmp_path / ".config").write_text("")
    before = dict(os.environ)
    make = ("ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-")
    show = ["sh", "-c", 'echo "${ARCH-none} ${CC-none} ${srctree-none}"']
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        load = pool.submit(kconfig.load, tmp_path, tmp_path / ".config", make)
        (tmp_path / "begun").read_text()
        assert os.environ["ARCH"] == "arm64"
        shown = pool.submit(process.run, show)
        # If it does not wait, it most likely ends while the variables are set.
        concurrent.futures.wait([shown], timeout=0.5)
        (tmp_path / "go").write_text("go on")
        load.result()
        assert shown.result().stdout == "none none none\n"
    assert dict(os.environ) == before


def test_what_reports_a_fault_is_on_in_kernels_of_each_architecture(
    project_root: Path,
) -> None:
    """A symbol below one that is only for x86-64 was once left out of all others."""
    base = project_root / "kconfigs/base.config"
    for name in arch.NAMES:
        requests = kconfig.combine([base], arch.named(name))
        for symbol in (
            *("MAGIC_SYSRQ", "MAGIC_SYSRQ_SERIAL", "SLUB_DEBUG", "WQ_WATCHDOG"),
            *("SOFTLOCKUP_DETECTOR", "DETECT_HUNG_TASK"),
        ):
            assert requests[symbol].value == "y", (name, symbol)


def test_symbols_of_one_architecture(project_root: Path) -> None:
    """Any other symbol is for all: `only` reaches up to the next comment."""
    own = {
        request.symbol
        for fragment in sorted((project_root / "kconfigs").glob("*.config"))
        for request in kconfig.parse_fragment(fragment)
        if request.only is not None
    }
    marked = {
        symbol for symbol in own if re.match(r"X86_|INTEL_|ARM_|KVM|ACPI", symbol)
    }
    assert own - marked == {
        # Buses, processors and timers of a PC, and those of virt.
        *("PCI_MMCONFIG", "HPET_TIMER", "PCI_HOST_GENERIC", "VIRTIO_MMIO"),
        *("SERIAL_AMBA_PL011", "SERIAL_AMBA_PL011_CONSOLE", "HW_PERF_EVENTS"),
        *("HYPERVISOR_GUEST", "PARAVIRT", "VIRTUALIZATION", "IOMMU_PT_KUNIT_TEST"),
        # What arm64 has no choice of.
        *("CPU_MITIGATIONS", "JUMP_LABEL", "KERNEL_LZ4"),
        *("UNWINDER_ORC", "UNWINDER_FRAME_POINTER"),
    }
