# SPDX-License-Identifier: GPL-2.0-or-later
"""A scheduler and workers of a fake world, on loopback: Dask is real."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from distributed import Client

from fakeworld import Ran, World
from live import Outcome

_PATIENCE = 120.0


def until(what: str, holds: Any) -> None:
    """Wait until ``holds`` says so."""
    limit = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < limit, f"never: {what}"
        time.sleep(0.05)


@dataclass
class Crowd:
    """Workers of ``world`` by name, and the scheduler that they work for."""

    world: World
    address: str = ""
    scheduler: ForkProcess | None = None
    workers: dict[str, ForkProcess] = field(default_factory=dict)

    def start(self, *argv: str) -> ForkProcess:
        """Begin ``kstall`` with these words in the world."""
        words = (list(argv), None, "true", Path("/nowhere"))
        child = ForkProcess(target=self.world._main, args=words)
        child.start()
        return child

    def output(self, child: ForkProcess) -> str:
        return self.world._output(child)

    def begin(self, *words: str) -> None:
        self.scheduler = self.start("scheduler", "--port", "0", *words)
        mine = self.scheduler
        until("a scheduler", lambda: "scheduler at" in self.output(mine))
        (self.address,) = re.findall(r"scheduler at (\S+)", self.output(mine))

    def hire(
        self, name: str, *more: str, odd: Callable[[], None] | None = None
    ) -> ForkProcess:
        """A worker with a cache of its own, in which ``odd`` is called first."""
        place = str(self.world.root / name)
        words = ("worker", self.address, "--name", name, "--cache", place)
        if odd is not None:
            self.world.prepare.append(odd)
        self.workers[name] = self.start(*words, "--nthreads", "2", *more)
        if odd is not None:
            self.world.prepare.remove(odd)
        return self.workers[name]

    def gather(self) -> None:
        """Wait until all who were hired work, or have ended."""
        for name, child in self.workers.items():
            until(
                f"{name} works",
                lambda child=child: (
                    "works for" in self.output(child) or child.exitcode is not None
                ),
            )

    def validate(self, *words: str) -> Ran:
        return self.world.validate("--on", self.address, *words)

    def ask(self, *words: str) -> ForkProcess:
        return self.world.start("--on", self.address, *words)

    def until_shared(self, kind: str, clients: int) -> None:
        """Wait until so many clients wait for one unit of a ``kind``, which is still
        being done."""

        def wanting(dask_scheduler: Any) -> int:
            return max(
                len(task.who_wants or ())
                for key, task in dask_scheduler.tasks.items()
                if str(key).startswith(f"{kind}-") and task.state == "processing"
            )

        def watch() -> None:
            with Client(self.address) as client:
                until(
                    f"{clients} clients that wait for {kind}",
                    lambda: client.run_on_scheduler(wanting) == clients,
                )

        # In a process of its own: a client has threads, and runs are forks of ours.
        child = ForkProcess(target=watch)
        child.start()
        child.join()
        assert child.exitcode == 0

    def kill(self, child: ForkProcess) -> None:
        """SIGKILL, as the kernel does to who has taken too much memory."""
        child.kill()
        child.join()

    def dismiss(self) -> None:
        for child in (*self.workers.values(), self.scheduler):
            if child is not None and child.exitcode is None:
                assert child.pid is not None
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGTERM)
        for child in (*self.workers.values(), self.scheduler):
            if child is not None:
                # One that is killed leaves what it was about to remove.
                child.join(_PATIENCE)
                if child.exitcode is None:
                    self.kill(child)


@contextlib.contextmanager
def crowd(world: World, *names: str, tls: Sequence[str] = ()) -> Iterator[Crowd]:
    """A scheduler and workers of these names."""
    workers = Crowd(world)
    try:
        workers.begin(*tls)
        for name in names:
            workers.hire(name)
        workers.gather()
        yield workers
    finally:
        workers.dismiss()


#: What is no result: it takes long to make, and is the same whoever makes it.
_MADE = (
    *("accel.json", "configs", "extra", "kernels", "locks", "roots", "sources"),
    *("sparse", "trees"),
)


def without_results(cache_dir: Path, place: Path) -> Path:
    """A cache at ``place`` with the sources, roots and kernels of another one, and with
    no evidence, compiled patches or counts."""
    place.mkdir()
    for name in _MADE:
        if (cache_dir / name).exists():
            (place / name).symlink_to(cache_dir / name)
    return place


#: What has to differ between two runs that came to the same.
_OWN = frozenset(
    (
        # Times, also in the name of the run directory.
        *("seconds", "started", "run"),
        # What kstall was called with: with --on, or without.
        *("command", "options"),
        # What it called itself: compilers, or else tar for what workers made.
        "commands",
        # What was there before: that hangs on earlier runs, not on who does the work.
        "reused",
    )
)


def verdict(ran: Ran | Outcome) -> str:
    """A report as text, without what has to differ, and the stage that names the
    workers."""
    assert ran.report is not None, ran.output
    raw = json.loads(ran.report.model_dump_json())
    raw["stages"] = [stage for stage in raw["stages"] if stage["name"] != "workers"]
    for entry in raw["series"]:
        # Those that go on beside each other end in any order.
        entry["stages"].sort(key=lambda stage: str(stage["name"]))
    for stage in (*raw["stages"], *(s for e in raw["series"] for s in e["stages"])):
        if stage["status"] in ("pass", "skip"):
            # What was made without an error has a log only where it was made.
            del stage["log"]
    return json.dumps(_timeless(raw), indent=1)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        if "figures" in value:
            value = {**value, "figures": _figures(value["figures"])}
        return {key: _timeless(part) for key, part in value.items() if key not in _OWN}
    if isinstance(value, list):
        return [_timeless(part) for part in value]
    if isinstance(value, str):
        text = re.sub(r"\d{8}T\d{6}Z(-\d+)?", "RUN", value)
        # In commands that try again.
        text = re.sub(r" --(on \S+|at-once \d+)", "", text)
        return re.sub(r"\b\d+(\.\d+)? s\b", "N s", text)
    return value


def _figures(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without how long anything took: what was found took no time."""
    return [figure for figure in figures if figure["unit"] != "s"]
