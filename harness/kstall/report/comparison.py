# SPDX-License-Identifier: GPL-2.0-or-later
"""The changes from one run to a later one, or from one matrix to another.

Verdicts, checks, costs and formats of events get worse or better; trees, tools and
durations are only reported as changed.

With several earlier runs each verdict, check, cost and format is compared with the
newest run that has it: one that could not judge something is no yardstick for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import Field

from ..base import KstallError, Status, few
from ..cost import Footprint, Measurement
from ..verdict import Check, Model
from . import matrix
from . import report as reports
from .report import EventFormat, Report, SeriesReport
from .views import check_summary, status_word

Weight = Literal["worse", "unjudged", "better", "changed"]
Kind = Literal["verdict", "check", "cost", "format", "input", "duration"]
# The worst first.
WEIGHTS: tuple[Weight, ...] = ("worse", "unjudged", "better", "changed")
#: The least ratio and seconds by which reported durations differ.
_RATIO = 1.5
_SECONDS = 60.0
_FEW = 4
# Instructions per operation: the best resolution of any measurement.
_LEAST = 0.01
_Item = TypeVar("_Item")


class Change(Model):
    """A difference between the two runs."""

    weight: Weight = Field(
        description="unjudged: there was a verdict before, or it is new, and there is "
        "none after"
    )
    kind: Kind
    place: str = Field(default="", description="the column of a matrix")
    series: str = Field(default="", description="empty: it is about the run")
    what: str
    before: str = ""
    after: str = ""
    since: str = Field(
        default="",
        description="directory of the older run that it is compared with, as the one "
        "before has no such result; empty: it is compared with the one before",
    )


class RunComparison(Model):
    """Two runs, or two matrices."""

    schema_version: Literal[1] = 1
    before: str = Field(description="directory")
    after: str = Field(description="directory")
    started: tuple[str, str] = Field(description="when each was; UTC, ISO 8601")
    compared: int = Field(description="series that are in both, in each column")
    changes: list[Change] = []

    @property
    def exit_code(self) -> int:
        """1 if something got worse; else 2 if a verdict was lost; else 0."""
        weights = {change.weight for change in self.changes}
        return 1 if "worse" in weights else 2 if "unjudged" in weights else 0

    def of(self, weight: Weight) -> list[Change]:
        """The changes of that ``weight``, in their order."""
        return [change for change in self.changes if change.weight == weight]


@dataclass(frozen=True)
class _Side:
    """A run, or the runs of a matrix: their directories by name, and the reports that
    were read; None for a run without one."""

    directory: Path
    started: str
    places: Mapping[str, Path]
    reports: dict[str, Report | None]
    matrix: bool

    def report(self, place: str) -> Report | None:
        """The report of the run called ``place``; None if there is none."""
        if place not in self.reports:
            directory = self.places.get(place)
            self.reports[place] = None if directory is None else _report(directory)
        return self.reports[place]


class _Past(NamedTuple):
    """A series in an earlier run; ``since`` is that of a `Change` since then."""

    since: str
    series: SeriesReport


@dataclass(frozen=True)
class _History:
    """The series ``name`` in earlier runs, read as far back as somebody asks."""

    sides: Sequence[_Side]
    place: str
    name: str

    def __iter__(self) -> Iterator[_Past]:
        for since, report in _earlier(self.sides, self.place):
            for series in report.series:
                if series.name == self.name:
                    yield _Past(since, series)

    def newest(self, wanted: Callable[[SeriesReport], object]) -> _Past | None:
        """The newest for which ``wanted`` holds."""
        return next((past for past in self if wanted(past.series)), None)


def compare(before: Path, after: Path, older: Sequence[Path] = ()) -> RunComparison:
    """What changed from the run, or the matrix, in ``before`` to that in ``after``.

    What ``before`` has no result for is compared with the newest of ``older`` that has
    one; its last is the newest.  Raises `KstallError` for a directory that holds
    neither, and for one of each.
    """
    new = _side(after)
    sides = [_side(directory) for directory in (before, *reversed(older))]
    for old in sides:
        if old.matrix != new.matrix:
            several = old if old.matrix else new
            raise KstallError(
                f"{several.directory} is a matrix of runs, and the other is one run",
                next="name one of its runs, a directory in it",
            )
    comparison = RunComparison(
        before=str(before),
        after=str(after),
        started=(sides[0].started, new.started),
        compared=0,
    )
    for place in dict.fromkeys((*sides[0].places, *new.places)):
        changes, compared = _runs(place, sides, new)
        comparison.changes += [
            change.model_copy(update={"place": place}) for change in changes
        ]
        comparison.compared += compared
    comparison.changes.sort(key=lambda change: WEIGHTS.index(change.weight))
    return comparison


def _side(directory: Path) -> _Side:
    if (directory / matrix.FILE).exists():
        document = matrix.read(directory)
        places = {
            column.name: directory / column.directory for column in document.columns
        }
        return _Side(directory, document.started, places, {}, matrix=True)
    try:
        report = reports.read(directory / "report.json")
    except (OSError, ValueError) as error:
        raise KstallError(
            f"{directory} is no run directory: {str(error).splitlines()[0]}",
            next="name one, such as out/latest",
        ) from error
    places, read = {"": directory}, {"": report}
    return _Side(directory, report.started, places, {**read}, matrix=False)


def _report(directory: Path) -> Report | None:
    """The report of a column; None if it was not reached."""
    try:
        return reports.read(directory / "report.json")
    except (OSError, ValueError):
        return None


def _earlier(sides: Sequence[_Side], place: str) -> Iterator[tuple[str, Report]]:
    """The reports of the run called ``place``, the newest first, each with the `since`
    of a change since then."""
    for number, side in enumerate(sides):
        report = side.report(place)
        if report is not None:
            yield str(side.directory) if number else "", report


def _runs(place: str, sides: Sequence[_Side], new: _Side) -> tuple[list[Change], int]:
    """Changes of the run called ``place`` since ``sides``, the newest of them first;
    and how many series are compared."""
    if place not in new.places:
        return [_change("worse", "verdict", "tree", "present", "not requested")], 0
    if not any(place in side.places for side in sides):
        return [_new_tree(new.report(place))], 0
    after = new.report(place)
    since, before = next(_earlier(sides, place), ("", None))
    if after is None:
        if before is None:
            return [], 0
        lost = _change(
            "unjudged", "verdict", "run", status_word(before.status), "not reached"
        )
        return _dated(since, [lost]), 0
    if before is None:
        weight: Weight = "worse" if after.status == "failed" else "changed"
        return [
            _change(weight, "verdict", "run", "not reached", status_word(after.status))
        ], 0
    old_names = [series.name for series in before.series]
    new_series = {series.name: series for series in after.series}
    # Where its tree could not be obtained a run has neither that nor tools.
    since, before = next(
        (past for past in _earlier(sides, place) if past[1].tree is not None),
        (since, before),
    )
    changes = _dated(since, _inputs(before, after))
    compared = 0
    for name in dict.fromkeys((*old_names, *new_series)):
        history = _History(sides, place, name)
        series_changes = _series(history, new_series.get(name))
        changes += [
            change.model_copy(update={"series": name}) for change in series_changes
        ]
        compared += name in new_series and any(True for _ in history)
    return changes, compared


def _new_tree(report: Report | None) -> Change:
    """The change that a tree is in no earlier run: one that fails did not before."""
    if report is None:
        return _change("unjudged", "verdict", "tree", "absent", "new, not reached")
    after = f"new, {status_word(report.status)}"
    if report.status == "failed":
        return _change("worse", "verdict", "tree", "absent", after)
    if report.status in ("proven", "does-not-apply"):
        return _change("changed", "input", "tree", "absent", after)
    return _change("unjudged", "verdict", "tree", "absent", after)


def _dated(since: str, changes: Iterable[Change]) -> list[Change]:
    """``changes``, as those since an older run."""
    return [change.model_copy(update={"since": since}) for change in changes]


def _change(
    weight: Weight, kind: Kind, what: str, before: str = "", after: str = ""
) -> Change:
    return Change(weight=weight, kind=kind, what=what, before=before, after=after)


def weigh(before: Status, after: Status) -> Weight | None:
    """The weight of a change of status from ``before`` to ``after``; None if equal.

    From pass to skip is worse: it is not known to hold any more.
    """
    if before == after:
        return None
    if after == "error":
        # What was skipped had no verdict that could be lost.
        return "changed" if before == "skip" else "unjudged"
    if after == "fail":
        return "worse"
    if after == "pass":
        return "better"
    return "worse" if before == "pass" else "changed"


# -- the run -------------------------------------------------------------------------


def _inputs(before: Report, after: Report) -> Iterator[Change]:
    old, new = before.tree, after.tree
    if old is not None and new is not None and old.id != new.id:
        yield _change("changed", "input", "tree", _tree(before), _tree(after))
    for name, old_value in before.environment:
        new_value = getattr(after.environment, name)
        comparable = isinstance(old_value, str) and isinstance(new_value, str)
        # The reason for an accelerator is no change of its own.
        if comparable and old_value != new_value and name != "accelerator_reason":
            yield _change(
                "changed", "input", name.replace("_", " "), old_value, new_value
            )
    yield from _durations("run", before.seconds, after.seconds)


def _tree(report: Report) -> str:
    tree = report.tree
    if tree is None:
        return "none"
    commit = f", {tree.commit[:12]}" if tree.commit else ""
    return f"{tree.version} ({tree.describe}{commit})"


def _durations(subject: str, before: float, after: float) -> Iterator[Change]:
    low, high = sorted((before, after))
    if high - low >= _SECONDS and high >= _RATIO * low:
        yield _change(
            "changed",
            "duration",
            f"{subject} took",
            f"{before:.0f} s",
            f"{after:.0f} s",
        )


# -- a series ------------------------------------------------------------------------


def _series(history: _History, new: SeriesReport | None) -> Iterator[Change]:
    judged = history.newest(lambda series: series.status != "error")
    judged = judged or history.newest(lambda series: True)
    if judged is None:
        assert new is not None
        bad = new.status in ("fail", "error")
        weight: Weight = {"fail": "worse", "error": "unjudged"}.get(  # type: ignore[assignment]
            new.status, "changed"
        )
        verdict = _verdict(new) if bad else status_word(new.status)
        yield _change(weight, "verdict", "series", "absent", verdict)
        return
    since, old = judged
    if new is None:
        # A verdict is only lost if there was a proof.
        lost: Weight = "worse" if old.status == "pass" else "changed"
        gone = _change(
            lost, "verdict", "series", status_word(old.status), "not requested"
        )
        yield from _dated(since, [gone])
        return
    yield from _dated(since, _verdicts(old, new))
    yield from _checks(history, new)
    past = history.newest(_has_formats) or history.newest(lambda series: series.events)
    if new.events and past is not None:
        yield from _dated(past.since, _formats(past.series.events, new.events))
    if new.overhead is not None:
        yield from _costs(history, new.overhead.measurements)
        past = history.newest(_footprint)
        before = _footprint(past.series) if past is not None else None
        if past is not None and before and new.overhead.footprint:
            footprints = _footprints(before, new.overhead.footprint)
            yield from _dated(past.since, footprints)
    yield from _dated(since, _durations("its stages", _seconds(old), _seconds(new)))


def _verdicts(old: SeriesReport, new: SeriesReport) -> Iterator[Change]:
    if (weighed := weigh(old.status, new.status)) is not None:
        if new.merged and new.status == "does-not-apply":
            # The tree has the patches: no regression.
            weighed = "changed"
        yield _change(
            weighed, "verdict", "verdict", status_word(old.status), _verdict(new)
        )
    if old.digest != new.digest:
        yield _change("changed", "input", "patches or series.toml", "", "edited")


def _seconds(series: SeriesReport) -> float:
    return sum(stage.seconds for stage in series.stages)


def _verdict(series: SeriesReport) -> str:
    """The status, and the stage or check that decides it."""
    for stage in series.stages:
        if stage.status in ("fail", "error", "does-not-apply"):
            return f"{status_word(series.status)}: {stage.name}: {stage.summary}"
    for check in series.checks:
        if check.status == series.status and check.status in ("fail", "error"):
            return f"{status_word(series.status)}: {check.name}"
    return status_word(series.status)


def _stopped(series: SeriesReport) -> bool:
    """Whether a stage stopped it before all checks were made; one that all series
    share leaves it without any of its own."""
    return not series.stages or any(
        stage.status in ("fail", "error", "does-not-apply") for stage in series.stages
    )


def _checks(history: _History, new: SeriesReport) -> Iterator[Change]:
    fresh = []
    for check in new.checks:
        known = _judged_check(history, check.name)
        if known is None:
            fresh.append(check)
            continue
        since, old = known
        weight = weigh(old.status, check.status)
        if weight is not None:
            now = status_word(check.status)
            now += f": {check_summary(check)}" if check.status != "pass" else ""
            change = _change(weight, "check", check.name, status_word(old.status), now)
            yield from _dated(since, [change])
    for check in fresh:
        if check.status == "fail":
            yield _change(
                "worse", "check", check.name, "absent", f"fail: {check_summary(check)}"
            )
    complete = history.newest(lambda series: series.checks and not _stopped(series))
    past = complete or history.newest(lambda series: series.checks)
    if past is None:
        return
    # A stopped series has lost all checks: its verdict says that.
    here = {check.name for check in new.checks}
    gone = [check for check in past.series.checks if check.name not in here]
    lost = [check.name for check in gone if check.status == "pass"]
    if lost and not _stopped(new):
        change = _change("worse", "check", few(lost, _FEW), "pass", "no longer run")
        yield from _dated(past.since, [change])
    added = [check.name for check in fresh if check.status != "fail"]
    if added and complete is not None:
        yield _change("changed", "check", few(added, _FEW), "absent", "new")


def _judged_check(history: _History, name: str) -> tuple[str, Check] | None:
    """The check in the newest run that judged it; else in the newest that has it."""
    unjudged = None
    for since, series in history:
        for check in series.checks:
            if check.name == name and check.status != "error":
                return since, check
            if check.name == name:
                unjudged = unjudged or (since, check)
    return unjudged


# -- formats -------------------------------------------------------------------------


def _has_formats(series: SeriesReport) -> bool:
    """Whether the formats of all its events were read."""
    return bool(series.events) and all(map(_is_read, series.events))


def _is_read(event: EventFormat) -> bool:
    """Whether this is the kernel's format; else series.toml declares the fields."""
    return event.kind != "event" or all(
        field.offset is not None for field in event.fields
    )


