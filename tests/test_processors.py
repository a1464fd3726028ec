# SPDX-License-Identifier: GPL-2.0-or-later
"""Where memory is short, fewer compilers run at once; guests keep their processors."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import cache, space
from kstall.pipeline import builds, debugkernel, kernels, processors, units

ALL = len(os.sched_getaffinity(0))
ENOUGH = 384 * 2**20
pytestmark = pytest.mark.skipif(ALL < 2, reason="there is one processor only")


def memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(space, "memory", lambda: size)


def _count() -> int:
    return len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (0, 1),
        (ENOUGH, 1),
        (2 * ENOUGH - 1, 1),
        (2 * ENOUGH, 2),
        (2 * ALL * ENOUGH, ALL),
    ],
)
def test_memory_limits_what_a_child_may_use(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    memory(monkeypatch, size)
    before = os.sched_getaffinity(0)
    asked = "import os; print(len(os.sched_getaffinity(0)))"
    with processors.for_compilers() as given:
        assert _count() == given == count
        assert os.sched_getaffinity(0) <= before
        argv = [sys.executable, "-c", asked]
        assert int(subprocess.run(argv, capture_output=True).stdout) == count
    assert os.sched_getaffinity(0) == before


def test_other_threads_keep_their_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, ENOUGH)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(_count).result() == ALL
        with contextlib.suppress(ZeroDivisionError), processors.for_compilers():
            assert pool.submit(_count).result() == ALL
            raise ZeroDivisionError
    assert _count() == ALL


class Stage(SimpleNamespace):
    """What stages have that nobody looks at."""

    log: Any = None


class Enough(Exception):
    """A kernel was to be built."""


def _of_groups(run: Any) -> None:
    maker: Any = SimpleNamespace(
        _configure=lambda *_: None,
        ground=SimpleNamespace(tools=None, cache=None),
        group=SimpleNamespace(slot="x"),
        run=run,
    )
    checkout: Any = SimpleNamespace(plan=None, tree=None)
    stage: Any = Stage()
    kernels._Maker._build(maker, checkout, stage, ())


def _of_debug_kernels(run: Any) -> None:
    plan = SimpleNamespace(base=None, patches=())
    group: Any = SimpleNamespace(
        name="g", plan=plan, fragments=lambda *_: (), absent=lambda _: frozenset()
    )
    ground: Any = SimpleNamespace(project=None, tools=None, cache=None)
    debugkernel.build(ground, group, "debug", "patched", run)


def _of_variants(run: Any) -> None:
    nothing: Any = None
    builds.prove(nothing, nothing, run, nothing)


def _of_a_worker(_: Any) -> None:
    units.performers()["compile"](Path(), Path(), {})


@pytest.mark.parametrize(
    "build", [_of_groups, _of_debug_kernels, _of_variants, _of_a_worker]
)
def test_all_that_is_compiled_is_limited(
    monkeypatch: pytest.MonkeyPatch, build: Any
) -> None:
    counts: list[int] = []

    def make(*_: Any, **__: Any) -> None:
        counts.append(_count())
        raise Enough

    @contextlib.contextmanager
    def stage(*_: Any) -> Iterator[Stage]:
        yield Stage()

    @contextlib.contextmanager
    def workspace(*_: Any) -> Iterator[Any]:
        yield lambda _: SimpleNamespace(tree=None)

    memory(monkeypatch, ENOUGH)
    monkeypatch.setattr("kstall.build.kernel.built", make)
    monkeypatch.setattr("kstall.build.kernel.configured", lambda *_, **__: None)
    monkeypatch.setattr(builds, "compiled", make)
    monkeypatch.setattr(units, "compile_variant", make)
    monkeypatch.setattr(kernels, "workspace", workspace)
    monkeypatch.setattr(cache, "hold_for", lambda *_: None)
    with pytest.raises(Enough):
        build(SimpleNamespace(stage=stage, ui=None))
    assert counts == [1]
    assert _count() == ALL
