# SPDX-License-Identifier: GPL-2.0-or-later
"""The beginning of a list, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def few(names: Sequence[str], most: int) -> str:
    """The first ``most`` of ``names``, and how many more there are; or "none".

    It is for people: two lists of which this says the same may differ.
    """
    rest = len(names) - most
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(names[:most]) + more if names else "none"
