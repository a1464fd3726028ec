# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall rebase``: a series on another tree, compiled patch by patch.

So are the tree's own test programs that it changes: kbuild compiles none of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import DoesNotApply, KstallError, Status, cache
from ..build import Ground, programs
from ..report import Report, SeriesReport, explain
from ..series import Series
from ..tree import rebase, source, tree
from . import kernels, validate
from . import run as runs
from .request import Request
from .ui import Ui

PLACE = "rebase"


@dataclass(frozen=True)
class Rebased:
    """The outcome for a series; its report is in ``dir``.

    ``result`` is None if an earlier stage failed.
    """

    series: Series
    dir: Path
    report: Report
    result: rebase.RebaseResult | None

    @property
    def clean(self) -> bool:
        """Whether all patches that are left apply and compile."""
        return (
            self.result is not None
            and self.result.conflict is None
            and self.report.series[0].status == "pass"
        )


def port(
    request: Request,
    origin: Path | None,
    ui: Ui,
    command: Sequence[str],
    *,
    compiled: bool = True,
) -> Rebased:
    """Carry the one series of ``request`` over from the tree ``origin`` to ``kernel``.

    ``compiled``: compile the result, patch by patch.  The report calls a conflict "does
    not apply"; a rebase that stopped at one is continued.  Another rebase of the series
    below the same ``out`` is waited for.
    """
    (series,) = request.series
    tops = request.out / PLACE

    def waiting(holder: str) -> None:
        ui.say(f"waiting for {holder}, which carries {series.name} over")

    with cache.lock(tops / f".run-{series.name}.lock", waiting=waiting):
        return _port(request, origin, ui, command, compiled=compiled)


def _port(
    request: Request,
    origin: Path | None,
    ui: Ui,
    command: Sequence[str],
    *,
    compiled: bool,
) -> Rebased:
    (series,) = request.series
    tops = request.out / PLACE
    place = tops / f".run-{series.name}"
    cache.remove(place)
    request = dataclasses.replace(request, place=place)
    run = validate._begin(request, ui, command)
    entry = run.report.series[0]
    result = None
    try:
        with contextlib.suppress(runs.StageStopped):
            with run.stage("from") as stage:
                old = source.obtain(origin, request.cache, ui.say)
                stage.summary = f"{old.version} from {old.describe} ({old.kind})"
            with run.stage("onto") as stage:
                new = source.obtain(request.kernel, request.cache, ui.say)
                stage.summary = f"{new.version} from {new.describe} ({new.kind})"
            request = dataclasses.replace(request, base=new)
            with run.stage("rebase", entry) as stage:
                directory = tops / f"{series.name}-{new.id}"
                result = rebase.port(series, old, new, directory, request.cache, ui.say)
                stage.summary = _summary(series, result)
                if result.conflict is not None:
                    raise _conflict(result, command)
                if result.dropped:
                    raise _dropped(result)
            _prove(request, series, result, run, compiled=compiled)
    except KeyboardInterrupt:
        run.report.status = "interrupted"
        raise
    finally:
        if run.report.status == "running":
            _settle(run.report)
        # If there is no result, the error was printed, and the report holds no more.
        target = place if result is None else result.directory / "run"
        for _, done in run.report.all_stages():
            # It names its log, which is moved.
            if done.error is not None:
                done.error = done.error.replace(str(place), str(target))
        run.save()
        if target != place:
            cache.remove(target)
            place.rename(target)
    return Rebased(series, target, run.report, result)


def _summary(series: Series, result: rebase.RebaseResult) -> str:
    text = f"{result.count} of {len(series.patches)} patches carried over"
    if result.gone:
        names = ", ".join(patch.path.name for patch in result.gone)
        text += f"; the tree has {names}"
    return text


def _conflict(result: rebase.RebaseResult, command: Sequence[str]) -> DoesNotApply:
    conflict = result.conflict
    assert conflict is not None
    places = ", ".join(conflict.places) or "resolved, and not yet committed"
    steps = "\n        ".join(result.commands(command))
    return DoesNotApply(
        f"{conflict.patch.path.name}, {places}: both trees changed this; "
        f"{result.count} patches before it are carried over",
        next=f"resolve it there, outside of your tree:\n        {steps}",
    )


