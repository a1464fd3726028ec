# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests on kernels that watch themselves, as stages of a run (``LEVEL=deep``).

Each series has guests of its own, on a kernel with KASAN and lockdep and on one with
KCSAN.  Where one of them says what would be held against its series, the base is put
through the same, for what it says as well is no series' fault.  A complaint is the
base's whichever series' workloads made it complain, so the base is asked until nothing
is in doubt, or all that is was asked about; where nothing is, that time is saved.
KCSAN samples, so that there the base is put through what the other series do as well,
before a race is taken for a new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ..base import KstallError, figure, figures, parallel
from ..build import kernel, programs
from ..evidence import debugcheck
from ..guest import Flavour, Side, Watched, accel, debugguest, guestrun
from ..report import SeriesReport
from ..series import Series
from . import debugkernel
from .groups import Ground, Group
from .run import Opened, Run, StageStopped

_FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
#: Without this one, the kernel leaves the probe of an event that has a trigger behind
#: when the event's module goes, and warns of that, and leaks the trigger.
_LETS_GO = "trace-module-trigger"


@dataclass(frozen=True, eq=False)
class Wanted:
    """A guest to boot."""

    series: Series
    group: Group
    flavour: Flavour
    side: Side
    kernel: kernel.Kernel
    programs: tuple[programs.Program, ...]

    @property
    def name(self) -> str:
        """What its directory in that of the series is called."""
        return f"{self.flavour}-{self.side}"

    @property
    def triggers(self) -> bool:
        """Whether events may have triggers while modules go."""
        fixed = any(one.name == _LETS_GO for one in self.group.series)
        return fixed and self.side == "patched"

    @property
    def debugged(self) -> Series:
        """The series with the workloads that are run on this kernel, see `debugged`."""
        among = self.group.series if self.side == "patched" else ()
        return debugged(self.series, among)

    @property
    def key(self) -> tuple[str, Flavour]:
        """What a guest of either side has in common with that of the other."""
        return self.series.name, self.flavour


def debugged(series: Series, among: Sequence[Series]) -> Series:
    """``series`` without each ``not_debugged`` that a fix ``among`` others ends."""
    names = {one.name for one in among}
    workloads = tuple(
        load.model_copy(update={"not_debugged": None})
        if load.debugged_with in names
        else load
        for load in series.spec.workload
    )
    spec = series.spec.model_copy(update={"workload": workloads})
    return dataclasses.replace(series, spec=spec)


_Came = Watched | KstallError
_All = dict[tuple[str, Flavour], _Came]


def prove(
    ground: Ground,
    wanted: Sequence[tuple[Series, SeriesReport]],
    run: Run,
    *,
    beside: Sequence[Series] = (),
    flavours: Sequence[Flavour] = _FLAVOURS,
) -> None:
    """Build, boot, and add to each series' entry the checks of kind ``debug``.

    ``beside`` are series that are in the kernel, too, if they go along, and have no
    guest.  Raises `StageStopped` if there is no kernel to boot.
    """
    with run.stage("debug-apply") as stage:
        # In any other order it would be another kernel.
        every = sorted((*(one for one, _ in wanted), *beside), key=lambda s: s.name)
        groups = [
            group
            for group in debugkernel.grouped(ground.base, every, run.dir / "shared")
            if any(one not in beside for one in group.series)
        ]
        stage.summary = (
            f"{len(groups[0].series)} series in one kernel"
            if len(groups) == 1
            else f"{len(groups)} kernels, as not all series apply together"
        )
    pairs = [
        (group, one) for group in groups for one in group.series if one not in beside
    ]
    guests = _patched(ground, groups, pairs, flavours, run)
    with run.stage("debug-guests") as stage:
        stage.reused = True
        patched = _boot_all(ground, guests, run, stage)
        stage.summary = _counted(patched)
    base = _base(ground, guests, patched, run)
    entries = {series.name: entry for series, entry in wanted}
    for group, series in pairs:
        entry = entries[series.name]
        with contextlib.suppress(StageStopped), run.stage("debug", entry) as stage:
            found = {
                one.flavour: _pair(one, _came_back(patched[one.key]), base, guests)
                for one in guests
                if one.series is series
            }
            saved = debugcheck.Saved(found, group.code)
            checks = debugcheck.judge(debugged(series, group.series), saved)
            entry.checks += checks
            good = sum(check.status == "pass" for check in checks)
            ends = [
                f"{one.name}: {came.status}, see {series.name}/{one.name}/console.log"
                for one in guests
                if isinstance(came := patched[one.key], Watched)
                and one.series is series
                and came.status != "completed"
            ]
            stage.summary = "; ".join([f"{good} of {len(checks)} checks pass", *ends])


