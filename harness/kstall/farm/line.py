# SPDX-License-Identifier: GPL-2.0-or-later
"""The queue of units that wait for room at the workers, the longest first.

Dask assigns a task to a worker as soon as it is submitted, by the mean duration of its
kind, and then lets workers steal from each other.  With tasks of a minute and of a
quarter of an hour that leaves workers idle beside others with a queue.  So only units
that can start at once are submitted.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(order=True)
class Ticket:
    """A place in the line; ``takes`` are the amounts that it uses while it runs."""

    rank: tuple[float, int]
    takes: Mapping[str, float] = field(compare=False)
    begin: Callable[[Ticket], None] = field(compare=False)


class TicketQueue:
    """What waits and what runs; ``room`` returns the amounts that exist in all."""

    def __init__(self, room: Callable[[], Mapping[str, float]]) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._number = itertools.count()
        self._waiting: list[Ticket] = []
        self._taken: dict[str, float] = {}

    def put(
        self,
        seconds: float,
        takes: Mapping[str, float],
        begin: Callable[[Ticket], None],
    ) -> None:
        """Have ``begin`` called, in some thread, once there is room."""
        ticket = Ticket((-seconds, next(self._number)), takes, begin)
        with self._lock:
            heapq.heappush(self._waiting, ticket)
        self.advance()

    def done(self, ticket: Ticket) -> None:
        """Free the amounts that ``ticket`` took."""
        with self._lock:
            for name, amount in ticket.takes.items():
                self._taken[name] -= amount
        self.advance()

    def advance(self) -> None:
        """Begin everything that there is room for; call it when room may have grown."""
        room = self._room()
        ready, others = [], []
        with self._lock:
            while self._waiting:
                ticket = heapq.heappop(self._waiting)
                lacks = self._lacks(ticket, room)
                if not lacks:
                    for name, amount in ticket.takes.items():
                        self._taken[name] = self._taken.get(name, 0.0) + amount
                    ready.append(ticket)
                    continue
                others.append(ticket)
                if "build" not in lacks or self._is_full(room):
                    # Else shorter units would take its room again and again; and if
                    # no slot is free, none can begin.
                    break
            for ticket in others:
                heapq.heappush(self._waiting, ticket)
        for ticket in ready:
            ticket.begin(ticket)

    def _is_full(self, room: Mapping[str, float]) -> bool:
        return self._taken.get("slot", 0.0) >= room.get("slot", 0.0)

    def _lacks(self, ticket: Ticket, room: Mapping[str, float]) -> set[str]:
        if not any(self._taken.values()):
            # If it is more than all workers have, the scheduler decides: it knows more.
            return set()
        return {
            name
            for name, amount in ticket.takes.items()
            if self._taken.get(name, 0.0) + amount > room.get(name, 0.0)
        }
