# SPDX-License-Identifier: GPL-2.0-or-later
"""Who threads are: processes, their ranks and their cgroups."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from .host import Host

Fact = dict[str, Any]
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_POD = re.compile(r"(pod[0-9a-f]{8}[-_][0-9a-f_-]{27,})")
#: For each launcher the variables with job, rank, local rank and world size.
_LAUNCHERS = (
    (
        ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE"),
        ("RANK",),
        ("LOCAL_RANK",),
        ("WORLD_SIZE",),
    ),
    (
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"),
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
    ),
    (("SLURM_JOB_ID",), ("SLURM_PROCID",), ("SLURM_LOCALID",), ("SLURM_NTASKS",)),
)
#: What torchrun without --rdzv-id calls each job.
_UNNAMED = b"none"


class Rank(NamedTuple):
    """Which rank of which job a process is; None is unknown."""

    job: str | None
    rank: int | None
    local_rank: int | None
    world: int | None


NOBODY = Rank(None, None, None, None)


def rank_of(environ: bytes) -> Rank:
    """The rank that the launcher has written into a process's environment."""
    variables: dict[str, bytes] = {}
    for word in environ.split(b"\0"):
        name, sign, value = word.partition(b"=")
        if sign:
            variables.setdefault(name.decode("ascii", "replace"), value)
    for jobs, *numbers in _LAUNCHERS:
        if not any(name in variables for name in numbers[0]):
            continue
        ids = (variables.get(name) for name in jobs)
        job = next((job for job in ids if job and job != _UNNAMED), None)
        rank, local, world = (_number(variables, names) for names in numbers)
        if rank is None or (world is not None and not 0 <= rank < world):
            continue
        text = None if job is None else job.decode("utf-8", "replace")[:200]
        return Rank(text, rank, local, world)
    return NOBODY


