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
    """The cache's entry for a guest's results; of its ``kind`` there are ``limit``.

    It is used unless ``fresh`` results are asked for, or it is not ``usable``.
    ``forget`` drops the results where else they are.
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
        """Where it is, if it exists."""
        return self.context.cache / self.kind / self.key

    def turn(self, doing: str = "runs this very guest") -> AbstractContextManager[None]:
        """Hold the lock that all of this needs, see `Context.turn`."""
        return self.context.turn(f"{self.kind}-{self.key}", doing)

    def copy(self, target: Path) -> bool:
        """Copy the results to ``target``, if they are usable; returns whether."""
        with cache.held(self.entry):
            if usable := not self.fresh and self.usable(self.entry):
                ignored = shutil.ignore_patterns(cache.LIST)
                shutil.copytree(self.entry, target, ignore=ignored)
        return usable

    @contextlib.contextmanager
    def replaced(self) -> Iterator[Path]:
        """A directory to fill with other results, which are kept if possible."""
        with cache.keep_if_possible(self.entry) as scratch:
            yield scratch
        cache.prune(self.entry.parent, keep=self.limit)

    def keep(self, results: Path) -> None:
        """Keep ``results`` instead."""
        with self.replaced() as scratch:
            shutil.copytree(results, scratch, dirs_exist_ok=True)

    def drop(self) -> None:
        """Keep none: results of an earlier guest do not disprove those of a later."""
        # In a read-only cache removing what does not exist fails as well.
        if self.entry.exists():
            cache.remove(self.entry)
        self.forget()
