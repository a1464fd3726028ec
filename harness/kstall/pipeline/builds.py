# SPDX-License-Identifier: GPL-2.0-or-later
"""What compilers say of each state of a series, as a stage of a run."""

from __future__ import annotations

from collections.abc import Callable

from ..compile import Work, compiled
from ..cost import FunctionSize, worst
from ..report import SeriesReport
from ..tree import AppliedTree, Plan
from .run import Run


def prove(
    work: Work,
    checkout: Callable[[Plan], AppliedTree],
    run: Run,
    entry: SeriesReport,
) -> list[FunctionSize]:
    """Add the checks to ``entry``; what touched code grows by in the worst
    configuration comes back.

    A check that fails stops nothing: what the patches do can be found out all the same.
    """
    with run.stage("compile", entry) as stage:
        made = compiled(work, checkout)
        stage.reused = made.reused
        entry.checks += made.checks
        judged = [one for one in made.checks if one.status != "skip"]
        good = sum(one.status == "pass" for one in judged)
        stage.summary = f"{good} of {len(judged)} checks pass, of {made.builds} builds"
        if work.context.level != "deep":
            stage.summary += "; LEVEL=deep has more configurations and compilers"
        return worst.sizes(worst.pairs(*made.objects))
