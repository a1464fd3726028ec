# SPDX-License-Identifier: GPL-2.0-or-later
"""bpftrace as a child process: known to be attached, and known to have lost nothing.

What follows from the source of bpftrace 0.23.2 (src/bpftrace.cpp, src/child.cpp):

* Attached.  The "attached_probes" JSON record is written before the programs are even
  loaded (of ten events right after it none was counted), and it counts probes that
  do not exist.  What BEGIN prints shows up later only because printing waits.  The
  line on stdout that ``__BPFTRACE_NOTIFY_PROBES_ATTACHED`` requests comes after the
  last attachment by design; bpftrace's own tests wait for it, and Debian builds without
  sd_notify.
* Stopping.  After SIGINT the event callback drops whatever is still queued, and that
  is not reported as lost: of 20000 lines 9215 came out.  When the child of ``-c``
  exits, everything queued is printed, then END runs, then the maps are printed.  So
  the child is a `cat` that waits for our end of a pipe: closing it stops the trace,
  and so does the end of the agent.  A script whose own printing fires its probes
  (write(2), say) never ends: it is killed after a while, which is an error.
* Missing tracepoints.  In a probe with several attach points, an attach point that
  does not exist causes a warning, and the others are traced.  Here it is an error.
* Loss.  A full ring is counted and reported as "lost_events".  A tracepoint that
  fires while the same CPU runs another BPF program is skipped silently, for perf as
  well; only the program's fdinfo counts it, so it is read before the programs end.
  That count has been seen to be too low: compare with ftrace's.
* Reading maps.  bpf(2) on a map counts as running a program (kernel/bpf/syscall.c,
  bpf_disable_instrumentation), and the caller may be preempted meanwhile: all that
  fires on its CPU until it runs again is skipped.  bpftrace reads a map whenever it has
  taken something from its ring.  So it is stopped while the workload runs, and the
  records stay in the ring, which has room for all of them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import hosttime
from .errors import (
    GuestError,
    HelperBusy,
    HelperError,
    LostEvents,
    MissingEvent,
    ScriptRefused,
    SkippedEvents,
    TracerFailed,
    last_words,
)

_ATTACHED = b"__BPFTRACE_NOTIFY_PROBES_ATTACHED\n"
_MISSING = re.compile(r"tracepoints? not found: (\S+:\S+)")
_SKIPPED = re.compile(r"WARNING: .*(?:skipping|not loaded|Unable to attach).*")
# Its messages if it rejects the script, and if a resource was not available.
_REFUSED = re.compile(r"(?m)^(?:\S+:[\d:-]+: )?ERROR: ")
_SHORT_OF = re.compile(
    r"Cannot allocate memory|No space left|Too many open files|ENOMEM|EMFILE|EAGAIN"
    r"|Resource temporarily unavailable|resource busy|Interrupted system call"
)
# Errors of helpers: a bucket that is locked on this CPU, or no memory.
_BUSY = (-errno.EBUSY, -errno.EAGAIN, -errno.ENOMEM)
# END, printing large maps and unloading LLVM take seconds under TCG.
_STOP_S = 60.0
_STRLEN = 256
# The child of ``-c``, which ends when our end of its pipe is closed.
_HOLDER = "/usr/bin/cat"


@dataclass
class Tracer:
    """One bpftrace process; ``output`` and ``stderr`` are the files that it writes."""

    name: str
    output: Path
    stderr: Path
    process: subprocess.Popen[bytes]
    began: float
    stdout: bytearray = field(default_factory=bytearray)
    attached_s: float | None = None
    misses: int = 0

    @property
    def attached(self) -> bool:
        """Whether it has reported that all its probes are attached."""
        return self.attached_s is not None


@dataclass(frozen=True)
class Outcome:
    """How a tracer ended.

    ``lost`` counts the events that did not fit into the ring, ``missed`` those that
    fired while another BPF program ran; ``attached_s`` is how long attaching took.
    """

    name: str
    output: Path
    exit_status: int | None
    attached_s: float | None
    lost: int
    missed: int
    warnings: tuple[str, ...]
    errors: tuple[GuestError, ...]

    def as_json(self) -> dict[str, object]:
        """As in agent.json."""
        return {
            "exit_status": self.exit_status,
            "attached_s": self.attached_s,
            "lost": self.lost,
            "missed": self.missed,
            "warnings": list(self.warnings),
            "errors": [error.as_json() for error in self.errors],
        }


def start(
    name: str,
    script: Path,
    *,
    results: Path,
    ring_pages: int,
    program: Sequence[str] = ("bpftrace",),
) -> Tracer:
    """Start bpftrace on ``script``; its probes are not attached yet.

    Its output goes to ``results``/bpftrace-<name>.json and .stderr.  Raises
    `TracerFailed` when it cannot be executed.
    """
    output = results / f"bpftrace-{name}.json"
    stderr = results / f"bpftrace-{name}.stderr"
    argv = (*program, "-f", "json", "-o", str(output), "-c", _HOLDER)
    with stderr.open("wb") as errors:
        try:
            process = subprocess.Popen(
                [*argv, "--", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env={
                    **os.environ,
                    "__BPFTRACE_NOTIFY_PROBES_ATTACHED": "1",
                    "BPFTRACE_PERF_RB_PAGES": str(ring_pages),
                    "BPFTRACE_MAX_STRLEN": str(_STRLEN),
                },
            )
        except OSError as error:
            raise TracerFailed(f"{argv[0]}: {error.strerror}") from error
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return Tracer(name, output, stderr, process, time.monotonic())


def wait_attached(tracers: Iterable[Tracer], timeout: float) -> None:
    """Return when every probe of every tracer is attached.

    Raises `MissingEvent` or `TracerFailed` as soon as a tracer ends, and after
    ``timeout`` seconds.
    """
    countdown = hosttime.Countdown(timeout)
    with selectors.DefaultSelector() as selector:
        for tracer in tracers:
            assert tracer.process.stdout is not None
            selector.register(tracer.process.stdout, selectors.EVENT_READ, tracer)
        while selector.get_map():
            ready = selector.select(max(0.0, countdown.left()))
            if not ready and countdown.left() > 0:
                continue
            if not ready:
                late = [key.data.name for key in selector.get_map().values()]
                raise TracerFailed(
                    f"bpftrace ({', '.join(late)}): not attached after {timeout:g} s"
                )
            for key, _ in ready:
                tracer = key.data
                goes_on = _read(tracer)
                # Both may arrive at once: the line, and the end of the process.
                if _ATTACHED in tracer.stdout:
                    tracer.attached_s = round(time.monotonic() - tracer.began, 3)
                    selector.unregister(key.fileobj)
                elif not goes_on:
                    raise _gave_up(tracer)
    for tracer in tracers:
        # The line is also printed when only some of several attach points exist.
        problems = _problems(tracer)
        if problems:
            raise problems[0]


def pause(tracers: Sequence[Tracer]) -> None:
    """Suspend the processes; their programs in the kernel go on recording.

    Raises `TracerFailed` if that fails.  `stop` reports those that have ended.
    """
    for tracer in tracers:
        tracer.process.send_signal(signal.SIGSTOP)
    countdown = hosttime.Countdown(_STOP_S)
    # A process in the kernel only stops when it returns to user space.
    how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    for tracer in tracers:
        while tracer.process.returncode is None and not os.waitid(
            os.P_PID, tracer.process.pid, how
        ):
            if countdown.left() < 0:
                raise TracerFailed(f"bpftrace {tracer.name}: cannot be stopped")
            time.sleep(0.001)


def stop(tracers: Sequence[Tracer], proc: Path = Path("/proc")) -> list[Outcome]:
    """End all tracers, which print their maps then, and return their outcomes.

    Output that is cut off is an error: bpftrace does not notice a full disk.
    """
    early = {id(t) for t in tracers if t.attached and t.process.poll() is not None}
    for tracer in tracers:
        tracer.misses = recursion_misses(proc / str(tracer.process.pid) / "fdinfo")
    for tracer in tracers:
        tracer.process.send_signal(signal.SIGCONT)
        assert tracer.process.stdin is not None
        tracer.process.stdin.close()
    countdown = hosttime.Countdown(_STOP_S)
    return [_outcome(tracer, countdown, id(tracer) in early) for tracer in tracers]


def kill(tracers: Iterable[Tracer]) -> None:
    """End tracers whose output is not needed any more."""
    for tracer in tracers:
        if tracer.process.poll() is None:
            tracer.process.kill()
        tracer.process.wait()
        for stream in (tracer.process.stdin, tracer.process.stdout):
            if stream is not None:
                stream.close()


def recursion_misses(fdinfo: Path) -> int:
    """Events that the kernel did not pass to the BPF programs of a process."""
    total = 0
    try:
        entries = sorted(fdinfo.iterdir())
    except OSError:
        return 0
    for entry in entries:
        try:
            text = entry.read_text()
        except OSError:
            continue
        match = re.search(r"^recursion_misses:\t(\d+)$", text, re.M)
        total += int(match[1]) if match else 0
    return total


def _outcome(tracer: Tracer, countdown: hosttime.Countdown, early: bool) -> Outcome:
    errors: list[GuestError] = []
    try:
        # Its stdout is not read meanwhile: a line or two, which the pipe holds.
        status: int | None = hosttime.wait(tracer.process, max(0.1, countdown.left()))
    except subprocess.TimeoutExpired:
        status = None
        errors.append(TracerFailed(f"bpftrace {tracer.name}: did not stop"))
    _read(tracer)
    kill([tracer])
    if early:
        errors.append(
            TracerFailed(
                f"bpftrace {tracer.name}: ended (exit status {status}) before the "
                f"workload did{_tail(tracer)}"
            )
        )
    elif status not in (0, None):
        errors.append(
            TracerFailed(f"bpftrace {tracer.name}: exit status {status}{_tail(tracer)}")
        )
    *lines, rest = _printed(tracer).split("\n")
    if rest:
        errors.append(LostEvents(f"bpftrace {tracer.name}: its output is cut off"))
    lost, helpers = _reported(tracer.name, lines)
    if lost:
        errors.append(LostEvents(f"bpftrace {tracer.name}: {lost} events lost"))
    if tracer.misses:
        errors.append(SkippedEvents(tracer.name, tracer.misses))
    errors.extend(helpers)
    warnings = [
        line
        for line in _stderr(tracer).splitlines()
        if line.startswith(("WARNING", "ERROR")) or ": WARNING: " in line
    ]
    return Outcome(
        name=tracer.name,
        output=tracer.output,
        exit_status=status,
        attached_s=tracer.attached_s,
        lost=lost,
        missed=tracer.misses,
        warnings=tuple(warnings),
        errors=tuple(errors),
    )


def _read(tracer: Tracer) -> bool:
    """Read all that is available on stdout; false at its end."""
    assert tracer.process.stdout is not None
    while True:
        try:
            chunk = os.read(tracer.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return True
        except ValueError:
            return False
        if not chunk:
            return False
        tracer.stdout += chunk


def _gave_up(tracer: Tracer) -> GuestError:
    try:
        status = tracer.process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        return TracerFailed(f"bpftrace {tracer.name}: closed stdout and went on")
    for problem in _problems(tracer):
        return problem
    # A signal, or a lack of memory, is not the script's fault.
    text = _stderr(tracer)
    rejected = status > 0 and _REFUSED.search(text) and not _SHORT_OF.search(text)
    return (ScriptRefused if rejected else TracerFailed)(
        f"bpftrace {tracer.name}: exit status {status} before it was attached"
        f"{_tail(tracer)}"
    )


def _problems(tracer: Tracer) -> list[GuestError]:
    """The probes that were not attached, by the messages on stderr."""
    text = _stderr(tracer)
    problems: list[GuestError] = [
        MissingEvent(event.rstrip("."), f"bpftrace {tracer.name}")
        for event in _MISSING.findall(text)
    ]
    problems += [
        (TracerFailed if _SHORT_OF.search(line) else ScriptRefused)(
            f"bpftrace {tracer.name}: {line}"
        )
        for line in _SKIPPED.findall(text)
    ]
    return problems


def _printed(tracer: Tracer) -> str:
    try:
        return tracer.output.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _reported(name: str, lines: Iterable[str]) -> tuple[int, list[HelperError]]:
    """(lost events, distinct helper errors) in a tracer's JSON ``lines``."""
    lost = 0
    helpers: dict[tuple[str, bool], int] = {}
    for line in lines:
        # Decoding every line of a long record would be slow.
        if not line.startswith(('{"type": "lost_events"', '{"type": "helper_error"')):
            continue
        value = json.loads(line)
        if value["type"] == "helper_error":
            what = f"line {value['line']}: {value['helper']}: {value['msg']}"
            key = (what, value.get("retcode") in _BUSY)
            helpers[key] = helpers.get(key, 0) + 1
        elif isinstance(value["data"], dict):
            lost += int(value["data"]["events"])
    return lost, [
        (HelperBusy if busy else HelperError)(
            f"bpftrace {name}: {what} ({count} times)"
        )
        for (what, busy), count in helpers.items()
    ]


def _stderr(tracer: Tracer) -> str:
    return tracer.stderr.read_text(encoding="utf-8", errors="replace")


def _tail(tracer: Tracer) -> str:
    return last_words(_stderr(tracer))
