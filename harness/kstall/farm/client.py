# SPDX-License-Identifier: GPL-2.0-or-later
"""Units in, outcomes out: the side that asks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distributed import CancelledError, Client, Future, KilledWorker

from ..base import KstallError, elsewhere, process
from .line import Line, Ticket
from .shelf import Shelf
from .store import Artifact, Damaged, Store
from .worker import perform, version, whole

_POLL = 0.5
# Results are small.
_GATHER = 60.0
# What is taken up by what runs.
_AMOUNTS = ("slot", "build", "memory", "disk")
# How often workers are looked at, and for how long none may be there that fits.
_LOOK = 2.0
_PATIENCE = 30.0
_TELL = 120.0
# An archive that is damaged is made anew so often.
_TRIES = 3


class Gone(KstallError):
    """There is no scheduler any more."""


class NobodyCan(KstallError):
    """No worker has what a unit needs."""


@dataclass
class _Begun:
    """A unit that somebody is asked for, or whose ``answer`` was there."""

    unit: elsewhere.Unit
    future: Future[Any] | None = None
    answer: dict[str, Any] | None = None
    # Workers that were not up to it.
    tried: set[str] = field(default_factory=set)
    faults: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    asked: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    # Held by who asks, so that all others wait for that.
    lock: threading.RLock = field(default_factory=threading.RLock)


class Farm:
    """Workers that a ``client`` of Dask reaches; an `elsewhere.Elsewhere`."""

    def __init__(
        self,
        client: Client,
        store: Store,
        shelf: Shelf,
        say: Callable[[str], None],
        patience: float = _PATIENCE,
    ) -> None:
        self._client = client
        self._store = store
        self._shelf = shelf
        self._say = say
        self._patience = patience
        self._lock = threading.Lock()
        self._begun: dict[tuple[str, str], _Begun] = {}
        self._looked = 0.0
        self._workers: dict[str, dict[str, Any]] = {}
        self._closed = threading.Event()
        self._lost = threading.Event()
        self._line = Line(self._room)

    def close(self) -> None:
        """Wait for nothing any more, and want nothing."""
        self._closed.set()
        with contextlib.suppress(Exception):
            for one in self._begun.values():
                if one.future is not None:
                    one.future.release()

    # -- what is asked -----------------------------------------------------------------

    def ahead(self, unit: elsewhere.Unit) -> None:
        """Have ``unit`` begun; see `elsewhere.Elsewhere`."""
        self._ask(unit)

    def do(self, unit: elsewhere.Unit, place: Path | None = None) -> elsewhere.Outcome:
        """Wait for ``unit``; see `elsewhere.Elsewhere`."""
        begun = self._ask(unit)
        for number in range(1, _TRIES + 1):
            answer = self._answer(begun)
            try:
                return self._taken(unit, answer, place)
            except Damaged as error:
                if number == _TRIES:
                    raise
                self._say(f"{unit.title}: {error.what}; it is made once more")
                self._store.forget(_note(unit))
                # Where one is damaged others may be, and each would cost a try.
                for artifact in answer["entries"].values():
                    self._store.check(Artifact(**artifact))
                self._again(begun, fresh=True)
        raise AssertionError("unreachable")

    def forget(self, unit: elsewhere.Unit) -> None:
        """What came of ``unit`` is not to be found again."""
        with self._lock:
            self._begun.pop((unit.kind, unit.key), None)
        self._store.forget(_note(unit))

    def describe(self) -> str:
        """Who the workers are, in a line."""
        workers = sorted(self._look().values(), key=lambda one: str(one["name"]))
        ours = f"kstall: {version()}"
        named = [
            f"{one['name']}, {one['resources'].get('slot', 0):g} slots"
            for one in workers
            if ours in one["resources"]
        ]
        others = [
            f"{one['name']} is not asked: it has "
            f"kstall {one.get('kstall', {}).get('kstall', 'of no version')}"
            for one in workers
            if ours not in one["resources"]
        ]
        count = f"{len(named)} worker{'s' * (len(named) != 1)}"
        return "; ".join((f"{count}: {' and '.join(named)}", *others))

    def offers(self) -> list[dict[str, Any]]:
        """What each worker said that it has, as `Offer` has it."""
        return [one["kstall"] for one in self._look().values() if "kstall" in one]

    # -- to workers --------------------------------------------------------------------

    def _ask(self, unit: elsewhere.Unit) -> _Begun:
        name = (unit.kind, unit.key)
        with self._lock:
            begun = None if unit.fresh else self._begun.get(name)
            if begun is None:
                begun = self._begun[name] = _Begun(unit)
        with begun.lock:
            if not begun.asked:
                if not unit.fresh:
                    begun.answer = whole(self._store, _note(unit))
                if begun.answer is None:
                    self._submit(begun)
                begun.asked = True
        return begun

    def _again(self, begun: _Begun, *, fresh: bool = False) -> None:
        begun.answer = begun.future = None
        begun.ended = threading.Event()
        begun.number += 1
        self._submit(begun, fresh=fresh)

    def _submit(self, begun: _Begun, *, fresh: bool = False) -> None:
        unit = begun.unit
        needs = {**unit.needs, f"kstall: {version()}": 1.0}
        fitting = self._fitting(unit, needs, begun.tried)
        if needs.get("slot") == elsewhere.ALL:
            slots = [one["resources"]["slot"] for one in fitting.values()]
            needs["slot"] = min(slots)
        message = {
            "kind": unit.kind,
            "key": unit.key,
            "spec": dict(unit.spec),
            "entries": {
                one: asdict(self._shelf.publish(self._store, one))
                for one in unit.entries
            },
            "store": self._store.url,
            "kstall": version(),
            "fresh": unit.fresh or fresh,
        }
        key = f"{unit.kind}-{unit.key}"
        if begun.number:
            key += f"~{begun.number}"
        if unit.fresh or fresh:
            # Nobody else's.
            key += f"-{time.monotonic_ns()}"
        takes = {name: needs[name] for name in _AMOUNTS if name in needs}
        # Those that were not up to it are not asked again.
        workers = list(fitting) if begun.tried else None

        def begin(ticket: Ticket) -> None:
            try:
                future = self._client.submit(
                    perform,
                    message,
                    key=key,
                    resources=needs,
                    priority=int(unit.seconds),
                    workers=workers,
                    pure=False,
                )
            except Exception:
                # Who waits for it sees that there is nobody to ask.
                self._lost.set()
                return
            begun.future = future

            over = begun.ended

            def ended(_: object) -> None:
                self._line.done(ticket)
                over.set()

            future.add_done_callback(ended)

        self._line.put(unit.seconds, takes, begin)

    def _fitting(
        self, unit: elsewhere.Unit, needs: Mapping[str, float], tried: set[str]
    ) -> dict[str, dict[str, Any]]:
        """The workers that could do it, by address.  Raises `NobodyCan`."""
        limit = time.monotonic() + self._patience
        while True:
            workers = self._look()
            fitting = {
                address: one
                for address, one in workers.items()
                if one["name"] not in tried and not _lacks(one, needs)
            }
            if fitting:
                return fitting
            # Those that are on their way say soon that they are there.
            if workers or time.monotonic() > limit:
                raise self._nobody(unit, needs, tried)
            self._pause()

    def _nobody(
        self, unit: elsewhere.Unit, needs: Mapping[str, float], tried: set[str]
    ) -> KstallError:
        said = [
            f"{one['name']} has {', '.join(_lacks(one, needs))}"
            for one in self._workers.values()
            if one["name"] not in tried
        ]
        return NobodyCan(
            f"no worker can do this: {unit.title}: "
            + ("; ".join(said) or f"there is no {'other ' if tried else ''}worker"),
            next="start one that has it with `kstall worker`, or leave out --on",
        )

    def _look(self) -> dict[str, dict[str, Any]]:
        """What is known of the workers, at most some seconds old."""
        with self._lock:
            if time.monotonic() - self._looked >= _LOOK or not self._workers:
                try:
                    info = self._client.scheduler_info(n_workers=-1)
                except Exception as error:
                    raise self._gone() from error
                if self._client.status != "running":
                    raise self._gone()
                self._workers = dict(info["workers"])
                self._looked = time.monotonic()
            return dict(self._workers)

    def _room(self) -> dict[str, float]:
        """What all workers have together, as far as we know."""
        found = dict.fromkeys(_AMOUNTS, 0.0)
        for one in self._workers.values():
            for name in _AMOUNTS:
                found[name] += one["resources"].get(name, 0.0)
        return found

    def _require_going(self) -> None:
        if self._lost.is_set():
            raise self._gone()
        process.require_going()
        if self._closed.is_set():
            raise process.Ended("given up, as the run is ending")

    def _pause(self) -> None:
        self._closed.wait(_POLL)
        self._require_going()

    def _gone(self) -> Gone:
        return Gone(
            "the scheduler is gone",
            next="run the same command again when there is one: what was finished is "
            "kept",
        )

    # -- from workers ------------------------------------------------------------------

    def _answer(self, begun: _Begun) -> dict[str, Any]:
        """What came of a unit, whichever worker was up to it."""
        while True:
            answer = begun.answer or self._waited(begun)
            if "fault" not in answer:
                return answer
            self._faulty(begun, answer)

    def _faulty(self, begun: _Begun, answer: dict[str, Any]) -> None:
        """Ask another worker.  Raises what the first one said if there is none."""
        error = elsewhere.of_json(answer["fault"], self._shelf.cache)
        begun.faults.append(answer)
        self._say(
            f"{begun.unit.title}: {answer['worker']} cannot do it: "
            f"{error.what.splitlines()[0]}"
        )
        if answer.get("damaged") and len(begun.faults) < _TRIES:
            # What it was to start from is sent anew, also to the same worker.
            for entry in begun.unit.entries:
                if (sent := self._store.entry(entry)) is not None:
                    self._store.check(sent)
        else:
            begun.tried.add(answer["worker"])
        try:
            self._again(begun)
        except NobodyCan as nobody:
            first = elsewhere.of_json(begun.faults[0]["fault"], self._shelf.cache)
            first.what += f" (on {begun.faults[0]['worker']}; {nobody.what})"
            raise first from nobody

    def _waited(self, begun: _Begun) -> dict[str, Any]:
        began = looked = time.monotonic()
        alone: float | None = None
        unit = begun.unit
        needs = {**unit.needs, f"kstall: {version()}": 1.0}
        while True:
            self._require_going()
            if (found := self._result(begun)) is not None:
                begun.answer = found
                return found
            now = time.monotonic()
            if any(not _lacks(one, needs) for one in self._look().values()):
                alone = None
            elif alone is None:
                alone = now
            elif now - alone > self._patience:
                if begun.future is not None:
                    begun.future.cancel()
                raise self._nobody(unit, needs, set())
            if now - looked > _TELL:
                looked = now
                self._say(f"{unit.title}: {now - began:.0f} s, and no end yet")

    def _result(self, begun: _Begun) -> dict[str, Any] | None:
        """What came of it, if it ends in a while; None if it does not."""
        if begun.future is None:
            # In line; there may be more workers by now.
            self._line.advance()
            self._closed.wait(_POLL)
            return None
        title = begun.unit.title
        # Not by a deadline of Dask's: where that passes just as a result comes,
        # `distributed.utils.sync` has neither a result nor an error.
        if not begun.ended.wait(_POLL):
            return None
        try:
            found: dict[str, Any] = begun.future.result(timeout=_GATHER)
        except (TimeoutError, concurrent.futures.TimeoutError):
            # Its worker is gone, and another one does it again.
            return None
        except (CancelledError, concurrent.futures.CancelledError) as error:
            raise self._gone() from error
        except KilledWorker as error:
            raise KstallError(
                f"{title}: every worker that began it died",
                next="look at their machines: is there memory enough (`dmesg`)?",
            ) from error
        except Exception as error:
            raise KstallError(
                f"{title}: Dask says {type(error).__name__}: {error}"
            ) from error
        return found

    def _taken(
        self, unit: elsewhere.Unit, answer: Mapping[str, Any], place: Path | None
    ) -> elsewhere.Outcome:
        for entry, artifact in answer["entries"].items():
            self._shelf.bring(self._store, entry, Artifact(**artifact))
        if place is not None and answer["files"] is not None:
            self._store.get(Artifact(**answer["files"]), place)
        raw = answer["error"]
        return elsewhere.Outcome(
            worker=answer["worker"],
            seconds=answer["seconds"],
            told=answer["told"],
            made=frozenset(answer["made"]),
            error=None
            if raw is None
            else elsewhere.of_json(raw, place or self._shelf.cache),
        )


def _note(unit: elsewhere.Unit) -> str:
    return f"units/{unit.kind}/{unit.key}"


def _lacks(worker: Mapping[str, Any], needs: Mapping[str, float]) -> list[str]:
    """What a worker has not, in words."""
    has = worker["resources"]
    found = []
    for name, amount in needs.items():
        if amount == elsewhere.ALL or has.get(name, 0.0) >= amount:
            continue
        program, _, _ = name.partition(": ")
        other = next((one for one in has if one.startswith(f"{program}: ")), None)
        if ": " not in name:
            said = f"{has.get(name, 0.0):g} of {amount:g} {name}"
        else:
            said = f"{other} and not {name}" if other else f"no {name}"
        found.append(said)
    return found
