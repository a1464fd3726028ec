# SPDX-License-Identifier: GPL-2.0-or-later
"""A limit on how much that keeps a processor busy runs at once.

Without `limited` nothing waits.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from . import scope

_places: contextvars.ContextVar[threading.Semaphore | None] = contextvars.ContextVar(
    "places", default=None
)


def limited(count: int) -> AbstractContextManager[object]:
    """Have ``count`` places in this context and its copies while the block runs."""
    return scope.bound(_places, threading.Semaphore(count))


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """Hold one place while the block runs; code inside it takes no second one."""
    semaphore = _places.get()
    if semaphore is None:
        yield
        return
    with semaphore:
        token = _places.set(None)
        try:
            yield
        finally:
            _places.reset(token)
