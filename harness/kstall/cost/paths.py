# SPDX-License-Identifier: GPL-2.0-or-later
"""What a function executes while events are off, compared path by path with its base.

Both versions are walked at once from their entries.  A stretch of straight-line code is
compared as a multiset of instructions; where both versions then choose by the same
condition, the walk goes on in both directions.  Where that holds to the end, every path
of the patched function has a counterpart in the base, and the difference of each
stretch is known exactly.  Where it does not, nothing is proven, and only the reachable
instructions are compared.

A disabled static branch of a new event is a NOP here: its target is not walked.
A function that only one side has is walked as if it were inlined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .code import Instruction, reads_clock
from .walk import BasicBlock, CodeSide, State, Walk

# Further choices of one side that are skipped to find where both sides meet again.
_EXTRA = 3
_EXTRAS = 12
# Stretches that are held against each other at most.
_LIMIT = 3000
_MIRRORED = {"b": "be", "be": "b", "l": "le", "le": "l"}


@dataclass(frozen=True)
class Difference:
    """A stretch that differs, by the instructions ``added`` and ``removed``.

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
    instructions that a path has more than its counterpart, without the NOPs of sites
    and those that align code;
    ``work`` is ``most`` without unconditional jumps, which are a matter of layout.
    If a loop has more of them each time round, ``most_loop`` or ``work_loop`` is where,
    and the loop is counted once.
    ``nops`` is the most of these that one path crosses, once each: a loop repeats
    them.  ``unmatched`` are places where the versions choose differently.
    """

    proven: bool
    most: int
    work: int
    least: int
    most_loop: int | None
    work_loop: int | None
    nops: int
    sites: tuple[int, ...]
    differences: tuple[Difference, ...]
    unmatched: tuple[tuple[int, int], ...]
    added: tuple[Instruction, ...]
    clock_reads: tuple[Instruction, ...]


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
class _Match:
    node: _Node
    net: int
    nops: tuple[int, ...]
    added: Counter[str]
    removed: Counter[str]
    patched: tuple[Instruction, ...]
    base: tuple[Instruction, ...]
    next: tuple[_Node, ...]
    matched: bool


class Comparer:
    """Walks two versions of a function side by side."""

    def __init__(self, base: CodeSide, patched: CodeSide) -> None:
        self._base = Walk(base)
        self._patched = Walk(patched)
        self._met: dict[tuple[State, State, int], bool] = {}

    @property
    def unfinished(self) -> set[int]:
        """The addresses of patched functions of which not all was walked."""
        return self._patched.unfinished

    @property
    def entered(self) -> set[int]:
        """The addresses of functions that only the patched side has, and that compared
        ones call."""
        return self._patched.entered

    def compare(self, base: int, patched: int) -> PathsCompared:
        """Compare the function at ``patched`` with the one at ``base``."""
        start = _Node((base, ()), (patched, ()))
        matches: dict[_Node, _Match] = {}
        waiting = [start]
        while waiting and len(matches) < _LIMIT:
            node = waiting.pop()
            if node not in matches:
                matches[node] = self._match(node)
                waiting.extend(matches[node].next)
        complete = not waiting
        looped = _in_cycles(matches)
        differences = tuple(
            Difference(
                node.base[0],
                node.patched[0],
                _those(match.patched, match.added),
                _those(match.base, match.removed),
                match.net,
                node in looped,
            )
            for node, match in matches.items()
            if match.added or match.removed
        )
        unmatched = tuple(
            (node.base[0], node.patched[0])
            for node, match in matches.items()
            if not match.matched
        )
        unseen = self._unseen(start)
        unmatched += tuple((base, part.address) for part in unseen[:1])
        most, most_loop = _longest(matches, start, lambda match: match.net)
        work, work_loop = _longest(matches, start, _work)
        fewer, _ = _longest(matches, start, lambda match: -match.net)
        return PathsCompared(
            proven=complete and not unmatched,
            most=most,
            work=work,
            least=-fewer,
            most_loop=most_loop,
            work_loop=work_loop,
            nops=_most_sites(matches, start),
            sites=tuple(
                sorted({at for match in matches.values() for at in match.nops})
            ),
            differences=differences,
            unmatched=unmatched,
            added=(*self._added(start), *unseen),
            clock_reads=_clock_reads(matches, start, differences),
        )

    def _unseen(self, start: _Node) -> tuple[Instruction, ...]:
        """What is added to code that no path was seen to reach, as behind a jump to an
        address that is computed."""
        base, patched = (
            self._base.unseen(start.base[0]),
            self._patched.unseen(start.patched[0]),
        )
        ours, theirs = (
            Counter(instruction.form for instruction in part)
            for part in (patched, base)
        )
        return _those(patched, ours - theirs)

    def _added(self, start: _Node) -> tuple[Instruction, ...]:
        """What can be reached on the patched side only, each place once."""
        base = _places(self._base.reach(start.base))
        patched = _places(self._patched.reach(start.patched))
        ours = Counter(instruction.form for instruction in patched.values())
        theirs = Counter(instruction.form for instruction in base.values())
        return _those(tuple(patched.values()), ours - theirs)

    def _match(self, node: _Node) -> _Match:
        base, patched = self._base.at(node.base), self._patched.at(node.patched)
        for strict in (True, False):
            pairs = _pairs(base, patched, strict)
            if pairs is not None and (
                strict or all(self._meets(*pair, 1) for pair in pairs)
            ):
                nodes = tuple(_Node(*pair) for pair in dict.fromkeys(pairs))
                return _compared(node, base, patched, nodes, True)
            if strict:
                nodes = self._skip(node, base, patched)
                if nodes:
                    return _Match(
                        node, 0, (), Counter(), Counter(), (), (), nodes, True
                    )
        return _compared(node, base, patched, (), False)

    def _skip(
        self, node: _Node, base: BasicBlock, patched: BasicBlock
    ) -> tuple[_Node, ...]:
        """Treat one side's choice as an additional one, if both then meet again."""
        if node.skipped >= _EXTRAS:
            return ()
        skipped = node.skipped + 1
        if len(patched.next) == 2 and all(
            self._meets(node.base, state, _EXTRA) for state in patched.next
        ):
            carry = (*node.patched_carry, *_without(patched))
            nops = (*node.nops, *patched.nops)
            return tuple(
                _Node(node.base, state, node.base_carry, carry, nops, skipped)
                for state in patched.next
            )
        if len(base.next) == 2 and all(
            self._meets(state, node.patched, _EXTRA) for state in base.next
        ):
            carry = (*node.base_carry, *_without(base))
            return tuple(
                _Node(
                    state, node.patched, carry, node.patched_carry, node.nops, skipped
                )
                for state in base.next
            )
        return ()

    def _meets(self, base: State, patched: State, more: int) -> bool:
        """Whether both sides choose alike, after at most ``more`` choices of one."""
        key = (base, patched, more)
        if key not in self._met:
            self._met[key] = self._try_to_meet(base, patched, more)
        return self._met[key]

    def _try_to_meet(self, base: State, patched: State, more: int) -> bool:
        base_stretch, patched_stretch = self._base.at(base), self._patched.at(patched)
        if _pairs(base_stretch, patched_stretch, True) is not None:
            return True
        if not more:
            return False
        return (
            len(patched_stretch.next) == 2
            and all(
                self._meets(base, state, more - 1) for state in patched_stretch.next
            )
        ) or (
            len(base_stretch.next) == 2
            and all(
                self._meets(state, patched, more - 1) for state in base_stretch.next
            )
        )


