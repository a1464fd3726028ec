# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of a series' patches, from the cache if possible."""

from __future__ import annotations

import tempfile
from pathlib import Path

import docutils
from pydantic import TypeAdapter

from ..base import cache, sources
from ..series import Series
from ..tree import tree
from ..verdict import Check
from . import patchcheck, spelling

# The packages that findings depend on.
_ANALYSIS = (
    *("kstall.base", "kstall.verdict", "kstall.series", "kstall.tree"),
    "kstall.lint",
)
_CHECKS = TypeAdapter(list[Check])


def judge(
    series: Series, plan: tree.Plan, cache_dir: Path, scratch: Path
) -> tuple[list[Check], bool]:
    """The checks, and whether they come from the cache.

    ``scratch`` is a directory for temporary files, created if it is missing.
    """
    path = cache_dir / "patchchecks" / key_of(series, plan)
    if (kept := cache.recall(path, _CHECKS.validate_python)) is not None:
        return kept, True
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="patches-", dir=scratch) as place:
        checks = [*patchcheck.judge(series, plan, Path(place))]
    if not any(check.status == "error" for check in checks):
        cache.retain(path, _CHECKS.dump_python(checks, mode="json"))
    return checks, False


def key_of(series: Series, plan: tree.Plan) -> str:
    """The cache key: a digest of everything that findings depend on."""
    return cache.digest(
        sources.digest(*_ANALYSIS),
        docutils.__version__,
        spelling.version(),
        plan.base.id,
        patchcheck.history(series, plan.base),
        [(patch.path.name, cache.file_digest(patch.path)) for patch in series.patches],
        cache.file_digest(series.dir / series.spec.cover),
        [exemption.model_dump(mode="json") for exemption in series.spec.exemption],
        series.spec.discovered,
    )
