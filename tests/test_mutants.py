# SPDX-License-Identifier: GPL-2.0-or-later
"""Each mutant of the series can still be made: that it is caught takes a boot each.

A patch that is worked on changes the lines around it, and a mutant that does not apply
fails only where all of them are tried.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import live
from kstall.base import cache
from kstall.series import Project
from kstall.tree import Base, source, tree

# No boot, but the kernel's source is needed.
pytestmark = pytest.mark.live

TEST = "test_a_mutant_is_caught_by_name"
MODULES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("test_live_*.py")
    if f"def {TEST}(" in path.read_text()
)


@pytest.fixture(scope="module")
def base() -> Base:
    """Debian's newest kernel source, as `kstall validate` takes it."""
    return source.obtain(None, cache.default_dir(), lambda _: None)


def test_each_module_was_found() -> None:
    assert len(MODULES) >= 6


@pytest.mark.parametrize("name", MODULES)
def test_each_applies(
    base: Base, project_copy: Project, tmp_path: Path, name: str
) -> None:
    module = importlib.import_module(name)
    (table,) = (one for one in getattr(module, TEST).pytestmark if one.args)
    folder = project_copy.patches / module.SERIES
    pristine = {path: path.read_text() for path in folder.glob("*.patch")}
    (series,) = project_copy.load([module.SERIES])
    unchanged = tree.plan(base, series.patches, tmp_path).content
    for mutant in table.args[1]:
        file, old, new, checks = mutant.values
        live.mutate(project_copy, module.SERIES, file, old, new)
        (series,) = project_copy.load([module.SERIES])
        assert checks <= {one.name for one in series.spec.check}, mutant.id
        plan = tree.plan(base, series.patches, tmp_path)
        assert plan.content != unchanged, mutant.id
        for path, text in pristine.items():
            path.write_text(text)
