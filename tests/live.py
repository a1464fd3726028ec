# SPDX-License-Identifier: GPL-2.0-or-later
"""Running the whole of kstall from a test, as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kstall.report import Stage, report


@dataclass(frozen=True)
class Outcome:
    """A finished ``kstall validate``."""

    exit_code: int
    output: str
    dir: Path
    report: report.Report

    def stage(self, name: str) -> Stage:
        """A stage of the first series, or one that all share."""
        stages = [*self.report.stages, *self.report.series[0].stages]
        return next(stage for stage in stages if stage.name == name)

    def failed(self) -> dict[str, str]:
        """What failed, by check, with the comparisons that decided."""
        return {
            check.name: check.detail
            or "\n".join(
                f"{comparison.label}: {comparison.seen}, expected {comparison.wanted}"
                for comparison in check.comparisons
                if not comparison.ok
            )
            for check in self.report.series[0].checks
            if check.status in ("fail", "error")
        }


def kstall(project: Path) -> list[str]:
    """The command, to be run on ``project``."""
    return [sys.executable, "-m", "kstall", "--project", str(project)]


def validate(project: Path, out: Path, *arguments: str) -> Outcome:
    """Run ``kstall validate`` on ``project``; the cache is the user's own."""
    return run(project, "validate", out, *arguments)


def run(project: Path, verb: str, out: Path, *arguments: str) -> Outcome:
    """Run a verb of ``kstall`` that makes a run directory below ``out``."""
    done = subprocess.run(
        [*kstall(project), verb, "--out", str(out), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    directory = (out / "latest").resolve()
    assert directory.exists(), done.stdout
    saved = report.read(directory / "report.json")
    return Outcome(done.returncode, done.stdout, directory, saved)


def edit(patch: Path, old: str, new: str) -> None:
    """Make ``old`` in ``patch`` ``new``, of as many lines, as its hunks count them."""
    text = patch.read_text()
    count = text.count(old)
    assert count == 1, f"{old!r} occurs {count} times in {patch.name}"
    assert old.count("\n") == new.count("\n"), "the hunk's line count would be wrong"
    patch.write_text(text.replace(old, new))


def keep_only(folder: Path, checks: Sequence[str], *, binaries: bool = False) -> None:
    """Drop the other checks, workloads that none of ``checks`` needs, and costs.

    ``binaries`` has them compared all the same, but no instruction counted.
    """
    toml = folder / "series.toml"
    text = toml.read_text()
    whole = tomllib.loads(text)
    shown = [excerpt["check"] for excerpt in whole.get("shown", [])]
    if shown and not set(shown) & set(checks):
        checks = [*checks, shown[0]]  # a fix has to show something
    needed = {
        load
        for check in whole["check"]
        if check["name"] in checks
        for load in check["workloads"]
    }
    others = [check["name"] for check in whole["check"] if check["name"] not in checks]
    code = folder / "checks.py"
    if others:
        # What is private judges nothing.
        public = rf"(?m)^def (?=(?:{'|'.join(map(re.escape, others))})\b)"
        code.write_text(re.sub(public, "def _", code.read_text()))
    kept = {
        "check": set(checks),
        "shown": set(checks),
        "workload": needed,
        "overhead": set[str](),
    }
    parts = []
    keep = True
    # A table goes with those below it: [[workload.inject]] with its [[workload]].
    for part in re.split(r"(?m)^(?=\[)", text):
        # Parts of records may be of workloads that are dropped, and so may what is
        # said of them.
        if part.startswith("[[tracepoint.part]]") or (
            part.startswith("[[unproven]]") and re.search(r"(?m)^part = ", part)
        ):
            continue
        if header := re.match(r"\[\[?(\w+)(\.)?", part):
            table, below = header.groups()
            if table == "overhead":
                keep = binaries and not part.startswith("[[overhead.workload]]")
            elif not below:
                name = re.search(r'(?m)^(?:name|check) = "(.*)"$', part)
                keep = table not in kept or (
                    name is not None and name[1] in kept[table]
                )
            elif table == "on":
                # What another architecture skips may be gone.
                keep = not part.startswith("[[")
        if keep:
            parts.append(part)
    if binaries and not any(part.startswith("[[overhead.") for part in parts):
        # Tables for mail have to be the last.
        first = next(n for n, part in enumerate(parts) if part.startswith("[[check]]"))
        parts.insert(first, "[overhead]\n\n")
    toml.write_text("".join(parts))
