# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole runs on trees that a series was not made for: what they are called, and that
the other series go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakeworld import CHECKS, PATCH, TOML, World, write
from kstall.report import Report, SeriesReport, Stage

#: A tree that has no symbol GONE, whatever asks for it.
LACKS = "\t@grep -v 'CONFIG_GONE' $(KCONFIG_ALLCONFIG) >$(O)/.config\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two series, demo and later, of which the first is proven."""
    sandbox = World(tmp_path, level="quick")
    _add_series(sandbox, PATCH)
    return sandbox


def _add_series(world: World, patch: str, fragment: str = "CONFIG_DEMO=y\n") -> None:
    files = {
        "patches/later/series.toml": TOML.replace('"demo.config"', '"later.config"'),
        "patches/later/0001-demo.patch": patch,
        "patches/later/cover.txt": "What was asked for is returned.\n",
        "patches/later/checks.py": CHECKS,
        "kconfigs/later.config": fragment,
    }
    write(world.project.root, files)


def _tree(world: World, **files: str) -> None:
    write(world.kernel, {name.replace("_", "."): text for name, text in files.items()})


def _makefile(world: World) -> None:
    path = world.kernel / "Makefile"
    copies = "\t@cp $(KCONFIG_ALLCONFIG) $(O)/.config\n"
    text = path.read_text()
    assert copies in text
    path.write_text(text.replace(copies, LACKS))


def _entry(report: Report | None, name: str) -> SeriesReport:
    assert report is not None
    return next(entry for entry in report.series if entry.name == name)


def _stopped(entry: SeriesReport) -> Stage:
    """The stage that ended the series."""
    return entry.stages[-1]


def test_two_that_fit_are_proven(world: World) -> None:
    ran = world.validate()
    assert ran.exit_code == 0, ran.output


def test_one_that_does_not_apply_is_reported_and_the_other_goes_on(
    world: World,
) -> None:
    _add_series(world, PATCH.replace("-\treturn 1;", "-\treturn 2;"))
    ran = world.validate("later", "demo")
    assert ran.exit_code == 3, ran.output
    entry = _entry(ran.report, "later")
    assert entry.status == "does-not-apply"
    stage = _stopped(entry)
    assert (stage.name, stage.status) == ("apply", "does-not-apply")
    assert stage.error is not None
    assert stage.error.startswith("0001-demo.patch, demo.c:1: hunk 1 does not fit")
    assert "KERNEL=" in stage.error
    assert stage.log is not None
    assert "Rejected hunk #1" in (ran.dir / stage.log).read_text()
    assert _entry(ran.report, "demo").status == "pass"
    assert ran.report is not None and ran.report.status == "does-not-apply"


def _expect(world: World, condition: str) -> None:
    toml = world.project.patches / "later/series.toml"
    toml.write_text(toml.read_text() + f'\n[applies]\ntrees = ["{condition}"]\n')


def test_one_that_no_longer_applies_where_it_is_expected_has_failed(
    world: World,
) -> None:
    _add_series(world, PATCH.replace("-\treturn 1;", "-\treturn 2;"))
    _expect(world, ">=7.3")
    ran = world.validate("later", "demo")
    assert ran.exit_code == 1, ran.output
    entry = _entry(ran.report, "later")
    assert (entry.status, entry.expected) == ("fail", True)
    stage = _stopped(entry)
    assert (stage.name, stage.status) == ("apply", "fail")
    assert str(stage.error).startswith(
        "no longer applies to 7.3.4, where series.toml expects it: 0001-demo.patch, "
        "demo.c:1: hunk 1 does not fit"
    )
    assert f"kstall rebase {world.kernel} later" in str(stage.error)
    assert stage.log is not None
    assert "Rejected hunk #1" in (ran.dir / stage.log).read_text()
    assert _entry(ran.report, "demo").status == "pass"


def test_one_that_is_not_expected_there_does_not_apply(world: World) -> None:
    _add_series(world, PATCH.replace("-\treturn 1;", "-\treturn 2;"))
    _expect(world, ">=7.4")
    ran = world.validate("later")
    assert ran.exit_code == 3, ran.output
    assert _entry(ran.report, "later").expected is False


def test_one_that_applies_unexpectedly_is_proven_and_told(world: World) -> None:
    _expect(world, "<7.3")
    ran = world.validate("later")
    assert ran.exit_code == 0, ran.output
    stage = next(
        stage for stage in _entry(ran.report, "later").stages if stage.name == "apply"
    )
    assert stage.summary == "1 patches, 1 files; it was not expected to apply here"


def test_one_that_the_tree_has_already_has_not_failed(world: World) -> None:
    write(world.kernel, {"demo.c": "int demo(void)\n{\n\treturn 3;\n}\n"})
    _expect(world, ">=7.3")
    ran = world.validate("later")
    assert ran.exit_code == 3, ran.output
    entry = _entry(ran.report, "later")
    assert "already has this patch" in str(_stopped(entry).error)
    assert entry.merged


