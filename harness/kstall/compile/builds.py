# SPDX-License-Identifier: GPL-2.0-or-later
"""Each state of a series compiled in each variant: made, or found again.

What came of a state in a variant is kept under a key of what went in, so after an edit
of a patch only the states behind it are compiled again.
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
    parallel,
    process,
    sources,
    temporary,
)
from ..build import Configured, Toolchain, kconfig, kernel, outputs
from ..debian import Root, root
from ..series import Context, Series, SeriesError, projects
from ..tree import AppliedTree, Base, Plan, tree
from ..verdict import Check
from . import compilecheck, compiling, kbuild, options, seeds, sparse, variants
from .compilecheck import Tried
from .compiling import Job, Outcome
from .variants import Variant

_OUTCOME = "outcome.json"
_OBJECTS = "objects"
# Of these the objects are looked at, not what is said of them.
_LOOKED_AT = (variants.WORST, variants.MITIGATED)
_ONLY_DEEP = ("without-", "builtin", "clang", "arm64", "i386", variants.RANDOM)
DEEP = "compiled at LEVEL=deep"
# Outcomes; those with objects take a megabyte, the others some kilobytes.
_KEPT = 2000
# How many variants are compiled at once; the processors are shared by all of them.
_AT_ONCE = 2
_appending = threading.Lock()


@dataclass(frozen=True)
class Work:
    """A ``series``, planned on its base, and what compiles it."""

    context: Context
    series: Series
    plan: Plan
    tools: Toolchain
    root: Root

    @property
    def log(self) -> Path:
        """What compilers print goes there."""
        return self.context.out / self.series.name / "compile.log"

    @property
    def cache(self) -> Path:
        """Where outcomes are kept."""
        return self.context.cache


@dataclass(frozen=True)
class Compiled:
    """The checks of a series, and from how many ``builds`` they follow.

    ``objects`` are directories, of those of the base and of the whole series, by the
    variant: `variants.WORST` and `variants.MITIGATED`.
    """

    checks: tuple[Check, ...]
    builds: int
    objects: Mapping[str, tuple[Path, Path]]
    reused: bool


@dataclass(frozen=True)
class _Result:
    """An outcome and the cache's entry of it, which may have objects."""

    outcome: Outcome
    entry: Path
    reused: bool


def compiled(work: Work, checkout: Callable[[Plan], AppliedTree]) -> Compiled:
    """Compile what has to be, and judge; ``checkout`` is called only if there is some.

    At level deep that is in all variants, else in those that take seconds.  Seeds that
    were asked for are tried at any level, instead of those that a series has.
    """
    ui = work.context.ui
    turns, lacking = _variants(work)
    fresh = _brought(work, turns)
    paths = [path for path, _ in work.plan.states[-1]]
    # None of them is touched itself, so they are the same for all states.
    users = functools.cache(lambda tree: kbuild.users(tree, paths))
    total = sum(len(_states(work, one)) for turn in turns for one in turn)
    results: dict[tuple[str, int], _Result] = {}
    for turn in turns:
        for variant, number, result in _turn(work, turn, checkout, users):
            results[variant.name, number] = result
            named = f"patch {number}" if number else "the base"
            ui.progress(len(results), total, f"{variant.title}: {named}")
    drawn = [*_random(work, checkout, users)]
    cache.prune(work.cache / "compiled", keep=_KEPT)
    tried = [*_tried(work, turns, results), *(one for one, _ in drawn), *lacking]
    last = len(work.plan.patches)
    return Compiled(
        compilecheck.judge(work.series, tried),
        sum(len(one.outcomes) for one in tried),
        {
            name: (
                results[name, 0].entry / _OBJECTS,
                results[name, last].entry / _OBJECTS,
            )
            for name in _LOOKED_AT
        },
        all(one.reused and one.entry not in fresh for one in results.values())
        and all(old for _, old in drawn),
    )


# -- elsewhere -----------------------------------------------------------------------


def ahead(work: Work) -> None:
    """Have begun elsewhere what `compiled` will ask for."""
    if work.context.away is not None:
        for unit in _units(work, _variants(work)[0]):
            work.context.away.ahead(unit)


