# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest brought back, and the checks that judge it.

Judging is pure: it reads saved results and boots nothing, so an old run can be judged
again by a new check.  A check is a function ``(Evidence) -> Verdict`` in a series'
``checks.py``; its verdict is a list of comparisons, each with what was expected and
what was observed, and an empty list is an error, because it would prove nothing.
"""

from __future__ import annotations

import dataclasses
import functools
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


class EvidenceError(KstallError):
    """Results that are not there or cannot be read."""


class Incomplete(EvidenceError, Tainted):
    """Records of a reader that is known to have missed some."""


@dataclass(frozen=True)
class WorkloadResult:
    """What one workload left in its directory."""

    name: str
    dir: Path
    layouts: Mapping[str, records.Layout]
    facts: Mapping[str, Any]

    @property
    def exit_status(self) -> int | None:
        """The program's own exit status, or None if it did not come to one."""
        value = self.facts.get("exit_status")
        return None if value is None else int(value)

    @property
    def seconds(self) -> float:
        """How long the program ran, in guest seconds."""
        return float(self.facts["seconds"])

    @property
    def stdout(self) -> str:
        """All that the program printed."""
        return self._text("stdout")

    @property
    def kmsg(self) -> str:
        """The kernel's log while the workload ran."""
        return self._text("kmsg.txt")

    @functools.cached_property
    def _traced(self) -> records.Trace:
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
        return _named(self._traced.events, name)

    def record(
        self, name: str | None = None, *, partly: bool = False
    ) -> tuple[records.Event, ...]:
        """What the bpftrace recorder read, in time order, to the nanosecond.

        Raises `Incomplete` if it is known to have missed some, unless ``partly``.
        """
        if partly:
            return _named(self._recorded, name)
        missing = self.skipped
        if missing is not None:
            missing = {**missing, **self.unexplained}
            names = missing if name is None else (name,)
            short = any(missing.get(one, 0) for one in names)
        if missing is None or short:
            what = "events" if name is None else name
            raise Incomplete(
                f"workload {self.name}: bpftrace's recorder has not all {what}"
            )
        return _named(self._recorded, name)

    @property
    def errors(self) -> tuple[Mapping[str, Any], ...]:
        """What the agent had to complain about, as in agent.json."""
        first = self.facts.get("error")
        return tuple(self.facts.get("errors") or ([first] if first else []))

    @functools.cached_property
    def skipped(self) -> Mapping[str, int] | None:
        """How many of each event, by name, bpftrace's recorder did not get; None if
        that cannot be told.

        The kernel does not run a program for an event that fires while the CPU runs
        another, and counts it.  ftrace keeps all, so that the difference of both is
        what was skipped, and it is known which.  That needs a complete ftrace, each
        record of bpftrace among ftrace's, and no more and no fewer left over than the
        kernel counted.  Bare tracepoints have no second reader.
        """
        facts = self.facts
        tracer = facts.get("tracers", {}).get("record", {})
        missed = int(tracer.get("missed", 0))
        if not missed:
            return {}
        whole = (facts.get("trace") or {}).get("lost") == 0 and not tracer.get("lost")
        if facts.get("bare") or set(facts.get("record", ())) - set(self._twice):
            return None
        found = self._fewer
        if not whole or found is None or sum(found.values()) != missed:
            return None
        return found

    @functools.cached_property
    def unexplained(self) -> Mapping[str, int]:
        """How many records of each event, by name, ftrace has and bpftrace has not,
        though the kernel says that it skipped none.

        All that bpftrace has is in ftrace.  perf, by which the kernel runs the
        programs, drops an event that fires while it handles another, without a count.
        """
        if self.facts.get("tracers", {}).get("record", {}).get("missed"):
            return {}
        return {name: count for name, count in (self._fewer or {}).items() if count}

    @property
    def _twice(self) -> tuple[str, ...]:
        """The events that both ftrace and bpftrace's recorder watched."""
        traced = self.facts.get("events", ())
        return tuple(one for one in self.facts.get("record", ()) if one in traced)

    @functools.cached_property
    def _fewer(self) -> Mapping[str, int] | None:
        """How many records of each event are only in ftrace; None if one is only in
        bpftrace's, or there are no records to be compared."""
        found = {}
        for event in self._twice:
            name = event.partition(":")[2]
            try:
                held = self.agreement(name)
            except (EvidenceError, records.Malformed):
                return None
            if held.recorded - held.traced:
                return None
            found[name] = (held.traced - held.recorded).total()
        return found

    @functools.cached_property
    def _agreements(self) -> dict[str, Agreement]:
        return {}

    def agreement(self, name: str) -> Agreement:
        """Both readers' records of an event, in a form that can be compared."""
        if name not in self._agreements:
            traced, recorded = self.events(name), self.record(name, partly=True)
            held = _agreement(traced, recorded)
            if outside := self._outside(held, recorded):
                left_out = set(map(id, outside))
                inside = tuple(one for one in recorded if id(one) not in left_out)
                held = _agreement(traced, inside, len(outside))
            self._agreements[name] = held
        return self._agreements[name]

    def _outside(
        self, held: Agreement, recorded: Sequence[records.Event]
    ) -> list[records.Event]:
        """What only bpftrace has, of before the program began or after it ended.

        bpftrace is attached before ftrace is switched on, and goes on when that is off
        again, while ftrace is on for all the time that the program runs: what anybody
        else did before or after that may be in one of them.
        """
        began, ended = (self.facts.get(one) for one in ("began_ns", "ended_ns"))
        surplus = held.recorded - held.traced
        found: list[records.Event] = []
        if began is None or ended is None or not surplus:
            return found
        for event in recorded:
            key = held.key(event)
            if not began <= event.ts_ns <= ended and surplus[key] > 0:
                surplus[key] -= 1
                found.append(event)
        return found

    @functools.cached_property
    def troubles(self) -> tuple[str, ...]:
        """What of the apparatus failed this workload, so that it proves nothing."""
        found = [
            str(error.get("message", error.get("kind"))).partition("\n")[0].rstrip(":")
            for error in self.errors
            if errors.fault_of(error) == "apparatus" and not self.is_known(error)
        ]
        if found:
            return tuple(dict.fromkeys(found))
        # Of which the agent makes errors as well, but these are the facts.
        if lost := (self.facts.get("trace") or {}).get("lost"):
            found.append(f"ftrace: {lost} events lost")
        for name, tracer in self.facts.get("tracers", {}).items():
            if lost := tracer.get("lost"):
                found.append(f"bpftrace {name}: {lost} events lost")
            missed = tracer.get("missed")
            if missed and not (name == "record" and self.skipped is not None):
                found.append(f"bpftrace {name}: {missed} events skipped")
        for name, count in self.unexplained.items():
            found.append(
                f"bpftrace record: {count} records of {name} that ftrace has are not "
                "there, and the kernel does not know why"
            )
        if self.facts.get("status") == "timeout" and not found:
            found.append("it did not end in time")
        return tuple(dict.fromkeys(found))

    def is_known(self, error: Mapping[str, Any]) -> bool:
        """Whether ``error`` is about events that another reader is known to have."""
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
        """What `events` holds as it stood in memory, CPU by CPU, in time order."""
        return _named(self._raw, name)

    def older(self, *new: str) -> tuple[records.Event, ...]:
        """What `events` holds but for those called ``new``."""
        return tuple(event for event in self.events() if event.name not in new)

    def decoded(self, file: str) -> str:
        """What a decoder of its own printed of the records, as text."""
        return self._text(file)

    def bpftrace(self, script: str) -> records.Output:
        """What a script of `scripts/`, named without its suffix, printed."""
        return records.bpftrace(self._text(f"bpftrace-{script}.json"))

    @functools.cached_property
    def injected(self) -> tuple[records.Injected, ...]:
        """What QEMU's monitor did because the program asked, in that order."""
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
    """The records of ftrace and of bpftrace as far as both tell the same of them.

    ``common`` are the fields that both tell; of these ``named`` ones are printed as a
    name by ftrace, so they are not part of what is compared.  ``outside`` of what
    bpftrace recorded are left out, as ftrace may have been off then.
    """

    common: frozenset[str]
    named: frozenset[str]
    traced: Counter[str]
    recorded: Counter[str]
    kept: tuple[records.Event, ...] = ()
    outside: int = 0

    def key(self, event: records.Event) -> str:
        """What of ``event`` is compared."""
        return str([event.fields[one] for one in sorted(self.common - self.named)])


