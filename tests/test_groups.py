# SPDX-License-Identifier: GPL-2.0-or-later
"""Which series can share a kernel, and who is in whose way."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import kerneltree
from kstall.pipeline import groups
from kstall.pipeline.groups import Group, Names, Outlier, divide
from kstall.series import PatchFile, Project, Series, patchfile
from kstall.tree import am, tree

ALL = tuple("abcdefgh")


class Asked:
    """Holds unless a part has all of one of ``conflicts``; counts the questions."""

    def __init__(self, *conflicts: str) -> None:
        self.conflicts = [set(conflict) for conflict in conflicts]
        self.parts: list[Names] = []

    def __call__(self, part: Names) -> bool:
        self.parts.append(part)
        return not any(conflict <= set(part) for conflict in self.conflicts)


def test_those_that_hold_together_are_asked_once() -> None:
    asked = Asked()
    assert divide(ALL, asked) == groups.Division(ALL)
    assert asked.parts == [ALL]


def test_one_alone_is_not_asked_at_all() -> None:
    assert divide(("a",), Asked("a")) == groups.Division(("a",))


@pytest.mark.parametrize("guilty", ALL)
def test_one_that_is_broken_by_itself_is_found(guilty: str) -> None:
    asked = Asked(guilty)
    division = divide(ALL, asked)
    assert division.outliers == (Outlier(guilty, None, alone=False),)
    assert division.together == tuple(name for name in ALL if name != guilty)
    # All, three halves, itself, and the others.
    assert len(asked.parts) <= 6


@pytest.mark.parametrize("pair", list(itertools.combinations(ALL, 2)))
def test_of_a_pair_the_later_one_stands_apart(pair: Names) -> None:
    asked = Asked("".join(pair))
    division = divide(ALL, asked)
    assert division.outliers == (Outlier(pair[1], pair[0], alone=True),)
    assert division.together == tuple(name for name in ALL if name != pair[1])
    assert len(asked.parts) == len(set(asked.parts)) <= 11


def test_whoever_is_suspected_is_taken_out_first() -> None:
    asked = Asked("bg")
    division = divide(ALL, asked, lambda: ("z", "b"))
    assert division.outliers == (Outlier("b", "g", alone=True),)
    assert asked.parts[:3] == [ALL, tuple("acdefgh"), ("b",)]


def test_a_suspect_that_is_innocent_is_left_where_it_is() -> None:
    division = divide(ALL, Asked("g"), lambda: ("b",))
    assert division.outliers == (Outlier("g", None, alone=False),)


def test_of_three_that_do_not_hold_together_no_pair_is_named() -> None:
    division = divide(ALL, Asked("bdg"))
    assert division.outliers == (Outlier("g", None, alone=True),)
    assert set(division.together) == set(ALL) - {"g"}


def test_several_stand_apart() -> None:
    division = divide(ALL, Asked("c", "bf"))
    assert set(division.outliers) == {
        Outlier("c", None, alone=False),
        Outlier("f", "b", alone=True),
    }


@pytest.mark.parametrize(
    ("conflicts", "other"), [(["ce"], "e"), (["ceg"], None), ([], None), (["ab"], None)]
)
def test_who_is_in_the_way_of_one_is_named_only_if_that_is_shown(
    conflicts: list[str], other: str | None
) -> None:
    others = tuple(name for name in ALL if name != "c")
    assert groups.culprit("c", ALL, others, Asked(*conflicts)) == other


def test_what_does_not_apply_beside_another_stands_apart(tmp_path: Path) -> None:
    project = kerneltree.project(tmp_path / "project")
    base = kerneltree.base(kerneltree.directory(tmp_path / "linux"), tmp_path / "cache")
    (demo,) = project.load(["demo"])
    # The same patches can be applied only once, and no patch need touch anything.
    twin, none = replace(demo, name="twin"), replace(demo, name="none", patches=())
    group, division = groups.applied(base, [demo, none, twin], tmp_path / "scratch")
    assert [series.name for series in group.series] == ["demo", "none"]
    assert group.slot == "+all" and group.plan.patches == demo.patches
    assert division.outliers == (Outlier("twin", "demo", alone=True),)
    assert isinstance(demo.patches[0], PatchFile)


DIFF = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A Developer <dev@example.org>
Date: Mon, 23 Nov 2026 00:00:00 +0000
Subject: [PATCH] demo: {subject}

Why.

---
diff --git a/{path} b/{path}
--- a/{path}
+++ b/{path}
@@ -{at},3 +{at},4 @@
 {before}
+{line}
 {after}
"""


