# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures that more than one module uses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kstall.series import Project

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
