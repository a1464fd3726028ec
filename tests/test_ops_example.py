# SPDX-License-Identifier: GPL-2.0-or-later
"""The recorded run that ships: it is what README and docs/operator.md say it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstall_ops import cli, decode, explain, seal, store

EXAMPLE = "docs/examples/throttled-rank"


@pytest.fixture
def made(project_root: Path, tmp_path: Path) -> Path:
    seal.seal([project_root / EXAMPLE], tmp_path / "s.duckdb")
    return tmp_path / "s.duckdb"


def test_the_documents_print_what_it_prints(
    project_root: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", str(made)]) == 0
    said = capsys.readouterr().out
    assert said in (project_root / "docs/operator.md").read_text()
    readme = (project_root / "README.md").read_text()
    (shown,) = re.findall(r"(?s)--html late\.html\n(.*?)```", readme)
    for line in shown.splitlines():
        assert line.removesuffix("[…]") in said


def test_it_agrees_with_what_the_ranks_said_themselves(
    project_root: Path, made: Path
) -> None:
    text = (project_root / EXAMPLE / "truth.jsonl").read_text()
    truth = {one["rank"]: one for one in map(json.loads, text.splitlines())}
    _, marks, _ = store.query(made, "SELECT rank, step, phase, t FROM mark")
    assert len(marks) == 3 * 60 * 2
    for rank, step, phase, t in marks:
        # They looked at the clock, then wrote the mark.
        said = truth[rank]["steps"][step][phase == "exit"]
        following = truth[rank]["steps"][step:]
        after = following[0][1] if phase == "enter" else None
        if phase == "exit" and len(following) > 1:
            after = following[1][0]
        assert said <= t and (after is None or t < after)
    (one,) = explain.report(made).verdicts
    for step in one.job.steps:
        enters = [truth[rank]["steps"][step.number][0] for rank in range(3)]
        if sorted(enters)[2] - sorted(enters)[1] > one.job.limit:
            assert enters.index(max(enters)) == step.last
    (late,) = one.stragglers
    assert late.rank == 1
    (finding,) = late.findings
    assert (finding.level, finding.steps) == (
        "explains",
        tuple(n for n in range(20, 41) if n in finding.steps),
    )


def test_its_oracle_agrees(project_root: Path, made: Path) -> None:
    """What cpu.stat counted the records add up to, but for when clocks were read."""
    _, rows, _ = store.query(made, "SELECT ours, theirs, verdict FROM oracle")
    ((ours, theirs, verdict),) = rows
    assert verdict == "agrees"
    text = (project_root / EXAMPLE / "truth.jsonl").read_text()
    stats = [json.loads(line)["cpu_stat"] for line in text.splitlines()]
    (stat,) = [one for one in stats if one]
    assert abs(theirs - stat["throttled_usec"] * 1000) <= 1000
    assert abs(ours - theirs) <= 0.0011 * theirs


# -- recorded runs in which there is nothing to explain ------------------------------


def told(project_root: Path, tmp_path: Path, name: str) -> explain.Report:
    seal.seal([project_root / "tests/data/operator" / name], tmp_path / "s.duckdb")
    return explain.report(tmp_path / "s.duckdb")


def test_nothing_wrong_nothing_said(project_root: Path, tmp_path: Path) -> None:
    """Three ranks on two processors: somebody is late in each step, and nobody is."""
    made = told(project_root, tmp_path, "nothing")
    (one,) = made.verdicts
    assert len(one.job.late_steps()) > 50
    assert (one.outcome, made.lost, made.incidents) == ("nothing", [], [])


def test_a_throttled_loader_is_observed(project_root: Path, tmp_path: Path) -> None:
    made = told(project_root, tmp_path, "loader")
    (one,) = made.verdicts
    assert one.outcome == "nothing"
    (lost,) = made.lost
    assert (lost.cls, lost.n) == ("throttle", 97)
    _, rows, _ = store.query(
        tmp_path / "s.duckdb",
        "SELECT DISTINCT s.tid IN (SELECT tid FROM mark) FROM stall s",
    )
    assert rows == [(False,)]


def test_a_busy_loop_is_not_in_kernel_events(
    project_root: Path, tmp_path: Path
) -> None:
    (one,) = told(project_root, tmp_path, "busy").verdicts
    (late,) = one.stragglers
    assert (late.rank, late.findings) == (2, ())
    assert set(range(20, 40)) <= set(late.steps)


def test_all_are_slowed(project_root: Path, tmp_path: Path) -> None:
    made = told(project_root, tmp_path, "all")
    (one,) = made.verdicts
    assert (one.outcome, list(one.slowed)) == ("slowed", ["throttle"])
    assert [entry["verdict"] for entry in made.oracles] == ["agrees"] * 3


# -- mistakes in here, made on the recorded run ---------------------------------------


def _swapped(row: dict[str, Any], number: int) -> dict[str, Any]:
    return row | {"t0": row["t1"], "t1": row["t0"]}


def _swapped_with_its_length(row: dict[str, Any], number: int) -> dict[str, Any]:
    return _swapped(row, number) | {"dur": -row["dur"]}


def _microseconds(row: dict[str, Any], number: int) -> dict[str, Any]:
    lasted = row["dur"] // 1000
    return row | {"t0": row["t1"] - lasted, "dur": lasted}


def _thousandfold(row: dict[str, Any], number: int) -> dict[str, Any]:
    lasted = row["dur"] * 1000
    return row | {"t0": row["t1"] - lasted, "dur": lasted}


def _started_at_its_end(row: dict[str, Any], number: int) -> dict[str, Any]:
    """As off-CPU slices of a peer are drawn."""
    return row | {"t0": row["t1"], "t1": row["t1"] + row["dur"]}


def _of_another(row: dict[str, Any], number: int) -> dict[str, Any]:
    return row | {"tid": 81}


def _dropped(row: dict[str, Any], number: int) -> dict[str, Any] | None:
    return None if number % 10 == 0 else row


@pytest.mark.parametrize(
    "mistake",
    [
        _swapped,
        _swapped_with_its_length,
        _microseconds,
        _thousandfold,
        _started_at_its_end,
        _of_another,
        _dropped,
    ],
    ids=lambda one: one.__name__.strip("_"),
)
def test_mistakes_explain_nothing(
    project_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[[dict[str, Any], int], dict[str, Any] | None],
) -> None:
    rows = decode.Decoder.rows

    def wrong(self: decode.Decoder) -> decode.Rows:
        number = 0
        for table, row in rows(self):
            made: dict[str, Any] | None = row
            if table == "stall":
                number += 1
                made = mistake(row, number)
            if made is not None:
                yield table, made

    monkeypatch.setattr(decode.Decoder, "rows", wrong)
    seal.seal([project_root / EXAMPLE], tmp_path / "s.duckdb")
    (one,) = explain.report(tmp_path / "s.duckdb").verdicts
    assert not any(late.explained for late in one.stragglers)
