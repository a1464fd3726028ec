# SPDX-License-Identifier: GPL-2.0-or-later
"""`make test` gives each of its steps a status, also those that it does not come to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_sums():
    assert 1 + 1 == 2

def test_wrong_sums():
    assert 1 + 1 == 3

@pytest.mark.fault("disk full", "nothing")
def test_faults():
    pass

@pytest.mark.fault("disk full", "nothing")
def test_more_faults():
    pytest.skip("not here")

@pytest.fixture
def broken():
    raise ValueError

@pytest.mark.live
@pytest.mark.fault("killed", "a guest")
def test_boots(broken):
    pass
"""


def _steps(project_root: Path, place: Path, text: str, *words: str) -> list[str]:
    """What pytest says of the steps of a test file, with the conftest of ours."""
    for name in ("conftest.py", "processes.py", "live.py"):
        shutil.copy(project_root / "tests" / name, place)
    (place / "test_of_all_kinds.py").write_text(text)
    config = str(project_root / "pyproject.toml")
    argv = [sys.executable, "-m", "pytest", "-c", config, "--rootdir", str(place)]
    ours = {name: value for name, value in os.environ.items() if name[:7] != "PYTEST_"}
    done = subprocess.run(
        [*argv, "-p", "no:randomly", *words, str(place)],
        cwd=place,
        env={**ours, "PYTHONPATH": f"{place}:{project_root / 'harness'}"},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.partition("= steps =")[2].splitlines()[1:]
    return [
        " ".join(line.partition(" (")[0].split())
        for line in lines
        if line.startswith(("unit", "faults", "live", "deep", "not run"))
    ]


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_each_step_has_a_status(
    project_root: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    unit, faults, live, missing = _steps(project_root, tmp_path, TESTS, *words)
    counts = unit.removeprefix("unit FAIL ").split(", ")
    assert sorted(counts) == ["1 failed", "1 passed"]
    counts = faults.removeprefix("faults ok ").split(", ")
    assert sorted(counts) == ["1 passed", "1 skipped"]
    # That it boots is what counts, whatever it is about.
    assert live == "live FAIL 1 error"
    assert missing == "not run: deep"


def test_steps_that_were_not_run_are_named(project_root: Path, tmp_path: Path) -> None:
    place = tmp_path / "some"
    place.mkdir()
    chosen = ("-m", "not live and not deep", "-k", "not wrong")
    unit, faults, missing = _steps(project_root, place, TESTS, *chosen)
    assert (unit, faults) == ("unit ok 1 passed", "faults ok 1 passed, 1 skipped")
    assert missing == "not run: live, deep"
    # A file that is no Python ends all of it.
    place = tmp_path / "none"
    place.mkdir()
    (missing,) = _steps(project_root, place, "def")
    assert missing == "not run: unit, faults, live, deep"


def _make(project_root: Path, place: Path, *, ruff: int, shellcheck: bool) -> list[str]:
    """What `make test` prints with linters and a pytest that only have a status."""
    place.mkdir()
    shutil.copy(project_root / "Makefile", place)
    (place / "patches/demo").mkdir(parents=True)
    (place / "patches/demo/checks.py").touch()
    programs = {
        "scripts/setup.sh": 'test -n "$KSTALL_LINT" || echo "setup is not told"',
        ".venv/bin/ruff": f"exit {ruff}",
        ".venv/bin/mypy": "exit 0",
        ".venv/bin/pytest": "echo tests",
    }
    programs |= {"bin/shellcheck": "exit 0"} if shellcheck else {}
    for name, text in programs.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (place / "bin").mkdir(exist_ok=True)
    for name in ("make", "sh", "grep"):
        program = shutil.which(name)
        assert program is not None
        (place / "bin" / name).symlink_to(program)
    done = subprocess.run(
        ["make", "test"],
        cwd=place,
        env={"PATH": str(place / "bin")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (ruff == 0), done.stderr
    return done.stdout.splitlines()


def test_without_linters_no_test_is_run_and_that_is_said(
    project_root: Path, tmp_path: Path
) -> None:
    assert _make(project_root, tmp_path / "bad", ruff=1, shellcheck=True) == [
        "lint    FAIL, so no tests were run: unit, faults, live, deep"
    ]
    good = _make(project_root, tmp_path / "good", ruff=0, shellcheck=True)
    assert good == ["lint    ok", "tests"]


def test_without_shellcheck_lint_says_what_it_left_out(
    project_root: Path, tmp_path: Path
) -> None:
    text, _ = _make(project_root, tmp_path / "place", ruff=0, shellcheck=False)
    assert text == (
        "lint    ok, but there is no shellcheck: shell scripts were not checked"
    )


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), "--runs 20 --load 2 --load 4 -- "),
        (("SERIES=a b", "N=5", "LOAD=0"), "--runs 5 --load 0 -- a b"),
        (("KUNIT=200", "LOAD=4"), "--runs 20 --kunit 200 --load 4 -- "),
        (("RESUME=1", "LOAD=4"), "--runs 20 --load 4 --resume -- "),
    ],
)
def test_stability_is_asked_for_in_words(
    project_root: Path, tmp_path: Path, words: tuple[str, ...], asked: str
) -> None:
    # What others mean by such a name is not what is meant here.
    output = _kstall(project_root, tmp_path, "stability", *words, KUNIT="1", RESUME="1")
    assert output.split() == f"stability {asked}".split()


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), "--version 1 -- "),
        (
            ("SERIES=a b", "REPORT=https://example.org/r.html?a=$(id)&b=1#a"),
            "--version 1 --report-url https://example.org/r.html?a=$(id)&b=1#a -- a b",
        ),
        (("VERSION=2", "REPORT="), "--version 2 -- "),
    ],
)
def test_mails_name_the_report_that_is_asked_for(
    project_root: Path, tmp_path: Path, words: tuple[str, ...], asked: str
) -> None:
    output = _kstall(project_root, tmp_path, "series", *words, REPORT="mine")
    assert output.split() == f"series {asked}".split()


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("SERIES=a b",), "--level full -- a b"),
        (("SERIES=a", "LEVEL=quick", "AGAIN=1"), "--level quick --again -- a"),
    ],
)
def test_guests_are_booted_again_if_that_is_asked_for(
    project_root: Path, tmp_path: Path, words: tuple[str, ...], asked: str
) -> None:
    output = _kstall(project_root, tmp_path, "validate", *words, AGAIN="1")
    assert output.split() == f"validate {asked}".split()


