# SPDX-License-Identifier: GPL-2.0-or-later
"""What a run is to prove, for all stages that ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..base import Architecture, arch, elsewhere
from ..series import Level, Project, Series
from ..tree import Base


@dataclass(frozen=True)
class Request:
    """What is to be proven, on what, and where things are kept.

    ``level`` quick leaves out what the events cost, and with it the base kernel; deep
    adds what takes long and seldom finds anything.  ``again``: results of earlier
    guests are not used.  ``repeat``: boot each guest so many times.  ``alone``: prove
    each series on a kernel of its own as well.  ``at_once``: how many guests run at the
    same time; by default as many as the machine has room for.  Kernels and guests are
    of ``arch``, by default the machine's own.  ``seeds`` are those of random
    configurations that are tried instead of a series' own.  ``base`` is the tree of
    ``kernel``, if it was obtained already; ``place`` the run directory, if it is to be
    no new one below ``out``.  ``expected``: whether the series are expected to apply,
    where series.toml is not to decide that.  ``away`` hands out what workers may do.
    ``options`` are those of the command line that prove the same again, by name,
    without tree, architecture and level, which have fields here; None if only the whole
    command does.
    """

    project: Project
    series: tuple[Series, ...]
    kernel: Path | None
    cache: Path
    out: Path
    level: Level = "full"
    again: bool = False
    repeat: int | None = None
    alone: bool = False
    at_once: int | None = None
    arch: Architecture = field(default_factory=arch.host)
    seeds: tuple[int, ...] = ()
    base: Base | None = None
    place: Path | None = None
    expected: bool | None = None
    away: elsewhere.Elsewhere | None = None
    options: Mapping[str, Sequence[str]] | None = None

    @property
    def each_alone(self) -> bool:
        """Whether each series is proven on a kernel of its own as well."""
        return self.alone or self.level == "deep"
