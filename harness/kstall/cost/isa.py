# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of reading machine code that depends on the architecture.

An `Isa` interprets capstone's instructions; what they mean in a kernel, such as which
function a jump's target is in, `code` finds in the binary.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import capstone
from capstone import arm64_const as a64
from capstone import x86_const as x86

from ..base import Architecture, arch

#: The effect of an instruction on control flow, as far as it alone shows.
Flow = Literal["plain", "call", "jump", "branch", "indirect", "return", "trap", "stop"]
#: Names what is at an address.
Label = Callable[[int], str]
#: Whether an address is one that the binary has a name for.
Known = Callable[[int], bool]

#: How instructions that read a clock begin, as forms.
CLOCKS = ("rdtsc", r"mrs r:x, cnt[vp]ct")
_MASK = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Step:
    """An instruction by itself: ``target`` is where it leads, if it says so.

    ``condition`` is a branch's, of each two opposites always the same one, as x86 calls
    it; ``holds`` says whether it is the branch's own, and ``flagged`` whether flags
    decide.  ``table`` is where an indirect jump takes one of several addresses from.
    """

    flow: Flow
    target: int | None = None
    condition: str = ""
    holds: bool = True
    flagged: bool = True
    table: int | None = None


class Isa(Protocol):
    """An instruction set: ``nops`` are what a disabled static branch is, ``longest`` an
    instruction's bytes at most, ``bug`` an entry of the table of BUG() and WARN() with
    its flags last, ``alternative`` one of code that is replaced at boot, of which the
    last but one says how many bytes."""

    nops: tuple[bytes, ...]
    longest: int
    bug: struct.Struct
    alternative: struct.Struct

    def decoder(self) -> Any:
        """A disassembler that gives details."""

    def step(self, insn: Any) -> Step:
        """The effect of ``insn`` on control flow."""

    def sets_flags(self, insn: Any) -> bool:
        """Whether a later branch may depend on the flags that it sets."""

    def is_nop(self, insn: Any) -> bool:
        """Whether it does nothing, whatever its length."""

    def shown(
        self,
        insn: Any,
        label: Label,
        known: Known,
        before: Callable[[], Iterator[Any]],
    ) -> str:
        """The operands, with names for what is at a fixed address; ``before`` yields
        the preceding instructions of the function, the nearest first."""

    def form(self, mnemonic: str, shown: str) -> str:
        """Operands without what a compiler may choose freely."""


def of(whose: Architecture) -> Isa:
    """The instruction set of an architecture."""
    isa: Isa = _A64() if whose is arch.ARM64 else _X86()
    return isa


# -- x86-64 ---------------------------------------------------------------------------


