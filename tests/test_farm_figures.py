# SPDX-License-Identifier: GPL-2.0-or-later
"""How well workers are used, by Dask's own scheduler and recorded durations."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm_figures import (
    _VARIANTS,
    SERIES,
    Job,
    bound,
    efficiency,
    matrix,
    simulated,
)

#: The largest table of docs/workers.md: workers, and cells of a matrix.
LARGEST = (64, 32)


def test_matrix_has_every_unit(project_root: Path) -> None:
    text = (project_root / "docs/workers.md").read_text()
    assert f"with the nineteen series of that run: {len(matrix(1))} units" in text
    jobs = matrix(2)
    assert len(jobs) == len({job.name for job in jobs})
    kinds = [job.kind for job in jobs]
    assert kinds.count("kernels") == 2
    assert kinds.count("compile") == 2 * _VARIANTS * len(SERIES)
    costly = [name for name, (_, _, boot, _) in SERIES.items() if boot]
    assert kinds.count("counting") == 2 * 6 * len(costly)
    cut = matrix(2, split=60)
    longest = max(guest for _, guest, _, _ in SERIES.values())
    halves = max(job.seconds for job in cut if job.kind == "guest")
    assert halves == (longest - 20) / 2 + 20
    # A boot more for each that is cut.
    more = sum(job.seconds for job in cut) - sum(job.seconds for job in jobs)
    assert round(more, 6) == 20 * (len(cut) - len(jobs)) > 0


JOBS = [
    Job("k", "kernels", 100),
    Job("g", "guest", 10, "k"),
    Job("h", "guest", 30, "k"),
    Job("c", "compile", 20),
]


def test_bound() -> None:
    assert bound(JOBS, 1) == 160
    assert bound(JOBS, 2) == 130
    assert bound(JOBS, 4) == 130
    assert bound([*JOBS, *[Job(str(n), "guest", 10, "k") for n in range(16)]], 4) == 150


def test_simulation() -> None:
    assert simulated(JOBS, 1) == 160
    assert simulated(JOBS, 2) == 130
    # When the first two have ended the longest is begun, and not the next.
    seconds = (10, 10, 20, 20, 40)
    assert simulated([Job(str(n), "c", s) for n, s in enumerate(seconds)], 2) == 50


def test_line_keeps_many_workers_busy() -> None:
    """As `efficiency`, but in no time, as Dask is not asked."""
    workers, cells = LARGEST
    jobs = matrix(cells)
    took = simulated(jobs, workers)
    assert bound(jobs, workers) <= took
    assert sum(job.seconds for job in jobs) / workers / took > 0.9


@pytest.mark.deep
@pytest.mark.parametrize(("workers", "cells", "seconds"), [(4, 2, 60), (*LARGEST, 240)])
def test_workers_have_something_to_do(workers: int, cells: int, seconds: float) -> None:
    share, took, _, least = efficiency(workers, cells, seconds=seconds)
    assert least <= took
    assert share > (0.8 if workers == 4 else 0.9)
