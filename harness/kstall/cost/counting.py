# SPDX-License-Identifier: GPL-2.0-or-later
"""Executed instructions of an operation, counted by the emulator.

With ``-icount`` QEMU's clock advances by one nanosecond an instruction, and the guest's
time stamp counter with it.  So a program counts exactly what it and the kernel execute,
on a busy host as on an idle one, and on any processor that QEMU runs on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kstall_guest import errors

from ..base import (
    Architecture,
    FailedCheck,
    KstallError,
    NotJudged,
    Sink,
    arch,
    cache,
    elsewhere,
    parallel,
    process,
)
from ..build import kernel
from ..debian import root
from ..evidence import traceabi
from ..guest import accel, guest, guestrun, hosttime, jobs
from ..series import Context, Measure, Project, Series, projects
from . import costs, gate

#: Changes when the same kernels would be measured in another way.
VERSION = 2
#: Modes, and one in which only events of other series in the kernel are on.
Asked = costs.Mode | Literal["beside"]
_SIDES = ("base", "patched")
_COUNTING_EVENTS = ("ftrace", "beside")
_COUNTS = "counts.json"
_BOOTS = 3
_ICOUNT = ("-icount", "shift=0,sleep=off,align=off")
_COUNTED = accel.Accel(
    "tcg", "instructions are counted under emulation, whatever the host can"
)
# Seconds of the host for a boot, and for each program and each bpftrace in it.
_MARGIN = 120.0
_PER_TRACER = 90.0
# Guest seconds pass with instructions, and while it waits they pass at once.
_FOREVER = 3600.0
# Of what a reader misses nothing is counted here.
_NO_MATTER = (errors.LostEvents.kind, errors.SkippedEvents.kind)


class MeasureFailed(FailedCheck):
    """A program that should have been measured did not work."""


@dataclass(frozen=True)
class Kernels:
    """The two that are compared, and what they run on.

    ``beside`` are the events of other series that are in the patched one.
    """

    base: kernel.Kernel
    patched: kernel.Kernel
    root: root.Root
    # Directories with our own modules, for either.
    base_extra: Path | None = None
    patched_extra: Path | None = None
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Boot:
    """A boot of one of the kernels, and the modes that are measured in it."""

    kernel: kernel.Kernel
    extra: Path | None
    name: str
    modes: tuple[Asked, ...]
    # Whether it prints the formats of all trace events, when all is measured.
    formats: bool = False
    beside: tuple[str, ...] = ()

    @property
    def side(self) -> str:
        """Which of the two kernels it is of."""
        return self.name.partition("-")[0]

    @property
    def failure(self) -> type[KstallError]:
        """What it is if this boot fails: without patches they cannot be at fault."""
        return KstallError if self.modes == ("base",) else MeasureFailed


def _boots(kernels: Kernels) -> tuple[Boot, ...]:
    """Boots in the order in which they are made, both kernels taking turns."""
    found = []
    for number in range(1, _BOOTS + 1):
        modes: tuple[Asked, ...] = ("off", "ftrace")
        if number == 1:
            # Once is enough: what bpftrace costs is no verdict, and its start is slow.
            modes = (*modes, "beside", "bpftrace")
        base, patched = kernels.base_extra, kernels.patched_extra
        formats = number == 1
        found += [
            Boot(kernels.base, base, f"base-{number}", ("base",), formats),
            Boot(
                *(kernels.patched, patched, f"patched-{number}", modes),
                *(formats, kernels.beside),
            ),
        ]
    return tuple(found)


def _inputs(project: Project, series: Series) -> tuple[Path, ...]:
    files = guestrun.agent_files(project)
    for one in series.measures:
        program = project.scripts / one.program
        files |= {program, program.with_suffix(".c"), *program.parent.glob("*.h")}
        files |= {project.scripts / name for name in (one.script, one.module) if name}
    return tuple(sorted(path for path in files if path.is_file()))


def key_of(project: Project, series: Series, kernels: Kernels, side: str) -> str:
    """Changes with anything that could change what is counted in one of the kernels.

    An edit of a patch leaves what was counted in the base.
    """
    patched = side == "patched"
    return cache.digest(
        VERSION,
        side,
        kernels.patched.key if patched else kernels.base.key,
        kernels.beside if patched else (),
        kernels.root.key,
        vars(_machine(series)),
        guest.kernel_parameters(_machine(series), kernels.root.arch),
        accel.version_of(kernels.root.arch),
        [
            one.model_dump(exclude={"because", "nops", "more", "operation"})
            for one in series.measures
        ],
        [
            (str(path.relative_to(project.root)), cache.file_digest(path))
            for path in _inputs(project, series)
        ],
    )


def measure(
    context: Context, series: Series, kernels: Kernels, log: Path
) -> tuple[list[costs.Measurement], bool]:
    """Boot both kernels several times and count; kept under a key, and used again.

    Also returned is whether an earlier run has counted.
    Raises `MeasureFailed` if a program fails or a kernel complains.
    """
    kept = {side: _kept(context, series, kernels, side) for side in _SIDES}
    counts: list[dict[str, Any]] = []
    with contextlib.ExitStack() as turns:
        for place in kept.values():
            name = f"instructions-{place.name}"
            turns.enter_context(context.turn(name, "counts this very thing"))
        there = {side: cache.kept(place) for side, place in kept.items()}
        if not all(there.values()):
            boots = [one for one in _boots(kernels) if not there[one.side]]
            counts += _count(context, series, kernels, boots, log)
        for side, place in kept.items():
            if there[side]:
                counts += json.loads((place / _COUNTS).read_text(encoding="utf-8"))
                continue
            with cache.keep_if_possible(place) as scratch:
                mine = [one for one in counts if one["boot"].startswith(f"{side}-")]
                cache.write_json(scratch / _COUNTS, mine)
                out = context.out / series.name / "instructions"
                traceabi.keep(out / f"{side}-1", scratch)
    cache.prune(context.cache / "instructions", keep=200)
    found = [_measurement(one, counts) for one in series.measures]
    return found, all(there.values())


def _kept(context: Context, series: Series, kernels: Kernels, side: str) -> Path:
    key = key_of(context.project, series, kernels, side)
    return context.cache / "instructions" / key


def formats(context: Context, series: Series, kernels: Kernels) -> tuple[str, ...]:
    """The formats of all trace events of either kernel, as the guests printed them.

    Empty if they were counted without, as they were before there was a use for it.
    """
    texts = [traceabi.kept(_kept(context, series, kernels, side)) for side in _SIDES]
    return tuple(text for text in texts if text is not None) if all(texts) else ()


def _machine(series: Series) -> guest.Machine:
    """The series' machine with one processor, for only that one can be counted."""
    wanted = one_processor(series)
    return dataclasses.replace(wanted, devices=(*wanted.devices, *_ICOUNT))


