# SPDX-License-Identifier: GPL-2.0-or-later
"""From what measured programs printed to instructions per operation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import KstallError, NotJudged, arch, cache, elsewhere
from kstall.cost import Kernels, counting
from kstall.evidence import traceabi
from kstall.guest import Guest, accel, guest, guestrun
from kstall.guest.console import Splat
from kstall.series import Context, Measure, Project, Series
from kstall.series.spec import OverheadSpec
from kstall_guest import job


def measure(**fields: Any) -> Measure:
    return Measure.model_validate(
        {
            "name": "call",
            "program": "workloads/overhead/io_uring-sq",
            "operation": "call",
            **fields,
        }
    )


def count(boot: str, mode: str, *taken: int, events: int | None = None) -> Any:
    return {
        "boot": boot,
        "workload": "call",
        "mode": mode,
        "operations": 10,
        "taken": list(taken),
        "events": events,
    }


@pytest.fixture
def series(project_root: Path) -> Series:
    (drm_sched,) = Project(project_root).load(["drm-sched"])
    workload = measure(
        events=["gpu_scheduler:drm_sched_job_wait"], script="drm-sched-wait.bt"
    )
    spec = drm_sched.spec.model_copy(
        update={"overhead": OverheadSpec(workload=(workload,))}
    )
    return dataclasses.replace(drm_sched, spec=spec)


def test_the_medians_of_boots_are_compared() -> None:
    # The last repetition of a boot had a timer tick in it.
    counts = [
        count("base-1", "base", *[1000] * 20, 1800),
        count("base-2", "base", *[1000] * 20, 1900),
        count("patched-1", "off", *[1010] * 20, 1700),
        count("patched-2", "off", *[1010] * 20, 1010),
        count("patched-1", "ftrace", 1500, 1500, 1500, events=100),
    ]
    measurement = counting._measurement(measure(nops=1), counts)
    assert measurement.difference == 1
    assert measurement.resolution == 0
    assert measurement.visible
    assert measurement.predicted == 1
    by_mode = {sample.mode: sample for sample in measurement.samples}
    assert by_mode["base"].boots[0].high == 180
    # Two repetitions come first that are not printed.
    assert by_mode["ftrace"].hits == 100 / 50


def test_boots_that_agree_by_chance_do_not_show_a_difference() -> None:
    """Their repetitions differ by far more."""
    counts = [
        *(count(f"base-{n}", "base", *range(900, 1101, 20)) for n in (1, 2, 3)),
        *(count(f"patched-{n}", "off", *range(908, 1109, 20)) for n in (1, 2, 3)),
    ]
    measurement = counting._measurement(measure(), counts)
    assert measurement.difference == pytest.approx(0.8)
    assert 4 <= measurement.resolution <= 8
    assert not measurement.visible
    for boot in counts[3:]:
        boot["taken"] = [taken + 100 for taken in boot["taken"]]
    assert counting._measurement(measure(), counts).visible


def test_a_difference_within_the_spread_is_not_visible() -> None:
    counts = [
        count("base-1", "base", 1000, 1000, 1000),
        count("base-2", "base", 1030, 1030, 1030),
        count("patched-1", "off", 1035, 1035, 1035),
    ]
    measurement = counting._measurement(measure(), counts)
    assert measurement.resolution == 3
    assert not measurement.visible


def test_repetitions_that_medians_do_not_show_are_kept() -> None:
    counts = [
        count("base-1", "base", *[1000] * 101),
        count("patched-1", "off", *[1000] * 52, *[9000] * 49),
    ]
    measurement = counting._measurement(measure(), counts)
    assert measurement.difference == 0
    boots = [sample.boots[0] for sample in measurement.samples]
    assert [boot.upper for boot in boots] == [100, 900]


def test_what_a_program_prints() -> None:
    assert counting.parse("operations 8\n80\n81\n") == (8, [80, 81])


@pytest.mark.parametrize("text", ["", "operations 8\n", "80\n81\n"])
def test_a_program_that_measures_nothing_is_an_error(text: str) -> None:
    with pytest.raises(KstallError):
        counting.parse(text)


def test_the_base_is_never_traced(series: Series, kernels: Kernels) -> None:
    for boot in counting._boots(kernels):
        loads = counting._job(series, boot)["workloads"]
        if boot.formats:
            loads.pop()
        if boot.kernel is kernels.base:
            assert [load["name"] for load in loads] == ["call-base"]
            assert loads[0]["events"] == loads[0]["bpftrace"] == []
        else:
            assert [load["name"] for load in loads][:2] == ["call-off", "call-ftrace"]


def test_formats_are_printed_once_of_each_kernel_when_all_is_measured(
    series: Series, kernels: Kernels, project_root: Path
) -> None:
    asked = []
    for boot in counting._boots(kernels):
        document = counting._job(series, boot)
        loads = job.parse(document).workloads
        names = [load.name for load in loads]
        if "all-trace-events" in names:
            assert names[-1] == "all-trace-events"
            asked.append(boot.kernel)
            (program,) = loads[-1].argv
            place = Path(program).relative_to("/run/kstall")
            assert os.access(project_root / place, os.X_OK)
    assert asked == [kernels.base, kernels.patched]


def test_bpftrace_is_started_in_one_boot(series: Series, kernels: Kernels) -> None:
    traced = [
        load
        for boot in counting._boots(kernels)
        for load in counting._job(series, boot)["workloads"]
        if load["bpftrace"]
    ]
    assert [load["name"] for load in traced] == ["call-bpftrace"]


def test_a_boot_gets_its_accelerator_and_machine(
    series: Series,
    kernels: Kernels,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is asked for is booted, and what the programs printed is what comes back."""
    seen: list[Any] = []

    def boot(*arguments: Any, out: Path, **_: Any) -> Any:
        seen.extend(arguments)
        results = out / "share/results/call-base"
        results.mkdir()
        (results / "stdout").write_text("operations 10\n70\n80\n")
        agent = {
            "workloads": [
                {"name": name, "exit_status": 0}
                for name in ("call-base", "all-trace-events")
            ]
        }
        cache.write_json(results.parent / "agent.json", agent)
        return SimpleNamespace(
            status="completed",
            exit_status=0,
            console=out / "console.log",
            splats=(),
            victims=(),
            performed=(),
            ahead=None,
            excused=lambda _: {},
        )

    monkeypatch.setattr(guest, "boot", boot)
    kernels.base.modules.mkdir(parents=True)
    (tmp_path / "out/programs").mkdir(parents=True)
    (base, *_) = counting._boots(kernels)
    speed = accel.Accel("kvm", "on trial")
    machine = counting._machine(series)
    vm = Guest(base.kernel, kernels.root, speed, machine)
    rows = counting.run(Project(project_root), series, base, vm, tmp_path / "out")
    assert speed in seen
    assert machine in seen
    assert [(row["mode"], row["operations"], row["taken"]) for row in rows] == [
        ("base", 10, [70, 80])
    ]
    assert not (tmp_path / "out/base-1/share").exists()


