# SPDX-License-Identifier: GPL-2.0-or-later
"""What is told of a stage while it is under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
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


@dataclass
class Opened:
    """A stage that is under way: what it sets here ends up in its report entry."""

    log: Path
    summary: str = ""
    reused: bool = False
    figures: list[Figure] = field(default_factory=list)
    status: Status = "pass"
    error: str | None = None

    def figure(self, name: str, value: float, unit: str) -> None:
        """A number that this stage measured."""
        self.figures.append(Figure(name, value, unit))
