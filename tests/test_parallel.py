# SPDX-License-Identifier: GPL-2.0-or-later
"""Several at once, and none left behind when it ends early."""

from __future__ import annotations

import concurrent.futures
import errno
import fcntl
import functools
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstall.base import KstallError, cache, parallel, places, process
from kstall.evidence import mutate


def _sleeps(began: threading.Barrier) -> None:
    def met(_: str) -> None:
        began.wait(60)

    process.run(["sh", "-c", "echo; sleep 1000"], on_line=met)


def _nothing(key: object, value: object) -> None:
    pass


def test_each_is_told_of_as_it_comes_back() -> None:
    later = threading.Event()
    results = []

    def second() -> int:
        assert later.wait(60)
        return 2

    def done(key: str, value: int) -> None:
        results.append((key, value))
        later.set()

    parallel.each({"late": second, "early": lambda: 1}, 2, done)
    assert results == [("early", 1), ("late", 2)]


def test_no_more_at_once_than_asked_for() -> None:
    running: list[int] = []
    most = []

    three = threading.Barrier(3)

    def one() -> None:
        running.append(1)
        most.append(len(running))
        # So that it is three, and that a fourth has the time to come.
        three.wait(60)
        time.sleep(0.02)
        running.pop()

    parallel.each({str(n): one for n in range(9)}, 3, _nothing)
    assert max(most) == 3


def _fails(began: threading.Barrier) -> None:
    began.wait(60)
    raise RuntimeError("the task")


def _comes_back(began: threading.Barrier) -> None:
    began.wait(60)


def _raises(key: str, value: object) -> None:
    raise KeyboardInterrupt(key)


@pytest.mark.parametrize(
    ("other", "done", "expected"),
    [
        (_fails, _nothing, RuntimeError),
        (_comes_back, _raises, KeyboardInterrupt),
    ],
    ids=["a task fails", "who is told raises"],
)
def test_the_others_children_are_ended(
    other: Callable[[threading.Barrier], None],
    done: Callable[[str, object], None],
    expected: type[BaseException],
) -> None:
    barrier = threading.Barrier(2)
    tasks = {
        "sleeps": functools.partial(_sleeps, barrier),
        "other": functools.partial(other, barrier),
    }
    began = time.monotonic()
    with pytest.raises(expected):
        parallel.each(tasks, 2, done)
    assert time.monotonic() - began < 500


def test_one_that_waits_for_another_run_gives_up(tmp_path: Path) -> None:
    waiting = threading.Event()
    path = tmp_path / "lock"

    def waits() -> None:
        with cache.lock(path, waiting=lambda _: waiting.set()):
            raise AssertionError("locked")

    def met() -> None:
        assert waiting.wait(60)

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Else a failure would never end.
        late = threading.Timer(60, fcntl.flock, (file, fcntl.LOCK_UN))
        late.start()
        with pytest.raises(KeyboardInterrupt):
            parallel.each({"waits": waits, "other": met}, 2, _raises)
        assert not late.finished.is_set()
        late.cancel()


