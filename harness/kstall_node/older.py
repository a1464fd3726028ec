# SPDX-License-Identifier: GPL-2.0-or-later
"""Recordings of earlier recorders, of which --ring deletes the oldest segments.

Nothing is deleted but what a recorder has written: by its name, in a directory of the
user that this runs as, of this node, recorded with --ring, and not in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import FORMAT, agent, files
from .host import Host
from .tracefs import INSTANCE

#: All that a recorder writes at the top of a recording; session.json is removed last.
_NAMES = ("segments", "formats", ".reserve", "facts.jsonl", ".session.json.tmp")
_SESSION = "session.json"
_NUMBERS = r"cpu(0|[1-9]\d*)-(0|[1-9]\d*)"
_PAGES = re.compile(rf"{_NUMBERS}\.pages")
_PIECE = re.compile(rf"{_NUMBERS}\.(?:pages|json)|\.{_NUMBERS}\.json\.tmp")
_FORMAT = re.compile(r"[\w-]+")
#: Longer than any line of facts.jsonl.
_TAIL = 1 << 20
_STAMP = struct.Struct("<Q")


class Older:
    """The recordings in ``dir``, before this recorder makes its own."""

    def __init__(self, host: Host, dir: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._recordings: list[_Recording] = []
        for path in agent.recordings(dir):
            if path == dir or agent.lives(host, path):
                continue
            with contextlib.suppress(OSError, ValueError, RecursionError):
                self._recordings.append(_Recording(path, host.node))
        self._recordings.sort(key=lambda recording: recording.written)

    @property
    def size(self) -> int:
        """The bytes in all of them."""
        return sum(recording.size for recording in self._recordings)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._recordings)

    def shrink(self, room: int, most: int = sys.maxsize) -> None:
        """Delete the oldest segments until the rest takes ``room`` bytes at most.

        No more than ``most`` are deleted.  Recordings that are in use, or have a file
        that no recorder writes, are not touched, and do not count meanwhile.
        """
        if self.size <= room:
            return
        free = [entry for entry in list(self._recordings) if self._is_free(entry)]
        over = sum(recording.size for recording in free) - max(0, room)
        for recording in free:
            try:
                with recording.held() as handle:
                    if handle is None:
                        over -= recording.size
                        continue
                    while recording.size and min(over, most) > 0:
                        over -= recording.drop(handle)
                        most -= 1
            except OSError as error:
                self._give_up(recording, error)
        self._recordings = [entry for entry in self._recordings if entry.size]

    def _is_free(self, recording: _Recording) -> bool:
        try:
            with recording.held() as handle:
                return handle is not None
        except OSError as error:
            self._give_up(recording, error)
            return False

    def _give_up(self, recording: _Recording, error: OSError) -> None:
        if recording.path.exists():
            self._say(
                f"{recording.path}: {error.strerror}; it stays, and --ring does not "
                "count it"
            )
        self._recordings.remove(recording)


class _Recording:
    """A recording of ``node`` that was made with --ring.

    Raises `OSError`, or `ValueError` if ``path`` is something else.
    """

    def __init__(self, path: Path, node: str) -> None:
        self.path = path
        with _opened(path) as handle:
            if not _is_ours(handle):
                raise ValueError(f"{path}: others can write there")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(_SESSION, flags, dir_fd=handle), "rb") as file:
                session = json.loads(file.read(_TAIL))
                #: When its recorder wrote that last, by the clock of files.
                self.written = os.fstat(file.fileno()).st_mtime_ns
            if not _is_ring(session, node):
                raise ValueError(f"{path}: not of {node}, or not made with --ring")
            self._began: int = session["began"]
            self._ended: int | None = session["ended"]
            if not path.name.endswith(f"-{self._began}"):
                raise ValueError(f"{path}: has another name than its recorder gave it")
            #: The bytes in all its files.
            self.size = _size(handle)
        #: See `_segments()`; they are listed when the first is deleted.
        self._segments: dict[int, list[tuple[int, int]]] | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[int | None]:
        """Its directory, locked; None if it is in use or somebody put a file there."""
        with _opened(self.path) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            whole = set(os.listdir(handle)) <= {*_NAMES, _SESSION}
            yield handle if whole and _is_ours(handle) else None

    def drop(self, handle: int) -> int:
        """Delete the oldest segment, with the last one all; how many bytes that is."""
        if self._segments is None:
            self._segments = _segments(handle)
        before = self.size
        if self._segments:
            cpu = min(self._segments, key=lambda cpu: self._segments_of(cpu)[-1][1])
            number, _ = self._segments_of(cpu).pop()
            with _opened("segments", handle) as at:
                for end in ("json", "pages"):
                    self.size -= _unlink(f"cpu{cpu}-{number}.{end}", at)
                until = self._after(cpu, at)
            # As the recorder notes it of its own.  It makes room, so it may fail.
            with contextlib.suppress(OSError):
                self.size += _note(handle, self._loss(cpu, until))
            if not self._segments_of(cpu):
                del self._segments[cpu]
        if not self._segments:
            self._remove(handle)
            self.size = 0
        return before - self.size

    def _segments_of(self, cpu: int) -> list[tuple[int, int]]:
        assert self._segments is not None
        return self._segments[cpu]

    def _after(self, cpu: int, at: int) -> int | None:
        """A time before which all deleted records of ``cpu`` are, None if not known."""
        until = self._ended
        if self._segments_of(cpu):
            number, _ = self._segments_of(cpu)[-1]
            with contextlib.suppress(OSError, struct.error):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                pages = os.open(f"cpu{cpu}-{number}.pages", flags, dir_fd=at)
                with open(pages, "rb") as file:
                    (until,) = _STAMP.unpack(file.read(_STAMP.size))
        return until

    def _loss(self, cpu: int, until: int | None) -> dict[str, Any]:
        return {
            "kind": "loss",
            "cpu": cpu,
            "t0": self._began,
            "t1": until,
            "n": None,
            "reason": "ring",
        }

    def _remove(self, handle: int) -> None:
        """Remove what is left; a directory that has something else in it stays.

        Some of it may be missing: a recorder was killed here, or somebody removes it.
        """
        with contextlib.suppress(FileNotFoundError):
            with _opened("segments", handle) as at:
                for name in filter(_PIECE.fullmatch, os.listdir(at)):
                    _unlink(name, at)
            os.rmdir("segments", dir_fd=handle)
        with contextlib.suppress(FileNotFoundError):
            with _opened("formats", handle) as at:
                for system in filter(_FORMAT.fullmatch, os.listdir(at)):
                    with _opened(system, at) as below:
                        for name in filter(_FORMAT.fullmatch, os.listdir(below)):
                            _unlink(name, below)
                    os.rmdir(system, dir_fd=at)
            os.rmdir("formats", dir_fd=handle)
        for name in (*_NAMES[2:], _SESSION):
            _unlink(name, handle)
        self.path.rmdir()


@contextlib.contextmanager
def _opened(name: str | Path, at: int | None = None) -> Iterator[int]:
    """A directory; a link to one is refused, as anything may be behind it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, dir_fd=at)
    try:
        yield handle
    finally:
        os.close(handle)


