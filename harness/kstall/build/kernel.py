# SPDX-License-Identifier: GPL-2.0-or-later
"""Build a kernel that a guest can boot, from an applied tree and a configuration.

make runs in the output directory of the series (see `outputs`), and compiles only what
changed since it last ran there.  The result is copied to ``kernels/<key>``, with a key
of all inputs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from ..base import (
    Architecture,
    FailedCheck,
    KstallError,
    Sink,
    arch,
    cache,
    process,
    sources,
    space,
)
from ..debian import Root
from ..tree import AppliedTree, File, Plan
from . import kconfig, outputs, resolve

_STEP = re.compile(
    r"^\s+(?:CC|AS|LD|AR|CC \[M\]|LD \[M\]|BTF|OBJCOPY|GEN|HOSTCC|BTF \[M\])\s+\S"
)
_WARNING = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? warning: ")
_ERROR = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: ")
# Image, symbols and modules, as a guest needs them.
_KERNEL_BYTES = 5 * 10**8
_CONFIG_BYTES = 10**7
#: How many configurations are kept, of 0.1 MB each: those of several deep runs.
CONFIGS = 2000
_RESOLVED = "resolved.json"
# What make says when files are newer than the present.
_SKEWED = "Clock skew detected"
# What binutils say of an object that is truncated or overwritten.
_DAMAGED = re.compile(
    r"\.[oa]\b.*: file (?:(?:format )?not recognized|truncated|too short|"
    r"in wrong format)"
)


def _reproducible(tree: str | Path, output: str | Path) -> tuple[str, ...]:
    """make's variables with which kernels of one key are the same bytes.

    That is whoever builds them, when, and where: debug information would name both
    directories, and a build ID is a digest of that, too.
    """
    nowhere = f"-fdebug-prefix-map={tree}=. -fdebug-prefix-map={output}=."
    return (
        "KBUILD_BUILD_TIMESTAMP=Thu Jan  1 00:00:00 UTC 1970",
        "KBUILD_BUILD_USER=kstall",
        "KBUILD_BUILD_HOST=kstall",
        "KBUILD_BUILD_VERSION=1",
        "LOCALVERSION=-kstall",
        f"KCFLAGS={nowhere}",
        f"KAFLAGS={nowhere}",
    )


class BuildError(FailedCheck):
    """The compiler refused the tree; ``file`` is the source that it names, or None."""

    file: str | None = None


class BaseDoesNotBuild(KstallError):
    """The compiler refused the tree without any patch."""


class TouchedFileWarns(FailedCheck):
    """The compiler warned about a file that the series touches."""


class SpoiltOutput(KstallError):
    """The output directory is inconsistent and has to be rebuilt."""

    def __init__(self, what: str, log: Path, first: str = "") -> None:
        super().__init__(
            what,
            log=log,
            next=f"{first}run the same command again: it builds from scratch, with "
            "ccache where that is installed",
        )


@dataclass(frozen=True)
class Toolchain:
    """The tools that compile, and the ``arch`` that they compile for.

    ``make`` are the variables that every make gets; ``libraries`` are options for gcc
    to find the guest's libraries, where this machine's are of another architecture.
    """

    make: tuple[str, ...]
    compiler: str
    pahole: str
    ccache: bool
    env: tuple[tuple[str, str], ...]
    arch: Architecture = arch.X86_64
    libraries: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Changes when the compiler or pahole does; not with ccache."""
        return cache.digest(self.compiler, self.pahole, *self.arch.key)


@dataclass(frozen=True)
class Kernel:
    """A built kernel; ``build_id`` is vmlinux's GNU build id in hex."""

    key: str
    path: Path
    release: str
    build_id: str
    reused: bool
    arch: Architecture = arch.X86_64

    @property
    def image(self) -> Path:
        """What QEMU boots."""
        return self.path / self.arch.target

    @property
    def vmlinux(self) -> Path:
        """The same kernel with its symbols and types."""
        return self.path / "vmlinux"

    @property
    def modules(self) -> Path:
        """Holds ``lib/modules/<release>``."""
        return self.path / "modules"

    @property
    def config(self) -> Path:
        """The final configuration."""
        return self.path / "config"


# In depend mode, ccache hashes the files that the compiler lists as dependencies, and
# what .incbin includes is not among them.  piggy.S includes the compressed kernel: for
# another kernel of the same size, ccache returned the object with the old one.
_CC = """\
#!/bin/sh
for word; do
	case $word in
	*.[cS]) grep -qs incbin -- "$word" && exec {gcc} "$@" ;;
	esac
done
exec ccache {gcc} "$@"
"""


