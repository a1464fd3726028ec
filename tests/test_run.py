# SPDX-License-Identifier: GPL-2.0-or-later
"""However a stage ends, the report on disk says how."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from rich.console import Console

from kstall.base import DoesNotApply, FailedCheck, KstallError, figure, process
from kstall.pipeline import Ui
from kstall.pipeline import run as runs
from kstall.report import report


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def run(tmp_path: Path, output: io.StringIO) -> runs.Run:
    ui = Ui(Console(file=output, width=120))
    return runs.begin(tmp_path / "out", ["kstall", "validate"], ui)


def _saved(run: runs.Run) -> report.Report:
    return report.read(run.dir / "report.json")


def test_a_report_is_there_from_the_start(run: runs.Run) -> None:
    assert _saved(run).status == "running"
    assert (run.dir.parent / "latest").resolve() == run.dir
    assert (run.dir / "junit.xml").exists()


def test_a_stage_keeps_commands_figures_and_log(run: runs.Run) -> None:
    with run.stage("build") as stage:
        process.run(["true"], log=stage.log)
        stage.summary = "built"
        figure("objects", 3, "files")
    (entry,) = _saved(run).stages
    assert (entry.status, entry.summary) == ("pass", "built")
    assert entry.commands[0].argv == ["true"]
    assert entry.figures[0].value == 3
    assert entry.log is not None
    assert (run.dir / entry.log).read_text().startswith("$ true")


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (FailedCheck("no fit", next="mend it"), "fail", "no fit\n  next: mend it"),
        (KstallError("no apt"), "error", "no apt"),
        (DoesNotApply("a.patch, x.c:3"), "does-not-apply", "a.patch, x.c:3"),
        (OSError(errno.ENOSPC, "full", "/cache"), "error", "point KSTALL_CACHE"),
    ],
)
def test_how_a_stage_stops(
    run: runs.Run, error: Exception, status: str, says: str
) -> None:
    with pytest.raises(runs.StageStopped), run.stage("apply"):
        raise error
    (entry,) = _saved(run).stages
    assert entry.status == status
    assert says in (entry.error or "")


def test_of_a_program_that_failed_the_summary_says_how(run: runs.Run) -> None:
    with pytest.raises(runs.StageStopped), run.stage("build"):
        process.run(["sh", "-c", "echo one; echo two; exit 3"])
    (entry,) = _saved(run).stages
    assert entry.summary == "`sh -c 'echo one; echo two; exit 3'` exited 3"
    assert "two" in (entry.error or "")


def test_an_interrupt_is_put_down(run: runs.Run, output: io.StringIO) -> None:
    with pytest.raises(KeyboardInterrupt), run.stage("build"):
        raise KeyboardInterrupt
    (entry,) = _saved(run).stages
    assert (entry.status, entry.error) == ("error", "interrupted")
    assert "interrupted" in output.getvalue()


def test_a_bug_of_ours_is_not_taken_for_a_result(run: runs.Run) -> None:
    with pytest.raises(ZeroDivisionError), run.stage("build"):
        raise ZeroDivisionError
    (entry,) = _saved(run).stages
    assert entry.status == "error"


def test_a_page_that_cannot_be_made_does_not_cost_the_verdict(
    run: runs.Run, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ValueError("no such filter")

    monkeypatch.setattr("kstall.report.html.page", broken)
    run.report.status = "proven"
    run.save()
    assert _saved(run).status == "proven"
    assert "no such filter" in output.getvalue()
    assert "kstall html" in output.getvalue()
    assert not (run.dir / "report.html").exists()


def test_a_format_that_is_not_valid_costs_no_verdict_either(
    run: runs.Run, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstall.report.kcidb.data", lambda _: {"version": {"major": 4}})
    run.report.status = "proven"
    run.save()
    assert _saved(run).status == "proven"
    assert "kcidb.json could not be written" in output.getvalue()
    assert not (run.dir / "kcidb.json").exists()
    assert (run.dir / "results.ktap").read_text().startswith("KTAP version 1\n1..0")


def test_an_interrupted_run_is_not_to_be_submitted(run: runs.Run) -> None:
    run.report.status = "interrupted"
    run.save()
    assert (run.dir / "report.html").exists()
    assert not (run.dir / "kcidb.json").exists()
    run.report.status = "proven"
    run.save()
    assert (run.dir / "kcidb.json").exists()


@pytest.mark.parametrize(
    ("view", "name"), [("junit", "junit.xml"), ("ktap", "results.ktap")]
)
def test_a_view_that_cannot_be_written_leaves_a_stage_its_error(
    run: runs.Run,
    output: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    view: str,
    name: str,
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such case")

    monkeypatch.setattr(f"kstall.report.{view}.write", broken)
    monkeypatch.setattr(runs, "_REDRAWN_S", 0.0)
    with pytest.raises(runs.StageStopped), run.stage("apply"):
        raise FailedCheck("it does not apply")
    (entry,) = _saved(run).stages
    assert (entry.status, entry.error) == ("fail", "it does not apply")
    assert f"{name} could not be written: ValueError" in output.getvalue()


def test_runs_of_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    ui = Ui(Console(file=io.StringIO()))
    directories = {runs.begin(tmp_path, ["kstall"], ui).dir for _ in range(3)}
    assert len(directories) == 3


@pytest.mark.parametrize(
    ("what", "headline"),
    [
        ("no such branch", "no such branch"),
        ("it has no such symbol\nof two lines", "it has no such symbol"),
        ("not as needed:\n  CONFIG_A\nCONFIG_B", "not as needed: CONFIG_A"),
        ("the guest said:", "the guest said:"),
    ],
)
def test_the_headline_of_an_error_says_something(what: str, headline: str) -> None:
    assert KstallError(what).headline == headline
