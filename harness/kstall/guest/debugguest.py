# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest whose kernel watches itself: what it is put through, and what it said.

The same guest as of a full run, but that nothing is recorded: while the workloads run,
their events are switched on and off all the time (see ``kstall_guest/stress.py``), and
complaints do not end it, for they are what is asked for.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base import KstallError, cache, figure
from ..build import kernel
from ..series import Context, Project, Series
from . import console, guest, guestrun, jobs, splats
from .guestrun import Booted, Guest
from .splats import Complaint

#: Two builds, because KASAN and KCSAN cannot be in one.
Flavour = Literal["debug", "kcsan"]
Side = Literal["patched", "base"]
#: How often each event has to be switched by all readers together, and how many of that
#: at least by each: in these kernels a turn can take seconds.  And how often each
#: processor and module goes.
TOGGLES = 200
SHARE = TOGGLES // 8
CYCLES = 20
RELOADS = 5
_TOGGLE = "workloads/debug/toggle"
# An emulated kernel under KASAN and lockdep takes so many times as long as without.
_SLOWER = 5
# Boot, processors, modules, what is done until all was switched often enough, leaks.
_MARGIN = 1500.0
_MEMORY_MB = 3072
_APPEND = (
    # Else the first bug is the last one that is told.
    "kasan_multi_shot",
    # While identify_cpu() has the processor's features at nought, five levels of page
    # tables seem to be four, and KASAN takes any access of an interrupt for a wild one;
    # printing that takes until the next interrupt, and so on for ever.
    "no5lvl",
    # Else what lockdep says when it gives up is not printed.
    "loglevel=8",
    # What takes long here takes long because it is emulated.
    "watchdog_thresh=60",
    "workqueue.watchdog_thresh=180",
    "sysctl.kernel.hung_task_timeout_secs=300",
)
_FACTS = "debug.json"


