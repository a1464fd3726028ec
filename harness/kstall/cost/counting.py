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
import math
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
    cache,
    elsewhere,
    parallel,
)
from ..build import kernel
from ..debian import root
from ..evidence import traceabi
from ..guest import KeptResults, accel, guest, guestrun, jobs
from ..series import Context, Measure, Project, Series
from . import costs, gate

#: Changes when counts are read in another way; what is run is part of their key.
VERSION = 2
#: Modes, and one in which only events of other series in the kernel are on.
RunMode = costs.Mode | Literal["beside"]
_SIDES = ("base", "patched")
_COUNTING_EVENTS = ("ftrace", "beside")
_COUNTS = "counts.json"
_FORMATS = "formats"
_BOOTS = 3
_ICOUNT = ("-icount", "shift=0,sleep=off,align=off")
_COUNTED = accel.Accel(
    "tcg", "instructions are counted under emulation, whatever the host can"
)
# Host seconds for a boot, and for each bpftrace in it.
_MARGIN = 120.0
_PER_TRACER = 90.0
# Guest time passes with instructions, and at once while the guest waits.
_FOREVER = 3600.0
#: How likely it is that a difference is due to chance which counts as one: there are
#: dozens of measurements in a run.
_CHANCE = 0.001
# Events that a reader misses do not change the counts.
_IGNORED = (errors.LostEvents.kind, errors.SkippedEvents.kind)


class MeasureFailed(FailedCheck):
    """A program that should have been measured did not work."""


@dataclass(frozen=True)
class Kernels:
    """The two kernels that are compared, and the root that they run on.

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
class BootPlan:
    """A boot of one of the kernels, and the modes that are measured in it."""

    kernel: kernel.Kernel
    extra: Path | None
    name: str
    modes: tuple[RunMode, ...]
    # Whether it prints the formats of all trace events after measuring.
    formats: bool = False
    beside: tuple[str, ...] = ()

    @property
    def side(self) -> str:
        """Which of the two kernels it is of."""
        return self.name.partition("-")[0]

    @property
    def failure(self) -> type[KstallError]:
        """The error if this boot fails: in the base the patches cannot be at fault."""
        return KstallError if self.modes == ("base",) else MeasureFailed


def _boots(kernels: Kernels) -> tuple[BootPlan, ...]:
    """The boots in their order, both kernels taking turns."""
    boots = []
    for number in range(1, _BOOTS + 1):
        modes: tuple[RunMode, ...] = ("off", "ftrace")
        if number == 1:
            # Once is enough: the cost of bpftrace is not judged, and it starts slowly.
            modes = (*modes, "beside", "bpftrace")
        base, patched = kernels.base_extra, kernels.patched_extra
        formats = number == 1
        boots += [
            BootPlan(kernels.base, base, f"base-{number}", ("base",), formats),
            BootPlan(
                *(kernels.patched, patched, f"patched-{number}", modes),
                *(formats, kernels.beside),
            ),
        ]
    return tuple(boots)


def _inputs(project: Project, series: Series) -> tuple[Path, ...]:
    files = guestrun.agent_files(project)
    for workload in series.measures:
        program = project.scripts / workload.program
        files |= {program, program.with_suffix(".c"), *program.parent.glob("*.h")}
        files |= {
            project.scripts / name
            for name in (workload.script, workload.module)
            if name
        }
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
        kernels.root.arch.hardware,
        [
            workload.model_dump(exclude={"because", "nops", "more", "operation"})
            for workload in series.measures
        ],
        [
            (str(path.relative_to(project.root)), cache.file_digest(path))
            for path in _inputs(project, series)
        ],
        [_job(series, boot) for boot in _boots(kernels) if boot.side == side],
    )


def measure(
    context: Context, series: Series, kernels: Kernels, log: Path
) -> tuple[list[costs.Measurement], bool]:
    """Boot both kernels several times and count, or take the counts from the cache.

    Also returned is whether all counts were cached.
    Raises `MeasureFailed` if a program fails or a kernel complains.
    """
    sides = {side: _kept(context, series, kernels, side) for side in _SIDES}
    counts: list[dict[str, Any]] = []
    with contextlib.ExitStack() as turns:
        for kept in sides.values():
            turns.enter_context(kept.turn("counts this very thing"))
        missing = [side for side, kept in sides.items() if not kept.usable(kept.entry)]
        # Read now: keeping others may prune these.
        for side in [side for side in sides if side not in missing]:
            counts += _read(sides[side].entry)
        if missing:
            boots = [boot for boot in _boots(kernels) if boot.side in missing]
            counts += _count(context, series, kernels, boots, log)
        for side in missing:
            with sides[side].replaced() as scratch:
                rows = [row for row in counts if row["boot"].startswith(f"{side}-")]
                cache.write_json(scratch / _COUNTS, rows)
                text = traceabi.printed(_first_boot(context, series, side))
                (scratch / _FORMATS).write_text(text, encoding="utf-8")
    measurements = [_measurement(workload, counts) for workload in series.measures]
    return measurements, not missing


def _kept(context: Context, series: Series, kernels: Kernels, side: str) -> KeptResults:
    key = key_of(context.project, series, kernels, side)
    return KeptResults(context, "instructions", key, limit=200)


def _read(directory: Path) -> list[dict[str, Any]]:
    return list(json.loads((directory / _COUNTS).read_text(encoding="utf-8")))


def _first_boot(context: Context, series: Series, side: str) -> Path:
    return context.out / series.name / "instructions" / f"{side}-1"


def formats(context: Context, series: Series, kernels: Kernels) -> tuple[str, ...]:
    """The formats of all trace events of both kernels, as their guests printed them.

    Only after `measure`.
    """
    texts = []
    for side in _SIDES:
        kept = _kept(context, series, kernels, side)
        if kept.usable(kept.entry):
            text = (kept.entry / _FORMATS).read_text(encoding="utf-8")
        else:  # counted by this run, which could not keep it
            text = traceabi.printed(_first_boot(context, series, side))
        texts.append(text)
    return tuple(texts)


def _machine(series: Series) -> guest.Machine:
    """The series' machine with one processor, for only that one can be counted."""
    machine = guestrun.machine_for(series)
    return dataclasses.replace(machine, cpus=1, devices=(*machine.devices, *_ICOUNT))