def _pairs(
    base: BasicBlock, patched: BasicBlock, strict: bool
) -> tuple[tuple[State, State], ...] | None:
    """The states that both choices lead to; None if they are not the same choice."""
    if base.end != patched.end:
        return None
    if base.end != "branch" or base.condition == patched.condition:
        if base.condition != patched.condition:
            return None
        if strict and base.setter != patched.setter:
            return None
        return tuple(zip(base.next, patched.next, strict=True))
    if not strict and _MIRRORED.get(base.condition) == patched.condition:
        # x < y is not (y <= x): the compiler has swapped what it compares.
        return (base.next[0], patched.next[1]), (base.next[1], patched.next[0])
    return None


def _without(stretch: BasicBlock) -> tuple[Instruction, ...]:
    """The instructions without the NOPs of sites, and those that move with anything."""
    return tuple(
        instruction
        for instruction in stretch.instructions
        if instruction.address not in stretch.nops and not instruction.padding
    )


def _compared(
    node: _Node,
    base: BasicBlock,
    patched: BasicBlock,
    nodes: tuple[_Node, ...],
    matched: bool,
) -> _Match:
    base_instructions = (*node.base_carry, *_without(base))
    patched_instructions = (*node.patched_carry, *_without(patched))
    ours, theirs = (
        Counter(instruction.form for instruction in part)
        for part in (patched_instructions, base_instructions)
    )
    return _Match(
        node,
        len(patched_instructions) - len(base_instructions),
        (*node.nops, *patched.nops),
        ours - theirs,
        theirs - ours,
        patched_instructions,
        base_instructions,
        nodes,
        matched,
    )


def _work(match: _Match) -> int:
    jumps = sum(instruction.kind == "jump" for instruction in match.patched)
    return (
        match.net
        - jumps
        + sum(instruction.kind == "jump" for instruction in match.base)
    )


def _clock_reads(
    matches: dict[_Node, _Match], start: _Node, differences: Sequence[Difference]
) -> tuple[Instruction, ...]:
    """The clock reads that are added, if some path then has more of them.

    Only of these: a path that no processor takes, as it chooses differently each time,
    may well have more calls of a function.
    """

    def more(match: _Match) -> int:
        ours, theirs = (
            sum(map(reads_clock, part)) for part in (match.patched, match.base)
        )
        return ours - theirs

    # What moves out of a loop is more only where the loop is not entered.
    leaves_loop = any(
        reads_clock(instruction)
        for difference in differences
        if difference.looped
        for instruction in difference.removed
    )
    most, loop = _longest(matches, start, more)
    if loop is None and (most <= 0 or leaves_loop):
        return ()
    return tuple(
        instruction
        for difference in differences
        for instruction in difference.added
        if reads_clock(instruction)
    )


