# SPDX-License-Identifier: GPL-2.0-or-later
"""Structs and prototypes of tracepoints, from the BTF of kernels and modules."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from ..base import KstallError

_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")
_ARRAY = struct.Struct("<III")
_INT_DATA = struct.Struct("<I")
_PARAMETER = struct.Struct("<II")
_INT, _PTR, _ARRAY_KIND, _STRUCT, _UNION, _ENUM, _FWD = range(1, 8)
_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _FUNC, _PROTO, _VAR, _DATASEC = range(8, 16)
_FLOAT, _DECL_TAG, _TYPE_TAG, _ENUM64 = range(16, 20)
_ALIASES = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG)
_SIZED = (_INT, _STRUCT, _UNION, _ENUM, _FLOAT, _ENUM64, _DATASEC)
# Bytes that follow a type: always, and for each of its parts.
_MORE = {
    _INT: (4, 0),
    _ARRAY_KIND: (12, 0),
    _STRUCT: (0, 12),
    _UNION: (0, 12),
    _ENUM: (0, 8),
    _PROTO: (0, 8),
    _VAR: (4, 0),
    _DATASEC: (0, 12),
    _DECL_TAG: (4, 0),
    _ENUM64: (0, 12),
}
_POINTER = 8
# bpf_probe.h's typedef of a tracepoint's probe, whose first argument is the probe's
# private data.
_PROBE = "btf_trace_"
_SIGNED, _BOOL = 1, 4


@dataclass(frozen=True)
class StructMember:
    """``offset`` and ``size`` are in bits; a nameless member is a struct or a union."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Hole:
    """``size`` bytes of padding before the member ``before``, or at the end."""

    before: str
    size: int


