# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of a series of ours, compiled patch by patch from a real kernel."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kstall.base import cache
from kstall.build import Ground, kernel
from kstall.compile import CompileWork
from kstall.debian import root
from kstall.pipeline import Ui, builds
from kstall.pipeline import run as runs
from kstall.report import report
from kstall.series import Project
from kstall.tree import source, tree
from kstall.verdict import Check

# No boot, but a few objects of a kernel in several configurations.
pytestmark = pytest.mark.deep

FILE = "io_uring/sqpoll.c"
FIRST = "#include <linux/kernel.h>\n"


def _checks(
    project_root: Path, tmp_path: Path, edits: dict[int, str]
) -> dict[str, Check]:
    """The checks of io_uring-sq, with text in a source of it after some patches."""
    project, kept = Project(project_root), cache.default_dir()
    (series,) = project.load(["io_uring-sq"])
    ui = Ui(Console(file=io.StringIO()))
    run = runs.begin(tmp_path / "out", ["test"], ui)
    entry = report.SeriesReport(name=series.name, title="t", digest="d")
    run.report.series = [entry]
    base = source.obtain(None, kept, ui.say)
    wanted = root.packages(project.scripts / "guest-packages.txt")
    borrowed = root.obtain(wanted, kept, ui.say, log=tmp_path / "root.log")
    plan = tree.plan(base, series.patches, tmp_path / "am")
    states = [dict(state) for state in plan.states]
    for number, text in edits.items():
        file = states[number][FILE]
        assert file is not None
        data = file.data.replace(FIRST.encode(), (FIRST + text).encode(), 1)
        assert data != file.data
        states[number][FILE] = replace(file, data=data)
    tools = kernel.toolchain(borrowed.pahole, kept)
    work = CompileWork(
        context=run.context(project, kept),
        series=series,
        plan=replace(plan, states=tuple(tuple(state.items()) for state in states)),
        ground=Ground(project, base, borrowed, tools, kept),
    )
    with tree.workspace(base, ui.say) as put:
        builds.prove(work, put, run, entry)
    return {check.name: check for check in entry.checks}


def _failed(checks: dict[str, Check]) -> dict[str, dict[str, str]]:
    return {
        check.name: {
            comparison.label[:4]: comparison.detail
            for comparison in check.comparisons
            if not comparison.ok
        }
        for check in checks.values()
        if check.status not in ("pass", "skip")
    }


def test_a_series_as_it_is(project_root: Path, tmp_path: Path) -> None:
    assert _failed(_checks(project_root, tmp_path, {})) == {}


def test_a_warning_under_w_1(project_root: Path, tmp_path: Path) -> None:
    unused = "static const int kstall_unused = 1;\n"
    failures = _failed(_checks(project_root, tmp_path, {2: unused, 3: unused}))
    # Its quotation marks depend on the locale.
    pattern = re.compile(
        r"-Wunused-const-variable=: .kstall_unused. defined but not used"
    )
    for name in ("no_new_warnings", "compiles_without_tracing"):
        told = failures.pop(name)
        assert set(told) == {"0002"}
        assert f"{FILE}:" in told["0002"]
        assert pattern.search(told["0002"])
    assert failures == {}


def test_a_patch_in_the_middle_does_not_build(
    project_root: Path, tmp_path: Path
) -> None:
    failures = _failed(_checks(project_root, tmp_path, {2: "#error of a mutant\n"}))
    assert set(failures) == {"compiles_as_configured", "compiles_without_tracing"}
    for told in failures.values():
        assert set(told) == {"0002"}
        assert "error: #error of a mutant" in told["0002"]
