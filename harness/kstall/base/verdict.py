# SPDX-License-Identifier: GPL-2.0-or-later
"""What a check says: comparisons, and the verdict that follows from them.

A check is a function of whatever it judges that returns a `Verdict`: a list of
comparisons, each with what was expected and what was observed.  An empty list is an
error, because it would prove nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from .errors import KstallError

Status = Literal["pass", "fail", "skip", "error"]


class Tainted(KstallError):
    """What is to be judged is not whole, because the apparatus failed."""


Value = int | float | str | bool
Relation = Literal["=", ">=", "<=", "in", "holds"]


@dataclass(frozen=True)
class Comparison:
    """One expectation held against one observation, as data.

    ``observed`` has to stand in ``relation`` to ``expected``, a pair for ``in``; both
    are in ``unit``, numbers as numbers.  What is no plain value is there as Python
    writes it.  ``detail`` is what else was seen.

    ``workload`` is the only one that it is about, or "".  A ``firm`` one says what it
    says whatever the readers of that workload lost.
    """

    label: str
    relation: Relation
    expected: Value | tuple[Value, Value]
    observed: Value
    ok: bool
    unit: str = ""
    detail: str = ""
    workload: str = ""
    firm: bool = False


@dataclass
class Verdict:
    """The comparisons of one check, in the order they were made."""

    comparisons: list[Comparison] = field(default_factory=list)
    skipped: str | None = None
    undecided: str | None = None
    _workload: str = ""
    _firm: bool = False

    @contextlib.contextmanager
    def about(self, workload: str, *, firm: bool = False) -> Iterator[None]:
        """What is compared in this block is about ``workload``, see `Comparison`."""
        before = self._workload, self._firm
        self._workload, self._firm = workload, firm
        try:
            yield
        finally:
            self._workload, self._firm = before

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
        """This check cannot be made here, and ``reason`` says why.

        It then compares nothing: what was seen all the same belongs in ``reason``, and
        a part that can be judged alone is a check of its own.
        """
        if not reason:
            raise ValueError("a skip needs a reason")
        self.skipped = reason

    def undecide(self, reason: str) -> None:
        """What was compared says nothing without what ``reason`` says is missing."""
        if not reason:
            raise ValueError("no verdict needs a reason")
        self.undecided = reason

    def _add(self, comparison: Comparison) -> None:
        self.comparisons.append(
            dataclasses.replace(comparison, workload=self._workload, firm=self._firm)
        )


def _plain(value: object) -> Value:
    return value if isinstance(value, int | float | str) else str(value)


@dataclass(frozen=True)
class CheckResult:
    """A judged check; ``detail`` is the reason of a skip or the trace of an error, and
    ``workloads`` are those that the check declares.

    A ``tainted`` one could not be judged because the apparatus failed a workload.

    Raises `ValueError` if one that is skipped has comparisons: each would be shown as
    something that holds.
    """

    name: str
    kind: str
    claim: str
    status: Status
    comparisons: tuple[Comparison, ...]
    detail: str = ""
    tainted: bool = False
    workloads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status == "skip" and self.comparisons:
            raise ValueError(
                f"{self.name} is skipped ({self.detail}) and has compared "
                f"{self.comparisons[0].label!r}"
            )


_Saved = TypeVar("_Saved")


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
        detail = verdict.skipped or verdict.undecided or ""
        compared = tuple(verdict.comparisons)
        return CheckResult(name, kind, claim, status, compared, detail)
    except Tainted as error:
        why = f"could not judge: {error}"
        return CheckResult(name, kind, claim, "error", (), why, tainted=True)
    except KstallError as error:
        return CheckResult(name, kind, claim, "error", (), str(error))
    except Exception:
        return CheckResult(name, kind, claim, "error", (), traceback.format_exc())
