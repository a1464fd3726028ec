# SPDX-License-Identifier: GPL-2.0-or-later
"""Another version of what makes a thing is another key of it, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import sources
from kstall.build import Kernel, extra, kernel
from kstall.compile import builds
from kstall.cost import counting, footprint
from kstall.debian import Root
from kstall.evidence import mutate
from kstall.lint import patches
from kstall.series import Project
from test_layers import FLOW

PACKAGES = {name: f"kstall/{name}" for name in FLOW} | {"agent": "kstall_guest"}
BASE = SimpleNamespace(id="base", commit=None, kind="directory")
PLAN: Any = SimpleNamespace(files={}, states=[()], base=BASE)
TOOLS: Any = SimpleNamespace(id="tools")
KERNEL: Any = SimpleNamespace(key="kernel")


def _kernel(project: Project) -> str:
    config = kernel.Configured(project.kconfigs / "base.config", reused=True)
    return kernel.key_of("content", config, TOOLS)


def _configuration(_: Project) -> str:
    return kernel.config_key(PLAN, [], TOOLS)


def _module(_: Project) -> str:
    return extra.key_of(KERNEL, [])


def _compiled(_: Project) -> str:
    work: Any = SimpleNamespace(plan=PLAN)
    variant: Any = SimpleNamespace(id="variant", seed=None)
    return builds._key_of(work, 0, variant, [])


def _checks(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return patches.key_of(series, PLAN)


def _footprint(_: Project) -> str:
    return footprint.key_of(KERNEL, KERNEL, footprint.Declaration({}, frozenset()))


def _counts(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    machine = Kernel("kernel", project.root, "7.3.4", "ab" * 20, reused=True)
    user_space = Root("root", project.root, (), {}, reused=True)
    kernels = counting.Kernels(machine, machine, user_space)
    return counting.key_of(project, series, kernels, "patched")


def _mutants(project: Project) -> str:
    (series,) = project.load(["drm-sched"])
    return mutate.digest(series, project.root / "results")


@pytest.fixture
def project(project_copy: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose harness is ours."""
    monkeypatch.setattr(sources, "_HARNESS", project_copy.harness)
    return project_copy


def _touch(path: Path) -> None:
    with path.open("a") as file:
        file.write("# another version\n")
    sources._digest.cache_clear()


@pytest.mark.parametrize(
    ("key", "makers"),
    [
        # What make is told stands in the recipe, and takes hours to be done again.
        (_kernel, ""),
        (_configuration, "build"),
        (_module, "build"),
        (_compiled, "build compile"),
        (_checks, "base verdict series tree lint"),
        (_footprint, "evidence cost"),
        # Counting takes an hour again: what runs is in the key by its job.
        (_counts, "agent"),
        (_mutants, "base verdict ftrace series evidence agent"),
    ],
)
def test_a_key_changes_with_what_makes_the_thing(
    project: Project, key: Callable[[Project], str], makers: str
) -> None:
    sources._digest.cache_clear()
    changed = []
    for package, folder in PACKAGES.items():
        before = key(project)
        _touch(project.harness / folder / "__init__.py")
        if key(project) != before:
            changed.append(package)
    assert sorted(changed) == sorted(makers.split())


def test_data_files_and_new_modules_count(project: Project) -> None:
    listing = project.harness / "kstall/compile/objects.mk"
    before = _compiled(project)
    _touch(listing)
    after = _compiled(project)
    _touch(listing.with_name("another.py"))
    assert len({before, after, _compiled(project)}) == 3


@pytest.mark.parametrize("name", ["_job", "_runs", "_boots"])
def test_counts_are_those_of_what_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = _counts(project)
    function = getattr(counting, name)
    # Another order of runs or boots, and another member of a job.
    changed: Callable[..., Any] = (
        (lambda *given: {**function(*given), "more": 1})
        if name == "_job"
        else lambda *given: list(function(*given))[::-1]
    )
    monkeypatch.setattr(counting, name, changed)
    assert _counts(project) != before
