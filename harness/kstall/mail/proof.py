# SPDX-License-Identifier: GPL-2.0-or-later
"""The run that proves a series in its current state on the current base, if any.

A mail quotes one run and nothing else.  A run counts only if it is finished and did all
that a full run does, if its digest of the series and its id of the base are the current
ones, and if every check passed, and every stage that all its series share.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, arch, program
from ..evidence import evidence
from ..report import Report, SeriesReport, report
from ..series import Series
from ..tree import Base, remote

#: The number of rejected runs that an error lists.
_NAMED = 4
# The check of the compile stage that applies to every patch.
_EACH_PATCH = "compiles_as_configured"


class NoProof(KstallError):
    """No run has proven this series on this base."""


@dataclass(frozen=True)
class Proof:
    """A run directory, its report, and the series' part of it."""

    dir: Path
    report: Report
    entry: SeriesReport

    def results(self) -> evidence.Evidence:
        """The guest's results; raises `NoProof` if they are gone."""
        assert self.entry.evidence is not None
        try:
            return evidence.load(self.dir / self.entry.evidence)
        except KstallError as error:
            raise NoProof(
                f"{self.dir}: proven, but the guest's results are gone: {error}",
                next="run it again",
            ) from error


def find(
    series: Series, base: Base, out: Path, kernel: Path | None, run: Path | None = None
) -> Proof:
    """The newest run below ``out``, or the given ``run``, that proves ``series``.

    ``kernel`` is the user's KERNEL=.  A run in which exactly these patches failed on
    exactly this base ends the search, also if it was interrupted later: an older
    proof does not outweigh it.  Raises `NoProof`, which says why each of the newest
    runs does not count, and what to run.
    """
    refused = []
    for directory in [run] if run is not None else _newest_first(out):
        try:
            run_report = report.read(directory / "report.json")
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            refused.append(f"{directory.name}: no readable report.json: {reason}")
            continue
        entry = next(
            (entry for entry in run_report.series if entry.name == series.name), None
        )
        if entry is None:
            if run is not None:
                refused.append(f"{directory.name}: not about {series.name}")
            continue
        if (fault := _unfit(run_report, entry, series, base)) is not None:
            refused.append(f"{directory.name}: {fault}")
            if _refutes(run_report, entry, series, base):
                break
            continue
        return Proof(directory, run_report, entry)
    words = [program(), "validate", "--level", "full"]
    if kernel is not None:
        words += ["--kernel", remote.written(kernel)]
    words.append(series.name)
    where = str(run) if run is not None else f"no run in {out}"
    verb = "does not prove" if run is not None else "proves"
    raise NoProof(
        "\n    ".join(
            [f"{where} {verb} {series.name} as it is on {base.id}", *refused[:_NAMED]]
        ),
        next=shlex.join(words),
    )


def _newest_first(out: Path) -> Iterator[Path]:
    """Run directories; their names begin with the time of their start."""
    directories = [path.parent for path in out.glob("*/report.json")]
    runs = [(path.name, path) for path in directories if not path.is_symlink()]
    # Those of a matrix are one level down.
    for path in out.glob("*/*/report.json"):
        matrix = path.parent.parent
        if (matrix / "matrix.json").exists() and not matrix.is_symlink():
            runs.append((matrix.name, path.parent))
    yield from (path for _, path in sorted(runs, reverse=True))


def _refutes(
    run_report: Report, entry: SeriesReport, series: Series, base: Base
) -> bool:
    """Whether this report says that the series, as it is, failed on ``base``."""
    if run_report.tree is None or run_report.tree.id != base.id:
        return False
    # A stage that all series share is none of this one's, but they were part of it.
    statuses = [stage.status for stage in (*run_report.stages, *entry.stages)]
    statuses += [check.status for check in entry.checks]
    # The series of a run that was interrupted have no status of their own yet.
    return entry.digest == series.digest and "fail" in (entry.status, *statuses)


def _unfit(  # noqa: PLR0911 - one after the other
    run_report: Report, entry: SeriesReport, series: Series, base: Base
) -> str | None:
    """Why this report proves nothing about the series as it is, or None."""
    if run_report.status in ("running", "interrupted"):
        return f"the run is {run_report.status}"
    if entry.digest != series.digest:
        return f"with other patches or another series.toml ({entry.digest})"
    if run_report.environment.arch != arch.host().name:
        return f"with kernels for {run_report.environment.arch}"
    if run_report.tree is None:
        return "stopped before it had a tree"
    if run_report.tree.id != base.id:
        return f"on another base ({run_report.tree.id})"
    if series.spec.overhead is not None and entry.overhead is None:
        return "a quick run, which does not measure overhead"
    if (fault := _quick(entry)) is not None:
        return fault
    if entry.status != "pass" or entry.evidence is None:
        wrong = [
            check.name for check in entry.checks if check.status in ("fail", "error")
        ]
        wrong += [
            stage.name for stage in entry.stages if stage.status in ("fail", "error")
        ]
        return f"not proven ({', '.join(wrong) or entry.status})"
    if stopped := [
        stage.name for stage in run_report.stages if stage.status in ("fail", "error")
    ]:
        return f"stopped in {', '.join(stopped)}, which all its series share"
    declared = {check.name for check in series.spec.check}
    judged = {check.name for check in entry.checks}
    if missing := sorted(declared - judged):
        return f"without a verdict on {', '.join(missing)}"
    return None


def _quick(entry: SeriesReport) -> str | None:
    """Why this is no full run, or None.

    A series may declare no overhead, but its patches are always compiled one by one, as
    bisection relies on that.
    """
    compiled = next((stage for stage in entry.stages if stage.name == "compile"), None)
    if compiled is None or compiled.status == "skip":
        return "a quick run, which compiles no patch by itself"
    judged = {check.name: check.status for check in entry.checks}
    if judged.get(_EACH_PATCH, "skip") == "skip" and compiled.status == "pass":
        return f"without a verdict on {_EACH_PATCH}"
    return None
