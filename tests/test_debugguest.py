# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest of a kernel that watches itself, and the stages around all of them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import kerneltree
from kstall import am, debugging, debugguest, guest, guestrun, report
from kstall import run as runs
from kstall.errors import KstallError
from kstall.kernel import Kernel
from kstall.root import Root
from kstall.run import Opened
from kstall.series import Project, Series
from kstall.ui import Ui
from kstall_guest import job as jobs

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).parent / "data/console"


def ui() -> Ui:
    return Ui(Console(file=io.StringIO()))


def kernel_at(path: Path, key: str = "k" * 16) -> Kernel:
    (path / "modules").mkdir(parents=True, exist_ok=True)
    return Kernel(key, path, "7.3.4-test", "ab" * 20, reused=False)


@pytest.mark.parametrize("name", Project(ROOT).names())
def test_the_guest_understands_its_job(name: str, tmp_path: Path) -> None:
    (series,) = Project(ROOT).load([name])
    new = {one.event for one in series.spec.tracepoint}
    for side in ("patched", "base"):
        made = debugguest.job_for(series, kernel_at(tmp_path), side)  # type: ignore[arg-type]
        job = jobs.parse(made)
        assert job.stress is not None
        switched = {*job.stress.events, *job.stress.bare}
        assert [one.name for one in job.workloads] == [
            one.name for one in series.spec.workload
        ]
        assert not any(
            one.events or one.record or one.bpftrace for one in job.workloads
        )
        if side == "patched" and new:
            assert switched == new
        else:
            assert switched and not switched & new
        assert set(job.stress.reload) == set(job.all_modules())


def test_there_is_a_processor_to_take_away_and_the_line_is_not_too_long() -> None:
    for series in Project(ROOT).load():
        machine = debugguest.machine_for(series)
        assert machine.cpus >= 2
        assert machine.memory == "3072M"
        shares = [guest.Share(str(guestrun.GUEST), ROOT)]
        guest._check_length(machine, shares, ["python3", "-m", "kstall_guest"] * 2)


class Bench:
    """A guest that is only said to run."""

    def __init__(self, project: Project, home: Path, monkeypatch: Any) -> None:
        self.project, self.home, self.boots = project, home, 0
        (self.series,) = project.load(["drm-sched"])
        self.where = guestrun.Guest(
            kernel_at(home / "kernel"),
            Root("r" * 16, home / "root", (), {}, reused=True),
            guest.Accel("tcg", "for the test"),
            debugguest.machine_for(self.series),
        )
        self.ran: dict[str, Any] = {}
        self.console = "[    1.000000] Linux\n"
        monkeypatch.setattr(guestrun.guest, "boot", self._boot)

    def _boot(self, *args: Any, out: Path, deadline: float, **_: Any) -> guest.GuestRun:
        self.boots += 1
        (share,) = args[4]
        assert (share.host / "scripts/workloads/debug/toggle").exists()
        jobs.load(share.host / "job.json")
        assert deadline > 600
        agent = {"status": "completed", "stress": {"seconds": {"workloads": 5.0}}}
        (share.host / "results/agent.json").write_text(json.dumps(agent))
        (out / "console.log").write_text(self.console)
        facts = {"status": "completed", "exit_status": 0} | self.ran
        return guest.GuestRun(
            console=out / "console.log",
            seconds=3.0,
            first_line_seconds=2.0,
            splats=(),
            argv=("vng",),
            **facts,
        )

    def run(self, clean: Callable[[Any], bool] = lambda _: True) -> debugguest.Watched:
        out = self.home / f"run{len(list(self.home.glob('run*')))}"
        out.mkdir()
        self.stage = Opened(log=out / "guest.log")
        return debugguest.run(
            self.project,
            self.series,
            self.where,
            "patched",
            out,
            self.home / "cache",
            self.stage,
            ui(),
            clean=clean,
        )


