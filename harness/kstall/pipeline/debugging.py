# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests on debug kernels, as stages of a run (``LEVEL=deep``).

Each series has guests of its own: one on a kernel with KASAN and lockdep, one on a
kernel with KCSAN.  If a guest reports what would count against its series, the same
workloads run on the base, for a report that the base also shows does not count.  It
does not matter which series' workloads provoked the base's report, so the base is
booted only until no report is in doubt, or all those in doubt were tried.  KCSAN
samples, so a race is not in doubt if it is only at lines of the base, and before one
counts as new, the base also runs the workloads of the other series.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ..base import KstallError, figure, figures, parallel
from ..build import Ground, kernel, programs
from ..cost import lines
from ..evidence import debugcheck, races
from ..guest import Flavour, Side, Watched, accel, debugguest, guestrun
from ..report import SeriesReport
from ..series import Series
from . import debugkernel
from .groups import Group
from .run import Opened, Run, StageStopped, score

_FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
#: Without this fix, unloading a module leaves behind the probe of an event that has a
#: trigger: the kernel warns of that, and leaks the trigger.
_TRIGGER_FIX = "trace-module-trigger"


@dataclass(frozen=True, eq=False)
class DebugGuest:
    """A guest to boot, or with ``fresh`` to boot even if results of it are cached."""

    series: Series
    group: Group
    flavour: Flavour
    side: Side
    kernel: kernel.Kernel
    programs: tuple[programs.Program, ...]
    fresh: bool = False

    @property
    def name(self) -> str:
        """The name of its directory, below that of the series."""
        return f"{self.flavour}-{self.side}"

    @property
    def triggers(self) -> bool:
        """Whether events may have triggers while modules are unloaded."""
        fixed = any(series.name == _TRIGGER_FIX for series in self.group.applied)
        return fixed and self.side == "patched"

    @property
    def debugged(self) -> Series:
        """The series with the workloads that are run on this kernel, see `debugged`.

        A base that would have none runs those that a fix ends, for what it reports.
        """
        fixed = debugged(self.series, self.group.applied)
        if self.side == "patched" or _left_out(self.series, ()):
            return fixed
        return debugged(self.series, ())

    @property
    def key(self) -> tuple[str, Flavour]:
        """What the guests of both sides have in common."""
        return self.series.name, self.flavour


def debugged(series: Series, among: Sequence[Series]) -> Series:
    """``series`` without each ``not_debugged`` that a fix in ``among`` has ended."""
    names = {other.name for other in among}
    workloads = tuple(
        load.model_copy(update={"not_debugged": None})
        if load.debugged_with in names
        else load
        for load in series.spec.workload
    )
    spec = series.spec.model_copy(update={"workload": workloads})
    return dataclasses.replace(series, spec=spec)


def _left_out(series: Series, among: Sequence[Series]) -> str:
    """Why none of the workloads of ``series`` is run; empty if one is."""
    reasons = [load.not_debugged for load in debugged(series, among).spec.workload]
    return "" if None in reasons else "; ".join(dict.fromkeys(filter(None, reasons)))


_Outcome = Watched | KstallError
_Outcomes = dict[tuple[str, Flavour], _Outcome]
_Places = dict[tuple[str, Flavour], races.Places]


