# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall validate``: every stage from series to verdict, in order."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..base import FailedCheck, KstallError, cache, figure, process
from ..build import extra, kernel, programs
from ..compile import Work
from ..cost import FunctionSize, Kernels
from ..debian import root
from ..evidence import evidence, mutate
from ..guest import Guest, accel, machine_for
from ..report import SeriesReport, explain, report
from ..series import Context, Level, Project, Series
from ..tree import source, tree
from . import builds, debugging, debugkernel, overhead, patches, trials
from . import run as runs
from .ui import Ui

_JUDGING = ("judge", "gate")
# Kinds of checks that `judge_again` leaves as they are.
_KEPT = ("patch", "abi", "debug")


@dataclass(frozen=True)
class Request:
    """What is to be proven, on what, and where things are kept.

    ``level`` quick leaves out what the events cost, and with it the base kernel; deep
    adds what takes long and seldom finds anything.  ``again``: results of earlier
    guests are not used.  ``repeat``: boot each guest so many times.
    """

    project: Project
    series: tuple[Series, ...]
    kernel: Path | None
    cache: Path
    out: Path
    level: Level = "full"
    again: bool = False
    repeat: int | None = None


@dataclass(frozen=True)
class _Shared:
    """What all series of a run have in common."""

    base: source.Base
    root: root.Root
    tools: kernel.Toolchain


def validate(
    request: Request, ui: Ui, command: Sequence[str]
) -> tuple[Path, report.Report]:
    """Prove each series, or say why not; returns the run directory and its report.

    A series that fails does not stop the others.  `KeyboardInterrupt` leaves a report
    that says so, and the next run takes up what was finished.
    """
    run = _begin(request, ui, command)
    try:
        with contextlib.suppress(runs.StageStopped):
            shared = _shared(request, run)
            for series, entry in zip(request.series, run.report.series, strict=True):
                with contextlib.suppress(runs.StageStopped):
                    _prove(request, run, shared, series, entry)
            if request.level == "deep":
                _debug(request, run, shared)
        run.report.settle()
    except KeyboardInterrupt:
        run.report.status = "interrupted"
        raise
    finally:
        if run.report.status == "running":
            # A bug of ours is on its way up: that is no result.
            run.report.status = "could-not-run"
        run.save()
    return run.dir, run.report


def _context(request: Request, run: runs.Run) -> Context:
    return run.context(request.project, request.cache, request.level)


def _begin(request: Request, ui: Ui, command: Sequence[str]) -> runs.Run:
    run = runs.begin(request.out, command, ui)
    run.report.series = [
        SeriesReport(
            name=one.name,
            title=one.spec.title,
            digest=one.digest,
            patches=[
                report.Patch(
                    file=patch.path.name,
                    subject=patch.subject,
                    sha256=cache.file_digest(patch.path),
                )
                for patch in one.patches
            ],
        )
        for one in request.series
    ]
    return run


def guests(
    request: Request, ui: Ui, command: Sequence[str]
) -> Iterator[tuple[runs.Run, Series, Guest]]:
    """A guest that could be booted for each series whose kernel could be built.

    What stopped the others is in the report of the run, which ends as one that proved
    nothing.
    """
    run = _begin(request, ui, command)
    try:
        with contextlib.suppress(runs.StageStopped):
            shared = _shared(request, run)
            for series, entry in zip(request.series, run.report.series, strict=True):
                with contextlib.suppress(runs.StageStopped):
                    yield run, series, _ready(request, run, shared, series, entry)[1]
    finally:
        run.report.status = "could-not-run"
        run.save()


def _ready(
    request: Request,
    run: runs.Run,
    shared: _Shared,
    series: Series,
    entry: SeriesReport,
) -> tuple[Kernels | None, Guest, list[FunctionSize] | None]:
    """The guest of ``series``, with all that there is to build built."""
    both, built, made, grown = _kernels(request, run, shared, series, entry)
    entry.kernel = built.key
    with run.stage("accelerator", entry) as stage:
        speed = accel.probe(request.cache, built.image, shared.root, run.ui.say)
        stage.summary = f"{speed.kind}: {speed.why}"
        run.report.environment.accelerator = speed.kind
        run.report.environment.accelerator_reason = speed.why
    return both, Guest(built, shared.root, speed, machine_for(series), made), grown


