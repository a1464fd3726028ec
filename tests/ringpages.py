# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes what a kernel keeps of its events: records, and the pages they stand in."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from kstall.evidence.records import Layout
from kstall.ftrace import Member
from kstall.ftrace.ring import PAGE


def record(layout: Layout, pid: int, fields: Mapping[str, Member]) -> bytes:
    """A record with ``fields``; strings stand behind its fixed part."""
    end = max(field.offset + field.size for field in layout.fields)
    data = bytearray(end)
    struct.pack_into("<HBBi", data, 0, layout.id, 0, 0, pid)
    for field in layout.fields:
        value = fields[field.name]
        if isinstance(value, tuple):
            step = field.size // len(value)
            written = b"".join(number.to_bytes(step, "little") for number in value)
        elif isinstance(value, int):
            written = (value % (1 << 8 * field.size)).to_bytes(field.size, "little")
        elif "__data_loc" in field.ctype:
            text = value.encode("utf-8", "surrogateescape") + b"\0"
            written = struct.pack("<HH", len(data), len(text))
            data += text
        else:
            written = value.encode().ljust(field.size, b"\0")
        data[field.offset : field.offset + len(written)] = written
    return bytes(data).ljust((len(data) + 3) & ~3, b"\0")


def entry(delta: int, data: bytes) -> bytes:
    """A record as it stands in a page, ``delta`` ns after the one before it."""
    if len(data) <= 28 * 4:
        return struct.pack("<I", delta << 5 | len(data) // 4) + data
    return struct.pack("<II", delta << 5, len(data) + 4) + data


def page(ts_ns: int, entries: Iterable[bytes], flags: int = 0) -> bytes:
    """A page whose time begins at ``ts_ns``."""
    body = b"".join(entries)
    assert len(body) <= PAGE - 16
    head = struct.pack("<QQ", ts_ns, len(body) | flags)
    return (head + body).ljust(PAGE, b"\0")
