# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of a series' patches, as a stage of a run: made, or found again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import docutils

from ..base import cache, sources
from ..lint import patchcheck
from ..report import SeriesReport, report
from ..series import Series
from ..tree import tree
from .run import Run


def prove(
    series: Series, plan: tree.Plan, cache_dir: Path, run: Run, entry: SeriesReport
) -> None:
    """Add the checks to ``entry``.

    One that fails stops nothing: what the patches do can be found out all the same.
    """
    with run.stage("patches", entry) as stage:
        kept = cache_dir / "patchchecks" / key_of(series, plan) / "checks.json"
        if cache.kept(kept.parent):
            found = json.loads(kept.read_text(encoding="utf-8"))
            checks = [report.Check.model_validate(one) for one in found]
            stage.reused = True
        else:
            scratch = run.dir / series.name
            scratch.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="patches-", dir=scratch) as place:
                checks = [
                    report.Check.of(one)
                    for one in patchcheck.judge(series, plan, Path(place))
                ]
            if not any(one.status == "error" for one in checks):
                with cache.keep_if_possible(kept.parent) as made:
                    found = [one.model_dump(mode="json") for one in checks]
                    cache.write_json(made / kept.name, found)
            cache.prune(cache_dir / "patchchecks", keep=200)
        entry.checks += checks
        good = sum(one.status == "pass" for one in checks)
        count = len(series.patches)
        stage.summary = f"{good} of {len(checks)} checks of {count} patches pass"


def key_of(series: Series, plan: tree.Plan) -> str:
    """Changes with anything that could change what is found."""
    return cache.digest(
        sources.digest("kstall.base", "kstall.series", "kstall.tree", "kstall.lint"),
        docutils.__version__,
        plan.base.id,
        [(one.path.name, cache.file_digest(one.path)) for one in series.patches],
        cache.file_digest(series.dir / series.spec.cover),
        [one.model_dump(mode="json") for one in series.spec.exemption],
        series.spec.discovered,
    )
