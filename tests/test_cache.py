# SPDX-License-Identifier: GPL-2.0-or-later
"""What a cache name leads to is whole, and one holder at a time changes it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import math
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstall.base import cache


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


def test_two_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    """As one that builds a kernel and one that gets it from a store."""
    with cache.publish(tmp_path / "entry") as one:
        (one / "one").touch()
        with cache.publish(tmp_path / "entry") as other:
            (other / "other").touch()
        assert [path.name for path in one.iterdir()] == ["one"]
    assert [path.name for path in tmp_path.rglob("*")] == ["entry", "one"]


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    with cache.keep(tmp_path / "kind" / "entry") as scratch:
        (scratch / "small").write_text("text\n")
        (scratch / "large").write_bytes(bytes(range(256)) * 2000)
        (scratch / "below").mkdir()
        (scratch / "below/link").symlink_to("../small")
        (scratch / "below/raw\udcff").touch()
    return tmp_path / "kind" / "entry"


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _swap_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    ("small", lambda path: os.truncate(path, 2)),
    ("small", lambda path: path.unlink()),
    ("small", lambda path: path.write_bytes(bytes(5))),
    ("large", lambda path: os.truncate(path, path.stat().st_size - 1)),
    ("large", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    ("large", _append),
    ("strange", lambda path: path.touch()),
    ("below/link", _swap_link),
    (cache.LIST, lambda path: os.truncate(path, 20)),
    (cache.LIST, lambda path: os.truncate(path, 0)),
    (cache.LIST, lambda path: path.write_text("[]")),
    (cache.LIST, lambda path: path.write_bytes(b"\xff")),
    (cache.LIST, lambda path: path.unlink()),
]


def test_an_entry_is_known_again(entry: Path) -> None:
    with cache.remarked() as remarks:
        assert cache.is_complete(entry)
        assert not cache.is_complete(entry.parent / "another")
    assert remarks == []


def test_an_entry_that_is_found_counts_as_used(entry: Path) -> None:
    other = entry.with_name("other")
    with cache.keep(other):
        pass
    for place, when in ((entry, 1), (other, 2)):
        os.utime(place, (when, when))
    assert cache.is_complete(entry)
    cache.prune(entry.parent, keep=1)
    assert [path.name for path in entry.parent.iterdir()] == ["entry"]


@pytest.mark.fault("truncated", "any file of an entry, and the list of them")
@pytest.mark.fault("corrupted", "any file of an entry, and the list of them")
@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_entry_is_none(
    entry: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(entry / name)
    with cache.remarked() as remarks:
        assert not cache.is_complete(entry)
    (line,) = remarks
    assert line.startswith(f"{entry} is damaged ({name} ")
    with cache.keep(entry) as scratch:
        (scratch / "new").touch()
    assert cache.is_complete(entry)
    assert [path.name for path in entry.parent.iterdir()] == ["entry"]


def _killed_in(delete: Callable[[], None]) -> None:
    """Die where the first file of an entry is gone, its list."""

    def die(path: Path) -> None:
        (path / cache.LIST).unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    cache.remove = die
    delete()


@pytest.mark.fault("killed", "while an entry is deleted")
@pytest.mark.parametrize(
    "delete",
    [
        lambda entry: cache.prune(entry.parent, keep=0),
        lambda entry: cache.discard(entry),
    ],
)
def test_an_entry_is_never_half_deleted(
    entry: Path, delete: Callable[[Path], None]
) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=_killed_in, args=(lambda: delete(entry),)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not entry.exists()
    assert len([*entry.parent.iterdir()]) == 1
    cache.prune(entry.parent, keep=1)
    assert [*entry.parent.iterdir()] == []


@pytest.mark.fault("truncated", "a result that is but a text")
@pytest.mark.fault("corrupted", "a result that is but a text")
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_text("[]"),
        lambda path: (path.unlink(), path.mkdir()),
        _append,
    ],
)
def test_a_damaged_file_is_none(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path = tmp_path / "kind" / "key"
    with cache.remarked() as remarks:
        assert cache.recall(path, dict) is None
        # What patches contain need not be text in any encoding.
        cache.retain(path, {"b": "ä\udcff", "most": math.inf})
        assert cache.recall(path, dict) == {"b": "ä\udcff", "most": math.inf}
    assert remarks == []
    damage(path)
    with cache.remarked() as remarks:
        assert cache.recall(path, dict) is None
    (line,) = remarks
    assert line.startswith(f"{path} is damaged (")


def test_what_cannot_be_parsed_is_none(tmp_path: Path) -> None:
    cache.retain(tmp_path / "key", ["seven"])
    with cache.remarked() as remarks:
        assert cache.recall(tmp_path / "key", lambda data: int(data[0])) is None
    assert remarks == [
        f"{tmp_path / 'key'} is damaged (it cannot be read): it is not used, but made "
        "anew"
    ]


def test_files_that_were_not_used_for_longest_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "RETAINED", 2)
    for number in range(2):
        cache.retain(tmp_path / f"key-{number}", [])
        os.utime(tmp_path / f"key-{number}", (number, number))
    assert cache.recall(tmp_path / "key-0", list) == []
    cache.retain(tmp_path / "new", [])
    assert {path.name for path in tmp_path.iterdir()} == {"key-0", "new"}


def test_data_count_without_being_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(cache, "write_text", refuse)
    with cache.remarked() as remarks:
        cache.retain(tmp_path / "key", [])
    assert "could not be kept (Permission denied)" in remarks[0]


@pytest.mark.parametrize("whole", [False, True])
def test_a_result_counts_without_being_kept(tmp_path: Path, whole: bool) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")
    error = shutil.Error([("from", "to", str(full))]) if whole else full
    with cache.remarked() as remarks, cache.keep_if_possible(tmp_path / "entry"):
        raise error
    assert "could not be kept (No space left on device)" in remarks[0]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError), cache.keep_if_possible(tmp_path / "entry"):
        raise OSError(errno.EIO, "broken")


def test_a_result_counts_even_if_nothing_can_be_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    publish = cache.publish

    @contextlib.contextmanager
    def refuse(target: Path) -> Iterator[Path]:
        raise full
        yield target

    monkeypatch.setattr(cache, "publish", refuse)
    with (
        cache.remarked() as remarks,
        cache.keep_if_possible(tmp_path / "entry") as scratch,
    ):
        (scratch / "result").write_text("42")
    assert "could not be kept (No space left on device)" in remarks[0]
    assert not scratch.exists() and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(cache, "publish", publish)
    with cache.keep_if_possible(tmp_path / "entry") as scratch:
        (scratch / "result").write_text("42")
    assert cache.is_complete(tmp_path / "entry")


def _hold(path: Path, held: Path) -> None:
    sys.argv = ["/usr/bin/kstall", "validate", "demo"]
    with cache.lock(path):
        held.touch()
        time.sleep(60)


def test_lock_waits_says_who_and_dies_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_REMIND_S", 0.05)
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
        # It is said again in time.
        if len(told) == 2:
            os.kill(child.pid, signal.SIGKILL)

    with cache.lock(tmp_path / "lock", waiting=waiting):
        assert told[:2] == [f"process {child.pid} (kstall validate demo)"] * 2
    child.join()


def test_lock_says_who_holds_it_and_not_who_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was taken just now, by one that has yet to write its name."""
    monkeypatch.setattr(cache, "_NAMELESS_S", 300.0)
    path = tmp_path / "lock"
    with cache.lock(path):
        assert str(os.getpid()) in path.read_text()
    assert path.read_text() == ""
    told: list[str] = []

    def wait() -> None:
        with cache.lock(path, waiting=told.append):
            pass

    with path.open("a") as file, concurrent.futures.ThreadPoolExecutor(1) as pool:
        fcntl.flock(file, fcntl.LOCK_EX)
        waits = pool.submit(wait)
        # So that it most likely comes while there is no name.
        time.sleep(0.05)
        file.write("process 7 (kstall list)")
        file.flush()
        while not told and not waits.done():
            time.sleep(0.01)
        fcntl.flock(file, fcntl.LOCK_UN)
    waits.result()
    assert told == ["process 7 (kstall list)"]


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
