# SPDX-License-Identifier: GPL-2.0-or-later
"""Patch series, as directories of `patches/`: read and validated.

In comes the path of a project or a series; out come `Project` and `Series`, or an error
with file and line.  It reads no kernel, and knows nothing of how anything is proven.
"""

from . import mutants, new, patchfile, projects, suites, tables
from .context import Context, Level
from .patchfile import Hunk, PatchFile, Unmailable
from .series import Project, Series
from .spec import (
    Cc,
    ExemptionSpec,
    Measure,
    PatchExemption,
    SeriesError,
    ShownBug,
    Spec,
    Tracepoint,
    Unproven,
    Workload,
)

__all__ = [
    "Cc",
    "Context",
    "ExemptionSpec",
    "Hunk",
    "Level",
    "Measure",
    "PatchExemption",
    "PatchFile",
    "Project",
    "Series",
    "SeriesError",
    "ShownBug",
    "Spec",
    "Tracepoint",
    "Unmailable",
    "Unproven",
    "Workload",
    "mutants",
    "new",
    "patchfile",
    "projects",
    "suites",
    "tables",
]
