# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks: comparisons, and the verdict that follows from them.

A check is a function of its evidence that returns a `Verdict`: a list of comparisons,
each with what was expected and what was observed.  An empty list is an error, because
it would prove nothing.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, TypeVarTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from ..base import KstallError

Status = Literal["pass", "fail", "skip", "error"]


class Tainted(KstallError):
    """The evidence is incomplete, because the apparatus failed."""


class EventRecord(Protocol):
    """A record of an event, as far as it is shown."""

    @property
    def name(self) -> str:
        """The event's name, without its system."""

    @property
    def ts_ns(self) -> int:
        """CLOCK_MONOTONIC."""

    @property
    def cpu(self) -> int:
        """The processor."""

    @property
    def pid(self) -> int:
        """The thread."""

    @property
    def fields(self) -> Mapping[str, object]:
        """The event's own values, by name."""


def described(record: EventRecord) -> str:
    """Where and when ``record`` is from, and its values, in one line."""
    fields = " ".join(f"{key}={value}" for key, value in record.fields.items())
    where = f"{record.ts_ns / 1e9:.6f} s, CPU {record.cpu}, pid {record.pid}"
    return f"at {where}: {fields}"


class Model(BaseModel):
    """What reports are made of: readers ignore fields that a newer kstall added."""

    model_config = ConfigDict(extra="ignore")


class Excerpt(Model):
    """Lines that show why something did not pass; short, and plain text."""

    title: str
    file: str | None = Field(
        default=None, description="where they are from, a path in the run directory"
    )
    lines: list[str]


class Explanation(Model):
    """What to read and what to do about a check or a stage that did not pass."""

    excerpts: list[Excerpt] = []
    files: list[str] = Field(
        default=[], description="files that show more, paths in the run directory"
    )
    again: list[str] = Field(default=[], description="commands that try again")


#: In this order: a whole number must not be read as a yes.
Value = StrictBool | StrictInt | StrictFloat | StrictStr


Relation = Literal["=", ">=", "<=", "in", "holds"]


class Comparison(Model):
    """One expectation of a check held against one observation."""

    label: str
    relation: Relation = Field(
        description="of observed to expected; in: between its two numbers"
    )
    expected: Value | tuple[Value, Value]
    observed: Value
    ok: bool
    unit: str = Field(default="", description="of expected and observed")
    detail: str = Field(default="", description="what else was seen")
    workload: str = Field(default="", description="if it is about one only")
    record: str = Field(
        default="", description="the first record because of which it does not hold"
    )
    # It holds whatever the readers of that workload lost.
    firm: bool = Field(default=False, exclude=True)

    @field_validator("expected", "observed", mode="before")
    @classmethod
    def _finite(cls, value: object) -> object:
        """Neither infinity nor NaN is a number in JSON: they are written as words."""
        if isinstance(value, tuple | list):
            return tuple(map(cls._finite, value))
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        return value

    @property
    def wanted(self) -> str:
        """``expected``, as a person reads it."""
        if isinstance(self.expected, tuple):
            low, high = map(_shown, self.expected)
            return self._with_unit(f"in [{low}, {high}]")
        if self.relation == "holds":
            return _shown(self.expected)
        return self._with_unit(f"{self.relation} {_shown(self.expected)}")

    @property
    def seen(self) -> str:
        """``observed``, as a person reads it."""
        tail = f" ({self.detail})" if self.detail else ""
        return self._with_unit(_shown(self.observed)) + tail

    def _with_unit(self, text: str) -> str:
        return f"{text} {self.unit}" if self.unit else text


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else value


Kind = Literal[
    "patch",
    "harness",
    "positive",
    "negative",
    "invariant",
    "overhead",
    "abi",
    "debug",
]


