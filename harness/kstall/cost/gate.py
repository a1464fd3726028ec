# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict on what a series costs: one NOP a site while off, and nothing else.

Any cost beyond that a series has to declare, with a reason, in ``[overhead]``.  Judging
is pure: it reads an `Overhead`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePath

from ..base import few
from ..series import ExemptionSpec, Series
from ..verdict import Check, Verdict, run_checks
from .costs import Footprint, FunctionPaths, Measurement, Mode, Overhead, Site

_SHOWN = 3
_LINES = 8
_Check = Callable[[Series, Overhead], Verdict]


def tracepoints(series: Series) -> dict[str, tuple[str, ...]]:
    """The functions with a site, by the symbol of the tracepoint."""
    return {
        point.symbol: tuple(dict.fromkeys(site.function for site in point.site))
        for point in series.spec.tracepoint
    }


def hot(series: Series) -> frozenset[str]:
    """The functions that the series calls hot."""
    return frozenset(
        site.function
        for point in series.spec.tracepoint
        for site in point.site
        if site.hot
    )


def judge(series: Series, overhead: Overhead) -> tuple[Check, ...]:
    """The checks of what a series costs, for what ``overhead`` has."""
    return run_checks("overhead", _checks_for(series, overhead), series, overhead)


def _checks_for(series: Series, overhead: Overhead) -> Iterator[_Check]:
    if overhead.footprint is not None:
        # A series of fixes has no event, so there is nothing to compare.
        if series.spec.tracepoint:
            yield off_is_a_nop
        yield disabled_path_unchanged
        yield structs_do_not_grow
    if overhead.mitigated is not None or overhead.unmitigated is not None:
        yield mitigations_add_nothing
    if overhead.measurements:
        yield off_costs_what_is_predicted
        if any(workload.nops for workload in series.measures):
            yield measured_operations_cross_sites


def off_is_a_nop(series: Series, overhead: Overhead) -> Verdict:
    """Each new event is compiled into the declared functions only, as one NOP while
    off, with its code out of line."""
    verdict = Verdict()
    sites, nops = _footprint(overhead).sites, _footprint(overhead).nops
    for event, functions in tracepoints(series).items():
        event_sites = [site for site in sites if site.event == event]
        names = sorted(
            {site.declared or f"{site.function}, undeclared" for site in event_sites}
        )
        if series.spec.discovered:
            # Their functions were read from sources, in which macros may hide some.
            verdict.at_least(f"{event}: sites", len(event_sites), 1)
        else:
            # All of them: one that is not named could be swapped for another.
            verdict.equal(
                f"{event}: functions with a site",
                ", ".join(names),
                ", ".join(sorted(functions)),
            )
        for site in event_sites:
            _judge_site(verdict, site, nops)
    return verdict


def _judge_site(verdict: Verdict, site: Site, nops: Collection[int]) -> None:
    lengths = " or ".join(map(str, nops))
    place = f"{site.event} in {site.function}+{site.offset:#x}"
    verdict.true(
        f"{place}: a NOP of {lengths} bytes",
        site.nop in nops,
        f"{site.nop} bytes run while off, {site.cold_bytes} bytes do not",
    )
    verdict.true(f"{place}: the rest is out of line", site.out_of_line)


def disabled_path_unchanged(series: Series, overhead: Overhead) -> Verdict:
    """While the events are disabled, no path of an existing function runs more
    instructions than before, other than the NOPs of its sites, unless declared."""
    verdict = Verdict()
    footprint = _footprint(overhead)
    foreign = _foreign(series, overhead)
    _judge_paths(verdict, series, footprint, foreign)
    if not all(comparison.ok for comparison in verdict.comparisons):
        names = {path.name.partition(".")[0] for path in footprint.paths}
        names |= {new.name.partition(".")[0] for new in footprint.new}
        names |= {new.binary for new in footprint.new}
        for exemption in series.exemptions:
            if exemption.function and exemption.function not in names:
                label = f"exemption for {exemption.function}()"
                with verdict.excused(foreign):
                    verdict.true(
                        label, False, "no function of that name has longer paths"
                    )
    count = footprint.same_paths
    verdict.true(f"{count} other changed functions run the same instructions", True)
    verdict.true(f"{footprint.unchanged} functions are the same", True)
    return _unless_reported(series, verdict, foreign)