def _brought(work: Work, turns: Sequence[Sequence[Variant]]) -> frozenset[Path]:
    """Get what is not here from elsewhere; what was made for us comes back.

    What nobody could make is made here, and then this machine says why.
    """
    away = work.context.away
    if away is None:
        return frozenset()
    units = list(_units(work, turns))
    for unit in units:
        away.ahead(unit)
    made: set[str] = set()
    for unit in units:
        outcome = away.do(unit)
        outcome.tell()
        made |= outcome.made
        if outcome.error is not None:
            said = outcome.error.what.splitlines()[0]
            work.context.ui.say(f"{unit.title}: {outcome.worker} says {said}")
    return frozenset(work.cache / one for one in made)


def _units(work: Work, turns: Sequence[Sequence[Variant]]) -> Iterator[elsewhere.Unit]:
    """One for each variant of which not all states are here."""
    fragments = _fragments(work)
    copied = projects.keep(work.context.project, work.context.cache)
    base = work.plan.base
    for variant in (one for turn in turns for one in turn):
        keys = [
            _key_of(work, number, variant, fragments)
            for number in _states(work, variant)
        ]
        if all(cache.kept(work.cache / "compiled" / key) for key in keys):
            continue
        yield elsewhere.Unit(
            kind="compile",
            key=cache.digest(keys),
            title=f"{work.series.name}, {variant.title}",
            spec={
                "project": copied,
                "series": work.series.name,
                "level": work.context.level,
                "base": base.as_json(),
                "root": work.root.key,
                "variant": variant.name,
                "keys": keys,
            },
            entries=(copied, f"trees/{base.id}", f"roots/{work.root.key}"),
            needs={"build": 1.0, "slot": 1.0, f"gcc: {work.tools.compiler}": 1.0},
            seconds=10.0 + 5.0 * len(keys),
        )


def perform(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Sink
) -> elsewhere.Done:
    """Compile all states of a series in a variant, as another process has asked."""
    project = projects.find(spec["project"], cache_dir)
    (series,) = project.load([spec["series"]])
    base = Base.of_json(spec["base"], cache_dir)
    user_space = root.find(spec["root"], cache_dir)
    tools = kernel.toolchain(user_space.pahole, cache_dir)
    context = Context(project, cache_dir, out, spec["level"], ui)
    planned = tree.plan(base, series.patches, out / "plan")
    work = Work(context, series, planned, tools, user_space)
    turns, _ = _variants(work)
    named = [one for turn in turns for one in turn if one.name == spec["variant"]]
    fragments = _fragments(work)
    keys = [
        _key_of(work, number, one, fragments)
        for one in named
        for number in _states(work, one)
    ]
    if keys != spec["keys"]:
        raise elsewhere.CannotHere(
            "this worker would compile with another compiler or checker than is asked"
        )
    paths = [path for path, _ in planned.states[-1]]
    users = functools.cache(lambda tree: kbuild.users(tree, paths))
    with tree.workspace(base, ui.say) as put:
        results = [one for _, _, one in _turn(work, named, put, users)]
    made = {f"compiled/{one.entry.name}" for one in results if not one.reused}
    return elsewhere.Done(
        entries=tuple(f"compiled/{key}" for key in keys), made=tuple(sorted(made))
    )


def _tried(
    work: Work,
    turns: Sequence[Sequence[Variant]],
    results: Mapping[tuple[str, int], _Result],
) -> Iterator[Tried]:
    for variant in (one for turn in turns for one in turn):
        states = _states(work, variant)
        outcomes = tuple(results[variant.name, number].outcome for number in states)
        if variant.name not in _LOOKED_AT:
            yield Tried(variant.name, variant.title, outcomes)
        if variant.checker is not None:
            yield Tried(compiling.SPARSE, variant.title, outcomes)


def _random(
    work: Work,
    checkout: Callable[[Plan], AppliedTree],
    users: Callable[[Path], kbuild.Users],
) -> Iterator[tuple[Tried, bool]]:
    """What came of random configurations, and whether that was known before.

    The whole series is compiled; of what is said of that, the states before tell whose
    it is.
    """
    wanted = work.context.seeds
    if not wanted and work.context.level == "deep":
        wanted = seeds.of(work.series)
    last = len(work.plan.patches)
    fragments = _fragments(work)
    for count, seed in enumerate(wanted):
        variant = variants.random(work.tools, seed)
        work.context.ui.progress(count, len(wanted), variant.title)

        def result(number: int, variant: Variant = variant) -> _Result:
            state = _State(work, number, checkout, users)
            (made,) = _obtain(work, state, [variant], fragments)
            return made

        # Of a state that says nothing new it does not matter what those before it say,
        # but where each patch compiles other variants show.
        whole = base = result(last)
        if compilecheck.says_more(whole.outcome, Outcome()):
            base = result(0)
        between = [base] * (last - 1)
        if compilecheck.says_more(whole.outcome, base.outcome):
            between = [result(number) for number in range(1, last)]
        found = [base, *between, whole]
        outcomes = tuple(one.outcome for one in found)
        yield (
            Tried(variant.name, variant.title, outcomes),
            all(one.reused for one in found),
        )


