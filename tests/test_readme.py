# SPDX-License-Identifier: GPL-2.0-or-later
"""README and docs/events.md say what is there."""

from __future__ import annotations

import re
from pathlib import Path

from kstall.series import Project


def test_nothing_is_left_to_fill_in(project_root: Path) -> None:
    assert not re.search(r"@[A-Z]+@", (project_root / "README.md").read_text())


def test_every_series_and_script_is_named(project_root: Path) -> None:
    readme = (project_root / "README.md").read_text()
    events = (project_root / "docs/events.md").read_text()
    for series in Project(project_root).load():
        (row,) = re.findall(rf"(?m)^\|.*`{series.name}`.*\|$", readme)
        assert (series.spec.ordered_as or "") in row
        for point in series.spec.tracepoint:
            assert f"`{point.name}`" in row
            assert f"`{point.name}`" in events
        for script in series.spec.script:
            assert f"`{script.file}`" in events
