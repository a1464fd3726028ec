# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a series' checks notice when an event tells something false.

Checks that pass say that the values are right only if they would fail on wrong ones.
So every value of every new event is made false in each way that a wrong patch could
(`falsify`), in a copy of a run's evidence, and the series' own checks judge that.
What none of them notices is argued in ``[[unproven]]`` of series.toml, or is a failed
check.  Nothing is booted.

Only a check that says no has noticed: one that cannot judge a mutant has not, and
neither has one that needs what the events' own scripts printed.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..base import KstallError, cache, sources
from ..series import Series, Unproven
from ..verdict import Check, Verdict, run_check
from . import common, evidence, falsify
from .evidence import Evidence
from .falsify import RECORDS, Genuine, Mutant
from .falsity import MutantOutcome, Mutation, RefutedArgument

# What has a say in what the mutants and the checks of them are.
_ENGINE = (
    *("kstall.base", "kstall.verdict", "kstall.series", "kstall.evidence"),
    "kstall_guest",
)
NAME = "every_value_is_falsifiable"
#: Seconds of processor time that one check may take for one mutant: a false value can
#: make it count to a number that no true one reaches.
_LIMIT = 20.0
_PR_SET_PDEATHSIG = 1
_SHOWN = 8


class NotProven(KstallError):
    """Evidence that is not accepted as it is, so that nothing follows from mutants."""


@dataclass(frozen=True)
class _Witness:
    """A check that can notice something: it reads these workloads."""

    name: str
    judge: Callable[[Evidence], Check]
    workloads: frozenset[str]


def concerns(series: Series) -> bool:
    """Whether the series adds events, and says which: else nothing can be false."""
    return bool(series.spec.tracepoint) and not series.spec.discovered


