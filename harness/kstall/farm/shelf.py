# SPDX-License-Identifier: GPL-2.0-or-later
"""A cache and a store, and entries that go from one to the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base import cache, elsewhere
from .store import Artifact, Damaged, Store

# How many entries of a kind are kept, and how many where there is room: of roots, of
# 1 GB each, those of two clients with two architectures.  Other kinds are pruned by
# their packages.
_LIMITS = {
    "kernels": cache.KERNELS,
    "projects": (20, 20),
    "extra": (200, 200),
    "roots": (4, 4),
}


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

        Older entries make room.  Raises `Damaged`; a damaged entry is never in the
        cache.
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
        self._kind(entry).prune(target)
        return True

    @contextlib.contextmanager
    def borrowed(self, store: Store, entries: Mapping[str, Artifact]) -> Iterator[None]:
        """Bring ``entries``, and have them stay in the cache while the block runs.

        Raises `Damaged`.
        """
        with contextlib.ExitStack() as leases:
            for entry, artifact in entries.items():
                held = False
                while not held:
                    self.bring(store, entry, artifact)
                    leases.enter_context(cache.held(self.cache / entry))
                    # It may have made room for another one before it was held.
                    held = self.is_complete(entry)
            yield

    def publish(self, store: Store, entry: str) -> Artifact:
        """Put ``entry`` of the cache into ``store``, unless it is there."""
        name = f"publish-{entry.replace('/', '-')}"
        with cache.lock(self.cache / "locks" / name):
            if (artifact := store.entry(entry)) is not None:
                return artifact
            with self._kind(entry).packed(self.cache / entry) as names:
                return store.put_entry(entry, self.cache / entry, names)
