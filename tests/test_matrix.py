# SPDX-License-Identifier: GPL-2.0-or-later
"""Series on several trees in one process: a run for each, and one view of all."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

import junitparser
import pytest
from rich.console import Console

from fake_kernel import git
from fakeworld import CHECKS, KERNEL, NO_TYPES, PATCH, TOML, World, write
from kstall.base import arch
from kstall.pipeline import matrixfile
from kstall.pipeline import run as runs
from kstall.report import matrix, matrixviews, report


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two series, demo and later, and three trees: linux, new, and old, where later
    does not apply."""
    sandbox = World(tmp_path, level="quick")
    files = {
        "patches/later/series.toml": TOML.replace("demo.config", "later.config"),
        "patches/later/0001-demo.patch": PATCH.replace("demo.c", "later.c").replace(
            "int demo(void)", "int later(void)"
        ),
        "patches/later/cover.txt": "What was asked for is returned.\n",
        "patches/later/checks.py": CHECKS,
        "kconfigs/later.config": "CONFIG_DEMO=y\n",
    }
    write(sandbox.project.root, files)
    later = "int later(void)\n{\n\treturn 1;\n}\n"
    write(sandbox.kernel, {"later.c": later})
    for name, text in (("new", later), ("old", later.replace("1", "7"))):
        top = tmp_path / name
        # Other sources, and so another base.
        write(top, {**KERNEL, "later.c": text, "other.c": f"/* {name} */\n"})
        (top / "btf").write_bytes(NO_TYPES)
    return sandbox


def _expect(world: World, series: str, *trees: str) -> None:
    path = world.project.patches / series / "series.toml"
    path.write_text(path.read_text() + f"\n[applies]\ntrees = {list(trees)}\n")


def _cells(world: World) -> dict[tuple[str, str], str]:
    grid = matrix.read(world.out / "latest")
    return {
        (cell.series, column.tree.rpartition("/")[2]): cell.status
        for column in grid.columns
        for cell in column.cells
    }


def _file(world: World, text: str) -> Path:
    path = world.root / "matrix.toml"
    path.write_text(text)
    return path


# -- several --kernel ----------------------------------------------------------------


def test_each_tree_has_a_run_and_all_have_a_table(world: World, tmp_path: Path) -> None:
    _expect(world, "later", ">=99")
    words = ("--kernel", str(tmp_path / "new"), "--kernel", str(tmp_path / "old"))
    ran = world.validate(*words)
    assert ran.exit_code == 3, ran.output
    assert _cells(world) == {
        ("demo", "linux"): "pass",
        ("later", "linux"): "pass",
        ("demo", "new"): "pass",
        ("later", "new"): "pass",
        ("demo", "old"): "pass",
        ("later", "old"): "does-not-apply",
    }
    latest = world.out / "latest"
    for name in ("linux", "new", "old"):
        assert report.read(latest / name / "report.json").tree is not None
        assert (latest / name / "report.html").exists()
    # The table: a row a series, a column a tree.
    (row,) = re.findall(r"(?m)^later +(.*)$", ran.output)
    assert re.split(r"  +", row.strip()) == [
        "proven (unexpected)",
        "proven (unexpected)",
        "does not apply",
    ]
    assert "verdict  DOES NOT APPLY  1 not applying, 5 proven" in ran.output
    # What does not apply where nobody expects it needs no reason.
    assert (
        "does not fit" not in ran.output.partition("verdict")[0].rpartition("\n\n")[2]
    )
    page = (latest / "matrix.html").read_text()
    assert 'href="./old/report.html"' in page and "<script" not in page
    cases = {
        (case.classname, case.name): [type(outcome).__name__ for outcome in case.result]
        for suite in junitparser.JUnitXml.fromfile(str(latest / "junit.xml"))
        for case in suite
    }
    assert cases[("kstall.old", "later")] == ["Skipped"]
    assert cases[("kstall.new", "later")] == []
    assert len(cases) == 6


def test_what_stops_applying_turns_the_matrix_red(world: World, tmp_path: Path) -> None:
    _expect(world, "later", ">=7.3")
    ran = world.validate("--kernel", str(tmp_path / "old"), "later")
    assert ran.exit_code == 1, ran.output
    assert _cells(world)[("later", "old")] == "fail"
    assert re.search(
        r"FAILED +later on .*/old: apply: no longer applies to 7\.3\.4, where "
        r"series\.toml expects it: 0001-demo\.patch, later\.c:1",
        ran.output,
    )
    suites = junitparser.JUnitXml.fromfile(str(world.out / "latest" / "junit.xml"))
    (failed,) = [case for suite in suites for case in suite if case.result]
    assert type(failed.result[0]).__name__ == "Failure"
    assert "no longer applies" in str(failed.result[0].message)
    # What tries again does so on that tree alone.
    saved = report.read(world.out / "latest" / "old" / "report.json")
    explanation = saved.series[0].stages[-1].explanation
    assert explanation is not None
    (line,) = explanation.again
    assert str(world.kernel) not in line
    again = world.run(*shlex.split(line)[1:])
    assert again.exit_code == 1, again.output
    assert "no longer applies to 7.3.4" in (again.stage("apply").error or "")


