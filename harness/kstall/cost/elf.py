# SPDX-License-Identifier: GPL-2.0-or-later
"""Linked kernels and modules under one view: bytes, functions and names by address.

A module is relocatable.  Its sections are laid out here as a loader would, and its
relocations applied, so that code is read the same way from either.
"""

from __future__ import annotations

import bisect
import functools
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from ..base import Architecture, KstallError, arch

_PAGE = 0x1000
# Room for each symbol of another file, so that an offset from it still finds it.
_EXTERNAL = 0x1000
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_FUNC, _OBJECT, _SECTION, _FILE = 2, 1, 3, 4
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1


@dataclass(frozen=True)
class _Shape:
    """Where a relocation puts its value: so many ``bits`` from bit ``low`` on of
    ``width`` bytes, the value ``shift`` bits to the right.

    It may be ``relative`` to its place, and a ``page``'s.  ``split`` is adr's: the low
    two bits stand apart.
    """

    width: int
    relative: bool = False
    bits: int = 64
    low: int = 0
    shift: int = 0
    page: bool = False
    split: bool = False


@dataclass(frozen=True)
class _Kind:
    """An architecture; where its modules are placed here, and the symbols outside:
    both in reach of a branch, or of a signed 32-bit address."""

    arch: Architecture
    modules: int
    outside: int
    relocations: Mapping[int, _Shape]


def _immediate(shift: int) -> _Shape:
    """The low twelve bits of an address, in units of what is loaded or stored."""
    return _Shape(4, bits=12 - shift, low=10, shift=shift)


_KINDS = {
    "x64": _Kind(
        arch.X86_64,
        0xFFFFFFFFA0000000,
        0xFFFFFFFFC0000000,
        {
            1: _Shape(8),
            2: _Shape(4, relative=True, bits=32),
            4: _Shape(4, relative=True, bits=32),
            10: _Shape(4, bits=32),
            11: _Shape(4, bits=32),
            24: _Shape(8, relative=True),
        },
    ),
    "AArch64": _Kind(
        arch.ARM64,
        0xFFFF80007A000000,
        0xFFFF80007C000000,
        {
            257: _Shape(8),
            258: _Shape(4, bits=32),
            260: _Shape(8, relative=True),
            261: _Shape(4, relative=True, bits=32),
            274: _Shape(4, relative=True, bits=21, low=5, split=True),
            275: _Shape(
                4, relative=True, bits=21, low=5, shift=12, page=True, split=True
            ),
            276: _Shape(
                4, relative=True, bits=21, low=5, shift=12, page=True, split=True
            ),
            277: _immediate(0),
            278: _immediate(0),
            279: _Shape(4, relative=True, bits=14, low=5, shift=2),
            280: _Shape(4, relative=True, bits=19, low=5, shift=2),
            282: _Shape(4, relative=True, bits=26, shift=2),
            283: _Shape(4, relative=True, bits=26, shift=2),
            284: _immediate(1),
            285: _immediate(2),
            286: _immediate(3),
            299: _immediate(4),
        },
    ),
}
# Numbers that the compiler gives out in order of appearance.
_NUMBER = re.compile(r"\.\d+$")
# The last are of AArch64: where code begins, and data amid it.
_MARKS = ("__pfx_", "__start_", "__stop_", "__UNIQUE_ID_", ".L", "$x", "$d")


class ElfError(KstallError):
    """A file that cannot be read, or is not ELF of a known architecture."""


@dataclass(frozen=True)
class Section:
    """``data`` is empty where the file has none, as of ``.bss``."""

    name: str
    address: int
    size: int
    data: bytes
    code: bool


