# SPDX-License-Identifier: GPL-2.0-or-later
"""One series in one guest: the job that goes in, the results that come out.

Everything goes through one shared directory: each further share costs a mount in the
guest, and what the guest may write to is then a copy and never the project.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
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
    space,
)
from ..build import kernel, programs
from ..debian import root
from ..series import Context, Project, Series, projects
from . import accel, console, guest, hosttime, jobs, monitor

#: The agent's part that only guests of `debugguest` need, below the project.
STRESS = "harness/kstall_guest/stress.py"
#: Seconds of a guest beyond its workloads' deadlines: boot, and bpftrace's start-up,
#: which takes seconds a script under emulation.
_MARGIN = 60.0
_PER_TRACER = 30.0
_PROGRAM_BYTES = 10**7
_EMULATOR = "qemu-system-x86_64"
#: What another run does that is waited for.
RUNS_IT = "runs this very guest"
_CFLAGS = ("-O2", "-static", "-Wall", "-Wextra", "-Werror", "-pthread")


class GuestFailed(FailedCheck):
    """The kernel under test panicked, hung, or complained."""


class GuestEnded(GuestFailed):
    """It panicked of what it was expected to complain of, and of nothing else."""


@dataclass(frozen=True)
class Guest:
    """A kernel and what it takes to run it."""

    kernel: kernel.Kernel
    root: root.Root
    accel: accel.Accel
    machine: guest.Machine = field(default_factory=guest.Machine)
    programs: tuple[programs.Program, ...] = ()


@dataclass(frozen=True)
class Booted:
    """A guest that came to its end: its results, and whether they were kept before."""

    results: Path
    reused: bool
    summary: str


def machine_for(series: Series) -> guest.Machine:
    """The machine that ``series`` asks for."""
    wanted = series.spec.machine
    return guest.Machine(wanted.cpus, wanted.memory, wanted.append, wanted.devices)


def limits_for(where: Guest) -> hosttime.Thresholds:
    """When the watchdogs of this guest's kernel bite."""
    parameters = guest.kernel_parameters(where.machine, where.root.arch)
    return hosttime.thresholds(where.kernel.config, parameters)