def prove(
    ground: Ground,
    subjects: Sequence[tuple[Series, SeriesReport]],
    run: Run,
    *,
    beside: Sequence[Series] = (),
    again: bool = False,
) -> None:
    """Build, boot, and add to each series' entry the checks of kind ``debug``.

    ``beside`` are series that are put into the kernel as well, if they apply, and have
    no guest.  With ``again`` no results of earlier guests are used.  Raises
    `StageStopped` if there is no kernel to boot.
    """
    with run.stage("debug-apply") as stage:
        # Another order would be another kernel.
        all_series = sorted(
            (*(series for series, _ in subjects), *beside), key=lambda s: s.name
        )
        groups = [
            group
            for group in debugkernel.grouped(
                ground.base, all_series, run.dir / "shared"
            )
            if any(series not in beside for series in group.series)
        ]
        stage.summary = (
            f"{len(groups[0].series)} series in one kernel"
            if len(groups) == 1
            else f"{len(groups)} kernels, as not all series apply together"
        )
    entries = {series.name: entry for series, entry in subjects}
    pairs = []
    for group in groups:
        for series in group.series:
            if series in beside:
                continue
            if why := _left_out(series, group.applied):
                entry = entries[series.name]
                run.skip("debug", f"no workload is run: {why}", entry)
                entry.checks += debugcheck.left_out(series)
            else:
                pairs.append((group, series))
    if not pairs:
        return
    groups = [group for group in groups if any(group is used for used, _ in pairs)]
    guests = [
        dataclasses.replace(guest, fresh=again)
        for guest in _patched(ground, groups, pairs, run)
    ]
    with run.stage("debug-guests") as stage:
        stage.reused = True
        patched = _boot_all(ground, guests, run, stage)
        stage.summary = _counted(patched)
    places = {guest.key: _places(guest, patched[guest.key], run) for guest in guests}
    base = _base(ground, guests, patched, places, run)
    for group, series in pairs:
        entry = entries[series.name]
        with contextlib.suppress(StageStopped), run.stage("debug", entry) as stage:
            by_flavour = {
                guest.flavour: _pair(
                    guest,
                    _came_back(patched[guest.key]),
                    base,
                    guests,
                    places[guest.key],
                )
                for guest in guests
                if guest.series is series
            }
            saved = debugcheck.Saved(by_flavour, group.code)
            checks = debugcheck.judge(debugged(series, group.applied), saved)
            entry.checks += checks
            ends = [
                f"{guest.name}: {outcome.status}, "
                f"see {series.name}/{guest.name}/console.log"
                for guest in guests
                if isinstance(outcome := patched[guest.key], Watched)
                and guest.series is series
                and outcome.status != "completed"
            ]
            stage.summary = "; ".join([score(checks), *ends])


def _patched(
    ground: Ground,
    groups: Sequence[Group],
    pairs: Sequence[tuple[Group, Series]],
    run: Run,
) -> list[DebugGuest]:
    """Build the patched kernels; return the guests on them."""
    with run.stage("debug-programs") as stage:
        by_series = {
            series.name: debugkernel.tree_programs(ground, group, series, run, stage)
            for group, series in pairs
        }
        all_programs = [
            program for obtained in by_series.values() for program in obtained
        ]
        stage.reused = all(program.reused for program in all_programs)
        stage.summary = ", ".join(program.name for program in all_programs) or "none"
    guests = []
    for flavour in _FLAVOURS:
        first, *others = groups
        kernels = {
            first.name: debugkernel.build(ground, first, flavour, "patched", run)
        }
        like = {first.name: first}
        config = kernels[first.name].config
        for group in others:
            # Then only what the patches change has to be compiled again.
            if group.is_met_by(config, ground, f"{flavour}.config"):
                like[group.name] = dataclasses.replace(group, configured_as=first)
            else:
                like[group.name] = group
            kernels[group.name] = debugkernel.build(
                ground, like[group.name], flavour, "patched", run
            )
        guests += [
            DebugGuest(
                series,
                like[group.name],
                flavour,
                "patched",
                kernels[group.name],
                by_series[series.name],
            )
            for group, series in pairs
        ]
    return guests


def _places(guest: DebugGuest, outcome: _Outcome, run: Run) -> races.Places:
    """The lines of a guest's races, as far as these may count against its series.

    None, so that they count if the base does not show them, if the kernel cannot be
    read.
    """
    if not isinstance(outcome, Watched):
        return {}
    suspected = debugcheck.suspected_races(outcome, guest.group.code)
    frames = {frame for report in suspected for frame in races.frames(report.excerpt)}
    if not frames:
        return {}
    try:
        return lines.of_frames(guest.kernel, frames)
    except (KstallError, OSError) as error:
        run.ui.say(f"{guest.series.name} {guest.name}: no lines of races: {error}")
        return {}