def mitigations_add_nothing(series: Series, overhead: Overhead) -> Verdict:
    """In touched objects that are compiled with the mitigations that distributions
    enable, a disabled event is a NOP as well, and no path has more instructions than
    are declared for kernels without them."""
    verdict = Verdict()
    mitigated = overhead.mitigated
    if mitigated is None:
        return verdict.skip(f"not compiled with mitigations: {overhead.unmitigated}")
    for event in tracepoints(series):
        event_sites = [site for site in mitigated.sites if site.event == event]
        verdict.at_least(f"{event}: sites", len(event_sites), 1)
        for site in event_sites:
            _judge_site(verdict, site, mitigated.nops)
    foreign = _foreign(series, overhead)
    _judge_paths(verdict, series, mitigated, foreign)
    count = mitigated.same_paths
    verdict.true(f"{count} other changed functions run the same instructions", True)
    verdict.true(f"{mitigated.unchanged} functions are the same", True)
    return _unless_reported(series, verdict, foreign)


def _foreign(series: Series, overhead: Overhead) -> str:
    """Why the series' figures are not those of these kernels; empty if they are."""
    if not overhead.compiler or series.spec.overhead is None:
        return ""
    compilers = series.spec.overhead.compilers
    if not compilers or overhead.compiler in compilers:
        return ""
    return (
        f"the figures of [overhead] are of {' and '.join(compilers)}, and this kernel "
        f"is of {overhead.compiler}"
    )


def _judge_paths(
    verdict: Verdict, series: Series, footprint: Footprint, foreign: str
) -> None:
    """`_judge_path` of each; if figures are ``foreign`` that excuses instructions, but
    nothing that another compiler would not have added."""
    for path in footprint.paths:
        exempt = _exemption(series, function=path.name)
        added = path.clock_reads or _undeclared_calls(path, exempt) or path.longer_loop
        with verdict.excused("" if added else foreign):
            _judge_path(verdict, path, exempt)
    functions = {path.name for path in footprint.paths}
    functions |= {new.name for new in footprint.new}
    for new in footprint.new:
        exempt = _exemption(series, function=new.name)
        # An exemption may name the module, as of one that is only for tests.
        if exempt is None and (module := _module(new.binary)) not in functions:
            exempt = _exemption(series, function=module)
        name = f"function {new.name}()" if new.name else "module"
        verdict.true(
            f"new {name} [{new.binary}]: may run while off",
            exempt is not None,
            f"{new.size} bytes, called by pointer"
            + (exempt is None)
            * f"; no [[overhead.exemption]] names {new.name or new.binary}",
        )


def _module(binary: str) -> str:
    """The name, in C, of the module that ``binary`` is, or that an object would be.

    None of several objects that are linked into one module has its name.
    """
    return PurePath(binary).stem.replace("-", "_")


def _undeclared_calls(path: FunctionPaths, exempt: ExemptionSpec | None) -> list[str]:
    allowed = exempt.calls if exempt else ()
    return [line for line in path.calls if line.split()[-1] not in allowed]


def _unless_reported(series: Series, verdict: Verdict, foreign: str = "") -> Verdict:
    """``verdict``; a skip that reports what costs more, where that is not judged.

    A received series cannot declare exemptions, and those of another compiler, if
    ``foreign`` says so, do not hold here.
    """
    excesses = [
        f"{comparison.label}: {comparison.detail or comparison.observed}"
        for comparison in verdict.comparisons
        if not comparison.ok
    ]
    because = ""
    if series.spec.discovered:
        because = "received series"
    elif foreign and verdict.open:
        because = foreign
    if not (because and excesses):
        return verdict
    others = len(verdict.comparisons) - len(excesses)
    if others:
        excesses.append(f"{others} more comparisons hold")
    return Verdict().skip(f"{because}, only reported: {'; '.join(excesses)}")


