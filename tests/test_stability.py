# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests that are booted again and again, and what is counted of them."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from kstall.base import FailedCheck, KstallError
from kstall.build import Kernel
from kstall.debian import Root
from kstall.evidence.falsity import MutantOutcome, Mutation
from kstall.guest import Guest, guest
from kstall.guest.guestrun import Booted
from kstall.pipeline import Ui, hostload, stability, validate
from kstall.pipeline.run import Run, begin
from kstall.pipeline.stability import Attempt, Outcome, Plan, Repeated
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
        self.loads: list[int] = []
        self.running = self.most = 0
        self.machines: list[int] = []
        self.printed = ""
        self._lock = threading.Lock()
        self._project = project
        monkeypatch.setattr(validate, "guests", self._guests)
        monkeypatch.setattr(stability, "run_guest", self._run_guest)
        monkeypatch.setattr(hostload, "put", self._put)
        monkeypatch.setattr(stability.evidence, "load", lambda results: results)
        monkeypatch.setattr(stability.trials, "judge", self._judge)
        monkeypatch.setattr(stability.mutate, "judged", self._falsified)
        # Without what the series argues, of other mutants than these.
        monkeypatch.setattr(stability.mutate, "argued", lambda _, mutation: mutation)
        #: What the checks missed in each run, one run after the other.
        self.missed: list[list[str]] = []

    def measure(self, plan: Plan, *series: str) -> Outcome:
        """Boot them all."""
        request = validate.Request(
            project=self._project,
            series=self._project.load(list(series)),
            kernel=None,
            cache=self.out / "cache",
            out=self.out,
        )
        ui = Ui(Console(file=io.StringIO()))
        return stability.measure(request, plan, ui, ["kstall"])

    def _guests(
        self, request: validate.Request, ui: Ui, command: list[str]
    ) -> Iterator[tuple[Run, Series, Guest]]:
        assert request.level == "quick"
        run = begin(request.out, command, ui)
        kernel = Kernel("k", self.out, "7.3.4", "ab" * 20, reused=True)
        where = Guest(
            kernel, Root("r", self.out, (), {}, True), guest.Accel("tcg", "t")
        )
        for series in request.series:
            yield run, series, where

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
    outcome = bench.measure(Plan(4, (0, 4)), "drm-sched", "rdma-cq")
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
    assert stability.exit_code(outcome) == 0
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
    outcome = bench.measure(Plan(6, (4,)), "drm-sched")
    (tally,) = stability.tallies(outcome.attempts)
    assert tally.verdicts == {"proven": 3, "failed": 2, "could-not-judge": 1}
    assert tally.moved == {
        "alpha": {"pass": 3, "fail": 2},
        "beta": {"pass": 4, "error": 1},
    }
    assert "run 2: alpha (fail): count: = 3, got 2" in tally.causes
    assert "run 5: the guest went away" in tally.causes
    assert stability.exit_code(outcome) == 1
    place = outcome.place
    assert place is not None
    kept = {attempt.number: attempt.kept for attempt in outcome.attempts}
    assert [number for number, where in sorted(kept.items()) if where] == [2, 3, 5]
    for where in filter(None, kept.values()):
        assert (place / where / "guest/results").is_dir()
        assert not (place / where / "cache").exists()
    written = json.loads((place / stability.FILE).read_text())
    assert written["tallies"][0]["moved"]["alpha"] == {"pass": 3, "fail": 2}
    assert len(written["attempts"]) == 6
    lines = "\n".join(stability.summary(outcome))
    assert "drm-sched, load 4: 6 runs: " in lines
    assert "  alpha: 3 pass, 2 fail" in lines


def test_a_false_value_that_one_run_does_not_notice(bench: Bench) -> None:
    bench.missed = [[], ["last dropped"], []]
    outcome = bench.measure(Plan(3, (4,), at_once=(1,)), "drm-sched")
    (tally,) = stability.tallies(outcome.attempts)
    assert tally.verdicts == {"proven": 2, "failed": 1}
    assert tally.moved == {"every_value_is_falsifiable": {"pass": 2, "fail": 1}}
    (cause,) = tally.causes
    assert cause.startswith("run 2: every_value_is_falsifiable (fail): ")
    assert "last dropped" in cause
    assert [attempt.kept is None for attempt in outcome.attempts] == [True, False, True]


