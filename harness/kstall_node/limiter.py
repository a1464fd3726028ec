# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeping the rate of records below a limit: the busiest event is cut."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .journal import Journal
from .sources import Attached, events
from .tracefs import MARK, Instance, Refused

_RAISE = 4
_LEAST = 1000
_HIGHEST = 1_000_000_000


class Limiter:
    """Allows about ``most`` records a second, and notes what it cuts."""

    def __init__(
        self,
        most: int,
        instance: Instance,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self._most, self._instance = most, instance
        self._journal, self._say = journal, say
        self._rated: tuple[float, int] = (0.0, 0)
        #: About how many records of each event were read since the last look.
        self._kinds: dict[str, int] = {}

    def begin(self, written: int) -> None:
        """Measure from now on; ``written`` is how many records there were so far."""
        self._rated = (time.monotonic(), written)

    def count(self, counts: Mapping[str, int]) -> None:
        """Add what was read of each event."""
        for event, count in counts.items():
            self._kinds[event] = self._kinds.get(event, 0) + count

    def look(self, now: float, written: int, active: Sequence[Attached]) -> str | None:
        """If there were too many records since the last look, cut the busiest event.

        Returns the name of its source: session.json has to be written.  Marks do not
        count: they cannot be cut, and any user may write many.
        """
        then, before = self._rated
        self._rated = (now, written)
        rate = (written - before) / max(now - then, 0.001)
        cut = None
        if rate > self._most:
            counted = sum(self._kinds.values())
            rate *= 1 - self._kinds.pop(MARK, 0) / max(1, counted)
            if rate > self._most:
                cut = self._cut(int(rate), active)
        self._kinds.clear()
        return cut

    def _cut(self, rate: int, active: Sequence[Attached]) -> str | None:
        """Raise the threshold of the busiest event; without a duration, suspend it."""
        users = {
            event: attached
            for attached in active
            for event in events(
                [spec for spec in attached.specs if not spec.get("suspended")]
            )
        }
        counted = {event: self._kinds.get(event, 0) for event in users}
        event = max(counted, key=counted.__getitem__, default=None)
        if event is None or not counted[event]:
            return None
        attached, now = users[event], time.monotonic_ns()
        specs = [
            spec for spec in attached.specs if event in (spec.get("begin"), spec["end"])
        ]
        member, least = attached.durations.get(event), specs[0]["min_ns"] or 0
        if member is not None and least < _HIGHEST:
            least = min(_HIGHEST, max(_LEAST, least * _RAISE))
            self._instance.filter(event, f"{member} >= {least}")
            specs[0]["min_ns"] = least
            name = specs[0]["provider"]
            reason = f"threshold {name} {least} ns"
            what = f"records only what lasted {least} ns or longer from now on"
        else:
            name = self._suspend(attached, specs, now)
            reason, what = f"suspended {name}", "is suspended"
        self._journal.note_loss(None, now, None, reason)
        self._say(f"{rate} records a second: {name} {what}")
        return attached.source.name

    def _suspend(
        self, attached: Attached, specs: list[dict[str, Any]], now: int
    ) -> str:
        """Switch off events of these providers that no others need; their name."""
        for spec in specs:
            spec["suspended"] = now
        rest = [spec for spec in attached.specs if not spec.get("suspended")]
        for event in {*events(specs)} - {*events(rest)}:
            with contextlib.suppress(Refused):
                self._instance.enable(event, False)
        return str(specs[0]["provider"] if rest else attached.source.name)
