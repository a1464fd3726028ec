# SPDX-License-Identifier: GPL-2.0-or-later
"""Functions that only the patched kernel has, and that run while events are off.

They have no counterpart to be compared with.  One that a compared function calls is
walked as a part of it, and one that only code of new events calls does not run.  What
is left is called by pointer: a callback, an operation of a table, an initcall.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from .code import Code, Instruction
from .elf import Binary, Function


def is_test(binary: Binary) -> bool:
    """Whether the binary is of KUnit, and runs only as a test."""
    return binary.section(".kunit_test_suites") is not None


def callbacks(
    code: Code,
    new: Collection[Function],
    entered: Collection[int],
    of_events: Iterable[Instruction],
) -> list[Function]:
    """Those of ``new`` that are neither ``entered`` from compared functions nor called
    by the code ``of_events``, and not by each other."""
    if is_test(code.binary):
        return []
    addresses = {function.address: function for function in new}
    known = set(entered) | set(_called(of_events))
    waiting = [address for address in known if address in addresses]
    while waiting:
        for address in _called(code.listing(addresses[waiting.pop()])):
            if address in addresses and address not in known:
                known.add(address)
                waiting.append(address)
    left = [function for function in new if function.address not in known]
    inner = {
        address
        for function in left
        for address in _called(code.listing(function))
        if address != function.address
    }
    # Global functions of a single object file may be called from any other.
    return [
        function
        for function in left
        if function.address not in inner and (function.file or is_whole(code.binary))
    ]


def is_whole(binary: Binary) -> bool:
    """Whether it is a kernel or a module, and not an object file."""
    return binary.linked or binary.section(".gnu.linkonce.this_module") is not None


def _called(instructions: Iterable[Instruction]) -> Iterator[int]:
    for instruction in instructions:
        if instruction.kind in ("call", "tail") and instruction.target is not None:
            yield instruction.target
