# SPDX-License-Identifier: GPL-2.0-or-later
"""Each check of a debug kernel can fail, and says by what."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

import consoles
from kstall.evidence import debugcheck
from kstall.guest import CYCLES, RELOADS, SHARE, TOGGLES, Side, Watched, splats
from kstall.pipeline import debugging
from kstall.series import Project, Series
from kstall.verdict import Check
from kstall_guest.errors import GuestError, MissingEvent, ScriptRefused, TracerFailed

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).parent / "data/console"
WARNING = "[    9.000000] WARNING: mm/nap.c:3 at nap+0x1/0x2, CPU#0: doze/9\n"
# What a guest prints that gets no time.
LOCKUP = (
    "[   30.000000] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [nap:7]\n"
    "[   30.000001] RIP: 0010:nap+0x1/0x2\n"
)
LEAK = (
    "unreferenced object 0xffff888004a1b2c0 (size 64):\n"
    "  backtrace (crc 0):\n    kmemleak_alloc+0x4b/0x80\n    lose+0x4/0x9 [m]\n"
)


def load(name: str) -> Series:
    """A series, with the workloads that the fixes it needs allow."""
    (series,) = Project(ROOT).load([name])
    return debugging.debugged(series, Project(ROOT).load(series.spec.needs))


def facts_of(series: Series) -> dict[str, Any]:
    """What a guest says in which all went well."""
    count: dict[str, Any] = {"seen": 1, "absent": 0, "failed": 0, "error": ""}
    count["toggles"] = TOGGLES // 4
    points = series.spec.tracepoint
    events = [point.event for point in points if point.kind == "event"]
    bare = [f"{point.name}_tp" for point in points if point.kind == "bare"]
    readers = {
        reader: {event: dict(count) for event in events}
        for reader in ("ftrace", "perf", "bpf")
    }
    readers["raw"] = {event: dict(count) for event in events}
    readers["raw"] |= {event: {**count, "toggles": TOGGLES} for event in bare}
    modules = {name for workload in series.spec.workload for name in workload.modules}
    return {
        "readers": readers,
        "bpftrace": {"rounds": 3, "seen": {}, "errors": []},
        "cpus": {"cycles": {"1": CYCLES}, "runs": 1, "errors": []},
        "modules": {
            "unloads": dict.fromkeys(modules, RELOADS),
            "owners": {},
            "runs": 1,
            "errors": [],
        },
        "leaks": True,
        "lockdep": True,
        "counters": {
            "dma-errors": 0,
            "dma-disabled": 0,
            "object-warnings": 0,
            "kcsan-enabled": 1,
            "kcsan-watchpoints": 1,
        },
    }


def complaint(message: str, fault: str = "apparatus") -> dict[str, str]:
    return {"kind": "x", "fault": fault, "message": message}


def watched(
    series: Series,
    *,
    text: str = "",
    leaked: str | None = "",
    status: str = "completed",
    agent: str = "completed",
    facts: dict[str, Any] | None = None,
    lost: str = "",
) -> Watched:
    loads = [
        {"name": workload.name, "status": "exited", "exit_status": 0}
        for workload in series.spec.workload
    ]
    return Watched(
        status,
        0,
        {
            "status": agent,
            "workloads": loads,
            "stress": facts_of(series) if facts is None else facts,
        },
        tuple(splats.kernel_report(splat) for splat in consoles.scan(text)),
        None if leaked is None else splats.leaks(leaked),
        lost,
    )


def judged(
    series: Series,
    patched: Watched,
    base: Watched | None = None,
    changed: frozenset[str] = frozenset(),
) -> dict[str, Check]:
    base = base or watched(series)
    pair = debugcheck.GuestPair(patched, base, base.signatures)
    events = frozenset(point.name for point in series.spec.tracepoint)
    code = debugcheck.ChangedCode(changed, changed, events)
    saved = debugcheck.Saved({"debug": pair}, code)
    checks = debugcheck.judge(series, saved)
    assert {check.kind for check in checks} == {"debug"}
    return {check.name: check for check in checks}


def statuses(checks: dict[str, Check]) -> dict[str, str]:
    """The status of each check that neither passes nor is skipped."""
    return {
        name: check.status
        for name, check in checks.items()
        if check.status not in ("pass", "skip")
    }


def failing(checks: dict[str, Check]) -> dict[str, str]:
    return {
        name: "\n".join(
            f"{comparison.label}: {comparison.observed} {comparison.detail}"
            for comparison in check.comparisons
            if not comparison.ok
        )
        for name, check in checks.items()
        if check.status not in ("pass", "skip")
    }


@pytest.mark.parametrize("name", Project(ROOT).names())
def test_a_kernel_without_a_word_is_fine(name: str) -> None:
    series = load(name)
    checks = judged(series, watched(series))
    assert failing(checks) == {}
    skipped = {
        check.name: check.detail for check in checks.values() if check.status == "skip"
    }
    assert ("toggles_survived" in skipped) == (not series.spec.tracepoint)
    assert all(skipped.values())


def test_a_new_splat_is_held_against_the_series() -> None:
    series = load("drm-sched")
    text = (DATA / "lockdep.log").read_text()
    failures = failing(judged(series, watched(series, text=text)))
    assert set(failures) == {"no_new_splats"}
    assert "&entity->lock, &rq->lock" in failures["no_new_splats"]
    assert "suspicious RCU usage: drm_sched_job_init" in failures["no_new_splats"]
    assert "drm_sched_entity_push_job+0x9c" in failures["no_new_splats"]


def test_what_the_base_says_as_well_is_not_but_is_reported() -> None:
    series = load("drm-sched")
    both = watched(series, text=(DATA / "lockdep.log").read_text(), leaked=LEAK)
    checks = judged(series, both, both)
    assert failing(checks) == {}
    labels = [comparison.label for comparison in checks["no_new_splats"].comparisons]
    assert sum("reported by the base: " in label for label in labels) == 2
    assert sum("possible circular locking" in label for label in labels) == 2
    leaks = [comparison.label for comparison in checks["no_leaks"].comparisons]
    assert "debug: reported by the base: leak: 64 bytes: lose" in leaks


def test_a_base_that_was_not_asked_excuses_nothing() -> None:
    series = load("drm-sched")
    pair = debugcheck.GuestPair(watched(series), None, frozenset())
    saved = debugcheck.Saved({"debug": pair})
    checks = {check.name: check for check in debugcheck.judge(series, saved)}
    assert failing(checks) == {}
    details = [comparison.detail for comparison in checks["no_new_splats"].comparisons]
    assert "0 of this kernel, and the base was not run" in details


def test_a_race_elsewhere_is_reported_and_one_of_ours_is_held() -> None:
    series = load("drm-sched")
    racing = watched(series, text=(DATA / "kcsan.log").read_text())
    changed = frozenset({"drm_sched_run_job_work"})
    check = judged(series, racing, changed=changed)["no_new_splats"]
    bad = [comparison.label for comparison in check.comparisons if not comparison.ok]
    assert bad == [
        "debug: kcsan: BUG: KCSAN: data-race in drm_sched_job_trace_wait [gpu_sched]: "
        "read of 8 bytes in drm_sched_job_trace_wait"
    ]
    (elsewhere,) = (
        comparison
        for comparison in check.comparisons
        if "tick_sched_timer" in comparison.label
    )
    assert elsewhere.ok and "not in code that the patches touch" in elsewhere.detail


def test_a_race_in_the_code_of_a_tracepoint_is_ours() -> None:
    series = load("drm-sched")
    name = f"trace_event_raw_event_{series.spec.tracepoint[0].name}"
    text = (
        f"[    1.000000] BUG: KCSAN: data-race in {name} / other\n"
        f"[    1.000001]  {name}+0x1/0x2\n"
    )
    assert "no_new_splats" in failing(judged(series, watched(series, text=text)))


@pytest.mark.parametrize(
    ("change", "detail", "status"),
    [
        ({"status": "hang"}, "guest ended as: hang", "error"),
        ({"status": "hang", "text": WARNING}, "guest ended as: hang", "fail"),
        ({"status": "panic"}, "guest ended as: panic", "fail"),
        ({"agent": "running"}, "agent: running", "error"),
        ({"agent": "running", "text": WARNING}, "agent: running", "fail"),
    ],
)
def test_a_guest_that_does_not_come_back(
    change: dict[str, str], detail: str, status: str
) -> None:
    series = load("drm-sched")
    checks = judged(series, watched(series, **change))  # type: ignore[arg-type]
    assert detail in failing(checks)["no_new_splats"]
    assert statuses(checks) == {"no_new_splats": status}


def stopped(series: Series, error: dict[str, str], **change: Any) -> Watched:
    """A guest whose agent gave up before anything was switched."""
    guest = watched(series, agent="failed", facts={}, leaked=None, **change)
    agent = {**guest.agent, "error": error, "workloads": []}
    return dataclasses.replace(guest, agent=agent)


@pytest.mark.parametrize(
    ("fault", "change", "status"),
    [
        ("apparatus", {}, "error"),
        ("series", {}, "fail"),
        ("apparatus", {"text": WARNING}, "fail"),
        ("apparatus", {"status": "panic"}, "fail"),
    ],
)
def test_an_agent_that_gave_up(fault: str, change: dict[str, str], status: str) -> None:
    series = load("drm-sched")
    error = {"kind": "stress-failed", "fault": fault, "message": "it does not answer"}
    checks = judged(series, stopped(series, error, **change))
    assert statuses(checks) == dict.fromkeys(
        (
            "no_new_splats",
            "no_leaks",
            "toggles_survived",
            "cpu_hotplug_survived",
            "modules_reloaded",
            "workloads_come_to_their_end",
        ),
        # What was not run for want of an agent is nothing that the kernel did.
        status,
    )
    if status == "error":
        details = {check.detail for check in checks.values() if check.status == status}
        assert details == {
            "debug: the guest ended as completed, its agent as failed: "
            "it does not answer"
        }


def test_a_report_that_the_base_has_too_is_no_reason_for_what_was_left_undone() -> None:
    series = load("drm-sched")
    error = {"kind": "stress-failed", "message": "it does not answer"}
    guest = stopped(series, error, text=WARNING)
    checks = judged(series, guest, watched(series, text=WARNING))
    assert set(statuses(checks).values()) == {"error"}
    # And of one of which nobody knows it.
    pair = debugcheck.GuestPair(guest, None, frozenset(), "the base is gone")
    saved = debugcheck.Saved({"debug": pair})
    verdicts = {check.name: check for check in debugcheck.judge(series, saved)}
    assert set(statuses(verdicts).values()) == {"error"}
    assert "the base is gone" in verdicts["no_new_splats"].detail


@pytest.mark.parametrize("name", ["drm-sched", "mm-migrate", "pci-aer-fixes"])
def test_the_base_runs_what_a_fix_ends_only_if_it_had_nothing_to_run(name: str) -> None:
    (series,) = Project(ROOT).load([name])
    fixes = Project(ROOT).load([*series.spec.needs, "drm-sched-stop"])
    code = debugcheck.ChangedCode()
    group: Any = SimpleNamespace(name=name, applied=(*fixes, series), code=code)
    nothing: Any = None
    patched, base = (
        debugging.DebugGuest(series, group, "debug", side, nothing, ())
        for side in get_args(Side)
    )
    run = {
        guest.side: [
            load.name
            for load in guest.debugged.spec.workload
            if load.not_debugged is None
        ]
        for guest in (patched, base)
    }
    assert run["base"]
    without = [load.name for load in series.spec.workload if load.not_debugged is None]
    assert run["base"] == (without or run["patched"])
    # A report has the base asked, whatever it runs.
    outcome = watched(patched.debugged, text=WARNING)
    asked = debugging._to_ask([patched], {patched.key: outcome}, {}, {patched.key: {}})
    assert asked == [patched]


def test_a_watcher_that_gave_up_is_no_silence() -> None:
    series = load("drm-sched")
    facts = facts_of(series) | {"lockdep": False, "leaks": False}
    checks = judged(series, watched(series, facts=facts, leaked=None))
    failures = failing(checks)
    assert "lockdep watched to the end" in failures["no_new_splats"]
    assert "kmemleak looked for leaks" in failures["no_leaks"]
    # kmemleak does so where it has no memory, and lockdep only with a reason.
    assert statuses(checks) == {"no_new_splats": "fail", "no_leaks": "error"}
    assert checks["no_leaks"].detail == "debug: kmemleak gave up"


def test_without_all_of_the_log_there_is_no_verdict() -> None:
    series = load("drm-sched")
    gap = "** 3 printk messages dropped **"
    checks = judged(series, watched(series, lost=gap))
    assert statuses(checks) == {"no_new_splats": "error"}
    assert checks["no_new_splats"].detail == "debug: the kernel's log lost messages"
    assert gap in failing(checks)["no_new_splats"]
    # What it has counts all the same.
    checks = judged(series, watched(series, lost=gap, text=WARNING))
    assert statuses(checks) == {"no_new_splats": "fail"}


def test_a_leak() -> None:
    series = load("drm-sched")
    failures = failing(judged(series, watched(series, leaked=LEAK)))
    assert set(failures) == {"no_leaks"}
    assert "lose+0x4/0x9 [m]" in failures["no_leaks"]


def test_a_kernel_without_kmemleak_is_skipped_with_the_reason() -> None:
    series = load("drm-sched")
    pair = debugcheck.GuestPair(watched(series), watched(series), frozenset())
    saved = debugcheck.Saved({"kcsan": pair}, debugcheck.ChangedCode())
    (check,) = (o for o in debugcheck.judge(series, saved) if o.name == "no_leaks")
    assert (check.status, check.detail) == (
        "skip",
        "no kernel with kmemleak was run",
    )


def test_too_few_toggles_and_failures_and_an_event_nobody_saw() -> None:
    series = load("sched-throttle")
    event = {"name": "sched_stat_throttled", "kind": "event"}
    points = series.spec.tracepoint
    more = points[0].model_copy(update=event)
    spec = series.spec.model_copy(update={"tracepoint": (*points, more)})
    series = dataclasses.replace(series, spec=spec)
    facts = facts_of(series)
    facts["readers"]["raw"]["sched_cfs_throttle_tp"]["toggles"] = TOGGLES - 1
    count = facts["readers"]["perf"]["sched:sched_stat_throttled"]
    count.update(toggles=SHARE - 1, failed=2, error="Invalid argument")
    for reader in facts["readers"].values():
        if "sched:sched_stat_throttled" in reader:
            reader["sched:sched_stat_throttled"]["seen"] = 0
    del facts["readers"]["raw"]["sched_cfs_unthrottle_tp"]
    facts["bpftrace"] = {"rounds": 0, "seen": {}, "errors": [complaint("no memory")]}
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"toggles_survived": "fail"}
    detail = failing(checks)["toggles_survived"]
    for part in (
        f"sched_cfs_throttle: on and off: {TOGGLES - 1}",
        f"sched_stat_throttled: perf: on and off: {SHARE - 1}",
        "sched_stat_throttled: perf: failures: 2 Invalid argument",
        "sched_stat_throttled: seen: 0",
        "sched_cfs_unthrottle: raw: on and off: 0",
        "visits of bpftrace: 0",
        "no memory",
    ):
        assert part in detail


EVENT = "gpu_scheduler:drm_sched_job_no_credits"
LATE = "bpftrace (visit): not attached after 300 s"


@pytest.mark.parametrize(
    ("count", "status"),
    [
        # The time was up, or a module away for long.
        ({"toggles": SHARE - 1}, "error"),
        ({"toggles": SHARE - 1, "absent": 9}, "error"),
        ({"toggles": SHARE - 1, "seen": 0}, "error"),
        (
            {"toggles": SHARE - 1, "failed": 1, "error": "Cannot allocate memory"},
            "fail",
        ),
        ({"failed": 1, "error": "Cannot allocate memory"}, "fail"),
        ({"toggles": 0, "absent": 9}, "fail"),
        (None, "fail"),
    ],
)
def test_an_event_that_is_switched_too_rarely(
    count: dict[str, Any] | None, status: str
) -> None:
    series = load("drm-sched")
    facts = facts_of(series)
    if count is None:
        del facts["readers"]["perf"][EVENT]
    else:
        for reader in facts["readers"].values():
            reader[EVENT].update(count)
    slow = watched(series, facts=facts)
    checks = judged(series, slow)
    assert statuses(checks) == {"toggles_survived": status}
    if status == "error":
        reason = (
            "debug: too little time to switch drm_sched_job_no_credits often enough"
        )
        assert checks["toggles_survived"].detail == reason
    # A kernel that has reported something may be slow because of that.
    reporting = watched(series, facts=facts, text=WARNING)
    assert statuses(judged(series, reporting))["toggles_survived"] == "fail"


@pytest.mark.parametrize(
    ("failed", "status"),
    [
        (TracerFailed(LATE), "error"),
        # Whatever its words are.
        (TracerFailed("visit: WARNING: Unable to attach probe: x"), "error"),
        (ScriptRefused("visit: ERROR: Failed to attach: Invalid argument"), "fail"),
        (MissingEvent("x:y", "bpftrace visit"), "fail"),
    ],
)
def test_a_visit_of_bpftrace_that_comes_to_nothing(
    failed: GuestError, status: str
) -> None:
    series = load("drm-sched")
    facts = facts_of(series)
    facts["bpftrace"] = {"rounds": 0, "seen": {}, "errors": [failed.as_json()]}
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"toggles_survived": status}
    if status == "error":
        assert checks["toggles_survived"].detail == f"debug: {failed}"
    facts["bpftrace"]["rounds"] = 3
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"toggles_survived": status}
    # Another event that is never seen is still held.
    for reader in facts["readers"].values():
        reader[EVENT]["seen"] = 0
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"toggles_survived": "fail"}


def test_a_processor_that_stays() -> None:
    series = load("drm-sched")
    facts = facts_of(series)
    errors = [complaint("cpu1: Device busy", "series")]
    facts["cpus"] = {"cycles": {"1": CYCLES - 1}, "runs": 0, "errors": errors}
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"cpu_hotplug_survived": "fail"}
    failures = failing(checks)
    assert "processor 1: away: 19" in failures["cpu_hotplug_survived"]
    assert "Device busy" in failures["cpu_hotplug_survived"]


def loaded(guest: Watched, name: str, **entry: Any) -> Watched:
    """``guest`` with another end of the workload that was run as ``name``."""
    others = [load for load in guest.agent["workloads"] if load["name"] != name]
    agent = {**guest.agent, "workloads": [*others, {"name": name, **entry}]}
    return dataclasses.replace(guest, agent=agent)


@pytest.mark.parametrize(
    ("step", "check"),
    [("cpus", "cpu_hotplug_survived"), ("modules", "modules_reloaded")],
)
@pytest.mark.parametrize(
    ("fault", "status"), [("apparatus", "error"), ("series", "fail")]
)
def test_no_workload_meanwhile(step: str, check: str, fault: str, status: str) -> None:
    series = load("drm-sched")
    facts = facts_of(series)
    facts[step]["runs"] = 0
    guest = watched(series, facts=facts)
    assert statuses(judged(series, guest)) == {check: "fail"}
    error = {"kind": "x", "fault": fault, "message": "no"}
    guest = loaded(guest, step, status="failed-to-start", errors=[error])
    checks = judged(series, guest)
    assert statuses(checks) == {check: status}
    if status == "error":
        assert checks[check].detail == f"debug: workload {step}: no"


@pytest.mark.parametrize(
    ("text", "known", "status"),
    [
        (LOCKUP, True, "error"),
        (LOCKUP, False, "fail"),
        # One report of its own is enough.
        (LOCKUP + WARNING, True, "fail"),
    ],
)
def test_a_guest_that_hangs_with_reports_of_the_base(
    text: str, known: bool, status: str
) -> None:
    series = load("drm-sched")
    base = watched(series, text=LOCKUP if known else "")
    guest = watched(series, text=text, agent="running", status="hang", facts={})
    checks = judged(series, guest, base)
    assert statuses(checks)["no_new_splats"] == status
    assert set(statuses(checks).values()) == {status}
    if status == "error":
        assert checks["no_new_splats"].detail == (
            "debug: the guest ended as hang, its agent as running"
        )


def test_an_error_of_the_agent_beside_the_processors() -> None:
    series = load("drm-sched")
    facts = facts_of(series)
    facts["cpus"]["errors"] = [complaint("the workload: OSError(28, 'No space left')")]
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"cpu_hotplug_survived": "error"}
    assert "No space left" in checks["cpu_hotplug_survived"].detail
    busy = complaint("cpu1/online: Device or resource busy", "series")
    facts["cpus"]["errors"].append(busy)
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"cpu_hotplug_survived": "fail"}


def test_a_module_that_stays() -> None:
    series = load("drm-sched")
    facts = facts_of(series)
    facts["modules"] = {
        "unloads": {},
        "owners": {"gpu_scheduler:drm_sched_job_wait": "gpu_sched"},
        "runs": 0,
        "errors": [complaint("modprobe -r drm_sched_tests: in use", "series")],
    }
    checks = judged(series, watched(series, facts=facts))
    assert statuses(checks) == {"modules_reloaded": "fail"}
    failures = failing(checks)
    for part in (
        "drm_sched_tests: unloaded: 0",
        "gpu_sched: unloaded: 0",
        "workloads after that: 0",
        "in use",
    ):
        assert part in failures["modules_reloaded"]


def test_nothing_done_is_nothing_survived() -> None:
    series = load("drm-sched")
    checks = (
        "no_new_splats",
        "toggles_survived",
        "cpu_hotplug_survived",
        "modules_reloaded",
    )
    guest = watched(series, facts={})
    assert statuses(judged(series, guest)) == dict.fromkeys(checks, "error")
    guest = watched(series, facts={}, text=WARNING)
    assert statuses(judged(series, guest)) == dict.fromkeys(checks, "fail")


@pytest.mark.parametrize(
    ("entry", "text", "status"),
    [
        ({"status": "timeout"}, "", "error"),
        ({"status": "timeout"}, WARNING, "fail"),
        ({"status": "failed-to-start", "errors": [{"kind": "shortage"}]}, "", "error"),
        ({"status": "failed-to-start", "errors": [{"kind": "no-module"}]}, "", "fail"),
    ],
)
def test_a_workload_that_does_not_end(
    entry: dict[str, Any], text: str, status: str
) -> None:
    series = load("drm-sched")
    late = loaded(watched(series, text=text), "credits", exit_status=None, **entry)
    checks = judged(series, late)
    assert statuses(checks)["workloads_come_to_their_end"] == status
    failures = failing(checks)
    assert set(failures) - {"no_new_splats"} == {"workloads_come_to_their_end"}
    assert f"False {entry['status']}" in failures["workloads_come_to_their_end"]
    assert "debug: credits: " in failures["workloads_come_to_their_end"]
    # What nobody saw may be what it was to show.
    facts = facts_of(series)
    for reader in facts["readers"].values():
        reader[EVENT]["seen"] = 0
    unseen = loaded(watched(series, text=text, facts=facts), "credits", **entry)
    assert statuses(judged(series, unseen))["toggles_survived"] == status


def test_a_workload_that_was_too_slow_came_to_its_end() -> None:
    series = load("drm-sched")
    slow = {"kind": "not-in-time", "message": "the timer came first"}
    for errors, exit_status, status in (
        ([slow], 0, "pass"),
        ([slow], 1, "error"),
        ([slow], None, "error"),
        ([slow, {"kind": "lost"}], 0, "error"),
        ([], 0, "error"),
    ):
        ended = {"status": "tracer-failed", "exit_status": exit_status}
        late = loaded(watched(series), "credits", errors=errors, **ended)
        checks = statuses(judged(series, late))
        assert checks.get("workloads_come_to_their_end", "pass") == status


def test_a_workload_that_is_left_out_is_reported_with_the_reason() -> None:
    series = load("io_uring-sq")
    whole = judged(series, watched(series))["no_workload_is_left_out"]
    assert whole.status == "pass"
    first, *rest = series.spec.workload
    without = first.model_copy(update={"not_debugged": "it never ends there"})
    spec = series.spec.model_copy(update={"workload": (without, *rest)})
    left = dataclasses.replace(series, spec=spec)
    check = judged(left, watched(left))["no_workload_is_left_out"]
    assert check.status == "skip"
    assert check.detail == f"{first.name}: it never ends there"


# What the patches of `test_the_code_of_patches` make of a file.
BEFORE = """\
#define MAX 3
#ifdef TWICE
int twice(void)
{
	return 4;
}
#else
int twice(void) { return 3; }
#endif
int head(int it)
{
}
static inline int stub(void) { return 0; }
static inline int same(void) { return 6; }
static int changed(int it)
{
	return it;
}
static int caller(int it)
{
	return changed(it) ?: MAX;
}
int callers_caller(int it)
{
	return caller(it);
}
int gone(void)
{
	return 1;
}
"""
AFTER = (
    BEFORE.replace("return it;", "return it + 1;")
    .replace("return 0; }", "return 2; }")
    .replace("return 4;", "return 5;")
    .replace("int head(int it)", "int head(long it)")
    .replace("int gone(", "int added(")
    .replace("MAX 3", "MAX 4")
)


def test_the_code_of_patches() -> None:
    new = "int new(void)\n{\n}\n"
    # As a header has it, for where the file is not compiled.
    header = "static inline int caller(int it) { return 0; }\n"
    sources = {"a.c": (BEFORE, AFTER), "b.c": ("", new), "a.h": (header, header)}
    code = debugcheck.code_of(sources, ["e"])
    assert code.changed == {
        *("stub", "changed", "caller", "added", "new", "twice", "head")
    }
    assert code.touched == code.changed | {"callers_caller", "same"}
    assert code.events == {"e"}
    same = debugcheck.code_of({"a.c": (BEFORE, BEFORE)}, [])
    assert same.changed == set() and "gone" in same.touched


def race(*stacks: tuple[str, ...]) -> str:
    """A report of KCSAN with ``stacks``, each with its access on top."""
    lines = [f"BUG: KCSAN: data-race in {' / '.join(stack[0] for stack in stacks)}", ""]
    for stack in stacks:
        lines.append("write to 0xffffffff82c0f0a0 of 4 bytes by task 1 on cpu 0:")
        lines += [f" {name}+0x1/0x20" for name in stack]
        lines.append("")
    return "".join(f"[    1.000000] {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("stacks", "ours"),
    [
        ([("other", "sleeps"), ("another",)], False),
        # Whatever sleeps or faults comes through files like these.
        ([("other", "touched"), ("another", "touched")], False),
        ([("other",), ("touched", "sleeps")], True),
        ([("other",), ("another", "sleeps", "changed")], True),
        ([("other",), ("another", "trace_event_raw_event_it_waits")], True),
    ],
)
def test_whose_a_race_is(stacks: list[tuple[str, ...]], ours: bool) -> None:
    series = load("drm-sched")
    code = debugcheck.ChangedCode(
        frozenset({"touched", "changed"}), frozenset({"changed"}), frozenset({"waits"})
    )
    pair = debugcheck.GuestPair(watched(series, text=race(*stacks)), None, frozenset())
    saved = debugcheck.Saved({"kcsan": pair}, code)
    assert debugcheck.in_doubt_of_a_race(saved) is debugcheck.in_doubt(saved) is ours
    known = dataclasses.replace(pair, known=pair.patched.signatures)
    saved = debugcheck.Saved({"kcsan": known}, code)
    assert not debugcheck.in_doubt_of_a_race(saved)
    assert not debugcheck.in_doubt(saved)


def test_without_the_answer_of_the_base_there_is_no_verdict() -> None:
    series = load("drm-sched")

    def checks(why: str = "the base is gone", **change: Any) -> dict[str, Check]:
        pair = debugcheck.GuestPair(watched(series, **change), None, frozenset(), why)
        verdicts = debugcheck.judge(series, debugcheck.Saved({"debug": pair}))
        return {check.name: check for check in verdicts}

    for check, change in (
        ("no_new_splats", {"text": WARNING}),
        ("no_leaks", {"leaked": LEAK}),
    ):
        verdicts = checks(**change)
        assert list(failing(verdicts)) == [check]
        assert verdicts[check].status == "error"
        assert "the base reports it, too: debug: " in verdicts[check].detail
        assert verdicts[check].detail.endswith(": the base is gone")
        assert not all(comparison.ok for comparison in verdicts[check].comparisons)
        assert checks("", **change)[check].status == "fail"
    # What it could not make good is held all the same.
    verdicts = checks(text=WARNING, status="panic", leaked=None)
    assert verdicts["no_new_splats"].status == verdicts["no_leaks"].status == "fail"
    # And without a need of it nothing is lost.
    assert failing(checks()) == {}


def test_what_one_base_said_is_a_verdict_though_another_is_silent() -> None:
    series = load("drm-sched")
    warns = watched(series, text=WARNING)
    silent = debugcheck.GuestPair(warns, None, frozenset(), "the base is gone")
    answered = debugcheck.GuestPair(warns, watched(series), frozenset())
    quiet = debugcheck.GuestPair(watched(series, leaked=None), None, frozenset())
    for debug, kcsan, status in (
        (answered, silent, "fail"),
        (silent, quiet, "error"),
        (silent, silent, "error"),
    ):
        saved = debugcheck.Saved({"debug": debug, "kcsan": kcsan})
        (check,) = (
            check
            for check in debugcheck.judge(series, saved)
            if check.name == "no_new_splats"
        )
        assert check.status == status
    assert check.detail.count("the base is gone") == 2


@pytest.mark.parametrize(
    ("flavour", "change", "answers"),
    [
        ("debug", {}, True),
        ("debug", {"status": "hang"}, False),
        ("debug", {"agent": "error"}, False),
        ("debug", {"leaked": None}, False),
        ("debug", {"lost": "** 3 printk messages dropped **"}, False),
        ("kcsan", {"leaked": None}, True),
    ],
)
def test_a_base_that_did_not_do_its_work_does_not_answer(
    flavour: Any, change: dict[str, Any], answers: bool
) -> None:
    base = watched(load("drm-sched"), **change)
    assert debugcheck.answered(flavour, base) is answers


def test_a_guest_that_fails_anyway_asks_nobody_of_its_races() -> None:
    series = load("drm-sched")
    guest = watched(series, text=race(("touched",), ("other",)), status="hang")
    pair = debugcheck.GuestPair(guest, None, frozenset())
    code = debugcheck.ChangedCode(frozenset({"touched"}))
    assert not debugcheck.in_doubt_of_a_race(debugcheck.Saved({"kcsan": pair}, code))


MAKEFILE = """\
obj-y := nap.o
KASAN_SANITIZE_doze.o	:= n
KCSAN_SANITIZE = n
KCSAN_SANITIZE_snore.o := y
"""


@pytest.mark.parametrize(
    ("path", "reasons"),
    [
        ("bed/nap.c", ["KCSAN_SANITIZE = n"]),
        ("bed/doze.c", ["KASAN_SANITIZE_doze.o := n", "KCSAN_SANITIZE = n"]),
        ("bed/snore.c", []),
    ],
)
def test_what_sanitizers_are_left_out_of(path: str, reasons: list[str]) -> None:
    assert list(debugcheck.unwatched(path, MAKEFILE)) == reasons


def test_a_file_that_is_not_watched_is_reported_with_the_reason() -> None:
    series = load("drm-sched")
    whole = judged(series, watched(series))["no_file_is_left_out"]
    labels = [comparison.label for comparison in whole.comparisons]
    assert whole.status == "pass"
    assert "drivers/gpu/drm/scheduler/sched_main.c" in labels
    assert not any(label.startswith(("tools/", "Documentation/")) for label in labels)
    (first, *_) = labels
    code = debugcheck.ChangedCode(
        unwatched=((first, "so it says"), ("else.c", "not ours"))
    )
    pair = debugcheck.GuestPair(watched(series), None, frozenset())
    checks = debugcheck.judge(series, debugcheck.Saved({"debug": pair}, code))
    (check,) = (check for check in checks if check.name == "no_file_is_left_out")
    others = f"not left out: {', '.join(labels[1:])}"
    assert (check.status, check.detail) == ("skip", f"{first}: so it says; {others}")
    assert check.comparisons == []


def test_functions_are_those_that_are_defined() -> None:
    source = """\
