# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall on kernels and guests for arm64, cross-compiled and emulated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kstall.base import arch
from kstall.series import Project
from live import validate

pytestmark = [pytest.mark.live, pytest.mark.deep]


@pytest.mark.parametrize(
    ("series", "more"),
    [
        ("drm-sched", ()),
        ("iommu-iotlb", ()),
        # With what runs while the events are off, in the binary and counted.
        ("drm-sched", ("--level", "full")),
        # By a worker: at least the guest, if the kernel was built before.
        ("drm-sched", ("--workers", "1", "--again")),
    ],
)
def test_a_series_is_proven(
    project_root: Path, tmp_path: Path, series: str, more: tuple[str, ...]
) -> None:
    if shutil.which(arch.ARM64.qemu) is None:
        pytest.skip("make setup ARCH=arm64 installs what that takes")
    words = ("--arch", "arm64", "--level", "quick", *more, series)
    outcome = validate(project_root, tmp_path / "out", *words)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.report.environment.arch == "arm64"
    assert outcome.report.environment.accelerator == "tcg"
    judged = {check.name: check.status for check in outcome.report.series[0].checks}
    (declared,) = Project(project_root).load([series])
    there = declared.on(arch.ARM64)
    gone = {check.name for check, _ in there.skipped}
    for check in declared.spec.check:
        assert judged[check.name] == ("skip" if check.name in gone else "pass")
    if "full" in more:
        for name in ("off_is_a_nop", "off_costs_what_is_predicted"):
            assert judged[name] == "pass"
