# SPDX-License-Identifier: GPL-2.0-or-later
"""One workload with all its tracers, and its results."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import bpftrace, decoders, hosttime, kmsg, recorder, script, selftest, workload
from .bare import Bare
from .errors import (
    CannotStart,
    DeadlineOver,
    GuestError,
    LostEvents,
    MissingEvent,
    TracerFailed,
)
from .files import write_bytes, write_json, write_text
from .job import Workload
from .layout import Layout
from .tracefs import Instance, Tracefs, lost

# The contents of ftrace's buffers, a file for each CPU.
_PAGES = "pages"
# The size of bpftrace's ring, of 4 KiB each, a power of two.
_RING_PAGES = 2048


@dataclass(frozen=True)
class Machine:
    """The places in the guest that a session uses; tests have others."""

    tracefs: Tracefs
    proc: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    bpftrace: tuple[str, ...] = ("bpftrace",)
    bpftrace_version: str = "unknown"
    # In memory: bpftrace flushes each line, and over 9p each flush is a round trip.
    scratch: Path = Path("/run/kstall-scratch")
    # The same for files of perf and trace-cmd, of which only the output is kept.
    decoding: Path = Path("/run/kstall-decoding")


def run(
    machine: Machine, load: Workload, scripts: Path, results: Path
) -> dict[str, Any]:
    """Run ``load`` and write its files below ``results``; never raises `GuestError`.

    Returns the workload's entry in agent.json: name, status ("exited", "timeout",
    "failed-to-start" or "tracer-failed"), events, record and bare as in the job,
    exit_status, seconds, began_ns and ended_ns (CLOCK_MONOTONIC), strays, trace
    {entries, lost}, tracers {name: `bpftrace.Outcome`}, decoded {perf and trace-cmd:
    seconds that decoding took after the workload}, error (the first error, or null) and
    errors (as by `GuestError.as_json`).
    """
    results.mkdir(parents=True, exist_ok=True)
    entry: dict[str, Any] = {"name": load.name, "status": "tracer-failed"}
    entry |= {"exit_status": None, "seconds": None, "began_ns": None, "ended_ns": None}
    entry |= {"strays": 0, "trace": None, "tracers": {}, "decoded": {}}
    entry |= {"events": [*load.events], "record": [*load.record]}
    entry["bare"] = [bare.event for bare in load.bare]
    errors: list[GuestError] = []
    try:
        _watched(machine, load, scripts, results, entry, errors)
    except CannotStart as error:
        entry["status"] = "failed-to-start"
        errors.append(error)
    except GuestError as error:
        entry["status"] = "tracer-failed"
        errors.append(error)
    except OSError as error:
        entry["status"] = "tracer-failed"
        errors.append(GuestError(f"{error.filename}: {error.strerror}"))
    except ValueError as error:
        entry["status"] = "tracer-failed"
        errors.append(GuestError(f"the results cannot be read: {error}"))
    else:
        if errors and entry["status"] == "exited":
            entry["status"] = "tracer-failed"
    entry["errors"] = [error.as_json() for error in errors]
    entry["error"] = entry["errors"][0] if errors else None
    return entry


def _watched(
    machine: Machine,
    load: Workload,
    scripts: Path,
    results: Path,
    entry: dict[str, Any],
    errors: list[GuestError],
) -> None:
    """Fill ``entry``, and ``errors`` with those that did not end the session."""
    with ExitStack() as stack:
        log = stack.enter_context(kmsg.opened(machine.kmsg))
        stack.callback(lambda: write_text(results / "kmsg.txt", log.text()))
        instance = None
        events = (*load.events, *machine.tracefs.known(load.beside))
        if events:
            instance = stack.enter_context(
                machine.tracefs.instance(f"kstall-{load.name}", events, load.buffer_kb)
            )
        layouts: list[Layout | Bare] = [
            *(
                machine.tracefs.layout(event, reader="recorder")
                for event in load.record
            ),
            *load.bare,
        ]
        perf = _perf(machine, load, stack)
        tracers = _attach(machine, load, layouts, scripts, results, stack)
        if perf is not None:
            perf.wait_attached(load.attach_s)
        bpftrace.pause(tracers)
        if instance is not None:
            instance.start()
        before = hosttime.lost()
        ended = workload.run(
            load.name,
            load.argv,
            deadline_s=load.deadline_s,
            results=results,
            proc=machine.proc,
        )
        after = hosttime.lost()
        if instance is not None:
            instance.stop()
        entry["status"] = "timeout" if ended.timed_out else "exited"
        if ended.timed_out:
            state = "; ".join(ended.waited_for) or "no process of it was there"
            if hosttime.lost() is None:
                state += "; and the host does not tell how much of that it gave"
            errors.append(
                DeadlineOver(f"not done after {load.deadline_s:g} s: {state}")
            )
        entry["exit_status"] = ended.exit_status
        entry["seconds"] = round(ended.seconds, 6)
        entry["began_ns"], entry["ended_ns"] = ended.began_ns, ended.ended_ns
        entry["strays"] = ended.strays
        for outcome in bpftrace.stop(tracers, machine.proc):
            entry["tracers"][outcome.name] = outcome.as_json()
            errors += outcome.errors
            # A tracer that had to be killed may have written gigabytes.
            if layouts and outcome.name == "record" and outcome.exit_status == 0:
                raw = outcome.output.read_text(encoding="utf-8", errors="replace")
                write_text(results / "record.jsonl", recorder.lines(raw, layouts))
        if tracers and not _room(machine.scratch):
            errors.append(LostEvents(f"{machine.scratch} is full: output is cut off"))
        if instance is not None:
            errors += _collect(instance, results, entry)
        errors += workload.troubles(results)
        kept_s = None if before is None or after is None else after - before
        stdout, stderr = (
            (results / name).read_text(encoding="utf-8", errors="replace")
            for name in ("stdout", "stderr")
        )
        if late := selftest.late(stdout, stderr, kept_s):
            errors.append(late)
        if perf is not None:
            _decode(machine, load, perf, results, entry, errors)


def _attach(
    machine: Machine,
    load: Workload,
    layouts: Sequence[Layout | Bare],
    scripts: Path,
    results: Path,
    stack: ExitStack,
) -> list[bpftrace.Tracer]:
    wanted = [(s.name, scripts / s.script) for s in load.bpftrace]
    if layouts:
        generated = results / "record.bt"
        write_text(generated, recorder.script(layouts))
        wanted.append(("record", generated))
    ready = [(name, _checked(machine, name, path, results)) for name, path in wanted]
    stack.callback(_keep, machine.scratch, results)
    machine.scratch.mkdir(parents=True, exist_ok=True)
    tracers: list[bpftrace.Tracer] = []
    stack.callback(bpftrace.kill, tracers)
    # All at once: LLVM's start takes each of them seconds under TCG.
    for name, path in ready:
        tracers.append(
            bpftrace.start(
                name,
                path,
                results=machine.scratch,
                ring_pages=_RING_PAGES,
                program=machine.bpftrace,
            )
        )
    bpftrace.wait_attached(tracers, load.attach_s)
    return tracers


def _room(scratch: Path) -> int:
    """Free bytes; bpftrace does not notice that a write failed."""
    system = os.statvfs(scratch)
    return system.f_bavail * system.f_frsize


def _keep(scratch: Path, results: Path) -> None:
    """Move the tracers' files to the results, also after an error."""
    for path in sorted(scratch.iterdir()):
        write_bytes(results / path.name, path.read_bytes())
        path.unlink()


