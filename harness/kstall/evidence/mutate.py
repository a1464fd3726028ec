# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutation testing of a series' checks: whether they notice wrong values of an event.

Checks that pass prove the values right only if they would fail on wrong ones.  So
every value of every new event is falsified in each way that a wrong patch could
(`falsify`), in a copy of a run's evidence, and the series' own checks judge that.
A mutant that escapes them all has an argument in ``[[unproven]]`` of series.toml, or is
a failed check.  Nothing is booted.

Only a check that fails has caught a mutant: one that cannot judge it has not, and
neither has one that needs what scripts or programs printed of the events' records.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..base import KstallError, cache, few, sources
from ..series import Series, Unproven
from ..verdict import Check, Kind, Verdict, claim_of, run_check
from . import common, evidence, operators
from .evidence import CheckFunction, Evidence
from .falsify import Genuine
from .falsity import MutantOutcome, Mutation, RefutedArgument
from .operators import RECORDS, FieldMutant

# Modules that decide what the mutants are, and what the checks say of them.
_ENGINE = (
    *("kstall.base", "kstall.verdict", "kstall.ftrace", "kstall.series"),
    *("kstall.evidence", "kstall_guest"),
)
NAME = "every_value_is_falsifiable"
#: Seconds of processor time that one check may take for one mutant: a false value may
#: make it loop far longer than a genuine one.
_LIMIT = 20.0
_PR_SET_PDEATHSIG = 1
_SHOWN = 8
_INEXACT = (
    "in this evidence, times are not known as exactly as they have to be, which may be "
    "due to a busy host"
)


class NotProven(KstallError):
    """Genuine evidence that a check does not accept, so that mutants prove nothing."""


@dataclass(frozen=True)
class _Witness:
    """A check that can catch mutants of the ``workloads`` that it reads."""

    name: str
    kind: Kind
    claim: str
    function: CheckFunction
    workloads: frozenset[str]

    def judge(self, saved: Evidence) -> Check:
        """Its check of ``saved``."""
        return run_check(self.name, self.kind, self.claim, self.function, saved)


def concerns(series: Series) -> bool:
    """Whether the series adds events, and says which: else there are no mutants."""
    return bool(series.spec.tracepoint) and not series.spec.discovered


def mutation(
    series: Series, results: Path, cache_dir: Path, workers: int
) -> tuple[Mutation, bool]:
    """The outcomes of all mutants of the evidence in ``results``, and whether they
    come from the cache.

    Raises `NotProven` if a check does not accept the genuine evidence.
    """
    key = digest(series, results)
    path = cache_dir / "mutations" / key
    if (kept := cache.recall(path, Mutation.model_validate)) is not None:
        return argued(series, kept), True
    report = judged(series, evidence.load(results), key, workers)
    cache.retain(path, report.model_dump(mode="json"))
    return argued(series, report), False


