# SPDX-License-Identifier: GPL-2.0-or-later
"""What changed between two runs: every kind of it, its weight, the exit status."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate as valid  # type: ignore[import-untyped]

from kstall import cli
from kstall.base import KstallError
from kstall.report import comparison, comparisonviews
from kstall.report.comparison import RunComparison, weigh

FIELD = {"name": "job", "ctype": "u64", "offset": 8, "size": 8}
EVENT = {
    "name": "demo:nap",
    "kind": "event",
    "fields": [FIELD],
    "print_fmt": '"job=%llu"',
}
MEASUREMENT = {
    "workload": "nap",
    "operation": "nap",
    "resolution": 0.2,
    "difference": 1.0,
    "samples": [],
}
SITE = {
    "event": "demo:nap",
    "binary": "vmlinux",
    "function": "nap",
    "offset": 4,
    "nop": 5,
    "out_of_line": True,
    "cold_bytes": 20,
}
PATH = {
    "binary": "vmlinux",
    "name": "nap",
    "proven": True,
    "most": 0,
    "work": 0,
    "least": 0,
    "nops": 1,
    "sites": 1,
}
STRUCT = {
    "binary": "vmlinux",
    "name": "bed",
    "base": 64,
    "patched": 64,
    "base_holes": 0,
    "patched_holes": 0,
}
REPORT: dict[str, Any] = {
    "run": "then",
    "started": "2026-01-01T00:00:00+00:00",
    "seconds": 100,
    "status": "proven",
    "command": ["kstall"],
    "tree": {
        "kind": "git",
        "origin": "x#next",
        "version": "7.3.0-rc1",
        "describe": "next at 1",
        "commit": "1" * 40,
        "id": "a",
    },
    "environment": {"kstall": "1", "python": "3", "host": "h", "cpus": 2},
    "series": [
        {
            "name": "demo",
            "title": "t",
            "digest": "d",
            "status": "pass",
            "stages": [{"name": "apply", "status": "pass", "seconds": 10}],
            "events": [EVENT],
            "checks": [
                {
                    "name": name,
                    "kind": "positive",
                    "claim": "c",
                    "workloads": [],
                    "status": "pass",
                    "comparisons": [
                        {
                            "label": "naps",
                            "relation": "=",
                            "expected": 1,
                            "observed": 1,
                            "ok": True,
                        }
                    ],
                }
                for name in ("naps", "snores")
            ],
            "overhead": {
                "base_kernel": "k",
                "footprint": {
                    "sites": [SITE],
                    "paths": [PATH],
                    "structs": [STRUCT],
                },
                "measurements": [MEASUREMENT],
            },
        }
    ],
}


def _save(directory: Path, report: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(report))
    return directory


@pytest.fixture
def compare_changed(tmp_path: Path) -> Callable[[Callable[[Any], None]], RunComparison]:
    """Compare a run with the same one after a change."""

    def compare(change: Callable[[Any], None]) -> RunComparison:
        after = copy.deepcopy(REPORT)
        change(after)
        return comparison.compare(
            _save(tmp_path / "before", REPORT), _save(tmp_path / "after", after)
        )

    return compare


CompareChanged = Callable[[Callable[[Any], None]], RunComparison]


def _change_of(diff: RunComparison) -> tuple[str, str, str, str, str]:
    (change,) = diff.changes
    return change.weight, change.kind, change.what, change.before, change.after


def test_the_same_is_no_change(compare_changed: CompareChanged) -> None:
    diff = compare_changed(lambda report: None)
    assert (diff.changes, diff.compared, diff.exit_code) == ([], 1, 0)


def _status(status: str, check: str | None = None) -> Callable[[Any], None]:
    def change(report: Any) -> None:
        series = report["series"][0]
        series["status"] = status
        series["stages"][0] |= {"status": status, "summary": "because"}
        if status != "pass":
            series["checks"], series["events"] = [], []

    return change


@pytest.mark.parametrize(
    ("before", "after", "weight"),
    [
        ("pass", "fail", "worse"),
        ("pass", "error", "unjudged"),
        ("pass", "does-not-apply", "worse"),
        ("pass", "skip", "worse"),
        ("error", "fail", "worse"),
        ("error", "pass", "better"),
        ("error", "does-not-apply", "changed"),
        ("fail", "pass", "better"),
        ("fail", "error", "unjudged"),
        ("does-not-apply", "error", "unjudged"),
        ("skip", "error", "changed"),
        ("does-not-apply", "pass", "better"),
        ("does-not-apply", "fail", "worse"),
        ("skip", "pass", "better"),
        ("skip", "fail", "worse"),
        ("pass", "pass", None),
        ("error", "error", None),
    ],
)
def test_weights_of_statuses(before: Any, after: Any, weight: str | None) -> None:
    assert weigh(before, after) == weight


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [
        ("fail", 1, "fail"),
        ("error", 2, "could not judge"),
        ("does-not-apply", 1, "does not apply"),
    ],
)
def test_a_verdict_that_changed_stands_for_its_checks(
    compare_changed: CompareChanged, status: str, code: int, word: str
) -> None:
    diff = compare_changed(_status(status))
    # Its checks were not made, nor its events seen: that is no news of its own.
    assert _change_of(diff)[1:] == (
        "verdict",
        "verdict",
        "pass",
        f"{word}: apply: because",
    )
    assert diff.exit_code == code


def _unreachable(report: Any) -> None:
    """As the report of a run is whose tree could not be obtained."""
    report |= {"tree": None, "status": "could-not-run"}
    report["series"][0] |= {
        "status": "error",
        "stages": [],
        "events": [],
        "checks": [],
        "overhead": None,
    }


def test_a_tree_that_could_not_be_had_is_not_worse(
    compare_changed: CompareChanged,
) -> None:
    diff = compare_changed(_unreachable)
    assert _change_of(diff)[:3] == ("unjudged", "verdict", "verdict")
    assert diff.exit_code == 2


def test_one_that_the_tree_has_by_now_is_not_worse(
    compare_changed: CompareChanged,
) -> None:
    def change(report: Any) -> None:
        _status("does-not-apply")(report)
        report["series"][0]["merged"] = True

    diff = compare_changed(change)
    assert _change_of(diff)[0] == "changed"
    assert diff.exit_code == 0


def test_a_series_that_went_and_one_that_came(compare_changed: CompareChanged) -> None:
    def change(report: Any) -> None:
        report["series"][0]["name"] = "other"

    diff = compare_changed(change)
    assert [(entry.weight, entry.series, entry.after) for entry in diff.changes] == [
        ("worse", "demo", "not requested"),
        ("changed", "other", "pass"),
    ]
    assert (diff.compared, diff.exit_code) == (0, 1)


def test_a_series_that_was_not_proven_is_not_lost(tmp_path: Path) -> None:
    before, after = copy.deepcopy(REPORT), copy.deepcopy(REPORT)
    _status("does-not-apply")(before)
    after["series"] = []
    diff = comparison.compare(
        _save(tmp_path / "before", before), _save(tmp_path / "after", after)
    )
    assert _change_of(diff)[0] == "changed"


def test_checks_are_compared_one_by_one(compare_changed: CompareChanged) -> None:
    def change(report: Any) -> None:
        naps, snores = report["series"][0]["checks"]
        naps["status"] = "fail"
        naps["comparisons"][0] |= {"observed": 2, "ok": False}
        snores |= {"name": "dreams"}
        report["series"][0]["status"] = "fail"

    diff = compare_changed(change)
    told = {
        entry.what: (entry.weight, entry.before, entry.after) for entry in diff.changes
    }
    assert told == {
        "verdict": ("worse", "pass", "fail: naps"),
        "naps": ("worse", "pass", "fail: naps: 2, expected = 1"),
        "snores": ("worse", "pass", "no longer run"),
        "dreams": ("changed", "absent", "new"),
    }


def _format(change: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda report: change(report["series"][0]["events"])


@pytest.mark.parametrize(
    ("change", "weight", "what"),
    [
        (lambda events: events[0]["fields"][0].update(size=4), "worse", "job"),
        (lambda events: events[0]["fields"][0].update(offset=16), "worse", "job"),
        (lambda events: events[0]["fields"][0].update(ctype="s64"), "worse", "job"),
        (lambda events: events[0]["fields"][0].update(name="task"), "worse", "job"),
        (lambda events: events[0].update(kind="bare"), "worse", "is"),
        (lambda events: events[0].update(name="demo:doze"), "worse", "demo:nap"),
        (lambda events: events[0].update(print_fmt="x"), "changed", "print fmt"),
        (
            lambda events: events[0]["fields"].append({**FIELD, "name": "more"}),
            "changed",
            "more",
        ),
    ],
)
def test_what_readers_of_an_event_stumble_over_is_worse(
    compare_changed: CompareChanged,
    change: Callable[[Any], None],
    weight: str,
    what: str,
) -> None:
    first = compare_changed(_format(change)).changes[0]
    assert (first.weight, first.kind) == (weight, "format")
    assert what in first.what


@_format
def _unread(events: Any) -> None:
    """As where the file with its format was cut off."""
    events[0] |= {"fields": [{"name": "job", "ctype": "u64"}], "print_fmt": None}


def test_a_format_that_was_not_read_is_no_change(
    compare_changed: CompareChanged,
) -> None:
    assert compare_changed(_unread).changes == []


def _cost(change: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda report: change(report["series"][0]["overhead"])


@pytest.mark.parametrize(
    ("change", "weight"),
    [
        (lambda cost: cost["measurements"][0].update(difference=1.39), None),
        (lambda cost: cost["measurements"][0].update(difference=1.5), "worse"),
        (lambda cost: cost["measurements"][0].update(difference=0.5), "better"),
        (lambda cost: cost["measurements"][0].update(difference=None), None),
        (lambda cost: cost["footprint"]["sites"][0].update(nop=9), "worse"),
        (lambda cost: cost["footprint"]["sites"][0].update(nop=2), "better"),
        (lambda cost: cost["footprint"]["sites"][0].update(nop=0), "worse"),
        (lambda cost: cost["footprint"]["sites"].append(SITE), "changed"),
        (lambda cost: cost["footprint"]["sites"].clear(), "changed"),
        (lambda cost: cost["footprint"]["paths"][0].update(work=3), "worse"),
        (lambda cost: cost["footprint"]["paths"][0].update(work=-1), "better"),
        # Jumps count in a function that is hot, and in no other.
        (lambda cost: cost["footprint"]["paths"][0].update(most=3), None),
        (lambda cost: cost["footprint"]["paths"][0].update(most=3, hot=True), "worse"),
        (lambda cost: cost["footprint"]["paths"].clear(), None),
        (lambda cost: cost["footprint"]["structs"][0].update(patched=72), "worse"),
        (lambda cost: cost["footprint"]["structs"][0].update(base=72), "better"),
    ],
)
def test_costs(
    compare_changed: CompareChanged, change: Callable[[Any], None], weight: str | None
) -> None:
    diff = compare_changed(_cost(change))
    assert [(entry.weight, entry.kind) for entry in diff.changes] == (
        [] if weight is None else [(weight, "cost")]
    )


def test_inputs_and_durations_are_reported_and_weigh_nothing(
    compare_changed: CompareChanged,
) -> None:
    def change(report: Any) -> None:
        report["tree"] |= {"id": "b", "commit": "2" * 40, "describe": "next at 2"}
        report["environment"]["compiler"] = "gcc 99"
        report["environment"]["kstall"] = "2"
        report["seconds"] = 300
        report["series"][0]["digest"] = "e"
        report["series"][0]["stages"][0]["seconds"] = 71

    diff = compare_changed(change)
    assert diff.exit_code == 0
    assert {(entry.kind, entry.what) for entry in diff.changes} == {
        ("input", "tree"),
        ("input", "kstall"),
        ("input", "patches or series.toml"),
        ("duration", "run took"),
        ("duration", "its stages took"),
    }
    (tree,) = [entry for entry in diff.changes if entry.what == "tree"]
    assert tree.after == "7.3.0-rc1 (next at 2, 222222222222)"


def test_a_little_slower_is_no_news(compare_changed: CompareChanged) -> None:
    def change(report: Any) -> None:
        report["seconds"] = 159

    assert compare_changed(change).changes == []


# -- matrices ------------------------------------------------------------------------


def _matrix(directory: Path, **trees: dict[str, Any] | None) -> Path:
    columns = []
    for tree, report in trees.items():
        columns.append(
            {
                "tree": tree,
                "arch": "x86_64",
                "level": "quick",
                "directory": tree,
                "asked": ["demo"],
            }
        )
        if report is not None:
            _save(directory / tree, report)
    directory.mkdir(exist_ok=True)
    text = {
        "run": directory.name,
        "kstall": "1",
        "started": "2026-01-01T00:00:00+00:00",
        "command": [],
        "series": ["demo"],
        "columns": columns,
    }
    (directory / "matrix.json").write_text(json.dumps(text))
    return directory


def test_matrices_are_compared_tree_by_tree(tmp_path: Path) -> None:
    failed = copy.deepcopy(REPORT)
    _status("fail")(failed)
    before = _matrix(tmp_path / "a", next=REPORT, old=failed, gone=REPORT, cut=REPORT)
    after = _matrix(tmp_path / "b", next=failed, old=REPORT, cut=None, fresh=REPORT)
    diff = comparison.compare(before, after)
    told = [
        (change.weight, change.place.split()[0], change.series)
        for change in diff.changes
    ]
    assert told == [
        ("worse", "next", "demo"),
        ("worse", "gone", ""),
        ("unjudged", "cut", ""),
        ("better", "old", "demo"),
        # Its checks were not made while it did not apply.
        ("changed", "fresh", ""),
    ]
    assert diff.exit_code == 1
    assert comparison.compare(before, before).changes == []
    # What fails has failed, whatever was not reached before.
    failed["status"] = "failed"
    cut = _matrix(tmp_path / "c", cut=failed)
    worse = comparison.compare(after, cut).of("worse")
    assert [change.place.split()[0] for change in worse if change.what == "run"] == [
        "cut"
    ]


@pytest.mark.parametrize(
    ("status", "weight", "code"),
    [
        ("proven", "changed", 0),
        ("does-not-apply", "changed", 0),
        ("failed", "worse", 1),
        ("could-not-run", "unjudged", 2),
        ("interrupted", "unjudged", 2),
        (None, "unjudged", 2),
    ],
)
def test_a_new_tree_is_weighed_by_its_verdict(
    tmp_path: Path, status: str | None, weight: str, code: int
) -> None:
    new = None if status is None else {**REPORT, "status": status}
    before = _matrix(tmp_path / "1", next=REPORT)
    after = _matrix(tmp_path / "2", next=REPORT, fresh=new)
    diff = comparison.compare(before, after)
    (change,) = diff.changes
    assert (change.weight, change.what, change.before) == (weight, "tree", "absent")
    assert diff.exit_code == code


def test_a_run_and_a_matrix_are_not_compared(tmp_path: Path) -> None:
    run = _save(tmp_path / "run", REPORT)
    several = _matrix(tmp_path / "several", next=REPORT)
    for pair in ((run, several), (several, run)):
        with pytest.raises(KstallError, match=r"several is a matrix of runs, and the"):
            comparison.compare(*pair)


# -- several earlier runs ------------------------------------------------------------


def _unbuilt(report: Any) -> None:
    """As that of one whose kernel could not be built."""
    _status("fail")(report)
    report["series"][0]["overhead"] = None


def _dearer(report: Any) -> None:
    report["series"][0]["overhead"]["measurements"][0]["difference"] = 9.0


def _bigger_struct(report: Any) -> None:
    report["series"][0]["overhead"]["footprint"]["structs"][0]["patched"] = 72


def _narrower(report: Any) -> None:
    report["series"][0]["events"][0]["fields"][0]["size"] = 4


def _nothing(report: Any) -> None:
    pass


Changer = Callable[[Any], None]


def _nights(tmp_path: Path, *changers: Changer) -> RunComparison:
    """Compare the last of these matrices with all before it."""
    nights = []
    for number, change in enumerate(changers, 1):
        report = copy.deepcopy(REPORT)
        change(report)
        nights.append(_matrix(tmp_path / f"night-{number}", next=report))
    *older, before, after = nights
    return comparison.compare(before, after, older)


def _told(diff: RunComparison) -> list[tuple[str, str, str, str]]:
    return [
        (change.weight, change.kind, change.what, Path(change.since).name)
        for change in diff.changes
    ]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_dearer, ("cost", "nap: instructions per nap, off")),
        (_bigger_struct, ("cost", "struct bed: bytes more than in the base")),
        (_narrower, ("format", "demo:nap: job")),
        (_status("fail"), ("verdict", "verdict")),
        (_status("does-not-apply"), ("verdict", "verdict")),
    ],
)
def test_what_got_worse_behind_a_night_without_a_verdict_is_worse(
    tmp_path: Path, change: Changer, what: tuple[str, str]
) -> None:
    diff = _nights(tmp_path, _nothing, _unreachable, change)
    assert _told(diff) == [("worse", *what, "night-1")]
    assert diff.exit_code == 1
    # Two such nights, too.
    diff = _nights(tmp_path, _nothing, _unreachable, _unreachable, change)
    assert _told(diff) == [("worse", *what, "night-1")]


@pytest.mark.parametrize("change", [_dearer, _bigger_struct, _narrower])
def test_what_a_night_did_not_reach_is_compared_with_one_that_did(
    tmp_path: Path, change: Changer
) -> None:
    diff = _nights(tmp_path, _nothing, _unbuilt, change)
    (worse,) = diff.of("worse")
    assert Path(worse.since).name == "night-1" and worse.kind in ("cost", "format")
    # The verdict is that of last night.
    assert [(change.what, change.since) for change in diff.of("better")] == [
        ("verdict", "")
    ]
    assert diff.of("changed") == []


def test_a_cost_that_was_not_measured_is_compared_with_one_that_was(
    tmp_path: Path,
) -> None:
    def unmeasured(report: Any) -> None:
        report["series"][0]["overhead"]["measurements"].clear()

    diff = _nights(tmp_path, _nothing, unmeasured, _dearer)
    assert _told(diff) == [
        ("worse", "cost", "nap: instructions per nap, off", "night-1")
    ]


def _check(status: str) -> Changer:
    def change(report: Any) -> None:
        series = report["series"][0]
        series["checks"][0]["status"] = status
        series["status"] = "pass" if status == "skip" else status

    return change


def test_a_format_that_was_not_read_is_compared_with_one_that_was(
    tmp_path: Path,
) -> None:
    diff = _nights(tmp_path, _nothing, _unread, _narrower)
    assert _told(diff) == [("worse", "format", "demo:nap: job", "night-1")]


def test_a_check_that_could_not_be_judged_is_compared_with_when_it_was(
    tmp_path: Path,
) -> None:
    diff = _nights(tmp_path, _nothing, _check("error"), _check("skip"))
    assert _told(diff) == [("worse", "check", "naps", "night-1")]
    # Never judged, it is what it was.
    diff = _nights(tmp_path, _check("error"), _check("error"), _check("error"))
    assert diff.changes == []


def test_a_check_that_went_behind_a_night_without_a_verdict_is_worse(
    tmp_path: Path,
) -> None:
    def less(report: Any) -> None:
        del report["series"][0]["checks"][1]

    diff = _nights(tmp_path, _nothing, _unreachable, less)
    assert _told(diff) == [("worse", "check", "snores", "night-1")]


def test_a_check_of_a_stopped_series_is_missed_too(tmp_path: Path) -> None:
    def stopped(report: Any) -> None:
        report["series"][0]["stages"].append(
            {"name": "boot", "status": "fail", "seconds": 1}
        )
        report["series"][0]["status"] = "fail"

    def less(report: Any) -> None:
        del report["series"][0]["checks"][1]

    diff = _nights(tmp_path, stopped, less)
    assert _told(diff) == [
        ("worse", "check", "snores", ""),
        ("better", "verdict", "verdict", ""),
    ]


def test_what_was_judged_once_stays_unjudged_until_it_is_again(tmp_path: Path) -> None:
    diff = _nights(tmp_path, _nothing, _unreachable, _unreachable)
    assert _told(diff) == [("unjudged", "verdict", "verdict", "night-1")]
    assert diff.exit_code == 2
    diff = _nights(tmp_path, _nothing, _unreachable, _nothing)
    assert (diff.changes, diff.exit_code) == ([], 0)


def test_the_newest_night_with_a_verdict_counts(tmp_path: Path) -> None:
    # It was told that it is dearer, and it has stayed so.
    diff = _nights(tmp_path, _nothing, _dearer, _unreachable, _dearer)
    assert diff.changes == []
    diff = _nights(tmp_path, _dearer, _nothing, _dearer)
    assert [(change.weight, change.since) for change in diff.changes] == [("worse", "")]


def test_the_tree_is_compared_with_the_one_that_was_had_last(tmp_path: Path) -> None:
    def moved(report: Any) -> None:
        report["tree"] |= {"id": "b", "describe": "next at 2"}

    diff = _nights(tmp_path, _nothing, _unreachable, moved)
    assert _told(diff) == [("changed", "input", "tree", "night-1")]


def test_a_tree_that_a_night_did_not_reach_or_name(tmp_path: Path) -> None:
    failed = copy.deepcopy(REPORT)
    _status("fail")(failed)
    first = _matrix(tmp_path / "1", cut=REPORT, left=REPORT, gone=REPORT)
    second = _matrix(tmp_path / "2", cut=None)
    third = _matrix(tmp_path / "3", cut=failed, left=failed)
    diff = comparison.compare(second, third, [first])
    assert [
        (change.weight, change.place.split()[0], Path(change.since).name)
        for change in diff.changes
    ] == [("worse", "cut", "1"), ("worse", "left", "1")]
    # That one is gone was told of the night in which it went.
    fourth = _matrix(tmp_path / "4", cut=None)
    diff = comparison.compare(second, fourth, [first])
    assert [(change.weight, change.what) for change in diff.changes] == [
        ("unjudged", "run")
    ]


def test_a_series_that_went_is_told_of_once(tmp_path: Path) -> None:
    def other(report: Any) -> None:
        report["series"][0]["name"] = "other"

    assert _nights(tmp_path, _nothing, other, other).changes == []
    # And it is compared with when it was there.
    diff = _nights(tmp_path, _nothing, other, _dearer)
    assert ("worse", "cost", "nap: instructions per nap, off", "night-1") in _told(diff)


def test_single_runs_have_older_ones_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name, change in (("a", _nothing), ("b", _unreachable), ("c", _dearer)):
        report = copy.deepcopy(REPORT)
        change(report)
        runs.append(str(_save(tmp_path / name, report)))
    page, data = tmp_path / "what.html", tmp_path / "what.json"
    words = ["compare", *runs, "--html", str(page), "--json", str(data)]
    assert cli.main(words) == 1
    stdout = capsys.readouterr().out
    assert "off: +1.00 -> +9.00 (since a)\n" in stdout
    assert f"before   {runs[1]}  " in stdout
    document = json.loads(data.read_text())
    valid(document, json.loads(cli.schema_text("comparison")))
    assert [change["since"] for change in document["changes"]] == [runs[0]]
    assert 'since <a href="a/report.html">a</a>' in page.read_text()
    # Of one of each it is said, wherever it stands.
    several = _matrix(tmp_path / "several", next=REPORT)
    assert cli.main(["compare", str(several), *runs]) == 2
    assert "several is a matrix of runs" in capsys.readouterr().err


# -- what is printed and written -----------------------------------------------------


def test_the_command_prints_writes_and_exits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = copy.deepcopy(REPORT)
    _status("fail")(failed)
    failed["series"][0]["stages"][0]["summary"] = "<script>[red]1[/]"
    before, after = _save(tmp_path / "a", REPORT), _save(tmp_path / "b", failed)
    page, data = tmp_path / "pages" / "what.html", tmp_path / "what.json"
    page.parent.mkdir()
    words = ["compare", str(before), str(after)]
    assert cli.main([*words, "--html", str(page), "--json", str(data)]) == 1
    stdout = capsys.readouterr().out
    assert stdout.startswith(
        "WORSE  demo: verdict: pass -> fail: apply: <script>[red]1[/]\n"
    )
    assert stdout.splitlines()[-1] == "verdict  WORSE  1 worse; 1 series compared"
    text = page.read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text
    links = re.findall(r'href="([^"]+)"', text)
    assert [(page.parent / link).resolve() for link in links] == [
        before / "report.html",
        after / "report.html",
    ]
    document = json.loads(data.read_text())
    valid(document, json.loads(cli.schema_text("comparison")))
    assert document["changes"][0]["weight"] == "worse"
    # Nothing is written that was not asked for.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("a", "b", "pages", "what.json")
    ]
    assert cli.main(["compare", str(before), str(before)]) == 0
    assert "NOTHING WORSE  no change; 1 series" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", '{"a": 1}'])
def test_what_is_no_run_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    run = _save(tmp_path / "run", REPORT)
    other = tmp_path / "other"
    if content is not None:
        other.mkdir()
        (other / "report.json").write_text(content)
    assert cli.main(["compare", str(run), str(other)]) == 2
    stderr = capsys.readouterr().err
    assert f"{other} is no run directory: " in stderr
    assert "such as out/latest" in stderr


def test_the_page_of_no_change(tmp_path: Path) -> None:
    run = _save(tmp_path / "run", REPORT)
    comparisonviews.write_page(comparison.compare(run, run), tmp_path / "x.html")
    assert "Nothing changed." in (tmp_path / "x.html").read_text()
