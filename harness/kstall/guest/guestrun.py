# SPDX-License-Identifier: GPL-2.0-or-later
"""One series in one guest: the job that goes in, the results that come out.

Everything goes through one shared directory: each further share costs a mount in the
guest, and the guest can only write to this copy and never to the project.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import (
    Architecture,
    FailedCheck,
    KstallError,
    NotJudged,
    Sink,
    arch,
    cache,
    elsewhere,
    figure,
    process,
    sources,
    space,
)
from ..build import kernel, outputs, programs
from ..debian import root
from ..series import Context, Measure, Project, Series, Workload, projects
from . import accel, console, guest, hosttime, jobs, monitor
from .kept import KeptResults

#: The part of the agent that only guests of `debugguest` need, below the project.
STRESS = "harness/kstall_guest/stress.py"
#: Seconds of a guest beyond its workloads' deadlines: boot, and bpftrace's start-up,
#: which takes seconds a script under emulation.
_MARGIN = 60.0
_PER_TRACER = 30.0
_PROGRAM_BYTES = 10**7
# What a guest takes beyond its memory: QEMU itself, and reading its results.
_BESIDE_MEMORY = 512 * 2**20
_CFLAGS = ("-O2", "-static", "-Wall", "-Wextra", "-Werror", "-pthread")


class GuestFailed(FailedCheck):
    """The kernel under test panicked, hung, or reported a bug."""


class GuestEnded(GuestFailed):
    """An expected report ended the kernel, and it reported nothing else.

    ``reused``: in an earlier run, whose results were kept.
    """

    reused = False


@dataclass(frozen=True)
class Guest:
    """A kernel, and what is needed to run it.

    ``extra`` is where the modules are that were compiled for it, as `build.extra` does.
    """

    kernel: kernel.Kernel
    root: root.Root
    accel: accel.Accel
    machine: guest.Machine = field(default_factory=guest.Machine)
    programs: tuple[programs.Program, ...] = ()
    extra: Path | None = None


@dataclass(frozen=True)
class Booted:
    """A guest that came to its end: its results, and whether they were cached."""

    results: Path
    reused: bool
    summary: str


def machine_for(series: Series) -> guest.Machine:
    """The machine that ``series`` declares."""
    spec = series.spec.machine
    return guest.Machine(spec.cpus, spec.memory, spec.append, spec.devices)


def at_once(processors: int, machines: Iterable[guest.Machine]) -> int:
    """How many guests the memory allows, if each may need the largest machine: at least
    one, and at most ``processors``."""
    largest = max(machine.bytes_of_memory for machine in machines)
    return max(1, min(processors, space.memory() // (largest + _BESIDE_MEMORY)))


def thresholds_for(vm: Guest) -> hosttime.Thresholds:
    """The thresholds of the watchdogs of this guest's kernel."""
    parameters = guest.kernel_parameters(vm.machine, vm.root.arch)
    return hosttime.thresholds(vm.kernel.config, parameters)


def steps_for(series: Series) -> tuple[monitor.MonitorStep, ...]:
    """What the workloads of ``series`` may ask QEMU's monitor for."""
    return tuple(
        monitor.MonitorStep(
            load.name,
            step.step,
            tuple(
                monitor.QemuCommand(
                    command.qmp or command.hmp or "",
                    command.arguments,
                    human=command.hmp is not None,
                    reply=command.reply or "",
                )
                for command in step.commands
            ),
        )
        for load in series.spec.workload
        for step in load.inject
    )


def job_for(series: Series, built: kernel.Kernel) -> dict[str, Any]:
    """The job of ``kstall_guest``, see its ``job.py``."""
    spec = series.spec
    bare = {point.event: point for point in spec.tracepoint if point.kind == "bare"}
    return jobs.job(
        series.name,
        built.build_id,
        [
            jobs.workload(
                load.name,
                [str(jobs.SCRIPTS / load.program), *load.args],
                load.deadline_s,
                modules=modules_of(load),
                events=load.events,
                scripts=load.scripts,
                record=[event for event in load.record if event not in bare],
                bare=[
                    {
                        "event": event,
                        "args": dict(bare[event].fields),
                        "reads": dict(bare[event].reads),
                    }
                    for event in load.record
                    if event in bare
                ],
                decode=[
                    point.event
                    for point in spec.tracepoint
                    if load.decode and point.event in load.events
                ],
            )
            for load in spec.workload
        ],
        [point.event for point in spec.tracepoint if point.event not in bare],
    )


