# SPDX-License-Identifier: GPL-2.0-or-later
"""Data flows one way: a package imports only what stands before it, by public names."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

FLOW = (
    "base",
    "debian",
    "verdict",
    "ftrace",
    "farm",
    "series",
    "tree",
    "build",
    "lint",
    "compile",
    "guest",
    "evidence",
    "cost",
    "report",
    "mail",
    "pipeline",
    "cli",
)


def _imports(path: Path, package: str) -> Iterator[tuple[str, list[str]]]:
    """What ``path``, a module of ``package``, imports from kstall: where, and what."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: (node.level and 1 - node.level) or None]
            named = (node.module or "").split(".") if node.module else []
            words = [*(base if node.level else ()), *named]
            if words[:1] == ["kstall"]:
                yield ".".join(words), [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name.split(".")[0] != "kstall", f"{path}: {alias.name}"


def _check_imports(path: Path, top: Path) -> None:
    """Fail unless ``path``, a module below ``top``, imports only what it may."""
    mine = path.parent.name if path.parent != top else ""
    before = FLOW.index(mine) if mine else len(FLOW)
    package = f"kstall.{mine}" if mine else "kstall"
    for where, names in _imports(path, package):
        other = where.split(".")[1:]
        # Of kstall itself each name is a module, but for this one.
        modules = [[name] for name in names if name != "__version__"]
        for target, wanted in [(other, names)] if other else [(m, []) for m in modules]:
            if target[0] == mine or (not mine and target[0] == "entry"):
                continue
            message = f"{path.relative_to(top)} imports kstall.{'.'.join(target)}"
            assert target[0] in FLOW[:before], message
            assert len(target) == 1, f"{message}, which is no package"
            public = importlib.import_module(f"kstall.{target[0]}").__all__
            assert set(wanted) <= set(public), f"{message}: {wanted} not all public"


def _check_line(top: Path, module: str, line: str) -> None:
    """`_check_imports` of a module that consists of ``line``."""
    path = top / module
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{line}\n")
    _check_imports(path, top)


def test_packages_import_public_names_of_earlier_ones(project_root: Path) -> None:
    top = project_root / "harness/kstall"
    packages = {path.parent.name for path in top.glob("*/__init__.py")}
    assert packages == set(FLOW), "a new package needs its place in FLOW"
    for path in top.rglob("*.py"):
        _check_imports(path, top)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("base/cache.py", "from ..pipeline import validate"),
        ("base/cache.py", "from .. import pipeline"),
        ("base/cache.py", "from kstall import __version__, pipeline"),
        ("base/cache.py", "from ..cli import main"),
        ("base/cache.py", "from .. import cli"),
        ("pipeline/run.py", "from kstall.entry import main"),
        ("pipeline/run.py", "from ..build.kernel import key_of"),
        ("pipeline/run.py", "from ..build import nothing_of_the_kind"),
        ("cli/views.py", "from ..build.kernel import key_of"),
        ("cli/views.py", "import kstall.build"),
        ("entry.py", "from .cli.command import main"),
    ],
)
def test_an_import_of_something_later_or_private_is_found(
    tmp_path: Path, module: str, line: str
) -> None:
    with pytest.raises(AssertionError):
        _check_line(tmp_path, module, line)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pipeline/run.py", "from .. import __version__, build"),
        ("pipeline/run.py", "from kstall import pipeline"),
        ("pipeline/run.py", "from . import validate"),
        ("pipeline/run.py", "from ..build import kernel"),
        ("cli/workers.py", "from .. import farm"),
        ("entry.py", "from .cli import main"),
        ("__main__.py", "from .entry import main"),
    ],
)
def test_an_import_of_something_earlier_is_not(
    tmp_path: Path, module: str, line: str
) -> None:
    _check_line(tmp_path, module, line)


def test_analysis_stands_on_the_first_packages_only(project_root: Path) -> None:
    """An operator installs neither b4 nor virtme-ng, so no module may ask for them."""
    allowed = {"kstall.base", "kstall.ftrace"}
    ops = project_root / "harness/kstall_ops"
    for path in ops.rglob("*.py"):
        for where, names in _imports(path, "kstall_ops"):
            assert where in allowed, f"{path}: {where}"
            assert set(names) <= set(importlib.import_module(where).__all__)
    for path in ops.glob("*.py"):
        modules = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
        }
        others = {"kstall", "duckdb", "perfetto", "mcp", "mcp_types"}
        assert modules <= others | sys.stdlib_module_names, path


def test_the_harness_does_not_know_the_analysis(project_root: Path) -> None:
    for path in (project_root / "harness/kstall").rglob("*.py"):
        if path.parent.name != "cli" and path.name != "entry.py":
            assert "kstall_ops" not in path.read_text(), path


def test_readme_draws_the_same_flow(project_root: Path) -> None:
    (drawn,) = re.findall(
        r"^series → .*$", (project_root / "README.md").read_text(), re.M
    )
    beside = {"base", "debian", "verdict", "ftrace", "farm", "pipeline", "cli"}
    assert drawn.split(" → ") == [name for name in FLOW if name not in beside]


def _public_types(path: Path) -> Iterator[tuple[str, bool]]:
    """The public classes and aliases that ``path`` defines; whether each is a class."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, True
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id[0].isupper():
                    yield target.id, False


def _ambiguous(top: Path) -> dict[str, list[str]]:
    """Names of classes that have another meaning below ``top``, and where."""
    places = defaultdict(list)
    classes = set()
    for path in sorted(top.rglob("*.py")):
        for name, is_class in _public_types(path):
            places[name].append(str(path.relative_to(top)))
            if is_class:
                classes.add(name)
    return {name: places[name] for name in sorted(classes) if len(places[name]) > 1}


def test_the_name_of_a_class_means_one_thing(project_root: Path) -> None:
    assert _ambiguous(project_root / "harness/kstall") == {}


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ("class Nap: ...", {"Nap": ["a.py", "b.py"]}),
        ("Nap = str", {"Nap": ["a.py", "b.py"]}),
        ("class _Nap: ...", {}),
        ("class Bed:\n    class Nap: ...", {}),
        ("from .a import Nap", {}),
    ],
)
def test_a_class_whose_name_is_taken_is_found(
    tmp_path: Path, line: str, places: dict[str, list[str]]
) -> None:
    (tmp_path / "a.py").write_text("class Nap: ...\n")
    (tmp_path / "b.py").write_text(f"{line}\n")
    assert _ambiguous(tmp_path) == places


@pytest.mark.parametrize("package", FLOW)
def test_a_package_says_what_it_is_for(package: str) -> None:
    module = importlib.import_module(f"kstall.{package}")
    assert module.__doc__ and "\n\nIn come" in module.__doc__
    assert all(hasattr(module, name) for name in module.__all__)


def test_checks_import_only_evidence(project_root: Path) -> None:
    for path in (project_root / "patches").glob("*/checks.py"):
        assert {where for where, _ in _imports(path, "")} <= {"kstall.evidence"}, path


@pytest.mark.parametrize("folder", ["kstall_guest", "kstall/base", "kstall/debian"])
def test_what_runs_elsewhere_needs_only_the_standard_library(
    project_root: Path, folder: str
) -> None:
    """In the guest, and in .ci/run, which asks for a mirror before there is a .venv."""
    for path in (project_root / "harness" / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names
