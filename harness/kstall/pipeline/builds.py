# SPDX-License-Identifier: GPL-2.0-or-later
"""What compilers say of each state of a series, as a stage of a run."""

from __future__ import annotations

from collections.abc import Callable

from ..compile import Work, compiled, variants
from ..cost import footprint, gate, objects
from ..report import SeriesReport
from ..tree import AppliedTree, Plan
from .run import Run


def prove(
    work: Work,
    checkout: Callable[[Plan], AppliedTree],
    run: Run,
    entry: SeriesReport,
) -> objects.Told:
    """Add the checks to ``entry``; what objects tell of costs comes back.

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
        pairs = {name: objects.pairs(*two) for name, two in made.objects.items()}
    wanted = footprint.Wanted(gate.tracepoints(work.series), gate.hot(work.series))
    with run.stage("objects", entry) as stage:
        told = objects.Told(
            worst=objects.sizes(pairs[variants.WORST]),
            mitigated=objects.compare(pairs[variants.MITIGATED], wanted),
        )
        sites = len(told.mitigated.sites)
        stage.summary = (
            f"{sites} sites with mitigations; {len(told.worst)} functions of another "
            "size without jump labels"
        )
    return told
