# SPDX-License-Identifier: GPL-2.0-or-later
"""How much of the host's time a guest had, and which reports follow from too little.

A guest's clock goes on while the host runs something else, so whatever in it waits by
the clock (the kernel's watchdogs, deadlines of ours) counts time that the guest never
had.  The host's scheduler knows: ``/proc/PID/task/TID/schedstat`` says for how long a
thread was runnable and not running.  `Watch` reads that for QEMU's threads once a
second; what it saw is part of a guest's results, as ``host.json``.

It does not say how long a thread slept because a disk, or memory that is swapped to
one, kept it waiting.  The kernel counts that only where ``kernel.task_delayacct`` is
set, which it mostly is not, and ``/proc/pressure`` is about everybody on the host.  But
for as long as it lasts the thread is in state D, which anybody may read, so `Watch`
looks at all of QEMU's threads five times a second.  What is shorter than that is seen
now and then, and so on average.  Not seen at all is what no thread of QEMU's waits for
(requests that the host's kernel does by itself), and time in which a thread does run,
but in the host's kernel, looking for memory.

A guest that stalls for S seconds by its clock, and whose processors waited W seconds of
them for one of the host's, or the rest of QEMU for a disk, all together, had S - W
seconds in which each of them could go on: while one waits the others may wait for it,
as who spins for a lock does whose holder does not run.  A report of a watchdog is
excused (`excuse`)

- if that is less than half of what the watchdog allows.  It fires at its threshold and
  not at the end of the stall, so that a guest with a host of its own has to stay well
  below it; half is what is left to it here, and one that comes that near is reported.
- unless even the processor that waited longest had twice what the watchdog allows: a
  stall that has no end is reported again and again with a growing S, and comes to that
  on any host that gives the guest a share of its time at all.
- in any case if the host does not tell: then nobody knows whose the time was.
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
#: Where the guest reads how many seconds it was kept waiting, in its control directory:
#: as a whole, and then the sum of all its processors.
LOST = "lost"
#: What waits for a disk in QEMU beside the guest's processors: its own threads.
DISK = "disk"
#: What is to be said of a host without ``/proc/PID/schedstat``, or one that is all 0.
BLIND = (
    "this host does not tell how long it kept the guest waiting (its kernel has no "
    "/proc/PID/schedstat, or nothing in it)"
)
_INTERVAL = 1.0
_LOOK = 0.2
_PROC = Path("/proc")
# As QEMU names them with debug-threads=on; the second is that of all processors.
_VCPU = re.compile(r"(?:CPU \d+|ALL CPUs)/\w+")
_TICKS = os.sysconf("SC_CLK_TCK")
# See above.
_MARGIN = 2.0


@dataclass(frozen=True)
class Sample:
    """What was seen at a moment; all times are seconds since the guest was started.

    ``waited`` is how long each virtual processor's thread has been runnable but not
    running, or waiting for a disk, so far, and how long any other thread of QEMU's has
    waited for one (`DISK`), ``stolen`` how much of the host's own processors was taken
    from it so far, each on average, ``load`` its load average of a minute and
    ``console`` the bytes that the guest had printed.
    """

    at: float
    waited: Mapping[str, float]
    stolen: float = 0.0
    load: float = 0.0
    console: int = 0


@dataclass(frozen=True)
class Host:
    """All samples of one guest, in order; none if the host does not tell."""

    samples: tuple[Sample, ...] = ()

    def waits(self, begin: float, end: float) -> tuple[float, ...]:
        """For how many seconds of these each processor was kept waiting.

        A wait is accounted for when it ends, so a sample later is looked at, too.
        """
        first, last = self._before(begin), self._after(end)
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
        """When the byte ``offset`` of the console was there; the end if never seen."""
        for sample in self.samples:
            if sample.console > offset:
                return sample.at
        return self.samples[-1].at if self.samples else 0.0

    def as_json(self) -> dict[str, Any]:
        """``host.json``: the samples, and the share of each second that was waited."""
        rows = []
        before = Sample(0.0, {})
        for one in self.samples:
            seconds = one.at - before.at
            rows.append(
                {
                    "at": round(one.at, 3),
                    "waited": {k: round(v, 4) for k, v in one.waited.items()},
                    "share": {
                        name: round((now - before.waited.get(name, 0.0)) / seconds, 3)
                        for name, now in one.waited.items()
                        if seconds > 0
                    },
                    "stolen": round(one.stolen, 3),
                    "load": one.load,
                    "console": one.console,
                }
            )
            before = one
        return {"schema": 1, "samples": rows}

    def _before(self, when: float) -> Sample | None:
        found = [one for one in self.samples if one.at <= when]
        return found[-1] if found else Sample(0.0, {}) if self.samples else None

    def _after(self, when: float) -> Sample | None:
        later = [one for one in self.samples if one.at >= when]
        # Of the last second of a guest there is no later one.
        found = later[:2] or list(self.samples[-1:])
        return found[-1] if found else None


def read(path: Path) -> Host:
    """What `Host.as_json` made; nothing if it is not there, or not whole."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["samples"]
        return Host(
            tuple(
                Sample(
                    float(row["at"]),
                    {str(k): float(v) for k, v in row["waited"].items()},
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
    """Samples QEMU's threads while a guest runs; ``lost`` is for whoever waits for it.

    ``told`` gets the seconds that were lost so far, for the guest to read.
    """

    def __init__(self, pid: int, console: Path, told: Path, proc: Path = _PROC) -> None:
        self._pid = pid
        self._console = console
        self._told = told
        self._proc = proc
        self._began = time.monotonic()
        self._stolen = _stolen(proc)
        self._threads: tuple[Path, ...] = ()
        self._looked = self._began
        self._blocked: dict[str, float] = {}
        self._found: list[Sample] = []
        self._over = threading.Event()

    @property
    def host(self) -> Host:
        """What was seen until now."""
        return Host(tuple(self._found))

    @property
    def lost(self) -> float:
        """Seconds for which the guest was kept waiting until now."""
        if not self._found:
            return 0.0
        last = self._found[-1]
        disk = last.waited.get(DISK, 0.0)
        longest = max(
            (waited for name, waited in last.waited.items() if name != DISK),
            default=0.0,
        )
        # Who waits for a disk has no use for a processor, and the other way round.
        return min(longest + disk + last.stolen, last.at)

    @property
    def waits(self) -> float:
        """Seconds for which its processors were kept waiting until now, all together.

        While one waits the others may have to wait for it.
        """
        if not self._found:
            return 0.0
        last = self._found[-1]
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
            self._over.set()
            thread.join()

    @property
    def printed(self) -> int:
        """How many bytes the console has now."""
        return self._console.stat().st_size if self._console.exists() else 0

    def sample(self) -> None:
        """Take one."""
        waited = self._waited()
        if not waited:
            # It has not begun, or is over, or this host does not tell.
            return
        for name, seconds in self._blocked.items():
            waited[name] = waited.get(name, 0.0) + seconds
        at = time.monotonic() - self._began
        stolen = max(0.0, _stolen(self._proc) - self._stolen)
        load = os.getloadavg()[0]
        self._found.append(Sample(at, waited, stolen, load, self.printed))
        with contextlib.suppress(OSError):
            cache.write_text(self._told, f"{self.lost:.3f} {self.waits:.3f}\n")

    def look(self) -> None:
        """See who waits for a disk at this moment, as they have since the last look."""
        now = time.monotonic()
        since, self._looked = now - self._looked, now
        for name in _blocked({thread.parent for thread in self._threads}):
            self._blocked[name] = self._blocked.get(name, 0.0) + since

    def _run(self) -> None:
        sampled = self._began
        while not self._over.wait(_LOOK):
            self.look()
            if time.monotonic() - sampled >= _INTERVAL:
                sampled = time.monotonic()
                self.sample()

    def _waited(self) -> dict[str, float]:
        """Seconds that each of the threads was runnable and did not run, by name."""
        if not self._threads:
            self._threads = tuple(_threads(self._pid, self._proc))
        found = {}
        for place in self._threads:
            try:
                name = (place / "comm").read_text().strip()
                words = (place / "schedstat").read_text().split()
                ran, waited = int(words[0]), int(words[1]) / 1e9
            except (OSError, ValueError, IndexError):
                continue
            # Who has a name has run: a kernel that does not count says 0 of all.
            if _VCPU.fullmatch(name) and ran:
                found[name] = waited
        if len(found) < len(self._threads):
            # More processors may come up later than the first.
            self._threads = ()
        return found


def _threads(top: int, proc: Path) -> Iterator[Path]:
    """The threads of the virtual processors among what ``top`` has started."""
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
    """Of the threads there, those of processors that wait for a disk, by name, and
    `DISK` if any other does."""
    found = set()
    for task in tasks:
        with contextlib.suppress(OSError):
            for place in task.iterdir():
                # It may be gone meanwhile.
                with contextlib.suppress(OSError, IndexError):
                    head, _, rest = (place / "stat").read_text().rpartition(")")
                    name = head.partition("(")[2]
                    if rest.split()[0] == "D":
                        found.add(name if _VCPU.fullmatch(name) else DISK)
    return found


def _descendants(top: int, proc: Path) -> list[int]:
    children: dict[int, list[int]] = {}
    for place in proc.iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # A name may hold anything, and ends with the last bracket.
                rest = (place / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(rest[1]), []).append(int(place.name))
    pending, found = [top], []
    while pending:
        pid = pending.pop()
        found.append(pid)
        pending += children.get(pid, [])
    return found


def _stolen(proc: Path) -> float:
    """Seconds that a hypervisor took from this host's processors, on average."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        cpus = sum(re.match(r"cpu\d", line) is not None for line in lines)
        return int(lines[0].split()[8]) / _TICKS / max(1, cpus)
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True)
class Thresholds:
    """After how many seconds each of a kernel's watchdogs reports a stall; ``hz``
    are the ticks of its clock in one."""

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
    """Those of a kernel with this configuration, booted with these parameters."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        text = config.read_text(encoding="utf-8", errors="replace")
        for name, pattern in _SETTINGS.items():
            if match := pattern.search(text):
                found[name] = int(match[1])
    for word in parameters:
        key, _, value = word.partition("=")
        for name, factor in _PARAMETERS.get(key, ()):
            with contextlib.suppress(ValueError):
                found[name] = float(value) * factor
    return Thresholds(**found)


# What tells how long a stall was, by the watchdog that reports it.
_SOFT = re.compile(r"soft lockup - CPU#\d+ stuck for (\d+)s")
_HARD = re.compile(r"hard LOCKUP|Hard LOCKUP")
_WORKQUEUE = re.compile(r"workqueue lockup - .* stuck for (\d+)s")
_RCU = re.compile(r"detected (?:expedited )?stalls?|self-detected stall")
_RCU_TIME = re.compile(r"\bt=(\d+) jiffies|(\d+) jiffies s: ")
_HUNG = re.compile(r"blocked (?:in I/O wait )?for more than (\d+) seconds")


@dataclass(frozen=True)
class Stall:
    """What did not go on for ``seconds``, of which the report comes after ``limit``."""

    seconds: float
    limit: float


def stall(splat: Splat, limits: Thresholds) -> Stall | None:
    """What a watchdog that goes by the clock says; None of any other report."""
    line = splat.headline
    if splat.kind == "lockup":
        if found := _SOFT.search(line):
            return Stall(float(found[1]), limits.soft)
        if found := _WORKQUEUE.search(line):
            return Stall(float(found[1]), limits.workqueue)
        # It does not say how long; it looks again before twice the time is over.
        return Stall(2 * limits.hard, limits.hard)
    if splat.kind == "rcu-stall":
        found = _RCU_TIME.search(splat.excerpt)
        ticks = int(found[1] or found[2]) if found else limits.rcu * limits.hz
        return Stall(ticks / limits.hz, min(limits.rcu, ticks / limits.hz))
    if splat.kind == "hung-task":
        found = _HUNG.search(line)
        seconds = float(found[1]) if found else limits.hung
        return Stall(seconds, min(limits.hung, seconds))
    return None


def excuse(splat: Splat, at: float, host: Host, limits: Thresholds) -> str | None:
    """Why a report printed ``at`` says nothing of its kernel, if that is so."""
    found = stall(splat, limits)
    if found is None:
        return None
    if not host.samples:
        return f"it stood still for {found.seconds:.0f} s by its clock, and {BLIND}"
    waits = host.waits(at - found.seconds, at)
    had = max(0.0, found.seconds - sum(waits))
    least = found.seconds - max(waits, default=0.0)
    if had >= found.limit / _MARGIN or least >= found.limit * _MARGIN:
        return None
    each = ", ".join(f"{one:.1f}" for one in waits)
    return (
        f"it stood still for {found.seconds:.0f} s by its clock, of which its "
        f"processors waited {each} s for the host's, or for a disk: {had:.1f} s are "
        f"left, and the watchdog allows {found.limit:.0f}"
    )
