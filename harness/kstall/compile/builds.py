# SPDX-License-Identifier: GPL-2.0-or-later
"""Each state of a series compiled in each variant, or taken from the cache.

The outcome of a state in a variant is cached under a key of its inputs, so after an
edit of a patch only the states from that patch on are compiled again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import (
    KstallError,
    Sink,
    cache,
    elsewhere,
    once,
    parallel,
    process,
    sources,
    temporary,
)
from ..build import Configured, Ground, kconfig, kernel, outputs
from ..lint import patchcheck
from ..series import Context, Series, SeriesError
from ..tree import AppliedTree, Plan, tree
from . import compiling, kbuild, options, seeds, sparse, variants
from .compiling import CompileJob, CompileOutcome, Trial
from .variants import Variant

_OUTCOME = "outcome.json"
_OBJECTS = "objects"
# Of these the objects are analysed, not what compilers print.
_ANALYSED = (variants.WORST, variants.MITIGATED)
_ONLY_DEEP = ("without-", "builtin", "clang", "arm64", "i386", variants.RANDOM)
DEEP = "compiled at LEVEL=deep"
# Outcomes; those with objects take a megabyte, the others some kilobytes.
_CACHED_OUTCOMES = 2000
# How many variants are compiled at once; the processors are shared by all of them.
_AT_ONCE = 2
_appending = threading.Lock()


@dataclass(frozen=True)
class CompileWork:
    """A ``series``, planned on the base of ``ground``, to be compiled."""

    context: Context
    series: Series
    plan: Plan
    ground: Ground

    @property
    def log(self) -> Path:
        """What compilers print goes there."""
        return self.context.out / self.series.name / "compile.log"

    @property
    def cache(self) -> Path:
        """Where outcomes are cached."""
        return self.context.cache


@dataclass(frozen=True)
class Compiled:
    """What compilers report of a series in each variant.

    ``objects`` maps `variants.WORST` and `variants.MITIGATED` to two directories: with
    the objects of the base, and with those of the whole series; ``impossible`` says why
    one of the two is missing.
    """

    trials: tuple[Trial, ...]
    objects: Mapping[str, tuple[Path, Path]]
    impossible: Mapping[str, str]
    reused: bool


@dataclass(frozen=True)
class _Result:
    """An outcome and its cache entry, which may have objects."""

    outcome: CompileOutcome
    entry: Path
    reused: bool


def compiled(work: CompileWork, checkout: Callable[[Plan], AppliedTree]) -> Compiled:
    """Compile what is not cached; ``checkout`` is called only if needed.

    Level deep has all variants, other levels have those that take seconds.  Requested
    seeds are tried at any level, instead of the series' own.
    """
    ui = work.context.ui
    turns, unavailable = _variants(work)
    fresh = _fetch_entries(work, turns)
    paths = [path for path, _ in work.plan.states[-1]]
    # Users are files that no patch touches, so they are the same for all states.
    users = functools.cache(lambda tree: kbuild.users(tree, paths))
    total = sum(len(_states(work, variant)) for turn in turns for variant in turn)
    results: dict[tuple[str, int], _Result] = {}
    for turn in turns:
        for variant, number, result in _turn(work, turn, checkout, users):
            results[variant.name, number] = result
            state = f"patch {number}" if number else "the base"
            ui.progress(len(results), total, f"{variant.title}: {state}")
    draws = [*_random(work, checkout, users)]
    cache.prune(work.cache / "compiled", keep=_CACHED_OUTCOMES)
    last = len(work.plan.patches)
    impossible = {
        name: reason
        for name in _ANALYSED
        if (reason := results[name, last].outcome.impossible) is not None
    }
    return Compiled(
        (
            *_trials(work, turns, results),
            *(trial for trial, _ in draws),
            *unavailable,
        ),
        {
            name: (
                results[name, 0].entry / _OBJECTS,
                results[name, last].entry / _OBJECTS,
            )
            for name in _ANALYSED
            if name not in impossible
        },
        impossible,
        all(result.reused and result.entry not in fresh for result in results.values())
        and all(old for _, old in draws),
    )


# -- elsewhere -----------------------------------------------------------------------


def ahead(work: CompileWork) -> None:
    """Start on other workers what `compiled` will wait for."""
    if work.context.away is not None:
        for unit in _units(work, _variants(work)[0]):
            work.context.away.ahead(unit)


def _fetch_entries(
    work: CompileWork, turns: Sequence[Sequence[Variant]]
) -> frozenset[Path]:
    """Have other workers compile what is not cached; returns the entries they made.

    What failed on all of them is compiled here, so that this machine gives the reason.
    """
    away = work.context.away
    if away is None:
        return frozenset()
    units = list(_units(work, turns))
    for unit in units:
        away.ahead(unit)
    entries: set[str] = set()
    for unit in units:
        outcome = away.do(unit)
        outcome.report_figures()
        entries |= outcome.new_entries
        if outcome.error is not None:
            reason = outcome.error.headline
            work.context.ui.say(f"{unit.title}: {outcome.worker} says {reason}")
    return frozenset(work.cache / entry for entry in entries)


def _units(
    work: CompileWork, turns: Sequence[Sequence[Variant]]
) -> Iterator[elsewhere.Unit]:
    """One for each variant with a state that is not cached."""
    fragments = _fragments(work)
    tools = work.ground.tools
    packed, entries = work.ground.packed()
    for variant in itertools.chain(*turns):
        keys = [
            _key_of(work, number, variant, fragments)
            for number in _states(work, variant)
        ]
        if all(cache.is_complete(work.cache / "compiled" / key) for key in keys):
            continue
        yield elsewhere.Unit(
            kind="compile",
            key=cache.digest(keys),
            title=f"{work.series.name}, {variant.title}",
            spec={
                **packed,
                "series": work.series.name,
                "level": work.context.level,
                "variant": variant.name,
                "keys": keys,
            },
            entries=entries,
            needs={
                "build": 1.0,
                "slot": 1.0,
                **elsewhere.compiling(tools.arch, tools.compiler),
            },
            seconds=10.0 + 5.0 * len(keys),
        )


def perform(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Sink
) -> elsewhere.WorkerResult:
    """Compile all states of a series in a variant, for another process."""
    ground = Ground.unpacked(spec, cache_dir)
    (declared,) = ground.project.load([spec["series"]])
    series = declared.on(ground.root.arch)
    context = Context(ground.project, cache_dir, out, spec["level"], ui)
    plan = tree.plan(ground.base, series.patches, out / "plan")
    work = CompileWork(context, series, plan, ground)
    turns, _ = _variants(work)
    matches = [
        variant
        for variant in itertools.chain(*turns)
        if variant.name == spec["variant"]
    ]
    fragments = _fragments(work)
    keys = [
        _key_of(work, number, variant, fragments)
        for variant in matches
        for number in _states(work, variant)
    ]
    if keys != spec["keys"]:
        raise elsewhere.WrongWorker(
            "this worker would compile with another compiler or checker than requested"
        )
    paths = [path for path, _ in plan.states[-1]]
    users = functools.cache(lambda tree: kbuild.users(tree, paths))
    with tree.workspace(ground.base, ui.say) as checkout:
        results = [result for _, _, result in _turn(work, matches, checkout, users)]
    new_entries = {
        f"compiled/{result.entry.name}" for result in results if not result.reused
    }
    return elsewhere.WorkerResult(
        entries=tuple(f"compiled/{key}" for key in keys),
        new_entries=tuple(sorted(new_entries)),
    )


def _trials(
    work: CompileWork,
    turns: Sequence[Sequence[Variant]],
    results: Mapping[tuple[str, int], _Result],
) -> Iterator[Trial]:
    for variant in itertools.chain(*turns):
        states = _states(work, variant)
        outcomes = tuple(results[variant.name, number].outcome for number in states)
        if variant.name not in _ANALYSED:
            yield Trial(variant.name, variant.title, outcomes)
        if variant.checker is not None:
            yield Trial(compiling.SPARSE, variant.title, outcomes)


def _random(
    work: CompileWork,
    checkout: Callable[[Plan], AppliedTree],
    users: Callable[[Path], kbuild.Users],
) -> Iterator[tuple[Trial, bool]]:
    """Trials in random configurations, and whether each was cached.

    The whole series is compiled first; earlier states only where they are needed to
    tell which patch a remark belongs to.
    """
    chosen_seeds = work.context.seeds
    if not chosen_seeds and work.context.level == "deep":
        chosen_seeds = seeds.of(work.plan)
    last = len(work.plan.patches)
    fragments = _fragments(work)
    for count, seed in enumerate(chosen_seeds):
        variant = variants.random(work.ground.tools, seed)
        work.context.ui.progress(count, len(chosen_seeds), variant.title)

        def result_of(number: int, variant: Variant = variant) -> _Result:
            state = _State(work, number, checkout, users)
            return _obtain(work, state, [variant], fragments)[0]

        # If the last state has no remarks, those of earlier states do not matter: that
        # each patch compiles is shown by other variants.
        final = base = result_of(last)
        if _says_more(final.outcome, CompileOutcome()):
            base = result_of(0)
        between = [base] * (last - 1)
        if _says_more(final.outcome, base.outcome):
            between = [result_of(number) for number in range(1, last)]
        results = [base, *between, final]
        outcomes = tuple(result.outcome for result in results)
        yield (
            Trial(variant.name, variant.title, outcomes),
            all(result.reused for result in results),
        )


def _says_more(outcome: CompileOutcome, base: CompileOutcome) -> bool:
    """Whether ``outcome`` has an error or a warning that ``base`` does not have."""
    before, after = (state.findings(compiling.is_fault) for state in (base, outcome))
    return bool(patchcheck.new(before, after))


def _states(work: CompileWork, variant: Variant) -> Sequence[int]:
    """How many patches are applied in each state that ``variant`` compiles."""
    last = len(work.plan.patches)
    return (0, last) if variant.name in _ANALYSED else range(last + 1)


def _variants(work: CompileWork) -> tuple[list[list[Variant]], list[Trial]]:
    """The variants in turns, and trials of unavailable ones, with the reason.

    Variants of one turn have separate output directories, so each state of the series
    is checked out once for all of them.
    """
    tools, tree_ = work.ground.tools, work.plan.base.path
    unavailable = []
    checker = None
    try:
        lender, say = work.ground.lender, work.context.ui.say
        checker = sparse.obtain(tree_, lender, work.cache, say)
    except sparse.NoChecker as error:
        unavailable.append(
            Trial(compiling.SPARSE, "sparse", unavailable=_reason(error))
        )
    first = [
        variants.modules(tools, checker),
        variants.untraced(tools),
        variants.tiny(tools),
        variants.worst(tools),
        variants.mitigated(tools),
    ]
    if work.context.level != "deep":
        unavailable += [Trial(name, name, unavailable=DEEP) for name in _ONLY_DEEP]
        return [first], unavailable
    first.append(variants.builtin(tools))
    makers: dict[str, Callable[[], Variant]] = {
        "clang": lambda: variants.clang(tree_, tools),
        "arm64": lambda: variants.arm64(tools),
        "i386": lambda: variants.i386(tools),
    }
    for name, make in makers.items():
        try:
            first.append(make())
        except variants.Unavailable as error:
            unavailable.append(Trial(name, name, unavailable=_reason(error)))
    symbols_needed = options.of(work.plan)
    turns = [first, *([variants.without(tools, symbol)] for symbol in symbols_needed)]
    return turns, unavailable


def _reason(error: KstallError) -> str:
    summary = error.headline
    return f"{summary}; {error.next}" if error.next else summary


def _turn(
    work: CompileWork,
    turn: Sequence[Variant],
    checkout: Callable[[Plan], AppliedTree],
    users: Callable[[Path], kbuild.Users],
) -> Iterator[tuple[Variant, int, _Result]]:
    """All states in all variants of a turn, one state after the other."""
    fragments = _fragments(work)
    for number in range(len(work.plan.states)):
        state = _State(work, number, checkout, users)
        group = [variant for variant in turn if number in _states(work, variant)]
        results = _obtain(work, state, group, fragments)
        for variant, result in zip(group, results, strict=True):
            yield variant, number, result


def _obtain(
    work: CompileWork,
    state: _State,
    group: Sequence[Variant],
    fragments: Sequence[Path],
) -> list[_Result]:
    """The results of a state in a group of variants, from the cache or compiled."""
    entries = [
        work.cache / "compiled" / _key_of(work, state.number, variant, fragments)
        for variant in group
    ]
    hits = [_is_cached(entry, state) for entry in entries]
    missing = {
        entry: variant
        for variant, entry, hit in zip(group, entries, hits, strict=True)
        if not hit
    }
    if missing:
        _compile(work, state, missing, fragments)
    results = []
    for entry, hit in zip(entries, hits, strict=True):
        raw = json.loads((entry / _OUTCOME).read_text(encoding="utf-8"))
        results.append(_Result(CompileOutcome.of_json(raw), entry, hit))
    return results


def _is_cached(entry: Path, state: _State) -> bool:
    """Whether ``entry`` is cached; if not, the workspace is ours from here on."""
    if cache.is_complete(entry):
        return True
    # Whoever held the workspace while we waited for it may have made the entry.
    _ = state.applied
    return cache.is_complete(entry)


@dataclass(frozen=True)
class _State:
    """The first ``number`` patches of a series; what is costly is computed once."""

    work: CompileWork
    number: int
    checkout: Callable[[Plan], AppliedTree]
    find_users: Callable[[Path], kbuild.Users]

    @once
    def plan(self) -> Plan:
        return self.work.plan.upto(self.number)

    @once
    def applied(self) -> AppliedTree:
        return self.checkout(self.plan)

    @property
    def touched(self) -> tuple[str, ...]:
        """All files that any patch of the series touches and that exist here."""
        files = self.work.plan.states[self.number]
        return tuple(path for path, file in files if file is not None)

    @once
    def users(self) -> kbuild.Users:
        return self.find_users(self.applied.path)


def _fragments(work: CompileWork) -> list[Path]:
    """The kconfig fragments of all series, so that all share one configuration."""
    project = work.context.project
    try:
        all_series = project.load()
    except SeriesError:
        all_series = (work.series,)  # a broken series of others must not fail this one
    names = {"base.config"} | {
        series.spec.kconfig for series in (*all_series, work.series)
    }
    return [project.kconfigs / name for name in sorted(names)]


def _key_of(
    work: CompileWork, number: int, variant: Variant, fragments: Sequence[Path]
) -> str:
    return cache.digest(
        sources.digest("kstall.build", "kstall.compile"),
        work.plan.base.id,
        [
            (path, None if file is None else file.facts())
            for path, file in work.plan.states[number]
            # A documentation patch does not change what is compiled.
            if not tree.is_prose(path)
        ],
        # What two fragments ask for alike, none of them changes.
        sorted({request for path in fragments for request in _requests(path)}),
        variant.id,
        _symbols(work) if variant.seed is not None else None,
    )


def _requests(fragment: Path) -> list[str]:
    """All of a fragment that can change a configuration, as text; its prose cannot."""
    return [
        repr(
            (
                request.symbol,
                request.value,
                request.overrides,
                request.need,
                request.only,
                [alternative.values for alternative in request.alternatives],
            )
        )
        for request in kconfig.parse_fragment(fragment)
    ]


def _symbols(work: CompileWork) -> list[str]:
    """The options that touched code needs, by its Makefiles and its series."""
    requests = kconfig.parse_fragment(
        work.context.project.kconfigs / work.series.spec.kconfig
    )
    symbols = {request.symbol for request in requests if request.value in ("y", "m")}
    return sorted(symbols | options.compiling(work.plan))


def _configured(
    work: CompileWork,
    state: _State,
    variant: Variant,
    fragments: Sequence[Path],
    scratch: Path,
) -> Configured:
    merged = kernel.configured(
        state.plan,
        lambda: state.applied,
        fragments,
        work.ground.tools,
        work.cache,
        log=work.log,
        lenient=True,
    )
    if variant.seed is None:
        return variants.configure(
            variant,
            state.applied,
            state.plan,
            kconfig.combine(fragments, work.ground.tools.arch),
            merged,
            work.cache,
            scratch,
            log=work.log,
        )
    key = kernel.config_key(state.plan, fragments, work.ground.tools)
    return seeds.configure(
        variant,
        state.applied,
        merged,
        _symbols(work),
        work.cache,
        key=key,
        log=work.log,
    )


def _compile(
    work: CompileWork,
    state: _State,
    missing: Mapping[Path, Variant],
    fragments: Sequence[Path],
) -> None:
    """Compile a state in several variants, each into its cache entry."""
    # While one make checks what is up to date, on one processor, the compilers of
    # another use the rest.
    processors = len(os.sched_getaffinity(0))
    count = min(_AT_ONCE, processors, len(missing))
    with temporary.directory("compile") as directory:
        jobs: dict[Path, tuple[CompileJob, Path]] = {}
        for entry, variant in missing.items():
            scratch = directory / variant.name
            scratch.mkdir()
            try:
                config = _configured(work, state, variant, fragments, scratch)
            except kconfig.CannotBeOff as error:
                _keep(entry, CompileOutcome(impossible=error.what))
                continue
            output = outputs.apart(
                state.applied, variant.place, work.cache, variant.tools.arch
            )
            assert output not in jobs
            job = CompileJob(
                tree=state.applied,
                touched=state.touched,
                users=state.users,
                variant=variant,
                config=config,
                output=output,
                scratch=scratch,
                log=work.log.with_name(f"compile-{variant.name}.log"),
                parallel=math.ceil(processors / count) + (count > 1),
            )
            jobs[output] = job, entry
        configs = {output: job.config.file for output, (job, _) in jobs.items()}
        for turn in outputs.turns(state.applied, configs):
            tasks = {
                output: functools.partial(_compile_one, *jobs[output], work.log)
                for output in turn
            }
            parallel.each(tasks, count, lambda *_: None)


def _compile_one(job: CompileJob, entry: Path, log: Path) -> None:
    """Run ``job`` into ``entry``; when it has ended its log is appended to ``log``."""
    try:
        with cache.keep(entry) as scratch:
            keep = scratch / _OBJECTS if job.variant.name in _ANALYSED else None
            alone = job.variant.name == variants.MODULES
            outcome = compiling.compile(job, alone=alone, keep=keep)
            cache.write_json(scratch / _OUTCOME, outcome.as_json())
            # Output of compilers that were killed as another job failed is no outcome.
            process.require_going()
    except KstallError as error:
        if error.log == job.log:
            error.log = log
        raise
    finally:
        # Logs are not interleaved, and that of a job that was ended early does not
        # come after the log of the job that failed.
        if job.log.exists():
            with _appending, contextlib.suppress(OSError, process.Ended):
                process.require_going()
                with log.open("ab") as file:
                    file.write(job.log.read_bytes())
            job.log.unlink(missing_ok=True)


def _keep(entry: Path, outcome: CompileOutcome) -> None:
    with cache.keep(entry) as scratch:
        cache.write_json(scratch / _OUTCOME, outcome.as_json())
