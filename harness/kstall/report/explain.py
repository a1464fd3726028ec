# SPDX-License-Identifier: GPL-2.0-or-later
"""Why something did not pass: what to read, and how to try again, as data.

Reads a report and its run directory, after the verdict.  What it finds is for people:
no verdict depends on it, it is short, and nothing in it is more than plain text.
"""

from __future__ import annotations

import itertools
import json
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import KstallError
from ..evidence import evidence, kunit, records
from ..verdict import Check, Comparison, Excerpt, Explanation
from .plain import shortened
from .report import Report, SeriesReport, Stage

#: What a person reads, and a page can hold, for each check.
LINES = 12
WIDTH = 200
_EXCERPTS = 3
_FILES = 3
_OF_A_FILE = 2**16
#: Kinds of checks that judge what a guest did.
_GUEST = ("harness", "positive", "negative", "invariant", "debug")
#: Statuses that want to be explained.
UNSETTLED = ("fail", "error", "does-not-apply")
# What of a workload a check of the harness reads.
_READ = {
    "readers_agree": ("trace.txt", "record.jsonl"),
    "text_is_the_record": ("trace.txt",),
    "listed_by_perf": ("perf-list.txt",),
    "decoded_by_perf": ("perf.txt", "trace.txt"),
    "decoded_by_trace_cmd": ("trace-cmd.txt", "trace.txt"),
    "nothing_lost": ("trace-stats.json", "bpftrace-record.stderr"),
}
_OF_A_PATCH = ("patches.log", "compile.log")
_OF_THE_COST = ("binaries.log", "instructions.log", "events.log", "build.log")
_OF_A_GUEST = ("console.log", "guest.log", "results/console.txt")


def fill(report: Report, directory: Path) -> None:
    """Explain each stage and check that did not pass; ``directory`` is the run's.

    Nothing that is missing or broken there raises: less is explained then.
    """
    for stage in report.stages:
        _stage(report, stage, None, directory)
    for series in report.series:
        for stage in series.stages:
            _stage(report, stage, series, directory)
        for check in series.checks:
            check.explanation = (
                _of_check(report, series, check, directory)
                if check.status in UNSETTLED
                else None
            )


def first_wrong(check: Check) -> Comparison | None:
    """The comparison that decides that a check does not pass."""
    return next((one for one in check.comparisons if not one.ok), None)


def _stage(
    report: Report, stage: Stage, series: SeriesReport | None, directory: Path
) -> None:
    stage.explanation = None
    if stage.status not in UNSETTLED:
        return
    made = Explanation(again=_again(report, series, fresh=False))
    candidates = [stage.log] if stage.log else []
    if series is not None and stage.name == "guest":
        place = _place_of_guest(series)
        running = [
            load
            for load in _loads(directory, place)
            if load.facts.get("status") == "running"
        ]
        beside = place.rpartition("/")[0]
        console = f"{beside}/console.log"
        told = _quietly(lambda: _on_console(directory, console))
        made.excerpts = _excerpts([*told, *_quietly(lambda: _ended(running))])
        candidates = [*(f"{beside}/{name}" for name in _OF_A_GUEST), *candidates]
    made.files = _real(directory, candidates)
    stage.explanation = made


@dataclass(frozen=True)
class _Load:
    """What a workload left: its facts, and its directory in that of the run."""

    name: str
    facts: dict[str, Any]
    run: Path
    place: str

    @property
    def failed(self) -> bool:
        """Whether the program did not end, or not well."""
        state = (self.facts.get("status"), self.facts.get("exit_status"))
        return state != ("exited", 0)

    def path(self, name: str) -> str:
        """Of one of its files, in the run directory."""
        return f"{self.place}/{self.name}/{name}"

    def tail(self, name: str) -> list[str]:
        """The last lines of one of its files; none if it is not there."""
        text = self.text(name, end=True)
        return [line for line in text.splitlines() if line.strip()][-LINES:]

    def text(self, name: str, *, end: bool = False) -> str:
        """One of its files, or only its end."""
        return _text(self.run / self.path(name), end=end)


