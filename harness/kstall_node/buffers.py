# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's buffer of each CPU, and the segments that its pages are moved to."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from . import pages
from .errors import NodeError
from .segments import Segments
from .tracefs import Instance

#: How many pages are read at a time.
CHUNK = 1024


class Lost(NamedTuple):
    """``n`` records of a CPU that never reached its buffer.

    Times are monotonic, in ns; ``t0`` is None if it may have been since the beginning.
    """

    cpu: int
    t0: int | None
    t1: int
    reason: str
    n: int


class Buffers:
    """All buffers of an instance, of ``kb`` KB each, and their segments."""

    def __init__(self, instance: Instance, kb: int) -> None:
        self._instance = instance
        self._most = 2 * (kb << 10) // pages.PAGE
        self.handles: dict[int, int] = {}
        self.segments: dict[int, Segments] = {}
        #: Their counters, as of the last `look`.
        self.stats: dict[int, dict[str, int]] = {}
        #: Their counters, and the time, as of the last `lost`.
        self._counted: dict[int, dict[str, int]] = {}
        #: How many records were overwritten, by CPU, as counted in pages.
        self._missed: dict[int, int] = {}

    def open(self, dir: Path) -> None:
        """Open the buffers; segments will be in ``dir``.

        Raises `NodeError`; `close` then closes those that are open.
        """
        for cpu in self._instance.cpus():
            self.handles[cpu] = self._instance.open_raw(cpu)
            self.stats[cpu] = self._instance.stats(cpu)
            self.segments[cpu] = Segments(dir, cpu)

    def close(self) -> None:
        """Close all; open segments are not sealed."""
        for handle in self.handles.values():
            with contextlib.suppress(OSError):
                os.close(handle)
        self.handles.clear()
        for segments in self.segments.values():
            segments.abandon()

    def watch(self, poller: select.poll) -> None:
        """Have it wait for all CPUs.

        Those that were never up have no buffer: for them it returns at once.
        """
        for handle in self.handles.values():
            poller.register(handle, select.POLLIN)

    # -- pages ------------------------------------------------------------------------

    def look(self, cpu: int) -> bool:
        """Read the counters of a CPU's buffer; whether there may be records in it."""
        self.stats[cpu] = self._instance.stats(cpu)
        return self.stats[cpu].get("entries", 1) > 0

    @property
    def most(self) -> int:
        """How many pages are read at most at one look: more may come meanwhile."""
        return self._most

    def read(self, cpu: int) -> list[bytes]:
        """The pages of one CPU that are there, up to `CHUNK`.  Raises `NodeError`."""
        chunk: list[bytes] = []
        handle = self.handles[cpu]
        try:
            while len(chunk) < CHUNK:
                page = os.read(handle, pages.PAGE)
                if not page:
                    break
                chunk.append(page.ljust(pages.PAGE, b"\0"))
        except BlockingIOError:
            pass
        except OSError as error:
            # A CPU that was not up since then has no buffer.
            if error.errno != errno.ENODEV:
                text = f"cpu{cpu}: its buffer cannot be read: {error}"
                raise NodeError(text) from None
        missed = sum(pages.missed(page) for page in chunk)
        self._missed[cpu] = self._missed.get(cpu, 0) + missed
        return chunk

    def write(self, cpu: int, data: bytes) -> None:
        """Append whole pages to a CPU's segments.  Raises `Full`, `NodeError`."""
        segments = self.segments[cpu]
        segments.write(data, time.monotonic())
        if segments.due(time.monotonic()):
            self.seal(cpu)

    # -- segments ---------------------------------------------------------------------

    def seal(self, cpu: int) -> None:
        """Seal the open segment of a CPU.  Raises `NodeError`."""
        self.segments[cpu].seal(self._instance.stats(cpu))

    def seal_due(self, now: float) -> None:
        """Seal those that are large or old enough.  Raises `NodeError`."""
        for cpu, segments in self.segments.items():
            if segments.due(now):
                self.seal(cpu)

    def seal_all(self) -> None:
        """Seal all.  Raises `NodeError`."""
        for cpu in self.segments:
            self.seal(cpu)

    def any_due(self, now: float) -> bool:
        """Whether one is large or old enough to be sealed."""
        return any(segments.due(now) for segments in self.segments.values())

    @property
    def any_open(self) -> bool:
        """Whether there are pages that are not sealed."""
        return any(segments.open for segments in self.segments.values())

    @property
    def next(self) -> dict[str, int]:
        """For each CPU the number of the segment after the last sealed one."""
        return {str(cpu): segments.next for cpu, segments in self.segments.items()}

    @property
    def size(self) -> int:
        """The bytes in sealed segments."""
        return sum(segments.size for segments in self.segments.values())

    def drop_oldest(self) -> tuple[int, int]:
        """Delete the oldest sealed segment of all; its CPU, and when it was sealed.

        Raises `NodeError`.
        """
        cpu = min(
            (cpu for cpu, segments in self.segments.items() if segments.sealed),
            key=lambda cpu: self.segments[cpu].oldest,
        )
        return cpu, self.segments[cpu].drop_oldest()

    # -- counters ---------------------------------------------------------------------

    @property
    def written(self) -> int:
        """How many records were written into the buffers, as of the last `look`."""
        names = ("read", "entries", "overrun", "dropped")
        return sum(
            stats.get(name, 0) for stats in self.stats.values() for name in names
        )

    def lost(self) -> tuple[list[Lost], bool]:
        """What pages do not show to be lost since the last call.

        And whether something was overwritten since then, which they do show.
        """
        now = time.monotonic_ns()
        lost, overwritten = [], False
        for cpu in self.handles:
            stats = self._instance.stats(cpu)
            before = self._counted.get(cpu, {})
            for name in ("dropped", "commit_overrun"):
                grown = stats.get(name, 0) - before.get(name, 0)
                if grown > 0:
                    reason = name.replace("_", " ")
                    lost.append(Lost(cpu, before.get("t"), now, reason, grown))
            overwritten |= stats.get("overrun", 0) > before.get("overrun", 0)
            self._counted[cpu] = {**stats, "t": now}
        return lost, overwritten

    def overwritten(self, cpu: int) -> int:
        """How many records of a CPU were overwritten that no page counts."""
        overrun = self._instance.stats(cpu).get("overrun", 0)
        return overrun - self._missed.get(cpu, 0)

    def left(self, cpus: Iterable[int]) -> int:
        """How many records are in the buffers of these CPUs."""
        return sum(self._instance.stats(cpu).get("entries", 0) for cpu in cpus)