def test_a_failed_check_of_the_guest_is_a_failure(bench: Bench) -> None:
    bench.fates = {1: FailedCheck("the kernel complained")}
    outcome = bench.measure(Plan(1, (0,)), "drm-sched")
    assert [attempt.verdict for attempt in outcome.attempts] == ["failed"]
    assert outcome.attempts[0].cause == "the kernel complained"


def test_what_is_known_is_written_when_it_is_cut_short(bench: Bench) -> None:
    bench.fates = {2: RuntimeError("a bug")}
    with pytest.raises(RuntimeError, match="a bug"):
        bench.measure(Plan(3, (0,)), "drm-sched")
    (written,) = bench.out.glob(f"stability/2*/{stability.FILE}")
    known = json.loads(written.read_text())["attempts"]
    assert known[0]["number"] == 1


@pytest.mark.parametrize(
    ("unjudged", "of", "code"), [(0, 50, 0), (1, 50, 0), (1, 49, 2), (2, 99, 2)]
)
def test_one_in_fifty_may_have_no_verdict(unjudged: int, of: int, code: int) -> None:
    verdicts = ["could-not-judge"] * unjudged + ["proven"] * (of - unjudged)
    attempts = [
        Attempt("s", 4, n, 0, verdict, 1.0, 8.0)  # type: ignore[arg-type]
        for n, verdict in enumerate(verdicts)
    ]
    assert stability.exit_code(Outcome(attempts=attempts)) == code


def _said(*lines: dict[str, object]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


TOTAL = {"what": "total", "seconds": 2.5, "passed": 3, "failed": 0, "not-run": 0}


def test_suites_that_patches_add(project_root: Path) -> None:
    names = {
        series.name: suites.added(series) for series in Project(project_root).load()
    }
    assert names["drm-sched"] == (
        "drm_sched_trace_tests",
        "drm_sched_trace_deep_tests",
    )
    assert names["rdma-cq"] == ("rdma_cq",)
    assert names["iommu-iotlb"] == ()


def test_a_suite_on_one_processor_and_on_four(bench: Bench) -> None:
    bench.printed = _said(TOTAL)
    outcome = bench.measure(Plan(20, (4,), kunit=3), "rdma-cq", "iommu-iotlb")
    assert bench.machines == [1, 4]
    told = [(suite.suite, suite.load, suite.cpus) for suite in outcome.suites]
    assert told == [
        ("rdma_cq", 4, 1),
        ("rdma_cq", 4, 4),
    ]
    assert [suite.count for suite in outcome.suites] == [suites.Count(3, 0, 0, ())] * 2
    assert outcome.attempts == []
    assert stability.exit_code(outcome) == 0


def test_a_suite_that_failed_once(bench: Bench) -> None:
    bench.printed = _said(
        {
            "what": "failed",
            "number": 2,
            "lines": ["# dep: EXPECTATION FAILED", "a == b"],
        },
        TOTAL | {"passed": 2, "failed": 1},
    )
    outcome = bench.measure(Plan(20, (4,), kunit=3), "drm-sched")
    assert stability.exit_code(outcome) == 1
    lines = "\n".join(stability.summary(outcome))
    assert "2 passed, 1 failed, 0 without an answer" in lines
    assert "run 2: failed: # dep: EXPECTATION FAILED; a == b" in lines


@pytest.mark.parametrize("printed", ["", _said(TOTAL | {"passed": 2, "not-run": 1})])
def test_a_suite_without_an_answer(bench: Bench, printed: str) -> None:
    bench.printed = printed
    outcome = bench.measure(Plan(20, (0,), kunit=3), "drm-sched")
    assert stability.exit_code(outcome) == 2


def test_a_suite_whose_module_is_not_known(project_copy: Project) -> None:
    (series,) = project_copy.load(["iommu-iotlb"])
    with pytest.raises(KstallError, match="no workload runs the KUnit suite nobody"):
        suites.repeated(series, "nobody", 3)


def test_no_answer_is_reported_with_its_cause() -> None:
    suite = Repeated("s", "suite", 4, 1, 2.0, None, "the guest went away")
    assert stability.describe_suite(suite).endswith(
        "could-not-judge: the guest went away"
    )
