# SPDX-License-Identifier: GPL-2.0-or-later
"""A new series: whole, consistent, never over anything that is there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kstall import cli
from kstall.base import cache
from kstall.series import Project, Series, mutants, new
from kstall.tree import Base, tree

NAME = "toy-event"
# At import, as a test itself has a home of its own.
CACHE = cache.default_dir()


def _series(project: Project, name: str = NAME) -> Series:
    new.write(project, name)
    (series,) = project.load([name])
    return series


def _files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_it_writes_is_a_series(project_copy: Project) -> None:
    before = _files(project_copy.root)
    written = new.write(project_copy, NAME)
    assert set(_files(project_copy.root)) == {*before, *written}
    (series,) = project_copy.load([NAME])
    assert [point.event for point in series.spec.tracepoint] == [
        "task:task_personality"
    ]
    kinds = {check.kind for check in series.spec.check}
    assert kinds == {"positive", "negative", "invariant"}
    (mutant,) = mutants.load(series)
    assert mutant.falsifies is not None
    for path in written:
        text = path.read_text()
        assert "{{" not in text
        assert text.endswith("\n") and not text.endswith("\n\n")


def test_two_can_be_begun(project_copy: Project) -> None:
    assert _series(project_copy, "one").name == "one"
    assert _series(project_copy, "other_1").name == "other_1"


def test_its_workload_can_be_run(project_copy: Project) -> None:
    series = _series(project_copy)
    for load in series.spec.workload:
        program = project_copy.scripts / load.program
        assert program.stat().st_mode & stat.S_IXUSR
        subprocess.run(
            [sys.executable, "-m", "py_compile", str(program)],
            check=True,
            env={**os.environ, "PYTHONPYCACHEPREFIX": str(project_copy.root / "pyc")},
        )


def test_its_python_is_in_the_house_s_style(project_copy: Project) -> None:
    series = _series(project_copy)
    python = [
        str(series.dir / "checks.py"),
        str(project_copy.scripts / series.spec.workload[0].program),
    ]
    config = str(Path(__file__).parents[1] / "pyproject.toml")
    for words in (("check", "-q"), ("format", "-q", "--check")):
        ruff = [sys.executable, "-m", "ruff", *words, "--config", config]
        subprocess.run([*ruff, *python], check=True)


def test_its_patch_applies(project_copy: Project, tmp_path: Path) -> None:
    """To the files of 7.3 as they are without any series."""
    trees = sorted((CACHE / "trees").glob("7.3.*"))
    if not trees:
        pytest.skip(f"no tree of 7.3 in {CACHE}; `kstall validate` unpacks one")
    series = _series(project_copy)
    # By content, as a run may patch it meanwhile.
    base = Base(trees[-1].name, trees[-1] / "src", "directory", "7.3", "", "")
    for path, file in tree.pristine(base, series.touches).items():
        assert file is not None, path
        file.write(tmp_path / "tree" / path)
    for patch in series.patches:
        subprocess.run(
            ["git", "apply", "--verbose", str(patch.path)],
            check=True,
            cwd=tmp_path / "tree",
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)},
        )
    for point in series.spec.tracepoint:
        assert point.name in (tmp_path / "tree" / point.header).read_text()


@pytest.mark.parametrize("name", ["", "Toy", "1toy", "-toy", "a/b", "..", "toy\n", "ü"])
def test_a_bad_name_is_refused(project_copy: Project, name: str) -> None:
    before = _files(project_copy.root)
    with pytest.raises(new.NewError, match="not a valid name for a series"):
        new.write(project_copy, name)
    assert _files(project_copy.root) == before


@pytest.mark.parametrize("name", ["run", "shared"])
def test_a_name_that_each_run_uses_is_refused(project_copy: Project, name: str) -> None:
    before = _files(project_copy.root)
    with pytest.raises(new.NewError, match="each run has results of that name"):
        new.write(project_copy, name)
    assert _files(project_copy.root) == before


@pytest.mark.parametrize(
    "there",
    [
        f"patches/{NAME}",
        f"kconfigs/{NAME}.config",
        f"scripts/{NAME}.bt",
        f"scripts/workloads/{NAME}",
    ],
)
def test_nothing_is_overwritten(project_copy: Project, there: str) -> None:
    (project_copy.root / there).write_text("mine")
    before = _files(project_copy.root)
    with pytest.raises(new.NewError, match=f"there already: {there}"):
        new.write(project_copy, NAME)
    assert _files(project_copy.root) == before


@pytest.mark.parametrize("name", ["drm-sched", "base", "debug", "overhead"])
def test_names_that_mean_something_are_taken(project_copy: Project, name: str) -> None:
    before = _files(project_copy.root)
    with pytest.raises(new.NewError, match="there already"):
        new.write(project_copy, name)
    assert _files(project_copy.root) == before


def test_a_link_to_nowhere_is_in_the_way(project_copy: Project) -> None:
    (project_copy.scripts / f"{NAME}.bt").symlink_to("nowhere")
    with pytest.raises(new.NewError, match="there already"):
        new.write(project_copy, NAME)


def test_all_or_nothing(project_copy: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*project_copy.root.rglob("*")}
    chmod = Path.chmod

    def full(path: Path, mode: int) -> None:
        if path.name == "personality":
            raise OSError(28, "No space left on device")
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(OSError, match="No space"):
        new.write(project_copy, NAME)
    assert {*project_copy.root.rglob("*")} == before


def test_elsewhere_than_in_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(new.NewError, match="no checkout of kstall"):
        new.write(Project(tmp_path), NAME)


def test_the_command_says_where_and_what_next(
    project_copy: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--project", str(project_copy.root), "new", NAME]
    assert cli.main(argv) == 0
    output = capsys.readouterr().out
    assert f"patches/{NAME}/series.toml\n" in output
    assert f"kstall validate --level quick {NAME}" in output
    assert cli.main(argv) == 2
    assert f"there already: patches/{NAME}" in capsys.readouterr().err
