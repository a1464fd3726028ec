# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants that only a debug kernel can catch."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from kstall.base import cache
from kstall.build import Ground, kernel
from kstall.debian import root
from kstall.pipeline import Ui, debugging
from kstall.pipeline import run as runs
from kstall.report import report
from kstall.series import Project
from kstall.tree import source
from kstall.verdict import Check
from live import edit

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "drm-sched"
CREDITS = "0003-drm-sched-Trace-jobs-held-back-by-missing-credits.patch"


def _mutate(project: Project, old: str, new: str) -> None:
    edit(project.patches / SERIES / CREDITS, old, new)


@pytest.fixture(autouse=True)
def _on_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched one with KASAN.  What a mutant brings along the base has not: an hour
    less to wait."""
    monkeypatch.setattr(debugging, "_base", lambda *_: {})
    monkeypatch.setattr(debugging, "_FLAVOURS", ("debug",))


def _debugged(project: Project, tmp_path: Path) -> dict[str, Check]:
    """The checks of the series, in the kernel with all others, under KASAN and lockdep.

    So only what the mutant changes is compiled.
    """
    ui = Ui(Console(file=io.StringIO()))
    run = runs.begin(tmp_path / "out", ["pytest"], ui)
    log = run.dir / "shared/setup.log"
    home = cache.default_dir()
    base = source.obtain(None, home, ui.say)
    packages = root.packages(project.scripts / "guest-packages.txt")
    guest_root = root.obtain(packages, home, ui.say, log=log)
    tools = kernel.toolchain(guest_root.pahole, home)
    (series,) = project.load([SERIES])
    entry = report.SeriesReport(name=SERIES, title="t", digest=series.digest)
    run.report.series = [entry]
    debugging.prove(
        Ground(project, base, guest_root, tools, home),
        [(series, entry)],
        run,
        beside=[series for series in project.load() if series.name != SERIES],
    )
    return {check.name: check for check in entry.checks}


def _details(check: Check) -> str:
    assert check.status == "fail"
    return "\n".join(f"{o.label}\n{o.detail}" for o in check.comparisons if not o.ok)


def test_a_sleeping_call_in_a_probe(project_copy: Project, tmp_path: Path) -> None:
    line = "+\t\t    __entry->credits = sched_job->credits;\n"
    _mutate(project_copy, line, line.replace("__entry", "might_sleep(); __entry", 1))
    details = _details(_debugged(project_copy, tmp_path)["no_new_splats"])
    assert "BUG: sleeping function called from invalid context" in details
    assert "drm_sched_job_no_credits" in details


def test_a_lock_taken_in_the_wrong_order(project_copy: Project, tmp_path: Path) -> None:
    # The order is entity, then run queue, whose lock is held here.
    _mutate(
        project_copy,
        "+\tu32 count = atomic_read(&sched->credit_count);\n",
        "+\tu32 count = ({ spin_lock(&entity->lock); spin_unlock(&entity->lock); "
        "atomic_read(&sched->credit_count); });\n",
    )
    details = _details(_debugged(project_copy, tmp_path)["no_new_splats"])
    assert "WARNING: possible circular locking dependency detected" in details
    assert "&entity->lock" in details and "&rq->lock" in details
