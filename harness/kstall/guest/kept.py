# SPDX-License-Identifier: GPL-2.0-or-later
"""Results of guests in the cache, which a later run takes instead of booting."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ..base import cache
from ..series import Context


@dataclass(frozen=True)
class KeptResults:
    """The cache entry for a guest's results.

    At most ``limit`` entries of a ``kind`` are kept.  The entry is used if it is
    ``usable`` and ``fresh`` is not set.  ``forget`` drops copies outside of the cache.
    """

    context: Context
    kind: str
    key: str
    limit: int
    fresh: bool = False
    usable: Callable[[Path], bool] = cache.is_complete
    forget: Callable[[], None] = lambda: None

    @property
    def entry(self) -> Path:
        """Its path; it may not exist."""
        return self.context.cache / self.kind / self.key

    def turn(self, doing: str = "runs this very guest") -> AbstractContextManager[None]:
        """Hold the lock that all other methods need, see `Context.turn`."""
        return self.context.turn(f"{self.kind}-{self.key}", doing)

    def copy(self, target: Path) -> bool:
        """Copy usable results to ``target``; returns whether there were any."""
        with cache.held(self.entry):
            if usable := not self.fresh and self.usable(self.entry):
                ignored = shutil.ignore_patterns(cache.LIST)
                shutil.copytree(self.entry, target, ignore=ignored)
        return usable

    @contextlib.contextmanager
    def replaced(self) -> Iterator[Path]:
        """A directory to fill with new results, which replace the old ones."""
        with cache.keep_if_possible(self.entry) as scratch:
            yield scratch
        cache.prune(self.entry.parent, keep=self.limit)

    def keep(self, results: Path) -> None:
        """Replace the kept results by ``results``."""
        with self.replaced() as scratch:
            shutil.copytree(results, scratch, dirs_exist_ok=True)

    def drop(self) -> None:
        """Delete the entry, which results of a later guest have disproved."""
        # In a read-only cache removing what does not exist fails as well.
        if self.entry.exists():
            cache.discard(self.entry)
        self.forget()
