# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs of workloads do not end a wait by a clock that goes on without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstall.series import Project

#: The end of a wait by the guest's clock: that counts time that the host did not give.
OWN = re.compile(
    r"\bnow(?:_ns)?\(\) \+|\bjiffies \+|\bwait_\w+_timeout\(|\balarm\(|\bPATIENCE\b"
    r"|\bTimer\(|\bmonotonic(?:_ns)?\(\) \+|\btimeout="
)


def sources(root: Path) -> Iterator[Path]:
    """What the workloads of series are made of."""
    project = Project(root)
    for series in project.load(project.names()):
        for load in series.spec.workload:
            folder = (project.scripts / load.program).parent
            yield from (path for path in folder.glob("*") if path.is_file())


def test_no_program_has_a_deadline_of_its_own(project_root: Path) -> None:
    found = [
        f"{path.name}: {match[0]}"
        for path in sorted(set(sources(project_root)))
        if path.suffix != ".dat"
        for match in OWN.finditer(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "uint64_t end = now() + STEP_NS;",
        "met = wait_for_completion_timeout(&selected, PATIENCE);",
        "alarm = threading.Timer(SCENE_S, self._process.kill)",
        "subprocess.run(argv, timeout=60)",
    ],
)
def test_one_would_be_seen(text: str) -> None:
    assert OWN.search(text)
