#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A data-parallel job of the standard library: ranks compute, then all wait for all.

    allreduce.py --ranks 3 --steps 60 --compute 100          all ranks on this machine
    RANK=1 WORLD_SIZE=3 MASTER_ADDR=... allreduce.py ...     one rank, as torchrun would

Each rank is a process of its own with torchrun's environment (RANK, LOCAL_RANK,
WORLD_SIZE, TORCHELASTIC_RUN_ID), for that is where a recorder finds who it is.  A step
burns CPU time, so that a quota or a neighbour makes it longer, and ends in a ring
all-reduce whose sum is checked: nobody can leave it before all have entered.

Marks go to the trace_marker that --marks names, or to the first that exists; where
there is none, or it cannot be written, to DIR/marks-RANK.jsonl as facts of a recording
(`cat DIR/marks-*.jsonl >> REC/facts.jsonl`), which needs no rights.

Options cause faults: --late R:A-B:MS burns MS more in steps A to B-1 of rank R, --quota
R:A-B:USEC gives rank R USEC of CPU time in each 100 ms (as root; it is lifted again),
--loader R:USEC puts a busy child of rank R, and not R itself, under a quota.

Each rank prints a JSON line at its end: the truth that a recording is compared with.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

PERIOD_US = 100_000
MARKERS = (
    "/sys/kernel/tracing/instances/kstall/trace_marker",
    "/sys/kernel/debug/tracing/instances/kstall/trace_marker",
)
_NAME = struct.Struct("!iH")


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n", 1)[0],
        epilog="R is a rank; A-B are steps, without B.",
    )
    parser.add_argument("--ranks", type=int, default=3, metavar="N")
    parser.add_argument("--steps", type=int, default=60, metavar="N")
    parser.add_argument("--compute", type=float, default=100, metavar="MS")
    parser.add_argument("--size", type=int, default=3000, help="numbers to sum")
    parser.add_argument("--job", default="allreduce", help="(default: %(default)s)")
    parser.add_argument("--marks", help="a trace_marker, or a directory for files")
    parser.add_argument("--late", action="append", default=[], metavar="R:A-B:MS")
    parser.add_argument("--quota", action="append", default=[], metavar="R:A-B:USEC")
    parser.add_argument("--loader", action="append", default=[], metavar="R:USEC")
    parser.add_argument("--port", type=int, default=0, help="of rank 0 (any)")
    return parser.parse_args()


def window(text: str) -> tuple[int, int, int, int]:
    """``R:A-B:VALUE``."""
    rank, steps, value = text.split(":")
    begin, end = steps.split("-")
    return int(rank), int(begin), int(end), int(value)


# -- groups with a quota ------------------------------------------------------------


class Group:
    """A control group of either version; it is removed by `close`."""

    def __init__(self, name: str) -> None:
        v1 = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"
        self._new = not os.path.exists(v1)  # noqa: PTH110
        top = "/sys/fs/cgroup" if self._new else "/sys/fs/cgroup/cpu"
        if self._new:
            with contextlib.suppress(OSError):
                _write(f"{top}/cgroup.subtree_control", "+cpu")
        self.path, self._top = f"{top}/{name}", top
        os.mkdir(self.path)  # noqa: PTH102

    def enter(self, pid: int) -> None:
        """Bring a process in."""
        _write(f"{self.path}/cgroup.procs", str(pid))

    def quota(self, usec: int | None) -> None:
        """So much CPU time a period; None lifts it."""
        if self._new:
            limit = "max" if usec is None else str(usec)
            _write(f"{self.path}/cpu.max", f"{limit} {PERIOD_US}")
        else:
            _write(f"{self.path}/cpu.cfs_period_us", str(PERIOD_US))
            _write(f"{self.path}/cpu.cfs_quota_us", str(-1 if usec is None else usec))

    def stat(self) -> dict[str, int]:
        """The kernel's own account of it, and "local." what it says of the queues
        that hold its tasks, if it does."""
        found = {}
        for suffix, prefix in (("", ""), (".local", "local.")):
            path = f"{self.path}/cpu.stat{suffix}"
            if os.path.exists(path):  # noqa: PTH110
                with open(path, encoding="ascii") as file:  # noqa: PTH123
                    for name, value in map(str.split, file):
                        found[prefix + name] = int(value)
        return found

    def close(self, pids: list[int]) -> None:
        """Bring the processes out, and remove it."""
        with contextlib.suppress(OSError):
            for pid in pids:
                _write(f"{self._top}/cgroup.procs", str(pid))
            os.rmdir(self.path)  # noqa: PTH106


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(text)


# -- marks --------------------------------------------------------------------------


