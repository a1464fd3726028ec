# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernels of a group of series: with the patches and, to compare, without.

First the base, then the base with the fixes if there are fixes among others, then all
patches.  So the workspace changes once for each, and what no patch touches is compiled
once, for all are built in one output directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import (
    FailedCheck,
    KstallError,
    cache,
    elsewhere,
    few,
    once,
    process,
    sources,
    space,
)
from ..build import Ground, extra, kconfig, kernel, programs, resolve
from ..cost import Kernels
from ..report import SeriesReport
from ..series import Level, Series
from ..tree import AppliedTree, Plan, source, tree
from . import processors
from . import run as runs
from .groups import Group, applied
from .ui import Ui

# The cache entries that a worker sends back, and the GB of memory and disk it needs.
_ENTRIES = ("configs", "kernels", "extra", "programs")
_MEMORY = 4.0
_DISK = 5.0
#: Errors of a shared kernel that may be due to one series, or a conflict of two.
UNFIT = (
    FailedCheck,
    resolve.UnmetSymbols,
    kconfig.KconfigError,
    kernel.BaseDoesNotBuild,
)


class NotTogether(Exception):
    """A kernel of several series that could not be configured or built.

    ``suspects`` are the series whose files the ``cause`` names.
    """

    def __init__(self, stage: str, cause: KstallError, group: Group) -> None:
        super().__init__(str(cause))
        self.stage = stage
        self.cause = cause
        self.suspects = tuple(
            series.name
            for series in group.series
            if any(name in str(cause) for name in _names(series))
        )


def _names(series: Series) -> Iterator[str]:
    yield f"{series.spec.kconfig}:"
    for patch in series.patches:
        yield from patch.touches


@dataclass(frozen=True)
class Built:
    """The kernels of a group; what belongs to one series is under its name.

    Costs are measured against ``compared``, which has the fixes of the group; ``base``
    has no patches.  They are one if the group has no fixes, or nothing else.
    ``modules`` are those that measure, for these two; ``own`` those of workloads, for
    the base and the patched kernel.  ``broken`` is why a program or a module of a
    series could not be compiled.
    """

    ground: Ground
    group: Group
    patched: kernel.Kernel
    base: kernel.Kernel | None = None
    compared: kernel.Kernel | None = None
    modules: Mapping[str, tuple[Path | None, Path | None]] = field(default_factory=dict)
    own: Mapping[str, tuple[Path | None, Path | None]] = field(default_factory=dict)
    programs: Mapping[str, tuple[programs.Program, ...]] = field(default_factory=dict)
    broken: Mapping[str, KstallError] = field(default_factory=dict)

    def pair(self, series: Series) -> Kernels | None:
        """Both kernels with the modules of ``series``, if it is to be compared."""
        if self.compared is None or series.spec.overhead is None:
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
        return Kernels(self.compared, self.patched, root, base, patched, beside)


def _that_measure(series: Series) -> list[str]:
    """The sources of its modules that measured programs use."""
    return [measure.module for measure in series.measures if measure.module]


def _of_workloads(series: Series) -> list[str]:
    return [load.module for load in series.spec.workload if load.module is not None]


def make(
    ground: Ground,
    group: Group,
    level: Level,
    run: runs.Run,
    entry: SeriesReport | None = None,
    *,
    attempt: int = 0,
) -> Built:
    """Configure and build ``group``; only what is missing is built.

    For one series the stages are those of ``entry``, and an error stops them.  Else
    they are shared, and an error raises `NotTogether`; those of an ``attempt`` to find
    out which series is to blame have its number.  Workers build what they can.  What
    none of them can build is built here, so that the error is this machine's.
    """
    return _Maker(ground, group, level, run, entry, attempt).make()


def ahead(ground: Ground, group: Group, level: Level, run: runs.Run) -> None:
    """Start on a worker what `make` will ask for."""
    maker = _Maker(ground, group, level, run, None, 0)
    if run.away is not None and not maker.is_cached():
        run.away.ahead(maker.unit())


