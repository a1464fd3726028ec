# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict of a run, and the views that show it."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kstall import base, cli
from kstall.cost import costs
from kstall.evidence import evidence, records
from kstall.pipeline import trials
from kstall.report import Report, SeriesReport, Stage, html, junit, report, views
from kstall.series import Project
from kstall.verdict import Check, Comparison, Status


def _check(status: Status, name: str = "naps") -> Check:
    ok = status != "fail"
    return Check(
        name=name,
        kind="positive",
        claim="each nap is seen",
        status=status,
        comparisons=[
            Comparison(label="n", relation="=", expected=2, observed=1, ok=ok)
        ],
        detail="needs a GPU" if status == "skip" else "",
    )


def _report(stage: base.Status = "pass", *checks: Check) -> Report:
    run_report = Report(
        run="r1",
        started="2026-01-01T00:00:00+00:00",
        command=["kstall", "validate"],
        environment=report.Environment(kstall="0", python="3", host="h", cpus=2),
        stages=[Stage(name="tree", status="pass", seconds=1, summary="7.3.4")],
        series=[
            SeriesReport(
                name="demo",
                title="demo: trace naps",
                digest="d",
                stages=[Stage(name="build", status=stage, seconds=2)],
                checks=list(checks),
            )
        ],
    )
    run_report.settle()
    return run_report


@pytest.mark.parametrize(
    ("stage", "checks", "status", "code"),
    [
        ("pass", ["pass"], "proven", 0),
        ("pass", ["pass", "skip"], "proven", 0),
        ("pass", ["pass", "fail"], "failed", 1),
        ("pass", ["fail", "error"], "failed", 1),
        ("pass", ["pass", "error"], "could-not-run", 2),
        ("fail", [], "failed", 1),
        ("error", [], "could-not-run", 2),
        ("pass", [], "could-not-run", 2),
        ("pass", ["skip"], "could-not-run", 2),
        ("does-not-apply", [], "does-not-apply", 3),
        # Checks of patches are made before, and what fails there fails.
        ("does-not-apply", ["fail"], "failed", 1),
        ("does-not-apply", ["error"], "could-not-run", 2),
    ],
)
def test_status_and_exit_code(
    stage: base.Status, checks: list[Status], status: str, code: int
) -> None:
    run_report = _report(stage, *(_check(s, f"c{i}") for i, s in enumerate(checks)))
    assert (run_report.status, run_report.exit_code) == (status, code)


def test_another_series_is_proven_where_one_does_not_apply() -> None:
    run_report = _report("pass", _check("pass"))
    other = run_report.series[0].model_copy(update={"name": "other", "checks": []})
    other.stages = [Stage(name="apply", status="does-not-apply", seconds=0)]
    for series, code in (([other], 3), ([run_report.series[0], other], 3)):
        run_report.series = series
        run_report.settle()
        assert (other.status, run_report.exit_code) == ("does-not-apply", code)
    assert run_report.series[0].status == "pass"


def test_a_report_without_series_proves_nothing() -> None:
    run_report = _report("pass", _check("pass"))
    run_report.series = []
    run_report.settle()
    assert run_report.exit_code == 2


def test_json_round_trip_and_schema(tmp_path: Path) -> None:
    run_report = _report("pass", _check("pass"))
    report.write(run_report, tmp_path / "report.json")
    assert report.read(tmp_path / "report.json") == run_report
    schema = json.loads(cli.schema_text("report"))
    assert schema["properties"]["schema_version"]["const"] == 1


def test_a_skipped_check_has_no_comparison_however_it_was_made() -> None:
    skipped = _check("skip")
    assert skipped.comparisons == []
    changed = _check("pass")
    changed.status = "skip"
    assert changed.comparisons == []
    # As a report of an earlier version has it.
    raw = _check("pass").model_dump() | {"status": "skip"}
    assert raw["comparisons"]
    assert Check.model_validate(raw).comparisons == []
    assert _check("pass").comparisons


def test_the_committed_schema_is_the_code_s(project_root: Path) -> None:
    path = project_root / "harness/report-v1.schema.json"
    assert path.read_text() == cli.schema_text("report"), (
        f"kstall schema > {path.relative_to(project_root)}"
    )


def _shown(run_report: Report) -> str:
    text = io.StringIO()
    views.terminal(run_report, Path("/runs/r1"), Console(file=text, width=100))
    return text.getvalue()


def test_terminal_shows_what_failed_and_why() -> None:
    shown = _shown(_report("pass", _check("pass", "good"), _check("fail", "bad")))
    assert "FAILED" in shown
    assert "n: observed 1, expected = 2" in shown
    assert "1 pass, 1 fail" in shown


def test_terminal_shows_a_skip_with_its_reason() -> None:
    shown = _shown(_report("pass", _check("pass"), _check("skip", "gpu")))
    line = next(line for line in shown.splitlines() if line.startswith("gpu"))
    assert "SKIP" in line
    assert "needs a GPU" in line
    assert "1 skip" in shown


def test_what_is_not_to_be_sent_says_so_in_every_view() -> None:
    run_report = _report("pass", _check("pass"))
    assert "to be sent" not in _shown(run_report) + html.page(run_report)
    run_report.series[0].not_sent = "others [1] were first"
    saved = json.loads(run_report.model_dump_json())
    assert saved["series"][0]["not_sent"] == "others [1] were first"
    reason = "not to be sent: others [1] were first"
    lines = _shown(run_report).splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line.startswith("mails ")]
    assert rows == [["mails", reason], ["mails", f"demo: {reason}"]]
    # Beside its verdict, and above its checks.
    assert html.page(run_report).count(reason) == 2
    assert (run_report.status, run_report.exit_code) == ("proven", 0)


