# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages of one CPU on disk, in segments that are sealed one after another."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from pathlib import Path
from typing import Any

from . import files
from .errors import NodeError
from .pages import PAGE

LIMIT = 16 << 20
SECONDS = 60
_STAMP = struct.Struct("<Q")


class Segments:
    """The segments of one CPU; at most one is open."""

    def __init__(self, dir: Path, cpu: int, limit: int = LIMIT) -> None:
        self._dir, self._cpu, self._limit = dir, cpu, limit
        self._seq = self._first = 0
        self._handle: int | None = None
        self._path = dir
        self._pages = 0
        self._since = 0.0
        self._span = (0, 0)
        self._hash = hashlib.blake2b(digest_size=16)
        #: Sealed segments that were not deleted: (path, pages, when it was sealed).
        self.sealed: list[tuple[Path, int, int]] = []
        #: The bytes in these.
        self.size = 0

    def write(self, pages: bytes, now: float) -> None:
        """Append whole pages.  Raises `Full`; pages written whole are kept."""
        for at in range(0, len(pages), self._limit):
            self._write(pages[at : at + self._limit], now)

    def _write(self, pages: bytes, now: float) -> None:
        if self._handle is None:
            self._open(now)
        assert self._handle is not None
        try:
            files.write_all(self._handle, pages)
        except OSError as error:
            # Cut off a page that was written in part, so that the rest can be sealed.
            size = os.fstat(self._handle).st_size
            kept = max(0, size - self._pages * PAGE) // PAGE
            os.ftruncate(self._handle, (self._pages + kept) * PAGE)
            self._count(pages[: kept * PAGE])
            raise files.failure(self._path, error) from None
        self._count(pages)

    def _count(self, pages: bytes) -> None:
        if not pages:
            return
        (first,) = _STAMP.unpack_from(pages)
        (last,) = _STAMP.unpack_from(pages, len(pages) - PAGE)
        self._span = (self._span[0] or first, last)
        self._hash.update(pages)
        self._pages += len(pages) // PAGE

    def _open(self, now: float) -> None:
        self._path = self._dir / f"cpu{self._cpu}-{self._seq}.pages"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._handle = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise files.failure(self._path, error) from None
        self._pages, self._since, self._span = 0, now, (0, 0)
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def open(self) -> bool:
        """Whether there are pages that are not sealed."""
        return self._handle is not None

    @property
    def next(self) -> int:
        """The number of the segment after the last sealed one."""
        return self._seq

    def due(self, now: float) -> bool:
        """Whether the open segment is large or old enough to be sealed."""
        if self._handle is None:
            return False
        return self._pages * PAGE >= self._limit or now - self._since >= SECONDS

    def seal(self, stats: dict[str, int]) -> None:
        """Close the open segment for good, and note the counters of its buffer."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        try:
            os.fsync(handle)
        except OSError as error:
            raise files.failure(self._path, error) from None
        finally:
            os.close(handle)
        if not self._pages:
            self._path.unlink()
            return
        about: dict[str, Any] = {
            "cpu": self._cpu,
            "seq": self._seq,
            "first_page": self._first,
            "pages": self._pages,
            "blake2b": self._hash.hexdigest(),
            "overrun": stats.get("overrun"),
            "dropped": stats.get("dropped"),
            "t0": self._span[0],
            "t1": self._span[1],
        }
        files.replace(self._path.with_suffix(".json"), about)
        self.sealed.append((self._path, self._pages, time.monotonic_ns()))
        self.size += self._pages * PAGE
        self._seq += 1
        self._first += self._pages

    def abandon(self) -> None:
        """Close the open segment without sealing it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def oldest(self) -> int:
        """When the oldest sealed segment was sealed; all its records are older."""
        return self.sealed[0][2]

    def drop_oldest(self) -> int:
        """Delete the oldest sealed segment; when it was sealed."""
        path, count, until = self.sealed.pop(0)
        self.size -= count * PAGE
        for file in (path.with_suffix(".json"), path):
            try:
                file.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise NodeError(f"{file}: {error.strerror}") from None
        return until
