# SPDX-License-Identifier: GPL-2.0-or-later
"""What a stage reports while it runs: progress and figures."""

from __future__ import annotations

import contextvars
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

from . import scope

#: Of a stage or a series; error: it could not be judged.  The last is of no check.
Status = Literal["pass", "fail", "skip", "error", "does-not-apply"]


class Sink(Protocol):
    """Where a stage reports to, such as a terminal."""

    def say(self, text: str) -> None:
        """Something worth a line, such as waiting for another run."""

    def progress(self, done: float, total: float, step: str) -> None:
        """How far the stage is; ``done`` and ``total`` in steps of its own."""


class StageFigure(NamedTuple):
    """A number that a stage measured."""

    name: str
    value: float
    unit: str


_figures: contextvars.ContextVar[list[StageFigure] | None] = contextvars.ContextVar(
    "figures", default=None
)


def figures() -> AbstractContextManager[list[StageFigure]]:
    """The figures that are reported while the block runs, also if it fails."""
    return scope.bound(_figures, [])


def figure(name: str, value: float, unit: str) -> None:
    """Report a measured number to the enclosing `figures` block."""
    if (measurements := _figures.get()) is not None:
        measurements.append(StageFigure(name, value, unit))
