# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict on a series under kernels that watch themselves; pure.

Nothing is hidden: each complaint of either kernel is a line of a check.  Held against
the series is what its kernel says and the base, put through the same, does not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from ..guest import CYCLES, RELOADS, SHARE, TOGGLES, Complaint, Flavour, Watched
from ..series import Series, Tracepoint
from ..verdict import Check, Verdict, run_check

# How a function's definition begins: nothing else starts at the margin, and so does
# the brace that its body begins with.
_DEFINITION = re.compile(
    r"(?m)^(?:[A-Za-z_][\w\s*]*?\b)?(\w+)\((?P<args>[^;{}]*)(?:\{|\n\{)"
)
_SYSCALL = re.compile(r"(?:COMPAT_)?SYSCALL_DEFINE\d")
_SANITIZE = re.compile(
    r"(?m)^(?P<tool>K[AC]SAN)_SANITIZE(?:_(?P<stem>\S+)\.o)?\s*:?=\s*(?P<what>[ny])\b"
)
_LINES = 40
# By the kernel itself; it prints the first few.
_COUNTED = ("dma-errors", "object-warnings")
_SUSPECTED = re.compile(r"kmemleak: \w+ new suspected memory leaks")


@dataclass(frozen=True)
class Pair:
    """Both guests of one flavour.

    The base is not asked when nothing the other says is in doubt.  ``known`` has the
    signatures that any guest of the base complained with.  ``unanswered`` says why the
    base did not say all that it was asked; nothing if it did.
    """

    patched: Watched
    base: Watched | None
    known: frozenset[str]
    unanswered: str = ""


@dataclass(frozen=True)
class Code:
    """What is in a kernel by its patches: of all series, as each one's may show in any
    one's guest.

    ``touched`` are the functions of the files that they change, ``changed`` those of
    them that are not as in the base, and those that a changed one may have been made a
    part of, because they call it.  ``events`` are the new tracepoints.  ``unwatched``
    has files that a sanitizer is not compiled into, and how the kernel says that.
    """

    touched: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()
    unwatched: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Saved:
    """All that was seen of a series, in a kernel with ``code``."""

    pairs: Mapping[Flavour, Pair]
    code: Code = Code()


def code_of(sources: Collection[tuple[str, str]], events: Collection[str]) -> Code:
    """What the patches made of ``sources``, each a file before and after them."""
    touched: dict[str, str] = {}
    changed: set[str] = set()
    for before, after in sources:
        old, new = _functions(before), _functions(after)
        changed |= {name for name, text in new.items() if old.get(name) != text}
        # A header has stubs for what is elsewhere.
        for name, text in new.items():
            touched[name] = touched.get(name, "") + text
    word = re.compile(r"\w+")
    callers = {
        name for name, text in touched.items() if changed & {*word.findall(text)}
    }
    return Code(frozenset(touched), frozenset(changed | callers), frozenset(events))


def in_kernel(path: str) -> bool:
    """Whether ``path`` is a C source that can be a part of the kernel."""
    return path.endswith(".c") and not path.startswith("tools/")


def unwatched(path: str, makefile: str) -> Iterator[str]:
    """The words by which ``makefile`` leaves sanitizers out of the source at ``path``.

    What it says of one object goes before what it says of all.
    """
    stem = path.rpartition("/")[2].removesuffix(".c")
    said: dict[str, tuple[bool, re.Match[str]]] = {}
    for found in _SANITIZE.finditer(makefile):
        alone = found["stem"] is not None
        if alone and found["stem"] != stem:
            continue
        if found["tool"] not in said or alone >= said[found["tool"]][0]:
            said[found["tool"]] = (alone, found)
    for _, found in said.values():
        if found["what"] == "n":
            yield " ".join(found[0].split())


def _functions(text: str) -> dict[str, str]:
    """The functions that a C file defines, as far as its layout tells, by name.

    One that is there more than once, for different configurations, is all of them.
    """
    bodies: dict[str, str] = {}
    for found in _DEFINITION.finditer(text):
        names = {found[1]}
        if _SYSCALL.fullmatch(found[1]):
            call = re.split(r"[,)]", found["args"])[0].strip()
            names = {f"__{how}_sys_{call}" for how in ("do", "se", "x64", "ia32")}
        elif found[1] == "UVERBS_HANDLER":
            names = {f"ib_uverbs_handler_{found['args'].partition(')')[0]}"}
        line, _, _ = text[found.end() :].partition("\n")
        # A stub ends in the line in which it begins.
        body = line if "}" in line else text[found.end() :].partition("\n}")[0]
        for name in names:
            bodies[name] = bodies.get(name, "") + found[0] + body
    return bodies


