# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest with a debug kernel: its job, and its reports.

It is the guest of a full run, except that nothing is recorded: while the workloads run,
their events are switched on and off all the time (see ``kstall_guest/stress.py``), and
reports do not end it, because they are its result.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kstall_guest import stress

from ..base import KstallError, cache, figure
from ..build import kernel
from ..series import Context, Project, Series
from . import console, guest, guestrun, hosttime, jobs, splats
from .guestrun import Booted, Guest
from .kept import KeptResults
from .splats import KernelReport

#: Two builds, because KASAN and KCSAN cannot be in one.
Flavour = Literal["debug", "kcsan"]
Side = Literal["patched", "base"]
#: How often each event has to be switched by all readers together, and at least by each
#: of them: in these kernels a turn can take seconds.  And how often each processor goes
#: offline, and each module is unloaded.
TOGGLES = 200
SHARE = TOGGLES // stress.ONE_IN
CYCLES = 20
RELOADS = 5
_TOGGLE = "workloads/debug/toggle"
# An emulated kernel takes so many times as long with KASAN and lockdep as without.
_SLOWER = 5
# Seconds for boot, processors, modules, switching all events often enough, and leaks.
_MARGIN = 1500.0
_MEMORY_MB = 3072
_APPEND = (
    # Else KASAN reports only the first bug.
    "kasan_multi_shot",
    # While identify_cpu() has cleared the processor's features, five levels of page
    # tables seem to be four, and KASAN reports any access of an interrupt as wild;
    # printing that takes until the next interrupt, and so on for ever.
    "no5lvl",
    # Else lockdep's message when it gives up is not printed.
    "loglevel=8",
    # Long delays are due to emulation.
    "watchdog_thresh=60",
    "workqueue.watchdog_thresh=180",
    "sysctl.kernel.hung_task_timeout_secs=300",
)
_FACTS = "debug.json"