def _number(variables: dict[str, bytes], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = variables.get(name, b"")
        if value.isdigit() and len(value) < 10:
            return int(value)
    return None


class Facts:
    """Reads processes and cgroups, and returns facts that are new or have changed."""

    def __init__(self, host: Host) -> None:
        self.host = host
        #: By thread and by a cgroup's directory the fact that was reported last.
        self._reported: dict[int, Fact] = {}
        self._groups: dict[str, Fact] = {}
        self._ranks: dict[tuple[int, int], Rank] = {}
        #: For each rank the threads seen so far, and the cgroup of its first thread.
        self._threads: dict[tuple[int, int], tuple[set[str], int | None]] = {}
        #: thread -> its cgroup, None if that is not known.
        self.cgroup_of: dict[int, int | None] = {}
        self._new: list[Fact] = []

    def take(self) -> list[Fact]:
        """Facts that are new since the last call."""
        taken, self._new = self._new, []
        return taken

    def scan(self) -> None:
        """Read all processes, and all threads of those that are ranks."""
        alive = set()
        for name in self.host.names("/proc"):
            if not name.isdigit():
                continue
            pid = int(name)
            since = self.host.starttime(pid)
            if since is None or self.host.is_over(pid):
                continue
            alive.add((pid, since))
            rank = self._ranks.get((pid, since))
            if rank is None or rank is NOBODY:
                # Before exec a process has its parent's environment.
                rank = self._rank(pid)
                self._ranks[pid, since] = rank
            if rank is NOBODY:
                continue
            self._scan_threads(pid, since, rank)
        now = time.monotonic_ns()
        for key in [key for key in self._ranks if key not in alive]:
            if self._ranks.pop(key) is not NOBODY:
                pid, since = key
                gone = {"kind": "gone", "pid": pid, "starttime": since, "t": now}
                self._new.append(gone)
            self._threads.pop(key, None)
        self._drop_gone()

    def _drop_gone(self) -> None:
        """Drop what is kept of threads and cgroups that are gone."""
        alive = {name for names, _ in self._threads.values() for name in names}
        for tid in [tid for tid in self._reported if str(tid) not in alive]:
            if not self.host.path(f"/proc/{tid}").exists():
                del self._reported[tid]
        for path in list(self._groups):
            if not self.host.path(path).exists():
                del self._groups[path]

    def _scan_threads(self, pid: int, since: int, rank: Rank) -> None:
        """Report a rank's new threads; all of them if it has moved to another cgroup.

        There may be thousands, and reading two files for each takes a second.
        """
        self._report(pid, pid, rank)
        group = self.cgroup_of.get(pid)
        seen, before = self._threads.get((pid, since), (set(), group))
        now = {name for name in self.host.names(f"/proc/{pid}/task") if name.isdigit()}
        for thread in now if group != before else now - seen:
            if int(thread) != pid:
                self._report(int(thread), pid, rank)
        self._threads[pid, since] = (now, group)

    def thread(self, tid: int) -> None:
        """Report a thread that has records."""
        if tid <= 0 or tid in self.cgroup_of:
            return
        status = self.host.text(f"/proc/{tid}/status")
        match = re.search(r"^Tgid:\s+(\d+)$", status or "", re.M)
        if match is None:
            return
        tgid = int(match[1])
        since = self.host.starttime(tgid)
        rank = NOBODY
        if since is not None:
            rank = self._ranks.get((tgid, since)) or self._rank(tgid)
        self._report(tid, tgid, rank)

    def forget(self) -> None:
        """Read threads anew from now on: they may have moved, and PIDs are reused."""
        self.cgroup_of.clear()

    def _rank(self, pid: int) -> Rank:
        try:
            with open(self.host.path(f"/proc/{pid}/environ"), "rb") as file:
                return rank_of(file.read(1 << 20))
        except OSError:
            return NOBODY

    def _report(self, tid: int, tgid: int, rank: Rank) -> None:
        stat = self.host.text(f"/proc/{tid}/stat")
        if stat is None:
            stat = self.host.text(f"/proc/{tgid}/task/{tid}/stat")
        since = None if stat is None else self.host.stat_since(stat)
        if stat is None or since is None:
            return
        comm = stat.partition("(")[2].rpartition(")")[0]
        group = self.group(self._path(tid, tgid))
        self.cgroup_of[tid] = group
        fact = {
            "kind": "proc",
            "pid": tid,
            "starttime": since,
            "tgid": tgid,
            "comm": comm,
            "cgroup_id": group,
            **rank._asdict(),
        }
        if self._reported.get(tid) != fact:
            self._reported[tid] = fact
            self._new.append(fact)

    # -- cgroups ----------------------------------------------------------------------

    def _path(self, tid: int, tgid: int) -> str | None:
        """The directory of a thread's cgroup."""
        text = self.host.text(f"/proc/{tid}/cgroup")
        if text is None:
            text = self.host.text(f"/proc/{tgid}/task/{tid}/cgroup")
        unified = None
        for line in (text or "").splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if "cpu" in names.split(","):
                return f"/sys/fs/cgroup/cpu{path}".rstrip("/")
            if number == "0":
                unified = f"/sys/fs/cgroup{path}".rstrip("/")
        return unified

    def group(self, path: str | None, *, report: bool = True) -> int | None:
        """The id of the cgroup in that directory; a new cgroup is reported."""
        if path is None:
            return None
        try:
            # Each time: a container that is made again has the same path.
            number = self.host.path(path).stat().st_ino
        except OSError:
            return None
        if report:
            self._describe(path, number)
        return number

    def _describe(self, path: str, number: int) -> None:
        top = "/sys/fs/cgroup"
        shown = path[len(top) :]
        if shown.startswith("/cpu/") or shown == "/cpu":
            shown = shown[4:]
        container = _CONTAINER.search(shown) or _POD.search(shown)
        fact = {
            "kind": "cgroup",
            "cgroup_id": number,
            "path": shown or "/",
            "cpu_max": self.cpu_max(path),
            "container": container[1] if container else None,
        }
        if self._groups.get(path) != fact:
            self._groups[path] = fact
            self._new.append(fact)

    def cpu_max(self, path: str) -> str | None:
        """Quota and period in the form of cpu.max, for cgroup v1 as well."""
        text = self.host.text(f"{path}/cpu.max")
        if text is not None:
            return text
        quota = self.host.number(f"{path}/cpu.cfs_quota_us")
        period = self.host.number(f"{path}/cpu.cfs_period_us")
        if quota is None or period is None:
            return None
        return f"{'max' if quota < 0 else quota} {period}"

    def groups(self) -> Iterator[str]:
        """The directories of all cgroups in the hierarchy of the cpu controller."""
        top = "/sys/fs/cgroup"
        if not self.host.path(f"{top}/cgroup.controllers").exists():
            top = "/sys/fs/cgroup/cpu"
        queue = [top]
        while queue:
            path = queue.pop()
            yield path
            try:
                # A cgroup has dozens of files: do not ask for each what it is.
                with os.scandir(self.host.path(path)) as entries:
                    below = sorted(
                        entry.name
                        for entry in entries
                        if entry.is_dir(follow_symlinks=False)
                    )
            except OSError:
                continue
            queue += [f"{path}/{name}" for name in below]