def judge(series: Series, saved: Saved) -> tuple[Check, ...]:
    """All checks of kind ``debug``."""
    return tuple(
        run_check(
            function.__name__,
            "debug",
            " ".join((function.__doc__ or "").split()),
            functools.partial(function, series),
            saved,
        )
        for function in _CHECKS
    )


def in_doubt(saved: Saved) -> bool:
    """Whether the kernel says or counts what is held against the series unless the base
    does the same, or did not come to its end, where the base is asked if it does."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        counters = pair.patched.facts.get("counters", {})
        counted = [counters.get(name) for name in _COUNTED]
        if (
            pair.patched.status != "completed"
            or any(one.signature not in pair.known for one in pair.patched.leaked or ())
            or any(isinstance(count, int) and count > 0 for count in counted)
        ):
            return True
        _hold(verdict, saved, flavour, pair.patched.complaints)
    return not all(one.ok for one in verdict.comparisons)


def in_doubt_of_a_race(saved: Saved) -> bool:
    """Whether a race is held against the series that nothing else speaks against."""
    return any(
        finished(pair.patched)
        and one.kind == "kcsan"
        and one.signature not in pair.known
        and _ours(saved.code, one)
        for pair in saved.pairs.values()
        for one in pair.patched.complaints
    )


def finished(watched: Watched) -> bool:
    """Whether a guest did all that it was to do."""
    return watched.status == "completed" and _agent_said(watched) == "completed"


def answered(flavour: Flavour, base: Watched) -> bool:
    """Whether a guest of the base did all that it was to do, leaks looked for."""
    return finished(base) and (flavour != "debug" or base.leaked is not None)


def _agent_said(watched: Watched) -> str:
    said = str(watched.agent.get("status", "no word"))
    if error := watched.agent.get("error"):
        said += f": {error.get('message')}"
    return said


def worth_keeping(series: Series, flavour: Flavour, watched: Watched) -> bool:
    """Whether no check finds fault with a guest, so that it need not be run again.

    A race is none here: it was there, and another boot without it would hide it.
    """
    saved = Saved({flavour: Pair(watched, None, frozenset())})
    return all(one.status in ("pass", "skip") for one in judge(series, saved))


def no_new_splats(series: Series, saved: Saved) -> Verdict:
    """The guest comes to its end, watched to the last, and its kernel complains of
    nothing that the base's does not, but for data races between functions of other
    files, with none that the patches change on a stack."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        _came_to_its_end(verdict, f"{flavour}: guest", pair.patched)
        _was_watched(verdict, flavour, pair)
    # Whatever the base says, it makes none of that good.
    settled = not _good(verdict)
    for flavour, pair in saved.pairs.items():
        _was_counted(verdict, flavour, pair)
        count = f"{len(pair.patched.complaints)} of this kernel, " + (
            f"{len(pair.base.complaints)} of the base"
            if pair.base is not None
            else f"and {pair.unanswered or 'the base was not asked'}"
        )
        verdict.true(f"{flavour}: reports were read", True, count)
        _hold(verdict, saved, flavour, pair.patched.complaints)
        if pair.base is not None:
            _tell(verdict, flavour, pair.base.complaints)
            ended = f"{pair.base.status}, its agent: {_agent_said(pair.base)}"
            verdict.true(f"{flavour}: how the base's guest ended", True, ended)
    if not settled:
        _undecide(verdict, saved.pairs)
    return verdict


def _good(verdict: Verdict) -> bool:
    return all(one.ok for one in verdict.comparisons)


def _undecide(verdict: Verdict, pairs: Mapping[Flavour, Pair]) -> None:
    """Take back what is held only because the base did not say all it was asked."""
    bad = [one.label for one in verdict.comparisons if not one.ok]
    whys = []
    for flavour, pair in pairs.items():
        mine = [label for label in bad if label.startswith(f"{flavour}: ")]
        if mine and not pair.unanswered:
            return
        if mine:
            whys.append(f"nobody knows if it is the base's own: {mine[0]}: ")
            whys[-1] += pair.unanswered
    if whys:
        verdict.undecide("; ".join(whys))


def _tell(verdict: Verdict, flavour: Flavour, theirs: Collection[Complaint]) -> None:
    """Put down what the base says of itself."""
    for one in _distinct(theirs):
        verdict.true(f"{flavour}: the base's own: {one.signature}", True)


def _came_to_its_end(verdict: Verdict, label: str, watched: Watched) -> None:
    """Comparisons of how the guest and its agent ended."""
    verdict.equal(f"{label} ended as", watched.status, "completed")
    verdict.equal(f"{label}'s agent", _agent_said(watched), "completed")