def _is_ours(handle: int) -> bool:
    """Whether only this user can have written there."""
    about = os.fstat(handle)
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _is_ring(session: object, node: str) -> bool:
    """Whether that is the session.json of a recording of ``node``, with --ring."""
    if not isinstance(session, dict):
        return False
    config = session.get("config")
    return (
        (session.get("format"), session.get("instance")) == (FORMAT, INSTANCE)
        and session.get("node") == node
        and isinstance(session.get("began"), int)
        and isinstance(session.get("ended", ""), (int, type(None)))
        and isinstance(config, dict)
        and config.get("ring") is True
    )


def _size(handle: int) -> int:
    """The bytes of all files in a directory and below."""
    total = 0
    with os.scandir(handle) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                with _opened(entry.name, handle) as below:
                    total += _size(below)
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _segments(handle: int) -> dict[int, list[tuple[int, int]]]:
    """By CPU (number, when it was written) of each segment, the oldest last."""
    segments: dict[int, list[tuple[int, int]]] = {}
    with contextlib.suppress(FileNotFoundError), _opened("segments", handle) as at:
        for match in filter(None, map(_PAGES.fullmatch, os.listdir(at))):
            with contextlib.suppress(FileNotFoundError):
                about = os.stat(match[0], dir_fd=at, follow_symlinks=False)
                entry = (int(match[2]), about.st_mtime_ns)
                segments.setdefault(int(match[1]), []).append(entry)
    for numbers in segments.values():
        numbers.sort(reverse=True)
    return segments


def _unlink(name: str, at: int) -> int:
    """Delete a file, if it exists; how many bytes it had."""
    try:
        size = os.stat(name, dir_fd=at, follow_symlinks=False).st_size
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        return 0
    return size


def _note(handle: int, fact: dict[str, Any]) -> int:
    """Append to facts.jsonl, where a killed recorder may have left a torn line.

    The number of bytes.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    facts = os.open("facts.jsonl", flags, dir_fd=handle)
    try:
        size = os.fstat(facts).st_size
        if size and os.pread(facts, 1, size - 1) != b"\n":
            tail = os.pread(facts, _TAIL, max(0, size - _TAIL))
            os.ftruncate(facts, size - len(tail) + tail.rfind(b"\n") + 1)
        return files.write_all(facts, json.dumps(fact).encode() + b"\n")
    finally:
        os.close(facts)
