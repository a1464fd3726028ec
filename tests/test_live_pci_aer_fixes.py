# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults that pci-aer-fixes mends: without a patch, the check made for it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import keep_only, validate

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "pci-aer-fixes"
#: What does not compile without a patch goes with it.
NEEDED_BY = {5: (9,)}


@pytest.mark.parametrize(
    ("number", "check"),
    [
        (1, "removed_device_is_released"),
        (2, "late_error_is_reported"),
        (3, "registers_are_freed"),
        (4, "only_these_masks_are_overridden"),
        (5, "refused_error_is_forgotten"),
        (6, "header_has_no_prefixes"),
        (7, "extlog_calls_the_aer_code"),
        (8, "extlog_calls_the_cxl_code"),
    ],
)
def test_without_a_patch_its_fault_is_seen(
    project_copy: Project, tmp_path: Path, number: int, check: str
) -> None:
    folder = project_copy.patches / SERIES
    toml = folder / "series.toml"
    for one in (number, *NEEDED_BY.get(number, ())):
        (patch,) = folder.glob(f"{one:04}-*.patch")
        text = toml.read_text()
        assert text.count(f'    "{patch.name}",\n') == 1
        toml.write_text(text.replace(f'    "{patch.name}",\n', ""))
        patch.unlink()
    keep_only(folder, [check])
    found = validate(project_copy.root, tmp_path / "out", SERIES)
    assert found.exit_code == 1, found.said
    assert set(found.failed()) == {check}, found.failed()