def test_one_that_the_tree_has_in_part_has_failed_where_it_is_expected(
    world: World,
) -> None:
    again = PATCH.replace("return 3", "return 4").replace("return 1", "return 3")
    patches = world.project.patches / "later"
    write(patches, {"0002-again.patch": again})
    toml = (patches / "series.toml").read_text()
    toml = toml.replace('"0001-demo.patch"', '"0001-demo.patch", "0002-again.patch"')
    (patches / "series.toml").write_text(toml)
    # The second no longer fits.
    write(world.kernel, {"demo.c": "int demo(void)\n{\n\treturn 3;\n}\n// more\n"})
    _expect(world, ">=7.3")
    ran = world.validate("later")
    assert ran.exit_code == 1, ran.output
    entry = _entry(ran.report, "later")
    assert (entry.status, entry.merged) == ("fail", False)
    error = str(_stopped(entry).error)
    assert "; the kernel has 1 of 2 patches: 0001-demo.patch\n" in error
    assert f"kstall rebase {world.kernel} later" in error


def test_a_needed_symbol_that_the_tree_lacks_is_no_verdict(world: World) -> None:
    _makefile(world)
    _add_series(world, PATCH, "CONFIG_DEMO=y\nCONFIG_GONE=y\n")
    ran = world.validate("later", "demo")
    assert ran.exit_code == 2, ran.output
    entry = _entry(ran.report, "later")
    assert entry.status == "error"
    stage = _stopped(entry)
    assert (stage.name, stage.status) == ("config", "error")
    assert "later.config:2: CONFIG_GONE=y did not stick" in str(stage.error)
    assert "this tree has no such symbol" in str(stage.error)
    assert not any(check.status == "fail" for check in entry.checks)
    # Only the series that needs it is stopped.
    assert _entry(ran.report, "demo").status == "pass"


def test_one_of_the_base_stops_all_unless_it_can_be_done_without(world: World) -> None:
    _makefile(world)
    base = world.project.kconfigs / "base.config"
    base.write_text("CONFIG_BASE=y\nCONFIG_GONE=y\n")
    ran = world.validate()
    assert ran.exit_code == 2, ran.output
    for name in ("demo", "later"):
        assert _entry(ran.report, name).status == "error"
    base.write_text("CONFIG_BASE=y\n# optional: tested by a header\nCONFIG_GONE=y\n")
    ran = world.validate()
    assert ran.exit_code == 0, ran.output
    config = next(
        stage for stage in _entry(ran.report, "demo").stages if stage.name == "config"
    )
    assert config.summary == "not available in this tree, and not needed: GONE"


def test_a_symbol_of_its_own_that_the_tree_does_not_take_is_its_failure(
    world: World,
) -> None:
    _makefile(world)
    adds = (
        "diff --git a/Kconfig b/Kconfig\n--- a/Kconfig\n+++ b/Kconfig\n"
        "@@ -1,2 +1,5 @@\n config DEMO\n \tbool demo\n"
        '+config GONE\n+\tbool "gone"\n+\tdepends on !DEMO\n'
        "diff --git a/demo.c b/demo.c\n"
    )
    patch = PATCH.replace("diff --git a/demo.c b/demo.c\n", adds)
    _add_series(world, patch, "CONFIG_DEMO=y\nCONFIG_GONE=y\n")
    ran = world.validate("later", "demo")
    assert ran.exit_code == 1, ran.output
    stage = _stopped(_entry(ran.report, "later"))
    assert (stage.name, stage.status) == ("config", "fail")
    assert "CONFIG_GONE=y did not stick" in str(stage.error)
    assert _entry(ran.report, "demo").status == "pass"


def test_a_tree_that_does_not_build_by_itself_is_no_verdict(world: World) -> None:
    _tree(world, other_c="int other(void) { return nothing; }\n")
    ran = world.validate("demo")
    assert ran.exit_code == 2, ran.output
    stage = _stopped(_entry(ran.report, "demo"))
    assert (stage.name, stage.status) == ("build", "error")
    assert stage.error is not None
    assert stage.error.startswith("without any patch, the tree does not build")
    assert "other.c:1" in stage.error
    # The same where the base is built first.
    world.level = "full"
    ran = world.validate("demo")
    assert ran.exit_code == 2, ran.output
    assert _stopped(_entry(ran.report, "demo")).status == "error"


def test_what_a_patch_breaks_is_its_failure_wherever_that_shows(world: World) -> None:
    _tree(world, other_c="int other(void) { return 2; }\n", shared_h="int two(void);\n")
    touched = PATCH.replace("+\treturn 3;", "+\treturn three;")
    (world.project.patches / "demo/0001-demo.patch").write_text(touched)
    ran = world.validate("demo")
    assert ran.exit_code == 1, ran.output
    assert "demo.c:3" in str(_stopped(_entry(ran.report, "demo")).error)
    # In a file that it does not touch, through a header that it does.
    _tree(world, other_c='#include "shared.h"\nint other(void) { return two(); }\n')
    shared = PATCH[: PATCH.index("diff --git")] + (
        "diff --git a/shared.h b/shared.h\n--- a/shared.h\n+++ b/shared.h\n"
        "@@ -1 +1 @@\n-int two(void);\n+int two(int n);\n--\n2.39.5\n\n"
    )
    (world.project.patches / "demo/0001-demo.patch").write_text(shared)
    ran = world.validate("demo")
    assert ran.exit_code == 1, ran.output
    assert "does other.c build without the patches?" in ran.output
    stage = _stopped(_entry(ran.report, "demo"))
    assert (stage.name, stage.status) == ("build", "fail")
