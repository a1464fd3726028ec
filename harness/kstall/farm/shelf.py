# SPDX-License-Identifier: GPL-2.0-or-later
"""A cache and a store, and entries that go from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base import cache, elsewhere
from .store import Artifact, Damaged, Store

# How many entries of a kind are kept, and how many where there is room; other kinds are
# pruned by their packages.
_LIMITS = {"kernels": cache.KERNELS, "projects": (20, 20), "extra": (200, 200)}


@dataclass(frozen=True)
class Shelf:
    """``kinds`` has the kinds of entries that need more than `elsewhere.EntryKind`."""

    cache: Path
    kinds: Mapping[str, elsewhere.EntryKind] = field(default_factory=dict)

    def _kind(self, entry: str) -> elsewhere.EntryKind:
        return self.kinds.get(entry.partition("/")[0], elsewhere.EntryKind())

    def is_complete(self, entry: str) -> bool:
        """Whether the cache has ``entry``, complete."""
        return self._kind(entry).is_complete(self.cache / entry)

    def bring(self, store: Store, entry: str, artifact: Artifact) -> bool:
        """Bring ``entry`` into the cache; return whether it was missing.

        Raises `Damaged`; a damaged entry is never in the cache.
        """
        target = self.cache / entry
        name = f"bring-{entry.replace('/', '-')}"
        with cache.lock(self.cache / "locks" / name):
            if self.is_complete(entry):
                return False
            with cache.publish(target) as scratch:
                store.get(artifact, scratch)
            if not self.is_complete(entry):
                cache.remove(target)
                raise Damaged(f"{entry} from {store.url} is no such entry")
        kind = entry.partition("/")[0]
        if kind in _LIMITS:
            target.touch()
            keep, most = _LIMITS[kind]
            cache.prune(self.cache / kind, keep=keep, most=most)
        return True

    def publish(self, store: Store, entry: str) -> Artifact:
        """Put ``entry`` of the cache into ``store``, unless it is there."""
        name = f"publish-{entry.replace('/', '-')}"
        with cache.lock(self.cache / "locks" / name):
            if (artifact := store.entry(entry)) is not None:
                return artifact
            with self._kind(entry).packed(self.cache / entry) as names:
                return store.put_entry(entry, self.cache / entry, names)
