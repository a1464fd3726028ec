# SPDX-License-Identifier: GPL-2.0-or-later
"""Compiler checks of every state of a series, as stages of a run."""

from __future__ import annotations

from collections.abc import Callable

from ..compile import CompileWork, compiled, variants
from ..cost import footprint, gate, objects
from ..evidence import compilecheck
from ..report import SeriesReport
from ..tree import AppliedTree, Plan
from . import processors
from .run import Run, score


def prove(
    work: CompileWork,
    checkout: Callable[[Plan], AppliedTree],
    run: Run,
    entry: SeriesReport,
) -> objects.ObjectCosts:
    """Add the checks to ``entry``; return what the objects tell of costs.

    A failed check stops nothing: the rest of the series can be proven all the same.
    """
    with run.stage("compile", entry) as stage:
        with processors.for_compilers():
            compilation = compiled(work, checkout)
        stage.reused = compilation.reused
        checks = compilecheck.judge(work.series, compilation.trials)
        entry.checks += checks
        judged = [check for check in checks if check.status != "skip"]
        count = sum(len(trial.outcomes) for trial in compilation.trials)
        stage.summary = f"{score(judged)}, of {count} builds"
        if work.context.level != "deep":
            stage.summary += "; LEVEL=deep has more configurations and compilers"
        pairs = {
            name: objects.pairs(*pair) for name, pair in compilation.objects.items()
        }
    declaration = footprint.Declaration(
        gate.tracepoints(work.series), gate.hot(work.series)
    )
    with run.stage("objects", entry) as stage:
        costs = objects.ObjectCosts(
            worst=objects.sizes(pairs.get(variants.WORST, {})),
            mitigated=objects.compare(pairs[variants.MITIGATED], declaration)
            if variants.MITIGATED in pairs
            else None,
            unmitigated=compilation.impossible.get(variants.MITIGATED),
        )
        sites = len(costs.mitigated.sites) if costs.mitigated is not None else "no"
        stage.summary = (
            f"{sites} sites with mitigations; {len(costs.worst)} functions change "
            "their size without jump labels"
        )
    return costs
