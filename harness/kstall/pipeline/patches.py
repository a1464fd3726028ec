# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of a series' patches, as a stage of a run."""

from __future__ import annotations

from pathlib import Path

from ..lint import patches
from ..report import SeriesReport
from ..series import Series
from ..tree import tree
from .run import Run


def prove(
    series: Series, plan: tree.Plan, cache_dir: Path, run: Run, entry: SeriesReport
) -> None:
    """Add the checks to ``entry``.

    One that fails stops nothing: what the patches do can be found out all the same.
    """
    with run.stage("patches", entry) as stage:
        checks, stage.reused = patches.judge(
            series, plan, cache_dir, run.dir / series.name
        )
        entry.checks += checks
        good = sum(one.status == "pass" for one in checks)
        count = len(series.patches)
        stage.summary = f"{good} of {len(checks)} checks of {count} patches pass"
