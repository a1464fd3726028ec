# SPDX-License-Identifier: GPL-2.0-or-later
"""A failure explains itself: which case, which record, and what to do about it."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import shlex
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kstall import cli
from kstall.base import arch
from kstall.evidence import Event, evidence, kunit, readers
from kstall.pipeline import Request, ui, validate
from kstall.pipeline import run as runs
from kstall.report import (
    Report,
    SeriesReport,
    Stage,
    explain,
    html,
    junit,
    kcidb,
    ktap,
    plain,
    report,
    views,
)
from kstall.series import Project
from kstall.verdict import Check, Comparison, Explanation, Verdict

#: As debugfs has it, of a suite of which a case and a parameter of another failed.
KTAP = """\
KTAP version 1
1..1
    KTAP version 1
    # Subtest: nap_tests
    # module: nap_tests
    1..4
    ok 1 nap_short
    # nap_long: EXPECTATION FAILED at lib/nap_test.c:42
    Expected slept == 8, but
        slept == 7 (0x7)
    # nap_long: ASSERTION FAILED at lib/nap_test.c:44
    Expected cat is not null, but is
    # nap_long.speed: slow
    not ok 2 nap_long
        KTAP version 1
        # Subtest: nap_where
        ok 1 bed
        # nap_where: EXPECTATION FAILED at lib/nap_test.c:60
        Expected warm to be true, but is false
        not ok 2 floor
    # nap_where: pass:1 fail:1 skip:0 total:2
    not ok 3 nap_where
    ok 4 nap_none # SKIP no bed
# nap_tests: pass:1 fail:2 skip:1 total:4
not ok 1 nap_tests
"""
#: The same case in the kernel's log, with what another CPU had to say.
LOG = """\
[   24.161368]     KTAP version 1
[   24.161435]     # Subtest: nap_tests
[   24.162052]     1..1
[   25.198045]     # nap_long: EXPECTATION FAILED at lib/nap_test.c:42
    Expected slept == 8, but
        slept == 7 (0x7)
