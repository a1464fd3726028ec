# SPDX-License-Identifier: GPL-2.0-or-later
"""Why something did not pass: what to read, and how to try again, as data.

Reads a report and its run directory, after the verdict.  The result is for people: no
verdict depends on it, it is short, and it is plain text.
"""

from __future__ import annotations

import json
import shlex
import stat
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..base import KstallError
from ..evidence import evidence, kunit
from ..guest import Flavour
from ..verdict import Check, Comparison, Excerpt, Explanation
from . import differing
from .plain import shortened
from .report import Report, SeriesReport, Stage

#: Lines and columns of an excerpt that people read and a page can hold.
LINES = 12
WIDTH = 200
_EXCERPTS = 3
_FILES = 3
# Workloads whose output is shown though their program succeeded.
_LOADS = 2
# The option that stands before the verb.
_PROJECT = "--project"
# Options of `kstall validate` and the variables by which `make validate` takes them.
_OF_MAKE = {"--kernel": "KERNEL", "--arch": "ARCH", "--level": "LEVEL"}
_OF_A_FILE = 2**16
#: Kinds of checks that judge what a guest did.
_GUEST = ("harness", "positive", "negative", "invariant", "debug")
#: Statuses that are explained.
UNSETTLED = ("fail", "error", "does-not-apply")
_FLAVOURS: tuple[str, ...] = get_args(Flavour)
# The files of a workload that a check of the harness reads, and its program did not
# write.
_READ = {
    "readers_agree": ("trace.txt", "record.jsonl"),
    "text_is_the_record": ("trace.txt",),
    "listed_by_perf": ("perf-list.txt",),
    "decoded_by_perf": ("perf.txt", "trace.txt"),
    "decoded_by_trace_cmd": ("trace-cmd.txt", "trace.txt"),
    "nothing_lost": ("trace-stats.json", "bpftrace-record.stderr"),
}
_OF_A_PATCH = ("patches.log", "compile.log")
_OF_THE_COST: tuple[str, ...] = ("binaries.log", "events.log", "build.log")
_OF_COUNTS: tuple[str, ...] = ("instructions.log",)
#: The checks of instructions that ran; others of costs read binaries.
_COUNTED = ("off_costs_what_is_predicted", "measured_operations_cross_sites")
_OF_A_GUEST = ("console.log", "guest.log", "results/console.txt")


def fill(report: Report, directory: Path) -> None:
    """Explain each stage and check that did not pass; ``directory`` is the run's.

    Missing or broken files do not raise; they only leave less to show.
    """
    for owner, stage in report.all_stages():
        _stage(report, stage, owner, directory)
    for series in report.series:
        for check in series.checks:
            check.explanation = (
                _of_check(report, series, check, directory)
                if check.status in UNSETTLED
                else None
            )


def first_wrong(check: Check) -> Comparison | None:
    """The comparison that decides that a check does not pass."""
    return next(
        (comparison for comparison in check.comparisons if not comparison.ok), None
    )


def _stage(
    report: Report, stage: Stage, series: SeriesReport | None, directory: Path
) -> None:
    stage.explanation = None
    if stage.status not in UNSETTLED:
        return
    explanation = Explanation(again=_again(report, series, fresh=False))
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
        cases = _quietly(lambda: _on_console(directory, console))
        explanation.excerpts = _excerpts([*cases, *_quietly(lambda: _ended(running))])
        candidates = [*(f"{beside}/{name}" for name in _OF_A_GUEST), *candidates]
    explanation.files = _real(directory, candidates)
    stage.explanation = explanation


@dataclass(frozen=True)
class _Load:
    """The results of a workload: its facts, and its directory in that of the run."""

    name: str
    facts: dict[str, Any]
    run: Path
    place: str

    @property
    def failed(self) -> bool:
        """Whether the program did not exit with status 0."""
        state = (self.facts.get("status"), self.facts.get("exit_status"))
        return state != ("exited", 0)

    def path(self, name: str) -> str:
        """The path of one of its files in the run directory."""
        return f"{self.place}/{self.name}/{name}"

    def tail(self, name: str) -> list[str]:
        """The last lines of one of its files; none if it is missing."""
        text = self.text(name, end=True)
        return [line for line in text.splitlines() if line.strip()][-LINES:]

    def text(self, name: str, *, end: bool = False) -> str:
        """One of its files, or only its end."""
        return _text(self.run / self.path(name), end=end)


