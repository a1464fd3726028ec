# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of the iommu-lazy series: what fails without its patch, and what must not.

Waits are seen at the driver's function, with the times of both ends; IOVAs where they
are taken and where they are freed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kstall.evidence import Evidence, Verdict, WorkloadResult

_US = 1000
_PAGE = 4096
_LAZY, _STRICT = "DMA-FQ", "DMA"
_READS = ("small", "scattered", "adjacent")


@dataclass(frozen=True)
class _Phase:
    """Reads of one kind in a domain of one type, and what was seen during them."""

    load: WorkloadResult
    facts: dict[str, Any]
    lines: dict[str, dict[str, Any]]

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    def contains(self, at_us: int) -> bool:
        return bool(
            self.facts["begin_ns"] // _US <= at_us <= self.facts["end_ns"] // _US
        )

    def unmapped(self) -> int:
        """Bytes, by the event of unmapping."""
        return sum(
            size
            for event in self.load.events("unmap")
            if self.contains(event.ts_ns // _US)
            and isinstance(size := event.fields["unmapped_size"], int)
        )

    def waits(self) -> int:
        """How many invalidations were waited for."""
        # [asked, device, unmap begin, unmap end, sync begin, sync end, ...] in us
        return sum(self.contains(wait[4]) for wait in self.lines["probes"]["waits"])

    def pages(self, kind: str) -> int:
        """Of IOVA space that was ``taken`` or ``freed``."""
        return sum(
            pages for at, pages in self.lines["iovas"][kind] if self.contains(int(at))
        )

    def entered(self, name: str) -> int:
        """How often the function of that ``name`` began."""
        return len(self.entries(name))

    def entries(self, name: str) -> list[int]:
        """When the function of that ``name`` began, in us."""
        entries = self.lines["probes"]["entered"]
        return [at for at, which in entries if which == name and self.contains(at)]

    def freed_after(self) -> list[tuple[int, int]]:
        """Of each IOVA: when dma_iova_destroy() began, and when it was freed, in us.

        There is one CPU, and its queue is one: they are freed in their order.
        """
        frees = [at for at, _ in self.lines["iovas"]["freed"] if self.contains(at)]
        return list(zip(self.entries("dma_iova_destroy"), frees, strict=False))

    def invalidations(self) -> list[int]:
        """When one began: that is waited for, or of all that the queue has; in us."""
        waits = [wait[4] for wait in self.lines["probes"]["waits"]]
        flushed: list[int] = self.lines["iovas"]["flushed"]
        return waits + flushed


def nothing_waits_in_lazy_mode(ev: Evidence) -> Verdict:
    """Whether it is mapped in one piece or in several."""
    v = Verdict()
    for phase in _phases(v, ev, _LAZY):
        v.equal(f"{phase.name}: waits for the IOMMU", phase.waits(), 0)
        if phase.name == "scattered":
            # Else the driver did not map it in the way that is to be checked.
            v.at_least("scattered: pieces, least", min(phase.facts["runs"]), 2)
            requests = phase.facts["requests"]
            destroyed = phase.entered("dma_iova_destroy")
            v.at_least("scattered: dma_iova_destroy()", destroyed, requests)
    return v


def strict_mode_waits(ev: Evidence) -> Verdict:
    """The same probes show that nothing is deferred where that would not be safe."""
    v = Verdict()
    for phase in _phases(v, ev, _STRICT):
        requests = phase.facts["requests"]
        v.at_least(f"{phase.name}: waits for the IOMMU", phase.waits(), requests)
    return v


def each_iova_is_freed(ev: Evidence) -> Verdict:
    """In pages, once the queue is empty: an IOVA is freed as a whole or not at all."""
    v = Verdict()
    for kind in (_LAZY, _STRICT):
        for phase in _phases(v, ev, kind):
            where = f"{kind}, {phase.name}"
            taken = phase.pages("taken")
            v.at_least(f"{where}: pages taken", taken, phase.facts["bytes"] // _PAGE)
            v.equal(f"{where}: pages freed", phase.pages("freed"), taken)
    return v


def nothing_is_freed_before_an_invalidation(ev: Evidence) -> Verdict:
    """An IOVA that is freed can be handed out again at once, so that a stale entry of
    the IOTLB would lead into other memory."""
    v = Verdict()
    for kind in (_LAZY, _STRICT):
        for phase in _phases(v, ev, kind):
            if phase.name != "scattered":
                continue
            pairs, invalidations = phase.freed_after(), phase.invalidations()
            where = f"{kind}, scattered"
            v.at_least(f"{where}: IOVAs", len(pairs), 1)
            early = sum(
                not any(begun <= at <= freed for at in invalidations)
                for begun, freed in pairs
            )
            v.equal(f"{where}: IOVAs freed without an invalidation", early, 0)
    return v


def _phases(v: Verdict, ev: Evidence, kind: str) -> Iterator[_Phase]:
    load = ev.workload("disk-both")
    facts = list(map(json.loads, load.stdout.splitlines()))
    lines = {line["what"]: line for line in facts if line["what"] != "phase"}
    phases = [
        _Phase(load, line, lines)
        for line in facts
        if line["what"] == "phase" and line["type"] == kind
    ]
    v.equal(f"{kind}: phases", [phase.name for phase in phases], list(_READS))
    for phase in phases:
        size = phase.facts["bytes"]
        v.equal(f"{kind}, {phase.name}: sectors", phase.facts["sectors"] * 512, size)
        v.equal(f"{kind}, {phase.name}: bytes unmapped", phase.unmapped(), size)
        yield phase
