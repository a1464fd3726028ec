# SPDX-License-Identifier: GPL-2.0-or-later
"""Places for what keeps a processor busy, so that no more runs at once than there are.

Threads ask for one, or for all of them, and get them in the order in which they asked.
Where nobody has said how many there are, nobody waits.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Iterator


class _Places:
    def __init__(self, count: int) -> None:
        self.count = count
        self._free = count
        self._turn = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextlib.contextmanager
    def taken(self, count: int) -> Iterator[None]:
        mine = object()
        with self._turn:
            self._waiting.append(mine)
            try:
                self._turn.wait_for(
                    lambda: self._waiting[0] is mine and self._free >= count
                )
                self._free -= count
            finally:
                self._waiting.remove(mine)
                self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._free += count
                self._turn.notify_all()


_places: contextvars.ContextVar[_Places | None] = contextvars.ContextVar(
    "places", default=None
)


@contextlib.contextmanager
def limited(count: int) -> Iterator[None]:
    """While the block runs, in this context and copies of it, ``count`` places."""
    token = _places.set(_Places(count))
    try:
        yield
    finally:
        _places.reset(token)


@contextlib.contextmanager
def taken(*, every: bool = False) -> Iterator[None]:
    """One place, or ``every`` one; whoever has one needs no other for what it does."""
    found = _places.get()
    if found is None:
        yield
        return
    with found.taken(found.count if every else 1):
        token = _places.set(None)
        try:
            yield
        finally:
            _places.reset(token)
