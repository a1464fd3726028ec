# SPDX-License-Identifier: GPL-2.0-or-later
"""Patches that came in, held against the series of this checkout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..series import Patch, Series, patchfile
from ..tree import am, commits, tree

Relation = Literal["same", "changed", "new", "missing"]


@dataclass(frozen=True)
class Pair:
    """A patch of ours and what came of it; one of them may be none."""

    ours: Patch | None
    theirs: Patch | None
    relation: Relation


@dataclass(frozen=True)
class Resemblance:
    """The series of ours that is most like what came.

    ``same_tree``: both make the same tree.  ``range_diff`` is empty if no patch of it
    could be compared.
    """

    series: Series
    pairs: tuple[Pair, ...]
    same_tree: bool
    range_diff: str

    @property
    def complete(self) -> bool:
        """Whether each patch of ours has one that came in its place, in order."""
        return all(
            pair.ours is not None and pair.theirs is not None for pair in self.pairs
        )


def find(came: tree.Plan, known: Sequence[Series], scratch: Path) -> Resemblance | None:
    """Which of ``known`` the patches of ``came`` are, or None if they are of none.

    They are if at least half of either has a counterpart: the same change by its patch
    id, or the same subject.
    """
    touched = {path for patch in came.patches for path in patch.touches}
    best: Resemblance | None = None
    for series in known:
        if not touched & series.touches:
            continue
        try:
            ours = tree.plan(came.base, series.patches, scratch)
        except am.ApplyError:
            # It is not for this base.
            continue
        found = _compare(came, ours, series, scratch)
        if best is None or _common(found) > _common(best):
            best = found
    if best is None:
        return None
    least = min(len(best.series.patches), len(came.patches))
    return best if 2 * _common(best) >= least and _common(best) else None


def _common(found: Resemblance) -> int:
    return sum(pair.relation in ("same", "changed") for pair in found.pairs)


def _compare(
    came: tree.Plan, ours: tree.Plan, series: Series, scratch: Path
) -> Resemblance:
    repository = commits.Repository(scratch)
    # Both with all files that either touches, so that their bases are one.
    theirs_line = repository.add(came, _messages(came), list(dict(ours.states[0])))
    ours_line = repository.add(ours, _messages(ours), list(dict(came.states[0])))
    pairs = _pairs(
        list(zip(ours.patches, repository.patch_ids(ours_line), strict=True)),
        list(zip(came.patches, repository.patch_ids(theirs_line), strict=True)),
    )
    return Resemblance(
        series,
        pairs,
        ours.content == came.content,
        repository.range_diff(ours_line, theirs_line),
    )


def _messages(plan: tree.Plan) -> list[str]:
    found = []
    for patch in plan.patches:
        try:
            message = patchfile.split(patch.path)[0]
        except patchfile.Unmailable:
            message = ""
        found.append(f"{patch.subject}\n\n{message}\n")
    return found


def _pairs(
    ours: Sequence[tuple[Patch, str]], theirs: Sequence[tuple[Patch, str]]
) -> tuple[Pair, ...]:
    left = list(theirs)
    pairs = []
    for patch, patch_id in ours:
        same = next((one for one in left if one[1] == patch_id), None)
        named = next((one for one in left if one[0].subject == patch.subject), None)
        if (match := same or named) is None:
            pairs.append(Pair(patch, None, "missing"))
            continue
        left.remove(match)
        pairs.append(Pair(patch, match[0], "same" if same else "changed"))
    pairs += [Pair(None, patch, "new") for patch, _ in left]
    return tuple(pairs)