def test_a_tree_that_cannot_be_had_stops_no_other(world: World, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = world.validate(
        *("--kernel", str(tmp_path / "empty"), "--kernel", str(tmp_path / "new")),
        *("--kernel", f"{tmp_path}/gone#master", "demo"),
    )
    assert ran.exit_code == 2, ran.output
    grid = matrix.read(world.out / "latest")
    assert [column.status for column in grid.columns] == [
        *("proven", "could-not-run", "proven", "could-not-run")
    ]
    # It is said before anything is built, too.
    assert ran.output.index("is no Linux source tree") < ran.output.index("1 of 4: ")
    assert re.search(
        r"NOT JUDGED +demo on .*/empty: tree: .*it has no Makefile", ran.output
    )
    assert re.search(
        r"NOT JUDGED +demo on .*gone#master: tree: .*there is no", ran.output
    )


def test_a_directory_without_a_kernel_and_an_unknown_branch(
    world: World, tmp_path: Path
) -> None:
    photos, top = tmp_path / "photos", tmp_path / "new"
    write(photos, {"holiday.txt": "sun"})
    git(top, "init", "-q", "-b", "for-next")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "base")
    ran = world.validate(
        *("--kernel", str(photos), "--kernel", f"{top}#for-nxt"),
        *("--kernel", f"{top}#for-next"),
    )
    assert ran.exit_code == 2, ran.output
    messages = (
        f"{photos} is no Linux source tree: it has no Makefile",
        f"{top} has no branch, tag or commit 'for-nxt'",
    )
    # Before anything is built, with what to do.
    early = ran.output.partition("1 of 4: ")[0]
    assert all(early.count(message) == 1 for message in messages), early
    assert "next: it has for-next\n" in early
    # In the end, once for both series.
    end = ran.output.rpartition("\n\n")[2].splitlines()
    assert end[:2] == [
        f"NOT JUDGED     demo, later on {photos}: tree: {messages[0]}",
        f"NOT JUDGED     demo, later on {top}#for-nxt: tree: {messages[1]}",
    ]
    assert end[-1] == "verdict  COULD NOT JUDGE  4 not judged, 4 proven"
    page = (world.out / "latest/matrix.html").read_text()
    assert page.count(f"<b>demo, later on {photos}: ") == 1
    # The others have their results.
    assert _cells(world) == {
        (series, tree): status
        for series in ("demo", "later")
        for tree, status in (
            *(("linux", "pass"), ("photos", "error")),
            *(("new#for-nxt", "error"), ("new#for-next", "pass")),
        )
    }


def test_a_failure_counts_more_than_a_lack_of_verdict(
    world: World, tmp_path: Path
) -> None:
    _expect(world, "later", ">=7.3")
    (tmp_path / "empty").mkdir()
    words = ("--kernel", str(tmp_path / "empty"), "--kernel", str(tmp_path / "old"))
    assert world.validate(*words).exit_code == 1


def test_runs_of_a_matrix_are_runs(world: World, tmp_path: Path) -> None:
    world.validate("--kernel", str(tmp_path / "new"), "demo")
    latest = world.out / "latest"
    assert world.run("judge", str(latest / "new")).exit_code == 0
    ran = world.run("judge", str(latest))
    assert ran.exit_code == 2
    assert f"{latest.resolve()} is a matrix of 2 runs" in ran.output
    assert f"such as {latest.resolve()}/linux" in ran.output
    (latest / "matrix.html").unlink()
    assert world.run("html", str(latest)).exit_code == 0
    assert (latest / "matrix.html").exists()


def test_two_trees_of_one_name_and_one_named_twice(
    world: World, tmp_path: Path
) -> None:
    write(tmp_path / "b" / "new", {**KERNEL, "later.c": "int b;\n"})
    (tmp_path / "b/new/btf").write_bytes(NO_TYPES)
    world.validate(
        *("--kernel", str(tmp_path / "new"), "--kernel", str(tmp_path / "b/new")),
        *("--kernel", str(tmp_path / "new"), "demo"),
    )
    grid = matrix.read(world.out / "latest")
    assert [column.directory for column in grid.columns] == ["linux", "new", "new-2"]


