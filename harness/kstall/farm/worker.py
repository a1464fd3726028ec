# SPDX-License-Identifier: GPL-2.0-or-later
"""What a worker has, and how it does a unit: ``kstall worker``."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import platform
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Worker

from .. import __version__
from ..base import (
    KstallError,
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
from .transport import NO_PAGE, Tls, own_address, require_private

#: Of a property, of which nothing is used up.
_PLENTY = 1e9
_PROGRAMS = (
    *("gcc", "clang", "ccache", "sparse", "pahole"),
    *("aarch64-linux-gnu-gcc", "qemu-system-x86_64", "qemu-system-aarch64", "zstd"),
)
#: Dask's settings of all that is ours: it reports to us, and to no page.
SETTINGS = {
    "distributed.scheduler.allowed-failures": 3,
    "distributed.scheduler.worker-ttl": "3 minutes",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "1 minute",
    "distributed.comm.timeouts.connect": "20s",
    "distributed.comm.retry.count": 3,
}


def version() -> str:
    """Of kstall, with what tells two checkouts of one version from each other."""
    return f"{__version__} {sources.digest('kstall', 'kstall_guest')}"


@dataclass(frozen=True)
class Offer:
    """What a worker has: ``memory`` and ``disk`` in GB, ``programs`` by name with what
    they call their version."""

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
        """The same in Dask's words: amounts, and properties."""
        properties = [
            f"kstall: {self.kstall}",
            f"arch: {self.arch}",
            *(f"{name}: {said}" for name, said in self.programs.items()),
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
        named = (f"  {name}: {said}" for name, said in self.programs.items())
        first = (
            f"{self.name}: {self.slots} slots on {self.processors} processors "
            f"({self.arch}), {self.memory:.1f} GB of memory, "
            f"{self.disk:.0f} GB of disk, {kvm}, kstall {self.kstall}"
        )
        return "\n".join((first, *named))


def offer(cache_dir: Path, name: str, slots: int | None, memory: str | None) -> Offer:
    """What this machine has, of which a worker may use so many slots and so much
    memory, such as "16GB".  Raises `KstallError` for a size that is none."""
    processors = len(os.sched_getaffinity(0))
    try:
        room = space.memory() if memory is None else parse_bytes(memory)
    except ValueError as error:
        raise KstallError(f"{memory}: no size of memory") from error
    return Offer(
        name=name,
        kstall=version(),
        arch=platform.machine(),
        processors=processors,
        slots=slots or max(1, processors // 2),
        memory=round(room / 2**30, 1),
        disk=round(space.available(cache_dir) / 10**9, 1),
        kvm=os.access("/dev/kvm", os.R_OK | os.W_OK),
        programs={one: said for one in _PROGRAMS if (said := _version_of(one))},
    )


def _version_of(program: str) -> str | None:
    if shutil.which(program) is None:
        return None
    with contextlib.suppress(KstallError, IndexError):
        return process.run([program, "--version"]).stdout.splitlines()[0]
    return None


@dataclass(frozen=True)
class _Bench:
    """A worker's cache, and how it does units of each kind."""

    name: str
    shelf: Shelf
    performers: Mapping[str, elsewhere.Performer]
    # Where the store is for this worker, if not where it is for the client.
    store: str | None
    # What it starts ends with it.
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
            said = explain(error) if isinstance(error, OSError) else "out of memory"
            what, _, then = said.partition("\n  next: ")
            reason = KstallError(what, next=then or None)
            answer = {"fault": elsewhere.as_json(reason, self.shelf.cache)}
        except Exception:
            said = f"a bug in kstall:\n{traceback.format_exc()}"
            answer = {"fault": elsewhere.as_json(KstallError(said), self.shelf.cache)}
        answer.setdefault("worker", self.name)
        answer.setdefault("seconds", round(time.monotonic() - began, 3))
        return answer

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["kstall"] != version():
            raise elsewhere.CannotHere(
                f"this worker has kstall {version()}, "
                f"and is asked by {message['kstall']}"
            )
        store = Store(self.store or message["store"])
        note = f"units/{message['kind']}/{message['key']}"
        if not message["fresh"] and (found := whole(store, note)) is not None:
            return found
        for entry, artifact in message["entries"].items():
            self.shelf.bring(store, entry, Artifact(**artifact))
        scratch = self.shelf.cache / "tmp"
        scratch.mkdir(exist_ok=True)
        began = time.monotonic()
        with (
            temporary.directory("unit", scratch) as out,
            figures() as measured,
            cache.remarked(),
        ):
            perform = self.performers[message["kind"]]
            done = perform(self.shelf.cache, out, message["spec"])
            seconds = round(time.monotonic() - began, 3)
            answer = self._sent(store, done, out)
        answer["told"] = {
            **done.told,
            "figures": elsewhere.figures_of(measured),
        }
        answer |= {"worker": self.name, "seconds": seconds}
        if done.error is None:
            store.note(note, answer)
        return answer

    def _sent(self, store: Store, done: elsewhere.Done, out: Path) -> dict[str, Any]:
        """What came of a unit, of which all that is large is in the store."""
        files = None
        if done.files is not None and done.files.is_dir():
            names = sorted(path.name for path in done.files.iterdir())
            files = asdict(store.put(done.files, names)) if names else None
        return {
            "entries": {
                one: asdict(self.shelf.publish(store, one)) for one in done.entries
            },
            "made": list(done.made),
            "files": files,
            "error": elsewhere.as_json(done.error, done.files or out)
            if done.error is not None
            else None,
        }


def whole(store: Store, note: str) -> dict[str, Any] | None:
    """What is noted of a unit, if all that it leads to is there."""
    found = store.noted(note)
    if found is None:
        return None
    try:
        archives = [*found["entries"].values()]
        if found["files"] is not None:
            archives.append(found["files"])
        there = all(store.has(Artifact(**one)) for one in archives)
    except (KeyError, TypeError):
        return None
    return found if there else None


_bench: _Bench | None = None


def perform(message: dict[str, Any]) -> dict[str, Any]:
    """Do a unit: what Dask calls on a worker."""
    if _bench is None:
        said = KstallError("a worker that `kstall worker` did not start")
        fault = elsewhere.as_json(said, Path())
        return {"worker": platform.node(), "seconds": 0.0, "fault": fault}
    return _bench.context.copy().run(_bench.perform, message)


def work(
    address: str,
    shelf: Shelf,
    performers: Mapping[str, elsewhere.Performer],
    *,
    said: Offer,
    store: str | None = None,
    tls: Tls | None = None,
    host: str | None = None,
    patience: float = 60.0,
    say: Callable[[str], None],
) -> None:
    """Work for the scheduler at ``address`` until it goes, or we are told to end.

    ``patience`` are seconds to wait for it.  Raises `KstallError` if it is not there,
    or was lost.
    """
    global _bench  # noqa: PLW0603 - Dask calls a function, and it knows no worker
    security = require_private(address, tls)
    quiet()
    say(str(said))
    with process.together() as children:
        _bench = _Bench(said.name, shelf, performers, store, contextvars.copy_context())
        asyncio.run(
            _serve(
                address,
                said,
                shelf.cache / "dask",
                {"security": security, "host": host},
                patience,
                children,
                say,
            )
        )


async def _serve(
    address: str,
    said: Offer,
    scratch: Path,
    how: Mapping[str, Any],
    patience: float,
    children: process.Children,
    say: Callable[[str], None],
) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told.set)
    # Dask's own choice would be all interfaces.
    how = {**how, "host": how["host"] or own_address(address)}
    worker = Worker(
        address,
        nthreads=said.slots,
        name=said.name,
        resources=said.resources(),
        memory_limit=0,
        local_directory=str(scratch),
        dashboard=False,
        dashboard_address=NO_PAGE,
        death_timeout=patience,
        startup_information={"kstall": _said(said)},
        **how,
    )
    try:
        await worker
    except Exception as error:
        raise KstallError(
            f"the scheduler at {address} takes no worker {said.name}: "
            f"{str(error) or type(error).__name__}",
            next="is it there, and is no worker of that name?",
        ) from error
    say(f"{said.name} works for {address}")
    finished = asyncio.ensure_future(worker.finished())
    asked = asyncio.ensure_future(told.wait())
    await asyncio.wait((finished, asked), return_when=asyncio.FIRST_COMPLETED)
    # What its threads have started ends first, and so do they.
    children.end()
    if not told.is_set():
        raise KstallError(
            f"the scheduler at {address} is gone",
            next="start this worker again when there is one",
        )
    with contextlib.suppress(Exception):
        await worker.close(timeout=5, executor_wait=False)


def _said(said: Offer) -> Callable[[Worker], dict[str, Any]]:
    return lambda _: asdict(said)


def quiet() -> None:
    """Have Dask say nothing that we say ourselves."""
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
