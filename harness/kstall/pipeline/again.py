# SPDX-License-Identifier: GPL-2.0-or-later
"""Finished runs, read again: judged by today's checks, and falsified.

Nothing is built or booted, and the run itself is not changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..base import KstallError, arch
from ..cost import gate
from ..evidence import evidence, mutate
from ..report import explain, matrix, report
from ..series import Project
from ..verdict import Check
from . import trials

# Stages whose verdict was that of the old checks.
_JUDGING = ("judge", "gate")


def read_run(directory: Path) -> report.Report:
    """The report of a run; `KstallError` if ``directory`` has none that is whole."""
    if (directory / matrix.FILE).exists():
        columns = [
            str(directory / column.directory)
            for column in matrix.read(directory).columns
        ]
        raise KstallError(
            f"{directory} is a matrix of {len(columns)} runs",
            next=f"name one of them, such as {columns[0]}",
        )
    try:
        return report.read(directory / "report.json")
    except (OSError, ValueError) as error:
        raise KstallError(
            f"{directory} holds no report.json of a run: {error}",
            next="name a run directory, such as out/latest",
        ) from error


def mutate_again(
    project: Project, directory: Path, names: Sequence[str], cache_dir: Path
) -> report.Report:
    """Falsify the evidence of a run, and judge it by today's checks.

    The report that is returned has only series with evidence, and only that check of
    each; the run itself is not changed.  Raises `KstallError` if ``directory`` is no
    run directory, or has no evidence, or none of a series in ``names``.
    """
    outcome = read_run(directory)
    architecture = arch.named(outcome.environment.arch)
    by_name = {series.name: series.on(architecture) for series in project.load(names)}
    outcome.stages = []
    outcome.series = [
        entry
        for entry in outcome.series
        if entry.evidence is not None and entry.name in by_name
    ]
    absent = sorted(set(names) - {entry.name for entry in outcome.series})
    if absent or not outcome.series:
        whose = f" of {', '.join(absent)}" if absent else ""
        raise KstallError(
            f"{directory} has no evidence{whose}",
            next="name a run that came to its end",
        )
    for entry in outcome.series:
        entry.stages, entry.checks = [], []
        series = by_name[entry.name]
        if series.spec.tracepoint:
            assert entry.evidence is not None
            entry.mutation, _ = mutate.mutation(
                series,
                directory / entry.evidence,
                cache_dir,
                len(os.sched_getaffinity(0)),
            )
            entry.checks = [mutate.judge(series, entry.mutation)]
    return outcome


def judge_again(project: Project, directory: Path) -> report.Report:
    """Judge the saved results of a run by today's checks; nothing is written.

    A run that was interrupted, or that a bug of kstall ended, proves nothing, even if
    all results that it has are good.
    Raises `KstallError` if ``directory`` is no run directory, or a broken one.
    """
    outcome = read_run(directory)
    before, finished = outcome.status, _is_finished(outcome)
    for entry in outcome.series:
        if entry.evidence is not None:
            (series,) = project.load([entry.name])
            series = series.on(arch.named(outcome.environment.arch))
            saved = evidence.load(directory / entry.evidence)
            entry.events = list(trials.events(series, saved))
            judged = trials.judge(series, saved)
            if entry.overhead is not None:
                judged += gate.judge(series, entry.overhead)
            if entry.mutation is not None:
                # By the checks of that run; `kstall mutate` uses today's.
                entry.mutation = mutate.argued(series, entry.mutation)
                judged.append(mutate.judge(series, entry.mutation))
            entry.checks = [*_unchanged(entry.checks, judged), *judged]
            entry.stages = [
                stage
                for stage in entry.stages
                # Where one stopped, what comes after it was not done.
                if stage.name not in _JUDGING or stage.status == "error"
            ]
    outcome.settle()
    if not finished and outcome.status in ("proven", "does-not-apply"):
        outcome.status = before
    explain.fill(outcome, directory)
    return outcome


def _is_finished(outcome: report.Report) -> bool:
    """Whether a run came to its end, and so to the verdict that follows from it."""
    if outcome.status != "could-not-run":
        return outcome.status not in ("running", "interrupted")
    settled = outcome.model_copy(deep=True)
    settled.settle()
    return settled.status == outcome.status and all(
        now.status == then.status
        for now, then in zip(settled.series, outcome.series, strict=True)
    )


def _unchanged(checks: Sequence[Check], judged: Sequence[Check]) -> Iterator[Check]:
    """Those of ``checks`` that do not depend on the results that were ``judged``."""
    names = {check.name for check in judged}
    for check in checks:
        # Only the series' own have workloads; it may no longer declare them.
        if check.name not in names and not check.workloads:
            yield check
