# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall validate``: every stage from series to verdict, in order."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from ..base import DoesNotApply, FailedCheck, arch, cache, elsewhere
from ..build import Ground, kernel
from ..compile import CompileWork, ahead
from ..cost import objects
from ..debian import root
from ..guest import Guest, accel
from ..report import SeriesReport, report
from ..series import Context, Series
from ..tree import am, remote, source, tree
from . import builds, debugging, kernels, patches, sharing
from . import run as runs
from .request import Request
from .ui import Ui


def _on_architecture(request: Request) -> Request:
    """``request`` with the series as they are on its architecture."""
    series = tuple(series.on(request.arch) for series in request.series)
    return dataclasses.replace(request, series=series)


def validate(
    request: Request, ui: Ui, command: Sequence[str]
) -> tuple[Path, report.Report]:
    """Prove each series, or say why not; returns the run directory and its report.

    A series that fails does not stop the others.  `KeyboardInterrupt` leaves a report
    that says so, and the next run takes up what was finished.
    """
    request = _on_architecture(request)
    run = _begin(request, ui, command)
    try:
        with contextlib.suppress(runs.StageStopped):
            ground = _ground(request, run)
            sharing.prove(_subjects(request, run, ground), request, run)
            if request.level == "deep":
                _debug(request, run, ground)
        run.report.settle()
    except KeyboardInterrupt:
        run.report.status = "interrupted"
        raise
    finally:
        if run.report.status == "running":
            # An exception that is a bug of ours is no result.
            run.report.status = "could-not-run"
        run.save()
    return run.dir, run.report


def _begin(request: Request, ui: Ui, command: Sequence[str]) -> runs.Run:
    def describe(new: report.Report) -> None:
        new.options = _options(request)
        new.environment.arch = request.arch.name
        new.series = [
            SeriesReport(
                name=series.name,
                title=series.spec.title,
                not_sent=series.not_sent,
                digest=series.digest,
                patches=[
                    report.Patch(
                        file=patch.path.name,
                        subject=patch.subject,
                        sha256=cache.file_digest(patch.path),
                    )
                    for patch in series.patches
                ],
            )
            for series in request.series
        ]

    return runs.begin(
        request.out,
        command,
        ui,
        place=request.place,
        away=request.away,
        describe=describe,
    )


def _options(request: Request) -> dict[str, list[str]] | None:
    """The options with which `kstall validate` proves a series of ``request`` again,
    by name; None if only the whole command does."""
    if request.options is None:
        return None
    of_the_tree: dict[str, list[str]] = {}
    if request.kernel is not None:
        of_the_tree["--kernel"] = [remote.written(request.kernel)]
    if not request.arch.native:
        of_the_tree["--arch"] = [request.arch.name]
    if request.level != "full":
        of_the_tree["--level"] = [request.level]
    others = {name: list(values) for name, values in request.options.items()}
    return of_the_tree | others


def guests(
    request: Request, ui: Ui, command: Sequence[str]
) -> Iterator[tuple[runs.Run, Series, Guest, Guest | None]]:
    """A guest that could be booted for each series whose kernel could be built, and one
    of the base kernel if the series shows bugs.

    The report of the run and ``ui`` say what stopped the others; the verdict is that
    nothing was proven.
    """
    request = _on_architecture(request)
    run = _begin(request, ui, command)
    try:
        with contextlib.suppress(runs.StageStopped):
            ground = _ground(request, run)
            subjects = _subjects(request, run, ground)
            for subject, guest, base in sharing.guests(subjects, request, run):
                yield run, subject.series, guest, base
        for entry, stage in run.report.all_stages():
            if stage.error is not None:
                ui.error(entry.name if entry else None, stage)
    finally:
        run.report.status = "could-not-run"
        run.save()


