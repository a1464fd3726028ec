# SPDX-License-Identifier: GPL-2.0-or-later
"""Boots of a series' guest and their verdicts: once, once more, or many times.

A guest that could not be judged because of the apparatus is booted once more, and the
report shows both tries.  A failure is never retried: repeating a check until it passes
proves nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from ..base import (
    FailedCheck,
    KstallError,
    NotJudged,
    Status,
    cache,
    explain,
    figures,
    sources,
)
from ..evidence import Evidence, common, evidence, mutate
from ..guest import Guest, forget, run_guest
from ..report import Repeat, Repeats, SeriesReport, Tally, Try, Unjudged, report
from ..series import Context, Series
from ..verdict import Check
from . import run as runs

_TRIES = 2
#: What the tally calls the guest itself.
GUEST = "guest"


class _Judgement(BaseModel):
    """What a series' checks say of one guest, and its events there."""

    events: list[report.EventFormat]
    checks: list[Check]


@dataclass(frozen=True)
class Bench:
    """A series' guest, and where its verdict goes.

    ``again``: use no old results; ``kept``: later runs may use the new ones.
    """

    context: Context
    series: Series
    guest: Guest
    run: runs.Run
    entry: SeriesReport
    again: bool = False
    kept: bool = True

    @property
    def dir(self) -> Path:
        """The directory of the series, below that of the context."""
        return self.context.out / self.series.name

    def keep(self, results: Path) -> bool:
        """Whether later runs may use ``results``: only if they can be judged."""
        return self.kept and is_complete(results)


def once(bench: Bench) -> Evidence:
    """Boot the guest, or take its results from an earlier run, and judge them.

    Raises `runs.StageStopped` if twice there are none.
    """
    for number in range(1, _TRIES + 1):
        last = number == _TRIES
        saved, checks = _try(bench, number, last=last)
        if saved is not None and (last or not _may_be_tried_again(checks)):
            mention_first_try(bench.entry.tries, checks)
            bench.entry.checks += checks
            return saved
        forget_stages(bench, "guest", "judge")
    raise AssertionError("unreachable")


def _try(
    bench: Bench, number: int, *, last: bool
) -> tuple[Evidence | None, list[Check]]:
    """Boot and judge; no evidence if that may be tried again."""
    entry, run = bench.entry, bench.run
    out = bench.dir if number == 1 else bench.dir / f"try-{number}"
    try:
        with run.stage("guest", entry) as stage:
            stage.log = out / stage.log.name
            booted = run_guest(
                bench.context,
                bench.series,
                bench.guest,
                stage.log,
                out=out,
                fresh=bench.again or number > 1,
                keep=bench.keep,
            )
            results, stage.reused = booted.results, booted.reused
            stage.summary = booted.summary
            entry.evidence = str(results.relative_to(run.dir))
    except runs.StageStopped as stopped:
        entry.tries.append(noted(bench, number, out, []))
        mention_first_try(entry.tries, [])
        if last or not isinstance(stopped.__cause__, NotJudged):
            raise
        run.ui.say(f"could not judge ({stopped.__cause__.headline})")
        run.ui.say("booting this guest once more")
        return None, []
    with run.stage("judge", entry) as stage:
        saved = evidence.load(results)
        judgement, stage.reused = _judgement(bench, saved, results)
        entry.events, checks = judgement.events, judgement.checks
        stage.summary = _summary(bench, checks)
    entry.tries.append(noted(bench, number, out, checks))
    if not last and _may_be_tried_again(checks):
        cause = next(check.detail for check in checks if check.tainted)
        run.ui.say(f"{cause.splitlines()[0]}: booting this guest once more")
    return saved, checks


def _key_of(series: Series, results: Path) -> str:
    """Changes with all that is said of ``results``, and how."""
    return cache.digest(
        mutate.digest(series, results),
        series.spec.model_dump(mode="json"),
        series.skipped,
        sources.digest("kstall.report", "kstall.pipeline"),
    )


def _judgement(bench: Bench, saved: Evidence, results: Path) -> tuple[_Judgement, bool]:
    """What is said of ``saved``, which is in ``results``, and whether it was cached.

    Only if all checks pass or are skipped: others are judged anew, for their causes.
    """
    series = bench.series
    path = bench.context.cache / "judgements" / _key_of(series, results)
    kept = None if bench.again else cache.recall(path, _Judgement.model_validate)
    if kept is not None:
        return kept, True
    judgement = _Judgement(
        events=list(events(series, saved)), checks=judge(series, saved)
    )
    if all(check.status in ("pass", "skip") for check in judgement.checks):
        cache.retain(path, judgement.model_dump(mode="json"))
    return judgement, False


