# SPDX-License-Identifier: GPL-2.0-or-later
"""Machine code as instructions that two builds of one source can be compared by.

The form of an instruction leaves out what a compiler may choose freely: which register
of a size, where in the stack frame, at which address the linker has put what is named.
What the kernel rewrites at run time is taken as it is while nothing is switched on.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import capstone
from capstone import x86_const as x86

from .elf import Binary, Function

Kind = Literal[
    "plain", "call", "jump", "branch", "tail", "indirect", "return", "stop", "key"
]

_JUMP_ENTRY = struct.Struct("<iiq")
_CALL_SITE = struct.Struct("<ii")
# struct bug_entry with CONFIG_DEBUG_BUGVERBOSE, as kconfigs/base.config has it.
_BUG_ENTRY = struct.Struct("<iiiHH")
_WARNING = 1
_NOPS = (b"\x66\x90", b"\x0f\x1f\x44\x00\x00")
_KERNEL = 0xFFFFFFFF80000000
# From objtool's list, those that inlined code calls; what follows them is no path.
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
_REGISTERS = {
    "q": r"r(?:ax|bx|cx|dx|si|di|bp|8|9|1[0-5])",
    "d": r"e(?:ax|bx|cx|dx|si|di|bp)|r(?:8|9|1[0-5])d",
    "w": r"(?:ax|bx|cx|dx|si|di|bp)|r(?:8|9|1[0-5])w",
    "b": r"[abcd][lh]|(?:si|di|bp)l|r(?:8|9|1[0-5])b",
}
_REGISTER = re.compile(
    "|".join(rf"\b(?P<{size}>{names})\b" for size, names in _REGISTERS.items())
)
_ON_STACK = re.compile(r"\[rsp(?: [+-] \w+)?\]")
# An array at a fixed address is indexed by a negative offset, as it looks.
_ADDRESS = re.compile(r"(?:- ?)?\b0x(?P<digits>[0-9a-f]+)\b")
_CONSTANT = re.compile(r"(?<!:)\b(0x[0-9a-f]+|\d+)\b")
_FROM_HERE = re.compile(r"rip (?P<sign>[+-]) (?P<distance>\w+)")
# Condition codes come in pairs of opposites.
_OPPOSITE = {"no": "o", "ae": "b", "ne": "e", "a": "be", "ns": "s", "np": "p"} | {
    "ge": "l",
    "g": "le",
}


@dataclass(frozen=True)
class Instruction:
    """``text`` is for people, ``form`` for comparing; ``shape`` is the form without
    the names of data, and of constants.

    ``condition`` is a branch's, of each two opposites always the same one; ``holds``
    says whether it is the branch's own.  ``target`` is where a jump, a call or a static
    key that is switched on leads.
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
    flags: bool = False
    callee: str = ""

    @property
    def end(self) -> int:
        """The address behind it."""
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
        """The tracepoint that it belongs to, if it is one's."""
        if not self.key.startswith("__tracepoint_"):
            return None
        return self.key.removeprefix("__tracepoint_")


@dataclass(frozen=True)
class CallSite:
    """A static call; ``key`` is the symbol of what is called."""

    address: int
    key: str


