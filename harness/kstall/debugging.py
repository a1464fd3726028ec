# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernels that watch themselves, as stages of a run (``LEVEL=deep``).

A kernel with KASAN and lockdep is twenty minutes of compiling on two processors, so all
series are put into one, as long as they apply together; a second one has KCSAN.  Each
series then has guests of its own on them and on the same kernels of the bare base,
whose complaints are no series' fault.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from . import (
    accel,
    am,
    debugcheck,
    debugguest,
    guestrun,
    kernel,
    programs,
    report,
    root,
    source,
    tree,
)
from .debugguest import Flavour, Side, Watched
from .errors import KstallError
from .report import SeriesReport
from .run import Opened, Run, StageStopped
from .series import Project, Series

_FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
_SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True)
class Ground:
    """What all kernels of a run are made from."""

    project: Project
    base: source.Base
    root: root.Root
    tools: kernel.Toolchain
    cache: Path


@dataclass(frozen=True)
class Group:
    """Series that are in one kernel, and the plan that applies them all."""

    series: tuple[Series, ...]
    plan: tree.Plan

    @property
    def name(self) -> str:
        """What tells its stages from others'."""
        return self.series[0].name if len(self.series) == 1 else "all"

    def functions(self, series: Series) -> frozenset[str]:
        """Those of the files that ``series`` touches."""
        files = self.plan.files
        return debugcheck.functions_in(
            [
                file.data.decode("utf-8", "replace")
                for path in series.touches
                if path.endswith((".c", ".h")) and (file := files.get(path)) is not None
            ]
        )


@dataclass(frozen=True)
class Made:
    """A group's kernels of one flavour, and the programs that its trees have."""

    kernels: dict[Side, kernel.Kernel]
    programs: dict[str, tuple[programs.Program, ...]]


def prove(
    ground: Ground,
    wanted: Sequence[tuple[Series, SeriesReport]],
    run: Run,
    *,
    beside: Sequence[Series] = (),
    flavours: Sequence[Flavour] = _FLAVOURS,
) -> None:
    """Build, boot, and add to each series' entry the checks of kind ``debug``.

    ``beside`` are series that are in the kernel, too, and have no guest.  Raises
    `StageStopped` if there is no kernel to boot.
    """
    with run.stage("debug-apply") as stage:
        # In any other order it would be another kernel.
        every = sorted((*(one for one, _ in wanted), *beside), key=lambda s: s.name)
        groups = grouped(ground.base, every, run.dir / "shared")
        stage.summary = (
            f"{len(groups[0].series)} series in one kernel"
            if len(groups) == 1
            else "the series do not apply together: a kernel for each"
        )
    made = {
        (group.name, flavour): _make(ground, group, flavour, run)
        for group in groups
        for flavour in flavours
    }
    guests = [
        Wanted(one, group, flavour, side)
        # What can fail first: what the base says is needed only to judge that.
        for side in _SIDES
        for flavour in flavours
        for group in groups
        for one in group.series
        if one not in beside
    ]
    with run.stage("debug-guests") as stage:
        found = _boot_all(ground, made, guests, run, stage)
    known = {flavour: _known(found, flavour) for flavour in flavours}
    for group, (series, entry) in itertools.product(groups, wanted):
        if series in group.series:
            with contextlib.suppress(StageStopped), run.stage("debug", entry) as stage:
                pairs = {
                    flavour: debugcheck.Pair(
                        _came_back(found[Wanted(series, group, flavour, "patched")]),
                        _came_back(found[Wanted(series, group, flavour, "base")]),
                        known[flavour],
                    )
                    for flavour in flavours
                }
                saved = debugcheck.Saved(pairs, group.functions(series))
                _judge(series, saved, entry, stage)


def grouped(
    base: source.Base, wanted: Sequence[Series], scratch: Path
) -> tuple[Group, ...]:
    """All of ``wanted`` in one group, or each in one of its own.

    Raises `am.ApplyError` for a series that does not apply by itself.
    """
    try:
        every = [patch for series in wanted for patch in series.patches]
        return (Group(tuple(wanted), tree.plan(base, every, scratch)),)
    except am.ApplyError:
        return tuple(
            Group((one,), tree.plan(base, one.patches, scratch)) for one in wanted
        )


def _make(ground: Ground, group: Group, flavour: Flavour, run: Run) -> Made:
    """Build both kernels, one after the other in one output directory.

    Its name is none that a series can have.
    """
    fragments = [
        ground.project.kconfigs / name
        for name in dict.fromkeys(
            [
                "base.config",
                *(one.spec.kconfig for one in group.series),
                f"{flavour}.config",
            ]
        )
    ]
    kernels: dict[Side, kernel.Kernel] = {}
    made: dict[str, tuple[programs.Program, ...]] = {}
    with contextlib.ExitStack() as held:

        @functools.cache
        def put() -> Callable[[tree.Plan], tree.AppliedTree]:
            return held.enter_context(tree.workspace(ground.base, run.ui.say))

        for side in _SIDES:
            plan = group.plan if side == "patched" else group.plan.upto(0)
            absent = kernel.added_symbols(group.plan) if side == "base" else frozenset()
            checkout = functools.cache(lambda plan=plan: put()(plan))
            with run.stage(f"{flavour}-{side}-{group.name}") as stage:
                kernels[side] = _build(
                    ground, plan, absent, fragments, f"+{flavour}", checkout, run, stage
                )
                if side == "patched":
                    made = {
                        one.name: programs.obtain(
                            one, plan, ground.tools, ground.cache, checkout,
                            log=stage.log,
                        )
                        for one in group.series
                    }  # fmt: skip
    return Made(kernels, made)


