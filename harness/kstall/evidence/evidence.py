# SPDX-License-Identifier: GPL-2.0-or-later
"""The results of a guest, and the checks that judge them.

Judging is pure: it reads saved results and boots nothing, so an old run can be judged
again by a new check.  A check is a function ``(Evidence) -> Verdict`` in a series'
``checks.py``; its verdict is a list of comparisons, each with what was expected and
what was observed, and an empty list is an error, because it would prove nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from kstall_guest import errors

from ..base import KstallError
from ..ftrace import ring
from ..series import Series
from ..verdict import Check, Comparison, Kind, Tainted, Verdict, run_check
from . import records

# What to do next without results.
_AFRESH = "have the guest booted afresh: `--again` of `kstall validate`"


class EvidenceError(KstallError):
    """Results that are missing or cannot be read."""

    def __init__(self, what: str, *, next: str | None = _AFRESH) -> None:
        super().__init__(what, next=next)


class Incomplete(EvidenceError, Tainted):
    """Records of a reader that is known to have missed some."""

    def __init__(self, what: str) -> None:
        # The guest is booted once more anyway.
        super().__init__(what, next=None)


@dataclass(frozen=True)
class WorkloadResult:
    """The results of one workload, in its directory."""

    name: str
    dir: Path
    layouts: Mapping[str, records.Layout]
    facts: Mapping[str, Any]

    @property
    def exit_status(self) -> int | None:
        """The program's own exit status, or None if it did not exit."""
        value = self.facts.get("exit_status")
        return None if value is None else int(value)

    @property
    def stdout(self) -> str:
        """The program's output."""
        return self._text("stdout")

    def objects(self, what: str | None = None) -> list[dict[str, Any]]:
        """The JSON objects that the program printed, one a line, in order.

        With ``what`` only those in which that is the value of "what".
        """
        objects = [json.loads(line) for line in self.stdout.splitlines()]
        return [item for item in objects if what is None or item["what"] == what]

    @property
    def kmsg(self) -> str:
        """The kernel's log while the workload ran."""
        return self._text("kmsg.txt")

    @functools.cached_property
    def _traced(self) -> tuple[records.Event, ...]:
        path = self.dir / "trace.txt"
        if not path.exists():
            raise EvidenceError(f"workload {self.name} recorded no ftrace events")
        text = path.read_text(encoding="utf-8", errors="replace")
        return records.trace(text, self.layouts.values())

    @functools.cached_property
    def _recorded(self) -> tuple[records.Event, ...]:
        return records.recorded(self._text("record.jsonl"))

    def events(self, name: str | None = None) -> tuple[records.Event, ...]:
        """What ftrace recorded, in time order (``ts_ns``: whole microseconds)."""
        return _named(self._traced, name)

    def record(
        self, name: str | None = None, *, partly: bool = False
    ) -> tuple[records.Event, ...]:
        """What the bpftrace recorder read, in time order (``ts_ns``: exact).

        Raises `Incomplete` if it is known to have missed some, unless ``partly``.
        """
        if partly:
            return _named(self._recorded, name)
        missing = self.skipped
        if missing is not None:
            missing = {**missing, **self.unexplained}
            names = missing if name is None else (name,)
            short = any(missing.get(event, 0) for event in names)
        again = [event for event in self.repeated if name in (None, event)]
        if again:
            raise Incomplete(
                f"workload {self.name}: bpftrace's recorder printed some {again[0]} "
                "twice"
            )
        if missing is None or short:
            subject = "events" if name is None else name
            raise Incomplete(
                f"workload {self.name}: bpftrace's recorder missed some {subject}"
            )
        return _named(self._recorded, name)

    def values(self, name: str, field: str, /, **others: Any) -> list[Any]:
        """``field`` of each record of ``name`` whose ``others`` have these values."""
        return [
            event.fields[field]
            for event in self.record(name)
            if all(event.fields[key] == value for key, value in others.items())
        ]

    @property
    def errors(self) -> tuple[Mapping[str, Any], ...]:
        """The agent's errors, as in agent.json."""
        first = self.facts.get("error")
        return tuple(self.facts.get("errors") or ([first] if first else []))

    @functools.cached_property
    def skipped(self) -> Mapping[str, int] | None:
        """How many of each event, by name, bpftrace's recorder did not get; None if
        that is unknown.

        The kernel does not run a program for an event that fires while the CPU runs
        another, and counts it.  ftrace records all, so the difference of both is what
        was skipped.  That takes a complete ftrace, each record of bpftrace among
        ftrace's, and a difference of exactly as many as the kernel counted.  Bare
        tracepoints have no second reader.
        """
        facts = self.facts
        tracer = facts.get("tracers", {}).get("record", {})
        missed = int(tracer.get("missed", 0))
        if not missed:
            return {}
        lost = (facts.get("trace") or {}).get("lost"), tracer.get("lost") or 0
        if facts.get("bare") or set(facts.get("record", ())) - set(self._common_events):
            return None
        counts = self._shortfall
        if lost != (0, 0) or counts is None or sum(counts.values()) != missed:
            return None
        return counts

    @functools.cached_property
    def unexplained(self) -> Mapping[str, int]:
        """How many records of each event, by name, only ftrace has, though the kernel
        says that it skipped none.

        All that bpftrace has is in ftrace.  perf, by which the kernel runs the
        programs, drops an event that fires while it handles another, without a count.
        """
        if self.facts.get("tracers", {}).get("record", {}).get("missed"):
            return {}
        return {name: count for name, count in (self._shortfall or {}).items() if count}

    @functools.cached_property
    def repeated(self) -> Mapping[str, int]:
        """How many records of each event, by name, bpftrace printed again.

        To run the recorder's program once takes longer than the clock that it reads
        needs for its next ns, so two firings on one CPU differ in ``ts_ns``: records
        that do not are one firing, of which bpftrace printed the record twice.
        """
        if not self.facts.get("record"):
            return {}
        try:
            events = self._recorded
        except (EvidenceError, records.Malformed):
            return {}
        times = Counter((event.name, event.cpu, event.ts_ns) for event in events)
        again: Counter[str] = Counter()
        for (name, _, _), count in times.items():
            if count > 1:
                again[name] += count - 1
        return again

    @property
    def _common_events(self) -> tuple[str, ...]:
        """The events that both ftrace and bpftrace's recorder watched."""
        traced = self.facts.get("events", ())
        return tuple(event for event in self.facts.get("record", ()) if event in traced)

    @functools.cached_property
    def _shortfall(self) -> Mapping[str, int] | None:
        """How many records of each event are only in ftrace; None if one is only in
        bpftrace, or if there are no records to compare."""
        counts = {}
        for event in self._common_events:
            name = event.partition(":")[2]
            try:
                agreement = self.agreement(name)
            except (EvidenceError, records.Malformed):
                return None
            if agreement.recorded - agreement.traced:
                return None
            counts[name] = (agreement.traced - agreement.recorded).total()
        return counts

    @functools.cached_property
    def _agreements(self) -> dict[str, Agreement]:
        return {}

    def agreement(self, name: str) -> Agreement:
        """Both readers' records of an event, ready to be compared."""
        if name not in self._agreements:
            traced, recorded = self.events(name), self.record(name, partly=True)
            agreement = _agreement(traced, recorded)
            if outside := self._outside(agreement, recorded):
                left_out = set(map(id, outside))
                inside = tuple(event for event in recorded if id(event) not in left_out)
                agreement = _agreement(traced, inside, len(outside))
            self._agreements[name] = agreement
        return self._agreements[name]

    def _outside(
        self, agreement: Agreement, recorded: Sequence[records.Event]
    ) -> list[records.Event]:
        """The records that only bpftrace has, from before the program began or after
        it ended.

        ftrace is on for as long as the program runs; bpftrace is attached earlier and
        detached later, so it may have seen what others did before or after that.
        """
        began, ended = (self.facts.get(fact) for fact in ("began_ns", "ended_ns"))
        surplus = agreement.recorded - agreement.traced
        outside: list[records.Event] = []
        if began is None or ended is None or not surplus:
            return outside
        for event in recorded:
            key = agreement.key(event)
            if not began <= event.ts_ns <= ended and surplus[key] > 0:
                surplus[key] -= 1
                outside.append(event)
        return outside

    @functools.cached_property
    def troubles(self) -> tuple[str, ...]:
        """Failures of the apparatus, because of which this workload proves nothing."""
        troubles = [
            str(error.get("message", error.get("kind"))).partition("\n")[0].rstrip(":")
            for error in self.errors
            if errors.fault_of(error) == "apparatus" and not self.is_known(error)
        ]
        if troubles:
            return tuple(dict.fromkeys(troubles))
        # The agent makes errors of these as well, but these are the facts.
        if lost := (self.facts.get("trace") or {}).get("lost"):
            troubles.append(f"ftrace: {lost} events lost")
        for name, tracer in self.facts.get("tracers", {}).items():
            if lost := tracer.get("lost"):
                troubles.append(f"bpftrace {name}: {lost} events lost")
            missed = tracer.get("missed")
            if missed and not (name == "record" and self.skipped is not None):
                troubles.append(f"bpftrace {name}: {missed} events skipped")
        for name, count in self.unexplained.items():
            troubles.append(
                f"bpftrace record: {count} records of {name} are missing that ftrace "
                "has, and the kernel counted none as skipped"
            )
        for name, count in self.repeated.items():
            troubles.append(
                f"bpftrace record: {count} records of {name} are there twice, with the "
                "same time"
            )
        if self.facts.get("status") == "timeout" and not troubles:
            troubles.append("it did not end in time")
        return tuple(dict.fromkeys(troubles))

    def is_known(self, error: Mapping[str, Any]) -> bool:
        """Whether ``error`` is about events that ftrace is known to have."""
        return (
            error.get("kind") == errors.SkippedEvents.kind
            and error.get("tracer") == "record"
            and self.skipped is not None
        )

    @functools.cached_property
    def _raw(self) -> tuple[records.Event, ...]:
        directory = self.dir / "pages"
        if not directory.is_dir():
            raise EvidenceError(f"the guest left no {self.name}/pages")
        return tuple(
            event
            for path in sorted(directory.iterdir())
            for event in ring.records(
                path.read_bytes(),
                int(path.name.removeprefix("cpu")),
                self.layouts.values(),
            )
        )

    def raw(self, name: str | None = None) -> tuple[records.Event, ...]:
        """The records of `events` as they were in memory, CPU by CPU, in time order."""
        return _named(self._raw, name)

    def older(self, *new: str) -> tuple[records.Event, ...]:
        """The records of `events` except those called ``new``."""
        return tuple(event for event in self.events() if event.name not in new)

    def decoded(self, file: str) -> str:
        """What another decoder (perf, trace-cmd) printed of the records."""
        return self._text(file)

    def bpftrace(self, script: str) -> records.Output:
        """What a script of `scripts/`, named without its suffix, printed."""
        return records.bpftrace(self._text(f"bpftrace-{script}.json"))

    @functools.cached_property
    def injected(self) -> tuple[records.Injected, ...]:
        """What QEMU's monitor did at the program's request, in order."""
        if not (self.dir / "injected.json").exists():
            return ()
        return records.injected(self._text("injected.json"))

    def _text(self, name: str) -> str:
        path = self.dir / name
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError as error:
            raise EvidenceError(f"the guest left no {self.name}/{name}") from error


