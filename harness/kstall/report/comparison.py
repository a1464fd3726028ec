# SPDX-License-Identifier: GPL-2.0-or-later
"""What is otherwise in one run than in an earlier one, or in one matrix than another.

Verdicts, checks, costs and formats of events get worse or better; of trees, tools and
durations it is only told that they changed, for no promise is about them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ..base import KstallError, Status, cache
from ..cost import Footprint, Measurement
from . import matrix
from . import report as reports
from .report import Event, Report, SeriesReport
from .views import fact, word

Weight = Literal["worse", "unjudged", "better", "changed"]
Kind = Literal["verdict", "check", "cost", "format", "input", "duration"]
# The gravest first.
WEIGHTS: tuple[Weight, ...] = ("worse", "unjudged", "better", "changed")
#: What durations have to differ by to be told: the ratio, and seconds.
_RATIO = 1.5
_SECONDS = 60.0
_FEW = 4
# Instructions per operation: less than that no boot resolves.
_LEAST = 0.01
_Item = TypeVar("_Item")


class _Model(BaseModel):
    # A newer kstall may have added fields; version 1 readers pass over them.
    model_config = ConfigDict(extra="ignore")


class Change(_Model):
    """Something that is not what it was."""

    weight: Weight = Field(
        description="unjudged: there was a verdict, and now there is none"
    )
    kind: Kind
    place: str = Field(default="", description="the column of a matrix")
    series: str = Field(default="", description="empty: it is about the run")
    what: str
    before: str = ""
    after: str = ""


class Comparison(_Model):
    """Two runs, or two matrices."""

    schema_version: Literal[1] = 1
    before: str = Field(description="directory")
    after: str = Field(description="directory")
    started: tuple[str, str] = Field(description="when each was; UTC, ISO 8601")
    compared: int = Field(description="series that are in both, in each column")
    changes: list[Change] = []

    @property
    def exit_code(self) -> int:
        """1 if something got worse; else 2 if a verdict is no longer there; else 0."""
        weights = {one.weight for one in self.changes}
        return 1 if "worse" in weights else 2 if "unjudged" in weights else 0

    def of(self, weight: Weight) -> list[Change]:
        """The changes of that ``weight``, in their order."""
        return [one for one in self.changes if one.weight == weight]


@dataclass(frozen=True)
class _Side:
    """A run, or the runs of a matrix by their names; None for one without a report."""

    directory: Path
    started: str
    runs: Mapping[str, Report | None]
    matrix: bool


def compare(before: Path, after: Path) -> Comparison:
    """What changed from the run, or the matrix, in ``before`` to that in ``after``.

    Raises `KstallError` for a directory that holds neither, and for one of each.
    """
    old, new = _side(before), _side(after)
    if old.matrix != new.matrix:
        several = old if old.matrix else new
        raise KstallError(
            f"{several.directory} is a matrix of runs, and the other is one run",
            next="name one run of it, which is a directory in it",
        )
    found = Comparison(
        before=str(before),
        after=str(after),
        started=(old.started, new.started),
        compared=0,
    )
    for place in dict.fromkeys((*old.runs, *new.runs)):
        changes, compared = _runs(place, old, new)
        found.changes += [one.model_copy(update={"place": place}) for one in changes]
        found.compared += compared
    found.changes.sort(key=lambda one: WEIGHTS.index(one.weight))
    return found


def _side(directory: Path) -> _Side:
    if (directory / matrix.FILE).exists():
        found = matrix.read(directory)
        runs = {one.name: _report(directory / one.directory) for one in found.columns}
        return _Side(directory, found.started, runs, matrix=True)
    try:
        report = reports.read(directory / "report.json")
    except (OSError, ValueError) as error:
        raise KstallError(
            f"{directory} is no run directory: {str(error).splitlines()[0]}",
            next="name one, such as out/latest",
        ) from error
    return _Side(directory, report.started, {"": report}, matrix=False)


def _report(directory: Path) -> Report | None:
    """The report of a column; None where that was not reached."""
    try:
        return reports.read(directory / "report.json")
    except (OSError, ValueError):
        return None


def _runs(place: str, old: _Side, new: _Side) -> tuple[list[Change], int]:
    before, after = old.runs.get(place), new.runs.get(place)
    if place not in old.runs:
        return [_change("changed", "input", "tree", "not there", "new")], 0
    if place not in new.runs:
        return [_change("worse", "verdict", "tree", "there", "not asked for")], 0
    if after is None:
        if before is None:
            return [], 0
        return [
            _change("unjudged", "verdict", "run", word(before.status), "not reached")
        ], 0
    if before is None:
        now: Weight = "worse" if after.status == "failed" else "changed"
        return [_change(now, "verdict", "run", "not reached", word(after.status))], 0
    changes = list(_inputs(before, after))
    theirs = {one.name: one for one in before.series}
    ours = {one.name: one for one in after.series}
    for name in dict.fromkeys((*theirs, *ours)):
        made = _series(theirs.get(name), ours.get(name))
        changes += [one.model_copy(update={"series": name}) for one in made]
    return changes, len(theirs.keys() & ours.keys())


def _change(
    weight: Weight, kind: Kind, what: str, before: str = "", after: str = ""
) -> Change:
    return Change(weight=weight, kind=kind, what=what, before=before, after=after)


def weigh(before: Status, after: Status) -> Weight | None:
    """What it means that a status is ``after``, and was ``before``; None: nothing.

    What was proven and is only skipped now is worse: nobody knows that it still holds.
    """
    if before == after:
        return None
    if after == "error":
        return "unjudged"
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
    for name, one in before.environment:
        other = getattr(after.environment, name)
        named = isinstance(one, str) and isinstance(other, str)
        # What the accelerator was chosen for tells nothing once it is the same.
        if named and one != other and name != "accelerator_reason":
            yield _change("changed", "input", name.replace("_", " "), one, other)
    yield from _durations("run", before.seconds, after.seconds)


def _tree(report: Report) -> str:
    found = report.tree
    if found is None:
        return "none"
    commit = f", {found.commit[:12]}" if found.commit else ""
    return f"{found.version} ({found.describe}{commit})"


def _durations(what: str, before: float, after: float) -> Iterator[Change]:
    low, high = sorted((before, after))
    if high - low >= _SECONDS and high >= _RATIO * low:
        yield _change(
            "changed", "duration", f"{what} took", f"{before:.0f} s", f"{after:.0f} s"
        )


# -- a series ------------------------------------------------------------------------


def _series(old: SeriesReport | None, new: SeriesReport | None) -> Iterator[Change]:
    if old is None:
        assert new is not None
        bad = new.status in ("fail", "error")
        weight: Weight = {"fail": "worse", "error": "unjudged"}.get(  # type: ignore[assignment]
            new.status, "changed"
        )
        told = _verdict(new) if bad else word(new.status)
        yield _change(weight, "verdict", "series", "not there", told)
        return
    if new is None:
        # What nobody had proven is not lost.
        lost: Weight = "worse" if old.status == "pass" else "changed"
        yield _change(lost, "verdict", "series", word(old.status), "not asked for")
        return
    if (weighed := weigh(old.status, new.status)) is not None:
        if new.merged and new.status == "does-not-apply":
            # Good news, if it is theirs.
            weighed = "changed"
        yield _change(weighed, "verdict", "verdict", word(old.status), _verdict(new))
    if old.digest != new.digest:
        yield _change("changed", "input", "patches or series.toml", "", "edited")
    yield from _checks(old, new)
    if old.events and new.events:
        yield from _formats(old.events, new.events)
    if old.overhead is not None and new.overhead is not None:
        yield from _costs(old.overhead.measurements, new.overhead.measurements)
        if old.overhead.footprint and new.overhead.footprint:
            yield from _footprints(old.overhead.footprint, new.overhead.footprint)
    yield from _durations("its stages", _seconds(old), _seconds(new))


def _seconds(series: SeriesReport) -> float:
    return sum(one.seconds for one in series.stages)


def _verdict(series: SeriesReport) -> str:
    """The status, and what it is for."""
    for stage in series.stages:
        if stage.status in ("fail", "error", "does-not-apply"):
            return f"{word(series.status)}: {stage.name}: {stage.summary}"
    for check in series.checks:
        if check.status == series.status and check.status in ("fail", "error"):
            return f"{word(series.status)}: {check.name}"
    return word(series.status)


def _stopped(series: SeriesReport) -> bool:
    """Whether it did not come to all checks."""
    return any(x.status in ("fail", "error", "does-not-apply") for x in series.stages)


def _checks(old: SeriesReport, new: SeriesReport) -> Iterator[Change]:
    before = {one.name: one for one in old.checks}
    after = {one.name: one for one in new.checks}
    for name in before.keys() & after.keys():
        weight = weigh(before[name].status, after[name].status)
        if weight is not None:
            told = after[name].status
            yield _change(
                *(weight, "check", name, word(before[name].status)),
                word(told) + (f": {fact(after[name])}" if told != "pass" else ""),
            )
    fresh = [one for name, one in after.items() if name not in before]
    for one in fresh:
        if one.status == "fail":
            yield _change("worse", "check", one.name, "not there", f"fail: {fact(one)}")
    # A series that is stopped has lost all: its verdict says that.
    gone = [name for name, one in before.items() if name not in after]
    lost = [name for name in gone if before[name].status == "pass"]
    if lost and not _stopped(new):
        yield _change("worse", "check", _listed(lost), "pass", "no longer made")
    if (more := [x.name for x in fresh if x.status != "fail"]) and not _stopped(old):
        yield _change("changed", "check", _listed(more), "not there", "new")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


# -- formats -------------------------------------------------------------------------


def _formats(old: Sequence[Event], new: Sequence[Event]) -> Iterator[Change]:
    """What programs that read the older events stumble over is worse."""
    before = {one.name: one for one in old}
    after = {one.name: one for one in new}
    for name in before:
        if name not in after:
            yield _change("worse", "format", name, "there", "gone")
    for name, event in after.items():
        if name not in before:
            yield _change("changed", "format", name, "not there", "new")
        else:
            yield from _format(before[name], event)


def _format(old: Event, new: Event) -> Iterator[Change]:
    if old.kind != new.kind:
        yield _change("worse", "format", f"{new.name} is", old.kind, new.kind)
    before = {one.name: one for one in old.fields}
    after = {one.name: one for one in new.fields}
    for name, field in before.items():
        what = f"{new.name}: {name}"
        if name not in after:
            yield _change("worse", "format", what, field.ctype, "gone")
        elif field != after[name]:
            yield _change("worse", "format", what, _place(field), _place(after[name]))
    for name, field in after.items():
        if name not in before:
            what = f"{new.name}: {name}"
            yield _change("changed", "format", what, "", f"new: {_place(field)}")
    if old.print_fmt != new.print_fmt:
        what = f"{new.name}: print fmt"
        yield _change(
            "changed", "format", what, old.print_fmt or "", new.print_fmt or ""
        )


def _place(field: Any) -> str:
    if field.offset is None:
        return str(field.ctype)
    return f"{field.ctype}, {field.size} bytes at {field.offset}"


# -- costs ---------------------------------------------------------------------------


def _costs(old: Iterable[Measurement], new: Iterable[Measurement]) -> Iterator[Change]:
    """What an operation takes more, events off, beyond what boots differ by."""
    for before, after in _paired(old, new, lambda one: one.workload):
        if before is None or after is None or before.difference is None:
            continue
        if after.difference is None:
            continue
        more = after.difference - before.difference
        if abs(more) <= max(before.resolution + after.resolution, _LEAST):
            continue
        yield _change(
            "worse" if more > 0 else "better",
            "cost",
            f"{after.workload}: instructions per {after.operation}, off",
            f"{before.difference:+,.2f}",
            f"{after.difference:+,.2f}",
        )


def _footprints(old: Footprint, new: Footprint) -> Iterator[Change]:
    for before, after in _paired(
        old.sites, new.sites, lambda one: (one.event, one.function, tuple(one.inlined))
    ):
        if before is None:
            assert after is not None
            what = f"site of {after.event} in {after.function}()"
            yield _change("changed", "cost", what, "not there", f"{after.nop} bytes")
        elif after is None:
            what = f"site of {before.event} in {before.function}()"
            yield _change("changed", "cost", what, f"{before.nop} bytes", "gone")
        elif before.nop != after.nop:
            # Without a NOP the event is not switched by patching: what runs is more.
            worse = after.nop > before.nop or not after.nop
            what = f"site of {after.event} in {after.function}(), off"
            yield _change(
                *("worse" if worse else "better", "cost", what),
                *(f"{before.nop} bytes", f"{after.nop} bytes"),
            )
    for path, other in _paired(
        old.paths, new.paths, lambda one: (one.binary, one.name)
    ):
        was = path.work if path is not None else 0
        now = other.work if other is not None else 0
        shown = other or path
        if was != now and shown is not None:
            yield _change(
                "worse" if now > was else "better",
                "cost",
                f"{shown.name}(): instructions more than the base's, off",
                str(was),
                str(now),
            )
    for struct, grown in _paired(
        old.structs, new.structs, lambda one: (one.binary, one.name)
    ):
        was = (struct.patched or 0) - (struct.base or 0) if struct is not None else 0
        now = (grown.patched or 0) - (grown.base or 0) if grown is not None else 0
        one = grown or struct
        if was != now and one is not None and not one.record:
            yield _change(
                "worse" if now > was else "better",
                "cost",
                f"struct {one.name}: bytes more than the base's",
                str(was),
                str(now),
            )


def _paired(
    old: Iterable[_Item], new: Iterable[_Item], key: Callable[[_Item], object]
) -> Iterator[tuple[_Item | None, _Item | None]]:
    """What has the same ``key`` in both; of several the first with the first."""
    left: dict[object, list[_Item]] = {}
    for item in old:
        left.setdefault(key(item), []).append(item)
    for item in new:
        same = left.get(key(item), [])
        yield (same.pop(0) if same else None), item
    for items in left.values():
        for item in items:
            yield item, None


# -- files ---------------------------------------------------------------------------


def write(found: Comparison, path: Path) -> None:
    """Write it as JSON, whole or not at all."""
    cache.write_text(path, found.model_dump_json(indent=2) + "\n")


def schema_text() -> str:
    """The JSON Schema, as it is printed by ``kstall schema comparison``."""
    schema = Comparison.model_json_schema(mode="serialization")
    return json.dumps(schema, indent=2) + "\n"
