# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the iommu-iotlb series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "iommu-iotlb"
SYNC = "0001-iommu-dma-Add-iotlb_sync-trace-event.patch"
FLUSH = "0002-iommu-dma-Add-flush-queue-trace-event.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            SYNC,
            "+\t\t__entry->sync_ns = sync_ns;\n",
            "+\t\t__entry->sync_ns = sync_ns >> 10;\n",
            {"unmapping_and_waiting_are_timed_apart"},
            id="microseconds",
        ),
        pytest.param(
            SYNC,
            "+\t\t__entry->unmap_ns = unmap_ns;\n+\t\t__entry->sync_ns = sync_ns;\n",
            "+\t\t__entry->unmap_ns = sync_ns;\n+\t\t__entry->sync_ns = unmap_ns;\n",
            {"unmapping_and_waiting_are_timed_apart"},
            id="unmapping and waiting are swapped",
        ),
        pytest.param(
            SYNC,
            "+\tu64 called = ktime_get_ns(), unmapped_at;\n",
            "+\tu64 called = 0, unmapped_at;\n",
            {"unmapping_and_waiting_are_timed_apart", "switched_on_half_way"},
            id="a time without a beginning",
        ),
        pytest.param(
            SYNC,
            "+\treturn iommu_unmap_fast(domain, iova, size, gather);\n",
            "+\tsize = iommu_unmap_fast(domain, iova, size, gather); "
            "if (!gather->queued) "
            "trace_iotlb_sync(dev, domain, iova, size, ktime_get_ns(), 0, 0); "
            "return size;\n",
            {"switched_on_half_way"},
            id="an unmapping that was not timed is told if the event is on by then",
        ),
        pytest.param(
            SYNC,
            "+\t\t__entry->size = size;\n",
            "+\t\t__entry->size = size - 1;\n",
            {"strict_unmapping_waits", "disk_bytes_are_bytes_invalidated"},
            id="the last byte is left out",
        ),
        pytest.param(
            SYNC,
            "+\t\t__entry->domain = domain;\n+\t\t__entry->lazy = lazy;\n",
            "+\t\t__entry->domain = dev;\n+\t\t__entry->lazy = lazy;\n",
            {"strict_unmapping_waits"},
            id="the device in place of the domain",
        ),
        pytest.param(
            SYNC,
            "+\t\t__string(device, dev_name(dev))\n",
            "+\t\t__string(device, dev_driver_string(dev))\n",
            {"strict_unmapping_waits", "disk_bytes_are_bytes_invalidated"},
            id="the driver in place of the device",
        ),
        pytest.param(
            SYNC,
            "+\t\t__entry->lazy = lazy;\n",
            "+\t\t__entry->lazy = 0;\n",
            {"scattered_io_waits_in_lazy_mode"},
            id="lazy domains look strict",
        ),
        pytest.param(
            FLUSH,
            "+\t\t__entry->flush_ns = flush_ns;\n+\t\t__entry->free_ns = free_ns;\n",
            "+\t\t__entry->flush_ns = free_ns;\n+\t\t__entry->free_ns = flush_ns;\n",
            {"flush_and_free_are_timed_apart"},
            id="flushing and freeing are swapped",
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
        pytest.param(
            FLUSH,
            "+\t\tfq_flush_iotlb(cookie);\n+\t\tfq_free(cookie, full);\n",
            "+\t\tfq_flush_iotlb(cookie);\n"
            "+\t\ttrace_iotlb_fq_flush(cookie->fq_domain, ktime_get_ns(), 0, "
            "fq_free(cookie, full), full);\n",
            {"switched_on_half_way"},
            id="a flush that was not timed is told if the event is on by then",
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
