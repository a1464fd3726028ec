# SPDX-License-Identifier: GPL-2.0-or-later
"""Boots of a series' guest and their verdicts: once, once more, or many times.

What could not be judged because of the apparatus is tried once more, and the report
shows both tries.  What failed is never tried again: who asks until the answer is yes
has asked nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import FailedCheck, KstallError, NotJudged, Status, cache, explain, figures
from ..evidence import Evidence, common, evidence
from ..guest import Guest, forget, run_guest
from ..report import Repeat, Repeats, SeriesReport, Tally, Try, Unjudged, report
from ..series import Context, Series
from ..verdict import Check
from . import run as runs

_TRIES = 2
#: What the tally calls the guest itself.
GUEST = "guest"


@dataclass(frozen=True)
class Bench:
    """A series' guest, and where its verdict goes; ``again``: use no old results."""

    context: Context
    series: Series
    guest: Guest
    run: runs.Run
    entry: SeriesReport
    again: bool = False

    @property
    def dir(self) -> Path:
        """The series' part of what the context has for it in the run directory."""
        return self.context.out / self.series.name


def once(bench: Bench) -> Evidence:
    """Boot the guest, or take what an earlier run kept of it, and judge the results.

    Raises `runs.StageStopped` if there are none, twice.
    """
    for number in range(1, _TRIES + 1):
        last = number == _TRIES
        saved, checks = _try(bench, number, last=last)
        if saved is not None and (last or not _may_be_tried_again(checks)):
            if number > 1:
                _tell_of_the_first(bench, checks)
            bench.entry.checks += checks
            return saved
        # What stands in the report is the last try; this one is among its tries.
        bench.entry.stages = [
            one for one in bench.entry.stages if one.name not in ("guest", "judge")
        ]
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
                keep=is_whole,
            )
            results, stage.reused = booted.results, booted.reused
            stage.summary = booted.summary
            entry.evidence = str(results.relative_to(run.dir))
    except runs.StageStopped as stopped:
        _note(bench, number, out, [])
        if number > 1:
            _tell_of_the_first(bench, [])
        if last or not isinstance(stopped.__cause__, NotJudged):
            raise
        run.ui.say(f"could not judge ({stopped.__cause__.what.splitlines()[0]})")
        run.ui.say("booting this guest once more")
        return None, []
    with run.stage("judge", entry) as stage:
        saved = evidence.load(results)
        entry.events = list(events(bench.series, saved))
        checks = judge(bench.series, saved)
        stage.summary = _summary(bench, checks)
    _note(bench, number, out, checks)
    if not last and _may_be_tried_again(checks):
        cause = next(one.detail for one in checks if one.tainted)
        run.ui.say(f"{cause.splitlines()[0]}: booting this guest once more")
    return saved, checks


def _note(bench: Bench, number: int, out: Path, checks: Sequence[Check]) -> None:
    """Put a try down, and save it with the next stage."""
    results = out / "results"
    (stage,) = [one for one in bench.entry.stages if one.name == "guest"]
    bench.entry.tries.append(
        Try(
            number=number,
            evidence=_inside(bench, results),
            guest=stage,
            unjudged=_unjudged(checks),
        )
    )


def _tell_of_the_first(bench: Bench, checks: Sequence[Check]) -> None:
    """Have what could not be judged twice say what was seen in both tries."""
    first = bench.entry.tries[0]
    causes = {one.check: one.cause for one in first.unjudged}
    any_cause = first.guest.error or next(iter(causes.values()), "")
    for one in checks:
        if one.tainted:
            one.detail += f"; in the first try: {causes.get(one.name, any_cause)}"
    stage = next(one for one in bench.entry.stages if one.name == "guest")
    if stage.error:
        stage.error += f"\nin the first try: {any_cause}"


def _inside(bench: Bench, results: Path) -> str | None:
    return str(results.relative_to(bench.run.dir)) if results.is_dir() else None


def _unjudged(checks: Sequence[Check]) -> list[Unjudged]:
    return [
        Unjudged(check=one.name, cause=one.detail)
        for one in checks
        if one.status == "error"
    ]


def _may_be_tried_again(checks: Sequence[Check]) -> bool:
    """Whether the apparatus is all that stands between this guest and a verdict."""
    return any(one.tainted for one in checks) and not any(
        one.status == "fail" for one in checks
    )


def is_whole(results: Path) -> bool:
    """Whether results can be judged, so that they are worth keeping."""
    try:
        return evidence.load(results).whole
    except KstallError:
        return False


def _summary(bench: Bench, checks: Sequence[Check]) -> str:
    good = sum(check.status == "pass" for check in checks)
    text = f"{good} of {len(checks)} checks pass"
    (guest,) = [one for one in bench.entry.stages if one.name == "guest"]
    if guest.reused and any(one.status in ("fail", "error") for one in checks):
        text += (
            "; this guest ran earlier, `kstall validate --again "
            f"{bench.series.name}` boots it afresh"
        )
    return text