def digest(series: Series, results: Path) -> str:
    """A digest of the evidence, the checks, the declarations and this engine."""
    declared = series.spec.model_dump(
        mode="json", include={"tracepoint", "workload", "check"}
    )
    files = sorted(path for path in results.rglob("*") if path.is_file())
    checks = series.dir / "checks.py"
    return cache.digest(
        [(str(file.relative_to(results)), cache.file_digest(file)) for file in files],
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
    groups: dict[tuple[str, str, str], list[FieldMutant]] = {}
    for mutant in operators.mutants(series, saved):
        values = mutant.event, mutant.part, mutant.field
        groups.setdefault(values, []).append(mutant)
    outcomes = _judge_all(_Bench(genuine, witnesses), [*groups.values()], workers)
    return Mutation(
        digest=key,
        seconds=round(time.monotonic() - began, 3),
        witnesses=[witness.name for witness in witnesses],
        silent=silent,
        mutants=outcomes,
    )


def _witnesses(
    series: Series, genuine: Genuine
) -> tuple[tuple[_Witness, ...], list[str]]:
    """The checks that judge mutants, and those that cannot, as they read what scripts
    or programs print of the records.

    Checks that compare readers with each other are no witnesses: all readers agree on
    a false value.  Raises `NotProven` if a check does not pass on genuine evidence.
    """
    all_names = frozenset(load.name for load in series.spec.workload)
    functions = evidence.functions(series)
    candidates = [
        _Witness(
            check.name,
            check.kind,
            check.claim,
            functions[check.name],
            frozenset(check.workloads),
        )
        for check in series.spec.check
    ]
    # Last, as it needs all records of all workloads.
    fire = functools.partial(common.events_fire, series)
    candidates.append(_Witness("events_fire", "harness", "", fire, all_names))
    witnesses, silent, failures = [], [], []
    for witness in candidates:
        genuine.refused.clear()
        outcome = witness.judge(genuine.withheld)
        if genuine.refused:
            silent.append(witness.name)
        elif outcome.status == "pass":
            witnesses.append(witness)
        elif outcome.status != "skip":
            failures.append(f"{witness.name}: {outcome.status}")
    if failures:
        raise NotProven(
            f"{series.name}: checks do not accept the genuine evidence "
            f"({', '.join(failures)}), so mutants of it prove nothing",
            next="see what these checks say: `kstall judge RUN`",
        )
    return tuple(witnesses), silent


@dataclass(frozen=True)
class _Bench:
    """The evidence, and the checks that judge its mutants."""

    genuine: Genuine
    witnesses: Sequence[_Witness]

    def judge(self, mutants: Sequence[FieldMutant]) -> list[MutantOutcome]:
        """Judge mutants of one field; the check that caught the last one goes first."""
        order = [*self.witnesses]
        outcomes = []
        for mutant in mutants:
            outcome = self._judge(mutant, order)
            if outcome.outcome == "escaped":
                outcome.noticed = self._coarser(mutant, order)
            outcomes.append(outcome)
            first = [witness for witness in order if witness.name == outcome.check]
            order = [*first, *(witness for witness in order if witness not in first)]
        return outcomes

    def _coarser(self, mutant: FieldMutant, order: Sequence[_Witness]) -> str:
        """The first coarser variant of ``mutant`` that is caught; empty if none is."""
        for worse in operators.coarser(mutant):
            outcome = self._judge(worse, order)
            if outcome.outcome == "caught":
                return f"{worse.operator}, caught by {outcome.check}"
        return ""

    def _judge(self, mutant: FieldMutant, order: Sequence[_Witness]) -> MutantOutcome:
        outcome = MutantOutcome(**vars(mutant), outcome="not-applicable")
        saved, workloads = self.genuine.falsified(mutant)
        if not workloads:
            return outcome
        outcome.outcome = "escaped"
        excuses = []
        for witness in order:
            if witness.workloads & workloads:
                with _Limited():
                    check = witness.judge(saved)
                if check.status == "fail":
                    outcome.outcome, outcome.check = "caught", witness.name
                    outcome.broke = []
                    return outcome
                if check.status != "pass":
                    outcome.broke.append(f"{witness.name}: {_last_line(check.detail)}")
                    excuses += [check.detail] if check.left_open else []
        if len(excuses) == len(outcome.broke):
            outcome.left_open = "; ".join(dict.fromkeys(excuses))
        return outcome


def _last_line(text: str) -> str:
    return next(iter(text.strip().splitlines()[-1:]), "")


class _Limited:
    """Raises `TimeoutError` in a block that takes too much processor time."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGVTALRM, _too_long)
        signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._before)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {_LIMIT:.0f} s of processor time")


# The bench of forked workers, which inherit it: it is too large to be sent to them.
_bench: _Bench | None = None
# Several trees can be proven at once, each by a thread.
_forking = threading.Lock()


def _judge_all(
    bench: _Bench, groups: Sequence[Sequence[FieldMutant]], workers: int
) -> list[MutantOutcome]:
    """The outcomes of all ``groups``, in their order.

    Raises `KstallError` if a process ended unexpectedly, or if there can be none
    although only the main thread could do without.
    """
    # `_Limited` needs a signal, and only a main thread gets those.
    needed = threading.current_thread() is not threading.main_thread()
    pool = None
    if needed or (workers > 1 and len(groups) > 1):
        pool = _pool(workers)
    if pool is None:
        if needed:
            raise KstallError(
                "mutants cannot be judged: no process can be started for them",
                next="make /dev/shm writable, or prove one tree at a time",
            )
        return [outcome for group in groups for outcome in bench.judge(group)]
    global _bench  # noqa: PLW0603 - inherited by forked processes
    with _forking:
        _bench = bench
        try:
            with pool:
                return [
                    outcome
                    for outcomes in pool.map(_judge_group, groups)
                    for outcome in outcomes
                ]
        except concurrent.futures.process.BrokenProcessPool as error:
            raise KstallError(
                "a process that judged mutants ended unexpectedly",
                next="if it was killed (memory?), run the same command again",
            ) from error
        finally:
            _bench = None


def _pool(workers: int) -> concurrent.futures.ProcessPoolExecutor | None:
    """That many processes; None if there is no /dev/shm for their semaphores."""
    try:
        return concurrent.futures.ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("fork"),
            _end_with,
            (os.getpid(),),
        )
    except OSError:
        return None


def _judge_group(group: Sequence[FieldMutant]) -> list[MutantOutcome]:
    assert _bench is not None
    return _bench.judge(group)


def _end_with(parent: int) -> None:
    """End a worker with its parent, which is also the one that handles Ctrl-C."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(1)


def argued(series: Series, report: Mutation) -> Mutation:
    """``report``, with the current arguments of series.toml."""
    arguments = {
        (event, argument.part or "", field or RECORDS, operator): argument
        for argument in series.spec.unproven
        for event, field, operator in argument.keys
    }
    outcomes = []
    used = set()
    for mutant in report.mutants:
        outcome = mutant.model_copy(update={"because": "", "resolution": ""})
        if outcome.outcome == "argued":
            outcome.outcome = "escaped"
        keys = [
            key
            for event in operators.split(outcome.event)
            for part in dict.fromkeys((outcome.part, ""))
            if (key := (event, part, outcome.field, outcome.operator)) in arguments
            and not _why_refuted(arguments[key], outcome)
        ]
        if outcome.outcome != "caught" and keys:
            used.update(keys)
            argument = arguments[keys[0]]
            outcome.because = argument.because
            if outcome.outcome == "escaped":
                outcome.outcome = "argued"
                outcome.resolution = argument.resolution or ""
                if argument.noticed_from_ms is not None:
                    outcome.resolution = f"{operators.moved_ms(outcome.noticed)} ms"
        outcomes.append(outcome)
    by_key = {
        (outcome.event, outcome.part, outcome.field, outcome.operator): outcome
        for outcome in outcomes
    }
    stale, spare = [], []
    for key, argument in arguments.items():
        event, part, field, operator = key
        refuted = functools.partial(
            RefutedArgument, event=event, part=part, field=field, operator=operator
        )
        other = by_key.get(key)
        if other is None:
            stale.append(refuted(why="there is no such operator for it"))
        elif why := _why_refuted(argument, other):
            stale.append(refuted(why=why, noticed=other.noticed))
        elif key not in used and other.outcome == "caught":
            spare.append(refuted(why=f"caught by {other.check}"))
    return report.model_copy(
        update={"mutants": outcomes, "stale": stale, "spare": spare}
    )


def _why_refuted(argument: Unproven, outcome: MutantOutcome) -> str:
    """Why ``argument`` does not hold for a mutant that escaped; empty if it does."""
    if outcome.outcome != "escaped":
        return ""
    if argument.changes_nothing:
        return "it changes something in this evidence, and no check notices"
    limit = argument.noticed_from_ms
    if limit is not None and not 0 < operators.moved_ms(outcome.noticed) <= limit:
        noticed = outcome.noticed or "not even 100 ms are noticed"
        return f"it is not noticed from {limit} ms on: {noticed}"
    return ""


def judge(series: Series, report: Mutation) -> Check:
    """The check that every value of the new events is falsifiable."""
    check = every_value_is_falsifiable
    return run_check(NAME, "harness", claim_of(check), check, argued(series, report))


def every_value_is_falsifiable(report: Mutation) -> Verdict:
    """Wrong values of new events fail a check, or it is argued why none can."""
    verdict = Verdict()
    fields: dict[tuple[str, str], list[MutantOutcome]] = {}
    for outcome in report.mutants:
        fields.setdefault((outcome.where, outcome.field), []).append(outcome)
    untried = _untried(report)
    for (event, field), outcomes in fields.items():
        escaped = [outcome for outcome in outcomes if outcome.outcome == "escaped"]
        label = f"{event.partition(':')[2]}: {field}"
        # Where a check makes allowance for a busy host, a wrong patch is not proven
        # either; and on a quieter one, the same check may catch it.  How exactly times
        # are known depends on the host as well.
        allowed = [outcome for outcome in escaped if outcome.left_open]
        moved = [outcome for outcome in escaped if outcome.noticed]
        missed = [o for o in escaped if not (o.left_open or o.noticed)]
        verdict.equal(f"{label}: escaped", _named(missed), "none")
        with verdict.excused("; ".join(outcome.left_open for outcome in allowed)):
            verdict.equal(f"{label}: left open by a check", _named(allowed), "none")
        with verdict.excused(_INEXACT):
            verdict.equal(f"{label}: noticed too late", _named(moved), "none")
        caught = sum(outcome.outcome == "caught" for outcome in outcomes)
        noticed = caught or any(
            outcome.outcome == "argued" or outcome.left_open for outcome in outcomes
        )
        # A part may have no records here: then there is nothing to notice in them.
        if not outcomes[0].part or any(o.outcome != "not-applicable" for o in outcomes):
            verdict.true(
                f"{label}: any caught or argued", bool(noticed), f"{caught} caught"
            )
        # No fault of the patch: other evidence may show more.
        with verdict.excused(untried):
            unchanged = [outcome for outcome in outcomes if outcome.is_untried]
            verdict.equal(
                f"{label}: changes nothing, not argued", _named(unchanged), "none"
            )
    wrong = [argument for argument in report.stale if not argument.noticed]
    late = [argument for argument in report.stale if argument.noticed]
    label = "arguments of [[unproven]] that do not hold"
    verdict.equal(label, _listed(wrong), "none")
    with verdict.excused(_INEXACT):
        verdict.equal(f"{label} in this evidence", _listed(late), "none")
    return verdict


def _listed(arguments: Sequence[RefutedArgument]) -> str:
    lines = [
        f"{argument.where} {argument.field}: {argument.operator}: {argument.why}"
        for argument in arguments
    ]
    return few(lines, _SHOWN)


def _untried(report: Mutation) -> str:
    """What this evidence cannot show, and why; empty if it shows all."""
    fields = [
        f"{row.event.partition(':')[2]} {row.field} ({', '.join(row.untried)})"
        for row in report.rows()
        if row.untried
    ]
    if not fields:
        return ""
    return (
        f"operators change nothing in this evidence: {few(fields, _SHOWN)}; so it "
        "cannot show whether a check would notice them, and no [[unproven]] says why"
    )


def _named(outcomes: Sequence[MutantOutcome]) -> str:
    names = []
    for outcome in outcomes:
        notes = [*outcome.broke[:1], outcome.noticed]
        note = "; ".join(filter(None, notes))
        names.append(outcome.operator + (f" ({note})" if note else ""))
    return few(names, _SHOWN)


def summary(report: Mutation) -> str:
    """How many mutants had which outcome, in one line."""
    numbers = {
        "caught": report.count("caught"),
        "argued": report.count("argued"),
        "escaped": report.count("escaped"),
        "not applicable": report.count("not-applicable"),
    }
    fields = {
        (mutant.event, mutant.field)
        for mutant in report.mutants
        if mutant.field != RECORDS
    }
    untried = sum(mutant.is_untried for mutant in report.mutants)
    return f"{len(fields)} fields: " + ", ".join(
        [f"{number} {name}" for name, number in numbers.items() if number]
        + [f"{untried} of them not argued"] * bool(untried)
    )
