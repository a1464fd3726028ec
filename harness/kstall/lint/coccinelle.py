# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings of Coccinelle in C files, by the tree's own semantic patches.

They run as in scripts/coccicheck's mode "report", but only on the requested files,
each file by itself.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import parallel, process
from .patchcheck import Finding

_SCRIPTS = "scripts/coccinelle"
_REPORTS = re.compile(r"^virtual\s+(?:\w+\s*,\s*)*report\b", re.MULTILINE)
_OPTIONS = re.compile(r"^// *Options: *(.*)$", re.MULTILINE)
_REQUIRES = re.compile(r"^// *Requires: *([\d.]+)", re.MULTILINE)
_VERSION = re.compile(r"version ([\d.]+)")
_REMARK = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+):\d+(?:-\d+)?: (?P<text>.*)")
# A reference to another line of the file, which moves when lines above it change.
_PLACE = re.compile(r"\bline \d+")
_INCLUDES = ("arch/x86/include", "include", "arch/x86/include/uapi", "include/uapi")
_NO_OCAML = "No OCaml compiler found"
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class _Unread:
    """Why a semantic patch has no findings; ``failed``: it may have some next time."""

    reason: str
    failed: bool = False


class Coccinelle:
    """A `reading.Reader`: spatch, on C files and headers."""

    title = "coccinelle"
    package = "coccinelle"
    program = "spatch"
    apart = True

    def version(self) -> str:
        """Its version line; raises as `process.run` does if it is not installed."""
        return process.run([self.program, "--version"]).stdout.splitlines()[0].strip()

    def reads(self, path: str) -> bool:
        """Whether it reads ``path``."""
        return path.endswith((".c", ".h")) and not path.startswith("tools/")

    def more(self, tree: Path, paths: Sequence[str]) -> tuple[str, ...]:
        """None: it reads touched files only."""
        return ()

    def read(
        self,
        tree: Path,
        paths: Sequence[str],
        scratch: Path,
        log: Path,
        progress: Callable[[int, int, str], None],
    ) -> tuple[list[Finding], list[str], list[str]]:
        """All findings in ``paths`` of ``tree``, the semantic patches that cannot run,
        and those that failed, with the reason.

        ``scratch`` is a directory that the caller removes.
        """
        groups = scratch / "groups"
        groups.write_text("\n\n".join(paths) + "\n", encoding="utf-8")
        findings: list[Finding] = []
        left_out: list[str] = []
        failed: list[str] = []
        scripts = sorted((tree / _SCRIPTS).rglob("*.cocci"))
        reporting = [
            script
            for script in scripts
            if _REPORTS.search(script.read_text(errors="replace"))
        ]
        version = _numbers(self.version())
        finished = 0

        def collect(script: Path, outcome: list[Finding] | _Unread) -> None:
            nonlocal finished
            finished += 1
            progress(finished, len(reporting), script.stem)
            if isinstance(outcome, _Unread):
                parts = failed if outcome.failed else left_out
                parts.append(f"{script.stem}: {outcome.reason}")
            else:
                findings.extend(outcome)

        tasks = {
            script: functools.partial(self._run, tree, script, groups, version, log)
            for script in reporting
        }
        if tasks:
            parallel.each(tasks, len(os.sched_getaffinity(0)), collect)
        findings.sort(
            key=lambda finding: (finding.file, finding.line, finding.kind, finding.text)
        )
        return findings, sorted(left_out), sorted(failed)

    def _run(
        self, tree: Path, script: Path, groups: Path, version: list[int], log: Path
    ) -> list[Finding] | _Unread:
        text = script.read_text(errors="replace")
        needs = _REQUIRES.search(text)
        if needs is not None and _numbers(needs[1]) > version:
            return _Unread(f"needs version {needs[1]}")
        options = _OPTIONS.search(text)
        completed = process.run(
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
        if _NO_OCAML in completed.stdout:
            return _Unread("needs an OCaml compiler")
        if completed.returncode < 0 or completed.returncode > 128:
            raise completed.failure()
        if completed.returncode:
            last = (completed.stdout.strip().splitlines() or ["no output"])[-1]
            reason = f"spatch exits with {completed.returncode}: {last}"
            return _Unread(reason, failed=True)
        return _findings(completed.stdout, script.stem)


def _findings(output: str, kind: str) -> list[Finding]:
    return [
        Finding(
            match["file"].removeprefix("./"),
            int(match["line"]),
            kind,
            _PLACE.sub("line N", match["text"]),
        )
        for line in dict.fromkeys(output.splitlines())
        if (match := _REMARK.fullmatch(line))
    ]


def _numbers(version: str) -> list[int]:
    match = _VERSION.search(version)
    text = match[1] if match is not None else version
    return [int(part) for part in re.findall(r"\d+", text)]
