# SPDX-License-Identifier: GPL-2.0-or-later
"""What the program in the guest makes of KUnit's answers."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

_PASSED = """KTAP version 1
1..1
    KTAP version 1
    # Subtest: demo
    # module: demo_test
    1..2
    ok 1 naps
    ok 2 dozes
# demo: pass:2 fail:0 skip:0 total:2
# Totals: pass:2 fail:0 skip:0 total:2
ok 1 demo
"""
_FAILED = """KTAP version 1
1..1
    # Subtest: demo
    1..2
    # naps: EXPECTATION FAILED at drivers/demo/tests.c:310
    Expected ctx->dep_ns == 0, but
        ctx->dep_ns == 200249 (0x30e39)
    not ok 1 naps
    ok 2 dozes
not ok 1 demo
"""
_SKIPPED = _PASSED.replace("ok 2 dozes", "ok 2 dozes # SKIP no CONFIG_DOZE")


@pytest.fixture
def repeat(project_root: Path) -> ModuleType:
    path = str(project_root / "scripts/workloads/kunit/repeat")
    loader = importlib.machinery.SourceFileLoader("repeat", path)
    spec = importlib.util.spec_from_loader("repeat", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ktap", "came"),
    [
        (_PASSED, "passed"),
        (_FAILED, "failed"),
        (_SKIPPED, "not-run"),
        (_PASSED.replace("ok 1 demo", "ok 1 other"), "not-run"),
    ],
)
def test_verdicts(repeat: ModuleType, ktap: str, came: str) -> None:
    assert repeat.verdict(ktap, "demo") == came


def test_what_was_expected_is_reported(repeat: ModuleType) -> None:
    assert repeat.against(_FAILED) == [
        "# naps: EXPECTATION FAILED at drivers/demo/tests.c:310",
        "Expected ctx->dep_ns == 0, but",
        "ctx->dep_ns == 200249 (0x30e39)",
        "not ok 1 naps",
        "not ok 1 demo",
    ]


def test_all_runs_are_counted(
    repeat: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "demo"
    suite.mkdir()
    (suite / "run").touch()
    (suite / "results").write_text(_FAILED)
    setattr(repeat, "SUITES", tmp_path)  # noqa: B010 - a module has any name
    assert repeat.main(["demo", "3"]) == 0
    *complaints, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["number"] for line in complaints] == [1, 2, 3]
    assert (total["passed"], total["failed"], total["not-run"]) == (0, 3, 0)


def test_without_the_suite(repeat: ModuleType, tmp_path: Path) -> None:
    setattr(repeat, "SUITES", tmp_path)  # noqa: B010 - a module has any name
    assert repeat.main(["demo", "3"]) == 2