def judge_prototypes(series: Series, footprint: Footprint) -> Check:
    """The check of prototypes of tracepoints that programs attach to; pure."""
    (check,) = run_checks("abi", [existing_prototypes_are_kept], series, footprint)
    return check


def existing_prototypes_are_kept(series: Series, footprint: Footprint) -> Verdict:
    """Existing tracepoints keep their arguments, by position, and get new ones only at
    the end; new tracepoints are declared."""
    verdict = Verdict()
    if not footprint.same_prototypes + sum(
        prototype.base is not None for prototype in footprint.prototypes
    ):
        return verdict.skip(
            "the types of the base kernel name no prototype of a tracepoint "
            "(CONFIG_BPF_EVENTS?), so there is nothing to compare"
        )
    verdict.true(f"{footprint.same_prototypes} tracepoints keep their arguments", True)
    declared = tracepoints(series)
    for prototype in footprint.prototypes:
        if prototype.base is None:
            shown = _arguments(prototype.patched or [])
            verdict.true(
                f"{prototype.event} is declared", prototype.event in declared, shown
            )
        elif prototype.patched is None:
            verdict.true(
                f"{prototype.event} can be attached to as before", False, "is gone"
            )
        else:
            ok = prototype.patched[: len(prototype.base)] == prototype.base
            became = (
                f"{_arguments(prototype.base)} became {_arguments(prototype.patched)}"
            )
            verdict.true(f"{prototype.event} can be attached to as before", ok, became)
    return verdict


def _arguments(types: list[str]) -> str:
    return f"({', '.join(types)})"


def _judge_path(
    verdict: Verdict, path: FunctionPaths, exempt: ExemptionSpec | None
) -> None:
    """Clock reads and calls by name, then the number of instructions."""
    name = path.name if path.binary == "vmlinux" else f"{path.name} [{path.binary}]"
    verdict.equal(
        f"{name}: reads a clock while off", few(path.clock_reads, _SHOWN), "none"
    )
    calls = _undeclared_calls(path, exempt)
    verdict.equal(f"{name}: calls while off", few(calls, _SHOWN), "none")
    limit = exempt.instructions if exempt else 0
    # Otherwise what is added is known as a set only, and what moves to a path that
    # runs more often is not in it.
    places = f"different choices at {few(path.unproven, _SHOWN)}"
    verdict.true(
        f"{name}: every path has its counterpart",
        path.proven or limit > 0,
        places if path.unproven else "" if path.proven else "too many choices",
    )
    how = "more on a path" if path.proven else "that were not reached before"
    verdict.at_most(f"{name}: instructions {how} while off", path.cost, limit)
    if path.longer_loop is not None:
        # An exemption counts a loop once, and so argues for its further rounds as well.
        label = f"{name}: no loop runs more instructions while off"
        verdict.true(label, limit > 0, f"one does at {path.longer_loop}")
    if path.cost > limit or (path.longer_loop is not None and not limit):
        added = [
            line for stretch in path.stretches for line in stretch.added
        ] + path.added
        shown = "; ".join(list(dict.fromkeys(added))[:_LINES])
        if exempt is None:
            function = path.name.partition(".")[0]
            shown += f'; no [[overhead.exemption]] has function = "{function}"'
        verdict.true(f"{name}: nothing is added", False, shown)


def structs_do_not_grow(series: Series, overhead: Overhead) -> Verdict:
    """No existing struct grows, unless declared, and no new record has a hole."""
    verdict = Verdict()
    grown = 0
    for change in _footprint(overhead).structs:
        if change.base is not None and change.patched is not None:
            exempt = _exemption(series, struct=change.name)
            limit = change.base + (exempt.bytes_ if exempt else 0)
            name = f"{change.name}, was {change.was}" if change.was else change.name
            label = f"struct {name}: {few(change.members, _SHOWN)}"
            verdict.at_most(label, change.patched, limit, "bytes")
            grown += 1
        elif change.record:
            verdict.equal(f"{change.name}: bytes in holes", change.patched_holes, 0)
    verdict.true(f"{grown} existing structs changed", True)
    return _unless_reported(series, verdict)


