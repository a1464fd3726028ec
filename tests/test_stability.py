# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests that are booted again and again, and what is counted of them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kstall import cli
from kstall.base import FailedCheck, KstallError
from kstall.build import Kernel
from kstall.debian import Root
from kstall.evidence.falsity import MutantOutcome, Mutation
from kstall.guest import Guest, guest
from kstall.guest.guestrun import Booted
from kstall.pipeline import (
    Request,
    Ui,
    attempts,
    hostload,
    stability,
    validate,
    without,
)
from kstall.pipeline.attempts import Attempt, Repeated, StabilityOutcome
from kstall.pipeline.run import Run, begin
from kstall.pipeline.stability import StabilityPlan
from kstall.series import Context, Project, Series, suites
from kstall.verdict import Check, Comparison

#: What a guest comes to, by its number: statuses of its checks, or what is raised.
Fates = dict[int, dict[str, str] | Exception]
GOOD = {"alpha": "pass", "beta": "pass", "gamma": "skip"}


class Bench:
    """A series whose guests come to what ``fates`` says, `GOOD` by default."""

    def __init__(
        self, project: Project, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.out = out
        self.fates: Fates = {}
        #: What is raised for base guests, or whether they show the bugs, by default.
        self.base_fates: dict[int, bool | Exception] = {}
        self.base_key = "base"
        self.based: list[int] = []
        self.loads: list[int] = []
        self.running = self.most = 0
        self.machines: list[int] = []
        self.printed = ""
        self._lock = threading.Lock()
        self.project = project
        monkeypatch.setattr(validate, "guests", self._guests)
        monkeypatch.setattr(stability, "run_guest", self._run_guest)
        monkeypatch.setattr(hostload, "put", self._put)
        monkeypatch.setattr(stability.evidence, "load", lambda results: results)
        monkeypatch.setattr(stability.trials, "judge", self._judge)
        monkeypatch.setattr(without, "run_guest", self._run_base)
        monkeypatch.setattr(without.evidence, "judge", self._judge_base)
        monkeypatch.setattr(stability.mutate, "judged", self._falsified)
        # Without what the series argues, of other mutants than these.
        monkeypatch.setattr(stability.mutate, "argued", lambda _, mutation: mutation)
        #: What the checks missed in each run, one run after the other.
        self.missed: list[list[str]] = []

    def measure(
        self, plan: StabilityPlan, *series: str, resume: bool = False
    ) -> StabilityOutcome:
        """Boot them all."""
        request = Request(
            project=self.project,
            series=self.project.load(list(series)),
            kernel=None,
            cache=self.out / "cache",
            out=self.out,
        )
        ui = Ui(Console(file=io.StringIO()))
        return stability.measure(request, plan, ui, ["kstall"], resume=resume)

    def _guests(
        self, request: Request, ui: Ui, command: list[str]
    ) -> Iterator[tuple[Run, Series, Guest, Guest | None]]:
        assert request.level == "quick"
        run = begin(request.out, command, ui)
        kernel = Kernel("k", self.out, "7.3.4", "ab" * 20, reused=True)
        where = Guest(kernel, Root("r", self.out, {}, True), guest.Accel("tcg", "t"))
        base = replace(where, kernel=replace(kernel, key=self.base_key))
        for series in request.series:
            yield run, series, where, base if series.spec.shown else None

    @contextlib.contextmanager
    def _put(self, times: int, say: object) -> Iterator[Callable[[], None]]:
        self.loads.append(times)
        yield lambda: None

    def _run_guest(
        self,
        context: Context,
        series: Series,
        where: Guest,
        _: Path,
        *,
        out: Path,
        fresh: bool,
        keep: Callable[[Path], bool],
    ) -> Booted:
        assert fresh and not keep(out)
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.machines.append(where.machine.cpus)
        results = out / "results"
        results.mkdir(parents=True)
        (context.cache / "evidence").mkdir(parents=True)
        for load in series.spec.workload:
            (results / load.name).mkdir()
            (results / load.name / "stdout").write_text(self.printed)
        with self._lock:
            self.running -= 1
        number = int(out.parent.name) if out.parent.name.isdigit() else 0
        fate = self.fates.get(number, GOOD)
        if isinstance(fate, Exception):
            raise fate
        (results / "fate.json").write_text(json.dumps(fate))
        return Booted(results, False, "")

    def _run_base(
        self,
        context: Context,
        series: Series,
        where: Guest,
        _: Path,
        *,
        out: Path,
        fresh: bool,
        keep: Callable[[Path], bool],
        keep_end: Callable[[Path], bool],
        expected: tuple[str, ...],
    ) -> Booted:
        results = out / "results"
        results.mkdir(parents=True)
        assert fresh and not keep(results) and not keep_end(results)
        assert where.kernel.key == self.base_key and series.spec.check
        (context.cache / "evidence").mkdir(parents=True)
        number = int(out.parent.name)
        with self._lock:
            self.based.append(number)
        fate = self.base_fates.get(number, True)
        if isinstance(fate, Exception):
            raise fate
        (results / "fate.json").write_text(json.dumps(fate))
        return Booted(results, False, "")

    @staticmethod
    def _judge_base(series: Series, results: Path) -> list[Check]:
        shows = json.loads((results / "fate.json").read_text())
        checks = []
        for shown in series.spec.shown:
            wrong = [
                Comparison(label=label, relation="=", expected=1, observed=0, ok=False)
                for label in shown.fails
            ]
            check = Check(name=shown.check, kind="positive", claim="c", status="pass")
            if shows:
                check.status, check.comparisons = "fail", wrong
            checks.append(check)
        return checks

    def _falsified(self, series: Series, _: object, workers: int) -> Mutation:
        escaped = self.missed.pop(0) if self.missed else []
        point = series.spec.tracepoint[0].event
        return Mutation(
            digest="d",
            seconds=0,
            witnesses=["alpha"],
            silent=[],
            mutants=[
                MutantOutcome(
                    event=point,
                    field="(records)",
                    operator=name,
                    outcome="escaped" if name in escaped else "caught",
                )
                for name in ("first dropped", "last dropped")
            ],
        )

    @staticmethod
    def _judge(_: Series, results: Path) -> list[Check]:
        fate = json.loads((results / "fate.json").read_text())
        wrong = Comparison(
            label="count", relation="=", expected=3, observed=2, ok=False
        )
        return [
            Check(
                name=name,
                kind="positive",
                claim="c",
                status=status,
                comparisons=[wrong] if status == "fail" else [],
            )
            for name, status in fate.items()
        ]


@pytest.fixture
def bench(
    project_copy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    return Bench(project_copy, tmp_path / "out", monkeypatch)


def test_one_and_two_at_once() -> None:
    assert [list(batch) for batch in stability.batches(7)] == [
        [1],
        [2, 3],
        [4],
        [5, 6],
        [7],
    ]
    assert [list(batch) for batch in stability.batches(2)] == [[1], [2]]
    assert [list(batch) for batch in stability.batches(5, (3,))] == [[1, 2, 3], [4, 5]]


def test_each_series_under_each_load(bench: Bench) -> None:
    outcome = bench.measure(StabilityPlan(4, (0, 4)), "drm-sched", "rdma-cq")
    assert bench.loads == [0, 4, 0, 4]
    told = [
        (attempt.series, attempt.load, attempt.number, attempt.beside)
        for attempt in outcome.attempts
    ]
    for series in ("drm-sched", "rdma-cq"):
        for load in (0, 4):
            mine = sorted(
                attempt[2:] for attempt in told if attempt[:2] == (series, load)
            )
            assert mine == [(1, 0), (2, 1), (3, 1), (4, 0)]
    assert attempts.exit_code(outcome) == 0
    assert outcome.series == {"drm-sched", "rdma-cq"}
    # Of runs with nothing odd nothing is left but what is counted.
    assert outcome.place is not None
    assert not list(outcome.place.glob("*/load-*/*"))


def test_what_moved_is_counted_and_kept(bench: Bench) -> None:
    bench.fates = {
        2: GOOD | {"alpha": "fail"},
        3: GOOD | {"alpha": "fail", "beta": "error"},
        5: KstallError("the guest went away"),
    }
    outcome = bench.measure(StabilityPlan(6, (4,)), "drm-sched")
    (tally,) = attempts.tallies(outcome.attempts)
    assert tally.verdicts == {"proven": 3, "failed": 2, "could-not-judge": 1}
    assert tally.moved == {
        "alpha": {"pass": 3, "fail": 2},
        "beta": {"pass": 4, "error": 1},
    }
    assert "run 2: alpha (fail): count: = 3, got 2" in tally.causes
    assert "run 5: the guest went away" in tally.causes
    assert attempts.exit_code(outcome) == 1
    place = outcome.place
    assert place is not None
    kept = {attempt.number: attempt.kept for attempt in outcome.attempts}
    assert [number for number, where in sorted(kept.items()) if where] == [2, 3, 5]
    for where in filter(None, kept.values()):
        assert (place / where / "guest/results").is_dir()
        assert not (place / where / "cache").exists()
    written = json.loads((place / attempts.FILE).read_text())
    assert written["tallies"][0]["moved"]["alpha"] == {"pass": 3, "fail": 2}
    assert len(written["attempts"]) == 6
    lines = "\n".join(attempts.summary(outcome))
    assert "drm-sched, load 4: 6 runs: " in lines
    assert "  alpha: 3 pass, 2 fail" in lines


def test_a_false_value_that_one_run_does_not_notice(bench: Bench) -> None:
    bench.missed = [[], ["last dropped"], []]
    outcome = bench.measure(StabilityPlan(3, (4,), at_once=(1,)), "drm-sched")
    (tally,) = attempts.tallies(outcome.attempts)
    assert tally.verdicts == {"proven": 2, "failed": 1}
    assert tally.moved == {"every_value_is_falsifiable": {"pass": 2, "fail": 1}}
    (cause,) = tally.causes
    assert cause.startswith("run 2: every_value_is_falsifiable (fail): ")
    assert "last dropped" in cause
    assert [attempt.kept is None for attempt in outcome.attempts] == [True, False, True]


def test_a_base_guest_for_each_guest(bench: Bench) -> None:
    outcome = bench.measure(StabilityPlan(3, (0, 4)), "pci-aer-inject", "drm-sched")
    # Of each load, and none of a series that shows no bug.
    assert sorted(bench.based) == [1, 1, 2, 2, 3, 3]
    assert len(bench.machines) == 12
    assert {attempt.checks.get(without.CHECK) for attempt in outcome.attempts} == {
        "pass",
        None,
    }
    assert [
        attempt.series
        for attempt in outcome.attempts
        if without.CHECK in attempt.checks
    ] == ["pci-aer-inject"] * 6
    assert attempts.exit_code(outcome) == 0
    assert outcome.place is not None
    assert not list(outcome.place.glob("*/load-*/*"))


def test_a_bug_that_does_not_always_show_is_counted(bench: Bench) -> None:
    bench.base_fates = {
        2: False,
        3: KstallError("the guest went away", next="try again"),
        4: FailedCheck("the kernel complained"),
    }
    # One without results shows no difference.
    bench.fates = {5: FailedCheck("the kernel complained")}
    outcome = bench.measure(StabilityPlan(6, (4,), at_once=(1,)), "pci-aer-inject")
    assert bench.based == [1, 2, 3, 4, 6]
    (tally,) = attempts.tallies(outcome.attempts)
    assert tally.verdicts == {"proven": 2, "failed": 2, "could-not-judge": 2}
    assert tally.moved == {without.CHECK: {"pass": 2, "fail": 1, "error": 2}}
    causes = "\n".join(tally.causes)
    assert f"run 2: {without.CHECK} (fail): overridden_error_is_reported: " in causes
    assert f"run 3: {without.CHECK} (error): the guest went away" in causes
    assert (
        "run 4: fails_without_the_patches (error): without the patches: the" in causes
    )
    assert attempts.exit_code(outcome) == 1
    kept = {attempt.number: attempt.kept for attempt in outcome.attempts}
    assert [number for number, where in sorted(kept.items()) if where] == [2, 3, 4, 5]
    assert outcome.place is not None and kept[2] is not None
    assert (outcome.place / kept[2] / "without/results").is_dir()
    assert not (outcome.place / kept[2] / "cache").exists()


def test_guests_that_were_booted_without_a_base_do_not_count(bench: Bench) -> None:
    plan = StabilityPlan(2, (0,), at_once=(1,))
    bench.measure(plan, "pci-aer-inject", "drm-sched")
    bench.based.clear()
    bench.machines.clear()
    again = bench.measure(plan, "pci-aer-inject", "drm-sched", resume=True)
    assert bench.machines == bench.based == []
    assert len(again.attempts) == 4
    # As `kstall stability` wrote it before it booted base guests.
    content = json.loads(_newest(bench).read_text())
    request = Request(
        project=bench.project,
        series=bench.project.load(["pci-aer-inject", "drm-sched"]),
        kernel=None,
        cache=bench.out / "cache",
        out=bench.out / "elsewhere",
        level="quick",
    )
    ui = Ui(Console(file=io.StringIO()))
    old = {
        series.name: stability._tested(bench.project, series, guest)
        for _, series, guest, _ in bench._guests(request, ui, ["kstall"])
    }
    for attempt in content["attempts"]:
        attempt["tested"] = old[attempt["series"]]
        attempt["checks"].pop(without.CHECK, None)
    _newest(bench).write_text(json.dumps(content))
    outcome = bench.measure(plan, "pci-aer-inject", "drm-sched", resume=True)
    assert bench.based == [1, 2] and len(bench.machines) == 2
    assert attempts.exit_code(outcome) == 0
    # Nor do those with another base.
    bench.base_key = "another"
    bench.measure(plan, "pci-aer-inject", "drm-sched", resume=True)
    assert bench.based == [1, 2, 1, 2]


def test_suites_are_of_the_patched_kernel_only(bench: Bench) -> None:
    bench.printed = _said(TOTAL)
    plan = StabilityPlan(1, (4,), kunit=3)
    bench.measure(plan, "drm-sched-stop")
    bench.base_key = "another"
    bench.machines.clear()
    again = bench.measure(plan, "drm-sched-stop", resume=True)
    assert bench.based == bench.machines == []
    assert [suite.cpus for suite in again.suites] == [1, 4]


def test_a_failed_check_of_the_guest_is_a_failure(bench: Bench) -> None:
    bench.fates = {1: FailedCheck("the kernel complained")}
    outcome = bench.measure(StabilityPlan(1, (0,)), "drm-sched")
    assert [attempt.verdict for attempt in outcome.attempts] == ["failed"]
    assert outcome.attempts[0].cause == "the kernel complained"


def test_what_is_known_is_written_when_it_is_cut_short(bench: Bench) -> None:
    bench.fates = {2: RuntimeError("a bug")}
    with pytest.raises(RuntimeError, match="a bug"):
        bench.measure(StabilityPlan(3, (0,)), "drm-sched")
    (written,) = bench.out.glob(f"stability/2*/{attempts.FILE}")
    known = json.loads(written.read_text())["attempts"]
    assert known[0]["number"] == 1


def test_guests_of_an_earlier_run_count(bench: Bench) -> None:
    bench.fates = {2: GOOD | {"alpha": "fail"}, 4: RuntimeError("a bug")}
    plan = StabilityPlan(5, (0, 4), at_once=(1,))
    with pytest.raises(RuntimeError, match="a bug"):
        bench.measure(plan, "drm-sched")
    bench.fates = {}
    bench.machines.clear()
    outcome = bench.measure(plan, "drm-sched", resume=True)
    numbers = [
        (attempt.load, attempt.number, attempt.verdict) for attempt in outcome.attempts
    ]
    assert numbers == [
        *((0, 1, "proven"), (0, 2, "failed"), (0, 3, "proven")),
        *((0, 4, "proven"), (0, 5, "proven")),
        *((4, number, "proven") for number in range(1, 6)),
    ]
    assert len(bench.machines) == 7
    # What failed has failed, and its results are still found.
    assert attempts.exit_code(outcome) == 1
    place = outcome.place
    assert place is not None and outcome.attempts[1].kept is not None
    assert (place / outcome.attempts[1].kept / "guest/results").is_dir()
    # Nothing is left to do, but to add a load; and more runs begin behind these.
    bench.machines.clear()
    again = bench.measure(plan, "drm-sched", resume=True)
    assert again.attempts == [
        replace(attempt, kept=now.kept)
        for attempt, now in zip(outcome.attempts, again.attempts, strict=True)
    ]
    assert bench.machines == []
    more = bench.measure(StabilityPlan(6, (4,)), "drm-sched", resume=True)
    assert [attempt.number for attempt in more.attempts] == [1, 2, 3, 4, 5, 6]


def test_guests_of_other_kernels_or_checks_do_not(bench: Bench) -> None:
    outcome = bench.measure(StabilityPlan(2, (0,)), "drm-sched")
    place = outcome.place
    assert place is not None
    checks = bench.project.patches / "drm-sched/checks.py"
    checks.write_text(checks.read_text() + "\n# Stricter.\n")
    bench.machines.clear()
    bench.measure(StabilityPlan(2, (0,)), "drm-sched", resume=True)
    assert len(bench.machines) == 2
    # They are known all the same, should they be asked for once more.
    known = json.loads(_newest(bench).read_text())["earlier"]["attempts"]
    assert [attempt["number"] for attempt in known] == [1, 2]
    # A file from before there were such is read, and counts nothing.
    older = json.loads(_newest(bench).read_text())
    del older["earlier"]
    for attempt in older["attempts"]:
        del attempt["tested"]
    _newest(bench).write_text(json.dumps(older))
    bench.machines.clear()
    bench.measure(StabilityPlan(2, (0,)), "drm-sched", resume=True)
    assert len(bench.machines) == 2
    _newest(bench).write_text("{}")
    with pytest.raises(KstallError, match="no results to go on with"):
        bench.measure(StabilityPlan(2, (0,)), "drm-sched", resume=True)


def test_failures_that_are_not_asked_for_are_not_forgotten(bench: Bench) -> None:
    bench.fates = {1: GOOD | {"alpha": "fail"}}
    bench.measure(StabilityPlan(1, (4,)), "drm-sched", "rdma-cq")
    bench.fates = {}
    # Another load, another series, and KUnit suites.
    assert (
        attempts.exit_code(
            bench.measure(StabilityPlan(1, (2,)), "rdma-cq", resume=True)
        )
        == 0
    )
    bench.printed = _said(TOTAL)
    bench.measure(StabilityPlan(1, (4,), kunit=3), "rdma-cq", resume=True)
    bench.machines.clear()
    outcome = bench.measure(StabilityPlan(1, (4,)), "drm-sched", "rdma-cq", resume=True)
    assert [attempt.verdict for attempt in outcome.attempts] == ["failed", "failed"]
    assert bench.machines == [] and attempts.exit_code(outcome) == 1


def test_a_suite_that_ends_the_kernel_is_not_tried_again(bench: Bench) -> None:
    bench.fates = {0: FailedCheck("the guest panicked")}
    plan = StabilityPlan(1, (4,), kunit=3)
    first = bench.measure(plan, "rdma-cq")
    assert attempts.exit_code(first) == 1
    bench.fates = {}
    bench.printed = _said(TOTAL)
    bench.machines.clear()
    again = bench.measure(plan, "rdma-cq", resume=True)
    assert bench.machines == [] and again.suites == first.suites
    assert attempts.exit_code(again) == 1
    # One that did not answer for another reason is.
    bench.fates = {0: KstallError("the guest went away")}
    bench.measure(plan, "rdma-cq")
    bench.fates = {}
    assert attempts.exit_code(bench.measure(plan, "rdma-cq", resume=True)) == 0


def test_a_guest_that_lost_its_load_does_not_count(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def put(_: int, __: object) -> Iterator[Callable[[], None]]:
        def required() -> None:
            raise KstallError("stress-ng ended")

        yield required

    monkeypatch.setattr(hostload, "put", put)
    with pytest.raises(KstallError, match="stress-ng ended"):
        bench.measure(StabilityPlan(2, (4,)), "drm-sched")
    assert json.loads(_newest(bench).read_text())["attempts"] == []


def _newest(bench: Bench) -> Path:
    return max(bench.out.glob(f"stability/2*/{attempts.FILE}"))


@pytest.mark.parametrize(
    ("unjudged", "of", "code"), [(0, 50, 0), (1, 50, 0), (1, 49, 2), (2, 99, 2)]
)
def test_one_in_fifty_may_have_no_verdict(unjudged: int, of: int, code: int) -> None:
    verdicts = ["could-not-judge"] * unjudged + ["proven"] * (of - unjudged)
    guests = [
        Attempt("s", 4, n, 0, verdict, 1.0, 8.0)  # type: ignore[arg-type]
        for n, verdict in enumerate(verdicts)
    ]
    assert attempts.exit_code(StabilityOutcome(attempts=guests)) == code


@pytest.mark.parametrize(
    ("runs", "unjudged", "code"),
    [
        (25, [1], 0),
        (25, [1] * 10, 0),
        (25, [1] * 11, 2),
        (25, [2], 2),
        (50, [2], 2),
        (51, [2], 0),
        (101, [3, 3], 0),
        (101, [4], 2),
    ],
)
def test_nor_may_one_series_have_more(
    runs: int, unjudged: list[int], code: int
) -> None:
    """Of 20 series, which are many enough to hide it."""
    guests = [
        Attempt(
            f"series-{number}",
            *(2 + run % 2, run, 0),
            "could-not-judge" if run < count else "proven",
            *(1.0, 8.0),
        )
        for number, count in enumerate(unjudged + [0] * (20 - len(unjudged)))
        for run in range(runs)
    ]
    assert attempts.exit_code(StabilityOutcome(attempts=guests)) == code


def test_nothing_proves_nothing() -> None:
    assert attempts.exit_code(StabilityOutcome()) == 2
    assert attempts.exit_code(StabilityOutcome(series={"drm-sched"})) == 2


@pytest.mark.parametrize(
    ("name", "count", "why"),
    [
        *itertools.product(
            ("--runs", "--kunit", "--at-once"), ("0", "-1"), ("not at least 1",)
        ),
        ("--load", "-1", "less than 0"),
    ],
)
def test_no_guests_are_refused(
    name: str,
    count: str,
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing is built, even if it is not refused.
    monkeypatch.setattr(stability, "measure", lambda *_, **__: StabilityOutcome())
    with pytest.raises(SystemExit) as stopped:
        cli.main(["stability", name, count, "drm-sched"])
    assert stopped.value.code == 2
    assert f"argument {name}: {count}: {why}" in capsys.readouterr().err


def test_series_without_suites_measure_nothing(
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(bench.out / "cache"))
    words = ["--project", str(bench.project.root), "stability", "--out", str(bench.out)]
    assert cli.main([*words, "--kunit", "3", "iommu-iotlb", "io_uring-sq"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "kstall: nothing was measured: no patch of io_uring-sq, iommu-iotlb adds a "
        "KUnit suite, and no workload runs one"
    ]
    # One that has a suite is enough.
    bench.printed = _said(TOTAL)
    assert cli.main([*words, "--kunit", "3", "iommu-iotlb", "rdma-cq"]) == 0
    monkeypatch.setattr(validate, "guests", lambda *_: iter(()))
    assert cli.main([*words, "iommu-iotlb"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "kstall: iommu-iotlb: its kernel could not be built, see above",
        "kstall: nothing was measured: no guest was booted",
    ]


def test_why_there_is_no_kernel_is_said_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    words = ["stability", "--out", str(tmp_path), "--kernel", str(tmp_path / "typo")]
    assert cli.main([*words, "drm-sched"]) == 2
    said = capsys.readouterr().out
    assert f"tree: {tmp_path / 'typo'} is no Linux source tree: " in said
    assert "  next: give KERNEL= " in said


def _said(*lines: dict[str, object]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


TOTAL = {"what": "total", "seconds": 2.5, "passed": 3, "failed": 0, "not-run": 0}


def _kunit_suites(series: Series) -> list[str]:
    """The names of all `struct kunit_suite` in lines that patches add, however they
    are written."""
    names = []
    for patch in series.patches:
        lines = patch.path.read_text(encoding="utf-8").splitlines()
        added = "\n".join(line[1:] for line in lines if line.startswith("+"))
        for suite in re.split(r"struct\s+kunit_suite\s+\w+\s*=", added)[1:]:
            name = re.search(r'\.name\s*=\s*"(.*?)"', suite.partition("}")[0])
            assert name is not None, patch.path.name
            names.append(name[1])
    return names


def test_suites_that_patches_add(project_root: Path) -> None:
    """All of them can be run many times: there is a workload that has the module."""
    all_series = Project(project_root).load()
    names = {series.name: suites.added(series) for series in all_series}
    assert names["drm-sched"] == (
        "drm_sched_trace_tests",
        "drm_sched_trace_deep_tests",
    )
    assert names["rdma-cq"] == ("rdma_cq",)
    assert names["drm-sched-stop"] == ("drm_sched_kill_tests",)
    assert names["iommu-iotlb"] == ()
    for series in all_series:
        assert list(names[series.name]) == _kunit_suites(series)
        for suite in names[series.name]:
            (load,) = suites.repeated(series, suite, 3).spec.workload
            assert load.modules


def test_suites_of_which_patches_change_cases(project_root: Path) -> None:
    """Only where they add none: others use suites of the tree to have events fire."""
    all_series = Project(project_root).load()
    changed = {
        "drm-sched-chain": ("drm_sched_basic_tests",),
        "drm-sched-tests": ("drm_sched_concurrent_tests",),
    }
    for series in all_series:
        concerned = changed.get(series.name, suites.added(series))
        assert suites.concerned(series) == concerned
        for suite in concerned:
            (load,) = suites.repeated(series, suite, 3).spec.workload
            assert load.modules


def test_of_several_names_of_a_suite_the_first_is_run(project_root: Path) -> None:
    (series,) = Project(project_root).load(["drm-sched"])
    assert suites.concerned(replace(series, patches=())) == (
        "drm_sched_basic_credits_tests",
        "drm_sched_trace_tests",
        "drm_sched_trace_deep_tests",
        "drm_sched_concurrent_tests",
    )


def test_a_suite_that_a_patch_changes_is_run(bench: Bench) -> None:
    bench.printed = _said(TOTAL)
    outcome = bench.measure(StabilityPlan(20, (4,), kunit=3), "drm-sched-chain")
    assert bench.machines == [1, 4]
    assert {repeated.suite for repeated in outcome.suites} == {"drm_sched_basic_tests"}
    assert attempts.exit_code(outcome) == 0


def test_a_suite_on_one_processor_and_on_four(bench: Bench) -> None:
    bench.printed = _said(TOTAL)
    outcome = bench.measure(StabilityPlan(20, (4,), kunit=3), "rdma-cq", "iommu-iotlb")
    assert bench.machines == [1, 4]
    told = [(suite.suite, suite.load, suite.cpus) for suite in outcome.suites]
    assert told == [
        ("rdma_cq", 4, 1),
        ("rdma_cq", 4, 4),
    ]
    assert [suite.count for suite in outcome.suites] == [suites.Count(3, 0, 0, ())] * 2
    assert outcome.attempts == []
    assert attempts.exit_code(outcome) == 0
    bench.machines.clear()
    plan = StabilityPlan(20, (4,), kunit=3)
    again = bench.measure(plan, "rdma-cq", "iommu-iotlb", resume=True)
    assert bench.machines == [] and again.suites == outcome.suites
    # Fewer runs than asked for do not do.
    bench.measure(StabilityPlan(20, (4,), kunit=4), "rdma-cq", resume=True)
    assert bench.machines == [1, 4]


def test_a_suite_that_failed_once(bench: Bench) -> None:
    bench.printed = _said(
        {
            "what": "failed",
            "number": 2,
            "lines": ["# dep: EXPECTATION FAILED", "a == b"],
        },
        TOTAL | {"passed": 2, "failed": 1},
    )
    outcome = bench.measure(StabilityPlan(20, (4,), kunit=3), "drm-sched")
    assert attempts.exit_code(outcome) == 1
    lines = "\n".join(attempts.summary(outcome))
    assert "2 passed, 1 failed, 0 without an answer" in lines
    assert "run 2: failed: # dep: EXPECTATION FAILED; a == b" in lines


@pytest.mark.parametrize("printed", ["", _said(TOTAL | {"passed": 2, "not-run": 1})])
def test_a_suite_without_an_answer(bench: Bench, printed: str) -> None:
    bench.printed = printed
    outcome = bench.measure(StabilityPlan(20, (0,), kunit=3), "drm-sched")
    assert attempts.exit_code(outcome) == 2
    causes = [str(repeated.cause) for repeated in outcome.suites]
    assert all("next: read that;" in cause for cause in causes) == (not printed)


def test_a_suite_whose_module_is_not_known(project_copy: Project) -> None:
    (series,) = project_copy.load(["iommu-iotlb"])
    with pytest.raises(KstallError, match="no workload runs the KUnit suite nobody"):
        suites.repeated(series, "nobody", 3)


def test_no_answer_is_reported_with_its_cause() -> None:
    suite = Repeated("s", "suite", 4, 1, 2.0, None, "the guest went away")
    assert attempts.describe_suite(suite).endswith(
        "could-not-judge: the guest went away"
    )
    suite = replace(suite, cause="the kernel panicked", failed=True)
    text = attempts.describe_suite(suite)
    assert text.endswith(" processors: failed: the kernel panicked")
