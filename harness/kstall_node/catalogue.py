# SPDX-License-Identifier: GPL-2.0-or-later
"""Which events show which stalls: the sources of each class, the best first.

A `Source` is one way to see a class; it has providers, each of which defines how
records become stalls (docs/recording.md).  The kernel's own events come first, then
probes on functions of a stock kernel, with what those cannot know as text.

Events change between versions of a patch, and of the kernel.  So a member may be
written ``new|old``: the first name that the event's format has is used, and None if it
has neither.  ``dur``, ``key`` and ``when`` have to exist: an event without them means
something else.  A cause may be several tables; the first whose field exists is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CLASSES = ("throttle", "drm", "rdma", "aer", "iotlb", "io_uring", "mmu")


class Probe(NamedTuple):
    """A dynamic event, as it is defined in dynamic_events."""

    name: str
    #: ``f`` for a function, ``t`` for a tracepoint.
    kind: str
    where: str
    args: str
    #: Records that do not match are not written.
    filter: str = ""

    def text(self, group: str) -> str:
        """The definition in the kernel's syntax."""
        return f"{self.kind}:{group}/{self.name} {self.where} {self.args}".rstrip()

    @property
    def function(self) -> str:
        """The probed function."""
        return self.where.partition("%")[0]


class Source(NamedTuple):
    """One way to see a class, and the oracle that it is compared with."""

    name: str
    cls: str
    #: Providers; ``{g}`` in an event is the group of this recorder's probes.
    specs: tuple[dict[str, Any], ...]
    #: A name of `oracles`; None if nothing on a node counts the same.
    oracle: str | None
    probes: tuple[Probe, ...] = ()
    lost: str = ""
    #: For the oracle ``counted``: events and probes that fire as often as there are
    #: records of the first ``counts`` providers.  Only those ``either`` probes count
    #: that this kernel has.
    counted: tuple[str, ...] = ()
    either: tuple[Probe, ...] = ()
    counts: int = 1

    def events(self) -> list[str]:
        """The kernel's own events that it needs."""
        events = []
        for spec in self.specs:
            for name in (spec.get("begin"), spec["end"]):
                if name and not name.startswith("{g}:") and name not in events:
                    events.append(name)
        return events


_THROTTLED = (
    "$current->se.cfs_rq->tg",
    "$current->se.cfs_rq->tg->css.cgroup->kn->id",
    "$current->se.cfs_rq->rq->cpu",
    "$current->se.cfs_rq->throttle_count",
)
#: A task's own queue belongs to the task's group.
_TASK = (
    "task=p->pid comm=p->comm:string cgroup=cfs_rq->tg->css.cgroup->kn->id "
    "on=cfs_rq->rq->cpu"
)
_QUEUE = "cfs_rq=cfs_rq cgroup=cfs_rq->tg->css.cgroup->kn->id on=cfs_rq->rq->cpu"
_IB_EVENT = {
    "0": "completion queue error",
    "1": "queue pair fatal",
    "2": "queue pair request error",
    "3": "queue pair access error",
    "4": "communication established",
    "5": "send queue drained",
    "6": "path migrated",
    "7": "path migration error",
    "8": "device fatal",
    "16": "last receive entry reached",
}
#: AER_NONFATAL, AER_FATAL and AER_CORRECTABLE of the kernel.
_SEVERITY = {"0": "nonfatal", "1": "fatal", "2": "correctable"}
#: Bits of Root Error Status: correctable, uncorrectable, and fatal message received.
_COR, _UNCOR, _FATAL = 0x1, 0x4, 0x40
#: The flag of the domain; the first version of the patch had the domain's type.
_LAZY = (
    {"field": "lazy", "values": {"0": "strict", "1": "lazy, but not queued"}},
    {
        "field": "type",
        "values": {"1": "unmanaged", "3": "DMA, strict", "11": "DMA, lazy"},
    },
)
_MMU_EVENT = {
    "field": "event",
    "values": {
        "0": "unmap",
        "1": "clear",
        "2": "protect vma",
        "3": "protect page",
        "4": "soft dirty",
        "5": "release",
        "6": "migrate",
        "7": "exclusive",
        "8": "migration entry",
    },
}


def _message(
    cause: str, *when: tuple[str, int, int], half: int | None = None
) -> dict[str, Any]:
    """Messages to a Root Port that match all of ``when``.

    ``half`` of the Error Source Identification says who sent it; None if either may.
    """
    return {
        "end": "pci:pcie_aer_msg",
        "tid": None,
        "device": "port_name",
        "cause": cause,
        "when": [list(condition) for condition in when],
        "value1": "root_status",
        "value2": "err_src",
        "suffix": cause,
        "sender": None if half is None else ["domain", "err_src", 16 * half],
    }


