# SPDX-License-Identifier: GPL-2.0-or-later
"""The client: units in, outcomes out."""

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
from .line import Ticket, TicketQueue
from .shelf import Shelf
from .store import Artifact, Damaged, Missing, Store
from .worker import needs_of, noted_answer, perform, version

_POLL = 0.5
# Results are small.
_GATHER = 60.0
# The resources that a unit takes up while it runs.
_AMOUNTS = ("slot", "build", "memory", "disk")
# Seconds between looks at the workers, and how long none may be there that fits.
_LOOK = 2.0
_PATIENCE = 30.0
_TELL = 120.0
# How often a unit is done if its archives come back damaged.
_TRIES = 3


class Gone(KstallError):
    """The scheduler is gone."""


class NoWorker(KstallError):
    """No worker has what a unit needs."""


class OtherStore(KstallError):
    """A worker does not find in the store what this machine has there."""

    def __init__(self, worker: str, store: Store) -> None:
        super().__init__(
            f"worker {worker} sees another store than this machine, at {store.url}",
            next="name a directory that both share, or a URL, with --store; or start "
            "the worker with its own --store, if it is another path there",
        )


@dataclass
class _Job:
    """A unit that a worker was asked for, or whose ``answer`` was in the store."""

    unit: elsewhere.Unit
    # The archives of the entries that it needs, as the worker was told.
    sent: Mapping[str, Artifact] = field(default_factory=dict)
    future: Future[Any] | None = None
    # When a worker was free for it, by time.monotonic(); None while it is in line.
    submitted: float | None = None
    answer: dict[str, Any] | None = None
    # Workers that could not do it, and then the addresses of those that may.
    tried: set[str] = field(default_factory=set)
    others: frozenset[str] = frozenset()
    faults: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    asked: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    # Held while it is submitted, so that others who ask wait.
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
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._looked = 0.0
        self._workers: dict[str, dict[str, Any]] = {}
        self._closed = threading.Event()
        self._lost = threading.Event()
        self._line = TicketQueue(self._room)

    def close(self) -> None:
        """Release all units, and wait for none."""
        self._closed.set()
        with contextlib.suppress(Exception):
            for job in self._jobs.values():
                if job.future is not None:
                    job.future.release()

    # -- interface ---------------------------------------------------------------------

    def ahead(self, unit: elsewhere.Unit) -> None:
        """Have ``unit`` begun; see `elsewhere.Elsewhere`."""
        self._ask(unit)

    def do(
        self, unit: elsewhere.Unit, place: Path | None = None
    ) -> elsewhere.UnitOutcome:
        """Wait for ``unit``; see `elsewhere.Elsewhere`."""
        job = self._ask(unit)
        for number in range(1, _TRIES + 1):
            answer = self._answer(job)
            try:
                return self._taken(unit, answer, place)
            except Damaged as error:
                if number == _TRIES:
                    raise
                self._say(f"{unit.title}: {error.what}; it is made again")
                self._store.forget(_note(unit))
                # Others may be damaged as well, and each would cost a try.
                for artifact in answer["entries"].values():
                    self._store.check(Artifact(**artifact))
                self._again(job, fresh=True)
        raise AssertionError("unreachable")

    def forget(self, unit: elsewhere.Unit) -> None:
        """Remove the result of ``unit``, so that it is done again."""
        with self._lock:
            self._jobs.pop((unit.kind, unit.key), None)
        self._store.forget(_note(unit))

    def describe(self) -> str:
        """The workers, in a line."""
        workers = sorted(self._look().values(), key=lambda worker: str(worker["name"]))
        ours = f"kstall: {version()}"
        named = [
            f"{worker['name']}, {worker['resources'].get('slot', 0):g} slots"
            for worker in workers
            if ours in worker["resources"]
        ]
        others = [
            f"{worker['name']} is not asked: it has "
            f"kstall {worker.get('kstall', {}).get('kstall', 'of no version')}"
            for worker in workers
            if ours not in worker["resources"]
        ]
        count = f"{len(named)} worker{'s' * (len(named) != 1)}"
        return "; ".join((f"{count}: {' and '.join(named)}", *others))

    # -- to workers --------------------------------------------------------------------

    def _ask(self, unit: elsewhere.Unit) -> _Job:
        name = (unit.kind, unit.key)
        with self._lock:
            job = None if unit.fresh else self._jobs.get(name)
            if job is None:
                job = self._jobs[name] = _Job(unit)
        with job.lock:
            if not job.asked:
                if not unit.fresh:
                    job.answer = noted_answer(self._store, _note(unit))
                if job.answer is None:
                    self._submit(job)
                job.asked = True
        return job

    def _again(self, job: _Job, *, fresh: bool = False) -> None:
        job.answer = job.future = job.submitted = None
        job.ended = threading.Event()
        job.number += 1
        self._submit(job, fresh=fresh)

    def _elsewhere(self, job: _Job) -> None:
        """Ask others: those that were asked are gone, and Dask would wait for them."""
        if job.future is not None:
            # Which also frees its place in the line.
            job.future.cancel()
            self._again(job)

    def _submit(self, job: _Job, *, fresh: bool = False) -> None:
        unit = job.unit
        needs = needs_of(unit)
        fitting = self._fitting(unit, needs, job.tried)
        if needs.get("slot") == elsewhere.ALL:
            slots = [worker["resources"]["slot"] for worker in fitting.values()]
            needs["slot"] = min(slots)
        job.sent = {
            entry: self._shelf.publish(self._store, entry) for entry in unit.entries
        }
        message = {
            "kind": unit.kind,
            "key": unit.key,
            "spec": dict(unit.spec),
            "entries": {entry: asdict(sent) for entry, sent in job.sent.items()},
            "store": self._store.url,
            "kstall": version(),
            "fresh": unit.fresh or fresh,
        }
        key = f"{unit.kind}-{unit.key}"
        if job.number:
            key += f"~{job.number}"
        if unit.fresh or fresh:
            # Shared with no other client.
            key += f"-{time.monotonic_ns()}"
        takes = {name: needs[name] for name in _AMOUNTS if name in needs}
        # Those that could not do it are not asked again.
        job.others = frozenset(fitting) if job.tried else frozenset()
        workers = sorted(job.others) or None

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
                # Threads that wait see that the scheduler is lost.
                self._lost.set()
                return
            job.submitted = time.monotonic()
            job.future = future

            over = job.ended

            def ended(_: object) -> None:
                self._line.done(ticket)
                over.set()

            future.add_done_callback(ended)

        self._line.put(unit.seconds, takes, begin)

    def _fitting(
        self, unit: elsewhere.Unit, needs: Mapping[str, float], tried: set[str]
    ) -> dict[str, dict[str, Any]]:
        """The workers that could do it, by address.  Raises `NoWorker`."""
        limit = time.monotonic() + self._patience
        while True:
            if fitting := self._able(needs, tried):
                return fitting
            # Workers that are starting will register soon.
            if self._workers or time.monotonic() > limit:
                raise self._no_worker(unit, needs, tried)
            self._pause()

    def _able(
        self, needs: Mapping[str, float], tried: set[str]
    ) -> dict[str, dict[str, Any]]:
        """The workers that meet ``needs`` and were not ``tried``, by address."""
        return {
            address: worker
            for address, worker in self._look().items()
            if worker["name"] not in tried and not _lacks(worker, needs)
        }

    def _no_worker(
        self, unit: elsewhere.Unit, needs: Mapping[str, float], tried: set[str]
    ) -> NoWorker:
        reasons = [
            f"{worker['name']} has {', '.join(_lacks(worker, needs))}"
            for worker in self._workers.values()
            if worker["name"] not in tried
        ]
        return NoWorker(
            f"no worker can do this: {unit.title}: "
            + ("; ".join(reasons) or f"there is no {'other ' if tried else ''}worker"),
            next="start one that has it with `kstall worker`, or leave out --on",
        )

    def _look(self) -> dict[str, dict[str, Any]]:
        """The workers that the scheduler knows, at most some seconds old."""
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
        """The resources of all workers together, as last seen."""
        room = dict.fromkeys(_AMOUNTS, 0.0)
        for worker in self._workers.values():
            for name in _AMOUNTS:
                room[name] += worker["resources"].get(name, 0.0)
        return room

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

    def _answer(self, job: _Job) -> dict[str, Any]:
        """The answer of the first worker that can do the unit."""
        while True:
            answer = self._answered(job)
            if "fault" not in answer:
                return answer
            self._faulty(job, answer)

    def _answered(self, job: _Job) -> dict[str, Any]:
        """The next answer.  If nobody is left who can give one, raises the error of the
        first worker that could not, or `NoWorker`."""
        try:
            return job.answer or self._waited(job)
        except NoWorker as no_worker:
            if not job.faults:
                raise
            raise self._first_fault(job, no_worker) from no_worker

    def _faulty(self, job: _Job, answer: dict[str, Any]) -> None:
        """Ask another worker.  Raises the error of the first one if there is none."""
        error = elsewhere.of_json(answer["fault"], self._shelf.cache)
        if isinstance(error, Missing) and all(map(self._store.has, job.sent.values())):
            error = OtherStore(answer["worker"], self._store)
            fault = elsewhere.as_json(error, self._shelf.cache)
            answer = {**answer, "fault": fault, "damaged": False}
        job.faults.append(answer)
        self._say(
            f"{job.unit.title}: {answer['worker']} cannot do it: {error.headline}"
        )
        if answer.get("damaged") and len(job.faults) < _TRIES:
            # Its entries are sent again, possibly to the same worker.
            for entry in job.unit.entries:
                if (sent := self._store.entry(entry)) is not None:
                    self._store.check(sent)
        else:
            job.tried.add(answer["worker"])
        try:
            self._again(job)
        except NoWorker as no_worker:
            raise self._first_fault(job, no_worker) from no_worker

    def _first_fault(self, job: _Job, no_worker: NoWorker) -> KstallError:
        """The error of the first worker that could not do it, where none is left."""
        first = elsewhere.of_json(job.faults[0]["fault"], self._shelf.cache)
        first.what += f" (on {job.faults[0]['worker']}; {no_worker.what})"
        return first

    def _waited(self, job: _Job) -> dict[str, Any]:
        began = looked = time.monotonic()
        alone: float | None = None
        unit = job.unit
        needs = needs_of(unit)
        while True:
            self._require_going()
            if (answer := self._result(job)) is not None:
                job.answer = answer
                return answer
            now = time.monotonic()
            if fitting := self._able(needs, job.tried):
                alone = None
                if job.others and job.others.isdisjoint(fitting):
                    self._elsewhere(job)
            elif alone is None:
                alone = now
            elif now - alone > self._patience:
                if job.future is not None:
                    job.future.cancel()
                raise self._no_worker(unit, needs, job.tried)
            if now - looked > _TELL:
                looked = now
                if job.submitted is None:
                    state, since = "waiting for a free worker for", began
                else:
                    state, since = "still running after", max(began, job.submitted)
                self._say(f"{unit.title}: {state} {now - since:.0f} s")

    def _result(self, job: _Job) -> dict[str, Any] | None:
        """The answer, if it comes within `_POLL` seconds, else None."""
        if job.future is None:
            # In line; there may be more workers by now.
            self._line.advance()
            self._closed.wait(_POLL)
            return None
        title = job.unit.title
        # Not by a deadline of Dask's: where that passes just as a result comes,
        # `distributed.utils.sync` has neither a result nor an error.
        if not job.ended.wait(_POLL):
            return None
        try:
            answer: dict[str, Any] = job.future.result(timeout=_GATHER)
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
        return answer

    def _taken(
        self, unit: elsewhere.Unit, answer: Mapping[str, Any], place: Path | None
    ) -> elsewhere.UnitOutcome:
        for entry, artifact in answer["entries"].items():
            self._shelf.bring(self._store, entry, Artifact(**artifact))
        if place is not None and answer["files"] is not None:
            self._store.get(Artifact(**answer["files"]), place)
        raw = answer["error"]
        return elsewhere.UnitOutcome(
            worker=answer["worker"],
            seconds=answer["seconds"],
            facts=answer["told"],
            new_entries=frozenset(answer["made"]),
            error=None
            if raw is None
            else elsewhere.of_json(raw, place or self._shelf.cache),
        )


def _note(unit: elsewhere.Unit) -> str:
    return f"units/{unit.kind}/{unit.key}"


def _lacks(worker: Mapping[str, Any], needs: Mapping[str, float]) -> list[str]:
    """The needs that a worker does not meet, in words."""
    has = worker["resources"]
    missing = []
    for name, amount in needs.items():
        if amount == elsewhere.ALL or has.get(name, 0.0) >= amount:
            continue
        program, _, _ = name.partition(": ")
        other = next(
            (resource for resource in has if resource.startswith(f"{program}: ")), None
        )
        if ": " not in name:
            text = f"{has.get(name, 0.0):g} of {amount:g} {name}"
        else:
            text = f"{other} and not {name}" if other else f"no {name}"
        missing.append(text)
    return missing