def _base(
    ground: Ground,
    guests: Sequence[DebugGuest],
    patched: _Outcomes,
    places: _Places,
    run: Run,
) -> _Outcomes:
    """Boot the base where a patched kernel reported something."""
    base: _Outcomes = {}
    if not (pending := _to_ask(guests, patched, base, places)):
        run.skip(
            "debug-base-guests",
            "no report counts against a series: no need to boot the base",
        )
        return base
    # Guests that are booted later run on the same kernels.
    kernels = {}
    for guest in pending:
        if (key := (guest.group.name, guest.flavour)) not in kernels:
            kernels[key] = debugkernel.build(
                ground, guest.group, guest.flavour, "base", run
            )
    with run.stage("debug-base-guests") as stage:
        stage.reused = True
        while pending:
            # As many as can run at once: their reports may settle the others.
            turn = [
                dataclasses.replace(
                    guest, side="base", kernel=kernels[guest.group.name, guest.flavour]
                )
                for guest in pending[
                    : _at_once(_speed(ground, pending[0], run), pending)
                ]
            ]
            base |= _boot_all(ground, turn, run, stage)
            pending = _to_ask(guests, patched, base, places)
        stage.summary = _counted(base)
    return base


def _to_ask(
    guests: Sequence[DebugGuest],
    patched: _Outcomes,
    base: _Outcomes,
    places: _Places,
) -> list[DebugGuest]:
    """The guests to boot on the base next.

    First those with reports of which it is not known whether the base has them.
    """
    results = {
        guest: debugcheck.Saved(
            {
                guest.flavour: debugcheck.GuestPair(
                    outcome,
                    None,
                    _known(base, guest.flavour),
                    places=places[guest.key],
                )
            },
            guest.group.code,
        )
        for guest in guests
        if isinstance(outcome := patched[guest.key], Watched)
    }
    doubtful = [
        guest
        for guest, saved in results.items()
        if guest.key not in base and debugcheck.in_doubt(saved)
    ]
    racing = {
        (guest.group.name, guest.flavour)
        for guest, saved in results.items()
        if debugcheck.in_doubt_of_a_race(saved)
    }
    return doubtful or [
        guest
        for guest in guests
        if guest.key not in base and (guest.group.name, guest.flavour) in racing
    ]


def _boot_all(
    ground: Ground, guests: Sequence[DebugGuest], run: Run, stage: Opened
) -> _Outcomes:
    """Boot all guests, as many at once as there is room for."""
    speed = _speed(ground, guests[0], run)
    outcomes: _Outcomes = {}

    def done(guest: DebugGuest, outcome: _Outcome) -> None:
        outcomes[guest.key] = outcome
        run.ui.progress(len(outcomes), len(guests), f"{guest.series.name} {guest.name}")

    tasks = {
        guest: functools.partial(_boot, ground, guest, speed, run, stage)
        for guest in guests
    }
    parallel.each(tasks, _at_once(speed, guests), done)
    return outcomes


def _counted(outcomes: _Outcomes) -> str:
    lost = sum(isinstance(outcome, KstallError) for outcome in outcomes.values())
    return f"{len(outcomes) - lost} guests came back" + (
        f", {lost} did not" if lost else ""
    )


