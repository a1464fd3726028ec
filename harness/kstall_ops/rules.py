# SPDX-License-Identifier: GPL-2.0-or-later
"""rules.toml: texts and limits of the claims about each class."""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Class:
    """Texts of claims about one class: claim, remedy, and what is not claimed."""

    say: str
    #: The claim where it was not the late thread, but others of its process.
    say_process: str
    #: The claim where it is not known which thread it was.
    say_node: str
    fix: str
    doc: str
    not_said: str
    highest: str
    #: Patterns of causes that are reported on one occurrence, and the text for them.
    once: tuple[str, ...]
    once_say: str
    blocks: bool
    #: Whether its device may only have received what another sent, the ``join_key``.
    sent: bool

    def counts_once(self, cause: str) -> bool:
        """Whether a single stall with this cause is reported, whether or not late."""
        return any(fnmatch.fnmatchcase(cause.lower(), pattern) for pattern in self.once)

    def device(self, device: str | None, join_key: str | None) -> str | None:
        """The device that a stall is due to, as text; None if that is not known."""
        if not self.sent or device is None:
            return device
        return join_key or f"a device at or below {device}"


@dataclass(frozen=True)
class Rules:
    """The content of rules.toml."""

    late_share: float
    late_min_ns: int
    late_steps: int
    coverage: float
    p: float
    permutations: int
    drawn: int
    warn: float
    high: float
    slowed: float
    open_min_ns: int
    hung_steps: int
    classes: dict[str, Class]
    oracles: dict[str, tuple[float, int]]


@functools.cache
def rules() -> Rules:
    """The rules in the package."""
    text = Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
    content: dict[str, Any] = tomllib.loads(text)
    thresholds = content["thresholds"]
    return Rules(
        **{name.replace("-", "_"): value for name, value in thresholds.items()},
        classes={
            name: Class(
                say=entry["say"],
                say_process=entry.get("say-process", entry["say"]),
                say_node=entry.get("say-node", entry["say"]),
                fix=entry["fix"],
                doc=entry["doc"],
                not_said=entry["not-said"],
                highest=entry.get("highest", "explains"),
                once=tuple(entry.get("once", ())),
                once_say=entry.get("once-say", entry["say"]),
                blocks=entry.get("blocks", False),
                sent=entry.get("sent", False),
            )
            for name, entry in content["class"].items()
        },
        oracles={
            name: (entry["share"], entry["absolute"])
            for name, entry in content["oracle"].items()
        },
    )
