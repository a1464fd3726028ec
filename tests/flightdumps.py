# SPDX-License-Identifier: GPL-2.0-or-later
"""Dumps of the Flight Recorder of a described job, in the format that NCCL's have.

Keys, types and order are those of format 2.10; what gloo does not fill in, the times of
a watchdog and of a device, is as FlightRecorderDetail.hpp of PyTorch says.
"""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recordings import MS, SECOND, Node

#: What CLOCK_REALTIME is ahead of the true time by.
REAL = 1_800_000_000 * SECOND
_MARK = re.compile(r"kstall step=(\d+) phase=(enter|exit)")
_FRAMES = [("all_reduce", "distributed_c10d.py"), ("<module>", "train.py")]

Entry = dict[str, Any]


def entry(seq: int, created: int, **more: Any) -> Entry:
    """One that was enqueued and not yet seen to have started."""
    return {
        "frames": [
            {"name": name, "filename": file, "line": 7} for name, file in _FRAMES
        ],
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python3",
        "thread_id": "140026023082880",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }


def whole(entries: list[Entry], ranks: int = 3, **more: Any) -> dict[str, Any]:
    """A dump of the default group of so many ranks."""
    name = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    return {
        "version": "2.10",
        "pg_config": {"0": name},
        "comm_lib_version": "2.27.5",
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}},
        "entries": entries,
        **more,
    }


def pickled(said: object) -> bytes:
    """As PyTorch's own pickler does it: version 2, and no names but strings."""
    return pickle.dumps(said, 2)


def jsoned(said: dict[str, Any]) -> bytes:
    """As its other form: no stacks, 0 for what is not known, no entries if empty."""
    entries = []
    for one in said["entries"]:
        plain = {name: value for name, value in one.items() if name != "frames"}
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            plain[name] = plain[name] or 0
        entries.append(plain)
    return json.dumps(said | {"entries": entries}).encode()


@dataclass
class Watched:
    """What dumps of a job say: how often its watchdogs look, and what is timed."""

    timing: bool = True
    #: A watchdog looks so often, and each of them at its own times.
    interval: int = 100 * MS
    backend: str = "nccl"
    #: What every entry of a rank says instead.
    more: dict[int, Entry] = field(default_factory=dict)

    def of(self, nodes: list[Node], skew: Any = lambda rank: 0) -> list[dict[str, Any]]:
        """The dump of each rank of a `Training`; its marks are gone then.

        Nodes get what a recorder notes of clocks: ``skew`` is what each is ahead by.
        """
        dumps = []
        same = len(set(map(id, nodes))) == 1
        for rank, node in enumerate(nodes):
            ahead = skew(rank)
            tid = 4000 + (10 * rank if same else 0)
            found: dict[int, dict[str, int]] = {}
            for t, _, pid, name, fields in node.events:
                match = (
                    _MARK.match(str(fields.get("buf", ""))) if name == "print" else None
                )
                if match and pid == tid:
                    found.setdefault(int(match[1]), {})[match[2]] = t - ahead + REAL
            entries = [
                self._entry(step + 1, one["enter"], one["exit"], rank)
                for step, one in sorted(found.items())
            ]
            dumps.append(whole(entries, len(nodes)))
        for rank, node in enumerate(nodes):
            if same and rank:
                break
            node.events = [one for one in node.events if one[3] != "print"]
            for t in range(node.began, node.ended or 0, 10 * SECOND):
                real = t - skew(rank) + REAL
                node.fact("clock", t_mono=t, t_real=real, bound=None, method="adjtimex")
        return dumps

    def _entry(self, seq: int, enter: int, leave: int, rank: int) -> Entry:
        more: Entry = {"profiling_name": f"{self.backend}:all_reduce"}
        if self.backend != "gloo":
            phase = rank * 7 * MS
            seen = (leave - phase) // self.interval * self.interval + phase
            more |= {"time_discovered_completed_ns": seen + self.interval}
            more |= {"state": "completed"}
            if self.timing:
                seen = (enter - phase) // self.interval * self.interval + phase
                more |= {"time_discovered_started_ns": seen + self.interval}
                more |= {"duration_ms": (leave - enter) / 1e6}
        return entry(seq, enter, retired=True, **more | self.more.get(rank, {}))


def write(dumps: list[dict[str, Any]], dir: Path) -> list[Path]:
    """A pickle for each rank."""
    dir.mkdir(exist_ok=True)
    paths = []
    for rank, said in enumerate(dumps):
        path = dir / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickled(said))
        paths.append(path)
    return paths