@pytest.mark.parametrize("name", ["/a$HOME/b", "/a b", "r#$(shell id)", "$$", "`id`"])
def test_a_tree_s_name_is_no_code(
    project_root: Path, tmp_path: Path, name: str
) -> None:
    given = f"validate --level full --kernel {name} -- s\n"
    for number, environment in enumerate(({}, {"KERNEL": name})):
        words = () if environment else (f"KERNEL={name}",)
        place = tmp_path / str(number)
        place.mkdir()
        output = _kstall(
            project_root, place, "validate", "SERIES=s", *words, **environment
        )
        assert output == given


def test_several_trees_are_words(project_root: Path, tmp_path: Path) -> None:
    output = _kstall(project_root, tmp_path, "validate", "KERNELS=a$b  c", "SERIES=s")
    assert output == "validate --level full --kernel a$b --kernel c -- s\n"


def _kstall(project_root: Path, place: Path, *words: str, **environment: str) -> str:
    """The words that `make` with ``words`` hands to kstall."""
    shutil.copy(project_root / "Makefile", place)
    programs = {"scripts/setup.sh": "exit 0", ".venv/bin/kstall": 'echo "$*"'}
    for name, text in programs.items():
        path = place / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    done = subprocess.run(
        ["make", *words],
        cwd=place,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
