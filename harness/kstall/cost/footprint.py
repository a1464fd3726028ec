# SPDX-License-Identifier: GPL-2.0-or-later
"""What patches change in a kernel's binaries, found in the binaries themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base import cache, sources
from ..build import Kernel
from . import costs, elf, lines, newcode, structs
from .code import Code, Instruction, StaticBranch, reads_clock
from .elf import Binary, Function
from .identity import same
from .paths import Comparer, Difference, PathsCompared
from .walk import CodeSide, Walk

_NUMBER = re.compile(r"\.\d+\b")
# What TRACE_EVENT() makes of a declaration, for tracers to call.
_EVENT = (
    "trace_event_raw_event_",
    "trace_event_get_offsets_",
    "trace_raw_output_",
    "perf_trace_",
    "__bpf_trace_",
    "__traceiter_",
    "__probestub_",
    "__SCT__tp_func_",
)
_LISTED = 40


@dataclass(frozen=True)
class Declaration:
    """What a series declares: ``functions`` by symbol of the tracepoint, and which of
    them are hot."""

    functions: Mapping[str, tuple[str, ...]]
    hot: frozenset[str]

    @property
    def events(self) -> frozenset[str]:
        """Tracepoints, as their symbols name them."""
        return frozenset(self.functions)


def key_of(base: Kernel, patched: Kernel, declaration: Declaration) -> str:
    """Changes with the kernels, what is looked for, and this analysis."""
    return cache.digest(
        sources.digest("kstall.evidence", "kstall.cost"),
        base.key,
        patched.key,
        {event: list(names) for event, names in declaration.functions.items()},
        sorted(declaration.hot),
    )


def obtain(
    base: Kernel, patched: Kernel, declaration: Declaration, cache_dir: Path
) -> tuple[costs.Footprint, bool]:
    """The footprint by `compare`, and whether it was cached."""
    key = key_of(base, patched, declaration)
    path = cache_dir / "footprints" / key
    if (kept := cache.recall(path, costs.Footprint.model_validate)) is not None:
        return kept, True
    footprint = compare(base, patched, declaration)
    cache.retain(path, footprint.model_dump(mode="json"))
    return footprint, False


def compare(base: Kernel, patched: Kernel, declaration: Declaration) -> costs.Footprint:
    """Compare all binaries of ``patched`` with those of ``base``."""
    footprint = costs.Footprint()
    common = []
    for name, ours, theirs in _binaries(base, patched):
        if ours is None or theirs is None:
            side = "patched" if ours is None else "base"
            footprint.limits.append(f"{name} is only in the {side} kernel")
            if theirs is not None and not newcode.is_test(elf.load(theirs)):
                size = theirs.stat().st_size
                whole = costs.NewFunction(binary=name, name="", size=size)
                footprint.new.append(whole)
            continue
        common.append((name, ours, theirs))
        if ours.read_bytes() != theirs.read_bytes():
            add(footprint, binaries(name, ours, theirs, declaration))
    structs.add(footprint, structs.types(common))
    for event in sorted(declaration.events - {site.event for site in footprint.sites}):
        footprint.limits.append(f"no site of {event} in any binary")
    return footprint


def binaries(
    name: str, base: Path, patched: Path, declaration: Declaration
) -> costs.Footprint:
    """`compare` for one kernel, module or object file; no structs."""
    return _Pair(
        name, Code(elf.load(base)), Code(elf.load(patched)), declaration
    ).compare()


def sizes(name: str, base: Binary, patched: Binary) -> Iterator[costs.FunctionSize]:
    """The functions of a binary whose size changed."""
    ours, theirs = _by_key(base), _by_key(patched)
    _rejoin(ours, theirs)
    return _sizes(name, ours, theirs)


def _sizes(
    name: str, ours: Mapping[Key, Function], theirs: Mapping[Key, Function]
) -> Iterator[costs.FunctionSize]:
    for key in sorted({*ours, *theirs}):
        before, after = ours.get(key), theirs.get(key)
        either = after or before
        assert either is not None
        bytes_ = [function.size if function else None for function in (before, after)]
        if bytes_[0] != bytes_[1]:
            yield costs.FunctionSize(
                binary=name,
                section=either.section,
                part=_part(either),
                name=either.name,
                base=bytes_[0],
                patched=bytes_[1],
            )


def add(footprint: costs.Footprint, part: costs.Footprint) -> None:
    """Add ``part``, the footprint of one binary, to ``footprint``."""
    footprint.nops = part.nops
    footprint.sites += part.sites
    footprint.functions += part.functions
    footprint.sections += part.sections
    footprint.paths += part.paths
    footprint.new += part.new
    footprint.same_paths += part.same_paths
    footprint.unchanged += part.unchanged
    footprint.limits += part.limits


def _binaries(
    base: Kernel, patched: Kernel
) -> Iterator[tuple[str, Path | None, Path | None]]:
    yield "vmlinux", base.vmlinux, patched.vmlinux
    ours, theirs = (
        {path.stem: path for path in kernel.modules.rglob("*.ko")}
        for kernel in (base, patched)
    )
    for name in sorted({*ours, *theirs}):
        yield name, ours.get(name), theirs.get(name)


class _Pair:
    """A binary of the base, and the same one of the patched kernel."""

    def __init__(
        self, name: str, base: Code, patched: Code, declaration: Declaration
    ) -> None:
        self.name = name
        self.base = base
        self.patched = patched
        self.declaration = declaration
        self._ours = _by_key(base.binary)
        self._theirs = _by_key(patched.binary)
        _rejoin(self._ours, self._theirs)
        common = set(self._ours) & set(self._theirs)
        self._known = {self._ours[key].address for key in common}
        self._known_patched = {self._theirs[key].address for key in common}
        self._off = CodeSide(patched, declaration.events, self._only_patched)
        self._walk = Walk(self._off)
        self._comparer = Comparer(
            CodeSide(base, frozenset(), self._only_base), self._off
        )

    def _only_base(self, function: Function) -> bool:
        return function.address not in self._known

    def _only_patched(self, function: Function) -> bool:
        event = _part(function) == "event"
        return function.address not in self._known_patched and not event

    def compare(self) -> costs.Footprint:
        changed = list(self._changed())
        footprint = costs.Footprint(
            nops=[len(nop) for nop in self.patched.isa.nops],
            sites=list(self._sites()),
            functions=list(_sizes(self.name, self._ours, self._theirs)),
            sections=list(self._sections()),
        )
        footprint.unchanged = len(set(self._ours) & set(self._theirs)) - len(changed)
        hot = {
            site.function for site in footprint.sites if site.hot
        } | self.declaration.hot
        sited = {site.function for site in footprint.sites}
        for key in changed:
            paths = self._paths(key, hot)
            if paths.proven and not paths.stretches and paths.name not in sited | hot:
                footprint.same_paths += 1
            else:
                footprint.paths.append(paths)
        footprint.new = [
            costs.NewFunction(binary=self.name, name=function.name, size=function.size)
            for function in newcode.callbacks(
                self.patched,
                [
                    function
                    for key, function in self._theirs.items()
                    if key not in self._ours and _part(function) in ("code", "init")
                ],
                self._comparer.entered | self._walk.entered,
                self._of_events(),
            )
        ]
        footprint.limits = [
            f"{_where(self.patched.binary, at)} is too long: not all of it was walked"
            for at in sorted(self._comparer.unfinished | self._walk.unfinished)
        ]
        return footprint

    def _changed(self) -> Iterator[Key]:
        """Functions of both that differ in more than addresses."""
        unmoved = {
            key: same(
                self.base.binary, self.patched.binary, function, self._theirs[key]
            )
            for key, function in self._ours.items()
            if key in self._theirs
        }
        ours, theirs = _cold_parts(self._ours), _cold_parts(self._theirs)
        for key, unchanged in unmoved.items():
            if ".cold" in key[1] or _part(self._ours[key]) == "event":
                continue
            cold = ours.get(key)
            apart = cold != theirs.get(key)
            if not unchanged or apart or not (cold is None or unmoved[cold]):
                yield key

    # -- sites -------------------------------------------------------------------------

    def _sites(self) -> Iterator[costs.Site]:
        branches = [
            branch
            for branch in self.patched.branches.values()
            if branch.event in self.declaration.events
        ]
        inlined = _inlined(self.patched.binary, [branch.address for branch in branches])
        for branch in branches:
            function = self.patched.binary.function_at(branch.address)
            if function is None or branch.event is None:
                continue
            chain = inlined.get(branch.address, [])
            names = (*chain, function.plain)
            functions = self.declaration.functions[branch.event]
            declared = next((name for name in names if name in functions), None)
            cold = self._cold(function, branch)
            yield costs.Site(
                event=branch.event,
                binary=self.name,
                function=function.name,
                inlined=chain,
                declared=declared,
                hot=declared in self.declaration.hot,
                offset=branch.address - function.address,
                nop=self.patched.is_nop(branch.address),
                out_of_line=self._out_of_line(function, branch),
                cold_bytes=sum(instruction.size for instruction in cold),
                cold_code=[instruction.text for instruction in cold[:_LISTED]],
            )

    def _off_addresses(self, function: Function) -> set[int]:
        start = _entry(self.patched, function)
        return {
            instruction.address
            for stretch in self._walk.reach((start, ())).values()
            for instruction in stretch.instructions
        }

    def _out_of_line(self, function: Function, branch: StaticBranch) -> bool:
        return branch.target not in self._off_addresses(function)

    def _cold(self, function: Function, branch: StaticBranch) -> list[Instruction]:
        """The code that only ``branch`` leads to, if nothing else is enabled."""
        off = self._off_addresses(function)
        side = CodeSide(self.patched, frozenset(), lambda _: False)
        instructions: dict[int, Instruction] = {}
        waiting = [branch.target]
        walk = Walk(side)
        while waiting:
            at = waiting.pop()
            if at in off or at in instructions:
                continue
            stretch = walk.at((at, ()))
            for instruction in stretch.instructions:
                if instruction.address in off or instruction.address in instructions:
                    break
                instructions[instruction.address] = instruction
            else:
                waiting.extend(state[0] for state in stretch.next)
        return [instructions[at] for at in sorted(instructions)]

    def _of_events(self) -> Iterator[Instruction]:
        """Code that runs only while new events are on, or when they are set up."""
        for branch in self.patched.branches.values():
            function = self.patched.binary.function_at(branch.address)
            if branch.event in self.declaration.events and function is not None:
                yield from self._cold(function, branch)
        for function in self._theirs.values():
            if _part(function) == "event":
                yield from self.patched.listing(function)

    # -- paths -------------------------------------------------------------------------

    def _paths(self, key: Key, hot: set[str]) -> costs.FunctionPaths:
        ours, theirs = self._ours[key], self._theirs[key]
        comparison = self._comparer.compare(ours.address, theirs.address)
        added = _added(comparison)
        is_hot = theirs.name in hot or theirs.plain in hot
        loop = comparison.most_loop if is_hot else comparison.work_loop
        return costs.FunctionPaths(
            binary=self.name,
            name=theirs.name,
            hot=is_hot,
            proven=comparison.proven,
            most=comparison.most if comparison.proven else len(comparison.added),
            work=comparison.work
            if comparison.proven
            else sum(instruction.kind != "jump" for instruction in comparison.added),
            least=comparison.least if comparison.proven else 0,
            longer_loop=_where(self.patched.binary, loop)
            if comparison.proven and loop is not None
            else None,
            nops=comparison.nops,
            sites=len(comparison.sites),
            stretches=[
                costs.Stretch(
                    base=_where(self.base.binary, difference.base),
                    patched=_where(self.patched.binary, difference.patched),
                    added=[
                        self._shown(instruction) for instruction in difference.added
                    ],
                    removed=[instruction.text for instruction in difference.removed],
                    net=difference.net,
                    repeats=difference.looped,
                )
                for difference in self._unlike(comparison)
            ],
            clock_reads=[
                self._shown(instruction)
                for instruction in added
                if reads_clock(instruction)
            ],
            calls=[
                self._shown(instruction)
                for instruction in added
                if instruction.kind in ("call", "tail")
                and not reads_clock(instruction)
                # The first call of each function.
                and instruction.callee != "__fentry__"
            ],
            unproven=[
                f"{_where(self.base.binary, base)} and "
                f"{_where(self.patched.binary, patched)}"
                for base, patched in comparison.unmatched
            ],
            added=[]
            if comparison.proven
            else [self._shown(instruction) for instruction in comparison.added],
        )

    def _unlike(self, comparison: PathsCompared) -> Iterator[Difference]:
        """The stretches that differ in more than constants, such as the offset of a
        member after a new one."""
        for difference in comparison.differences:
            added, removed = (
                sorted(instruction.shape for instruction in part)
                for part in (difference.added, difference.removed)
            )
            if added != removed:
                yield difference

    def _shown(self, instruction: Instruction) -> str:
        return f"{_where(self.patched.binary, instruction.address)}: {instruction.text}"

    def _sections(self) -> Iterator[costs.SectionSize]:
        ours, theirs = (
            {section.name: section.size for section in code.binary.sections}
            for code in (self.base, self.patched)
        )
        for name in dict.fromkeys([*ours, *theirs]):
            sizes = ours.get(name, 0), theirs.get(name, 0)
            if sizes[0] != sizes[1]:
                yield costs.SectionSize(
                    binary=self.name, section=name, base=sizes[0], patched=sizes[1]
                )


def _added(comparison: PathsCompared) -> list[Instruction]:
    """Instructions added to a stretch, and not moved there from another one."""
    if not comparison.proven:
        return list(comparison.added)
    removed: dict[bool, list[str]] = {True: [], False: []}
    for difference in comparison.differences:
        removed[difference.looped] += [gone.form for gone in difference.removed]
    added = []
    # Loops choose first: what ran once before a loop does not make up for what runs
    # each time round.
    looped_first = sorted(
        comparison.differences, key=lambda stretch: not stretch.looped
    )
    for difference in looped_first:
        pools = [removed[True]]
        if not difference.looped:
            pools.insert(0, removed[False])
        for instruction in difference.added:
            # Moved to another stretch: the base runs it, too.
            pool = next((pool for pool in pools if instruction.form in pool), None)
            if pool is None:
                added.append(instruction)
            else:
                pool.remove(instruction.form)
    # What moved here from a path that does not lead here is more on this one.
    added += comparison.clock_reads
    return list({instruction.address: instruction for instruction in added}.values())


def _where(binary: Binary, address: int) -> str:
    function = binary.function_at(address)
    if function is None:
        return f"{address:#x}"
    return f"{function.name}+{address - function.address:#x}"


def _entry(code: Code, function: Function) -> int:
    """The start of the function that a cold part belongs to."""
    if ".cold" not in function.name:
        return function.address
    for candidate in code.binary.functions:
        if ".cold" not in candidate.name and code.same_function(
            candidate.address, function.address
        ):
            return candidate.address
    return function.address


Key = tuple[str, str, int]


def _by_key(binary: Binary) -> dict[Key, Function]:
    """Functions by file, name without numbers, and which of those it is."""
    functions: dict[Key, Function] = {}
    for function in binary.functions:
        number = 0
        while (
            key := (function.file, _NUMBER.sub("", function.name), number)
        ) in functions:
            number += 1
        functions[key] = function
    return functions


def _cold_parts(functions: Mapping[Key, Function]) -> dict[Key, Key]:
    """The cold part of each function that has one.

    That of a global function is local, so it alone has a file.
    """
    parts = {}
    for key in functions:
        file, name, number = key
        if name.endswith(".cold"):
            parent = name.removesuffix(".cold")
            local = (file, parent, number)
            parts[local if local in functions else ("", parent, 0)] = key
    return parts


def _rejoin(ours: dict[Key, Function], theirs: dict[Key, Function]) -> None:
    """Give a function that the compiler now names differently its old key.

    Such as ``f`` that became ``f.isra.0``, because an argument is not used.
    """
    lone = {_plain(key): key for key in theirs if key not in ours}
    for key in [key for key in ours if key not in theirs]:
        if ".cold" not in key[1] and (partner := lone.get(_plain(key))) is not None:
            theirs[key] = theirs.pop(partner)
            del lone[_plain(key)]


def _plain(key: Key) -> tuple[str, str, int, bool]:
    return key[0], key[1].partition(".")[0], key[2], ".cold" in key[1]


def _part(function: Function) -> costs.Part:
    if function.name.startswith(_EVENT):
        return "event"
    if ".cold" in function.name:
        return "cold"
    return "init" if function.section.startswith((".init", ".exit")) else "code"


def _inlined(binary: Binary, addresses: list[int]) -> dict[int, list[str]]:
    """The source functions that were inlined at ``addresses``, innermost first.

    Empty where the file has no debug information, as installed modules have none.
    """
    if not binary.linked:
        return {}
    located = lines.at(binary.path, addresses, binary.arch)
    return {
        address: [line.function for line in chain if line.function != "??"]
        for address, chain in located.items()
    }