@dataclass(frozen=True)
class Agreement:
    """The records of ftrace and of bpftrace, as far as they can be compared.

    ``common`` are the fields that both have; ftrace prints the ``named`` ones of them
    as names, so these are not compared.  ``inside`` are bpftrace's records, without
    ``outside`` ones from when ftrace may have been off.
    """

    common: frozenset[str]
    named: frozenset[str]
    traced: Counter[str]
    recorded: Counter[str]
    inside: tuple[records.Event, ...] = ()
    outside: int = 0

    def key(self, event: records.Event) -> str:
        """The values of ``event`` that are compared."""
        return str([event.fields[name] for name in sorted(self.common - self.named)])


def _agreement(
    traced: Sequence[records.Event],
    recorded: Sequence[records.Event],
    outside: int = 0,
) -> Agreement:
    traced_fields = [event.fields for event in traced]
    recorded_fields = [event.fields for event in recorded]
    common = (
        frozenset(traced_fields[0]) & frozenset(recorded_fields[0])
        if traced_fields and recorded_fields
        else frozenset()
    )
    # ftrace prints an enum or a function by name.
    named = frozenset(
        key
        for key in common
        if isinstance(traced_fields[0][key], str)
        and isinstance(recorded_fields[0][key], int)
    )
    keys = sorted(common - named)
    # Events of two CPUs within one microsecond may be in either order.
    left, right = (
        Counter(str([fields[key] for key in keys]) for fields in side)
        for side in (traced_fields, recorded_fields)
    )
    return Agreement(common, named, left, right, tuple(recorded), outside)