def modules_of(load: Workload | Measure) -> list[str]:
    """The modules that are loaded for ``load``, the tree's and then our own."""
    return [*load.modules, *([Path(load.module).stem] if load.module else [])]


def inputs(project: Project, series: Series) -> tuple[Path, ...]:
    """The project's files on which the guest's results depend."""
    spec = series.spec
    programs = {(project.scripts / load.program).parent for load in spec.workload}
    files = {
        path
        for folder in programs
        for path in folder.rglob("*")
        if not sources.is_byte_code(path)
    }
    files |= {project.scripts / script.file for script in spec.script}
    files |= agent_files(project)
    return tuple(sorted(path for path in files if path.is_file()))


def agent_files(project: Project) -> set[Path]:
    """The agent's files, without the part that only debug kernels need."""
    files = set((project.harness / "kstall_guest").rglob("*.py"))
    return files - {project.root / STRESS}


def key_of(project: Project, series: Series, vm: Guest, *expected: str) -> str:
    """A digest of all that the guest's results depend on."""
    return cache.digest(
        vm.kernel.key,
        vm.root.key,
        vm.accel.kind,
        accel.version_of(vm.root.arch),
        vm.root.arch.hardware_for(vm.accel.kind),
        vars(vm.machine),
        guest.kernel_parameters(vm.machine, vm.root.arch),
        [(program.name, cache.file_digest(program.file)) for program in vm.programs],
        job_for(series, vm.kernel),
        [dataclasses.asdict(step) for step in steps_for(series)],
        [
            (str(path.relative_to(project.root)), cache.file_digest(path))
            for path in inputs(project, series)
        ],
        *([{"extra": vm.extra.name}] if vm.extra is not None else []),
        *expected,
    )


def run_guest(
    context: Context,
    series: Series,
    vm: Guest,
    log: Path,
    *,
    keep: Callable[[Path], bool],
    out: Path | None = None,
    fresh: bool = False,
    keep_end: Callable[[Path], bool] = lambda _: False,
    expected: tuple[str, ...] = (),
) -> Booted:
    """Boot, run all workloads, and return where the results are.

    They are below ``out``, or below the series' directory of the run.

    Results of a guest that came to its end without a report are cached if ``keep``
    accepts them, and used again unless ``fresh`` ones are asked for.  Reports that
    match one of the ``expected`` expressions do not count; `matching_reports` finds
    them in the results.  Raises `GuestEnded` if they end the kernel, `GuestFailed` with
    an excerpt of the console if the kernel failed, which also drops cached results, and
    `NotJudged` if nothing can be concluded about it.  What the guest had written until
    then stays in the run directory.  Results of a `GuestEnded` are cached, and used
    again, if ``keep_end`` accepts them.  The console of cached results is read again.
    """
    key = key_of(context.project, series, vm, *expected)
    kept = _kept(context, series, vm, key, fresh=fresh)
    end_key = f"{key}-{sources.digest('kstall.guest')}"

    def shows_end(entry: Path) -> bool:
        return cache.is_complete(entry) and keep_end(entry)

    # What is reported of an end is not judged anew, unlike other results.
    ended = KeptResults(context, "ended", end_key, 200, fresh, shows_end)
    place = out or context.out / series.name
    results = place / "results"
    with kept.turn():
        if kept.copy(results):
            try:
                _refuse_kept(vm, results, expected)
            except (GuestFailed, NotJudged):
                kept.drop()
                raise
            summary = f"{len(series.spec.workload)} workloads, evidence {key}"
            return Booted(results, True, summary)
        if ended.copy(results):
            earlier = GuestEnded("the kernel ended in an earlier run", log=log)
            earlier.reused = True
            raise earlier
        ended.drop()
        try:
            if context.away is None:
                summary = _run(context, series, vm, place, log, expected)
            else:
                more = {"expected": list(expected)}
                asked = unit(context, series, vm, key, more, fresh=fresh)
                summary = _run_away(context.away, asked, vm, place, expected)
        except GuestFailed as failure:
            if isinstance(failure, GuestEnded) and keep_end(results):
                ended.keep(results)
            kept.drop()
            raise
        if keep(results):
            kept.keep(results)
        else:
            kept.forget()
    return Booted(results, False, summary)


def _kept(
    context: Context, series: Series, vm: Guest, key: str, *, fresh: bool = False
) -> KeptResults:
    def forget() -> None:
        if context.away is not None:
            context.away.forget(unit(context, series, vm, key))

    return KeptResults(context, "evidence", key, 200, fresh, _is_usable, forget)