def mutation(
    series: Series, results: Path, cache_dir: Path, workers: int
) -> tuple[Mutation, bool]:
    """What becomes of every mutant of the evidence in ``results``, and if it was kept.

    Raises `NotProven` if the evidence is not accepted as it is.
    """
    key = digest(series, results)
    kept = cache_dir / "mutations" / f"{key}.json"
    try:
        found = Mutation.model_validate_json(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = judged(series, evidence.load(results), key, workers)
        try:
            cache.write_text(kept, found.model_dump_json(indent=2) + "\n")
        except OSError as error:
            cache.remark(f"{kept} could not be kept: {error.strerror}")
        return argued(series, found), False
    return argued(series, found), True


def digest(series: Series, results: Path) -> str:
    """Changes with the evidence, the checks, what is declared, and this engine."""
    declared = series.spec.model_dump(
        mode="json", include={"tracepoint", "workload", "check"}
    )
    files = sorted(path for path in results.rglob("*") if path.is_file())
    checks = series.dir / "checks.py"
    return cache.digest(
        [(str(one.relative_to(results)), cache.file_digest(one)) for one in files],
        cache.file_digest(checks) if checks.is_file() else None,
        declared,
        sources.digest(*_ENGINE),
    )


def judged(
    series: Series, saved: Evidence, key: str = "", workers: int = 1
) -> Mutation:
    """Judge every mutant of ``saved``, in ``workers`` processes."""
    began = time.monotonic()
    genuine = Genuine(series, saved)
    witnesses, silent = _witnesses(series, genuine)
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in falsify.mutants(series, saved):
        groups.setdefault((mutant.event, mutant.field), []).append(mutant)
    outcomes = _all(_Bench(genuine, witnesses), [*groups.values()], workers)
    return Mutation(
        digest=key,
        seconds=round(time.monotonic() - began, 3),
        witnesses=[one.name for one in witnesses],
        silent=silent,
        mutants=outcomes,
    )


def _witnesses(
    series: Series, genuine: Genuine
) -> tuple[tuple[_Witness, ...], list[str]]:
    """Who is asked, and who is not as it reads what scripts print.

    Readers that are held against each other are not asked: they agree on what is
    false.  Raises `NotProven` where a check does not pass to begin with.
    """
    every = frozenset(load.name for load in series.spec.workload)
    functions = evidence.functions(series)
    asked = [
        _Witness(
            check.name,
            functools.partial(
                run_check, check.name, check.kind, check.claim, functions[check.name]
            ),
            frozenset(check.workloads),
        )
        for check in series.spec.check
    ]
    # The last, as it wants all records of all workloads.
    fire = functools.partial(common.events_fire, series)
    asked.append(
        _Witness(
            "events_fire",
            functools.partial(run_check, "events_fire", "harness", "", fire),
            every,
        )
    )
    good, silent, bad = [], [], []
    for witness in asked:
        genuine.refused.clear()
        found = witness.judge(genuine.withheld)
        if genuine.refused:
            silent.append(witness.name)
        elif found.status == "pass":
            good.append(witness)
        elif found.status != "skip":
            bad.append(f"{witness.name}: {found.status}")
    if bad:
        raise NotProven(
            f"{series.name}: this evidence is not accepted as it is "
            f"({', '.join(bad)}), so nothing follows from what is made of it",
            next="see what these checks say: `kstall judge RUN`",
        )
    return tuple(good), silent


@dataclass(frozen=True)
class _Bench:
    """The evidence, and who judges what is made of it."""

    genuine: Genuine
    witnesses: Sequence[_Witness]

    def judge(self, mutants: Sequence[Mutant]) -> list[MutantOutcome]:
        """Judge mutants of one field: who noticed one of them may notice the next."""
        order = [*self.witnesses]
        outcomes = []
        for mutant in mutants:
            outcome = self._judge(mutant, order)
            if outcome.outcome == "escaped":
                outcome.noticed = self._coarser(mutant, order)
            outcomes.append(outcome)
            first = [one for one in order if one.name == outcome.check]
            order = [*first, *(one for one in order if one not in first)]
        return outcomes

    def _coarser(self, mutant: Mutant, order: Sequence[_Witness]) -> str:
        """From where on something like ``mutant`` is noticed; empty if never."""
        for worse in falsify.coarser(mutant):
            outcome = self._judge(worse, order)
            if outcome.outcome == "caught":
                return f"{worse.operator}, caught by {outcome.check}"
        return ""

    def _judge(self, mutant: Mutant, order: Sequence[_Witness]) -> MutantOutcome:
        made = MutantOutcome(**vars(mutant), outcome="not-applicable")
        saved, where = self.genuine.falsified(mutant)
        if not where:
            return made
        made.outcome = "escaped"
        for witness in order:
            if witness.workloads & where:
                with _Limited():
                    found = witness.judge(saved)
                if found.status == "fail":
                    made.outcome, made.check = "caught", witness.name
                    made.broke = []
                    return made
                if found.status != "pass":
                    made.broke.append(f"{witness.name}: {_last_line(found.detail)}")
        return made


def _last_line(text: str) -> str:
    return next(iter(text.strip().splitlines()[-1:]), "")


class _Limited:
    """Ends what takes too much processor time, with an exception in it."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGVTALRM, _too_long)
        signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._before)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {_LIMIT:.0f} s of processor time")


# What a forked worker judges with: too much to be sent to it.
_bench: _Bench | None = None


def _all(
    bench: _Bench, groups: Sequence[Sequence[Mutant]], workers: int
) -> list[MutantOutcome]:
    """The outcomes of all ``groups``, in their order."""
    if workers < 2 or len(groups) < 2:
        return [one for group in groups for one in bench.judge(group)]
    global _bench  # noqa: PLW0603 - what forked processes find there
    _bench = bench
    try:
        with concurrent.futures.ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("fork"),
            _die_with,
            (os.getpid(),),
        ) as pool:
            return [one for found in pool.map(_judge_group, groups) for one in found]
    except concurrent.futures.process.BrokenProcessPool as error:
        raise KstallError(
            "a process that judged falsified evidence went away",
            next="if it was killed (memory?), run the same command again",
        ) from error
    finally:
        _bench = None


def _judge_group(group: Sequence[Mutant]) -> list[MutantOutcome]:
    assert _bench is not None
    return _bench.judge(group)


def _die_with(parent: int) -> None:
    """Leave nothing behind: a worker ends with its parent, and Ctrl-C is for that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(1)


def argued(series: Series, found: Mutation) -> Mutation:
    """``found``, with what series.toml argues of it today."""
    arguments = dict(_arguments(series.spec.unproven))
    outcomes = []
    used = set()
    for mutant in found.mutants:
        one = mutant.model_copy(update={"because": "", "resolution": ""})
        keys = [
            key
            for event in falsify.split(one.event)
            if (key := (event, one.field, one.operator)) in arguments
        ]
        if one.outcome == "argued":
            one.outcome = "escaped"
        if one.outcome == "escaped" and keys:
            used.update(keys)
            one.outcome = "argued"
            one.because = " ".join(arguments[keys[0]].because.split())
            one.resolution = arguments[keys[0]].resolution or ""
        elif one.outcome == "escaped" and one.noticed:
            one.outcome = "argued"
            one.because = "nearer than this run can tell, which depends on its host"
            one.resolution = one.noticed
        outcomes.append(one)
    known = {(one.event, one.field, one.operator): one for one in outcomes}
    stale, spare = [], []
    for key in arguments:
        event, field, operator = key
        refuted = functools.partial(
            RefutedArgument, event=event, field=field, operator=operator
        )
        other = known.get(key)
        if other is None:
            stale.append(refuted(why="there is no such operator on it"))
        elif key not in used and other.outcome == "caught":
            spare.append(refuted(why=f"caught by {other.check}"))
    return found.model_copy(
        update={"mutants": outcomes, "stale": stale, "spare": spare}
    )


def _arguments(
    unproven: Iterable[Unproven],
) -> Iterator[tuple[tuple[str, str, str], Unproven]]:
    for one in unproven:
        for operator in one.operators:
            yield (one.event, one.field or RECORDS, operator), one


def judge(series: Series, found: Mutation) -> Check:
    """The check that every value of the new events is falsifiable."""
    return run_check(
        NAME,
        "harness",
        (every_value_is_falsifiable.__doc__ or "").strip(),
        every_value_is_falsifiable,
        argued(series, found),
    )


def every_value_is_falsifiable(found: Mutation) -> Verdict:
    """A wrong value of a new event fails a check, or it is argued why it cannot."""
    verdict = Verdict()
    fields: dict[tuple[str, str], list[MutantOutcome]] = {}
    for one in found.mutants:
        fields.setdefault((one.event, one.field), []).append(one)
    for (event, field), outcomes in fields.items():
        escaped = [one for one in outcomes if one.outcome == "escaped"]
        label = f"{event.partition(':')[2]}: {field}"
        verdict.equal(f"{label}: escaped", _named(escaped), "none")
        caught = sum(one.outcome == "caught" for one in outcomes)
        noticed = caught or any(one.outcome == "argued" for one in outcomes)
        verdict.true(
            f"{label}: something is noticed", bool(noticed), f"{caught} caught"
        )
    stale = [
        f"{one.event} {one.field}: {one.operator}: {one.why}" for one in found.stale
    ]
    verdict.equal(
        "arguments of [[unproven]] about what is not there", _shown(stale), "none"
    )
    return verdict


def _named(outcomes: Sequence[MutantOutcome]) -> str:
    return _shown(
        [one.operator + (f" ({one.broke[0]})" if one.broke else "") for one in outcomes]
    )


def _shown(found: Sequence[str]) -> str:
    rest = len(found) - _SHOWN
    text = ", ".join(found[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
    return text or "none"


def summary(found: Mutation) -> str:
    """How many mutants had which outcome, in one line."""
    numbers = {
        "caught": found.count("caught"),
        "argued": found.count("argued"),
        "escaped": found.count("escaped"),
        "not applicable": found.count("not-applicable"),
    }
    fields = {(one.event, one.field) for one in found.mutants if one.field != RECORDS}
    return f"{len(fields)} fields: " + ", ".join(
        f"{number} {name}" for name, number in numbers.items() if number
    )
