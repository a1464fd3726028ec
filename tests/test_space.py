# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory: what the machine has left, and what our control groups may still have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import space
from kstall.cost import counting
from kstall.guest import accel, debugguest, guest, guestrun
from kstall.pipeline import debugging, sharing
from kstall.series import Project, Series

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def _group(
    place: Path, files: tuple[str, ...], most: int | str, used: int, unused: int = 0
) -> None:
    limit, usage, inactive = files
    place.mkdir(parents=True, exist_ok=True)
    (place / limit).write_text(f"{most}\n")
    (place / usage).write_text(f"{used}\n")
    (place / "memory.stat").write_text(f"anon 7\n{inactive} {unused}\n")


def _memory(path: Path, groups: str) -> int:
    """Of a machine with 64 GB of which 48 are left, for a process in ``groups``."""
    proc = path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        f"MemTotal: {64 * 2**20} kB\nMemAvailable: {48 * 2**20} kB\n"
    )
    if groups:
        (proc / "self/cgroup").write_text(groups)
    return space.memory(proc, path / "cgroup")


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    assert _memory(tmp_path / "none", "") == 48 * GIB
    _group(tmp_path / "v2/cgroup/a", V2, "max", 9 * GIB)
    assert _memory(tmp_path / "v2", "0::/a\n") == 48 * GIB
    _group(tmp_path / "v1/cgroup/memory/a", V1, 2**63 - 4096, 9 * GIB)
    assert _memory(tmp_path / "v1", "4:memory:/a\n0::/\n") == 48 * GIB
    # A group that is not to be seen from here, and files that are not what they were.
    _group(tmp_path / "odd/cgroup/a", V2, 4 * GIB, 0)
    (tmp_path / "odd/cgroup/a/memory.stat").write_text("what is this?\n")
    assert _memory(tmp_path / "odd", "0::/a/b\n") == 48 * GIB


@pytest.mark.parametrize(
    ("files", "top", "line"),
    [
        (V2, "cgroup", "0::{path}"),
        (V2, "cgroup/unified", "0::{path}"),
        (V1, "cgroup/memory", "4:memory:{path}"),
        (V1, "cgroup/memory", "5:cpu,memory:{path}"),
    ],
)
def test_a_group_has_less_and_so_may_one_above_it(
    tmp_path: Path, files: tuple[str, ...], top: str, line: str
) -> None:
    def left(name: str, path: str) -> int:
        return _memory(tmp_path / name, f"1:cpuset:/x\n{line.format(path=path)}\n")

    _group(tmp_path / "own" / top / "a/b", files, 4 * GIB, 3 * GIB, 2 * GIB)
    assert left("own", "/a/b") == 3 * GIB
    _group(tmp_path / "above" / top / "a/b", files, 4 * GIB, 1 * GIB)
    _group(tmp_path / "above" / top / "a", files, 6 * GIB, 5 * GIB)
    assert left("above", "/a/b") == 1 * GIB
    # It may use more than it has a right to, for a moment.
    _group(tmp_path / "over" / top / "a", files, 4 * GIB, 5 * GIB)
    assert left("over", "/a") == 0
    # In a container: by the path that its host has for it, or by none.
    for number, path in enumerate(("/docker/0123", "/../..", "/")):
        _group(tmp_path / f"box{number}" / top, files, 4 * GIB, 1 * GIB)
        _group(tmp_path / f"box{number}", files, 0, 0)
        assert left(f"box{number}", path) == 3 * GIB


@pytest.fixture
def series() -> Series:
    (series,) = Project(ROOT).load(["drm-sched"])
    return series


@pytest.mark.parametrize(
    ("room", "guests"), [(0, 1), (2.4, 1), (3.4, 1), (5.1, 2), (7.6, 3), (99, 4)]
)
def test_guests_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch, room: float, guests: int
) -> None:
    monkeypatch.setattr(guestrun.space, "memory", lambda: int(room * GIB))
    machines = [guest.Machine(memory=memory) for memory in ("1G", "2048M", "512M")]
    assert guestrun.at_once(4, machines) == guests
    assert guestrun.at_once(0, machines) == 1


@pytest.mark.parametrize(("room", "guests"), [(3, 1), (7, 2), (99, 4)])
def test_debug_guests_there_is_memory_for(
    series: Series, monkeypatch: pytest.MonkeyPatch, room: int, guests: int
) -> None:
    monkeypatch.setattr(debugging.os, "sched_getaffinity", lambda _: {*range(4)})
    monkeypatch.setattr(guestrun.space, "memory", lambda: room * GIB)
    speed = accel.Accel("tcg", "on trial", one_thread=True)
    kernel: Any = None
    booted = debugging.DebugGuest(series, kernel, "debug", "patched", kernel, ())
    assert debugguest.machine_for(series).memory == "3072M"
    assert debugging._at_once(speed, [booted]) == guests


@pytest.mark.parametrize(("room", "guests"), [(1, 1), (5, 2), (99, 4)])
def test_series_and_counts_there_is_memory_for(
    series: Series,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    guests: int,
) -> None:
    monkeypatch.setattr(sharing.os, "sched_getaffinity", lambda _: {*range(4)})
    monkeypatch.setattr(guestrun.space, "memory", lambda: room * GIB)
    subject: Any = sharing.AppliedSeries(series, *[Any] * 3)  # type: ignore[arg-type]
    assert sharing._room([subject]) == guests
    seen = []
    monkeypatch.setattr(
        counting.parallel, "each", lambda tasks, workers, _: seen.append(workers)
    )
    monkeypatch.setattr(counting, "compile_programs", lambda *_: None)
    context: Any = SimpleNamespace(project=None, out=tmp_path, away=None)
    kernels: Any = SimpleNamespace(root=SimpleNamespace(arch=None))
    kernel: Any = None
    boots = [
        counting.BootPlan(kernel, None, f"boot-{number}", ("off",))
        for number in range(6)
    ]
    counting._count(context, series, kernels, boots, tmp_path / "log")
    assert seen == [guests]
