# SPDX-License-Identifier: GPL-2.0-or-later
"""Properties that are computed once for each object, whoever else computes."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path

import pytest

from kstall.base import once


class Work:
    """Its result comes when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.turns = 0

    @once
    def result(self) -> int:
        """How often it was computed."""
        self.begun.set()
        assert self.go.wait(60)
        self.turns += 1
        return self.turns

    @once
    def broken(self) -> int:
        """It raises."""
        self.turns += 1
        raise ValueError(self.turns)


def test_one_that_takes_long_keeps_no_other_waiting() -> None:
    slow, other = Work(), Work()
    other.go.set()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: slow.result)
        assert slow.begun.wait(60)
        assert other.result == 1
        assert not waiting.done()
        slow.go.set()
        assert waiting.result() == 1


def test_it_is_computed_once() -> None:
    work = Work()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(lambda: work.result) for _ in range(8)]
        work.go.set()
        assert {future.result() for future in waiting} == {1}
    assert (work.result, work.turns) == (1, 1)
    assert Work.result.__doc__ == "How often it was computed."


def test_an_error_is_no_result() -> None:
    work = Work()
    for turn in (1, 2):
        with pytest.raises(ValueError, match=str(turn)):
            _ = work.broken


@pytest.mark.parametrize("room", ["pipeline", "lint", "compile", "build", "farm"])
def test_rooms_that_wait_have_no_lock_for_all(project_root: Path, room: str) -> None:
    sources = list((project_root / "harness/kstall" / room).rglob("*.py"))
    assert sources
    for path in sources:
        assert "cached_property" not in path.read_text(), path
