# SPDX-License-Identifier: GPL-2.0-or-later
"""How much of the host's time a guest had, and which reports follow from too little.

A guest's clock goes on while the host runs something else, so whatever waits by that
clock (the kernel's watchdogs, our deadlines) counts time that the guest never had.  The
host's scheduler knows how much: ``/proc/PID/task/TID/schedstat`` has the time for which
a thread was runnable and not running.  `Watch` samples that for QEMU's threads once a
second; the samples are part of a guest's results, as ``host.json``.

schedstat does not count the time for which a thread slept because of a disk, or of
memory that is swapped to one.  The kernel counts that only with
``kernel.task_delayacct``, which is mostly off, and ``/proc/pressure`` is about the
whole host.  But such a thread is in state D, which anybody may read, so `Watch` looks
at all of QEMU's threads five times a second.  Shorter waits are seen now and then, so
they are right on average.  Not seen are requests that the host's kernel does by itself,
without a waiting thread, and the time for which a thread runs in the host's kernel to
find memory.

Take a guest that stalls for S seconds by its clock, while its processors waited for one
of the host's, or the rest of QEMU for a disk, for a sum of W seconds.  Then it had
S - W seconds in which all of its processors could go on: while one waits the others may
wait for it, as a processor does that spins for a lock whose holder does not run.  A
report of a watchdog is excused (`excuse`)

- if S - W is less than half of the watchdog's threshold.  The watchdog fires at its
  threshold and not at the end of the stall, so a guest on an idle host has to stay well
  below it; here it may take half of it, and a stall of that length is reported.
- unless even the processor that waited longest had twice the threshold: a stall without
  end is reported again and again with a growing S, and reaches that on any host that
  gives the guest a share of its time at all.
- in any case if the host has no schedstat: then nothing is known about its time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import cache
from .console import Splat

#: In a guest's results.
FILE = "host.json"
#: A file in the guest's control directory with the seconds for which it was kept
#: waiting: as a whole, and then the sum of all its processors.
LOST = "lost"
#: The name for QEMU's own threads that wait for a disk.
DISK = "disk"
#: For messages about a host without ``/proc/PID/schedstat``, or with one that is all 0.
WAIT_UNKNOWN = (
    "this host does not tell how long it kept the guest waiting (its kernel has no "
    "/proc/PID/schedstat, or an empty one)"
)
_INTERVAL = 1.0
_LOOK = 0.2
_PROC = Path("/proc")
# QEMU's names with debug-threads=on; the second is one thread for all processors.
_VCPU = re.compile(r"(?:CPU \d+|ALL CPUs)/\w+")
_TICKS = os.sysconf("SC_CLK_TCK")
# Twice the threshold and half of it, see above.
_MARGIN = 2.0


@dataclass(frozen=True)
class HostSample:
    """One sample; all times are in seconds.

    ``at`` is the time since the guest was started.  ``waited`` is the time so far for
    which each virtual processor's thread was runnable but not running, or waiting for a
    disk, and for which any other thread of QEMU waited for one (`DISK`).  ``stolen`` is
    the steal time of the host so far, averaged over its processors, ``load`` its load
    average of a minute, and ``console`` the bytes that the guest had printed.
    """

    at: float
    waited: Mapping[str, float]
    stolen: float = 0.0
    load: float = 0.0
    console: int = 0


@dataclass(frozen=True)
class Host:
    """All samples of one guest, in order; none if the host has no schedstat."""

    samples: tuple[HostSample, ...] = ()

    def waits(self, begin: float, end: float) -> tuple[float, ...]:
        """For how many seconds between ``begin`` and ``end`` each processor waited.

        A wait is counted when it ends, so the second sample after ``end`` is used.
        """
        first, last = self._sample_before(begin), self._sample_after(end)
        if first is None or last is None or last.at <= first.at:
            return ()
        stolen = last.stolen - first.stolen
        return tuple(
            max(
                0.0,
                min(
                    waited
                    - first.waited.get(name, 0.0)
                    + (stolen if name != DISK else 0.0),
                    end - begin,
                ),
            )
            for name, waited in last.waited.items()
        )

    def printed(self, offset: int) -> float:
        """When the byte ``offset`` of the console was printed; else the last sample."""
        for sample in self.samples:
            if sample.console > offset:
                return sample.at
        return self.samples[-1].at if self.samples else 0.0

    def as_json(self) -> dict[str, Any]:
        """``host.json``: the samples, and the share of each second that was waited."""
        rows = []
        before = HostSample(0.0, {})
        for sample in self.samples:
            seconds = sample.at - before.at
            rows.append(
                {
                    "at": round(sample.at, 3),
                    "waited": {
                        name: round(waited, 4) for name, waited in sample.waited.items()
                    },
                    "share": {
                        name: round((now - before.waited.get(name, 0.0)) / seconds, 3)
                        for name, now in sample.waited.items()
                        if seconds > 0
                    },
                    "stolen": round(sample.stolen, 3),
                    "load": sample.load,
                    "console": sample.console,
                }
            )
            before = sample
        return {"schema": 1, "samples": rows}

    def _sample_before(self, when: float) -> HostSample | None:
        samples = [sample for sample in self.samples if sample.at <= when]
        return samples[-1] if samples else HostSample(0.0, {}) if self.samples else None

    def _sample_after(self, when: float) -> HostSample | None:
        later = [sample for sample in self.samples if sample.at >= when]
        # The last second of a guest has no later sample.
        samples = later[:2] or list(self.samples[-1:])
        return samples[-1] if samples else None


def read(path: Path) -> Host:
    """Read what `Host.as_json` wrote; no samples if it is missing or incomplete."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["samples"]
        return Host(
            tuple(
                HostSample(
                    float(row["at"]),
                    {
                        str(name): float(waited)
                        for name, waited in row["waited"].items()
                    },
                    float(row.get("stolen", 0)),
                    float(row.get("load", 0)),
                    int(row.get("console", 0)),
                )
                for row in rows
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Host()


class Watch:
    """Samples QEMU's threads while a guest runs; ``lost`` extends deadlines.

    ``lost_file`` gets the seconds that were lost so far, for the guest to read.
    """

    def __init__(
        self, pid: int, console: Path, lost_file: Path, proc: Path = _PROC
    ) -> None:
        self._pid = pid
        self._console = console
        self._lost_file = lost_file
        self._proc = proc
        self._began = time.monotonic()
        self._stolen = _stolen(proc)
        self._threads: tuple[Path, ...] = ()
        self._last_look = self._began
        self._blocked: dict[str, float] = {}
        self._samples: list[HostSample] = []
        self._stop = threading.Event()

    @property
    def host(self) -> Host:
        """The samples until now."""
        return Host(tuple(self._samples))

    @property
    def lost(self) -> float:
        """Seconds for which the guest was kept waiting until now."""
        if not self._samples:
            return 0.0
        last = self._samples[-1]
        disk = last.waited.get(DISK, 0.0)
        longest = max(
            (waited for name, waited in last.waited.items() if name != DISK),
            default=0.0,
        )
        # A thread waits either for a disk or for a processor, never for both.
        return min(longest + disk + last.stolen, last.at)

    @property
    def waits(self) -> float:
        """Seconds for which its processors were kept waiting until now, added up.

        While one waits the others may have to wait for it.
        """
        if not self._samples:
            return 0.0
        last = self._samples[-1]
        return sum(
            waited + (last.stolen if name != DISK else 0.0)
            for name, waited in last.waited.items()
        )

    @property
    def spent(self) -> float:
        """Seconds since the guest was started for which it was not kept waiting."""
        return time.monotonic() - self._began - self.lost

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watch]:
        """Take samples while the block runs."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    @property
    def printed(self) -> int:
        """The size of the console in bytes."""
        return self._console.stat().st_size if self._console.exists() else 0

    def sample(self) -> None:
        """Take a sample."""
        waited = self._waited()
        if not waited:
            # QEMU has not started, or has ended, or the host has no schedstat.
            return
        for name, seconds in self._blocked.items():
            waited[name] = waited.get(name, 0.0) + seconds
        at = time.monotonic() - self._began
        stolen = max(0.0, _stolen(self._proc) - self._stolen)
        load = os.getloadavg()[0]
        self._samples.append(HostSample(at, waited, stolen, load, self.printed))
        with contextlib.suppress(OSError):
            cache.write_text(self._lost_file, f"{self.lost:.3f} {self.waits:.3f}\n")

    def look(self) -> None:
        """Count threads that wait for a disk now as waiting since the last look."""
        now = time.monotonic()
        since, self._last_look = now - self._last_look, now
        for name in _blocked({thread.parent for thread in self._threads}):
            self._blocked[name] = self._blocked.get(name, 0.0) + since

    def _run(self) -> None:
        sampled = self._began
        while not self._stop.wait(_LOOK):
            self.look()
            if time.monotonic() - sampled >= _INTERVAL:
                sampled = time.monotonic()
                self.sample()

    def _waited(self) -> dict[str, float]:
        """Seconds for which each thread was runnable and did not run, by name."""
        if not self._threads:
            self._threads = tuple(_threads(self._pid, self._proc))
        waits = {}
        for place in self._threads:
            try:
                name = (place / "comm").read_text().strip()
                words = (place / "schedstat").read_text().split()
                run_time, waited = int(words[0]), int(words[1]) / 1e9
            except (OSError, ValueError, IndexError):
                continue
            # A thread with a name has run: 0 means that the kernel does not count.
            if _VCPU.fullmatch(name) and run_time:
                waits[name] = waited
        if len(waits) < len(self._threads):
            # Threads of further processors may start later.
            self._threads = ()
        return waits


def _threads(top: int, proc: Path) -> Iterator[Path]:
    """The threads of virtual processors in ``top`` and its descendants."""
    for pid in _descendants(top, proc):
        try:
            places = list((proc / str(pid) / "task").iterdir())
        except OSError:
            continue
        for place in places:
            with contextlib.suppress(OSError):
                if _VCPU.fullmatch((place / "comm").read_text().strip()):
                    yield place


def _blocked(tasks: set[Path]) -> set[str]:
    """The names of processors' threads in ``tasks`` that wait for a disk, and `DISK`
    if any other thread does."""
    names = set()
    for task in tasks:
        with contextlib.suppress(OSError):
            for place in task.iterdir():
                # The thread may have ended meanwhile.
                with contextlib.suppress(OSError, IndexError):
                    head, _, rest = (place / "stat").read_text().rpartition(")")
                    name = head.partition("(")[2]
                    if rest.split()[0] == "D":
                        names.add(name if _VCPU.fullmatch(name) else DISK)
    return names


def _descendants(top: int, proc: Path) -> list[int]:
    children: dict[int, list[int]] = {}
    for place in proc.iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # A name may contain anything; it ends at the last parenthesis.
                rest = (place / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(rest[1]), []).append(int(place.name))
    pending, pids = [top], []
    while pending:
        pid = pending.pop()
        pids.append(pid)
        pending += children.get(pid, [])
    return pids


def _stolen(proc: Path) -> float:
    """Steal time of this host in seconds, averaged over its processors."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        cpus = sum(re.match(r"cpu\d", line) is not None for line in lines)
        return int(lines[0].split()[8]) / _TICKS / max(1, cpus)
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True)
class Thresholds:
    """Seconds after which each of a kernel's watchdogs reports a stall; ``hz`` is the
    frequency of its jiffies."""

    soft: float = 20.0
    hard: float = 10.0
    rcu: float = 21.0
    workqueue: float = 30.0
    hung: float = 60.0
    hz: int = 250