def _ground(request: Request, run: runs.Run) -> Ground:
    with run.stage("tree") as stage:
        base = request.base
        if base is None:
            base = source.obtain(request.kernel, request.cache, run.ui.say)
        run.report.tree = report.Tree(
            kind=base.kind,
            origin=base.origin,
            version=base.version,
            describe=base.describe,
            commit=base.commit,
            id=base.id,
            dirty=list(base.dirty),
        )
        stage.summary = f"{base.version} from {base.describe} ({base.kind})"
        if base.dirty:
            stage.summary += f"; {len(base.dirty)} uncommitted paths left out"
    with run.stage("root") as stage:
        request.arch.require()
        scripts = request.project.scripts
        roots: list[root.Root] = []
        # This machine borrows programs from a root of its own architecture.
        for architecture in dict.fromkeys((arch.host(), request.arch)):
            packages = root.packages_for(scripts, architecture)
            new_root = root.obtain(
                packages,
                request.cache,
                run.ui.say,
                log=stage.log,
                whose=architecture,
                lending=roots[-1] if roots else None,
            )
            roots.append(new_root)
        lending, guest_root = roots[0], roots[-1]
        stage.reused = all(image.reused for image in roots)
        named = (
            f"{name} {guest_root.versions[name]}" for name in ("bpftrace", "dwarves")
        )
        stage.summary = f"Debian {root.SUITE} with {', '.join(named)}"
        if not request.arch.native:
            stage.summary = f"{request.arch.name}: {stage.summary}"
    with run.stage("toolchain") as stage:
        tools = kernel.toolchain(lending.pahole, request.cache, guest_root)
        stage.summary = tools.compiler + (", ccache" if tools.ccache else "")
        environment = run.report.environment
        environment.compiler = tools.compiler
        environment.qemu = accel.version_of(request.arch)
        environment.virtme_ng = metadata.version("virtme-ng")
        environment.pahole = tools.pahole
        environment.guest_root = guest_root.key
        packages = root.packages_for(request.project.scripts, request.arch)
        environment.guest.update((name, guest_root.versions[name]) for name in packages)
    return Ground(request.project, base, guest_root, tools, request.cache, lending)


def _debug(request: Request, run: runs.Run, ground: Ground) -> None:
    """Run all series that apply and can be configured on the debug kernels."""
    subjects = [
        (series, entry)
        for series, entry in zip(request.series, run.report.series, strict=True)
        if entry.applies
        and not any(
            stage.name == "config" and stage.status != "pass" for stage in entry.stages
        )
    ]
    if subjects:
        needed = _needed(request, run, ground, [series for series, _ in subjects])
        debugging.prove(ground, subjects, run, beside=needed, again=request.again)


def _needed(
    request: Request, run: runs.Run, ground: Ground, chosen: Sequence[Series]
) -> tuple[Series, ...]:
    """The fixes that ``chosen`` need and the request has not, if they apply."""
    requested = {series.name for series in request.series}
    names = dict.fromkeys(name for series in chosen for name in series.spec.needs)
    fixes = []
    for name in names:
        if name not in requested:
            (fix,) = request.project.load([name])
            with contextlib.suppress(am.ApplyError, am.BadPatch):
                tree.plan(ground.base, fix.patches, run.dir / "shared")
                fixes.append(fix)
    return tuple(fixes)


def _subjects(
    request: Request, run: runs.Run, ground: Ground
) -> tuple[sharing.AppliedSeries, ...]:
    """The series that apply, each by itself, after the checks of their patches.

    The report says what stopped the others.
    """
    if run.away is not None:
        _ahead(request, run, ground, run.away)
    subjects = []
    for series, entry in zip(request.series, run.report.series, strict=True):
        with contextlib.suppress(runs.StageStopped):
            subjects.append(_subject(request, run, ground, series, entry))
    return tuple(subjects)