LATE = {"kind": "tracer-failed", "fault": "apparatus", "message": "not attached"}
SKIPPED = {"kind": "skipped-events", "fault": "apparatus", "message": "skipped"}
GONE = {"kind": "missing-event", "fault": "series", "message": "no such event"}
WARNING = Splat("warning", 1, "WARNING: x", "WARNING: x")
LOSS = Splat("warning", 1, "** 3 printk messages dropped **", "dropped")
NO_ROOT = "Kernel panic - not syncing: VFS: Unable to mount root fs on x"
ROOTLESS = Splat("panic", 2, NO_ROOT, NO_ROOT)


@pytest.mark.parametrize(
    ("number", "ended", "done", "verdict"),
    [
        (1, {}, {"exit_status": 3}, counting.MeasureFailed),
        (1, {}, {"errors": [GONE]}, counting.MeasureFailed),
        (1, {"splats": (WARNING,)}, {}, counting.MeasureFailed),
        (1, {"status": "panic"}, {}, counting.MeasureFailed),
        (
            1,
            {"status": "panic", "splats": (WARNING, ROOTLESS), "victims": ()},
            {},
            counting.MeasureFailed,
        ),
        # Nothing of this is the patches' doing.
        (0, {}, {"exit_status": 3}, KstallError),
        (0, {"splats": (WARNING,)}, {}, KstallError),
        (1, {}, {"errors": [LATE]}, KstallError),
        (1, {}, {"errors": [LATE], "exit_status": None}, KstallError),
        (1, {"exit_status": 1}, {}, NotJudged),
        (1, {"splats": (LOSS,)}, {}, NotJudged),
        (1, {"status": "hang"}, {}, NotJudged),
        (1, {"status": "lost"}, {}, NotJudged),
        (1, {"status": "panic", "splats": (ROOTLESS,)}, {}, NotJudged),
        (1, {"status": "panic", "victims": ("init",)}, {}, NotJudged),
        (1, {}, {"errors": [SKIPPED]}, None),
        (1, {}, {"formats": 1}, KstallError),
        (1, {}, {"formats": None}, KstallError),
        (0, {}, {"formats": 0}, None),
    ],
)
def test_whose_fault_a_boot_without_counts_is(
    series: Series,
    kernels: Kernels,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    ended: dict[str, Any],
    done: dict[str, Any],
    verdict: type[KstallError] | None,
) -> None:
    listed = {"name": "all-trace-events", "exit_status": done.get("formats")}
    boot = dataclasses.replace(
        counting._boots(kernels)[number], formats="formats" in done
    )
    boot = dataclasses.replace(boot, modes=("base",) if not number else ("off",))

    def booted(*_: Any, out: Path, **__: Any) -> guest.GuestRun:
        name = f"call-{boot.modes[0]}"
        results = out / "share/results" / name
        results.mkdir()
        (results / "stdout").write_text("operations 10\n70\n80\n")
        # What was not begun has printed nothing.
        if done.get("exit_status", 0) is not None:
            (results / "stderr").write_text("")
        entry = {"name": name, "exit_status": 0, "errors": []} | done
        cache.write_json(results.parent / "agent.json", {"workloads": [entry, listed]})
        (out / "console.log").write_text("x\n")
        facts: dict[str, Any] = {"status": "completed", "exit_status": 0, "splats": ()}
        facts |= ended
        return guest.GuestRun(
            console=out / "console.log",
            seconds=1,
            first_line_seconds=1,
            argv=(),
            **facts,
        )

    monkeypatch.setattr(guest, "boot", booted)
    boot.kernel.modules.mkdir(parents=True)
    (tmp_path / "out/programs").mkdir(parents=True)

    vm = counting._vm(series, kernels, boot)

    def run() -> list[dict[str, Any]]:
        return counting.run(Project(project_root), series, boot, vm, tmp_path / "out")

    if verdict is None:
        assert len(run()) == 1
        return
    with pytest.raises(KstallError) as caught:
        run()
    assert type(caught.value) is verdict
    assert caught.value.what.startswith(f"boot {boot.name}: ")
    if ended.get("splats") == (LOSS,):
        assert LOSS.headline in caught.value.what


