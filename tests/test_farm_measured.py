# SPDX-License-Identifier: GPL-2.0-or-later
"""What `farm_measured` makes of the seconds of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import farm_measured
from farm_measured import Matrix
from kstall.pipeline import matrixfile
from kstall.series import Project


def test_two_workers_are_compared_with_one(tmp_path: Path) -> None:
    seen = []

    def measure(
        directory: Path, name: str, what: Matrix, workers: int, on: Sequence[int]
    ) -> float:
        seen.append((directory.name, workers, tuple(on), what))
        return {1: 900.0, 2: 500.0}[workers]

    *_, last = farm_measured.pinned(tmp_path, "quick", [0, 1, 2], measure)
    assert last.split() == ["efficiency", "0.90"]
    (one, two) = seen
    # Each has a cache of its own, as many processors as workers, and the same to do.
    assert one[:3] == ("one", 1, (0,))
    assert two[:3] == ("two", 2, (0, 1))
    assert one[3] == two[3]


def test_one_more_is_what_it_adds(tmp_path: Path) -> None:
    seconds = iter([100.0, 10.0, 40.0, 15.0, 95.0, 20.0, 120.0, 32.0])

    def measure(
        directory: Path, name: str, what: Matrix, workers: int, on: Sequence[int]
    ) -> float:
        assert directory == tmp_path
        return next(seconds)

    _, *lines = farm_measured.more(tmp_path, "quick", [0, 1], measure)
    assert [line.rsplit(maxsplit=2) for line in lines] == [
        ["a series", "100", "10"],
        ["one more series", "30", "5"],
        ["one more tree", "80", "5"],
        ["one more architecture", "100", "12"],
    ]


def test_matrix_file_is_what_kstall_reads(project_root: Path, tmp_path: Path) -> None:
    what = Matrix(("debian:7.3", "debian:7.2"), ("drm-sched",), ("arm64",), "quick")
    file = tmp_path / "matrix.toml"
    file.write_text(what.text())
    columns = matrixfile.read(file, Project(project_root))
    assert [
        (str(column.kernel), column.arch, column.level, column.series)
        for column in columns
    ] == [(tree, "arm64", "quick", ("drm-sched",)) for tree in what.trees]


def test_a_run_without_a_proof_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farm_measured, "kstall", lambda _: ["false"])
    what = Matrix(("debian:7.3",), ("drm-sched",), ("x86_64",), "quick")
    with pytest.raises(SystemExit, match="one ended with status 1"):
        farm_measured.run(tmp_path, "one", what, 1, (0,))