_SETTINGS = {
    "hz": re.compile(r"(?m)^CONFIG_HZ=(\d+)$"),
    "rcu": re.compile(r"(?m)^CONFIG_RCU_CPU_STALL_TIMEOUT=(\d+)$"),
    "hung": re.compile(r"(?m)^CONFIG_DEFAULT_HUNG_TASK_TIMEOUT=(\d+)$"),
}
_PARAMETERS = {
    "watchdog_thresh": (("soft", 2.0), ("hard", 1.0)),
    "workqueue.watchdog_thresh": (("workqueue", 1.0),),
    "sysctl.kernel.hung_task_timeout_secs": (("hung", 1.0),),
    "rcupdate.rcu_cpu_stall_timeout": (("rcu", 1.0),),
}


def thresholds(config: Path, parameters: Sequence[str] = ()) -> Thresholds:
    """The thresholds of a kernel with this configuration and these parameters."""
    values: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        text = config.read_text(encoding="utf-8", errors="replace")
        for name, pattern in _SETTINGS.items():
            if match := pattern.search(text):
                values[name] = int(match[1])
    for word in parameters:
        key, _, value = word.partition("=")
        for name, factor in _PARAMETERS.get(key, ()):
            with contextlib.suppress(ValueError):
                values[name] = float(value) * factor
    return Thresholds(**values)


