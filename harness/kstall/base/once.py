# SPDX-License-Identifier: GPL-2.0-or-later
"""Properties that are computed once, without a lock that all objects share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

V = TypeVar("V")


class once(Generic[V]):
    """A property that is computed when it is first asked for, once for each object.

    Up to Python 3.11 `functools.cached_property` has one lock for a property of all
    objects: while the value of one waits for a worker, all others wait, too.  Here each
    object has its own lock, in its ``__dict__``, beside the value.  Such an object
    cannot be pickled.
    """

    def __init__(self, compute: Callable[[Any], V]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> V: ...

    def __get__(self, owner: object | None, kind: type) -> Self | V:
        """The value; once it is in ``__dict__``, nobody comes here any more."""
        if owner is None:
            return self
        values = vars(owner)
        with values.setdefault(f"{self._name}: lock", threading.RLock()):
            if self._name not in values:
                values[self._name] = self._compute(owner)
            value: V = values[self._name]
        return value
