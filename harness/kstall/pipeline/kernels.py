# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernels of a group of series: with the patches and, to compare, without.

First the base: then the workspace changes once, and what the patches do not touch is
compiled once, for both are built in one output directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base import FailedCheck, KstallError
from ..build import extra, kconfig, kernel, programs, resolve
from ..cost import Kernels
from ..report import SeriesReport
from ..series import Level, Series
from ..tree import AppliedTree, Plan, source, tree
from . import run as runs
from .groups import Ground, Group
from .ui import Ui

#: What of a kernel of several may be the fault of one, or of what two of them want.
UNFIT = (
    FailedCheck,
    resolve.UnmetSymbols,
    kconfig.KconfigError,
    kernel.BaseDoesNotBuild,
)


class NotTogether(Exception):
    """A kernel of several series that could not be configured or built.

    ``suspects`` are those of whom the ``cause`` tells.
    """

    def __init__(self, stage: str, cause: KstallError, group: Group) -> None:
        super().__init__(str(cause))
        self.stage = stage
        self.cause = cause
        self.suspects = tuple(
            one.name
            for one in group.series
            if any(name in str(cause) for name in _names(one))
        )


def _names(series: Series) -> Iterator[str]:
    yield f"{series.spec.kconfig}:"
    for patch in series.patches:
        yield from patch.touches


@dataclass(frozen=True)
class Built:
    """What was made of a group; what is of one series is by its name.

    ``broken`` is why a program or a module of a series could not be compiled.
    """

    ground: Ground
    group: Group
    patched: kernel.Kernel
    base: kernel.Kernel | None = None
    modules: Mapping[str, tuple[Path | None, Path | None]] = field(default_factory=dict)
    programs: Mapping[str, tuple[programs.Program, ...]] = field(default_factory=dict)
    broken: Mapping[str, KstallError] = field(default_factory=dict)

    def pair(self, series: Series) -> Kernels | None:
        """Both kernels with the modules of ``series``, if it is to be compared."""
        if self.base is None or series.spec.overhead is None:
            return None
        base, patched = self.modules.get(series.name, (None, None))
        beside = tuple(
            point.event
            for other in self.group.series
            if other is not series
            for point in other.spec.tracepoint
            if point.kind == "event"
        )
        root = self.ground.root
        return Kernels(self.base, self.patched, root, base, patched, beside)


def make(
    ground: Ground,
    group: Group,
    level: Level,
    run: runs.Run,
    entry: SeriesReport | None = None,
    *,
    attempt: int = 0,
) -> Built:
    """Configure and build ``group``; only what is not there yet is made.

    The stages are those of ``entry``, if it is of one series; what goes wrong stops
    them.  Else they are shared, and it raises `NotTogether`; of an ``attempt`` to find
    out who is to blame for that they have its number.
    """
    return _Maker(ground, group, run, entry, attempt).make(level)


@dataclass(frozen=True)
class _Checkout:
    """A plan, and the workspace with it once that is asked for.

    ``absent`` are configuration symbols that the series have and this tree has not.
    """

    plan: Plan
    tree: Callable[[], AppliedTree]
    absent: frozenset[str] = frozenset()


@contextlib.contextmanager
def workspace(base: source.Base, ui: Ui) -> Iterator[Callable[[Plan], _Checkout]]:
    """What checks plans out, one after the other, while no other run does."""
    with contextlib.ExitStack() as held:

        @functools.cache
        def opened() -> Callable[[Plan], AppliedTree]:
            # Only when something is to be made: it is locked then, and others wait.
            return held.enter_context(tree.workspace(base, ui.say))

        def checkout(plan: Plan) -> _Checkout:
            return _Checkout(plan, functools.cache(lambda: opened()(plan)))

        yield checkout