def _patched(
    ground: Ground,
    groups: Sequence[Group],
    pairs: Sequence[tuple[Group, Series]],
    flavours: Sequence[Flavour],
    run: Run,
) -> list[Wanted]:
    """The guests on the kernels with the patches, which are built now."""
    with run.stage("debug-programs") as stage:
        made = {
            series.name: debugkernel.tree_programs(ground, group, series, run, stage)
            for group, series in pairs
        }
        theirs = [one for each in made.values() for one in each]
        stage.reused = all(one.reused for one in theirs)
        stage.summary = ", ".join(one.name for one in theirs) or "none"
    kernels = {
        (group.name, flavour): debugkernel.build(ground, group, flavour, "patched", run)
        for flavour, group in itertools.product(flavours, groups)
    }
    return [
        Wanted(
            series,
            group,
            flavour,
            "patched",
            kernels[group.name, flavour],
            made[series.name],
        )
        for flavour, (group, series) in itertools.product(flavours, pairs)
    ]


def _base(ground: Ground, guests: Sequence[Wanted], patched: _All, run: Run) -> _All:
    """What the base says where a kernel with patches said something."""
    base: _All = {}
    if not (asked := _to_ask(guests, patched, base)):
        with run.stage("debug-base-guests") as stage:
            stage.status = "skip"
            stage.summary = "nothing is held against a series: no need to ask the base"
        return base
    # Whoever is asked later runs on one of the same.
    kernels = {}
    for one in asked:
        if (key := (one.group.name, one.flavour)) not in kernels:
            kernels[key] = debugkernel.build(
                ground, one.group, one.flavour, "base", run
            )
    with run.stage("debug-base-guests") as stage:
        stage.reused = True
        while asked:
            # As many as can run at once: what they say may settle the others.
            turn = [
                dataclasses.replace(
                    one, side="base", kernel=kernels[one.group.name, one.flavour]
                )
                for one in asked[: _at_once(_speed(ground, asked[0], run))]
            ]
            base |= _boot_all(ground, turn, run, stage)
            asked = _to_ask(guests, patched, base)
        stage.summary = _counted(base)
    return base


def _to_ask(guests: Sequence[Wanted], patched: _All, base: _All) -> list[Wanted]:
    """The guests that the base has to be put through next.

    Those come first of whose complaints nobody knows whether the base has them.
    """
    seen = {
        one: debugcheck.Saved(
            {one.flavour: debugcheck.Pair(came, None, _known(base, one.flavour))},
            one.group.code,
        )
        for one in guests
        if isinstance(came := patched[one.key], Watched)
    }
    own = [
        one
        for one, saved in seen.items()
        if one.key not in base and debugcheck.in_doubt(saved)
    ]
    racing = {
        (one.group.name, one.flavour)
        for one, saved in seen.items()
        if debugcheck.in_doubt_of_a_race(saved)
    }
    return own or [
        one
        for one in guests
        if one.key not in base and (one.group.name, one.flavour) in racing
    ]


def _boot_all(
    ground: Ground, guests: Sequence[Wanted], run: Run, stage: Opened
) -> _All:
    """Boot all guests, as many at once as there are processors for."""
    speed = _speed(ground, guests[0], run)
    found: _All = {}

    def done(one: Wanted, came: _Came) -> None:
        found[one.key] = came
        run.ui.progress(len(found), len(guests), f"{one.series.name} {one.name}")

    tasks = {
        one: functools.partial(_boot, ground, one, speed, run, stage) for one in guests
    }
    parallel.each(tasks, _at_once(speed), done)
    return found


