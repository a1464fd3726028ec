# SPDX-License-Identifier: GPL-2.0-or-later
"""perf and trace-cmd, which print a record by what its format file says.

Neither takes the kernel's text: their libtraceevent evaluates the print fmt over the
record's bytes, and it cannot evaluate all that a TP_printk may contain.  perf records
the workload beside ftrace; trace-cmd reads the same pages that ftrace filled.
"""

from __future__ import annotations

import re
import selectors
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import hosttime
from .errors import DecoderCrashed, LostEvents, TracerFailed, last_words

#: Files with the output of each, in the results of a workload.
PERF, TRACE_CMD, LISTED = "perf.txt", "trace-cmd.txt", "perf-list.txt"

_ATTACHED = b"attached"
# perf enables all events before it starts its child, so the child's output shows that
# it has; and it ends when the child does, which is when our end of the pipe is closed.
_CHILD = ("sh", "-c", f"echo {_ATTACHED.decode()}; exec cat")
# Without these, perf would also read every process, binary and BPF program.
_PERF = ("perf", "record", "--all-cpus", "--clockid=mono", "--synth=no")
_QUIET = ("--no-buildid", "--no-buildid-cache", "--no-bpf-event")
# Events that do not fit are lost without an error: sixteen times the default.
_ROOM = ("--mmap-pages=8M",)
_STEP_S = 120.0
# Exit statuses of a program that crashes on its input.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE)
_LOST = re.compile(rb"PERF_RECORD_LOST(?:_SAMPLES)?\s+lost (\d+)")


@dataclass
class Perf:
    """A running ``perf record``; its data and messages are in scratch files."""

    process: subprocess.Popen[bytes]
    data: Path
    stderr: Path

    def wait_attached(self, timeout: float) -> None:
        """Return when every event is enabled.  Raises `TracerFailed`."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            countdown = hosttime.Countdown(timeout)
            while (left := countdown.left()) > 0 and not selector.select(left):
                continue
            if not selector.select(0):
                raise TracerFailed(f"perf record: not attached after {timeout:g} s")
        if not self.process.stdout.readline().startswith(_ATTACHED):
            raise TracerFailed(
                f"perf record: ended before it was attached{self._tail()}"
            )

    def stop(self) -> None:
        """End the recording.  Raises `TracerFailed`."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            status = hosttime.wait(self.process, _STEP_S)
        except subprocess.TimeoutExpired:
            raise TracerFailed(f"perf record: did not stop{self._tail()}") from None
        if status != 0:
            raise TracerFailed(f"perf record: exit status {status}{self._tail()}")

    def kill(self) -> None:
        """End a recording that is not needed any more, and delete its files."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        for path in (self.data, self.stderr):
            path.unlink(missing_ok=True)

    def _tail(self) -> str:
        return last_words(self.stderr.read_text(encoding="utf-8", errors="replace"))


def perf(events: Sequence[str], scratch: Path) -> Perf:
    """Start to record ``events`` on all CPUs.  Raises `TracerFailed`."""
    data, stderr = scratch / "perf.data", scratch / "perf.stderr"
    wanted = [f"--event={event}" for event in events]
    with stderr.open("wb") as errors:
        try:
            process = subprocess.Popen(
                [*_PERF, *_QUIET, *_ROOM, *wanted, f"--output={data}", "--", *_CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
            )
        except OSError as error:
            raise TracerFailed(f"perf: {error.strerror}") from error
    return Perf(process, data, stderr)


def printed_by_perf(recorded: Perf, events: Sequence[str], results: Path) -> None:
    """Print perf's records, and ``perf list`` of ``events``, to the ``results``.

    Each record is a line ``[cpu] seconds.nanoseconds: system:event: text``.  Raises
    `TracerFailed`, and `LostEvents` if the kernel had no room for some records.
    """
    script = ("perf", "script", f"--input={recorded.data}", "--ns")
    shown = ("--show-lost-events", "--fields=trace:cpu,time,event,trace")
    _run((*script, *shown), results / PERF)
    _run(("perf", "list", "--no-desc", *events), results / LISTED)
    lost = sum(map(int, _LOST.findall((results / PERF).read_bytes())))
    if lost:
        raise LostEvents(f"perf record: {lost} events lost")


def printed_by_trace_cmd(pages: Sequence[Path], scratch: Path, results: Path) -> None:
    """Print ftrace's ``pages``, a file for each CPU in order, to the ``results``.

    Each record is a line ``task-pid [cpu] flags seconds.nanoseconds: event: text``.
    Raises `TracerFailed`.
    """
    data, log = scratch / "trace.dat", scratch / "trace-cmd.log"
    try:
        _run(("trace-cmd", "restore", "-o", str(data), *map(str, pages)), log)
        # Plugins do not print by the print fmt.
        report = ("trace-cmd", "report", "-N", "-t", "-i", str(data))
        _run(report, results / TRACE_CMD)
    finally:
        data.unlink(missing_ok=True)
        log.unlink(missing_ok=True)


def _run(argv: Sequence[str], output: Path) -> None:
    """Run ``argv``, its standard output into a file.  Raises `TracerFailed`."""
    what = " ".join(argv[:2])
    try:
        with output.open("wb") as stdout:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=_STEP_S,
                check=False,
            )
    except OSError as error:
        raise TracerFailed(f"{what}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise TracerFailed(f"{what}: not done after {_STEP_S:g} s") from None
    if done.returncode != 0:
        tail = last_words(done.stderr.decode(errors="replace"))
        failed = DecoderCrashed if done.returncode in _CRASHES else TracerFailed
        raise failed(f"{what}: exit status {done.returncode}{tail}")