def many(bench: Bench, count: int) -> Evidence | None:
    """Boot the guest ``count`` times, and judge each; nothing is kept or used again.

    One failure is a failure, and one that could not be judged leaves that open.  In the
    report each check is there as it came out worst, and the results are those of the
    run in which it did; those of the other odd runs stay as well.  A guest that cannot
    even be tried is the last.
    """
    entry = bench.entry
    repeats = entry.repeats = Repeats(asked=count)
    found: list[tuple[Repeat, list[Check]]] = []
    with bench.run.stage("guest", entry) as stage:
        for number in range(1, count + 1):
            repeat, checks, stopped = _repeat(bench, number, stage.log)
            found.append((repeat, checks))
            repeats.runs.append(found[-1][0])
            repeats.tally = _tally(found)
            state = _WORDS[found[-1][0].status]
            bench.run.ui.say(f"run {number} of {count}: {state}")
            if stopped:
                break
        if any(one.status == "fail" for one in repeats.runs):
            # Or a run that takes what was kept would say that all is well.
            forget(bench.context, bench.series, bench.guest)
        _mark_odd(found)
        worst, judged = _worst(found)
        states = Counter(one.status for one in repeats.runs)
        stage.summary = f"{count} runs: " + ", ".join(
            f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]
        )
        errors = [one for one in repeats.runs if one.error]
        if errors:
            stage.status = report.worst([one.status for one in errors])
            stage.error = f"run {errors[0].number}: {errors[0].error}"
        entry.evidence = worst.evidence if judged else None
        for one in repeats.runs:
            if not one.odd and one is not worst:
                cache.remove(_place(bench, one.number))
                one.evidence = None
    with bench.run.stage("judge", entry) as stage:
        entry.checks += _gravest(found)
        rows = [one for one in repeats.tally if one.check != GUEST]
        steady = sum(one.passed == count for one in rows)
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


def _repeat(bench: Bench, number: int, log: Path) -> tuple[Repeat, list[Check], bool]:
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
        found = [one.status for one in checks]
        status = report.worst([*found, "pass"])
    except FailedCheck as failed:
        status, error = "fail", failed
    except (NotJudged, evidence.EvidenceError) as unjudged:
        status, error = "error", unjudged
    except (KstallError, OSError) as other:
        # What the runs before it have said must not be lost with it.
        status, error, stopped = "error", other, True
    return (
        Repeat(
            number=number,
            status=status,
            evidence=_inside(bench, out / "results"),
            seconds=round(time.monotonic() - began, 3),
            error=None if error is None else explain(error),
            failed=[one.name for one in checks if one.status == "fail"],
            unjudged=_unjudged(checks),
        ),
        checks,
        stopped,
    )


def _tally(found: Sequence[tuple[Repeat, Sequence[Check]]]) -> list[Tally]:
    """Each check's row adds up to the number of runs: what a guest without results
    would have shown could not be judged."""
    names = dict.fromkeys(one.name for _, checks in found for one in checks)
    rows = [Tally(check=GUEST), *(Tally(check=name) for name in names)]
    for ran, checks in found:
        states: dict[str, Status] = {one.name: one.status for one in checks}
        states[GUEST] = ran.status if ran.error else "pass"
        for row in rows:
            state = states.get(row.check, "error")
            row.passed += state == "pass"
            row.failed += state == "fail"
            row.unjudged += state == "error"
            row.skipped += state == "skip"
    return rows


def _mark_odd(found: Sequence[tuple[Repeat, Sequence[Check]]]) -> None:
    """Mark runs that failed, were not judged, or are unlike most in a check."""
    states: dict[str, Counter[str]] = {}
    for _, checks in found:
        for one in checks:
            states.setdefault(one.name, Counter())[one.status] += 1
    usual = {name: count.most_common(1)[0][0] for name, count in states.items()}
    for ran, checks in found:
        ran.odd = ran.status != "pass" or any(
            usual[one.name] != one.status for one in checks
        )


def _worst(found: Sequence[tuple[Repeat, Sequence[Check]]]) -> tuple[Repeat, bool]:
    """The run to look at, the first of the gravest, and whether it has a verdict."""
    judged = [ran for ran, checks in found if checks]
    every = judged or [ran for ran, _ in found]
    state = report.worst([ran.status for ran in every])
    return next(ran for ran in every if ran.status == state), bool(judged)


def _gravest(found: Sequence[tuple[Repeat, Sequence[Check]]]) -> Iterator[Check]:
    """Each check as it came out worst."""
    names = dict.fromkeys(one.name for _, checks in found for one in checks)
    for name in names:
        every = [one for _, checks in found for one in checks if one.name == name]
        state = report.worst([one.status for one in every])
        yield next(one for one in every if one.status == state)


def events(series: Series, saved: evidence.Evidence) -> Iterator[report.Event]:
    """The declared events; offsets and sizes are those of the booted kernel."""
    for point in series.spec.tracepoint:
        layout = saved.layouts.get(point.event)
        made = report.Event(
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
            made.fields = [
                report.EventField(
                    name=one.name, ctype=one.ctype, offset=one.offset, size=one.size
                )
                for one in layout.fields
            ]
            made.holes = sum(hole.size for hole in layout.holes())
            made.print_fmt = layout.print_fmt
        yield made


def judge(series: Series, saved: evidence.Evidence) -> list[Check]:
    """All checks of a guest's results: the common ones, and those of the series."""
    return [*common.judge(series, saved), *evidence.judge(series, saved)]