def _named(
    events: tuple[records.Event, ...], name: str | None
) -> tuple[records.Event, ...]:
    return tuple(event for event in events if name is None or event.name == name)


@dataclass(frozen=True)
class Evidence:
    """The results of one guest, by workload.

    ``unreadable`` has events whose format cannot be read, each with the reason.
    """

    dir: Path
    agent: Mapping[str, Any]
    workloads: Mapping[str, WorkloadResult]
    layouts: Mapping[str, records.Layout]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of programs in the guest."""
        return dict(self.agent.get("versions", {}))

    def workload(self, name: str) -> WorkloadResult:
        """One workload's results; raises `EvidenceError` if it has none."""
        if name not in self.workloads:
            raise EvidenceError(f"the guest has no results of workload {name}")
        return self.workloads[name]

    @functools.cached_property
    def impaired(self) -> Mapping[str, str]:
        """Workloads that a failure of the apparatus spoilt, each with the reason."""
        return {
            name: f"workload {name}: {'; '.join(load.troubles)}"
            for name, load in self.workloads.items()
            if load.troubles
        }

    @property
    def complete(self) -> bool:
        """Whether no reader of any workload missed anything."""
        return not self.impaired and not any(
            sum((load.skipped or {}).values()) for load in self.workloads.values()
        )

    def layout(self, event: str) -> records.Layout:
        """The record of ``system:name`` as the kernel declared it.

        Raises `EvidenceError` if it did not, or if its format cannot be read.
        """
        if event in self.unreadable:
            raise EvidenceError(
                self.unreadable[event],
                next="read that file, which the guest's kernel printed",
            )
        if event not in self.layouts:
            raise EvidenceError(
                f"the guest's kernel has no event {event}",
                next="see whether a patch adds it, and the series' kconfig enables it",
            )
        return self.layouts[event]