def _build(
    ground: Ground,
    plan: tree.Plan,
    absent: frozenset[str],
    fragments: Sequence[Path],
    slot: str,
    checkout: Callable[[], tree.AppliedTree],
    run: Run,
    stage: Opened,
) -> kernel.Kernel:
    key = kernel.config_key(plan, fragments, ground.tools)
    config = kernel.find_config(key, ground.cache) or kernel.configure(
        checkout(),
        key,
        fragments,
        ground.tools,
        ground.cache,
        log=stage.log,
        absent=absent,
    )
    key = kernel.key_of(plan.content, config, ground.tools)
    built = kernel.find(key, ground.cache) or kernel.build(
        checkout(),
        slot,
        config,
        ground.tools,
        ground.cache,
        log=stage.log,
        progress=lambda p: run.ui.progress(p.done, p.total, p.step),
    )
    stage.reused = built.reused
    stage.summary = f"Linux {built.release}, build id {built.build_id[:12]}"
    return built


@dataclass(frozen=True)
class Wanted:
    """A guest to boot."""

    series: Series
    group: Group
    flavour: Flavour
    side: Side

    @property
    def name(self) -> str:
        """What its directory in that of the series is called."""
        return f"{self.flavour}-{self.side}"

    def __hash__(self) -> int:
        return hash((self.series.name, self.name))


_Came = Watched | KstallError


def _boot_all(
    ground: Ground,
    made: dict[tuple[str, Flavour], Made],
    guests: Sequence[Wanted],
    run: Run,
    stage: Opened,
) -> dict[Wanted, _Came]:
    """Boot all guests, as many at once as there are processors for."""
    first = next(iter(made.values())).kernels["patched"]
    speed = accel.probe(ground.cache, first.image, ground.root, run.ui.say)
    found: dict[Wanted, _Came] = {}
    threads = 1 if speed.one_thread else 2
    workers = max(1, len(os.sched_getaffinity(0)) // threads)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = {
            pool.submit(
                _boot, ground, made[one.group.name, one.flavour], one, speed, run, stage
            ): one
            for one in guests
        }
        try:
            for done in concurrent.futures.as_completed(waiting):
                one = waiting[done]
                found[one] = done.result()
                run.ui.progress(
                    len(found), len(guests), f"{one.series.name} {one.name}"
                )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    lost = sum(isinstance(came, KstallError) for came in found.values())
    stage.summary = f"{len(found) - lost} guests came back" + (
        f", {lost} did not" if lost else ""
    )
    return found


def _boot(
    ground: Ground,
    made: Made,
    one: Wanted,
    speed: accel.Accel,
    run: Run,
    stage: Opened,
) -> _Came:
    """One guest; what stops it is told where the series is judged."""
    where = guestrun.Guest(
        made.kernels[one.side],
        ground.root,
        speed,
        debugguest.machine_for(one.series),
        made.programs[one.series.name],
    )
    out = run.dir / one.series.name / one.name
    out.mkdir(parents=True)
    mine = Opened(log=out / "guest-job.log")
    try:
        watched = debugguest.run(
            ground.project,
            one.series,
            where,
            one.side,
            out,
            ground.cache,
            mine,
            run.ui,
            clean=lambda came: one.side == "base" or debugcheck.clean(one.series, came),
        )
    except KstallError as error:
        return error
    for figure in mine.figures:
        label = f"{one.series.name} {one.name}: {figure.name}"
        stage.figure(label, figure.value, figure.unit)
    run.ui.say(f"{one.series.name} {one.name}: {mine.summary}")
    return watched


def _known(found: Mapping[Wanted, _Came], flavour: Flavour) -> frozenset[str]:
    """What any guest of the base said, whatever series' workloads it ran."""
    return frozenset(
        signature
        for one, came in found.items()
        if one.side == "base" and one.flavour == flavour and isinstance(came, Watched)
        for signature in came.signatures
    )


def _came_back(came: _Came) -> Watched:
    if isinstance(came, Watched):
        return came
    raise came


def _judge(
    series: Series, saved: debugcheck.Saved, entry: SeriesReport, stage: Opened
) -> None:
    checks = [report.Check.of(one) for one in debugcheck.judge(series, saved)]
    entry.checks += checks
    good = sum(check.status == "pass" for check in checks)
    stage.summary = f"{good} of {len(checks)} checks pass"
