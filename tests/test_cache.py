# SPDX-License-Identifier: GPL-2.0-or-later
"""What a cache name leads to is whole, and one holder at a time changes it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from kstall import cache


def test_publish_is_all_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), cache.publish(tmp_path / "entry") as scratch:
        (scratch / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with cache.publish(tmp_path / "entry") as scratch:
        (scratch / "whole").write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["entry"]


def _killed_half_way(target: Path) -> None:
    with cache.publish(target) as scratch:
        (scratch / "half").write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_attempt_is_swept_by_the_next(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=_killed_half_way, args=(tmp_path / "entry",)
    )
    child.start()
    child.join()
    assert len(list(tmp_path.iterdir())) == 1
    with cache.publish(tmp_path / "entry") as scratch:
        (scratch / "whole").write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["entry"]


def _hold(path: Path, held: Path) -> None:
    with cache.lock(path):
        held.touch()
        time.sleep(60)


def test_lock_waits_says_who_and_dies_with_its_holder(tmp_path: Path) -> None:
    held = tmp_path / "held"
    child = multiprocessing.get_context("fork").Process(
        target=_hold, args=(tmp_path / "lock", held)
    )
    child.start()
    while not held.exists():
        time.sleep(0.01)
    told: list[str] = []

    def waiting(who: str) -> None:
        told.append(who)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)

    with cache.lock(tmp_path / "lock", waiting=waiting):
        assert told == [f"process {child.pid}"]
    child.join()


def test_remove_also_read_only_directories(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0o500)
    cache.remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    cache.remove(tmp_path / "never-there")


def test_digest_tells_parts_apart() -> None:
    assert cache.digest("ab", "c") != cache.digest("a", "bc")
