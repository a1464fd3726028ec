# SPDX-License-Identifier: GPL-2.0-or-later
"""A tracepoint's record as the kernel declares it in its tracefs ``format`` file."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIELD = re.compile(
    r"\tfield:(?P<type>.+?)(?P<name>\w+)(?P<array>\[[^\]]*\])?;"
    r"\toffset:(?P<offset>\d+);\tsize:(?P<size>\d+);(?:\tsigned:(?P<signed>[01]);)?"
)


@dataclass(frozen=True)
class Field:
    """One member: ``ctype`` as declared (``char[16]``), ``offset``, ``size`` bytes."""

    name: str
    ctype: str
    offset: int
    size: int
    signed: bool


@dataclass(frozen=True)
class Hole:
    """``size`` unused bytes at ``offset``, in front of a member of a record."""

    before: str
    offset: int
    size: int


@dataclass(frozen=True)
class Layout:
    """A whole format file.

    ``common`` is the header that all events share (8 bytes), ``fields`` are the
    event's own, both in record order; ``print_fmt`` is the text after "print fmt: ".
    """

    system: str
    name: str
    id: int
    common: tuple[Field, ...]
    fields: tuple[Field, ...]
    print_fmt: str

    @property
    def event(self) -> str:
        """Its name, as ``system:name``."""
        return f"{self.system}:{self.name}"

    def holes(self) -> tuple[Hole, ...]:
        """Padding between members, and between the header and the first member.

        A format file does not show padding after the last member: use pahole.
        """
        ordered = sorted(self.fields, key=lambda field: field.offset)
        end = max((field.offset + field.size for field in self.common), default=0)
        holes = []
        for field in ordered:
            if field.offset > end:
                holes.append(Hole(field.name, end, field.offset - end))
            end = max(end, field.offset + field.size)
        return tuple(holes)


def parse(text: str, system: str) -> Layout:
    """Read a format file; ``system`` is its directory, which the text lacks.

    Raises `ValueError` if it is not one.
    """
    name = re.search(r"^name: (\w+)$", text, re.M)
    number = re.search(r"^ID: (\d+)$", text, re.M)
    fmt = re.search(r"^print fmt: (.*)\Z", text, re.M | re.S)
    if name is None or number is None or fmt is None:
        raise ValueError(f"{system}: not a tracepoint format file: {text[:60]!r}")
    fields = []
    for line in text[: fmt.start()].splitlines():
        if not line.startswith("\tfield:"):
            continue
        match = _FIELD.fullmatch(line)
        if match is None:
            raise ValueError(f"{system}:{name[1]}: cannot read field {line.strip()!r}")
        fields.append(
            Field(
                name=match["name"],
                ctype=match["type"].strip() + (match["array"] or ""),
                offset=int(match["offset"]),
                size=int(match["size"]),
                signed=match["signed"] == "1",
            )
        )
    return Layout(
        system=system,
        name=name[1],
        id=int(number[1]),
        common=tuple(f for f in fields if f.name.startswith("common_")),
        fields=tuple(f for f in fields if not f.name.startswith("common_")),
        print_fmt=fmt[1].rstrip("\n"),
    )
