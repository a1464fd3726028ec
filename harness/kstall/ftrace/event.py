# SPDX-License-Identifier: GPL-2.0-or-later
"""One record of a tracepoint, and the format file that tells how to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstall_guest import layout as formats
from kstall_guest.layout import Field, Layout

from ..base import KstallError

__all__ = ["Event", "Field", "Layout", "Malformed", "Member", "parse_layout"]

#: What a member holds: a number, a string, or the numbers of an array.
Member = int | str | tuple[int, ...]


class Malformed(KstallError):
    """A result file is not in its own format: truncated, or not what it claims."""


def parse_layout(text: str, system: str) -> Layout:
    """Read a format file of ``system``.  Raises `Malformed` if it is not one."""
    try:
        return formats.parse(text, system)
    except ValueError as error:
        raise Malformed(str(error)) from error


@dataclass(frozen=True)
class Event:
    """One record.

    ``ts_ns`` is CLOCK_MONOTONIC (whole microseconds when ftrace printed it), ``pid``
    the thread's id, ``fields`` the event's own members: integers as such, strings
    and symbolic values as text, arrays (only of raw records) as tuples.  ``text`` is
    what ftrace printed after the event's name, if it did; ``flags`` are
    a raw record's common_flags.
    """

    ts_ns: int
    cpu: int
    pid: int
    comm: str
    system: str
    name: str
    fields: Mapping[str, Member]
    text: str = ""
    flags: int = field(default=0, compare=False)

    def number(self, name: str) -> int:
        """The member ``name``; raises `TypeError` if it is no number."""
        value = self.fields[name]
        if not isinstance(value, int):
            raise TypeError(f"{self.name}: {name} is {value!r}, not a number")
        return value
