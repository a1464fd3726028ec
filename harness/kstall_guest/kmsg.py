# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel log from one point in time on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kmsg:
    """A reader of /dev/kmsg that begins behind the newest record."""

    handle: int

    def text(self) -> str:
        """All records since then as dmesg prints them, "[seconds] message" a line.

        A line of ours stands for records that were overwritten before they were read.
        """
        lines: list[str] = []
        while True:
            try:
                record = os.read(self.handle, 16384)
            except BlockingIOError:
                return "".join(lines)
            except BrokenPipeError:
                lines.append("[kernel log records were overwritten here]\n")
                continue
            if not record:
                return "".join(lines)
            lines.append(render(record.decode("utf-8", "replace")))


@contextmanager
def opened(path: Path = Path("/dev/kmsg")) -> Iterator[Kmsg]:
    """A reader that sees what is logged from now on."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(handle, 0, os.SEEK_END)
        yield Kmsg(handle)
    finally:
        os.close(handle)


def render(record: str) -> str:
    """One /dev/kmsg record, "prio,seq,us,flags;text" and maybe " KEY=value" lines."""
    prefix, _, rest = record.partition(";")
    stamp = int(prefix.split(",")[2])
    text = rest.splitlines()[0] if rest else ""
    # Line ends within a message are escaped by the kernel.
    text = text.replace("\\x0a", "\n")
    return f"[{stamp // 1_000_000:5d}.{stamp % 1_000_000:06d}] {text}\n"
