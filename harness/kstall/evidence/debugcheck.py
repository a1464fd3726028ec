# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict on a series under debug kernels (KASAN and lockdep; KCSAN); pure.

Nothing is hidden: each report of either kernel is a line of a check.  A report counts
against the series if its kernel prints it and the base, put through the same, does not.

What the apparatus left undone gives no verdict: a deadline that expired, be it that of
the guest, bpftrace that did not attach in time, an agent that gave up.  It counts if
the kernel refused something, or once a report or a panic counts against the series.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kstall_guest import errors

from ..guest import CYCLES, RELOADS, SHARE, TOGGLES, Flavour, KernelReport, Watched
from ..series import Series, Tracepoint
from ..verdict import Check, Verdict, run_checks
from . import csource, races

_SANITIZE = re.compile(
    r"(?m)^(?P<tool>K[AC]SAN)_SANITIZE(?:_(?P<stem>\S+)\.o)?\s*:?=\s*(?P<what>[ny])\b"
)
_LINES = 40
# The kernel counts these itself, and prints the first few.
_COUNTED = ("dma-errors", "object-warnings")
_SUSPECTED = re.compile(r"kmemleak: \w+ new suspected memory leaks")
_NO_FACTS = "the guest does not say what was done to its kernel"


@dataclass(frozen=True)
class GuestPair:
    """Both guests of one flavour.

    The base is only run if the patched guest leaves something in doubt (`in_doubt`).
    ``known`` has the signatures of all reports of any guest of the base.
    ``unanswered`` says why the base run is incomplete; empty if it is complete.
    ``places`` has the source lines of races of the patched kernel, as far as known.
    """

    patched: Watched
    base: Watched | None
    known: frozenset[str]
    unanswered: str = ""
    places: races.Places = field(default_factory=dict)


@dataclass(frozen=True)
class ChangedCode:
    """What the patches of all series changed in a kernel: a fault of one series may
    show in the guest of any other.

    ``touched`` are the functions of the files that they change, ``changed`` those of
    them that differ from the base, and their callers, into which a changed function may
    have been inlined.  ``events`` are the new tracepoints.  ``unwatched`` has files
    that a sanitizer is not compiled into, each with the Makefile's setting.
    """

    touched: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()
    unwatched: tuple[tuple[str, str], ...] = ()
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @cached_property
    def edits(self) -> Mapping[str, races.FileEdit]:
        """What became of each source; it takes seconds, and only races need it."""
        return {path: races.edit_of(*texts) for path, texts in self.sources.items()}


@dataclass(frozen=True)
class Saved:
    """The guests of a series, in a kernel with ``code``."""

    pairs: Mapping[Flavour, GuestPair]
    code: ChangedCode = ChangedCode()


def code_of(
    sources: Mapping[str, tuple[str, str]], events: Collection[str]
) -> ChangedCode:
    """What the patches changed in ``sources``, by path: before and after them."""
    touched: dict[str, str] = {}
    changed: set[str] = set()
    for before, after in sources.values():
        old, new = csource.functions(before), csource.functions(after)
        changed |= {name for name, text in new.items() if old.get(name) != text}
        # A header has stubs for what is elsewhere.
        for name, text in new.items():
            touched[name] = touched.get(name, "") + text
    word = re.compile(r"\w+")
    callers = {
        name for name, text in touched.items() if changed & {*word.findall(text)}
    }
    return ChangedCode(
        frozenset(touched),
        frozenset(changed | callers),
        frozenset(events),
        sources=sources,
    )


def in_kernel(path: str) -> bool:
    """Whether ``path`` is a C source that can be a part of the kernel."""
    return path.endswith(".c") and not path.startswith("tools/")


def unwatched(path: str, makefile: str) -> Iterator[str]:
    """The settings by which ``makefile`` leaves sanitizers out of the source at
    ``path``.

    A setting for one object overrides one for all.
    """
    stem = path.rpartition("/")[2].removesuffix(".c")
    settings: dict[str, tuple[bool, re.Match[str]]] = {}
    for match in _SANITIZE.finditer(makefile):
        alone = match["stem"] is not None
        if alone and match["stem"] != stem:
            continue
        if match["tool"] not in settings or alone >= settings[match["tool"]][0]:
            settings[match["tool"]] = (alone, match)
    for _, match in settings.values():
        if match["what"] == "n":
            yield " ".join(match[0].split())