[   25.198050] nvme0n1: p1
[   25.198211]     not ok 1 nap_long
[   25.198411] not ok 1 nap_tests
"""
HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback \x7f\r"


def test_the_cases_that_failed_with_what_did_not_hold() -> None:
    long, where = kunit.failures(KTAP)
    assert (long.suite, long.case) == ("nap_tests", "nap_long")
    assert long.lines == (
        "# nap_long: EXPECTATION FAILED at lib/nap_test.c:42",
        "Expected slept == 8, but",
        "    slept == 7 (0x7)",
        "# nap_long: ASSERTION FAILED at lib/nap_test.c:44",
        "Expected cat is not null, but is",
        "not ok 2 nap_long",
    )
    # Of a case with parameters it is the one that failed, and not what sums it up.
    assert (where.case, where.lines[0]) == (
        "floor",
        "# nap_where: EXPECTATION FAILED at lib/nap_test.c:60",
    )


def test_cases_in_the_kernel_s_log() -> None:
    (failure,) = kunit.failures(LOG)
    assert failure.lines == (
        "# nap_long: EXPECTATION FAILED at lib/nap_test.c:42",
        "Expected slept == 8, but",
        "    slept == 7 (0x7)",
        "not ok 1 nap_long",
    )


def test_cases_on_a_console() -> None:
    """Where each line of a message has a time stamp of its own."""
    text = LOG.replace("\n    Exp", "\n[   25.198045]     Exp")
    text = text.replace("\n        sl", "\n[   25.198045]         sl")
    assert text != LOG
    assert kunit.failures(text) == kunit.failures(LOG)


def test_a_suite_that_passed_and_a_case_that_never_ended() -> None:
    good = KTAP.split("    # nap_long")[0] + "ok 1 nap_tests\n"
    assert kunit.failures(good) == ()
    assert kunit.failures("") == ()
    cut = LOG[: LOG.index("[   25.198211]")]
    (failure,) = kunit.failures(cut)
    assert (failure.case, failure.lines[-1]) == ("nap_long", "(no result)")
    # One that failed without a word, and a suite that did so before its first case.
    (bare,) = kunit.failures("    # Subtest: s\n    not ok 1 c\nnot ok 1 s\n")
    assert (bare.suite, bare.case, bare.lines) == ("s", "c", ("not ok 1 c",))
    (whole,) = kunit.failures("    # Subtest: s\nnot ok 1 s\n")
    assert whole.case == "s"


def _comparison(label: str, *, ok: bool = False) -> Comparison:
    return Comparison(label=label, relation="=", expected=0, observed=1, ok=ok)


def _nap(number: int) -> Event:
    """A nap of 7 ns and ``number`` more."""
    return Event(
        1_000_000_000 + 1000 * number,
        0,
        77,
        "doze",
        "demo",
        "nap",
        fields={"nap_ns": 7 + number, "bed": "under"},
    )


def _check(name: str = "naps", **fields: Any) -> Check:
    return Check.model_validate(
        {
            "name": name,
            "kind": "positive",
            "claim": "each nap is seen",
            "status": "fail",
            "comparisons": [_comparison("n", ok=True), _comparison("naps seen")],
            "workloads": ["doze"],
            **fields,
        }
    )


def _report(*checks: Check, command: str = "kstall validate -- demo other") -> Report:
    run_report = Report(
        run="r1",
        started="2026-01-01T00:00:00+00:00",
        command=command.split(),
        options={},
        tree=report.Tree(
            kind="git", origin="/linux", version="7.3", describe="v7.3", id="7.3-0"
        ),
        environment=report.Environment(kstall="0", python="3", host="h", cpus=2),
        series=[
            SeriesReport(
                name=name,
                title="t",
                digest="d",
                evidence=f"{name}/results",
                stages=[
                    Stage(name="apply", status="pass", seconds=1),
                    Stage(name="guest", status="pass", seconds=1),
                ],
                checks=list(checks) if name == "demo" else [],
            )
            for name in ("demo", "other")
        ],
    )
    run_report.settle()
    return run_report


def _results(run: Path, *, status: str = "exited", code: int | None = 0) -> Path:
    """A run with one workload, ``doze``; its directory comes back."""
    place = run / "demo/results/doze"
    place.mkdir(parents=True, exist_ok=True)
    loads = [
        {"name": "doze", "status": status, "exit_status": code},
        {"name": "walk", "status": "exited", "exit_status": 0},
    ]
    agent = {"status": "completed", "workloads": loads}
    (run / "demo/results/agent.json").write_text(json.dumps(agent))
    (place / "stdout").write_text("dozing\n")
    (place / "trace.txt").write_text("# tracer: nop\n")
    return place


def _explained(run: Path, check: Check) -> Explanation:
    run_report = _report(check)
    explain.fill(run_report, run)
    explanation = run_report.series[0].checks[0].explanation
    assert explanation is not None
    return explanation


@pytest.mark.parametrize(("file", "text"), [("stdout", KTAP), ("kmsg.txt", LOG)])
def test_a_check_names_the_case_that_failed(
    tmp_path: Path, file: str, text: str
) -> None:
    # Also where the program went well, as it only tells what KUnit says.
    (_results(tmp_path) / file).write_text(text)
    first, *_ = _explained(tmp_path, _check()).excerpts
    assert first.title == "KUnit: nap_tests: nap_long failed"
    assert first.file == f"demo/results/doze/{file}"
    assert first.lines[0].startswith("# nap_long: EXPECTATION FAILED at")
    # A check of another workload has nothing to do with it.
    assert _explained(tmp_path, _check(workloads=["walk"])).excerpts == []


def test_a_check_shows_the_first_record_that_does_not_fit(tmp_path: Path) -> None:
    _results(tmp_path)
    naps = [_nap(number) for number in range(3)]
    verdict = Verdict()
    verdict.equal("naps", len(naps), 2)
    verdict.at_most("first: nap_ns", naps[0].number("nap_ns"), 7, record=naps[0])
    verdict.at_most("second: nap_ns", naps[1].number("nap_ns"), 7, record=naps[1])
    verdict.none("naps on the floor", naps[2:])
    check = _check(comparisons=verdict.comparisons)
    first, *_ = _explained(tmp_path, check).excerpts
    assert first.title == "the first record that does not fit: second: nap_ns"
    assert first.lines == ["nap at 1.000001 s, CPU 0, pid 77: nap_ns=8 bed=under"]


@pytest.mark.parametrize(
    ("compare", "number"),
    [
        (lambda v, naps: v.equal("n", 1, 2, record=naps[1]), 1),
        (lambda v, naps: v.at_least("n", 1, 2, record=naps[1]), 1),
        (lambda v, naps: v.at_most("n", 2, 1, record=naps[1]), 1),
        (lambda v, naps: v.within("n", 2, 0, 1, record=naps[1]), 1),
        (lambda v, naps: v.true("n", False, record=naps[1]), 1),
        (lambda v, naps: v.none("n", naps[1:]), 1),
        (lambda v, naps: v.each("n", naps, lambda e: e.number("nap_ns") < 9, True), 2),
        # What holds is about no record, and without records there is none.
        (lambda v, naps: v.equal("n", 1, 1, record=naps[1]), None),
        (lambda v, naps: v.none("n", []), None),
        (lambda v, naps: v.each("n", naps, lambda e: e.pid, 77), None),
        (lambda v, naps: v.each("n", [], lambda e: e.pid, 77), None),
    ],
)
def test_a_comparison_that_does_not_hold_has_its_record(
    compare: Callable[[Verdict, list[Event]], None], number: int | None
) -> None:
    naps = [_nap(number) for number in range(3)]
    verdict = Verdict()
    compare(verdict, naps)
    (comparison,) = verdict.comparisons
    if number is None:
        assert comparison.record == ""
    else:
        assert not comparison.ok
        assert f"nap_ns={7 + number} " in comparison.record


def test_none_and_each_say_what_equal_does() -> None:
    naps = [_nap(number) for number in range(2)]
    shown: list[list[Comparison]] = []
    for verdict in (Verdict(), Verdict()):
        if not shown:
            verdict.none("floor", naps)
            verdict.each("pid", naps, lambda nap: nap.pid, 78)
            verdict.each("pid of none", [], lambda nap: nap.pid, 78)
        else:
            verdict.equal("floor", 2, 0)
            verdict.equal("pid", {77}, {78})
            verdict.equal("pid of none", set(), {78})
        shown.append([c.model_copy(update={"record": ""}) for c in verdict.comparisons])
    assert shown[0] == shown[1]


def test_a_long_record_is_shown_as_a_whole(tmp_path: Path) -> None:
    _results(tmp_path)
    fields = {f"field_{number}": 10**15 + number for number in range(30)}
    verdict = Verdict()
    verdict.none("naps", [dataclasses.replace(_nap(0), fields=fields)])
    check = _check(comparisons=verdict.comparisons)
    first, *_ = _explained(tmp_path, check).excerpts
    words = " ".join(first.lines).split()
    assert words[-30:] == [f"{key}={value}" for key, value in fields.items()]
    assert max(map(len, first.lines)) <= explain.WIDTH


def test_a_workload_that_failed_says_the_last_that_it_said(tmp_path: Path) -> None:
    place = _results(tmp_path, code=3)
    (place / "stderr").write_text("".join(f"line {n}\n" for n in range(99)))
    err, out = _explained(tmp_path, _check()).excerpts
    assert err.title == "workload doze, exit status 3: the end of its stderr"
    assert err.lines[-1] == "line 98"
    assert len(err.lines) == explain.LINES
    assert out.lines == ["dozing"]
    # Of one that went well only the record of what it did is shown.
    _results(tmp_path)
    (out,) = _explained(tmp_path, _check()).excerpts
    assert out.title == "workload doze, exit status 0: the end of its stdout"


def _loads_of(run: Path, *names: str) -> None:
    """Results in ``run``, of programs that succeeded and printed their own names."""
    _results(run)
    for name in names:
        (run / "demo/results" / name).mkdir(exist_ok=True)
        (run / "demo/results" / name / "stdout").write_text(f"{name}\n")
    loads = [{"name": name, "status": "exited", "exit_status": 0} for name in names]
    (run / "demo/results/agent.json").write_text(json.dumps({"workloads": loads}))


def test_what_a_program_that_succeeded_printed_last(tmp_path: Path) -> None:
    """The events are held against it, and do not agree with it."""
    _loads_of(tmp_path, "doze", "walk", "run")
    (tmp_path / "demo/results/doze/stdout").write_text(
        "".join(f'{{"what": "nap", "ns": {n}}}\n' for n in range(99))
    )
    (shown,) = _explained(tmp_path, _check()).excerpts
    assert shown.title == "workload doze, exit status 0: the end of its stdout"
    assert shown.file == "demo/results/doze/stdout"
    assert shown.lines[-1] == '{"what": "nap", "ns": 98}'
    assert len(shown.lines) == explain.LINES
    # Of several, the first two; and those that a comparison names, if one does.
    every = _check(workloads=["doze", "walk", "run"])
    assert [e.lines[-1] for e in _explained(tmp_path, every).excerpts][1:] == ["walk"]
    every.comparisons = [_comparison("run: naps"), _comparison("doze: naps", ok=True)]
    assert [e.lines for e in _explained(tmp_path, every).excerpts] == [["run"]]
    # Also where the output is what could not be judged, unless it is known what it was.
    lost = _check(status="error", detail="could not judge: workload run: late")
    assert [e.lines for e in _explained(tmp_path, lost).excerpts] == [["run"]]
    both = _report(lost, lost.model_copy(update={"name": "more_naps"}))
    explain.fill(both, tmp_path)
    assert _shown(both, tmp_path).count("workload run, exit status 0") == 1
    lost.tainted = True
    assert _explained(tmp_path, lost).excerpts == []


def test_the_workload_is_the_one_that_a_comparison_names(tmp_path: Path) -> None:
    _results(tmp_path, code=3)
    here = _check(comparisons=[_comparison("doze: exit status")], workloads=[])
    other = _check(comparisons=[_comparison("walk: exit status")], workloads=["doze"])
    assert _explained(tmp_path, here).excerpts
    assert not _explained(tmp_path, other).excerpts
    lost = _check(
        status="error", detail="could not judge: workload doze: late", workloads=[]
    )
    lost.comparisons = []
    assert _explained(tmp_path, lost).excerpts


FORMAT = """\
name: demo_nap
ID: 5
format:
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u64 nap_ns;\toffset:8;\tsize:8;\tsigned:0;
\tfield:u32 cat;\toffset:16;\tsize:4;\tsigned:0;

