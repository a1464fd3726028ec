# SPDX-License-Identifier: GPL-2.0-or-later
"""Writing a recording so that a kill or a full disk costs only the open files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from .errors import Full, NodeError, is_full


def replace(path: Path, value: Any) -> None:
    """Write JSON beside ``path`` and rename it.  Raises `Full`."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(json.dumps(value).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise failure(path, error) from None


def in_use(dir: Path) -> int | None:
    """A handle; until it is closed no recorder deletes from the recording ``dir``.

    None if ``dir`` cannot be opened.  Where directories cannot be locked, as on some
    network file systems, no recorder deletes from older recordings at all.
    """
    try:
        handle = os.open(dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def failure(path: Path, error: OSError) -> NodeError:
    """The exception to raise for ``error``."""
    if is_full(error):
        return Full(f"{path.parent}: the disk is full")
    return NodeError(f"{path}: {error.strerror}")


def write_all(handle: int, data: bytes) -> int:
    """Write all of ``data``.  Raises `OSError`, perhaps after writing some of it."""
    done = 0
    view = memoryview(data)
    while done < len(data):
        done += os.write(handle, view[done:])
    return done
