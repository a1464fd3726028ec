# SPDX-License-Identifier: GPL-2.0-or-later
"""All series on three versions of Linux, for two architectures, by two workers.

Hours, as each tree has kernels to build for each architecture.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kstall.base import arch
from kstall.pipeline import validate
from kstall.report import matrix
from kstall.series import Project
from live import kstall

pytestmark = [pytest.mark.live, pytest.mark.deep]

# By whether a series is expected to apply.
STATUSES = {
    True: {"pass"},
    False: {"does-not-apply"},
    None: {"pass", "does-not-apply"},
}


def test_each_series_is_proven_where_it_applies(
    project_root: Path, tmp_path: Path
) -> None:
    if shutil.which(arch.ARM64.qemu) is None:
        pytest.skip("make setup ARCH=arm64 installs what that takes")
    file = project_root / "docs/examples/matrix.toml"
    words = ("--matrix", str(file), "--workers", "2", "--out", str(tmp_path / "out"))
    done = subprocess.run(
        [*kstall(project_root), "validate", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    grid = matrix.read(tmp_path / "out/latest")
    assert len(grid.columns) == 6
    for column in grid.columns:
        assert column.version is not None, done.stdout
        architecture = arch.named(column.arch)
        for series in Project(project_root).load():
            cell = column.cell(series.name)
            where = f"{series.name} on {column.name}"
            assert cell is not None, where
            expected = validate.expectation(series, column.version)
            assert cell.status in STATUSES[expected], f"{where}: {cell.why}"
            if cell.status == "pass":
                absent = {check.name for check, _ in series.on(architecture).skipped}
                assert absent <= {skip.check for skip in cell.skipped}, where
    # A series that does not apply to a tree is 3, whether that was expected or not.
    assert (grid.status, done.returncode) == ("does-not-apply", 3), done.stdout
