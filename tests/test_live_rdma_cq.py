# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of the rdma-cq series: each is caught by the check made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Project
from live import require_caught

pytestmark = [pytest.mark.live, pytest.mark.deep]

SERIES = "rdma-cq"
ROUTE = "0001-RDMA-core-Route-CQ-asynchronous-events-through-a-cor.patch"
CQ = "0002-RDMA-core-Add-tracepoint-for-CQ-asynchronous-events.patch"
QP = "0003-RDMA-core-Add-tracepoint-for-QP-asynchronous-events.patch"
WC = "0005-RDMA-core-Add-tracepoint-for-failed-work-completions.patch"


@pytest.mark.parametrize(
    ("file", "old", "new", "checks"),
    [
        pytest.param(
            ROUTE,
            "+\tib_cq_set_event_handler(cq, NULL);\n",
            "+\tcq->registered_event_handler = NULL;\n",
            {"kernel_queue_overruns"},
            id="queues of ib_alloc_cq() stay unseen",
        ),
        pytest.param(
            ROUTE,
            '+#include "core_priv.h"\n'
            ' #include "restrack.h"\n'
            " \n"
            " static int uverbs_free_cq(struct ib_uobject *uobject,\n",
            '+#include "core_priv.h"\n'
            ' #include "restrack.h"\n'
            "-\n"
            "+#define ib_cq_set_event_handler(cq, fn) ((cq)->event_handler = (fn))\n"
            " static int uverbs_free_cq(struct ib_uobject *uobject,\n",
            {
                "overrun_names_device_queue_owner_and_depth",
                "each_async_event_was_traced",
            },
            id="queues created by ioctl() stay unseen",
        ),
        pytest.param(
            ROUTE,
            "+\tcq->registered_event_handler = handler;\n",
            "+\tcq->registered_event_handler = cq->uobject ? NULL : handler;\n",
            {"each_async_event_was_traced", "each_dropped_completion_is_an_event"},
            id="the program is no longer told",
        ),
        pytest.param(
            CQ,
            "+\t\tconst struct task_struct *task = cq->res.task;\n",
            "+\t\tconst struct task_struct *task = current;\n",
            {"overrun_names_device_queue_owner_and_depth", "kernel_queue_overruns"},
            id="whoever runs is taken for the owner",
        ),
        pytest.param(
            CQ,
            "+\t\t__entry->usecnt = atomic_read(&cq->usecnt);\n",
            "+\t\t__entry->usecnt = cq->cqe_used;\n",
            {"overrun_names_device_queue_owner_and_depth", "kernel_queue_overruns"},
            id="what is reserved of a shared queue is taken for its users",
        ),
        pytest.param(
            QP,
            "+\t\t__entry->scq_id = qp->send_cq ? qp->send_cq->res.id : U32_MAX;\n",
            "+\t\t__entry->scq_id = qp->recv_cq ? qp->recv_cq->res.id : U32_MAX;\n",
            {"bad_key_is_an_event_of_the_target", "qp_event_names_its_queues"},
            id="the wrong queue is blamed",
        ),
        pytest.param(
            QP,
            "+\ttrace_qp_async_event(qp, event->event);\n \tspin_lock_irqsave(",
            "+\tqp->real_qp = qp;\n \tspin_lock_irqsave(",
            {"kernel_queue_pairs_are_seen"},
            id="targets of XRC stay unseen",
        ),
        pytest.param(
            WC,
            "+\tTP_CONDITION(wc->status != IB_WC_SUCCESS),\n",
            "+\tTP_CONDITION(wc->status != IB_WC_LOC_LEN_ERR),\n",
            {"kernel_queue_under_load_is_silent", "failed_completions_of_the_kernel"},
            id="success is reported as well",
        ),
        pytest.param(
            WC,
            "+\t\t__entry->done = wc->wr_cqe ? wc->wr_cqe->done : NULL;\n",
            "+\t\t__entry->done = wc->wr_cqe;\n",
            {"end_of_a_connection_is_flushes", "failed_completions_of_the_kernel"},
            id="the request is taken for its handler",
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