class Check(Model):
    """A claim about the series and how it was judged.

    One that is skipped has no comparisons.
    """

    model_config = ConfigDict(
        validate_assignment=True,
        json_schema_extra={
            "if": {"properties": {"status": {"const": "skip"}}},
            "then": {"properties": {"comparisons": {"maxItems": 0}}},
        },
    )

    name: str
    kind: Kind
    claim: str
    status: Status = Field(description="error: it could not be judged")
    comparisons: list[Comparison] = []
    detail: str = Field(
        default="", description="reason of a skip, trace of an error, excerpt"
    )
    tainted: bool = Field(
        default=False,
        description="it could not be judged because the apparatus failed a workload "
        "of it; detail says how",
    )
    workloads: list[str] = Field(default=[], description="those that it judges")
    explanation: Explanation | None = Field(
        default=None, description="of one that failed or could not be judged"
    )

    @property
    def left_open(self) -> bool:
        """Whether it was judged, and all that does not hold is excused."""
        return self.status == "error" and bool(self.comparisons)

    @model_validator(mode="after")
    def _skipped_is_not_compared(self) -> Check:
        # Reports of earlier versions have some, which would look like passes.
        if self.status == "skip":
            self.__dict__["comparisons"] = []
        return self


_Event = TypeVar("_Event", bound=EventRecord)


@dataclass
class Verdict:
    """The comparisons of one check, in the order they were made."""

    comparisons: list[Comparison] = field(default_factory=list)
    skipped: str | None = None
    undecided: str | None = None
    #: What excuses a comparison that does not hold, by its index.
    excuses: dict[int, str] = field(default_factory=dict)
    _workload: str = ""
    _firm: bool = False
    _excuse: str = ""

    @property
    def open(self) -> str:
        """Why there is no verdict; empty if there is one.

        There is none if it is undecided, or if something does not hold, and in either
        case all that does not hold is excused.
        """
        failing = [n for n, compared in enumerate(self.comparisons) if not compared.ok]
        if any(number not in self.excuses for number in failing):
            return ""
        reasons = [] if self.undecided is None else [self.undecided]
        reasons += [self.excuses[number] for number in failing]
        return "; ".join(dict.fromkeys(reasons))

    @contextlib.contextmanager
    def about(self, workload: str, *, firm: bool = False) -> Iterator[None]:
        """What is compared in this block is about ``workload``, see `Comparison`."""
        before = self._workload, self._firm
        self._workload, self._firm = workload, firm
        try:
            yield
        finally:
            self._workload, self._firm = before

    @contextlib.contextmanager
    def excused(self, because: str) -> Iterator[None]:
        """What does not hold in this block may be the fault of the apparatus.

        ``because`` says which; if it is empty, nothing is excused.
        """
        before, self._excuse = self._excuse, because
        try:
            yield
        finally:
            self._excuse = before

    # Of the following, ``record`` is the one that is compared, if it is one.

    def equal(
        self,
        label: str,
        observed: object,
        expected: object,
        *,
        record: EventRecord | None = None,
    ) -> None:
        """``observed`` has to be ``expected``."""
        ok = bool(observed == expected)
        self._add(label, "=", _plain(expected), _plain(observed), ok, record=record)

    def none(self, label: str, records: Collection[EventRecord]) -> None:
        """There has to be none of these ``records``."""
        first = next(iter(records), None)
        self.equal(label, len(records), 0, record=first)

    def each(
        self,
        label: str,
        records: Iterable[_Event],
        value: Callable[[_Event], object],
        expected: object,
    ) -> None:
        """``value`` of each of ``records``, of which there is one at least, has to be
        ``expected``."""
        values: dict[object, EventRecord] = {}
        for record in records:
            values.setdefault(value(record), record)
        other = (record for seen, record in values.items() if seen != expected)
        self.equal(label, {*values}, {expected}, record=next(other, None))

    def at_least(
        self,
        label: str,
        observed: float,
        low: float,
        unit: str = "",
        *,
        record: EventRecord | None = None,
    ) -> None:
        """``observed`` has to be ``low`` or more; both in ``unit``."""
        ok = observed >= low
        self._add(label, ">=", low, observed, ok, unit, record=record)

    def at_most(
        self,
        label: str,
        observed: float,
        high: float,
        unit: str = "",
        *,
        record: EventRecord | None = None,
    ) -> None:
        """``observed`` has to be ``high`` or less; both in ``unit``."""
        ok = observed <= high
        self._add(label, "<=", high, observed, ok, unit, record=record)

    def within(
        self,
        label: str,
        observed: float,
        low: float,
        high: float,
        unit: str = "",
        *,
        record: EventRecord | None = None,
    ) -> None:
        """``observed`` has to lie in [low, high]; all in ``unit``."""
        ok = low <= observed <= high
        self._add(label, "in", (low, high), observed, ok, unit, record=record)

    def true(
        self,
        label: str,
        holds: bool,
        detail: str = "",
        *,
        record: EventRecord | None = None,
    ) -> None:
        """``holds`` has to be true; ``detail`` says what was seen."""
        self._add(
            label,
            "holds",
            expected=True,
            observed=bool(holds),
            ok=bool(holds),
            detail=detail,
            record=record,
        )

    def skip(self, reason: str) -> Verdict:
        """Skip this check, because it cannot be made here; ``reason`` says why.

        It then compares nothing: other observations belong in ``reason``, and a part
        that can be judged alone is a check of its own.  Returns this verdict.
        """
        if not reason:
            raise ValueError("a skip needs a reason")
        self.skipped = reason
        return self

    def undecide(self, reason: str) -> None:
        """Give no verdict, as ``reason`` says what is missing for one.

        What contradicts the claim all the same fails it: what cannot be compared for
        that reason has to be left out, or be `excused`.
        """
        if not reason:
            raise ValueError("no verdict needs a reason")
        self.undecided = reason

    def _add(
        self,
        label: str,
        relation: Relation,
        expected: Value | tuple[Value, Value],
        observed: Value,
        ok: bool,
        unit: str = "",
        detail: str = "",
        record: EventRecord | None = None,
    ) -> None:
        if not ok and self._excuse:
            self.excuses[len(self.comparisons)] = self._excuse
        self.comparisons.append(
            Comparison(
                label=label,
                relation=relation,
                expected=expected,
                observed=observed,
                ok=ok,
                unit=unit,
                detail=detail,
                workload=self._workload,
                record=f"{record.name} {described(record)}"
                if record and not ok
                else "",
                firm=self._firm,
            )
        )


