# SPDX-License-Identifier: GPL-2.0-or-later
"""A worker, its resources, and how it does units: ``kstall worker``."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Worker

from .. import __version__
from ..base import (
    KstallError,
    arch,
    cache,
    elsewhere,
    explain,
    figures,
    process,
    sources,
    space,
    temporary,
)
from .shelf import Shelf
from .store import Artifact, Damaged, Store
from .transport import (
    NO_PAGE,
    Tls,
    own_address,
    reason,
    require_loopback,
    require_private,
)

#: The amount of a property, of which nothing is used up.
_PLENTY = 1e9
# Outcomes of compiling that stay in a worker's cache, as in that of a client.
_COMPILED = 2000
_PROGRAMS = ("gcc", "ld", "clang", "ccache", "sparse", "pahole", "zstd")
#: Dask's settings in all our processes: no profiles, and more patience.
SETTINGS = {
    "distributed.scheduler.allowed-failures": 3,
    "distributed.scheduler.worker-ttl": "3 minutes",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "1 minute",
    "distributed.comm.timeouts.connect": "20s",
    "distributed.comm.retry.count": 3,
}


def version() -> str:
    """The version of kstall, with a digest that distinguishes checkouts."""
    return f"{__version__} {sources.digest('kstall', 'kstall_guest')}"


def needs_of(unit: elsewhere.Unit) -> dict[str, float]:
    """What ``unit`` needs, also of our own installation: one kstall, and where QEMU
    boots guests the same virtme-ng, which is not among their keys."""
    needs = {**unit.needs, f"kstall: {version()}": 1.0}
    if any(name.startswith("qemu-") for name in needs):
        needs.update((f"{name}: {text}", 1.0) for name, text in virtme().items())
    return needs


def virtme() -> dict[str, str]:
    """The version of the virtme-ng beside our interpreter, by name, if there is one."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return {"virtme-ng": metadata.version("virtme-ng")}
    return {}


@dataclass(frozen=True)
class Offer:
    """What a worker has: ``memory`` and ``disk`` in GB, ``programs`` by name with the
    version that they print."""

    name: str
    kstall: str
    arch: str
    processors: int
    slots: int
    memory: float
    disk: float
    kvm: bool
    programs: Mapping[str, str] = field(default_factory=dict)

    def resources(self) -> dict[str, float]:
        """The same as Dask's resources: amounts, and properties."""
        properties = [
            f"kstall: {self.kstall}",
            elsewhere.machine(self.arch),
            *(f"{name}: {text}" for name, text in self.programs.items()),
            *(["kvm"] if self.kvm else []),
        ]
        return {
            **dict.fromkeys(properties, _PLENTY),
            "slot": float(self.slots),
            "memory": self.memory,
            "disk": self.disk,
            "build": 1.0,
        }

    def __str__(self) -> str:
        kvm = "KVM" if self.kvm else "no KVM"
        named = (f"  {name}: {text}" for name, text in self.programs.items())
        first = (
            f"{self.name}: {self.slots} slots on {self.processors} processors "
            f"({self.arch}), {self.memory:.1f} GB of memory, "
            f"{self.disk:.0f} GB of disk, {kvm}, kstall {self.kstall}"
        )
        return "\n".join((first, *named))