def _run(
    context: Context,
    series: Series,
    vm: Guest,
    place: Path,
    log: Path,
    expected: tuple[str, ...],
) -> str:
    """Boot the guest on this machine; returns a summary, and raises as `run_guest`."""
    job, results = job_for(series, vm.kernel), place / "results"
    fill(place / "share", context.project, series, vm, job, log)
    run, summary = _boot(series, vm, place, context.ui)
    console.abridge(run.console, results / "console.txt")
    refuse(run, vm, results, expected)
    cache.write_json(results / hosttime.FILE, run.host.as_json())
    return summary


# -- elsewhere -----------------------------------------------------------------------


def needs_of(
    machine: guest.Machine, kind: str, architecture: Architecture
) -> dict[str, float]:
    """What a worker needs for a guest on ``machine`` with the accelerator ``kind``.

    Its own architecture matters only to KVM: QEMU emulates guests of any.
    """
    needs = {
        "slot": 1.0,
        "memory": (machine.bytes_of_memory + _BESIDE_MEMORY) / 2**30,
        f"{architecture.qemu}: {accel.version_of(architecture)}": 1.0,
    }
    if kind != "kvm":
        return needs
    return {**needs, "kvm": 1.0, elsewhere.machine(architecture.machine): 1.0}


def unit(
    context: Context,
    series: Series,
    vm: Guest,
    key: str,
    more: Mapping[str, Any] | None = None,
    *,
    fresh: bool = False,
) -> elsewhere.Unit:
    """The boot of ``vm`` for `requested`, with ``more`` in its ``spec``."""
    project = projects.keep(context.project, context.cache)
    loads = series.spec.workload
    return elsewhere.Unit(
        kind="guest",
        key=key,
        title=f"guest of {series.name}",
        spec={
            "project": project,
            "series": series.name,
            "workloads": [load.name for load in loads],
            "arch": vm.root.arch.name,
            "kernel": vm.kernel.key,
            "root": vm.root.key,
            "accel": vm.accel.kind,
            "programs": [
                [program.name, program.file.parent.name, program.file.name]
                for program in vm.programs
            ],
            "extra": vm.extra.name if vm.extra is not None else None,
            "key": key,
            **(more or {}),
        },
        entries=(
            project,
            f"kernels/{vm.kernel.key}",
            f"roots/{vm.root.key}",
            *(f"programs/{program.file.parent.name}" for program in vm.programs),
            *([f"extra/{vm.extra.name}"] if vm.extra is not None else []),
        ),
        needs=needs_of(vm.machine, vm.accel.kind, vm.root.arch),
        # bpftrace's start takes most of it.
        seconds=20.0
        + 10.0 * sum(len(load.scripts) + bool(load.record) for load in loads),
        fresh=fresh,
    )


def _run_away(
    farm: elsewhere.Elsewhere,
    unit: elsewhere.Unit,
    vm: Guest,
    place: Path,
    expected: tuple[str, ...],
) -> str:
    outcome = farm.do(unit, place)
    outcome.report_figures()
    if outcome.error is not None:
        raise outcome.error
    try:
        # The results may be of an earlier run.
        _refuse_kept(vm, place / "results", expected)
    except (GuestFailed, NotJudged):
        farm.forget(unit)
        raise
    return str(outcome.facts["summary"])


def requested(
    cache_dir: Path, spec: Mapping[str, Any]
) -> tuple[Project, Series, Guest]:
    """What a `unit` is about, in the process that is to boot it."""
    project = projects.find(spec["project"], cache_dir)
    architecture = arch.named(spec["arch"])
    (declared,) = project.load([spec["series"]])
    series = _narrowed(declared.on(architecture), spec["workloads"])
    built = kernel.find(spec["kernel"], cache_dir)
    assert built is not None
    vm = Guest(
        built,
        root.find(spec["root"], cache_dir, architecture),
        accel.Accel(spec["accel"], "as requested"),
        machine_for(series),
        tuple(
            programs.Program(name, cache_dir / "programs" / key / file, reused=True)
            for name, key, file in spec["programs"]
        ),
        cache_dir / "extra" / spec["extra"] if spec["extra"] is not None else None,
    )
    return project, series, vm


def _narrowed(series: Series, workloads: Sequence[str]) -> Series:
    """``series`` with these workloads only: on a base kernel, not all are run."""
    chosen = tuple(load for load in series.spec.workload if load.name in workloads)
    spec = series.spec.model_copy(update={"workload": chosen})
    return dataclasses.replace(series, spec=spec)


