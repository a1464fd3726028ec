# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall validate``: every stage from series to verdict, in order."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from . import (
    accel,
    builds,
    cache,
    common,
    debugging,
    debugkernel,
    evidence,
    extra,
    kernel,
    overhead,
    patches,
    process,
    programs,
    report,
    root,
    source,
    tree,
)
from . import run as runs
from .costs import FunctionSize
from .counting import Kernels
from .errors import KstallError
from .guestrun import Guest, machine_for, run_guest
from .report import SeriesReport
from .series import Project, Series
from .ui import Ui

_JUDGING = ("judge", "gate")
# Kinds of checks that `judge_again` leaves as they are.
_KEPT = ("patch", "abi", "debug")
Level = Literal["quick", "full", "deep"]


@dataclass(frozen=True)
class Request:
    """What is to be proven, on what, and where things are kept.

    ``level`` quick leaves out what the events cost, and with it the base kernel; deep
    adds what takes long and seldom finds anything.
    """

    project: Project
    series: tuple[Series, ...]
    kernel: Path | None
    cache: Path
    out: Path
    level: Level = "full"


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
    both, built, made, grown = _kernels(request, run, shared, series, entry)
    entry.kernel = built.key
    with run.stage("accelerator", entry) as stage:
        speed = accel.probe(request.cache, built.image, shared.root, run.ui.say)
        stage.summary = f"{speed.kind}: {speed.why}"
        run.report.environment.accelerator = speed.kind
        run.report.environment.accelerator_reason = speed.why
    guest = Guest(built, shared.root, speed, machine_for(series), made)
    with run.stage("guest", entry) as stage:
        results = run_guest(
            request.project, series, guest, request.cache, run.dir, stage, run.ui
        )
        entry.evidence = str(results.relative_to(run.dir))
    with run.stage("judge", entry) as stage:
        saved = evidence.load(results)
        run.report.environment.guest.update(saved.versions)
        entry.events = list(_events(series, saved))
        checks = _judge(series, saved)
        entry.checks += checks
        good = sum(check.status == "pass" for check in checks)
        stage.summary = f"{good} of {len(checks)} checks pass"
    if both is not None:
        overhead.prove(request.project, series, both, speed, request.cache, run, entry)
        assert entry.overhead is not None
        entry.overhead.worst = grown
    elif request.level != "quick":
        overhead.not_compared(run, entry)


def _debug(request: Request, run: runs.Run, shared: _Shared) -> None:
    """All series that apply, on kernels that watch themselves."""
    wanted = [
        (series, entry)
        for series, entry in zip(request.series, run.report.series, strict=True)
        if any(one.name == "apply" and one.status == "pass" for one in entry.stages)
    ]
    if wanted:
        ground = debugkernel.Ground(
            request.project, shared.base, shared.root, shared.tools, request.cache
        )
        debugging.prove(ground, wanted, run)


def _events(series: Series, saved: evidence.Evidence) -> Iterator[report.Event]:
    """The declared events; offsets and sizes are those of the booted kernel."""
    for point in series.spec.tracepoint:
        layout = saved.layouts.get(point.event)
        made = report.Event(
            name=point.event,
            kind=point.kind,
            joins=point.joins,
            sites=[
                f"{site.function}() in {site.file} ({'hot' if site.hot else 'cold'})"
                for site in point.site
            ],
            fields=[
                report.EventField(name=name, ctype=ctype)
                for name, ctype in point.fields.items()
            ],
        )
        if layout is not None:
            made.fields = [
                report.EventField(
                    name=one.name, ctype=one.ctype, offset=one.offset, size=one.size
                )
                for one in layout.fields
            ]
            made.holes = sum(hole.size for hole in layout.holes())
            made.print_fmt = layout.print_fmt
        yield made


def _judge(series: Series, saved: evidence.Evidence) -> list[report.Check]:
    return [
        report.Check.of(check)
        for check in (*common.judge(series, saved), *evidence.judge(series, saved))
    ]


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

    Raises `KstallError` if ``directory`` is no run directory, or a broken one.
    """
    found = read_run(directory)
    for entry in found.series:
        if entry.evidence is not None:
            (series,) = project.load([entry.name])
            saved = evidence.load(directory / entry.evidence)
            entry.events = list(_events(series, saved))
            # They read no results, or those of other guests.
            kept = [one for one in entry.checks if one.kind in _KEPT]
            entry.checks = [*kept, *_judge(series, saved)]
            if entry.overhead is not None:
                entry.checks += overhead.judge(series, entry.overhead)
            # The verdict of these stages was that of the checks of then.
            entry.stages = [one for one in entry.stages if one.name not in _JUDGING]
    found.settle()
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
        plan = tree.plan(shared.base, series.patches, scratch)
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
            with run.stage("base", entry) as stage:
                base = _build(request, run, shared, series, bare, stage)
                extra_base = _extra(request, shared, series, base, bare, stage)
        patched = checkout(plan)
        with run.stage("config", entry) as stage:
            config = _configure(request, shared, series, patched, stage)
            stage.reused = config.reused
            stage.summary = "every requested symbol is set"
        with run.stage("build", entry) as stage:
            built = _build(request, run, shared, series, patched, stage)
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
    wanted = builds.Request(
        project=request.project,
        series=series,
        plan=plan,
        tools=shared.tools,
        root=shared.root,
        cache=request.cache,
        everything=request.level == "deep",
    )
    return builds.prove(wanted, lambda state: checkout(state).tree(), run, entry)


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