def judge(series: Series, saved: Saved) -> tuple[Check, ...]:
    """All checks of kind ``debug``."""
    return run_checks("debug", _CHECKS, series, saved)


def left_out(series: Series) -> tuple[Check, ...]:
    """What is said of a series of which no workload is run: a check that is skipped."""
    return run_checks("debug", (no_workload_is_left_out,), series, Saved({}))


def in_doubt(saved: Saved) -> bool:
    """Whether the base has to be run: because the kernel reports or counts what would
    count against the series unless the base does the same, or did not come to its
    end."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        counters = pair.patched.facts.get("counters", {})
        counted = [counters.get(name) for name in _COUNTED]
        if (
            pair.patched.status != "completed"
            or any(
                leak.signature not in pair.known for leak in pair.patched.leaked or ()
            )
            or any(isinstance(count, int) and count > 0 for count in counted)
        ):
            return True
        _compare_reports(verdict, saved, flavour, pair.patched.reports)
    return not all(comparison.ok for comparison in verdict.comparisons)


def in_doubt_of_a_race(saved: Saved) -> bool:
    """Whether a guest that did all that it was to do showed a race that the base has
    not shown and that counts against the series."""
    return any(
        finished(pair.patched)
        and any(
            report.signature not in pair.known and not _kept(pair, saved.code, report)
            for report in suspected_races(pair.patched, saved.code)
        )
        for pair in saved.pairs.values()
    )


def suspected_races(patched: Watched, code: ChangedCode) -> list[KernelReport]:
    """The races that count against a series if the base does not have them."""
    return [
        report
        for report in patched.reports
        if report.kind == "kcsan" and _in_patched_code(code, report)
    ]


def finished(watched: Watched) -> bool:
    """Whether a guest did all that it was to do."""
    return watched.status == "completed" and _agent_status(watched) == "completed"


def answered(flavour: Flavour, base: Watched) -> bool:
    """Whether a guest of the base did all that it was to do, looked for leaks, and has
    all of its log."""
    looked = flavour != "debug" or base.leaked is not None
    return finished(base) and looked and not base.lost


def _agent_status(watched: Watched) -> str:
    status = str(watched.agent.get("status", "unknown"))
    if error := watched.agent.get("error"):
        status += f": {error.get('message')}"
    return status


def _excuse(saved: Saved, flavour: Flavour, because: str = "") -> str:
    """What the apparatus did, so that less was done to a kernel than it should be.

    That is how its guest ended, if it did not come to its end, or else ``because``.
    Empty if the kernel is the reason: it panicked, or reported what counts against the
    series, or the agent says so.  That it hung says nothing without such a report: it
    may have had too little time.
    """
    pair = saved.pairs[flavour]
    if pair.patched.status == "panic":
        return ""
    reports = Verdict()
    _compare_reports(reports, saved, flavour, pair.patched.reports)
    if not _passes(reports) and not pair.unanswered:
        return ""
    if not finished(pair.patched):
        if errors.fault_of(pair.patched.agent.get("error") or {}) == "series":
            return ""
        because = f"the guest ended as {pair.patched.status}, its agent as "
        because += _agent_status(pair.patched)
    return because and f"{flavour}: {because}"


def _trouble(watched: Watched, name: str) -> str:
    """What kept the workload that was run as ``name`` from its end, if that was the
    apparatus; empty if it was not."""
    for entry in watched.agent.get("workloads", []):
        if entry["name"] != name or entry.get("status") == "exited":
            continue
        faults = entry.get("errors") or []
        if any(errors.fault_of(error) == "series" for error in faults):
            return ""
        return f"workload {name}: {_messages(faults) or entry.get('status')}"
    return ""


def _messages(faults: Collection[Mapping[str, Any]]) -> str:
    """What errors of the agent say."""
    return "; ".join(str(error.get("message", error.get("kind"))) for error in faults)


def worth_keeping(series: Series, flavour: Flavour, watched: Watched) -> bool:
    """Whether no check finds fault with a guest, so that it need not be run again.

    A race is no reason to run it again: a boot in which it does not show would hide it.
    """
    saved = Saved({flavour: GuestPair(watched, None, frozenset())})
    return all(check.status in ("pass", "skip") for check in judge(series, saved))


def no_new_splats(series: Series, saved: Saved) -> Verdict:
    """The guest comes to its end, lockdep and KCSAN watch until then, and its kernel,
    whose log is complete, reports nothing that the base does not, except data races
    between functions of files that no series touches, with no changed function on a
    stack, and those at lines that the base has as well."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        with verdict.excused(_excuse(saved, flavour)):
            _compare_end(verdict, f"{flavour}: guest", pair.patched)
        lost = pair.patched.lost
        with verdict.excused(lost and f"{flavour}: the kernel's log lost messages"):
            verdict.equal(f"{flavour}: messages that the log lost", lost, "")
        _compare_watchers(verdict, saved, flavour)
    # The base cannot excuse any of that.
    before = len(verdict.comparisons)
    for flavour, pair in saved.pairs.items():
        _compare_counters(verdict, saved, flavour)
        count = f"{len(pair.patched.reports)} of this kernel, " + (
            f"{len(pair.base.reports)} of the base"
            if pair.base is not None
            else f"and {pair.unanswered or 'the base was not run'}"
        )
        verdict.true(f"{flavour}: reports were read", True, count)
        _compare_reports(verdict, saved, flavour, pair.patched.reports)
        if pair.base is not None:
            _list_base_reports(verdict, flavour, pair.base.reports)
            ended = f"{pair.base.status}, its agent: {_agent_status(pair.base)}"
            verdict.true(f"{flavour}: how the base's guest ended", True, ended)
    _excuse_for_base(verdict, saved.pairs, before)
    return verdict


