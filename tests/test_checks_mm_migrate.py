# SPDX-License-Identifier: GPL-2.0-or-later
"""What mm-migrate tells to type, and the checks of what programs say of it."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kstall.evidence import Event, Evidence, WorkloadResult
from kstall.series import Project
from kstall.verdict import Verdict, run_check

MS = 1_000_000
PAGE = 4096
END = "mmu_notifier_callback_end"
MIRROR_H = "scripts/workloads/mm-migrate/mirror.h"
DOCUMENT = "b/Documentation/mm/mmu_notifier.rst"
RECIPES = {"RECIPE_LONG": 2, "RECIPE_OTHERS": 2, "RECIPE_STACKS": 1}


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/mm-migrate/checks.py"
    spec = importlib.util.spec_from_file_location("mm_migrate_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wrong(verdict: Verdict) -> set[str]:
    return {comparison.label for comparison in verdict.comparisons if not comparison.ok}


# -- what the document tells to type --------------------------------------------------


def _documented(root: Path) -> list[str]:
    """The lines that are typed, in order, but for cd and what only reads."""
    (series,) = Project(root).load(["mm-migrate"])
    (text,) = (
        part
        for patch in series.patches
        for part in patch.path.read_text().split("\ndiff --git ")
        if DOCUMENT in part and "Tracing invalidations" in part and "@@ -95" in part
    )
    typed = [line.removeprefix("+  # ") for line in re.findall(r"(?m)^\+  # .*", text)]
    return [line for line in typed if line.split()[0] not in ("cd", "cat")]


def test_programs_type_what_is_documented(project_root: Path) -> None:
    header = (project_root / MIRROR_H).read_text().replace("\\\n", "")
    typed = []
    for name, count in RECIPES.items():
        (parts,) = re.findall(rf"(?m)^#define {name}\s+(.*)", header)
        # Literals of C, which are also ones of Python here.
        lines = str(ast.literal_eval(f"({parts})")).splitlines()
        assert len(lines) == count, name
        typed += lines
    assert typed == _documented(project_root)


@pytest.mark.parametrize("name", RECIPES)
def test_some_program_follows_it(project_root: Path, name: str) -> None:
    programs = (project_root / MIRROR_H).parent.glob("*.c")
    calls = re.findall(r"follow\(([^)]*)\)", "".join(p.read_text() for p in programs))
    assert any(name in call.split() for call in calls)


@pytest.mark.parametrize(
    ("name", "calls"), [("hist", "say_sums("), ("record", "follow(RECIPE_LONG)")]
)
def test_what_shows_the_events_is_no_witness(
    project_root: Path, name: str, calls: str
) -> None:
    assert rf"\"what\": \"{name}\"" in (project_root / MIRROR_H).read_text()
    (series,) = Project(project_root).load(["mm-migrate"])
    shown = {load.name for load in series.spec.workload if name in load.shows_events}
    scripts = project_root / "scripts"
    printed = {
        load.name
        for load in series.spec.workload
        if (file := (scripts / load.program).with_suffix(".c")).is_file()
        and calls in file.read_text()
        # Only then is the filter set.
        and (name == "hist" or "filter" in load.args)
    }
    assert shown == printed != set()


# -- the filter -----------------------------------------------------------------------

#: Of each page: where it is, whether it was to be slow, and how long its callback took.
MOVES = [(0x1000, True, 30 * MS), (0x2000, True, 31 * MS), (0x8000, False, 100)]


def _end(at: int, start: int, ns: int, **fields: int | str) -> Event:
    own: dict[str, int | str | tuple[int, ...]] = {
        "start": start,
        "end": start + PAGE,
        "duration_ns": ns,
        "pass": 1,
        "event": "migration_entry",
        "curr": 1,
        **fields,
    }
    return Event(at, 0, 7, "x", "mmu_notifier", END, own)


def _load(place: Path, name: str, facts: list[object], events: list[Event]) -> Evidence:
    folder = place / name
    folder.mkdir()
    (folder / "stdout").write_text("\n".join(map(json.dumps, facts)))
    load = WorkloadResult(name, folder, {}, {})
    load.__dict__["_traced"] = tuple(events)
    return Evidence(place, {}, {name: load}, {})


def _filtered(
    place: Path, kept: list[tuple[int, int]], slowest: int = 3 * MS
) -> Evidence:
    facts: list[object] = []
    events = []
    for number, (start, slow, ns) in enumerate(MOVES, 1):
        at = number * 100 * MS
        wall = 40 * MS if slow else slowest
        events.append(_end(at + ns, start, ns))
        facts.append(
            {
                "what": "move" if slow else "quick",
                "addr": start,
                "moved": 1,
                "began": at,
                "ended": at + wall,
            }
        )
    facts += [{"what": "record", "start": s, "duration_ns": ns} for s, ns in kept]
    facts.append({"what": "records", "began": 1, "read": 1000 * MS})
    return _load(place, "slow", facts, events)


SLOW = [(start, ns) for start, slow, ns in MOVES if slow]


@pytest.mark.parametrize(
    ("kept", "wrong"),
    [
        (SLOW, set()),
        (
            [],
            {
                "move 1, with a delay of 30 ms: records",
                "move 2, with a delay of 30 ms: records",
                "unfiltered, without a record",
            },
        ),
        ([*SLOW, (0x8000, 100)], {"records of these", "records of 10 ms or less"}),
        ([*SLOW, (0x9000, 100)], {"records of 10 ms or less"}),
        ([SLOW[0], (0x2000, 30 * MS)], {"unfiltered, without a record"}),
    ],
)
def test_filter(
    checks: ModuleType, tmp_path: Path, kept: list[tuple[int, int]], wrong: set[str]
) -> None:
    evidence = _filtered(tmp_path, kept)
    assert _wrong(checks.documented_filter_keeps_what_took_long(evidence)) == wrong


def test_filter_is_not_judged_if_all_was_slow(
    checks: ModuleType, tmp_path: Path
) -> None:
    evidence = _filtered(tmp_path, SLOW, slowest=11 * MS)
    verdict = checks.documented_filter_keeps_what_took_long(evidence)
    assert verdict.undecided


# -- eviction -------------------------------------------------------------------------


def _evicted(place: Path, events: list[Event], gone: int = 2) -> Evidence:
    facts: list[object] = [
        {
            "what": "evict",
            "tid": 7,
            "addr": 0x1000,
            "pages": 2,
            "gone": gone,
            "there": 2,
            "began": 10 * MS,
            "ended": 20 * MS,
        }
    ]
    return _load(place, "device", facts, events)


EVICTED = [_end(11 * MS, 0x1000, 1), _end(12 * MS, 0x2000, 1)]
KINDS = "event, curr, reason of migrate_pages()"


def _started(at: int) -> Event:
    fields = {"reason": "compaction"}
    return Event(at, 0, 7, "x", "migrate", "mm_migrate_pages_start", fields)


@pytest.mark.parametrize(
    ("events", "gone", "wrong"),
    [
        (EVICTED, 2, set()),
        (EVICTED, 1, {"pages without a frame before"}),
        (EVICTED[:1], 2, {"events for each page"}),
        ([*EVICTED, EVICTED[0]], 2, {"events for each page"}),
        ([EVICTED[0], _end(12 * MS, 0x2000, 1, event="clear")], 2, {KINDS}),
        ([_started(11 * MS), *EVICTED], 2, {KINDS}),
        ([], 2, {"events for each page", KINDS}),
    ],
)
def test_eviction(
    checks: ModuleType, tmp_path: Path, events: list[Event], gone: int, wrong: set[str]
) -> None:
    evidence = _evicted(tmp_path, events, gone)
    assert _wrong(checks.eviction_is_a_migration_entry(evidence)) == wrong


# -- durations ------------------------------------------------------------------------


def _timed(place: Path, durations: list[int]) -> Evidence:
    """A move with these callbacks in each of the workloads, one after the other."""
    loads: dict[str, WorkloadResult] = {}
    for name, count in (("one-mirror", 4), ("hold", 4), ("two-pass", 1)):
        what = "free" if name == "hold" else "move"
        move = {"what": what, "tid": 7, "moved": count, "began": MS, "ended": 9 * MS}
        evidence = _load(place, name, [move], [])
        loads[name] = evidence.workload(name)
        loads[name].__dict__["_recorded"] = tuple(
            _end(MS * n, 0x1000, ns) for n, ns in enumerate(durations, 2)
        )
    return Evidence(place, {}, loads, {})


NAMES = ("one-mirror", "hold", "two-pass")


@pytest.mark.parametrize(
    ("durations", "wrong"),
    [
        ([500, 500, 500, 500], set()),
        # Two readings of the clock within one of its ticks.
        ([520, 0, 40, 0], set()),
        ([0, 0, 0, 0], {f"{name}: duration_ns of all" for name in NAMES}),
        ([MS, 2 * MS, 500, 500], {f"{name}: least time between two" for name in NAMES}),
    ],
)
def test_callback_can_be_shorter_than_a_tick_of_the_clock(
    checks: ModuleType, tmp_path: Path, durations: list[int], wrong: set[str]
) -> None:
    evidence = _timed(tmp_path, durations)
    assert _wrong(checks.durations_fit_into_the_system_calls(evidence)) == wrong


# -- a callback that hangs ------------------------------------------------------------


def test_a_hang_is_watched_for_more_ns_than_32_bits_hold(
    checks: ModuleType, tmp_path: Path, project_root: Path
) -> None:
    text = ((project_root / MIRROR_H).parent / "stuck.c").read_text()
    (watched,) = re.findall(r"(?m)^#define WATCHED\s+\((\d+) \* MS\)$", text)
    ns = int(watched) * MS
    fact = {"what": "stuck", "tid": 7, "moved": 1, "hung": 1, "began": 1}
    fact |= {"seen": 2 * MS, "still": 2 * MS + ns, "ended": 9 * MS + ns}
    begin, end = _call(MS, 0x1000, function=checks.SLOW, subscription=6)
    end = dataclasses.replace(end, ts_ns=3 * MS + ns)
    evidence = _load(tmp_path, "stuck", [fact], [begin, end])
    load = evidence.workload("stuck").__dict__
    for duration, wrong in ((ns + MS, set()), ((ns + MS) % 2**32, {"duration_ns"})):
        load["_recorded"] = begin, _set(END, duration_ns=duration)(end)
        assert _wrong(checks.stuck_callback_is_seen(evidence)) == wrong


# -- pairs ----------------------------------------------------------------------------


def _call(at: int, start: int, **fields: int | str) -> list[Event]:
    """A callback of 2 us: its begin and its end."""
    end = _end(at + 2_000, start, 1_500, mm=5, blockable=1, ret=0, **fields)
    own = {k: x for k, x in end.fields.items() if k not in ("duration_ns", "ret")}
    return [Event(at, 0, end.pid, "x", "mmu_notifier", BEGIN, own), end]


BEGIN = "mmu_notifier_callback_begin"


def _paired(checks: ModuleType, place: Path, lost: str = "") -> Evidence:
    """A callback for each of the workloads; ``lost`` has no begin, numa is skipped."""
    loads: dict[str, WorkloadResult] = {}
    for name in checks._PAIRED:
        facts: list[object] = [{"what": "skip", "why": "x"}] if name == "numa" else []
        calls = [] if facts else _call(MS, 0x1000, function="f", subscription=6)
        made = _load(place, name, facts, calls[1:] if name == lost else calls)
        loads[name] = made.workload(name)
    return Evidence(place, {}, loads, {})


@pytest.mark.parametrize("lost", ["", "huge", "stuck", "device", "others", "reap"])
def test_a_begin_is_missed_in_each_workload(
    checks: ModuleType, tmp_path: Path, lost: str
) -> None:
    wrong = {f"{lost}: pairs", f"{lost}: begins or ends without the other"}
    evidence = _paired(checks, tmp_path, lost)
    assert _wrong(checks.begins_pair_with_ends(evidence)) == (wrong if lost else set())


def test_the_workloads_of_the_pairs_are_those_that_are_declared(
    checks: ModuleType, project_root: Path
) -> None:
    (series,) = Project(project_root).load(["mm-migrate"])
    (check,) = (c for c in series.spec.check if c.name == "begins_pair_with_ends")
    assert sorted(checks._PAIRED) == sorted(check.workloads)


# -- virtual machines -----------------------------------------------------------------

MACHINES = (6, 8)
KVM = "kvm_mmu_notifier_invalidate_range_start"


def _machines(place: Path, change: Callable[[Event], Event | None]) -> Evidence:
    """Two moves of 32 pages of a process that has two virtual machines."""
    facts: list[object] = []
    events = []
    for number in (1, 2):
        at = number * 100 * MS
        move = {"what": "move", "tid": 7, "addr": 0x1000, "pages": 32, "moved": 32}
        facts.append({**move, "began": at, "ended": at + 50 * MS})
        for page in range(32):
            start = 0x1000 + page * PAGE
            for machine in MACHINES:
                at += 10_000
                call = _call(at, start, function=f"{KVM} [kvm]", subscription=machine)
                theirs = {"start": start, "end": start + PAGE}
                unmap = Event(at + 1_000, 0, 7, "x", "kvm", UNMAP, theirs)
                events += [call[0], unmap, call[1]]
    changed = [after for event in events if (after := change(event)) is not None]
    changed.sort(key=lambda event: event.ts_ns)
    return _load(place, "kvm", facts, changed)


UNMAP = "kvm_unmap_hva_range"


def _set(*names: str, **fields: int) -> Callable[[Event], Event]:
    """Have the events of these names have such values."""

    def change(event: Event) -> Event:
        if event.name not in names:
            return event
        return dataclasses.replace(event, fields={**event.fields, **fields})

    return change


def _late(event: Event) -> Event:
    """Their own event is after the callback."""
    moved = dataclasses.replace(event, ts_ns=event.ts_ns + 3_000)
    return moved if event.name == UNMAP else event


DIFFERENT = "kvm: that say different things"
PAGES = {f"round {n}: each page, for each virtual machine" for n in (1, 2)}
OTHERS = {f"round {n}: function, event, ret, blockable, curr, thread" for n in (1, 2)}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda event: event, set()),
        (
            lambda event: None if event.name == BEGIN else event,
            {
                "kvm: pairs",
                "kvm: begins or ends without the other",
                "theirs outside of the callback",
            },
        ),
        (_late, {"theirs outside of the callback"}),
        (_set(END, duration_ns=0), {"duration_ns of all"}),
        (_set(END, duration_ns=4_000), {"kvm: longer than the time between the two"}),
        (_set(END, ret=-11), OTHERS),
        (_set(BEGIN, END, curr=0), OTHERS),
        (_set(BEGIN, END, blockable=0), OTHERS),
        (_set(BEGIN, END, subscription=6), {"subscriptions", *PAGES}),
        (_set(BEGIN, subscription=6), {DIFFERENT}),
        (_set(BEGIN, mm=4), {DIFFERENT}),
    ],
)
def test_callback_of_a_virtual_machine(
    checks: ModuleType,
    tmp_path: Path,
    change: Callable[[Event], Event | None],
    wrong: set[str],
) -> None:
    evidence = _machines(tmp_path, change)
    assert _wrong(checks.kvm_is_notified_of_the_same_ranges(evidence)) == wrong


# -- a pinned page --------------------------------------------------------------------


def _pinned(place: Path, tries: int) -> Evidence:
    """Three moves of a page that stays, each tried that often, and one that moves."""
    facts: list[object] = []
    events = []
    for number in range(1, 5):
        at, moved = number * 100 * MS, number == 4
        facts.append(
            {
                "what": "loose" if moved else "pinned",
                "tid": 7,
                "moved": moved,
                "changed": moved,
                "began": at,
                "ended": at + 50 * MS,
            }
        )
        count = 1 if moved else tries
        events += [_end(at + n * MS, 0x1000, 1) for n in range(1, count + 1)]
        counts = {"succeeded": int(moved), "failed": int(not moved)}
        name = "mm_migrate_pages"
        events.append(Event(at + 40 * MS, 0, 7, "x", "migrate", name, counts))
    return _load(place, "pinned", facts, events)


@pytest.mark.parametrize(
    ("tries", "wrong"),
    [
        (10, set()),
        (9, set()),
        (1, set()),
        (0, {f"attempt {n}: events" for n in (1, 2, 3)}),
    ],
)
def test_page_that_stays_is_tried_as_often_as_the_kernel_likes(
    checks: ModuleType, tmp_path: Path, tries: int, wrong: set[str]
) -> None:
    evidence = _pinned(tmp_path, tries)
    assert _wrong(checks.failed_migration_still_waits(evidence)) == wrong


# -- switched amid a callback ---------------------------------------------------------


@pytest.mark.parametrize(
    ("ns", "wrong"),
    [
        (2001 * MS, set()),
        (1999 * MS, {"end on amid: duration_ns"}),
        (2101 * MS, {"end on amid: duration_ns"}),
    ],
)
def test_end_that_is_switched_on_amid_a_callback(
    checks: ModuleType, tmp_path: Path, ns: int, wrong: set[str]
) -> None:
    steps = {
        "off": (16, 0, 0),
        "begin alone": (16, 16, 0),
        "both": (16, 16, 16),
        "end alone": (16, 0, 16),
        "off again": (16, 0, 0),
        "on amid": (1, 0, 0),
        "on, slow": (1, 1, 1),
        "off amid": (1, 1, 0),
        "end on amid": (1, 1, 1),
    }
    facts: list[object] = [
        {
            "what": step,
            "moved": moved,
            "begins": begins,
            "ends": ends,
            "events": begins + ends,
            "helpers": (begins + ends) // 2,
            "amid": 1,
            "passages": moved,
            "began": 0,
            "ended": 2100 * MS,
            "duration_ns": ns,
        }
        for step, (moved, begins, ends) in steps.items()
    ]
    for fact in facts:
        if isinstance(fact, dict) and fact["what"] == "off amid":
            fact["helpers"] = 1
    assert _wrong(checks.off_is_off(_load(tmp_path, "toggle", facts, []))) == wrong


# -- too little happened --------------------------------------------------------------


def _status(judge: Callable[[Evidence], Verdict], evidence: Evidence) -> str:
    return run_check("it", "positive", "", judge, evidence).status


def _reaped(place: Path, refused: bool, ret: int) -> Evidence:
    """A victim, which had the mutex if it was ``refused``, and another callback."""
    own: dict[str, int | str] = {"mm": 5, "blockable": 0, "curr": 0}
    reap = {"what": "reap", "tid": 7, "victim": 9, "error": 11 if refused else 0}
    events = [
        _end(11 * MS, 0x1000, 1, **own, ret=ret),
        _end(50 * MS, 0x1000, 1, mm=6, blockable=1, ret=0),
    ]
    locked = Event(10 * MS, 0, 7, "x", "mmap_lock", LOCKED, {"mm": 5})
    times = {"began": 10 * MS, "ended": 20 * MS}
    return _load(place, "reap", [{**reap, **times}], [locked, *events])


LOCKED = "mmap_lock_acquire_returned"
REFUSED = "victims that could not be reaped at first"
WOULD_WAIT = "reap 1: a callback that would have had to wait"


@pytest.mark.parametrize(
    ("refused", "ret", "wrong", "status"),
    [
        (True, -11, set(), "pass"),
        # The host let each victim finish its read.
        (False, 0, {REFUSED}, "error"),
        (False, -11, {REFUSED, WOULD_WAIT}, "fail"),
        (True, 0, {WOULD_WAIT}, "fail"),
    ],
)
def test_victims_without_the_mutex(
    checks: ModuleType,
    tmp_path: Path,
    refused: bool,
    ret: int,
    wrong: set[str],
    status: str,
) -> None:
    evidence = _reaped(tmp_path, refused, ret)
    assert _wrong(checks.reaper_does_not_wait(evidence)) == wrong
    assert _status(checks.reaper_does_not_wait, evidence) == status


def _held(place: Path, waits: int, ns: int) -> Evidence:
    """Twelve moves while the mutex is free, and as many while a thread reads."""
    facts: list[object] = [{"what": "read", "began": 1_300 * MS, "ended": 2_600 * MS}]
    traced, recorded = [], []
    for number in range(1, 25):
        at = number * 100 * MS
        name = "free" if number <= 12 else "held"
        facts.append({"what": name, "tid": 7, "began": at, "ended": at + 50 * MS})
        traced.append(_pages_event("mm_migrate_pages_start", at + MS))
        if 12 < number <= 12 + waits:
            traced.append(_contended("contention_begin", at + 10 * MS))
            traced.append(_contended("contention_end", at + 20 * MS))
        traced.append(_pages_event("mm_migrate_pages", at + 40 * MS))
        recorded.append(_end(at + 30 * MS, 0x1000, ns))
    evidence = _load(place, "hold", facts, traced)
    evidence.workload("hold").__dict__["_recorded"] = tuple(recorded)
    return evidence


def _pages_event(name: str, at: int) -> Event:
    return Event(at, 0, 7, "x", "migrate", name, {"reason": "syscall_or_cpuset"})


def _contended(name: str, at: int) -> Event:
    fields: dict[str, int | str | tuple[int, ...]] = {"lock_addr": 3, "flags": "MUTEX"}
    return Event(at, 0, 7, "x", "lock", name, fields)


@pytest.mark.parametrize(
    ("waits", "ns", "wrong", "status"),
    [
        (3, 11 * MS, set(), "pass"),
        (2, 11 * MS, {"moves that met the mutex"}, "error"),
        (3, 9 * MS, {f"held {n}: duration_ns" for n in (1, 2, 3)}, "fail"),
        (
            1,
            9 * MS,
            {"held 1: duration_ns", "moves that met the mutex"},
            "fail",
        ),
    ],
)
def test_moves_that_hardly_met_the_mutex(
    checks: ModuleType,
    tmp_path: Path,
    waits: int,
    ns: int,
    wrong: set[str],
    status: str,
) -> None:
    evidence = _held(tmp_path, waits, ns)
    judge = checks.wait_is_the_time_that_the_mutex_was_held
    assert _wrong(judge(evidence)) == wrong
    assert _status(judge, evidence) == status