def load(directory: Path) -> Evidence:
    """Read the results of a guest; raises `EvidenceError` if they are incomplete.

    A format that cannot be read only matters to the checks that need it.
    """
    path = directory / "agent.json"
    try:
        agent = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: {error}") from error
    if not isinstance(agent, dict):
        raise EvidenceError(f"{path}: not an object")
    layouts: dict[str, records.Layout] = {}
    unreadable: dict[str, str] = {}
    for file in sorted((directory / "formats").glob("*/*")):
        text = file.read_text(encoding="utf-8", errors="replace")
        try:
            layout = records.parse_layout(text, file.parent.name)
        except records.Malformed as error:
            unreadable[f"{file.parent.name}:{file.name}"] = f"{file}: {error}"
        else:
            layouts[layout.event] = layout
    workloads = {
        facts["name"]: WorkloadResult(
            facts["name"], directory / facts["name"], layouts, facts
        )
        for facts in agent.get("workloads", [])
    }
    return Evidence(directory, agent, workloads, layouts, unreadable)


CheckFunction = Callable[[Evidence], Verdict]


def judge(series: Series, saved: Evidence) -> tuple[Check, ...]:
    """Judge every check that ``series`` declares, in that order.

    A check with a workload that a failure of the apparatus spoilt is not decided,
    whether its comparisons hold or not: what should not happen may merely have gone
    unseen.  Checks that the guests' architecture cannot have are skipped.
    """
    by_name = functions(series)
    judged = tuple(
        judge_check(
            check.name,
            check.kind,
            check.claim,
            by_name[check.name],
            saved,
            check.workloads,
        )
        for check in series.spec.check
    )
    return (*judged, *_skipped(series))


