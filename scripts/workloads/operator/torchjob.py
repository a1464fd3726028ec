#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The job of allreduce.py by torch.distributed over gloo under torchrun.

    torchjob.py --ranks 3 --steps 60

Without RANK in its environment it acts as torchrun, also with a build without libuv.
--quota R:A-B:USEC gives rank R so much CPU time in each 100 ms from step A to B.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys

import torch
import torch.distributed as dist
from allreduce import Group, Marks, burn, window

# Debian's build has no libuv, and torchrun asks for it whatever USE_LIBUV says.
dist.TCPStore = functools.partial(dist.TCPStore, use_libuv=False)
# The package has a function of the module's name, so take the module from here.
sys.modules["torch.distributed.rendezvous"].TCPStore = dist.TCPStore


def launch(ranks: int) -> None:
    """Start all ranks, as torchrun does, with the same arguments."""
    from torch.distributed import run  # noqa: PLC0415

    words = ["--nproc-per-node", str(ranks), "--rdzv-id", "train", "--no-python"]
    run.main([*words, sys.executable, *sys.argv])


def main() -> None:
    """Be a rank, or start all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--compute", type=float, default=100, metavar="MS")
    parser.add_argument("--quota", action="append", default=[], metavar="R:A-B:USEC")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        launch(options.ranks)
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    quotas = [entry for entry in map(window, options.quota) if entry[0] == rank]
    group = Group(f"kstall-torch-{rank}") if quotas else None
    if group:
        group.enter(os.getpid())
    marks = Marks(None, rank, os.environ["TORCHELASTIC_RUN_ID"])
    truth = []
    for step in range(options.steps):
        for _, begin, end, usec in quotas:
            if group and step in (begin, end):
                group.quota(usec if step == begin else None)
        burn(round(options.compute * 1e6))
        gradients = torch.full((3000,), float(rank + step))
        entered = marks.say(step, "enter")
        dist.all_reduce(gradients)
        left = marks.say(step, "exit")
        expected = world * (world - 1) / 2 + world * step
        if not bool((gradients == expected).all()):
            raise ValueError(f"rank {rank}: the sum of step {step} is wrong")
        truth.append((entered, left))
    marks.close()
    stat = group.stat() if group else None
    dist.destroy_process_group()
    if group:
        group.close([os.getpid()])
    facts = {"rank": rank, "pid": os.getpid(), "steps": truth, "cpu_stat": stat}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
