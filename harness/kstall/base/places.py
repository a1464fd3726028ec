# SPDX-License-Identifier: GPL-2.0-or-later
"""Places for what keeps a processor busy, so that no more runs at once than there are.

Where nobody has said how many there are, nobody waits.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator

_places: contextvars.ContextVar[threading.Semaphore | None] = contextvars.ContextVar(
    "places", default=None
)


@contextlib.contextmanager
def limited(count: int) -> Iterator[None]:
    """While the block runs, in this context and copies of it, ``count`` places."""
    token = _places.set(threading.Semaphore(count))
    try:
        yield
    finally:
        _places.reset(token)


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """One place; whoever has one needs no other for what it does."""
    found = _places.get()
    if found is None:
        yield
        return
    with found:
        token = _places.set(None)
        try:
            yield
        finally:
            _places.reset(token)
