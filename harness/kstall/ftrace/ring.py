# SPDX-License-Identifier: GPL-2.0-or-later
"""Read records from raw pages of ftrace's ring buffer.

The layout of a page and of the entries in it is described by tracefs in
``events/header_page`` and ``events/header_event``, on 64-bit little endian kernels; it
has been the same since Linux 2.6.31, and time stamps of type 31 came with 4.16.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping

from .event import Event, Field, Layout, Malformed, Member

PAGE = 4096
_HEAD = struct.Struct("<QQ")
_WORD = struct.Struct("<I")
# Above the length, the commit word has flags for events lost before this page.
_LENGTH = (1 << 20) - 1
_MISSED, _MISSED_STORED = 1 << 31, 1 << 30
_PADDING, _EXTEND, _STAMP = 29, 30, 31
# An absolute time stamp has 59 bits; the upper ones are those of the page's own.
_STAMPED = (1 << 59) - 1


def records(pages: bytes, cpu: int, layouts: Iterable[Layout]) -> Iterator[Event]:
    """The records in ``pages`` of ``cpu``'s buffer, in the order they were reserved.

    Each is an `Event` without a task's name and without text; ``ts_ns`` is exact.
    Raises `Malformed` on truncated pages, and on a record without a layout.
    """
    for _, event in placed(pages, cpu, layouts):
        yield event


def placed(
    pages: bytes, cpu: int, layouts: Iterable[Layout]
) -> Iterator[tuple[int, Event]]:
    """As `records`, each with the offset in ``pages`` at which it stands."""
    formats = {layout.id: layout for layout in layouts}
    if len(pages) % PAGE:
        raise Malformed(f"cpu{cpu}: {len(pages)} bytes are no whole pages")
    for start in range(0, len(pages), PAGE):
        for at, when, data in _entries(pages[start : start + PAGE], cpu):
            number = int.from_bytes(data[:2], "little")
            layout = formats.get(number)
            if layout is None:
                raise Malformed(
                    f"cpu{cpu}: a record of event {number}, which has no format"
                )
            yield (
                start + at,
                Event(
                    ts_ns=when,
                    cpu=cpu,
                    pid=int.from_bytes(data[4:8], "little", signed=True),
                    comm="",
                    system=layout.system,
                    name=layout.name,
                    fields=members(layout, data),
                    flags=data[2],
                ),
            )


def missed(page: bytes) -> int | None:
    """How many events were lost before this page: 0 if none, None if it does not say.

    The kernel sets a bit in the commit word, and another if it had room to write the
    number behind the page's records.
    """
    _, commit = _HEAD.unpack_from(page)
    if not commit & _MISSED:
        return 0
    at = _HEAD.size + (commit & _LENGTH)
    if commit & _MISSED_STORED and at + 8 <= len(page):
        return int.from_bytes(page[at : at + 8], "little")
    return None


def members(layout: Layout, record: bytes) -> Mapping[str, Member]:
    """The members of ``record``, each as its declared type says.

    Raises `Malformed` if the record is shorter than its layout.
    """
    return {field.name: _member(layout, field, record) for field in layout.fields}


def _entries(page: bytes, cpu: int) -> Iterator[tuple[int, int, bytes]]:
    """(offset, time stamp in ns, record) of each entry that is one."""
    now, commit = _HEAD.unpack_from(page)
    at, end = _HEAD.size, _HEAD.size + (commit & _LENGTH)
    if end > PAGE:
        raise Malformed(f"cpu{cpu}: a page that says it holds {end} bytes")
    while at < end:
        (word,) = _WORD.unpack_from(page, at)
        kind, delta = word & 31, word >> 5
        at += _WORD.size
        # All but a short record have another word: a length, or the rest of a time.
        extra = _WORD.unpack_from(page, at)[0] if not 0 < kind < _PADDING else 0
        if kind == _PADDING:
            if delta == 0:
                return
            # An entry that was reserved and discarded; its length counts itself.
            now, at = now + delta, at + extra
        elif kind == _EXTEND:
            now, at = now + (extra << 27) + delta, at + _WORD.size
        elif kind == _STAMP:
            now, at = (now & ~_STAMPED) | ((extra << 27) + delta), at + _WORD.size
        else:
            now += delta
            size = kind * 4 if kind else extra - _WORD.size
            at += 0 if kind else _WORD.size
            if size < _WORD.size or at + size > end:
                raise Malformed(f"cpu{cpu}: a record that is cut off")
            yield at, now, page[at : at + size]
            at += (size + 3) & ~3


def _member(layout: Layout, field: Field, record: bytes) -> Member:
    if not field.size and field.ctype.endswith("[]"):
        # As ftrace:print has it: all that follows, `char buf[]` up to its end.
        return _array(field, record[field.offset :])
    data = record[field.offset : field.offset + field.size]
    if len(data) < field.size:
        raise Malformed(
            f"{layout.event}: a record without {field.name}: {record.hex()}"
        )
    if field.ctype.startswith(("__data_loc ", "__rel_loc ")):
        word = int.from_bytes(data, "little")
        begin, size = word & 0xFFFF, word >> 16
        if field.ctype.startswith("__rel_loc "):
            begin += field.offset + field.size
        return _array(field, record[begin : begin + size])
    if "[" in field.ctype:
        return _array(field, data)
    return int.from_bytes(data, "little", signed=field.signed)


def _array(field: Field, data: bytes) -> Member:
    """Text up to its NUL, or numbers; single bytes if the format gives no length."""
    if "char" in field.ctype.split("[")[0].split():
        return data.partition(b"\0")[0].decode("utf-8", "replace")
    length = re.search(r"\[(\d+)\]", field.ctype)
    step = len(data) // int(length[1]) if length and int(length[1]) else 1
    return tuple(
        int.from_bytes(data[at : at + step], "little", signed=field.signed)
        for at in range(0, len(data), step)
    )
