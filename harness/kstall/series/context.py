# SPDX-License-Identifier: GPL-2.0-or-later
"""What every stage of a run is told."""

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
    """Whose checkout it is, where things are kept, and who listens.

    ``out`` is the directory of the run, with one for each series.  At ``level`` quick
    costs are left out; deep adds what takes long and seldom finds anything.  ``seeds``
    are those of random configurations to try, whatever the level.  What may be done
    ``away`` is, if there is somebody to hand it out.
    """

    project: Project
    cache: Path
    out: Path
    level: Level
    ui: Sink
    seeds: tuple[int, ...] = ()
    away: elsewhere.Elsewhere | None = None

    def turn(self, name: str, doing: str) -> AbstractContextManager[None]:
        """What no other run does meanwhile; who is waited for is said as ``doing``."""
        return cache.lock(
            self.cache / "locks" / name,
            waiting=lambda who: self.ui.say(f"waiting: {who} {doing}"),
        )
