# SPDX-License-Identifier: GPL-2.0-or-later
"""What kbuild compiles of a few directories under a configuration.

make compiles a single object whatever the configuration says, and may then fail for
reasons that no real configuration has.  So the Makefiles are asked first which objects
they build.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..base import process

_LISTING = Path(__file__).parent / "objects.mk"
_CODE = (".c", ".S")
# Directories that have programs for the host or for user space, and no kernel code.
_OUTSIDE = ("Documentation/", "tools/", "scripts/", "samples/", "usr/", "rust/")
# How make ends at a line of a Makefile.
_BROKEN = re.compile(r"(?P<file>\S+):(?P<line>\d+): \*\*\* (?P<text>.*)\.  Stop\.")
# Include directories: headers in them are included by their path without this.
_ROOTS = re.compile(r"^(?:include|arch/\w+/include)/(?:uapi/)?")
# Of a header with more users than that, only those near the series are compiled.
_MANY = 40
_FEW = 6


@dataclass(frozen=True)
class Listed:
    """What kbuild builds in directories: the paths of ``objects``, and of those that
    have ``no_source``.

    ``broken`` are the Makefiles that make cannot read, each with the line and the
    reason; what they build is not listed.
    """

    objects: frozenset[str]
    no_source: frozenset[str]
    broken: tuple[tuple[str, int, str], ...]


def listed(
    tree: Path, config: Path, arch: str, folders: Iterable[str], scratch: Path
) -> Listed:
    """The objects of ``folders`` of ``tree`` under the file ``config``.

    ``arch`` is the name that the architecture's directory has; ``scratch`` is a
    directory that the caller removes.  A folder that kbuild does not enter has none.
    """
    config_dir = scratch / "include/config"
    config_dir.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config, config_dir / "auto.conf")
    requested = {str(PurePosixPath(folder)) for folder in folders}
    objects: set[str] = set()
    broken = []
    # The top Makefile enters the libraries by itself.
    waiting = [".", "lib", f"arch/{arch}/lib"]
    seen = set(waiting)
    while waiting:
        folder = waiting.pop()
        for line in _list(tree, arch, folder, scratch):
            if match := _BROKEN.fullmatch(line):
                file = match["file"].removeprefix(f"{tree}/")
                broken.append((file, int(match["line"]), match["text"]))
            kind, _, name = line.partition(" ")
            name = name.strip("/")
            if kind == "object" and folder in requested and name.endswith(".o"):
                objects.add(name)
            elif kind == "folder" and name not in seen:
                seen.add(name)
                if any(_is_in(target, name) for target in requested):
                    waiting.append(name)
    missing = {
        name
        for name in objects
        if not any((tree / name).with_suffix(end).exists() for end in _CODE)
    }
    return Listed(frozenset(objects - missing), frozenset(missing), tuple(broken))


def _is_in(folder: str, top: str) -> bool:
    return folder == top or folder.startswith(f"{top}/")


def _list(tree: Path, arch: str, folder: str, scratch: Path) -> list[str]:
    completed = process.run(
        (
            *("make", "-rR", "-s", "-f", _LISTING, "kstall-objects"),
            *(f"srctree={tree}", f"srcroot={tree}", "objtree=.", f"obj={folder}"),
            # Where Linux before 6.13 finds the sources.
            *(f"VPATH={tree}", f"SRCARCH={arch}", "need-modorder=1"),
        ),
        cwd=scratch,
        check=False,
    )
    # 2 is what make itself ends with.
    if completed.returncode not in (0, 2):
        error = completed.failure()
        error.next = "if make was killed (memory?), run the same command again"
        raise error
    return completed.stdout.splitlines()


def object_of(source: str) -> str:
    """The path of the object that kbuild makes of ``source``."""
    return str(PurePosixPath(source).with_suffix(".o"))


def is_compiled(path: str) -> bool:
    """Whether ``path`` is a source of the kernel itself, C or assembler."""
    return path.endswith(_CODE) and not path.startswith(_OUTSIDE)


def is_header(path: str) -> bool:
    """Whether ``path`` is a header of the kernel itself."""
    return path.endswith(".h") and not path.startswith(_OUTSIDE)


@dataclass(frozen=True)
class Users:
    """Other C files that include what a series touches, and have to be compiled.

    All of ``always``, and of each of ``some`` the first few that are configured: any
    user may break, and the rest is compiled when the kernel is built.
    """

    always: tuple[str, ...] = ()
    some: tuple[tuple[str, ...], ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All that `chosen` may return."""
        return tuple(dict.fromkeys([*self.always, *itertools.chain(*self.some)]))

    def chosen(self, objects: Collection[str]) -> tuple[str, ...]:
        """Those to compile where ``objects`` are configured."""
        paths = dict.fromkeys(self.always)
        for group in self.some:
            configured = [path for path in group if object_of(path) in objects]
            paths |= dict.fromkeys(configured[:_FEW])
        return tuple(paths)


def users(tree: Path, touched: Collection[str]) -> Users:
    """The sources in ``tree`` that include a ``touched`` file.

    Always compiled are those that include a C file, and those that create the
    tracepoints of a header.
    """
    folders = {str(PurePosixPath(path).parent) for path in touched if is_compiled(path)}
    always: dict[str, None] = {}
    some = []
    for path in sorted(touched):
        if not (is_header(path) or is_compiled(path)):
            continue
        others = [user for user in including(tree, path) if user not in touched]
        if is_compiled(path):
            always |= dict.fromkeys(others)
            continue
        if "trace" in path:
            makers = [user for user in others if _makes_tracepoints(tree / user)]
            always |= dict.fromkeys(makers)
        if len(others) > _MANY:
            others = [
                user for user in others if str(PurePosixPath(user).parent) in folders
            ]
        others.sort(key=lambda user: _order(tree, user, folders))
        some.append(tuple(others))
    return Users(tuple(always), tuple(some))


def _makes_tracepoints(path: Path) -> bool:
    return b"#define CREATE_TRACE_POINTS" in path.read_bytes()


def _order(tree: Path, path: str, folders: Collection[str]) -> tuple[bool, int, str]:
    """Near ones first, and of these small ones."""
    far = str(PurePosixPath(path).parent) not in folders
    return far, (tree / path).stat().st_size, path


def including(tree: Path, path: str) -> list[str]:
    """The C files that include ``path``, as far as they name it."""
    home = str(PurePosixPath(path).parent)
    if _ROOTS.match(path):
        name, where = _ROOTS.sub("", path), ["."]
        pattern = rf"^\s*#\s*include\s*<{_quoted(name)}>"
    else:
        # A private header, from its own directory or from one below.
        name = _quoted(PurePosixPath(path).name)
        pattern = rf'^\s*#\s*include\s*"(\.\.?/)*{name}"'
        where = [home]
    completed = process.run(
        ["grep", "-rlE", "--include=*.c", "-e", pattern, "--", *where],
        cwd=tree,
        env={"LC_ALL": "C"},
        check=False,  # 1: no match
    )
    names = (str(PurePosixPath(line)) for line in completed.stdout.splitlines())
    return sorted(name for name in names if is_compiled(name))


def _quoted(name: str) -> str:
    return name.replace(".", r"\.")