@dataclass(frozen=True)
class Function:
    """``file`` is the source file's base name of a static function, else empty."""

    name: str
    file: str
    address: int
    size: int
    section: str

    @property
    def plain(self) -> str:
        """The name as it is in the source."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Binary:
    """A kernel or a module; ``functions`` are sorted by address.

    ``linked``: its addresses are final, as in a kernel but not in a module.
    """

    path: Path
    sections: tuple[Section, ...]
    functions: tuple[Function, ...]
    symbols: Mapping[str, int] = field(repr=False)
    arch: Architecture
    linked: bool
    _starts: tuple[int, ...] = field(repr=False)
    _names: tuple[tuple[str, int, int], ...] = field(repr=False)

    @functools.cached_property
    def _function_starts(self) -> list[int]:
        return [function.address for function in self.functions]

    def section_at(self, address: int) -> Section | None:
        """The section that ``address`` lies in."""
        for section in self.sections:
            if section.address <= address < section.address + section.size:
                return section
        return None

    def known(self, address: int) -> bool:
        """Whether ``address`` is in this file, or in something that it names."""
        symbol = self.named(address)
        inside = symbol is not None and symbol[2] < symbol[1]
        low, high = self._bounds
        return inside or low <= address <= high

    @functools.cached_property
    def _bounds(self) -> tuple[int, int]:
        return (
            min((section.address for section in self.sections), default=0),
            max(
                (section.address + section.size for section in self.sections), default=0
            ),
        )

    def section(self, name: str) -> Section | None:
        """The section called ``name``."""
        return next(
            (section for section in self.sections if section.name == name), None
        )

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at ``address``, or as many as there are."""
        section = self.section_at(address)
        if section is None:
            return b""
        start = address - section.address
        return section.data[start : start + size]

    def function_at(self, address: int) -> Function | None:
        """The function whose code ``address`` is part of."""
        index = bisect.bisect_right(self._function_starts, address) - 1
        # Aliases begin at one address: any whose body reaches this far will do.
        while index >= 0:
            function = self.functions[index]
            if function.address <= address < function.address + max(function.size, 1):
                return function
            if address - function.address > 0x100000:
                break
            index -= 1
        return None

    def named(self, address: int) -> tuple[str, int, int] | None:
        """The nearest symbol at or below: its name, its size, the distance."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        name, start, size = self._names[index]
        return name, size, address - start

    def label(self, address: int) -> str:
        """What is at ``address``, by a label that is the same in another build.

        Numbers that only count are left out, a string is known by its text, and other
        data without a name of its own, such as the tables that the linker puts
        together, by its section.
        """
        symbol = self.named(address)
        if symbol is not None:
            name, size, distance = symbol
            if distance < size or (distance == 0 and self._is_code(address)):
                name = _NUMBER.sub("", name)
                return f"{name}+{distance:#x}" if distance else name
        section = self.section_at(address)
        if section is None:
            return "<address>"
        text = self.read(address, 200).partition(b"\0")[0]
        if text and all(32 <= byte < 127 or byte in b"\n\t\r\1" for byte in text):
            return repr(text.decode())
        if not section.data and symbol is not None:
            return _NUMBER.sub("", symbol[0])
        return f"<{section.name}>"

    def _is_code(self, address: int) -> bool:
        section = self.section_at(address)
        return section is not None and section.code

    def table(self, name: str) -> tuple[int, bytes]:
        """Address and bytes of the table ``name``, wherever the linker has put it."""
        section = self.section(name)
        if section is not None:
            return section.address, section.data
        start = self.symbols.get(f"__start_{name}")
        stop = self.symbols.get(f"__stop_{name}")
        if start is None or stop is None:
            return 0, b""
        return start, self.read(start, stop - start)


def load(path: Path) -> Binary:
    """Read a kernel, a module or an object file; raises `ElfError`."""
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            kind = _KINDS.get(elf.get_machine_arch())
            if kind is None:
                names = " nor ".join(
                    candidate.arch.name for candidate in _KINDS.values()
                )
                raise ElfError(f"{path}: for neither {names}")
            return _read(path, elf, kind)
    except (OSError, ELFError) as error:
        raise ElfError(f"{path}: {error}") from error


@dataclass(frozen=True)
class _Symbol:
    name: str
    kind: int
    bound: int
    section: int
    value: int
    size: int
    file: str


def _read(path: Path, elf: ELFFile, kind: _Kind) -> Binary:
    relocatable = elf["e_type"] == "ET_REL"
    addresses, content = _lay_out(elf, kind.modules if relocatable else None)
    symbols = list(_symbols(elf))
    places = [
        _place(index, symbol, kind.outside, addresses if relocatable else None)
        for index, symbol in enumerate(symbols)
    ]
    if relocatable:
        _relocate(elf, addresses, content, places, kind.relocations)
    headers = list(elf.iter_sections())
    sections = tuple(
        Section(
            headers[index].name,
            address,
            headers[index]["sh_size"],
            bytes(content.get(index, b"")),
            bool(headers[index]["sh_flags"] & 4),
        )
        for index, address in sorted(addresses.items(), key=lambda item: item[1])
    )
    code = {index for index in addresses if headers[index]["sh_flags"] & 4}
    functions = [
        Function(
            symbol.name, symbol.file, place, symbol.size, headers[symbol.section].name
        )
        for symbol, place in zip(symbols, places, strict=True)
        if symbol.kind == _FUNC and symbol.section in code and not _is_mark(symbol.name)
    ]
    names = sorted(_best_names(symbols, places), key=lambda item: item[1])
    return Binary(
        path,
        sections,
        tuple(
            sorted(functions, key=lambda function: (function.address, function.size))
        ),
        {
            symbol.name: place
            for symbol, place in zip(symbols, places, strict=True)
            if symbol.name and symbol.section != _UNDEFINED
        },
        kind.arch,
        not relocatable,
        tuple(start for _, start, _ in names),
        tuple(names),
    )


def _lay_out(
    elf: ELFFile, modules: int | None
) -> tuple[dict[int, int], dict[int, bytearray]]:
    addresses: dict[int, int] = {}
    content: dict[int, bytearray] = {}
    at = modules or 0
    for index, section in enumerate(elf.iter_sections()):
        if not section["sh_flags"] & 2:
            continue
        if modules is not None:
            step = max(section["sh_addralign"], _PAGE)
            at = -(-at // step) * step
            addresses[index] = at
            at += section["sh_size"] + _PAGE
        else:
            addresses[index] = section["sh_addr"]
        if section["sh_type"] != "SHT_NOBITS":
            content[index] = bytearray(section.data())
    return addresses, content


def _symbols(elf: ELFFile) -> Iterator[_Symbol]:
    table = elf.get_section_by_name(".symtab")
    if table is None:
        return
    strings = elf.get_section(table["sh_link"]).data()
    file = ""
    for name, info, _, section, value, size in _SYMBOL.iter_unpack(table.data()):
        text = strings[name : strings.index(b"\0", name)].decode(errors="replace")
        kind, bound = info & 15, info >> 4
        if kind == _FILE:
            file = text.rpartition("/")[2]
        local = file if bound == 0 else ""
        yield _Symbol(text, kind, bound, section, value, size, local)


def _place(
    index: int, symbol: _Symbol, outside: int, addresses: Mapping[int, int] | None
) -> int:
    if addresses is None or symbol.section == _ABSOLUTE:
        return symbol.value
    if symbol.section == _UNDEFINED:
        return outside + index * _EXTERNAL
    return addresses.get(symbol.section, 0) + symbol.value


def _is_mark(name: str) -> bool:
    return not name or name.startswith(_MARKS)


def _best_names(
    symbols: list[_Symbol], places: list[int]
) -> Iterator[tuple[str, int, int]]:
    """One name an address: functions and objects before labels, then by spelling."""
    best: dict[int, tuple[tuple[int, int, str], str, int]] = {}
    for symbol, place in zip(symbols, places, strict=True):
        if symbol.kind in (_SECTION, _FILE) or _is_mark(symbol.name):
            continue
        if symbol.section == _ABSOLUTE:
            continue
        order = (symbol.kind not in (_FUNC, _OBJECT), symbol.bound == 0, symbol.name)
        size = symbol.size if symbol.section != _UNDEFINED else _EXTERNAL
        if place not in best or order < best[place][0]:
            best[place] = (order, symbol.name, size)
    for place, (_, name, size) in best.items():
        yield name, place, size


def _relocate(
    elf: ELFFile,
    addresses: Mapping[int, int],
    content: Mapping[int, bytearray],
    places: list[int],
    relocations: Mapping[int, _Shape],
) -> None:
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_RELA" or section["sh_info"] not in content:
            continue
        target = content[section["sh_info"]]
        base = addresses[section["sh_info"]]
        for offset, info, addend in _RELA.iter_unpack(section.data()):
            shape = relocations.get(info & 0xFFFFFFFF)
            if shape is None:
                continue
            at = base + offset if shape.relative else 0
            value = places[info >> 32] + addend
            if shape.page:
                value, at = value & ~0xFFF, at & ~0xFFF
            _put(target, offset, shape, value - at)


def _put(target: bytearray, offset: int, shape: _Shape, value: int) -> None:
    """Write the bits of ``value`` that ``shape`` has room for, and leave the others."""
    if not shape.relative and shape.low:
        value &= 0xFFF
    value >>= shape.shift
    value &= (1 << shape.bits) - 1
    end = offset + shape.width
    if shape.bits < 8 * shape.width:
        word = int.from_bytes(target[offset:end], "little")
        if shape.split:
            fields = ((value & 3, 2, 29), (value >> 2, shape.bits - 2, shape.low))
        else:
            fields = ((value, shape.bits, shape.low), (0, 0, 0))
        for number, bits, low in fields:
            word &= ~(((1 << bits) - 1) << low)
            word |= number << low
        value = word
    target[offset:end] = value.to_bytes(shape.width, "little")
