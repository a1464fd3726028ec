# SPDX-License-Identifier: GPL-2.0-or-later
"""The configurations and compilers that touched code is compiled with.

Each variant changes the merged configuration of all series, so that it has one output
directory for all of them.  No variant has debug information, which is not read here and
takes half of the compile time.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base import KstallError, arch, cache, process
from ..build import Configured, Setting, Toolchain, kconfig, kernel, resolve
from ..tree import AppliedTree, Plan
from .sparse import Checker

_VERSION = re.compile(r"\bversion (\d+)\.(\d+)\.(\d+)")
_LLVM = (
    *("ld.lld", "llvm-ar", "llvm-nm", "llvm-objcopy", "llvm-objdump", "llvm-readelf"),
    "llvm-strip",
)
# Options that change the code of every function.
_GUARDS: Mapping[str, Mapping[str, str]] = {
    "x86": dict.fromkeys(
        (
            *("CPU_MITIGATIONS", "MITIGATION_RETPOLINE", "MITIGATION_RETHUNK"),
            *("MITIGATION_CALL_DEPTH_TRACKING", "MITIGATION_SLS", "X86_KERNEL_IBT"),
        ),
        "y",
    ),
    "arm64": dict.fromkeys(("ARM64_PTR_AUTH_KERNEL", "ARM64_BTI_KERNEL"), "y"),
}
MODULES = "modules"
WORST = "worst"
MITIGATED = "mitigated"
RANDOM = "random-"


@dataclass(frozen=True)
class Variant:
    """A way to compile; ``title`` is for readers.

    ``place`` names the output directory.  ``requests`` come on top of those of the
    series; ``off`` has to be off, with all that selects it; ``builtin`` makes modules
    part of the image; a ``bare`` variant ignores all requests, even the series' own.
    ``arch`` is the name of the architecture's directory, where it is not that of the
    kernels that are booted.  ``seed`` is that of a random configuration, see `seeds`.
    """

    name: str
    title: str
    tools: Toolchain
    place: str
    arch: str = ""
    requests: Mapping[str, str] = field(default_factory=dict)
    off: tuple[str, ...] = ()
    builtin: bool = False
    bare: bool = False
    checker: Checker | None = None
    seed: int | None = None

    @property
    def id(self) -> str:
        """Changes with all that can change what is compiled, but for the sources."""
        checker = self.checker.version if self.checker else None
        requests = sorted(self.requests.items())
        how = (self.off, self.builtin, self.bare)
        return cache.digest(
            self.name, self.tools.id, self.folder, requests, *how, checker
        )

    @property
    def folder(self) -> str:
        """The directory below ``arch/`` of what it compiles for."""
        return self.arch or self.tools.arch.kbuild


class Unavailable(KstallError):
    """A program that a variant needs is missing; ``next`` says what to install."""


def modules(tools: Toolchain, checker: Checker | None) -> Variant:
    """The configuration as it is, with modules as modules."""
    return Variant(MODULES, "as configured", tools, MODULES, checker=checker)


def untraced(tools: Toolchain) -> Variant:
    """A kernel without ftrace, and without any tracepoint."""
    off = ("TRACEPOINTS", "FTRACE")
    return Variant("untraced", "TRACEPOINTS=n", tools, "untraced", off=off)


def worst(tools: Toolchain) -> Variant:
    """A kernel in which each tracepoint is a load, a test and a branch."""
    return Variant(WORST, "JUMP_LABEL=n", tools, WORST, off=("JUMP_LABEL",))


def mitigated(tools: Toolchain) -> Variant:
    """A kernel as distributions ship it for hardware: what guards branches and returns
    there changes how code is compiled."""
    requests = _GUARDS[tools.arch.kbuild]
    return Variant(MITIGATED, "with mitigations", tools, MITIGATED, requests=requests)


def tiny(tools: Toolchain) -> Variant:
    """A kernel without all that can be disabled; what is selected elsewhere stays."""
    return Variant("tiny", "allnoconfig", tools, "tiny", bare=True)


def random(tools: Toolchain, seed: int) -> Variant:
    """A random configuration; all such share a directory."""
    name = f"KCONFIG_SEED={seed:#x}"
    return Variant(f"{RANDOM}{seed:#x}", name, tools, "random", seed=seed)


def builtin(tools: Toolchain) -> Variant:
    """All that is a module elsewhere is part of the image."""
    return Variant("builtin", "all =y", tools, "builtin", builtin=True)


def without(tools: Toolchain, symbol: str) -> Variant:
    """A kernel without an option; all such share a directory."""
    return Variant(f"without-{symbol}", f"{symbol}=n", tools, "without", off=(symbol,))


def clang(tree: Path, guest_tools: Toolchain) -> Variant:
    """Compiled by the newest clang there is; raises `Unavailable`."""
    name = "clang"
    script = tree / "scripts/min-tool-version.sh"
    minimum = "0.0.0"
    if script.exists():
        env = {"SRCARCH": guest_tools.arch.kbuild}
        minimum = process.run(["sh", script, "llvm"], env=env).stdout.strip()
    required = tuple(map(int, minimum.split(".")))
    for suffix in _suffixes():
        output = process.run([f"clang{suffix}", "--version"], check=False).stdout
        match = _VERSION.search(output)
        if match is None or tuple(map(int, match.groups())) < required:
            continue
        if all(shutil.which(f"{tool}{suffix}") for tool in _LLVM):
            tools = Toolchain(
                make=(
                    *guest_tools.arch.make,
                    f"LLVM={suffix or 1}",
                    _pahole(guest_tools),
                ),
                compiler=output.splitlines()[0],
                pahole=guest_tools.pahole,
                ccache=False,
                env=(),
                arch=guest_tools.arch,
            )
            return Variant(name, tools.compiler, tools, name)
    raise Unavailable(
        f"no clang {minimum} or newer with lld and llvm",
        next="apt-get install clang-19 lld-19 llvm-19, or newer ones",
    )


def _suffixes() -> list[str]:
    """The suffixes in the names of installed clangs, newest first."""
    versions = {
        int(match[1])
        for folder in os.get_exec_path()
        for path in Path(folder).glob("clang-*")
        if (match := re.fullmatch(r"clang-(\d+)", path.name))
    }
    plain = [""] if shutil.which("clang") else []
    return [*(f"-{number}" for number in sorted(versions, reverse=True)), *plain]


def arm64(guest_tools: Toolchain) -> Variant:
    """For 64-bit Arm; raises `Unavailable`."""
    other = arch.ARM64
    compiler = other.tool("gcc")
    if guest_tools.arch is other:
        raise Unavailable("the booted kernels are for arm64 already")
    if shutil.which(compiler) is None:
        raise Unavailable(
            f"no {compiler}, which compiles for arm64",
            next="apt-get install gcc-aarch64-linux-gnu",
        )
    version = process.run([compiler, "--version"]).stdout.splitlines()[0]
    tools = Toolchain(
        make=(*other.make, _pahole(guest_tools)),
        compiler=version,
        pahole=guest_tools.pahole,
        ccache=False,
        env=(),
    )
    # So that it has ACPI, and an IOMMU.
    requests = {"EFI": "y", "ACPI": "y", "ARM_SMMU_V3": "y"}
    return Variant(
        "arm64", "ARCH=arm64", tools, "arm64", arch="arm64", requests=requests
    )


def _pahole(tools: Toolchain) -> str:
    """The argument of make that names pahole."""
    return next(word for word in tools.make if word.startswith("PAHOLE="))


def i386(tools: Toolchain) -> Variant:
    """For 32-bit x86, by the same compiler; raises `Unavailable`."""
    if tools.arch is not arch.X86_64:
        raise Unavailable("the booted kernels are not for x86-64")
    probe = process.run(
        ["gcc", "-m32", "-c", "-x", "c", "/dev/null", "-o", "/dev/null"], check=False
    )
    if probe.returncode != 0:
        raise Unavailable(
            "this gcc cannot compile for 32-bit x86", next="run it on an x86-64 host"
        )
    toolchain = Toolchain(
        make=("ARCH=i386", *tools.make),
        compiler=f"{tools.compiler}, ARCH=i386",
        pahole=tools.pahole,
        ccache=tools.ccache,
        env=tools.env,
    )
    return Variant("i386", "ARCH=i386", toolchain, "i386", requests={"64BIT": "n"})


# -- configurations ------------------------------------------------------------------


def configure(
    variant: Variant,
    applied: AppliedTree,
    plan: Plan,
    requests: Mapping[str, Setting],
    merged: Configured,
    cache_dir: Path,
    scratch: Path,
    *,
    log: Path,
) -> Configured:
    """The configuration of ``variant`` for ``plan``, checked out as ``applied``.

    Those of ``requests`` that this variant cannot have are left out.  ``merged`` is
    their configuration for the booted kernels: what these need on this tree a variant
    gets as well.  ``scratch`` is a directory that the caller removes.  Raises
    `kconfig.CannotBeOff`.
    """
    added = () if variant.bare else merged.added
    values = _values({} if variant.bare else requests, added, variant)
    file = scratch / f"{variant.name}.config"
    cache.write_text(file, _text(values))

    def configured(key: str | None = None) -> Configured:
        return kernel.configured(
            plan,
            lambda: applied,
            [file],
            variant.tools,
            cache_dir,
            log=log,
            absent=set(values),
            key=key,
        )

    if not variant.off:
        plain = configured()
        if variant.name == MITIGATED:
            # Without them it would be as the kernel that is measured.
            symbols = kconfig.parse_config(plain.file)
            if missing := [name for name in variant.requests if name not in symbols]:
                raise kconfig.CannotBeOff(f"{', '.join(missing)} cannot be on")
        return plain
    key = kernel.config_key(plan, [file], variant.tools)
    key_off = cache.digest(key, sorted(variant.off))
    # Reading all of Kconfig takes seconds.
    if (config := kernel.find_config(key_off, cache_dir)) is None:
        plain = configured()
        off = kconfig.without(applied.path, plain.file, variant.off, variant.tools.make)
        values |= dict.fromkeys(off, "n")
        cache.write_text(file, _text(values))
        config = configured(key_off)
    symbols = kconfig.parse_config(config.file)
    if remaining := [name for name in variant.off if name in symbols]:
        raise kconfig.CannotBeOff(f"{', '.join(remaining)} cannot be off")
    return config


def _values(
    requests: Mapping[str, Setting], added: resolve.Values, variant: Variant
) -> dict[str, str]:
    values = {name: setting.value for name, setting in requests.items()} | dict(added)
    chosen = {
        name: "y" if variant.builtin and value == "m" else value
        for name, value in values.items()
        if not name.startswith("DEBUG_INFO")
    }
    return {**chosen, "DEBUG_INFO_NONE": "y", **variant.requests}


def _text(values: Mapping[str, str]) -> str:
    return "".join(
        f"# CONFIG_{name} is not set\n" if value == "n" else f"CONFIG_{name}={value}\n"
        for name, value in sorted(values.items())
    )
