# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of a series' patches, made, or found again."""

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

# What has a say in what is found.
_ANALYSIS = (
    *("kstall.base", "kstall.verdict", "kstall.series", "kstall.tree"),
    "kstall.lint",
)


def judge(
    series: Series, plan: tree.Plan, cache_dir: Path, scratch: Path
) -> tuple[list[Check], bool]:
    """The checks, and whether an earlier run has made them.

    ``scratch`` is a directory for what only they need, made if it is not there.
    """
    kept = cache_dir / "patchchecks" / key_of(series, plan) / "checks.json"
    if cache.kept(kept.parent):
        found = json.loads(kept.read_text(encoding="utf-8"))
        return [Check.model_validate(one) for one in found], True
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="patches-", dir=scratch) as place:
        checks = [*patchcheck.judge(series, plan, Path(place))]
    if not any(one.status == "error" for one in checks):
        with cache.keep_if_possible(kept.parent) as made:
            found = [one.model_dump(mode="json") for one in checks]
            cache.write_json(made / kept.name, found)
    cache.prune(cache_dir / "patchchecks", keep=200)
    return checks, False


def key_of(series: Series, plan: tree.Plan) -> str:
    """Changes with anything that could change what is found."""
    return cache.digest(
        sources.digest(*_ANALYSIS),
        docutils.__version__,
        spelling.version(),
        plan.base.id,
        patchcheck.history(series, plan.base),
        [(one.path.name, cache.file_digest(one.path)) for one in series.patches],
        cache.file_digest(series.dir / series.spec.cover),
        [one.model_dump(mode="json") for one in series.spec.exemption],
        series.spec.discovered,
    )