def _passes(verdict: Verdict) -> bool:
    return all(comparison.ok for comparison in verdict.comparisons)


def _excuse_for_base(
    verdict: Verdict, pairs: Mapping[Flavour, GuestPair], since: int
) -> None:
    """Excuse what does not hold for want of a complete base, from a comparison on."""
    for flavour, pair in pairs.items():
        failing = [
            number
            for number, comparison in enumerate(verdict.comparisons)
            if number >= since
            and not comparison.ok
            and comparison.label.startswith(f"{flavour}: ")
        ]
        if failing and pair.unanswered:
            label = verdict.comparisons[failing[0]].label
            reason = f"unknown whether the base reports it, too: {label}: "
            for number in failing:
                verdict.excuses.setdefault(number, reason + pair.unanswered)


def _list_base_reports(
    verdict: Verdict, flavour: Flavour, reports: Collection[KernelReport]
) -> None:
    """Add the base's reports to the comparisons."""
    for report in _distinct(reports):
        verdict.true(f"{flavour}: reported by the base: {report.signature}", True)


def _compare_end(verdict: Verdict, label: str, watched: Watched) -> None:
    """Comparisons of how the guest and its agent ended."""
    verdict.equal(f"{label} ended as", watched.status, "completed")
    verdict.equal(f"{label}'s agent", _agent_status(watched), "completed")


def _compare_watchers(verdict: Verdict, saved: Saved, flavour: Flavour) -> None:
    """Whether the kernel's debugging watched to the end.

    lockdep gives up at its own first report, and at KASAN's first.
    """
    watched = saved.pairs[flavour].patched
    counters = watched.facts.get("counters", {})
    unknown = _excuse(saved, flavour, _NO_FACTS)
    if flavour == "kcsan":
        enabled = counters.get("kcsan-enabled")
        count = counters.get("kcsan-watchpoints")
        with verdict.excused(unknown if enabled is None else ""):
            verdict.equal(f"{flavour}: KCSAN is on", enabled, 1)
        with verdict.excused(unknown if count is None else ""):
            verdict.at_least(f"{flavour}: accesses that KCSAN watched", count or 0, 1)
        return
    first = next(
        (report.signature for report in watched.reports),
        "no report",
    )
    lockdep = watched.facts.get("lockdep")
    with verdict.excused(unknown if lockdep is None else ""):
        verdict.true(f"{flavour}: lockdep watched to the end", bool(lockdep), first)
    disabled = counters.get("dma-disabled", "unknown")
    with verdict.excused(unknown if disabled == "unknown" else ""):
        verdict.equal(f"{flavour}: DMA debugging gave up", disabled, 0)


