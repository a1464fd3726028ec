# SPDX-License-Identifier: GPL-2.0-or-later
"""Values that hold in a context, and in copies of it, while a block runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

_Value = TypeVar("_Value")


@contextlib.contextmanager
def bound(variable: ContextVar[_Value | None], value: _Value) -> Iterator[_Value]:
    """Have ``variable`` be ``value`` while the block runs, and then what it was."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
