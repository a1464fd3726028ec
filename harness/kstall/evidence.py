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
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from . import records
from .errors import KstallError
from .series import Series

Status = Literal["pass", "fail", "skip", "error"]


class EvidenceError(KstallError):
    """Results that are not there or cannot be read."""


@dataclass(frozen=True)
class Comparison:
    """One expectation held against one observation."""

    label: str
    expected: str
    observed: str
    ok: bool


@dataclass
class Verdict:
    """The comparisons of one check, in the order they were made."""

    comparisons: list[Comparison] = field(default_factory=list)
    skipped: str | None = None

    def equal(self, label: str, observed: object, expected: object) -> None:
        """``observed`` has to be ``expected``."""
        self._add(label, f"= {expected}", observed, observed == expected)

    def at_least(self, label: str, observed: float, low: float, unit: str = "") -> None:
        """``observed`` has to be ``low`` or more; both in ``unit``."""
        self._add(label, f">= {_number(low)}", observed, observed >= low, unit)

    def at_most(self, label: str, observed: float, high: float, unit: str = "") -> None:
        """``observed`` has to be ``high`` or less; both in ``unit``."""
        self._add(label, f"<= {_number(high)}", observed, observed <= high, unit)

    def within(
        self, label: str, observed: float, low: float, high: float, unit: str = ""
    ) -> None:
        """``observed`` has to lie in [low, high]; all in ``unit``."""
        expected = f"in [{_number(low)}, {_number(high)}]"
        self._add(label, expected, observed, low <= observed <= high, unit)

    def true(self, label: str, holds: bool, detail: str = "") -> None:
        """``holds`` has to be true; ``detail`` says what was seen."""
        seen = ("yes" if holds else "no") + (f" ({detail})" if detail else "")
        self._add(label, "yes", seen, holds)

    def skip(self, reason: str) -> None:
        """This check cannot be made here, and ``reason`` says why."""
        if not reason:
            raise ValueError("a skip needs a reason")
        self.skipped = reason

    def _add(
        self, label: str, expected: str, observed: object, ok: bool, unit: str = ""
    ) -> None:
        shown = _number(observed) if isinstance(observed, int | float) else observed
        tail = f" {unit}" if unit else ""
        self.comparisons.append(
            Comparison(label, expected + tail, f"{shown}{tail}", bool(ok))
        )


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if type(value) is int else str(value)


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
    formats: Path
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

    def _text(self, name: str) -> str:
        path = self.dir / name
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError as error:
            raise EvidenceError(f"the guest left no {self.name}/{name}") from error