def _place_of_guest(series: SeriesReport) -> str:
    """The path of the results of the guest that did not finish."""
    broken = (
        [repeat.evidence for repeat in series.repeats.runs if repeat.error]
        if (series.repeats is not None)
        else [attempt.evidence for attempt in series.tries[-1:]]
    )
    return next(filter(None, broken), None) or f"{series.name}/results"


def _place_of(series: SeriesReport, check: Check) -> str:
    """The path of the results that a check was judged by: of several guests, those of
    the first with the status in the report."""
    for repeat in series.repeats.runs if series.repeats is not None else ():
        names = {
            "fail": repeat.failed,
            "error": [miss.check for miss in repeat.unjudged],
        }.get(check.status, [])
        if check.name in names and repeat.evidence is not None:
            return repeat.evidence
    return series.evidence or f"{series.name}/results"


def _loads(directory: Path, place: str) -> list[_Load]:
    """The workloads in a guest's results at ``place``."""
    try:
        text = (directory / place / "agent.json").read_text(encoding="utf-8")
        entries = json.loads(text)["workloads"]
        loads = [
            _Load(str(entry["name"]), entry, directory, place) for entry in entries
        ]
        # The names come from the guest: none may lead out of the results.
        return [load for load in loads if Path(load.name).name == load.name]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _of_check(
    report: Report, series: SeriesReport, check: Check, directory: Path
) -> Explanation:
    explanation = Explanation(again=_again(report, series, fresh=check.kind in _GUEST))
    place = _place_of(series, check)
    loads = _concerned(_loads(directory, place), check)
    excerpts: list[Excerpt] = []
    if check.kind == "debug":
        excerpts += _quietly(lambda: _of_debug_kernels(series, check, directory))
    elif check.kind in _GUEST:
        excerpts += _quietly(lambda: _differing(place, check, directory))
        cases = _quietly(lambda: _cases(loads))
        files = {excerpt.file for excerpt in cases}
        ended = [
            *_quietly(lambda: _ended(load for load in loads if load.failed)),
            *_quietly(lambda: _printed(loads, check)),
        ]
        excerpts += [
            *cases,
            *(excerpt for excerpt in ended if excerpt.file not in files),
        ]
    explanation.excerpts = _excerpts(excerpts)
    candidates = [excerpt.file for excerpt in explanation.excerpts if excerpt.file]
    explanation.files = _real(
        directory, [*candidates, *_candidates(series, check, place, loads)]
    )
    return explanation