@dataclass(frozen=True)
class _Maker:
    ground: Ground
    group: Group
    run: runs.Run
    entry: SeriesReport | None
    attempt: int

    def make(self, level: Level) -> Built:
        plan = self.group.plan
        costly = [
            one
            for one in self.group.series
            if one.spec.overhead is not None and level != "quick"
        ]
        shown = any(one.spec.shown for one in self.group.series)
        modules: dict[str, list[Path | None]] = {one.name: [] for one in costly}
        broken: dict[str, KstallError] = {}
        with workspace(self.ground.base, self.run.ui) as checkout:
            base = None
            if costly or (shown and not self.attempt):
                bare = self._bare(checkout)
                with self._stage("base") as stage, self._not_the_series():
                    base = self._build(bare, stage)
                    self._modules(costly, base, bare, stage, modules, broken)
            elif not self.attempt and any(
                one.spec.overhead for one in self.group.series
            ):
                with self._stage("base") as stage:
                    stage.status = "skip"
                    stage.summary = (
                        "LEVEL=quick: nothing is said of what the events cost"
                    )
            patched = checkout(plan)
            with self._stage("config") as stage:
                config = self._configure(patched, stage)
                stage.reused = config.reused
                stage.summary = (
                    "; ".join(config.remarks) or "every requested symbol is set"
                )
            with self._stage("build") as stage:
                try:
                    built = self._build(patched, stage)
                except kernel.BuildError as error:
                    if base is None and error.file not in plan.touched:
                        self.run.ui.say(f"does {error.file} build without the patches?")
                        self._build(self._bare(checkout), stage)
                    raise
                if base is not None:
                    self._modules(costly, built, patched, stage, modules, broken)
            made = self._programs(patched, broken)
        return Built(
            self.ground,
            self.group,
            built,
            base,
            {name: (one[0], one[1]) for name, one in modules.items() if len(one) > 1},
            made,
            broken,
        )

    def _bare(self, checkout: Callable[[Plan], _Checkout]) -> _Checkout:
        plan = self.group.plan
        return dataclasses.replace(
            checkout(plan.upto(0)), absent=kernel.added_symbols(plan)
        )

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[runs.Opened]:
        unfit: KstallError | None = None
        with self.run.stage(self._named(name), self.entry) as stage:
            try:
                yield stage
            except UNFIT as error:
                if self.entry is not None:
                    raise
                # No verdict: who is to blame is found out next.
                unfit, stage.error, stage.status = error, str(error), "skip"
                stage.summary = f"not together: {error.what.splitlines()[0]}"
        if unfit is not None:
            raise NotTogether(name, unfit, self.group) from unfit

    def _named(self, stage: str) -> str:
        return f"attempt-{self.attempt}-{stage}" if self.attempt else stage

    @contextlib.contextmanager
    def _not_the_series(self) -> Iterator[None]:
        """What fails without the patches is no failure of theirs."""
        try:
            yield
        except FailedCheck as error:
            if self.entry is None:
                raise
            raise KstallError(
                f"without the patches: {error.what}",
                log=error.log,
                next=error.next
                or "nothing can be compared with a base that is not there",
            ) from error

    def _configure(self, checkout: _Checkout, stage: runs.Opened) -> kernel.Configured:
        return kernel.configured(
            checkout.plan,
            checkout.tree,
            self.group.fragments(self.ground.project),
            self.ground.tools,
            self.ground.cache,
            log=stage.log,
            absent=checkout.absent,
        )

    def _build(self, checkout: _Checkout, stage: runs.Opened) -> kernel.Kernel:
        config = self._configure(checkout, stage)
        built = kernel.built(
            checkout.plan,
            checkout.tree,
            self.group.slot,
            config,
            self.ground.tools,
            self.ground.cache,
            log=stage.log,
            progress=lambda p: self.run.ui.progress(p.done, p.total, p.step),
        )
        stage.reused = built.reused
        stage.summary = f"Linux {built.release}, build id {built.build_id[:12]}"
        if self.entry is None:
            stage.summary += (
                f", with {', '.join(one.name for one in self.group.series)}"
            )
        return built

    def _modules(
        self,
        costly: list[Series],
        built: kernel.Kernel,
        checkout: _Checkout,
        stage: runs.Opened,
        found: dict[str, list[Path | None]],
        broken: dict[str, KstallError],
    ) -> None:
        """Compile our own modules for ``built``, for those that have any."""
        for series in costly:
            with self._of_one(series, broken):
                found[series.name].append(self._module(series, built, checkout, stage))

    @contextlib.contextmanager
    def _of_one(self, series: Series, broken: dict[str, KstallError]) -> Iterator[None]:
        """What goes wrong is of ``series`` only, and is told where it is proven."""
        try:
            yield
        except FailedCheck as error:
            if self.entry is not None:
                raise
            broken.setdefault(series.name, error)

    def _module(
        self,
        series: Series,
        built: kernel.Kernel,
        checkout: _Checkout,
        stage: runs.Opened,
    ) -> Path | None:
        sources = dict.fromkeys(one.module for one in series.measures if one.module)
        if not sources:
            return None
        return extra.obtain(
            [self.ground.project.scripts / one for one in sources],
            built,
            self.group.slot,
            self._configure(checkout, stage),
            self.ground.tools,
            self.ground.cache,
            checkout.tree,
            log=stage.log,
        )

    def _programs(
        self, checkout: _Checkout, broken: dict[str, KstallError]
    ) -> dict[str, tuple[programs.Program, ...]]:
        wanted = [
            series
            for series in self.group.series
            if any(load.from_tree for load in series.spec.workload)
        ]
        found: dict[str, tuple[programs.Program, ...]] = {}
        if wanted:
            with self._stage("programs") as stage:
                for series in wanted:
                    with self._of_one(series, broken):
                        found[series.name] = programs.obtain(
                            series,
                            checkout.plan,
                            self.ground.tools,
                            self.ground.cache,
                            checkout.tree,
                            log=stage.log,
                        )
                every = [one for made in found.values() for one in made]
                stage.reused = all(one.reused for one in every)
                stage.summary = ", ".join(Path(one.name).name for one in every)
        return found