def _compare_counters(verdict: Verdict, saved: Saved, flavour: Flavour) -> None:
    """Whether the kernel's counters are no higher than in the base."""
    if flavour == "kcsan":
        return
    pair = saved.pairs[flavour]
    counters = pair.patched.facts.get("counters", {})
    base_counters = pair.base.facts.get("counters", {}) if pair.base else {}
    for name in _COUNTED:
        count = counters.get(name, "unknown")
        known = isinstance(count, int)
        with verdict.excused("" if known else _excuse(saved, flavour, _NO_FACTS)):
            verdict.true(
                f"{flavour}: {name} that were counted",
                known and count <= base_counters.get(name, 0),
                f"{count}, and {base_counters.get(name, 0)} in the base",
            )


def _compare_reports(
    verdict: Verdict,
    saved: Saved,
    flavour: Flavour,
    reports: Collection[KernelReport],
) -> None:
    """Add all reports to the comparisons; those that the series can cause have to be
    in the base, too.

    KCSAN samples, so a race of the base may show in one boot and not in the next.  A
    new race takes, as a rule, a new access, or an access from a new place.  So a race
    that the base never showed counts against the series if either of the functions that
    race is in a file that any series touches, or if a changed function is on either
    stack, unless all lines on both stacks are the base's (`races.kept`).

    This misses races elsewhere that a lock prevented which the patches removed,
    accesses of which KCSAN does not know the origin, and functions that were inlined
    into a file that no series touches, or through a second function.
    """
    pair = saved.pairs[flavour]
    same: dict[str, list[KernelReport]] = {}
    for report in reports:
        same.setdefault(report.signature, []).append(report)
    for signature, group in same.items():
        label = f"{flavour}: {signature}"
        suspected = [
            report
            for report in group
            if report.kind != "kcsan" or _in_patched_code(saved.code, report)
        ]
        # Races with one signature may be at several lines.
        new = [report for report in suspected if not _kept(pair, saved.code, report)]
        if _SUSPECTED.search(signature):
            verdict.true(label, True, "no_leaks judges those that remain")
        elif signature in pair.known:
            verdict.true(label, True, "the base reports it, too")
        elif not suspected:
            verdict.true(label, True, "not in code that the patches touch")
        elif not new:
            lines = _kept(pair, saved.code, suspected[0])
            verdict.true(label, True, f"only lines that the base has as well: {lines}")
        else:
            excerpt = new[-1].excerpt.splitlines()[:_LINES]
            verdict.true(label, False, "\n".join(excerpt))


def _in_patched_code(code: ChangedCode, report: KernelReport) -> bool:
    return bool(
        report.accesses & code.touched
        or report.functions & code.changed
        or any(
            name in function for function in report.functions for name in code.events
        )
    )


def _kept(pair: GuestPair, code: ChangedCode, report: KernelReport) -> str:
    """The lines of touched files on the stacks of a race that is taken for the base's;
    empty for any other report."""
    if report.kind != "kcsan":
        return ""
    lines = races.kept(report.excerpt, pair.places, code.edits)
    return ", ".join(f"{line.file}:{line.number}" for line in lines)


def _distinct(reports: Collection[KernelReport]) -> Iterator[KernelReport]:
    yield from {report.signature: report for report in reports}.values()


def no_leaks(series: Series, saved: Saved) -> Verdict:
    """At the end, kmemleak finds no leak that it does not find in the base."""
    verdict = Verdict()
    before = 0
    for flavour, pair in saved.pairs.items():
        if flavour != "debug":
            continue
        with verdict.excused(_excuse(saved, flavour, "kmemleak gave up")):
            verdict.true(
                f"{flavour}: kmemleak looked for leaks", pair.patched.leaked is not None
            )
        before = len(verdict.comparisons)
        for leak in _distinct(pair.patched.leaked or ()):
            in_base = leak.signature in pair.known
            detail = "the base reports it, too" if in_base else leak.excerpt
            verdict.true(f"{flavour}: {leak.signature}", in_base, detail)
        if pair.base is not None:
            _list_base_reports(verdict, flavour, pair.base.leaked or ())
    if not verdict.comparisons:
        verdict.skip("no kernel with kmemleak was run")
    _excuse_for_base(verdict, saved.pairs, before)
    return verdict