def _checked(machine: Machine, name: str, path: Path, results: Path) -> Path:
    """The script to run: ``path``, or a copy in the results mended for bpftrace 0.23.

    Raises `MissingEvent` before LLVM is started in vain.
    """
    source = path.read_text(encoding="utf-8")
    reader = f"bpftrace {name}"
    for event in script.attach_points(source):
        machine.tracefs.format_text(event, reader=reader)
    if not script.needs_mending(machine.bpftrace_version):
        return path
    text = script.mended(
        source, lambda event: machine.tracefs.layout(event, reader=reader)
    )
    if text == source:
        return path
    copy = results / f"bpftrace-{name}.bt"
    write_text(copy, text)
    return copy


def _perf(machine: Machine, load: Workload, stack: ExitStack) -> decoders.Perf | None:
    if not load.decode:
        return None
    machine.decoding.mkdir(parents=True, exist_ok=True)
    perf = decoders.perf(load.decode, machine.decoding)
    stack.callback(perf.kill)
    return perf


def _decode(
    machine: Machine,
    load: Workload,
    perf: decoders.Perf,
    results: Path,
    entry: dict[str, Any],
    errors: list[GuestError],
) -> None:
    began = time.monotonic()
    try:
        perf.stop()
        decoders.printed_by_perf(perf, load.decode, results)
    except (TracerFailed, LostEvents) as error:
        # trace-cmd can read the pages all the same.
        errors.append(error)
    between = time.monotonic()
    pages = sorted((results / _PAGES).iterdir(), key=_cpu)
    decoders.printed_by_trace_cmd(pages, machine.decoding, results)
    entry["decoded"] = {
        "perf": round(between - began, 3),
        "trace-cmd": round(time.monotonic() - between, 3),
    }


def _cpu(pages: Path) -> int:
    return int(pages.name.removeprefix("cpu"))


def _collect(
    instance: Instance, results: Path, entry: dict[str, Any]
) -> list[GuestError]:
    stats = instance.stats()
    write_bytes(results / "trace.txt", instance.text())
    write_json(results / "trace-stats.json", stats)
    for name, pages in instance.pages().items():
        write_bytes(results / _PAGES / name, pages)
    missing = lost(stats)
    entries = sum(cpu["entries"] for cpu in stats.values())
    entry["trace"] = {"entries": entries, "lost": missing}
    if missing:
        return [LostEvents(f"ftrace: {missing} events lost, {entries} kept")]
    return []


def save_formats(
    tracefs: Tracefs, events: Sequence[str], results: Path
) -> dict[str, str]:
    """Copy format files to ``results``/formats; "saved" or "missing", by event."""
    outcomes = {}
    for event in events:
        system, name = event.split(":")
        try:
            text = tracefs.format_text(event)
        except MissingEvent:
            outcomes[event] = "missing"
        else:
            write_text(results / "formats" / system / name, text)
            outcomes[event] = "saved"
    return outcomes
