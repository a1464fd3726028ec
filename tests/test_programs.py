# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs of the tree: compiled once for each content, never from nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from kstall.base import FailedCheck, arch, process
from kstall.build import programs
from kstall.series.spec import FromTree

SOURCE = (
    "#include <half.h>\n#include <stdio.h>\nint main(void) { return puts(HALF) < 0; }\n"
)


def _obtain(tmp_path: Path, content: str = "a") -> tuple[programs.Program, ...]:
    """A program of two files of a tree, and how often that was checked out."""
    load = SimpleNamespace(
        name="half",
        program="workloads/demo/half",
        from_tree=FromTree(sources=("tests/half.c",), include=("tests/include",)),
    )
    tree = tmp_path / "tree"
    (tree / "tests/include").mkdir(parents=True, exist_ok=True)
    (tree / "tests/half.c").write_text(SOURCE)
    (tree / "tests/include/half.h").write_text(f'#define HALF "{content}"\n')
    series: Any = SimpleNamespace(spec=SimpleNamespace(workload=[load, load]))
    plan: Any = SimpleNamespace(compiled=content)
    tools: Any = SimpleNamespace(id="gcc", arch=arch.X86_64, libraries=())

    def checkout() -> Any:
        with (tmp_path / "checkouts").open("a") as file:
            file.write("x")
        return SimpleNamespace(path=tree)

    return programs.obtain(
        series, plan, tools, tmp_path / "cache", checkout, log=tmp_path / "log"
    )


def test_a_program_is_compiled_once_for_a_content(tmp_path: Path) -> None:
    (first,) = _obtain(tmp_path)
    assert first.name == "workloads/demo/half"
    assert not first.reused
    assert process.run([str(first.file)]).stdout == "a\n"
    (again,) = _obtain(tmp_path)
    assert again.reused
    assert again.file == first.file
    (other,) = _obtain(tmp_path, "b")
    assert process.run([str(other.file)]).stdout == "b\n"
    assert (tmp_path / "checkouts").read_text() == "xx"


def test_programs_that_were_not_used_for_longest_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_KEPT", 1)
    (first,) = _obtain(tmp_path)
    os.utime(first.file.parent, (1, 1))
    (other,) = _obtain(tmp_path, "b")
    assert other.file.exists() and not first.file.exists()


def test_what_does_not_compile_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_programs.SOURCE", "int main(void) { return half; }\n")
    with pytest.raises(FailedCheck, match="half"):
        _obtain(tmp_path)
    assert not list((tmp_path / "cache/programs").glob("[!.]*/program"))


@pytest.mark.parametrize("path", ["../x.c", "/etc/x.c", "a/../../x.c", "-o.c", ""])
def test_paths_lie_in_the_tree(path: str) -> None:
    with pytest.raises(ValidationError):
        FromTree(sources=(path,))
