# SPDX-License-Identifier: GPL-2.0-or-later
"""The all-reduce job that recordings are made of, run for real and explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ports
from kstall_ops import explain, seal

JOB = "scripts/workloads/operator/allreduce.py"


def run(root: Path, top: Path, *words: str, **env: str) -> list[dict[str, Any]]:
    """What the ranks say, by rank."""
    done = subprocess.run(
        [sys.executable, str(root / JOB), *words],
        cwd=top,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(said, key=lambda one: int(one["rank"]))


def recorded(top: Path) -> explain.Report:
    """Marks in files, as a recording without any event."""
    rec = top / "rec"
    rec.mkdir()
    session = {
        "format": 1,
        "node": "here",
        "boot_id": "b",
        "kernel": "k",
        "instance": "none",
        "began": 0,
        "ended": 1 << 62,
        "providers": [],
    }
    (rec / "session.json").write_text(json.dumps(session))
    facts = "".join(one.read_text() for one in sorted(top.glob("marks-*.jsonl")))
    (rec / "facts.jsonl").write_text(facts)
    seal.seal([rec], top / "s.duckdb")
    return explain.report(top / "s.duckdb")


def test_what_is_explained_is_what_happened(project_root: Path, tmp_path: Path) -> None:
    """Of one machine the truth needs no analysis: the difference of two entries."""
    words = ("--steps", "40", "--compute", "5", "--late", "1:10-30:25")
    said = run(project_root, tmp_path, *words, "--marks", str(tmp_path))
    assert [one["rank"] for one in said] == [0, 1, 2]
    made = recorded(tmp_path)
    (one,) = made.verdicts
    assert (one.job.name, one.job.ranks, one.job.remarks) == (
        "allreduce",
        (0, 1, 2),
        [],
    )
    assert [step.number for step in one.job.steps] == list(range(1, 40))
    for step in one.job.steps:
        enters = [rank["steps"][step.number][0] for rank in said]
        assert [step.lateness(rank) for rank in range(3)] == [
            enter - min(enters) for enter in enters
        ]
    # It cannot be otherwise: 25 ms of the processor take no less, and the others' 5 ms
    # would have to take five times as long, in most of twenty steps.
    assert 1 in [late.rank for late in one.stragglers]
    assert all(late.findings == () for late in one.stragglers)


def test_one_rank_at_a_time_as_a_launcher_starts_them(
    project_root: Path, tmp_path: Path
) -> None:
    """Also the marks of a tracer: here a file takes the place of trace_marker."""
    marker = tmp_path / "trace_marker"
    marker.touch()
    words = ["--steps", "3", "--compute", "1", "--marks", str(marker), "--job", "j7"]
    with ports.held() as port:
        started = [
            subprocess.Popen(
                [sys.executable, str(project_root / JOB), *words],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
                | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (1, 0)
        ]
        told = [json.loads(one.communicate(timeout=300)[0]) for one in started]
    assert [one["rank"] for one in told] == [1, 0]
    assert {one["marks"] for one in told} == {str(marker)}
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_rank_that_fails_ends_the_job(project_root: Path, tmp_path: Path) -> None:
    words = ["--ranks", "2", "--steps", "100000", "--compute", "1"]
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run(project_root, tmp_path, *words, "--late", "1:3-x:1")
    assert "ValueError" in failed.value.stderr