# The duration of a stall in the report of each watchdog.
_SOFT = re.compile(r"soft lockup - CPU#\d+ stuck for (\d+)s")
_WORKQUEUE = re.compile(r"workqueue lockup - .* stuck for (\d+)s")
_RCU_TIME = re.compile(r"\bt=(\d+) jiffies|(\d+) jiffies s: ")
_HUNG = re.compile(r"blocked (?:in I/O wait )?for more than (\d+) seconds")


@dataclass(frozen=True)
class Stall:
    """A stall of ``seconds``, which is reported after ``limit`` seconds."""

    seconds: float
    limit: float


def stall(splat: Splat, limits: Thresholds) -> Stall | None:
    """The stall that a watchdog reports; None for any other report."""
    line = splat.headline
    if splat.kind == "lockup":
        if match := _SOFT.search(line):
            return Stall(float(match[1]), limits.soft)
        if match := _WORKQUEUE.search(line):
            return Stall(float(match[1]), limits.workqueue)
        # Without a duration; but the next check is within twice the threshold.
        return Stall(2 * limits.hard, limits.hard)
    if splat.kind == "rcu-stall":
        match = _RCU_TIME.search(splat.excerpt)
        ticks = int(match[1] or match[2]) if match else limits.rcu * limits.hz
        return Stall(ticks / limits.hz, min(limits.rcu, ticks / limits.hz))
    if splat.kind == "hung-task":
        match = _HUNG.search(line)
        seconds = float(match[1]) if match else limits.hung
        return Stall(seconds, min(limits.hung, seconds))
    return None


def excuse(splat: Splat, at: float, host: Host, limits: Thresholds) -> str | None:
    """Why a report printed ``at`` says nothing about its kernel, or None."""
    pause = stall(splat, limits)
    if pause is None:
        return None
    if not host.samples:
        return (
            f"it stood still for {pause.seconds:.0f} s by its clock, and {WAIT_UNKNOWN}"
        )
    waits = host.waits(at - pause.seconds, at)
    usable = max(0.0, pause.seconds - sum(waits))
    longest_usable = pause.seconds - max(waits, default=0.0)
    if usable >= pause.limit / _MARGIN or longest_usable >= pause.limit * _MARGIN:
        return None
    listing = ", ".join(f"{wait:.1f}" for wait in waits)
    return (
        f"it stood still for {pause.seconds:.0f} s by its clock, of which its "
        f"processors waited {listing} s for the host's, or for a disk: {usable:.1f} s "
        f"are left, and the watchdog allows {pause.limit:.0f}"
    )
