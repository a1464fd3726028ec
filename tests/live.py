# SPDX-License-Identifier: GPL-2.0-or-later
"""Running the whole of kstall from a test, as a user would."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kstall import report
from kstall.series import Project


@dataclass(frozen=True)
class Outcome:
    """A finished ``kstall validate``."""

    exit_code: int
    said: str
    dir: Path
    report: report.Report

    def stage(self, name: str) -> report.Stage:
        """A stage of the first series, or one that all share."""
        stages = [*self.report.stages, *self.report.series[0].stages]
        return next(stage for stage in stages if stage.name == name)

    def failed(self) -> dict[str, str]:
        """What failed, by check, with the comparisons that decided."""
        return {
            check.name: check.detail
            or "\n".join(
                f"{one.label}: {one.seen}, expected {one.wanted}"
                for one in check.comparisons
                if not one.ok
            )
            for check in self.report.series[0].checks
            if check.status in ("fail", "error")
        }


def kstall(project: Path) -> list[str]:
    """The command, to be run on ``project``."""
    return [sys.executable, "-m", "kstall", "--project", str(project)]


def validate(project: Path, out: Path, *arguments: str) -> Outcome:
    """Run ``kstall validate`` on ``project``; the cache is the user's own."""
    done = subprocess.run(
        [*kstall(project), "validate", "--out", str(out), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    directory = (out / "latest").resolve()
    saved = report.read(directory / "report.json")
    return Outcome(done.returncode, done.stdout, directory, saved)


def require_caught(
    project: Project, out: Path, series: str, file: str, old: str, new: str, *by: str
) -> None:
    """Break ``project``, a copy, by one change to a patch; the checks ``by`` fail.

    What the series costs is not measured: that has mutants of its own.
    """
    folder = project.patches / series
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    assert old.count("\n") == new.count("\n"), "the hunk's line count would be wrong"
    (folder / file).write_text(text.replace(old, new))
    toml = folder / "series.toml"
    what, _, _ = toml.read_text().partition("\n[[overhead.")
    toml.write_text(what.removesuffix("[overhead]\n") + "\n")
    found = validate(project.root, out, series)
    assert found.exit_code == 1, found.said
    assert set(by) <= set(found.failed()), found.failed()
