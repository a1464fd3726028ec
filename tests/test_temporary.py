# SPDX-License-Identifier: GPL-2.0-or-later
"""Directories that the next run removes if the one that made them is killed."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstall.base import cache, process, temporary

HOLD = """
import sys
from pathlib import Path
from kstall.base import temporary
with temporary.directory("guest", Path(sys.argv[1])) as place:
    (place / "share").mkdir()
    (place / "share").chmod(0o500)
    print(place, flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(base: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that has a directory, and the directory."""
    argv = [sys.executable, "-c", HOLD, str(base)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_it_is_gone_afterwards(tmp_path: Path) -> None:
    with temporary.directory("mail", tmp_path) as place:
        assert place.parent == tmp_path and place.name.startswith("kstall-mail-")
        (place / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_has_left_is_removed(tmp_path: Path) -> None:
    with another(tmp_path) as (process, theirs):
        process.kill()
        process.wait()
        assert (theirs / "share").is_dir()
        with temporary.directory("mail", tmp_path) as place:
            assert list(tmp_path.iterdir()) == [place]


def test_what_was_not_removed_at_once_is_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is being killed may still write there."""
    with temporary.directory("root", tmp_path) as place:
        (place / "file").touch()
        monkeypatch.setattr(cache, "remove", _refuse(OSError(errno.ENOTEMPTY, "x")))
    assert place.is_dir()
    monkeypatch.undo()
    with temporary.directory("mail", tmp_path) as other:
        assert list(tmp_path.iterdir()) == [other]


def test_files_of_other_ids_of_ours_are_removed_in_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As mmdebstrap leaves them if somebody else than root has it killed."""
    seen = []

    def run(argv: Sequence[str | Path], **_: object) -> None:
        seen.append(tuple(map(str, argv)))
        monkeypatch.undo()
        subprocess.run(["rm", "-rf", argv[-1]], check=True)

    monkeypatch.setattr(process, "run", run)
    with temporary.directory("root", tmp_path) as place:
        (place / "mmdebstrap.x").mkdir()
        monkeypatch.setattr(cache, "remove", _refuse(PermissionError(1, "not ours")))
    words = ("unshare", "--map-root-user", "--map-auto", "rm", "-rf")
    assert seen == [(*words, "--one-file-system", str(place))]
    assert list(tmp_path.iterdir()) == []


def _refuse(error: OSError) -> Callable[[Path], None]:
    def remove(_: Path) -> None:
        raise error

    return remove


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    with another(tmp_path) as (_, theirs):
        with temporary.directory("mail", tmp_path):
            pass
        assert (theirs / "share").is_dir()


def test_a_directory_of_somebody_else_stays(tmp_path: Path) -> None:
    clone = tmp_path / "kstall-clone"
    (clone / "patches").mkdir(parents=True)
    link = tmp_path / "kstall-link"
    link.symlink_to(clone)
    with temporary.directory("mail", tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == [clone, link]
    assert (clone / "patches").is_dir()
