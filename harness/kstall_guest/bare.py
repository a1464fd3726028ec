# SPDX-License-Identifier: GPL-2.0-or-later
"""Bare tracepoints: hooks without a record, to which only BPF can attach.

`DECLARE_TRACE` makes no tracefs event, so no format file describes the arguments.  The
job does: their C types in order, and which members behind pointer arguments are to be
read, too.  For bpftrace such a hook is
``rawtracepoint:<name>_tp`` with arg0, arg1, ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import NotRecordable

# A probe's arguments are 64-bit words whose upper part is undefined for a shorter
# type, so each is first cut to its own width.
_SCALARS = {
    "u64": "(uint64)",
    "unsigned long": "(uint64)",
    "s64": "(int64)",
    "long": "(int64)",
    "u32": "(uint64)(uint32)",
    "unsigned int": "(uint64)(uint32)",
    "int": "(int64)(int32)",
    "pid_t": "(int64)(int32)",
    "u8": "(uint64)(uint8)",
    "bool": "(uint64)(uint8)",
}
_POINTER = re.compile(r"struct \w+ \*")
_ENUM = re.compile(r"enum \w+")
_PATH = re.compile(r"(\w+)((?:(?:->|\.)\w+)+)")


@dataclass(frozen=True)
class Bare:
    """One hook: ``args`` are (name, C type) in order, ``reads`` are (name, path).

    A path leads from an argument to an integer member, ``cfs_rq->rq->cpu``.
    """

    event: str
    args: tuple[tuple[str, str], ...]
    reads: tuple[tuple[str, str], ...]

    @property
    def probe(self) -> str:
        """The hook as bpftrace spells it."""
        return f"rawtracepoint:{self.event.partition(':')[2]}_tp"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all values, in the order of `expressions`."""
        return tuple(name for name, _ in (*self.args, *self.reads))

    def expressions(self) -> tuple[str, ...]:
        """bpftrace's expression for each value, 64 bits wide.

        Raises `NotRecordable`.
        """
        expressions = []
        for number, (name, ctype) in enumerate(self.args):
            if _POINTER.fullmatch(ctype):
                expressions.append(f"(uint64)arg{number}")
            elif ctype in _SCALARS or _ENUM.fullmatch(ctype):
                cut = _SCALARS.get(ctype, _SCALARS["unsigned int"])
                expressions.append(f"{cut}arg{number}")
            else:
                raise NotRecordable(
                    f"{self.event}: argument {ctype} {name}: neither a pointer to a "
                    "structure nor an integer nor an enum"
                )
        places = {name: number for number, (name, _) in enumerate(self.args)}
        for name, path in self.reads:
            match = _PATH.fullmatch(path)
            number = places.get(match[1], -1) if match else -1
            if match is None or number < 0 or "*" not in self.args[number][1]:
                raise NotRecordable(
                    f"{self.event}: {name}: {path!r} does not lead from a pointer "
                    "argument to a member"
                )
            pointer = f"(({self.args[number][1]})arg{number})"
            expressions.append(f"(int64){pointer}{match[2]}")
        return tuple(expressions)