def _counted(came: _All) -> str:
    lost = sum(isinstance(one, KstallError) for one in came.values())
    return f"{len(came) - lost} guests came back" + (
        f", {lost} did not" if lost else ""
    )


def _at_once(speed: accel.Accel) -> int:
    """How many guests there are processors for."""
    threads = 1 if speed.one_thread else 2
    return max(1, len(os.sched_getaffinity(0)) // threads)


def _speed(ground: Ground, one: Wanted, run: Run) -> accel.Accel:
    """How these guests are run.

    Emulated processors in threads of their own can execute a byte that another one
    has rewritten meanwhile, so that the kernel meets its own breakpoint when nobody
    rewrites code any more: "Oops: int3", as was seen after some hundred switches.
    So they take turns.  KCSAN has races to see all the same: one that waits for
    somebody else at a watchpoint executes PAUSE, and that is the next one's turn.
    """
    probed = accel.probe(ground.cache, one.kernel.image, ground.root, run.ui.say)
    if probed.kind == "kvm":
        return probed
    return dataclasses.replace(probed, one_thread=True)


def _boot(
    ground: Ground, one: Wanted, speed: accel.Accel, run: Run, stage: Opened
) -> _Came:
    """One guest; what stops it is told where the series is judged."""
    where = guestrun.Guest(
        one.kernel,
        ground.root,
        speed,
        debugguest.machine_for(one.series),
        one.programs,
    )
    out = run.dir / one.series.name / one.name
    out.mkdir(parents=True)
    booted = None
    try:
        with figures() as measured:
            watched, booted = debugguest.run(
                run.context(ground.project, ground.cache, "deep"),
                one.debugged,
                where,
                one.side,
                out,
                out / "guest-job.log",
                keep=lambda came: (
                    debugcheck.answered(one.flavour, came)
                    if one.side == "base"
                    else debugcheck.worth_keeping(one.debugged, one.flavour, came)
                ),
                triggers=one.triggers,
            )
    except KstallError as error:
        return error
    finally:
        if booted is None or not booted.reused:
            stage.reused = False
    for name, value, unit in measured:
        figure(f"{one.series.name} {one.name}: {name}", value, unit)
    run.ui.say(f"{one.series.name} {one.name}: {booted.summary}")
    return watched


def _pair(
    one: Wanted, came: Watched, base: _All, guests: Sequence[Wanted]
) -> debugcheck.Pair:
    """What is known of ``one``, which ``came`` back."""
    mine = base.get(one.key)
    pair = debugcheck.Pair(
        came,
        mine if isinstance(mine, Watched) else None,
        _known(base, one.flavour),
        _unanswered(one, base),
    )
    saved = debugcheck.Saved({one.flavour: pair}, one.group.code)
    if pair.unanswered or not debugcheck.in_doubt_of_a_race(saved):
        return pair
    # Of a race all that the base did was asked.
    others = (
        _unanswered(other, base)
        for other in guests
        if other.group is one.group and other.flavour == one.flavour
    )
    return dataclasses.replace(pair, unanswered=next(filter(None, others), ""))


def _unanswered(one: Wanted, base: _All) -> str:
    """Why the base did not say all that it was asked with the guest of ``one``."""
    came = base.get(one.key)
    where = f"{one.series.name} {one.flavour}-base"
    if isinstance(came, KstallError):
        return f"{where}: {came}"
    if came is not None and not debugcheck.answered(one.flavour, came):
        log = f"{one.series.name}/{one.flavour}-base/console.log"
        return (
            f"{where}: the guest did not come to the end of its work\n"
            f"  log: {log}\n  next: read how it ended, and run this again"
        )
    return ""


def _known(base: _All, flavour: Flavour) -> frozenset[str]:
    """What any guest of the base said, whatever series' workloads it ran."""
    return frozenset(
        signature
        for (_, other), came in base.items()
        if other == flavour and isinstance(came, Watched)
        for signature in came.signatures
    )


def _came_back(came: _Came) -> Watched:
    if isinstance(came, KstallError):
        raise came
    return came
