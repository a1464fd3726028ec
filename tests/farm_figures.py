# SPDX-License-Identifier: GPL-2.0-or-later
"""How well many workers are used: recorded durations on Dask's own scheduler.

    .venv/bin/python tests/farm_figures.py [--workers N] [--cells N] [--report FILE]

Each unit of a matrix (trees x architectures x series) sleeps for as long as it took,
shortened to a part of that.  What a worker does is no matter here: what is asked is how
much of the time it has something to do.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Scheduler, Worker

from kstall.farm.line import Ticket, TicketQueue
from kstall.farm.worker import SETTINGS

#: Seconds of LEVEL=full on two processors, of one run that had nothing in its cache:
#: compiled in all variants, a guest, a boot that counts (six of them, the first with
#: bpftrace, two at a time: a sixth of twice the stage, without bpftrace), a guest
#: without the patches.
SERIES: dict[str, tuple[float, float, float, float]] = {
    "drm-sched": (148, 73, 22, 0),
    "drm-sched-stop": (56, 23, 0, 19),
    "drm-sched-tests": (49, 24, 0, 13),
    "io_uring-sq": (106, 70, 23, 0),
    "iommu-fq": (10, 48, 0, 22),
    "iommu-iotlb": (23, 232, 15, 0),
    "iommu-lazy": (6, 23, 0, 22),
    "mm-migrate": (74, 346, 23, 0),
    "mm-test-hmm": (11, 26, 0, 13),
    "mm-thp-charge": (12, 9, 0, 9),
    "pci-aer": (19, 103, 20, 0),
    "pci-aer-fixes": (24, 31, 0, 23),
    "pci-aer-inject": (10, 22, 0, 23),
    "pci-aer-leaks": (10, 21, 0, 114),
    "pci-aer-overflow": (5, 15, 0, 152),
    "rdma-cq": (128, 79, 20, 0),
    "sched-throttle": (89, 185, 28, 0),
    "sched-throttle-class": (16, 62, 0, 69),
    "trace-module-trigger": (35, 40, 0, 97),
}
#: Base kernel, the one of the fixes, and the patched one of all series, from nothing,
#: in the same run.  Three series had one of their own besides, in half a minute.
KERNELS = 1180.0
_VARIANTS = 5
# So many workers in one process would else be busy with looking at themselves.
_QUIET = {
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.host-cpu": False,
    "distributed.admin.system-monitor.gil.enabled": False,
}
_BOOTS = 6
_BPFTRACE = 40.0


@dataclass(frozen=True)
class Job:
    """A unit, and how long it takes; ``after`` names the one that has to come first."""

    name: str
    kind: str
    seconds: float
    after: str | None = None


def matrix(
    cells: int, *, split: float | None = None, kernels: float = KERNELS
) -> list[Job]:
    """The units of so many cells (a tree and an architecture each).

    Guests that take longer than ``split`` are cut in two, each with a boot of its own.
    """
    return [job for cell in range(cells) for job in _cell(str(cell), split, kernels)]


def _cell(cell: str, split: float | None, building: float) -> Iterator[Job]:
    kernels = f"{cell}/kernels"
    yield Job(kernels, "kernels", building)
    for name, (compiled, guest, boot, without) in SERIES.items():
        for number in range(_VARIANTS):
            yield Job(f"{cell}/{name}/c{number}", "compile", compiled / _VARIANTS)
        for kind, seconds in (("guest", guest), ("without", without)):
            parts = 2 if split is not None and seconds > split else 1
            for number in range(parts):
                # A boot is what each part has for itself.
                part = (seconds - 20) / parts + 20 if seconds else 0
                if part:
                    yield Job(f"{cell}/{name}/{kind}{number}", "guest", part, kernels)
        for number in range(_BOOTS if boot else 0):
            more = _BPFTRACE if number == 1 else 0
            yield Job(f"{cell}/{name}/b{number}", "counting", boot + more, kernels)


def of_report(path: Path) -> None:
    """Take from a report how long units took, where it has them."""
    report = json.loads(path.read_text(encoding="utf-8"))
    for entry in report["series"]:
        seconds = {stage["name"]: stage["seconds"] for stage in entry["stages"]}
        old = SERIES.get(entry["name"], (30, 60, 0, 0))
        SERIES[entry["name"]] = (
            seconds.get("compile", old[0]),
            seconds.get("guest", old[1]),
            old[2],
            seconds.get("without", old[3]),
        )


def bound(jobs: Sequence[Job], workers: int) -> float:
    """Seconds that no order of ``jobs`` can be faster than."""
    total = sum(job.seconds for job in jobs)
    first = {job.name: job.seconds for job in jobs}
    path = max(job.seconds + first.get(job.after or "", 0) for job in jobs)
    # No guest is begun before there is a kernel.
    behind = [job for job in jobs if job.after]
    gate = min(first[job.after] for job in behind if job.after)
    gated = gate + sum(job.seconds for job in behind) / workers
    return max(total / workers, path, gated)


def simulated(jobs: Sequence[Job], workers: int) -> float:
    """Seconds that ``jobs`` take if nothing but `Line` decides who comes next, and
    what is begun is begun at once: without Dask, and without waiting."""
    room = {"slot": float(workers), "build": float(workers)}
    line = TicketQueue(lambda: room)
    now = 0.0
    number = itertools.count()
    running: list[tuple[float, int, Job, Ticket]] = []
    after: dict[str | None, list[Job]] = {}
    for job in jobs:
        after.setdefault(job.after, []).append(job)

    def put(job: Job) -> None:
        def begin(ticket: Ticket) -> None:
            heapq.heappush(running, (now + job.seconds, next(number), job, ticket))

        line.put(job.seconds, _needs(job), begin)

    for job in after[None]:
        put(job)
    while running:
        now, _, job, ticket = heapq.heappop(running)
        for follower in after.get(job.name, ()):
            put(follower)
        line.done(ticket)
    return now


def _needs(job: Job) -> dict[str, float]:
    needs = {"slot": 1.0}
    if job.kind in ("kernels", "compile"):
        needs["build"] = 1.0
    return needs


async def run(
    jobs: Sequence[Job], workers: int, scale: float, *, longest_first: bool = True
) -> float:
    """Seconds that ``jobs`` took, as if they had not been shortened to ``scale``."""
    dask.config.set(SETTINGS | _QUIET)
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        started = [
            Worker(
                scheduler.address,
                nthreads=1,
                name=f"w{number}",
                resources={"slot": 1, "build": 1, "memory": 8},
                memory_limit=0,
                heartbeat_interval="20s",
                dashboard=False,
                host="127.0.0.1",
            )
            for number in range(workers)
        ]
        await asyncio.gather(*started)
        async with Client(scheduler.address, asynchronous=True) as client:
            began = time.monotonic()
            await _do(client, jobs, workers, scale, longest_first)
            took = time.monotonic() - began
        await asyncio.gather(*(worker.close() for worker in started))
    return took / scale


async def _do(
    client: Client,
    jobs: Sequence[Job],
    workers: int,
    scale: float,
    longest_first: bool,
) -> None:
    room = {"slot": float(workers), "build": float(workers)}
    line = TicketQueue(lambda: room)

    async def submit(job: Job) -> None:
        needs = _needs(job)

        def sent() -> Any:
            return client.submit(
                time.sleep,
                job.seconds * scale,
                key=f"{job.kind}-{job.name}",
                resources=needs,
                pure=False,
            )

        if not longest_first:
            await sent()
            return
        begun: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        line.put(job.seconds, needs, begun.set_result)
        ticket = await begun
        await sent()
        line.done(ticket)

    async def behind(first: Job) -> None:
        # A client hears of a kernel, and only then knows the keys of its guests.
        await submit(first)
        await asyncio.gather(*(submit(job) for job in jobs if job.after == first.name))

    heads = {job.after for job in jobs if job.after}
    await asyncio.gather(
        *(behind(job) for job in jobs if job.name in heads),
        *(submit(job) for job in jobs if not job.after and job.name not in heads),
    )


def efficiency(
    workers: int,
    cells: int,
    *,
    split: float | None = None,
    longest_first: bool = True,
    scale: float | None = None,
    kernels: float = KERNELS,
    seconds: float = 60.0,
) -> tuple[float, float, int, float]:
    """The share of their time that workers work; seconds; jobs; the `bound`."""
    jobs = matrix(cells, split=split, kernels=kernels)
    total = sum(job.seconds for job in jobs)
    took = asyncio.run(
        run(
            jobs,
            workers,
            scale or seconds / (total / workers),
            longest_first=longest_first,
        )
    )
    return total / workers / took, took, len(jobs), bound(jobs, workers)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--cells", type=int, default=8, help="trees x architectures")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="that each line is to take at best"
    )
    parser.add_argument("--report", type=Path)
    parser.add_argument(
        "--kernels", type=float, default=KERNELS, help="seconds of both"
    )
    parser.add_argument("--fast", action="store_true", help="only the longest first")
    words = parser.parse_args()
    if words.report:
        of_report(words.report)
    print("workers  jobs  order          split  efficiency  seconds  bound")
    for workers in words.workers or (2, 4, 16, 64):
        ways = ((False, None), (True, None), (True, 60.0))
        for longest_first, split in ways[1:] if words.fast else ways:
            share, took, count, least = efficiency(
                workers,
                words.cells,
                split=split,
                longest_first=longest_first,
                seconds=words.seconds,
                kernels=words.kernels,
            )
            order = "longest first" if longest_first else "as asked"
            print(
                f"{workers:7} {count:5}  {order:14} {split or '-':>5}  {share:10.3f} "
                f"{took:8.0f} {least:6.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
