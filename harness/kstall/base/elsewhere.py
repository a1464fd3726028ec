# SPDX-License-Identifier: GPL-2.0-or-later
"""Work that may be done by another process, on this machine or another one.

A package that makes something says what it is as a `Unit`, and beside that how a unit
is done.  Whoever hands units out (an `Elsewhere`) knows neither kernels nor guests: it
brings the entries of the cache that a unit needs to where it is done, and what came of
it back.  Where there is nobody to hand out to, everything is made here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from . import cache
from .errors import KstallError
from .stage import Figure, figure

#: As an amount of slots: as many as a worker that can do it has.
ALL = float("inf")


class CannotHere(KstallError):
    """What keeps this worker from a unit, and another one perhaps not."""


@dataclass(frozen=True)
class Unit:
    """A piece of work: ``kind`` says how it is done, ``spec`` (JSON) with what.

    ``key`` is that under which the cache has what comes of it, or made of such keys:
    who asks for the same is given the same.  ``entries`` are those of the cache that it
    needs, as "kernels/<key>".  ``needs`` are amounts that it takes up while it runs
    (slots, GB of memory) and properties, of which it takes up nothing.  ``seconds`` is
    a guess, by which what takes long is begun first.  ``fresh``: nothing of before
    counts.
    """

    kind: str
    key: str
    title: str
    spec: Mapping[str, Any]
    entries: tuple[str, ...] = ()
    needs: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 60.0
    fresh: bool = False


@dataclass(frozen=True)
class Done:
    """What a worker made: a few words that are ``told``, and ``entries`` of its cache,
    of which it had not all before (``made``); with ``files``, what a run keeps of it.

    An ``error`` is what the unit came to, such as a kernel that panicked.
    """

    told: Mapping[str, Any] = field(default_factory=dict)
    entries: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    files: Path | None = None
    error: KstallError | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a unit, and is here now: entries in the cache, files in their place.

    ``worker`` needed ``seconds`` for it.  ``made`` are entries that it had to make.
    """

    worker: str
    seconds: float
    told: Mapping[str, Any] = field(default_factory=dict)
    made: frozenset[str] = frozenset()
    error: KstallError | None = None

    def tell(self) -> None:
        """Have the figures that were measured told here, and whose they are."""
        for one in self.told.get("figures", ()):
            figure(*one)
        figure(f"work of {self.worker}", self.seconds, "s")


class Elsewhere(Protocol):
    """Who hands units out, from any thread."""

    def ahead(self, unit: Unit) -> None:
        """Have ``unit`` begun; `do` is told what came of it."""

    def do(self, unit: Unit, place: Path | None = None) -> Outcome:
        """Wait for ``unit``; its files go to ``place``, which gets nothing else.

        Raises `KstallError` if nobody could do it; what a unit itself came to is the
        outcome's ``error``.
        """

    def forget(self, unit: Unit) -> None:
        """What came of ``unit`` is not to be found again."""

    def describe(self) -> str:
        """Who may be asked, in a line."""


class Kind:
    """How a kind of entries is told to be there, and packed: as `cache.keep` left it.

    Others are of a class of their own.
    """

    def is_there(self, place: Path) -> bool:
        """Whether the entry at ``place`` is whole."""
        return cache.kept(place)

    @contextlib.contextmanager
    def packed(self, place: Path) -> Iterator[Sequence[str]]:
        """The names below ``place`` that make it up, unchanged for as long as the block
        lasts."""
        yield sorted(path.name for path in place.iterdir())


#: How units of a kind are done: with the cache and ``out`` of a worker, from a spec.
Performer = Callable[[Path, Path, Mapping[str, Any]], Done]


def as_json(error: KstallError, top: Path) -> dict[str, Any]:
    """``error`` for another process; its log is told relative to ``top``."""
    log = error.log
    return {
        "classes": [one.__qualname__ for one in type(error).__mro__],
        "what": error.what,
        "next": error.next,
        "log": str(log.relative_to(top)) if log and log.is_relative_to(top) else None,
    }


def of_json(raw: Mapping[str, Any], top: Path) -> KstallError:
    """What `as_json` was given, or its nearest class that is known here."""
    known = {one.__qualname__: one for one in _classes(KstallError)}
    kind = next((known[name] for name in raw["classes"] if name in known), KstallError)
    error = kind.__new__(kind)
    log = top / raw["log"] if raw["log"] else None
    KstallError.__init__(error, raw["what"], log=log, next=raw["next"])
    return error


def _classes(top: type[KstallError]) -> Iterator[type[KstallError]]:
    yield top
    for one in top.__subclasses__():
        yield from _classes(one)


def figures_of(measured: Sequence[Figure]) -> list[list[Any]]:
    """Figures as JSON, for `Outcome.tell`."""
    return [list(one) for one in measured]
