# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernels that watch themselves: which series are in one, and how it is built.

One with KASAN and lockdep is twenty minutes of compiling on two processors, so all
series are put into one, as long as they apply together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..build import kernel, programs
from ..debian import root
from ..evidence import debugcheck
from ..guest import Flavour, Side
from ..series import Project, Series
from ..tree import am, source, tree
from .run import Opened, Run


@dataclass(frozen=True)
class Ground:
    """What all kernels of a run are made from."""

    project: Project
    base: source.Base
    root: root.Root
    tools: kernel.Toolchain
    cache: Path


@dataclass(frozen=True)
class Group:
    """Series that are in one kernel, and the plan that applies them all."""

    series: tuple[Series, ...]
    plan: tree.Plan

    @property
    def name(self) -> str:
        """What tells its stages from others'."""
        return self.series[0].name if len(self.series) == 1 else "all"

    @functools.cached_property
    def code(self) -> debugcheck.Code:
        """What the patches put into the kernel.  Raises `KstallError` for a base that
        was meddled with."""
        before, after = dict(self.plan.states[0]), self.plan.files
        code = debugcheck.code_of(
            [
                (_text(before[path]), _text(after[path]))
                for path in self.plan.touched
                if path.endswith(".h") or debugcheck.in_kernel(path)
            ],
            [point.name for series in self.series for point in series.spec.tracepoint],
        )
        return dataclasses.replace(code, unwatched=tuple(self._unwatched()))

    def _unwatched(self) -> Iterator[tuple[str, str]]:
        sources = list(filter(debugcheck.in_kernel, self.plan.touched))
        makefiles = {
            path: str(PurePosixPath(path).parent / "Makefile") for path in sources
        }
        texts = tree.pristine(self.plan.base, sorted({*makefiles.values()}))
        texts |= self.plan.files
        for path, makefile in makefiles.items():
            for how in debugcheck.unwatched(path, _text(texts.get(makefile))):
                yield path, f"{makefile}: {how}"


def _text(file: am.File | None) -> str:
    return "" if file is None else file.data.decode("utf-8", "replace")


def grouped(
    base: source.Base, wanted: Sequence[Series], scratch: Path
) -> tuple[Group, ...]:
    """All of ``wanted`` in one group, or each in one of its own.

    Raises `am.ApplyError` for a series that does not apply by itself.
    """
    try:
        every = [patch for series in wanted for patch in series.patches]
        return (Group(tuple(wanted), tree.plan(base, every, scratch)),)
    except am.ApplyError:
        return tuple(
            Group((one,), tree.plan(base, one.patches, scratch)) for one in wanted
        )


def build(
    ground: Ground, group: Group, flavour: Flavour, side: Side, run: Run
) -> kernel.Kernel:
    """The kernel of ``group`` with its patches, or of the same symbols without them.

    Both are built in one output directory, one of a name that no series can have.
    Raises `StageStopped`.
    """
    plan = group.plan if side == "patched" else group.plan.upto(0)
    configs = [
        "base.config",
        *(one.spec.kconfig for one in group.series),
        f"{flavour}.config",
    ]
    fragments = [ground.project.kconfigs / name for name in dict.fromkeys(configs)]
    absent = kernel.added_symbols(group.plan) if side == "base" else frozenset()
    with (
        run.stage(f"{flavour}-{side}-{group.name}") as stage,
        _checkout(plan, run) as checkout,
    ):
        config = kernel.configured(
            plan,
            checkout,
            fragments,
            ground.tools,
            ground.cache,
            log=stage.log,
            absent=absent,
        )
        built = kernel.built(
            plan,
            checkout,
            f"+{flavour}",
            config,
            ground.tools,
            ground.cache,
            log=stage.log,
            progress=lambda p: run.ui.progress(p.done, p.total, p.step),
            # What sanitizers put onto the stack, say, is no patch's fault.
            strict=False,
        )
        stage.reused = built.reused
        stage.summary = f"Linux {built.release}, build id {built.build_id[:12]}"
    return built


def tree_programs(
    ground: Ground, group: Group, series: Series, run: Run, stage: Opened
) -> tuple[programs.Program, ...]:
    """The programs that ``series`` has from the tree with all patches of ``group``."""
    with _checkout(group.plan, run) as checkout:
        return programs.obtain(
            series, group.plan, ground.tools, ground.cache, checkout, log=stage.log
        )


@contextlib.contextmanager
def _checkout(plan: tree.Plan, run: Run) -> Iterator[Callable[[], tree.AppliedTree]]:
    """What checks ``plan`` out when that is asked for, and keeps it until the end."""
    with contextlib.ExitStack() as held:
        yield functools.cache(
            lambda: held.enter_context(tree.checkout(plan, run.ui.say))
        )
