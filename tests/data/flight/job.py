# SPDX-License-Identifier: GPL-2.0-or-later
"""What wrote the dumps beside it: a rank of a gloo job, that notes the truth as well.

RANK=R WORLD_SIZE=3 job.py RENDEZVOUS: rank 1 sleeps longer from its fourth all-reduce
on.  It leaves nccl_trace_rank_R, of rank 1 also json_rank_1.json; in recording/ what a
recorder would have said, a part a rank; and truth-R.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

RANK, WORLD, STEPS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 24


def pair() -> tuple[int, int]:
    """CLOCK_MONOTONIC and CLOCK_REALTIME, of ten looks those nearest to each other."""
    looks = []
    for _ in range(10):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        looks.append((after - before, (before + after) // 2, real))
    _, mono, real = min(looks)
    return mono, real


def lines(path: str, rows: list[dict[str, object]]) -> None:
    """One a row."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def recording(pairs: list[tuple[int, int]]) -> None:
    """This process, and of the first rank the clocks and the session."""
    stat = Path("/proc/self/stat").read_text()
    ticks = int(stat.rpartition(")")[2].split()[19])
    proc: dict[str, object] = {"kind": "proc", "pid": os.getpid(), "tgid": os.getpid()}
    proc["starttime"] = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    proc |= {"comm": "python", "job": "gloo"}
    proc |= {"rank": RANK, "local_rank": RANK, "world": WORLD}
    rows = [proc]
    if RANK == 0:
        for mono, real in pairs:
            clock: dict[str, object] = {"kind": "clock", "t_mono": mono, "t_real": real}
            clock |= {"peer": None, "offset": None, "bound": None}
            rows.append(clock | {"method": "adjtimex"})
        session: dict[str, object] = {"format": 1, "node": "node0", "boot_id": "gloo"}
        session |= {"kernel": None, "instance": "kstall", "page_size": 4096}
        session |= {"began": pairs[0][0] - 1, "ended": pairs[-1][0] + 1}
        session |= {"config": {"classes": []}, "providers": [], "refused": []}
        lines("recording/session.json", [session])
    lines(f"recording/facts-{RANK}.jsonl", rows)


pairs = [pair()]
dist.init_process_group("gloo", init_method=sys.argv[1], rank=RANK, world_size=WORLD)
numbers = torch.zeros(4)
dist.broadcast(numbers, 0)
truth: list[dict[str, object]] = []
for step in range(STEPS):
    time.sleep(0.02 + (0.06 if RANK == 1 and step >= 3 else 0))
    entered = time.monotonic_ns()
    dist.all_reduce(numbers)
    truth.append({"rank": RANK, "enter": entered, "exit": time.monotonic_ns()})
time.sleep(0.3)
Path(f"nccl_trace_rank_{RANK}").write_bytes(c10d._dump_fr_trace())
if RANK == 1:
    Path("json_rank_1.json").write_bytes(c10d._dump_fr_trace_json())
pairs.append(pair())
Path("recording").mkdir(exist_ok=True)
recording(pairs)
lines(f"truth-{RANK}.jsonl", truth)
dist.barrier()
dist.destroy_process_group()