@pytest.mark.fault("hostile name", "of trees and of the place for their runs")
def test_trees_and_the_place_for_runs_may_be_called_anything(
    world: World, tmp_path: Path
) -> None:
    places = [tmp_path / "latin-\udce9", tmp_path / 'it\'s; $(false) "y"\n']
    for name, place in zip(("new", "old"), places, strict=True):
        (tmp_path / name).rename(place)
    words = (word for place in places for word in ("--kernel", str(place)))
    out = tmp_path / "runs \udce9"
    ran = world.validate(*words, "--out", str(out), "demo")
    assert ran.exit_code == 0, ran.output
    grid = matrix.read(out / "latest")
    assert [column.status for column in grid.columns] == ["proven"] * 3
    assert grid.columns[1].tree.endswith("latin-\\udce9")
    assert grid.columns[1].directory == "latin--udce9"
    assert (out / "latest/matrix.html").exists()
    assert (out / "latest/junit.xml").exists()
    assert "could not be written" not in ran.output


@pytest.mark.fault("killed", "SIGTERM in the second tree of a matrix")
def test_one_that_is_ended_says_so_and_goes_on(world: World, tmp_path: Path) -> None:
    child = world.start("--kernel", str(tmp_path / "new"), "demo")
    latest = world.out / "latest"

    def begun() -> bool:
        return (latest / "new" / "report.json").exists()

    limit = time.monotonic() + 300
    while not begun():
        assert time.monotonic() < limit and child.is_alive()
        time.sleep(0.02)
    child.terminate()
    ran = world.end(child)
    assert ran.exit_code == 2
    grid = matrix.read(latest)
    assert grid.status == "interrupted"
    assert grid.columns[0].status == "proven"
    assert grid.columns[1].cell("demo") is not None
    assert grid.columns[1].status in ("interrupted", "could-not-run")
    assert "INTERRUPTED" in (latest / "matrix.html").read_text().upper()
    again = world.validate("--kernel", str(tmp_path / "new"), "demo")
    assert again.exit_code == 0, again.output


@pytest.mark.fault("killed", "when the second run of a matrix has just begun")
def test_one_that_had_only_begun_is_interrupted(world: World, tmp_path: Path) -> None:
    begin = runs.begin

    def ended(*words: Any, **more: Any) -> runs.Run:
        run = begin(*words, **more)
        if run.dir.name == "new":
            raise KeyboardInterrupt
        return run

    world.prepare.append(lambda: setattr(runs, "begin", ended))
    words = ("--kernel", str(tmp_path / "new"), "--kernel", str(tmp_path / "old"))
    ran = world.validate(*words, "demo")
    assert ran.exit_code == 2
    grid = matrix.read(world.out / "latest")
    # The third one was not reached.
    ends = ["proven", "interrupted", "interrupted"]
    assert [column.status for column in grid.columns] == ends
    assert grid.columns[1].cell("demo") is not None


# -- a file --------------------------------------------------------------------------


def test_a_file_names_trees_levels_and_what_is_expected(
    world: World, tmp_path: Path
) -> None:
    _expect(world, "later", ">=99")
    top = tmp_path / "new"
    git(top, "init", "-q", "-b", "for-next")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "base")
    # Not committed, and so not in the branch.
    (top / "later.c").write_text("int later;\n")
    path = _file(
        world,
        '[matrix]\ntrees = ["linux", "new#for-next"]\nlevels = ["quick"]\n'
        'series = ["demo", "later"]\n\n[[tree]]\nname = "yesterday\'s"\n'
        'kernel = "old"\nseries = ["later"]\nexpected = true\n',
    )
    ran = world.run("validate", "--matrix", str(path), "--out", str(world.out))
    assert ran.exit_code == 1, ran.output
    grid = matrix.read(world.out / "latest")
    assert [column.tree for column in grid.columns] == [
        *("linux", "new#for-next", "yesterday's")
    ]
    assert [column.directory for column in grid.columns] == [
        *("linux", "new-for-next", "yesterday-s")
    ]
    assert grid.columns[1].commit == git(top, "rev-parse", "HEAD").strip()
    cells = {
        (column.tree, x.series): x for column in grid.columns for x in column.cells
    }
    assert cells[("new#for-next", "later")].status == "pass"
    assert cells[("new#for-next", "later")].unexpected
    assert cells[("yesterday's", "later")].status == "fail"
    assert "where the matrix expects it" in cells[("yesterday's", "later")].why
    assert grid.columns[2].cell("demo") is None
    # Narrowed by hand.
    ran = world.run(
        *("validate", "--matrix", str(path), "--out", str(world.out), "demo")
    )
    assert ran.exit_code == 0, ran.output
    grid = matrix.read(world.out / "latest")
    assert [column.tree for column in grid.columns] == ["linux", "new#for-next"]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[matrix]\ntrees = [\n", 2, "Invalid"),
        ("[[tree]]\nname = 'a'\nkernel = 'b'\n", 1, "missing key `matrix`"),
        ("[matrix]\n", 1, "no tree: name some"),
        ("[matrix]\ntree = ['a']\n", 2, "unknown key `tree`"),
        ("[matrix]\ntrees = ['a']\nlevels = ['fast']\n", 3, "Input should be 'quick'"),
        ("[matrix]\ntrees = ['a']\narchs = ['vax']\n", 3, "no architecture vax"),
        ("[matrix]\ntrees = ['a']\narchs = []\n", 3, "at least 1 item"),
        ("[matrix]\ntrees = ['a']\nseries = ['none']\n", 3, "no series called none"),
        ("[matrix]\ntrees = ['a']\nseries = []\n", 3, "no series: leave it out"),
        ("[matrix]\ntrees = ['x/a', 'y/a']\n", 2, "two are called a: name them"),
        (
            "[matrix]\n[[tree]]\nname = 'a'\nkernel = 'b'\n"
            "[[tree]]\nname = 'a'\nkernel = 'c'\n",
            6,
            "second tree called a",
        ),
        ("[matrix]\n[[tree]]\nname = 'a'\n", 2, "missing key `kernel`"),
        (
            "[matrix]\n[[tree]]\nname = 'a'\nkernel = 'b'\nseries = ['none']\n",
            5,
            "no series called none; there are demo, later",
        ),
    ],
)
def test_mistakes_in_a_file_have_their_line(
    world: World, text: str, line: int, says: str
) -> None:
    path = _file(world, text)
    with pytest.raises(matrixfile.MatrixError) as caught:
        matrixfile.read(path, world.project)
    message = str(caught.value)
    assert re.search(
        rf"(?m)^{re.escape(str(path))}:{line}: .*{re.escape(says)}", message
    )