def test_series_that_share_no_file_are_applied_apart_and_give_the_same_plan(
    tmp_path: Path,
) -> None:
    project = kerneltree.project(tmp_path / "project")
    (demo,) = project.load(["demo"])

    def changing(name: str, path: str, kind: str, *places: int) -> Series:
        patches = []
        for number, place in enumerate(places):
            text = DIFF.format(
                subject=f"{name} {number}",
                path=path,
                # Named a line too high, so that each hunk has an offset.
                at=place,
                before=f"int line_{place - 1};",
                line=f"int {name}_{number};",
                after=f"int line_{place};\n int line_{place + 1};",
            )
            file = tmp_path / f"{name}-{number}.patch"
            file.write_text(text)
            patches.append(patchfile.parse(file))
        spec = demo.spec.model_copy(update={"kind": kind})
        return replace(demo, name=name, spec=spec, patches=tuple(patches))

    here = [
        changing("first", "demo.c", "fix", 3),
        changing("other", "other.c", "events", 4, 12),
        changing("last", "demo.c", "events", 9, 15),
        changing("apart", "other.c", "fix", 18),
    ]
    base = kerneltree.base(_with_another(tmp_path), tmp_path / "cache")
    group, division = groups.applied(base, here, tmp_path / "scratch")
    assert division.outliers == ()
    assert [series.name for series in group.series] == [
        "first",
        "apart",
        "other",
        "last",
    ]
    patches = [patch for series in group.series for patch in series.patches]
    at_once = tree.plan(base, patches, tmp_path / "scratch")
    assert at_once.offsets
    assert group.plan == at_once
    assert groups.neighbours(here) == [("first", "last"), ("other", "apart")]


def test_a_file_where_another_series_has_a_directory_is_no_part_of_its_own(
    tmp_path: Path,
) -> None:
    project = kerneltree.project(tmp_path / "project")
    (demo,) = project.load(["demo"])

    def touching(name: str, *paths: str) -> Series:
        patch = replace(demo.patches[0], touches=paths)
        return replace(demo, name=name, patches=(patch,))

    here = [
        touching("file", "new"),
        touching("other", "news/a.c"),
        touching("inside", "new/a.c"),
    ]
    assert groups.neighbours(here) == [("other",), ("file", "inside")]


def _with_another(root: Path) -> Path:
    linux = kerneltree.directory(root / "another")
    (linux / "other.c").write_text((linux / "demo.c").read_text())
    return linux


def test_series_that_declare_a_conflict_stand_apart(project_copy: Project) -> None:
    """Only beside the other one; none of those that are here does."""
    all_series = sorted(project_copy.load(), key=lambda series: series.name)
    assert groups.declared(all_series).outliers == ()
    toml = project_copy.patches / "pci-aer-fixes/series.toml"
    text = toml.read_text()
    conflict = '[[conflict]]\nseries = "pci-aer"\nbecause = "so"\n\n[[workload]]'
    toml.write_text(text.replace("[[workload]]", conflict, 1))
    every = sorted(project_copy.load(), key=lambda series: series.name)
    division = groups.declared(every)
    aer = Outlier("pci-aer-fixes", "pci-aer", alone=True)
    assert division.outliers == (aer,)
    without = [series for series in every if series.name != "pci-aer"]
    assert groups.declared(without).outliers == ()


def _defining(*symbols: str) -> tree.Plan:
    """A plan of patches that each define a symbol."""
    texts = ["", *(f"config {symbol}\n\tbool\n" for symbol in symbols)]
    states = [
        (("Kconfig", am.File("".join(texts[: count + 1]).encode(), False)),)
        for count in range(len(texts))
    ]
    patches = tuple(SimpleNamespace(path=Path(symbol)) for symbol in symbols)
    return tree.Plan(None, patches, tuple(states), ())  # type: ignore[arg-type]


def test_what_others_define_is_absent_in_a_kernel_that_is_configured_as_theirs() -> (
    None
):
    others = Group((), _defining("ALPHA", "BETA"))
    own = Group((), _defining("OWN"), others)
    assert others.absent(0) == {"ALPHA", "BETA"} and others.absent(2) == set()
    assert own.absent(0) == {"ALPHA", "BETA", "OWN"}
    assert own.absent(1) == {"ALPHA", "BETA"}
