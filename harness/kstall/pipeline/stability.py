# SPDX-License-Identifier: GPL-2.0-or-later
"""``kstall stability``: whether verdicts are stable while the host is busy.

The guest of a series is booted many times on one kernel, under each load alone and
several at once.  Nothing is repeated or left out: the aim is to find runs with another
verdict than "proven", whose results are kept.  If the series shows bugs on the base
kernel, a guest of that is booted as often.

The evidence of each run is falsified as well (`mutate`): what a check notices must not
depend on luck either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import FailedCheck, KstallError, cache, explain, parallel, sources
from ..evidence import Evidence, evidence, mutate
from ..guest import Guest, guestrun, run_guest
from ..series import Context, Project, Series, suites
from ..verdict import Check
from . import attempts, hostload, trials, validate, without
from .attempts import Attempt, Repeated, StabilityOutcome
from .request import Request
from .ui import Ui

#: The numbers of virtual processors that KUnit suites are run on.
CPUS = (1, 4)
#: Our packages that decide what becomes of a guest.
_JUDGES = (
    *("kstall.base", "kstall.verdict", "kstall.ftrace", "kstall.series"),
    *("kstall.guest", "kstall.evidence", "kstall_guest"),
)


@dataclass(frozen=True)
class StabilityPlan:
    """``runs`` guests of each series for each of ``loads``: workers a processor.

    ``at_once`` says how many guests run at the same time, in turn: one, then two, then
    one.

    With ``kunit`` instead each of a series' KUnit suites (`suites.concerned`), that
    often, in a guest with one processor and in one with four.
    """

    runs: int
    loads: tuple[int, ...]
    kunit: int = 0
    at_once: tuple[int, ...] = (1, 2)


def unmeasured(outcome: StabilityOutcome, plan: StabilityPlan) -> str:
    """Why there is no result at all; empty if there is one."""
    if outcome.attempts or outcome.suites:
        return ""
    if plan.kunit and outcome.series:
        names = ", ".join(sorted(outcome.series))
        return (
            f"nothing was measured: no patch of {names} adds a KUnit suite, and no "
            "workload runs one"
        )
    return "nothing was measured: no guest was booted"


def batches(
    runs: int, at_once: Sequence[int] = (1, 2), first: int = 1
) -> Iterator[range]:
    """The numbers of the guests that run at once: one, two, one, two, ..."""
    for size in itertools.cycle(at_once):
        if first > runs:
            return
        yield range(first, min(first + size, runs + 1))
        first += size


def measure(
    request: Request,
    plan: StabilityPlan,
    ui: Ui,
    command: Sequence[str],
    *,
    resume: bool = False,
) -> StabilityOutcome:
    """Boot all guests of ``plan``, and return their outcome.

    `attempts.FILE` in the run directory is rewritten after each guest.  To ``resume``
    means not to boot guests again, of the same kernels and checks, that the newest run
    directory with results counts, whatever their verdict was.  Raises `KstallError` if
    its results cannot be read.
    """
    request = dataclasses.replace(request, level="quick", out=request.out / "stability")
    known = attempts.newest(request.out) if resume else StabilityOutcome()
    outcome = StabilityOutcome(earlier=known)
    for run, series, guest, own_base in validate.guests(request, ui, command):
        outcome.place = run.dir
        outcome.series.add(series.name)
        # Suites are those of the patched kernel.
        base = None if plan.kunit else own_base
        tested = _tested(request.project, series, guest, base)
        _take_over(outcome, series, tested, plan)
        for load in plan.loads:
            ui.begin(series.name, f"load {load}")
            bench = _Bench(
                project=request.project,
                series=series,
                guest=guest,
                base=base,
                plan=plan,
                load=load,
                place=run.dir,
                ui=ui,
                tested=tested,
            )
            if bench.is_done(outcome):
                continue
            with hostload.put(load, ui.say) as required:
                if plan.kunit:
                    bench.suites(outcome, required)
                else:
                    bench.guests(outcome, required)
    return outcome


def _tested(
    project: Project, series: Series, guest: Guest, base: Guest | None = None
) -> str:
    """Changes with all that a verdict depends on: with ``base`` if that is booted."""
    checks = series.dir / "checks.py"
    return cache.digest(
        guestrun.key_of(project, series, guest),
        cache.file_digest(checks) if checks.is_file() else None,
        series.spec.model_dump(mode="json"),
        series.skipped,
        sources.digest(*_JUDGES),
        *([without.key_of(project, series, base)] if base is not None else []),
    )


def _take_over(
    outcome: StabilityOutcome, series: Series, tested: str, plan: StabilityPlan
) -> None:
    """Count what is known from earlier of the same guest, and asked for now."""
    known = outcome.earlier or StabilityOutcome()
    rest = outcome.earlier = StabilityOutcome()
    assert outcome.place is not None
    mine = (series.name, tested)
    for attempt in known.attempts:
        asked = attempt.load in plan.loads and not plan.kunit
        counted = (attempt.series, attempt.tested) == mine and asked
        (outcome if counted else rest).attempts.append(attempt)
    for repeated in known.suites:
        asked = repeated.load in plan.loads and bool(plan.kunit)
        answered = repeated.count is not None or repeated.failed
        counted = (repeated.series, repeated.tested) == mine and asked and answered
        (outcome if counted else rest).suites.append(repeated)
    attempts.write(outcome)


@dataclass(frozen=True)
class _Bench:
    """A series with a guest that can be booted, on a host under ``load``.

    ``base`` is the guest that shows its bugs, if there are any.
    """

    project: Project
    series: Series
    guest: Guest
    base: Guest | None
    plan: StabilityPlan
    load: int
    place: Path
    ui: Ui
    tested: str

    def is_done(self, outcome: StabilityOutcome) -> bool:
        """Whether nothing is left to be booted."""
        if self.plan.kunit:
            return not [*self._left(outcome)]
        return len(self._numbers(outcome)) >= self.plan.runs

    def _numbers(self, outcome: StabilityOutcome) -> list[int]:
        mine = (self.series.name, self.load)
        return [
            attempt.number
            for attempt in outcome.attempts
            if (attempt.series, attempt.load) == mine
        ]

    def _left(self, outcome: StabilityOutcome) -> Iterator[tuple[str, int]]:
        """The suites, and on how many CPUs, that were not run as often as planned."""
        runs = self.plan.kunit
        enough = {
            (repeated.suite, repeated.cpus)
            for repeated in outcome.suites
            if (repeated.series, repeated.load) == (self.series.name, self.load)
            and (repeated.failed or repeated.runs >= runs)
        }
        for suite in suites.concerned(self.series):
            for cpus in CPUS:
                if (suite, cpus) not in enough:
                    yield suite, cpus

    def guests(self, outcome: StabilityOutcome, required: Callable[[], None]) -> None:
        """Boot the guest as often as planned, one and several at once."""

        def done(number: int, pair: tuple[Attempt, Evidence | None]) -> None:
            # Without its load it does not count.
            required()
            attempt = self._finished(*pair)
            outcome.attempts.append(attempt)
            attempts.write(outcome)
            self.ui.say(attempts.describe(attempt))

        numbered = self._numbers(outcome)
        first = max(numbered, default=0) + 1
        last = first + self.plan.runs - len(numbered) - 1
        for numbers in batches(last, self.plan.at_once, first):
            tasks = {
                number: functools.partial(self._attempt, number, len(numbers) - 1)
                for number in numbers
            }
            parallel.each(tasks, len(tasks), done)

    def suites(self, outcome: StabilityOutcome, required: Callable[[], None]) -> None:
        """Run each suite of the series as often, with each number of CPUs."""
        runs = self.plan.kunit
        for suite, cpus in [*self._left(outcome)]:
            repeated = self._repeated(suite, runs, cpus)
            required()
            outcome.suites.append(repeated)
            attempts.write(outcome)
            self.ui.say(attempts.describe_suite(outcome.suites[-1]))

    def _place(self, number: int) -> Path:
        return self.place / self.series.name / f"load-{self.load}" / f"{number:03}"

    def _attempt(self, number: int, beside: int) -> tuple[Attempt, Evidence | None]:
        out = self._place(number)
        out.mkdir(parents=True)
        began = time.monotonic()
        checks: dict[str, str] = {}
        cause = saved = None
        try:
            saved = evidence.load(self._boot(self.series, self.guest, out))
            seconds = time.monotonic() - began
            judged = trials.judge(self.series, saved)
            if self.base is not None:
                judged.append(self._without(self.base, out))
            checks = {check.name: check.status for check in judged}
            verdict = attempts.verdict_of(list(checks.values()))
            cause = "; ".join(
                _against(check)
                for check in judged
                if check.status not in ("pass", "skip")
            )
        except FailedCheck as error:
            seconds = time.monotonic() - began
            verdict, cause = "failed", str(error)
        except (KstallError, OSError) as error:
            seconds = time.monotonic() - began
            verdict, cause = "could-not-judge", explain(error)
        attempt = Attempt(
            series=self.series.name,
            load=self.load,
            number=number,
            beside=beside,
            verdict=verdict,
            seconds=round(seconds, 1),
            average=round(os.getloadavg()[0], 1),
            checks=checks,
            cause=cause or None,
            tested=self.tested,
        )
        return attempt, saved

    def _finished(self, attempt: Attempt, saved: Evidence | None) -> Attempt:
        """``attempt`` with the check of its falsified evidence.

        Its files are removed if it is proven.
        """
        out = self._place(attempt.number)
        if attempt.verdict == "proven" and saved is not None:
            attempt = self._falsified(attempt, saved)
        if attempt.verdict == "proven":
            cache.remove(out)
            return attempt
        return dataclasses.replace(attempt, kept=str(out.relative_to(self.place)))

    def _falsified(self, attempt: Attempt, saved: Evidence) -> Attempt:
        if not mutate.concerns(self.series):
            return attempt
        workers = len(os.sched_getaffinity(0))
        try:
            mutation = mutate.judged(self.series, saved, workers=workers)
        except KstallError as error:
            return dataclasses.replace(
                attempt, verdict="could-not-judge", cause=explain(error)
            )
        check = mutate.judge(self.series, mutation)
        checks = attempt.checks | {check.name: check.status}
        verdict = attempts.verdict_of(list(checks.values()))
        cause = None if verdict == "proven" else _against(check)
        return dataclasses.replace(attempt, checks=checks, verdict=verdict, cause=cause)

    def _repeated(self, suite: str, runs: int, cpus: int) -> Repeated:
        name = f"kunit-{suite}-{cpus}-load-{self.load}"
        out = self.place / self.series.name / name
        out.mkdir(parents=True)
        machine = dataclasses.replace(self.guest.machine, cpus=cpus)
        guest = dataclasses.replace(self.guest, machine=machine)
        began = time.monotonic()
        count = cause = None
        failed = False
        try:
            only = suites.repeated(self.series, suite, runs)
            count = suites.read(self._boot(only, guest, out))
        except (KstallError, OSError) as error:
            cause = explain(error)
            failed = isinstance(error, FailedCheck)
        seconds = round(time.monotonic() - began, 1)
        return Repeated(
            series=self.series.name,
            suite=suite,
            load=self.load,
            cpus=cpus,
            seconds=seconds,
            count=count,
            cause=cause,
            failed=failed,
            tested=self.tested,
        )

    def _boot(self, series: Series, guest: Guest, out: Path) -> Path:
        """Boot a guest and return its results; those of earlier guests are not used."""
        with self._context(out) as context:
            return run_guest(
                context,
                series,
                guest,
                out / "guest.log",
                out=out / "guest",
                fresh=True,
                keep=lambda _: False,
            ).results

    def _without(self, base: Guest, out: Path) -> Check:
        """Boot ``base``, and return the check that it shows the bugs."""
        with self._context(out) as context:
            place, log = out / "without", out / "without.log"
            return without.afresh(context, self.series, base, place, log).check

    @contextlib.contextmanager
    def _context(self, out: Path) -> Iterator[Context]:
        # Guests of one kind that share a cache wait for each other.
        own = out / "cache"
        try:
            yield Context(self.project, own, out, "full", self.ui)
        finally:
            if own.exists():
                cache.remove(own)


def _against(check: Check) -> str:
    """A check that does not pass, and the first comparison that does not hold."""
    wrong = [comparison for comparison in check.comparisons if not comparison.ok]
    text = f"{check.name} ({check.status})"
    if wrong:
        first = wrong[0]
        return f"{text}: {first.label}: {first.wanted}, got {first.seen}"
    lines = check.detail.strip().splitlines()
    if not lines:
        return text
    # A traceback says what happened in the end; others then say where, and what next.
    return f"{text}: {lines[-1 if lines[0].startswith('Traceback') else 0]}"