@dataclass(frozen=True)
class Layout:
    """A struct or a union; ``size`` is in bytes."""

    name: str
    union: bool
    size: int
    members: tuple[StructMember, ...]

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Whole bytes between members, and behind the last one.

        There is none behind a flexible array: its elements begin where it does.
        """
        return () if self.union else tuple(self._holes())

    def _holes(self) -> Iterator[Hole]:
        end = 0
        for member in self.members:
            if member.offset - end >= 8:
                yield Hole(member.name, (member.offset - end) // 8)
            end = max(end, member.offset + member.size)
        flexible = bool(self.members) and self.members[-1].size == 0
        if self.size * 8 - end >= 8 and not flexible:
            yield Hole("the end", self.size - -(-end // 8))


@dataclass(frozen=True)
class _Type:
    name: str
    kind: int
    number: int
    parts: tuple[tuple[int, int, int], ...] = ()
    bitfields: bool = False


@dataclass(frozen=True)
class Types:
    """All types of a kernel, or of a kernel and one of its modules.

    ``own`` is the index of the first type that is not the base's.
    """

    types: tuple[_Type, ...]
    strings: bytes
    own: int

    def layouts(self) -> Iterator[Layout]:
        """The structs and unions with a name, without those of the base.

        One that only a typedef names has that name.
        """
        own = self.types[self.own :]
        aliases = {entry.number: entry.name for entry in own if entry.kind == _TYPEDEF}
        # Ids begin at 1: 0 is void.
        for number, entry in enumerate(own, self.own + 1):
            name = entry.name or aliases.get(number, "")
            if entry.kind in (_STRUCT, _UNION) and name:
                members = tuple(self._members(entry))
                yield Layout(name, entry.kind == _UNION, entry.number, members)

    def prototypes(self) -> dict[str, tuple[str, ...]]:
        """The arguments of each tracepoint by its symbol, without those of the base.

        As BPF programs get them: without typedefs and qualifiers, numbers by their
        width and sign.
        """
        prototypes = {}
        for entry in self.types[self.own :]:
            if entry.kind == _TYPEDEF and entry.name.startswith(_PROBE):
                probe = self._plain(entry.number)
                proto = self._plain(probe.number) if probe is not None else None
                if proto is not None and proto.kind == _PROTO:
                    arguments = tuple(self._named(kind) for _, kind, _ in proto.parts)
                    prototypes[entry.name.removeprefix(_PROBE)] = arguments[1:]
        return prototypes

    def _plain(self, number: int) -> _Type | None:
        """The type behind typedefs and qualifiers; None is void."""
        while number:
            entry = self.types[number - 1]
            if entry.kind not in _ALIASES:
                return entry
            number = entry.number
        return None

    def _named(self, number: int) -> str:
        entry = self._plain(number)
        if entry is None:
            return "void"
        if entry.kind == _PTR:
            return f"{self._named(entry.number)} *".replace("* *", "**")
        if entry.kind == _ARRAY_KIND:
            element, _, length = entry.parts[0]
            return f"{self._named(element)}[{length}]"
        if entry.kind == _INT:
            encoding = entry.parts[0][0] >> 24
            sign = "s" if encoding & _SIGNED else "u"
            return "bool" if encoding & _BOOL else f"{sign}{entry.number * 8}"
        words = {_UNION: "union", _ENUM: "enum", _ENUM64: "enum", _PROTO: "function"}
        keyword = words.get(entry.kind, "struct")
        if entry.kind == _FWD and entry.bitfields:
            keyword = "union"
        return f"{keyword} {entry.name}".rstrip()

    def _members(self, entry: _Type) -> Iterator[StructMember]:
        for name, kind, place in entry.parts:
            width, offset = 0, place
            if entry.bitfields:
                width, offset = place >> 24, place & 0xFFFFFF
            text = _string(self.strings, name)
            yield StructMember(text, offset, width or self._size(kind) * 8)

    def _size(self, number: int) -> int:
        """The size of a type in bytes; that of a flexible array is 0."""
        count = 1
        for _ in range(64):
            if number == 0:
                return 0
            entry = self.types[number - 1]
            if entry.kind == _PTR:
                return count * _POINTER
            if entry.kind == _ARRAY_KIND:
                number, _, length = entry.parts[0]
                count *= length
            elif entry.kind in _ALIASES:
                number = entry.number
            else:
                return count * entry.number if entry.kind in _SIZED else 0
        return 0


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode(errors="replace")


def read(path: Path, base: Types | None = None) -> Types:
    """The BTF of an ELF file; a module's type ids continue those of ``base``.

    Raises `KstallError` if there is none.
    """
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".BTF")
        if section is None:
            raise KstallError(f"{path} has no BTF")
        return parse(section.data(), base)


def parse(data: bytes, base: Types | None = None) -> Types:
    """`read`, for the bytes of the section."""
    magic, _, _, length, types_at, types_size, strings_at, strings_size = (
        _HEADER.unpack_from(data)
    )
    if magic != 0xEB9F:
        raise KstallError("not BTF, or BTF of the other byte order")
    text = data[length + strings_at : length + strings_at + strings_size]
    strings = base.strings + text if base else text
    raw = data[length + types_at : length + types_at + types_size]
    before: Sequence[_Type] = base.types if base else ()
    return Types((*before, *_types(raw, strings)), strings, len(before))


def _types(raw: bytes, strings: bytes) -> Iterator[_Type]:
    offset = 0
    while offset < len(raw):
        name, info, number = _TYPE.unpack_from(raw, offset)
        offset += _TYPE.size
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        fixed, part_size = _MORE.get(kind, (0, 0))
        parts: tuple[tuple[int, int, int], ...] = ()
        if kind in (_STRUCT, _UNION):
            # In BTF the member's name, its type, its offset.
            parts = tuple(_MEMBER.iter_unpack(raw[offset : offset + part_size * count]))
        elif kind == _ARRAY_KIND:
            parts = (_ARRAY.unpack_from(raw, offset),)
        elif kind == _INT:
            parts = ((*_INT_DATA.unpack_from(raw, offset), 0, 0),)
        elif kind == _PROTO:
            pairs = _PARAMETER.iter_unpack(raw[offset : offset + part_size * count])
            parts = tuple((name, number, 0) for name, number in pairs)
        offset += fixed + part_size * count
        yield _Type(_string(strings, name), kind, number, parts, bool(info >> 31))
