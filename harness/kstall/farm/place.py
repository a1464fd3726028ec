# SPDX-License-Identifier: GPL-2.0-or-later
"""The directories of workers' caches, each for one worker at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from ..base import cache


@contextlib.contextmanager
def reserved(top: Path, name: str) -> Iterator[Path]:
    """The directory ``name`` below ``top``, or ``name-2`` and so on if other workers
    have it: ours while the block runs.

    So the cache is that of the worker before us, whatever ended it, and what that one
    left half made is deleted.
    """
    for number in itertools.count(1):
        place = top / (name if number == 1 else f"{name}-{number}")
        place.mkdir(parents=True, exist_ok=True)
        with (place / "worker.lock").open("a") as file:
            if not cache.locked_if_free(file):
                continue
            for directory in place.iterdir():
                cache.sweep(directory)
            yield place
        return