def _shared(request: Request, run: runs.Run) -> _Shared:
    with run.stage("tree") as stage:
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
        wanted = root.packages(request.project.scripts / "guest-packages.txt")
        guest_root = root.obtain(wanted, request.cache, run.ui.say, log=stage.log)
        stage.reused = guest_root.reused
        named = (
            f"{name} {guest_root.versions[name]}" for name in ("bpftrace", "dwarves")
        )
        stage.summary = f"Debian {root.SUITE} with {', '.join(named)}"
    with run.stage("toolchain") as stage:
        tools = kernel.toolchain(guest_root.pahole, request.cache)
        stage.summary = tools.compiler + (", ccache" if tools.ccache else "")
        environment = run.report.environment
        environment.compiler = tools.compiler
        qemu = process.run(["qemu-system-x86_64", "--version"]).stdout
        environment.qemu = qemu.splitlines()[0]
        environment.virtme_ng = metadata.version("virtme-ng")
        environment.pahole = tools.pahole
        environment.guest_root = guest_root.key
        environment.guest.update((name, guest_root.versions[name]) for name in wanted)
    return _Shared(base, guest_root, tools)


def _prove(
    request: Request,
    run: runs.Run,
    shared: _Shared,
    series: Series,
    entry: SeriesReport,
) -> None:
    both, guest, grown = _ready(request, run, shared, series, entry)
    context = _context(request, run)
    bench = trials.Bench(context, series, guest, run, entry, again=request.again)
    saved: evidence.Evidence | None
    if request.repeat is None:
        saved = trials.once(bench)
    else:
        saved = trials.many(bench, request.repeat)
    if saved is not None:
        run.report.environment.guest.update(saved.versions)
    if both is not None:
        overhead.prove(context, series, both, guest.accel, run, entry)
        assert entry.overhead is not None
        entry.overhead.worst = grown
    elif request.level != "quick":
        overhead.not_compared(run, entry)
    if saved is not None and entry.evidence is not None:
        _mutate(request, run, series, run.dir / entry.evidence, entry)


def _mutate(
    request: Request,
    run: runs.Run,
    series: Series,
    results: Path,
    entry: SeriesReport,
) -> None:
    """Whether the checks would have noticed wrong values, as `mutate` asks them."""
    if not mutate.concerns(series):
        return
    with run.stage("mutate", entry) as stage:
        if request.level == "quick":
            stage.status = "skip"
            stage.summary = "LEVEL=quick: nothing is said of what checks would notice"
            return
        if any(check.status in ("fail", "error") for check in entry.checks):
            stage.status = "skip"
            stage.summary = "only evidence that is accepted can be falsified"
            return
        entry.mutation, stage.reused = mutate.mutation(
            series, results, request.cache, run.report.environment.cpus
        )
        stage.summary = mutate.summary(entry.mutation)
        figure("falsified values", len(entry.mutation.mutants), "mutants")
        entry.checks.append(mutate.judge(series, entry.mutation))


def mutate_again(
    project: Project, directory: Path, names: Sequence[str], cache_dir: Path
) -> report.Report:
    """Falsify the evidence of a run, and judge it by today's checks.

    The report that is returned has only series with evidence, and of their checks only
    that one; nothing of the run is written.  Raises `KstallError` if ``directory`` is
    no run directory, or has no evidence of a series in ``names``.
    """
    found = read_run(directory)
    series = {one.name: one for one in project.load(names)}
    found.stages = []
    found.series = [
        entry
        for entry in found.series
        if entry.evidence is not None and entry.name in series
    ]
    if absent := sorted(set(names) - {entry.name for entry in found.series}):
        raise KstallError(
            f"{directory} has no evidence of {', '.join(absent)}",
            next="name a run that came to its end",
        )
    for entry in found.series:
        entry.stages, entry.checks = [], []
        which = series[entry.name]
        if which.spec.tracepoint:
            assert entry.evidence is not None
            entry.mutation, _ = mutate.mutation(
                which,
                directory / entry.evidence,
                cache_dir,
                len(os.sched_getaffinity(0)),
            )
            entry.checks = [mutate.judge(which, entry.mutation)]
    return found