def _place_of_guest(series: SeriesReport) -> str:
    """The results of the guest that did not come to its end, in the run directory."""
    broken = (
        [one.evidence for one in series.repeats.runs if one.error]
        if (series.repeats is not None)
        else [one.evidence for one in series.tries[-1:]]
    )
    return next(filter(None, broken), None) or f"{series.name}/results"


def _place_of(series: SeriesReport, check: Check) -> str:
    """The results that a check was judged by: of several guests the first of which it
    came out as it is in the report."""
    for ran in series.repeats.runs if series.repeats is not None else ():
        named = {
            "fail": ran.failed,
            "error": [one.check for one in ran.unjudged],
        }.get(check.status, [])
        if check.name in named and ran.evidence is not None:
            return ran.evidence
    return series.evidence or f"{series.name}/results"


def _loads(directory: Path, place: str) -> list[_Load]:
    """The workloads that a guest told of, in its results at ``place``."""
    try:
        text = (directory / place / "agent.json").read_text(encoding="utf-8")
        entries = json.loads(text)["workloads"]
        loads = [_Load(str(one["name"]), one, directory, place) for one in entries]
        # The names are the guest's word: none shall lead out of the results.
        return [one for one in loads if Path(one.name).name == one.name]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _of_check(
    report: Report, series: SeriesReport, check: Check, directory: Path
) -> Explanation:
    made = Explanation(again=_again(report, series, fresh=check.kind in _GUEST))
    place = _place_of(series, check)
    loads = _concerned(_loads(directory, place), check)
    found: list[Excerpt] = []
    if check.kind in _GUEST and check.kind != "debug":
        found += _quietly(lambda: _differing(place, check, directory))
        cases = _quietly(lambda: _cases(loads))
        shown = {one.file for one in cases}
        ended = _quietly(lambda: _ended(one for one in loads if one.failed))
        found += [*cases, *(one for one in ended if one.file not in shown)]
    made.excerpts = _excerpts(found)
    candidates = [one.file for one in made.excerpts if one.file]
    made.files = _real(
        directory, [*candidates, *_candidates(series, check, place, loads)]
    )
    return made


