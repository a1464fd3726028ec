# SPDX-License-Identifier: GPL-2.0-or-later
"""Data flows one way: a module imports only what stands before it."""

from __future__ import annotations

import ast
from pathlib import Path

ORDER = (
    "errors",
    "verdict",
    "stage",
    "process",
    "parallel",
    "cache",
    "temporary",
    "hostload",
    "space",
    "listing",
    "git",
    "debian",
    "apt",
    "patchfile",
    "series",
    "suites",
    "store",
    "source",
    "am",
    "tree",
    "kconfig",
    "resolve",
    "outputs",
    "kernel",
    "programs",
    "extra",
    "bootstrap",
    "root",
    "console",
    "splats",
    "hosttime",
    "monitor",
    "dump",
    "hostclock",
    "guest",
    "accel",
    "cexpr",
    "printk",
    "records",
    "ring",
    "evidence",
    "readers",
    "common",
    "falsify",
    "falsity",
    "mutate",
    "traceabi",
    "elf",
    "identity",
    "code",
    "paths",
    "costs",
    "btf",
    "structs",
    "footprint",
    "gate",
    "report",
    "plain",
    "kunit",
    "explain",
    "views",
    "cases",
    "junit",
    "ktap",
    "kcidb",
    "html",
    "ui",
    "run",
    "guestrun",
    "trials",
    "debugguest",
    "debugcheck",
    "counting",
    "timing",
    "overhead",
    "recipients",
    "contributor",
    "mail",
    "checkpatch",
    "discover",
    "includes",
    "kerneldoc",
    "maintainers",
    "patchtext",
    "rst",
    "patchcheck",
    "patches",
    "kbuild",
    "options",
    "sparse",
    "variants",
    "compiling",
    "compilecheck",
    "worst",
    "builds",
    "debugkernel",
    "debugging",
    "validate",
    "stability",
    "commits",
    "proof",
    "excerpts",
    "figures",
    "cover",
    "thread",
    "export",
    "prep",
    "summary",
    "compare",
    "adopt",
    "incoming",
    "cli",
)


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {a.name for a in node.names}
    return found - {"__version__", None}  # type: ignore[return-value]


def test_imports_point_backwards(project_root: Path) -> None:
    modules = {p.stem: p for p in (project_root / "harness/kstall").glob("*.py")}
    del modules["__init__"], modules["__main__"]
    assert set(modules) == set(ORDER), "a new module needs its place in ORDER"
    wrong = [
        f"{name} imports {other}"
        for name, path in modules.items()
        for other in _imports(path)
        if ORDER.index(other) >= ORDER.index(name)
    ]
    assert wrong == []


def test_the_guest_needs_only_the_standard_library(project_root: Path) -> None:
    for path in (project_root / "harness/kstall_guest").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in __import__("sys").stdlib_module_names