def off_costs_what_is_predicted(series: Series, overhead: Overhead) -> Verdict:
    """A measured operation runs no more instructions than the series predicts, and a
    NOP for each event of another series in the kernel that it makes fire, within what
    boots of the base differ by, and how well repetitions show the difference."""
    verdict = Verdict()
    foreign = _foreign(series, overhead)
    for measurement in overhead.measurements:
        if measurement.difference is None:
            continue
        label = (
            f"{measurement.workload}: instructions per {measurement.operation} added"
        )
        with verdict.excused(foreign or _unsteady(measurement)):
            verdict.at_most(
                f"{label} while off",
                round(measurement.difference, 3),
                round(measurement.limit, 3),
            )
        _judge_upper_quartile(verdict, label, measurement)
    return _unless_reported(series, verdict, foreign) if foreign else verdict


def _unsteady(measurement: Measurement) -> str:
    """Why a difference above the limit is no verdict; empty if it is one.

    A series may not cost more because its kernel is noisier, so what only the patched
    boots differ by lets nothing pass.
    """
    spread = _spread(measurement, "off")
    if abs(measurement.difference or 0) > spread:
        return ""
    return (
        f"{measurement.workload}: boots of the patched kernel differ by "
        f"{spread:,.1f} instructions per {measurement.operation}"
    )


def _judge_upper_quartile(
    verdict: Verdict, label: str, measurement: Measurement
) -> None:
    """Medians do not show what less than half of the repetitions cost more.

    The quartiles of boots differ by more than their medians do, and by chance as well:
    no verdict follows from a difference of these alone.
    """
    quartiles = {
        sample.mode: [boot.upper for boot in sample.boots if boot.upper is not None]
        for sample in measurement.samples
        if sample.mode in ("base", "off")
    }
    if len(quartiles) < 2 or not all(quartiles.values()):
        return  # a report of an earlier version
    base, off = quartiles["base"], quartiles["off"]
    difference = statistics.median(off) - statistics.median(base)
    limit = measurement.limit + max(max(row) - min(row) for row in (base, off))
    because = (
        f"{measurement.workload}: a quarter of the repetitions takes {difference:,.1f} "
        f"instructions per {measurement.operation} more than of the base's"
    )
    with verdict.excused(because):
        verdict.at_most(
            f"{label} while off to the upper quartile of repetitions",
            round(difference, 3),
            round(limit, 3),
        )


def measured_operations_cross_sites(series: Series, overhead: Overhead) -> Verdict:
    """An operation that is declared to cross sites of the events does: they fire when
    they are on, or more instructions are counted while they are off."""
    verdict = Verdict()
    crossing = {workload.name for workload in series.measures if workload.nops}
    for measurement in overhead.measurements:
        if measurement.workload in crossing:
            hits = measurement.hits or 0
            more = (
                measurement.difference - measurement.others
                if measurement.difference
                and measurement.visible
                and abs(measurement.difference) > _spread(measurement, "off")
                else 0
            )
            verdict.true(
                f"{measurement.workload}: crosses a site",
                hits > 0 or more > 0,
                f"{hits:.3g} events when on, {more:+.3g} instructions while off",
            )
    return verdict


def visible(measurement: Measurement) -> bool:
    """Whether patched and base differ by more than boots of the base do, and by more
    than repetitions may show by chance."""
    difference = measurement.difference
    return difference is not None and abs(difference) > measurement.resolution


def _spread(measurement: Measurement, mode: Mode) -> float:
    """What the medians of boots in ``mode`` differ by; 0 if there are none."""
    spreads = [sample.spread for sample in measurement.samples if sample.mode == mode]
    return max(spreads, default=0)


def _footprint(overhead: Overhead) -> Footprint:
    assert overhead.footprint is not None
    return overhead.footprint


def _exemption(
    series: Series, *, function: str = "", struct: str = ""
) -> ExemptionSpec | None:
    for exemption in series.exemptions:
        if function and exemption.function == function.partition(".")[0]:
            return exemption
        if struct and exemption.struct == struct:
            return exemption
    return None
