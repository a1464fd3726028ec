# SPDX-License-Identifier: GPL-2.0-or-later
"""What a kernel that watches itself is put through while its workloads run.

A program of ours switches every event on and off through ftrace, perf and BPF at once,
bpftrace comes and goes, and then processors and modules do, with the events on.  Here
is no verdict: what was done and what failed is in agent.json, rewritten after each
step, and what the kernel had to say is on its console.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import bpftrace
from .errors import GuestError, MissingEvent, StressFailed, StressRefused
from .files import write_text
from .job import Job, Stress, Workload
from .layout import Layout
from .tracefs import Tracefs

# A value that no field of ours has, so that a filter lets all pass after comparing.
_NEVER = 123456789
#: Of all turns of an event each reader has to have one in so many.
SHARE = 8
# Beyond this the rest is done without, and the judge sees that it is too little.
_MORE_S = 600.0
# A workload that takes no longer is worth running again and again.
_QUICK_S = 30.0
# An unload fails as long as anything holds the module.  The holder may need processor
# time to let go, so on a busy host, where a try takes longer, more time is given.
_UNLOAD_S = 30.0
_UNLOAD_TRIES = 40
_UNLOAD_AT_MOST_S = 120.0
_ANSWER_S = 120.0
_BPFTRACE_ON_S = 10.0
# Starting it keeps an emulated processor busy for long, so after a visit it stays away
# for so many times as long as that took.
_AWAY = 4.0
_ATTACH_S = 300.0
# kmemleak leaves out what is younger than five seconds, and what has just changed.
_LEAK_AGE_S = 6.0


@dataclass(frozen=True)
class System:
    """Where the kernel lets itself be stressed; tests point it elsewhere."""

    tracefs: Tracefs
    cpus: Path = Path("/sys/devices/system/cpu")
    loaded: Path = Path("/sys/module")
    debugfs: Path = Path("/sys/kernel/debug")
    kallsyms: Path = Path("/proc/kallsyms")
    lockdep: Path = Path("/proc/lockdep_stats")
    modprobe: tuple[str, ...] = ("modprobe",)
    bpftrace: tuple[str, ...] = ("bpftrace",)
    # In memory, as bpftrace flushes each line; and not where that of a workload has its
    # files, which are taken away when the workload ends.
    scratch: Path = Path("/run/kstall-visit")


def run(
    job: Job,
    stress: Stress,
    system: System,
    execute: Callable[[Workload, str], float],
    update: Callable[[dict[str, Any]], None],
) -> None:
    """Do it all.

    ``execute`` runs a workload, with its results under a name, and says how many
    seconds that took.  ``update`` is told what is known so far: seconds {step},
    readers {ftrace, perf, bpf, raw: {event: counts}}, bpftrace {rounds, seen, errors},
    cpus {cycles: {number: count}, runs, errors}, modules {unloads: {name: count},
    owners: {event: name}, runs, errors}, leaks (bool: looked for), lockdep (null, or
    whether it still watches), counters {name: what the kernel has counted by itself}.
    Errors are as by `GuestError.as_json`.
    Raises `StressFailed` if nothing can be switched at all.
    """
    facts: dict[str, Any] = {
        "seconds": {},
        "readers": {},
        "bpftrace": {},
        "cpus": {"cycles": {}, "runs": 0, "errors": []},
        "modules": {"unloads": {}, "owners": {}, "runs": 0, "errors": []},
        "leaks": False,
        "lockdep": None,
        "counters": {},
    }
    results = job.results / "stress"
    took: dict[str, float] = {}
    turns = itertools.cycle(job.workloads)

    def again(name: str) -> bool:
        """The next workload in turn, but for those that take long; whether it ran.

        While modules come and go, only those that need them are worth it.
        """
        these = [one for one in job.workloads if one.modules or name != "modules"]
        most = max(_QUICK_S, min(took[one.name] for one in these))
        these = [one for one in these if took[one.name] <= most]
        return execute(next(one for one in turns if one in these), name) > 0

    _all_errors(system.debugfs)
    hooks = hooks_of(stress, system.tracefs)
    argv = (str(stress.program), *stress.options)
    with Toggler.running(argv, hooks, results) as toggler:
        visitor = Visitor(hooks, system)

        @contextmanager
        def step(name: str) -> Iterator[None]:
            began = time.monotonic()
            try:
                yield
            finally:
                facts["seconds"][name] = round(time.monotonic() - began, 1)
                facts["readers"] = toggler.readers()
                facts["bpftrace"] = visitor.facts()
                update(facts)

        with visitor.coming_and_going():
            with step("workloads"):
                for load in job.workloads:
                    took[load.name] = execute(load, load.name)
            with step("cpus"):
                _cpus(stress.cycles, system, again, facts["cpus"])
        if stress.reload:
            with step("modules"):
                _modules(job, stress, system, toggler, again, facts["modules"])
        with step("more"):
            _more(stress.toggles, toggler, again)
        with step("end"):
            toggler.stop()
    with step("leaks"):
        kmemleak = system.debugfs / "kmemleak"
        facts["leaks"] = _leaks(kmemleak, job.results / "kmemleak.txt")
        facts["lockdep"] = _lockdep(system.lockdep)
        facts["counters"] = _counters(system.debugfs)


@dataclass(frozen=True)
class Hook:
    """Something to be switched; ``layout`` is None for what only BPF knows."""

    name: str
    layout: Layout | None

    @property
    def line(self) -> str:
        """As the program reads it."""
        if self.layout is None:
            return f"raw {self.name}"
        system, name = self.name.split(":")
        return f"event {system} {name} {filter_of(self.layout)}"

    @property
    def probe(self) -> str:
        """As bpftrace spells it."""
        kind = "rawtracepoint" if self.layout is None else "tracepoint"
        return f"{kind}:{self.name}"


def hooks_of(stress: Stress, tracefs: Tracefs) -> tuple[Hook, ...]:
    """The hooks to switch, without the events that this kernel has not.

    Of those in ``stress.bare`` nobody can tell before they are switched.
    """
    found = []
    for event in stress.events:
        try:
            found.append(Hook(event, tracefs.layout(event, reader="stress")))
        except MissingEvent:
            continue
    bare = [Hook(f"{event.partition(':')[2]}_tp", None) for event in stress.bare]
    return (*found, *bare)


def filter_of(layout: Layout) -> str:
    """A filter that looks at every field, and lets nearly all records pass."""
    parts = []
    for one in layout.fields:
        if "char[" in one.ctype:
            parts.append(f'{one.name} ~ "*"')
        elif "[" not in one.ctype and one.size in (1, 2, 4, 8):
            # What a byte can hold cannot be compared with more.
            parts.append(f"{one.name} != {_NEVER if one.size > 2 else 119}")
    return " && ".join(parts) or f"common_pid != {_NEVER}"


@dataclass
class Toggler:
    """The program that switches, see ``toggle.c``."""

    process: subprocess.Popen[bytes]
    status: Path
    stderr: Path

    @classmethod
    @contextmanager
    def running(
        cls, program: Sequence[str], hooks: Sequence[Hook], results: Path
    ) -> Iterator[Toggler]:
        """A program that has switched for the first time; killed afterwards.

        Its options are the last of its arguments.
        """
        write_text(results / "list", "".join(f"{hook.line}\n" for hook in hooks))
        status, stderr = results / "status.json", results / "stderr"
        with stderr.open("wb") as errors:
            name, *options = program
            argv = [name, str(status), str(results / "list"), *options]
            try:
                process = subprocess.Popen(argv, stdout=errors, stderr=errors)
            except OSError as error:
                raise StressFailed(f"{name}: {error.strerror}") from error
        toggler = cls(process, status, stderr)
        try:
            toggler.wait_for(lambda _: True)
            yield toggler
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Return when the status is as ``wanted``; raises `StressFailed`."""
        limit = time.monotonic() + _ANSWER_S
        while not ((status := self._status()) and wanted(status)):
            if self.process.poll() is not None:
                raise StressFailed(f"what switches events ended{self._complaint()}")
            if time.monotonic() > limit:
                raise StressFailed("what switches events does not answer")
            time.sleep(0.1)

    def hold(self) -> None:
        """Have all readers but ftrace let go of the events, and of their modules, and
        ftrace, without the option ``triggers``, of what the kernel does not let go of
        when a module goes."""
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for(lambda status: status["parked"] == len(status["readers"]))

    def go_on(self) -> None:
        """Have all readers switch again."""
        self.process.send_signal(signal.SIGUSR2)
        self.wait_for(lambda status: status["parked"] == 0)

    def stop(self) -> None:
        """End it; everything is switched off then."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired as error:
            raise StressFailed("what switches events does not stop") from error
        if status != 0:
            raise StressFailed(
                f"what switches events exited {status}{self._complaint()}"
            )

    def readers(self) -> dict[str, Any]:
        """Counts by reader and event, as last told."""
        readers: dict[str, Any] = self._status().get("readers", {})
        return readers

    def least(self) -> int:
        """How often the event with the fewest turns was switched by all its readers,
        or `SHARE` times as often as by the one that was slowest."""
        turns: dict[str, list[int]] = {}
        for reader in self.readers().values():
            for name, count in reader.items():
                # Of what was never there nobody can ask any.
                if count["toggles"] or not count["absent"]:
                    turns.setdefault(name, []).append(count["toggles"])
        return min((min(sum(n), SHARE * min(n)) for n in turns.values()), default=0)

    def _status(self) -> dict[str, Any]:
        try:
            found = json.loads(self.status.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _complaint(self) -> str:
        said = self.stderr.read_text(encoding="utf-8", errors="replace").strip()
        return f": {said}" if said else ""


@dataclass
class Visitor:
    """bpftrace itself, which attaches to all hooks, stays for a while, and leaves."""

    hooks: Sequence[Hook]
    system: System
    rounds: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    errors: list[GuestError] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def facts(self) -> dict[str, Any]:
        """As `run` tells it."""
        return {
            "rounds": self.rounds,
            "seen": dict(self.seen),
            # Hundreds of the same would say no more.
            "errors": [error.as_json() for error in self.errors[:10]],
        }

    @contextmanager
    def coming_and_going(self) -> Iterator[None]:
        """Until the block ends; a visit that is under way comes to its own end."""
        thread = threading.Thread(target=self._visit_all, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _visit_all(self) -> None:
        if not self.hooks:
            return
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._visit()
                self._over.wait(_AWAY * (time.monotonic() - began))
            except Exception as error:  # that of a thread would be lost
                if not isinstance(error, GuestError):
                    error = GuestError(repr(error))
                self.errors.append(error)
                self._over.wait(_BPFTRACE_ON_S)

    def _visit(self) -> None:
        """One visit.  A hook that is not there is left out from then on."""
        scratch = self.system.scratch
        scratch.mkdir(parents=True, exist_ok=True)
        script = scratch / "visit.bt"
        write_text(script, script_for(self.hooks))
        tracer = bpftrace.start(
            "visit",
            script,
            results=scratch,
            ring_pages=64,
            program=self.system.bpftrace,
        )
        try:
            bpftrace.wait_attached([tracer], _ATTACH_S)
            self._over.wait(_BPFTRACE_ON_S)
            (outcome,) = bpftrace.stop([tracer])
        finally:
            bpftrace.kill([tracer])
        if outcome.exit_status != 0:
            raise outcome.errors[0]
        self.rounds += 1
        for name, count in _counted(outcome.output).items():
            self.seen[name] = self.seen.get(name, 0) + count


def script_for(hooks: Sequence[Hook]) -> str:
    """What bpftrace runs: a count and a stack for each hook.

    With its word ``probe`` in them, it would attach to none that tracefs does not list,
    such as bare tracepoints.
    """
    return "".join(
        f"{hook.probe}\n"
        "{\n"
        f'    @["{hook.probe}"] = count();\n'
        f'    @last["{hook.probe}"] = kstack(8);\n'
        "}\n"
        for hook in hooks
    )


def _counted(output: Path) -> dict[str, int]:
    """The counts by probe in what bpftrace printed."""
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith('{"type": "map"'):
            counts = json.loads(line)["data"].get("@")
            if isinstance(counts, dict):
                return {name.partition(":")[2]: int(n) for name, n in counts.items()}
    return {}


def _more(wanted: int, toggler: Toggler, again: Callable[[str], bool]) -> None:
    """Go on until everything was switched often enough, or too much time has passed."""
    limit = time.monotonic() + _MORE_S
    while toggler.least() < wanted and time.monotonic() < limit:
        again("more")


def _cpus(
    cycles: int, system: System, again: Callable[[str], bool], facts: dict[str, Any]
) -> None:
    """Take away each processor but the first, many times, while a workload runs."""
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                facts["runs"] += again("cpus")
        except Exception as error:  # that of a thread would be lost
            facts["errors"].append(GuestError(f"the workload: {error!r}").as_json())

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        switches = sorted(system.cpus.glob("cpu[1-9]*/online"))
        for _ in range(cycles):
            for switch in switches:
                try:
                    switch.write_text("0")
                    time.sleep(0.05)
                    switch.write_text("1")
                except OSError as error:
                    refused = StressRefused(f"{switch}: {error.strerror}")
                    facts["errors"].append(refused.as_json())
                    continue
                number = switch.parent.name.removeprefix("cpu")
                facts["cycles"][number] = facts["cycles"].get(number, 0) + 1
                time.sleep(0.05)
    finally:
        over.set()
        worker.join()


def _modules(
    job: Job,
    stress: Stress,
    system: System,
    toggler: Toggler,
    again: Callable[[str], bool],
    facts: dict[str, Any],
) -> None:
    """Unload modules while ftrace has their events, load them again, and use them.

    The one that has the events may be another that goes with them.
    """
    facts["owners"] = owners = _owners(stress, system.kallsyms)
    stuck = set()
    for _ in range(stress.reloads):
        toggler.hold()
        gone = []
        for name in stress.reload:
            complaint = _unload(name, job, system, patient=name not in stuck)
            if complaint:
                stuck.add(name)
                facts["errors"].append(StressRefused(complaint).as_json())
            else:
                gone.append(name)
        for name in dict.fromkeys(owners.values()):
            if name not in gone and not (system.loaded / name).exists():
                gone.append(name)
        for name in job.all_modules():
            done = _modprobe(system, job, name)
            if done.returncode != 0:
                refused = StressRefused(f"modprobe {name}: {done.stdout.strip()}")
                facts["errors"].append(refused.as_json())
        for name in gone:
            facts["unloads"][name] = facts["unloads"].get(name, 0) + 1
        toggler.go_on()
        facts["runs"] += again("modules")


def _owners(stress: Stress, kallsyms: Path) -> dict[str, str]:
    """The module that has the tracepoint of an event, for those of modules."""
    wanted = {
        f"__traceiter_{event.partition(':')[2]}": event
        for event in (*stress.events, *stress.bare)
    }
    found = {}
    for line in kallsyms.read_text(encoding="ascii").splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in wanted:
            found[wanted[words[2]]] = words[3].strip("[]")
    return found


def _unload(name: str, job: Job, system: System, *, patient: bool) -> str:
    """Unload ``name`` and what nothing else needs then; a complaint, or nothing.

    Without being ``patient`` try it once.
    """
    begun = time.monotonic()
    tries = 0
    while True:
        done = _modprobe(system, job, "-r", name)
        if done.returncode == 0 and not (system.loaded / name).exists():
            return ""
        tries += 1
        seconds = time.monotonic() - begun
        enough = seconds > _UNLOAD_S and tries >= _UNLOAD_TRIES
        if not patient or enough or seconds > _UNLOAD_AT_MOST_S:
            return f"modprobe -r {name}: {done.stdout.strip() or 'still loaded'}"
        time.sleep(0.2)


def _modprobe(
    system: System, job: Job, *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*system.modprobe, "-d", str(job.modules), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _leaks(kmemleak: Path, results: Path) -> bool:
    """Save what kmemleak suspects; false if this kernel has none, or it gave up."""
    try:
        # A second scan is the first to name anything; a third takes back what was
        # only on its way from one list to another.
        for _ in range(3):
            kmemleak.write_text("scan")
            found = kmemleak.read_text(encoding="utf-8", errors="replace")
            time.sleep(_LEAK_AGE_S)
    except OSError:
        return False
    write_text(results, found)
    return True


def _lockdep(stats: Path) -> bool | None:
    """Whether lockdep still watches; None if this kernel has none."""
    try:
        text = stats.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"debug_locks:\s+(\d+)", text)
    return found is not None and found[1] != "0"


def _all_errors(debugfs: Path) -> None:
    """Have the kernel tell all that it does not like of DMA, and not only the first."""
    file = debugfs / "dma-api/all_errors"
    if file.exists():
        file.write_text("1")


def _counters(debugfs: Path) -> dict[str, int]:
    """What the kernel counts beside what it tells, as it may tell only the first few:
    dma-errors, dma-disabled, object-warnings, kcsan-enabled and kcsan-watchpoints, of
    those that this kernel has.
    """
    found = {}
    for name, file, pattern in (
        ("dma-errors", "dma-api/error_count", r"(\d+)"),
        ("dma-disabled", "dma-api/disabled", r"([YN])"),
        ("object-warnings", "debug_objects/stats", r"warnings *: *(\d+)"),
        ("kcsan-enabled", "kcsan", r"enabled: (\d+)"),
        ("kcsan-watchpoints", "kcsan", r"setup_watchpoints: (\d+)"),
    ):
        try:
            text = (debugfs / file).read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            continue
        if match := re.search(pattern, text):
            found[name] = int(match[1].replace("Y", "1").replace("N", "0"))
    return found