def toolchain(pahole: Path, cache_dir: Path, root: Root | None = None) -> Toolchain:
    """The host's gcc, through ccache when there is one, and ``pahole``.

    It compiles for guests with ``root``.
    """
    architecture = arch.X86_64 if root is None else root.arch
    gcc = architecture.tool("gcc")
    ccache = shutil.which("ccache") is not None
    wrapper = cache_dir / architecture.place("cc")
    text = _CC.format(gcc=gcc)
    if ccache and not (os.access(wrapper, os.X_OK) and wrapper.read_text() == text):
        cache.write_text(wrapper, text, mode=0o755)
    compiler = process.run([gcc, "--version"]).stdout.splitlines()[0]
    version = process.run([pahole, "--version"]).stdout.strip()
    cc = f"CC={wrapper}" if ccache else f"CC={gcc}"
    return Toolchain(
        make=(*architecture.make, cc, f"PAHOLE={pahole}"),
        compiler=compiler,
        pahole=version,
        ccache=ccache,
        env=(
            ("CCACHE_DIR", str(cache_dir / "ccache")),
            # Without it every miss runs the preprocessor twice, a third more time.
            ("CCACHE_DEPEND", "1"),
            # Without it every file hashes its 700 headers again, a tenth more time.
            ("CCACHE_INODECACHE", "1"),
        ),
        arch=architecture,
        libraries=()
        if root is None or architecture.native
        else (
            f"-idirafter{root.tree}/usr/include",
            f"-L{root.tree}/usr/lib/{architecture.triplet}",
        ),
    )


@dataclass(frozen=True)
class Configured:
    """A ``.config`` that holds what fragments ask for; see `resolve.Resolved`."""

    file: Path
    reused: bool
    added: resolve.Values = ()
    remarks: tuple[str, ...] = ()


def config_key(
    plan: Plan, fragments: Sequence[Path], tools: Toolchain, *, lenient: bool = False
) -> str:
    """Changes with everything that decides which symbols there are and are set."""
    kconfigs = [
        (path, None if file is None else file.facts())
        for path, file in sorted(plan.files.items())
        if Path(path).name.startswith(("Kconfig", "Makefile"))
    ]
    return cache.digest(
        plan.base.id,
        kconfigs,
        [cache.file_digest(path) for path in fragments],
        tools.id,
        sources.digest("kstall.build"),
        lenient,
    )


def added_symbols(plan: Plan) -> frozenset[str]:
    """Symbols that the patches define, and the Kconfig files they touch did not."""

    def defined(state: Iterable[tuple[str, File | None]]) -> set[str]:
        return {
            symbol
            for path, file in state
            if file is not None and Path(path).name.startswith("Kconfig")
            for symbol in kconfig.defined(file.text)
        }

    return frozenset(defined(plan.states[-1]) - defined(plan.states[0]))


def find_config(key: str, cache_dir: Path) -> Configured | None:
    """The configuration with that key, if it was made before."""
    entry = cache_dir / "configs" / key
    if not cache.is_complete(entry):
        return None
    facts = json.loads((entry / _RESOLVED).read_text(encoding="utf-8"))
    added = tuple((name, value) for name, value in facts["added"])
    return Configured(entry / ".config", True, added, tuple(facts["remarks"]))


def configured(
    plan: Plan,
    checkout: Callable[[], AppliedTree],
    fragments: Sequence[Path],
    tools: Toolchain,
    cache_dir: Path,
    *,
    log: Path,
    absent: Collection[str] = (),
    lenient: bool = False,
    key: str | None = None,
) -> Configured:
    """The configuration of ``plan``, found or made.

    ``checkout`` is called only if there is something to make.  For ``absent``,
    ``lenient`` and what is raised, see `resolve.configure`.  ``key`` is for a caller
    who knows more than is in `config_key`.
    """
    key = key or config_key(plan, fragments, tools, lenient=lenient)
    if (config := find_config(key, cache_dir)) is not None:
        return config
    applied = checkout()
    if (config := find_config(key, cache_dir)) is not None:
        return config  # another run made it while we waited for the tree
    target = cache_dir / "configs" / key
    with (
        space.guarded(target.parent, _CONFIG_BYTES, "a configuration"),
        cache.keep(target) as scratch,
    ):
        output = scratch / "o"
        resolved = resolve.configure(
            applied.path,
            output,
            fragments,
            tools.make,
            log=log,
            absent=absent,
            own=added_symbols(plan),
            lenient=lenient,
            whose=tools.arch,
        )
        (output / ".config").rename(scratch / ".config")
        cache.remove(output)
        facts = {"added": resolved.added, "remarks": resolved.remarks}
        cache.write_json(scratch / _RESOLVED, facts)
    cache.prune(target.parent, keep=CONFIGS)
    return Configured(target / ".config", False, resolved.added, resolved.remarks)


