# SPDX-License-Identifier: GPL-2.0-or-later
"""A workload's own bpftrace: what goes wrong with it is no word on the kernel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kstall_guest import bpftrace, own, workload
from kstall_guest.errors import GuestError, ScriptRefused, TracerFailed
from workloadprograms import program

FAKE = (sys.executable, str(Path(__file__).parent / "fake_bpftrace.py"))
LINE = '{"type": "printf", "data": "%s"}'
LOST = '{"type": "lost_events", "data": {"events": 3}}'
FULL = (
    '{"type": "helper_error", "helper": "map_update_elem", "retcode": -7, '
    '"line": 3, "col": 1, "msg": "Argument list too long"}'
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the agent finds what the program reported."""
    monkeypatch.setenv("KSTALL_TROUBLE", str(tmp_path / workload.TROUBLE))
    return tmp_path


def kinds(told: Path) -> list[str]:
    troubles = workload.troubles(told)
    assert {trouble.fault for trouble in troubles} <= {"apparatus"}
    return [trouble.kind for trouble in troubles]


def traced(*steps: str, **options: bool) -> list[str]:
    script = "\n".join(steps)
    with own.bpftrace("t", script, program=FAKE, **options) as printed:
        pass
    return printed.lines()


def test_what_it_printed_stays(told: Path) -> None:
    whole = f"emit {LINE % 'one'}"
    half = f"emit {LINE % ' and a half'}"
    rest = f"emit {LINE % (chr(92) + 'nthree' + chr(92) + 'n')}"
    assert traced(whole, half, rest) == ["one and a half", "three"]
    assert kinds(told) == []


def test_lines_come_while_it_runs(told: Path) -> None:
    script = f"emit {LINE % ('one' + chr(92) + 'n')}"
    with own.bpftrace("t", script, program=FAKE) as printed:
        while not printed.lines():
            pass
        assert printed.lines() == ["one"]
    assert kinds(told) == []


@pytest.mark.parametrize(
    ("steps", "patched", "raised", "reported"),
    [
        (["stderr Killed", "raise 9"], True, TracerFailed, ["tracer-failed"]),
        (["stderr ERROR: no BTF", "die 1"], False, ScriptRefused, ["tracer-failed"]),
        # The kernel lacks what the patches should have brought.
        (["stderr ERROR: no BTF", "die 1"], True, ScriptRefused, []),
    ],
)
def test_one_that_does_not_attach(
    told: Path,
    steps: list[str],
    patched: bool,
    raised: type[GuestError],
    reported: list[str],
) -> None:
    with pytest.raises(raised):
        traced(*steps, patched=patched)
    assert kinds(told) == reported


def test_one_that_cannot_be_executed(told: Path) -> None:
    with (
        pytest.raises(TracerFailed),
        own.bpftrace("t", "", program=[str(told / "none")], patched=True),
    ):
        pass
    assert kinds(told) == ["tracer-failed"]


@pytest.mark.parametrize(
    ("step", "misses", "skips", "reported"),
    [
        (f"emit {LOST}", 0, True, ["lost-events"]),
        (f"emit {FULL}", 0, False, ["tracer-failed"]),
        (f"emit {FULL}", 0, True, []),
        ("exit 1", 0, True, ["tracer-failed"]),
        ("", 2, False, ["lost-events"]),
        ("", 2, True, []),
    ],
)
def test_one_that_missed_something(
    told: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    misses: int,
    skips: bool,
    reported: list[str],
) -> None:
    monkeypatch.setattr(bpftrace, "recursion_misses", lambda _: misses)
    traced(step, skips=skips)
    assert kinds(told) == reported


def test_a_program_that_fails_meanwhile_is_not_excused(told: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        own.bpftrace("t", "", program=FAKE),
    ):
        raise ZeroDivisionError
    assert kinds(told) == []


# -- the programs that have one --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("sched-throttle/quota.py", lambda module: module.listener()),
        ("iommu-iotlb/dma.py", lambda module: module.slowed("flush")),
        ("iommu-iotlb/crowd", lambda module: module.frees()),
    ],
)
def test_a_program_whose_bpftrace_does_not_attach(
    told: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    start: Any,
) -> None:
    module = program(project_root, monkeypatch, name)
    fake = told / "bin/bpftrace"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho cannot allocate memory >&2\nexec kill -KILL $$\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    with pytest.raises(TracerFailed), start(module):
        pass
    assert kinds(told) == ["tracer-failed"]


class Heard:
    """What the listener printed: the second CPU's lines come first."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def lines(self) -> list[str]:
        return list(self._lines)


def test_events_are_in_the_order_of_their_times(
    project_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = program(project_root, monkeypatch, "sched-throttle/quota.py")
    printed = Heard("1000 throttle 7", "98 unthrottle 7 5", "99 unthrottle_task 3 0")
    assert quota.heard(printed, 2) == ["unthrottle 7 5", "unthrottle_task 3 0"]


@pytest.mark.parametrize(("owed", "reported"), [(5, ["not-in-time"]), (0, [])])
def test_events_that_do_not_come_on_a_busy_host(
    told: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    owed: float,
    reported: list[str],
) -> None:
    quota = program(project_root, monkeypatch, "sched-throttle/quota.py")
    lost = told / "lost"
    lost.write_text("1 1")
    monkeypatch.setattr("kstall_guest.hosttime._LOST", lost)
    monkeypatch.setattr(quota, "SCENE_S", 0.1)

    class Late(Heard):
        def lines(self) -> list[str]:
            lost.write_text(f"{1 + owed} 1")
            return super().lines()

    quota.wait_heard(Late("98 unthrottle 7 5"), 4)
    assert kinds(told) == reported
