# SPDX-License-Identifier: GPL-2.0-or-later
"""What a function executes while events are off, held path by path against its base.

Both versions are walked at once from their entries.  A stretch of code without a choice
is compared as a bag of instructions; where both versions then choose by the same
condition, the walk goes on in both directions.  Where that holds to the end, every path
of the patched function has one of the base, and the difference of each stretch is known
exactly.  Where it does not, the walk says so, and only what can be reached is
compared.

A disabled static branch of a new event is a NOP here: what lies behind is not walked.
A function that only one side has is walked as if it were inlined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .code import Code, Instruction
from .elf import Function

_DEPTH = 6
# Further choices of one side that are skipped to find where both sides meet again.
_EXTRA = 3
_EXTRAS = 12
_LIMIT = 3000
_ENDS = ("return", "tail", "indirect", "stop")
_MIRRORED = {"b": "be", "be": "b", "l": "le", "le": "l"}

State = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Side:
    """A version of the code: ``off`` names the events whose branches are NOPs, and
    ``inlines`` tells which functions only this side has."""

    code: Code
    off: frozenset[str]
    inlines: Callable[[Function], bool]


@dataclass(frozen=True)
class Stretch:
    """Code without a choice, and the choice it ends with.

    ``nops`` are the addresses of the disabled sites that it crosses.
    """

    instructions: tuple[Instruction, ...]
    nops: tuple[int, ...]
    end: str
    condition: str = ""
    setter: str = ""
    next: tuple[State, ...] = ()

    @property
    def forms(self) -> Counter[str]:
        """What it executes, the NOPs of disabled sites left out."""
        return Counter(
            one.form for one in self.instructions if one.address not in self.nops
        )


class Walk:
    """Stretches of one side, by where they begin."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._known: dict[State, Stretch] = {}

    def at(self, state: State) -> Stretch:
        """The stretch that begins at ``state``: an address, and where to return to."""
        if state not in self._known:
            self._known[state] = self._walk(state)
        return self._known[state]

    def reach(self, start: State) -> dict[State, Stretch]:
        """All stretches that can be come to from ``start``."""
        found: dict[State, Stretch] = {}
        waiting = [start]
        while waiting and len(found) < _LIMIT:
            state = waiting.pop()
            if state not in found:
                found[state] = self.at(state)
                waiting.extend(found[state].next)
        return found

    def _walk(self, state: State) -> Stretch:
        at, stack = state
        passed: list[Instruction] = []
        nops: list[int] = []
        seen: set[tuple[int, tuple[int, ...]]] = set()
        setter = ""
        while (at, stack) not in seen:
            seen.add((at, stack))
            one = self.side.code.at(at)
            if one is None:
                return Stretch(tuple(passed), tuple(nops), "stop")
            passed.append(one)
            if one.kind == "key":
                branch = self.side.code.branches[at]
                if branch.event not in self.side.off:
                    states = ((one.end, stack), (branch.target, stack))
                    end = f"{branch.key}+{branch.offset}"
                    return Stretch(tuple(passed), tuple(nops), "key", end, "", states)
                nops.append(at)
                at = one.end
            elif one.kind == "jump" and one.target is not None:
                at = one.target
            elif one.kind == "branch" and one.target is not None:
                taken, other = (one.target, stack), (one.end, stack)
                states = (taken, other) if one.holds else (other, taken)
                decided = setter if one.flagged else ""
                return Stretch(
                    tuple(passed), tuple(nops), "branch", one.condition, decided, states
                )
            elif one.kind in ("call", "tail") and (inside := self._inlined(one, stack)):
                at, stack = inside
            elif one.kind == "return" and stack:
                at, stack = stack[-1], stack[:-1]
            elif one.kind in _ENDS:
                named = one.callee if one.kind == "tail" else ""
                return Stretch(tuple(passed), tuple(nops), one.kind, named)
            else:
                at = one.end
            if one.flags and one.kind == "plain":
                setter = one.shape
        return Stretch(tuple(passed), tuple(nops), "loop")

    def _inlined(self, one: Instruction, stack: tuple[int, ...]) -> State | None:
        if one.target is None or len(stack) >= _DEPTH:
            return None
        function = self.side.code.binary.function_at(one.target)
        if function is None or not self.side.inlines(function):
            return None
        return one.target, (*stack, one.end) if one.kind == "call" else stack


@dataclass(frozen=True)
class Difference:
    """A stretch that differs; ``added`` and ``removed`` are instructions as text.

    ``net`` counts instructions, the NOPs of sites left out.
    """

    base: int
    patched: int
    added: tuple[Instruction, ...]
    removed: tuple[Instruction, ...]
    net: int
    looped: bool