def _agreement(
    traced: Sequence[records.Event],
    recorded: Sequence[records.Event],
    outside: int = 0,
) -> Agreement:
    one = [event.fields for event in traced]
    two = [event.fields for event in recorded]
    common = frozenset(one[0]) & frozenset(two[0]) if one and two else frozenset()
    # ftrace prints an enum or a function by name.
    named = frozenset(
        key
        for key in common
        if isinstance(one[0][key], str) and isinstance(two[0][key], int)
    )
    keys = sorted(common - named)
    # Events of two CPUs within one microsecond may stand in either order.
    left, right = (
        Counter(str([fields[key] for key in keys]) for fields in side)
        for side in (one, two)
    )
    return Agreement(common, named, left, right, tuple(recorded), outside)


def _named(
    events: tuple[records.Event, ...], name: str | None
) -> tuple[records.Event, ...]:
    return tuple(event for event in events if name is None or event.name == name)


@dataclass(frozen=True)
class Evidence:
    """The results of one guest, by workload.

    ``unreadable`` says of events whose format is none that can be read why not.
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
        """Workloads that the apparatus failed, by name, each with the reason."""
        return {
            name: f"workload {name}: {'; '.join(load.troubles)}"
            for name, load in self.workloads.items()
            if load.troubles
        }

    @property
    def whole(self) -> bool:
        """Whether no reader of any workload missed anything."""
        return not self.impaired and not any(
            sum((load.skipped or {}).values()) for load in self.workloads.values()
        )

    def layout(self, event: str) -> records.Layout:
        """The record of ``system:name`` as the kernel declared it.

        Raises `EvidenceError` if it did not, or in a way that cannot be read.
        """
        if event in self.unreadable:
            raise EvidenceError(self.unreadable[event])
        if event not in self.layouts:
            raise EvidenceError(f"the guest's kernel has no event {event}")
        return self.layouts[event]


def load(directory: Path) -> Evidence:
    """Read the results of a guest; raises `EvidenceError` if they are not whole.

    A format that cannot be read is the business of the checks that need it.
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


