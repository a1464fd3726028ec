# SPDX-License-Identifier: GPL-2.0-or-later
"""The stress of a debug kernel (KASAN and lockdep; KCSAN) while its workloads run.

A program of ours switches every event on and off by ftrace, perf and BPF at once,
bpftrace attaches and detaches, and then processors go offline and modules are unloaded,
with the events on.  There is no verdict here: agent.json, rewritten after each step,
has what was done and what failed, and the console has the kernel's reports.
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

# No field of our events has this value, so a filter compares all and drops none.
_NEVER = 123456789
#: Each reader has to do one in so many of all toggles of an event.
ONE_IN = 8
# Seconds for more toggles; if these do not suffice, the checks will show that.
_MORE_S = 600.0
# Workloads that take no longer are run again and again.
_QUICK_S = 30.0
# Unloading fails as long as anything holds the module.  The holder may need processor
# time to release it, so there is more time on a busy host, where a try takes longer.
_UNLOAD_S = 30.0
_UNLOAD_TRIES = 40
_UNLOAD_AT_MOST_S = 120.0
_ANSWER_S = 120.0
_BPFTRACE_ON_S = 10.0
# Its start keeps an emulated processor busy for long, so the pause after a visit is so
# many times as long as the visit.
_AWAY = 4.0
_ATTACH_S = 300.0
# kmemleak leaves out objects that are younger than five seconds, or have just changed.
_LEAK_AGE_S = 6.0


@dataclass(frozen=True)
class System:
    """The places in the guest that are used for stress; tests have others."""

    tracefs: Tracefs
    cpus: Path = Path("/sys/devices/system/cpu")
    loaded: Path = Path("/sys/module")
    debugfs: Path = Path("/sys/kernel/debug")
    kallsyms: Path = Path("/proc/kallsyms")
    lockdep: Path = Path("/proc/lockdep_stats")
    modprobe: tuple[str, ...] = ("modprobe",)
    bpftrace: tuple[str, ...] = ("bpftrace",)
    # In memory, as bpftrace flushes each line; and not in the directory of workloads'
    # tracers, which is emptied when a workload ends.
    scratch: Path = Path("/run/kstall-visit")


def run(
    job: Job,
    stress: Stress,
    system: System,
    execute: Callable[[Workload, str], float],
    update: Callable[[dict[str, Any]], None],
) -> None:
    """Run all workloads, and all steps of the stress.

    ``execute`` runs a workload, with its results under a name, and returns how many
    seconds that took.  ``update`` gets the facts so far: seconds {step}, readers
    {ftrace, perf, bpf, raw: {event: counts}}, bpftrace {rounds, seen, errors}, cpus
    {cycles: {number: count}, runs, errors}, modules {unloads: {name: count}, owners:
    {event: name}, runs, errors}, leaks (bool: looked for), lockdep (null, or whether it
    is still on), counters {name: the kernel's own count}.  Errors are as by
    `GuestError.as_json`.  Raises `StressFailed` if nothing can be switched at all.
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
        """Run the next workload in turn that does not take long; whether it ran.

        While modules are unloaded and loaded, only workloads that need one are run.
        """
        loads = [load for load in job.workloads if load.modules or name != "modules"]
        most = max(_QUICK_S, min(took[load.name] for load in loads))
        loads = [load for load in loads if took[load.name] <= most]
        return execute(next(load for load in turns if load in loads), name) > 0

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

        with visitor.visiting():
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
    """An event to be switched; ``layout`` is None for a bare tracepoint."""

    name: str
    layout: Layout | None

    @property
    def line(self) -> str:
        """Its line in the program's input."""
        if self.layout is None:
            return f"raw {self.name}"
        system, name = self.name.split(":")
        return f"event {system} {name} {filter_of(self.layout)}"

    @property
    def probe(self) -> str:
        """Its name in bpftrace."""
        kind = "rawtracepoint" if self.layout is None else "tracepoint"
        return f"{kind}:{self.name}"


def hooks_of(stress: Stress, tracefs: Tracefs) -> tuple[Hook, ...]:
    """The hooks to switch, without the events that this kernel lacks.

    Whether it has those in ``stress.bare`` only shows when they are switched.
    """
    hooks = []
    for event in stress.events:
        try:
            hooks.append(Hook(event, tracefs.layout(event, reader="stress")))
        except MissingEvent:
            continue
    bare = [Hook(f"{event.partition(':')[2]}_tp", None) for event in stress.bare]
    return (*hooks, *bare)


def filter_of(layout: Layout) -> str:
    """A filter that reads every field, and accepts nearly all records."""
    parts = []
    for member in layout.fields:
        if "char[" in member.ctype:
            parts.append(f'{member.name} ~ "*"')
        elif "[" not in member.ctype and member.size in (1, 2, 4, 8):
            # The larger value does not fit into a short field.
            parts.append(f"{member.name} != {_NEVER if member.size > 2 else 119}")
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
        """A program that has switched all once; killed afterwards.

        Its options follow its other arguments.
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
                raise StressFailed(f"the toggle program ended{self._tail()}")
            if time.monotonic() > limit:
                raise StressFailed("the toggle program does not respond")
            time.sleep(0.1)

    def hold(self) -> None:
        """Have all readers but ftrace detach from the events and from their modules.

        Without the option ``triggers``, ftrace removes what the kernel would not remove
        when a module is unloaded.
        """
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for(lambda status: status["parked"] == len(status["readers"]))

    def go_on(self) -> None:
        """Have all readers switch events again."""
        self.process.send_signal(signal.SIGUSR2)
        self.wait_for(lambda status: status["parked"] == 0)

    def stop(self) -> None:
        """End it; everything is switched off then."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired as error:
            raise StressFailed("the toggle program does not stop") from error
        if status != 0:
            raise StressFailed(f"the toggle program exited {status}{self._tail()}")

    def readers(self) -> dict[str, Any]:
        """Counts by reader and event, from the last status."""
        readers: dict[str, Any] = self._status().get("readers", {})
        return readers

    def least(self) -> int:
        """The toggles of the event with the fewest by all its readers together; at most
        `ONE_IN` times those of its slowest reader."""
        turns: dict[str, list[int]] = {}
        for reader in self.readers().values():
            for name, count in reader.items():
                # An event that was never there cannot be switched.
                if count["toggles"] or not count["absent"]:
                    turns.setdefault(name, []).append(count["toggles"])
        return min((min(sum(n), ONE_IN * min(n)) for n in turns.values()), default=0)

    def _status(self) -> dict[str, Any]:
        try:
            status = json.loads(self.status.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return status if isinstance(status, dict) else {}

    def _tail(self) -> str:
        text = self.stderr.read_text(encoding="utf-8", errors="replace").strip()
        return f": {text}" if text else ""


@dataclass
class Visitor:
    """bpftrace, which attaches to all hooks and detaches after a while, repeatedly."""

    hooks: Sequence[Hook]
    system: System
    rounds: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    errors: list[GuestError] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def facts(self) -> dict[str, Any]:
        """The part ``bpftrace`` of the facts of `run`."""
        return {
            "rounds": self.rounds,
            "seen": dict(self.seen),
            # There may be hundreds of the same.
            "errors": [error.as_json() for error in self.errors[:10]],
        }

    @contextmanager
    def visiting(self) -> Iterator[None]:
        """Visit until the block ends; the last visit is completed."""
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
            except Exception as error:  # a thread's would be lost
                if not isinstance(error, GuestError):
                    error = GuestError(repr(error))
                self.errors.append(error)
                self._over.wait(_BPFTRACE_ON_S)

    def _visit(self) -> None:
        """Attach to all hooks once.  Raises `GuestError`."""
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
    """The script of a visit: a count and a stack for each hook.

    The hooks' names are written out, as bpftrace's ``probe`` in a script would keep it
    from attaching to hooks that tracefs does not list, such as bare tracepoints.
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
    """The counts by probe in bpftrace's output."""
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith('{"type": "map"'):
            counts = json.loads(line)["data"].get("@")
            if isinstance(counts, dict):
                return {name.partition(":")[2]: int(n) for name, n in counts.items()}
    return {}


def _more(wanted: int, toggler: Toggler, again: Callable[[str], bool]) -> None:
    """Run workloads until each event was switched ``wanted`` times, or time is over."""
    limit = time.monotonic() + _MORE_S
    while toggler.least() < wanted and time.monotonic() < limit:
        again("more")


def _cpus(
    cycles: int, system: System, again: Callable[[str], bool], facts: dict[str, Any]
) -> None:
    """Take each processor but the first offline and online, while workloads run."""
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                facts["runs"] += again("cpus")
        except Exception as error:  # a thread's would be lost
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
    """Unload modules while ftrace has their events on, load them again, and use them.

    The module with the events may be another, which is unloaded along with them.
    """
    facts["owners"] = owners = _owners(stress, system.kallsyms)
    stuck = set()
    for _ in range(stress.reloads):
        toggler.hold()
        gone = []
        for name in stress.reload:
            message = _unload(name, job, system, patient=name not in stuck)
            if message:
                stuck.add(name)
                facts["errors"].append(StressRefused(message).as_json())
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
    """The modules with the events' tracepoints, by event."""
    wanted = {
        f"__traceiter_{event.partition(':')[2]}": event
        for event in (*stress.events, *stress.bare)
    }
    owners = {}
    for line in kallsyms.read_text(encoding="ascii").splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in wanted:
            owners[wanted[words[2]]] = words[3].strip("[]")
    return owners


def _unload(name: str, job: Job, system: System, *, patient: bool) -> str:
    """Unload ``name`` and modules that only it needs; an error message, or "".

    Try it once unless ``patient``.
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
    """Save the leaks that kmemleak suspects; false if it is missing, or gave up."""
    try:
        # The first scan reports nothing; the third removes objects that were only being
        # moved from one list to another.
        for _ in range(3):
            kmemleak.write_text("scan")
            text = kmemleak.read_text(encoding="utf-8", errors="replace")
            time.sleep(_LEAK_AGE_S)
    except OSError:
        return False
    write_text(results, text)
    return True


def _lockdep(stats: Path) -> bool | None:
    """Whether lockdep is still on; None if this kernel has none."""
    try:
        text = stats.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"debug_locks:\s+(\d+)", text)
    return match is not None and match[1] != "0"


def _all_errors(debugfs: Path) -> None:
    """Have the kernel print all errors of DMA, and not only the first."""
    file = debugfs / "dma-api/all_errors"
    if file.exists():
        file.write_text("1")


def _counters(debugfs: Path) -> dict[str, int]:
    """The kernel's own counts, as it may print only the first few reports: dma-errors,
    dma-disabled, object-warnings, kcsan-enabled and kcsan-watchpoints, if this kernel
    has them.
    """
    counters = {}
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
            counters[name] = int(match[1].replace("Y", "1").replace("N", "0"))
    return counters