def _vm(series: Series, kernels: Kernels, boot: BootPlan) -> guestrun.Guest:
    extra, machine = boot.extra, _machine(series)
    return guestrun.Guest(boot.kernel, kernels.root, _COUNTED, machine, extra=extra)


def _count(
    context: Context,
    series: Series,
    kernels: Kernels,
    boots: Sequence[BootPlan],
    log: Path,
) -> list[dict[str, Any]]:
    project, out = context.project, context.out / series.name / "instructions"
    compile_programs(project, series, out, log, kernels.root.arch)
    counts: list[dict[str, Any]] = []
    machine = _machine(series)
    # Each guest has one processor and is emulated by one thread.
    processors = min(len(boots), len(os.sched_getaffinity(0)))
    workers = (
        guestrun.at_once(processors, [machine]) if context.away is None else len(boots)
    )
    names: set[str] = set()

    def collect(name: str, counted: list[dict[str, Any]]) -> None:
        counts.extend(counted)
        names.add(name)
        context.ui.progress(len(names), len(boots), name)

    def task(boot: BootPlan) -> Callable[[], list[dict[str, Any]]]:
        if context.away is None:
            vm = _vm(series, kernels, boot)
            return functools.partial(run, project, series, boot, vm, out)
        unit = _unit(context, series, kernels, boot)
        return functools.partial(_run_away, context.away, unit, out)

    try:
        parallel.each({boot.name: task(boot) for boot in boots}, workers, collect)
    except MeasureFailed:
        # Which boot fails first is chance: the patches are at fault only if the base
        # does not fail, too.  Counts of it that were kept show that.
        bases = [boot for boot in boots if boot.side == "base"]
        if bases and not names.intersection(boot.name for boot in bases):
            task(dataclasses.replace(bases[0], name="base-again", formats=False))()
        raise
    return sorted(counts, key=lambda row: (row["boot"], row["workload"], row["mode"]))


# -- elsewhere -----------------------------------------------------------------------


def _unit(
    context: Context, series: Series, kernels: Kernels, boot: BootPlan
) -> elsewhere.Unit:
    key = _boot_key(context.project, series, kernels, boot)
    more = {
        "boot": boot.name,
        "modes": list(boot.modes),
        "formats": boot.formats,
        "beside": list(boot.beside),
    }
    return dataclasses.replace(
        guestrun.unit(context, series, _vm(series, kernels, boot), key, more),
        kind="counting",
        title=f"{boot.name} of what {series.name} costs",
        seconds=20.0 + 40.0 * ("bpftrace" in boot.modes),
    )


def _boot_key(
    project: Project, series: Series, kernels: Kernels, boot: BootPlan
) -> str:
    """`key_of` what is counted in one of the boots."""
    side = key_of(project, series, kernels, boot.side)
    return cache.digest(side, boot.name, boot.formats)


def _run_away(
    away: elsewhere.Elsewhere, unit: elsewhere.Unit, out: Path
) -> list[dict[str, Any]]:
    directory = out / str(unit.spec["boot"])
    outcome = away.do(unit, directory)
    outcome.report_figures()
    if outcome.error is not None:
        raise outcome.error
    return _read(directory)


