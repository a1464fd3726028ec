# SPDX-License-Identifier: GPL-2.0-or-later
"""rules.toml: what may be said of each class, and the limits of all claims."""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Class:
    """What may be said of stalls of one class, what to do, and what is not said."""

    say: str
    fix: str
    doc: str
    not_said: str
    highest: str
    #: Patterns of causes that are said on one occurrence, and what is said of them.
    once: tuple[str, ...]
    once_say: str
    blocks: bool

    def counts_once(self, cause: str) -> bool:
        """Whether one of this cause is bad enough, whoever was late."""
        return any(fnmatch.fnmatchcase(cause.lower(), one) for one in self.once)


@dataclass(frozen=True)
class Rules:
    """The whole file."""

    late_share: float
    late_min_ns: int
    late_steps: int
    coverage: float
    p: float
    permutations: int
    warn: float
    high: float
    slowed: float
    open_min_ns: int
    hung_steps: int
    classes: dict[str, Class]
    oracles: dict[str, tuple[float, int]]


@functools.cache
def rules() -> Rules:
    """Those that come with the package."""
    text = Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
    said: dict[str, Any] = tomllib.loads(text)
    return Rules(
        **{name.replace("-", "_"): value for name, value in said["thresholds"].items()},
        classes={
            name: Class(
                say=entry["say"],
                fix=entry["fix"],
                doc=entry["doc"],
                not_said=entry["not-said"],
                highest=entry.get("highest", "explains"),
                once=tuple(entry.get("once", ())),
                once_say=entry.get("once-say", entry["say"]),
                blocks=entry.get("blocks", False),
            )
            for name, entry in said["class"].items()
        },
        oracles={
            name: (entry["share"], entry["absolute"])
            for name, entry in said["oracle"].items()
        },
    )