class Code:
    """The instructions of a binary, decoded as they are asked for."""

    def __init__(self, binary: Binary) -> None:
        self.binary = binary
        self._decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._decoder.detail = True
        self._known: dict[int, Instruction | None] = {}

    @functools.cached_property
    def branches(self) -> dict[int, StaticBranch]:
        """Static branches by their address."""
        start, data = self.binary.table("__jump_table")
        found = {}
        for number, (code, target, key) in enumerate(_whole(_JUMP_ENTRY, data)):
            at = start + number * _JUMP_ENTRY.size
            where = at + 8 + (key & ~3)
            name, _, offset = self.binary.named(where) or ("", 0, 0)
            one = StaticBranch(at + code, at + 4 + target, name, offset)
            found[one.address] = one
        return found

    @functools.cached_property
    def call_sites(self) -> tuple[CallSite, ...]:
        """Static calls, of which the kernel rewrites the target."""
        start, data = self.binary.table("static_call_sites")
        if not data:
            start, data = self.binary.table(".static_call_sites")
        found = []
        for number, (code, key) in enumerate(_whole(_CALL_SITE, data)):
            at = start + number * _CALL_SITE.size
            name, _, _ = self.binary.named(at + 4 + (key & ~3)) or ("", 0, 0)
            found.append(CallSite(at + code, name))
        return tuple(found)

    @functools.cached_property
    def _warnings(self) -> frozenset[int]:
        """Where a `ud2` is a WARN(), after which the kernel goes on."""
        start, data = self.binary.table("__bug_table")
        return frozenset(
            start + number * _BUG_ENTRY.size + entry[0]
            for number, entry in enumerate(_whole(_BUG_ENTRY, data))
            if entry[4] & _WARNING
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
            one = self.at(at)
            if one is None:
                return
            yield one
            at = one.end

    def is_nop(self, address: int) -> int:
        """The length of the NOP that a disabled static branch is, or 0."""
        for nop in _NOPS:
            if self.binary.read(address, len(nop)) == nop:
                return len(nop)
        return 0

    def same_function(self, one: int, other: int) -> bool:
        """Both addresses are of one function, its cold part included."""
        first, second = self.binary.function_at(one), self.binary.function_at(other)
        if first is None or second is None:
            # A cold part that has no symbol.
            section = self.binary.section_at(other)
            return section is not None and section.code
        return first is second or (
            _whole_name(first.name) == _whole_name(second.name)
            and first.file == second.file
        )

    def _decode(self, address: int) -> Instruction | None:
        raw = self.binary.read(address, 15)
        found = next(self._decoder.disasm(raw, address, 1), None)
        if found is None:
            return None
        kind, target, callee = self._kind(found)
        name = found.mnemonic
        condition, holds = "", True
        if kind == "branch":
            condition = name.removeprefix("j")
            holds = condition not in _OPPOSITE
            condition = _OPPOSITE.get(condition, condition)
        shown = callee or (self._label(target) if target is not None else "")
        text = f"{name} {shown or self._shown(found, self._label)}".strip()
        return Instruction(
            address,
            found.size,
            text,
            self._form(found, kind, callee, self._label),
            _CONSTANT.sub("N", self._form(found, kind, callee, lambda _: "@")),
            kind,
            target,
            condition,
            holds,
            bool(found.eflags),
            callee,
        )

    def _kind(self, found: Any) -> tuple[Kind, int | None, str]:
        address = found.address
        if address in self.branches:
            return "key", self.branches[address].target, ""
        target = None
        if found.operands and found.operands[0].type == x86.X86_OP_IMM:
            target = found.operands[0].imm & 0xFFFFFFFFFFFFFFFF
        if found.group(capstone.CS_GRP_RET):
            return "return", None, ""
        if found.group(capstone.CS_GRP_CALL):
            callee = self._label(target) if target is not None else ""
            kind: Kind = "stop" if callee in _NEVER_RETURN else "call"
            return kind, target, callee
        if found.group(capstone.CS_GRP_JUMP):
            return self._kind_of_jump(found, target)
        if found.id == x86.X86_INS_UD2:
            return ("plain" if address in self._warnings else "stop"), None, ""
        if found.id == x86.X86_INS_INT3:
            return "stop", None, ""
        return "plain", None, ""

    def _kind_of_jump(self, found: Any, target: int | None) -> tuple[Kind, Any, str]:
        if target is None:
            return "indirect", None, ""
        if found.id != x86.X86_INS_JMP:
            return "branch", target, ""
        if self.same_function(found.address, target):
            return "jump", target, ""
        callee = self._label(target)
        if callee == "__x86_return_thunk":
            return "return", None, ""
        return "tail", target, callee

    def _label(self, address: int) -> str:
        return self.binary.label(address)

    def _form(
        self, found: Any, kind: Kind, callee: str, label: Callable[[int], str]
    ) -> str:
        if kind == "branch":
            return "jcc"
        if kind in ("key", "jump"):
            return "jmp" if kind == "jump" else "static branch"
        if callee:
            return f"{found.mnemonic} {callee}"
        text = _ON_STACK.sub("[rsp + N]", self._shown(found, label))
        if text.startswith("rsp, ") and found.mnemonic in ("sub", "add"):
            text = "rsp, N"
        return f"{found.mnemonic} {_REGISTER.sub(_size_of, text)}".strip()

    def _shown(self, found: Any, label: Callable[[int], str]) -> str:
        """The operands, with names for what is at a fixed address."""

        def place(match: re.Match[str]) -> str:
            distance = int(match["distance"], 0)
            if match["sign"] == "-":
                distance = -distance
            return label(found.address + found.size + distance)

        def constant(match: re.Match[str]) -> str:
            value = int(match["digits"], 16)
            if "-" in match[0]:
                value = -value
            value &= 0xFFFFFFFFFFFFFFFF
            # A 32-bit operand holds the low half of an address.
            full = value | 0xFFFFFFFF00000000 if value >= 0x80000000 else value
            if full < _KERNEL or not self.binary.known(full):
                return match[0]
            return ("+ " if match[0].startswith("- ") else "") + label(full)

        return _ADDRESS.sub(constant, _FROM_HERE.sub(place, found.op_str))


def _size_of(match: re.Match[str]) -> str:
    return f"r:{match.lastgroup}"


def _whole_name(name: str) -> str:
    return re.sub(r"\.cold(\.\d+)?$", "", name)


def _whole(shape: struct.Struct, data: bytes) -> Iterator[tuple[int, ...]]:
    return shape.iter_unpack(data[: len(data) // shape.size * shape.size])


def is_clock(callee: str) -> bool:
    """Whether calling it reads a clock."""
    return callee.startswith(_CLOCKS)


def reads_clock(one: Instruction) -> bool:
    """Whether ``one`` reads a clock, or calls what does."""
    return is_clock(one.callee) or one.form.startswith("rdtsc")
