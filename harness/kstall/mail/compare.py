# SPDX-License-Identifier: GPL-2.0-or-later
"""Received patches, compared with the series of this checkout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..series import PatchFile, Series, patchfile
from ..tree import am, commits, tree

Relation = Literal["same", "changed", "new", "missing"]


@dataclass(frozen=True)
class PatchPair:
    """A patch of ours and its received counterpart; either may be None."""

    ours: PatchFile | None
    theirs: PatchFile | None
    relation: Relation


@dataclass(frozen=True)
class Resemblance:
    """Our series that is most like the received one.

    ``same_tree``: both result in the same tree.  ``range_diff`` is empty if no patches
    could be compared.
    """

    series: Series
    pairs: tuple[PatchPair, ...]
    same_tree: bool
    range_diff: str

    @property
    def complete(self) -> bool:
        """Whether each patch of ours and of theirs has a counterpart."""
        return all(
            pair.ours is not None and pair.theirs is not None for pair in self.pairs
        )

    @property
    def same_patches(self) -> bool:
        """Whether both also take the same steps to the same tree."""
        return self.same_tree and all(pair.relation == "same" for pair in self.pairs)


def find(
    incoming: tree.Plan, candidates: Sequence[Series], scratch: Path
) -> Resemblance | None:
    """The one of ``candidates`` that ``incoming`` is a version of, or None.

    At least half of the patches of the shorter series must have a counterpart: the same
    change by its patch id, or the same subject.
    """
    touched = incoming.files.keys()
    best: Resemblance | None = None
    for series in candidates:
        if not touched & series.touches:
            continue
        try:
            ours = tree.plan(incoming.base, series.patches, scratch)
        except am.ApplyError:
            # It does not apply to this base.
            continue
        resemblance = _compare(incoming, ours, series, scratch)
        if best is None or _common(resemblance) > _common(best):
            best = resemblance
    if best is None:
        return None
    least = min(len(best.series.patches), len(incoming.patches))
    return best if 2 * _common(best) >= least and _common(best) else None


def _common(resemblance: Resemblance) -> int:
    return sum(pair.relation in ("same", "changed") for pair in resemblance.pairs)


def _compare(
    incoming: tree.Plan, ours: tree.Plan, series: Series, scratch: Path
) -> Resemblance:
    repository = commits.Repository(scratch)
    # Both with all files that either touches, so that they have the same base.
    theirs_line = repository.add(incoming, _messages(incoming), list(ours.files))
    ours_line = repository.add(ours, _messages(ours), list(incoming.files))
    pairs = _pairs(
        list(zip(ours.patches, repository.patch_ids(ours_line), strict=True)),
        list(zip(incoming.patches, repository.patch_ids(theirs_line), strict=True)),
    )
    return Resemblance(
        series,
        pairs,
        ours.content == incoming.content,
        repository.range_diff(ours_line, theirs_line),
    )


def _messages(plan: tree.Plan) -> list[str]:
    messages = []
    for patch in plan.patches:
        try:
            message = patchfile.split(patch.path)[0]
        except patchfile.Unmailable:
            message = ""
        messages.append(message)
    return messages


def _pairs(
    ours: Sequence[tuple[PatchFile, str]], theirs: Sequence[tuple[PatchFile, str]]
) -> tuple[PatchPair, ...]:
    remaining = list(theirs)
    pairs = []
    for patch, patch_id in ours:
        same = next(
            (candidate for candidate in remaining if candidate[1] == patch_id), None
        )
        namesake = next(
            (
                candidate
                for candidate in remaining
                if candidate[0].subject == patch.subject
            ),
            None,
        )
        if (match := same or namesake) is None:
            pairs.append(PatchPair(patch, None, "missing"))
            continue
        remaining.remove(match)
        pairs.append(PatchPair(patch, match[0], "same" if same else "changed"))
    pairs += [PatchPair(None, patch, "new") for patch, _ in remaining]
    return tuple(pairs)