def _those(
    instructions: tuple[Instruction, ...], forms: Counter[str]
) -> tuple[Instruction, ...]:
    """As many of ``instructions`` of each form as ``forms`` counts, the last ones."""
    remaining = Counter(forms)
    chosen = []
    for instruction in reversed(instructions):
        if remaining[instruction.form] > 0:
            remaining[instruction.form] -= 1
            chosen.append(instruction)
    return tuple(reversed(chosen))


def _places(stretches: dict[State, BasicBlock]) -> dict[int, Instruction]:
    return {
        instruction.address: instruction
        for stretch in stretches.values()
        for instruction in _without(stretch)
    }


def _longest(
    matches: dict[_Node, _Match], start: _Node, cost: Callable[[_Match], int]
) -> tuple[int, int | None]:
    """The greatest cost of a path from ``start``, and None.

    If a loop costs something each time round, there is no greatest one: then the cost
    with each loop once, and where in that loop the patched side costs most.
    """
    order = list(_postorder(matches, start))
    costs = {node: cost(matches[node]) for node in order}
    following = {
        node: [after for after in matches[node].next if after in costs]
        for node in order
    }
    once: dict[_Node, int] = {}
    for node in order:
        ahead = [once[after] for after in following[node] if after in once]
        once[node] = costs[node] + max(ahead, default=0)
    best = {node: costs[node] for node in order if not following[node]}
    cycle = _lengthen(best, costs, following)
    # What is left never ends: such a path is cut off where it comes by again.
    best |= {node: once[node] for node in order if node not in best}
    cycle = cycle or _lengthen(best, costs, following)
    if not cycle:
        return best[start], None
    return once[start], max(cycle, key=lambda node: costs[node]).patched[0]


def _lengthen(
    best: dict[_Node, int],
    costs: dict[_Node, int],
    following: dict[_Node, list[_Node]],
) -> list[_Node]:
    """Raise the costs in ``best`` to those of the costliest ways on from each node.

    Returns a loop that costs something each time round, at which this stops, or [].
    """
    # A way that goes by no node twice costs at most this, or that again if cut off.
    limit = 2 * sum(own for own in costs.values() if own > 0)
    chosen: dict[_Node, _Node] = {}
    changed = True
    while changed:
        changed = False
        for node, own in costs.items():
            for after in following[node]:
                if after not in best:
                    continue
                longer = own + best[after]
                if node not in best or longer > best[node]:
                    best[node], chosen[node], changed = longer, after, True
            if best.get(node, 0) > limit:
                return _cycle(chosen, node)
    return []


def _cycle(chosen: dict[_Node, _Node], node: _Node) -> list[_Node]:
    """The loop that the ``chosen`` successors of ``node`` lead to."""
    passed: list[_Node] = []
    while node not in passed:
        passed.append(node)
        node = chosen[node]
    return passed[passed.index(node) :]


def _most_sites(matches: dict[_Node, _Match], start: _Node) -> int:
    """The most different sites that a path from ``start`` crosses."""
    order = list(_postorder(matches, start))
    crossed = {node: set[frozenset[int]]() for node in order}
    # Until nothing changes: what follows a loop is found along its back edge only.
    changed = True
    while changed:
        changed = False
        for node in order:
            own = frozenset(matches[node].nops)
            sets = {own} | {
                own | sites
                for after in matches[node].next
                for sites in crossed.get(after, ())
            }
            most = {
                candidate
                for candidate in sets
                if not any(candidate < other for other in sets)
            }
            changed |= most != crossed[node]
            crossed[node] = most
    return max(map(len, crossed[start]))


def _postorder(matches: dict[_Node, _Match], start: _Node) -> Iterator[_Node]:
    """Each node after its successors, back edges left out."""
    entered = {start}
    stack = [(start, iter(matches[start].next))]
    while stack:
        node, following = stack[-1]
        for after in following:
            if after in matches and after not in entered:
                entered.add(after)
                stack.append((after, iter(matches[after].next)))
                break
        else:
            yield node
            stack.pop()


def _in_cycles(matches: dict[_Node, _Match]) -> set[_Node]:
    """The nodes with a difference that are in a cycle."""

    def is_in_cycle(node: _Node) -> bool:
        seen: set[_Node] = set()
        waiting = list(matches[node].next)
        while waiting:
            after = waiting.pop()
            if after == node:
                return True
            if after in matches and after not in seen:
                seen.add(after)
                waiting.extend(matches[after].next)
        return False

    return {
        node
        for node, match in matches.items()
        if (match.added or match.removed) and is_in_cycle(node)
    }
