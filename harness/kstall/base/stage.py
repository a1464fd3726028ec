# SPDX-License-Identifier: GPL-2.0-or-later
"""What is told of a stage while it is under way: progress, and figures."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol

#: Of a stage or a series; error: it could not be judged.  A check never has the last.
Status = Literal["pass", "fail", "skip", "error", "does-not-apply"]


class Sink(Protocol):
    """Who hears how a stage goes, such as a terminal."""

    def say(self, text: str) -> None:
        """Something worth a line, such as waiting for another run."""

    def progress(self, done: float, total: float, step: str) -> None:
        """How far the stage is; ``done`` and ``total`` in steps of its own."""


class Figure(NamedTuple):
    """A number that a stage measured."""

    name: str
    value: float
    unit: str


_figures: contextvars.ContextVar[list[Figure] | None] = contextvars.ContextVar(
    "figures", default=None
)


@contextlib.contextmanager
def figures() -> Iterator[list[Figure]]:
    """What is measured while the block runs, also if that fails in the end."""
    found: list[Figure] = []
    token = _figures.set(found)
    try:
        yield found
    finally:
        _figures.reset(token)


def figure(name: str, value: float, unit: str) -> None:
    """Have a number that was measured told to whoever listens with `figures`."""
    if (found := _figures.get()) is not None:
        found.append(Figure(name, value, unit))
