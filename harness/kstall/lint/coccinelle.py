# SPDX-License-Identifier: GPL-2.0-or-later
"""What Coccinelle says of C files, by the tree's own semantic patches.

As scripts/coccicheck runs them in its mode "report", but only on the files that are
asked for, each by itself.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base import parallel, process
from .patchcheck import Finding

_SCRIPTS = "scripts/coccinelle"
_REPORTS = re.compile(r"^virtual\s+(?:\w+\s*,\s*)*report\b", re.MULTILINE)
_OPTIONS = re.compile(r"^// *Options: *(.*)$", re.MULTILINE)
_REQUIRES = re.compile(r"^// *Requires: *([\d.]+)", re.MULTILINE)
_VERSION = re.compile(r"version ([\d.]+)")
_SAID = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+):\d+(?:-\d+)?: (?P<text>.*)")
# Another place in the same file, which moves with what is above it.
_PLACE = re.compile(r"\bline \d+")
_INCLUDES = ("arch/x86/include", "include", "arch/x86/include/uapi", "include/uapi")
_NO_OCAML = "No OCaml compiler found"
_TIMEOUT_S = 3600.0


class Coccinelle:
    """A `reading.Reader`: spatch, on C files and headers."""

    title = "coccinelle"
    package = "coccinelle"
    program = "spatch"
    apart = True

    def version(self) -> str:
        """What it calls itself; a program that is not there raises what `process.run`
        does."""
        return process.run([self.program, "--version"]).stdout.splitlines()[0].strip()

    def reads(self, path: str) -> bool:
        """Whether it reads such a file."""
        return path.endswith((".c", ".h")) and not path.startswith("tools/")

    def more(self, tree: Path, paths: Sequence[str]) -> tuple[str, ...]:
        """None: it is asked about touched files only."""
        return ()

    def read(
        self,
        tree: Path,
        paths: Sequence[str],
        scratch: Path,
        log: Path,
        progress: Callable[[int, int, str], None],
    ) -> tuple[list[Finding], list[str]]:
        """All findings in ``paths`` of ``tree``, and what could not be asked, and why.

        ``scratch`` is a directory that the caller removes.
        """
        groups = scratch / "groups"
        groups.write_text("\n\n".join(paths) + "\n", encoding="utf-8")
        found: list[Finding] = []
        left_out: list[str] = []
        scripts = sorted((tree / _SCRIPTS).rglob("*.cocci"))
        wanted = [
            one for one in scripts if _REPORTS.search(one.read_text(errors="replace"))
        ]
        version = _numbers(self.version())
        done = 0

        def came(script: Path, said: tuple[list[Finding], str | None]) -> None:
            nonlocal done
            done += 1
            progress(done, len(wanted), script.stem)
            found.extend(said[0])
            if said[1] is not None:
                left_out.append(f"{script.stem}: {said[1]}")

        tasks = {
            one: functools.partial(self._ask, tree, one, groups, version, log)
            for one in wanted
        }
        if tasks:
            parallel.each(tasks, len(os.sched_getaffinity(0)), came)
        found.sort(key=lambda one: (one.file, one.line, one.kind, one.text))
        return found, sorted(left_out)

    def _ask(
        self, tree: Path, script: Path, groups: Path, version: list[int], log: Path
    ) -> tuple[list[Finding], str | None]:
        text = script.read_text(errors="replace")
        needs = _REQUIRES.search(text)
        if needs is not None and _numbers(needs[1]) > version:
            return [], f"needs version {needs[1]}"
        options = _OPTIONS.search(text)
        done = process.run(
            (
                *(self.program, "-D", "report", "--no-show-diff", "--very-quiet"),
                *("--cocci-file", script.relative_to(tree)),
                *(options[1].split() if options is not None else ()),
                *(word for place in _INCLUDES for word in ("-I", place)),
                *("--include", "include/linux/kconfig.h", "--file-groups", groups),
            ),
            cwd=tree,
            env={"LC_ALL": "C.UTF-8"},
            log=log,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if _NO_OCAML in done.stdout:
            return [], "needs a compiler of OCaml"
        if done.returncode < 0 or done.returncode > 128:
            raise process.CommandError(done.argv, done.returncode, done.stdout)
        if done.returncode:
            first = (done.stdout.strip().splitlines() or ["it says nothing"])[-1]
            return [], f"spatch exits with {done.returncode}: {first}"
        return [*_findings(done.stdout, script.stem)], None


def _findings(said: str, kind: str) -> list[Finding]:
    return [
        Finding(
            match["file"].removeprefix("./"),
            int(match["line"]),
            kind,
            _PLACE.sub("line N", match["text"]),
        )
        for line in dict.fromkeys(said.splitlines())
        if (match := _SAID.fullmatch(line))
    ]


def _numbers(version: str) -> list[int]:
    named = _VERSION.search(version)
    text = named[1] if named is not None else version
    return [int(part) for part in re.findall(r"\d+", text)]