def one_processor(series: Series) -> guest.Machine:
    """The series' machine, but for its number of processors."""
    return dataclasses.replace(guestrun.machine_for(series), cpus=1)


def _count(
    context: Context,
    series: Series,
    kernels: Kernels,
    boots: Sequence[Boot],
    log: Path,
) -> list[dict[str, Any]]:
    project, out = context.project, context.out / series.name / "instructions"
    compile_programs(project, series, out, log, kernels.root.arch)
    counts: list[dict[str, Any]] = []
    # Each guest has one processor and is emulated by one thread.
    workers = max(1, min(len(boots), len(os.sched_getaffinity(0))))
    if context.away is not None:
        workers = len(boots)
    speed, machine = _COUNTED, _machine(series)
    names: set[str] = set()

    def done(name: str, counted: list[dict[str, Any]]) -> None:
        counts.extend(counted)
        names.add(name)
        context.ui.progress(len(names), len(boots), name)

    tasks: dict[str, Callable[[], list[dict[str, Any]]]] = {
        boot.name: functools.partial(
            run, project, series, kernels, boot, out, speed, machine
        )
        if context.away is None
        else functools.partial(
            _run_away, context.away, _unit(context, series, kernels, boot), out
        )
        for boot in boots
    }
    parallel.each(tasks, workers, done)
    return sorted(counts, key=lambda one: (one["boot"], one["workload"], one["mode"]))


# -- elsewhere -----------------------------------------------------------------------


def _unit(
    context: Context, series: Series, kernels: Kernels, boot: Boot
) -> elsewhere.Unit:
    copied = projects.keep(context.project, context.cache)
    extra = None if boot.extra is None else f"extra/{boot.extra.name}"
    entries = [copied, f"kernels/{boot.kernel.key}", f"roots/{kernels.root.key}", extra]
    side = key_of(context.project, series, kernels, boot.side)
    return elsewhere.Unit(
        kind="counting",
        key=cache.digest(side, boot.name, boot.formats),
        title=f"{boot.name} of what {series.name} costs",
        spec={
            "project": copied,
            "series": series.name,
            "kernel": boot.kernel.key,
            "extra": extra,
            "root": kernels.root.key,
            "boot": boot.name,
            "modes": list(boot.modes),
            "formats": boot.formats,
            "beside": list(boot.beside),
        },
        entries=tuple(one for one in entries if one is not None),
        needs=guestrun.needs_of(_machine(series), "tcg"),
        seconds=20.0 + 40.0 * ("bpftrace" in boot.modes),
    )