def toggles_survived(series: Series, saved: Saved) -> Verdict:
    """Each new event was switched on and off two hundred times or more, by all readers
    at once and by each 25 times or more, with stack traces and filters, and at least
    one of them recorded it; bpftrace was attached at least once."""
    verdict = Verdict()
    if not series.spec.tracepoint:
        return verdict.skip("the series adds no event")
    for flavour, pair in saved.pairs.items():
        readers = pair.patched.facts.get("readers", {})
        visits = pair.patched.facts.get("bpftrace", {})
        for point in series.spec.tracepoint:
            key = point.symbol if point.kind == "bare" else point.event
            turns: list[int] = []
            late = f"too little time to switch {point.name} often enough"
            slow = _excuse(saved, flavour, late if readers else _NO_FACTS)
            for reader in _readers_of(point):
                count = readers.get(reader, {}).get(key, {})
                label = f"{flavour}: {point.name}: {reader}"
                turns.append(count.get("toggles", 0))
                if _cannot_switch(readers, reader, key):
                    slow = ""
                with verdict.excused(slow):
                    verdict.at_least(f"{label}: on and off", turns[-1], SHARE)
                failed = f"{count.get('failed', 0)} {count.get('error', '')}".strip()
                verdict.equal(f"{label}: failures", failed, "0")
            with verdict.excused(slow):
                verdict.at_least(
                    f"{flavour}: {point.name}: on and off", sum(turns), TOGGLES
                )
            sightings = [
                counts.get(key, {}).get("seen", 0) for counts in readers.values()
            ]
            # A workload that was cut short may have been the one that shows it.
            unseen = slow if min(turns) < SHARE or sum(turns) < TOGGLES else ""
            with verdict.excused(unseen or _excuse_of_loads(series, saved, flavour)):
                verdict.at_least(
                    f"{flavour}: {point.name}: seen",
                    sum(sightings) + visits.get("seen", {}).get(key, 0),
                    1,
                )
        faults = visits.get("errors", [{"message": "it was not started"}])
        refused = any(errors.fault_of(error) == "series" for error in faults)
        said = _messages(faults)
        alone = _excuse(saved, flavour, said or "bpftrace had no time for a visit")
        with verdict.excused("" if refused else alone):
            # Once is enough: it takes minutes there, and the other readers do the same.
            rounds = visits.get("rounds", 0)
            verdict.at_least(f"{flavour}: visits of bpftrace", rounds, 1)
            verdict.equal(f"{flavour}: errors of bpftrace", said, "")
    return verdict


def _cannot_switch(
    readers: Mapping[str, Mapping[str, Mapping[str, int]]], reader: str, key: str
) -> bool:
    """Whether a reader cannot switch an event because the kernel refuses that, or has
    no such event.

    More time would not help.  Nor is a lack of memory an excuse: it takes very little,
    and a guest in which processes were killed for memory is not judged at all.
    """
    if reader not in readers:
        return False
    count = readers[reader].get(key)
    if count is None or count.get("failed"):
        return True
    return bool(count.get("absent")) and not count.get("toggles")


def _excuse_of_loads(series: Series, saved: Saved, flavour: Flavour) -> str:
    """What the apparatus did to the workloads that are run on these kernels."""
    watched = saved.pairs[flavour].patched
    troubles = [
        trouble
        for load in series.spec.workload
        if load.not_debugged is None and (trouble := _trouble(watched, load.name))
    ]
    return _excuse(saved, flavour, "; ".join(troubles))


def _readers_of(point: Tracepoint) -> tuple[str, ...]:
    """Only BPF can attach to a bare tracepoint."""
    return ("raw",) if point.kind == "bare" else ("ftrace", "perf", "bpf", "raw")