def _plain(value: object) -> Value:
    return value if isinstance(value, int | float | str) else str(value)


_Arguments = TypeVarTuple("_Arguments")


def claim_of(function: Callable[..., object]) -> str:
    """What a check claims: the docstring of its function, in one line."""
    return " ".join((function.__doc__ or "").split())


def run_checks(
    kind: Kind,
    functions: Iterable[Callable[[*_Arguments], Verdict]],
    *arguments: *_Arguments,
) -> tuple[Check, ...]:
    """Judge a check by each function; it has the function's name."""
    return tuple(
        run_check(function.__name__, kind, claim_of(function), function, *arguments)
        for function in functions
    )


def run_check(
    name: str,
    kind: Kind,
    claim: str,
    function: Callable[[*_Arguments], Verdict],
    *arguments: *_Arguments,
) -> Check:
    """Judge one check; whatever it raises is an error of this check only."""
    check = Check(name=name, kind=kind, claim=claim, status="error")
    status: Status = "error"
    try:
        verdict = function(*arguments)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"{name} returned no Verdict but {verdict!r}")
        if verdict.skipped is not None:
            if verdict.comparisons:
                # Each would be reported as a pass.
                raise ValueError(
                    f"{name} is skipped ({verdict.skipped}) and has compared "
                    f"{verdict.comparisons[0].label!r}"
                )
            status = "skip"
        elif not verdict.comparisons and verdict.undecided is None:
            raise ValueError(f"{name} compared nothing, so it proves nothing")
        elif not verdict.open:
            good = all(comparison.ok for comparison in verdict.comparisons)
            status = "pass" if good else "fail"
        check.detail = verdict.skipped or verdict.open
        check.comparisons = verdict.comparisons
        check.status = status
    except Tainted as error:
        check.detail, check.tainted = f"could not judge: {error}", True
    except KstallError as error:
        check.detail = str(error)
    except Exception:
        check.detail = traceback.format_exc()
    return check
