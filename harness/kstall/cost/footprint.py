# SPDX-License-Identifier: GPL-2.0-or-later
"""What patches change in a kernel's binaries, found in the binaries themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base import cache, process, sources
from ..build import Kernel
from . import costs, elf, structs
from .code import Code, Instruction, StaticBranch, reads_clock
from .elf import Binary, Function
from .identity import same
from .paths import Comparer, Difference, PathsCompared, Side, Walk

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
class Wanted:
    """What a series declares: ``functions`` by symbol of the tracepoint, and which of
    them are hot."""

    functions: Mapping[str, tuple[str, ...]]
    hot: frozenset[str]

    @property
    def events(self) -> frozenset[str]:
        """Tracepoints, as their symbols name them."""
        return frozenset(self.functions)


def key_of(base: Kernel, patched: Kernel, wanted: Wanted) -> str:
    """Changes with the kernels, what is looked for, and this analysis."""
    return cache.digest(
        sources.digest("kstall.evidence", "kstall.cost"),
        base.key,
        patched.key,
        {event: list(names) for event, names in wanted.functions.items()},
        sorted(wanted.hot),
    )


def obtain(
    base: Kernel, patched: Kernel, wanted: Wanted, cache_dir: Path
) -> tuple[costs.Footprint, bool]:
    """What `compare` finds, and whether an earlier run has found it."""
    key = key_of(base, patched, wanted)
    kept = cache_dir / "footprints" / key / "footprint.json"
    if cache.kept(kept.parent):
        text = kept.read_text(encoding="utf-8")
        return costs.Footprint.model_validate_json(text), True
    found = compare(base, patched, wanted)
    with cache.keep_if_possible(kept.parent) as scratch:
        cache.write_text(scratch / kept.name, found.model_dump_json(indent=1))
    cache.prune(cache_dir / "footprints", keep=200)
    return found, False


def compare(base: Kernel, patched: Kernel, wanted: Wanted) -> costs.Footprint:
    """Hold all binaries of ``patched`` against those of ``base``."""
    found = costs.Footprint()
    common = []
    for name, ours, theirs in _binaries(base, patched):
        if ours is None or theirs is None:
            there = "patched" if ours is None else "base"
            found.limits.append(f"{name} is only in the {there} kernel")
            continue
        common.append((name, ours, theirs))
        if ours.read_bytes() != theirs.read_bytes():
            add(found, binaries(name, ours, theirs, wanted))
    structs.add(found, structs.types(common))
    for event in sorted(wanted.events - {site.event for site in found.sites}):
        found.limits.append(f"no site of {event} in any binary")
    return found


def binaries(name: str, base: Path, patched: Path, wanted: Wanted) -> costs.Footprint:
    """`compare` for one kernel, module or object file; no structs."""
    return _Pair(name, Code(elf.load(base)), Code(elf.load(patched)), wanted).compare()


def sizes(name: str, base: Binary, patched: Binary) -> Iterator[costs.FunctionSize]:
    """The functions of a binary whose size changed."""
    ours, theirs = _by_key(base), _by_key(patched)
    _rejoin(ours, theirs)
    return _sizes(name, ours, theirs)


def _sizes(
    name: str, ours: Mapping[Key, Function], theirs: Mapping[Key, Function]
) -> Iterator[costs.FunctionSize]:
    for key in sorted({*ours, *theirs}):
        one, other = ours.get(key), theirs.get(key)
        either = other or one
        assert either is not None
        bytes_ = [function.size if function else None for function in (one, other)]
        if bytes_[0] != bytes_[1]:
            yield costs.FunctionSize(
                binary=name,
                section=either.section,
                part=_part(either),
                name=either.name,
                base=bytes_[0],
                patched=bytes_[1],
            )


def add(whole: costs.Footprint, part: costs.Footprint) -> None:
    """Make ``part``, what one binary has, a part of ``whole``."""
    whole.nops = part.nops
    whole.sites += part.sites
    whole.functions += part.functions
    whole.sections += part.sections
    whole.paths += part.paths
    whole.same_paths += part.same_paths
    whole.unchanged += part.unchanged
    whole.limits += part.limits


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
    """A binary and what the patches made of it."""

    def __init__(self, name: str, base: Code, patched: Code, wanted: Wanted) -> None:
        self.name = name
        self.base = base
        self.patched = patched
        self.wanted = wanted
        self._ours = _by_key(base.binary)
        self._theirs = _by_key(patched.binary)
        _rejoin(self._ours, self._theirs)
        common = set(self._ours) & set(self._theirs)
        self._known = {self._ours[key].address for key in common}
        self._known_patched = {self._theirs[key].address for key in common}
        self._off = Side(patched, wanted.events, self._only_patched)
        self._walk = Walk(self._off)
        self._comparer = Comparer(Side(base, frozenset(), self._only_base), self._off)

    def _only_base(self, function: Function) -> bool:
        return function.address not in self._known

    def _only_patched(self, function: Function) -> bool:
        event = _part(function) == "event"
        return function.address not in self._known_patched and not event

    def compare(self) -> costs.Footprint:
        changed = list(self._changed())
        found = costs.Footprint(
            nops=[len(nop) for nop in self.patched.isa.nops],
            sites=list(self._sites()),
            functions=list(_sizes(self.name, self._ours, self._theirs)),
            sections=list(self._sections()),
        )
        found.unchanged = len(set(self._ours) & set(self._theirs)) - len(changed)
        hot = {site.function for site in found.sites if site.hot} | self.wanted.hot
        sited = {site.function for site in found.sites}
        for key in changed:
            paths = self._paths(key, hot)
            if paths.proven and not paths.stretches and paths.name not in sited | hot:
                found.same_paths += 1
            else:
                found.paths.append(paths)
        return found

    def _changed(self) -> Iterator[Key]:
        """Functions of both that are not the same but for addresses."""
        unmoved = {
            key: same(self.base.binary, self.patched.binary, one, self._theirs[key])
            for key, one in self._ours.items()
            if key in self._theirs
        }
        for key, unchanged in unmoved.items():
            file, name, number = key
            if ".cold" in name or _part(self._ours[key]) == "event":
                continue
            cold = (file, f"{name}.cold", number)
            apart = (cold in self._ours) != (cold in self._theirs)
            if not unchanged or apart or not unmoved.get(cold, True):
                yield key

    # -- sites -------------------------------------------------------------------------

    def _sites(self) -> Iterator[costs.Site]:
        branches = [
            one
            for one in self.patched.branches.values()
            if one.event in self.wanted.events
        ]
        inlined = _inlined(self.patched.binary, [one.address for one in branches])
        for one in branches:
            function = self.patched.binary.function_at(one.address)
            if function is None or one.event is None:
                continue
            chain = inlined.get(one.address, [])
            names = (*chain, function.plain)
            known = self.wanted.functions[one.event]
            declared = next((name for name in names if name in known), None)
            cold = self._cold(function, one)
            yield costs.Site(
                event=one.event,
                binary=self.name,
                function=function.name,
                inlined=chain,
                declared=declared,
                hot=declared in self.wanted.hot,
                offset=one.address - function.address,
                nop=self.patched.is_nop(one.address),
                out_of_line=self._out_of_line(function, one),
                cold_bytes=sum(item.size for item in cold),
                cold_code=[item.text for item in cold[:_LISTED]],
            )

    def _off_addresses(self, function: Function) -> set[int]:
        start = _entry(self.patched, function)
        return {
            item.address
            for stretch in self._walk.reach((start, ())).values()
            for item in stretch.instructions
        }

    def _out_of_line(self, function: Function, one: StaticBranch) -> bool:
        return one.target not in self._off_addresses(function)

    def _cold(self, function: Function, one: StaticBranch) -> list[Instruction]:
        """What only ``one`` leads to, if nothing else is switched on."""
        off = self._off_addresses(function)
        stay = Side(self.patched, frozenset(), lambda _: False)
        found: dict[int, Instruction] = {}
        waiting = [one.target]
        walk = Walk(stay)
        while waiting:
            at = waiting.pop()
            if at in off or at in found:
                continue
            stretch = walk.at((at, ()))
            for item in stretch.instructions:
                if item.address in off or item.address in found:
                    break
                found[item.address] = item
            else:
                waiting.extend(state[0] for state in stretch.next)
        return [found[at] for at in sorted(found)]

    # -- paths -------------------------------------------------------------------------

    def _paths(self, key: Key, hot: set[str]) -> costs.FunctionPaths:
        ours, theirs = self._ours[key], self._theirs[key]
        found = self._comparer.compare(ours.address, theirs.address)
        added = _added(found)
        return costs.FunctionPaths(
            binary=self.name,
            name=theirs.name,
            hot=theirs.name in hot or theirs.plain in hot,
            proven=found.proven,
            most=found.most if found.proven else len(found.added),
            work=found.work
            if found.proven
            else sum(one.kind != "jump" for one in found.added),
            least=found.least if found.proven else 0,
            nops=found.nops,
            sites=len(found.sites),
            stretches=[
                costs.Stretch(
                    base=_where(self.base.binary, one.base),
                    patched=_where(self.patched.binary, one.patched),
                    added=[self._shown(item) for item in one.added],
                    removed=[item.text for item in one.removed],
                    net=one.net,
                    repeats=one.looped,
                )
                for one in self._unlike(found)
            ],
            clock_reads=[self._shown(one) for one in added if reads_clock(one)],
            calls=[
                self._shown(one)
                for one in added
                if one.kind in ("call", "tail")
                and not reads_clock(one)
                # Each function begins with it.
                and one.callee != "__fentry__"
            ],
            unproven=[
                f"{_where(self.base.binary, base)} and "
                f"{_where(self.patched.binary, patched)}"
                for base, patched in found.unmatched
            ],
            added=[] if found.proven else [self._shown(one) for one in found.added],
        )

    def _unlike(self, found: PathsCompared) -> Iterator[Difference]:
        """The stretches that differ in more than constants, such as the offset of a
        member behind one that is new."""
        for one in found.differences:
            added, removed = (
                sorted(item.shape for item in part) for part in (one.added, one.removed)
            )
            if added != removed:
                yield one

    def _shown(self, one: Instruction) -> str:
        return f"{_where(self.patched.binary, one.address)}: {one.text}"

    def _sections(self) -> Iterator[costs.SectionSize]:
        ours, theirs = (
            {one.name: one.size for one in code.binary.sections}
            for code in (self.base, self.patched)
        )
        for name in dict.fromkeys([*ours, *theirs]):
            sizes = ours.get(name, 0), theirs.get(name, 0)
            if sizes[0] != sizes[1]:
                yield costs.SectionSize(
                    binary=self.name, section=name, base=sizes[0], patched=sizes[1]
                )


def _added(found: PathsCompared) -> list[Instruction]:
    """Instructions of stretches that they were not in, and that went from no other."""
    if not found.proven:
        return list(found.added)
    gone = [one.form for item in found.differences for one in item.removed]
    left = []
    for item in found.differences:
        for one in item.added:
            # Moved to another stretch: it was run before, too.
            if one.form in gone:
                gone.remove(one.form)
            else:
                left.append(one)
    return list({one.address: one for one in left}.values())


def _where(binary: Binary, address: int) -> str:
    function = binary.function_at(address)
    if function is None:
        return f"{address:#x}"
    return f"{function.name}+{address - function.address:#x}"


def _entry(code: Code, function: Function) -> int:
    """The start of the function that a cold part belongs to."""
    if ".cold" not in function.name:
        return function.address
    for one in code.binary.functions:
        if ".cold" not in one.name and code.same_function(
            one.address, function.address
        ):
            return one.address
    return function.address


Key = tuple[str, str, int]


def _by_key(binary: Binary) -> dict[Key, Function]:
    """Functions by file, name without numbers, and which of those it is."""
    found: dict[Key, Function] = {}
    for one in binary.functions:
        number = 0
        while (key := (one.file, _NUMBER.sub("", one.name), number)) in found:
            number += 1
        found[key] = one
    return found


def _rejoin(ours: dict[Key, Function], theirs: dict[Key, Function]) -> None:
    """Give a function that the compiler now makes in another way its old key.

    Such as ``f`` that has become ``f.isra.0``, because an argument is not used.
    """
    lone = {_plain(key): key for key in theirs if key not in ours}
    for key in [key for key in ours if key not in theirs]:
        if ".cold" not in key[1] and (other := lone.get(_plain(key))) is not None:
            theirs[key] = theirs.pop(other)
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
    found: dict[int, list[str]] = {}
    if not addresses or not binary.linked:
        return found
    program = binary.arch.tool("addr2line")
    done = process.run(
        [program, "-a", "-f", "-i", "-e", binary.path, *map(hex, addresses)],
        check=False,
    )
    lines = done.stdout.splitlines()
    current: list[str] = []
    names = iter(lines)
    for line in names:
        if re.fullmatch(r"0x[0-9a-f]+", line):
            current = found.setdefault(int(line, 16), [])
        else:
            if line != "??":
                current.append(line)
            next(names, None)
    return found