class _X86:
    nops: tuple[bytes, ...] = (b"\x66\x90", b"\x0f\x1f\x44\x00\x00")
    longest = 15
    # struct bug_entry with CONFIG_DEBUG_BUGVERBOSE, as kconfigs/base.config has it.
    bug = struct.Struct("<iiiHH")
    alternative = struct.Struct("<iiIBB")
    _kernel = 0xFFFFFFFF80000000
    _names: ClassVar = {
        "q": r"r(?:ax|bx|cx|dx|si|di|bp|8|9|1[0-5])",
        "d": r"e(?:ax|bx|cx|dx|si|di|bp)|r(?:8|9|1[0-5])d",
        "w": r"(?:ax|bx|cx|dx|si|di|bp)|r(?:8|9|1[0-5])w",
        "b": r"[abcd][lh]|(?:si|di|bp)l|r(?:8|9|1[0-5])b",
    }
    _register = re.compile(
        "|".join(rf"\b(?P<{size}>{names})\b" for size, names in _names.items())
    )
    _on_stack = re.compile(r"\[rsp(?: [+-] \w+)?\]")
    # An array at a fixed address looks as if indexed by a negative offset.
    _address = re.compile(r"(?:- ?)?\b0x(?P<digits>[0-9a-f]+)\b")
    _from_here = re.compile(r"rip (?P<sign>[+-]) (?P<distance>\w+)")
    # Condition codes come in pairs of opposites.
    _opposite: ClassVar = {
        "no": "o",
        "ae": "b",
        "ne": "e",
        "a": "be",
        "ns": "s",
        "np": "p",
    } | {
        "ge": "l",
        "g": "le",
    }

    def decoder(self) -> Any:
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        decoder.detail = True
        return decoder

    def step(self, insn: Any) -> Step:
        target = None
        if insn.operands and insn.operands[0].type == x86.X86_OP_IMM:
            target = insn.operands[0].imm & _MASK
        if insn.group(capstone.CS_GRP_RET):
            return Step("return")
        if insn.group(capstone.CS_GRP_CALL):
            return Step("call", target)
        if insn.group(capstone.CS_GRP_JUMP):
            if target is None:
                return Step("indirect", table=self._table(insn.operands[0]))
            if insn.id == x86.X86_INS_JMP:
                return Step("jump", target)
            condition = insn.mnemonic.removeprefix("j")
            holds = condition not in self._opposite
            condition = self._opposite.get(condition, condition)
            return Step("branch", target, condition, holds)
        if insn.id == x86.X86_INS_UD2:
            return Step("trap")
        return Step("stop" if insn.id == x86.X86_INS_INT3 else "plain")

    def _table(self, operand: Any) -> int | None:
        """The table of addresses that a jump takes its target from, as of a switch."""
        if operand.type != x86.X86_OP_MEM:
            return None
        place = operand.mem
        if place.base or not place.index or place.scale != 8:
            return None
        return int(place.disp & _MASK)

    def sets_flags(self, insn: Any) -> bool:
        return bool(insn.eflags)

    def is_nop(self, insn: Any) -> bool:
        return bool(insn.id == x86.X86_INS_NOP)

    def shown(
        self,
        insn: Any,
        label: Label,
        known: Known,
        before: Callable[[], Iterator[Any]],
    ) -> str:
        def place(match: re.Match[str]) -> str:
            distance = int(match["distance"], 0)
            if match["sign"] == "-":
                distance = -distance
            return label(insn.address + insn.size + distance)

        def constant(match: re.Match[str]) -> str:
            value = int(match["digits"], 16)
            if "-" in match[0]:
                value = -value
            value &= _MASK
            # A 32-bit operand holds the low half of an address.
            full = value | 0xFFFFFFFF00000000 if value >= 0x80000000 else value
            if full < self._kernel or not known(full):
                return match[0]
            return ("+ " if match[0].startswith("- ") else "") + label(full)

        return self._address.sub(constant, self._from_here.sub(place, insn.op_str))

    def form(self, mnemonic: str, shown: str) -> str:
        text = self._on_stack.sub("[rsp + N]", shown)
        if text.startswith("rsp, ") and mnemonic in ("sub", "add"):
            text = "rsp, N"
        return self._register.sub(lambda match: f"r:{match.lastgroup}", text)


# -- AArch64 --------------------------------------------------------------------------