#define foo(x) (x)
static int declared(void);
static inline struct page *
on_its_own_line(struct page *page,
		int order)
{
	called(page);
}
static inline void stub(void) {}
static void behind_a_stub(void)
{
}
int plain(void)
{
}
SYSCALL_DEFINE6(io_uring_enter, unsigned int, fd, u32, to_submit)
{
}
static int UVERBS_HANDLER(UVERBS_METHOD_CQ_CREATE)(
	struct uverbs_attr_bundle *attrs)
{
}
"""
    assert debugcheck.code_of({"a.c": ("", source)}, []).touched == {
        "on_its_own_line",
        "stub",
        "behind_a_stub",
        "plain",
        "__do_sys_io_uring_enter",
        "__se_sys_io_uring_enter",
        "__x64_sys_io_uring_enter",
        "__ia32_sys_io_uring_enter",
        "ib_uverbs_handler_UVERBS_METHOD_CQ_CREATE",
    }


@pytest.mark.parametrize(
    ("flavour", "facts", "detail", "status"),
    [
        ("debug", {"lockdep": None}, "lockdep watched to the end", "error"),
        ("debug", {"lockdep": False}, "lockdep watched to the end", "fail"),
        ("debug", {"counters": {}}, "dma-errors that were counted: False", "error"),
        ("debug", {"dma-errors": 2}, "dma-errors that were counted: False 2", "fail"),
        ("debug", {"object-warnings": 9}, "object-warnings that were counted", "fail"),
        ("debug", {"dma-disabled": 1}, "DMA debugging gave up: 1", "fail"),
        ("kcsan", {"counters": {}}, "KCSAN is on: None", "error"),
        ("kcsan", {"kcsan-enabled": 0}, "KCSAN is on: 0", "fail"),
        ("kcsan", {"kcsan-watchpoints": 0}, "accesses that KCSAN watched: 0", "fail"),
    ],
)
def test_one_who_does_not_watch(
    flavour: Any, facts: dict[str, Any], detail: str, status: str
) -> None:
    series = load("drm-sched")
    whole = facts_of(series)
    for name, value in facts.items():
        (whole if name in whole else whole["counters"])[name] = value
    guest = watched(series, facts=whole)
    assert not debugcheck.worth_keeping(series, flavour, guest)
    pair = debugcheck.GuestPair(guest, watched(series), frozenset())
    verdicts = debugcheck.judge(series, debugcheck.Saved({flavour: pair}))
    checks = {check.name: check for check in verdicts}
    assert detail in failing(checks)["no_new_splats"]
    assert checks["no_new_splats"].status == status


@pytest.mark.parametrize(
    ("change", "known", "doubt"),
    [
        ({}, (), False),
        ({"text": WARNING}, (), True),
        ({"text": WARNING}, ("it",), False),
        ({"leaked": LEAK}, (), True),
        ({"leaked": LEAK}, ("it",), False),
        ({"status": "panic"}, (), True),
    ],
)
def test_what_the_base_is_asked(
    change: dict[str, Any], known: tuple[str, ...], doubt: bool
) -> None:
    guest = watched(load("drm-sched"), **change)
    told = guest.signatures if known else frozenset()
    pair = debugcheck.GuestPair(guest, None, told)
    saved = debugcheck.Saved({"debug": pair})
    assert debugcheck.in_doubt(saved) is doubt


def test_the_base_is_asked_of_what_is_only_counted_and_not_of_who_watches() -> None:
    series = load("drm-sched")
    for change, doubt in (({"dma-errors": 3}, True), ({"dma-disabled": 1}, False)):
        facts = facts_of(series)
        facts["counters"].update(change)
        pair = debugcheck.GuestPair(watched(series, facts=facts), None, frozenset())
        saved = debugcheck.Saved({"debug": pair})
        assert debugcheck.in_doubt(saved) is doubt


def test_only_a_guest_without_fault_is_kept() -> None:
    series = load("drm-sched")
    assert debugcheck.worth_keeping(series, "debug", watched(series))
    facts = facts_of(series)
    facts["bpftrace"]["errors"] = [complaint("it did not attach")]
    late = watched(series, facts=facts)
    alone = debugcheck.GuestPair(late, None, frozenset())
    # That it is to be run again is nothing that the base can be asked about.
    assert not debugcheck.in_doubt(debugcheck.Saved({"debug": alone}))
    assert not debugcheck.worth_keeping(series, "debug", late)


def test_suspected_leaks_are_judged_by_what_is_left_of_them() -> None:
    series = load("drm-sched")
    text = "[    9.000000] kmemleak: 3 new suspected memory leaks (see /sys/kernel)\n"
    assert failing(judged(series, watched(series, text=text))) == {}
    assert "no_leaks" in failing(
        judged(series, watched(series, text=text, leaked=LEAK))
    )
