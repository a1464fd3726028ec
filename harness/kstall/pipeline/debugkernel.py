# SPDX-License-Identifier: GPL-2.0-or-later
"""Debug kernels (KASAN and lockdep; KCSAN): which series are in one, how it is built.

One with KASAN and lockdep takes twenty minutes to compile on two processors, so all
series that apply together share one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ..base import cache
from ..build import Ground, kernel, programs
from ..guest import Flavour, Side
from ..series import Series
from ..tree import am, source, tree
from . import groups, kernels, processors
from .groups import Group
from .run import Opened, Run


def grouped(
    base: source.Base, all_series: Sequence[Series], scratch: Path
) -> tuple[Group, ...]:
    """A group of all series that apply together, and one for each of the others, with
    the fixes that it needs, if these are there and apply with it.

    Raises `am.ApplyError` for a series that does not apply by itself.
    """
    first, division = groups.applied(base, all_series, scratch)
    apart = {outlier.name for outlier in division.outliers}
    return (
        first,
        *(
            _apart(base, series, all_series, scratch)
            for series in all_series
            if series.name in apart
        ),
    )


def _apart(
    base: source.Base, series: Series, all_series: Sequence[Series], scratch: Path
) -> Group:
    fixes: list[Series] = []
    plan = tree.plan(base, series.patches, scratch)
    for fix in (other for other in all_series if other.name in series.spec.needs):
        before = [patch for other in (*fixes, fix) for patch in other.patches]
        with contextlib.suppress(am.ApplyError, am.BadPatch):
            plan = tree.plan(base, [*before, *series.patches], scratch)
            fixes.append(fix)
    return Group((series,), plan, fixes=tuple(fixes))


def build(
    ground: Ground, group: Group, flavour: Flavour, side: Side, run: Run
) -> kernel.Kernel:
    """The kernel of ``group`` with its patches, or the same symbols without them.

    Both are built in one output directory, whose name no series can have.  Raises
    `StageStopped`.
    """
    plan = group.plan if side == "patched" else group.plan.upto(0)
    fragments = group.fragments(ground.project, f"{flavour}.config")
    absent = group.absent(len(group.plan.patches) if side == "patched" else 0)
    with (
        run.stage(f"{flavour}-{side}-{group.name}") as stage,
        kernels.workspace(plan.base, run.ui) as workspace,
    ):
        checkout = workspace(plan).tree
        config = kernel.configured(
            plan,
            checkout,
            fragments,
            ground.tools,
            ground.cache,
            log=stage.log,
            absent=absent,
        )
        with processors.for_compilers():
            built = kernel.built(
                plan,
                checkout,
                f"+{flavour}",
                config,
                ground.tools,
                ground.cache,
                log=stage.log,
                ui=run.ui,
                # Warnings that sanitizers cause (of stack size, say) are no patch's
                # fault.
                strict=False,
            )
        cache.hold_for(built, built.path)
        stage.reused = built.reused
        stage.summary = f"Linux {built.release}, build id {built.build_id[:12]}"
    return built


def tree_programs(
    ground: Ground, group: Group, series: Series, run: Run, stage: Opened
) -> tuple[programs.Program, ...]:
    """The programs that ``series`` has from the tree with all patches of ``group``."""
    plan = group.plan
    with kernels.workspace(plan.base, run.ui) as workspace:
        checkout = workspace(plan).tree
        return programs.obtain(
            series, plan, ground.tools, ground.cache, checkout, log=stage.log
        )
