# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of a series' patches, as stages of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..lint import patches, reading
from ..report import SeriesReport
from ..series import Context, Series
from ..tree import AppliedTree, Plan, tree
from .run import Run, score


def prove(
    series: Series, plan: tree.Plan, cache_dir: Path, run: Run, entry: SeriesReport
) -> None:
    """Add the checks to ``entry``.

    A failed check stops nothing: the rest of the series can be proven all the same.
    """
    with run.stage("patches", entry) as stage:
        checks, stage.reused = patches.judge(
            series, plan, cache_dir, run.dir / series.name
        )
        entry.checks += checks
        stage.summary = score(checks, f"checks of {len(series.patches)} patches")


def read(
    context: Context,
    series: Series,
    plan: Plan,
    checkout: Callable[[Plan], AppliedTree],
    run: Run,
    entry: SeriesReport,
) -> None:
    """Add the checks by slow programs that read sources to ``entry``, at level deep; at
    other levels, that they were not made."""
    if context.level != "deep":
        entry.checks += reading.postponed()
        return
    with run.stage("reading", entry) as stage:
        checks, stage.reused = reading.judge(context, series, plan, checkout)
        entry.checks += checks
        judged = [check for check in checks if check.status != "skip"]
        good = sum(check.status == "pass" for check in judged)
        stage.summary = f"{good} of {len(judged)} programs found nothing new"
