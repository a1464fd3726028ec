# SPDX-License-Identifier: GPL-2.0-or-later
"""The programs that test the GPU scheduler's own tests: what their probes may miss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from workloadprograms import program

from kstall_guest import workload

STATS = "entries: 7\noverrun: {overrun}\ncommit overrun: 0\ndropped events: {dropped}\n"


@pytest.mark.parametrize("name", ["tests-late", "tests-memory"])
@pytest.mark.parametrize(
    ("overrun", "dropped", "told"), [(0, 0, []), (2, 0, ["2"]), (0, 3, ["3"])]
)
def test_lost_records_are_no_word_on_the_kernel(
    tmp_path: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    overrun: int,
    dropped: int,
    told: list[str],
) -> None:
    module = program(project_root, monkeypatch, f"drm-sched/{name}")
    stats = tmp_path / "own/per_cpu/cpu0/stats"
    stats.parent.mkdir(parents=True)
    stats.write_text(STATS.format(overrun=overrun, dropped=dropped))
    runner = tmp_path / "suite"
    runner.write_text("")
    monkeypatch.setattr(module, "INSTANCE", tmp_path / "own")
    monkeypatch.setattr(module, "RUNNER", runner)
    monkeypatch.setenv("KSTALL_TROUBLE", str(tmp_path / workload.TROUBLE))
    module.run("a run")
    troubles = workload.troubles(tmp_path)
    assert [trouble.kind for trouble in troubles] == ["lost-events"] * len(told)
    assert [str(trouble) for trouble in troubles] == [
        f"own: {count} events lost" for count in told
    ]
    facts = json.loads(capsys.readouterr().out)
    assert (facts["run"], facts["status"], facts["jobs"]) == ("a run", 0, 0)
