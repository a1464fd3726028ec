# SPDX-License-Identifier: GPL-2.0-or-later
"""Which series of a run share a kernel: all, but for those that stand in the way.

`divide` asks a question of sets of series, such as whether they apply or build, and
finds with as few questions as it can who has to stand apart, and because of whom.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ..build import kernel
from ..debian import Root
from ..evidence import debugcheck
from ..series import Project, Series
from ..tree import am, source, tree

#: What tells the stages of a kernel of several series from those of one.
ALL = "all"


@dataclass(frozen=True)
class Ground:
    """What all kernels of a run are made from.

    ``root`` is the guests'; ``lending`` is one for this machine, which borrows programs
    from it, where the guests' is of another architecture.
    """

    project: Project
    base: source.Base
    root: Root
    tools: kernel.Toolchain
    cache: Path
    lending: Root | None = None


@dataclass(frozen=True)
class Group:
    """Series in one kernel, fixes first, and the plan that applies them all.

    ``configured_as`` is the one by whose fragments it is configured, if not its own.
    """

    series: tuple[Series, ...]
    plan: tree.Plan
    configured_as: Group | None = None

    @property
    def name(self) -> str:
        """What tells its stages from others'."""
        return self.series[0].name if len(self.series) == 1 else ALL

    @property
    def slot(self) -> str:
        """The output directory that it is built in: no series has a name with a +."""
        if self.configured_as is not None:
            return self.configured_as.slot
        return self.series[0].name if len(self.series) == 1 else f"+{ALL}"

    @functools.cached_property
    def fixed(self) -> tree.Plan:
        """What costs are compared with: the base with the fixes, if there are any.

        They are to change what runs; what is asked of the others is what events add.
        """
        fixes = [one for one in self.series if one.is_fix]
        others = len(self.series) > len(fixes)
        return self.plan.upto(sum(len(one.patches) for one in fixes) if others else 0)

    def absent(self, count: int) -> frozenset[str]:
        """The configuration symbols that it is asked for, and that it has not with the
        first ``count`` patches: others define them."""
        asked = kernel.added_symbols((self.configured_as or self).plan)
        asked |= kernel.added_symbols(self.plan)
        return asked - kernel.added_symbols(self.plan.upto(count))

    def fragments(self, project: Project, *more: str) -> list[Path]:
        """What its kernels are configured by: what all need, and what each does."""
        own = (one.spec.kconfig for one in (self.configured_as or self).series)
        names = dict.fromkeys(("base.config", *own, *more))
        return [project.kconfigs / name for name in names]

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
        return replace(code, unwatched=tuple(self._unwatched()))

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


@dataclass(frozen=True)
class Apart:
    """A series that cannot be among the others: because of ``other``, or by itself.

    ``alone`` is whether it holds alone; if so, and ``other`` is None, no single one of
    the others is in its way.
    """

    name: str
    other: str | None
    alone: bool


@dataclass(frozen=True)
class Divided:
    """Those that hold together, and those that do not."""

    together: tuple[str, ...]
    apart: tuple[Apart, ...] = ()


Names = tuple[str, ...]


def divide(
    every: Names,
    holds: Callable[[Names], bool],
    suspects: Callable[[], Sequence[str]] = tuple,
) -> Divided:
    """Take out of ``every`` as few as need be for the others to hold together.

    ``holds`` is asked of parts in their order, once of each.  ``suspects``, asked for
    when a part did not hold, are the first to be taken out.  Of two of which only one
    can stay it is else the one that comes first.
    """
    ask = functools.cache(holds)
    left = every
    apart: list[Apart] = []
    while len(left) > 1 and not ask(left):
        name = _suspected(left, ask, suspects()) or _last_of_shortest(left, ask)
        left = tuple(other for other in left if other != name)
        apart.append(_apart(name, every, left, ask))
    return Divided(left, tuple(apart))


def _suspected(
    every: Names, ask: Callable[[Names], bool], suspects: Sequence[str]
) -> str | None:
    for name in suspects:
        others = tuple(other for other in every if other != name)
        if name in every and (len(others) == 1 or ask(others)):
            return name
    return None


def _last_of_shortest(every: Names, ask: Callable[[Names], bool]) -> str:
    """The last of the first so many of ``every`` that do not hold together."""
    good, bad = 0, len(every)
    while bad - good > 1:
        middle = (good + bad) // 2
        if ask(every[:middle]):
            good = middle
        else:
            bad = middle
    return every[good]


def _apart(name: str, every: Names, left: Names, ask: Callable[[Names], bool]) -> Apart:
    if not ask((name,)):
        return Apart(name, None, alone=False)
    return Apart(name, culprit(name, every, left, ask), alone=True)


def culprit(
    name: str, every: Names, others: Names, ask: Callable[[Names], bool]
) -> str | None:
    """Which one of ``others`` ``name`` cannot be beside, though it holds alone.

    None if that is no single one: a pair that is named was asked, and does not hold.
    """

    def beside(part: Names) -> bool:
        # In the order of all, in which it was asked before.
        return ask(tuple(each for each in every if each == name or each in part))

    if not others or beside(others):
        return None
    other = _last_of_shortest(others, beside)
    return None if beside((other,)) else other


def declared(wanted: Sequence[Series]) -> Divided:
    """Which of ``wanted`` stand apart as series.toml says so."""
    series = {one.name: one for one in wanted}

    def holds(names: Names) -> bool:
        return not any(
            conflict.series in names
            for name in names
            for conflict in series[name].spec.conflict
        )

    return divide(tuple(series), holds)


def applied(
    base: source.Base, wanted: Sequence[Series], scratch: Path
) -> tuple[Group, Divided]:
    """As many of ``wanted`` as apply together, and which of them stand apart.

    Raises `am.ApplyError` or `am.BadPatch` if the first one does not even apply alone.
    """
    series = {one.name: one for one in wanted}
    plans: dict[Names, tree.Plan] = {}

    def ordered(names: Names) -> tuple[Series, ...]:
        # Who has to stand apart is a matter of names, and of fixes alone there is a
        # kernel, too.
        every = (series[name] for name in names)
        return tuple(sorted(every, key=lambda one: not one.is_fix))

    def planned(names: Names) -> tree.Plan:
        patches = [patch for one in ordered(names) for patch in one.patches]
        return tree.plan(base, patches, scratch)

    def holds(names: Names) -> bool:
        with contextlib.suppress(am.ApplyError, am.BadPatch):
            plans[names] = planned(names)
        return names in plans

    found = divide(tuple(series), holds)
    plan = plans.get(found.together) or planned(found.together)
    return Group(ordered(found.together), plan), found
