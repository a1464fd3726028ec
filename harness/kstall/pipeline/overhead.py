# SPDX-License-Identifier: GPL-2.0-or-later
"""What a series costs, as stages of a run: found in the binaries, counted, judged."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..base import places
from ..cost import (
    Kernels,
    compiler_of,
    costs,
    counting,
    footprint,
    gate,
    objects,
    shares,
)
from ..evidence import traceabi
from ..report import SeriesReport
from ..series import Context, Series
from ..verdict import run_checks
from .run import Opened, Run, score

_WORD = re.compile(r"\w+")


def prove(
    context: Context,
    series: Series,
    kernels: Kernels,
    run: Run,
    entry: SeriesReport,
    *,
    among: shares.Shares | None = None,
    object_costs: objects.ObjectCosts | None = None,
) -> None:
    """Add to ``entry`` what ``series`` costs, and the checks that judge it.

    ``among`` are the shares of all series of the kernel, if it has several;
    ``object_costs`` are those of other configurations, by single objects.
    """
    overhead = _begun(series, kernels, entry)
    if object_costs is not None:
        overhead.worst, overhead.mitigated = object_costs.worst, object_costs.mitigated
        overhead.unmitigated = object_costs.unmitigated
    with run.stage("binaries", entry) as stage:
        overhead.footprint = _footprint(context, series, kernels, among, stage)
        overhead.footprint.limits.append(
            "one configuration and one compiler; with mitigations only single objects; "
            "with CONFIG_JUMP_LABEL=n, where a site is a load, a test and a branch, "
            "only sizes; not with CONFIG_LOCKDEP, which also checks RCU at each site"
        )
        entry.checks.append(gate.judge_prototypes(series, overhead.footprint))
    if series.measures:
        if not overhead.measurements:
            count(context, series, kernels, run, entry)
        with run.stage("events", entry) as stage:
            texts = counting.formats(context, series, kernels)
            _events(series, texts, entry, stage, kernels.beside)
    else:
        not_compared(run, entry)
    with run.stage("gate", entry) as stage:
        checks = gate.judge(series, overhead)
        entry.checks += checks
        stage.summary = score(checks)


def count(
    context: Context, series: Series, kernels: Kernels, run: Run, entry: SeriesReport
) -> None:
    """Count instructions; this may be done before, or beside, everything else."""
    overhead = _begun(series, kernels, entry)
    with run.stage("instructions", entry) as stage:
        overhead.measurements, stage.reused = counting.measure(
            context, series, kernels, stage.log
        )
        stage.summary = "; ".join(map(_line, overhead.measurements))


def _begun(series: Series, kernels: Kernels, entry: SeriesReport) -> costs.Overhead:
    if entry.overhead is None:
        entry.overhead = costs.Overhead(
            base_kernel=kernels.base.key,
            compiler=compiler_of(kernels.base),
            exemptions=[
                costs.Exemption(
                    function=exemption.function,
                    struct=exemption.struct,
                    allowed=exemption.instructions
                    if exemption.function
                    else exemption.bytes_,
                    calls=list(exemption.calls),
                    because=exemption.because,
                )
                for exemption in series.exemptions
            ],
        )
    return entry.overhead


def not_compared(run: Run, entry: SeriesReport) -> None:
    """Report that the formats of existing events were not compared."""
    run.skip(
        "events",
        "no program of this series is measured, so the base was not booted, and "
        "formats of existing events were not compared",
        entry,
    )


def _events(
    series: Series,
    texts: Sequence[str],
    entry: SeriesReport,
    stage: Opened,
    beside: Sequence[str] = (),
) -> None:
    """Add the check that existing trace events are unchanged.

    Events in ``beside`` are new as well: other series of the kernel declare them.
    """
    base, patched = map(traceabi.parse_list, texts)
    others = {name: layout for name, layout in patched.items() if name in beside}
    own = {name: layout for name, layout in patched.items() if name not in others}
    changes = traceabi.compare(base, own)
    declared = frozenset(point.event for point in series.spec.tracepoint)
    check = traceabi.existing_events_are_kept
    entry.checks += run_checks("abi", [check], changes, declared)
    new = ", ".join(layout.name for layout in changes.new) or "none"
    stage.summary = (
        f"{len(base)} existing events, {len(changes.broken)} broken; new: {new}"
    )


def _line(measurement: costs.Measurement) -> str:
    if measurement.visible:
        return (
            f"{measurement.workload} {measurement.difference:+.3g} "
            f"instructions/{measurement.operation}"
        )
    return f"{measurement.workload} no difference above {measurement.resolution:.2g}"


def _footprint(
    context: Context,
    series: Series,
    kernels: Kernels,
    among: shares.Shares | None,
    stage: Opened,
) -> costs.Footprint:
    declaration = footprint.Declaration(gate.tracepoints(series), gate.hot(series))
    if among is not None:
        declaration = footprint.Declaration(among.events, among.hot)
    key = footprint.key_of(kernels.base, kernels.patched, declaration)
    # One comparison serves all series of these kernels.
    with context.turn(f"footprint-{key}", "compares these kernels"), places.taken():
        delta, stage.reused = footprint.obtain(
            kernels.base, kernels.patched, declaration, context.cache
        )
    if among is not None:
        delta = among.of(series.name, delta)
    nops = sum(site.nop > 0 for site in delta.sites)
    changed = len(delta.paths) + delta.same_paths
    stage.summary = (
        f"{nops} sites, {changed} functions changed, {delta.unchanged} did not"
    )
    return delta


def part(series: Series, changed: frozenset[str]) -> shares.SeriesPart:
    """What identifies changes of ``series``, which ``changed`` these functions."""
    added = (
        line
        for patch in series.patches
        for line in patch.path.read_text(
            encoding="utf-8", errors="replace"
        ).splitlines()
        if line.startswith("+")
    )
    return shares.SeriesPart(
        series.name,
        gate.tracepoints(series),
        gate.hot(series),
        changed,
        frozenset(word for line in added for word in _WORD.findall(line)),
        frozenset(
            name
            for exemption in series.exemptions
            for name in (exemption.function, exemption.struct)
            if name is not None
        ),
    )
