# SPDX-License-Identifier: GPL-2.0-or-later
"""A cache and a store, and entries that go from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base import cache, elsewhere
from .store import Artifact, Damaged, Store

# How many of a kind are kept; of those that are not named the packages take care.
_KEPT = {"kernels": 10, "projects": 20, "extra": 64}


@dataclass(frozen=True)
class Shelf:
    """``kinds`` are those of entries that are not as `elsewhere.Kind` has them."""

    cache: Path
    kinds: Mapping[str, elsewhere.Kind] = field(default_factory=dict)

    def _kind(self, entry: str) -> elsewhere.Kind:
        return self.kinds.get(entry.partition("/")[0], elsewhere.Kind())

    def is_there(self, entry: str) -> bool:
        """Whether the cache has ``entry``, whole."""
        return self._kind(entry).is_there(self.cache / entry)

    def bring(self, store: Store, entry: str, artifact: Artifact) -> bool:
        """Have ``entry`` in the cache; whether it had to be brought.

        Raises `Damaged`; what is not what it should be is never in the cache.
        """
        target = self.cache / entry
        name = f"bring-{entry.replace('/', '-')}"
        with cache.lock(self.cache / "locks" / name):
            if self.is_there(entry):
                return False
            with cache.publish(target) as scratch:
                store.get(artifact, scratch)
            if not self.is_there(entry):
                cache.remove(target)
                raise Damaged(f"{entry} from {store.url} is no such entry")
        kind = entry.partition("/")[0]
        if kind in _KEPT:
            target.touch()
            cache.prune(self.cache / kind, keep=_KEPT[kind])
        return True

    def publish(self, store: Store, entry: str) -> Artifact:
        """Have ``entry``, which is in the cache, in ``store``."""
        name = f"publish-{entry.replace('/', '-')}"
        with cache.lock(self.cache / "locks" / name):
            if (found := store.entry(entry)) is not None:
                return found
            with self._kind(entry).packed(self.cache / entry) as names:
                return store.put_entry(entry, self.cache / entry, names)