def _states(work: Work, variant: Variant) -> Sequence[int]:
    """How many patches are applied in each state that ``variant`` is tried in."""
    last = len(work.plan.patches)
    return (0, last) if variant.name in _LOOKED_AT else range(last + 1)


def _variants(work: Work) -> tuple[list[list[Variant]], list[Tried]]:
    """The variants by turns, and those that cannot be tried, with the reason.

    Those of one turn have output directories of their own, so each state of the series
    is checked out once for all of them.
    """
    tools, tree_ = work.tools, work.plan.base.path
    lacking = []
    checker = None
    try:
        checker = sparse.obtain(tree_, work.root, work.cache, work.context.ui.say)
    except sparse.NoChecker as error:
        lacking.append(Tried(compiling.SPARSE, "sparse", lacking=_reason(error)))
    first = [
        variants.modules(tools, checker),
        variants.untraced(tools),
        variants.tiny(tools),
        variants.worst(tools),
        variants.mitigated(tools),
    ]
    if work.context.level != "deep":
        lacking += [Tried(name, name, lacking=DEEP) for name in _ONLY_DEEP]
        return [first], lacking
    first.append(variants.builtin(tools))
    makers: dict[str, Callable[[], Variant]] = {
        "clang": lambda: variants.clang(tree_, tools),
        "arm64": lambda: variants.arm64(tools),
        "i386": lambda: variants.i386(tools),
    }
    for name, make in makers.items():
        try:
            first.append(make())
        except variants.Lacking as error:
            lacking.append(Tried(name, name, lacking=_reason(error)))
    hangs_on = options.of(work.plan)
    return [first, *([variants.without(tools, one)] for one in hangs_on)], lacking


def _reason(error: KstallError) -> str:
    what = error.what.splitlines()[0]
    return f"{what}; {error.next}" if error.next else what


def _turn(
    work: Work,
    turn: Sequence[Variant],
    checkout: Callable[[Plan], AppliedTree],
    users: Callable[[Path], kbuild.Users],
) -> Iterator[tuple[Variant, int, _Result]]:
    """All states in all variants of a turn, one state after the other."""
    fragments = _fragments(work)
    for number in range(len(work.plan.states)):
        state = _State(work, number, checkout, users)
        tried = [one for one in turn if number in _states(work, one)]
        results = _obtain(work, state, tried, fragments)
        for variant, result in zip(tried, results, strict=True):
            yield variant, number, result


def _obtain(
    work: Work, state: _State, tried: Sequence[Variant], fragments: Sequence[Path]
) -> list[_Result]:
    """What comes of a state in each of the variants of a turn, found or made."""
    entries = [
        work.cache / "compiled" / _key_of(work, state.number, one, fragments)
        for one in tried
    ]
    reused = [_is_there(entry, state) for entry in entries]
    for entry in itertools.compress(entries, reused):
        os.utime(entry)  # `cache.prune` drops what was not used for longest
    lacking = {
        entry: variant
        for variant, entry, known in zip(tried, entries, reused, strict=True)
        if not known
    }
    if lacking:
        _compile(work, state, lacking, fragments)
    results = []
    for entry, known in zip(entries, reused, strict=True):
        raw = json.loads((entry / _OUTCOME).read_text(encoding="utf-8"))
        results.append(_Result(Outcome.of_json(raw), entry, known))
    return results


def _is_there(entry: Path, state: _State) -> bool:
    """Whether ``entry`` is there; if it is not, the workspace is ours from here on."""
    if cache.kept(entry):
        return True
    # Who had the workspace while we waited for it may have made it.
    _ = state.applied
    return cache.kept(entry)


@dataclass(frozen=True)
class _State:
    """The first ``number`` patches of a series; what is asked of it comes once."""

    work: Work
    number: int
    checkout: Callable[[Plan], AppliedTree]
    find_users: Callable[[Path], kbuild.Users]

    @functools.cached_property
    def plan(self) -> Plan:
        return self.work.plan.upto(self.number)

    @functools.cached_property
    def applied(self) -> AppliedTree:
        return self.checkout(self.plan)

    @property
    def touched(self) -> tuple[str, ...]:
        """All files that any patch of the series touches, and that there are."""
        files = self.work.plan.states[self.number]
        return tuple(path for path, file in files if file is not None)

    @functools.cached_property
    def users(self) -> kbuild.Users:
        return self.find_users(self.applied.path)