def _formats(
    old: Sequence[EventFormat], new: Sequence[EventFormat]
) -> Iterator[Change]:
    """Changes of event formats; those that break programs are worse."""
    before = {event.name: event for event in old}
    after = {event.name: event for event in new}
    for name in before:
        if name not in after:
            yield _change("worse", "format", name, "present", "gone")
    for name, event in after.items():
        if name not in before:
            yield _change("changed", "format", name, "absent", "new")
        else:
            yield from _format(before[name], event)


def _format(old: EventFormat, new: EventFormat) -> Iterator[Change]:
    if old.kind != new.kind:
        yield _change("worse", "format", f"{new.name} is", old.kind, new.kind)
    if _is_read(old) != _is_read(new):
        return
    before = {field.name: field for field in old.fields}
    after = {field.name: field for field in new.fields}
    for name, field in before.items():
        subject = f"{new.name}: {name}"
        if name not in after:
            yield _change("worse", "format", subject, field.ctype, "gone")
        elif field != after[name]:
            yield _change(
                "worse", "format", subject, _place(field), _place(after[name])
            )
    for name, field in after.items():
        if name not in before:
            subject = f"{new.name}: {name}"
            yield _change("changed", "format", subject, "", f"new: {_place(field)}")
    if old.print_fmt != new.print_fmt:
        subject = f"{new.name}: print fmt"
        yield _change(
            "changed", "format", subject, old.print_fmt or "", new.print_fmt or ""
        )


