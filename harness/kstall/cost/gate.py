# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict on what a series costs: one NOP a site while off, and nothing else.

What is more than that a series has to declare, with a reason, in ``[overhead]``.
Judging is pure: it reads what was found and measured before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator

from ..series import Exemption, Series
from ..verdict import Check, Verdict, run_check
from .costs import Footprint, FunctionPaths, Measurement, Overhead, Site

_SHOWN = 3
_LINES = 8
_Check = Callable[[Series, Overhead], Verdict]


def tracepoints(series: Series) -> dict[str, tuple[str, ...]]:
    """The functions with a site, by the symbol of the tracepoint."""
    return {
        # DECLARE_TRACE() adds the suffix, TRACE_EVENT() does not.
        f"{point.name}_tp" if point.kind == "bare" else point.name: tuple(
            dict.fromkeys(site.function for site in point.site)
        )
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


def judge(series: Series, found: Overhead) -> tuple[Check, ...]:
    """All checks of what a series costs, as far as that is known."""
    return tuple(
        run_check(
            function.__name__,
            "overhead",
            " ".join((function.__doc__ or "").split()),
            functools.partial(function, series),
            found,
        )
        for function in _checks_for(series, found)
    )


def _checks_for(series: Series, found: Overhead) -> Iterator[_Check]:
    if found.footprint is not None:
        # A series of fixes has no event, and this one nothing to compare.
        if series.spec.tracepoint:
            yield off_is_a_nop
        yield disabled_path_unchanged
        yield structs_do_not_grow
    if found.mitigated is not None:
        yield mitigations_add_nothing
    if found.measurements:
        yield off_costs_what_is_predicted
        if any(one.nops for one in series.measures):
            yield measured_operations_cross_sites


def off_is_a_nop(series: Series, found: Overhead) -> Verdict:
    """Each new event is compiled into the declared functions only, as one NOP while
    off, with its code out of line."""
    verdict = Verdict()
    sites, nops = _footprint(found).sites, _footprint(found).nops
    for event, functions in tracepoints(series).items():
        here = [site for site in sites if site.event == event]
        names = sorted({site.declared or f"{site.function} (!)" for site in here})
        if series.spec.discovered:
            # Where they are was read in sources, in which macros hide things.
            verdict.at_least(f"{event}: sites", len(here), 1)
        else:
            verdict.equal(
                f"{event}: functions with a site", _few(names), _few(sorted(functions))
            )
        for site in here:
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


def disabled_path_unchanged(series: Series, found: Overhead) -> Verdict:
    """While the events are disabled, no path of an existing function runs more
    instructions than before, other than the NOPs of its sites, unless declared."""
    verdict = Verdict()
    footprint = _footprint(found)
    for path in footprint.paths:
        exempt = _exemption(series, function=path.name)
        _judge_path(verdict, path, exempt)
    count = footprint.same_paths
    verdict.true(f"{count} other functions changed and run what they did", True)
    verdict.true(f"{footprint.unchanged} functions are the same", True)
    return _of_somebody_else(series, verdict)


def mitigations_add_nothing(series: Series, found: Overhead) -> Verdict:
    """In touched objects that are compiled with what distributions guard branches and
    returns by, an event that is off is a NOP as well, and no path has more instructions
    than is declared for kernels without."""
    verdict = Verdict()
    mitigated = found.mitigated
    assert mitigated is not None
    for event in tracepoints(series):
        here = [site for site in mitigated.sites if site.event == event]
        verdict.at_least(f"{event}: sites", len(here), 1)
        for site in here:
            _judge_site(verdict, site, mitigated.nops)
    for path in mitigated.paths:
        _judge_path(verdict, path, _exemption(series, function=path.name))
    count = mitigated.same_paths
    verdict.true(f"{count} other functions changed and run what they did", True)
    verdict.true(f"{mitigated.unchanged} functions are the same", True)
    return _of_somebody_else(series, verdict)


def _of_somebody_else(series: Series, verdict: Verdict) -> Verdict:
    """``verdict``, unless its findings cannot be argued for.

    Who only receives a series cannot argue for it: what it costs beyond its NOPs is
    told, as the reason why the check decides nothing and compares nothing.
    """
    told = [
        f"{one.label}: {one.detail or one.observed}"
        for one in verdict.comparisons
        if not one.ok
    ]
    if not (series.spec.discovered and told):
        return verdict
    others = len(verdict.comparisons) - len(told)
    if others:
        told.append(f"with nothing to tell: {others} more comparisons")
    skipped = Verdict()
    skipped.skip(f"somebody else's patches: {'; '.join(told)}")
    return skipped


def judge_prototypes(series: Series, found: Footprint) -> Check:
    """The check of what became of tracepoints that programs attach to; pure."""
    return run_check(
        existing_prototypes_are_kept.__name__,
        "abi",
        " ".join((existing_prototypes_are_kept.__doc__ or "").split()),
        functools.partial(existing_prototypes_are_kept, series),
        found,
    )


def existing_prototypes_are_kept(series: Series, found: Footprint) -> Verdict:
    """Existing tracepoints have the arguments that they had, by position, and get new
    ones at the end only; new tracepoints are declared."""
    verdict = Verdict()
    if not found.same_prototypes + sum(
        one.base is not None for one in found.prototypes
    ):
        verdict.skip(
            "the types of the base kernel name no prototype of a tracepoint "
            "(CONFIG_BPF_EVENTS?), so there is nothing to compare"
        )
        return verdict
    verdict.true(
        f"{found.same_prototypes} tracepoints have the arguments they had", True
    )
    declared = tracepoints(series)
    for one in found.prototypes:
        if one.base is None:
            shown = _arguments(one.patched or [])
            verdict.true(f"{one.event} is declared", one.event in declared, shown)
        elif one.patched is None:
            verdict.true(f"{one.event} can be attached to as before", False, "is gone")
        else:
            ok = one.patched[: len(one.base)] == one.base
            became = f"{_arguments(one.base)} became {_arguments(one.patched)}"
            verdict.true(f"{one.event} can be attached to as before", ok, became)
    return verdict


def _arguments(types: list[str]) -> str:
    return f"({', '.join(types)})"


def _judge_path(
    verdict: Verdict, path: FunctionPaths, exempt: Exemption | None
) -> None:
    """Clock reads and calls by name, then the number of instructions."""
    name = path.name if path.binary == "vmlinux" else f"{path.name} [{path.binary}]"
    verdict.equal(
        f"{name}: reads a clock while off", _few(path.clock_reads) or "no", "no"
    )
    allowed = exempt.calls if exempt else ()
    calls = [line for line in path.calls if line.split()[-1] not in allowed]
    verdict.equal(f"{name}: calls while off", _few(calls) or "none", "none")
    # The order of blocks changes with anything; on a hot path even that counts.
    most = path.most if path.hot else path.work
    how = "more on a path" if path.proven else "that were not reached before"
    limit = exempt.instructions if exempt else 0
    verdict.at_most(f"{name}: instructions {how} while off", most, limit)
    if most > limit:
        added = [line for one in path.stretches for line in one.added] + path.added
        shown = "; ".join(list(dict.fromkeys(added))[:_LINES])
        verdict.true(f"{name}: nothing is added", False, shown)


def structs_do_not_grow(series: Series, found: Overhead) -> Verdict:
    """No struct that was there before grows, and no new record has a hole."""
    verdict = Verdict()
    grown = 0
    for change in _footprint(found).structs:
        if change.base is not None and change.patched is not None:
            exempt = _exemption(series, struct=change.name)
            limit = change.base + (exempt.bytes_ if exempt else 0)
            label = f"struct {change.name}: {_few(change.members)}"
            verdict.at_most(label, change.patched, limit, "bytes")
            grown += 1
        elif change.record:
            verdict.equal(f"{change.name}: bytes in holes", change.patched_holes, 0)
    verdict.true(f"{grown} structs of before changed", True)
    return _of_somebody_else(series, verdict)


def off_costs_what_is_predicted(series: Series, found: Overhead) -> Verdict:
    """A measured operation runs no more instructions than the series says, and a NOP
    for each event of another series in the kernel that it makes fire, as far as boots
    of one kernel agree."""
    verdict = Verdict()
    for one in found.measurements:
        if one.difference is None:
            continue
        verdict.at_most(
            f"{one.workload}: instructions per {one.operation} added while off",
            round(one.difference, 3) if one.visible else 0,
            round(one.predicted + one.others + one.resolution, 3),
        )
    return verdict


def measured_operations_cross_sites(series: Series, found: Overhead) -> Verdict:
    """An operation that is said to cross sites of the events does: they fire when they
    are on, or more instructions are counted while they are off."""
    verdict = Verdict()
    crossing = {one.name for one in series.measures if one.nops}
    for one in found.measurements:
        if one.workload in crossing:
            hits = next((s.hits for s in one.samples if s.hits is not None), 0)
            more = one.difference - one.others if one.visible and one.difference else 0
            verdict.true(
                f"{one.workload}: crosses a site",
                hits > 0 or more > 0,
                f"{hits:.3g} events when on, {more:+.3g} instructions while off",
            )
    return verdict


def visible(one: Measurement) -> bool:
    """Whether patched and base differ by more than boots of one kernel do."""
    spread = max(
        [one.resolution]
        + [sample.spread for sample in one.samples if sample.mode in ("base", "off")]
    )
    return one.difference is not None and abs(one.difference) > spread


def _footprint(found: Overhead) -> Footprint:
    assert found.footprint is not None
    return found.footprint


def _exemption(
    series: Series, *, function: str = "", struct: str = ""
) -> Exemption | None:
    for one in series.exemptions:
        if function and one.function == function.partition(".")[0]:
            return one
        if struct and one.struct == struct:
            return one
    return None


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