Function = Callable[[Evidence], Verdict]


def judge(series: Series, saved: Evidence) -> tuple[Check, ...]:
    """Judge every check that ``series`` declares, in that order.

    One of which a workload was failed by the apparatus is not decided, whether its
    comparisons hold or not: what should not happen may only not have been seen.  Those
    that the guests' architecture cannot have are skipped.
    """
    found = functions(series)
    judged = tuple(
        judge_check(
            check.name,
            check.kind,
            check.claim,
            found[check.name],
            saved,
            check.workloads,
        )
        for check in series.spec.check
    )
    return (*judged, *_skipped(series))


def _skipped(series: Series) -> Iterator[Check]:
    for check, because in series.skipped:
        verdict = Verdict()
        verdict.skip(because)
        made = run_check(
            *(check.name, check.kind, check.claim),
            lambda verdict: verdict,
            verdict,
        )
        made.workloads = list(check.workloads)
        yield made


def functions(series: Series) -> dict[str, Function]:
    """The functions of ``checks.py``, by the name of the check that each judges."""
    module = _checks_module(series)
    return {check.name: getattr(module, check.name) for check in series.spec.check}


def judge_check(
    name: str,
    kind: Kind,
    claim: str,
    function: Function,
    saved: Evidence,
    workloads: Sequence[str] = (),
) -> Check:
    """Judge one check of a guest, as far as its workloads allow it.

    Those are ``workloads``, and all that it looks at.
    """
    if not saved.impaired:
        result = run_check(name, kind, claim, function, saved)
        result.workloads = list(workloads)
        return result
    seen = _Seen(saved.workloads)
    watched = dataclasses.replace(saved, workloads=seen)
    result = run_check(name, kind, claim, function, watched)
    result.workloads = list(workloads)
    causes = [
        why
        for load, why in saved.impaired.items()
        if load in workloads or load in seen.names
    ]
    if not causes or result.status == "skip":
        return result
    if any(_decides(one, saved.impaired) for one in result.comparisons):
        return result
    result.status, result.tainted = "error", True
    result.detail = f"could not judge: {'; '.join(causes)}"
    return result


def _decides(one: Comparison, impaired: Mapping[str, str]) -> bool:
    """Whether this comparison fails for a reason that has nothing to do with those."""
    if one.ok or not one.workload:
        return False
    return one.firm or one.workload not in impaired


class _Seen(Mapping[str, WorkloadResult]):
    """Workloads, and the ``names`` of those that were looked at."""

    def __init__(self, loads: Mapping[str, WorkloadResult]) -> None:
        self._loads = loads
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> WorkloadResult:
        found = self._loads[name]
        self.names.add(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._loads)

    def __len__(self) -> int:
        return len(self._loads)


def _checks_module(series: Series) -> ModuleType:
    """The series' ``checks.py``, without leaving byte code in the checkout."""
    path = series.dir / "checks.py"
    name = f"kstall_checks_{series.name.replace('-', '_')}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    # A dataclass looks its module up here when it is defined.
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise KstallError(f"{path} cannot be loaded: {error}") from error
    finally:
        sys.dont_write_bytecode = before
    return module