def _debug(request: Request, run: runs.Run, shared: _Shared) -> None:
    """Run all series that apply and can be configured on the debug kernels."""
    wanted = [
        (series, entry)
        for series, entry in zip(request.series, run.report.series, strict=True)
        if any(one.name == "apply" and one.status == "pass" for one in entry.stages)
        and not any(
            one.name == "config" and one.status != "pass" for one in entry.stages
        )
    ]
    if wanted:
        ground = debugkernel.Ground(
            request.project, shared.base, shared.root, shared.tools, request.cache
        )
        debugging.prove(ground, wanted, run)


def read_run(directory: Path) -> report.Report:
    """The report of a run; `KstallError` if ``directory`` has none that is whole."""
    try:
        return report.read(directory / "report.json")
    except (OSError, ValueError) as error:
        raise KstallError(
            f"{directory} holds no report.json of a run: {error}",
            next="name a run directory, such as out/latest",
        ) from error


def judge_again(project: Project, directory: Path) -> report.Report:
    """Judge the saved results of a run by today's checks; nothing is written.

    A run that was cut short has not proven anything, however good what it had is.
    Raises `KstallError` if ``directory`` is no run directory, or a broken one.
    """
    found = read_run(directory)
    before = found.status
    for entry in found.series:
        if entry.evidence is not None:
            (series,) = project.load([entry.name])
            saved = evidence.load(directory / entry.evidence)
            entry.events = list(trials.events(series, saved))
            # They read no results, or those of other guests.
            kept = [one for one in entry.checks if one.kind in _KEPT]
            entry.checks = [*kept, *trials.judge(series, saved)]
            if entry.overhead is not None:
                entry.checks += overhead.judge(series, entry.overhead)
            if entry.mutation is not None:
                # Of the checks of then; `kstall mutate` asks those of today.
                entry.mutation = mutate.argued(series, entry.mutation)
                entry.checks.append(mutate.judge(series, entry.mutation))
            # The verdict of these stages was that of the checks of then.
            entry.stages = [one for one in entry.stages if one.name not in _JUDGING]
    found.settle()
    if before in ("running", "interrupted") and found.status == "proven":
        found.status = before
    explain.fill(found, directory)
    return found


def _kernels(
    request: Request,
    run: runs.Run,
    shared: _Shared,
    series: Series,
    entry: SeriesReport,
) -> tuple[
    Kernels | None,
    kernel.Kernel,
    tuple[programs.Program, ...],
    list[FunctionSize] | None,
]:
    """Apply, configure and build; only what is not there yet is made.

    Also returned is what code grows by in the worst configuration, where that was seen.

    First the base, which series of one configuration share: then the workspace changes
    once, and what the patches do not touch is compiled once.
    """
    with run.stage("apply", entry) as stage:
        scratch = run.dir / series.name
        plan = tree.plan(shared.base, series.patches, scratch, log=stage.log)
        stage.summary = f"{len(series.patches)} patches, {len(plan.touched)} files"
        if plan.offsets:
            stage.summary += f", {len(plan.offsets)} hunks at an offset"
    patches.prove(series, plan, request.cache, run, entry)
    with _workspace(shared.base, run.ui) as checkout:
        grown = _compile(request, run, shared, series, plan, checkout, entry)
        base = extra_base = extra_built = None
        if series.spec.overhead is not None and request.level == "quick":
            with run.stage("base", entry) as stage:
                stage.status = "skip"
                stage.summary = "LEVEL=quick: nothing is said of what the events cost"
        elif series.spec.overhead is not None:
            bare = dataclasses.replace(
                checkout(plan.upto(0)), absent=kernel.added_symbols(plan)
            )
            with run.stage("base", entry) as stage, _not_the_series():
                base = _build(request, run, shared, series, bare, stage)
                extra_base = _extra(request, shared, series, base, bare, stage)
        patched = checkout(plan)
        with run.stage("config", entry) as stage:
            config = _configure(request, shared, series, patched, stage)
            stage.reused = config.reused
            stage.summary = "; ".join(config.remarks) or "every requested symbol is set"
        with run.stage("build", entry) as stage:
            try:
                built = _build(request, run, shared, series, patched, stage)
            except kernel.BuildError as error:
                if base is None and error.file not in plan.touched:
                    run.ui.say(f"does {error.file} build without the patches?")
                    bare = dataclasses.replace(
                        checkout(plan.upto(0)), absent=kernel.added_symbols(plan)
                    )
                    _build(request, run, shared, series, bare, stage)
                raise
            if base is not None:
                extra_built = _extra(request, shared, series, built, patched, stage)
        made: tuple[programs.Program, ...] = ()
        if any(load.from_tree for load in series.spec.workload):
            with run.stage("programs", entry) as stage:
                made = programs.obtain(
                    series,
                    plan,
                    shared.tools,
                    request.cache,
                    patched.tree,
                    log=stage.log,
                )
                stage.reused = all(one.reused for one in made)
                stage.summary = ", ".join(Path(one.name).name for one in made)
    both = None
    if base is not None:
        both = Kernels(base, built, shared.root, extra_base, extra_built)
    return both, built, made, grown