def test_an_interrupt_while_tasks_are_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is under way before the last one is known."""
    barrier = threading.Barrier(2)
    submit = concurrent.futures.ThreadPoolExecutor.submit

    def interrupted(pool: Any, call: Any, task: Any) -> Any:
        if task is _fails:
            barrier.wait(60)
            raise KeyboardInterrupt
        return submit(pool, call, task)

    monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "submit", interrupted)
    tasks: dict[str, Any] = {
        "sleeps": functools.partial(_sleeps, barrier),
        "other": _fails,
    }
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        parallel.each(tasks, 2, _nothing)
    assert time.monotonic() - began < 500


def test_nothing_is_started_after_the_end() -> None:
    def make() -> subprocess.Popen[bytes]:
        raise AssertionError("started")

    with process.together() as children:
        children.end()
        with pytest.raises(process.Ended, match="the run is ending"):
            process.run(["true"])
        with pytest.raises(process.Ended), children.start(make):
            pass
        with process.recorded() as commands, pytest.raises(process.Ended):
            process.run(["true"])
        assert commands == []
    assert process.run(["true"]).returncode == 0


def test_children_of_tasks_in_tasks_are_ended() -> None:
    """As of two guests at once, of which one counts in several boots."""
    barrier = threading.Barrier(3)

    def inner() -> None:
        tasks = {n: functools.partial(_sleeps, barrier) for n in ("one", "two")}
        parallel.each(tasks, 2, _nothing)

    tasks: dict[str, Any] = {"sleep": inner}
    tasks["other"] = functools.partial(_fails, barrier)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="the task"):
        parallel.each(tasks, 2, _nothing)
    assert time.monotonic() - began < 500


def test_what_begins_after_the_end_around_it_ends() -> None:
    with process.together() as outer:
        outer.end()
        with process.together(), pytest.raises(process.Ended):
            process.run(["true"])


def test_no_more_than_there_are_places() -> None:
    running: list[int] = []
    most = []

    def boot() -> None:
        with places.taken(), places.taken():
            running.append(1)
            most.append(len(running))
            time.sleep(0.02)
            running.pop()

    def counts() -> None:
        parallel.each(dict.fromkeys("abc", boot), 3, _nothing)

    with places.limited(2):
        parallel.each(dict.fromkeys("abc", counts), 3, _nothing)
    assert len(most) == 9 and max(most) == 2


def test_without_a_limit_nobody_waits() -> None:
    with places.taken(), places.taken():
        pass


def test_without_semaphores_mutants_are_judged_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged_by = []

    class Bench:
        def judge(self, group: list[Any]) -> list[Any]:
            judged_by.append(os.getpid())
            if "broken" in group:
                raise OSError("of judging")
            return group

    def no_semaphore(*_: object) -> None:
        raise OSError(errno.ENOENT, "No such file or directory")

    bench: Any = Bench()
    judge: Any = mutate._judge_all
    groups = [["a"], ["b", "c"]]
    assert judge(bench, groups, 2) == ["a", "b", "c"] and judged_by == []
    # As without /dev/shm, or with one that is read-only.
    monkeypatch.setattr(
        "multiprocessing.synchronize._multiprocessing.SemLock", no_semaphore
    )
    assert judge(bench, groups, 2) == ["a", "b", "c"]
    assert judged_by == [os.getpid()] * 2
    monkeypatch.undo()
    with pytest.raises(OSError, match="of judging"):
        judge(bench, [*groups, ["broken"]], 2)
    assert len(judged_by) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_mutants_of_several_trees_are_judged_by_their_own_checks(workers: int) -> None:
    class Bench:
        """It tells whose it is, and in which process it judges."""

        def __init__(self, name: str) -> None:
            self.name = name

        def judge(self, group: list[int]) -> list[tuple[str, int, bool]]:
            # As a check does: only a main thread may ask for signals.
            with mutate._Limited():
                time.sleep(0.01)
            return [(self.name, number, os.getpid() == here) for number in group]

    here = os.getpid()
    judge: Any = mutate._judge_all
    names = [f"tree {number}" for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
        outcomes = threads.map(
            lambda name: judge(Bench(name), [[0], [1, 2], [3]], workers), names
        )
    for name, outcome in zip(names, outcomes, strict=True):
        assert outcome == [(name, number, False) for number in range(4)]


def test_beside_other_trees_mutants_need_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_semaphore(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(
        "multiprocessing.synchronize._multiprocessing.SemLock", no_semaphore
    )
    judge: Any = mutate._judge_all
    with (
        concurrent.futures.ThreadPoolExecutor(1) as threads,
        pytest.raises(KstallError, match="no process can be started"),
    ):
        threads.submit(judge, None, [["a"], ["b"]], 2).result()