def _place(field: Any) -> str:
    if field.offset is None:
        return str(field.ctype)
    return f"{field.ctype}, {field.size} bytes at {field.offset}"


# -- costs ---------------------------------------------------------------------------


def _costs(history: _History, new: Iterable[Measurement]) -> Iterator[Change]:
    """Changed costs of operations while events are off, beyond the resolution."""
    for after in new:
        past = _measured(history, after.workload)
        if past is None or after.difference is None:
            continue
        since, before = past
        assert before.difference is not None
        growth = after.difference - before.difference
        if abs(growth) <= max(before.resolution + after.resolution, _LEAST):
            continue
        change = _change(
            "worse" if growth > 0 else "better",
            "cost",
            f"{after.workload}: instructions per {after.operation}, off",
            f"{before.difference:+,.2f}",
            f"{after.difference:+,.2f}",
        )
        yield from _dated(since, [change])


def _measured(history: _History, workload: str) -> tuple[str, Measurement] | None:
    """What ``workload`` cost in the newest run that measured it."""
    for since, series in history:
        for measurement in series.overhead.measurements if series.overhead else ():
            if measurement.workload == workload and measurement.difference is not None:
                return since, measurement
    return None


def _footprint(series: SeriesReport) -> Footprint | None:
    return series.overhead.footprint if series.overhead is not None else None