def _was_watched(verdict: Verdict, flavour: Flavour, pair: Pair) -> None:
    """Whether those who watch did to the end, and told all that they counted.

    lockdep gives up at its first report, and at the first of KASAN's.
    """
    counters = pair.patched.facts.get("counters", {})
    if flavour == "kcsan":
        verdict.equal(f"{flavour}: KCSAN is on", counters.get("kcsan-enabled"), 1)
        verdict.at_least(
            f"{flavour}: accesses that KCSAN watched",
            counters.get("kcsan-watchpoints", 0),
            1,
        )
        return
    first = next((one.signature for one in pair.patched.complaints), "nothing was said")
    verdict.true(
        f"{flavour}: lockdep watched to the end",
        bool(pair.patched.facts.get("lockdep")),
        first,
    )
    verdict.equal(
        f"{flavour}: DMA debugging gave up", counters.get("dma-disabled", "no word"), 0
    )


def _was_counted(verdict: Verdict, flavour: Flavour, pair: Pair) -> None:
    """Whether there was no more to count than in the base."""
    if flavour == "kcsan":
        return
    counters = pair.patched.facts.get("counters", {})
    theirs = pair.base.facts.get("counters", {}) if pair.base else {}
    for name in _COUNTED:
        count = counters.get(name, "no word")
        verdict.true(
            f"{flavour}: {name} that were counted",
            isinstance(count, int) and count <= theirs.get(name, 0),
            f"{count}, and {theirs.get(name, 0)} of the base",
        )


def _hold(
    verdict: Verdict, saved: Saved, flavour: Flavour, complaints: Collection[Complaint]
) -> None:
    """Put complaints down, and hold against the series what can be its own.

    KCSAN samples, so that a race of the base's may show in one boot and not in the
    next.  A new one takes, as a rule, an access that is new, or that is made where
    nobody made it before: so of those that the base's guests did not show, it is held
    against the series if one of the functions that it is between is in a file that any
    series touches, or if one that the patches change is on either stack.

    What escapes: a race between others that something which the patches took away,
    say a lock, kept apart; the side of an access that KCSAN does not know; and what has
    become a part of a function in a file that nobody touches, or in two steps.
    """
    for one in _distinct(complaints):
        label = f"{flavour}: {one.signature}"
        if _SUSPECTED.search(one.signature):
            verdict.true(label, True, "what is left of them is for no_leaks to say")
        elif one.signature in saved.pairs[flavour].known:
            verdict.true(label, True, "the base has it as well")
        elif one.kind == "kcsan" and not _ours(saved.code, one):
            verdict.true(label, True, "it is not in code that the patches touch")
        else:
            verdict.true(label, False, "\n".join(one.excerpt.splitlines()[:_LINES]))


def _ours(code: Code, one: Complaint) -> bool:
    return bool(
        one.accesses & code.touched
        or one.functions & code.changed
        or any(name in function for function in one.functions for name in code.events)
    )


def _distinct(complaints: Collection[Complaint]) -> Iterator[Complaint]:
    yield from {one.signature: one for one in complaints}.values()


def no_leaks(series: Series, saved: Saved) -> Verdict:
    """After all that, kmemleak finds nothing lost that it does not find in the base."""
    verdict = Verdict()
    settled = False
    for flavour, pair in saved.pairs.items():
        if flavour != "debug":
            continue
        verdict.true(
            f"{flavour}: kmemleak looked for leaks", pair.patched.leaked is not None
        )
        settled = not _good(verdict)
        for one in _distinct(pair.patched.leaked or ()):
            known = one.signature in pair.known
            what = "the base has it as well" if known else one.excerpt
            verdict.true(f"{flavour}: {one.signature}", known, what)
        if pair.base is not None:
            _tell(verdict, flavour, pair.base.leaked or ())
    if not verdict.comparisons:
        verdict.skip("no kernel with kmemleak was run")
    if not settled:
        _undecide(verdict, saved.pairs)
    return verdict


