# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest of a debug kernel, and the stages around all of them."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from rich.console import Console

import consoles
import kerneltree
from kstall.base import KstallError, NotJudged, arch
from kstall.build import Ground, Kernel, kconfig
from kstall.debian import Root
from kstall.evidence import debugcheck, races
from kstall.guest import accel, console, debugguest, guest, guestrun, hosttime, splats
from kstall.guest import jobs as jobs_of
from kstall.pipeline import Ui, debugging, debugkernel, groups, validate
from kstall.pipeline import run as runs
from kstall.report import report
from kstall.series import Context, Project, Series
from kstall.tree import am, tree
from kstall.verdict import Check
from kstall_guest import job as jobs

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).parent / "data/console"
LIMITS = hosttime.Thresholds()


def ui() -> Ui:
    return Ui(Console(file=io.StringIO()))


def kernel_at(path: Path, key: str = "k" * 16) -> Kernel:
    (path / "modules").mkdir(parents=True, exist_ok=True)
    (path / "System.map").touch()
    return Kernel(key, path, "7.3.4-test", "ab" * 20, reused=False)


@pytest.mark.parametrize("name", Project(ROOT).names())
def test_the_guest_understands_its_job(name: str, tmp_path: Path) -> None:
    (series,) = Project(ROOT).load([name])
    series = debugging.debugged(series, Project(ROOT).load(series.spec.needs))
    new = {point.event for point in series.spec.tracepoint}
    for side in ("patched", "base"):
        document = debugguest.job_for(series, kernel_at(tmp_path), side)
        job = jobs.parse(document)
        assert job.stress is not None
        switched = {*job.stress.events, *job.stress.bare}
        assert [workload.name for workload in job.workloads] == [
            workload.name
            for workload in series.spec.workload
            if workload.not_debugged is None
        ]
        assert not any(
            workload.events or workload.record or workload.bpftrace
            for workload in job.workloads
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
        assert not any(word.startswith("isolcpus=") for word in machine.append)
        assert machine.memory == "3072M"
        shares = [guest.Share(str(jobs_of.GUEST), ROOT)]
        words = ["python3", "-m", "kstall_guest"] * 2
        guest._check_length(machine, shares, words, arch.X86_64)


class Bench:
    """A guest that is only said to run."""

    def __init__(self, project: Project, home: Path, monkeypatch: Any) -> None:
        self.project, self.home, self.boots = project, home, 0
        (self.series,) = project.load(["drm-sched"])
        self.where = guestrun.Guest(
            kernel_at(home / "kernel"),
            Root("r" * 16, home / "root", {}, reused=True),
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
        facts: dict[str, Any] = {"status": "completed", "exit_status": 0} | self.ran
        return guest.GuestRun(
            console=out / "console.log",
            seconds=330.0,
            first_line_seconds=2.0,
            splats=consoles.scan(self.console),
            argv=("vng",),
            **facts,
        )

    def run(
        self, keep: Callable[[Any], bool] = lambda _: True, *, fresh: bool = False
    ) -> debugguest.Watched:
        out = self.home / f"run{len(list(self.home.glob('run*')))}"
        out.mkdir()
        watched, self.booted = debugguest.run(
            Context(self.project, self.home / "cache", self.home, "deep", ui()),
            self.series,
            self.where,
            "patched",
            out,
            out / "guest.log",
            keep=keep,
            fresh=fresh,
        )
        return watched


@pytest.fixture
def bench(
    project_copy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    return Bench(project_copy, tmp_path / "home", monkeypatch)


def test_a_guest_without_a_word_is_not_run_again(bench: Bench) -> None:
    first = bench.run()
    again = bench.run()
    assert bench.boots == 1 and bench.booted.reused
    assert first == again and first.reports == () and first.leaked is None
    assert bench.booted.summary == "completed after 330 s, 0 toggles, 0 reports"
    assert not list(bench.home.glob("run*/share"))


def test_a_fresh_guest_replaces_what_is_kept(bench: Bench) -> None:
    bench.run()
    bench.console = "[    2.000000] Linux\n"
    bench.run(fresh=True)
    assert bench.boots == 2 and not bench.booted.reused
    bench.run()
    assert bench.boots == 2 and bench.booted.reused
    (kept,) = bench.home.glob("cache/watched/*/console.txt")
    assert kept.read_text() == bench.console


@pytest.mark.parametrize("change", [{}, {"exit_status": 1}])
def test_a_fresh_guest_with_a_fault_is_not_disproved(
    bench: Bench, change: dict[str, Any]
) -> None:
    bench.run()
    bench.ran = change
    bench.run(keep=lambda _: bool(change), fresh=True)
    assert not [*bench.home.glob("cache/watched/*/debug.json")]
    # One that says nothing of its kernel is no reason to doubt what is kept.
    bench.ran = {}
    bench.run()
    assert bench.boots == 3
    bench.ran = {"status": "lost", "exit_status": None}
    with pytest.raises(KstallError, match="went away"):
        bench.run(fresh=True)
    bench.run()
    assert bench.boots == 4 and bench.booted.reused


def test_one_that_complains_is(bench: Bench) -> None:
    bench.console = (DATA / "lockdep.log").read_text()
    first = bench.run(keep=lambda came: not came.reports)
    assert [splat.kind for splat in first.reports] == ["lockdep", "lockdep"]
    bench.run(keep=lambda came: not came.reports)
    assert bench.boots == 2


def test_a_whole_console_is_read_again(bench: Bench) -> None:
    bench.console = (DATA / "lockdep.log").read_text()
    outcome = bench.run()
    (results,) = bench.home.glob("run*/results")
    facts = json.loads((results / "debug.json").read_text())
    assert len(facts["reports"]) == 2
    # As if its words had not been known when it was booted.
    (results / "debug.json").write_text(json.dumps({**facts, "reports": []}))
    assert debugguest.load(results, LIMITS) == outcome
    with (results / "console.txt").open("a") as file:
        file.write("x" * (2 * console._ABRIDGED))
    assert debugguest.load(results, LIMITS).reports == ()


def test_programs_are_compiled_for_the_guest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = set()

    def run(argv: Sequence[str | Path], **_: Any) -> None:
        compilers.add(argv[0])
        Path(argv[argv.index("-o") + 1]).touch()

    monkeypatch.setattr(guestrun.process, "run", run)
    monkeypatch.setattr(accel, "version_of", lambda _: "QEMU emulator version 9.2")
    root = replace(bench.where.root, arch=arch.named("arm64"))
    bench.where = replace(bench.where, root=root)
    bench.run()
    assert compilers == {arch.named("arm64").tool("gcc")}


def test_another_program_that_switches_is_another_guest(bench: Bench) -> None:
    bench.run()
    with (bench.project.scripts / "workloads/debug/toggle.c").open("a") as file:
        file.write("\n")
    bench.run()
    assert bench.boots == 2


LOCKUP = "[  300.000000] watchdog: BUG: soft lockup - CPU#0 stuck for 130s! [x:7]\n"


def _busy(share: float) -> hosttime.Host:
    return hosttime.Host(
        tuple(
            hosttime.HostSample(float(at), {"CPU 0/TCG": at * share}, console=at - 300)
            for at in range(1, 400)
        )
    )


def test_a_guest_whose_deadline_expires_in_silence_is_no_result(bench: Bench) -> None:
    bench.ran = {"status": "hang", "exit_status": None}
    with pytest.raises(NotJudged, match="its kernel did not say why"):
        bench.run()


def test_a_guest_on_a_busy_host_is_no_result(bench: Bench) -> None:
    bench.console += LOCKUP
    bench.ran = {"host": _busy(0.9)}
    with pytest.raises(NotJudged, match="starved of time"):
        bench.run()
    # What else its kernel says counts all the same, and only that.
    bench.console += "[  310.000000] WARNING: CPU: 0 PID: 7 at x.c:3 f+0x1/0x2\n"
    (splat,) = bench.run(keep=lambda _: False).reports
    assert splat.kind == "warning"
    bench.ran = {"host": _busy(0.1)}
    assert [splat.kind for splat in bench.run().reports] == ["lockup", "warning"]


def test_what_a_busy_host_explains_is_judged_as_it_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.console += LOCKUP
    bench.console += "[  310.000000] WARNING: CPU: 0 PID: 7 at x.c:3 f+0x1/0x2\n"
    bench.ran = {"host": _busy(0.9)}
    assert [splat.kind for splat in bench.run().reports] == ["warning"]
    # As if nothing had been known of hosts when it was booted, or now.
    (results,) = bench.home.glob("run*/results")
    facts = json.loads((results / "debug.json").read_text())
    (results / "debug.json").write_text(json.dumps({**facts, "excused": []}))
    limits = guestrun.thresholds_for(bench.where)
    (splat,) = debugguest.load(results, limits).reports
    assert splat.kind == "warning"
    monkeypatch.setattr(hosttime, "excuse", lambda *_: None)
    assert len(bench.run().reports) == 2 and bench.boots == 1


@pytest.mark.parametrize(
    "line",
    [
        "** 3 printk messages dropped **",
        "Kernel panic - not syncing: No working init found.",
    ],
)
@pytest.mark.parametrize("much", [False, True])
def test_what_says_nothing_of_the_kernel_is_no_report(
    bench: Bench, line: str, much: bool
) -> None:
    bench.console += f"[    2.000000] {line}\n"
    bench.console += "[    3.000000] WARNING: CPU: 0 PID: 7 at x.c:3 f+0x1/0x2\n"
    if much:
        bench.console += "x" * (2 * console._ABRIDGED)
    watched = bench.run()
    assert ["at x.c f" in report.signature for report in watched.reports] == [True]
    assert watched.lost == (line if "dropped" in line else "")


def test_a_guest_without_memory_says_nothing_by_a_warning(bench: Bench) -> None:
    bench.console += "[    2.000000] Out of memory: Killed process 7 (x)\n"
    bench.console += "[    3.000000] WARNING: CPU: 0 PID: 7 at x.c:3 f+0x1/0x2\n"
    bench.console += "[    4.000000] BUG: KASAN: use-after-free in f+0x1/0x2\n"
    bench.ran = {"victims": ("x",)}
    assert [report.kind for report in bench.run().reports] == ["kasan"]


def test_a_guest_that_hangs_is_a_result_and_is_run_again(bench: Bench) -> None:
    bench.console += LOCKUP
    bench.ran = {"status": "hang", "exit_status": None, "host": _busy(0.0)}
    assert bench.run().status == "hang"
    bench.run()
    assert bench.boots == 2


def test_a_guest_that_went_away_is_none(bench: Bench) -> None:
    bench.ran = {"status": "lost", "exit_status": None}
    with pytest.raises(KstallError, match="went away"):
        bench.run()


def test_what_a_guest_reported_before_it_went_away_counts(bench: Bench) -> None:
    bench.console += (DATA / "lockdep.log").read_text()
    bench.ran = {"status": "lost", "exit_status": None}
    watched = bench.run()
    assert watched.status == "lost" and watched.reports
    bench.run()
    assert bench.boots == 2


def test_results_that_are_not_whole(tmp_path: Path) -> None:
    with pytest.raises(KstallError, match="no results of a guest"):
        debugguest.load(tmp_path, LIMITS)


# --- the stages ---


class Stages:
    """`debugging.prove` of a series, with nothing really built or booted."""

    def __init__(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        twin: bool = False,
    ) -> None:
        self.project = kerneltree.project(tmp_path / "project")
        if twin:
            patches = self.project.patches
            shutil.copytree(patches / "demo", patches / "twin")
            # Its patches are the same, and can be applied only once.
            grouped = debugkernel.grouped
            monkeypatch.setattr(
                debugging.debugkernel,
                "grouped",
                lambda base, wanted, scratch: (
                    replace(
                        grouped(base, wanted[:1], scratch)[0], series=tuple(wanted)
                    ),
                ),
            )
        self.series = self.project.load()
        self.run = runs.begin(tmp_path / "out", ["kstall"], ui())
        self.report = self.run.report
        self.report.series = [
            report.SeriesReport(name=series.name, title="t", digest="d")
            for series in self.series
        ]
        home, tree = tmp_path / "cache", kerneltree.directory(tmp_path / "linux")
        root: Any = None
        tools: Any = SimpleNamespace(id="t", arch=arch.X86_64)
        base = kerneltree.base(tree, home)
        self.ground = Ground(self.project, base, root, tools, home)
        # What guests say, by the names of their directories; and which were booted.
        self.answers: dict[str, str | Exception] = {}
        self.booted: list[str] = []
        self.built: list[tuple[str, str]] = []
        self.groups: list[groups.Group] = []
        # The .config of kernels, by flavour.
        self.configs: dict[str, str] = {}
        self.path = tmp_path
        monkeypatch.setattr(debugging.debugguest, "run", self._boot)
        monkeypatch.setattr(debugging.debugkernel, "build", self._build)
        self.speed = guest.Accel("tcg", "for the test", one_thread=True)
        self.turns: dict[str, bool] = {}
        self.triggers: dict[str, bool] = {}
        monkeypatch.setattr(debugging.accel, "probe", lambda *_: self.speed)

    def _build(
        self, _: Any, group: groups.Group, flavour: str, side: str, run: Any
    ) -> Kernel:
        self.built.append((flavour, side))
        self.groups.append(group)
        built = kernel_at(self.path / flavour / side)
        built.config.write_text(self.configs.get(flavour, ""))
        return built

    def _boot(
        self, *words: Any, triggers: bool, **_: Any
    ) -> tuple[debugguest.Watched, guestrun.Booted]:
        name = words[4].name
        self.booted.append(name)
        self.triggers[name] = triggers
        self.turns[name] = words[2].accel.one_thread
        # Of one series, or of each.
        answer = self.answers.get(f"{words[1].name}/{name}", self.answers.get(name, ""))
        if isinstance(answer, Exception):
            raise answer
        reports = tuple(map(splats.kernel_report, consoles.scan(answer)))
        counters = {
            "dma-errors": 0,
            "dma-disabled": 0,
            "object-warnings": 0,
            "kcsan-enabled": 1,
            "kcsan-watchpoints": 1,
        }
        stress = {"lockdep": True, "counters": counters}
        agent = {"status": "completed", "stress": stress}
        watched = debugguest.Watched("completed", 0, agent, reports, ())
        return watched, guestrun.Booted(words[4], False, "")

    def prove(self) -> dict[str, Check]:
        """The checks of the series."""
        with contextlib.suppress(runs.StageStopped):
            pairs = list(zip(self.series, self.report.series, strict=True))
            debugging.prove(self.ground, pairs, self.run)
        return {check.name: check for check in self.report.series[0].checks}


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    return Stages(tmp_path, monkeypatch)


def test_where_no_kernel_complains_the_base_is_not_asked(stages: Stages) -> None:
    checks = stages.prove()
    assert sorted(stages.booted) == ["debug-patched", "kcsan-patched"]
    assert stages.built == [("debug", "patched"), ("kcsan", "patched")]
    by_name = {stage.name: stage for stage in stages.report.stages}
    assert list(by_name) == [
        "debug-apply",
        "debug-programs",
        "debug-guests",
        "debug-base-guests",
    ]
    assert by_name["debug-base-guests"].status == "skip"
    assert "no need to boot the base" in by_name["debug-base-guests"].summary
    assert checks["no_new_splats"].status == "pass"
    labels = [comparison.label for comparison in checks["no_new_splats"].comparisons]
    assert "debug: guest ended as" in labels and "kcsan: guest ended as" in labels
    (stage,) = stages.report.series[0].stages
    assert stage.name == "debug" and "of 8 checks pass" in stage.summary


def test_a_kernel_of_its_own_is_configured_like_the_first_if_that_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages(tmp_path, monkeypatch)
    shutil.copytree(stages.project.patches / "demo", stages.project.patches / "twin")
    (stages.project.kconfigs / "debug.config").write_text("CONFIG_KASAN=y\n")
    (stages.project.kconfigs / "kcsan.config").write_text("CONFIG_KCSAN=y\n")
    # The second kernel with KCSAN lacks what the fragment of its series asks for.
    stages.configs = {
        "debug": "CONFIG_KASAN=y\nCONFIG_DEMO=y\n",
        "kcsan": "CONFIG_KCSAN=y\n",
    }
    stages.series = stages.project.load()
    stages.report.series = [
        report.SeriesReport(name=series.name, title="t", digest="d")
        for series in stages.series
    ]
    stages.prove()
    built = [
        (flavour, group.name, like and like.name, group.absent(0))
        for (flavour, _), group in zip(stages.built, stages.groups, strict=True)
        for like in [group.configured_as]
    ]
    assert built == [
        ("debug", "demo", None, frozenset()),
        ("debug", "twin", "demo", frozenset()),
        ("kcsan", "demo", None, frozenset()),
        ("kcsan", "twin", None, frozenset()),
    ]


@pytest.mark.parametrize("fixed", [False, True])
def test_events_have_triggers_while_modules_go_where_that_is_fixed(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    if fixed:
        monkeypatch.setattr(debugging, "_TRIGGER_FIX", stages.series[0].name)
    stages.answers = {"debug-patched": (DATA / "lockdep.log").read_text()}
    stages.prove()
    # The base never has the fix.
    assert stages.triggers == {
        "debug-patched": fixed,
        "kcsan-patched": fixed,
        "debug-base": False,
    }


def test_what_a_fix_lets_run_is_run_where_the_fix_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages(tmp_path, monkeypatch)
    (demo,) = stages.series
    load = demo.spec.workload[0].model_copy(
        update={"not_debugged": "a bug", "debugged_with": "fix"}
    )
    other = demo.spec.workload[0].model_copy(update={"name": "other"})
    workloads = (load, other)
    spec = demo.spec.model_copy(update={"workload": workloads, "needs": ("fix",)})
    stages.series = (replace(demo, spec=spec),)
    fix = replace(demo, name="fix")
    # Where it goes along, and where it does not.
    for among in ((fix,), ()):
        plan: Any = None
        group = groups.Group((stages.series[0], *among), plan)
        reasons = {
            side: debugging.DebugGuest(
                stages.series[0], group, "debug", side, kernel_at(tmp_path), ()
            )
            .debugged.spec.workload[0]
            .not_debugged
            for side in get_args(debugguest.Side)
        }
        # The base never has the fix.
        assert reasons == {"patched": None if among else "a bug", "base": "a bug"}


def test_a_series_whose_workloads_are_all_left_out_has_no_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages(tmp_path, monkeypatch)
    (demo,) = stages.series
    workloads = tuple(
        load.model_copy(update={"not_debugged": "a bug", "debugged_with": "fix"})
        for load in demo.spec.workload
    )
    spec = demo.spec.model_copy(update={"workload": workloads, "needs": ("fix",)})
    needing = replace(demo, spec=spec)
    entry = stages.report.series[0]
    debugging.prove(stages.ground, [(needing, entry)], stages.run)
    assert (stages.booted, stages.built) == ([], [])
    (stage,) = [stage for stage in entry.stages if stage.name == "debug"]
    assert (stage.status, stage.summary) == ("skip", "no workload is run: a bug")
    (check,) = entry.checks
    assert (check.name, check.status) == ("no_workload_is_left_out", "skip")
    assert check.detail.endswith(": a bug (fix, which ends that, is not there)")


def test_a_fix_that_is_only_needed_has_no_guest_and_no_kernel_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages(tmp_path, monkeypatch)
    (demo,) = stages.series
    # Its patches are the same, so that it does not go along.
    fix = replace(demo, name="fix")
    pairs = [(demo, stages.report.series[0])]
    debugging.prove(stages.ground, pairs, stages.run, beside=(fix,))
    assert sorted(stages.booted) == ["debug-patched", "kcsan-patched"]
    assert stages.built == [("debug", "patched"), ("kcsan", "patched")]


def test_a_kernel_of_its_own_has_the_fixes_that_its_series_needs(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    (demo,) = stages.series
    fix = replace(demo, name="fix", patches=demo.patches[:1])
    patches: Any = (Path("of-the-other.patch"),)
    other = replace(demo, name="other", patches=patches)
    spec = demo.spec.model_copy(update={"needs": ("fix", "other")})
    needing = replace(demo, name="needing", spec=spec, patches=demo.patches[1:])
    nothing: Any = None
    together = groups.Group((demo, fix, other), nothing)
    division = groups.Division(
        ("demo", "fix", "other"), (groups.Outlier("needing", "demo", alone=True),)
    )
    monkeypatch.setattr(groups, "applied", lambda *_: (together, division))
    refused: set[object] = set()

    def plan(base: object, patches: Sequence[object], scratch: Path) -> object:
        if refused & {*patches}:
            raise am.BadPatch("it does not go with that")
        return tuple(patches)

    monkeypatch.setattr(tree, "plan", plan)
    for without, fixes in (
        ((), (fix, other)),
        ((fix,), (other,)),
        ((other,), (fix,)),
        ((fix, other), ()),
    ):
        refused = {patch for series in without for patch in series.patches}
        everything = (demo, fix, other, needing)
        first, apart = debugkernel.grouped(
            stages.ground.base, everything, stages.run.dir
        )
        assert first is together
        assert apart.name == "needing"
        assert apart.applied == (*fixes, needing)
        applied: Any = apart.plan
        assert applied == tuple(
            patch for series in apart.applied for patch in series.patches
        )


def test_fixes_are_taken_along_if_they_are_needed_and_apply(stages: Stages) -> None:
    (demo,) = stages.series
    spec = demo.spec.model_copy(update={"needs": ("fix",)})
    needing = replace(demo, name="needing", spec=spec)
    fix = replace(demo, name="fix")
    # What was applied once does not apply again.
    broken = replace(fix, patches=demo.patches * 2)

    def needed(*asked: Series, known: Series) -> list[str]:
        project: Any = SimpleNamespace(load=lambda _: (known,))
        request: Any = SimpleNamespace(series=asked, project=project)
        fixes = validate._needed(request, stages.run, stages.ground, asked)
        return [fix.name for fix in fixes]

    assert needed(demo, known=fix) == []
    assert needed(demo, needing, known=fix) == ["fix"]
    assert needed(demo, needing, fix, known=fix) == []
    assert needed(needing, known=broken) == []


def test_the_fix_is_one_of_ours(tmp_path: Path) -> None:
    (series,) = Project(ROOT).load([debugging._TRIGGER_FIX])
    kernel = kernel_at(tmp_path)
    jobs_of_both = [
        debugguest.job_for(series, kernel, "patched", triggers=triggers)
        for triggers in (False, True)
    ]
    options = [document["stress"]["options"] for document in jobs_of_both]
    assert options == [[], ["triggers"]]


def test_emulated_processors_take_turns(stages: Stages) -> None:
    stages.speed = guest.Accel("tcg", "for the test")
    stages.prove()
    assert stages.turns == {"debug-patched": True, "kcsan-patched": True}


def test_processors_under_kvm_do_not_take_turns(stages: Stages) -> None:
    stages.speed = guest.Accel("kvm", "for the test")
    stages.prove()
    assert stages.turns == {"debug-patched": False, "kcsan-patched": False}


def test_the_base_is_asked_about_what_a_kernel_says(stages: Stages) -> None:
    text = (DATA / "lockdep.log").read_text()
    stages.answers = {"debug-patched": text, "debug-base": text}
    checks = stages.prove()
    assert sorted(stages.booted) == ["debug-base", "debug-patched", "kcsan-patched"]
    assert stages.built[2:] == [("debug", "base")]
    assert checks["no_new_splats"].status == "pass"
    labels = [comparison.label for comparison in checks["no_new_splats"].comparisons]
    assert sum("reported by the base: " in label for label in labels) == 2


def test_what_the_base_has_said_once_it_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever series' workloads made it speak, the kernel is the same."""
    monkeypatch.setattr(debugging.os, "sched_getaffinity", lambda _: {0})
    text = (DATA / "warnings.log").read_text()
    both = Stages(tmp_path, monkeypatch, twin=True)
    both.answers = {"debug-patched": text, "debug-base": text}
    both.prove()
    assert both.booted.count("debug-base") == 1
    statuses = [
        check.status
        for series in both.report.series
        for check in series.checks
        if check.name == "no_new_splats"
    ]
    assert statuses == ["pass", "pass"]
    # What it does not say of one series' workloads it may of another's.
    silent = Stages(tmp_path / "again", monkeypatch, twin=True)
    silent.answers = {"debug-patched": text}
    silent.prove()
    assert silent.booted.count("debug-base") == 2


def test_the_base_is_not_asked_about_a_race_of_others(stages: Stages) -> None:
    text = (DATA / "kcsan.log").read_text()
    stages.answers = {"kcsan-patched": text}
    checks = stages.prove()
    assert "kcsan-base" not in stages.booted
    assert checks["no_new_splats"].status == "pass"
    told = [comparison.label for comparison in checks["no_new_splats"].comparisons]
    assert any("KCSAN: data-race" in label for label in told)


def test_what_the_base_does_not_say_is_held_against_the_series(stages: Stages) -> None:
    stages.answers = {"debug-patched": (DATA / "lockdep.log").read_text()}
    checks = stages.prove()
    assert checks["no_new_splats"].status == "fail"


def _race_of_ours(monkeypatch: pytest.MonkeyPatch) -> str:
    """What KCSAN says of code that the patches touch."""
    code = debugcheck.ChangedCode(frozenset({"drm_sched_job_trace_wait"}))
    monkeypatch.setattr(groups.Group, "code", code)
    return (DATA / "kcsan.log").read_text()


def test_before_a_race_is_held_the_base_does_what_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KCSAN samples, so that the guest of one series may miss the base's own race."""
    monkeypatch.setattr(debugging.os, "sched_getaffinity", lambda _: {0})
    text = _race_of_ours(monkeypatch)
    world = Stages(tmp_path, monkeypatch, twin=True)
    world.answers = {"demo/kcsan-patched": text, "twin/kcsan-base": text}
    checks = world.prove()
    assert world.booted.count("kcsan-base") == 2
    assert checks["no_new_splats"].status == "pass"
    # None of them shows it.
    silent = Stages(tmp_path / "again", monkeypatch, twin=True)
    silent.answers = {"demo/kcsan-patched": text}
    assert silent.prove()["no_new_splats"].status == "fail"
    assert silent.booted.count("kcsan-base") == 2
    # One of them is lost, and might have shown it.
    lost = Stages(tmp_path / "lost", monkeypatch, twin=True)
    lost.answers = {"demo/kcsan-patched": text, "twin/kcsan-base": KstallError("gone")}
    check = lost.prove()["no_new_splats"]
    assert check.status == "error"
    assert check.detail.endswith("twin kcsan-base: gone")


def test_a_race_at_lines_of_the_base_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """\
[    1.000000] BUG: KCSAN: data-race in nap / wake
[    1.000000] write to 0xffffffff82c0f0a0 of 4 bytes by task 1 on cpu 0:
[    1.000000]  nap+0x10/0x20
[    1.000000]
[    1.000000] read to 0xffffffff82c0f0a0 of 4 bytes by task 2 on cpu 1:
[    1.000000]  wake+0x30/0x40
[    1.000000]
[    1.000000] Reported by Kernel Concurrency Sanitizer on:
"""
    code = debugcheck.code_of(
        {
            "bed/nap.c": (
                "int nap(void)\n{\n\tlie();\n}\n",
                "int nap(void)\n{\n\trest();\n\tlie();\n}\n",
            )
        },
        [],
    )
    monkeypatch.setattr(groups.Group, "code", code)
    line = 4

    def of_frames(kernel: Kernel, frames: set[races.Frame]) -> races.Places:
        assert kernel.path.parts[-2:] == ("kcsan", "patched")
        at = {"nap": ("bed/nap.c", line), "wake": ("bed/wake.c", 3)}
        return {
            frame: (races.SourceLine(frame.function, *at[frame.function]),)
            for frame in frames
        }

    monkeypatch.setattr(debugging.lines, "of_frames", of_frames)
    kept = Stages(tmp_path / "kept", monkeypatch)
    kept.answers = {"kcsan-patched": text}
    check = kept.prove()["no_new_splats"]
    assert check.status == "pass"
    assert "kcsan-base" not in kept.booted
    told = [comparison.detail for comparison in check.comparisons]
    assert "only lines that the base has as well: bed/nap.c:4" in told
    line = 3
    added = Stages(tmp_path / "added", monkeypatch)
    added.answers = {"kcsan-patched": text}
    assert added.prove()["no_new_splats"].status == "fail"
    assert "kcsan-base" in added.booted


def test_those_who_are_in_doubt_are_asked_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the base says there settles it, so that nothing else is booted."""
    monkeypatch.setattr(debugging.os, "sched_getaffinity", lambda _: {0, 1})
    text = _race_of_ours(monkeypatch)
    world = Stages(tmp_path, monkeypatch, twin=True)
    world.answers = {"twin/kcsan-patched": text, "twin/kcsan-base": text}
    world.prove()
    assert world.booted.count("kcsan-base") == 1


def test_a_base_that_did_not_do_its_work_is_not_kept(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, bool] = {}
    boot = debugging.debugguest.run

    def run(
        *words: Any, keep: Any, **others: Any
    ) -> tuple[debugguest.Watched, guestrun.Booted]:
        came, booted = boot(*words, keep=keep, **others)
        kept[words[4].name] = keep(replace(came, status="hang"))
        kept[f"{words[4].name} whole"] = keep(came)
        return came, booted

    monkeypatch.setattr(debugging.debugguest, "run", run)
    stages.answers = {"debug-patched": (DATA / "lockdep.log").read_text()}
    stages.prove()
    assert (kept["debug-base"], kept["debug-base whole"]) == (False, True)


def test_a_base_guest_that_is_lost_is_no_verdict_on_what_it_was_asked(
    stages: Stages,
) -> None:
    stages.answers = {
        "debug-patched": (DATA / "lockdep.log").read_text(),
        "debug-base": KstallError("the guest went away"),
    }
    checks = stages.prove()
    assert checks["no_new_splats"].status == "error"
    assert "the guest went away" in checks["no_new_splats"].detail
    assert checks["no_leaks"].status == "pass"
    assert any("1 did not" in stage.summary for stage in stages.report.stages)


def test_a_guest_that_is_lost_is_no_verdict(stages: Stages) -> None:
    stages.answers = {"debug-patched": KstallError("the guest went away")}
    assert stages.prove() == {}
    (stage,) = stages.report.series[0].stages
    assert (stage.name, stage.status) == ("debug", "error")
    assert "the guest went away" in (stage.error or "")
    assert any("1 did not" in stage.summary for stage in stages.report.stages)


def test_a_race_of_any_series_in_the_kernel_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may show in the guest of another one."""

    def declaring(path: str, event: str) -> Any:
        spec = SimpleNamespace(tracepoint=[SimpleNamespace(name=event)])
        return SimpleNamespace(touches=(path,), spec=spec)

    sources = {
        name: am.File(f"int {name[0]}(void)\n{{\n}}\n".encode(), executable=False)
        for name in ("nap.c", "doze.c")
    }
    states = ({"nap.c": None, "doze.c": sources["doze.c"]}.items(),)
    plan: Any = SimpleNamespace(
        files=sources, states=states, touched=tuple(sources), base="it"
    )
    makefile = am.File(b"KCSAN_SANITIZE_nap.o := n\n", executable=False)

    def pristine(base: str, paths: list[str]) -> dict[str, Any]:
        assert (base, paths) == ("it", ["Makefile"])
        return {"Makefile": makefile}

    monkeypatch.setattr(debugkernel.tree, "pristine", pristine)
    group = groups.Group(
        (declaring("nap.c", "slept"), declaring("doze.c", "woke")), plan
    )
    assert group.code == debugcheck.ChangedCode(
        frozenset({"n", "d"}),
        frozenset({"n"}),
        frozenset({"slept", "woke"}),
        (("nap.c", "Makefile: KCSAN_SANITIZE_nap.o := n"),),
        {
            "nap.c": ("", "int n(void)\n{\n}\n"),
            "doze.c": ("int d(void)\n{\n}\n",) * 2,
        },
    )


def test_series_that_do_not_apply_together_have_a_kernel_each(tmp_path: Path) -> None:
    project = kerneltree.project(tmp_path / "project")
    base = kerneltree.base(kerneltree.directory(tmp_path / "linux"), tmp_path / "cache")
    (demo,) = project.load(["demo"])
    # The same patches can be applied only once.
    twin = replace(demo, name="twin")
    groups = debugkernel.grouped(base, [demo, twin], tmp_path)
    names = [[series.name for series in group.series] for group in groups]
    assert names == [["demo"], ["twin"]]


def test_base_and_patched_are_built_in_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = kerneltree.project(tmp_path / "project")
    (series,) = project.load(["demo"])
    for name in ("base", "debug"):
        (project.kconfigs / f"{name}.config").write_text(f"# {name}\n")
    base = kerneltree.base(kerneltree.directory(tmp_path / "linux"), tmp_path / "cache")
    (group,) = debugkernel.grouped(base, [series], tmp_path)
    told: list[tuple[str, ...]] = []

    def configured(
        _: Any, checkout: Any, fragments: Any, *__: Any, absent: Any, **___: Any
    ) -> None:
        names = (path.name for path in fragments)
        told.append(("config", *names, *checkout().touched, *absent))

    def built(
        _: Any, checkout: Any, slot: str, *__: Any, strict: bool, **___: Any
    ) -> Kernel:
        assert not strict
        told.append(("build", slot, *checkout().touched))
        return kernel_at(tmp_path / "kernel")

    monkeypatch.setattr(
        debugkernel.kernel,
        "added_symbols",
        lambda plan: frozenset({"NEW"} if plan.patches else ()),
    )
    monkeypatch.setattr(debugkernel.kernel, "configured", configured)
    monkeypatch.setattr(debugkernel.kernel, "built", built)
    run = runs.begin(tmp_path / "out", ["kstall"], ui())
    tools: Any = SimpleNamespace(id="t")
    root: Any = None
    ground = Ground(project, base, root, tools, tmp_path / "cache")
    debugkernel.build(ground, group, "debug", "patched", run)
    debugkernel.build(ground, group, "debug", "base", run)
    fragments = ("base.config", "demo.config", "debug.config")
    assert told == [
        ("config", *fragments, "demo.c", "demo_trace.h"),
        ("build", "+debug", "demo.c", "demo_trace.h"),
        ("config", *fragments, "NEW"),
        ("build", "+debug"),
    ]
    assert [stage.name for stage in run.report.stages] == [
        "debug-patched-demo",
        "debug-base-demo",
    ]


@pytest.mark.parametrize("flavour", ["debug", "kcsan"])
def test_its_configuration_contradicts_no_other(flavour: str) -> None:
    project = Project(ROOT)
    names = ["base.config", *(series.spec.kconfig for series in project.load())]
    paths = [project.kconfigs / name for name in (*names, f"{flavour}.config")]
    wanted = kconfig.combine(paths)
    # bpftrace needs types, and processors have to go away.
    assert wanted["DEBUG_INFO_BTF"].value == wanted["SMP"].value == "y"
    assert ("KASAN" in wanted) != ("KCSAN" in wanted)