def steps_for(series: Series) -> tuple[monitor.Step, ...]:
    """What the workloads of ``series`` may ask QEMU's monitor for."""
    return tuple(
        monitor.Step(
            load.name,
            step.step,
            tuple(
                monitor.Command(
                    one.qmp or one.hmp or "",
                    one.arguments,
                    human=one.hmp is not None,
                    reply=one.reply or "",
                )
                for one in step.commands
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
                modules=load.modules,
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


def inputs(project: Project, series: Series) -> tuple[Path, ...]:
    """The project's files that have a say in what happens in the guest."""
    spec = series.spec
    programs = {(project.scripts / load.program).parent for load in spec.workload}
    files = {path for folder in programs for path in folder.rglob("*")}
    files |= {project.scripts / script.file for script in spec.script}
    files |= agent_files(project)
    return tuple(sorted(path for path in files if path.is_file()))


def agent_files(project: Project) -> set[Path]:
    """The agent, but for what only kernels that watch themselves are put through."""
    files = set((project.harness / "kstall_guest").rglob("*.py"))
    return files - {project.root / STRESS}


def key_of(project: Project, series: Series, where: Guest, *expected: str) -> str:
    """Changes with anything that could make the guest's results another."""
    return cache.digest(
        where.kernel.key,
        where.root.key,
        where.accel.kind,
        vars(where.machine),
        guest.kernel_parameters(where.machine, where.root.arch),
        [(program.name, cache.file_digest(program.file)) for program in where.programs],
        job_for(series, where.kernel),
        [dataclasses.asdict(step) for step in steps_for(series)],
        [
            (str(path.relative_to(project.root)), cache.file_digest(path))
            for path in inputs(project, series)
        ],
        *expected,
    )


def run_guest(
    context: Context,
    series: Series,
    where: Guest,
    log: Path,
    *,
    out: Path | None = None,
    fresh: bool = False,
    keep: Callable[[Path], bool] = lambda _: True,
    expected: tuple[str, ...] = (),
) -> Booted:
    """Boot, run all workloads, and return where the results are.

    That is below ``out``, or the series' directory of the run.

    Results of a guest that came to its end without a complaint are kept under their
    key, if they are to ``keep``, and used again unless ``fresh`` ones are asked for.
    Complaints in which one of the ``expected`` expressions is found are none here;
    `complaints` finds them in the results.  Raises `GuestEnded` if they end the kernel.
    Raises `GuestFailed` with the console's excerpt if the kernel is at fault, and
    `NotJudged` if nothing can be said of it; what the guest had written until then
    stays in the run directory.  Results of before that were kept go with the first.
    """
    project = context.project
    key = key_of(project, series, where, *expected)
    place = out or context.out / series.name
    results = place / "results"
    kept = context.cache / "evidence" / key
    with context.turn(f"evidence-{key}", RUNS_IT):
        if not fresh and cache.kept(kept):
            shutil.copytree(kept, results, ignore=shutil.ignore_patterns(cache.LIST))
            summary = f"{len(series.spec.workload)} workloads, evidence {key}"
            return Booted(results, True, summary)
        try:
            if context.away is None:
                summary = _run(context, series, where, place, log, expected)
            else:
                unit = _unit(context, series, where, key, expected, fresh=fresh)
                summary = _run_away(context.away, unit, place)
        except GuestFailed:
            # What failed now is not proven by a guest of before that did not.
            cache.remove(kept)
            _forget_away(context, series, where, key)
            raise
        if keep(results):
            with cache.keep_if_possible(kept) as scratch:
                shutil.copytree(results, scratch, dirs_exist_ok=True)
        else:
            _forget_away(context, series, where, key)
    cache.prune(context.cache / "evidence", keep=200)
    return Booted(results, False, summary)


def _run(
    context: Context,
    series: Series,
    where: Guest,
    place: Path,
    log: Path,
    expected: tuple[str, ...],
) -> str:
    """Boot it here; raises as `run_guest` does, and a summary comes back."""
    share, results = place / "share", place / "results"
    fill(share, context.project, series, where, job_for(series, where.kernel), log)
    try:
        ran, summary = _boot(series, where, share, place, context.ui)
    finally:
        (share / "results").rename(results)
        cache.remove(share)
    console.abridge(ran.console, results / "console.txt")
    _refuse(ran, results, limits_for(where), expected)
    cache.write_json(results / hosttime.FILE, ran.host.as_json())
    return summary


# -- elsewhere -----------------------------------------------------------------------


def needs_of(machine: guest.Machine, kind: str) -> dict[str, float]:
    """What a worker has to have for a guest on ``machine`` and this accelerator."""
    emulator = process.run([_EMULATOR, "--version"]).stdout.splitlines()[0]
    needs = {
        "slot": 1.0,
        # QEMU's own, and what reads results, come on top.
        "memory": machine.bytes_of_memory / 2**30 + 0.5,
        f"{_EMULATOR}: {emulator}": 1.0,
    }
    return {**needs, "kvm": 1.0} if kind == "kvm" else needs


def _unit(
    context: Context,
    series: Series,
    where: Guest,
    key: str,
    expected: tuple[str, ...],
    *,
    fresh: bool,
) -> elsewhere.Unit:
    loads = series.spec.workload
    copied = projects.keep(context.project, context.cache)
    return elsewhere.Unit(
        kind="guest",
        key=key,
        title=f"guest of {series.name}",
        spec={
            "project": copied,
            "series": series.name,
            "workloads": [load.name for load in loads],
            "checks": [check.name for check in series.spec.check],
            "kernel": where.kernel.key,
            "root": where.root.key,
            "accel": where.accel.kind,
            "programs": [
                [one.name, one.file.parent.name, one.file.name]
                for one in where.programs
            ],
            "expected": list(expected),
            "key": key,
        },
        entries=(
            copied,
            f"kernels/{where.kernel.key}",
            f"roots/{where.root.key}",
            *(f"programs/{one.file.parent.name}" for one in where.programs),
        ),
        needs=needs_of(where.machine, where.accel.kind),
        # Most of it is bpftrace's start.
        seconds=20.0
        + 10.0 * sum(len(load.scripts) + bool(load.record) for load in loads),
        fresh=fresh,
    )


def _run_away(away: elsewhere.Elsewhere, unit: elsewhere.Unit, place: Path) -> str:
    outcome = away.do(unit, place)
    outcome.tell()
    if outcome.error is not None:
        raise outcome.error
    return str(outcome.told["summary"])


def _forget_away(context: Context, series: Series, where: Guest, key: str) -> None:
    if context.away is not None:
        context.away.forget(_unit(context, series, where, key, (), fresh=False))


def perform(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Sink
) -> elsewhere.Done:
    """Boot the guest that `run_guest` of another process has asked for."""
    project = projects.find(spec["project"], cache_dir)
    (whole,) = project.load([spec["series"]])
    series = _part(whole, spec["workloads"], spec["checks"])
    machine = machine_for(series)
    built = kernel.find(spec["kernel"], cache_dir)
    assert built is not None
    user_space = root.find(spec["root"], cache_dir)
    where = Guest(
        built,
        user_space,
        accelerator(cache_dir, built, user_space, spec["accel"], ui),
        machine,
        tuple(
            programs.Program(name, cache_dir / "programs" / key / file, reused=True)
            for name, key, file in spec["programs"]
        ),
    )
    expected = tuple(spec["expected"])
    if key_of(project, series, where, *expected) != spec["key"]:
        raise elsewhere.CannotHere("this worker would boot another guest than is asked")
    context = Context(project, cache_dir, out, "full", ui)
    place = out / series.name
    log = place / "guest.log"
    told: dict[str, Any] = {}
    error: KstallError | None = None
    try:
        told["summary"] = _run(context, series, where, place, log, expected)
    except (FailedCheck, NotJudged) as stopped:
        # All else is this worker's, and another one may be able to.
        error = stopped
    return elsewhere.Done(told, files=place, error=error)


def accelerator(
    cache_dir: Path, built: kernel.Kernel, user_space: root.Root, kind: str, ui: Sink
) -> accel.Accel:
    """That of this worker, which has to be of the ``kind`` that is asked for."""
    environment = {} if kind == "kvm" else {"KSTALL_ACCEL": kind}
    found = accel.probe(
        cache_dir, built.image, user_space, ui.say, environment=environment
    )
    if found.kind != kind:
        raise elsewhere.CannotHere(f"no guest runs under KVM here: {found.why}")
    return found


def _part(series: Series, workloads: Sequence[str], checks: Sequence[str]) -> Series:
    """``series`` with only these, in its own order."""
    spec = series.spec.model_copy(
        update={
            "workload": tuple(
                one for one in series.spec.workload if one.name in workloads
            ),
            "check": tuple(one for one in series.spec.check if one.name in checks),
        }
    )
    return dataclasses.replace(series, spec=spec)


def complaints(results: Path, expression: str) -> tuple[console.Splat, ...]:
    """Those of the kernel in which ``expression`` is found."""
    said = console.scan_file(results / "console.txt")
    return tuple(one for one in said if _is_expected(one, (expression,)))


def _is_expected(one: console.Splat, expected: tuple[str, ...]) -> bool:
    """Whether a report is one of those; what only follows from another is none."""
    return (
        one.kind != "panic"
        and not console.is_loss(one)
        and any(re.search(text, one.excerpt, re.MULTILINE) for text in expected)
    )


def forget(context: Context, series: Series, where: Guest) -> None:
    """Drop the results that were kept of such a guest, if there are any."""
    key = key_of(context.project, series, where)
    with context.turn(f"evidence-{key}", RUNS_IT):
        cache.remove(context.cache / "evidence" / key)
        _forget_away(context, series, where, key)


def fill(
    share: Path,
    project: Project,
    series: Series,
    where: Guest,
    job: Mapping[str, Any],
    log: Path,
) -> None:
    """Put everything that ``job`` needs below ``share``, and make room for results.

    Raises `KstallError` for a workload that does not compile.
    """
    (share / "results").mkdir(parents=True)
    for one in where.programs:
        target = share / "scripts" / one.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(one.file, target)
    for load in series.spec.workload:
        target = share / "scripts" / load.program
        compile_program(project.scripts / load.program, target, log, where.root.arch)
    for path in inputs(project, series):
        target = share / path.relative_to(project.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    shutil.copytree(where.kernel.modules, share / "modules", symlinks=True)
    cache.write_json(share / "job.json", job)


def compile_program(
    program: Path, target: Path, log: Path, whose: Architecture = arch.X86_64
) -> None:
    """Compile ``<program>.c``, if there is one; static, as the guest has other libs."""
    source = program.with_suffix(".c")
    if program.exists() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with space.guarded(
            target.parent, _PROGRAM_BYTES, f"the workload {source.name}"
        ):
            process.run(
                [whose.tool("gcc"), *_CFLAGS, "-o", target, source],
                env={"LC_ALL": "C"},
                log=log,
            )
    except process.CommandError as error:
        # It is built by this machine from a source that no patch touches.
        raise KstallError(
            f"the workload {source.name} does not compile:\n{error.what}",
            log=log,
            next=f"it takes {whose.tool('gcc')} and a static C library (libc6-dev)",
        ) from error


def _boot(
    series: Series, where: Guest, share: Path, out: Path, ui: Sink
) -> tuple[guest.GuestRun, str]:
    loads = series.spec.workload
    tracers = sum(len(load.scripts) + bool(load.record) for load in loads)
    deadline = _MARGIN + _PER_TRACER * tracers + sum(load.deadline_s for load in loads)
    ran = start(series, where, share, out, deadline, ui)
    summary = (
        f"{len(loads)} workloads in {ran.seconds:.0f} s, first line after "
        f"{ran.first_line_seconds:.1f} s"
        if ran.first_line_seconds is not None
        else f"ended as {ran.status}"
    )
    figure("guest", ran.seconds, "s")
    if ran.first_line_seconds is not None:
        figure("guest start to first line of the job", ran.first_line_seconds, "s")
    return ran, summary


def start(
    series: Series, where: Guest, share: Path, out: Path, deadline: float, ui: Sink
) -> guest.GuestRun:
    """Boot ``where`` with the job in ``share``; the results are below that."""
    ran = guest.boot(
        where.kernel.image,
        where.root,
        where.accel,
        where.machine,
        (jobs.share(share),),
        jobs.COMMAND,
        out=out,
        deadline=deadline,
        say=ui.say,
        steps=steps_for(series),
        scripts=share / "scripts",
    )
    _keep_performed(ran, share / "results")
    return ran


def _keep_performed(ran: guest.GuestRun, results: Path) -> None:
    """Put what the monitor did beside what the workload that asked for it left."""
    for name in dict.fromkeys(one.workload for one in ran.performed):
        # The name is the guest's word: it shall not lead out of the results.
        if (results / name).parent == results and name not in ("", ".."):
            (results / name).mkdir(exist_ok=True)
            cache.write_json(
                results / name / "injected.json",
                [one.as_json() for one in ran.performed if one.workload == name],
            )


def require_witness(ran: guest.GuestRun) -> None:
    """Raise if the guest ended in a way that says nothing of its kernel.

    What its kernel `meant` before that, an oops, a WARNING or lockdep, counts even so.
    """
    if ran.status == "lost":
        # QEMU does not say so, and what a guest writes over 9p fails there.
        space.require(ran.console.parent, _PROGRAM_BYTES, "what the guest writes")
        words = f"; QEMU's last words: {ran.last_words}" if ran.last_words else ""
        raise NotJudged(
            "the guest went away before the job had ended, and its kernel did not "
            f"say why{words}",
            log=ran.console,
            next="if QEMU was killed (memory?), run the same command again",
        )
    if ran.victims:
        raise NotJudged(
            f"the guest ran out of memory, and killed {', '.join(ran.victims)}",
            log=ran.console,
            next="give it more with `memory` of [machine] in series.toml; if that does "
            "not help, something in its kernel leaks",
        )
    for one in ran.splats:
        if console.is_rootless(one):
            raise NotJudged(
                f"the guest found nothing to start: {one.headline}",
                log=ran.console,
                next="remove `roots` from the cache, so that the root is made anew; if "
                "that does not help, see whether the kernel starts without the patches",
            )


def meant(
    ran: guest.GuestRun, limits: hosttime.Thresholds
) -> tuple[console.Splat, ...]:
    """The reports that say something of the kernel."""
    excused = ran.excused(limits)
    return tuple(
        one
        for number, one in enumerate(ran.splats)
        # What the log lost it lost for those who read it: nobody knows what it was.
        if number not in excused and not console.is_loss(one)
        # Without a root there is nothing that a kernel could go on with.
        if not console.is_rootless(one)
        # Without memory the best of drivers may warn, and init be what is killed.
        if not (ran.victims and one.kind in ("warning", "panic"))
    )


def require_time(
    ran: guest.GuestRun, results: Path, limits: hosttime.Thresholds
) -> None:
    """Raise if a guest stumbled over nothing but its time.

    For those of which the kernel has said something that it `meant` that is no matter.
    """
    if ran.ahead:
        raise NotJudged(
            f"the guest was wrong about the time{_doing(results)}: {ran.ahead}, so "
            "that what it waited for had less than it should",
            log=ran.console,
            next=_QUIETER,
        )
    if excused := ran.excused(limits):
        number, why = next(iter(excused.items()))
        known = "was starved of time" if ran.host.samples else "may have had no time"
        raise NotJudged(
            f"the guest {known}{_doing(results)}: {why}:\n{ran.splats[number].excerpt}",
            log=ran.console,
            next=_QUIETER,
        )
    if ran.status == "hang":
        raise NotJudged(_late(ran, results), log=ran.console, next=_QUIETER)


def _refuse(
    ran: guest.GuestRun,
    results: Path,
    limits: hosttime.Thresholds,
    expected: tuple[str, ...],
) -> None:
    """Raise unless the guest came to its end, and the kernel said nothing but what was
    ``expected``."""
    known = {one for one in ran.splats if _is_expected(one, expected)}
    said = tuple(one for one in meant(ran, limits) if one not in known)
    if not said:
        require_witness(ran)
    if ran.status == "panic" or said:
        excerpt = said[0].excerpt if said else "(nothing on the console)"
        what = {
            "panic": "the guest panicked",
            "hang": "the guest hung and was ended at its deadline",
            "lost": "the kernel complained, and the guest went away",
            "completed": f"the kernel complained ({len(said)} reports)",
        }[ran.status]
        ended = known and all(one.kind == "panic" for one in said)
        raise (GuestEnded if ended else GuestFailed)(
            f"{what}{_doing(results)}:\n{excerpt}", log=ran.console
        )
    require_time(ran, results, limits)
    if lost := [one for one in ran.splats if one not in known]:
        raise NotJudged(
            f"the kernel's log lost messages: {lost[0].headline}",
            log=ran.console,
            next="look for what printed so much on the console",
        )
    if ran.exit_status != 0:
        error = agent(results).get("error") or {}
        # What is wrong with the job is so in another guest, too.
        again = error.get("kind") not in ("bad-job", "wrong-kernel")
        raise (NotJudged if again else KstallError)(
            f"the job in the guest exited {ran.exit_status}{_agent_error(results)}",
            log=ran.console,
        )


_QUIETER = (
    "host.json beside the console says how busy the host was; on a quiet one, "
    "`kstall validate --again` boots it afresh"
)


def _late(ran: guest.GuestRun, results: Path) -> str:
    """The error of a guest that did not end, and whose kernel reported nothing."""
    had = ran.seconds - ran.lost
    waited = (
        f"of {ran.seconds:.0f} s it waited {ran.lost:.0f} s for a processor or a disk"
        if ran.host.samples
        else hosttime.BLIND
    )
    if had < ran.deadline:
        return (
            f"the guest was starved of time{_doing(results)}: {waited}, and had "
            f"{had:.0f} of the {ran.deadline:.0f} s that it may take"
        )
    may = f"the {ran.deadline:.0f} s that it may take ({waited})"
    return (
        f"the guest did not end{_doing(results)} in {may}, and its kernel did not say "
        "why; the end of its console is what each task did then"
    )


def agent(results: Path) -> dict[str, Any]:
    """agent.json; nothing if it is not there, or cut off."""
    try:
        found = json.loads((results / "agent.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _doing(results: Path) -> str:
    """Which workload ran when the guest ended, as far as it could say."""
    for entry in agent(results).get("workloads", []):
        if entry.get("status") == "running":
            return f" in workload {entry['name']}"
    return ""


def _agent_error(results: Path) -> str:
    error = agent(results).get("error")
    return f": {error['message']}" if error else ""