def perform(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Sink
) -> elsewhere.WorkerResult:
    """Count in one boot, for `measure` of another process."""
    project, series, vm = guestrun.requested(cache_dir, spec)
    name, modes, beside = spec["boot"], tuple(spec["modes"]), tuple(spec["beside"])
    boot = BootPlan(vm.kernel, vm.extra, name, modes, spec["formats"], beside)
    # The other one is not booted here.
    kernels = Kernels(vm.kernel, vm.kernel, vm.root, beside=beside)
    if _boot_key(project, series, kernels, boot) != spec["key"]:
        raise elsewhere.WrongWorker("this worker would count in a different guest")
    directory = out / boot.name
    error: KstallError | None = None
    try:
        log = directory / "compile.log"
        compile_programs(project, series, out, log, vm.root.arch)
        counts = run(project, series, boot, _vm(series, kernels, boot), out)
        cache.write_json(directory / _COUNTS, counts)
    except (FailedCheck, NotJudged) as failure:
        # All else is a problem of this worker; another may succeed.
        error = failure
    return elsewhere.WorkerResult(files=directory, error=error)


def compile_programs(
    project: Project,
    series: Series,
    out: Path,
    log: Path,
    whose: Architecture,
) -> None:
    """Put the measured programs below ``out``, where `run` takes them from."""
    # Also if there are only scripts, which are not compiled.
    (out / "programs").mkdir(parents=True, exist_ok=True)
    for workload in series.measures:
        source = project.scripts / workload.program
        target = out / "programs" / workload.program
        guestrun.compile_program(source, target, log, whose)


def run(
    project: Project, series: Series, boot: BootPlan, vm: guestrun.Guest, out: Path
) -> list[dict[str, Any]]:
    """Boot ``vm`` and measure: a row for each workload and mode, with `parse`'s values.

    Raises `MeasureFailed` if a program fails or the kernel complains.
    """
    folder = out / boot.name
    # Not part of the key: it runs after the measurements.
    format_files = (project.root / traceabi.PROGRAM,) if boot.formats else ()
    files = (*_inputs(project, series), *format_files)
    share = folder / "share"
    shutil.copytree(out / "programs", share / "scripts")
    guestrun.put(share, project, files, vm, _job(series, boot))
    guest_run = guestrun.start(
        vm, folder, _deadline(series, boot), lambda _: None, scripts=project.scripts
    )
    _refuse(guest_run, vm, boot)
    return list(_counted(series, boot, folder / "results"))


def _deadline(series: Series, boot: BootPlan) -> float:
    seconds = _MARGIN
    for workload in series.measures:
        seconds += workload.deadline_s * len(boot.modes)
        seconds += _PER_TRACER * (
            "bpftrace" in boot.modes and workload.script is not None
        )
    return seconds


def _runs(series: Series, boot: BootPlan) -> Iterator[tuple[Measure, RunMode]]:
    """The runs of a boot, untraced ones first, before tracing has warmed anything."""
    for mode in boot.modes:
        for workload in series.measures:
            if mode == "ftrace" and not workload.events:
                continue
            if mode == "bpftrace" and workload.script is None:
                continue
            if mode == "beside" and not boot.beside:
                continue
            yield workload, mode


def _job(series: Series, boot: BootPlan) -> dict[str, Any]:
    last = [traceabi.workload(_FOREVER)] if boot.formats else []
    return jobs.job(
        series.name,
        boot.kernel.build_id,
        [
            jobs.workload(
                f"{workload.name}-{mode}",
                [str(jobs.SCRIPTS / workload.program), *workload.args],
                _FOREVER,
                modules=guestrun.modules_of(workload),
                events=workload.events if mode == "ftrace" else (),
                beside=list(boot.beside) if mode == "beside" else [],
                scripts=[workload.script]
                if mode == "bpftrace" and workload.script
                else (),
                # Only counts are used, and text over 9p is slow.
                buffer_kb=64,
                # While a reader waits for 9p, guest time passes at once.
                attach_s=_FOREVER,
            )
            for workload, mode in _runs(series, boot)
        ]
        + last,
    )


def _refuse(run: guest.GuestRun, vm: guestrun.Guest, boot: BootPlan) -> None:
    """Raise as `guestrun.refuse`, with the boot's name and failure."""
    try:
        guestrun.refuse(run, vm, run.console.parent / "results")
    except KstallError as error:
        error.what = f"boot {boot.name}: {error.what}"
        if not isinstance(error, FailedCheck):
            raise
        raise boot.failure(error.what, log=error.log, next=error.next) from error