print fmt: "nap_ns=%llu cat=%u", REC->nap_ns, REC->cat
"""


def _recorded(*naps: int) -> str:
    rows = [
        {
            "event": "demo:demo_nap",
            "ts": 100_000_002_000 + n,
            "cpu": 1,
            "pid": 77,
            "tgid": 77,
            "comm": "doze",
            "fields": {"nap_ns": nap, "cat": n + 1},
        }
        for n, nap in enumerate(naps)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_readers_that_disagree_show_the_first_record_that_differs(
    tmp_path: Path,
) -> None:
    place = _results(tmp_path)
    (tmp_path / "demo/results/formats/demo").mkdir(parents=True)
    (tmp_path / "demo/results/formats/demo/demo_nap").write_text(FORMAT)
    (place / "trace.txt").write_text(
        "# tracer: nop\n"
        "   doze-77      [001] .....   100.000002: demo_nap: nap_ns=5 cat=1\n"
        "   doze-77      [001] .....   100.000009: demo_nap: nap_ns=6 cat=2\n"
    )
    (place / "record.jsonl").write_text(_recorded(5, 7))
    unlike = _check(
        "readers_agree",
        kind="harness",
        comparisons=[_comparison("doze: demo_nap: differing")],
    )
    (excerpt,) = _explained(tmp_path, unlike).excerpts
    assert excerpt.title == "the first record of demo_nap that differs"
    traced, recorded, differ = excerpt.lines
    assert traced.startswith("only ftrace has, at 100.000009 s, CPU 1, pid 77: ")
    assert "nap_ns=7" in recorded
    assert differ == "they differ in nap_ns: 6 and 7"
    # What is cut off anywhere explains less, and nothing else.
    (place / "record.jsonl").write_text(_recorded(5, 7)[:-20])
    assert _explained(tmp_path, unlike).excerpts == []


def test_a_negative_number_that_a_decoder_lacks_is_found(tmp_path: Path) -> None:
    place = _results(tmp_path)
    (tmp_path / "demo/results/formats/demo").mkdir(parents=True)
    signed = FORMAT.replace("u64", "s64").replace("%llu", "%lld")
    (tmp_path / "demo/results/formats/demo/demo_nap").write_text(signed)
    (place / "trace.txt").write_text(
        "   doze-77      [001] .....   100.000002: demo_nap: nap_ns=5 cat=1\n"
        "   doze-77      [001] .....   100.000009: demo_nap: nap_ns=-6 cat=2\n"
    )
    missing = _comparison("doze: demo_nap: missing")
    missing.observed = str((2**64 - 6, 2))
    lacks = _check("decoded_by_perf", kind="harness", comparisons=[missing])
    (excerpt,) = _explained(tmp_path, lacks).excerpts
    (line,) = excerpt.lines
    assert line.startswith("only ftrace has, at 100.000009 s, CPU 1, pid 77: ")


WAIT = "drm_sched_job_wait"
CREDITS = "drm_sched_job_no_credits"


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "event", "shown"),
    [
        (
            "text_is_the_record",
            "trace.txt",
            "wait_ns=4688761",
            "wait_ns=0",
            WAIT,
            ["ftrace prints, at ", "the record has, at "],
        ),
        (
            "decoded_by_perf",
            "perf.txt",
            "credit_limit=1",
            "credit_limit=0",
            CREDITS,
            ["only ftrace has, at "],
        ),
        (
            "decoded_by_trace_cmd",
            "trace-cmd.txt",
            "dev=drm_sched_test_credits",
            "[FAILED TO PARSE] dev=drm_sched_test",
            WAIT,
            ["<...>-11 "],
        ),
    ],
)
def test_readers_show_the_first_record_that_differs(
    project_root: Path,
    tmp_path: Path,
    name: str,
    file: str,
    old: str,
    new: str,
    event: str,
    shown: Sequence[str],
) -> None:
    """Of what a guest left, as in test_readers.py."""
    results = tmp_path / "demo/results"
    shutil.copytree(Path(__file__).parent / "data/readers", results)
    (series,) = Project(project_root).load(["drm-sched"])
    kept = [load for load in series.spec.workload if load.name == "credits"]
    spec = series.spec.model_copy(update={"workload": kept})
    path = results / "credits" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    function = functools.partial(
        getattr(readers, name), dataclasses.replace(series, spec=spec)
    )
    check = evidence.judge_check(
        name, "harness", "claim", function, evidence.load(results)
    )
    assert check.status == "fail"
    (excerpt,) = _explained(tmp_path, check).excerpts
    assert excerpt.title == f"the first record of {event} that differs"
    assert len(excerpt.lines) == len(shown)
    assert all(map(str.startswith, excerpt.lines, shown)), excerpt.lines
    text = "\n".join(excerpt.lines)
    assert {"perf.txt": "credit_limit=1"}.get(file, new) in text
    # What names no record is not taken for another one.
    wrong = explain.first_wrong(check)
    assert wrong is not None
    wrong.observed = "something else"
    assert _explained(tmp_path, check).excerpts == []


REPORT = """\
BUG: KASAN: slab-use-after-free in nap_end+0x20/0x40
Read of size 8 at addr ffff888003dd1000 by task doze/77
Call Trace:
 nap_end+0x20/0x40