def test_a_boot_is_given_what_prints_the_formats(
    series: Series,
    kernels: Kernels,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, bool] = {}

    def boot(*_: Any, out: Path, **__: Any) -> Any:
        program = out / "share" / traceabi.PROGRAM
        seen[out.name] = program.exists() and os.access(program, os.X_OK)
        raise KstallError("enough")

    monkeypatch.setattr(guest, "boot", boot)
    for built in (kernels.base, kernels.patched):
        built.modules.mkdir(parents=True)
    (tmp_path / "out/programs").mkdir(parents=True)
    for planned in counting._boots(kernels):
        vm = counting._vm(series, kernels, planned)
        with pytest.raises(KstallError, match="enough"):
            counting.run(Project(project_root), series, planned, vm, tmp_path / "out")
    assert [name for name, given in seen.items() if given] == ["base-1", "patched-1"]


def test_a_script_is_not_compiled(
    series: Series, project_root: Path, tmp_path: Path
) -> None:
    workload = measure(program="workloads/overhead/read-measure")
    spec = series.spec.model_copy(
        update={"overhead": OverheadSpec(workload=(workload,))}
    )
    counting.compile_programs(
        Project(project_root),
        dataclasses.replace(series, spec=spec),
        tmp_path,
        tmp_path / "log",
        arch.X86_64,
    )
    assert list((tmp_path / "programs").iterdir()) == []


