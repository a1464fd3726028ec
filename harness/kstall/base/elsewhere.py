# SPDX-License-Identifier: GPL-2.0-or-later
"""Work that may be done by another process, on this machine or another one.

A package describes a piece of its work as a `Unit`, and has a `Performer` for such
units.  The dispatcher (an `Elsewhere`) knows neither kernels nor guests: it transfers
the cache entries that a unit needs to a worker, and the results back.  Without a
dispatcher everything is done in this process.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from . import cache, process
from .arch import Architecture
from .errors import KstallError
from .stage import figure

#: As an amount of slots: all that the worker has.
ALL = float("inf")


class WrongWorker(KstallError):
    """A worker cannot do a unit, and another one perhaps can."""


@dataclass(frozen=True)
class Unit:
    """A piece of work: ``kind`` says how it is done, ``spec`` (JSON) with what.

    ``key`` is the cache key of the result, or made of such keys: units of one key share
    one result.  ``entries`` are the cache entries that it needs, as "kernels/<key>".
    ``needs`` are resources that it occupies while it runs (slots, GB of memory) and
    properties of the worker, which it does not use up.  ``seconds`` is an estimate:
    long units are started first.  ``fresh``: no earlier result is used.
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
class WorkerResult:
    """The result of a worker: ``facts``, ``entries`` of its cache, of which
    ``new_entries`` are new, and the directory ``files`` that the run keeps.

    ``error`` is how the unit itself failed, such as a kernel that panicked.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    entries: tuple[str, ...] = ()
    new_entries: tuple[str, ...] = ()
    files: Path | None = None
    error: KstallError | None = None


@dataclass(frozen=True)
class UnitOutcome:
    """The result of a unit, transferred: entries are in the cache, files in place.

    ``worker`` needed ``seconds`` for it.  ``new_entries`` it had to make.
    """

    worker: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    new_entries: frozenset[str] = frozenset()
    error: KstallError | None = None

    def report_figures(self) -> None:
        """Report the worker's figures, and its time, in this process."""
        for values in self.facts.get("figures", ()):
            figure(*values)
        figure(f"work of {self.worker}", self.seconds, "s")


class Elsewhere(Protocol):
    """A dispatcher of units, which may be called from any thread."""

    def ahead(self, unit: Unit) -> None:
        """Start ``unit``; `do` waits for its outcome."""

    def do(self, unit: Unit, place: Path | None = None) -> UnitOutcome:
        """Wait for ``unit``; its files go to ``place``, which gets nothing else.

        Raises `KstallError` if no worker could do it; a failure of the unit itself is
        the outcome's ``error``.
        """

    def forget(self, unit: Unit) -> None:
        """Drop the result of ``unit``, so that it is not used again."""

    def describe(self) -> str:
        """The workers, in a line."""


class EntryKind:
    """How entries of a kind are verified and packed: here, those of `cache.keep`.

    Other kinds have a subclass.
    """

    def is_complete(self, place: Path) -> bool:
        """Whether the entry at ``place`` is whole."""
        return cache.is_complete(place)

    @contextlib.contextmanager
    def packed(self, place: Path) -> Iterator[Sequence[str]]:
        """The names below ``place`` to pack, unchanged while the block runs."""
        yield sorted(path.name for path in place.iterdir())

    def prune(self, place: Path) -> None:
        """Delete entries beside ``place``, which has just been made, if there are too
        many of them, and none that is `cache.held`.  Here all stay."""


def compiling(architecture: Architecture, compiler: str) -> dict[str, float]:
    """What a unit that compiles for ``architecture`` needs of a worker: gcc that prints
    ``compiler`` as its version, the same linker, and a machine of this one's
    architecture.

    Elsewhere the same words are those of another compiler, and programs of the lending
    root, such as pahole, do not run.
    """
    linker = architecture.tool("ld")
    version = version_of(linker)
    return {
        f"{architecture.tool('gcc')}: {compiler}": 1.0,
        **({f"{linker}: {version}": 1.0} if version else {}),
        machine(platform.machine()): 1.0,
    }


def version_of(program: str) -> str | None:
    """The first line that ``program`` prints as its version; None if it does not."""
    if shutil.which(program) is None:
        return None
    with contextlib.suppress(KstallError, IndexError):
        return process.run([program, "--version"]).stdout.splitlines()[0]
    return None


def machine(name: str) -> str:
    """The property of workers whose own architecture uname(1) calls ``name``."""
    return f"arch: {name}"


#: Does units of a kind, given the cache and ``out`` of a worker, and the spec.
Performer = Callable[[Path, Path, Mapping[str, Any]], WorkerResult]


def as_json(error: KstallError, top: Path) -> dict[str, Any]:
    """``error`` for another process, with its log relative to ``top``."""
    log = error.log
    return {
        "classes": [ancestor.__qualname__ for ancestor in type(error).__mro__],
        "what": error.what,
        "next": error.next,
        "log": str(log.relative_to(top)) if log and log.is_relative_to(top) else None,
    }


def of_json(raw: Mapping[str, Any], top: Path) -> KstallError:
    """The error that `as_json` was given, as the nearest class that is known here."""
    classes = {subclass.__qualname__: subclass for subclass in _classes(KstallError)}
    kind = next(
        (classes[name] for name in raw["classes"] if name in classes), KstallError
    )
    error = kind.__new__(kind)
    log = top / raw["log"] if raw["log"] else None
    KstallError.__init__(error, raw["what"], log=log, next=raw["next"])
    return error


def _classes(top: type[KstallError]) -> Iterator[type[KstallError]]:
    yield top
    for subclass in top.__subclasses__():
        yield from _classes(subclass)