def _dropped(result: rebase.RebaseResult) -> KstallError:
    names = ", ".join(patch.path.name for patch in result.dropped)
    verb = "were" if len(result.dropped) > 1 else "was"
    return KstallError(
        f"{names} {verb} dropped: not in the result, nor found in the new tree",
        next=f"pick from the branch {rebase.SERIES} in {shlex.quote(str(result.tree))},"
        f" or remove {shlex.quote(str(result.directory))} to start over",
    )


def _prove(
    request: Request,
    series: Series,
    result: rebase.RebaseResult,
    run: runs.Run,
    *,
    compiled: bool,
) -> None:
    """Apply the result by plain `git am`, and compile each state of it."""
    entry = run.report.series[0]
    assert request.base is not None
    with run.stage("apply", entry) as stage:
        if not result.patches:
            stage.status = "skip"
            stage.summary = "nothing is left of it: the tree has all of its patches"
            return
        scratch = run.dir / series.name
        plan = tree.plan(request.base, result.patches, scratch, log=stage.log)
        stage.summary = f"{len(result.patches)} patches, {len(plan.touched)} files"
    if not compiled:
        why = "--no-compile: whether it compiles is not known"
        run.skip("compile", why, entry)
        return
    ground = validate._ground(request, run)
    now = dataclasses.replace(series, patches=result.patches)
    validate._compile(request, run, ground, now, plan, entry)
    _compile_programs(now, plan, ground, run, entry)


def _compile_programs(
    series: Series, plan: tree.Plan, ground: Ground, run: runs.Run, entry: SeriesReport
) -> None:
    """Compile the test programs of the tree that the patches change.

    Not those of other workloads: they do not depend on what was carried over.
    """
    changed = [
        load
        for load in series.spec.workload
        if load.from_tree is not None
        and not set(plan.touched).isdisjoint(load.from_tree.sources)
    ]
    if not changed:
        return
    spec = series.spec.model_copy(update={"workload": tuple(changed)})
    with run.stage("programs", entry) as stage:
        with kernels.workspace(ground.base, run.ui) as checkout:
            compiled = programs.obtain(
                dataclasses.replace(series, spec=spec),
                plan,
                ground.tools,
                ground.cache,
                checkout(plan).tree,
                log=stage.log,
            )
        stage.reused = all(program.reused for program in compiled)
        stage.summary = ", ".join(Path(program.name).name for program in compiled)


def _settle(report: Report) -> None:
    """The verdict: patches that were carried over and compile pass."""
    report.settle()
    entry = report.series[0]
    states: set[Status] = {check.status for check in entry.checks}
    states |= {stage.status for _, stage in report.all_stages()}
    reached = any(stage.name in ("compile", "apply") for stage in entry.stages)
    if reached and states.isdisjoint(explain.UNSETTLED):
        entry.status, report.status = "pass", "proven"


def write(outcome: Rebased) -> list[Path]:
    """Replace the series' own patches by the result.

    Raises `KstallError` unless it is complete and each file has the name that it had.
    """
    series, result = outcome.series, outcome.result
    if result is None or not outcome.clean:
        raise KstallError(
            f"{series.name}: not written to {series.dir}: it is incomplete, or does "
            "not compile"
        )
    names = [patch.path.name for patch in result.patches]
    if names != [patch.path.name for patch in series.patches]:
        raise KstallError(
            f"{series.name}: not written to {series.dir}: these are other patches than "
            f"series.toml lists ({', '.join(names)})",
            next=f"copy them by hand from {shlex.quote(str(result.directory))}/patches"
            ", and list them there",
        )
    for patch in result.patches:
        text = patch.path.read_text(encoding="utf-8", errors="surrogateescape")
        target = series.dir / patch.path.name
        scratch = target.with_suffix(".new")
        scratch.write_text(text, encoding="utf-8", errors="surrogateescape")
        scratch.replace(target)
    return [series.dir / name for name in names]
