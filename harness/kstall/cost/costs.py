# SPDX-License-Identifier: GPL-2.0-or-later
"""What tracepoints cost while they are off and on, as data of ``report.json``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..verdict import Model

Mode = Literal["base", "off", "ftrace", "bpftrace"]
Part = Literal["code", "cold", "event", "init"]


class Site(Model):
    """A place in the machine code that a new event can fire from."""

    event: str
    binary: str = Field(description="vmlinux, or a module's name")
    function: str = Field(description="symbol of the code")
    inlined: list[str] = Field(
        default=[], description="source functions at the place, innermost first"
    )
    declared: str | None = Field(
        default=None, description="the function of series.toml that it is in"
    )
    hot: bool = False
    offset: int = Field(description="bytes from the start of the function")
    nop: int = Field(description="bytes of the NOP that runs while off; 0: no NOP")
    out_of_line: bool = Field(
        description="none of the code behind it is on a path that runs while off"
    )
    cold_bytes: int = Field(
        description="bytes of the function that only the enabled event reaches"
    )
    cold_code: list[str] = Field(default=[], description="those bytes, disassembled")


class FunctionSize(Model):
    """A function whose size changed; None where it does not exist."""

    binary: str = Field(description="vmlinux, a module's name, or an object's path")
    section: str
    part: Part = Field(
        description="cold: split off by the compiler; event: made by TRACE_EVENT()"
    )
    name: str
    base: int | None = Field(description="bytes")
    patched: int | None = Field(description="bytes")

    @property
    def growth(self) -> int:
        """Bytes more than in the base."""
        return (self.patched or 0) - (self.base or 0)


class SectionSize(Model):
    """A section whose size changed, in bytes."""

    binary: str
    section: str
    base: int
    patched: int


class Stretch(Model):
    """A changed stretch of straight-line code."""

    base: str = Field(description="where it begins, as function+offset")
    patched: str
    added: list[str] = Field(description="instructions that only the patched one runs")
    removed: list[str]
    net: int = Field(description="instructions more; the NOPs of sites not counted")
    repeats: bool = Field(default=False, description="it is part of a loop")


class FunctionPaths(Model):
    """A changed function, on the paths that run while the new events are off."""

    binary: str
    name: str
    hot: bool = False
    proven: bool = Field(
        description="every path has a counterpart in the base, so most and least hold"
    )
    most: int = Field(
        description="instructions that a path has more than its counterpart, at most; "
        "the NOPs of sites not counted"
    )
    work: int = Field(
        description="as most, without unconditional jumps: the order of blocks is the "
        "compiler's"
    )
    least: int
    longer_loop: str | None = Field(
        default=None,
        description="where a loop runs more instructions each time round, of those "
        "that are judged; the loop is counted once",
    )
    nops: int = Field(
        description="NOPs of new sites that one path crosses, at most; once each, as "
        "a loop comes by again"
    )
    sites: int = Field(description="sites on any of its paths")
    stretches: list[Stretch] = []
    clock_reads: list[str] = Field(default=[], description="added ones")
    calls: list[str] = Field(default=[], description="added ones")
    unproven: list[str] = Field(
        default=[], description="where base and patched choose differently"
    )
    added: list[str] = Field(
        default=[], description="added instructions, if there is no proof by paths"
    )

    @property
    def cost(self) -> int:
        """The instructions more on a path that count.

        The order of blocks changes with any edit; on a hot path even that counts.
        """
        return self.most if self.hot else self.work


class NewFunction(Model):
    """A function of the patched kernel only that is called by pointer, so that nothing
    of the base can be compared with it; or a module of the patched kernel only."""

    binary: str = Field(description="vmlinux, a module's name, or an object's path")
    name: str = Field(description="empty: all of the module is new")
    size: int = Field(description="in bytes")


class StructChange(Model):
    """A struct that changed, or that is new; sizes in bytes."""

    binary: str
    name: str
    was: str = Field(default="", description="its name in the base, if another")
    base: int | None
    patched: int | None
    base_holes: int | None = Field(description="bytes in holes")
    patched_holes: int | None
    moved: list[str] = Field(
        default=[], description="members with another offset, and how far they moved"
    )
    members: list[str] = Field(default=[], description="members that came or went")
    record: bool = Field(default=False, description="the record of a new event")

    @property
    def growth(self) -> int:
        """Bytes more than in the base."""
        return (self.patched or 0) - (self.base or 0)


class Prototype(Model):
    """A tracepoint whose arguments changed, or that is new or gone; None: not there."""

    binary: str
    event: str = Field(description="its symbol; that of a bare one ends in _tp")
    base: list[str] | None = Field(
        description="types of arguments, as BPF programs get them by position"
    )
    patched: list[str] | None


class Footprint(Model):
    """What the patches change in the binaries."""

    nops: list[int] = Field(
        default=[2, 5],
        description="lengths of the NOP that a static branch is while off",
    )
    sites: list[Site] = []
    functions: list[FunctionSize] = []
    sections: list[SectionSize] = []
    paths: list[FunctionPaths] = []
    same_paths: int = Field(
        default=0,
        description="functions that changed, but run the same instructions on every "
        "path, constants and addresses left out",
    )
    unchanged: int = Field(
        default=0, description="functions that did not change but for addresses"
    )
    new: list[NewFunction] = []
    structs: list[StructChange] = []
    prototypes: list[Prototype] = []
    same_prototypes: int = Field(
        default=0, description="tracepoints whose arguments are what they were"
    )
    limits: list[str] = Field(
        default=[], description="what could not be looked at or proven, and why"
    )


class Boot(Model):
    """What one boot measured: instructions per operation."""

    median: float
    low: float
    high: float
    upper: float | None = Field(
        default=None, description="upper quartile of the repetitions"
    )
    repetitions: int


class Sample(Model):
    """A workload in one mode."""

    mode: Mode
    boots: list[Boot]
    median: float = Field(description="of the boots' medians")
    spread: float = Field(description="between the boots' medians")
    hits: float | None = Field(
        default=None, description="events per operation, where they were counted"
    )


class Measurement(Model):
    """A workload on the base and the patched kernel, in executed instructions."""

    workload: str
    claim: str = ""
    operation: str = Field(description="what is counted as one")
    events: list[str] = []
    resolution: float = Field(
        description="the greatest difference between two boots of the base, or, if it "
        "is more, how well repetitions show the difference of patched and base"
    )
    samples: list[Sample] = []
    difference: float | None = Field(
        default=None,
        description="patched and off, less base; instructions/operation of all series "
        "that are in the kernel",
    )
    visible: bool | None = Field(
        default=None, description="the difference exceeds the resolution"
    )
    predicted: float = Field(
        default=0, description="instructions/operation that the series says it costs"
    )
    others: float = Field(
        default=0,
        description="NOPs/operation at sites of other series in the same kernel: how "
        "often their events fire when all are on",
    )
    because: str | None = Field(
        default=None, description="why that is more than the NOPs that it crosses"
    )

    @property
    def medians(self) -> dict[Mode, float]:
        """Instructions of an operation in each measured mode."""
        return {sample.mode: sample.median for sample in self.samples}

    @property
    def hits(self) -> float | None:
        """Events per operation; None if they were not counted."""
        hits = (sample.hits for sample in self.samples if sample.hits is not None)
        return next(hits, None)

    @property
    def limit(self) -> float:
        """What the difference may be, in instructions of an operation."""
        return self.predicted + self.others + self.resolution


class Exemption(Model):
    """What a series declares to cost more than a NOP, and why that is right."""

    function: str | None = None
    struct: str | None = None
    allowed: int = Field(description="instructions on a path, or bytes")
    calls: list[str] = Field(default=[], description="functions that may be called")
    because: str


class Overhead(Model):
    """All that is known of what a series costs."""

    base_kernel: str
    compiler: str = Field(
        default="",
        description="what both kernels were compiled by and for, as x86_64 gcc 12; "
        "empty if that is not known",
    )
    footprint: Footprint | None = None
    measurements: list[Measurement] = []
    worst: list[FunctionSize] | None = Field(
        default=None,
        description="functions whose size changed in the touched objects when nothing "
        "can be patched at run time (CONFIG_JUMP_LABEL=n); None: not looked at",
    )
    mitigated: Footprint | None = Field(
        default=None,
        description="what changes in the touched objects when they are compiled as for "
        "distributions' kernels, with what guards branches and returns; None: not "
        "looked at",
    )
    unmitigated: str | None = Field(
        default=None,
        description="why no objects could be compiled with mitigations",
    )
    exemptions: list[Exemption] = []

    @property
    def longer_with_mitigations(self) -> list[FunctionPaths]:
        """Changed functions in which a path gets longer with mitigations than without
        them, by the figure that is judged."""
        paths = self.footprint.paths if self.footprint else []
        without = {path.name: path.cost for path in paths}
        return [
            path
            for path in (self.mitigated.paths if self.mitigated else [])
            if path.cost > max(0, without.get(path.name, 0))
        ]