def key_of(content: str, config: Configured, tools: Toolchain) -> str:
    """The kernel's key: base and patched contents, configuration, compiler, recipe."""
    return cache.digest(
        content,
        cache.file_digest(config.file),
        tools.id,
        _reproducible("tree", "output"),
    )


def find(key: str, cache_dir: Path) -> Kernel | None:
    """The kernel with that key, if it was built before."""
    path = cache_dir / "kernels" / key
    if not cache.is_complete(path):
        return None
    facts = json.loads((path / "kernel.json").read_text(encoding="utf-8"))
    architecture = arch.named(facts.get("arch", arch.X86_64.name))
    return Kernel(key, path, facts["release"], facts["build_id"], True, architecture)


def built(
    plan: Plan,
    checkout: Callable[[], AppliedTree],
    slot: str,
    config: Configured,
    tools: Toolchain,
    cache_dir: Path,
    *,
    log: Path,
    ui: Sink,
    strict: bool = True,
) -> Kernel:
    """Image and modules of ``plan``, found or built.

    ``checkout`` is called only if there is something to build.  ``slot`` names the
    output directory; builds in one slot are incremental.  Raises `BuildError` with the
    compiler's first error, `BaseDoesNotBuild` if there is no patch to blame for it, or,
    if it is ``strict``, `TouchedFileWarns`.
    """
    key = key_of(plan.compiled, config, tools)
    if (existing := find(key, cache_dir)) is not None:
        return existing
    applied = checkout()
    if (existing := find(key, cache_dir)) is not None:
        return existing  # another run built it while we waited for the tree
    output = outputs.use(applied, slot, config.file, cache_dir, tools.arch)
    outputs.mark_unread(output, applied)
    try:
        warnings = _make(applied, output, tools, log, ui)
    except SpoiltOutput:
        outputs.discard(output)
        raise
    if warnings and strict:
        raise TouchedFileWarns(
            "the compiler warns about a file that the series touches:\n"
            + "\n".join(warnings[:10]),
            log=log,
            next="fix the patch",
        )
    _require_own_image(output, tools.arch, log)
    with space.guarded(cache_dir / "kernels", _KERNEL_BYTES, "a kernel"):
        kernel = _collect(applied.path, output, tools, key, cache_dir, log)
    outputs.mark_read(output)
    keep, most = cache.KERNELS
    cache.prune(cache_dir / "kernels", keep=keep, most=most)
    return kernel


def _make(
    applied: AppliedTree,
    output: Path,
    tools: Toolchain,
    log: Path,
    ui: Sink,
) -> list[str]:
    """Run make; the warnings about touched files come back."""
    count = output / "kstall-steps.json"
    total = _expected_steps(count, output / ".config")
    steps = 0
    skewed = False
    warnings: list[str] = []

    def on_line(line: str) -> None:
        nonlocal steps, skewed
        skewed = skewed or _SKEWED in line
        if _STEP.match(line):
            steps += 1
            # The total is an estimate.
            ui.progress(steps, max(total, steps), line.rsplit(maxsplit=1)[-1])
        elif (match := _WARNING.match(line)) and inside(
            match["file"], applied
        ) in applied.touched:
            warnings.append(line)

    jobs = len(os.sched_getaffinity(0))
    command = _make_argv(applied.path, output, tools)
    try:
        process.run(
            [*command, f"-j{jobs}", tools.arch.target, "modules"],
            cwd=applied.path,
            env=dict(tools.env),
            log=log,
            on_line=on_line,
        )
    except process.CommandError as error:
        if "Bus error" in error.output:
            _drop_mapped(tools, log)
        reason = explain(error, log, output)
        if isinstance(reason, BuildError):
            if not applied.touched:
                raise BaseDoesNotBuild(
                    f"without any patch, {reason.what}",
                    log=log,
                    next="name a tree with KERNEL= that this compiler can build",
                ) from error
            if reason.file is not None:
                reason.file = inside(reason.file, applied)
        raise reason from error
    if skewed:
        raise SpoiltOutput(
            "the clock went back during the build, and make compares time stamps",
            log,
            "set the clock, if it is wrong now (`date`); then ",
        )
    cache.write_json(count, max(steps, total))
    return warnings


def _drop_mapped(tools: Toolchain, log: Path) -> None:
    """Delete the index that ccache maps into memory, if any, and raise.

    ccache dies of a bus error if that file is truncated.
    """
    place = dict(tools.env).get("CCACHE_DIR")
    for path in Path(place).rglob("inode-cache*") if place is not None else ():
        path.unlink()
        raise KstallError(
            f"ccache's index of files, {path}, is damaged and was removed",
            log=log,
            next="run the same command again",
        )


def _make_argv(tree: Path, output: Path, tools: Toolchain) -> list[str]:
    return ["make", f"O={output}", *tools.make, *_reproducible(tree, output)]


