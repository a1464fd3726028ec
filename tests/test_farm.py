# SPDX-License-Identifier: GPL-2.0-or-later
"""Work handed out to workers, and all that can befall them: Dask is real, kernels not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakeworld import World
from farms import crowd, verdict
from faulty import forget, require_proven


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def test_verdict_is_that_of_one_machine(world: World) -> None:
    with crowd(world, "one", "two") as workers:
        ran = workers.validate()
        require_proven(ran)
    guests = world.guests
    forget(world, "kernels", "evidence", "instructions", "compiled", "programs")
    here = world.validate()
    require_proven(here)
    assert verdict(ran) == verdict(here)
    assert sorted(guests) == sorted(world.guests[len(guests) :])