def cpu_hotplug_survived(series: Series, saved: Saved) -> Verdict:
    """Each processor but the first went offline and came back, many times, while a
    workload ran and the events were switched."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        facts = pair.patched.facts.get("cpus", {})
        cycles = facts.get("cycles", {})
        with verdict.excused(_excuse(saved, flavour, "" if facts else _NO_FACTS)):
            verdict.at_least(f"{flavour}: processors", len(cycles), 1)
            for number, count in cycles.items():
                verdict.at_least(f"{flavour}: processor {number}: away", count, CYCLES)
        _compare_runs(verdict, saved, flavour, "cpus", "workloads meanwhile")
    return verdict


def modules_reloaded(series: Series, saved: Saved) -> Verdict:
    """Each module of the workloads, and each that has a new event, was unloaded while
    ftrace switched the events, loaded again, and used."""
    verdict = Verdict()
    names = {
        name
        for load in series.spec.workload
        if load.not_debugged is None
        for name in load.modules
    }
    if not names:
        return verdict.skip("no workload needs a module")
    for flavour, pair in saved.pairs.items():
        facts = pair.patched.facts.get("modules", {})
        owners = facts.get("owners", {})
        with verdict.excused(_excuse(saved, flavour, "" if facts else _NO_FACTS)):
            for name in sorted({*names, *owners.values()}):
                count = facts.get("unloads", {}).get(name, 0)
                verdict.at_least(f"{flavour}: {name}: unloaded", count, RELOADS)
        _compare_runs(verdict, saved, flavour, "modules", "workloads after that")
    return verdict


def _compare_runs(
    verdict: Verdict, saved: Saved, flavour: Flavour, step: str, label: str
) -> None:
    """Whether a workload was run in a ``step`` of the stress, and none failed there.

    What the kernel refuses to let go of is no fault of the apparatus.
    """
    watched = saved.pairs[flavour].patched
    facts = watched.facts.get(step, {})
    faults = facts.get("errors", [{"message": _NO_FACTS}])
    own = [error for error in faults if errors.fault_of(error) == "apparatus"]
    trouble = _trouble(watched, step) or _messages(own)
    with verdict.excused(_excuse(saved, flavour, trouble)):
        verdict.at_least(f"{flavour}: {label}", facts.get("runs", 0), 1)
    with verdict.excused(_excuse(saved, flavour, trouble) if own == faults else ""):
        verdict.equal(f"{flavour}: errors", _messages(faults), "")


def workloads_come_to_their_end(series: Series, saved: Saved) -> Verdict:
    """Each workload that is run on these kernels ends by itself; its exit status is
    reported and not judged, because these kernels are too slow for its time limits."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        ends = {
            entry["name"]: entry for entry in pair.patched.agent.get("workloads", [])
        }
        for load in series.spec.workload:
            if load.not_debugged is not None:
                continue
            facts = ends.get(load.name, {})
            trouble = _trouble(pair.patched, load.name) if facts else _NO_FACTS
            with verdict.excused(trouble and _excuse(saved, flavour, trouble)):
                verdict.true(
                    f"{flavour}: {load.name}",
                    _ended(facts),
                    f"{facts.get('status', 'not run')}, "
                    f"exit status {facts.get('exit_status')}",
                )
    return verdict


def _ended(facts: Mapping[str, Any]) -> bool:
    """Whether a workload ended by itself, even if it complained of being too slow."""
    faults = facts.get("errors") or []
    slow = bool(faults) and all(fault.get("kind") == "not-in-time" for fault in faults)
    return facts.get("status") == "exited" or (slow and facts.get("exit_status") == 0)


def no_workload_is_left_out(series: Series, saved: Saved) -> Verdict:
    """Each workload of the series is run on these kernels."""
    verdict = Verdict()
    reasons: dict[str, list[str]] = {}
    for load in series.spec.workload:
        if load.not_debugged is not None:
            reason = load.not_debugged
            if load.debugged_with is not None:
                reason += f" ({load.debugged_with}, which ends that, is not there)"
            reasons.setdefault(reason, []).append(load.name)
    if reasons:
        # Those that are run are compared by `workloads_come_to_their_end`.
        return verdict.skip(
            "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        )
    for load in series.spec.workload:
        verdict.true(load.name, True)
    return verdict


def no_file_is_left_out(series: Series, saved: Saved) -> Verdict:
    """The kernel's Makefiles leave none of the sources that the series touches out of
    KASAN or KCSAN."""
    verdict = Verdict()
    left_out: dict[str, list[str]] = {}
    for path, setting in saved.code.unwatched:
        if path in series.touches:
            left_out.setdefault(setting, []).append(path)
    sources = sorted(filter(in_kernel, series.touches))
    if left_out:
        reasons = [
            f"{', '.join(files)}: {setting}" for setting, files in left_out.items()
        ]
        unseen = {path for paths in left_out.values() for path in paths}
        seen = [path for path in sources if path not in unseen]
        if seen:
            reasons.append(f"not left out: {', '.join(seen)}")
        verdict.skip("; ".join(reasons))
    elif not sources:
        verdict.skip("the series touches no kernel source")
    else:
        for path in sources:
            verdict.true(path, True)
    return verdict


_Check = Callable[[Series, Saved], Verdict]
_CHECKS: tuple[_Check, ...] = (
    no_new_splats,
    no_leaks,
    toggles_survived,
    cpu_hotplug_survived,
    modules_reloaded,
    workloads_come_to_their_end,
    no_workload_is_left_out,
    no_file_is_left_out,
)