def _footprints(old: Footprint, new: Footprint) -> Iterator[Change]:
    for before, after in _paired(
        old.sites,
        new.sites,
        lambda site: (site.event, site.function, tuple(site.inlined)),
    ):
        if before is None:
            assert after is not None
            label = f"site of {after.event} in {after.function}()"
            yield _change("changed", "cost", label, "absent", f"{after.nop} bytes")
        elif after is None:
            label = f"site of {before.event} in {before.function}()"
            yield _change("changed", "cost", label, f"{before.nop} bytes", "gone")
        elif before.nop != after.nop:
            # Without a NOP the event is switched by a test and a branch: costs more.
            worse = after.nop > before.nop or not after.nop
            label = f"site of {after.event} in {after.function}(), off"
            yield _change(
                "worse" if worse else "better",
                "cost",
                label,
                before=f"{before.nop} bytes",
                after=f"{after.nop} bytes",
            )
    for old_path, new_path in _paired(
        old.paths, new.paths, lambda path: (path.binary, path.name)
    ):
        old_count = old_path.cost if old_path is not None else 0
        new_count = new_path.cost if new_path is not None else 0
        function = new_path or old_path
        if old_count != new_count and function is not None:
            yield _change(
                "worse" if new_count > old_count else "better",
                "cost",
                f"{function.name}(): instructions more than in the base, off",
                str(old_count),
                str(new_count),
            )
    for old_struct, new_struct in _paired(
        old.structs, new.structs, lambda struct: (struct.binary, struct.name)
    ):
        old_count = old_struct.growth if old_struct is not None else 0
        new_count = new_struct.growth if new_struct is not None else 0
        struct = new_struct or old_struct
        if old_count != new_count and struct is not None and not struct.record:
            yield _change(
                "worse" if new_count > old_count else "better",
                "cost",
                f"struct {struct.name}: bytes more than in the base",
                str(old_count),
                str(new_count),
            )


def _paired(
    old: Iterable[_Item], new: Iterable[_Item], key: Callable[[_Item], object]
) -> Iterator[tuple[_Item | None, _Item | None]]:
    """Pairs of items with the same ``key``, in order; None for a missing one."""
    remaining: dict[object, list[_Item]] = {}
    for item in old:
        remaining.setdefault(key(item), []).append(item)
    for item in new:
        same = remaining.get(key(item), [])
        yield (same.pop(0) if same else None), item
    for items in remaining.values():
        for item in items:
            yield item, None
