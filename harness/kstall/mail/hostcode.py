# SPDX-License-Identifier: GPL-2.0-or-later
"""Files of a kernel tree that may run code on the machine that builds or reads it.

A build compiles programs for the machine it runs on (``hostprogs``), and calls scripts
from anywhere in the tree.  No list can name all of these, so what counts is what is
certainly none: C, headers and assembler of the kernel, and documents.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from ..lint import reading
from ..series import Level
from ..tree import Base, tree

_CODE = (".c", ".h", ".S")
_DOCUMENTS = (".rst", ".txt", ".yaml")
# Programs and scripts, and what is included there, are of many kinds in these.
_PLACES = re.compile(r"(?:scripts|tools|usr)/|.*/tools/|arch/[^/]+/boot/")
_MAKEFILE = re.compile(r"(?:.*/)?(?:Makefile|Kbuild)[^/]*")
_PROGRAMS = re.compile(r"(?m)^[ \t]*hostprogs[^\s:+?=]*[ \t]*[:+?]?=(.*)$")
_OBJECTS = re.compile(r"(?m)^[ \t]*(\S+)-(?:cxx)?objs[ \t]*[:+?]?=(.*)$")
# A rule of a Makefile's own, which can compile anything beside it.
_COMPILER = re.compile(r"\$[({]HOSTCC[)}]")
_SEARCHED = re.compile(r"-I[ \t]*\$[({]srctree[)}]/([^\s$]+)(?=\s|$)")
_INCLUDED = re.compile(r'(?m)^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]')


def among(paths: Iterable[str], base: Base, level: Level) -> tuple[str, ...]:
    """Those of ``paths`` that may run code on this machine in a proof at ``level``.

    ``base`` is the tree that patches touch them in.
    """
    programs = _programs(base)
    return tuple(
        path
        for path in paths
        if not _is_harmless(path)
        or path in programs
        or (level == "deep" and _is_read_by_sphinx(path, base))
    )


def _is_harmless(path: str) -> bool:
    """Whether ``path`` is by its name code of the kernel, or prose."""
    if path.startswith("Documentation/"):
        return path.endswith(_DOCUMENTS) or path.startswith("Documentation/ABI/")
    if path in ("MAINTAINERS", "CREDITS"):
        return True
    return path.endswith(_CODE) and _PLACES.match(path) is None


def _is_read_by_sphinx(path: str, base: Base) -> bool:
    """Whether a document that Sphinx reads has text of ``path``: there a directive
    such as ``ifconfig`` evaluates Python."""
    sphinx, _ = reading.CHECKS["sphinx_clean"]
    is_document = path.startswith("Documentation/")
    return is_document or bool(sphinx.more(base.path, [path]))


def _programs(base: Base) -> frozenset[str]:
    """Sources of programs that a build of ``base`` compiles for its own machine, and
    each place where a header that they include may be found."""
    regular = frozenset(tree.regular(base))
    names = [path for path in regular if _MAKEFILE.fullmatch(path)]
    makefiles = {
        path: file.text.replace("\\\n", " ")
        for path, file in tree.pristine(base, names).items()
        if file is not None
    }
    everywhere = _searched(makefiles.get("Makefile", ""))
    reached: set[str] = set()
    for path, text in makefiles.items():
        home = posixpath.dirname(path)
        sources = set(_sources(home, text))
        if _COMPILER.search(text):
            sources |= {
                name
                for name in regular
                if posixpath.dirname(name) == home and name.endswith((".c", ".h"))
            }
        if sources:
            places = [home, *everywhere, *_searched(text)]
            reached |= _included(base, regular, sources, places)
    return frozenset(reached)


def _sources(home: str, makefile: str) -> Iterator[str]:
    """The C files of the ``hostprogs`` of a Makefile in the directory ``home``."""
    objects: dict[str, list[str]] = {}
    for program, members in _OBJECTS.findall(makefile):
        objects.setdefault(program, []).extend(members.split())
    for line in _PROGRAMS.findall(makefile):
        for program in line.split():
            for member in (program, *objects.get(program, ())):
                stem = member.removesuffix(".o")
                yield posixpath.normpath(posixpath.join(home, f"{stem}.c"))


def _searched(makefile: str) -> list[str]:
    """The directories in which a Makefile lets the host's compiler look for headers."""
    lines = [line for line in makefile.splitlines() if "HOST" in line]
    return [place for line in lines for place in _SEARCHED.findall(line)]


def _included(
    base: Base, regular: frozenset[str], sources: set[str], places: list[str]
) -> set[str]:
    """``sources`` and, at any depth, what they include, wherever that may be found.

    Also where the base has no such file: a new one would be found first.
    """
    reached: set[str] = set()
    pending = sources
    while pending:
        reached |= pending
        named = set()
        for path, file in tree.pristine(base, pending & regular).items():
            folders = [posixpath.dirname(path), *places]
            for name in _INCLUDED.findall(file.text if file else ""):
                named |= {
                    posixpath.normpath(posixpath.join(folder, name))
                    for folder in folders
                }
        pending = named - reached
    return reached
