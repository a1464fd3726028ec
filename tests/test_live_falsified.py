# SPDX-License-Identifier: GPL-2.0-or-later
"""The operators are honest: patches that do what they do are caught by the same checks.

`kstall mutate` falsifies records; here a patch of each series does so in a kernel.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import live
from kstall.base import cache
from kstall.evidence import falsify
from kstall.series import Project
from kstall.tree import source, tree

pytestmark = [pytest.mark.live]

#: mm-migrate's events begin alike; only the end has a duration.
_REST_OF_END = "".join(
    f"+\t\t__entry->{line};\n"
    for line in (
        *("subscription = subscription", "function = function"),
        *("start = range->start", "end = range->end", "duration_ns = duration_ns"),
    )
)

#: Series, patch, lines before and after; event, field and operator that this is; who
#: catches it, as `kstall mutate --all` names them, too.
PATCHES = [
    pytest.param(
        "drm-sched",
        "0002-drm-sched-Trace-how-long-a-job-waited-and-for-what.patch",
        "+\t\t    __entry->deps = deps;\n+\t\t    __entry->order_deps = order_deps;\n",
        "+\t\t    __entry->deps = order_deps;\n+\t\t    __entry->order_deps = deps;\n",
        ("gpu_scheduler:drm_sched_job_wait", "deps", "swapped with order_deps"),
        {"dependency_wait_is_told_apart"},
        id="drm-sched: deps swapped with order_deps",
    ),
    pytest.param(
        "io_uring-sq",
        "0001-io_uring-add-trace-event-for-the-start-of-async-work.patch",
        "+\t\t__entry->user_data\t= req->cqe.user_data;\n",
        "+\t\t__entry->user_data\t= req->cqe.user_data + 1;\n",
        ("io_uring:io_uring_start_async_work", "user_data", "one more"),
        {"async_start_is_seen_twice"},
        id="io_uring-sq: user_data is one more",
    ),
    pytest.param(
        "iommu-iotlb",
        "0002-iommu-dma-Add-flush-queue-trace-event.patch",
        "+\t\t__entry->flush_ns = flush_ns;\n+\t\t__entry->free_ns = free_ns;\n",
        "+\t\t__entry->flush_ns = free_ns;\n+\t\t__entry->free_ns = flush_ns;\n",
        ("iommu:iotlb_fq_flush", "flush_ns", "swapped with free_ns"),
        {"flush_and_free_are_timed_apart"},
        id="iommu-iotlb: flush_ns swapped with free_ns",
    ),
    pytest.param(
        "mm-migrate",
        "0002-mm-mmu_notifier-add-tracepoints-around-subscribers-c.patch",
        f"+\t\t__entry->mm = range->mm;\n{_REST_OF_END}",
        f"+\t\t__entry->mm = current->active_mm + 1;\n{_REST_OF_END}",
        ("mmu_notifier:mmu_notifier_invalidate_end", "mm", "one more"),
        {"one_event_for_each_page"},
        id="mm-migrate: mm is another address",
    ),
    pytest.param(
        "pci-aer",
        None,
        "+\t\t__entry->err_src\t= err_src;\n",
        "+\t\t__entry->err_src\t= root_status;\n",
        ("pci:pcie_aer_msg", "err_src", "from root_status"),
        {"a_message_a_record"},
        id="pci-aer: err_src is root_status",
    ),
    pytest.param(
        "rdma-cq",
        "0003-RDMA-core-Add-tracepoint-for-QP-asynchronous-events.patch",
        "+\t\t__entry->qp_num = qp->qp_num;\n",
        "+\t\t__entry->qp_num = qp->qp_num / 2;\n",
        ("rdma_core:qp_async_event", "qp_num", "half"),
        {"bad_key_is_an_event_of_the_target"},
        id="rdma-cq: qp_num is half",
    ),
    pytest.param(
        "sched-throttle",
        "0002-sched-fair-Add-tracepoints-for-CFS-bandwidth-throttl.patch",
        "+\ttrace_sched_cfs_unthrottle_tp(cfs_rq, delta);\n",
        "+\ttrace_sched_cfs_unthrottle_tp(cfs_rq, delta / 1000);\n",
        ("sched:sched_cfs_unthrottle", "delta", "/1000"),
        {"group_time_is_cpu_stat"},
        id="sched-throttle: delta in us",
    ),
]
_TABLE = ("series", "file", "old", "new", "operator", "checks")


def _file(project: Project, series: str, file: str | None, old: str) -> str:
    """The patch with these lines, where the name is not given."""
    if file is not None:
        return file
    folder = project.patches / series
    (found,) = (one.name for one in folder.glob("*.patch") if old in one.read_text())
    return found


@pytest.mark.parametrize(_TABLE, PATCHES)
def test_each_falsifying_patch_applies(
    project_copy: Project,
    tmp_path: Path,
    series: str,
    file: str | None,
    old: str,
    new: str,
    operator: tuple[str, str, str],
    checks: set[str],
) -> None:
    (whole,) = project_copy.load([series])
    assert checks <= {check.name for check in whole.spec.check}
    (point,) = (one for one in whole.spec.tracepoint if one.event == operator[0])
    assert operator[1] in {*point.fields, falsify.RECORDS}
    base = source.obtain(None, cache.default_dir(), lambda _: None)
    unchanged = tree.plan(base, whole.patches, tmp_path).content
    patch = _file(project_copy, series, file, old)
    live.mutate(project_copy, series, patch, old, new)
    (false,) = project_copy.load([series])
    assert tree.plan(base, false.patches, tmp_path).content != unchanged


@pytest.mark.deep
@pytest.mark.parametrize(_TABLE, PATCHES)
def test_a_patch_that_falsifies_is_caught_by_the_same_check(
    project_copy: Project,
    tmp_path: Path,
    series: str,
    file: str | None,
    old: str,
    new: str,
    operator: tuple[str, str, str],
    checks: set[str],
) -> None:
    patch = _file(project_copy, series, file, old)
    out = tmp_path / "out"
    live.require_caught(project_copy, out, series, patch, old, new, *checks)