def _quietly(look: Callable[[], Iterable[Excerpt]]) -> list[Excerpt]:
    """What a look at results finds, which may be cut off anywhere."""
    try:
        return list(look())
    except (KstallError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    except records.Malformed:
        return []


def _concerned(loads: Sequence[_Load], check: Check) -> list[_Load]:
    """The workloads that a check is about, those first that its comparisons name."""
    wrong = [one for one in check.comparisons if not one.ok]
    named = {one.workload or one.label.partition(":")[0] for one in wrong}
    about = [one for one in loads if one.name in named]
    if about:
        return about
    words = check.detail.replace(":", " ").replace(";", " ").split()
    if check.status == "error":
        about = [one for one in loads if f"workload {one.name}" in check.detail]
        about = about or [one for one in loads if one.name in words]
    return about or [one for one in loads if one.name in check.workloads]


def _cases(loads: Iterable[_Load]) -> Iterator[Excerpt]:
    """The failed cases of KUnit suites that workloads ran."""
    for load in loads:
        # A program that runs suites may print what debugfs has; the log has it too.
        for name in ("stdout", "kmsg.txt"):
            failed = kunit.failures(load.text(name))
            for one in failed:
                title = f"KUnit: {one.suite}: {one.case} failed"
                yield _excerpt(title, load.path(name), one.lines)
            if failed:
                break


def _on_console(directory: Path, file: str) -> Iterator[Excerpt]:
    """The failed cases that a guest told of before it ended, the last of them."""
    text = _text(directory / file, end=True)
    for one in kunit.failures(text)[-1:]:
        yield _excerpt(f"KUnit: {one.suite}: {one.case} failed", file, one.lines)


def _text(path: Path, *, end: bool = False) -> str:
    """A file that a guest wrote, or only its end; nothing if it is not there."""
    try:
        # A guest may have put something there that leads elsewhere, or never ends.
        if not stat.S_ISREG(path.lstat().st_mode):
            return ""
        with path.open("rb") as file:
            if end:
                file.seek(max(0, file.seek(0, 2) - _OF_A_FILE))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _ended(loads: Iterable[_Load]) -> Iterator[Excerpt]:
    """The last that workloads said."""
    for load in loads:
        status = load.facts.get("exit_status")
        how = f"exit status {status}" if status is not None else load.facts["status"]
        for name in ("stderr", "stdout"):
            if lines := load.tail(name):
                title = f"workload {load.name}, {how}: the end of its {name}"
                yield _excerpt(title, load.path(name), lines, end=True)


def _differing(place: str, check: Check, directory: Path) -> Iterator[Excerpt]:
    """The first record that one reader has and the other has not, and what differs."""
    wrong = first_wrong(check)
    if check.name != "readers_agree" or wrong is None:
        return
    load, _, rest = wrong.label.partition(": ")
    name = rest.partition(":")[0]
    ran = evidence.load(directory / place).workload(load)
    held = ran.agreement(name)
    keys = sorted(held.common - held.named)
    lines, first = [], []
    for who, events, only in (
        ("ftrace", ran.events(name), held.traced - held.recorded),
        ("bpftrace", ran.record(name, partly=True), held.recorded - held.traced),
    ):
        for event in events:
            if str([event.fields[key] for key in keys]) in only:
                fields = " ".join(f"{k}={v}" for k, v in event.fields.items())
                at = f"{event.ts_ns / 1e9:.6f} s, CPU {event.cpu}, pid {event.pid}"
                lines.append(f"only {who} has, at {at}: {fields}")
                first.append(event.fields)
                break
    if len(first) == 2:
        unlike = [
            f"{key}: {first[0][key]} and {first[1][key]}"
            for key in keys
            if first[0][key] != first[1][key]
        ]
        lines.append(f"they differ in {', '.join(unlike)}")
    if lines:
        title = f"the first record of {name} that differs"
        yield _excerpt(title, f"{place}/{load}/record.jsonl", lines)


def _candidates(
    series: SeriesReport, check: Check, place: str, loads: Sequence[_Load]
) -> Iterator[str]:
    """Files that may show more of a check, those first that show most."""
    if check.kind == "patch":
        yield from (f"{series.name}/{name}" for name in _OF_A_PATCH)
    elif check.kind in ("overhead", "abi"):
        yield from (f"{series.name}/{name}" for name in _OF_THE_COST)
    elif check.kind == "debug":
        for flavour in ("debug", "kcsan"):
            yield f"{series.name}/{flavour}-patched/console.log"
    for load in loads:
        names = _READ.get(check.name, ("trace.txt", "record.jsonl", "stdout"))
        if load.failed:
            names = ("stderr", "stdout", "kmsg.txt", *names)
        yield from (load.path(name) for name in names)
    if check.kind in _GUEST and check.kind != "debug":
        yield f"{place}/agent.json"
        yield f"{place}/console.txt"


def _real(directory: Path, candidates: Iterable[str]) -> list[str]:
    """Those of ``candidates`` that are there and not empty, the first few."""
    found = []
    for path in dict.fromkeys(candidates):
        try:
            facts = (directory / path).lstat()
            if facts.st_size and stat.S_ISREG(facts.st_mode):
                found.append(path)
        except (OSError, ValueError):
            continue
    return found[:_FILES]


def _excerpts(found: Iterable[Excerpt]) -> list[Excerpt]:
    every = list(found)
    return every[:_EXCERPTS]


def _excerpt(
    title: str, file: str, lines: Iterable[str], *, end: bool = False
) -> Excerpt:
    """Cut to what people read: the beginning, or the ``end``."""
    every = list(lines)
    kept = every[-LINES:] if end else every[:LINES]
    more = len(every) - len(kept)
    shown = [shortened(line, WIDTH) for line in kept]
    if more and not end:
        shown.append(f"(and {more} more lines)")
    return Excerpt(title=shortened(title, WIDTH), file=file, lines=shown)


def _again(report: Report, series: SeriesReport | None, *, fresh: bool) -> list[str]:
    """Commands that try again, with the tree and the level of this run.

    ``fresh`` asks for guests that run anew: their evidence is kept otherwise.
    """
    words = list(report.command)
    if words[:2] != ["kstall", "validate"]:
        return [shlex.join(words)]
    options = _options(words[2:], {one.name for one in report.series})
    names = [series.name] if series else [one.name for one in report.series]
    anew = ["--again"] if fresh else []
    found = [shlex.join(["kstall", "validate", *anew, *options, *names])]
    if not fresh:
        make = ["make", "validate", f"SERIES={' '.join(names)}"]
        given = dict(itertools.pairwise(options))
        if "--kernel" in given:
            make.append(f"KERNEL={given['--kernel']}")
        if "--level" in given:
            make.append(f"LEVEL={given['--level']}")
        found.append(shlex.join(make))
    return found


def _options(words: Sequence[str], series: set[str]) -> list[str]:
    """What a command says but for the series, and how often it is to be tried."""
    kept: list[str] = []
    left = iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if word in ("--again", "--"):
            continue
        if name == "--repeat":
            if not value:
                next(left, None)
        elif name.startswith("--"):
            kept += [name, value or next(left, "")]
        elif word not in series:
            kept.append(word)
    return kept


def lines(found: Explanation | None, directory: Path | None = None) -> Iterator[str]:
    """``found`` as text; paths are whole with the run's ``directory``, or below it."""
    if found is None:
        return
    for one in found.excerpts:
        yield f"{one.title} ({one.file})" if one.file else one.title
        yield from (f"    {line}" for line in one.lines)
    for path in found.files:
        yield f"more:  less {shlex.quote(str(directory / path if directory else path))}"
    for command in found.again:
        yield f"again: {command}"


@dataclass(frozen=True)
class Cause:
    """Why some were not judged: names of checks and of stages, with their series."""

    reason: str
    what: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    @property
    def count(self) -> int:
        """How many results of stages and checks that are."""
        return sum(len(names) * len(series) for names, series in self.what)


_Found = dict[str, dict[str, list[str]]]


def skipped(report: Report) -> tuple[Cause, ...]:
    """All that was skipped, each reason once, in the order in which it came up."""
    found: _Found = {}
    for stage in report.stages:
        if stage.status == "skip":
            _put(found, stage.summary, f"stage {stage.name}", "")
    for series in report.series:
        for stage in series.stages:
            if stage.status == "skip":
                _put(found, stage.summary, f"stage {stage.name}", series.name)
        for check in series.checks:
            if check.status == "skip":
                _put(found, check.detail, check.name, series.name)
    return _causes(found)


def unjudged(report: Report) -> tuple[Cause, ...]:
    """All checks that could not be judged, each reason once."""
    found: _Found = {}
    for series in report.series:
        for check in series.checks:
            if check.status == "error":
                _put(found, reason(check), check.name, series.name)
    return _causes(found)


def reason(check: Check) -> str:
    """Why a check could not be judged, in a line: of a trace that is its last."""
    detail = check.detail.strip().splitlines() or [""]
    line = detail[-1] if detail[0].startswith("Traceback ") else detail[0]
    return line.removeprefix("could not judge: ")


def _put(found: _Found, why: str, what: str, series: str) -> None:
    why = " ".join(why.split()) or "no reason given"
    found.setdefault(why, {}).setdefault(what, []).append(series)


def _causes(found: _Found) -> tuple[Cause, ...]:
    """Names that the same series miss stand together, with these."""
    causes = []
    for why, what in found.items():
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, series in what.items():
            groups.setdefault(tuple(series), []).append(name)
        together = ((tuple(names), series) for series, names in groups.items())
        causes.append(Cause(why, tuple(together)))
    return tuple(causes)