@pytest.fixture
def bench(
    project_copy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    return Bench(project_copy, tmp_path / "home", monkeypatch)


def test_a_guest_without_a_word_is_not_run_again(bench: Bench) -> None:
    first = bench.run()
    again = bench.run()
    assert bench.boots == 1 and bench.stage.reused
    assert first == again and first.complaints == () and first.leaked is None
    assert bench.stage.summary == "completed after 3 s, 0 toggles, 0 reports"
    assert not list(bench.home.glob("run*/share"))


def test_one_that_complains_is(bench: Bench) -> None:
    bench.console = (DATA / "lockdep.log").read_text()
    first = bench.run(clean=lambda came: not came.complaints)
    assert [one.kind for one in first.complaints] == ["lockdep", "lockdep"]
    bench.run(clean=lambda came: not came.complaints)
    assert bench.boots == 2


def test_another_program_that_switches_is_another_guest(bench: Bench) -> None:
    bench.run()
    with (bench.project.scripts / "workloads/debug/toggle.c").open("a") as file:
        file.write("\n")
    bench.run()
    assert bench.boots == 2


def test_a_guest_that_hangs_is_a_result_and_is_run_again(bench: Bench) -> None:
    bench.ran = {"status": "hang", "exit_status": None}
    assert bench.run().status == "hang"
    bench.run()
    assert bench.boots == 2


def test_a_guest_that_went_away_is_none(bench: Bench) -> None:
    bench.ran = {"status": "lost", "exit_status": None}
    with pytest.raises(KstallError, match="went away"):
        bench.run()


def test_results_that_are_not_whole(tmp_path: Path) -> None:
    with pytest.raises(KstallError, match="no results of a guest"):
        debugguest.load(tmp_path)


# --- the stages ---


def _stages(
    project: Project,
    series: tuple[Series, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    boot: Callable[..., Any],
) -> report.Report:
    """What `debugging.prove` reports when nothing is really built or booted."""
    run = runs.begin(tmp_path / "out", ["kstall"], ui())
    run.report.series = [
        report.SeriesReport(name=one.name, title="t", digest="d") for one in series
    ]
    base = kerneltree.base(kerneltree.directory(tmp_path / "linux"), tmp_path / "cache")

    def make(_: Any, group: debugging.Group, __: str, ___: Any) -> debugging.Made:
        kernels = {side: kernel_at(tmp_path / side) for side in ("patched", "base")}
        names = [one.name for one in group.series]
        return debugging.Made(kernels, dict.fromkeys(names, ()))  # type: ignore[arg-type]

    monkeypatch.setattr(debugging, "_make", make)
    monkeypatch.setattr(debugging.debugguest, "run", boot)
    speed = guest.Accel("tcg", "for the test", one_thread=True)
    monkeypatch.setattr(debugging.accel, "probe", lambda *_: speed)
    ground: Any = SimpleNamespace(
        project=project, base=base, root=None, tools=None, cache=tmp_path / "cache"
    )
    with contextlib.suppress(runs.StageStopped):
        debugging.prove(ground, list(zip(series, run.report.series, strict=True)), run)
    return run.report


def _came(text: str = "") -> debugguest.Watched:
    return debugguest.Watched("completed", 0, {"status": "completed"}, (), ())


def test_each_series_gets_the_checks_of_both_flavours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = kerneltree.project(tmp_path / "project")
    series = project.load(["demo"])
    booted: list[tuple[str, str]] = []

    def boot(*words: Any, **_: Any) -> debugguest.Watched:
        booted.append((words[4].name, words[3]))
        return _came()

    found = _stages(project, series, tmp_path, monkeypatch, boot)
    assert sorted(booted) == [
        ("debug-base", "base"),
        ("debug-patched", "patched"),
        ("kcsan-base", "base"),
        ("kcsan-patched", "patched"),
    ]
    checks = {one.name: one for one in found.series[0].checks}
    assert checks["no_new_splats"].status == "pass"
    labels = [one.label for one in checks["no_new_splats"].comparisons]
    assert "debug: guest ended as" in labels and "kcsan: guest ended as" in labels
    assert [one.name for one in found.stages] == ["debug-apply", "debug-guests"]
    (stage,) = found.series[0].stages
    assert stage.name == "debug" and "of 6 checks pass" in stage.summary


def test_a_guest_that_is_lost_stops_its_series_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = kerneltree.project(tmp_path / "project")
    series = project.load(["demo"])

    def boot(*words: Any, **_: Any) -> debugguest.Watched:
        if words[4].name == "debug-patched":
            raise KstallError("the guest went away")
        return _came()

    found = _stages(project, series, tmp_path, monkeypatch, boot)
    assert found.stages[-1].summary == "3 guests came back, 1 did not"
    (stage,) = found.series[0].stages
    assert (stage.name, stage.status) == ("debug", "error")
    assert "the guest went away" in (stage.error or "")
    assert found.series[0].checks == []


def test_series_that_do_not_apply_together_have_a_kernel_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = SimpleNamespace(patches=("a",)), SimpleNamespace(patches=("b",))

    def plan(_: Any, patches: Any, __: Path) -> Any:
        if len(patches) > 1:
            raise am.ApplyError("no", patch=Path("a"), file="f")
        return tuple(patches)

    monkeypatch.setattr(debugging.tree, "plan", plan)
    groups = debugging.grouped(Any, [one, two], tmp_path)  # type: ignore[arg-type,list-item]
    assert [group.series for group in groups] == [(one,), (two,)]


def test_base_and_patched_are_built_in_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = kerneltree.project(tmp_path / "project")
    (series,) = project.load(["demo"])
    for name in ("base", "debug"):
        (project.kconfigs / f"{name}.config").write_text(f"# {name}\n")
    base = kerneltree.base(kerneltree.directory(tmp_path / "linux"), tmp_path / "cache")
    (group,) = debugging.grouped(base, [series], tmp_path)
    told: list[tuple[str, ...]] = []

    def configure(
        tree: Any, _: str, fragments: Any, *__: Any, absent: Any, **___: Any
    ) -> Any:
        names = (path.name for path in fragments)
        told.append(("config", *names, *tree.touched, *absent))
        return SimpleNamespace(file=fragments[0])

    def build(tree: Any, slot: str, *_: Any, **__: Any) -> Kernel:
        told.append(("build", slot, *tree.touched))
        return kernel_at(tmp_path / "kernel")

    monkeypatch.setattr(debugging.kernel, "added_symbols", lambda _: {"NEW"})
    monkeypatch.setattr(debugging.kernel, "configure", configure)
    monkeypatch.setattr(debugging.kernel, "build", build)
    monkeypatch.setattr(debugging.programs, "obtain", lambda *_, **__: ())
    run = runs.begin(tmp_path / "out", ["kstall"], ui())
    tools: Any = SimpleNamespace(id="t")
    root: Any = None
    ground = debugging.Ground(project, base, root, tools, tmp_path / "cache")
    made = debugging._make(ground, group, "debug", run)
    fragments = ("base.config", "demo.config", "debug.config")
    assert told == [
        ("config", *fragments, "demo.c", "demo_trace.h"),
        ("build", "+debug", "demo.c", "demo_trace.h"),
        ("config", *fragments, "NEW"),
        ("build", "+debug"),
    ]
    assert set(made.kernels) == {"patched", "base"} and made.programs == {"demo": ()}
    assert [one.name for one in run.report.stages] == [
        "debug-patched-demo",
        "debug-base-demo",
    ]
