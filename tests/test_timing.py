# SPDX-License-Identifier: GPL-2.0-or-later
"""Time under KVM: pairs of boots, their ratio, and an interval; never a verdict."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kstall.cost import Kernels, costs, counting, timing
from kstall.cost.counting import Boot
from kstall.guest import accel
from kstall.pipeline import Ui, overhead
from kstall.pipeline import run as runs
from kstall.report import SeriesReport
from kstall.series import Context, Measure, Project, Series
from kstall.series.series import Overhead
from kstall.verdict import Check

KVM = accel.Accel("kvm", "a guest has run under it")
TCG = accel.Accel("tcg", "QEMU gives up under KVM")


class Quiet:
    """A `Ui` that keeps progress to itself."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def say(self, text: str) -> None:
        pass

    def progress(self, done: float, total: float, step: str) -> None:
        self.seen.append(done)
        assert done <= total


@pytest.fixture
def project(project_root: Path) -> Project:
    return Project(project_root)


@pytest.fixture
def series(project: Project) -> Series:
    (found,) = project.load(["drm-sched"])
    one = Measure.model_validate(
        {
            "name": "call",
            "program": "workloads/overhead/io_uring-sq",
            "operation": "call",
        }
    )
    spec = found.spec.model_copy(update={"overhead": Overhead(workload=(one,))})
    return dataclasses.replace(found, spec=spec)


def row(boot: Boot, ticks: float) -> dict[str, Any]:
    (mode,) = boot.modes
    # One repetition of three had an interrupt in it.
    taken = [round(10 * ticks), round(10 * ticks), 10**6]
    return {"workload": "call", "mode": mode, "operations": 10, "taken": taken}


class Host:
    """Boots guests on a host that becomes slower all the time."""

    def __init__(self, factor: float) -> None:
        self.booted: list[str] = []
        self._factor = factor

    def boot(self, one: Boot) -> list[dict[str, Any]]:
        self.booted.append(one.name)
        slow = 1 + 0.02 * len(self.booted)
        return [row(one, 1000 * slow * (self._factor if "off" in one.modes else 1))]


@pytest.fixture
def guests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    """What stands in for guests under KVM."""
    host = Host(1.05)

    def run(*args: Any) -> list[dict[str, Any]]:
        boot, out, speed, machine = args[3:]
        assert (speed, machine.cpus) == (KVM, 1)
        assert "-icount" not in machine.devices
        assert out.is_relative_to(tmp_path)
        return host.boot(boot)

    monkeypatch.setattr(counting, "run", run)
    monkeypatch.setattr(counting, "compile_programs", lambda *_: None)
    return host


def measure(
    project: Project, series: Series, kernels: Kernels, speed: accel.Accel, where: Path
) -> tuple[timing.Timed, list[Any]]:
    context = Context(project, where / "cache", where / "run", "full", Quiet())
    timed = timing.measure(context, series, kernels, speed, where / "time.log")
    return timed, timed.timings


def test_without_kvm_it_is_skipped_and_says_why(
    project: Project, series: Series, kernels: Kernels, guests: Host, tmp_path: Path
) -> None:
    timed, found = measure(project, series, kernels, TCG, tmp_path)
    assert (found, guests.booted) == ([], [])
    assert timed.skipped == "no usable KVM: QEMU gives up under KVM"


def test_a_run_without_kvm_says_so_and_is_judged_by_the_rest(
    project: Project,
    series: Series,
    kernels: Kernels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overhead, "_footprint", lambda *_: costs.Footprint())
    monkeypatch.setattr(counting, "measure", lambda *_: ([], False))
    monkeypatch.setattr(overhead, "judge", lambda *_: [_passed()])
    run = runs.begin(tmp_path / "out", ["kstall"], Ui(Console(file=io.StringIO())))
    entry = SeriesReport(name=series.name, title="t", digest="d")
    run.report.series.append(entry)
    context = run.context(project, tmp_path / "cache")
    overhead.prove(context, series, kernels, TCG, run, entry)
    run.report.settle()
    run.save()
    assert run.report.status == "proven"
    assert [(one.name, one.status) for one in entry.stages] == [
        ("binaries", "pass"),
        ("instructions", "pass"),
        ("time", "skip"),
        ("events", "skip"),
        ("gate", "pass"),
    ]
    for name in ("report.json", "report.html", "junit.xml"):
        assert "no usable KVM: QEMU gives up" in (run.dir / name).read_text()


def _passed() -> Check:
    return Check(name="cheap", kind="overhead", claim="it is", status="pass")


def test_pairs_take_turns_so_that_drift_does_not_count(
    project: Project, series: Series, kernels: Kernels, guests: Host, tmp_path: Path
) -> None:
    timed, (found,) = measure(project, series, kernels, KVM, tmp_path)
    assert guests.booted[:4] == ["base-0", "patched-0", "patched-1", "base-1"]
    assert len(guests.booted) == 2 * len(found.pairs) == 24
    assert found.pairs[0].base == pytest.approx(1020)
    # The host lost a third of its speed, and 5 % were added by the patches.
    assert found.ratio == pytest.approx(1.05, abs=0.002)
    assert 1.03 < found.low < found.ratio < found.high < 1.07
    assert not timed.skipped
    assert found.change.startswith("+5.0")


def test_what_was_timed_is_kept(
    project: Project, series: Series, kernels: Kernels, guests: Host, tmp_path: Path
) -> None:
    _, first = measure(project, series, kernels, KVM, tmp_path)
    timed, again = measure(project, series, kernels, KVM, tmp_path)
    assert timed.reused
    assert again == first
    assert len(guests.booted) == 24
    (kept,) = (tmp_path / "cache/timings").glob("*/rows.json")
    assert len(json.loads(kept.read_text())) == 24


def test_a_guest_that_fails_is_no_verdict(
    project: Project,
    series: Series,
    kernels: Kernels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> None:
        raise counting.MeasureFailed("boot base-0 ended as hang", log=tmp_path / "log")

    monkeypatch.setattr(counting, "run", broken)
    monkeypatch.setattr(counting, "compile_programs", lambda *_: None)
    timed, found = measure(project, series, kernels, KVM, tmp_path)
    assert found == []
    assert timed.skipped == "could not be timed: boot base-0 ended as hang"
    assert str(tmp_path / "log") in (timed.error or "")


def test_the_interval_is_that_of_the_geometric_mean() -> None:
    ratio, low, high = timing.interval([0.5, 2.0, 1.0])
    assert ratio == pytest.approx(1)
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(2)
    assert timing.interval([1.25]) == pytest.approx((1.25, 1.25, 1.25))
    assert timing.interval([1, 1.1, 1.2]) == timing.interval([1, 1.1, 1.2])
    with pytest.raises(ValueError, match="no pair"):
        timing.interval([])


def test_the_interval_mostly_holds_the_truth_and_not_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "_RESAMPLES", 400)
    chance = random.Random(1)
    held = wrong = 0
    for _ in range(200):
        noisy = [math.exp(chance.gauss(0, 0.02)) for _ in range(12)]
        _, low, high = timing.interval(noisy)
        held += low <= 1 <= high
        wrong += low <= 1.03 <= high
    assert 170 <= held < 200
    assert wrong < 10
