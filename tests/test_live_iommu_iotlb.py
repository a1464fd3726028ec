# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the iommu-iotlb series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "iommu-iotlb"
SYNC = "0002-iommu-Add-iotlb_sync-trace-event.patch"
FLUSH = "0003-iommu-dma-Add-flush-queue-trace-event.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            SYNC,
            "+\t\t__entry->duration_ns = duration_ns;\n",
            "+\t\t__entry->duration_ns = duration_ns >> 10;\n",
            {"duration_is_that_of_the_callback"},
            id="microseconds",
        ),
        pytest.param(
            SYNC,
            "+\tu64 called = ktime_get_ns();\n",
            "+\tu64 called = 0;\n",
            {"duration_is_that_of_the_callback", "switched_on_half_way"},
            id="a duration without a beginning",
        ),
        pytest.param(
            SYNC,
            "+\t\t__entry->size = (u64)end - start + 1;\n",
            "+\t\t__entry->size = (u64)end - start;\n",
            {"strict_unmapping_waits", "disk_bytes_are_bytes_invalidated"},
            id="the last byte is left out",
        ),
        pytest.param(
            SYNC,
            "+\t\t__entry->tables = tables;\n",
            "+\t\t__entry->tables = 0;\n",
            {"freed_tables_are_told"},
            id="no tables",
        ),
        pytest.param(
            SYNC,
            "+\t\t__entry->type = domain->type;\n",
            "+\t\t__entry->type = domain->type & ~__IOMMU_DOMAIN_DMA_FQ;\n",
            {"scattered_io_waits_in_lazy_mode"},
            id="lazy domains look strict",
        ),
        pytest.param(
            FLUSH,
            "+\treturn (fq->head - head) & fq->mod_mask;\n",
            "+\treturn (fq->head - head + 1) & fq->mod_mask;\n",
            {"full_queue_frees_255", "each_unmapping_is_freed_once"},
            id="one more is freed",
        ),
        pytest.param(
            FLUSH,
            "+\t\t__entry->full = full;\n",
            "+\t\t__entry->full = 0;\n",
            {"full_queue_frees_255"},
            id="it is always the timer",
        ),
        pytest.param(
            FLUSH,
            "+\tu64 called = ktime_get_ns(), flushed;\n",
            "+\tu64 called = 0, flushed;\n",
            {"switched_on_half_way", "sizes_add_up"},
            id="a flush since the machine was booted",
        ),
    ],
)
def test_a_mutant_is_caught_by_name(
    project_copy: Project,
    tmp_path: Path,
    file: str,
    old: str,
    new: str,
    checks: set[str],
) -> None:
    require_caught(project_copy, tmp_path / "out", SERIES, file, old, new, *checks)