def _ahead(
    request: Request, run: runs.Run, ground: Ground, away: elsewhere.Elsewhere
) -> None:
    """Start on workers what takes long, while the patches are checked here.

    Raises `runs.StageStopped` if no worker can do it.
    """
    with run.stage("workers") as stage:
        stage.summary = away.describe()
        plans: dict[str, tree.Plan] = {}
        shared = run.dir / "shared"
        for series in request.series:
            # Their own stages report such errors.
            with contextlib.suppress(DoesNotApply, FailedCheck):
                plans[series.name] = tree.plan(ground.base, series.patches, shared)
        applicable = [series for series in request.series if series.name in plans]
        sharing.ahead(applicable, ground, request.level, run)
        if request.level != "quick":
            context = run.context(request.project, request.cache, request.level)
            for series in applicable:
                plan = plans[series.name]
                ahead(_work(context, series, plan, ground))


def _work(
    context: Context, series: Series, plan: tree.Plan, ground: Ground
) -> CompileWork:
    return CompileWork(context, series, plan, ground)


def _subject(
    request: Request,
    run: runs.Run,
    ground: Ground,
    series: Series,
    entry: SeriesReport,
) -> sharing.AppliedSeries:
    with run.stage("apply", entry) as stage:
        entry.expected = expectation(series, ground.base.version, request.expected)
        scratch = run.dir / series.name
        try:
            plan = tree.plan(ground.base, series.patches, scratch, log=stage.log)
        except am.ApplyError as error:
            entry.merged = error.applied
            if entry.expected and not error.applied:
                raise _applies_no_longer(series, request, ground, error) from error
            raise
        stage.summary = f"{len(series.patches)} patches, {len(plan.touched)} files"
        if plan.offsets:
            stage.summary += f", {len(plan.offsets)} hunks at an offset"
        if entry.expected is False:
            stage.summary += "; it was not expected to apply here"
    patches.prove(series, plan, request.cache, run, entry)
    object_costs = _compile(request, run, ground, series, plan, entry)
    return sharing.AppliedSeries(series, entry, plan, ground, object_costs)


def expectation(
    series: Series, version: str, expected: bool | None = None
) -> bool | None:
    """Whether ``series`` is expected to apply to a tree of ``version``; None if that is
    not declared.  ``expected``, if it is not None, overrides series.toml."""
    if expected is not None or series.spec.applies is None:
        return expected
    return series.spec.applies.to(version)


def _applies_no_longer(
    series: Series, request: Request, ground: Ground, error: am.ApplyError
) -> FailedCheck:
    """The failure of a series that does not apply where it is expected to."""
    origin = "the matrix" if request.expected else "series.toml"
    advice = "rebase it: kstall rebase"
    if request.kernel is not None:
        advice += f" {shlex.quote(remote.written(request.kernel))}"
    return FailedCheck(
        f"no longer applies to {ground.base.version}, where {origin} expects it: "
        f"{error.what}",
        log=error.log,
        next=f"{advice} {series.name}; or take that tree out of [applies]",
    )


def _compile(
    request: Request,
    run: runs.Run,
    ground: Ground,
    series: Series,
    plan: tree.Plan,
    entry: SeriesReport,
) -> objects.ObjectCosts | None:
    """Compile what each patch touches (`builds.prove`); return what the objects tell of
    costs, or None at level quick."""
    if request.level == "quick":
        why = "LEVEL=quick: patches are not compiled one by one"
        run.skip("compile", why, entry)
        return None
    context = run.context(request.project, request.cache, request.level)
    context = dataclasses.replace(context, seeds=request.seeds)
    work = _work(context, series, plan, ground)
    with kernels.workspace(ground.base, run.ui) as checkout:
        patches.read(
            context, series, plan, lambda state: checkout(state).tree(), run, entry
        )
    # Not in one block: if the store has lost the tree that workers need, the tree is
    # packed from its workspace, which must not be ours then.
    with kernels.workspace(ground.base, run.ui) as checkout:
        return builds.prove(work, lambda state: checkout(state).tree(), run, entry)
