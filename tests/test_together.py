# SPDX-License-Identifier: GPL-2.0-or-later
"""The project's series on Debian's kernel: each alone, and all of them in any order.

Series that share no file cannot get into each other's way, whatever the order.  Of
those that do, each pair is applied in both orders; a hunk's place depends on the lines
around it only, so that two series that bear each other bear others as well, of which
full orders are samples.  The outcome has to be the same tree, to the byte.

Two that change the same statement cannot both be taken as they are, and whoever sends
them has to know: `RIVALS` has the pairs and why.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from kstall.base import cache
from kstall.pipeline import groups
from kstall.series import Project, Series
from kstall.tree import Base, am, source, tree

# No boot, but the kernel's source is needed.
pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[1]
NAMES = Project(ROOT).names()
#: Pairs of series of which the one that comes second has to be rebased.
RIVALS = {
    # The event tells what finds the FIFO full, and the fix drops less of it.
    ("pci-aer", "pci-aer-overflow"),
    # Each changes the loop that handles the devices: one puts references there, the
    # other has what was reported handled.
    ("pci-aer-fixes", "pci-aer-leaks"),
    # The event is where the fix has the caller decide who waits.
    ("iommu-iotlb", "iommu-lazy"),
}
#: Pairs of which the first has to come first, as their covers say.
ORDERED = {
    # The fix is to be sent before the events, which move lines that it has as context.
    ("iommu-fq", "iommu-iotlb"),
    # An event relies on the fix, and each adds a file to the same list of tests.
    ("drm-sched-stop", "drm-sched"),
}


@pytest.fixture(scope="module")
def base() -> Base:
    """Debian's newest kernel source, as `kstall validate` takes it."""
    return source.obtain(None, cache.default_dir(), lambda _: None)


def _load(names: Sequence[str]) -> tuple[Series, ...]:
    return Project(ROOT).load(names)


def _plan(base: Base, names: Sequence[str], scratch: Path) -> tree.Plan:
    patches = [patch for series in _load(names) for patch in series.patches]
    return tree.plan(base, patches, scratch)


def _sharing() -> list[tuple[str, str]]:
    """Pairs of series that touch a file in common."""
    touches = {series.name: series.touches for series in _load(NAMES)}
    return [
        (first, second)
        for first, second in itertools.combinations(NAMES, 2)
        if touches[first] & touches[second]
    ]


def _ordered(names: Sequence[str]) -> list[str]:
    """``names``, with what has to come first right before what follows it."""
    order = list(names)
    for first, second in ORDERED:
        if {first, second} <= set(order) and order.index(first) > order.index(second):
            order.remove(first)
            order.insert(order.index(second), first)
    return order


@pytest.mark.parametrize("name", NAMES)
def test_each_applies_alone(base: Base, tmp_path: Path, name: str) -> None:
    plan = _plan(base, [name], tmp_path)
    (series,) = _load([name])
    assert set(plan.touched) == series.touches


def test_pairs_that_share_a_file_apply_in_both_orders(
    base: Base, tmp_path: Path
) -> None:
    for first, second in _sharing():
        if (first, second) in RIVALS:
            continue
        if (second, first) in ORDERED:
            first, second = second, first
        ahead = _plan(base, [first, second], tmp_path)
        if (first, second) in ORDERED:
            with pytest.raises(am.ApplyError):
                _plan(base, [second, first], tmp_path)
            continue
        behind = _plan(base, [second, first], tmp_path)
        assert ahead.content == behind.content, (first, second)


def test_all_apply_in_orders_of_which_each_series_is_first_and_last(
    base: Base, tmp_path: Path
) -> None:
    ends: set[tuple[str, str]] = set()
    # Each rival is there once; other choices of them have the same neighbours.
    for left_out in zip(*sorted(RIVALS), strict=True):
        names = [name for name in NAMES if name not in left_out]
        turns = [names[n:] + names[:n] for n in range(len(names))]
        # The second time only what is next to a rival is new.
        new = [turn for turn in turns if (turn[0], turn[-1]) not in ends]
        ends |= {(turn[0], turn[-1]) for turn in new}
        orders = [_ordered(order) for order in (names, *new, names[::-1])]
        contents = {_plan(base, order, tmp_path).content for order in orders}
        assert len(contents) == 1
        touched = frozenset().union(*(series.touches for series in _load(names)))
        assert set(_plan(base, _ordered(names), tmp_path).touched) == touched


def test_one_kernel_has_the_tree_that_git_makes_of_all_patches(
    base: Base, tmp_path: Path
) -> None:
    """Parts that share no file are applied apart."""
    group, division = groups.applied(base, _load(NAMES), tmp_path)
    assert len(division.outliers) == len(RIVALS)
    at_once = tree.plan(base, group.plan.patches, tmp_path)
    assert group.plan == at_once


@pytest.mark.parametrize(("first", "second"), sorted(RIVALS))
def test_rivals_cannot_both_be_applied(
    base: Base, tmp_path: Path, first: str, second: str
) -> None:
    for order in ((first, second), (second, first)):
        with pytest.raises(am.ApplyError):
            _plan(base, order, tmp_path)
