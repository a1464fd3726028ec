# SPDX-License-Identifier: GPL-2.0-or-later
"""Each state of a series compiled in each variant, as a stage: made, or found again.

What came of a state in a variant is kept under a key of what went in, so after an edit
of a patch only the states behind it are compiled again.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, Opened, cache, sources, temporary
from ..build import Toolchain, kconfig
from ..compile import (
    Job,
    Outcome,
    Tried,
    Variant,
    compilecheck,
    compiling,
    kbuild,
    options,
    sparse,
    variants,
)
from ..cost import costs, worst
from ..debian import Root
from ..report import SeriesReport
from ..series import Project, Series, SeriesError
from ..tree import AppliedTree, Plan
from .run import Run

_OUTCOME = "outcome.json"
_OBJECTS = "objects"
_WORST = variants.WORST
_ONLY_DEEP = ("without-", "builtin", "clang", "arm64", "i386")
DEEP = "compiled at LEVEL=deep"
# Outcomes; those of worst take a megabyte, the others some kilobytes.
_KEPT = 2000


@dataclass(frozen=True)
class Request:
    """A ``series``, planned on its base, and what compiles it.

    ``everything`` asks for all variants, and not only for those that take seconds.
    """

    project: Project
    series: Series
    plan: Plan
    tools: Toolchain
    root: Root
    cache: Path
    everything: bool


@dataclass(frozen=True)
class _Result:
    """An outcome and the cache's entry of it, which may have objects."""

    outcome: Outcome
    entry: Path


def prove(
    request: Request,
    checkout: Callable[[Plan], AppliedTree],
    run: Run,
    entry: SeriesReport,
) -> list[costs.FunctionSize]:
    """Add the checks to ``entry``; what touched code grows by in the worst
    configuration comes back.

    ``checkout`` is called only if there is something to compile.  A check that fails
    stops nothing: what the patches do can be found out all the same.
    """
    with run.stage("compile", entry) as stage:
        turns, lacking = _variants(request, run)
        paths = [path for path, _ in request.plan.states[-1]]
        # None of them is touched itself, so they are the same for all states.
        users = functools.cache(lambda tree: kbuild.users(tree, paths))
        total = sum(len(_states(request, one)) for turn in turns for one in turn)
        results: dict[tuple[str, int], _Result] = {}
        stage.reused = True
        for turn in turns:
            for variant, number, result in _turn(request, turn, checkout, users, stage):
                results[variant.name, number] = result
                named = f"patch {number}" if number else "the base"
                step = f"{variant.title}: {named}"
                run.ui.progress(len(results), total, step)
        cache.prune(request.cache / "compiled", keep=_KEPT)
        tried = [*_tried(request, turns, results), *lacking]
        checks = compilecheck.judge(request.series, tried)
        entry.checks += checks
        judged = [one for one in checks if one.status != "skip"]
        good = sum(one.status == "pass" for one in judged)
        count = sum(len(one.outcomes) for one in tried)
        stage.summary = f"{good} of {len(judged)} checks pass, of {count} builds"
        if not request.everything:
            stage.summary += "; LEVEL=deep has more configurations and compilers"
        base, patched = (
            results[_WORST, number].entry / _OBJECTS
            for number in (0, len(request.plan.patches))
        )
        return worst.sizes(worst.pairs(base, patched))


def _tried(
    request: Request,
    turns: Sequence[Sequence[Variant]],
    results: Mapping[tuple[str, int], _Result],
) -> Iterator[Tried]:
    for variant in (one for turn in turns for one in turn):
        states = _states(request, variant)
        outcomes = tuple(results[variant.name, number].outcome for number in states)
        if variant.name != _WORST:
            yield Tried(variant.name, variant.title, outcomes)
        if variant.checker is not None:
            yield Tried(compiling.SPARSE, variant.title, outcomes)


def _states(request: Request, variant: Variant) -> Sequence[int]:
    """How many patches are applied in each state that ``variant`` is tried in."""
    last = len(request.plan.patches)
    return (0, last) if variant.name == _WORST else range(last + 1)


