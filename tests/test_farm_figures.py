# SPDX-License-Identifier: GPL-2.0-or-later
"""How well workers are used, by Dask's own scheduler and recorded durations."""

from __future__ import annotations

import pytest

from farm_figures import SERIES, Job, bound, efficiency, matrix


def test_matrix_has_every_unit() -> None:
    jobs = matrix(2)
    assert len(jobs) == len({job.name for job in jobs})
    kinds = [job.kind for job in jobs]
    assert kinds.count("kernels") == 2
    assert kinds.count("compile") == 2 * 4 * len(SERIES)
    costly = [name for name, (_, _, boot, _) in SERIES.items() if boot]
    assert kinds.count("counting") == 2 * 6 * len(costly)
    cut = matrix(2, split=60)
    assert max(job.seconds for job in cut if job.kind == "guest") < 85
    # A boot more for each that is cut.
    more = sum(job.seconds for job in cut) - sum(job.seconds for job in jobs)
    assert more == 20 * (len(cut) - len(jobs)) > 0


def test_bound() -> None:
    jobs = [
        Job("k", "kernels", 100),
        Job("g", "guest", 10, "k"),
        Job("h", "guest", 30, "k"),
        Job("c", "compile", 20),
    ]
    assert bound(jobs, 1) == 160
    assert bound(jobs, 2) == 130
    assert bound(jobs, 4) == 130
    assert bound([*jobs, *[Job(str(n), "guest", 10, "k") for n in range(16)]], 4) == 150


@pytest.mark.deep
def test_workers_have_something_to_do() -> None:
    share, took, _, least = efficiency(4, 2, seconds=60.0)
    assert least <= took
    assert share > 0.8
