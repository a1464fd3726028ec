# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults that pci-aer-fixes mends: without a patch, the check made for it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import keep_only, validate

pytestmark = [pytest.mark.live, pytest.mark.deep]


@pytest.mark.parametrize(
    ("series", "number", "checks"),
    [
        ("pci-aer-fixes", 1, ["removed_device_is_released"]),
        ("pci-aer-fixes", 2, ["late_error_is_reported", "late_advisory_is_reported"]),
        ("pci-aer-fixes", 3, ["registers_are_freed"]),
        ("pci-aer-inject", 1, ["overridden_error_is_reported"]),
        ("pci-aer-inject", 2, ["refused_error_is_forgotten"]),
    ],
)
def test_without_a_patch_its_fault_is_seen(
    project_copy: Project, tmp_path: Path, series: str, number: int, checks: list[str]
) -> None:
    folder = project_copy.patches / series
    toml = folder / "series.toml"
    (patch,) = folder.glob(f"{number:04}-*.patch")
    text = toml.read_text()
    assert text.count(f'    "{patch.name}",\n') == 1
    toml.write_text(text.replace(f'    "{patch.name}",\n', ""))
    patch.unlink()
    keep_only(folder, checks)
    found = validate(project_copy.root, tmp_path / "out", series)
    assert found.exit_code == 1, found.said
    assert set(found.failed()) == set(checks), found.failed()