@contextlib.contextmanager
def _not_the_series() -> Iterator[None]:
    """What fails without the patches is no failure of theirs."""
    try:
        yield
    except FailedCheck as error:
        raise KstallError(
            f"without the patches: {error.what}",
            log=error.log,
            next=error.next or "nothing can be compared with a base that is not there",
        ) from error


def _compile(
    request: Request,
    run: runs.Run,
    shared: _Shared,
    series: Series,
    plan: tree.Plan,
    checkout: Callable[[tree.Plan], _Checkout],
    entry: SeriesReport,
) -> list[FunctionSize] | None:
    """Compile what each patch touches, as `builds.prove` does."""
    if request.level == "quick":
        with run.stage("compile", entry) as stage:
            stage.status = "skip"
            stage.summary = "LEVEL=quick: patches are not compiled one by one"
        return None
    context = _context(request, run)
    work = Work(context, series, plan, shared.tools, shared.root)
    return builds.prove(work, lambda state: checkout(state).tree(), run, entry)


def _extra(
    request: Request,
    shared: _Shared,
    series: Series,
    built: kernel.Kernel,
    checkout: _Checkout,
    stage: runs.Opened,
) -> Path | None:
    """The directory of our own modules for ``built``, if ``series`` has any."""
    sources = dict.fromkeys(one.module for one in series.measures if one.module)
    if not sources:
        return None
    return extra.obtain(
        [request.project.scripts / one for one in sources],
        built,
        series.name,
        _configure(request, shared, series, checkout, stage),
        shared.tools,
        request.cache,
        checkout.tree,
        log=stage.log,
    )


@dataclass(frozen=True)
class _Checkout:
    """A plan, and the workspace with it once that is asked for.

    ``absent`` are configuration symbols that the series has and this tree has not.
    """

    plan: tree.Plan
    tree: Callable[[], tree.AppliedTree]
    absent: frozenset[str] = frozenset()


@contextlib.contextmanager
def _workspace(base: source.Base, ui: Ui) -> Iterator[Callable[[tree.Plan], _Checkout]]:
    """What checks plans out, one after the other, while no other run does."""
    with contextlib.ExitStack() as held:

        @functools.cache
        def workspace() -> Callable[[tree.Plan], tree.AppliedTree]:
            # Only when something is to be made: it is locked then, and others wait.
            return held.enter_context(tree.workspace(base, ui.say))

        def checkout(plan: tree.Plan) -> _Checkout:
            return _Checkout(plan, functools.cache(lambda: workspace()(plan)))

        yield checkout


def _configure(
    request: Request,
    shared: _Shared,
    series: Series,
    checkout: _Checkout,
    stage: runs.Opened,
) -> kernel.Configured:
    fragments = (
        request.project.kconfigs / "base.config",
        request.project.kconfigs / series.spec.kconfig,
    )
    return kernel.configured(
        checkout.plan,
        checkout.tree,
        fragments,
        shared.tools,
        request.cache,
        log=stage.log,
        absent=checkout.absent,
    )


def _build(
    request: Request,
    run: runs.Run,
    shared: _Shared,
    series: Series,
    checkout: _Checkout,
    stage: runs.Opened,
) -> kernel.Kernel:
    config = _configure(request, shared, series, checkout, stage)
    built = kernel.built(
        checkout.plan,
        checkout.tree,
        series.name,
        config,
        shared.tools,
        request.cache,
        log=stage.log,
        progress=lambda p: run.ui.progress(p.done, p.total, p.step),
    )
    stage.reused = built.reused
    stage.summary = f"Linux {built.release}, build id {built.build_id[:12]}"
    return built
