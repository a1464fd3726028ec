# SPDX-License-Identifier: GPL-2.0-or-later
"""Writing files as a whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import duckdb

from kstall.base import cache

from .errors import OpsError, shown

#: Position and value of the magic number of DuckDB's files.
_MAGIC_AT, _MAGIC = 8, b"DUCK"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process changes ``path``, and keep others from that.

    Who reads a file to replace it needs this: else a change in between is lost.
    Raises `OpsError` if nothing can be written beside ``path``.
    """
    target = path.resolve()
    lock = target.with_name(f".{target.name}.lock")
    held = False
    while not held:
        try:
            file = lock.open("a", encoding="utf-8")
        except OSError as error:
            raise OpsError(f"{shown(path)}: {error.strerror}") from None
        with file:
            # Some network file systems refuse this lock.
            with suppress(OSError):
                _wait(file, path)
            # Whoever held it has deleted it; another may have made it anew.
            held = _is_at(file, lock)
            if held:
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)


def _wait(file: TextIO, path: Path) -> None:
    """Lock ``file``, and say so if another process holds it."""
    if not cache.locked_if_free(file):
        text = f"waiting for another process that writes {shown(path)}"
        print(f"kstall: {text}", file=sys.stderr)
        fcntl.flock(file, fcntl.LOCK_EX)


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def replacing(path: Path, *, store: bool = False) -> Iterator[Path]:
    """A draft beside ``path`` that replaces it if the block raises no exception.

    Raises `OpsError` if a file cannot be read or written; then ``path`` is unchanged,
    and nothing is left beside it.  Only a ``store`` may replace a store.
    """
    _check(path, store=store)
    # Replace the target of a link, not the link, as with /dev/stdout.
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        _remove(draft)
        yield draft
        draft.replace(target)
    except OSError as error:
        # An error of an open file, as in write(), has no file name.
        where = error.filename if error.filename not in (None, str(draft)) else path
        text = f"{where}: {error.strerror or error}"
        raise OpsError(shown(f"{text}; {path} is as it was", 400)) from None
    except (duckdb.IOException, duckdb.FatalException) as error:
        first = str(error).splitlines()[0].rpartition("Error: ")[2]
        first = first.replace(str(draft.absolute()), str(path))
        raise OpsError(
            shown(f"{path}: not written, and as it was: {first}", 400)
        ) from None
    finally:
        _remove(draft)


def _check(path: Path, *, store: bool) -> None:
    """Raise `OpsError` if what is at ``path`` is not ours to replace.

    A device least of all: root may rename a file to /dev/null.
    """
    if not path.exists():
        return
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "no plain file"
        raise OpsError(f"{shown(path)}: {kind}; it is as it was, give another name")
    if not store and _is_database(path):
        raise OpsError(f"{shown(path)}: a store; it is as it was, give another name")


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(_MAGIC_AT)
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _remove(draft: Path) -> None:
    for file in (draft, draft.with_name(draft.name + ".wal")):
        try:
            file.unlink()
        except OSError:
            # It does not exist, or another error is already being reported.
            continue
