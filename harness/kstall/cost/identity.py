# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a function is the same in two builds, but for where the linker put things.

Decided on bytes, because there are thirty thousand functions and decoding all of them
takes minutes: where bytes differ, they have to be addresses of the same thing.
"""

from __future__ import annotations

import re

from .elf import Binary, Function

_RUN = re.compile(rb"[^\0]+")


def same(base: Binary, patched: Binary, before: Function, after: Function) -> bool:
    """Whether both have the same bytes, but for addresses of the same things."""
    if before.size != after.size:
        return False
    ours, theirs = (
        binary.read(function.address, function.size)
        for binary, function in ((base, before), (patched, after))
    )
    if ours == theirs:
        return True
    if len(ours) != len(theirs):
        return False
    number = int.from_bytes(ours, "big") ^ int.from_bytes(theirs, "big")
    explained = 0
    for run in _RUN.finditer(number.to_bytes(len(ours), "big")):
        at = max(run.start(), explained)
        while at < run.end():
            end = _address_field(base, patched, (before, after), (ours, theirs), at)
            if end is None:
                return False
            at = explained = end
    return True


def _address_field(
    base: Binary,
    patched: Binary,
    functions: tuple[Function, Function],
    code: tuple[bytes, bytes],
    at: int,
) -> int | None:
    """The end of a 32-bit address around ``at`` that means the same in both."""
    for start in range(at, max(at - 4, -1), -1):
        values = [
            int.from_bytes(part[start : start + 4], "little", signed=True)
            for part in code
        ]
        if start + 4 > len(code[0]):
            continue
        # Relative to the end of the instruction, which may hold a constant as well.
        for tail in (0, 1, 4, 2):
            places = [
                function.address + start + 4 + tail + value
                for function, value in zip(functions, values, strict=True)
            ]
            if _mean_the_same(base, patched, places[0], places[1]):
                return start + 4
        wide = [value & 0xFFFFFFFFFFFFFFFF for value in values]
        if _mean_the_same(base, patched, wide[0], wide[1]):
            return start + 4
    return None


def _mean_the_same(
    base: Binary, patched: Binary, base_address: int, patched_address: int
) -> bool:
    ours, theirs = base.named(base_address), patched.named(patched_address)
    if ours is None or theirs is None:
        return False
    if ours[0] == theirs[0] and ours[2] == theirs[2] < max(theirs[1], 1):
        return True
    if not (base.known(base_address) and patched.known(patched_address)):
        return False
    return base.label(base_address) == patched.label(patched_address)