def toggles_survived(series: Series, saved: Saved) -> Verdict:
    """Each new event was switched on and off two hundred times or more, by all readers
    at once and by each 25 times or more, with stack traces and filters, and was seen by
    one of them; bpftrace itself came at least once."""
    verdict = Verdict()
    if not series.spec.tracepoint:
        verdict.skip("the series adds no event")
        return verdict
    for flavour, pair in saved.pairs.items():
        readers = pair.patched.facts.get("readers", {})
        visits = pair.patched.facts.get("bpftrace", {})
        for point in series.spec.tracepoint:
            key = f"{point.name}_tp" if point.kind == "bare" else point.event
            turns: list[int] = []
            for reader in _readers_of(point):
                count = readers.get(reader, {}).get(key, {})
                label = f"{flavour}: {point.name}: {reader}"
                turns.append(count.get("toggles", 0))
                verdict.at_least(f"{label}: on and off", turns[-1], SHARE)
                failed = f"{count.get('failed', 0)} {count.get('error', '')}".strip()
                verdict.equal(f"{label}: failures", failed, "0")
            verdict.at_least(
                f"{flavour}: {point.name}: on and off", sum(turns), TOGGLES
            )
            seen = [one.get(key, {}).get("seen", 0) for one in readers.values()]
            verdict.at_least(
                f"{flavour}: {point.name}: seen",
                sum(seen) + visits.get("seen", {}).get(key, 0),
                1,
            )
        # One takes minutes there, and what it does the other readers do all the time.
        verdict.at_least(f"{flavour}: visits of bpftrace", visits.get("rounds", 0), 1)
        errors = visits.get("errors", ["it was not started"])
        verdict.equal(f"{flavour}: errors of bpftrace", "; ".join(errors), "")
    return verdict


def _readers_of(point: Tracepoint) -> tuple[str, ...]:
    """A bare tracepoint is known to BPF alone."""
    return ("raw",) if point.kind == "bare" else ("ftrace", "perf", "bpf", "raw")


def cpu_hotplug_survived(series: Series, saved: Saved) -> Verdict:
    """Each processor but the first was taken away and given back, many times, while a
    workload ran and the events were switched."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        facts = pair.patched.facts.get("cpus", {})
        cycles = facts.get("cycles", {})
        verdict.at_least(f"{flavour}: processors", len(cycles), 1)
        for number, count in cycles.items():
            verdict.at_least(f"{flavour}: processor {number}: away", count, CYCLES)
        verdict.at_least(f"{flavour}: workloads meanwhile", facts.get("runs", 0), 1)
        _no_errors(verdict, flavour, facts)
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
        verdict.skip("no workload needs a module")
        return verdict
    for flavour, pair in saved.pairs.items():
        facts = pair.patched.facts.get("modules", {})
        owners = facts.get("owners", {})
        for name in sorted({*names, *owners.values()}):
            count = facts.get("unloads", {}).get(name, 0)
            verdict.at_least(f"{flavour}: {name}: unloaded", count, RELOADS)
        verdict.at_least(f"{flavour}: workloads after that", facts.get("runs", 0), 1)
        _no_errors(verdict, flavour, facts)
    return verdict


def _no_errors(verdict: Verdict, flavour: Flavour, facts: Mapping[str, object]) -> None:
    errors = facts.get("errors", ["it did not come to that"])
    assert isinstance(errors, list)
    verdict.equal(f"{flavour}: errors", "; ".join(map(str, errors)), "")


def workloads_come_to_their_end(series: Series, saved: Saved) -> Verdict:
    """Each workload that is run there ends by itself; its exit status is told and not
    judged, as what it expects of time does not hold there."""
    verdict = Verdict()
    for flavour, pair in saved.pairs.items():
        ends = {one["name"]: one for one in pair.patched.agent.get("workloads", [])}
        for load in series.spec.workload:
            if load.not_debugged is not None:
                continue
            facts = ends.get(load.name, {})
            verdict.true(
                f"{flavour}: {load.name}",
                facts.get("status") == "exited",
                f"{facts.get('status', 'not run')}, "
                f"exit status {facts.get('exit_status')}",
            )
    return verdict


def no_workload_is_left_out(series: Series, saved: Saved) -> Verdict:
    """Each workload of the series is run on these kernels."""
    verdict = Verdict()
    left_out = [
        f"{load.name}: {load.not_debugged}"
        for load in series.spec.workload
        if load.not_debugged is not None
    ]
    if left_out:
        # Those that are run are compared by `workloads_come_to_their_end`.
        verdict.skip("; ".join(left_out))
        return verdict
    for load in series.spec.workload:
        verdict.true(load.name, True)
    return verdict


def no_file_is_left_out(series: Series, saved: Saved) -> Verdict:
    """The kernel's Makefiles leave none of the sources that the series touches out of
    KASAN or KCSAN."""
    verdict = Verdict()
    left_out: dict[str, list[str]] = {}
    for path, how in saved.code.unwatched:
        if path in series.touches:
            left_out.setdefault(how, []).append(path)
    sources = sorted(filter(in_kernel, series.touches))
    if left_out:
        reasons = [f"{', '.join(files)}: {how}" for how, files in left_out.items()]
        unseen = {path for paths in left_out.values() for path in paths}
        seen = [path for path in sources if path not in unseen]
        if seen:
            reasons.append(f"left out are none of {', '.join(seen)}")
        verdict.skip("; ".join(reasons))
    elif not sources:
        verdict.skip("the series touches no source of the kernel")
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