def _quietly(look: Callable[[], Iterable[Excerpt]]) -> list[Excerpt]:
    """The excerpts that ``look`` finds; none if the results are cut off."""
    try:
        return list(look())
    except (KstallError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _concerned(loads: Sequence[_Load], check: Check) -> list[_Load]:
    """The workloads that a check is about, preferably those that comparisons name."""
    wrong = [comparison for comparison in check.comparisons if not comparison.ok]
    names = {
        comparison.workload or comparison.label.partition(":")[0]
        for comparison in wrong
    }
    about = [load for load in loads if load.name in names]
    if about:
        return about
    words = check.detail.replace(":", " ").replace(";", " ").split()
    if check.status == "error":
        about = [load for load in loads if f"workload {load.name}" in check.detail]
        about = about or [load for load in loads if load.name in words]
    return about or [load for load in loads if load.name in check.workloads]


def _cases(loads: Iterable[_Load]) -> Iterator[Excerpt]:
    """The failed cases of KUnit suites that workloads ran."""
    for load in loads:
        # A program may print the results of debugfs, which the log repeats.
        for name in ("stdout", "kmsg.txt"):
            failed = kunit.failures(load.text(name))
            for failure in failed:
                title = f"KUnit: {failure.suite}: {failure.case} failed"
                yield _excerpt(title, load.path(name), failure.lines)
            if failed:
                break


def _on_console(directory: Path, file: str) -> Iterator[Excerpt]:
    """The last failed case on the console of a guest."""
    text = _text(directory / file, end=True)
    for failure in kunit.failures(text)[-1:]:
        yield _excerpt(
            f"KUnit: {failure.suite}: {failure.case} failed", file, failure.lines
        )


def _text(path: Path, *, end: bool = False) -> str:
    """A file that a guest wrote, or only its end; empty if it is missing."""
    try:
        # A guest may have left a symlink or a special file there.
        if not stat.S_ISREG(path.lstat().st_mode):
            return ""
        with path.open("rb") as file:
            if end:
                file.seek(max(0, file.seek(0, 2) - _OF_A_FILE))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _ended(
    loads: Iterable[_Load], names: Sequence[str] = ("stderr", "stdout")
) -> Iterator[Excerpt]:
    """The ends of the output of workloads."""
    for load in loads:
        status = load.facts.get("exit_status")
        state = f"exit status {status}" if status is not None else load.facts["status"]
        for name in names:
            if lines := load.tail(name):
                title = f"workload {load.name}, {state}: the end of its {name}"
                yield _excerpt(title, load.path(name), lines, end=True)


def _printed(loads: Sequence[_Load], check: Check) -> Iterator[Excerpt]:
    """What programs that succeeded printed of themselves, against which a check holds
    the events."""
    # Then it is known what failed, and it is not the workload.
    if check.tainted or check.name in _READ:
        return
    yield from _ended((load for load in loads[:_LOADS] if not load.failed), ["stdout"])


def _of_debug_kernels(
    series: SeriesReport, check: Check, directory: Path
) -> Iterator[Excerpt]:
    """The reports of debug kernels that count against a series; or else the end of a
    console, or of a workload's output, if comparisons are about that."""
    others: list[Excerpt] = []
    ends = 0
    for comparison in check.comparisons:
        flavour, _, subject = comparison.label.partition(": ")
        if comparison.ok or flavour not in _FLAVOURS:
            continue
        place = f"{series.name}/{flavour}-patched"
        if "\n" in comparison.detail:
            names = ("results/kmemleak.txt",) if subject.startswith("leak: ") else ()
            files = _real(directory, _files_of_debug(place, names))
            yield _excerpt(
                f"reported by the {flavour} kernel: {subject}",
                files[0] if files else None,
                comparison.detail.splitlines(),
            )
        elif subject.startswith("guest ended as"):
            for file in _real(directory, _files_of_debug(place))[:1]:
                lines = _text(directory / file, end=True).splitlines()
                title = f"the end of the console of the {flavour} kernel"
                others.append(_excerpt(title, file, lines, end=True))
        elif ends < _LOADS:
            named = [
                load
                for load in _loads(directory, f"{place}/results")
                if load.name == subject
            ]
            ends += len(named)
            others += _ended(named)
    yield from others


def _files_of_debug(place: str, names: Iterable[str] = ()) -> Iterator[str]:
    """The files that may have a report of the debug kernel whose guest is in ``place``:
    that of a cached guest is only in its results."""
    for name in (*names, "console.log", "results/console.txt"):
        yield f"{place}/{name}"


def _differing(place: str, check: Check, directory: Path) -> Iterator[Excerpt]:
    """The first record that a comparison does not hold for, or of which two readers
    have something else."""
    for comparison in check.comparisons:
        if comparison.record:
            title = f"the first record that does not fit: {comparison.label}"
            yield _excerpt(title, None, textwrap.wrap(comparison.record, WIDTH))
            return
    wrong = first_wrong(check)
    if wrong is None or check.name not in differing.CHECKS:
        return
    load, _, tail = wrong.label.partition(": ")
    name = tail.partition(":")[0]
    workload = evidence.load(directory / place).workload(load)
    if shown := differing.first(check.name, workload, name, wrong):
        title = f"the first record of {name} that differs"
        yield _excerpt(title, f"{place}/{load}/{shown.file}", shown.lines)


def _candidates(
    series: SeriesReport, check: Check, place: str, loads: Sequence[_Load]
) -> Iterator[str]:
    """Files that may show more of a check, the most telling first."""
    if check.kind == "patch":
        yield from (f"{series.name}/{name}" for name in _OF_A_PATCH)
    elif check.kind in ("overhead", "abi"):
        logs = _OF_COUNTS if check.name in _COUNTED else _OF_THE_COST
        yield from (f"{series.name}/{name}" for name in logs)
    elif check.kind == "debug":
        for flavour in _FLAVOURS:
            yield from _files_of_debug(f"{series.name}/{flavour}-patched")
    for load in loads:
        names = _READ.get(check.name, ("trace.txt", "record.jsonl", "stdout"))
        if load.failed:
            names = ("stderr", "stdout", "kmsg.txt", *names)
        yield from (load.path(name) for name in names)
    if check.kind in _GUEST and check.kind != "debug":
        yield f"{place}/agent.json"
        yield f"{place}/console.txt"


def _real(directory: Path, candidates: Iterable[str]) -> list[str]:
    """The first few of ``candidates`` that exist and are not empty."""
    files = []
    for path in dict.fromkeys(candidates):
        try:
            facts = (directory / path).lstat()
            if facts.st_size and stat.S_ISREG(facts.st_mode):
                files.append(path)
        except (OSError, ValueError):
            continue
    return files[:_FILES]


def _excerpts(excerpts: Iterable[Excerpt]) -> list[Excerpt]:
    return list(excerpts)[:_EXCERPTS]


def _excerpt(
    title: str, file: str | None, lines: Iterable[str], *, end: bool = False
) -> Excerpt:
    """An excerpt of the beginning, or the ``end``, of ``lines``."""
    every = list(lines)
    selection = every[-LINES:] if end else every[:LINES]
    rest = len(every) - len(selection)
    output = [shortened(line, WIDTH) for line in selection]
    if rest and not end:
        output.append(f"(and {rest} more lines)")
    return Excerpt(title=shortened(title, WIDTH), file=file, lines=output)


def _again(report: Report, series: SeriesReport | None, *, fresh: bool) -> list[str]:
    """Commands that try again, with the tree and the level of this run.

    ``fresh`` boots guests again instead of reusing their evidence.
    """
    if report.options is None:
        return [shlex.join(report.command)]
    options = dict(report.options)
    project = {_PROJECT: options.pop(_PROJECT)} if _PROJECT in options else {}
    names = [series.name] if series else [entry.name for entry in report.series]
    program = report.command[0]
    words = [program, *_words(project), "validate", *(["--again"] if fresh else [])]
    commands = [shlex.join([*words, *_words(options), *names])]
    if not project and options.keys() <= _OF_MAKE.keys():
        make = ["make", "validate", f"SERIES={' '.join(names)}"]
        for option, variable in _OF_MAKE.items():
            make += [f"{variable}={value}" for value in options.get(option, ())]
        make += ["AGAIN=1"] if fresh else []
        commands.append(shlex.join(make))
    return commands


def _words(options: Mapping[str, Sequence[str]]) -> list[str]:
    """Options as they are written in a command."""
    words = []
    for name, values in options.items():
        if not values:
            words.append(name)
        for value in values:
            # Else it would be taken for another option.
            words += [f"{name}={value}"] if value.startswith("-") else [name, value]
    return words


def lines(
    explanation: Explanation | None, directory: Path | None = None
) -> Iterator[str]:
    """``explanation`` as text; paths are below ``directory``, if that is given."""
    if explanation is None:
        return
    for excerpt in explanation.excerpts:
        yield f"{excerpt.title} ({excerpt.file})" if excerpt.file else excerpt.title
        yield from (f"    {line}" for line in excerpt.lines)
    for path in explanation.files:
        yield f"more:  less {shlex.quote(str(directory / path if directory else path))}"
    for command in explanation.again:
        yield f"again: {command}"


@dataclass(frozen=True)
class Cause:
    """A reason, and the checks and stages without a verdict for it, by series."""

    reason: str
    what: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    @property
    def count(self) -> int:
        """The number of stages and checks."""
        return sum(len(names) * len(series) for names, series in self.what)


_ByReason = dict[str, dict[str, list[str]]]


def skipped(report: Report) -> tuple[Cause, ...]:
    """All skipped stages and checks by reason, in the order of the report."""
    by_reason: _ByReason = {}
    for stage in report.stages:
        if stage.status == "skip":
            _put(by_reason, stage.summary, f"stage {stage.name}", "")
    for series in report.series:
        for stage in series.stages:
            if stage.status == "skip":
                _put(by_reason, stage.summary, f"stage {stage.name}", series.name)
        for check in series.checks:
            if check.status == "skip":
                _put(by_reason, check.detail, check.name, series.name)
    return _causes(by_reason)


def unjudged(report: Report) -> tuple[Cause, ...]:
    """All checks that could not be judged, by reason."""
    by_reason: _ByReason = {}
    for series in report.series:
        for check in series.checks:
            if check.status == "error":
                _put(by_reason, reason(check), check.name, series.name)
    return _causes(by_reason)


def reason(check: Check) -> str:
    """Why a check could not be judged, in one line: the last of a traceback."""
    detail = check.detail.strip().splitlines() or [""]
    line = detail[-1] if detail[0].startswith("Traceback ") else detail[0]
    return line.removeprefix("could not judge: ")


def _put(by_reason: _ByReason, cause: str, name: str, series: str) -> None:
    cause = " ".join(cause.split()) or "no reason given"
    by_reason.setdefault(cause, {}).setdefault(name, []).append(series)


def _causes(by_reason: _ByReason) -> tuple[Cause, ...]:
    """The causes, with names that concern the same series in one group."""
    causes = []
    for cause, by_name in by_reason.items():
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, series in by_name.items():
            groups.setdefault(tuple(series), []).append(name)
        together = ((tuple(names), series) for series, names in groups.items())
        causes.append(Cause(cause, tuple(together)))
    return tuple(causes)
