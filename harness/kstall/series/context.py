# SPDX-License-Identifier: GPL-2.0-or-later
"""The context that every stage of a run gets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..base import Sink, cache, elsewhere
from .series import Project

Level = Literal["quick", "full", "deep"]


@dataclass(frozen=True)
class Context:
    """The checkout and directories of a run, its level, and where it reports to.

    ``out`` is the directory of the run, with one for each series.  At ``level`` quick
    costs are left out; deep adds checks that take long and seldom find anything.
    ``seeds`` are those of random configurations to try, whatever the level.  ``away``
    dispatches work to other processes, if there are any.
    """

    project: Project
    cache: Path
    out: Path
    level: Level
    ui: Sink
    seeds: tuple[int, ...] = ()
    away: elsewhere.Elsewhere | None = None

    def turn(self, name: str, doing: str) -> AbstractContextManager[None]:
        """Hold the lock ``name``; while waiting, say what its holder is ``doing``."""
        return cache.lock(
            self.cache / "locks" / name,
            waiting=lambda holder: self.ui.say(f"waiting: {holder} {doing}"),
        )
