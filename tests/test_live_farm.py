# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall with a worker and without, on real kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from farms import verdict, without_results
from kstall.base import cache
from live import Outcome, validate

pytestmark = [pytest.mark.live, pytest.mark.deep]

#: Two guests, with the patches and without, and nothing is measured: of what is
#: observed, counts of events and times would be others in each boot.
SERIES = "pci-aer-fixes"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory beside the cache of the user, as a worker needs 5 GB of disk."""
    beside = cache.default_dir().parent
    path = Path(tempfile.mkdtemp(prefix="kstall-tests-farm-", dir=beside))
    yield path
    cache.remove(path)


def test_verdict_with_a_worker_is_that_without(
    project_root: Path, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cache.default_dir()
    # Its kernels are all that is taken over, by either side.
    first = validate(project_root, tmp_path / "first", SERIES)
    assert first.exit_code == 0, first.output

    def from_nothing(name: str, *words: str) -> Outcome:
        kept = without_results(home, place / name)
        monkeypatch.setenv("KSTALL_CACHE", str(kept))
        outcome = validate(project_root, tmp_path / name, *words, SERIES)
        assert outcome.exit_code == 0, outcome.output
        for stage in ("base", "config", "build"):
            assert outcome.stage(stage).reused, stage
        for stage in ("compile", "guest", "without"):
            assert not outcome.stage(stage).reused, stage
        return outcome

    alone = from_nothing("alone")
    helped = from_nothing("helped", "--workers", "1")
    # It did not find what was to be done.
    for name in ("compile", "guest", "without"):
        figures = {figure.name for figure in helped.stage(name).figures}
        assert "work of worker-1" in figures, name
    assert verdict(alone) == verdict(helped)
