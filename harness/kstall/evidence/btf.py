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
# What bpf_probe.h names the type of a tracepoint's probe; its first argument is the
# probe's own.
_PROBE = "btf_trace_"
_SIGNED, _BOOL = 1, 4


@dataclass(frozen=True)
class Member:
    """``offset`` and ``size`` are in bits; a nameless member is a struct or a union."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Hole:
    """``size`` bytes of nothing before the member ``before``, or at the end."""

    before: str
    size: int


@dataclass(frozen=True)
class Layout:
    """A struct or a union; ``size`` is in bytes."""

    name: str
    union: bool
    size: int
    members: tuple[Member, ...]

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Whole bytes between members, and behind the last one.

        None are behind an array without a length: what it has begins where it does.
        """
        return () if self.union else tuple(self._holes())

    def _holes(self) -> Iterator[Hole]:
        end = 0
        for one in self.members:
            if one.offset - end >= 8:
                yield Hole(one.name, (one.offset - end) // 8)
            end = max(end, one.offset + one.size)
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
    """All types of a kernel, or of one and one of its modules."""

    types: tuple[_Type, ...]
    strings: bytes
    own: int

    def layouts(self) -> Iterator[Layout]:
        """The structs and unions with a name, without those of the base."""
        for one in self.types[self.own :]:
            if one.kind in (_STRUCT, _UNION) and one.name:
                members = tuple(self._members(one))
                yield Layout(one.name, one.kind == _UNION, one.number, members)

    def prototypes(self) -> dict[str, tuple[str, ...]]:
        """The arguments of each tracepoint by its symbol, without those of the base.

        As BPF programs get them: without typedefs and qualifiers, numbers by their
        width and sign.
        """
        found = {}
        for one in self.types[self.own :]:
            if one.kind == _TYPEDEF and one.name.startswith(_PROBE):
                probe = self._plain(one.number)
                proto = self._plain(probe.number) if probe is not None else None
                if proto is not None and proto.kind == _PROTO:
                    arguments = tuple(self._named(kind) for _, kind, _ in proto.parts)
                    found[one.name.removeprefix(_PROBE)] = arguments[1:]
        return found

    def _plain(self, number: int) -> _Type | None:
        """A type without names for it and qualifiers; None is void."""
        while number:
            one = self.types[number - 1]
            if one.kind not in _ALIASES:
                return one
            number = one.number
        return None

    def _named(self, number: int) -> str:
        one = self._plain(number)
        if one is None:
            return "void"
        if one.kind == _PTR:
            return f"{self._named(one.number)} *".replace("* *", "**")
        if one.kind == _ARRAY_KIND:
            element, _, many = one.parts[0]
            return f"{self._named(element)}[{many}]"
        if one.kind == _INT:
            encoding = one.parts[0][0] >> 24
            sign = "s" if encoding & _SIGNED else "u"
            return "bool" if encoding & _BOOL else f"{sign}{one.number * 8}"
        words = {_UNION: "union", _ENUM: "enum", _ENUM64: "enum", _PROTO: "function"}
        what = words.get(one.kind, "struct")
        if one.kind == _FWD and one.bitfields:
            what = "union"
        return f"{what} {one.name}".rstrip()

    def _members(self, one: _Type) -> Iterator[Member]:
        for name, kind, place in one.parts:
            width, offset = 0, place
            if one.bitfields:
                width, offset = place >> 24, place & 0xFFFFFF
            text = _string(self.strings, name)
            yield Member(text, offset, width or self._size(kind) * 8)

    def _size(self, number: int) -> int:
        """The size of a type in bytes; that of a flexible array is 0."""
        count = 1
        for _ in range(64):
            if number == 0:
                return 0
            one = self.types[number - 1]
            if one.kind == _PTR:
                return count * _POINTER
            if one.kind == _ARRAY_KIND:
                number, _, many = one.parts[0]
                count *= many
            elif one.kind in _ALIASES:
                number = one.number
            else:
                return count * one.number if one.kind in _SIZED else 0
        return 0


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode(errors="replace")


def read(path: Path, base: Types | None = None) -> Types:
    """The BTF of an ELF file; a module's goes on where its kernel's ended.

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
        raise KstallError("not BTF, or not of this machine")
    text = data[length + strings_at : length + strings_at + strings_size]
    strings = base.strings + text if base else text
    raw = data[length + types_at : length + types_at + types_size]
    before: Sequence[_Type] = base.types if base else ()
    return Types((*before, *_types(raw, strings)), strings, len(before))


def _types(raw: bytes, strings: bytes) -> Iterator[_Type]:
    at = 0
    while at < len(raw):
        name, info, number = _TYPE.unpack_from(raw, at)
        at += _TYPE.size
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        fixed, each = _MORE.get(kind, (0, 0))
        parts: tuple[tuple[int, int, int], ...] = ()
        if kind in (_STRUCT, _UNION):
            # In BTF the member's name, its type, its offset.
            parts = tuple(_MEMBER.iter_unpack(raw[at : at + each * count]))
        elif kind == _ARRAY_KIND:
            parts = (_ARRAY.unpack_from(raw, at),)
        elif kind == _INT:
            parts = ((*_INT_DATA.unpack_from(raw, at), 0, 0),)
        elif kind == _PROTO:
            pairs = _PARAMETER.iter_unpack(raw[at : at + each * count])
            parts = tuple((name, number, 0) for name, number in pairs)
        at += fixed + each * count
        yield _Type(_string(strings, name), kind, number, parts, bool(info >> 31))
