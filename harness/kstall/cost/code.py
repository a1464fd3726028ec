# SPDX-License-Identifier: GPL-2.0-or-later
"""Machine code as instructions that two builds of one source can be compared by.

The form of an instruction leaves out what a compiler may choose freely: which register
of a size, where in the stack frame, at which address the linker has put what is named.
What the kernel rewrites at run time is taken as it is while nothing is enabled.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from . import isa
from .elf import Binary, Function
from .isa import Label, Step

Kind = Literal[
    "plain", "call", "jump", "branch", "tail", "indirect", "return", "stop", "key"
]

_JUMP_ENTRY = struct.Struct("<iiq")
_WARNING = 1
# An indirect call with retpolines: the register is the compiler's choice.
_THUNK = re.compile(r"(__x86_indirect\w*_thunk)_r\w+")
# Of objtool's list, those that inlined code calls; what follows them is no path.
_NEVER_RETURN = (
    "__fortify_panic",
    "__kunit_abort",
    "__stack_chk_fail",
    "do_exit",
    "kunit_try_catch_throw",
    "make_task_dead",
    "panic",
    "usercopy_abort",
    "vpanic",
)
_CLOCKS = (
    "__sched_clock",
    "__SCT__pv_sched_clock",
    "get_cycles",
    "getnstimeofday",
    "ktime_get",
    "local_clock",
    "read_tsc",
    "sched_clock",
)
_CLOCK = re.compile("|".join(f"(?:{clock})" for clock in isa.CLOCKS))
_CONSTANT = re.compile(r"(?<!:)\b(0x[0-9a-f]+|\d+)\b")


@dataclass(frozen=True)
class Instruction:
    """``text`` is for people, ``form`` for comparing; ``shape`` is the form without
    the names of data, and of constants.

    ``condition`` is a branch's, of each two opposites always the same one; ``holds``
    says whether it is the branch's own, and ``flagged`` whether flags decide that an
    instruction with ``flags`` has set before.  ``target`` is where a jump, a call or an
    enabled static key leads; ``table`` is where a jump takes its target from, and
    ``padding`` a NOP that aligns what follows.
    """

    address: int
    size: int
    text: str
    form: str
    shape: str
    kind: Kind
    target: int | None = None
    condition: str = ""
    holds: bool = True
    flagged: bool = True
    flags: bool = False
    callee: str = ""
    padding: bool = False
    table: int | None = None

    @property
    def end(self) -> int:
        """The address after it."""
        return self.address + self.size


@dataclass(frozen=True)
class StaticBranch:
    """An entry of the jump table; ``key`` is the symbol that holds the static key."""

    address: int
    target: int
    key: str
    offset: int

    @property
    def event(self) -> str | None:
        """The tracepoint that it belongs to, if any."""
        if not self.key.startswith("__tracepoint_"):
            return None
        return self.key.removeprefix("__tracepoint_")


class Code:
    """The instructions of a binary, decoded when needed."""

    def __init__(self, binary: Binary) -> None:
        self.binary = binary
        self.isa = isa.of(binary.arch)
        self._decoder = self.isa.decoder()
        self._known: dict[int, Instruction | None] = {}

    @functools.cached_property
    def branches(self) -> dict[int, StaticBranch]:
        """Static branches by their address."""
        start, data = self.binary.table("__jump_table")
        branches = {}
        for number, (code, target, key) in enumerate(_entries(_JUMP_ENTRY, data)):
            at = start + number * _JUMP_ENTRY.size
            where = at + 8 + (key & ~3)
            name, _, offset = self.binary.named(where) or ("", 0, 0)
            branch = StaticBranch(at + code, at + 4 + target, name, offset)
            branches[branch.address] = branch
        return branches

    @functools.cached_property
    def _warnings(self) -> frozenset[int]:
        """Where a trap is a WARN(), after which the kernel goes on."""
        start, data = self.binary.table("__bug_table")
        shape = self.isa.bug
        return frozenset(
            start + number * shape.size + entry[0]
            for number, entry in enumerate(_entries(shape, data))
            if entry[-1] & _WARNING
        )

    @functools.cached_property
    def _replaced(self) -> frozenset[int]:
        """The addresses of code for which a processor may get other code at boot."""
        start, data = self.binary.table(".altinstructions")
        shape = self.isa.alternative
        return frozenset(
            at
            for number, entry in enumerate(_entries(shape, data))
            for first in [start + number * shape.size + entry[0]]
            for at in range(first, first + entry[-2])
        )

    def at(self, address: int) -> Instruction | None:
        """The instruction at ``address``; None where there is none."""
        if address not in self._known:
            self._known[address] = self._decode(address)
        return self._known[address]

    def listing(self, function: Function) -> Iterator[Instruction]:
        """All of ``function``, in the order of addresses."""
        at = function.address
        while at < function.address + function.size:
            instruction = self.at(at)
            if instruction is None:
                return
            yield instruction
            at = instruction.end

    def cases(self, jump: Instruction) -> tuple[int, ...]:
        """The places in its function that ``jump`` leads to by its table, in the order
        of the table; empty if none is known."""
        function = self.binary.function_at(jump.address)
        if jump.table is None or function is None:
            return ()
        # A table ends where the next one of the function begins, or something else.
        others = {instruction.table for instruction in self.listing(function)}
        places: list[int] = []
        at = jump.table
        while at == jump.table or at not in others:
            place = int.from_bytes(self.binary.read(at, 8), "little")
            inside = self.binary.function_at(place) is not None
            if not inside or not self.same_function(jump.address, place):
                break
            places.append(place)
            at += 8
        return tuple(places)

    def is_nop(self, address: int) -> int:
        """The length of the NOP that a disabled static branch is, or 0."""
        for nop in self.isa.nops:
            if self.binary.read(address, len(nop)) == nop:
                return len(nop)
        return 0

    def same_function(self, address: int, target: int) -> bool:
        """Both addresses are of one function, its cold part included."""
        first, second = (
            self.binary.function_at(address),
            self.binary.function_at(target),
        )
        if first is None or second is None:
            # A cold part that has no symbol.
            section = self.binary.section_at(target)
            return section is not None and section.code
        if first is second:
            return True
        if _parent_name(first.name) != _parent_name(second.name):
            return False
        # The cold part of a global function is local, so it alone has a file.
        split = (".cold" in first.name) != (".cold" in second.name)
        return first.file == second.file or (split and not (first.file and second.file))

    def _decode(self, address: int) -> Instruction | None:
        insn = self._raw(address)
        if insn is None:
            return None
        step = self.isa.step(insn)
        kind, target, callee = self._kind(address, step)
        name = insn.mnemonic
        shown = callee or (self._label(target) if target is not None else "")
        text = f"{name} {shown or self._shown(insn, self._label)}".strip()
        return Instruction(
            address,
            insn.size,
            text,
            self._form(insn, kind, callee, self._label),
            _CONSTANT.sub("N", self._form(insn, kind, callee, lambda _: "@")),
            kind,
            target,
            step.condition if kind == "branch" else "",
            step.holds if kind == "branch" else True,
            step.flagged,
            self.isa.sets_flags(insn),
            callee,
            kind == "plain" and self.isa.is_nop(insn) and address not in self._replaced,
            step.table,
        )

    def _raw(self, address: int) -> Any:
        """The disassembler's instruction at ``address``; None if there is no code."""
        raw = self.binary.read(address, self.isa.longest)
        return next(self._decoder.disasm(raw, address, 1), None)

    def _before(self, address: int) -> Iterator[Any]:
        """The preceding instructions of the function, where all have one length."""
        function = self.binary.function_at(address)
        step = self.isa.longest
        at = address - step
        while function is not None and at >= function.address:
            insn = self._raw(at)
            if insn is not None:
                yield insn
            at -= step

    def _kind(self, address: int, step: Step) -> tuple[Kind, int | None, str]:
        if address in self.branches:
            return "key", self.branches[address].target, ""
        target = step.target
        if step.flow == "call":
            callee = self._label(target) if target is not None else ""
            return ("stop" if callee in _NEVER_RETURN else "call"), target, callee
        if step.flow == "trap":
            return ("plain" if address in self._warnings else "stop"), None, ""
        if step.flow != "jump":
            return step.flow, target if step.flow == "branch" else None, ""
        assert target is not None
        if self.same_function(address, target):
            return "jump", target, ""
        callee = self._label(target)
        if callee == "__x86_return_thunk":
            return "return", None, ""
        return "tail", target, callee

    def _label(self, address: int) -> str:
        label = self.binary.label(address)
        thunk = _THUNK.fullmatch(label)
        return thunk[1] if thunk else label

    def _form(self, insn: Any, kind: Kind, callee: str, label: Label) -> str:
        if kind == "branch":
            return "jcc"
        if kind == "indirect" and self.isa.step(insn).table is not None:
            return "jmp table"
        if kind in ("key", "jump"):
            return "jmp" if kind == "jump" else "static branch"
        if callee:
            return f"{insn.mnemonic} {callee}"
        text = self.isa.form(insn.mnemonic, self._shown(insn, label))
        return f"{insn.mnemonic} {text}".strip()

    def _shown(self, insn: Any, label: Label) -> str:
        """The operands, with names for what is at a fixed address."""
        return self.isa.shown(
            insn, label, self.binary.known, lambda: self._before(insn.address)
        )


def _parent_name(name: str) -> str:
    return re.sub(r"\.cold(\.\d+)?$", "", name)


def _entries(shape: struct.Struct, data: bytes) -> Iterator[tuple[int, ...]]:
    return shape.iter_unpack(data[: len(data) // shape.size * shape.size])


def is_clock(callee: str) -> bool:
    """Whether calling it reads a clock."""
    return callee.startswith(_CLOCKS)


def reads_clock(instruction: Instruction) -> bool:
    """Whether ``instruction`` reads a clock, or calls what does."""
    return is_clock(instruction.callee) or _CLOCK.match(instruction.form) is not None