@dataclass(frozen=True)
class PathsCompared:
    """Two versions of a function while the new events are off.

    ``proven``: every path has its counterpart.  ``most`` and ``least`` are then the
    instructions that a path has more than its counterpart, without the NOPs of sites;
    ``work`` is ``most`` without unconditional jumps, which are a matter of layout.
    ``nops`` is the most of these that one path crosses, once each: a loop comes by
    again.  ``unmatched`` are places where the versions choose differently.
    """

    proven: bool
    most: int
    work: int
    least: int
    nops: int
    sites: tuple[int, ...]
    differences: tuple[Difference, ...]
    unmatched: tuple[tuple[int, int], ...]
    added: tuple[Instruction, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class _Node:
    """Where both sides are; a carry is what one side has executed alone so far."""

    base: State
    patched: State
    base_carry: tuple[Instruction, ...] = ()
    patched_carry: tuple[Instruction, ...] = ()
    nops: tuple[int, ...] = ()
    skipped: int = 0


@dataclass
class _Found:
    node: _Node
    net: int
    nops: tuple[int, ...]
    added: Counter[str]
    removed: Counter[str]
    here: tuple[Instruction, ...]
    gone: tuple[Instruction, ...]
    next: tuple[_Node, ...]
    matched: bool


class Comparer:
    """Walks two versions of a function side by side."""

    def __init__(self, base: Side, patched: Side) -> None:
        self._base = Walk(base)
        self._patched = Walk(patched)
        self._met: dict[tuple[State, State, int], bool] = {}

    def compare(self, base: int, patched: int) -> PathsCompared:
        """Hold the function at ``patched`` against the one at ``base``."""
        start = _Node((base, ()), (patched, ()))
        found: dict[_Node, _Found] = {}
        waiting = [start]
        while waiting and len(found) < _LIMIT:
            node = waiting.pop()
            if node not in found:
                found[node] = self._match(node)
                waiting.extend(found[node].next)
        whole = not waiting
        looped = _in_cycles(found)
        differences = tuple(
            Difference(
                node.base[0],
                node.patched[0],
                _those(one.here, one.added),
                _those(one.gone, one.removed),
                one.net,
                node in looped,
            )
            for node, one in found.items()
            if one.added or one.removed
        )
        unmatched = tuple(
            (node.base[0], node.patched[0])
            for node, one in found.items()
            if not one.matched
        )
        added, removed = self._overall(start)
        return PathsCompared(
            proven=whole and not unmatched,
            most=_extreme(found, start, lambda one: one.net),
            work=_extreme(found, start, _work),
            least=-_extreme(found, start, lambda one: -one.net),
            nops=_most_sites(found, start),
            sites=tuple(sorted({at for one in found.values() for at in one.nops})),
            differences=differences,
            unmatched=unmatched,
            added=added,
            removed=removed,
        )

    def _overall(self, start: _Node) -> tuple[tuple[Instruction, ...], tuple[str, ...]]:
        """What can be reached on one side and not on the other, each place once."""
        base = _places(self._base.reach(start.base))
        patched = _places(self._patched.reach(start.patched))
        ours = Counter(one.form for one in patched.values())
        theirs = Counter(one.form for one in base.values())
        return (
            _those(tuple(patched.values()), ours - theirs),
            tuple(sorted((theirs - ours).elements())),
        )

    def _match(self, node: _Node) -> _Found:
        one, other = self._base.at(node.base), self._patched.at(node.patched)
        for strict in (True, False):
            pairs = _pairs(one, other, strict)
            if pairs is not None and (
                strict or all(self._meets(*pair, 1) for pair in pairs)
            ):
                nodes = tuple(_Node(*pair) for pair in pairs)
                return _found(node, one, other, nodes, True)
            if strict:
                nodes = self._skip(node, one, other)
                if nodes:
                    return _Found(
                        node, 0, (), Counter(), Counter(), (), (), nodes, True
                    )
        return _found(node, one, other, (), False)

    def _skip(self, node: _Node, one: Stretch, other: Stretch) -> tuple[_Node, ...]:
        """Take one side's choice for an additional one, if then both meet again."""
        if node.skipped >= _EXTRAS:
            return ()
        skipped = node.skipped + 1
        if len(other.next) == 2 and all(
            self._meets(node.base, state, _EXTRA) for state in other.next
        ):
            carry = (*node.patched_carry, *_without(other))
            nops = (*node.nops, *other.nops)
            return tuple(
                _Node(node.base, state, node.base_carry, carry, nops, skipped)
                for state in other.next
            )
        if len(one.next) == 2 and all(
            self._meets(state, node.patched, _EXTRA) for state in one.next
        ):
            carry = (*node.base_carry, *_without(one))
            return tuple(
                _Node(
                    state, node.patched, carry, node.patched_carry, node.nops, skipped
                )
                for state in one.next
            )
        return ()

    def _meets(self, base: State, patched: State, more: int) -> bool:
        """Whether both sides choose alike, after ``more`` choices of one at most."""
        key = (base, patched, more)
        if key not in self._met:
            self._met[key] = self._try_to_meet(base, patched, more)
        return self._met[key]

    def _try_to_meet(self, base: State, patched: State, more: int) -> bool:
        one, other = self._base.at(base), self._patched.at(patched)
        if _pairs(one, other, True) is not None:
            return True
        if not more:
            return False
        return (
            len(other.next) == 2
            and all(self._meets(base, state, more - 1) for state in other.next)
        ) or (
            len(one.next) == 2
            and all(self._meets(state, patched, more - 1) for state in one.next)
        )


def _pairs(
    one: Stretch, other: Stretch, strict: bool
) -> tuple[tuple[State, State], ...] | None:
    """The states that both choices lead to; None if they are not the same choice."""
    if one.end != other.end:
        return None
    if one.end != "branch" or one.condition == other.condition:
        if one.condition != other.condition:
            return None
        if strict and one.setter != other.setter:
            return None
        return tuple(zip(one.next, other.next, strict=True))
    if not strict and _MIRRORED.get(one.condition) == other.condition:
        # x < y is not (y <= x): the compiler has swapped what it compares.
        return (one.next[0], other.next[1]), (one.next[1], other.next[0])
    return None


def _without(stretch: Stretch) -> tuple[Instruction, ...]:
    return tuple(one for one in stretch.instructions if one.address not in stretch.nops)


def _found(
    node: _Node,
    one: Stretch,
    other: Stretch,
    nodes: tuple[_Node, ...],
    matched: bool,
) -> _Found:
    gone = (*node.base_carry, *_without(one))
    here = (*node.patched_carry, *_without(other))
    ours, theirs = (Counter(item.form for item in part) for part in (here, gone))
    return _Found(
        node,
        len(here) - len(gone),
        (*node.nops, *other.nops),
        ours - theirs,
        theirs - ours,
        here,
        gone,
        nodes,
        matched,
    )


def _work(one: _Found) -> int:
    jumps = sum(item.kind == "jump" for item in one.here)
    return one.net - jumps + sum(item.kind == "jump" for item in one.gone)


def _those(
    instructions: tuple[Instruction, ...], forms: Counter[str]
) -> tuple[Instruction, ...]:
    """As many of ``instructions`` of each form as ``forms`` counts, the last ones."""
    left = Counter(forms)
    chosen = []
    for one in reversed(instructions):
        if left[one.form] > 0:
            left[one.form] -= 1
            chosen.append(one)
    return tuple(reversed(chosen))


def _places(stretches: dict[State, Stretch]) -> dict[int, Instruction]:
    return {
        one.address: one
        for stretch in stretches.values()
        for one in stretch.instructions
        if one.address not in stretch.nops
    }


def _extreme(
    found: dict[_Node, _Found], start: _Node, cost: Callable[[_Found], int]
) -> int:
    """The dearest path from ``start`` that comes to no place twice."""
    best: dict[_Node, int] = {}
    for node in _postorder(found, start):
        following = [best[after] for after in found[node].next if after in best]
        best[node] = cost(found[node]) + max(following, default=0)
    return best[start]


def _most_sites(found: dict[_Node, _Found], start: _Node) -> int:
    """The most different sites that a path from ``start`` crosses."""
    order = list(_postorder(found, start))
    crossed = {node: set[frozenset[int]]() for node in order}
    # Until nothing changes: what follows a loop is found along the edge back only.
    changed = True
    while changed:
        changed = False
        for node in order:
            own = frozenset(found[node].nops)
            sets = {own} | {
                own | sites
                for after in found[node].next
                for sites in crossed.get(after, ())
            }
            most = {one for one in sets if not any(one < other for other in sets)}
            changed |= most != crossed[node]
            crossed[node] = most
    return max(map(len, crossed[start]))


def _postorder(found: dict[_Node, _Found], start: _Node) -> Iterator[_Node]:
    """Each node after all that it leads to, edges back left out."""
    entered = {start}
    stack = [(start, iter(found[start].next))]
    while stack:
        node, following = stack[-1]
        for after in following:
            if after in found and after not in entered:
                entered.add(after)
                stack.append((after, iter(found[after].next)))
                break
        else:
            yield node
            stack.pop()


def _in_cycles(found: dict[_Node, _Found]) -> set[_Node]:
    """The nodes that can be come to from themselves."""

    def comes_back(node: _Node) -> bool:
        seen: set[_Node] = set()
        waiting = list(found[node].next)
        while waiting:
            after = waiting.pop()
            if after == node:
                return True
            if after in found and after not in seen:
                seen.add(after)
                waiting.extend(found[after].next)
        return False

    return {node for node, one in found.items() if one.net and comes_back(node)}
