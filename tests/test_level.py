# SPDX-License-Identifier: GPL-2.0-or-later
"""What a quick run leaves out, and that it says so."""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import kerneltree
import synthetic
from kstall import cli
from kstall.build import Ground
from kstall.mail import proof
from kstall.pipeline import Request, Ui, kernels, validate
from kstall.pipeline import run as runs
from kstall.report import ktap, report
from kstall.series import Level, Project
from kstall.series.spec import OverheadSpec


@dataclass(frozen=True)
class _Built:
    """Stages, the kernels that were built, what they are compared by, and for each time
    that patches were compiled whether it was in every variant."""

    report: report.Report
    kernels: list[str]
    both: object
    compiled: list[bool]


def _built(
    level: Level,
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> _Built:
    """What is done at ``level``, with nothing really made."""
    (series,) = Project(project_root).load(["drm-sched"])
    sides: list[str] = []
    compiled: list[bool] = []
    base = SimpleNamespace(patches=())
    plan = SimpleNamespace(touched=(), offsets=(), upto=lambda _: base)

    @contextlib.contextmanager
    def workspace(*_: object) -> Iterator[Any]:
        yield lambda plan: kernels._Checkout(plan, lambda: None)  # type: ignore[arg-type,return-value]

    def build(_: object, checkout: Any, *__: object) -> SimpleNamespace:
        sides.append("base" if checkout.plan is base else "patched")
        return SimpleNamespace(key=sides[-1])

    nothing = SimpleNamespace(reused=True, remarks=(), file=tmp_path / "x/.config")
    for name, what in {
        "validate.tree.plan": lambda *_, log: plan,
        "validate.patches.prove": lambda *_: None,
        "validate.patches.read": lambda *_: None,
        "validate.builds.prove": lambda work, *_: compiled.append(
            work.context.level == "deep"
        ),
        "kernels.kernel.added_symbols": lambda _: frozenset(),
        "kernels.workspace": workspace,
        "kernels._Maker._build": build,
        "kernels._Maker._modules": lambda *_: None,
        "kernels._Maker._configure": lambda *_: nothing,
    }.items():
        monkeypatch.setattr(f"kstall.pipeline.{name}", what)
    ui = Ui(Console(file=io.StringIO()))
    run = runs.begin(tmp_path / "out", ["kstall", "validate"], ui)
    entry = report.SeriesReport(name="drm-sched", title="t", digest="d")
    run.report.series = [entry]
    request = Request(Project(project_root), (series,), None, tmp_path, tmp_path, level)
    nowhere: Any = None
    source: Any = SimpleNamespace(version="7.3.4")
    ground = Ground(request.project, source, nowhere, nowhere, tmp_path)
    subject = validate._subject(request, run, ground, series, entry)
    built = kernels.make(ground, subject.group, level, run, entry)
    return _Built(run.report, sides, built.pair(series), compiled)


def test_a_full_run_builds_both_kernels(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = _built("full", project_root, tmp_path, monkeypatch)
    assert outcome.kernels == ["base", "patched"]
    assert outcome.both is not None


def test_a_quick_run_builds_one_and_says_what_it_skips(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = _built("quick", project_root, tmp_path, monkeypatch)
    assert outcome.kernels == ["patched"]
    assert outcome.both is None
    assert outcome.compiled == []
    text = ktap.text(outcome.report)
    for skipped in (
        "stage.base # SKIP LEVEL=quick: the costs of events are not measured",
        "stage.compile # SKIP LEVEL=quick: patches are not compiled one by one",
    ):
        assert skipped in text


@pytest.mark.parametrize(("level", "everything"), [("full", [False]), ("deep", [True])])
def test_only_deep_compiles_in_every_variant(
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    level: Level,
    everything: list[bool],
) -> None:
    outcome = _built(level, project_root, tmp_path, monkeypatch)
    assert outcome.compiled == everything


def test_a_quick_run_is_no_proof_for_mails(tmp_path: Path) -> None:
    project = kerneltree.project(tmp_path / "project")
    tree = kerneltree.directory(tmp_path / "linux")
    base = kerneltree.base(tree, tmp_path / "cache")
    (series,) = project.load(["demo"])
    costly = replace(
        series, spec=series.spec.model_copy(update={"overhead": OverheadSpec()})
    )
    out = tmp_path / "out"
    synthetic.prove(costly, base, out, overhead=False)
    with pytest.raises(proof.NoProof, match="a quick run"):
        proof.find(costly, base, out, None)
    # A series that declares no costs has none to be measured.
    assert proof.find(series, base, out, None).entry.overhead is None


def test_a_level_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["validate", "--level", "deeper"])
    assert ended.value.code == 2
    assert "invalid choice: 'deeper'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "level"),
    [([], "full"), (["LEVEL=quick"], "quick"), (["LEVEL=deep"], "deep")],
)
def test_make_hands_the_level_on(
    project_root: Path, words: list[str], level: str
) -> None:
    done = subprocess.run(
        ["make", "-n", "validate", *words],
        cwd=project_root,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"kstall validate --level {level} " in done.stdout