def perform(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Sink
) -> elsewhere.WorkerResult:
    """Boot the guest that `run_guest` of another process requests."""
    project, series, vm = requested(cache_dir, spec)
    speed = accelerator(cache_dir, vm.kernel, vm.root, spec["accel"], ui)
    vm = dataclasses.replace(vm, accel=speed)
    expected = tuple(spec["expected"])
    if key_of(project, series, vm, *expected) != spec["key"]:
        raise elsewhere.WrongWorker("this worker would boot a different guest")
    context = Context(project, cache_dir, out, "full", ui)
    place = out / series.name
    log = place / "guest.log"
    facts: dict[str, Any] = {}
    error: KstallError | None = None
    try:
        facts["summary"] = _run(context, series, vm, place, log, expected)
    except (FailedCheck, NotJudged) as stopped:
        # Any other error is this worker's own, and another one may succeed.
        error = stopped
    return elsewhere.WorkerResult(facts, files=place, error=error)


def accelerator(
    cache_dir: Path, built: kernel.Kernel, user_space: root.Root, kind: str, ui: Sink
) -> accel.Accel:
    """The worker's accelerator; raises `WrongWorker` if it is not of this ``kind``."""
    environment = {} if kind == "kvm" else {"KSTALL_ACCEL": kind}
    answer = accel.probe(
        cache_dir, built.image, user_space, ui.say, environment=environment
    )
    if answer.kind != kind:
        raise elsewhere.WrongWorker(f"guests do not run under KVM here: {answer.why}")
    return answer


def matching_reports(results: Path, expression: str) -> tuple[console.Splat, ...]:
    """The kernel's reports that match ``expression``."""
    splats = console.scan_file(results / "console.txt")
    return tuple(splat for splat in splats if _is_expected(splat, (expression,)))


def _is_expected(splat: console.Splat, expected: tuple[str, ...]) -> bool:
    """Whether a report matches ``expected``; a panic that follows from one does not."""
    return (
        splat.kind != "panic"
        and not console.is_loss(splat)
        and any(re.search(text, splat.excerpt, re.MULTILINE) for text in expected)
    )


def forget(context: Context, series: Series, vm: Guest, *expected: str) -> None:
    """Drop the cached results of this guest, if there are any.

    ``expected`` are the expressions that it was run with.
    """
    key = key_of(context.project, series, vm, *expected)
    kept = _kept(context, series, vm, key)
    with kept.turn():
        kept.drop()


def fill(
    share: Path, project: Project, series: Series, vm: Guest, job: object, log: Path
) -> None:
    """Put all that ``job`` needs below ``share``, with a directory for results.

    Raises `KstallError` for a workload that does not compile.
    """
    for program in vm.programs:
        target = share / "scripts" / program.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(program.file, target)
    for load in series.spec.workload:
        target = share / "scripts" / load.program
        compile_program(project.scripts / load.program, target, log, vm.root.arch)
    put(share, project, inputs(project, series), vm, job)