def prepare_make(
    cache_dir: Path,
    applied: AppliedTree,
    slot: str,
    config: Configured,
    tools: Toolchain,
) -> list[str]:
    """Get the output directory ``slot`` ready; the command that calls make in it."""
    output = outputs.use(applied, slot, config.file, cache_dir, tools.arch)
    return _make_argv(applied.path, output, tools)


def _expected_steps(count: Path, config: Path) -> int:
    """The steps of the fullest build here so far, else a guess from the config."""
    return outputs.read(count, int) or 2 * len(kconfig.parse_config(config))


def inside(file: str, applied: AppliedTree) -> str:
    """``file`` as the compiler names it, relative to the tree."""
    path = Path(os.path.normpath(applied.path / file))
    return (
        str(path.relative_to(applied.path))
        if path.is_relative_to(applied.path)
        else file
    )


def refused(error: process.CommandError) -> bool:
    """Whether a compiler or linker rejected a source, and was not killed, say."""
    return any(map(_is_refusal, error.output.splitlines()))


def _is_refusal(line: str) -> bool:
    return (
        _ERROR.match(line) is not None
        or "ERROR: modpost" in line
        or "undefined reference" in line
        or "multiple definition" in line
    )


def explain(error: process.CommandError, log: Path, output: Path) -> KstallError:
    """Why a make that wrote to ``output`` failed."""
    if space.missed(error, output):
        # First, for the compiler reports that like an error in the source.
        return KstallError(
            "no space left while building",
            log=log,
            next="free some, or point KSTALL_CACHE at a larger disk",
        )
    lines = error.output.splitlines()
    for line in lines:
        if _DAMAGED.search(line):
            return SpoiltOutput(f"an object built earlier is damaged: {line}", log)
    for number, line in enumerate(lines):
        if _is_refusal(line):
            excerpt = "\n".join(lines[number : number + 6])
            failure = BuildError(f"the tree does not build:\n{excerpt}", log=log)
            match = _ERROR.match(line)
            failure.file = None if match is None else match["file"]
            return failure
    return KstallError(error.what, log=log, next="see why make failed at the log's end")


def _collect(
    tree: Path, output: Path, tools: Toolchain, key: str, cache_dir: Path, log: Path
) -> Kernel:
    """Copy what a guest needs out of the build directory."""
    command = [*_make_argv(tree, output, tools), "-s"]
    release = process.run([*command, "kernelrelease"], cwd=tree).stdout.split()[-1]
    target = cache_dir / "kernels" / key
    with cache.keep(target) as scratch:
        process.run(
            [
                *command,
                f"INSTALL_MOD_PATH={scratch / 'modules'}",
                "INSTALL_MOD_STRIP=1",
                "modules_install",
            ],
            cwd=tree,
            log=log,
        )
        # bpftrace would look for headers behind this link, which the guest lacks.
        (scratch / "modules/lib/modules" / release / "build").unlink(missing_ok=True)
        shutil.copy2(output / tools.arch.image, scratch / tools.arch.target)
        shutil.copy2(output / "vmlinux", scratch / "vmlinux")
        shutil.copy2(output / "System.map", scratch / "System.map")
        shutil.copy2(output / ".config", scratch / "config")
        facts = {
            "release": release,
            "build_id": build_id(output / "vmlinux"),
            "arch": tools.arch.name,
        }
        cache.write_json(scratch / "kernel.json", facts)
    return Kernel(
        key,
        target,
        facts["release"],
        facts["build_id"],
        reused=False,
        arch=tools.arch,
    )


def _require_own_image(output: Path, architecture: Architecture, log: Path) -> None:
    """Raise `KstallError` if the image that boots is not of the vmlinux beside it."""
    image = output / architecture.image
    unpacked, packed = image, [image]
    # A self-extracting image takes the kernel from there.
    if (folder := image.parent / "compressed").is_dir():
        unpacked, packed = folder / "vmlinux.bin", [*folder.glob("vmlinux.bin.*")]
    same = bytes.fromhex(build_id(output / "vmlinux")) in unpacked.read_bytes()
    content = image.read_bytes()
    if not same or not any(path.read_bytes() in content for path in packed):
        raise KstallError(
            f"{output}: {image.name} holds another kernel than vmlinux",
            log=log,
            next=f"remove {output}, and run it again",
        )


def build_id(elf: Path) -> str:
    """The GNU build id of an ELF file, in hex; raises `KstallError` without one."""
    with elf.open("rb") as file:
        for section in ELFFile(file).iter_sections("SHT_NOTE"):
            assert isinstance(section, NoteSection)
            for note in section.iter_notes():
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
    raise KstallError(f"{elf} has no GNU build id")
