# SPDX-License-Identifier: GPL-2.0-or-later
"""Comparisons of drm-sched's checks that must hold on a busy host, and not always."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from kstall.evidence import Event

WORKER, TESTER, IDLE = 30, 40, 0


@pytest.fixture(scope="module")
def checks(project_root: Path) -> ModuleType:
    path = project_root / "patches/drm-sched/checks.py"
    spec = importlib.util.spec_from_file_location("drm_sched_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch().context() as patch:
        # Its dataclasses look for it there.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Load:
    """A workload of which only the trace is asked for."""

    told: tuple[str, ...]

    def events(self, *names: str) -> tuple[Event, ...]:
        assert not names
        return tuple(_event(at, word) for at, word in enumerate(self.told))


def _event(at: int, word: str) -> Event:
    """Of a word such as ``run`` or ``start``, as the thread that has to tell it."""
    pid = {"queue": TESTER, "done": IDLE}.get(word, WORKER)
    if word in ("start", "end"):
        fields: dict[str, object] = {"work": 1, "function": "drm_sched_run_job_work"}
        name, system = f"workqueue_execute_{word}", "workqueue"
    elif word == "other":
        fields = {"work": 2, "function": "vmstat_update"}
        name, system = "workqueue_execute_start", "workqueue"
    else:
        fields = {}
        name, system = f"drm_sched_job_{word}", "gpu_scheduler"
    return Event(at * 1000, 0, pid, "x", system, name, fields)  # type: ignore[arg-type]


QUEUED = ("queue",) * 3
RUN = ("start", "run", "end")
STALL = ("start", "no_credits", "end")


@pytest.mark.parametrize(
    ("told", "silent"),
    [
        ((*QUEUED, *RUN, *STALL, "done"), 0),
        # The credit came back while the worker looked.
        ((*QUEUED, *RUN, "start", "done", "end", *RUN), 0),
        # It came late, and there was one.
        ((*QUEUED, *RUN, "done", *RUN), 0),
        # One job may still be on its way to the queue.
        (("queue", "start", "end"), 0),
        # Nothing in the queue, nothing to report.
        (("queue", *RUN, "start", "end"), 0),
        # Another work item.
        ((*QUEUED, *RUN, "other", "end"), 0),
        # A report that was left out.
        ((*QUEUED, *RUN, "start", "end", "done"), 1),
        ((*QUEUED, *RUN, *STALL, "start", "end", "done"), 1),
    ],
)
def test_a_shortage_without_a_report_is_seen(
    checks: ModuleType, told: tuple[str, ...], silent: int
) -> None:
    passes = checks._passes(Load(told))
    assert sum(not (p.ran or p.reported or p.done) for p in passes) == silent


def test_two_reports_of_one_shortage_are_seen(checks: ModuleType) -> None:
    told = (*QUEUED, *RUN, "start", "no_credits", "no_credits", "end")
    passes = checks._passes(Load(told))
    assert [p.ran + p.reported for p in passes] == [1, 2]


def test_a_report_from_elsewhere_is_in_no_pass(checks: ModuleType) -> None:
    passes = checks._passes(Load((*QUEUED, *RUN, "no_credits")), least=0)
    assert sum(p.reported for p in passes) == 0
