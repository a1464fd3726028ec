# SPDX-License-Identifier: GPL-2.0-or-later
"""What kbuild compiles of a few directories under a configuration.

Single objects can be asked for whatever the configuration says, and then fail for
reasons that nobody has who configures as the Makefiles want it.  So the Makefiles are
asked first.
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
# Where a header is included by a path that leaves this much of its own out.
_ROOTS = re.compile(r"^(?:include|arch/\w+/include)/(?:uapi/)?")
# With more users than that a header is everybody's: those near the series count.
_MANY = 40
_FEW = 6


@dataclass(frozen=True)
class Listed:
    """What kbuild makes of directories: ``objects`` by path, and those of them that
    have ``no_source`` to be made of."""

    objects: frozenset[str]
    no_source: frozenset[str]


def listed(
    tree: Path, config: Path, arch: str, folders: Iterable[str], scratch: Path
) -> Listed:
    """The objects of ``folders`` of ``tree`` under the file ``config``.

    ``arch`` is the name that the architecture's directory has; ``scratch`` is a
    directory that the caller removes.  A folder that kbuild does not come to has none.
    """
    place = scratch / "include/config"
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config, place / "auto.conf")
    wanted = {str(PurePosixPath(one)) for one in folders}
    found: set[str] = set()
    # The top Makefile goes to the libraries by itself.
    waiting = [".", "lib", f"arch/{arch}/lib"]
    seen = set(waiting)
    while waiting:
        here = waiting.pop()
        for line in _list(tree, arch, here, scratch):
            kind, _, name = line.partition(" ")
            name = name.strip("/")
            if kind == "object" and here in wanted and name.endswith(".o"):
                found.add(name)
            elif kind == "folder" and name not in seen:
                seen.add(name)
                if any(_is_in(one, name) for one in wanted):
                    waiting.append(name)
    missing = {
        name
        for name in found
        if not any((tree / name).with_suffix(end).exists() for end in _CODE)
    }
    return Listed(frozenset(found - missing), frozenset(missing))


def _is_in(folder: str, top: str) -> bool:
    return folder == top or folder.startswith(f"{top}/")


def _list(tree: Path, arch: str, folder: str, scratch: Path) -> list[str]:
    done = process.run(
        (
            *("make", "-rR", "-s", "-f", _LISTING, "kstall-objects"),
            *(f"srctree={tree}", f"srcroot={tree}", "objtree=.", f"obj={folder}"),
            *(f"SRCARCH={arch}", "need-modorder=1"),
        ),
        cwd=scratch,
        check=False,
    )
    # A Makefile that is broken, which is 2, is a finding of whoever builds by it.
    if done.returncode not in (0, 2):
        raise process.CommandError(
            done.argv,
            done.returncode,
            done.stdout,
            next="if make was killed (memory?), run the same command again",
        )
    return done.stdout.splitlines()


def object_of(source: str) -> str:
    """The path of the object that kbuild makes of ``source``."""
    return str(PurePosixPath(source).with_suffix(".o"))


def is_compiled(path: str) -> bool:
    """Whether ``path`` is a source of the kernel itself, C or assembler."""
    return path.endswith(_CODE) and not path.startswith(_OUTSIDE)


def is_header(path: str) -> bool:
    """Whether ``path`` is a header of the kernel itself."""
    return path.endswith(".h") and not path.startswith(_OUTSIDE)


def is_prose(path: str) -> bool:
    """Whether no build ever reads ``path``."""
    return path.startswith("Documentation/") or path in ("MAINTAINERS", "CREDITS")


@dataclass(frozen=True)
class Users:
    """Other C files that include what a series touches, and have to be compiled.

    All of ``always``, and of each of ``some`` the first few that are configured:
    whoever includes it may stumble, and all is compiled when the kernel is built.
    """

    always: tuple[str, ...] = ()
    some: tuple[tuple[str, ...], ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Whatever may be chosen."""
        return tuple(dict.fromkeys([*self.always, *itertools.chain(*self.some)]))

    def chosen(self, objects: Collection[str]) -> tuple[str, ...]:
        """Those to compile where ``objects`` are configured."""
        found = dict.fromkeys(self.always)
        for group in self.some:
            there = [one for one in group if object_of(one) in objects]
            found |= dict.fromkeys(there[:_FEW])
        return tuple(found)


def users(tree: Path, touched: Collection[str]) -> Users:
    """Those of ``tree`` that include a file which is ``touched``.

    Always compiled are those that include a C file, and those that make the tracepoints
    of a header.
    """
    near = {str(PurePosixPath(one).parent) for one in touched if is_compiled(one)}
    always: dict[str, None] = {}
    some = []
    for path in sorted(touched):
        if not (is_header(path) or is_compiled(path)):
            continue
        others = [one for one in including(tree, path) if one not in touched]
        if is_compiled(path):
            always |= dict.fromkeys(others)
            continue
        if "trace" in path:
            made = [one for one in others if _makes_tracepoints(tree / one)]
            always |= dict.fromkeys(made)
        if len(others) > _MANY:
            others = [one for one in others if str(PurePosixPath(one).parent) in near]
        others.sort(key=lambda one: _order(tree, one, near))
        some.append(tuple(others))
    return Users(tuple(always), tuple(some))


def _makes_tracepoints(path: Path) -> bool:
    return b"#define CREATE_TRACE_POINTS" in path.read_bytes()


def _order(tree: Path, path: str, near: Collection[str]) -> tuple[bool, int, str]:
    """Near ones first, and of these small ones."""
    far = str(PurePosixPath(path).parent) not in near
    return far, (tree / path).stat().st_size, path


def including(tree: Path, path: str) -> list[str]:
    """The C files that include ``path``, as far as they name it."""
    home = str(PurePosixPath(path).parent)
    if _ROOTS.match(path):
        name, where = _ROOTS.sub("", path), ["."]
        pattern = rf"^\s*#\s*include\s*<{_quoted(name)}>"
    else:
        # A private one, from its own directory or from one below.
        name = _quoted(PurePosixPath(path).name)
        pattern = rf'^\s*#\s*include\s*"(\.\.?/)*{name}"'
        where = [home]
    done = process.run(
        ["grep", "-rlE", "--include=*.c", "-e", pattern, "--", *where],
        cwd=tree,
        env={"LC_ALL": "C"},
        check=False,  # 1 is for none
    )
    names = (str(PurePosixPath(line)) for line in done.stdout.splitlines())
    return sorted(name for name in names if is_compiled(name))


def _quoted(name: str) -> str:
    return name.replace(".", r"\.")
