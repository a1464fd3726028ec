# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of a series' patches, from the cache if possible."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import docutils

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


def judge(
    series: Series, plan: tree.Plan, cache_dir: Path, scratch: Path
) -> tuple[list[Check], bool]:
    """The checks, and whether they come from the cache.

    ``scratch`` is a directory for temporary files, created if it is missing.
    """
    path = cache_dir / "patchchecks" / key_of(series, plan) / "checks.json"
    if cache.is_complete(path.parent):
        entries = json.loads(path.read_text(encoding="utf-8"))
        return [Check.model_validate(entry) for entry in entries], True
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="patches-", dir=scratch) as place:
        checks = [*patchcheck.judge(series, plan, Path(place))]
    if not any(check.status == "error" for check in checks):
        with cache.keep_if_possible(path.parent) as directory:
            entries = [check.model_dump(mode="json") for check in checks]
            cache.write_json(directory / path.name, entries)
    cache.prune(cache_dir / "patchchecks", keep=200)
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