@dataclass(frozen=True)
class Watched:
    """The outcome of a guest; ``facts`` are those of ``kstall_guest.stress.run``.

    ``leaked`` is None if this kernel does not look for leaks.  ``lost`` is the kernel's
    note about messages that are missing in its log, which may have been reports; empty
    if there is none.
    """

    status: str
    exit_status: int | None
    agent: Mapping[str, Any]
    reports: tuple[KernelReport, ...]
    leaked: tuple[KernelReport, ...] | None
    lost: str = ""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was done to the kernel; empty if the guest ended before that."""
        facts: Mapping[str, Any] = self.agent.get("stress", {})
        return facts

    @property
    def signatures(self) -> frozenset[str]:
        """The signatures of all reports and leaks."""
        return frozenset(
            report.signature for report in (*self.reports, *(self.leaked or ()))
        )


def machine_for(series: Series) -> guest.Machine:
    """The machine of ``series``, with at least two processors and memory for KASAN."""
    usual = guestrun.machine_for(series)
    memory = max(usual.bytes_of_memory >> 20, _MEMORY_MB)
    # No processor is reserved in these guests.
    append = [word for word in usual.append if not word.startswith("isolcpus=")]
    return dataclasses.replace(
        usual,
        cpus=max(usual.cpus, 2),
        memory=f"{memory}M",
        append=(*append, *_APPEND),
    )


def job_for(
    series: Series, built: kernel.Kernel, side: Side, *, triggers: bool = False
) -> dict[str, Any]:
    """The job: all workloads, nothing recorded, and the stress meanwhile.

    The base lacks the new events, so the workloads' other events are switched there.
    With ``triggers`` events have some also while modules are unloaded.
    """
    job = guestrun.job_for(series, built)
    loads = [load for load in series.spec.workload if load.not_debugged is None]
    run = {load.name for load in loads}
    job["workloads"] = [
        workload for workload in job["workloads"] if workload["name"] in run
    ]
    points = series.spec.tracepoint
    own_events = [point.event for point in points]
    other_events = [
        event for load in loads for event in load.events if event not in own_events
    ]
    if side == "patched" and points:
        events = [point.event for point in points if point.kind == "event"]
        bare = [point.event for point in points if point.kind == "bare"]
    else:
        events, bare = list(dict.fromkeys(other_events)), []
    modules = list(dict.fromkeys(name for load in loads for name in load.modules))
    for load in job["workloads"]:
        load.update(events=[], record=[], bare=[], bpftrace=[], decode=[])
        load["deadline_s"] *= _SLOWER
    job["formats"] = []
    job["stress"] = {
        "program": str(jobs.SCRIPTS / _TOGGLE),
        "options": ["triggers"] if triggers else [],
        "events": events,
        "bare": bare,
        # Unload in reverse order of loading: nothing depends on the last.
        "reload": modules[::-1],
        "toggles": TOGGLES,
        "cycles": CYCLES,
        "reloads": RELOADS,
    }
    return job


def _key(project: Project, series: Series, vm: Guest, job: Mapping[str, Any]) -> str:
    return cache.digest(
        guestrun.key_of(project, series, vm),
        job,
        cache.file_digest((project.scripts / _TOGGLE).with_suffix(".c")),
        cache.file_digest(project.root / guestrun.STRESS),
    )


def run(
    context: Context,
    series: Series,
    vm: Guest,
    side: Side,
    out: Path,
    log: Path,
    *,
    keep: Callable[[Watched], bool],
    triggers: bool = False,
    fresh: bool = False,
) -> tuple[Watched, Booted]:
    """Boot ``vm``, which has the machine of `machine_for`, and run the whole job.

    ``out`` gets the console, and the guest's files in ``results``.  The results of a
    guest that came to its end are cached if ``keep`` accepts them, and used again
    unless ``fresh`` ones are asked for; others also drop cached results.  For
    ``triggers`` see `job_for`.  Raises `KstallError` if the guest's end says nothing
    about its kernel.
    """
    job = job_for(series, vm.kernel, side, triggers=triggers)
    key = _key(context.project, series, vm, job)
    kept = KeptResults(context, "watched", key, limit=100, fresh=fresh)
    results = out / "results"
    with kept.turn():
        reused = kept.copy(results)
        if not reused:
            _boot(context, series, vm, job, out, log)
        watched = load(results, guestrun.thresholds_for(vm))
        if not reused and watched.exit_status == 0 and keep(watched):
            kept.keep(results)
        elif not reused:
            kept.drop()
    seconds = json.loads((results / _FACTS).read_text())["seconds"]
    return watched, Booted(results, reused, _summary(watched, seconds))


def _boot(
    context: Context,
    series: Series,
    vm: Guest,
    job: Mapping[str, Any],
    out: Path,
    log: Path,
) -> None:
    share, project = out / "share", context.project
    guestrun.fill(share, project, series, vm, job, log)
    shutil.copy2(project.root / guestrun.STRESS, share / guestrun.STRESS)
    toggle = share / "scripts" / _TOGGLE
    guestrun.compile_program(project.scripts / _TOGGLE, toggle, log, vm.root.arch)
    deadline = _MARGIN + sum(load["deadline_s"] for load in job["workloads"])
    steps = guestrun.steps_for(series)
    guest_run = guestrun.start(vm, out, deadline, context.ui.say, steps=steps)
    limits = guestrun.thresholds_for(vm)
    # The kernel's reports count, however the guest ended after them.
    relevant = guestrun.relevant_reports(guest_run, limits)
    if not relevant:
        guestrun.require_witness(guest_run)
        guestrun.require_time(guest_run, out / "results", limits)
    console.abridge(guest_run.console, out / "results/console.txt")
    cache.write_json(out / "results" / hosttime.FILE, guest_run.host.as_json())
    facts = {
        "status": guest_run.status,
        "exit_status": guest_run.exit_status,
        "seconds": round(guest_run.seconds, 1),
        # Found in the whole console, as the saved one may lack its middle.
        "reports": [dataclasses.asdict(splat) for splat in guest_run.splats],
        # Reports that say nothing about the kernel, by their lines.
        "excused": sorted(_lines(guest_run.splats) - _lines(relevant)),
    }
    cache.write_json(out / "results" / _FACTS, facts)


def _summary(watched: Watched, seconds: float) -> str:
    turns = sum(
        counts["toggles"]
        for reader in watched.facts.get("readers", {}).values()
        for counts in reader.values()
    )
    leaked = "" if watched.leaked is None else f", {len(watched.leaked)} leaks"
    figure("guest", seconds, "s")
    figure("toggles", turns, "")
    for name, value in watched.facts.get("seconds", {}).items():
        figure(f"guest: {name}", value, "s")
    return (
        f"{watched.status} after {seconds:.0f} s, {turns} toggles, "
        f"{len(watched.reports)} reports{leaked}"
    )


def load(results: Path, limits: hosttime.Thresholds) -> Watched:
    """Load the ``results`` of a guest whose watchdogs have these ``limits``.

    Raises `KstallError` if they are incomplete.
    """
    try:
        facts = json.loads((results / _FACTS).read_text(encoding="utf-8"))
        text = results / "console.txt"
        if console.is_abridged(text):
            reports = tuple(console.Splat(**report) for report in facts["reports"])
            relevant = tuple(
                report for report in reports if report.line not in facts["excused"]
            )
        else:
            # It is judged again: what is a report, or excused, may have changed.
            reports = console.scan_file(text)
            run = _run_with(results, facts, reports)
            relevant = guestrun.relevant_reports(run, limits)
    except (OSError, ValueError) as error:
        raise KstallError(f"{results}: no results of a guest: {error}") from error
    leaked = None
    if (file := results / "kmemleak.txt").exists():
        leaked = splats.leaks(file.read_text(encoding="utf-8", errors="replace"))
    return Watched(
        facts["status"],
        facts["exit_status"],
        guestrun.agent(results),
        tuple(map(splats.kernel_report, relevant)),
        leaked,
        next((splat.headline for splat in reports if console.is_loss(splat)), ""),
    )


def _run_with(
    results: Path, facts: Mapping[str, Any], reports: tuple[console.Splat, ...]
) -> guest.GuestRun:
    """The guest's end as it was, with these ``reports``."""
    text = results / "console.txt"
    return guest.GuestRun(
        facts["status"],
        facts["exit_status"],
        text,
        facts["seconds"],
        None,
        reports,
        (),
        victims=console.victims(text),
        host=hosttime.read(results / hosttime.FILE),
    )


def _lines(reports: Iterable[console.Splat]) -> set[int]:
    return {report.line for report in reports}