def offer(cache_dir: Path, name: str, slots: int | None, memory: str | None) -> Offer:
    """What this machine has, of which a worker may use so many slots and so much
    memory, such as "16GB".  Raises `KstallError` for an invalid size."""
    processors = len(os.sched_getaffinity(0))
    try:
        room = space.memory() if memory is None else parse_bytes(memory)
    except ValueError as error:
        raise KstallError(f"{memory}: not a size of memory") from error
    return Offer(
        name=name,
        kstall=version(),
        arch=platform.machine(),
        processors=processors,
        slots=slots or max(1, processors // 2),
        memory=round(room / 2**30, 1),
        disk=round(space.available(cache_dir) / 10**9, 1),
        kvm=os.access("/dev/kvm", os.R_OK | os.W_OK),
        programs={
            **{
                program: text
                for program in _programs()
                if (text := elsewhere.version_of(program))
            },
            **virtme(),
        },
    )


def _programs() -> tuple[str, ...]:
    """The programs that units may need in one version: also those for guests of each
    architecture."""
    names = list(_PROGRAMS)
    for architecture in map(arch.named, arch.NAMES):
        names += (*map(architecture.tool, ("gcc", "ld")), architecture.qemu)
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class _Bench:
    """A worker's cache, and its functions for the units of each kind."""

    name: str
    shelf: Shelf
    performers: Mapping[str, elsewhere.Performer]
    # The store's URL for this worker, if it is another one than for the client.
    store: str | None
    # The context in which child processes end with the worker.
    context: contextvars.Context

    def perform(self, message: Mapping[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        try:
            answer = self._answer(message)
        except Damaged as error:
            answer = {"fault": elsewhere.as_json(error, self.shelf.cache)}
            answer["damaged"] = True
        except KstallError as error:
            answer = {"fault": elsewhere.as_json(error, self.shelf.cache)}
        except (OSError, MemoryError) as error:
            text = explain(error) if isinstance(error, OSError) else "out of memory"
            summary, _, hint = text.partition("\n  next: ")
            reason = KstallError(summary, next=hint or None)
            answer = {"fault": elsewhere.as_json(reason, self.shelf.cache)}
        except Exception as error:
            text = f"a bug in kstall: {error!r}\n{traceback.format_exc()}"
            answer = {"fault": elsewhere.as_json(KstallError(text), self.shelf.cache)}
        answer.setdefault("worker", self.name)
        answer.setdefault("seconds", round(time.monotonic() - began, 3))
        return answer

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["kstall"] != version():
            raise elsewhere.WrongWorker(
                f"this worker has kstall {version()}, "
                f"and the client has {message['kstall']}"
            )
        store = Store(self.store or message["store"])
        note = f"units/{message['kind']}/{message['key']}"
        if not message["fresh"] and (earlier := noted_answer(store, note)) is not None:
            return earlier
        entries = {
            entry: Artifact(**artifact)
            for entry, artifact in message["entries"].items()
        }
        for artifact in entries.values():
            # Even if it is in our cache: what we send would not be found, either.
            store.require(artifact)
        scratch = self.shelf.cache / "tmp"
        scratch.mkdir(exist_ok=True)
        with (
            self.shelf.borrowed(store, entries),
            temporary.directory("unit", scratch) as out,
            figures() as measured,
            cache.remarked(),
        ):
            perform = self.performers[message["kind"]]
            began = time.monotonic()
            outcome = perform(self.shelf.cache, out, message["spec"])
            seconds = round(time.monotonic() - began, 3)
            answer = self._sent(store, outcome, out)
        cache.prune(self.shelf.cache / "compiled", keep=_COMPILED)
        answer["told"] = {
            **outcome.facts,
            "figures": [list(measurement) for measurement in measured],
        }
        answer |= {"worker": self.name, "seconds": seconds}
        if outcome.error is None:
            store.note(note, answer)
        return answer

    def _sent(
        self, store: Store, outcome: elsewhere.WorkerResult, out: Path
    ) -> dict[str, Any]:
        """The answer for a unit, after its files were put into the store."""
        files = None
        if outcome.files is not None and outcome.files.is_dir():
            names = sorted(path.name for path in outcome.files.iterdir())
            files = asdict(store.put(outcome.files, names)) if names else None
        return {
            "entries": {
                entry: asdict(self.shelf.publish(store, entry))
                for entry in outcome.entries
            },
            "made": list(outcome.new_entries),
            "files": files,
            "error": elsewhere.as_json(outcome.error, outcome.files or out)
            if outcome.error is not None
            else None,
        }


def noted_answer(store: Store, note: str) -> dict[str, Any] | None:
    """The answer noted for a unit, if all archives that it names are there.

    Nothing is made again for it, which would take time, or measured.
    """
    answer = store.noted(note)
    if answer is None:
        return None
    try:
        archives = [*answer["entries"].values()]
        if answer["files"] is not None:
            archives.append(answer["files"])
        complete = all(store.has(Artifact(**archive)) for archive in archives)
        told = {**answer["told"], "figures": []}
    except (KeyError, TypeError):
        return None
    return {**answer, "told": told, "made": [], "seconds": 0.0} if complete else None


_bench: _Bench | None = None


def perform(message: dict[str, Any]) -> dict[str, Any]:
    """Do a unit: what Dask calls on a worker."""
    if _bench is None:
        error = KstallError("this worker was not started by `kstall worker`")
        fault = elsewhere.as_json(error, Path())
        return {"worker": platform.node(), "seconds": 0.0, "fault": fault}
    return _bench.context.copy().run(_bench.perform, message)


def work(
    address: str,
    shelf: Shelf,
    performers: Mapping[str, elsewhere.Performer],
    *,
    capacity: Offer,
    store: str | None = None,
    tls: Tls | None = None,
    host: str | None = None,
    patience: float = 60.0,
    say: Callable[[str], None],
) -> None:
    """Work for the scheduler at ``address`` until it ends, or a signal ends us.

    ``patience`` are seconds to wait for it.  Raises `KstallError` if it is not there,
    or was lost, or if other machines could connect to ``host`` without ``tls``.
    """
    global _bench  # noqa: PLW0603 - Dask calls a plain function, without our worker
    security = require_private(address, tls)
    if security is None and host is not None:
        require_loopback(host, f"--host {host}")
    quiet()
    say(str(capacity))
    with process.together() as children:
        _bench = _Bench(
            capacity.name, shelf, performers, store, contextvars.copy_context()
        )
        asyncio.run(
            _serve(
                address,
                capacity,
                shelf.cache / "dask",
                {"security": security, "host": host},
                patience,
                children,
                say,
            )
        )


async def _serve(
    address: str,
    capacity: Offer,
    scratch: Path,
    options: Mapping[str, Any],
    patience: float,
    children: process.Children,
    say: Callable[[str], None],
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    # Dask's own choice would be all interfaces.
    options = {**options, "host": options["host"] or own_address(address)}
    worker = Worker(
        address,
        nthreads=capacity.slots,
        name=capacity.name,
        resources=capacity.resources(),
        memory_limit=0,
        local_directory=str(scratch),
        dashboard=False,
        dashboard_address=NO_PAGE,
        death_timeout=patience,
        startup_information={"kstall": lambda _: asdict(capacity)},
        **options,
    )
    try:
        await worker
    except Exception as error:
        raise KstallError(
            f"the scheduler at {address} does not accept worker {capacity.name}: "
            f"{reason(error)}",
            next="is it running, and is there no other worker of that name?",
        ) from error
    say(f"{capacity.name} works for {address}")
    finished = asyncio.ensure_future(worker.finished())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((finished, stopped), return_when=asyncio.FIRST_COMPLETED)
    # End the children of its threads first, so that the threads end.
    children.end()
    if not stop.is_set():
        raise KstallError(
            f"the scheduler at {address} is gone",
            next="start this worker again when there is one",
        )
    with contextlib.suppress(Exception):
        await worker.close(timeout=5, executor_wait=False)


def quiet() -> None:
    """Silence Dask's logs: errors are reported by kstall."""
    dask.config.set(SETTINGS)
    for name in ("distributed", "tornado", "asyncio", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def leave(status: int) -> None:
    """End this process as soon as the threads of its units have cleaned up."""
    limit = time.monotonic() + 10.0
    for thread in threading.enumerate():
        if thread.daemon and "Dask" in thread.name:
            thread.join(max(0.0, limit - time.monotonic()))
    os._exit(status)
