# SPDX-License-Identifier: GPL-2.0-or-later
"""ftrace: one instance per workload, so that no two ever share a buffer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import (
    EventRefused,
    MissingEvent,
    NotRecordable,
    TracefsError,
    is_shortage,
)
from .layout import Layout, parse

# Names of tasks are kept by pid in a table of this many entries; the kernel's 128
# let short-lived tasks of a workload turn into "<...>".
_CMDLINES = 4096
# A buffer consists of such pages, and a read that asks for less gets less than one.
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Tracefs:
    """The mounted file system."""

    root: Path

    def format_text(self, event: str, *, reader: str = "formats") -> str:
        """The format file of ``system:name``.  Raises `MissingEvent`."""
        system, name = event.split(":")
        try:
            return (self.root / "events" / system / name / "format").read_text()
        except FileNotFoundError:
            raise MissingEvent(event, reader) from None

    def known(self, events: Sequence[str]) -> tuple[str, ...]:
        """Those of ``events`` that the kernel, or a module that is loaded, has."""
        top = self.root / "events"
        return tuple(one for one in events if top.joinpath(*one.split(":")).is_dir())

    def layout(self, event: str, *, reader: str) -> Layout:
        """The declared record of ``system:name``.

        Raises `MissingEvent`, and `NotRecordable` if the declaration cannot be read.
        """
        text = self.format_text(event, reader=reader)
        try:
            return parse(text, event.partition(":")[0])
        except ValueError as error:
            raise NotRecordable(f"{reader}: {event}: {error}") from error

    @contextlib.contextmanager
    def instance(
        self, name: str, events: Sequence[str], buffer_kb: int
    ) -> Iterator[Instance]:
        """An instance that is set up but not yet tracing, removed afterwards.

        Time stamps are CLOCK_MONOTONIC; pointers are printed as they are, because
        the recorder sees them so.  Raises `MissingEvent` and `TracefsError`.
        """
        path = self.root / "instances" / name
        try:
            path.mkdir()
        except OSError as error:
            raise TracefsError(f"{path}: {error.strerror}") from error
        instance = Instance(path)
        try:
            _set(self.root / "saved_cmdlines_size", str(_CMDLINES))
            _set(path / "tracing_on", "0")
            _set(path / "trace_clock", "mono")
            _set(path / "options" / "hash-ptr", "0")
            _set(path / "buffer_size_kb", str(buffer_kb))
            # Not through set_event: that takes what it can and stays silent.
            for event in events:
                self.format_text(event, reader="ftrace")
                system, leaf = event.split(":")
                _enable(path / "events" / system / leaf / "enable")
            yield instance
        finally:
            # An error here would hide the one that brought us here, and what stays
            # of an instance goes with the guest.
            with contextlib.suppress(OSError, TracefsError):
                instance.stop()
                path.rmdir()


@dataclass(frozen=True)
class Instance:
    """One ring buffer with its own set of enabled events."""

    path: Path

    def start(self) -> None:
        """Record from now on."""
        _set(self.path / "tracing_on", "1")

    def stop(self) -> None:
        """Record no more."""
        _set(self.path / "tracing_on", "0")

    def text(self) -> bytes:
        """The whole buffer as the kernel prints it, oldest first, left in place."""
        return (self.path / "trace").read_bytes()

    def pages(self) -> dict[str, bytes]:
        """What each CPU's buffer holds, as it is there in memory, page after page.

        This empties the buffer.
        """
        found = {}
        for directory in sorted((self.path / "per_cpu").glob("cpu*"), key=_number):
            found[directory.name] = _drained(directory / "trace_pipe_raw")
        return found

    def stats(self) -> dict[str, dict[str, int]]:
        """Per CPU: entries, overrun (overwritten), commit overrun, dropped."""
        found = {}
        for directory in sorted((self.path / "per_cpu").glob("cpu*"), key=_number):
            found[directory.name] = parse_stats((directory / "stats").read_text())
        return found


def parse_stats(text: str) -> dict[str, int]:
    """The counts of a per_cpu/cpuN/stats file (its time stamps are left out)."""
    wanted = {
        "entries": "entries",
        "overrun": "overrun",
        "commit overrun": "commit_overrun",
        "dropped events": "dropped",
    }
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        if key in wanted:
            found[wanted[key]] = int(value)
    return found


def lost(stats: dict[str, dict[str, int]]) -> int:
    """How many events a buffer did not keep."""
    return sum(
        cpu["overrun"] + cpu["commit_overrun"] + cpu["dropped"]
        for cpu in stats.values()
    )


def _drained(path: Path) -> bytes:
    """All of a file that gives a page a read, and waits when it has no more."""
    chunks = []
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while chunk := os.read(handle, _PAGE):
            chunks.append(chunk)
    except BlockingIOError:
        pass
    finally:
        os.close(handle)
    return b"".join(chunks)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("cpu"))


def _enable(path: Path) -> None:
    try:
        path.write_text("1")
    except OSError as error:
        refused = TracefsError if is_shortage(error) else EventRefused
        raise refused(f"cannot write '1' to {path}: {error.strerror}") from error


def _set(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise TracefsError(
            f"cannot write {value!r} to {path}: {error.strerror}"
        ) from error