class Marks:
    """Where a rank notes that it enters a collective, or has left it."""

    def __init__(self, target: str | None, rank: int, job: str) -> None:
        self._rank, self._job = rank, job
        self._marker: int | None = None
        names = [target] if target else list(MARKERS)
        for name in names:
            if not os.path.isdir(name):  # noqa: PTH112
                with contextlib.suppress(OSError):
                    self._marker = os.open(name, os.O_WRONLY)
                    self.where = name
                    return
        top = target if target and os.path.isdir(target) else "."  # noqa: PTH112
        self.where = f"{top}/marks-{rank}.jsonl"
        self._file = open(self.where, "w", encoding="ascii")  # noqa: PTH123, SIM115
        self._fact(
            {
                "kind": "proc",
                "pid": os.getpid(),
                "tgid": os.getpid(),
                "starttime": _starttime(),
                "comm": "python3",
                "job": job,
                "rank": rank,
                "local_rank": int(os.environ["LOCAL_RANK"]),
                "world": int(os.environ["WORLD_SIZE"]),
            }
        )

    def _fact(self, fact: dict[str, object]) -> None:
        self._file.write(json.dumps(fact) + "\n")

    def say(self, step: int, phase: str) -> int:
        """Write a mark; returns when that was."""
        now = time.monotonic_ns()
        if self._marker is not None:
            text = f"kstall step={step} phase={phase} rank={self._rank}"
            os.write(self._marker, f"{text} job={self._job}\n".encode())
        else:
            pid = os.getpid()
            self._fact(
                {
                    "kind": "mark",
                    "t": now,
                    "tid": pid,
                    "tgid": pid,
                    "job": self._job,
                    "rank": self._rank,
                    "step": step,
                    "phase": phase,
                }
            )
        return now

    def close(self) -> None:
        """Write what is not written yet."""
        if self._marker is None:
            self._file.close()


def _starttime() -> int:
    """When this process began, in ns since boot."""
    with open("/proc/self/stat", encoding="utf-8") as file:  # noqa: PTH123
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


# -- the ring -----------------------------------------------------------------------