@dataclass(frozen=True)
class Watched:
    """What became of a guest; ``facts`` are those of ``kstall_guest.stress.run``.

    ``lockdep`` and ``leaked`` are None if this kernel does not look for that.
    """

    status: str
    exit_status: int | None
    agent: Mapping[str, Any]
    complaints: tuple[Complaint, ...]
    leaked: tuple[Complaint, ...] | None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was done to the kernel; empty if it did not come to that."""
        found: Mapping[str, Any] = self.agent.get("stress", {})
        return found

    @property
    def signatures(self) -> frozenset[str]:
        """Of all complaints, and of all that leaked."""
        return frozenset(
            one.signature for one in (*self.complaints, *(self.leaked or ()))
        )


def machine_for(series: Series) -> guest.Machine:
    """The machine of ``series`` with a processor to take away, and room for shadows."""
    usual = guestrun.machine_for(series)
    unit = {"M": 1, "G": 1024}[usual.memory[-1]]
    memory = max(int(usual.memory[:-1]) * unit, _MEMORY_MB)
    # Here all processors are for all that runs.
    append = [one for one in usual.append if not one.startswith("isolcpus=")]
    return dataclasses.replace(
        usual,
        cpus=max(usual.cpus, 2),
        memory=f"{memory}M",
        append=(*append, *_APPEND),
    )


def job_for(
    series: Series, built: kernel.Kernel, side: Side, *, triggers: bool = False
) -> dict[str, Any]:
    """The job: all workloads, nothing recorded, and what is done meanwhile.

    The base has not the new events, so that others that the workloads are about are
    switched there.  With ``triggers`` they have some also while modules go.
    """
    job = guestrun.job_for(series, built)
    loads = [load for load in series.spec.workload if load.not_debugged is None]
    run = {load.name for load in loads}
    job["workloads"] = [one for one in job["workloads"] if one["name"] in run]
    points = series.spec.tracepoint
    ours = [one.event for one in points]
    theirs = [event for load in loads for event in load.events if event not in ours]
    if side == "patched" and points:
        events = [one.event for one in points if one.kind == "event"]
        bare = [one.event for one in points if one.kind == "bare"]
    else:
        events, bare = list(dict.fromkeys(theirs)), []
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
        # The last one loaded is the first that nothing needs.
        "reload": modules[::-1],
        "toggles": TOGGLES,
        "cycles": CYCLES,
        "reloads": RELOADS,
    }
    return job


def _key(project: Project, series: Series, where: Guest, job: Mapping[str, Any]) -> str:
    return cache.digest(
        guestrun.key_of(project, series, where),
        job,
        cache.file_digest((project.scripts / _TOGGLE).with_suffix(".c")),
        cache.file_digest(project.root / guestrun.STRESS),
    )


def run(
    context: Context,
    series: Series,
    where: Guest,
    side: Side,
    out: Path,
    log: Path,
    *,
    keep: Callable[[Watched], bool],
    triggers: bool = False,
) -> tuple[Watched, Booted]:
    """Boot ``where``, which has the machine of `machine_for`, and do it all.

    ``triggers`` may be set while modules go, see `job_for`.
    ``out`` gets the console, and in ``results`` what the guest brought back.  A guest
    that came to its end and is one to ``keep`` is not run again.  Raises
    `KstallError` if it ended in a way that says nothing of its kernel.
    """
    job = job_for(series, where.kernel, side, triggers=triggers)
    kept = context.cache / "watched" / _key(context.project, series, where, job)
    results = out / "results"
    with context.turn(f"watched-{kept.name}", guestrun.RUNS_IT):
        if reused := cache.kept(kept):
            shutil.copytree(kept, results, ignore=shutil.ignore_patterns(cache.LIST))
        else:
            _boot(context, series, where, job, out, log)
        found = load(results)
        if not reused and found.exit_status == 0 and keep(found):
            with cache.keep_if_possible(kept) as scratch:
                shutil.copytree(results, scratch, dirs_exist_ok=True)
    cache.prune(context.cache / "watched", keep=100)
    seconds = json.loads((results / _FACTS).read_text())["seconds"]
    return found, Booted(results, reused, _summed_up(found, seconds))


def _boot(
    context: Context,
    series: Series,
    where: Guest,
    job: Mapping[str, Any],
    out: Path,
    log: Path,
) -> None:
    share, project = out / "share", context.project
    guestrun.fill(share, project, series, where, job, log)
    shutil.copy2(project.root / guestrun.STRESS, share / guestrun.STRESS)
    guestrun.compile_program(
        project.scripts / _TOGGLE, share / "scripts" / _TOGGLE, log
    )
    deadline = _MARGIN + sum(load["deadline_s"] for load in job["workloads"])
    try:
        ran = guestrun.start(series, where, share, out, deadline, context.ui)
    finally:
        (share / "results").rename(out / "results")
        cache.remove(share)
    guestrun.require_witness(ran)
    limits = guestrun.limits_for(where)
    if not guestrun.meant(ran, limits):
        guestrun.require_time(ran, out / "results", limits)
    console.abridge(ran.console, out / "results/console.txt")
    facts = {
        "status": ran.status,
        "exit_status": ran.exit_status,
        "seconds": round(ran.seconds, 1),
        # Of all that was printed: what is kept of it may be without its middle.
        "reports": [dataclasses.asdict(one) for one in ran.splats],
        # Those that follow from a host that was busy, by their lines.
        "excused": [ran.splats[number].line for number in ran.excused(limits)],
    }
    cache.write_json(out / "results" / _FACTS, facts)


def _summed_up(found: Watched, seconds: float) -> str:
    turns = sum(
        one["toggles"]
        for reader in found.facts.get("readers", {}).values()
        for one in reader.values()
    )
    leaked = "" if found.leaked is None else f", {len(found.leaked)} leaks"
    figure("guest", seconds, "s")
    figure("toggles", turns, "")
    for name, value in found.facts.get("seconds", {}).items():
        figure(f"guest: {name}", value, "s")
    return (
        f"{found.status} after {seconds:.0f} s, {turns} toggles, "
        f"{len(found.complaints)} reports{leaked}"
    )


def load(results: Path) -> Watched:
    """What a guest left in ``results``; raises `KstallError` if that is not whole."""
    try:
        facts = json.loads((results / _FACTS).read_text(encoding="utf-8"))
        text = results / "console.txt"
        # A whole one is read again: we may know more words than we did then.
        reports = (
            tuple(console.Splat(**one) for one in facts["reports"])
            if console.is_abridged(text)
            else console.scan_file(text)
        )
    except (OSError, ValueError) as error:
        raise KstallError(f"{results}: no results of a guest: {error}") from error
    leaked = None
    if (file := results / "kmemleak.txt").exists():
        leaked = splats.leaks(file.read_text(encoding="utf-8", errors="replace"))
    return Watched(
        facts["status"],
        facts["exit_status"],
        guestrun.agent(results),
        tuple(
            splats.complaint(one)
            for one in reports
            if one.line not in facts.get("excused", ())
        ),
        leaked,
    )
