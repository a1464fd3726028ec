# SPDX-License-Identifier: GPL-2.0-or-later
"""A KUnit suite as a workload: when a case that gave up says nothing of the kernel."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kstall_guest import hosttime, workload

SUITE = "drm_sched_scheduler_overhead_tests"
CASE = """\
    # case_{number}: ASSERTION FAILED at drivers/gpu/drm/scheduler/tests/x.c:{number}
    Expected {what}
    not ok {number} case_{number}
"""
LATE = "done to be true, but is false"
CLIENT = "client[i].done to be true, but is false"
CALL = "drm_mock_sched_job_wait_scheduled(job, PATIENCE) to be true, but is false"
WRONG = "ctx->dep_ns == 0, but\n        ctx->dep_ns == 200249 (0x30e39)"


@pytest.fixture
def program(project_root: Path) -> ModuleType:
    path = str(project_root / "scripts/workloads/drm-sched/kunit-suite")
    loader = importlib.machinery.SourceFileLoader("kunit_suite", path)
    spec = importlib.util.spec_from_loader("kunit_suite", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def ktap(*failures: str) -> str:
    cases = [
        CASE.format(number=number, what=what) for number, what in enumerate(failures, 1)
    ]
    return f"KTAP version 1\n1..1\n{''.join(cases)}not ok 1 {SUITE}\n"


@pytest.mark.parametrize(
    ("failures", "seconds", "waits", "why"),
    [
        ([LATE, LATE], 10.0, 11.5, "the host gave 0 s of 10"),
        ([LATE], 10.0, None, "the host does not tell how much of that it gave"),
        ([CLIENT, CALL], 10.0, 5.1, "the host gave 5 s of 10"),
        ([LATE], 10.0, 4.9, None),
        ([LATE, WRONG], 10.0, 8.5, None),
        ([WRONG], 10.0, None, None),
        ([], 10.0, 8.5, None),
    ],
)
def test_only_a_case_that_gave_up_on_a_busy_host_is_excused(
    program: ModuleType,
    failures: list[str],
    seconds: float,
    waits: float | None,
    why: str | None,
) -> None:
    assert program.excuse(ktap(*failures), seconds, waits) == why


@pytest.mark.parametrize(("after", "told"), [(9.0, ["not-in-time"]), (0.1, [])])
def test_the_agent_is_reported(
    program: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    after: float,
    told: list[str],
) -> None:
    (tmp_path / SUITE).mkdir()
    (tmp_path / SUITE / "run").touch()
    (tmp_path / SUITE / "results").write_text(ktap(LATE))
    waits, clock = iter([0.0, after]), iter([100.0, 110.0])
    monkeypatch.setattr(program, "SUITES", tmp_path)
    monkeypatch.setattr(hosttime, "waits", lambda: next(waits))
    monkeypatch.setattr(program.time, "monotonic", lambda: next(clock))
    monkeypatch.setenv(workload._TROUBLE, str(tmp_path / workload.TROUBLE))
    assert program.main([SUITE]) == program.FAILED
    assert [trouble.kind for trouble in workload.troubles(tmp_path)] == told