def put(
    share: Path, project: Project, files: Iterable[Path], vm: Guest, job: object
) -> None:
    """Put ``job``, the project's ``files`` and the modules of ``vm`` below ``share``,
    with a directory for results."""
    (share / "results").mkdir(parents=True)
    for path in files:
        target = share / path.relative_to(project.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    modules, release = share / "modules", vm.kernel.release
    shutil.copytree(vm.kernel.modules, modules, symlinks=True)
    if vm.extra is not None:
        shutil.copytree(vm.extra, modules / "lib/modules" / release / "extra")
        process.run(["depmod", "-b", modules, release])
    cache.write_json(share / "job.json", job)


def compile_program(
    program: Path, target: Path, log: Path, architecture: Architecture
) -> None:
    """Compile ``<program>.c``, if it exists; static, as the guest has other libs.

    Raises `KstallError` with the compiler's messages.
    """
    source = program.with_suffix(".c")
    if program.exists() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with space.guarded(
            target.parent, _PROGRAM_BYTES, f"the workload {source.name}"
        ):
            process.run(
                [architecture.tool("gcc"), *_CFLAGS, "-o", target, source],
                env={"LC_ALL": "C"},
                log=log,
            )
    except process.CommandError as error:
        # No fault of the series: no patch touches this source.
        raise KstallError(
            f"the workload {source.name} does not compile:\n{error.what}",
            log=log,
            next="install a static C library (libc6-dev)"
            if "cannot find -l" in error.output
            else "mend the program",
        ) from error


def _boot(
    series: Series, vm: Guest, place: Path, ui: Sink
) -> tuple[guest.GuestRun, str]:
    loads = series.spec.workload
    tracers = sum(len(load.scripts) + bool(load.record) for load in loads)
    deadline = _MARGIN + _PER_TRACER * tracers + sum(load.deadline_s for load in loads)
    run = start(vm, place, deadline, ui.say, steps=steps_for(series))
    figure("guest", run.seconds, "s")
    if run.first_line_seconds is None:
        return run, f"ended as {run.status}"
    figure("guest start to first line of the job", run.first_line_seconds, "s")
    return run, (
        f"{len(loads)} workloads in {run.seconds:.0f} s, first line after "
        f"{run.first_line_seconds:.1f} s"
    )


def start(
    vm: Guest, place: Path, deadline: float, say: Callable[[str], None], **more: Any
) -> guest.GuestRun:
    """Boot ``vm`` with the job in ``place``/share; the results are moved to
    ``place``/results.  ``more`` is for `guest.boot`."""
    share, results = place / "share", place / "results"
    try:
        run = guest.boot(
            *(vm.kernel.image, vm.root, vm.accel, vm.machine),
            *((jobs.share(share),), jobs.COMMAND),
            out=place,
            deadline=deadline,
            say=say,
            **{"scripts": share / "scripts", **more},
        )
    finally:
        cache.remove(results)
        (share / "results").rename(results)
        cache.remove(share)
    _keep_performed(run, results)
    return run


def _keep_performed(run: guest.GuestRun, results: Path) -> None:
    """Save the monitor's actions with the results of the workloads that asked for
    them."""
    for name in dict.fromkeys(action.workload for action in run.performed):
        # The name comes from the guest: it must not lead out of the results.
        if (results / name).parent == results and name not in ("", ".."):
            (results / name).mkdir(exist_ok=True)
            cache.write_json(
                results / name / "injected.json",
                [
                    action.as_json()
                    for action in run.performed
                    if action.workload == name
                ],
            )


def require_witness(run: guest.GuestRun) -> None:
    """Raise `NotJudged` if the guest's end says nothing about its kernel.

    Reports before that, see `relevant_reports`, count even so: an oops, a WARNING or
    lockdep's.
    """
    if run.status == "lost":
        # On a full disk the guest's writes over 9p fail, which QEMU does not report.
        space.require(run.console.parent, _PROGRAM_BYTES, "what the guest writes")
        words = f"; QEMU's last words: {run.last_words}" if run.last_words else ""
        raise NotJudged(
            "the guest went away before the job had ended, and its kernel did not "
            f"say why{words}",
            log=run.console,
            next="if QEMU was killed (memory?), run the same command again",
        )
    if run.victims:
        raise NotJudged(
            f"the guest ran out of memory, and killed {', '.join(run.victims)}",
            log=run.console,
            next="increase `memory` of [machine] in series.toml; if that does not "
            "help, something in its kernel leaks",
        )
    for splat in run.splats:
        if console.is_rootless(splat):
            raise NotJudged(
                f"the guest found nothing to start: {splat.headline}",
                log=run.console,
                next="remove `roots` from the cache, so that the root is rebuilt; if "
                "that does not help, see whether the kernel starts without the patches",
            )


def relevant_reports(
    run: guest.GuestRun, limits: hosttime.Thresholds
) -> tuple[console.Splat, ...]:
    """The reports that say something about the kernel."""
    excused = run.excused(limits)
    return tuple(
        splat
        for number, splat in enumerate(run.splats)
        # Lost messages of the log are unknown: they may not have been reports.
        if number not in excused and not console.is_loss(splat)
        # No kernel can go on without a root.
        if not console.is_rootless(splat)
        # Without memory any driver may warn, and init may be killed.
        if not (run.victims and splat.kind in ("warning", "panic"))
    )


def require_time(
    run: guest.GuestRun, results: Path, limits: hosttime.Thresholds
) -> None:
    """Raise `NotJudged` if a guest failed only for want of time.

    Only for guests without `relevant_reports`.
    """
    if run.ahead:
        raise NotJudged(
            f"the guest's clock was wrong{_workload_clause(results)}: {run.ahead}, "
            "so its timeouts were too short",
            log=run.console,
            next=_QUIETER,
        )
    if excused := run.excused(limits):
        number, reason = next(iter(excused.items()))
        claim = "was starved of time" if run.host.samples else "may have had no time"
        excerpt = run.splats[number].excerpt
        raise NotJudged(
            f"the guest {claim}{_workload_clause(results)}: {reason}\n{excerpt}",
            log=run.console,
            next=_QUIETER,
        )
    if run.status == "hang":
        raise NotJudged(_late(run, results), log=run.console, next=_QUIETER)


def refuse(
    run: guest.GuestRun, vm: Guest, results: Path, expected: tuple[str, ...] = ()
) -> None:
    """Raise unless the guest came to its end, and its kernel reported nothing but what
    was ``expected``: as `run_guest`, or `KstallError` for a job that cannot succeed."""
    limits = thresholds_for(vm)
    expected_splats = {splat for splat in run.splats if _is_expected(splat, expected)}
    reports = tuple(
        splat for splat in relevant_reports(run, limits) if splat not in expected_splats
    )
    if not reports:
        require_witness(run)
    if run.status == "panic" or reports:
        seen = reports[0].headline if reports else "nothing on the console"
        excerpt = f"\n{reports[0].excerpt}" if reports else ""
        headline = {
            "panic": "the guest panicked",
            "hang": "the guest hung and was ended at its deadline",
            "lost": "the kernel complained, and the guest went away",
            "completed": f"the kernel complained ({len(reports)} reports)",
        }[run.status]
        ended = expected_splats and all(splat.kind == "panic" for splat in reports)
        raise (GuestEnded if ended else GuestFailed)(
            f"{headline}{_workload_clause(results)}: {seen}{excerpt}", log=run.console
        )
    require_time(run, results, limits)
    if lost := [splat for splat in run.splats if splat not in expected_splats]:
        raise NotJudged(
            f"the kernel's log lost messages: {lost[0].headline}",
            log=run.console,
            next="find out what printed so much on the console",
        )
    if run.exit_status != 0:
        error = agent(results).get("error") or {}
        # An error of the job itself would recur in another guest.
        again = error.get("kind") not in ("bad-job", "wrong-kernel")
        raise (NotJudged if again else KstallError)(
            f"the job in the guest exited {run.exit_status}{_agent_error(results)}",
            log=run.console,
            next="read what it printed, in job.log beside the console",
        )


def _is_usable(entry: Path) -> bool:
    """Whether ``entry`` has results whose whole console can be read again."""
    return cache.is_complete(entry) and not console.is_abridged(entry / "console.txt")


def _refuse_kept(vm: Guest, results: Path, expected: tuple[str, ...]) -> None:
    """Raise as `refuse` for reports in ``results`` that were accepted without them.

    `scan_file` may recognize more reports today than it did then.
    """
    text = results / "console.txt"
    splats = console.scan_file(text)
    if all(_is_expected(splat, expected) for splat in splats):
        return
    host = hosttime.read(results / hosttime.FILE)
    run = guest.GuestRun(
        "completed",
        0,
        text,
        # Only to compare clocks, which need not be exact.
        host.samples[-1].at if host.samples else math.inf,
        None,
        splats,
        vm.machine.devices,
        victims=console.victims(text),
        host=host,
    )
    refuse(run, vm, results, expected)


_QUIETER = (
    "host.json beside the console shows how busy the host was; on a quiet one, "
    "the same command with `--again` boots the guest again"
)


def _late(run: guest.GuestRun, results: Path) -> str:
    """The error message for a guest that hung and whose kernel reported nothing."""
    available = run.seconds - run.lost
    waited = (
        f"of {run.seconds:.0f} s it waited {run.lost:.0f} s for a processor or a disk"
        if run.host.samples
        else hosttime.WAIT_UNKNOWN
    )
    if available < run.deadline:
        return (
            f"the guest was starved of time{_workload_clause(results)}: {waited}, and "
            f"had {available:.0f} of the {run.deadline:.0f} s of its deadline"
        )
    limit = f"the {run.deadline:.0f} s of its deadline ({waited})"
    return (
        f"the guest did not end{_workload_clause(results)} in {limit}, and its kernel "
        "did not say why; its console ends with what each task was doing"
    )


def agent(results: Path) -> dict[str, Any]:
    """agent.json; empty if it is missing or truncated."""
    return outputs.read(results / "agent.json", dict) or {}


def _workload_clause(results: Path) -> str:
    """For messages: the workload that ran when the guest ended, if it is known."""
    for entry in agent(results).get("workloads", []):
        if entry.get("status") == "running":
            return f" in workload {entry['name']}"
    return ""


def _agent_error(results: Path) -> str:
    error = agent(results).get("error")
    return f": {error['message']}" if error else ""