SOURCES = (
    Source(
        "sched:sched_stat_throttled",
        "throttle",
        (
            {
                "end": "sched:sched_stat_throttled",
                "dur": "delay",
                "tid": "pid",
                "comm": "comm",
                "cause": "quota",
            },
        ),
        "cpu.stat.threads",
    ),
    Source(
        "throttle/tracepoints",
        "throttle",
        (
            {
                "begin": "{g}:throttle_task",
                "end": "{g}:unthrottle_task",
                "key": ["task"],
                "tid": "task",
                "comm": "comm",
                "cpu": "on",
                "cgroup_id": "cgroup",
                "cause": "quota",
            },
        ),
        "cpu.stat.threads",
        (
            Probe("throttle_task", "t", "sched_cfs_throttle_task_tp", _TASK),
            Probe("unthrottle_task", "t", "sched_cfs_unthrottle_task_tp", _TASK),
        ),
    ),
    Source(
        "throttle/threads",
        "throttle",
        (
            {
                "begin": "{g}:throttled",
                "end": "{g}:unthrottled",
                "key": ["tg", "on"],
                "many": True,
                "cpu": "on",
                "cgroup_id": "cgroup",
                "cause": "quota",
            },
        ),
        "cpu.stat.threads",
        (
            Probe(
                "throttled",
                "f",
                "throttle_cfs_rq_work",
                "tg={} cgroup={} on={} held={}".format(*_THROTTLED),
                "held > 0",
            ),
            Probe(
                "unthrottled",
                "f",
                "tg_unthrottle_up",
                "tg=tg cgroup=tg->css.cgroup->kn->id on=(rq)data->cpu",
            ),
        ),
        lost="ends for threads that were moved while throttled, and beginnings for "
        "threads that woke up in a throttled group",
    ),
    Source(
        "throttle/clock",
        "throttle",
        (
            {
                "end": "{g}:unthrottle_clock",
                "dur": ["clock", "start"],
                "tid": None,
                "cpu": "on",
                "cgroup_id": "cgroup",
                "cause": "quota",
            },
        ),
        "cpu.stat.queues",
        (
            Probe(
                "unthrottle_clock",
                "f",
                "unthrottle_cfs_rq",
                _QUEUE + " clock=cfs_rq->rq->clock start=cfs_rq->throttled_clock",
                "start > 0",
            ),
        ),
        lost="the thread",
    ),
    Source(
        "throttle/queues",
        "throttle",
        (
            {
                "begin": "{g}:throttle",
                "end": "{g}:unthrottle",
                "tid": None,
                "key": ["cfs_rq"],
                "cpu": "on",
                "cgroup_id": "cgroup",
                "cause": "quota",
            },
        ),
        "cpu.stat.queues",
        (
            Probe(
                "throttle",
                "f",
                "throttle_cfs_rq%return",
                _QUEUE + " ret=$retval",
                "ret & 1",
            ),
            # In 7.2 and 7.3 it returns at once if what runs has used up its runtime.
            Probe(
                "unthrottle",
                "f",
                "unthrottle_cfs_rq%return",
                _QUEUE + " still=cfs_rq->throttled",
                "still == 0",
            ),
        ),
        lost="the thread",
    ),
    Source(
        "gpu_scheduler:drm_sched_job_wait",
        "drm",
        (
            {
                "end": "gpu_scheduler:drm_sched_job_wait",
                "dur": "wait_ns",
                "tid": None,
                "value1": "dep_ns",
                "value2": "deps",
                "device": "dev",
                "join_key": "fence_seqno",
                "cause": "before dispatch",
            },
        ),
        "counted",
        lost="the thread that submitted the job: the event is in a worker's context",
        counted=("gpu_scheduler:drm_sched_job_run",),
    ),
    Source(
        "gpu_scheduler:drm_sched_job_queue",
        "drm",
        (
            {
                "begin": "gpu_scheduler:drm_sched_job_queue",
                "end": "gpu_scheduler:drm_sched_job_run",
                "key": ["fence_context", "fence_seqno"],
                "device": "dev",
                "join_key": "fence_seqno",
                "value1": "job_count",
                "value2": "hw_job_count",
                "cause": "before dispatch",
            },
        ),
        "pairs",
        lost="whether it waited for a dependency, for credits or in its own queue",
    ),
    Source(
        "gpu_scheduler:drm_sched_job",
        "drm",
        (
            {
                "begin": "gpu_scheduler:drm_sched_job",
                "end": "gpu_scheduler:drm_run_job",
                "key": ["id", "fence"],
                "join_key": "id",
                "value1": "job_count",
                "value2": "hw_job_count",
                "cause": "before dispatch",
            },
        ),
        "pairs",
        lost="device; whether it waited for a dependency, for credits or in its queue",
    ),
    Source(
        "rdma_core:cq_async_event",
        "rdma",
        (
            *tuple(
                {
                    "end": f"rdma_core:{event}",
                    "tid": "pid",
                    "device": "device",
                    "join_key": key,
                    "comm": "owner",
                    "value1": value,
                    "cause": {"field": "event", "values": _IB_EVENT},
                }
                for event, key, value in (
                    ("cq_async_event", "cq_id", "cqe"),
                    ("qp_async_event", "qp_num", "scq_id"),
                )
            ),
            {
                "end": "rdma_core:cq_wc_error",
                "tid": None,
                "device": "device",
                "join_key": "cq_id",
                "value1": "status",
                "comm": "owner",
                "cause": "completion with an error",
            },
        ),
        "counted",
        either=tuple(
            Probe(f"handler{number}", "f", function, "event=event->event")
            for number, function in enumerate(
                (
                    "ib_uverbs_cq_event_handler",
                    "ib_cq_event_handler",
                    "__ib_qp_event_handler",
                    "__ib_shared_qp_event_handler",
                )
            )
        ),
        counts=2,
    ),
    Source(
        "rdma/handlers",
        "rdma",
        tuple(
            {
                "end": f"{{g}}:{name}",
                "tid": None,
                "device": "device",
                "cause": {"field": "event", "values": _IB_EVENT},
            }
            for name in ("cq_event", "qp_event")
        ),
        None,
        (
            Probe(
                "cq_event",
                "f",
                "ib_uverbs_cq_event_handler",
                "event=event->event device=event->device->name:string",
            ),
            Probe(
                "qp_event",
                "f",
                "__ib_qp_event_handler",
                "event=event->event device=event->device->name:string",
            ),
        ),
        lost="owner and depth; completion queues of the kernel's own users",
    ),
    Source(
        "pci:pcie_aer_msg",
        "aer",
        (
            _message(
                "correctable",
                ("root_status", _COR, _COR),
                ("dropped", 1, 0),
                half=0,
            ),
            _message(
                "nonfatal",
                ("root_status", _UNCOR | _FATAL, _UNCOR),
                ("dropped", 1, 0),
                half=1,
            ),
            _message(
                "fatal",
                ("root_status", _UNCOR | _FATAL, _UNCOR | _FATAL),
                ("dropped", 1, 0),
                half=1,
            ),
            _message("more of them", ("root_status", _COR | _UNCOR, 0)),
            _message("not looked into", ("dropped", 1, 1)),
        ),
        "aer.roots",
        counts=3,
    ),
    Source(
        "ras:aer_event",
        "aer",
        (
            {
                "end": "ras:aer_event",
                "tid": None,
                "device": "dev_name",
                "join_key": "dev_name",
                "value1": "status",
                "cause": {"field": "severity", "values": _SEVERITY},
            },
        ),
        "aer.devices",
        lost="messages for which no device had an error status",
    ),
    Source(
        "iommu:iotlb_sync",
        "iotlb",
        (
            {
                "end": "iommu:iotlb_sync",
                "dur": "sync_ns|duration_ns",
                "value1": "size",
                "value2": "unmap_ns|tables",
                "device": "device|",
                "join_key": "domain",
                "cause": _LAZY,
            },
            {
                "end": "iommu:iotlb_fq_flush",
                "dur": "flush_ns",
                "tid": None,
                "value1": "freed",
                "value2": "free_ns",
                "join_key": "domain",
                "cause": {
                    "field": "full",
                    "values": {"0": "queue flushed by its timer", "1": "queue full"},
                },
            },
        ),
        "counted",
        lost="what a driver waits for while it unmaps",
        either=tuple(
            Probe(f"sync{number}", "f", function, "domain=domain")
            for number, function in enumerate(
                ("intel_iommu_tlb_sync", "amd_iommu_iotlb_sync", "arm_smmu_iotlb_sync")
            )
        ),
    ),
    Source(
        "iotlb/intel",
        "iotlb",
        (
            {
                "begin": "{g}:sync",
                "end": "{g}:synced",
                "key": ["common_pid", "common_cpu"],
                "cause": "invalidation queue",
            },
        ),
        "pairs",
        (
            Probe("sync", "f", "qi_submit_sync", "count=count"),
            Probe("synced", "f", "qi_submit_sync%return", "ret=$retval"),
        ),
        lost="range and domain; whether it was strict or lazy",
    ),
    Source(
        "iotlb/amd",
        "iotlb",
        (
            {
                "begin": "{g}:sync",
                "end": "{g}:synced",
                "key": ["common_pid", "common_cpu"],
                "cause": "command queue",
            },
        ),
        "pairs",
        (
            Probe("sync", "f", "amd_iommu_iotlb_sync", ""),
            Probe("synced", "f", "amd_iommu_iotlb_sync%return", ""),
        ),
        lost="range and domain; whether it was strict or lazy",
    ),
    Source(
        "io_uring:io_uring_sqring_wait_end",
        "io_uring",
        (
            {
                "begin": "io_uring:io_uring_sqring_wait",
                "end": "io_uring:io_uring_sqring_wait_end",
                "key": ["ctx", "common_pid"],
                "join_key": "ctx",
                "value1": "queued",
                "value2": "sq_entries",
                "cause": "submission queue full",
            },
            {
                "end": "io_uring:io_uring_short_submit",
                "join_key": "ctx",
                "value1": "left",
                "value2": "sq_dropped",
                "cause": {
                    "field": "reason",
                    "values": {
                        "1": "no memory for a request",
                        "2": "entries dropped",
                        "3": "entry in error",
                    },
                },
            },
            {
                "begin": "io_uring:io_uring_queue_async_work",
                "end": "io_uring:io_uring_start_async_work",
                "key": ["req"],
                "tid": None,
                "join_key": "ctx",
                "value1": "opcode",
                "value2": "cancel",
                "cause": "request waited for a worker",
            },
        ),
        "pairs",
        lost="threads that spin until there is room",
    ),
    Source(
        "io_uring/wait",
        "io_uring",
        (
            {
                "begin": "{g}:sq_wait",
                "end": "{g}:sq_waited",
                "key": ["common_pid"],
                "join_key": "ctx",
                "cause": "submission queue full",
            },
        ),
        "pairs",
        (
            Probe("sq_wait", "f", "io_sqpoll_wait_sq", "ctx=ctx"),
            Probe("sq_waited", "f", "io_sqpoll_wait_sq%return", "ctx=ctx"),
        ),
        lost="short submissions and entries that were overwritten",
    ),
    Source(
        "mmu_notifier:mmu_notifier_callback_end",
        "mmu",
        (
            {
                "begin": "mmu_notifier:mmu_notifier_callback_begin",
                "end": "mmu_notifier:mmu_notifier_callback_end",
                "key": ["common_pid", "subscription", "pass"],
                "value1": "start",
                "value2": "end",
                "join_key": "function",
                "cause": _MMU_EVENT,
            },
        ),
        "pairs",
    ),
    Source(
        "mmu_notifier:mmu_notifier_invalidate",
        "mmu",
        (
            {
                "end": "mmu_notifier:mmu_notifier_invalidate",
                "dur": "duration_ns",
                "value1": "start",
                "value2": "end",
                "join_key": "function",
                "cause": _MMU_EVENT,
            },
            {
                "end": "mmu_notifier:mmu_notifier_invalidate_finish",
                "dur": "duration_ns",
                "value1": "start",
                "value2": "end",
                "join_key": "function",
                "cause": "second pass",
            },
        ),
        None,
        lost="callbacks that have not returned yet",
    ),
    Source(
        "mmu/start",
        "mmu",
        (
            {
                "begin": "{g}:invalidate",
                "end": "{g}:invalidated",
                "key": ["common_pid"],
                "cause": "callbacks",
            },
        ),
        "pairs",
        (
            Probe("invalidate", "f", "__mmu_notifier_invalidate_range_start", ""),
            Probe(
                "invalidated",
                "f",
                "__mmu_notifier_invalidate_range_start%return",
                "",
            ),
        ),
        lost="which subscriber it was, and whether the memory was migrated",
    ),
)


def of(cls: str) -> list[Source]:
    """The sources of a class, the best first."""
    return [source for source in SOURCES if source.cls == cls]
