# SPDX-License-Identifier: GPL-2.0-or-later
"""What a check says of a workload that ran one KUnit suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.evidence import Verdict, WorkloadResult, kunit


@pytest.mark.parametrize(
    ("printed", "exit_status", "failing"),
    [
        ("    ok 1 case\nok 1 suite\n", 0, set()),
        ("    not ok 1 case\nnot ok 1 suite\n", 1, {"exit status", "last line"}),
        ("    ok 1 case\n", 0, {"last line"}),
        ("ok 1 another\n", 0, {"last line"}),
        ("", 0, {"last line"}),
        ("ok 1 suite\n", 1, {"exit status"}),
    ],
)
def test_a_suite_passes_if_its_own_result_comes_last(
    tmp_path: Path, printed: str, exit_status: int, failing: set[str]
) -> None:
    (tmp_path / "stdout").write_text(printed)
    load = WorkloadResult("suite", tmp_path, {}, {"exit_status": exit_status})
    verdict = Verdict()
    kunit.compare_suite(verdict, load, "suite")
    assert {one.label for one in verdict.comparisons if not one.ok} == failing