""" + "".join(f" caller_{n}+0x1/0x2\n" for n in range(30))


def _reported(subject: str, *, flavour: str = "debug", detail: str = "") -> Comparison:
    label = f"{flavour}: {subject}"
    wrong = Comparison(
        label=label, relation="holds", expected=True, observed=False, ok=False
    )
    return wrong.model_copy(update={"detail": detail})


def _debugged(run: Path, flavour: str = "debug") -> Path:
    """A run with the guest of a debug kernel, whose directory comes back."""
    _results(run)
    place = run / f"demo/{flavour}-patched"
    place.mkdir()
    (run / "demo/results").rename(place / "results")
    (place / "results/console.txt").write_text("[    1.000000] hello\n[    9.0] bye\n")
    return place


def test_a_report_of_a_debug_kernel_is_shown_once(tmp_path: Path) -> None:
    place = _debugged(tmp_path)
    subject = "kasan: BUG: KASAN: slab-use-after-free in nap_end: nap_end"
    fine = _reported("kcsan: a race").model_copy(update={"ok": True, "detail": "x\ny"})
    check = _check(
        "no_new_splats",
        kind="debug",
        comparisons=[fine, _reported(subject, detail=REPORT)],
        workloads=[],
    )
    run_report = _report(check)
    explain.fill(run_report, tmp_path)
    explanation = run_report.series[0].checks[0].explanation
    assert explanation is not None
    (excerpt,) = explanation.excerpts
    assert excerpt.title == f"reported by the debug kernel: {subject}"
    # A guest whose results were cached has no other console.
    assert excerpt.file == "demo/debug-patched/results/console.txt"
    assert excerpt.lines[: explain.LINES] == REPORT.splitlines()[: explain.LINES]
    assert excerpt.lines[explain.LINES :] == ["(and 22 more lines)"]
    shown = _shown(run_report, tmp_path)
    assert shown.count("Read of size 8") == 1
    assert f"debug: {subject}: observed no (BUG: KASAN: " in shown
    assert "Read of size 8" in html.page(run_report)
    (place / "console.log").write_text("all\n")
    (excerpt,) = _explained(tmp_path, check).excerpts
    assert excerpt.file == "demo/debug-patched/console.log"
    # Without an excerpt nothing is left out.
    check.explanation = None
    assert "Read of size 8" in _shown(_report(check), tmp_path)


def test_a_leak_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    place = _debugged(tmp_path)
    (place / "results/kmemleak.txt").write_text("unreferenced object\n")
    wrong = _reported(
        "leak: 64 bytes: nap", detail="unreferenced object\n  nap+0x1/0x2"
    )
    check = _check("no_leaks", kind="debug", comparisons=[wrong])
    (excerpt,) = _explained(tmp_path, check).excerpts
    assert excerpt.file == "demo/debug-patched/results/kmemleak.txt"
    assert excerpt.lines == ["unreferenced object", "  nap+0x1/0x2"]


def test_a_debug_guest_that_did_not_end_shows_its_last_words(tmp_path: Path) -> None:
    _debugged(tmp_path, "kcsan")
    ended = _reported("guest ended as", flavour="kcsan")
    check = _check("no_new_splats", kind="debug", comparisons=[ended])
    (excerpt,) = _explained(tmp_path, check).excerpts
    assert excerpt.title == "the end of the console of the kcsan kernel"
    assert excerpt.lines == ["[    1.000000] hello", "[    9.0] bye"]
    load = _reported("doze", flavour="kcsan", detail="timeout, exit status None")
    check = _check("workloads_come_to_their_end", kind="debug", comparisons=[load])
    (excerpt,) = _explained(tmp_path, check).excerpts
    assert excerpt.file == "demo/kcsan-patched/results/doze/stdout"
    assert excerpt.lines == ["dozing"]


def test_what_a_guest_prints_moves_no_cursor(tmp_path: Path) -> None:
    place = _results(tmp_path, code=3)
    (place / "stderr").write_text(HOSTILE + "x" * 5000 + "\n")
    run_report = _report(_check(detail=HOSTILE, claim=HOSTILE))
    run_report.series[0].stages[1].status = "fail"
    run_report.series[0].stages[1].error = HOSTILE
    explain.fill(run_report, tmp_path)
    text = io.StringIO()
    views.terminal(run_report, tmp_path, Console(file=text, width=200))
    shown = text.getvalue() + html.page(run_report) + ktap.text(run_report)
    junit.write(run_report, tmp_path / "junit.xml")
    shown += (tmp_path / "junit.xml").read_text() + json.dumps(kcidb.data(run_report))
    for bad in "\x1b\x9b\x07\x7f\u202e":
        assert bad not in shown, repr(bad)
    assert "\\u001b" not in shown and "\\u202e" not in shown
    assert "[31mred" in shown
    # And nothing is longer than a page can hold.
    assert "x" * explain.WIDTH not in shown


def test_a_line_of_progress_moves_no_cursor() -> None:
    text = io.StringIO()
    shown = ui.Ui(Console(file=text, width=200))
    shown.begin("demo", "build")
    shown.say(HOSTILE)
    shown.end(Stage(name="build", status="error", seconds=1, summary=HOSTILE))
    assert "\x1b" not in text.getvalue()
    assert "could not judge" in text.getvalue()
    assert plain.printable("a\x85b") == "a\nb"


def test_a_guest_s_words_lead_nowhere_else(tmp_path: Path) -> None:
    place = _results(tmp_path, code=3)
    (tmp_path / "secret").write_text("SECRET\n")
    (place / "stderr").symlink_to(tmp_path / "secret")
    os.mkfifo(place / "kmsg.txt")
    agent = tmp_path / "demo/results/agent.json"
    outside = {"name": "../../demo/results/doze", "status": "exited", "exit_status": 1}
    loads = json.loads(agent.read_text())["workloads"]
    agent.write_text(json.dumps({"workloads": [*loads, outside, {"name": "a\0"}]}))
    explanation = _explained(tmp_path, _check(workloads=["doze", outside["name"]]))
    assert [excerpt.lines for excerpt in explanation.excerpts] == [["dozing"]]
    assert explanation.files == [
        *("demo/results/doze/stdout", "demo/results/doze/trace.txt"),
        "demo/results/agent.json",
    ]


def test_commands_name_files_that_are_there(tmp_path: Path) -> None:
    _results(tmp_path)
    explanation = _explained(tmp_path, _check())
    assert "demo/results/doze/trace.txt" in explanation.files
    assert all((tmp_path / path).is_file() for path in explanation.files)
    (tmp_path / "demo/results/doze/trace.txt").unlink()
    assert "demo/results/doze/trace.txt" not in _explained(tmp_path, _check()).files
    here = list(explain.lines(explanation, tmp_path / "a b"))
    assert (
        f"more:  less {shlex.quote(str(tmp_path / 'a b' / explanation.files[0]))}"
        in here
    )


def test_a_run_directory_that_is_gone_explains_less(tmp_path: Path) -> None:
    explanation = _explained(tmp_path / "none", _check())
    assert (explanation.excerpts, explanation.files) == ([], [])
    assert explanation.again


def _options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> list[dict[str, list[str]] | None]:
    """What the report of each run of ``command`` has as its options."""
    options = []

    def validate_(request: Request, *_: object) -> tuple[Path, Report]:
        options.append(validate._options(request))
        return tmp_path, _report()

    monkeypatch.setenv("KSTALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(validate, "validate", validate_)
    cli.main(shlex.split(command)[1:])
    return options


#: The other architecture than this machine's.
_FOREIGN = next(name for name in arch.NAMES if name != arch.host().name)


@pytest.mark.parametrize(
    ("command", "kind", "again"),
    [
        (
            "--level quick -- drm-sched iommu-fq",
            "positive",
            [
                "kstall validate --again --level quick demo",
                "make validate SERIES=demo LEVEL=quick AGAIN=1",
            ],
        ),
        (
            "--kernel=/a --repeat 5 drm-sched --again --out x",
            "invariant",
            ["kstall validate --again --kernel /a --out x demo"],
        ),
        (
            "--level full --kernel /a drm-sched",
            "patch",
            [
                "kstall validate --kernel /a demo",
                "make validate SERIES=demo KERNEL=/a",
            ],
        ),
        (
            f"--arch {_FOREIGN} --level quick drm-sched",
            "patch",
            [
                f"kstall validate --arch {_FOREIGN} --level quick demo",
                f"make validate SERIES=demo ARCH={_FOREIGN} LEVEL=quick",
            ],
        ),
        # A Path has one slash less.
        (
            "--kernel https://example.org/a.git#b drm-sched",
            "patch",
            [
                "kstall validate --kernel 'https://example.org/a.git#b' demo",
                "make validate SERIES=demo 'KERNEL=https://example.org/a.git#b'",
            ],
        ),
        # A flag is followed by a series, or by another option.
        ("drm-sched --alone", "patch", ["kstall validate --alone demo"]),
        ("--alone drm-sched iommu-fq", "patch", ["kstall validate --alone demo"]),
        (
            "--alone --repeat 5 drm-sched",
            "positive",
            ["kstall validate --again --alone demo"],
        ),
        # As argparse takes them, too: cut short, and a value that looks like a series.
        (
            "--rep=5 --alo --out drm-sched drm-sched --seed 0x10 --seed 3",
            "positive",
            ["kstall validate --again --out drm-sched --alone --seed 16 --seed 3 demo"],
        ),
        (
            "--at-once 2 --out=-x drm-sched",
            "patch",
            ["kstall validate --out=-x --at-once 2 demo"],
        ),
    ],
)
def test_the_command_that_tries_again_is_one_that_kstall_takes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    kind: str,
    again: list[str],
) -> None:
    (options,) = _options(monkeypatch, tmp_path, f"kstall validate {command}")
    assert _again(tmp_path, kind, options) == again


def _again(run: Path, kind: str, options: dict[str, list[str]] | None) -> list[str]:
    run_report = _report(_check(kind=kind))
    run_report.options = options
    explain.fill(run_report, run)
    explanation = run_report.series[0].checks[0].explanation
    assert explanation is not None
    for line in explanation.again:
        words = shlex.split(line)
        if words[0] == "kstall":
            (*_, series) = cli.parser().parse_args(words[1:]).series
            assert series == "demo"
    return explanation.again


def test_another_project_is_named_again(
    project_copy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project_copy.root
    command = f"kstall --project {root} validate --alone drm-sched"
    (options,) = _options(monkeypatch, tmp_path, command)
    assert _again(tmp_path, "patch", options) == [
        f"kstall --project {root} validate --alone demo"
    ]


def test_of_several_trees_only_that_of_the_run_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "kstall validate --kernel /a --level quick --kernel /b drm-sched"
    assert [
        _again(tmp_path, "patch", options)
        for options in _options(monkeypatch, tmp_path, command)
    ] == [
        [
            f"kstall validate --kernel {tree} --level quick demo",
            f"make validate SERIES=demo KERNEL={tree} LEVEL=quick",
        ]
        for tree in ("/a", "/b")
    ]
    file = tmp_path / "trees.toml"
    file.write_text(
        '[matrix]\ntrees = ["/a", "c"]\nlevels = ["quick"]\nseries = ["drm-sched"]\n'
    )
    command = f"kstall validate --alone --matrix {file}"
    assert [
        _again(tmp_path, "positive", options)
        for options in _options(monkeypatch, tmp_path, command)
    ] == [
        [f"kstall validate --again --kernel {tree} --level quick --alone demo"]
        for tree in ("/a", f"{tmp_path}/c")
    ]


def test_without_options_the_whole_command_tries_again(tmp_path: Path) -> None:
    """As of another verb, and of a report that was written before there were any."""
    for command in ("kstall check-thread a.mbox", "kstall validate --alone demo"):
        run_report = _report(_check(kind="positive"), command=command)
        run_report.options = None
        explain.fill(run_report, tmp_path)
        explanation = run_report.series[0].checks[0].explanation
        assert explanation is not None
        assert explanation.again == [command]


def test_kstall_tries_again_as_it_was_called(tmp_path: Path) -> None:
    run_report = _report(_check(), command=".venv/bin/kstall validate demo")
    run_report.options = {}
    explain.fill(run_report, tmp_path)
    explanation = run_report.series[0].checks[0].explanation
    assert explanation is not None
    assert explanation.again == [
        ".venv/bin/kstall validate --again demo",
        "make validate SERIES=demo AGAIN=1",
    ]


def test_what_passes_is_not_explained(tmp_path: Path) -> None:
    _results(tmp_path, code=3)
    run_report = _report(_check(status="pass"), _check(status="skip", detail="no GPU"))
    run_report.series[0].checks[0].explanation = Explanation()
    explain.fill(run_report, tmp_path)
    assert [check.explanation for check in run_report.series[0].checks] == [None, None]


def test_a_guest_that_hung_shows_what_its_workload_said_last(tmp_path: Path) -> None:
    _results(tmp_path, status="running", code=None)
    (tmp_path / "demo/console.log").write_text(LOG)
    run_report = _report()
    run_report.series[0].evidence = None
    run_report.series[0].stages[1].status = "fail"
    explain.fill(run_report, tmp_path)
    explanation = run_report.series[0].stages[1].explanation
    assert explanation is not None
    case, last = explanation.excerpts
    assert "nap_long failed" in case.title
    assert last.lines == ["dozing"]
    assert explanation.files == ["demo/console.log"]


def _shown(run_report: Report, run: Path) -> str:
    text = io.StringIO()
    views.terminal(run_report, run, Console(file=text, width=240))
    return text.getvalue()


def test_the_terminal_says_all_that_once(tmp_path: Path) -> None:
    (_results(tmp_path) / "stdout").write_text(KTAP)
    run_report = _report(_check(), _check("also"))
    explain.fill(run_report, tmp_path)
    shown = _shown(run_report, tmp_path)
    assert "    naps seen: observed 1, expected = 0" in shown
    assert shown.count("# nap_long: EXPECTATION FAILED at") == 1
    assert shown.count("KUnit: nap_tests: nap_long failed") == 2
    more = f"more:  less {tmp_path}/demo/results/doze/stdout"
    assert shown.count(more) == 1
    assert shown.count("kstall validate --again demo\n") == 1


def test_what_could_not_be_judged_for_one_reason_is_said_once(tmp_path: Path) -> None:
    lost = {"status": "error", "detail": "could not judge: workload doze: 7 lost"}
    run_report = _report(_check("one", **lost), _check("two", **lost), _check("bad"))
    shown = _shown(run_report, tmp_path)
    assert "COULD NOT JUDGE one, two\n" in shown
    assert shown.count("could not judge: workload doze: 7 lost") == 1
    assert "1 fail, 2 could not judge" in shown
    assert "FAIL bad: each nap is seen" in shown


def test_skips_of_one_cause_are_one_line_on_a_terminal(tmp_path: Path) -> None:
    skips = [_check(f"lazy_{n}", status="skip", detail="no GPU") for n in range(6)]
    alone = _check("alone", status="skip", detail="no cat")
    run_report = _report(_check(status="pass"), *skips, alone)
    shown = _shown(run_report, tmp_path)
    (row,) = (line for line in shown.splitlines() if line.startswith("lazy_0"))
    assert row.split() == [
        *("lazy_0", "+5", "SKIP", "positive", "no", "GPU;", "also"),
        *("lazy_1,", "lazy_2,", "lazy_3,", "lazy_4,", "lazy_5"),
    ]
    assert "skipped  neither passed nor failed:" in shown
    (cause, other) = explain.skipped(run_report)
    assert (cause.reason, cause.count, other.count) == ("no GPU", 6, 1)
    # As diagnostics, for each keeps the line that the plan promises.
    told = ktap.text(run_report).splitlines()
    assert "  # skipped, 6: no GPU" in told
    assert sum("# SKIP no GPU" in line for line in told) == 6
    assert not any("skipped, 1" in line for line in told)


@pytest.mark.parametrize("status", ["pass", "skip"])
def test_no_view_ticks_what_is_skipped(tmp_path: Path, status: str) -> None:
    """The same check, as it passes and as it is skipped, in all that is written."""
    run_report = _report(_check("other"), _check("naps"))
    naps = run_report.series[0].checks[1]
    naps.comparisons = [_comparison("NAPSEEN", ok=True)]
    naps.detail = "no GPU"
    naps.status = status  # type: ignore[assignment]
    run_report.settle()
    junit.write(run_report, tmp_path / "junit.xml")
    views_ = [
        run_report.model_dump_json(),
        _shown(run_report, tmp_path),
        html.page(run_report),
        (tmp_path / "junit.xml").read_text(),
        json.dumps(kcidb.data(run_report)),
        ktap.text(run_report),
    ]
    ticked = ["NAPSEEN" in view for view in views_]
    # KTAP has no comparisons of what passes.
    assert ticked == [status == "pass"] * 5 + [False]


def _unfit() -> Report:
    run_report = _report(_check(status="pass"))
    unfit = run_report.series[1]
    place = "0002-nap.patch, mm/nap.c:12: hunk 1"
    unfit.stages = [
        Stage(
            name="apply",
            status="does-not-apply",
            seconds=1,
            summary=place,
            error=f"{place}\n  next: name another tree",
        )
    ]
    run_report.settle()
    assert run_report.status == "does-not-apply"
    return run_report


def test_each_format_has_its_word_for_what_does_not_apply(tmp_path: Path) -> None:
    run_report = _unfit()
    reason = "does not apply: 0002-nap.patch, mm/nap.c:12: hunk 1"
    lines = ktap.text(run_report).splitlines()
    assert f"ok 2 other # SKIP {reason}" in lines
    assert f"  ok 1 stage.apply # SKIP {reason}" in lines
    junit.write(run_report, tmp_path / "junit.xml")
    suite = ET.parse(tmp_path / "junit.xml").getroot().findall("testsuite")[1]
    (skipped,) = suite.findall("testcase/skipped")
    assert (skipped.get("message"), suite.get("failures")) == (reason, "0")
    document = kcidb.data(run_report)
    kcidb.validate(document)
    assert [checkout["valid"] for checkout in document["checkouts"]] == [True, False]
    assert len(document["builds"]) == 1
    shown = _shown(run_report, tmp_path)
    assert "verdict  DOES NOT APPLY" in shown
    assert "DOES NOT APPLY other: apply:" in shown
    assert "mm/nap.c:12" in html.page(run_report).split("<main>")[0]


def test_each_format_has_its_word_for_what_could_not_be_judged(
    tmp_path: Path,
) -> None:
    lost = _check(status="error", detail="could not judge: workload doze: late")
    run_report = _report(lost)
    assert run_report.status == "could-not-run"
    assert "not ok 4 check.naps # ERROR " not in ktap.text(run_report)
    assert "  not ok 3 check.naps # ERROR workload doze: late" in ktap.text(run_report)
    junit.write(run_report, tmp_path / "junit.xml")
    suite = ET.parse(tmp_path / "junit.xml").getroot().findall("testsuite")[0]
    (error,) = suite.findall("testcase/error")
    assert error.get("message") == "workload doze: late"
    (test,) = (
        entry
        for entry in kcidb.data(run_report)["tests"]
        if entry["path"].endswith("check.naps")
    )
    assert test["status"] == "ERROR"
    assert "verdict  COULD NOT JUDGE" in _shown(run_report, tmp_path)


def test_a_run_that_is_over_is_explained_in_its_report(tmp_path: Path) -> None:
    (_results(tmp_path) / "stdout").write_text(KTAP)
    run_report = _report(_check())
    run = runs.Run(tmp_path, run_report, ui.Ui(Console(file=io.StringIO())), 0)
    run.save()
    (check,) = report.read(tmp_path / "report.json").series[0].checks
    assert check.explanation is not None
    assert check.explanation.excerpts[0].title.startswith("KUnit: nap_tests")
    assert "EXPECTATION FAILED" in (tmp_path / "junit.xml").read_text()
    assert "EXPECTATION FAILED" in (tmp_path / "results.ktap").read_text()


def test_what_explains_cannot_cost_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(explain, "fill", broken)
    output = io.StringIO()
    run = runs.Run(tmp_path, _report(_check()), ui.Ui(Console(file=output)), 0)
    run.save()
    assert report.read(tmp_path / "report.json").status == "failed"
    assert "not all failures are explained: ZeroDivisionError" in output.getvalue()


def _tried() -> Report:
    run_report = _report(_check(status="pass"))
    late = report.Unjudged(check="naps", cause="could not judge: doze: it came late")
    run_report.series[0].tries = [
        report.Try(
            number=n,
            evidence=place,
            guest=Stage(name="guest", status="pass", seconds=1),
            unjudged=[late] if n == 1 else [],
        )
        for n, place in ((1, "demo/results"), (2, "demo/try-2/results"))
    ]
    return run_report


def test_both_tries_are_shown(tmp_path: Path) -> None:
    run_report = _tried()
    for shown in (_shown(run_report, tmp_path), html.page(run_report)):
        assert "doze: it came late" in shown
        assert "demo/try-2/results" in shown
    # One that was enough is nothing to tell.
    run_report.series[0].tries = run_report.series[0].tries[:1]
    for shown in (_shown(run_report, tmp_path), html.page(run_report)):
        assert "it came late" not in shown


def _repeated(run: Path) -> Report:
    """Three runs: a good one, one in which ``naps`` failed, one with a lost guest."""
    run_report = _report(_check())
    _results(run)
    other = run / "demo/repeat-002/results"
    other.parent.mkdir()
    (run / "demo/results").rename(other)
    (other / "doze/stdout").write_text(KTAP)
    _results(run)
    run_report.series[0].repeats = report.Repeats(
        asked=3,
        runs=[
            report.Repeat(number=1, status="pass"),
            report.Repeat(
                number=2,
                status="fail",
                odd=True,
                failed=["naps"],
                evidence="demo/repeat-002/results",
            ),
            report.Repeat(number=3, status="error", odd=True, error="qemu went away"),
        ],
        tally=[
            report.Tally(check="guest", passed=2, unjudged=1),
            report.Tally(check="naps", passed=1, failed=1, unjudged=1),
            report.Tally(check="steady", passed=3),
        ],
    )
    return run_report


def test_repeats_are_counted_and_the_odd_ones_named(tmp_path: Path) -> None:
    run_report = _repeated(tmp_path)
    for shown in (_shown(run_report, tmp_path), html.page(run_report)):
        assert "qemu went away" in shown
        assert "demo/repeat-002/results" in shown
        assert "steady" not in shown
    rows = [line.split() for line in _shown(run_report, tmp_path).splitlines()]
    assert ["naps", "1", "1", "1", "0"] in rows
    assert ["1", "others", "3", "0", "0", "0"] in rows


def test_what_failed_in_one_of_many_runs_is_explained_by_that_one(
    tmp_path: Path,
) -> None:
    run_report = _repeated(tmp_path)
    explain.fill(run_report, tmp_path)
    explanation = run_report.series[0].checks[0].explanation
    assert explanation is not None
    assert explanation.excerpts[0].file == "demo/repeat-002/results/doze/stdout"


def test_a_check_knows_its_workloads(tmp_path: Path) -> None:
    saved = evidence.Evidence(tmp_path, {}, {}, {})
    check = evidence.judge_check(
        "naps", "positive", "claim", lambda _: Verdict(), saved, ("doze",)
    )
    assert check.workloads == ["doze"]
