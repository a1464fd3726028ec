# SPDX-License-Identifier: GPL-2.0-or-later
"""Test programs of the tree under test, compiled for the guest.

Kernel selftests belong to the tree: a series may change them, and those of another
version test something else.  Their makefiles build all or nothing and write into the
sources, so each program is one compiler call, described by ``[workload.from-tree]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..base import FailedCheck, KstallError, cache, process, sources, space
from ..series import Series, Workload
from ..tree import AppliedTree, Plan
from . import kernel
from .kernel import Toolchain

_BYTES = 10**7
# Of one megabyte each.
_KEPT = 200


@dataclass(frozen=True)
class Program:
    """A compiled program; ``name`` is the workload's, a path below ``scripts/``."""

    name: str
    file: Path
    reused: bool


def obtain(
    series: Series,
    plan: Plan,
    tools: Toolchain,
    cache_dir: Path,
    checkout: Callable[[], AppliedTree],
    *,
    log: Path,
) -> tuple[Program, ...]:
    """Every program that ``series`` has from its tree, each compiled once.

    ``checkout`` is called only if there is something to compile.  Raises `FailedCheck`
    with the compiler's messages.
    """
    programs: dict[str, Program] = {}
    for load in series.spec.workload:
        if load.from_tree is not None and load.program not in programs:
            key = cache.digest(
                sources.digest("kstall.build"),
                plan.compiled,
                load.from_tree.model_dump(),
                tools.id,
                *tools.libraries,
            )
            target = cache_dir / "programs" / key
            reused = cache.is_complete(target)
            if not reused:
                _compile(load, checkout(), tools, target, log)
                cache.prune(target.parent, keep=_KEPT)
            programs[load.program] = Program(load.program, target / "program", reused)
    return tuple(programs.values())


def _compile(
    load: Workload, tree: AppliedTree, tools: Toolchain, target: Path, log: Path
) -> None:
    recipe = load.from_tree
    assert recipe is not None
    with cache.keep(target) as scratch:
        try:
            with space.guarded(target.parent, _BYTES, "a test program"):
                process.run(
                    # What tools/testing/selftests/lib.mk and its users have in common.
                    [tools.arch.tool("gcc"), "-O2", "-static", "-pthread"]
                    + ["-D_GNU_SOURCE=", *tools.libraries]
                    + ["-U_FORTIFY_SOURCE", "-w", "-o", str(scratch / "program")]
                    + [f"-I{folder}" for folder in recipe.include]
                    + list(recipe.sources)
                    + [f"-l{library}" for library in recipe.libraries],
                    cwd=tree.path,
                    env={"LC_ALL": "C"},
                    log=log,
                )
        except process.CommandError as error:
            error_type = FailedCheck if kernel.refused(error) else KstallError
            raise error_type(
                f"workload {load.name} does not compile from the tree:\n{error.what}",
                log=log,
            ) from error