class Ring:
    """Sockets to the rank before and to the one after."""

    def __init__(self, rank: int, world: int, address: str, port: int) -> None:
        self.rank, self.world = rank, world
        listener = socket.create_server(("", 0), backlog=4)
        # Rank 0 tells each where the next one listens.
        if rank == 0:
            table = self._rendezvous(port, listener.getsockname()[1])
        else:
            table = self._joined(address, port, listener.getsockname()[1])
        host, number = table[(rank + 1) % world]
        self._next = socket.create_connection((host or address, number), 60)
        self._before, _ = listener.accept()
        listener.close()
        for peer in (self._next, self._before):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    def _rendezvous(self, port: int, own_port: int) -> list[tuple[str, int]]:
        addresses: dict[int, tuple[str, int]] = {0: ("", own_port)}
        connections = []
        inherited = os.environ.get("KSTALL_LISTENER")
        server = (
            socket.socket(fileno=int(inherited))
            if inherited
            else socket.create_server(("", port), backlog=self.world)
        )
        with server:
            server.settimeout(60)
            while len(addresses) < self.world:
                connection, (host, *_) = server.accept()
                rank, number = _NAME.unpack(_all(connection, _NAME.size))
                addresses[rank] = (host, number)
                connections.append(connection)
        table = [addresses[rank] for rank in range(self.world)]
        answer = json.dumps(table).encode()
        for connection in connections:
            connection.sendall(struct.pack("!i", len(answer)) + answer)
            connection.close()
        return [(host or "127.0.0.1", number) for host, number in table]

    def _joined(self, address: str, port: int, own_port: int) -> list[tuple[str, int]]:
        until = time.monotonic() + 60
        while True:
            try:
                connection = socket.create_connection((address, port), 60)
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        with connection:
            connection.sendall(_NAME.pack(self.rank, own_port))
            (size,) = struct.unpack("!i", _all(connection, 4))
            return [tuple(entry) for entry in json.loads(_all(connection, size))]

    def _exchange(self, out: bytes, size: int) -> bytes:
        """Send to the next while receiving from the one before: neither blocks."""
        sent, got = 0, bytearray()
        while sent < len(out) or len(got) < size:
            readers = [self._before] if len(got) < size else []
            writers = [self._next] if sent < len(out) else []
            able, ready, _ = select.select(readers, writers, [], 120)
            if not able and not ready:
                raise TimeoutError(f"rank {self.rank}: no neighbour for 120 s")
            if ready:
                sent += self._next.send(out[sent:])
            if able:
                piece = self._before.recv(size - len(got))
                if not piece:
                    raise ConnectionError(f"rank {self.rank}: its neighbour is gone")
                got += piece
        return bytes(got)

    def sum(self, values: array.array[int]) -> array.array[int]:
        """All-reduce: first the sum of each part, then all parts to all."""
        world, rank = self.world, self.rank
        size = len(values)
        edges = [size * at // world for at in range(world + 1)]
        parts = [values[edges[at] : edges[at + 1]] for at in range(world)]
        for turn in range(2 * (world - 1)):
            adding = turn < world - 1
            outgoing = (rank - turn + (0 if adding else world)) % world
            incoming = (outgoing - 1) % world
            data = self._exchange(parts[outgoing].tobytes(), 8 * len(parts[incoming]))
            received = array.array("q", data)
            if adding:
                received = array.array("q", map(int.__add__, received, parts[incoming]))
            parts[incoming] = received
        total = array.array("q")
        for part in parts:
            total += part
        return total


def _all(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = connection.recv(size - len(got))
        if not piece:
            raise ConnectionError("rank 0 is gone")
        got += piece
    return got


# -- one rank -----------------------------------------------------------------------


def burn(ns: int) -> None:
    """Use so much CPU time of this thread, however long that takes."""
    until = time.thread_time_ns() + ns
    while time.thread_time_ns() < until:
        pass


def work(options: argparse.Namespace, rank: int, world: int) -> None:
    """Be a rank until all steps are done."""
    marks = Marks(options.marks, rank, options.job)
    late = [entry for entry in map(window, options.late) if entry[0] == rank]
    quotas = [entry for entry in map(window, options.quota) if entry[0] == rank]
    group = loader = None
    pids = [os.getpid()]
    for text in options.loader:
        owner, usec = map(int, text.split(":"))
        if owner == rank:
            group, loader = Group(f"kstall-loader-{rank}"), _loader()
            pids = [loader]
            group.enter(loader)
            group.quota(usec)
    if quotas and group is None:
        group = Group(f"kstall-allreduce-{rank}")
        group.enter(os.getpid())
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    ring = Ring(rank, world, address, int(os.environ.get("MASTER_PORT", options.port)))
    truth: list[tuple[int, int]] = []
    try:
        for step in range(options.steps):
            for _, begin, end, usec in quotas:
                if group and step in (begin, end):
                    group.quota(usec if step == begin else None)
            extra = sum(ms for _, begin, end, ms in late if begin <= step < end)
            burn(round((options.compute + extra) * 1e6))
            entered = marks.say(step, "enter")
            values = array.array("q", range(rank, rank + options.size))
            total = ring.sum(values)
            left = marks.say(step, "exit")
            base = world * (world - 1) // 2
            if any(value != base + world * at for at, value in enumerate(total)):
                raise ValueError(f"rank {rank}: the sum of step {step} is wrong")
            truth.append((entered, left))
    finally:
        marks.close()
        stat = group.stat() if group else None
        if loader is not None:
            os.kill(loader, signal.SIGKILL)
            os.waitpid(loader, 0)
        if group:
            group.close([] if loader is not None else pids)
    print(
        json.dumps(
            {
                "rank": rank,
                "pid": os.getpid(),
                "marks": marks.where,
                "steps": truth,
                "group": group.path if group else None,
                "loader": loader,
                "cpu_stat": stat,
            }
        ),
        flush=True,
    )


def _loader() -> int:
    """A child that only burns."""
    pid = os.fork()
    if not pid:
        while True:
            burn(1_000_000_000)
    return pid


def main() -> int:
    """Be a rank, or start all of them."""
    options = parsed()
    if "RANK" in os.environ:
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
        work(options, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return 0
    with socket.create_server(
        ("127.0.0.1", options.port), backlog=options.ranks
    ) as server:
        common = {
            "WORLD_SIZE": str(options.ranks),
            "LOCAL_WORLD_SIZE": str(options.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RUN_ID": options.job,
            "MASTER_PORT": str(server.getsockname()[1]),
        }
        started = []
        for rank in range(options.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if rank == 0:
                own["KSTALL_LISTENER"] = str(server.fileno())
            started.append(
                subprocess.Popen(
                    [sys.executable, *sys.argv],
                    env={**os.environ, **common, **own},
                    pass_fds=[server.fileno()] if rank == 0 else [],
                    stdout=subprocess.PIPE,
                )
            )
    try:
        for process in started:
            # Each by itself: what they wrote at once into one pipe would be mixed.
            sys.stdout.buffer.write(process.communicate()[0])
            sys.stdout.flush()
        return max(abs(process.returncode) for process in started)
    finally:
        # A rank that waits for one that is gone would do so for two minutes.
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