def _fragments(work: Work) -> list[Path]:
    """The fragments of all series there are, so that all have one configuration."""
    project = work.context.project
    try:
        everyone = project.load()
    except SeriesError:
        everyone = (work.series,)  # those of others are not this one's fault
    names = {"base.config"} | {one.spec.kconfig for one in (*everyone, work.series)}
    return [project.kconfigs / name for name in sorted(names)]


def _key_of(
    work: Work, number: int, variant: Variant, fragments: Sequence[Path]
) -> str:
    return cache.digest(
        sources.digest("kstall.build", "kstall.compile"),
        work.plan.base.id,
        [
            (path, None if file is None else file.facts())
            for path, file in work.plan.states[number]
            # A patch of documentation leaves what was compiled before it as it is.
            if not kbuild.is_prose(path)
        ],
        [cache.file_digest(path) for path in fragments],
        variant.id,
        _symbols(work) if variant.seed is not None else None,
    )


def _symbols(work: Work) -> list[str]:
    """What touched code cannot be without: what its Makefiles and its series ask."""
    own = kconfig.parse_fragment(
        work.context.project.kconfigs / work.series.spec.kconfig
    )
    asked = {one.symbol for one in own if one.value in ("y", "m")}
    return sorted(asked | options.compiling(work.plan))


def _configured(
    work: Work,
    state: _State,
    variant: Variant,
    fragments: Sequence[Path],
    scratch: Path,
) -> Configured:
    if variant.seed is None:
        return variants.configure(
            variant,
            state.applied,
            state.plan,
            fragments,
            work.tools,
            work.cache,
            scratch,
            log=work.log,
        )
    whole = kernel.configured(
        state.plan,
        lambda: state.applied,
        fragments,
        work.tools,
        work.cache,
        log=work.log,
        lenient=True,
    )
    key = kernel.config_key(state.plan, fragments, work.tools)
    return seeds.configure(
        variant,
        state.applied,
        whole,
        _symbols(work),
        work.cache,
        key=key,
        log=work.log,
    )


def _compile(
    work: Work,
    state: _State,
    lacking: Mapping[Path, Variant],
    fragments: Sequence[Path],
) -> None:
    """Compile a state in variants, and put what came of each into its entry."""
    # While one make reads what is there, with one processor, the compilers of another
    # have the others.
    processors = len(os.sched_getaffinity(0))
    count = min(_AT_ONCE, processors, len(lacking))
    with temporary.directory("compile") as place:
        jobs: dict[Path, tuple[Job, Path]] = {}
        for entry, variant in lacking.items():
            scratch = place / variant.name
            scratch.mkdir()
            try:
                config = _configured(work, state, variant, fragments, scratch)
            except kconfig.CannotBeOff as error:
                _keep(entry, Outcome(impossible=error.what))
                continue
            whose = variant.tools.arch
            output = outputs.apart(state.applied, variant.place, work.cache, whose)
            assert output not in jobs
            job = Job(
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


def _compile_one(job: Job, entry: Path, log: Path) -> None:
    """Compile it; what was printed is at the end of ``log`` when that is complete."""
    try:
        with cache.keep(entry) as made:
            keep = made / _OBJECTS if job.variant.name in _LOOKED_AT else None
            alone = job.variant.name == variants.MODULES
            outcome = compiling.compile(job, alone=alone, keep=keep)
            cache.write_json(made / _OUTCOME, outcome.as_json())
            # What children said that were ended for another's fault is no outcome.
            process.require_going()
    except KstallError as error:
        if error.log == job.log:
            error.log = log
        raise
    finally:
        # Lest two write between each other's lines, or one that was ended behind the
        # one that failed.
        if job.log.exists():
            with _appending, contextlib.suppress(OSError, process.Ended):
                process.require_going()
                with log.open("ab") as whole:
                    whole.write(job.log.read_bytes())
            job.log.unlink(missing_ok=True)


def _keep(entry: Path, outcome: Outcome) -> None:
    with cache.keep(entry) as made:
        cache.write_json(made / _OUTCOME, outcome.as_json())
