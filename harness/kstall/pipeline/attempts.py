# SPDX-License-Identifier: GPL-2.0-or-later
"""What guests that were booted many times came to, as `kstall stability` counts it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..base import KstallError, cache
from ..report import report
from ..series import suites

FILE = "stability.json"
#: Of so many guests one may have no verdict.
JUDGED = 50
SeriesVerdict = Literal["proven", "failed", "could-not-judge"]


@dataclass(frozen=True)
class Attempt:
    """One guest: ``beside`` others of its kind ran at the same time.

    ``seconds`` are those of the guest; ``average`` is the host's load average over the
    minute before its end; ``cause`` is the error that stopped it, or its checks that
    did not pass; ``kept`` is the directory of its results.  If the series shows bugs on
    the base kernel, one of ``checks`` is that of a guest of that, booted after it; it
    is not booted if there is no evidence of the first one.  ``tested`` changes with the
    kernels, the guests and the checks.
    """

    series: str
    load: int
    number: int
    beside: int
    verdict: SeriesVerdict
    seconds: float
    average: float
    checks: dict[str, str] = field(default_factory=dict)
    cause: str | None = None
    kept: str | None = None
    tested: str = ""


@dataclass(frozen=True)
class Repeated:
    """A KUnit suite, run many times in a guest with ``cpus`` processors.

    ``cause`` is why there is no ``count``, and ``failed`` whether the kernel is to
    blame for that; ``tested`` is as in `Attempt`.
    """

    series: str
    suite: str
    load: int
    cpus: int
    seconds: float
    count: suites.Count | None
    cause: str | None = None
    failed: bool = False
    tested: str = ""

    @property
    def runs(self) -> int:
        """How often it was run, or should have been; 0 without a count."""
        count = self.count
        return count.passed + count.failed + count.not_run if count is not None else 0


@dataclass
class StabilityOutcome:
    """The results so far, and the run directory, if there is one yet.

    ``earlier`` are those of an earlier run that were not asked for until now.
    """

    place: Path | None = None
    #: The series whose kernels could be built.
    series: set[str] = field(default_factory=set)
    attempts: list[Attempt] = field(default_factory=list)
    suites: list[Repeated] = field(default_factory=list)
    earlier: StabilityOutcome | None = None


@dataclass(frozen=True)
class LoadTally:
    """All guests of a series under one load.

    ``moved`` are the checks that did not pass each time, with how often each status.
    """

    series: str
    load: int
    runs: int
    verdicts: dict[str, int]
    moved: dict[str, dict[str, int]]
    causes: tuple[str, ...]


def tallies(attempts: Sequence[Attempt]) -> list[LoadTally]:
    """The attempts added up, by series and load, in the order in which they came."""
    rows = []
    groups: dict[tuple[str, int], list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault((attempt.series, attempt.load), []).append(attempt)
    for (series, load), group in groups.items():
        statuses: dict[str, Counter[str]] = {}
        for attempt in group:
            for name, status in attempt.checks.items():
                statuses.setdefault(name, Counter())[status] += 1
        rows.append(
            LoadTally(
                series,
                load,
                len(group),
                dict(Counter(attempt.verdict for attempt in group)),
                {
                    name: dict(counts)
                    for name, counts in statuses.items()
                    if set(counts) not in ({"pass"}, {"skip"})
                },
                tuple(
                    f"run {attempt.number}: {attempt.cause}"
                    for attempt in group
                    if attempt.verdict != "proven"
                ),
            )
        )
    return rows


def exit_code(outcome: StabilityOutcome) -> int:
    """1 if any failed, 2 if too many had no verdict or nothing was measured, else 0.

    Of all guests one in `JUDGED` may have none, rounded down, and of those of a series
    one in as many, rounded up: the others must not make up for one bad series.  A KUnit
    suite has to pass each time.
    """
    verdicts = Counter(attempt.verdict for attempt in outcome.attempts)
    counts = [repeated.count for repeated in outcome.suites]
    if (
        verdicts["failed"]
        or any(count and count.failed for count in counts)
        or any(repeated.failed for repeated in outcome.suites)
    ):
        return report.EXIT["failed"]
    if (
        not (outcome.attempts or outcome.suites)
        or verdicts["could-not-judge"] > len(outcome.attempts) // JUDGED
        or _is_one_series_unjudged(outcome.attempts)
        or not all(count and not count.not_run for count in counts)
    ):
        return report.EXIT["could-not-run"]
    return report.EXIT["proven"]


def _is_one_series_unjudged(attempts: Sequence[Attempt]) -> bool:
    """Whether a series has more guests without a verdict than one in `JUDGED`."""
    runs = Counter(attempt.series for attempt in attempts)
    unjudged = Counter(
        attempt.series for attempt in attempts if attempt.verdict == "could-not-judge"
    )
    return any(
        count > math.ceil(runs[series] / JUDGED) for series, count in unjudged.items()
    )


def write(outcome: StabilityOutcome) -> None:
    """Write the results so far to `FILE` in the run directory."""
    assert outcome.place is not None
    cache.write_json(
        outcome.place / FILE,
        {
            "schema": 1,
            "processors": len(os.sched_getaffinity(0)),
            "tallies": [
                dataclasses.asdict(tally) for tally in tallies(outcome.attempts)
            ],
            **_as_json(outcome),
            "earlier": _as_json(outcome.earlier or StabilityOutcome()),
        },
    )


def _as_json(outcome: StabilityOutcome) -> dict[str, list[dict[str, Any]]]:
    return {
        "attempts": [dataclasses.asdict(attempt) for attempt in outcome.attempts],
        "suites": [dataclasses.asdict(repeated) for repeated in outcome.suites],
    }


def newest(runs: Path) -> StabilityOutcome:
    """What the newest of the directories of ``runs`` counts; nothing if there is none.

    Raises `KstallError` if it cannot be read.
    """
    files = sorted(
        path for path in runs.glob(f"*/{FILE}") if not path.parent.is_symlink()
    )
    if not files:
        return StabilityOutcome()
    try:
        content = json.loads(files[-1].read_text(encoding="utf-8"))
        # Older files have none, and what they count is of no known guest.
        earlier = content.get("earlier", {"attempts": [], "suites": []})
        attempts = [*content["attempts"], *earlier["attempts"]]
        repeated = [*content["suites"], *earlier["suites"]]
        known = StabilityOutcome(
            attempts=[Attempt(**raw) for raw in attempts],
            suites=[
                Repeated(**{**raw, "count": _count(raw["count"])}) for raw in repeated
            ],
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise KstallError(
            f"{files[-1]}: no results to go on with: {error!r}",
            next="remove it, or leave --resume out",
        ) from error
    # The next run's directory lies beside that one.
    beside = Path("..", files[-1].parent.name)
    known.attempts = [
        dataclasses.replace(
            attempt, kept=attempt.kept and os.path.normpath(beside / attempt.kept)
        )
        for attempt in known.attempts
    ]
    return known


def _count(raw: Mapping[str, Any] | None) -> suites.Count | None:
    if raw is None:
        return None
    return suites.Count(**{**raw, "complaints": tuple(raw["complaints"])})


def describe(attempt: Attempt) -> str:
    """An attempt in a line, and its cause in those after it."""
    beside = f", {attempt.beside} beside it" if attempt.beside else ""
    text = (
        f"run {attempt.number}{beside}: {attempt.verdict} in {attempt.seconds:.0f} s, "
        f"load average {attempt.average:.1f}"
    )
    return text if attempt.verdict == "proven" else f"{text}: {attempt.cause}"


def describe_suite(repeated: Repeated) -> str:
    """A suite's counts in a line, and its complaints in those after it."""
    title = f"{repeated.suite}, load {repeated.load}, {repeated.cpus} processors"
    if repeated.count is None:
        verdict = "failed" if repeated.failed else "could-not-judge"
        return f"{title}: {verdict}: {repeated.cause}"
    counts = (
        f"{repeated.count.passed} passed, {repeated.count.failed} failed, "
        f"{repeated.count.not_run} without an answer, in {repeated.seconds:.0f} s"
    )
    return "\n  ".join((f"{title}: {counts}", *repeated.count.complaints))


def summary(outcome: StabilityOutcome) -> list[str]:
    """For each series and load: runs, verdicts, and the checks that moved."""
    lines = [
        f"{repeated.series}: {describe_suite(repeated)}" for repeated in outcome.suites
    ]
    for tally in tallies(outcome.attempts):
        counts = ", ".join(f"{count} {name}" for name, count in tally.verdicts.items())
        lines.append(f"{tally.series}, load {tally.load}: {tally.runs} runs: {counts}")
        for name, statuses in tally.moved.items():
            text = ", ".join(f"{count} {status}" for status, count in statuses.items())
            lines.append(f"  {name}: {text}")
        lines += [f"  {cause}" for cause in tally.causes]
    return lines


def verdict_of(statuses: Sequence[str]) -> SeriesVerdict:
    """The verdict of a run: a failed check counts more than one without an answer."""
    if "fail" in statuses:
        return "failed"
    return "could-not-judge" if "error" in statuses or not statuses else "proven"