def _skipped(series: Series) -> Iterator[Check]:
    for check, because in series.skipped:
        outcome = run_check(
            check.name, check.kind, check.claim, Verdict().skip, because
        )
        outcome.workloads = list(check.workloads)
        yield outcome


def functions(series: Series) -> dict[str, CheckFunction]:
    """The functions of ``checks.py``, by the name of the check that each judges."""
    module = _checks_module(series)
    return {check.name: getattr(module, check.name) for check in series.spec.check}


def judge_check(
    name: str,
    kind: Kind,
    claim: str,
    function: CheckFunction,
    saved: Evidence,
    workloads: Sequence[str] = (),
) -> Check:
    """Judge one check of a guest, as far as its workloads allow it.

    Its workloads are ``workloads``, and all that it looks at.
    """
    if not saved.impaired:
        check = run_check(name, kind, claim, function, saved)
        check.workloads = list(workloads)
        return check
    loads = _Tracked(saved.workloads)
    watched = dataclasses.replace(saved, workloads=loads)
    check = run_check(name, kind, claim, function, watched)
    check.workloads = list(workloads)
    causes = [
        cause
        for load, cause in saved.impaired.items()
        if load in workloads or load in loads.names
    ]
    if not causes or check.status == "skip":
        return check
    if any(_decides(comparison, saved.impaired) for comparison in check.comparisons):
        return check
    check.status, check.tainted = "error", True
    check.detail = f"could not judge: {'; '.join(causes)}"
    return check


def _decides(comparison: Comparison, impaired: Mapping[str, str]) -> bool:
    """Whether this comparison fails for another reason than ``impaired`` workloads."""
    if comparison.ok or not comparison.workload:
        return False
    return comparison.firm or comparison.workload not in impaired


class _Tracked(Mapping[str, WorkloadResult]):
    """A mapping of workloads that notes the ``names`` of those that were looked up."""

    def __init__(self, loads: Mapping[str, WorkloadResult]) -> None:
        self._loads = loads
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> WorkloadResult:
        workload = self._loads[name]
        self.names.add(name)
        return workload

    def __iter__(self) -> Iterator[str]:
        return iter(self._loads)

    def __len__(self) -> int:
        return len(self._loads)


def _checks_module(series: Series) -> ModuleType:
    """The series' ``checks.py``, without leaving byte code in the checkout."""
    path = series.dir / "checks.py"
    name = f"kstall_checks_{series.name.replace('-', '_')}"
    loader = _Unwritten(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up here when it is defined.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise KstallError(f"{path} cannot be loaded: {error}") from error
    return module


class _Unwritten(importlib.machinery.SourceFileLoader):
    """Loads a module without keeping its byte code."""

    def set_data(self, path: str, data: object, *, _mode: int = 0o666) -> None:
        """Write nothing."""