def test_terminal_shows_a_stage_s_error() -> None:
    run_report = _report("fail")
    run_report.series[0].stages[0].error = "x.c:3: error: [boom]\n  log: build.log"
    assert "x.c:3: error: [boom]" in _shown(run_report)


def test_terminal_shows_costs_and_what_they_are_judged_by() -> None:
    run_report = _report("pass", _check("pass"))
    boots = [costs.Boot(median=7, low=7, high=9, repetitions=3)]
    run_report.series[0].overhead = costs.Overhead(
        base_kernel="b",
        measurements=[
            costs.Measurement(
                workload="nap",
                operation="nap of a cat",
                resolution=0.25,
                samples=[costs.Sample(mode="base", boots=boots, median=7, spread=0)],
            )
        ],
        worst=[
            costs.FunctionSize(
                binary="cat.o",
                section=".text",
                part=part,
                name="nap",
                base=9,
                patched=n,
            )
            for part, n in (("code", 21), ("event", 99))
        ],
        mitigated=costs.Footprint(
            sites=[
                costs.Site(
                    event="cat",
                    binary="cat.o",
                    function="nap",
                    offset=4,
                    nop=nop,
                    out_of_line=True,
                    cold_bytes=9,
                )
                for nop in (5, 0)
            ],
            paths=[
                costs.FunctionPaths(
                    binary="cat.o",
                    name="nap",
                    hot=True,
                    proven=True,
                    most=3,
                    work=2,
                    least=0,
                    nops=1,
                    sites=1,
                )
            ],
        ),
        exemptions=[costs.Exemption(struct="cat", allowed=8, because="[it] purrs")],
    )
    shown = _shown(run_report)
    assert "0.25" in shown
    assert "worst    +12 bytes of code (functions: 1) without jump labels" in shown
    assert "guarded  with mitigations 1 of 2 sites are a NOP" in shown
    assert "longer paths than without: nap +3" in " ".join(shown.split())
    assert "exempt   struct cat: 8 bytes: [it] purrs" in shown


def test_junit_counts(tmp_path: Path) -> None:
    run_report = _report(
        "pass", _check("pass"), _check("fail", "b"), _check("skip", "c")
    )
    run_report.series[0].checks[1].detail = "a console excerpt with \x1b[31m in it"
    run_report.series[0].stages[0].status = "fail"
    run_report.series[0].stages[0].summary = "an escape \x1b in a message"
    junit.write(run_report, tmp_path / "junit.xml")
    suite = ET.parse(tmp_path / "junit.xml").getroot().findall("testsuite")[1]
    assert suite.get("name") == "kstall.demo"
    assert [suite.get(k) for k in ("tests", "failures", "skipped")] == ["4", "2", "1"]
    assert suite.find("testcase/skipped") is not None


def test_a_series_that_was_not_reached_is_in_junit(tmp_path: Path) -> None:
    run_report = _report("error")
    run_report.series[0].stages = []
    junit.write(run_report, tmp_path / "junit.xml")
    suite = ET.parse(tmp_path / "junit.xml").getroot().findall("testsuite")[1]
    assert suite.get("errors") == "1"


@pytest.mark.parametrize(
    ("comparison", "wanted", "seen"),
    [
        (("=", 2, 1), "= 2", "1"),
        (("=", "tom", "minka"), "= tom", "minka"),
        ((">=", 10**6, 10**6 + 1, "ns"), ">= 1,000,000 ns", "1,000,001 ns"),
        (("in", (0.25, 0.75), 0.5), "in [0.25, 0.75]", "0.5"),
        (("holds", True, False, "", "cpu 1"), "yes", "no (cpu 1)"),
    ],
)
def test_comparisons_are_data_that_reads_well(
    comparison: tuple[Any, ...], wanted: str, seen: str
) -> None:
    relation, expected, observed, *rest = comparison
    unit, detail = (*rest, "", "")[:2]
    compared = Comparison(
        label="x",
        relation=relation,
        expected=expected,
        observed=observed,
        ok=False,
        unit=unit,
        detail=detail,
    )
    again = Comparison.model_validate_json(compared.model_dump_json())
    assert (again, again.wanted, again.seen) == (compared, wanted, seen)


def test_events_are_those_of_the_booted_kernel(project_root: Path) -> None:
    """What it does not declare is there as the series declares it, without offsets."""
    (series,) = Project(project_root).load(["sched-throttle"])
    event = {"name": "sched_stat_throttled", "kind": "event"}
    points = series.spec.tracepoint
    more = points[0].model_copy(update=event)
    spec = series.spec.model_copy(update={"tracepoint": (*points, more)})
    series = replace(series, spec=spec)
    text = (
        "name: sched_stat_throttled\nID: 7\nformat:\n"
        "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
        "\tfield:u32 seen;\toffset:12;\tsize:4;\tsigned:0;\n\n"
        'print fmt: "seen=%u", REC->seen\n'
    )
    layout = records.parse_layout(text, "sched")
    saved = evidence.Evidence(Path(), {}, {}, {layout.event: layout})
    events = {event.name: event for event in trials.events(series, saved)}
    assert len(events) == len(series.spec.tracepoint)
    known = events["sched:sched_stat_throttled"]
    assert [(field.name, field.offset, field.size) for field in known.fields] == [
        ("seen", 12, 4)
    ]
    assert known.holes == 4
    assert known.print_fmt == '"seen=%u", REC->seen'
    bare = events["sched:sched_cfs_throttle"]
    assert bare.kind == "bare"
    assert bare.holes is None
    assert bare.fields[0].offset is None
    assert "throttle_cfs_rq" in bare.sites[0]