def test_every_mistake_is_reported_at_once_and_is_two(world: World) -> None:
    path = _file(world, "[matrix]\ntrees = ['a']\narchs = ['vax']\nseries = ['none']\n")
    ran = world.run("validate", "--matrix", str(path), "--out", str(world.out))
    assert ran.exit_code == 2
    assert f"{path}:3: " in ran.output and f"{path}:4: " in ran.output
    assert "kstall schema matrix-file" in ran.output
    assert not world.out.exists()
    ran = world.run("validate", "--matrix", f"{path}.gone", "--out", str(world.out))
    assert ran.exit_code == 2 and "matrix.toml.gone: no such file" in ran.output
    words = ("validate", "--matrix", str(path), "--kernel", "x")
    ran = world.run(*words)
    assert (ran.exit_code, ran.output) == (
        *(2, "kstall: --matrix FILE names the trees: leave out --kernel\n"),
    )


def test_relative_trees_are_those_of_the_file(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(
        world,
        '[matrix]\ntrees = ["linux", "../x#b", "debian:7.2", '
        '"https://example.org/linux.git#master"]\n'
        'levels = ["quick", "full"]\n',
    )
    monkeypatch.chdir("/")
    columns = matrixfile.read(path, world.project)
    assert [str(column.kernel) for column in columns[::2]] == [
        str(tmp_path / "linux"),
        str(tmp_path / "../x#b"),
        "debian:7.2",
        "https:/example.org/linux.git#master",
    ]
    assert [column.directory for column in columns] == [
        f"{tree}-{level}"
        for tree in ("linux", "x-b", "debian-7.2", "linux-master")
        for level in ("quick", "full")
    ]


def test_a_matrix_is_narrowed_by_series_and_level(world: World) -> None:
    path = _file(
        world,
        '[matrix]\ntrees = ["linux"]\nlevels = ["quick", "full"]\n'
        '[[tree]]\nname = "old"\nkernel = "old"\nseries = ["later"]\n',
    )
    columns = matrixfile.read(path, world.project)
    narrow = matrixfile.narrowed(columns, ["demo"], "deep")
    assert [(column.tree, column.level, column.series) for column in narrow] == [
        ("linux", "deep", ("demo",))
    ]
    assert matrixfile.narrowed(columns, [], None) == columns
    for names in (["x"], ["demo", "x"]):
        with pytest.raises(matrixfile.MatrixError) as caught:
            matrixfile.narrowed(columns, names, None)
        assert str(caught.value) == "no tree of the matrix is for x"


# -- architectures -------------------------------------------------------------------


@pytest.fixture
def two(world: World) -> Path:
    """A file for two architectures, of which arm64 is this one by another name."""

    def prepare() -> None:
        other = dataclasses.replace(arch.X86_64, name="arm64")
        vars(arch)["_ARCHITECTURES"]["arm64"] = other

    world.prepare.append(prepare)
    packages = (world.project.scripts / "guest-packages.txt").read_text()
    write(world.project.scripts, {"guest-packages-arm64.txt": packages})
    return _file(
        world,
        '[matrix]\ntrees = ["linux"]\nlevels = ["quick"]\n'
        'archs = ["x86_64", "arm64"]\nseries = ["demo"]\n',
    )


def test_each_architecture_is_a_column(world: World, two: Path) -> None:
    ran = world.run("validate", "--matrix", str(two), "--out", str(world.out))
    assert ran.exit_code == 0, ran.output
    latest = world.out / "latest"
    grid = matrix.read(latest)
    named = [(column.arch, column.directory, column.status) for column in grid.columns]
    assert named == [
        ("x86_64", "linux-x86_64", "proven"),
        ("arm64", "linux-arm64", "proven"),
    ]
    # The runs are of that architecture, in kernels of their own.
    runs = [report.read(latest / place / "report.json") for _, place, _ in named]
    assert [run.environment.arch for run in runs] == ["x86_64", "arm64"]
    assert runs[0].series[0].kernel != runs[1].series[0].kernel
    table = ran.output.rpartition("2 of 2: linux arm64 quick")[2]
    assert re.search(r"(?m)^ +linux x86_64 +linux arm64 *$", table)
    page = (latest / "matrix.html").read_text()
    for title in ("linux x86_64", "linux arm64"):
        assert title in page
        assert f'href="./{title.replace(" ", "-")}/report.html"' in page
    suites = junitparser.JUnitXml.fromfile(str(latest / "junit.xml"))
    assert [suite.name for suite in suites] == [
        *("kstall.linux x86_64 quick", "kstall.linux arm64 quick")
    ]


def test_a_tree_has_architectures_of_its_own(world: World) -> None:
    path = _file(
        world,
        '[matrix]\ntrees = ["linux"]\narchs = ["x86_64"]\nlevels = ["quick", "deep"]\n'
        '[[tree]]\nname = "old"\nkernel = "old"\narchs = ["arm64", "arm64"]\n'
        'levels = ["quick"]\n',
    )
    columns = matrixfile.read(path, world.project)
    assert [(column.arch, column.directory) for column in columns] == [
        ("x86_64", "linux-x86_64-quick"),
        ("x86_64", "linux-x86_64-deep"),
        ("arm64", "old-arm64-quick"),
    ]


def test_a_matrix_is_narrowed_by_architecture(world: World, two: Path) -> None:
    words = ("validate", "--matrix", str(two), "--out", str(world.out))
    ran = world.run(*words, "--arch", "arm64")
    assert ran.exit_code == 0, ran.output
    (column,) = matrix.read(world.out / "latest").columns
    assert (column.arch, column.status) == ("arm64", "proven")
    (run,) = (world.out / "latest").glob("*/report.json")
    assert report.read(run).environment.arch == "arm64"


def test_an_architecture_that_the_file_has_not_is_one_line(world: World) -> None:
    path = _file(
        world,
        '[matrix]\ntrees = ["linux"]\narchs = ["x86_64"]\nseries = ["demo"]\n',
    )
    words = ("validate", "--matrix", str(path), "--out", str(world.out))
    ran = world.run(*words, "--arch", "arm64")
    assert ran.exit_code == 2
    assert ran.output == (
        "kstall: no tree of the matrix is for arm64, only for x86_64\n"
    )
    assert not world.out.exists()
    more = '[[tree]]\nname = "old"\nkernel = "old"\narchs = ["arm64"]\n'
    path.write_text(path.read_text() + more + 'series = ["later"]\n')
    columns = matrixfile.read(path, world.project)
    with pytest.raises(matrixfile.MatrixError) as caught:
        matrixfile.narrowed(columns, ["later", "demo"], None, "arm64")
    assert str(caught.value) == "no tree of the matrix is for demo on arm64"


@pytest.mark.parametrize(
    ("program", "purpose"),
    [
        (arch.ARM64.tool("gcc"), "which compiles for it"),
        (arch.ARM64.qemu, "which emulates it"),
    ],
)
def test_an_architecture_that_lacks_a_program_stops_no_other(
    world: World, program: str, purpose: str
) -> None:
    which = shutil.which

    def none(name: str, *words: Any, **how: Any) -> str | None:
        return None if name == program else which(name, *words, **how)

    world.prepare.append(lambda: setattr(shutil, "which", none))
    path = _file(
        world,
        '[matrix]\ntrees = ["linux"]\nlevels = ["quick"]\n'
        'archs = ["arm64", "x86_64"]\n',
    )
    ran = world.run("validate", "--matrix", str(path), "--out", str(world.out))
    assert ran.exit_code == 2, ran.output
    what = f"--arch arm64: no {program}, {purpose}"
    hint = f"  next: sudo apt-get install {' '.join(arch.ARM64.packages)}, or as root: "
    # Before anything is built, with what to install.
    early, _, rest = ran.output.partition("1 of 2: ")
    assert f"{what}\n{hint}" in early
    assert f"NOT JUDGED     demo, later on linux arm64: root: {what}\n" in rest
    grid = matrix.read(world.out / "latest")
    assert [
        (column.arch, column.status, {cell.status for cell in column.cells})
        for column in grid.columns
    ] == [("arm64", "could-not-run", {"error"}), ("x86_64", "proven", {"pass"})]
    assert {cell.why for cell in grid.columns[0].cells} == {f"root: {what}"}
    # The column's own report has it all.
    run = report.read(world.out / "latest" / "linux-arm64" / "report.json")
    (stage,) = [stage for stage in run.stages if stage.name == "root"]
    assert (stage.error or "").startswith(f"{what}\n{hint}")


def test_trees_of_the_command_line_are_for_its_architecture(
    world: World, two: Path
) -> None:
    ran = world.validate("--kernel", str(two.parent / "new"), "demo", "--arch", "arm64")
    assert ran.exit_code == 0, ran.output
    columns = matrix.read(world.out / "latest").columns
    assert [column.arch for column in columns] == ["arm64", "arm64"]


# -- skipped checks ------------------------------------------------------------------

_COLD = "it is too cold there"
_NO_HISTORY = "has no history to look up Fixes: tags in"


def _skip_some(world: World) -> None:
    """Have ``demo`` lack a check on arm64, and the trees the history for ``later``."""
    demo = world.project.patches / "demo"
    toml = (demo / "series.toml").read_text()
    check = toml[toml.index("[[check]]") : toml.index("[overhead]")]
    toml += check.replace("dozes", "snores").replace("It dozes", "It snores")
    toml += f'\n[[on.arm64.skipped]]\nchecks = ["snores"]\nbecause = "{_COLD}"\n'
    (demo / "series.toml").write_text(toml)
    code = (demo / "checks.py").read_text()
    snores = code[code.index("\n\ndef dozes") :].replace("dozes", "snores")
    (demo / "checks.py").write_text(code + snores)
    patch = world.project.patches / "later/0001-demo.patch"
    tag = 'Fixes: 0123456789ab ("demo: Return")\n'
    text = patch.read_text().replace("Assisted-by", f"{tag}Assisted-by")
    patch.write_text(text)


def test_a_pass_says_what_was_skipped(world: World, two: Path) -> None:
    _skip_some(world)
    two.write_text(two.read_text().replace('["demo"]', '["demo", "later"]'))
    ran = world.run("validate", "--matrix", str(two), "--out", str(world.out))
    assert ran.exit_code == 0, ran.output
    latest = world.out / "latest"
    grid = matrix.read(latest)
    here, there = grid.columns
    names = {
        (column.arch, cell.series): [skip.check for skip in cell.skipped]
        for column in grid.columns
        for cell in column.cells
    }
    assert names == {
        ("x86_64", "demo"): [],
        ("x86_64", "later"): ["fixes_are_in_history"],
        ("arm64", "demo"): ["snores"],
        ("arm64", "later"): ["fixes_are_in_history"],
    }
    causes = {
        (group.checks, group.series): (group.columns, group.cause)
        for group in matrixviews.skipped_checks(grid)
    }
    assert causes[("snores",), ("demo",)] == ((there,), _COLD)
    columns, cause = causes[("fixes_are_in_history",), ("later",)]
    assert columns == (here, there) and _NO_HISTORY in cause
    # The terminal: numbers in the table, causes below it.
    table = ran.output.rpartition("2 of 2: linux arm64 quick")[2]
    for name, cells in (
        ("demo", ["proven", "proven, 1 skipped"]),
        ("later", ["proven, 1 skipped", "proven, 1 skipped"]),
    ):
        (row,) = re.findall(rf"(?m)^{name} +(.*)$", table)
        assert re.split(r"  +", row.strip()) == cells
    legend = table.partition("\nskipped  neither passed nor failed in")[2]
    assert f"\n         snores of demo on linux arm64: {_COLD}\n" in legend
    where = "linux x86_64, linux arm64"
    assert f"\n         fixes_are_in_history of later on {where}: " in legend
    # Page and JUnit: a skip is marked as one.
    page = (latest / "matrix.html").read_text()
    assert page.count("○ 1 skipped") == 3
    assert _COLD in page and _NO_HISTORY in page
    assert not re.search(r"✓[^<]*(skipped|snores)", page)
    cases = {
        (case.classname, case.name): [type(outcome).__name__ for outcome in case.result]
        for suite in junitparser.JUnitXml.fromfile(str(latest / "junit.xml"))
        for case in suite
    }
    assert cases == {
        ("kstall.linux-x86_64", "demo"): [],
        ("kstall.linux-x86_64", "later"): [],
        ("kstall.linux-x86_64.later", "fixes_are_in_history"): ["Skipped"],
        ("kstall.linux-arm64", "demo"): [],
        ("kstall.linux-arm64.demo", "snores"): ["Skipped"],
        ("kstall.linux-arm64", "later"): [],
        ("kstall.linux-arm64.later", "fixes_are_in_history"): ["Skipped"],
    }


def test_what_the_level_leaves_out_is_not_counted(world: World, tmp_path: Path) -> None:
    words = ("--kernel", str(tmp_path / "new"), "demo", "--level", "full")
    ran = world.validate(*words)
    grid = matrix.read(world.out / "latest")
    saved = report.read(world.out / "latest/new/report.json")
    skipped = {
        check.name: check.detail
        for check in saved.series[0].checks
        if check.status == "skip"
    }
    left = {name for name, cause in skipped.items() if cause.endswith("LEVEL=deep")}
    # Both what is compiled and what is read.
    assert {"compiles_with_clang", "coccinelle_clean"} <= left, ran.output
    (cell,) = grid.columns[1].cells
    assert {skip.check for skip in cell.skipped} == {*skipped} - left


def test_skips_with_one_cause_are_one_line() -> None:
    names = ["a", "b", "c", "d", "e"]
    skips = [{"check": "x", "cause": "cold"}, {"check": "y", "cause": "cold"}]
    grid = _matrix(first="proven", second="proven", third="failed")
    grid.series = names
    for column in grid.columns:
        column.asked = names
        column.cells = [
            matrix.Cell.model_validate(
                {"series": name, "status": "pass", "skipped": skips}
            )
            for name in names
        ]
    # One that is not proven has more to say than what was skipped.
    grid.columns[2].cells[0].status = "fail"
    grid.columns[0].cells[4].skipped.pop()
    assert [
        (group.what, [column.tree for column in group.columns], group.counted)
        for group in matrixviews.skipped_checks(grid)
    ] == [
        ("x, y of a", ["first", "second"], False),
        ("x, y of b, c, d", ["first", "second", "third"], False),
        ("x of e", ["first", "second", "third"], False),
        ("y of e", ["second", "third"], False),
    ]
    for column in grid.columns[:2]:
        column.cells[4] = column.cells[3].model_copy(update={"series": "e"})
    grid.columns.pop()
    (group,) = matrixviews.skipped_checks(grid)
    assert (group.what, group.counted) == ("x, y of all 5 series", True)


# -- the view ------------------------------------------------------------------------


def _matrix(**status: str) -> matrix.Matrix:
    return matrix.Matrix.model_validate(
        {
            "run": "now",
            "kstall": "1",
            "started": "2026-01-01T00:00:00+00:00",
            "command": ["kstall"],
            "series": ["<b>demo</b>"],
            "columns": [
                {
                    "tree": tree,
                    "arch": "x86_64",
                    "level": "quick",
                    "directory": tree,
                    "status": state,
                    "asked": ["<b>demo</b>"],
                }
                for tree, state in status.items()
            ],
        }
    )


@pytest.mark.parametrize(
    ("states", "verdict", "code"),
    [
        (("proven", "proven"), "proven", 0),
        (("proven", "does-not-apply"), "does-not-apply", 3),
        (("could-not-run", "does-not-apply"), "could-not-run", 2),
        (("could-not-run", "failed"), "failed", 1),
        (("proven", "interrupted"), "could-not-run", 2),
    ],
)
def test_the_worst_column_decides(
    states: tuple[str, str], verdict: str, code: int
) -> None:
    grid = _matrix(a=states[0], b=states[1])
    grid.settle()
    assert (grid.status, grid.exit_code) == (verdict, code)


@pytest.mark.parametrize(
    ("status", "verdict", "tag"),
    [("fail", "FAILED", "failure"), ("error", "COULD NOT JUDGE", "error")],
)
def test_a_run_that_only_a_shared_stage_stopped_shows_it_in_every_view(
    tmp_path: Path, status: Literal["fail", "error"], verdict: str, tag: str
) -> None:
    # As if a debug kernel, which all series share, had not been built.
    grid = _matrix(deep="running")
    environment = {"kstall": "1", "python": "3", "host": "h", "cpus": 2}
    outcome = report.Report.model_validate(
        {
            "run": "deep",
            "started": "2026-01-01T00:00:00+00:00",
            "command": ["kstall"],
            "environment": environment,
            "stages": [
                {"name": "debug-apply", "status": "pass", "seconds": 1},
                {
                    "name": "kasan-patched-all",
                    "status": status,
                    "seconds": 1,
                    "summary": "demo.c:3: boom",
                },
            ],
            "series": [
                {
                    "name": "<b>demo</b>",
                    "title": "demo",
                    "digest": "0",
                    "checks": [
                        {"name": "x", "kind": "positive", "claim": "", "status": "pass"}
                    ],
                }
            ],
        }
    )
    outcome.settle()
    grid.columns[0].take(outcome)
    grid.settle()
    cell = grid.columns[0].cell("<b>demo</b>")
    assert cell is not None and cell.status == "pass"
    why = "kasan-patched-all: demo.c:3: boom"
    console = Console(record=True, width=120, file=io.StringIO())
    matrixviews.terminal(grid, tmp_path, console)
    text = console.export_text()
    assert f" the run on deep: {why}\n" in text
    assert f"verdict  {verdict}  1 proven\n" in text
    matrixviews.write_page(grid, tmp_path / "matrix.html")
    assert f"<div>{why}</div>" in (tmp_path / "matrix.html").read_text()
    matrixviews.write_junit(grid, tmp_path / "junit.xml")
    junit = (tmp_path / "junit.xml").read_text()
    assert f'<{tag} message="{why}"' in junit
    # Of one that a series shows, there is nothing more to say.
    outcome.series[0].checks[0].status = status
    outcome.settle()
    grid.columns[0].take(outcome)
    assert grid.columns[0].why == ""


def test_a_reason_of_all_series_is_one_reason() -> None:
    names = ["a", "b", "c", "d"]
    cells = [{"series": name, "status": "error", "why": "tree: gone"} for name in names]
    grid = _matrix(first="could-not-run", second="could-not-run", third="failed")
    grid.series = names
    for column in grid.columns:
        column.asked = names
        column.cells = [matrix.Cell.model_validate(cell) for cell in cells]
    grid.columns[2].cells[0].why = "build: broken"
    assert [
        (reason.who, [column.tree for column in reason.columns], reason.why)
        for reason in matrixviews.reasons(grid)
    ] == [
        ("a", ["first", "second"], "tree: gone"),
        ("a", ["third"], "build: broken"),
        ("b, c, d", ["first", "second", "third"], "tree: gone"),
    ]
    grid.columns[2].cells[0].why = "tree: gone"
    (reason,) = matrixviews.reasons(grid)
    assert reason.who == "all 4 series"


def test_what_was_not_reached_is_no_pass_and_names_are_no_markup(
    tmp_path: Path,
) -> None:
    grid = _matrix(a="running")
    cell = grid.columns[0].cell("<b>demo</b>")
    assert cell is not None and (cell.status, cell.why) == ("error", "not reached")
    matrixviews.write_page(grid, tmp_path / "matrix.html")
    page = (tmp_path / "matrix.html").read_text()
    assert "<b>demo</b>" not in page.replace("<b><b>", "")
    assert "&lt;b&gt;demo&lt;/b&gt;" in page
    matrixviews.write_junit(grid, tmp_path / "junit.xml")
    (suite,) = junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert suite.errors == 1


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["KERNEL=/a b#c"], ["--kernel", "/a b#c", "--"]),
        (
            ["KERNELS=debian:7.3 ~/x#y *"],
            ["--kernel", "debian:7.3", "--kernel", "~/x#y", "--kernel", "*", "--"],
        ),
        (["SERIES=one two", "LEVEL=quick"], ["--", "one", "two"]),
        (["KERNELS=$(touch sprung) `touch sprung`"], ["sprung"]),
    ],
)
def test_make_hands_trees_on_and_runs_nothing_of_them(
    project_root: Path, tmp_path: Path, words: list[str], asked: list[str]
) -> None:
    program = tmp_path / "kstall"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [
            *("make", "-s", "-f", str(project_root / "Makefile"), "-o", "setup"),
            *("validate", f"kstall={program}", *words),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert not (tmp_path / "sprung").exists()
    if asked != ["sprung"]:
        assert done.returncode == 0, done.stderr
        level = "quick" if "LEVEL=quick" in words else "full"
        assert done.stdout.splitlines() == ["validate", "--level", level, *asked]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["MATRIX=a b.toml"], ["--matrix", "a b.toml", "--"]),
        (
            ["MATRIX=$(touch sprung)`touch sprung`"],
            ["--matrix", "$(touch sprung)`touch sprung`", "--"],
        ),
        (
            ["MATRIX=a.toml", "WORKERS=2", "ARCH=arm64", "LEVEL=full", "SERIES=one"],
            [
                *("--level", "full", "--matrix", "a.toml", "--workers", "2"),
                *("--arch", "arm64", "--", "one"),
            ],
        ),
        (["WORKERS=2"], ["--level", "full", "--workers", "2", "--"]),
    ],
)
def test_make_leaves_the_level_of_a_matrix_to_its_file(
    project_root: Path, tmp_path: Path, words: list[str], asked: list[str]
) -> None:
    program = tmp_path / "kstall"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    # A CI may have variables of these names for purposes of its own.
    others = {"MATRIX": "x86", "WORKERS": "many"}
    done = subprocess.run(
        [
            *("make", "-s", "-f", str(project_root / "Makefile"), "-o", "setup"),
            *("validate", f"kstall={program}", *words),
        ],
        cwd=tmp_path,
        env={**os.environ, **others},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["validate", *asked]
    assert not (tmp_path / "sprung").exists()