def test_one_processor_counts(series: Series) -> None:
    machine = counting._machine(series)
    assert machine.cpus == 1
    assert "-icount" in machine.devices


def test_the_key_minds_what_is_measured(
    series: Series, kernels: Kernels, project_root: Path
) -> None:
    project = Project(project_root)

    def key(**fields: Any) -> str:
        overhead = OverheadSpec(workload=(measure(**fields),))
        spec = series.spec.model_copy(update={"overhead": overhead})
        changed = dataclasses.replace(series, spec=spec)
        return counting.key_of(project, changed, kernels, "patched")

    assert key() == key(nops=1)
    assert len({key(), key(args=["1"]), key(script="drm-sched-why.bt")}) == 3


def test_each_kernel_has_a_key_of_its_own(
    series: Series, kernels: Kernels, project_root: Path
) -> None:
    """What was counted in the base stands when a patch is edited."""
    project = Project(project_root)

    def keys(which: Kernels) -> list[str]:
        sides = ("base", "patched")
        return [counting.key_of(project, series, which, side) for side in sides]

    before = keys(kernels)
    edited = dataclasses.replace(kernels.patched, key="edited")
    after = keys(dataclasses.replace(kernels, patched=edited))
    assert before[0] == after[0] and before[1] != after[1]
    among = keys(dataclasses.replace(kernels, beside=("sched:sched_throttle",)))
    assert among[0] == before[0] and among[1] != before[1]


def print_formats(boot: Path) -> None:
    """Put them where the guest of ``boot`` does; its name will do for them."""
    stdout = boot / "results" / "all-trace-events" / "stdout"
    stdout.parent.mkdir(parents=True, exist_ok=True)
    stdout.write_text(boot.name)


