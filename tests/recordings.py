# SPDX-License-Identifier: GPL-2.0-or-later
"""Recordings made up from a described job: raw pages, formats and facts, as on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kstall.ftrace import Member, event, parse_layout
from kstall_node import catalogue
from ringpages import entry, page, record

MS = 1_000_000
SECOND = 1000 * MS
BEGAN = 100 * SECOND
_COMMON = (
    "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
    "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
    "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
)


def format_text(name: str, number: int, fields: Iterable[tuple[str, int]]) -> str:
    """A format file; ``fields`` are (declaration, size), and signed if int."""
    lines, at = [], 8
    for declared, size in fields:
        at = (at + size - 1) // size * size if size else at
        signed = int(declared.startswith("int "))
        lines.append(
            f"\tfield:{declared};\toffset:{at};\tsize:{size};\tsigned:{signed};\n"
        )
        at += size
    body = "".join(lines)
    return f'name: {name}\nID: {number}\nformat:\n{_COMMON}{body}\nprint fmt: ""\n'


FORMATS = {
    "ftrace/print": format_text(
        "print", 5, [("unsigned long ip", 8), ("char buf[]", 0)]
    ),
    "kstall/throttle_in": format_text(
        "throttle_in", 2001, [("u64 cgroup", 8), ("int task", 4)]
    ),
    "kstall/throttle_out": format_text(
        "throttle_out", 2002, [("u64 cgroup", 8), ("int task", 4)]
    ),
    "io_uring/io_uring_sqring_wait": format_text(
        "io_uring_sqring_wait", 2003, [("u64 ctx", 8), ("u64 wait_ns", 8)]
    ),
    "ras/aer_event": format_text(
        "aer_event", 2004, [("__data_loc char[] dev_name", 4), ("int severity", 4)]
    ),
    "pci/pcie_aer_msg": format_text(
        "pcie_aer_msg",
        2007,
        [
            *(("__data_loc char[] port_name", 4), ("int domain", 4)),
            *(("u32 root_status", 4), ("u32 err_src", 4), ("u32 dropped", 4)),
        ],
    ),
    "rdma_core/qp_async_event": format_text("qp_async_event", 2005, [("int event", 4)]),
    "rdma_core/cq_wc_error": format_text("cq_wc_error", 2006, [("u32 status", 4)]),
}
PROVIDERS: list[dict[str, Any]] = [
    {
        "provider": "throttle/fprobe",
        "class": "throttle",
        "begin": "kstall:throttle_in",
        "end": "kstall:throttle_out",
        "key": ["task"],
        "tid": "task",
        "cgroup_id": "cgroup",
        "cause": "quota",
    },
    {
        "provider": "io_uring:io_uring_sqring_wait",
        "class": "io_uring",
        "end": "io_uring:io_uring_sqring_wait",
        "dur": "wait_ns",
        "join_key": "ctx",
        "cause": "ring full",
    },
    {
        "provider": "ras:aer_event",
        "class": "aer",
        "end": "ras:aer_event",
        "tid": None,
        "device": "dev_name",
        "join_key": "dev_name",
        "cause": {"field": "severity", "values": {"0": "correctable", "1": "fatal"}},
    },
]
#: As where the kernel does not tell which thread was throttled.
QUEUES: dict[str, Any] = PROVIDERS[0] | {
    "provider": "throttle/queues",
    "key": ["task"],
    "tid": None,
}
#: For a node that records RDMA, too.
RDMA: list[dict[str, Any]] = [
    {
        "provider": "rdma_core:cq_async_event+qp_async_event",
        "class": "rdma",
        "end": "rdma_core:qp_async_event",
        "tid": None,
        "cause": {"field": "event", "values": catalogue._IB_EVENT},
    },
    {
        "provider": "rdma_core:cq_async_event+cq_wc_error",
        "class": "rdma",
        "end": "rdma_core:cq_wc_error",
        "tid": None,
        "value1": "status",
        "cause": "completion with an error",
    },
]
#: Messages that Root Ports received, as the recorder describes them.
MESSAGES: list[dict[str, Any]] = [
    {"provider": f"pci:pcie_aer_msg+{spec['suffix']}", "class": "aer", **spec}
    for source in catalogue.of("aer")
    if source.name == "pci:pcie_aer_msg"
    for spec in source.specs
]


def layouts() -> dict[str, event.Layout]:
    """By name."""
    by_name = {}
    for path, text in FORMATS.items():
        system, name = path.split("/")
        by_name[name] = parse_layout(text, system)
    return by_name


@dataclass
class Node:
    """One node and what happened on it; ``write`` makes a recording of it."""

    name: str = "node0"
    boot_id: str = "boot0"
    began: int = BEGAN
    ended: int | None = BEGAN + 100 * SECOND
    events: list[tuple[int, int, int, str, Mapping[str, Member]]] = field(
        default_factory=list
    )
    facts: list[dict[str, Any]] = field(default_factory=list)
    providers: list[dict[str, Any]] = field(default_factory=lambda: list(PROVIDERS))
    #: Classes of which there is no provider, and why.
    refused: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def event(self, t: int, cpu: int, pid: int, name: str, **fields: Member) -> None:
        """A record at ``t``."""
        self.events.append((t, cpu, pid, name, fields))

    def mark(self, t: int, tid: int, step: int, phase: str, extra: str = "") -> None:
        """What a job writes into trace_marker."""
        text = f"kstall step={step} phase={phase}{extra}\n"
        self.event(t, 0, tid, "print", ip=1, buf=text)

    def throttle(self, t0: int, t1: int, tid: int, cgroup: int = 77) -> None:
        """A thread that was kept off the CPU."""
        self.event(t0, 0, tid, "throttle_in", cgroup=cgroup, task=tid)
        self.event(t1, 1, 0, "throttle_out", cgroup=cgroup, task=tid)

    def fact(self, kind: str, **columns: Any) -> None:
        """A line of facts.jsonl."""
        self.facts.append({"kind": kind, **columns})

    def proc(self, pid: int, comm: str = "python3", **columns: Any) -> None:
        """A process that was there from the start."""
        row = {"starttime": 1, "tgid": pid, "comm": comm, "cgroup_id": 77}
        self.fact("proc", pid=pid, **(row | columns))

    def write(
        self,
        dir: Path,
        *,
        sealed: bool = True,
        per_page: int = 20,
        per_segment: int = 1000,
    ) -> Path:
        """The recording, in ``dir``; so many records a page, and pages a segment."""
        known = layouts()
        (dir / "segments").mkdir(parents=True)
        for path, text in FORMATS.items():
            (dir / "formats" / path).parent.mkdir(parents=True, exist_ok=True)
            (dir / "formats" / path).write_text(text)
        session = {
            "format": 1,
            "node": self.name,
            "boot_id": self.boot_id,
            "kernel": "7.3.4",
            "instance": "kstall",
            "began": self.began,
            "ended": self.ended,
            "page_size": 4096,
            "config": self.config,
            "providers": [
                one for one in self.providers if one["class"] not in self.refused
            ],
            "refused": [
                {"provider": f"{cls}/x", "class": cls, "why": why}
                for cls, why in self.refused.items()
            ],
        }
        (dir / "session.json").write_text(json.dumps(session))
        facts = "".join(json.dumps(fact) + "\n" for fact in self.facts)
        (dir / "facts.jsonl").write_text(facts)
        for cpu in sorted({recorded_event[1] for recorded_event in self.events}):
            mine = sorted(
                recorded_event
                for recorded_event in self.events
                if recorded_event[1] == cpu
            )
            pages = []
            for at in range(0, len(mine), per_page):
                pages.append(_page(mine[at : at + per_page], known))
            for at in range(0, len(pages), per_segment):
                seq = at // per_segment
                segment = dir / f"segments/cpu{cpu}-{seq}.pages"
                segment.write_bytes(b"".join(pages[at : at + per_segment]))
                if sealed:
                    seal_segment(segment, cpu, seq)
        return dir


def _page(
    events: list[tuple[int, int, int, str, Mapping[str, Member]]],
    known: Mapping[str, event.Layout],
) -> bytes:
    entries, before = [], events[0][0]
    for t, _, pid, name, fields in events:
        layout = known[name]
        if name == "print":
            text = str(fields["buf"]).encode() + b"\0"
            data = layout.id.to_bytes(2, "little") + bytes(2)
            data += pid.to_bytes(4, "little") + bytes(8) + text
            data = data.ljust((len(data) + 3) & ~3, b"\0")
        else:
            data = record(layout, pid, fields)
        delta = t - before
        if delta >= 1 << 27:
            word = (delta & ((1 << 27) - 1)) << 5 | 30
            entries.append(
                word.to_bytes(4, "little") + (delta >> 27).to_bytes(4, "little")
            )
            delta = 0
        entries.append(entry(delta, data))
        before = t
    return page(events[0][0], entries)


def seal_segment(path: Path, cpu: int, seq: int = 0) -> None:
    """What the recorder writes beside a segment that is whole."""
    data = path.read_bytes()
    about = {
        "cpu": cpu,
        "seq": seq,
        "first_page": 0,
        "pages": len(data) // 4096,
        "blake2b": hashlib.blake2b(data, digest_size=16).hexdigest(),
        # When its first and its last page began.
        "t0": int.from_bytes(data[:8], "little"),
        "t1": int.from_bytes(data[-4096:][:8], "little"),
    }
    path.with_suffix(".json").write_text(json.dumps(about))


def restarted(node: Node, t: int) -> list[Node]:
    """The recordings of two recorders, the second of which was started at ``t``."""
    later = dataclasses.replace(node, began=t, facts=list(node.facts))
    later.events = [event for event in node.events if event[0] >= t]
    earlier = dataclasses.replace(node, ended=t - MS, facts=list(node.facts))
    earlier.events = [event for event in node.events if event[0] < t - MS]
    return [earlier, later]


@dataclass
class Training:
    """A data-parallel job: each rank computes, then all wait for the last one."""

    ranks: int = 3
    steps: int = 60
    compute: int = 100 * MS
    #: Extra time of a rank in a step, and how much of that it is throttled.
    extra: Callable[[int, int], int] = lambda rank, step: 0
    throttled: Callable[[int, int], int] = lambda rank, step: 0
    #: For how long a rank cannot leave a collective, and whether a quota is why.
    kept: Callable[[int, int], int] = lambda rank, step: 0
    by_quota: bool = True
    #: Clocks: what each node's is ahead of the truth by.
    skew: Callable[[int], int] = lambda rank: 0

    def nodes(self, one_node: bool = False) -> list[Node]:
        """One node for each rank, with the same numbers of processes on each."""
        nodes: list[Node] = []
        if one_node:
            nodes = [Node()] * self.ranks
        else:
            for rank in range(self.ranks):
                skew = self.skew(rank)
                began = BEGAN + skew
                ended = began + (self.steps + 10) * 10 * self.compute
                nodes.append(Node(f"node{rank}", f"boot{rank}", began, ended))
        tids = [4000 + (10 * r if one_node else 0) for r in range(self.ranks)]
        for rank, node in enumerate(nodes):
            node.proc(tids[rank], job="train", rank=rank, world=self.ranks)
            node.fact(
                "cgroup", cgroup_id=77, path="/pod-7/train", cpu_max="20000 100000"
            )
        now = BEGAN + SECOND
        starts = [now] * self.ranks
        for step in range(self.steps):
            jitter = [
                (rank * 7 + step * 13) % 11 * MS // 10 for rank in range(self.ranks)
            ]
            arrivals = [
                starts[rank] + self.compute + jitter[rank] + self.extra(rank, step)
                for rank in range(self.ranks)
            ]
            done = max(arrivals) + 2 * MS
            for rank, node in enumerate(nodes):
                ahead = self.skew(rank)
                if lost := self.throttled(rank, step):
                    begin = now + 20 * MS + ahead
                    node.throttle(begin, begin + lost, tids[rank])
                node.mark(arrivals[rank] + ahead, tids[rank], step, "enter")
                left = done + rank * 20_000
                if kept := self.kept(rank, step):
                    if self.by_quota:
                        node.throttle(left + ahead, left + kept + ahead, tids[rank])
                    left += kept + 50_000
                node.mark(left + ahead, tids[rank], step, "exit")
                starts[rank] = max(left, done + 100_000)
            now = done + 100_000
        return nodes

    def write(self, dir: Path) -> Path:
        """Recordings of all nodes, below ``dir``."""
        for node in self.nodes():
            node.write(dir / node.name)
        return dir


def culprit(
    rank: int = 1, begin: int = 20, end: int = 40, lost: int = 80 * MS
) -> Training:
    """A job with a quota on one rank, that is lifted again."""

    def slow(number: int, step: int) -> int:
        return lost if number == rank and begin <= step < end else 0

    return Training(extra=slow, throttled=slow)
