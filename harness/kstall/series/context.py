# SPDX-License-Identifier: GPL-2.0-or-later
"""What every stage of a run is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..base import Sink
from .series import Project

Level = Literal["quick", "full", "deep"]


@dataclass(frozen=True)
class Context:
    """Whose checkout it is, where things are kept, and who listens.

    ``out`` is the directory of the run, with one for each series.  At ``level`` quick
    costs are left out; deep adds what takes long and seldom finds anything.
    """

    project: Project
    cache: Path
    out: Path
    level: Level
    ui: Sink
