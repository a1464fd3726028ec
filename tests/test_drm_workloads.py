# SPDX-License-Identifier: GPL-2.0-or-later
"""The programs that test the GPU scheduler's own tests: what their probes may miss."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstall_guest import hosttime, workload
from workloadprograms import program

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


class Module:
    """What stands in for the module: the second of its scenes does not end."""

    def __init__(self, folder: Path) -> None:
        self.number, self.given_up = folder / "number", folder / "given_up"
        self.number.write_text("0\n")
        self.given_up.write_text("0\n")

    def read_text(self) -> str:
        self.number.write_text("1\n")
        time.sleep(0.02)
        self.number.write_text("2\n")
        while self.given_up.read_text() != "2\n":
            time.sleep(0.01)
        return "{}\n"


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "lost"
    path.write_text("0 0")
    monkeypatch.setattr(hosttime, "_LOST", path)
    yield path


@pytest.mark.parametrize(("owed", "told"), [(0, set()), (9, {"not-in-time"})])
def test_a_scene_that_does_not_end_is_given_up(
    tmp_path: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: Path,
    owed: float,
    told: set[str],
) -> None:
    module = program(project_root, monkeypatch, "drm-sched-stop/kill-entities")
    scenes = Module(tmp_path)
    monkeypatch.setattr(module, "SCENES", scenes)
    monkeypatch.setattr(module, "NUMBER", scenes.number)
    monkeypatch.setattr(module, "GIVEN_UP", scenes.given_up)
    monkeypatch.setattr(module, "SCENE_S", 0.3)
    monkeypatch.setenv("KSTALL_TROUBLE", str(tmp_path / workload.TROUBLE))
    # While the second scene goes on, it reads that the host has kept this machine
    # waiting for longer.
    read, since = hosttime.lost, []

    def lost_by_now() -> float:
        if scenes.number.read_text() == "2\n":
            since.append(time.monotonic())
        kept = bool(since) and time.monotonic() - since[0] > 0.2
        return (read() or 0) + owed * kept

    monkeypatch.setattr(hosttime, "lost", lost_by_now)
    assert module.play() == "{}\n"
    troubles = workload.troubles(tmp_path)
    assert {trouble.kind for trouble in troubles} == told