def noted(
    bench: Bench, number: int, out: Path, checks: Sequence[Check], name: str = "guest"
) -> Try:
    """A try for the report, which is saved with the next stage.

    The stage of that ``name`` tells how the guest ended.
    """
    return Try(
        number=number,
        evidence=_inside(bench, out / "results"),
        guest=bench.entry.stage(name),
        unjudged=_unjudged(checks),
    )


def forget_stages(bench: Bench, *names: str) -> None:
    """Drop the stages of a try: the report's are those of the last one."""
    bench.entry.stages = [
        stage for stage in bench.entry.stages if stage.name not in names
    ]


def mention_first_try(tries: Sequence[Try], checks: Sequence[Check]) -> None:
    """Add the cause of the first try to what could not be judged twice.

    ``checks`` are those of the last one.
    """
    first, last = tries[0], tries[-1]
    if first is last:
        return
    causes = {unjudged.check: unjudged.cause for unjudged in first.unjudged}
    any_cause = first.guest.error or next(iter(causes.values()), "")
    for check in checks:
        if check.tainted:
            check.detail += f"; in the first try: {causes.get(check.name, any_cause)}"
    if last.guest.error:
        last.guest.error += f"\nin the first try: {any_cause}"


def _inside(bench: Bench, results: Path) -> str | None:
    return str(results.relative_to(bench.run.dir)) if results.is_dir() else None


def _unjudged(checks: Sequence[Check]) -> list[Unjudged]:
    return [
        Unjudged(check=check.name, cause=check.detail)
        for check in checks
        if check.status == "error"
    ]


def _may_be_tried_again(checks: Sequence[Check]) -> bool:
    """Whether nothing but the apparatus kept this guest from a verdict."""
    return any(check.tainted for check in checks) and not any(
        check.status == "fail" for check in checks
    )


def is_complete(results: Path) -> bool:
    """Whether results can be judged, so that they are worth keeping."""
    try:
        return evidence.load(results).complete
    except KstallError:
        return False


def _summary(bench: Bench, checks: Sequence[Check]) -> str:
    text = runs.score(checks)
    guest = bench.entry.stage("guest")
    if guest.reused and any(check.status in ("fail", "error") for check in checks):
        text += (
            "; this guest ran earlier, the same command with `--again` boots it afresh"
        )
    return text


def many(
    bench: Bench, count: int, more: Callable[[Path], Check] | None = None
) -> Evidence | None:
    """Boot the guest ``count`` times, and judge each; no results are cached.

    ``more`` boots another guest in each run, in the directory that it is given, and
    returns the check of that; it is not called if the guest has no results.
    One failure is a failure, and a run that could not be judged leaves the verdict
    open.  The report has the worst outcome of each check, and the results of the worst
    run; those of other odd runs stay on disk as well.  A guest that cannot even be
    tried is the last one.
    """
    entry = bench.entry
    repeats = entry.repeats = Repeats(asked=count)
    outcomes: list[tuple[Repeat, list[Check]]] = []
    with bench.run.stage("guest", entry) as stage:
        for number in range(1, count + 1):
            repeat, checks, stopped = _repeat(bench, number, stage.log, more)
            outcomes.append((repeat, checks))
            repeats.runs.append(outcomes[-1][0])
            repeats.tally = _tally(outcomes)
            state = _WORDS[outcomes[-1][0].status]
            bench.run.ui.say(f"run {number} of {count}: {state}")
            if stopped:
                break
        if any(run.status == "fail" for run in repeats.runs):
            # Else the next run would reuse results that passed.
            forget(bench.context, bench.series, bench.guest)
        _mark_odd(outcomes)
        worst, judged = _worst(outcomes)
        states = Counter(run.status for run in repeats.runs)
        stage.summary = f"{count} runs: " + ", ".join(
            f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]
        )
        errors = [run for run in repeats.runs if run.error]
        if errors:
            stage.status = report.worst([run.status for run in errors])
            stage.error = f"run {errors[0].number}: {errors[0].error}"
        entry.evidence = worst.evidence if judged else None
        for run in repeats.runs:
            if not run.odd and run is not worst:
                cache.remove(_place(bench, run.number))
                run.evidence = None
    with bench.run.stage("judge", entry) as stage:
        entry.checks += _gravest(outcomes)
        rows = [row for row in repeats.tally if row.check != GUEST]
        steady = sum(row.passed == count for row in rows)
        stage.summary = f"{steady} of {len(rows)} checks pass in all {count} runs"
        if entry.evidence is None:
            return None
        saved = evidence.load(bench.run.dir / entry.evidence)
        entry.events = list(events(bench.series, saved))
    return saved


_WORDS: dict[Status, str] = {
    "pass": "proven",
    "fail": "failed",
    "error": "could not be judged",
}


def _place(bench: Bench, number: int) -> Path:
    return bench.dir / f"repeat-{number:03}"


