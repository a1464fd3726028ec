# SPDX-License-Identifier: GPL-2.0-or-later
"""The formats that other people's programs read: KTAP and KCIDB."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import junitparser
import pytest

from kstall.base import KstallError
from kstall.report import Report, SeriesReport, Stage, junit, kcidb, ktap, report
from kstall.report.report import Status
from kstall.verdict import Check, Comparison


def _check(name: str, status: Status) -> Check:
    compared = Comparison(
        label="naps #1", relation="=", expected=2, observed=1, ok=status != "fail"
    )
    return Check(
        name=name,
        kind="positive",
        claim="each nap is seen",
        status=status,
        comparisons=[] if status == "skip" else [compared],
        detail="needs a GPU" if status == "skip" else "",
    )


def _stages(**states: Status) -> list[Stage]:
    return [
        Stage(
            name=name,
            status=status,
            seconds=1.5,
            summary=f"{name} it is",
            error=f"{name}: broke\n  log: x" if status in ("fail", "error") else None,
        )
        for name, status in states.items()
    ]


@pytest.fixture
def run() -> Report:
    """A series that fails, one whose kernel does not build, one that was not reached,
    and one that passes."""
    run_report = Report(
        run="20260101T000000Z",
        started="2026-01-01T00:00:00+00:00",
        command=["kstall", "validate"],
        tree=report.Tree(
            kind="git",
            origin="/linux",
            version="7.3.4",
            describe="v7.3.4",
            commit="a" * 40,
            id="7.3.4-0",
        ),
        environment=report.Environment(
            kstall="0", python="3", host="h", cpus=2, compiler="gcc 12", qemu="qemu 9"
        ),
        stages=_stages(tree="pass"),
        series=[
            SeriesReport(
                name=name,
                title=f"{name}: trace naps",
                digest="d",
                patches=[
                    report.Patch(file=f"{n}.patch", subject="s", sha256=str(n) * 64)
                    for n in (1, 2)
                ],
                stages=stages,
                checks=checks,
            )
            for name, stages, checks in (
                (
                    "naps",
                    _stages(apply="pass", build="pass", guest="error", judge="pass"),
                    [_check("a", "fail"), _check("b", "skip"), _check("c", "error")],
                ),
                ("broken", _stages(apply="pass", build="fail"), []),
                ("late", [], []),
                (
                    "sound",
                    _stages(apply="pass", build="pass", guest="pass"),
                    [_check("a", "pass"), _check("b", "skip")],
                ),
            )
        ],
    )
    run_report.settle()
    return run_report


def test_ktap(run: Report, project_root: Path) -> None:
    assert ktap.text(run) == (project_root / "tests/data/results.ktap").read_text()


def test_ktap_has_no_line_end_and_no_second_hash_in_a_result(run: Report) -> None:
    stage = run.series[3].stages[2]
    stage.name, stage.status = "no#thing", "skip"
    stage.summary = "one\r\nno # device\x1b[0m\x85here"
    lines = ktap.text(run).splitlines()
    assert "  ok 3 stage.nothing # SKIP one no # device[0m here" in lines


def test_ktap_plans_are_what_follows(run: Report) -> None:
    """Counted again, as a reader of the protocol does."""
    counts: list[int] = []
    plans: list[int] = []
    for line in ktap.text(run).splitlines():
        if line.startswith("  1.."):
            plans.append(int(line.split("..")[1]))
            counts.append(0)
        elif line.startswith(("  ok ", "  not ok ")):
            counts[-1] += 1
    assert plans == counts == [1, 7, 2, 1, 5]


def test_a_single_failure_fails_its_series(run: Report) -> None:
    assert "ok 5 sound" in ktap.text(run).splitlines()
    run.series[3].checks[0].status = "fail"
    assert "not ok 5 sound" in ktap.text(run).splitlines()


def test_a_series_that_could_not_be_judged_does_not_pass(run: Report) -> None:
    """Its kernel, which it shares, was not built: its own stages passed."""
    run.stages += _stages(build="error")
    run.series[3].checks = []
    run.settle()
    lines = ktap.text(run).splitlines()
    assert "  not ok 4 verdict # ERROR build: build it is" in lines
    assert "not ok 5 sound # ERROR" in lines
    *_, verdict = kcidb.data(run)["tests"]
    assert (verdict["path"], verdict["status"]) == (
        "kstall.sound.suite.verdict",
        "MISS",
    )


def test_a_series_of_which_only_patches_were_judged_does_not_pass(run: Report) -> None:
    run.series[3].checks = [run.series[3].checks[0]]
    run.series[3].checks[0].kind = "patch"
    run.settle()
    lines = ktap.text(run).splitlines()
    assert "  not ok 5 verdict # ERROR nothing but its patches was judged" in lines


@pytest.mark.parametrize(
    ("status", "reason"),
    [("running", "the run did not end"), ("interrupted", "the run was interrupted")],
)
def test_a_run_that_did_not_end_does_not_pass(
    run: Report, tmp_path: Path, status: report.RunStatus, reason: str
) -> None:
    run.status, run.series = status, run.series[3:]
    run.series[0].status = "error"
    assert [line for line in ktap.text(run).splitlines() if "not ok" in line] == [
        f"  not ok 2 verdict # ERROR {reason}",
        "not ok 1 run # ERROR",
        f"  not ok 6 verdict # ERROR {reason}",
        "not ok 2 sound # ERROR",
    ]
    junit.write(run, tmp_path / "junit.xml")
    document = junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert [suite.errors for suite in document] == [1, 1]


def test_junit_is_written_at_once(run: Report, tmp_path: Path) -> None:
    path, reader = tmp_path / "junit.xml", tmp_path / "as-it-was"
    path.write_text("whole")
    reader.hardlink_to(path)
    junit.write(run, path)
    assert reader.read_text() == "whole"
    assert "kstall.sound" in path.read_text()


def test_kcidb_is_what_its_schema_wants(run: Report, tmp_path: Path) -> None:
    kcidb.write(run, tmp_path / "kcidb.json")
    document = json.loads((tmp_path / "kcidb.json").read_text())
    assert [checkout["valid"] for checkout in document["checkouts"]] == [
        True,
        True,
        True,
    ]
    assert [build["status"] for build in document["builds"]] == ["PASS", "FAIL", "PASS"]
    assert document["builds"][1]["log_excerpt"].startswith("build: broke")
    statuses = {test["path"]: test["status"] for test in document["tests"]}
    assert statuses == {
        "kstall.naps.stage.guest": "MISS",
        "kstall.naps.stage.judge": "PASS",
        "kstall.naps.check.a": "FAIL",
        "kstall.naps.check.b": "SKIP",
        "kstall.naps.check.c": "ERROR",
        "kstall.sound.stage.guest": "PASS",
        "kstall.sound.check.a": "PASS",
        "kstall.sound.check.b": "SKIP",
    }
    assert len({test["id"] for test in document["tests"]}) == len(document["tests"])
    builds = {build["id"] for build in document["builds"]}
    assert {test["build_id"] for test in document["tests"]} <= builds


def test_kcidb_hashes_a_patchset_as_the_schema_says(run: Report) -> None:
    """``sha256sum *.patch | cut -c-64 | sha256sum``."""
    (checkout, *_) = kcidb.data(run)["checkouts"]
    lines = f"{'1' * 64}\n{'2' * 64}\n"
    assert checkout["patchset_hash"] == hashlib.sha256(lines.encode()).hexdigest()


def test_kcidb_says_when_patches_do_not_apply(run: Report) -> None:
    run.series[0].stages = _stages(apply="fail")
    document = kcidb.data(run)
    kcidb.validate(document)
    assert document["checkouts"][0]["valid"] is False
    assert len(document["builds"]) == 2


@pytest.mark.parametrize("build", [{}, {"build": "error"}])
def test_kcidb_keeps_what_was_found_before_a_build_that_is_not_there(
    run: Report, build: dict[str, Status]
) -> None:
    broken = run.series[1]
    broken.stages = _stages(apply="pass", patches="pass", compile="pass", **build)
    broken.checks = [_check("gate", "fail").model_copy(update={"kind": "patch"})]
    document = kcidb.data(run)
    kcidb.validate(document)
    assert [build["status"] for build in document["builds"]] == ["PASS", "MISS", "PASS"]
    tests = {
        test["path"]: test for test in document["tests"] if ".broken." in test["path"]
    }
    assert {path: test["status"] for path, test in tests.items()} == {
        "kstall.broken.stage.patches": "PASS",
        "kstall.broken.stage.compile": "PASS",
        "kstall.broken.check.gate": "FAIL",
    }
    # No guest had a part in that.
    assert not any("environment" in test for test in tests.values())
    assert all(
        "environment" in test
        for test in document["tests"]
        if test not in tests.values()
    )


@pytest.mark.parametrize(("config", "says"), [("fail", "FAIL"), ("error", "MISS")])
def test_kcidb_has_a_configuration_that_fails_as_a_build_that_does(
    run: Report, config: Status, says: str
) -> None:
    run.series[1].stages = _stages(apply="pass", config=config)
    run.series[1].checks = []
    document = kcidb.data(run)
    kcidb.validate(document)
    build = document["builds"][1]
    assert (build["status"], build["comment"]) == (says, "config it is")
    assert build["log_excerpt"] == "config: broke\n  log: x"


def test_kcidb_of_a_run_without_a_tree_is_empty_and_valid(run: Report) -> None:
    run.tree = None
    kcidb.validate(kcidb.data(run))


def test_kcidb_takes_a_console_s_bytes_and_length(run: Report) -> None:
    run.series[0].checks[0].claim = "\0\x1b" + 20000 * "x"
    kcidb.validate(kcidb.data(run))


@pytest.mark.parametrize(
    ("field", "value"),
    [("path", "kstall.a b"), ("status", "pass"), ("id", "no origin"), ("extra", 1)],
)
def test_what_the_schema_refuses_is_not_written(
    run: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    value: object,
) -> None:
    document = kcidb.data(run)
    document["tests"][0][field] = value
    monkeypatch.setattr(kcidb, "data", lambda _: document)
    with pytest.raises(KstallError, match=r"tests/0.*schema 5\.3"):
        kcidb.write(run, tmp_path / "kcidb.json")
    assert not (tmp_path / "kcidb.json").exists()