def _counted(series: Series, boot: BootPlan, results: Path) -> Iterator[dict[str, Any]]:
    agent = json.loads((results / "agent.json").read_text(encoding="utf-8"))
    facts = {record["name"]: record for record in agent["workloads"]}
    for workload, mode in _runs(series, boot):
        name = f"{workload.name}-{mode}"
        record = facts.get(name, {})
        _require_success(boot, results / name, record, boot.failure)
        operations, taken = parse((results / name / "stdout").read_text())
        trace = record.get("trace") or {}
        yield {
            "boot": boot.name,
            "workload": workload.name,
            "mode": mode,
            "operations": operations,
            "taken": taken,
            "events": trace.get("entries", 0) + trace.get("lost", 0)
            if mode in _COUNTING_EVENTS
            else None,
        }
    if boot.formats:
        # That they cannot be printed is no verdict on the patches.
        record = facts.get(traceabi.NAME, {})
        _require_success(boot, results / traceabi.NAME, record, KstallError)


def _require_success(
    boot: BootPlan,
    directory: Path,
    record: Mapping[str, Any],
    failure: type[KstallError],
) -> None:
    """Raise ``failure`` unless the workload with results in ``directory`` ended well;
    `KstallError` if the apparatus is at fault."""
    # A full buffer is still written to, which is all that counts here.
    faults = [
        fault for fault in record.get("errors", []) if fault["kind"] not in _IGNORED
    ]
    if not faults and record.get("exit_status") == 0:
        return
    stderr = directory / "stderr"
    # The program is not started if its tracer fails.
    message = stderr.exists() and stderr.read_text(errors="replace").strip()
    apparatus = any(errors.fault_of(fault) == "apparatus" for fault in faults)
    raise (KstallError if apparatus else failure)(
        f"boot {boot.name}: {directory.name} {record.get('status')}, exit "
        f"{record.get('exit_status')}: {record.get('error') or message}",
        next=f"read what it printed, in {directory}",
    )


def parse(text: str) -> tuple[int, list[int]]:
    """What a measured program printed: operations a repetition, and instructions.

    Raises `KstallError` if it printed anything else.
    """
    lines = text.split("\n")
    if not lines[0].startswith("operations ") or len(lines) < 3:
        raise KstallError(f"no measurement: {text[:200]!r}")
    return int(lines[0].split()[1]), [int(line) for line in lines[1:] if line]


def _measurement(
    workload: Measure, counts: Sequence[dict[str, Any]]
) -> costs.Measurement:
    rows = [row for row in counts if row["workload"] == workload.name]
    modes: tuple[costs.Mode, ...] = ("base", "off", "ftrace", "bpftrace")
    samples = [
        _sample(mode, chosen)
        for mode in modes
        if (chosen := [row for row in rows if row["mode"] == mode])
    ]
    by_mode = {sample.mode: sample for sample in samples}
    uncertainty = _uncertainty(_each(rows, "base"), _each(rows, "off"))
    # Each event fired at one site, which is one NOP while it is off.  Sites that are
    # crossed without firing are not seen: the prediction is then too low.
    beside = [row for row in rows if row["mode"] == "beside"]
    measurement = costs.Measurement(
        workload=workload.name,
        operation=workload.operation,
        events=list(workload.events),
        resolution=max(by_mode["base"].spread, uncertainty),
        samples=samples,
        difference=by_mode["off"].median - by_mode["base"].median,
        predicted=workload.nops + workload.more,
        others=_hits(beside) if beside else 0,
        because=workload.because,
    )
    measurement.visible = gate.visible(measurement)
    return measurement


def _each(counts: Sequence[dict[str, Any]], mode: costs.Mode) -> list[float]:
    """Instructions of an operation in each repetition of all boots in ``mode``."""
    return [
        taken / count["operations"]
        for count in counts
        if count["mode"] == mode
        for taken in count["taken"]
    ]


def _uncertainty(before: Sequence[float], after: Sequence[float]) -> float:
    """How well the difference of two medians is known: to plus or minus so much.

    Boots may agree by chance although their repetitions differ, by where timer ticks
    fall.  It is half of the distribution-free confidence interval of the shift between
    two samples, after Hodges and Lehmann, from the ranks of all pairwise differences.
    Where all repetitions take the same, it is 0.
    """
    pairs = sorted(late - early for early in before for late in after)
    deviation = math.sqrt(len(pairs) * (len(before) + len(after) + 1) / 12)
    quantile = statistics.NormalDist().inv_cdf(1 - _CHANCE / 2)
    rank = max(0, math.floor(len(pairs) / 2 - quantile * deviation))
    return (pairs[-1 - rank] - pairs[rank]) / 2


def _sample(mode: costs.Mode, counts: Sequence[dict[str, Any]]) -> costs.Sample:
    boots = []
    for count in counts:
        per = [taken / count["operations"] for taken in count["taken"]]
        boots.append(
            costs.Boot(
                median=statistics.median(per),
                low=min(per),
                high=max(per),
                upper=sorted(per)[3 * (len(per) - 1) // 4],
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
    """Events per operation; the warm-up repetitions of the program count, too."""
    count = counts[0]
    operations = int(count["operations"]) * (len(count["taken"]) + 2)
    return int(count["events"]) / operations
