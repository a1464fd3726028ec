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

# ftrace keeps names of tasks by pid in a table of this many entries; with the default
# of 128, short-lived tasks of a workload become "<...>".
_CMDLINES = 4096
# A buffer consists of such pages, and a shorter read would return a part of one.
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
        return tuple(name for name in events if top.joinpath(*name.split(":")).is_dir())

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

        Time stamps are CLOCK_MONOTONIC; pointers are not hashed, as in the recorder.
        Raises `MissingEvent` and `TracefsError`.
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
            # Not by set_event, which silently ignores events that do not exist.
            for event in events:
                self.format_text(event, reader="ftrace")
                system, leaf = event.split(":")
                _enable(path / "events" / system / leaf / "enable")
            yield instance
        finally:
            # An error here would hide the first one, and an instance that remains ends
            # with the guest.
            with contextlib.suppress(OSError, TracefsError):
                instance.stop()
                path.rmdir()


@dataclass(frozen=True)
class Instance:
    """One ring buffer with its own set of enabled events."""

    path: Path

    def start(self) -> None:
        """Begin to record."""
        _set(self.path / "tracing_on", "1")

    def stop(self) -> None:
        """End recording."""
        _set(self.path / "tracing_on", "0")

    def text(self) -> bytes:
        """The whole buffer as the kernel prints it, oldest first; it stays full."""
        return (self.path / "trace").read_bytes()

    def pages(self) -> dict[str, bytes]:
        """The pages of each CPU's buffer, as they are in memory; empties the buffer."""
        pages = {}
        for directory in sorted((self.path / "per_cpu").glob("cpu*"), key=_number):
            pages[directory.name] = _drained(directory / "trace_pipe_raw")
        return pages

    def stats(self) -> dict[str, dict[str, int]]:
        """Per CPU: entries, overrun (overwritten), commit overrun, dropped."""
        stats = {}
        for directory in sorted((self.path / "per_cpu").glob("cpu*"), key=_number):
            stats[directory.name] = parse_stats((directory / "stats").read_text())
        return stats


def parse_stats(text: str) -> dict[str, int]:
    """The counts of a per_cpu/cpuN/stats file (its time stamps are left out)."""
    wanted = {
        "entries": "entries",
        "overrun": "overrun",
        "commit overrun": "commit_overrun",
        "dropped events": "dropped",
    }
    counts = {}
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        if key in wanted:
            counts[wanted[key]] = int(value)
    return counts


def lost(stats: dict[str, dict[str, int]]) -> int:
    """The number of events that a buffer lost."""
    return sum(
        cpu["overrun"] + cpu["commit_overrun"] + cpu["dropped"]
        for cpu in stats.values()
    )


def _drained(path: Path) -> bytes:
    """All of a file of which each read returns a page, and that blocks at its end."""
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