def _run_away(
    away: elsewhere.Elsewhere, unit: elsewhere.Unit, out: Path
) -> list[dict[str, Any]]:
    place = out / str(unit.spec["boot"])
    outcome = away.do(unit, place)
    outcome.tell()
    if outcome.error is not None:
        raise outcome.error
    counts: list[dict[str, Any]]
    counts = json.loads((place / _COUNTS).read_text(encoding="utf-8"))
    return counts


def perform(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Sink
) -> elsewhere.Done:
    """Count in the boot that `measure` of another process has asked for."""
    project = projects.find(spec["project"], cache_dir)
    (series,) = project.load([spec["series"]])
    built = kernel.find(spec["kernel"], cache_dir)
    assert built is not None
    boot = Boot(
        built,
        None if spec["extra"] is None else cache_dir / spec["extra"],
        spec["boot"],
        tuple(spec["modes"]),
        spec["formats"],
        tuple(spec["beside"]),
    )
    kernels = Kernels(built, built, root.find(spec["root"], cache_dir))
    place = out / boot.name
    error: KstallError | None = None
    try:
        compile_programs(project, series, out, place / "compile.log")
        machine = _machine(series)
        counts = run(project, series, kernels, boot, out, _COUNTED, machine)
        cache.write_json(place / _COUNTS, counts)
    except (FailedCheck, NotJudged) as stopped:
        # All else is this worker's, and another one may be able to.
        error = stopped
    return elsewhere.Done(files=place, error=error)


def compile_programs(
    project: Project,
    series: Series,
    out: Path,
    log: Path,
    whose: Architecture = arch.X86_64,
) -> None:
    """Put the measured programs below ``out``, where `run` takes them from."""
    # Also for scripts only, of which nothing is compiled.
    (out / "programs").mkdir(parents=True, exist_ok=True)
    for one in series.measures:
        source = project.scripts / one.program
        target = out / "programs" / one.program
        guestrun.compile_program(source, target, log, whose)


