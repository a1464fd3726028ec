# SPDX-License-Identifier: GPL-2.0-or-later
"""How well workers are used, by Dask's own scheduler and recorded durations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farm_figures import (
    _VARIANTS,
    KERNELS,
    SERIES,
    Job,
    bound,
    efficiency,
    matrix,
    simulated,
)

#: The largest table of docs/workers.md: workers, and cells of a matrix.
LARGEST = (64, 32)
#: Half a second is rounded either way, as sums of seconds are not exact.
_ROUNDED = 0.501


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


@dataclass(frozen=True)
class _Row:
    """A line of a table of docs/workers.md."""

    workers: int
    jobs: list[Job]
    share: float
    seconds: float
    bound: float

    @property
    def working(self) -> float:
        """Seconds that each worker has something to do, on average."""
        return sum(job.seconds for job in self.jobs) / self.workers


def _tables(project_root: Path) -> Iterator[list[_Row]]:
    """The tables with a lower bound: as Dask did it, and as simulated."""
    text = (project_root / "docs/workers.md").read_text()
    for table in re.findall(
        r"(?m)^\| workers .* bound \|\n\|[-|]+\n((?:\|.*\n)+)", text
    ):
        rows = []
        for line in table.splitlines():
            first, cells, *values = (cell.strip() for cell in line.split("|")[1:-1])
            count, _, other = cells.partition(", kernels in ")
            kernels = float(other.split()[0]) if other else KERNELS
            assert not other or other.endswith(f" s instead of {KERNELS:g}")
            jobs = matrix(int(count), kernels=kernels)
            rows.append(_Row(int(first), jobs, *map(float, values)))
        yield rows


def test_tables_are_what_is_computed(project_root: Path) -> None:
    by_dask, simulations = _tables(project_root)
    for row in (*by_dask, *simulations):
        least = bound(row.jobs, row.workers)
        assert row.bound == pytest.approx(least, abs=_ROUNDED)
        assert row.share == pytest.approx(row.working / row.seconds, abs=0.005)
        assert row.bound <= row.seconds
    assert LARGEST in [
        (row.workers, len(row.jobs) // len(matrix(1))) for row in by_dask
    ]
    # Three trees and two architectures.
    assert {len(row.jobs) for row in simulations} == {len(matrix(6))}
    assert [row.workers for row in simulations] == [2, 4, 16, 64]
    for row in simulations:
        took = simulated(row.jobs, row.workers)
        assert row.seconds == pytest.approx(took, abs=_ROUNDED)


def test_shares_that_are_possible(project_root: Path) -> None:
    text = (project_root / "docs/workers.md").read_text()

    def most(cells: int) -> float:
        jobs = matrix(cells)
        return sum(job.seconds for job in jobs) / 64 / bound(jobs, 64)

    assert f"and with 26 cells at most {most(26):.2f}." in " ".join(text.split())
    assert "64 workers and 8 cells, at most two fifths" in " ".join(text.split())
    assert most(8) == pytest.approx(2 / 5, abs=0.02)
    # As is said, that is the longest unit.
    assert max(job.seconds for job in matrix(1)) == KERNELS


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