def _variants(request: Request, run: Run) -> tuple[list[list[Variant]], list[Tried]]:
    """The variants by turns, and those that cannot be tried, with the reason.

    Those of one turn have output directories of their own, so each state of the series
    is checked out once for all of them.
    """
    tools, tree_ = request.tools, request.plan.base.path
    lacking = []
    checker = None
    try:
        checker = sparse.obtain(tree_, request.root, request.cache, run.ui.say)
    except sparse.NoChecker as error:
        lacking.append(Tried(compiling.SPARSE, "sparse", lacking=_reason(error)))
    first = [
        variants.modules(tools, checker),
        variants.untraced(tools),
        variants.worst(tools),
    ]
    if not request.everything:
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
    hangs_on = options.of(request.plan)
    return [first, *([variants.without(tools, one)] for one in hangs_on)], lacking


def _reason(error: KstallError) -> str:
    what = error.what.splitlines()[0]
    return f"{what}; {error.next}" if error.next else what


def _turn(
    request: Request,
    turn: Sequence[Variant],
    checkout: Callable[[Plan], AppliedTree],
    users: Callable[[Path], kbuild.Users],
    stage: Opened,
) -> Iterator[tuple[Variant, int, _Result]]:
    """All states in all variants of a turn, one state after the other."""
    fragments = _fragments(request)
    for number in range(len(request.plan.states)):
        state = _State(request, number, checkout, users)
        for variant in turn:
            if number not in _states(request, variant):
                continue
            key = _key_of(request, number, variant, fragments)
            entry = request.cache / "compiled" / key
            if _is_there(entry, state):
                os.utime(entry)  # `cache.prune` drops what was not used for longest
            else:
                stage.reused = False
                _compile(request, state, variant, fragments, entry, stage)
            raw = json.loads((entry / _OUTCOME).read_text(encoding="utf-8"))
            yield variant, number, _Result(Outcome.of_json(raw), entry)


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

    request: Request
    number: int
    checkout: Callable[[Plan], AppliedTree]
    find_users: Callable[[Path], kbuild.Users]

    @functools.cached_property
    def plan(self) -> Plan:
        return self.request.plan.upto(self.number)

    @functools.cached_property
    def applied(self) -> AppliedTree:
        return self.checkout(self.plan)

    @property
    def touched(self) -> tuple[str, ...]:
        """All files that any patch of the series touches, and that there are."""
        files = self.request.plan.states[self.number]
        return tuple(path for path, file in files if file is not None)

    @functools.cached_property
    def users(self) -> kbuild.Users:
        return self.find_users(self.applied.path)


def _fragments(request: Request) -> list[Path]:
    """The fragments of all series there are, so that all have one configuration."""
    project = request.project
    try:
        everyone = project.load()
    except SeriesError:
        everyone = (request.series,)  # those of others are not this one's fault
    names = {"base.config"} | {one.spec.kconfig for one in (*everyone, request.series)}
    return [project.kconfigs / name for name in sorted(names)]


def _key_of(
    request: Request, number: int, variant: Variant, fragments: Sequence[Path]
) -> str:
    return cache.digest(
        sources.digest("kstall.build", "kstall.compile"),
        request.plan.base.id,
        [
            (path, None if file is None else file.facts())
            for path, file in request.plan.states[number]
            # A patch of documentation leaves what was compiled before it as it is.
            if not kbuild.is_prose(path)
        ],
        [cache.file_digest(path) for path in fragments],
        variant.id,
    )


def _compile(
    request: Request,
    state: _State,
    variant: Variant,
    fragments: Sequence[Path],
    entry: Path,
    stage: Opened,
) -> None:
    """Compile a state in a variant, and put what came of it into ``entry``."""
    with (
        temporary.directory("compile") as place,
        cache.keep(entry) as made,
    ):
        try:
            config = variants.configure(
                variant,
                state.applied,
                state.plan,
                fragments,
                request.tools,
                request.cache,
                place,
                log=stage.log,
            )
        except kconfig.CannotBeOff as error:
            outcome = Outcome(impossible=error.what)
        else:
            job = Job(
                tree=state.applied,
                touched=state.touched,
                users=state.users,
                variant=variant,
                config=config,
                cache=request.cache,
                scratch=place,
                log=stage.log,
            )
            keep = made / _OBJECTS if variant.name == _WORST else None
            outcome = compiling.compile(
                job, alone=variant.name == variants.MODULES, keep=keep
            )
        cache.write_json(made / _OUTCOME, outcome.as_json())
