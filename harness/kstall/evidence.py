# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest brought back, and the checks that judge it.

Judging is pure: it reads saved results and boots nothing, so an old run can be judged
again by a new check.  A check is a function ``(Evidence) -> Verdict`` in a series'
``checks.py``; its verdict is a list of comparisons, each with what was expected and
what was observed, and an empty list is an error, because it would prove nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from . import records, ring
from .errors import KstallError
from .series import Series

Status = Literal["pass", "fail", "skip", "error"]


class EvidenceError(KstallError):
    """Results that are not there or cannot be read."""


Value = int | float | str | bool
Relation = Literal["=", ">=", "<=", "in", "holds"]


@dataclass(frozen=True)
class Comparison:
    """One expectation held against one observation, as data.

    ``observed`` has to stand in ``relation`` to ``expected``, a pair for ``in``; both
    are in ``unit``, numbers as numbers.  What is no plain value is there as Python
    writes it.  ``detail`` is what else was seen.
    """

    label: str
    relation: Relation
    expected: Value | tuple[Value, Value]
    observed: Value
    ok: bool
    unit: str = ""
    detail: str = ""


@dataclass
class Verdict:
    """The comparisons of one check, in the order they were made."""

    comparisons: list[Comparison] = field(default_factory=list)
    skipped: str | None = None
    undecided: str | None = None

    def equal(self, label: str, observed: object, expected: object) -> None:
        """``observed`` has to be ``expected``."""
        ok = bool(observed == expected)
        self._add(Comparison(label, "=", _plain(expected), _plain(observed), ok))

    def at_least(self, label: str, observed: float, low: float, unit: str = "") -> None:
        """``observed`` has to be ``low`` or more; both in ``unit``."""
        self._add(Comparison(label, ">=", low, observed, observed >= low, unit))

    def at_most(self, label: str, observed: float, high: float, unit: str = "") -> None:
        """``observed`` has to be ``high`` or less; both in ``unit``."""
        self._add(Comparison(label, "<=", high, observed, observed <= high, unit))

    def within(
        self, label: str, observed: float, low: float, high: float, unit: str = ""
    ) -> None:
        """``observed`` has to lie in [low, high]; all in ``unit``."""
        ok = low <= observed <= high
        self._add(Comparison(label, "in", (low, high), observed, ok, unit))

    def true(self, label: str, holds: bool, detail: str = "") -> None:
        """``holds`` has to be true; ``detail`` says what was seen."""
        holds = bool(holds)
        self._add(Comparison(label, "holds", True, holds, holds, detail=detail))

    def skip(self, reason: str) -> None:
        """This check cannot be made here, and ``reason`` says why."""
        if not reason:
            raise ValueError("a skip needs a reason")
        self.skipped = reason

    def undecide(self, reason: str) -> None:
        """What was compared says nothing without what ``reason`` says is missing."""
        if not reason:
            raise ValueError("no verdict needs a reason")
        self.undecided = reason

    def _add(self, comparison: Comparison) -> None:
        self.comparisons.append(comparison)


def _plain(value: object) -> Value:
    return value if isinstance(value, int | float | str) else str(value)


@dataclass(frozen=True)
class CheckResult:
    """A judged check; ``detail`` is the reason of a skip or the trace of an error."""

    name: str
    kind: str
    claim: str
    status: Status
    comparisons: tuple[Comparison, ...]
    detail: str = ""


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

    def record(self, name: str | None = None) -> tuple[records.Event, ...]:
        """What the bpftrace recorder read, in time order, to the nanosecond."""
        return _named(self._recorded, name)

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


def _named(
    events: tuple[records.Event, ...], name: str | None
) -> tuple[records.Event, ...]:
    return tuple(event for event in events if name is None or event.name == name)


@dataclass(frozen=True)
class Evidence:
    """The results of one guest, by workload."""

    dir: Path
    agent: Mapping[str, Any]
    workloads: Mapping[str, WorkloadResult]
    layouts: Mapping[str, records.Layout]

    @property
    def versions(self) -> dict[str, str]:
        """Versions of programs in the guest."""
        return dict(self.agent.get("versions", {}))

    def workload(self, name: str) -> WorkloadResult:
        """One workload's results; raises `EvidenceError` if it has none."""
        if name not in self.workloads:
            raise EvidenceError(f"the guest has no results of workload {name}")
        return self.workloads[name]

    def layout(self, event: str) -> records.Layout:
        """The record of ``system:name`` as the kernel declared it."""
        if event not in self.layouts:
            raise EvidenceError(f"the guest's kernel has no event {event}")
        return self.layouts[event]


def load(directory: Path) -> Evidence:
    """Read the results of a guest; raises `EvidenceError` if they are not whole."""
    path = directory / "agent.json"
    try:
        agent = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: {error}") from error
    if not isinstance(agent, dict):
        raise EvidenceError(f"{path}: not an object")
    layouts = {
        (layout := records.parse_layout(file.read_text(), file.parent.name)).event: (
            layout
        )
        for file in sorted((directory / "formats").glob("*/*"))
    }
    workloads = {
        facts["name"]: WorkloadResult(
            facts["name"], directory / facts["name"], layouts, facts
        )
        for facts in agent.get("workloads", [])
    }
    return Evidence(directory, agent, workloads, layouts)


Function = Callable[[Evidence], Verdict]
_Saved = TypeVar("_Saved")


def judge(series: Series, saved: Evidence) -> tuple[CheckResult, ...]:
    """Judge every check that ``series`` declares, in that order."""
    module = _checks_module(series)
    return tuple(
        run_check(
            check.name, check.kind, check.claim, getattr(module, check.name), saved
        )
        for check in series.spec.check
    )


def run_check(
    name: str,
    kind: str,
    claim: str,
    function: Callable[[_Saved], Verdict],
    saved: _Saved,
) -> CheckResult:
    """Judge one check; whatever it raises is an error of this check only."""
    try:
        verdict = function(saved)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"{name} returned no Verdict but {verdict!r}")
        if verdict.skipped is not None:
            status: Status = "skip"
        elif not verdict.comparisons:
            raise ValueError(f"{name} compared nothing, so it proves nothing")
        elif verdict.undecided is not None:
            status = "error"
        else:
            good = all(item.ok for item in verdict.comparisons)
            status = "pass" if good else "fail"
    except KstallError as error:
        return CheckResult(name, kind, claim, "error", (), str(error))
    except Exception:
        return CheckResult(name, kind, claim, "error", (), traceback.format_exc())
    detail = verdict.skipped or verdict.undecided or ""
    return CheckResult(name, kind, claim, status, tuple(verdict.comparisons), detail)


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