def _repeat(
    bench: Bench, number: int, log: Path, more: Callable[[Path], Check] | None
) -> tuple[Repeat, list[Check], bool]:
    """A run, its checks, and whether no other can be tried after it."""
    out = _place(bench, number)
    began = time.monotonic()
    error: KstallError | OSError | None = None
    stopped = False
    checks: list[Check] = []
    status: Status = "pass"
    try:
        with figures():
            booted = run_guest(
                bench.context,
                bench.series,
                bench.guest,
                log,
                out=out,
                fresh=True,
                keep=lambda _: False,
            )
            checks = judge(bench.series, evidence.load(booted.results))
            if more is not None:
                checks.append(more(out / "without"))
        statuses = [check.status for check in checks]
        status = report.worst([*statuses, "pass"])
    except FailedCheck as failed:
        status, error = "fail", failed
    except (NotJudged, evidence.EvidenceError) as unjudged:
        status, error = "error", unjudged
    except (KstallError, OSError) as other:
        # The results of the runs before it must not be lost.
        status, error, stopped = "error", other, True
    return (
        Repeat(
            number=number,
            status=status,
            evidence=_inside(bench, out / "results"),
            seconds=round(time.monotonic() - began, 3),
            error=None if error is None else explain(error),
            failed=[check.name for check in checks if check.status == "fail"],
            unjudged=_unjudged(checks),
        ),
        checks,
        stopped,
    )


def _tally(outcomes: Sequence[tuple[Repeat, Sequence[Check]]]) -> list[Tally]:
    """Each check's row adds up to the number of runs: in a guest without results, no
    check could be judged."""
    names = dict.fromkeys(check.name for _, checks in outcomes for check in checks)
    rows = [Tally(check=GUEST), *(Tally(check=name) for name in names)]
    for repeat, checks in outcomes:
        states: dict[str, Status] = {check.name: check.status for check in checks}
        states[GUEST] = repeat.status if repeat.error else "pass"
        for row in rows:
            state = states.get(row.check, "error")
            row.passed += state == "pass"
            row.failed += state == "fail"
            row.unjudged += state == "error"
            row.skipped += state == "skip"
    return rows


def _mark_odd(outcomes: Sequence[tuple[Repeat, Sequence[Check]]]) -> None:
    """Mark runs that failed, were not judged, or are unlike most in a check."""
    states: dict[str, Counter[str]] = {}
    for _, checks in outcomes:
        for check in checks:
            states.setdefault(check.name, Counter())[check.status] += 1
    usual = {name: count.most_common(1)[0][0] for name, count in states.items()}
    for repeat, checks in outcomes:
        repeat.odd = repeat.status != "pass" or any(
            usual[check.name] != check.status for check in checks
        )


def _worst(outcomes: Sequence[tuple[Repeat, Sequence[Check]]]) -> tuple[Repeat, bool]:
    """The first of the worst runs, and whether it was judged."""
    judged = [repeat for repeat, checks in outcomes if checks]
    candidates = judged or [repeat for repeat, _ in outcomes]
    state = report.worst([repeat.status for repeat in candidates])
    return next(repeat for repeat in candidates if repeat.status == state), bool(judged)


def _gravest(outcomes: Sequence[tuple[Repeat, Sequence[Check]]]) -> Iterator[Check]:
    """The worst outcome of each check."""
    names = dict.fromkeys(check.name for _, checks in outcomes for check in checks)
    for name in names:
        versions = [
            check for _, checks in outcomes for check in checks if check.name == name
        ]
        state = report.worst([check.status for check in versions])
        yield next(check for check in versions if check.status == state)


def events(series: Series, saved: evidence.Evidence) -> Iterator[report.EventFormat]:
    """The declared events; offsets and sizes are those of the booted kernel."""
    for point in series.spec.tracepoint:
        layout = saved.layouts.get(point.event)
        event = report.EventFormat(
            name=point.event,
            kind=point.kind,
            joins=point.joins,
            sites=[
                f"{site.function}() in {site.file} ({'hot' if site.hot else 'cold'})"
                for site in point.site
            ],
            fields=[
                report.EventField(name=name, ctype=ctype)
                for name, ctype in point.fields.items()
            ],
        )
        if layout is not None:
            event.fields = [
                report.EventField(
                    name=field.name,
                    ctype=field.ctype,
                    offset=field.offset,
                    size=field.size,
                )
                for field in layout.fields
            ]
            event.holes = sum(hole.size for hole in layout.holes())
            event.print_fmt = layout.print_fmt
        yield event


def judge(series: Series, saved: evidence.Evidence) -> list[Check]:
    """All checks of a guest's results: the common ones, and those of the series."""
    return [*common.judge(series, saved), *evidence.judge(series, saved)]
