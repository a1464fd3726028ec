# SPDX-License-Identifier: GPL-2.0-or-later
"""The code of one version of a function, as stretches that run while events are off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .code import Code, Instruction
from .elf import Function

_DEPTH = 6
# Stretches that are listed at most.
_REACHED = 30000
_ENDS = ("return", "tail", "indirect", "stop")

State = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class CodeSide:
    """A version of the code: ``off`` names the events whose branches are NOPs, and
    ``inlines`` tells which functions only this side has."""

    code: Code
    off: frozenset[str]
    inlines: Callable[[Function], bool]


@dataclass(frozen=True)
class BasicBlock:
    """Straight-line code, and the choice it ends with.

    ``nops`` are the addresses of the disabled sites that it crosses.
    """

    instructions: tuple[Instruction, ...]
    nops: tuple[int, ...]
    end: str
    condition: str = ""
    setter: str = ""
    next: tuple[State, ...] = ()


class Walk:
    """Stretches of one side, by where they begin."""

    def __init__(self, side: CodeSide) -> None:
        self.side = side
        self._known: dict[State, BasicBlock] = {}
        #: Where walks began that were too long to be finished.
        self.unfinished: set[int] = set()
        #: The functions that were walked as if they were inlined.
        self.entered: set[int] = set()

    def at(self, state: State) -> BasicBlock:
        """The stretch that begins at ``state``: an address, and where to return to."""
        if state not in self._known:
            self._known[state] = self._walk(state)
        return self._known[state]

    def reach(self, start: State) -> dict[State, BasicBlock]:
        """The stretches that can be reached from ``start``; all, or so many that the
        walk is left unfinished."""
        stretches: dict[State, BasicBlock] = {}
        waiting = [start]
        while waiting and len(stretches) < _REACHED:
            state = waiting.pop()
            if state not in stretches:
                stretches[state] = self.at(state)
                waiting.extend(stretches[state].next)
        if waiting:
            self.unfinished.add(start[0])
        return stretches

    def _walk(self, state: State) -> BasicBlock:
        at, stack = state
        passed: list[Instruction] = []
        nops: list[int] = []
        seen: set[State] = set()
        setter = ""
        while (at, stack) not in seen:
            seen.add((at, stack))
            instruction = self.side.code.at(at)
            if instruction is None:
                return BasicBlock(tuple(passed), tuple(nops), "stop")
            passed.append(instruction)
            choice = self._choice(instruction, stack, setter)
            if choice is not None:
                return BasicBlock(tuple(passed), tuple(nops), *choice)
            falls = False
            if instruction.kind == "jump" and instruction.target is not None:
                at = instruction.target
            elif instruction.kind in ("call", "tail") and (
                inside := self._inlined(instruction, stack)
            ):
                at, stack = inside
            elif instruction.kind == "return" and stack:
                at, stack = stack[-1], stack[:-1]
                falls = True
            elif instruction.kind in _ENDS:
                callee = instruction.callee if instruction.kind == "tail" else ""
                return BasicBlock(tuple(passed), tuple(nops), instruction.kind, callee)
            else:
                if instruction.kind == "key":
                    nops.append(at)
                at, falls = instruction.end, True
            if falls and self._is_behind(at):
                return BasicBlock(tuple(passed), tuple(nops), "stop")
            if instruction.flags and instruction.kind == "plain":
                setter = instruction.shape
        return BasicBlock(tuple(passed), tuple(nops), "loop")

    def _choice(
        self, instruction: Instruction, stack: tuple[int, ...], setter: str
    ) -> tuple[str, str, str, tuple[State, ...]] | None:
        """The end of a stretch whose last is ``instruction``, its condition, what set
        the flags, and the states it leads to; None if it leads to one place only."""
        if instruction.kind == "key":
            branch = self.side.code.branches[instruction.address]
            if branch.event in self.side.off:
                return None
            places: tuple[int, ...] = (instruction.end, branch.target)
            end = ("key", f"{branch.key}+{branch.offset}", "")
        elif instruction.kind == "branch" and instruction.target is not None:
            taken, fallthrough = instruction.target, instruction.end
            places = (taken, fallthrough) if instruction.holds else (fallthrough, taken)
            decider = setter if instruction.flagged else ""
            end = ("branch", instruction.condition, decider)
        elif cases := self.side.code.cases(instruction):
            places = cases
            end = ("table", f"{len(cases)} cases", "")
        else:
            return None
        return (*end, tuple((place, stack) for place in places))

    def unseen(self, start: int) -> tuple[Instruction, ...]:
        """The code of the function at ``start`` that no path was seen to reach, without
        that of events; empty if all paths can be followed."""
        stretches = self.reach((start, ())).values()
        function = self.side.code.binary.function_at(start)
        if function is None or all(part.end != "indirect" for part in stretches):
            return ()
        seen = {
            instruction.address
            for stretch in stretches
            for instruction in stretch.instructions
        }
        listing = list(self.side.code.listing(function))
        for instruction in listing:
            branch = self.side.code.branches.get(instruction.address)
            if branch is not None and branch.event in self.side.off:
                seen |= set(self._from(branch.target, seen))
        return tuple(
            instruction
            for instruction in listing
            if instruction.address not in seen
            and instruction.kind not in ("jump", "key")
            and not instruction.padding
        )

    def _from(self, start: int, seen: set[int]) -> Iterator[int]:
        """What is reached from ``start`` before anything that was ``seen``."""
        waiting, known = [start], set(seen)
        while waiting:
            at = waiting.pop()
            if at in known:
                continue
            stretch = self.at((at, ()))
            for instruction in stretch.instructions:
                if instruction.address in known:
                    break
                known.add(instruction.address)
                yield instruction.address
            else:
                waiting.extend(state[0] for state in stretch.next)

    def _is_behind(self, at: int) -> bool:
        """Whether a function ends at ``at``: compilers find out which calls never
        return, and what follows is then another function, or padding."""
        function = self.side.code.binary.function_at(at - 1)
        return (
            function is not None
            and function.size > 0
            and at >= function.address + function.size
        )

    def _inlined(
        self, instruction: Instruction, stack: tuple[int, ...]
    ) -> State | None:
        if instruction.target is None or len(stack) >= _DEPTH:
            return None
        function = self.side.code.binary.function_at(instruction.target)
        if function is None or not self.side.inlines(function):
            return None
        self.entered.add(function.address)
        return instruction.target, (
            *stack,
            instruction.end,
        ) if instruction.kind == "call" else stack
