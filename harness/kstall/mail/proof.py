# SPDX-License-Identifier: GPL-2.0-or-later
"""The run that proved a series as it is, on the base that it is: or that there is none.

A mail quotes one run and nothing else.  It counts only if it is finished and left out
nothing that a full run does, if its digest of the series and its id of the base are
those of today, and if every check passed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError
from ..evidence import evidence
from ..report import Report, SeriesReport, report
from ..series import Series
from ..tree import Base

#: How many runs an error names that do not count.
_NAMED = 4
# Of what the compile stage asks the one thing that every patch answers.
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
        """What the guest brought back; raises `NoProof` if that is gone."""
        assert self.entry.evidence is not None
        try:
            return evidence.load(self.dir / self.entry.evidence)
        except KstallError as error:
            raise NoProof(
                f"{self.dir}: proven, but what the guest brought back is gone: {error}",
                next="run it again",
            ) from error


def find(
    series: Series, base: Base, out: Path, kernel: Path | None, run: Path | None = None
) -> Proof:
    """The newest run below ``out``, or the given ``run``, that proves ``series``.

    ``kernel`` is what the user named as such.  A run in which just these patches failed
    on just this base ends the search: an older proof does not outweigh it.  Raises
    `NoProof`, which says why each of the newest runs does not count, and what to run.
    """
    refused = []
    for directory in [run] if run is not None else _newest_first(out):
        try:
            found = report.read(directory / "report.json")
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            refused.append(f"{directory.name}: no readable report.json: {reason}")
            continue
        entry = next((one for one in found.series if one.name == series.name), None)
        if entry is None:
            if run is not None:
                refused.append(f"{directory.name}: not about {series.name}")
            continue
        if (why := _unfit(found, entry, series, base)) is not None:
            refused.append(f"{directory.name}: {why}")
            if _refutes(found, entry, series, base):
                break
            continue
        return Proof(directory, found, entry)
    words = ["kstall", "validate", "--level", "full"]
    if kernel is not None:
        words += ["--kernel", str(kernel)]
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
    """Run directories; their names begin with the time they were begun."""
    found = [path.parent for path in out.glob("*/report.json")]
    runs = [(path.name, path) for path in found if not path.is_symlink()]
    # Those of a matrix are one level down.
    for path in out.glob("*/*/report.json"):
        matrix = path.parent.parent
        if (matrix / "matrix.json").exists() and not matrix.is_symlink():
            runs.append((matrix.name, path.parent))
    yield from (path for _, path in sorted(runs, reverse=True))


def _refutes(found: Report, entry: SeriesReport, series: Series, base: Base) -> bool:
    """Whether this report says that the series, as it is, failed on ``base``."""
    same = found.tree is not None and found.tree.id == base.id
    return same and entry.digest == series.digest and entry.status == "fail"


def _unfit(
    found: Report, entry: SeriesReport, series: Series, base: Base
) -> str | None:
    """Why this report proves nothing about the series as it is, or None."""
    if found.status in ("running", "interrupted"):
        return f"the run is {found.status}"
    if entry.digest != series.digest:
        return f"of other patches or another series.toml ({entry.digest})"
    if found.tree is None:
        return "it did not come to a tree"
    if found.tree.id != base.id:
        return f"on another base ({found.tree.id})"
    if series.spec.overhead is not None and entry.overhead is None:
        return "a quick run, which says nothing of what the events cost"
    if (why := _quick(entry)) is not None:
        return why
    if entry.status != "pass" or entry.evidence is None:
        wrong = [one.name for one in entry.checks if one.status in ("fail", "error")]
        wrong += [one.name for one in entry.stages if one.status in ("fail", "error")]
        return f"not proven ({', '.join(wrong) or entry.status})"
    declared = {check.name for check in series.spec.check}
    judged = {check.name for check in entry.checks}
    if missing := sorted(declared - judged):
        return f"without a verdict on {', '.join(missing)}"
    return None


def _quick(entry: SeriesReport) -> str | None:
    """Why this is no full run, or None.

    A series may have no costs to be asked for; its patches are always compiled one by
    one, and whoever bisects relies on that.
    """
    compiled = next((one for one in entry.stages if one.name == "compile"), None)
    if compiled is None or compiled.status == "skip":
        return "a quick run, which compiles no patch by itself"
    judged = {one.name: one.status for one in entry.checks}
    if judged.get(_EACH_PATCH, "skip") == "skip" and compiled.status == "pass":
        return f"without a verdict on {_EACH_PATCH}"
    return None