def _at_once(speed: accel.Accel, guests: Sequence[DebugGuest]) -> int:
    """How many guests there are processors and memory for."""
    threads = 1 if speed.one_thread else 2
    machines = [debugguest.machine_for(guest.series) for guest in guests]
    return guestrun.at_once(len(os.sched_getaffinity(0)) // threads, machines)


def _speed(ground: Ground, guest: DebugGuest, run: Run) -> accel.Accel:
    """The accelerator of these guests; emulated processors share one thread.

    With a thread each, a processor can execute a byte that another one has rewritten
    meanwhile, so that the kernel hits its own breakpoint when code is no longer being
    patched: "Oops: int3", as was seen after some hundred switches.  KCSAN still sees
    races: a processor that waits at a watchpoint executes PAUSE, and the next one runs.
    """
    probed = accel.probe(ground.cache, guest.kernel.image, ground.root, run.ui.say)
    if probed.kind == "kvm":
        return probed
    return dataclasses.replace(probed, one_thread=True)


def _boot(
    ground: Ground, guest: DebugGuest, speed: accel.Accel, run: Run, stage: Opened
) -> _Outcome:
    """Boot a guest; its error is returned, and reported where the series is judged."""
    vm = guestrun.Guest(
        guest.kernel,
        ground.root,
        speed,
        debugguest.machine_for(guest.series),
        guest.programs,
    )
    out = run.dir / guest.series.name / guest.name
    out.mkdir(parents=True)
    booted = None
    try:
        with figures() as measured:
            watched, booted = debugguest.run(
                run.context(ground.project, ground.cache, "deep"),
                guest.debugged,
                vm,
                guest.side,
                out,
                out / "guest-job.log",
                keep=lambda candidate: (
                    debugcheck.answered(guest.flavour, candidate)
                    if guest.side == "base"
                    else debugcheck.worth_keeping(
                        guest.debugged, guest.flavour, candidate
                    )
                ),
                triggers=guest.triggers,
                fresh=guest.fresh,
            )
    except KstallError as error:
        return error
    finally:
        if booted is None or not booted.reused:
            stage.reused = False
    for name, value, unit in measured:
        figure(f"{guest.series.name} {guest.name}: {name}", value, unit)
    run.ui.say(f"{guest.series.name} {guest.name}: {booted.summary}")
    return watched


def _pair(
    guest: DebugGuest,
    watched: Watched,
    base: _Outcomes,
    guests: Sequence[DebugGuest],
    places: races.Places,
) -> debugcheck.GuestPair:
    """The results of ``guest``: ``watched`` with the patches, and those of the base."""
    counterpart = base.get(guest.key)
    pair = debugcheck.GuestPair(
        watched,
        counterpart if isinstance(counterpart, Watched) else None,
        _known(base, guest.flavour),
        _unanswered(guest, base),
        places,
    )
    saved = debugcheck.Saved({guest.flavour: pair}, guest.group.code)
    if pair.unanswered or not debugcheck.in_doubt_of_a_race(saved):
        return pair
    # For a race, all guests of the base have to be complete.
    others = (
        _unanswered(other, base)
        for other in guests
        if other.group is guest.group and other.flavour == guest.flavour
    )
    return dataclasses.replace(pair, unanswered=next(filter(None, others), ""))


def _unanswered(guest: DebugGuest, base: _Outcomes) -> str:
    """Why the base run of ``guest`` is incomplete; empty if it is complete."""
    outcome = base.get(guest.key)
    title = f"{guest.series.name} {guest.flavour}-base"
    if isinstance(outcome, KstallError):
        return f"{title}: {outcome}"
    if outcome is not None and not debugcheck.answered(guest.flavour, outcome):
        log = f"{guest.series.name}/{guest.flavour}-base/console.log"
        return (
            f"{title}: the guest did not finish\n"
            f"  log: {log}\n  next: read how it ended, and run this again"
        )
    return ""


def _known(base: _Outcomes, flavour: Flavour) -> frozenset[str]:
    """The reports of all base guests, whichever series' workloads they ran."""
    return frozenset(
        signature
        for (_, other), outcome in base.items()
        if other == flavour and isinstance(outcome, Watched)
        for signature in outcome.signatures
    )


def _came_back(outcome: _Outcome) -> Watched:
    if isinstance(outcome, KstallError):
        raise outcome
    return outcome