def run(
    project: Project,
    series: Series,
    kernels: Kernels,
    boot: Boot,
    out: Path,
    speed: accel.Accel,
    machine: guest.Machine,
) -> list[dict[str, Any]]:
    """Boot once and measure: a row each workload and mode, what `parse` gives in it.

    Raises `MeasureFailed` if a program fails or the kernel complains.
    """
    folder = out / boot.name
    share = folder / "share"
    (share / "results").mkdir(parents=True)
    shutil.copytree(out / "programs", share / "scripts", dirs_exist_ok=True)
    # No part of the key: it runs when all is measured.
    more = (project.root / traceabi.PROGRAM,) if boot.formats else ()
    for path in (*_inputs(project, series), *more):
        target = share / path.relative_to(project.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    shutil.copytree(boot.kernel.modules, share / "modules", symlinks=True)
    if boot.extra is not None:
        shutil.copytree(
            boot.extra, share / "modules/lib/modules" / boot.kernel.release / "extra"
        )
        process.run(["depmod", "-b", share / "modules", boot.kernel.release])
    cache.write_json(share / "job.json", _job(series, boot))
    try:
        ran = guest.boot(
            boot.kernel.image,
            kernels.root,
            speed,
            machine,
            (jobs.share(share),),
            jobs.COMMAND,
            out=folder,
            deadline=_deadline(series, boot),
            say=lambda _: None,
            scripts=project.scripts,
        )
        _refuse(ran, boot)
        return list(_counted(series, boot, share / "results"))
    finally:
        shutil.copytree(share / "results", folder / "results", dirs_exist_ok=True)
        cache.remove(share)


def _deadline(series: Series, boot: Boot) -> float:
    seconds = _MARGIN
    for one in series.measures:
        seconds += one.deadline_s * len(boot.modes)
        seconds += _PER_TRACER * ("bpftrace" in boot.modes and one.script is not None)
    return seconds


def _runs(series: Series, boot: Boot) -> Iterator[tuple[Measure, Asked]]:
    """What is run in a boot: first all that is untraced, so that nothing is warm."""
    for mode in boot.modes:
        for one in series.measures:
            if mode == "ftrace" and not one.events:
                continue
            if mode == "bpftrace" and one.script is None:
                continue
            if mode == "beside" and not boot.beside:
                continue
            yield one, mode


def _job(series: Series, boot: Boot) -> dict[str, Any]:
    last = [traceabi.workload()] if boot.formats else []
    return jobs.job(
        series.name,
        boot.kernel.build_id,
        [
            jobs.workload(
                f"{one.name}-{mode}",
                [str(jobs.SCRIPTS / one.program), *one.args],
                _FOREVER,
                modules=_modules(one),
                events=one.events if mode == "ftrace" else (),
                beside=list(boot.beside) if mode == "beside" else [],
                scripts=[one.script] if mode == "bpftrace" and one.script else (),
                # Counts are all that is looked at, and text over 9p is slow.
                buffer_kb=64,
                # As a reader waits for 9p, the guest's time passes at once.
                attach_s=_FOREVER,
            )
            for one, mode in _runs(series, boot)
        ]
        + last,
    )


def _modules(one: Measure) -> list[str]:
    ours = [Path(one.module).stem] if one.module is not None else []
    return [*one.modules, *ours]


def _refuse(ran: guest.GuestRun, boot: Boot) -> None:
    limits = hosttime.thresholds(boot.kernel.config)
    said = guestrun.meant(ran, limits)
    if not said:
        try:
            guestrun.require_witness(ran)
        except KstallError as error:
            raise KstallError(
                f"boot {boot.name}: {error.what}", log=error.log, next=error.next
            ) from error
    if ran.status == "completed" and ran.exit_status == 0 and not ran.splats:
        return
    guilty = bool(said) or ran.status == "panic"
    if not guilty:
        guestrun.require_time(ran, ran.console.parent / "results", limits)
    excerpt = said[0].excerpt if said else ""
    # An agent that could not do its job, or a log with a gap, is not the kernel's word.
    raise (boot.failure if guilty else KstallError)(
        f"boot {boot.name} ended as {ran.status}, exit {ran.exit_status}\n{excerpt}",
        log=ran.console,
    )


def _counted(series: Series, boot: Boot, results: Path) -> Iterator[dict[str, Any]]:
    agent = json.loads((results / "agent.json").read_text(encoding="utf-8"))
    facts = {one["name"]: one for one in agent["workloads"]}
    for one, mode in _runs(series, boot):
        name = f"{one.name}-{mode}"
        here = facts.get(name, {})
        # A full buffer goes on to be written to, which is all that is wanted here.
        found = [e for e in here.get("errors", []) if e["kind"] not in _NO_MATTER]
        if found or here.get("exit_status") != 0:
            printed = results / name / "stderr"
            # Without a tracer the program is not even begun.
            said = printed.exists() and printed.read_text(errors="replace").strip()
            ours = any(errors.fault_of(one) == "apparatus" for one in found)
            raise (KstallError if ours else boot.failure)(
                f"boot {boot.name}: {name} {here.get('status')}, exit "
                f"{here.get('exit_status')}: {here.get('error') or said}"
            )
        operations, taken = parse((results / name / "stdout").read_text())
        trace = here.get("trace") or {}
        yield {
            "boot": boot.name,
            "workload": one.name,
            "mode": mode,
            "operations": operations,
            "taken": taken,
            "events": trace.get("entries", 0) + trace.get("lost", 0)
            if mode in _COUNTING_EVENTS
            else None,
        }


def parse(text: str) -> tuple[int, list[int]]:
    """What a measured program printed: operations a repetition, and instructions."""
    lines = text.split("\n")
    if not lines[0].startswith("operations ") or len(lines) < 3:
        raise KstallError(f"no measurement: {text[:200]!r}")
    return int(lines[0].split()[1]), [int(line) for line in lines[1:] if line]


def _measurement(one: Measure, counts: Sequence[dict[str, Any]]) -> costs.Measurement:
    mine = [count for count in counts if count["workload"] == one.name]
    modes: tuple[costs.Mode, ...] = ("base", "off", "ftrace", "bpftrace")
    samples = [
        _sample(mode, chosen)
        for mode in modes
        if (chosen := [count for count in mine if count["mode"] == mode])
    ]
    by_mode = {sample.mode: sample for sample in samples}
    # Each that fires did so at one site, which is one NOP while it is off.  What is
    # crossed without firing is not seen so: then less is predicted than there is.
    beside = [count for count in mine if count["mode"] == "beside"]
    made = costs.Measurement(
        workload=one.name,
        operation=one.operation,
        events=list(one.events),
        resolution=by_mode["base"].spread,
        samples=samples,
        difference=by_mode["off"].median - by_mode["base"].median,
        predicted=one.nops + one.more,
        others=_hits(beside) if beside else 0,
        because=one.because,
    )
    made.visible = gate.visible(made)
    return made


def _sample(mode: costs.Mode, counts: Sequence[dict[str, Any]]) -> costs.Sample:
    boots = []
    for count in counts:
        per = [taken / count["operations"] for taken in count["taken"]]
        boots.append(
            costs.Boot(
                median=statistics.median(per),
                low=min(per),
                high=max(per),
                repetitions=len(per),
            )
        )
    medians = [boot.median for boot in boots]
    return costs.Sample(
        mode=mode,
        boots=boots,
        median=statistics.median(medians),
        spread=max(medians) - min(medians),
        hits=_hits(counts) if mode == "ftrace" else None,
    )


def _hits(counts: Sequence[dict[str, Any]]) -> float:
    """Events per operation; the repetitions that the program runs first count, too."""
    count = counts[0]
    operations = int(count["operations"]) * (len(count["taken"]) + 2)
    return int(count["events"]) / operations
