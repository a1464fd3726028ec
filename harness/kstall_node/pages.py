# SPDX-License-Identifier: GPL-2.0-or-later
"""A minimal decoder of ring buffer pages, to compare records with an oracle.

`kstall seal` decodes recordings with a decoder of its own; this one is only for the
recorder, which refuses a provider whose oracle disagrees while it records.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple, Union

PAGE = 4096
_HEAD = struct.Struct("<QQ")
_WORD = struct.Struct("<I")
_LENGTH = (1 << 20) - 1
_STAMPED = (1 << 59) - 1
_FIELD = re.compile(
    r"^\tfield:(.+?)(\w+)(\[[^\]]*\])?;\toffset:(\d+);\tsize:(\d+);"
    r"(?:\tsigned:([01]);)?$",
    re.M,
)

Value = Union[int, str]
#: common_flags: in a hard interrupt, a soft one, an NMI.
_INTERRUPT = 0x08 | 0x10 | 0x40


class Member(NamedTuple):
    """The place of a member in a record."""

    offset: int
    size: int
    signed: bool
    loc: bool


class Layout(NamedTuple):
    """The layout of one event's records."""

    event: str
    id: int
    members: dict[str, Member]


class Record(NamedTuple):
    """One record; its members are decoded on use."""

    t: int
    cpu: int
    layout: Layout
    data: bytes

    @property
    def pid(self) -> int:
        """The thread that was running."""
        return int.from_bytes(self.data[4:8], "little", signed=True)

    @property
    def interrupted(self) -> bool:
        """Whether it was in an interrupt, which is not the thread's."""
        return bool(self.data[2] & _INTERRUPT)

    def get(self, name: object) -> Value | None:
        """The value of a member; None if the record has no such member."""
        if name == "common_pid":
            return self.pid
        if name == "common_cpu":
            return self.cpu
        member = self.layout.members.get(str(name))
        if member is None:
            return None
        at, size, signed, loc = member
        piece = self.data[at : at + size]
        if not loc:
            return int.from_bytes(piece, "little", signed=signed)
        word = int.from_bytes(piece, "little")
        text = self.data[word & 0xFFFF : (word & 0xFFFF) + (word >> 16)]
        return text.partition(b"\0")[0].decode("utf-8", "replace")


def layout(text: str, system: str) -> Layout:
    """Read a format file.  Raises `ValueError`."""
    name = re.search(r"^name: (\w+)$", text, re.M)
    number = re.search(r"^ID: (\d+)$", text, re.M)
    if name is None or number is None:
        raise ValueError("not a format file")
    members = {}
    for ctype, field, _, offset, size, signed in _FIELD.findall(text):
        loc = ctype.startswith("__data_loc ")
        members[field] = Member(int(offset), int(size), signed == "1", loc)
    return Layout(f"{system}:{name[1]}", int(number[1]), members)


def missed(page: bytes) -> int:
    """How many records were overwritten before the page, by its own count.

    A page without room for the number behind its records counts as 0.
    """
    _, commit = _HEAD.unpack_from(page)
    at = _HEAD.size + (commit & _LENGTH)
    if commit & 3 << 30 == 3 << 30 and at + 8 <= len(page):
        return int.from_bytes(page[at : at + 8], "little")
    return 0


def used(page: bytes) -> int:
    """How many bytes its records take."""
    _, commit = _HEAD.unpack_from(page)
    return int(commit & _LENGTH)


def records(page: bytes, cpu: int, known: dict[int, Layout]) -> Iterator[Record]:
    """The records of a page, without those of events that are not in ``known``."""
    now, commit = _HEAD.unpack_from(page)
    at, end = _HEAD.size, min(len(page), _HEAD.size + (commit & _LENGTH))
    while at + 4 <= end:
        (word,) = _WORD.unpack_from(page, at)
        kind, delta = word & 31, word >> 5
        at += 4
        more = 0
        if not 0 < kind < 29:
            if at + 4 > end:
                return
            (more,) = _WORD.unpack_from(page, at)
        if kind == 29:
            if delta == 0:
                return
            now, at = now + delta, at + more
        elif kind == 30:
            now, at = now + (more << 27) + delta, at + 4
        elif kind == 31:
            now, at = (now & ~_STAMPED) | ((more << 27) + delta), at + 4
        else:
            now += delta
            size = kind * 4 if kind else more - 4
            at += 0 if kind else 4
            if size < 8 or at + size > end:
                return
            event_layout = known.get(int.from_bytes(page[at : at + 2], "little"))
            if event_layout is not None:
                yield Record(now, cpu, event_layout, page[at : at + size])
            at += (size + 3) & ~3
