# SPDX-License-Identifier: GPL-2.0-or-later
"""What a series costs, as stages of a run: found in the binaries, counted, judged."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from ..base import places
from ..cost import Kernels, costs, counting, footprint, gate, objects, shares
from ..evidence import traceabi
from ..report import SeriesReport
from ..series import Context, Series
from ..verdict import Check, run_check
from .run import Opened, Run

_WORD = re.compile(r"\w+")


def prove(
    context: Context,
    series: Series,
    kernels: Kernels,
    run: Run,
    entry: SeriesReport,
    *,
    among: shares.Shares | None = None,
    told: objects.Told | None = None,
) -> None:
    """Add to ``entry`` what ``series`` costs, and the checks that judge it.

    ``among`` are all series of the kernel, if it has several; ``told`` is what objects
    say of other kernels.
    """
    found = _begun(series, kernels, entry)
    if told is not None:
        found.worst, found.mitigated = told.worst, told.mitigated
    with run.stage("binaries", entry) as stage:
        found.footprint = _footprint(context, series, kernels, among, stage)
        found.footprint.limits.append(
            "one configuration and one compiler; with mitigations single objects; of "
            "CONFIG_JUMP_LABEL=n, where a site is a load, a test and a branch, only "
            "sizes, and nothing of CONFIG_LOCKDEP, which asks RCU as well"
        )
        entry.checks.append(gate.judge_prototypes(series, found.footprint))
    if series.measures:
        if not found.measurements:
            count(context, series, kernels, run, entry)
        with run.stage("events", entry) as stage:
            texts = counting.formats(context, series, kernels)
            _events(series, texts, entry, stage, kernels.beside)
    else:
        not_compared(run, entry)
    with run.stage("gate", entry) as stage:
        checks = judge(series, found)
        entry.checks += checks
        good = sum(check.status == "pass" for check in checks)
        stage.summary = f"{good} of {len(checks)} checks pass"


def count(
    context: Context, series: Series, kernels: Kernels, run: Run, entry: SeriesReport
) -> None:
    """Count instructions, which may be done before or beside all else."""
    found = _begun(series, kernels, entry)
    with run.stage("instructions", entry) as stage:
        found.measurements, stage.reused = counting.measure(
            context, series, kernels, stage.log
        )
        stage.summary = "; ".join(map(_line, found.measurements))


def _begun(series: Series, kernels: Kernels, entry: SeriesReport) -> costs.Overhead:
    if entry.overhead is None:
        entry.overhead = costs.Overhead(
            base_kernel=kernels.base.key,
            exemptions=[
                costs.Exemption(
                    function=one.function,
                    struct=one.struct,
                    allowed=one.instructions if one.function else one.bytes_,
                    calls=list(one.calls),
                    because=one.because,
                )
                for one in series.exemptions
            ],
        )
    return entry.overhead


def not_compared(run: Run, entry: SeriesReport) -> None:
    """Say that nobody looked whether existing events are what they were."""
    with run.stage("events", entry) as stage:
        stage.status = "skip"
        stage.summary = (
            "no program of this series is measured, so the base was not booted, and "
            "formats of existing events were not compared"
        )


def _events(
    series: Series,
    texts: Sequence[str],
    entry: SeriesReport,
    stage: Opened,
    beside: Sequence[str] = (),
) -> None:
    """Add the check that existing trace events are what they were.

    Those ``beside`` those of ``series`` are new by other series, which declare them.
    """
    if not texts:
        stage.status = "skip"
        stage.summary = "the guests that were counted in did not print the formats"
        return
    base, patched = map(traceabi.listed, texts)
    others = {name: one for name, one in patched.items() if name in beside}
    mine = {name: one for name, one in patched.items() if name not in others}
    found = traceabi.compare(base, mine)
    declared = frozenset(one.event for one in series.spec.tracepoint)
    result = run_check(
        "existing_events_are_kept",
        "abi",
        " ".join((traceabi.judge.__doc__ or "").split()),
        functools.partial(traceabi.judge, declared=declared),
        found,
    )
    entry.checks.append(result)
    new = ", ".join(one.name for one in found.new) or "none"
    stage.summary = (
        f"{len(base)} events of before, {len(found.broken)} broken; new: {new}"
    )


def judge(series: Series, found: costs.Overhead) -> list[Check]:
    """The checks of what was found; pure."""
    return list(gate.judge(series, found))


def _line(one: costs.Measurement) -> str:
    if one.visible:
        return f"{one.workload} {one.difference:+.3g} instructions/{one.operation}"
    return f"{one.workload} no difference above {one.resolution:.2g}"


def _footprint(
    context: Context,
    series: Series,
    kernels: Kernels,
    among: shares.Shares | None,
    stage: Opened,
) -> costs.Footprint:
    wanted = footprint.Wanted(gate.tracepoints(series), gate.hot(series))
    if among is not None:
        wanted = footprint.Wanted(among.events, among.hot)
    key = footprint.key_of(kernels.base, kernels.patched, wanted)
    # One for all series of these kernels.
    with context.turn(f"footprint-{key}", "compares these kernels"), places.taken():
        found, stage.reused = footprint.obtain(
            kernels.base, kernels.patched, wanted, context.cache
        )
    if among is not None:
        found = among.of(series.name, found)
    nops = sum(site.nop > 0 for site in found.sites)
    changed = len(found.paths) + found.same_paths
    stage.summary = (
        f"{nops} sites, {changed} functions changed, {found.unchanged} did not"
    )
    return found


def part(series: Series, changed: frozenset[str]) -> shares.Part:
    """What tells changes of ``series``, of which these functions are, from others'."""
    added = (
        line
        for patch in series.patches
        for line in patch.path.read_text(
            encoding="utf-8", errors="replace"
        ).splitlines()
        if line.startswith("+")
    )
    return shares.Part(
        series.name,
        gate.tracepoints(series),
        gate.hot(series),
        changed,
        frozenset(word for line in added for word in _WORD.findall(line)),
        frozenset(
            name
            for one in series.exemptions
            for name in (one.function, one.struct)
            if name is not None
        ),
    )