def perform(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Ui
) -> elsewhere.WorkerResult:
    """Build, on a worker, the kernels that `make` of another process asked for."""
    ground = Ground.unpacked(spec, cache_dir)
    run = runs.begin(out, (), ui)

    def loaded(names: Sequence[str]) -> tuple[Series, ...]:
        all_series = ground.project.load(names)
        return tuple(series.on(ground.root.arch) for series in all_series)

    series = loaded(spec["series"])
    if len(series) == 1:
        plan = tree.plan(ground.base, series[0].patches, run.dir)
        like = None
        if others := spec["configured-as"]:
            like, _ = applied(ground.base, loaded(others), run.dir)
        group = Group(series, plan, like)
        entry = SeriesReport(
            name=series[0].name,
            title=series[0].spec.title,
            digest=series[0].digest,
            patches=[],
        )
    else:
        group, _ = applied(ground.base, series, run.dir)
        entry = None
    maker = _Maker(ground, group, spec["level"], run, entry, spec["attempt"])
    if maker.key() != spec["key"]:
        raise elsewhere.WrongWorker(
            "this worker would build another kernel than the one asked for"
        )
    error: KstallError | None = None
    with cache.used() as used:
        try:
            maker.make()
        except NotTogether as unfit:
            error = unfit.cause
        except runs.StageStopped as stopped:
            cause = stopped.__cause__
            if isinstance(cause, OSError):
                raise cause from stopped
            assert isinstance(cause, KstallError)
            error = cause
    if isinstance(error, elsewhere.WrongWorker | space.NoSpace | process.NotInstalled):
        raise error
    return elsewhere.WorkerResult(
        entries=_entries(used.every, cache_dir),
        new_entries=_entries(used.new, cache_dir),
        error=error,
    )


def _entries(places: Iterable[Path], cache_dir: Path) -> tuple[str, ...]:
    names = (str(path.relative_to(cache_dir)) for path in places)
    return tuple(sorted(name for name in names if name.split("/")[0] in _ENTRIES))


@dataclass(frozen=True)
class _Checkout:
    """A plan, and a function that checks it out in the workspace.

    ``absent`` are configuration symbols that the series define and this tree does not.
    """

    plan: Plan
    tree: Callable[[], AppliedTree]
    absent: frozenset[str] = frozenset()


@contextlib.contextmanager
def workspace(base: source.Base, ui: Ui) -> Iterator[Callable[[Plan], _Checkout]]:
    """A function that checks plans out, one after the other, while other runs wait."""
    with contextlib.ExitStack() as held:

        @functools.cache
        def opened() -> Callable[[Plan], AppliedTree]:
            # Only when something has to be built: it is locked then, and others wait.
            return held.enter_context(tree.workspace(base, ui.say))

        def checkout(plan: Plan) -> _Checkout:
            return _Checkout(plan, functools.cache(lambda: opened()(plan)))

        yield checkout


