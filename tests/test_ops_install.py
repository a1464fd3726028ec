# SPDX-License-Identifier: GPL-2.0-or-later
"""An operator's install has nothing that builds or boots kernels, and needs none."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from recordings import culprit

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def extras(root: Path) -> dict[str, list[str]]:
    """What each extra asks for, by name."""
    said = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert said["dependencies"] == []
    return {
        extra: [_NAME.match(one)[0] for one in wanted]  # type: ignore[index]
        for extra, wanted in said["optional-dependencies"].items()
    }


def closure(names: list[str]) -> set[str]:
    """``names`` and all that they require, as far as it is installed."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for one in required:
            match = _NAME.match(one)
            if match and "extra ==" not in one:
                queue.append(match[0])
    return found


def test_the_extras_pull_nothing_of_the_harness(project_root: Path) -> None:
    asked = extras(project_root)
    mine = closure(asked["ops"])
    assert {"duckdb", "perfetto", "protobuf"} <= mine
    assert not mine & {name.lower().replace("_", "-") for name in asked["harness"]}


#: Runs a verb where only the standard library and the modules named first are there.
_ALONE = """
import importlib.abc, sys
allowed = set(sys.argv[1].split(","))
class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
sys.meta_path.insert(0, Nothing())
import kstall_ops
from kstall.entry import main
sys.exit(main(sys.argv[2:]))
"""


def modules(packages: set[str]) -> str:
    """Their importable names."""
    # Of the same distribution, or where metadata does not know of it.
    ours = ["kstall", "kstall_guest", "kstall_ops", "_duckdb"]
    return (
        ",".join(ours)
        + ","
        + ",".join(
            module
            for module, owners in metadata.packages_distributions().items()
            if {owner.lower().replace("_", "-") for owner in owners} & packages
        )
    )


@pytest.mark.parametrize("verb", ["seal", "query", "explain", "timeline", "validate"])
def test_each_verb_runs_without_the_harness(
    project_root: Path, tmp_path: Path, verb: str
) -> None:
    culprit().write(tmp_path / "rec")
    alone = [
        *(sys.executable, "-c", _ALONE),
        modules(closure(extras(project_root)["ops"])),
    ]
    made = str(tmp_path / "s.duckdb")
    words = {
        "seal": ["seal", str(tmp_path / "rec"), "-o", made],
        "query": ["query", made, "--named", "lost"],
        "explain": ["explain", made, "--html", str(tmp_path / "p.html")],
        "timeline": ["timeline", made, "-o", str(tmp_path / "t")],
        "validate": ["validate"],
    }
    for one in dict.fromkeys(["seal", verb]):
        done = subprocess.run(
            [*alone, *words[one]], capture_output=True, text=True, check=False
        )
    if verb == "validate":
        assert done.returncode == 2
        assert "not installed: in a checkout, pip install '.[harness]'" in done.stderr
        # What is asked in general there is an answer to.
        for word, said in (("--help", "explain"), ("--version", "kstall ")):
            done = subprocess.run(
                [*alone, word], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, "") and said in done.stdout
    else:
        assert (done.returncode, done.stderr) == (0, "")
