# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall validate``: every stage from series to verdict, in order."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..base import (
    Architecture,
    DoesNotApply,
    FailedCheck,
    KstallError,
    arch,
    cache,
    elsewhere,
)
from ..build import kernel
from ..compile import Work, ahead
from ..cost import objects
from ..debian import root
from ..evidence import evidence, mutate
from ..guest import Guest, accel
from ..lint import reading
from ..report import SeriesReport, explain, matrix, report
from ..series import Level, Project, Series
from ..tree import am, source, tree
from . import builds, debugging, kernels, overhead, patches, sharing, trials
from . import run as runs
from .groups import Ground
from .ui import Ui

_JUDGING = ("judge", "gate")
# Kinds of checks that `judge_again` leaves as they are.
_KEPT = ("patch", "abi", "debug")


@dataclass(frozen=True)
class Request:
    """What is to be proven, on what, and where things are kept.

    ``level`` quick leaves out what the events cost, and with it the base kernel; deep
    adds what takes long and seldom finds anything.  ``again``: results of earlier
    guests are not used.  ``repeat``: boot each guest so many times.  ``alone``: prove
    each series on a kernel of its own as well.  ``at_once``: how many guests run at the
    same time; as many as the machine has room for, if it is not said.  Kernels and
    guests are of ``arch``.  ``seeds`` are those of random configurations that are tried
    instead of a series' own.  ``base`` is what ``kernel`` was found to be, if it was
    looked for already; ``place`` the run directory, if it is to be no new one below
    ``out``.  ``expected``: whether the series are expected to apply, where series.toml
    is not to decide that.  ``away`` hands out what others may do.
    """

    project: Project
    series: tuple[Series, ...]
    kernel: Path | None
    cache: Path
    out: Path
    level: Level = "full"
    again: bool = False
    repeat: int | None = None
    alone: bool = False
    at_once: int | None = None
    arch: Architecture = arch.X86_64
    seeds: tuple[int, ...] = ()
    base: source.Base | None = None
    place: Path | None = None
    expected: bool | None = None
    away: elsewhere.Elsewhere | None = None


def _there(request: Request) -> Request:
    """``request`` with the series as they are on its architecture."""
    there = tuple(one.on(request.arch) for one in request.series)
    return dataclasses.replace(request, series=there)


def validate(
    request: Request, ui: Ui, command: Sequence[str]
) -> tuple[Path, report.Report]:
    """Prove each series, or say why not; returns the run directory and its report.

    A series that fails does not stop the others.  `KeyboardInterrupt` leaves a report
    that says so, and the next run takes up what was finished.
    """
    request = _there(request)
    run = _begin(request, ui, command)
    try:
        with contextlib.suppress(runs.StageStopped):
            ground = _ground(request, run)
            sharing.prove(_subjects(request, run, ground), _plan(request), run)
            if request.level == "deep":
                _debug(request, run, ground)
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


def _begin(request: Request, ui: Ui, command: Sequence[str]) -> runs.Run:
    run = runs.begin(request.out, command, ui, place=request.place, away=request.away)
    run.report.environment.arch = request.arch.name
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
    request = _there(request)
    run = _begin(request, ui, command)
    try:
        with contextlib.suppress(runs.StageStopped):
            ground = _ground(request, run)
            every = _subjects(request, run, ground)
            for subject, guest in sharing.guests(every, _plan(request), run):
                yield run, subject.series, guest
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
        made: list[root.Root] = []
        # This machine borrows programs from one of its own.
        for one in dict.fromkeys((arch.host(), request.arch)):
            wanted = root.packages_for(scripts, one)
            found = root.obtain(
                wanted,
                request.cache,
                run.ui.say,
                log=stage.log,
                whose=one,
                lending=made[-1] if made else None,
            )
            made.append(found)
        lending, guest_root = made[0], made[-1]
        stage.reused = all(each.reused for each in made)
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
        wanted = root.packages_for(request.project.scripts, request.arch)
        environment.guest.update((name, guest_root.versions[name]) for name in wanted)
    return Ground(request.project, base, guest_root, tools, request.cache, lending)


def mutate_again(
    project: Project, directory: Path, names: Sequence[str], cache_dir: Path
) -> report.Report:
    """Falsify the evidence of a run, and judge it by today's checks.

    The report that is returned has only series with evidence, and of their checks only
    that one; nothing of the run is written.  Raises `KstallError` if ``directory`` is
    no run directory, or has no evidence of a series in ``names``.
    """
    found = read_run(directory)
    there = arch.named(found.environment.arch)
    series = {one.name: one.on(there) for one in project.load(names)}
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


def _debug(request: Request, run: runs.Run, ground: Ground) -> None:
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
        needed = _needed(request, run, ground, [one for one, _ in wanted])
        debugging.prove(ground, wanted, run, beside=needed)