@dataclass(frozen=True)
class _Maker:
    ground: Ground
    group: Group
    level: Level
    run: runs.Run
    entry: SeriesReport | None
    attempt: int

    @property
    def _costly(self) -> list[Series]:
        """The series whose costs are compared, each with modules of its own."""
        return [
            series
            for series in self.group.series
            if series.spec.overhead and self.level != "quick"
        ]

    @property
    def _bringing(self) -> list[Series]:
        """The series with workloads that have a module of ours."""
        return [series for series in self.group.series if _of_workloads(series)]

    @property
    def _wants_base(self) -> bool:
        shown = any(series.spec.shown for series in self.group.series)
        return bool(self._costly) or (shown and not self.attempt)

    @property
    def _wants_fixed(self) -> bool:
        """Whether costs are compared with a kernel that is not the bare base."""
        return bool(self._costly) and bool(self.group.fixed.patches)

    @once
    def _plans(self) -> list[Plan]:
        """The plans of the kernels to build, the patched one first."""
        plan = self.group.plan
        plans = [plan]
        if self._wants_base:
            plans.append(plan.upto(0))
        if self._wants_fixed:
            plans.append(self.group.fixed)
        return plans

    # -- elsewhere ---------------------------------------------------------------------

    @once
    def _config_keys(self) -> tuple[str, ...]:
        """The keys of the configurations of `_plans`, in the same order."""
        fragments = self.group.fragments(self.ground.project)
        tools = self.ground.tools
        return tuple(kernel.config_key(plan, fragments, tools) for plan in self._plans)

    def key(self) -> str:
        """A digest of everything that the kernels depend on."""
        project = self.ground.project
        modules = {
            measure.module
            for series in self._costly
            for measure in series.measures
            if measure.module is not None
        }
        modules.update(*map(_of_workloads, self._bringing))
        return cache.digest(
            self.group.plan.compiled,
            self._config_keys,
            self.ground.tools.id,
            [series.name for series in self.group.series],
            [
                (module, cache.file_digest(project.scripts / module))
                for module in sorted(modules)
            ],
            sources.digest("kstall.build"),
        )

    def is_cached(self) -> bool:
        """Whether the kernels are in the cache, so that no worker is needed."""
        tools, cache_dir = self.ground.tools, self.ground.cache
        for config_key, plan in zip(self._config_keys, self._plans, strict=True):
            config = kernel.find_config(config_key, cache_dir)
            if config is None:
                return False
            if (
                kernel.find(kernel.key_of(plan.compiled, config, tools), cache_dir)
                is None
            ):
                return False
        return True

    def unit(self) -> elsewhere.Unit:
        """The unit for a worker."""
        ground = self.ground
        spec, entries = ground.packed()
        names = [series.name for series in self.group.series]
        like = self.group.configured_as
        return elsewhere.Unit(
            kind="kernels",
            key=cache.digest(self.key(), self.attempt),
            title=f"kernels with {few(names, 3)}",
            spec={
                **spec,
                "series": names,
                "configured-as": [series.name for series in like.series]
                if like
                else [],
                "level": self.level,
                "attempt": self.attempt,
                "key": self.key(),
            },
            entries=entries,
            needs={
                "build": 1.0,
                "slot": elsewhere.ALL,
                "memory": _MEMORY,
                "disk": _DISK,
                **elsewhere.compiling(ground.tools.arch, ground.tools.compiler),
            },
            seconds=900.0 if self._wants_base else 600.0,
        )

    @once
    def _made_away(self) -> frozenset[str]:
        """The entries that a worker made for this run, if there are workers."""
        away = self.run.away
        if away is None or self.is_cached():
            return frozenset()
        unit = self.unit()
        outcome = away.do(unit)
        outcome.report_figures()
        if outcome.error is not None:
            summary = outcome.error.headline
            self.run.ui.say(f"{unit.title}: {outcome.worker} says {summary}")
        return outcome.new_entries

    def _is_made_away(self, config: kernel.Configured) -> bool:
        return f"configs/{config.file.parent.name}" in self._made_away

    # -- here --------------------------------------------------------------------------

    def make(self) -> Built:
        """Build what is missing."""
        plan = self.group.plan
        measuring = [(series, _that_measure(series)) for series in self._costly]
        bringing = [(series, _of_workloads(series)) for series in self._bringing]
        modules: dict[str, list[Path | None]] = {
            series.name: [] for series in self._costly
        }
        own: dict[str, list[Path | None]] = {
            series.name: [] for series in self._bringing
        }
        broken: dict[str, KstallError] = {}
        with workspace(self.ground.base, self.run.ui) as checkout:
            base = compared = None
            if self._wants_base:
                bare = self._upto(0, checkout)
                with self._stage("base") as stage, self._not_the_series():
                    base = compared = self._build(bare, stage, ())
                    if not self._wants_fixed:
                        self._modules(measuring, base, bare, stage, modules, broken)
                    self._modules(bringing, base, bare, stage, own, broken)
            elif not self.attempt and any(
                series.spec.overhead for series in self.group.series
            ):
                why = "LEVEL=quick: the costs of events are not measured"
                self.run.skip("base", why, self.entry)
            if self._wants_fixed:
                fixed = self._upto(len(self.group.fixed.patches), checkout)
                fixes = [series for series in self.group.series if series.is_fix]
                with self._stage("fixed") as stage:
                    compared = self._build(fixed, stage, fixes)
                    self._modules(measuring, compared, fixed, stage, modules, broken)
            patched = checkout(plan)
            if self.group.configured_as is not None:
                patched = self._upto(len(plan.patches), checkout)
            with self._stage("config") as stage:
                config = self._configure(patched, stage)
                stage.reused = config.reused and not self._is_made_away(config)
                stage.summary = (
                    "; ".join(config.remarks) or "every requested symbol is set"
                )
            with self._stage("build") as stage:
                try:
                    built = self._build(patched, stage, self.group.series)
                except kernel.BuildError as error:
                    if base is None and error.file not in plan.touched:
                        self.run.ui.say(f"does {error.file} build without the patches?")
                        self._build(self._upto(0, checkout), stage, ())
                    raise
                if compared is not None:
                    self._modules(measuring, built, patched, stage, modules, broken)
                self._modules(bringing, built, patched, stage, own, broken)
            own_programs = self._programs(patched, broken)
        return Built(
            self.ground,
            self.group,
            built,
            base,
            compared,
            {
                name: (paths[0], paths[1])
                for name, paths in modules.items()
                if len(paths) > 1
            },
            {
                name: (paths[0] if base is not None else None, paths[-1])
                for name, paths in own.items()
                if paths
            },
            own_programs,
            broken,
        )

    def _upto(self, count: int, checkout: Callable[[Plan], _Checkout]) -> _Checkout:
        """The first ``count`` patches; symbols that the others define are absent."""
        before = checkout(self.group.plan.upto(count))
        return dataclasses.replace(before, absent=self.group.absent(count))

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[runs.Opened]:
        unfit: KstallError | None = None
        with self.run.stage(self._named(name), self.entry) as stage:
            # In the first stage, whichever that is: it takes the time of the workers.
            _ = self._made_away
            try:
                yield stage
            except UNFIT as error:
                if self.entry is not None:
                    raise
                # No verdict: which series is to blame is found out next.
                unfit, stage.error, stage.status = error, str(error), "skip"
                stage.summary = f"not together: {error.headline}"
        if unfit is not None:
            raise NotTogether(name, unfit, self.group) from unfit

    def _named(self, stage: str) -> str:
        return f"attempt-{self.attempt}-{stage}" if self.attempt else stage

    @contextlib.contextmanager
    def _not_the_series(self) -> Iterator[None]:
        """An error without the patches is no failure of the series."""
        try:
            yield
        except FailedCheck as error:
            if self.entry is None:
                raise
            raise KstallError(
                f"without the patches: {error.what}",
                log=error.log,
                next=error.next
                or "repair the base: without it nothing can be compared",
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

    def _build(
        self, checkout: _Checkout, stage: runs.Opened, included: Sequence[Series]
    ) -> kernel.Kernel:
        config = self._configure(checkout, stage)
        with processors.for_compilers():
            built = kernel.built(
                checkout.plan,
                checkout.tree,
                self.group.slot,
                config,
                self.ground.tools,
                self.ground.cache,
                log=stage.log,
                ui=self.run.ui,
            )
        # It is needed for hours, in which this run and others build more of them than
        # are kept.
        cache.hold_for(built, built.path)
        stage.reused = built.reused and f"kernels/{built.key}" not in self._made_away
        stage.summary = f"Linux {built.release}, build id {built.build_id[:12]}"
        if self.entry is None:
            names = ", ".join(series.name for series in included)
            stage.summary += f", with {names}" if names else ", without patches"
        return built

    def _modules(
        self,
        sources: Sequence[tuple[Series, list[str]]],
        built: kernel.Kernel,
        checkout: _Checkout,
        stage: runs.Opened,
        modules: dict[str, list[Path | None]],
        broken: dict[str, KstallError],
    ) -> None:
        """Compile our own modules of each series against ``built``."""
        for series, files in sources:
            with self._of_one(series, broken):
                module = self._module(files, built, checkout, stage)
                modules[series.name].append(module)

    @contextlib.contextmanager
    def _of_one(self, series: Series, broken: dict[str, KstallError]) -> Iterator[None]:
        """Keep an error of ``series`` alone for the stages that prove it."""
        try:
            yield
        except FailedCheck as error:
            if self.entry is not None:
                raise
            broken.setdefault(series.name, error)

    def _module(
        self,
        sources: Sequence[str],
        built: kernel.Kernel,
        checkout: _Checkout,
        stage: runs.Opened,
    ) -> Path | None:
        if not sources:
            return None
        return extra.obtain(
            [self.ground.project.scripts / file for file in dict.fromkeys(sources)],
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
        users = [
            series
            for series in self.group.series
            if any(load.from_tree for load in series.spec.workload)
        ]
        by_series: dict[str, tuple[programs.Program, ...]] = {}
        if users:
            with self._stage("programs") as stage:
                for series in users:
                    with self._of_one(series, broken):
                        by_series[series.name] = programs.obtain(
                            series,
                            checkout.plan,
                            self.ground.tools,
                            self.ground.cache,
                            checkout.tree,
                            log=stage.log,
                        )
                all_programs = [
                    program for obtained in by_series.values() for program in obtained
                ]
                stage.reused = all(
                    program.reused
                    and f"programs/{program.file.parent.name}" not in self._made_away
                    for program in all_programs
                )
                stage.summary = ", ".join(
                    Path(program.name).name for program in all_programs
                )
        return by_series
