# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest's user space: a slim Debian root, made once per package list.

It comes in two forms.  The directory also serves the host, which borrows programs
that its own release has too old (pahole).  The guest boots from an image of it,
because a lookup over 9p costs a round trip to the host for every path component and
bpftrace alone maps 230 MB of LLVM and clang.  What is not in it matters as much: with
udev or systemd there, virtme-ng's init has them coldplug every device and make every
temporary file, which takes most of a guest's start under emulation.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import Architecture, KstallError, arch, cache, process, temporary
from . import bootstrap, debian

SUITE = "trixie"
# Raise when the recipe below changes what a root contains.
_RECIPE = 2
# What virtme-ng's init needs and is not essential in Debian.
_ALWAYS = ("mount",)
_LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/usr/share/zoneinfo/*",
)
# Programs of another architecture do not run here, so its packages are unpacked and
# never configured.  dpkg does not know them then, so they are added to its status.
_REGISTER = """\
for deb in "$1"/var/cache/apt/archives/*.deb; do
	echo "Status: install ok installed"
	dpkg-deb --field "$deb"
	echo
done >>"$1/var/lib/dpkg/status"
"""
# Links that their maintainer scripts would have made, as far as guests need them.
_LINKS = {"bin/awk": "mawk", "bin/which": "which.debianutils"}
# Python's bytecode is the same everywhere.  Without it each program of a guest would
# compile what it imports, which takes an emulated processor many seconds.
_COMPILE = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
_PYTHON = ("usr/lib/python3", "usr/lib/python3.*")
# virtme-ng's own init powers off itself; its bash script, for foreign guests, calls
# this.  SysRq only asks for it, and the root's disk goes first: no program can be
# started then, and init would end, which is a panic.
_POWER_OFF = """\
#!/bin/sh
sync
echo o >/proc/sysrq-trigger
while :; do :; done
"""
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_TOOLS = Path(__file__).parent / "root-exec.sh"


@dataclass(frozen=True)
class Root:
    """A finished root: ``versions`` holds the version of every package in it."""

    key: str
    path: Path
    versions: Mapping[str, str]
    reused: bool
    arch: Architecture = arch.X86_64

    @property
    def tree(self) -> Path:
        """The root as a directory."""
        return self.path / "tree"

    @property
    def image(self) -> Path:
        """The root as a read-only file system image."""
        return self.path / "root.erofs"

    @property
    def pahole(self) -> Path:
        """A program for the host that runs this root's pahole, without a chroot."""
        return self.path / "bin/pahole"

    def command(self, program: Path) -> tuple[Path | str, ...]:
        """The command by which ``program`` runs here, with the root's C library, which
        is newer than the host's."""
        libraries = self.tree / "usr/lib" / self.arch.triplet
        return (self.tree / self.arch.loader, "--library-path", libraries, program)


def packages_for(folder: Path, architecture: Architecture) -> tuple[str, ...]:
    """The names of all packages in a guest's root, from the lists in ``folder``.

    What another architecture needs in addition has a list of its own.
    """
    listings = dict.fromkeys(("guest-packages", architecture.place("guest-packages")))
    return tuple(
        name for listing in listings for name in packages(folder / f"{listing}.txt")
    )


def packages(listing: Path) -> tuple[str, ...]:
    """The package names in ``listing``: one a line, ``#`` starts a comment."""
    names = []
    for number, line in enumerate(listing.read_text(encoding="utf-8").splitlines(), 1):
        if name := line.partition("#")[0].strip():
            if not _PACKAGE.fullmatch(name):
                raise KstallError(f"{listing}:{number}: not a package name: {name}")
            names.append(name)
    return tuple(names)


def key_of(names: Sequence[str], whose: Architecture = arch.X86_64) -> str:
    """Changes with the package list and the recipe, not with the list's order."""
    foreign: tuple[object, ...] = ()
    if not whose.native:
        foreign = (_REGISTER, sorted(_LINKS.items()), _POWER_OFF, _COMPILE, _PYTHON)
    return cache.digest(
        _RECIPE, SUITE, sorted({*names, *_ALWAYS}), _left_out(whose), *foreign
    )


def _left_out(architecture: Architecture) -> tuple[str, ...]:
    return (*_LEFT_OUT, f"/usr/lib/{architecture.triplet}/gconv/*")


def obtain(
    names: Sequence[str],
    cache_dir: Path,
    say: Callable[[str], None],
    *,
    log: Path,
    whose: Architecture = arch.X86_64,
    lending: Root | None = None,
) -> Root:
    """The root with the packages ``names``; made now if it is not in the cache.

    ``whose`` is the architecture that it is for.  Where that is not this machine's,
    ``lending`` is a root for this machine, whose Python compiles the modules.
    """
    key = key_of(names, whose)
    target = cache_dir / "roots" / key
    with cache.lock(
        cache_dir / "roots" / f"{key}.lock",
        waiting=lambda holder: say(f"waiting for {holder}, which is making this root"),
    ):
        reused = cache.is_complete(target)
        if not reused:
            with cache.keep(target) as scratch:
                complete = tuple(sorted({*names, *_ALWAYS}))
                _make(complete, whose, scratch, say, log, lending)
    return find(key, cache_dir, whose, reused=reused)


def find(
    key: str,
    cache_dir: Path,
    architecture: Architecture = arch.X86_64,
    *,
    reused: bool = True,
) -> Root:
    """The root of that key, for ``architecture``, which is in the cache."""
    target = cache_dir / "roots" / key
    facts = json.loads((target / "root.json").read_text(encoding="utf-8"))
    return Root(key, target, facts["versions"], reused, architecture)


def _make(
    names: tuple[str, ...],
    architecture: Architecture,
    scratch: Path,
    say: Callable[[str], None],
    log: Path,
    lending: Root | None,
) -> None:
    archive = scratch / "root.tar"
    bootstrap.require(Path(tempfile.gettempdir()))
    uri = debian.mirror_for(SUITE)
    suffix = "" if architecture.native else f" for {architecture.name}"
    say(f"making a {SUITE} root{suffix} with {', '.join(names)}")
    try:
        with temporary.directory("root") as place:
            # Without root mmdebstrap works there under another id.
            place.chmod(0o711)
            process.run(
                mmdebstrap_argv(names, uri, debian.keyring(), archive, architecture),
                env={"TMPDIR": str(place)},
                log=log,
                # Without root it maps a range of ids, which is not possible in our
                # own user namespace, as that has only one.
                namespace=os.geteuid() == 0,
                on_line=lambda line: say(line[3:]) if line.startswith("I: ") else None,
            )
    except process.CommandError as error:
        raise KstallError(
            f"mmdebstrap made no {SUITE} root:\n" + _last_words(error.output),
            log=log,
            next=bootstrap.advice(error.output),
        ) from error
    tree = scratch / "tree"
    tree.mkdir()
    # An archive in between, because without root mmdebstrap would leave a directory
    # with owners whose files we may not delete.
    extract = ("tar", "--extract", "--no-same-owner", "--delay-directory-restore")
    process.run(
        [*extract, "--exclude=./dev/*", f"--directory={tree}", f"--file={archive}"],
        log=log,
    )
    archive.unlink()
    _complete(tree)
    if not architecture.native:
        _configure(tree)
        if lending is not None:
            _compile(tree, lending, log)
    process.run(
        ["mkfs.erofs", "-T0", "--all-root", scratch / "root.erofs", tree], log=log
    )
    # It is for this machine: a foreign one does not run here.
    if architecture.native and (tree / "usr/bin/pahole").exists():
        (scratch / "bin").mkdir()
        text = _TOOLS.read_text(encoding="utf-8")
        for word, value in (
            ("@loader@", architecture.loader),
            ("@triplet@", architecture.triplet),
        ):
            text = text.replace(word, value)
        cache.write_text(scratch / "bin/pahole", text, mode=0o755)
    cache.write_json(
        scratch / "root.json",
        {"suite": SUITE, "packages": names, "versions": versions(tree)},
    )


def mmdebstrap_argv(
    names: Sequence[str],
    uri: str,
    keyring: Path,
    archive: Path,
    architecture: Architecture = arch.X86_64,
) -> list[str]:
    """The command that makes the root as a tar archive."""
    variant: tuple[str, ...] = ("--variant=essential",)
    if not architecture.native:
        # `extract` does not include essential packages by itself.
        variant = (
            "--variant=extract",
            f"--architectures={architecture.debian}",
            "--include=?essential",
            f"--extract-hook={_REGISTER}",
        )
    return [
        "mmdebstrap",
        f"--mode={bootstrap.mode()}",
        *variant,
        f"--include={','.join(names)}",
        f"--keyring={keyring}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _left_out(architecture)),
        SUITE,
        str(archive),
        f"deb {uri} {SUITE} main",
    ]


def _complete(tree: Path) -> None:
    """Add the mount points that virtme-ng expects in a root it cannot write to."""
    for name in ("lib/modules", "run", "dev", "proc", "sys", "tmp"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in ("etc/fstab", "etc/hosts", "etc/shadow", "etc/sudoers"):
        (tree / name).touch()


def _configure(tree: Path) -> None:
    """Do for unpacked packages what maintainer scripts would, as far as guests need."""
    for name, target in _LINKS.items():
        link = tree / name
        if not link.is_symlink() and (link.parent / target).exists():
            link.symlink_to(target)
    for name in ("passwd", "group"):
        master = tree / "usr/share/base-passwd" / f"{name}.master"
        if not (tree / "etc" / name).exists():
            shutil.copyfile(master, tree / "etc" / name)
    poweroff = tree / "usr/sbin/poweroff"
    if not poweroff.exists():
        cache.write_text(poweroff, _POWER_OFF, mode=0o755)


def _compile(tree: Path, lending: Root, log: Path) -> None:
    """Compile the Python modules below ``tree``, by the Python of ``lending``."""
    host = lending.tree
    folders = [path for pattern in _PYTHON for path in sorted(tree.glob(pattern))]
    process.run(
        [
            *lending.command(host / "usr/bin/python3"),
            *(*_COMPILE, "-s", str(tree), "-p", "/"),
            *folders,
        ],
        env={"PYTHONHOME": str(host / "usr")},
        log=log,
    )


def versions(tree: Path) -> dict[str, str]:
    """Package name to version, as dpkg recorded them below ``tree``."""
    status = (tree / "var/lib/dpkg/status").read_text(encoding="utf-8")
    installed = {}
    for stanza in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in stanza.splitlines()
            if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            installed[fields["Package"]] = fields["Version"]
    return installed


def _last_words(output: str) -> str:
    """The errors in mmdebstrap's output, or its end when there are none."""
    lines = output.strip().splitlines()
    errors = [line for line in lines if line.startswith(("E: ", "W: ", "Err:"))]
    return "\n".join((errors or lines)[-8:])