def _needed(
    request: Request, run: runs.Run, ground: Ground, wanted: Sequence[Series]
) -> tuple[Series, ...]:
    """The fixes that ``wanted`` need and are not among them, as far as they apply."""
    known = {one.name for one in request.series}
    names = dict.fromkeys(name for one in wanted for name in one.spec.needs)
    found = []
    for name in names:
        if name not in known:
            (one,) = request.project.load([name])
            with contextlib.suppress(am.ApplyError, am.BadPatch):
                tree.plan(ground.base, one.patches, run.dir / "shared")
                found.append(one)
    return tuple(found)


def read_run(directory: Path) -> report.Report:
    """The report of a run; `KstallError` if ``directory`` has none that is whole."""
    if (directory / matrix.FILE).exists():
        columns = [str(directory / x.directory) for x in matrix.read(directory).columns]
        raise KstallError(
            f"{directory} is a matrix of {len(columns)} runs",
            next=f"name one of them, such as {columns[0]}",
        )
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
            series = series.on(arch.named(found.environment.arch))
            saved = evidence.load(directory / entry.evidence)
            entry.events = list(trials.events(series, saved))
            # They read no results, or those of other guests.
            kept = [
                one
                for one in entry.checks
                if one.kind in _KEPT or one.name == sharing.ALONE
            ]
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


def _plan(request: Request) -> sharing.Wanted:
    return sharing.Wanted(
        request.level,
        again=request.again,
        repeat=request.repeat,
        alone=request.alone or request.level == "deep",
        at_once=request.at_once,
    )


def _subjects(
    request: Request, run: runs.Run, ground: Ground
) -> tuple[sharing.Subject, ...]:
    """The series that apply, each by itself, and of which the patches were looked at.

    What stopped the others is in the report.
    """
    if run.away is not None:
        _ahead(request, run, ground, run.away)
    found = []
    for series, entry in zip(request.series, run.report.series, strict=True):
        with contextlib.suppress(runs.StageStopped):
            found.append(_subject(request, run, ground, series, entry))
    return tuple(found)


def _ahead(
    request: Request, run: runs.Run, ground: Ground, away: elsewhere.Elsewhere
) -> None:
    """Have begun elsewhere what takes long, while the patches are looked at here.

    Raises `runs.StageStopped` if nobody there is up to it.
    """
    with run.stage("workers") as stage:
        stage.summary = away.describe()
        plans: dict[str, tree.Plan] = {}
        shared = run.dir / "shared"
        for series in request.series:
            # What is wrong with them is told in their own stages.
            with contextlib.suppress(DoesNotApply, FailedCheck):
                plans[series.name] = tree.plan(ground.base, series.patches, shared)
        those = [series for series in request.series if series.name in plans]
        sharing.ahead(those, ground, request.level, run)
        if request.level != "quick":
            context = run.context(request.project, request.cache, request.level)
            for series in those:
                plan = plans[series.name]
                ahead(Work(context, series, plan, ground.tools, ground.root))


def _subject(
    request: Request,
    run: runs.Run,
    ground: Ground,
    series: Series,
    entry: SeriesReport,
) -> sharing.Subject:
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
    told = _compile(request, run, ground, series, plan, entry)
    return sharing.Subject(series, entry, plan, ground, told)


def expectation(
    series: Series, version: str, expected: bool | None = None
) -> bool | None:
    """Whether ``series`` is expected to apply to a tree of ``version``; None if nobody
    says.  What is ``expected`` of a tree by its name counts more than series.toml."""
    if expected is not None or series.spec.applies is None:
        return expected
    return series.spec.applies.to(version)


def _applies_no_longer(
    series: Series, request: Request, ground: Ground, error: am.ApplyError
) -> FailedCheck:
    """What does not apply where it is expected to is a failure, and not an outcome."""
    who = "the matrix" if request.expected else "series.toml"
    wanted = "rebase it: kstall rebase"
    if request.kernel is not None:
        wanted += f" {shlex.quote(str(request.kernel))}"
    return FailedCheck(
        f"no longer applies to {ground.base.version}, where {who} expects it: "
        f"{error.what}",
        log=error.log,
        next=f"{wanted} {series.name}; or take that tree out of [applies]",
    )


def _compile(
    request: Request,
    run: runs.Run,
    ground: Ground,
    series: Series,
    plan: tree.Plan,
    entry: SeriesReport,
) -> objects.Told | None:
    """Compile what each patch touches, as `builds.prove` does; what objects tell of
    costs comes back, where they were compiled."""
    if request.level == "quick":
        with run.stage("compile", entry) as stage:
            stage.status = "skip"
            stage.summary = "LEVEL=quick: patches are not compiled one by one"
        return None
    context = run.context(request.project, request.cache, request.level)
    context = dataclasses.replace(context, seeds=request.seeds)
    lending = ground.lending or ground.root
    work = Work(context, series, plan, ground.tools, lending)
    with kernels.workspace(ground.base, run.ui) as checkout:
        patches.read(
            reading.Work(context, series, plan),
            lambda state: checkout(state).tree(),
            run,
            entry,
        )
        return builds.prove(work, lambda state: checkout(state).tree(), run, entry)
