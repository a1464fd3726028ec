# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures that more than one module uses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kstall import cache, kernel, root
from kstall.counting import Kernels
from kstall.root import Root
from kstall.series import Project
from live import Outcome, validate

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project_root() -> Path:
    """This checkout."""
    return ROOT


@pytest.fixture
def project_copy(tmp_path: Path) -> Project:
    """A private copy of patches/, kconfigs/, scripts/ and harness/, to break."""
    for name in ("patches", "kconfigs", "scripts", "harness"):
        shutil.copytree(
            ROOT / name,
            tmp_path / "project" / name,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    return Project(tmp_path / "project")


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    """Two that are compared, without a byte of theirs."""
    base, patched = (
        kernel.Kernel(name, tmp_path / name, "7.3.4", "ab" * 20, reused=True)
        for name in ("base", "patched")
    )
    return Kernels(base, patched, Root("root", tmp_path, (), {}, True))


@pytest.fixture(scope="session")
def proven(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The drm-sched series as it is, validated on the default tree."""
    return validate(project_root, tmp_path_factory.mktemp("out"), "drm-sched")


@pytest.fixture(scope="session")
def kernel_image(proven: Outcome) -> Path:
    """A kernel that boots: the one that the series was validated on."""
    key = proven.report.series[0].kernel
    assert key is not None, proven.said
    return cache.default_dir() / "kernels" / key / "bzImage"


@pytest.fixture(scope="session")
def guest_root(
    proven: Outcome, project_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Root:
    """The guest's root, which the validation has made."""
    return root.obtain(
        root.packages(project_root / "scripts/guest-packages.txt"),
        cache.default_dir(),
        lambda _: None,
        log=tmp_path_factory.mktemp("root") / "log",
    )