class _A64:
    nops: tuple[bytes, ...] = (b"\x1f\x20\x03\xd5",)
    longest = 4
    # Without a format, which x86 has between the first two.
    bug = struct.Struct("<iiHH")
    alternative = struct.Struct("<iiHBB")
    _register = re.compile(r"\b(?P<size>[xw])(?:[12]?\d|30)\b")
    # The frame pointer points into the frame as well.
    _on_stack = re.compile(r"\[(?:sp|x29)(?:, #-?\w+)?\]")
    _saved = re.compile(r"\[sp, #-?\w+\]!|\[sp\], #-?\w+")
    _number = re.compile(r"#-?(?:0x[0-9a-f]+|\d+)$")
    # By the names that x86 has for them; those of the second table are their opposites.
    _conditions: ClassVar = {
        "eq": "e",
        "lo": "b",
        "cc": "b",
        "mi": "s",
        "vs": "o",
        "ls": "be",
    } | {
        "lt": "l",
        "le": "le",
    }
    _opposite: ClassVar = {
        "ne": "e",
        "hs": "b",
        "cs": "b",
        "pl": "s",
        "vc": "o",
        "hi": "be",
    } | {
        "ge": "l",
        "gt": "le",
    }
    #: How far apart the halves of an address may be: gcc puts them near each other.
    _near = 48
    _compare = ("cmp", "cmn", "tst", "ccmp", "ccmn", "fcmp", "fcmpe")

    def decoder(self) -> Any:
        decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
        decoder.detail = True
        return decoder

    def step(self, insn: Any) -> Step:
        name = insn.mnemonic
        if name == "ret":
            return Step("return")
        last = insn.operands[-1] if insn.operands else None
        target = None
        if last is not None and last.type == a64.ARM64_OP_IMM:
            target = last.imm & _MASK
        if name in ("bl", "blr"):
            return Step("call", target if name == "bl" else None)
        if name == "br":
            return Step("indirect")
        if name == "b":
            return Step("jump", target)
        if name.startswith("b."):
            condition = name[2:]
            both = self._conditions | self._opposite
            return Step(
                "branch", target, both[condition], condition in self._conditions
            )
        if name in ("cbz", "cbnz"):
            size = insn.op_str[0]
            return Step("branch", target, f"zero {size}", name == "cbz", flagged=False)
        if name in ("tbz", "tbnz"):
            bit = insn.operands[1].imm
            return Step("branch", target, f"bit {bit}", name == "tbz", flagged=False)
        if name == "brk":
            return Step("trap")
        return Step("stop" if name in ("udf", "eret", "hlt") else "plain")

    def sets_flags(self, insn: Any) -> bool:
        return bool(insn.update_flags) or insn.mnemonic in self._compare

    def is_nop(self, insn: Any) -> bool:
        return bool(insn.mnemonic == "nop")

    def shown(
        self,
        insn: Any,
        label: Label,
        known: Known,
        before: Callable[[], Iterator[Any]],
    ) -> str:
        text = str(insn.op_str)
        if insn.mnemonic == "adrp":
            # The page is the linker's choice; the instruction that adds the rest shows
            # what it is for.
            return f"{text.partition(',')[0]}, PAGE"
        if insn.mnemonic == "adr":
            return f"{text.partition(',')[0]}, {label(insn.operands[1].imm & _MASK)}"
        base, low = self._low_half(insn)
        if base is None:
            return text
        page = self._page(base, before)
        if page is None or not known(page + low):
            return text
        if insn.mnemonic == "add":
            return self._number.sub(lambda _: label(page + low), text)
        return re.sub(r"\[[^]]*\]", lambda _: f"[{label(page + low)}]", text)

    def _low_half(self, insn: Any) -> tuple[int | None, int]:
        """The register and the offset that make an address, if ``insn`` has them."""
        operands = insn.operands
        if insn.mnemonic == "add" and len(operands) == 3:
            _, base, number = operands
            if base.type == a64.ARM64_OP_REG and number.type == a64.ARM64_OP_IMM:
                return base.reg, number.imm
        for operand in operands:
            if (
                operand.type == a64.ARM64_OP_MEM
                and not operand.mem.index
                and not insn.writeback
            ):
                return operand.mem.base, operand.mem.disp
        return None, 0

    def _page(self, base: int, before: Callable[[], Iterator[Any]]) -> int | None:
        """The page that an earlier adrp put into register ``base``, if still there."""
        for count, insn in enumerate(before()):
            if count == self._near:
                return None
            written = insn.regs_access()[1]
            if base in written:
                if insn.mnemonic == "adrp":
                    return int(insn.operands[1].imm & _MASK)
                return None
        return None

    def form(self, mnemonic: str, shown: str) -> str:
        text = self._saved.sub("[sp, N]!", self._on_stack.sub("[sp, N]", shown))
        if text.startswith("sp, sp, ") and mnemonic in ("sub", "add"):
            text = "sp, sp, N"
        if text.startswith("x29, sp, "):
            text = "x29, sp, N"
        return self._register.sub(lambda match: f"r:{match['size']}", text)