def test_boots_of_a_kernel_are_counted_once(
    series: Series,
    kernels: Kernels,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[str] = []

    def count_boots(*words: Any) -> list[dict[str, Any]]:
        counted.extend(boot.name for boot in words[3])
        for boot in words[3]:
            print_formats(tmp_path / "out" / series.name / "instructions" / boot.name)
        return [
            {**count(boot.name, mode, 100, 100), "events": 0}
            for boot in words[3]
            for mode in boot.modes
        ]

    monkeypatch.setattr(counting, "_count", count_boots)
    ui: Any = SimpleNamespace(say=print)
    context = Context(Project(project_root), tmp_path, tmp_path / "out", "full", ui)
    log = tmp_path / "log"

    def measure_on(which: Kernels) -> bool:
        counted.clear()
        reused = counting.measure(context, series, which, log)[1]
        assert counting.formats(context, series, which) == ("base-1", "patched-1")
        return reused

    assert not measure_on(kernels)
    assert len(counted) == 6
    assert measure_on(kernels)
    assert counted == []
    edited = dataclasses.replace(kernels.patched, key="edited")
    assert not measure_on(dataclasses.replace(kernels, patched=edited))
    assert counted == ["patched-1", "patched-2", "patched-3"]


@pytest.mark.parametrize("first", ["base", "patched"])
@pytest.mark.parametrize("base_fails", [True, False])
def test_who_fails_first_does_not_decide_whose_fault_it_is(
    series: Series,
    kernels: Kernels,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    base_fails: bool,
) -> None:
    """A program that works on neither kernel is no fault of the patches."""
    booted: list[str] = []

    def run(*words: Any) -> list[dict[str, Any]]:
        boot = words[2]
        booted.append(boot.name)
        if boot.side == "base" and not base_fails:
            return []
        raise boot.failure(f"boot {boot.name}: exit 1: -ENOENT")

    def each(tasks: Any, _: int, on_result: Callable[[str, Any], None]) -> None:
        for name in sorted(tasks, key=lambda name: not name.startswith(first)):
            on_result(name, tasks[name]())

    monkeypatch.setattr(counting, "run", run)
    monkeypatch.setattr(counting.parallel, "each", each)
    ui: Any = SimpleNamespace(progress=lambda *_: None)
    context = Context(Project(project_root), tmp_path, tmp_path / "out", "full", ui)
    boots = counting._boots(kernels)
    with pytest.raises(KstallError) as caught:
        counting._count(context, series, kernels, boots, tmp_path / "log")
    assert isinstance(caught.value, counting.MeasureFailed) is not base_fails
    # The base of which counts are there is not booted again.
    again = "base-again" in booted
    assert again is (first == "patched")
    booted.clear()
    patched = [boot for boot in boots if boot.side == "patched"]
    with pytest.raises(counting.MeasureFailed):
        counting._count(context, series, kernels, patched, tmp_path / "log")
    assert booted == ["patched-1"]


def test_a_worker_counts_in_the_guest_that_it_was_asked_for(
    series: Series,
    kernels: Kernels,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    among = dataclasses.replace(kernels, beside=("sched:sched_throttle",))
    asked = counting._boots(among)
    given: list[counting.BootPlan] = []

    def run(*words: Any) -> list[dict[str, Any]]:
        given.append(words[2])
        return []

    by_key = {which.key: which for which in (kernels.base, kernels.patched)}
    monkeypatch.setattr(counting, "run", run)
    monkeypatch.setattr(counting.kernel, "find", lambda key, _: by_key[key])
    monkeypatch.setattr(counting.root, "find", lambda *_: kernels.root)
    found = SimpleNamespace(
        root=project_root,
        scripts=project_root / "scripts",
        harness=project_root / "harness",
        load=lambda _: [series],
    )
    monkeypatch.setattr(guestrun.projects, "keep", lambda *_: "projects/x")
    monkeypatch.setattr(guestrun.projects, "find", lambda *_: found)
    ui: Any = SimpleNamespace(say=print)
    context = Context(Project(project_root), tmp_path, tmp_path / "out", "full", ui)
    for boot in asked:
        spec = counting._unit(context, series, among, boot).spec
        counting.perform(tmp_path, tmp_path / "worker", spec, ui)
        with pytest.raises(elsewhere.WrongWorker, match="a different guest"):
            counting.perform(tmp_path, tmp_path / "worker", {**spec, "key": "x"}, ui)
    assert tuple(given) == asked


def test_readers_have_all_the_time_of_a_guest_that_has_no_clock(
    series: Series, kernels: Kernels
) -> None:
    """Its time passes at once while it waits, as for what it reads over 9p."""
    for boot in counting._boots(kernels):
        loads = job.parse(counting._job(series, boot)).workloads
        for load in loads:
            assert load.deadline_s == 3600
            if load.name != "all-trace-events":
                assert load.attach_s == 3600


def test_events_of_others_are_on_in_one_boot_of_the_patched_kernel(
    series: Series, kernels: Kernels
) -> None:
    others = ("sched:sched_throttle", "iommu:iotlb_sync")
    among = dataclasses.replace(kernels, beside=others)
    loads = [
        (boot.name, load)
        for boot in counting._boots(among)
        for load in job.parse(counting._job(series, boot)).workloads
        if load.beside
    ]
    assert [(name, load.name) for name, load in loads] == [("patched-1", "call-beside")]
    (_, load) = loads[0]
    assert load.beside == others and load.events == ()


def test_what_others_cost_is_a_nop_for_each_time_that_their_events_fire() -> None:
    counts = [
        count("base-1", "base", 1000, 1000, 1000),
        count("patched-1", "off", 1030, 1030, 1030),
        count("patched-1", "ftrace", 1500, 1500, 1500, events=50),
        count("patched-1", "beside", 2500, 2500, 2500, events=100),
    ]
    measurement = counting._measurement(measure(nops=1), counts)
    assert measurement.difference == 3
    assert (measurement.predicted, measurement.others) == (1, 2)
    assert [sample.mode for sample in measurement.samples] == ["base", "off", "ftrace"]
