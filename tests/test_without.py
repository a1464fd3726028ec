# SPDX-License-Identifier: GPL-2.0-or-later
"""A series of fixes has to fail without its patches, in what it says and only there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakeworld import World
from faulty import PANIC, require_proven, settling
from kstall.series import SeriesError
from test_sharing import KNOWS, entry, make, stage

SHOWN = """
[[shown]]
check = "dozes"
fails = ["said"]
looks = "it sleeps instead"
"""
#: A bug: without the patch of beta, it is something else that is said.
BUG = KNOWS + 'if mine == "beta" and not has["beta"]: '
SLEEPS = '(place / "stdout").write_text("slept")'
CHECK = "fails_without_the_patches"


def fix(world: World, shown: str = SHOWN) -> Path:
    """Have beta be a series of fixes."""
    path = world.project.root / "patches/beta/series.toml"
    text = path.read_text().replace("schema = 1", 'schema = 1\nkind = "fix"', 1)
    path.write_text(text + shown)
    return path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with settling(make(World(tmp_path / "world", level="quick"))) as made:
        fix(made)
        yield made


def test_what_fails_without_the_patches_is_told(world: World) -> None:
    world.guest(BUG + SLEEPS)
    ran = world.validate("beta")
    require_proven(ran)
    found = entry(ran, "beta")
    (check,) = (one for one in found.checks if one.name == CHECK)
    assert check.status == "pass"
    (shown,) = found.shown
    assert (shown.check, shown.looks) == ("dozes", "it sleeps instead")
    (one,) = shown.comparisons
    assert (one.label, one.observed, one.expected) == ("said", "slept", "dozed\n")
    assert stage(ran, "beta", "without").summary == (
        "1 of 1 checks fail on the base kernel"
    )
    # Neither guest is booted again.
    again = world.validate("beta")
    require_proven(again)
    assert world.guests == ["beta-dozes", "beta-dozes"]
    assert stage(again, "beta", "without").reused


def test_in_a_kernel_of_several_the_base_has_none_of_them(world: World) -> None:
    world.guest(BUG + SLEEPS)
    ran = world.validate()
    require_proven(ran)
    assert not entry(ran, "alpha").shown and entry(ran, "beta").shown
    assert len(world.guests) == 4


def test_a_check_that_holds_without_the_patches_proves_nothing(world: World) -> None:
    ran = world.validate("beta")
    assert ran.exit_code == 1
    (check,) = (one for one in entry(ran, "beta").checks if one.name == CHECK)
    assert check.status == "fail"
    seen = {one.label: (one.observed, one.expected) for one in check.comparisons}
    assert seen["dozes: without the patches"] == ("pass", "fail")


def test_something_else_that_fails_is_not_the_bug(world: World) -> None:
    path = world.project.root / "patches/beta/checks.py"
    text = path.read_text().replace(
        "    return verdict", '    verdict.equal("naps", 1, 1)\n    return verdict'
    )
    path.write_text(text)
    toml = world.project.root / "patches/beta/series.toml"
    toml.write_text(toml.read_text().replace('["said"]', '["naps"]'))
    world.guest(BUG + SLEEPS)
    ran = world.validate("beta")
    assert ran.exit_code == 1
    (check,) = (one for one in entry(ran, "beta").checks if one.name == CHECK)
    seen = {one.label: (one.observed, one.expected) for one in check.comparisons}
    assert seen["dozes: what fails"] == ("['said']", "['naps']")


def test_a_base_that_panics_is_no_verdict(world: World) -> None:
    lines = PANIC.replace("\n", "\n    ")
    world.guest(KNOWS + f'if mine == "beta" and not has["beta"]:\n    {lines}')
    ran = world.validate("beta")
    assert ran.exit_code == 2
    found = stage(ran, "beta", "without")
    assert found.status == "error"
    assert (found.error or "").startswith("without the patches: ")


@pytest.mark.parametrize(
    ("shown", "what"),
    [
        ("", r"a fix, but no \[\[shown\]\]"),
        (SHOWN.replace('"dozes"', '"naps"'), r"no \[\[check\]\] called naps"),
        (SHOWN + SHOWN, "dozes is shown twice"),
        (SHOWN.replace('["said"]', "[]"), "fails"),
    ],
)
def test_bad_metadata(tmp_path: Path, shown: str, what: str) -> None:
    world = make(World(tmp_path / "world", level="quick"))
    fix(world, shown)
    with pytest.raises(SeriesError, match=what):
        world.project.load(["beta"])


def test_only_fixes_show_anything(tmp_path: Path) -> None:
    world = make(World(tmp_path / "world", level="quick"))
    path = fix(world)
    path.write_text(path.read_text().replace('kind = "fix"', ""))
    with pytest.raises(SeriesError, match="only of a series of fixes"):
        world.project.load(["beta"])
