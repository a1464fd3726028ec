# SPDX-License-Identifier: GPL-2.0-or-later
"""Which series of a run share a kernel: all but those that conflict with others.

`divide` tests sets of series, such as whether they apply or build together, and finds
with few tests which series have to stand apart, and because of which others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ..base import once
from ..build import Ground, kconfig, kernel
from ..evidence import debugcheck
from ..series import Project, Series
from ..tree import am, source, tree

#: The name of a group of several series.
ALL = "all"


@dataclass(frozen=True)
class Group:
    """Series in one kernel, fixes first, and the plan that applies them all.

    ``configured_as`` is the group whose fragments configure it, if not its own.
    ``fixes`` are series that the plan applies before those, as they need them.
    """

    series: tuple[Series, ...]
    plan: tree.Plan
    configured_as: Group | None = None
    fixes: tuple[Series, ...] = ()

    @property
    def name(self) -> str:
        """Its name in those of stages."""
        return self.series[0].name if len(self.series) == 1 else ALL

    @property
    def applied(self) -> tuple[Series, ...]:
        """All series that the plan applies."""
        return (*self.fixes, *self.series)

    @property
    def slot(self) -> str:
        """The output directory that it is built in: no series has a name with a +."""
        if self.configured_as is not None:
            return self.configured_as.slot
        return self.series[0].name if len(self.series) == 1 else f"+{ALL}"

    @once
    def fixed(self) -> tree.Plan:
        """What costs are compared with: the base with the fixes, if there are any.

        Fixes are meant to change what runs; of the others only what events add counts.
        """
        fixes = [series for series in self.series if series.is_fix]
        others = len(self.series) > len(fixes)
        return self.plan.upto(sum(len(fix.patches) for fix in fixes) if others else 0)

    def absent(self, count: int) -> frozenset[str]:
        """The requested configuration symbols that the first ``count`` patches do not
        define: others do."""
        symbols = kernel.added_symbols((self.configured_as or self).plan)
        symbols |= kernel.added_symbols(self.plan)
        return symbols - kernel.added_symbols(self.plan.upto(count))

    def fragments(self, project: Project, *more: str) -> list[Path]:
        """The fragments that configure its kernels: the common one, and the series'."""
        fragments = (
            series.spec.kconfig for series in (self.configured_as or self).applied
        )
        names = dict.fromkeys(("base.config", *fragments, *more))
        return [project.kconfigs / name for name in names]

    def is_met_by(self, config: Path, ground: Ground, *more: str) -> bool:
        """Whether a kernel with that ``.config`` has all that its fragments ask for."""
        try:
            fragments = self.fragments(ground.project, *more)
            requested = kconfig.combine(fragments, ground.tools.arch)
        except kconfig.KconfigError:
            return False  # configuring it reports the error
        return not kconfig.missing(requested, kconfig.parse_config(config))

    @once
    def code(self) -> debugcheck.ChangedCode:
        """What the patches put into the kernel.  Raises `KstallError` for a base that
        was modified."""
        before, after = dict(self.plan.states[0]), self.plan.files
        code = debugcheck.code_of(
            {
                path: (_text(before[path]), _text(after[path]))
                for path in self.plan.touched
                if path.endswith(".h") or debugcheck.in_kernel(path)
            },
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
            for reason in debugcheck.unwatched(path, _text(texts.get(makefile))):
                yield path, f"{makefile}: {reason}"


def _text(file: am.File | None) -> str:
    return file.text if file else ""


@dataclass(frozen=True)
class Outlier:
    """A series that cannot share the kernel: because of ``other``, or at all.

    ``alone`` is whether it holds alone; if so, and ``other`` is None, no single one of
    the others is to blame.
    """

    name: str
    other: str | None
    alone: bool


@dataclass(frozen=True)
class Division:
    """The series that hold together, and those that stand apart."""

    together: tuple[str, ...]
    outliers: tuple[Outlier, ...] = ()


Names = tuple[str, ...]


def divide(
    names: Names,
    holds: Callable[[Names], bool],
    suspects: Callable[[], Sequence[str]] = tuple,
) -> Division:
    """Take as few as possible out of ``names``, so that the others hold together.

    ``holds`` is called for subsets in the order of ``names``, once for each.
    ``suspects``, called when a subset did not hold, are tried first.  Else, of two of
    which only one can stay, the first one stays.
    """
    ask = functools.cache(holds)
    left = names
    outliers: list[Outlier] = []
    while len(left) > 1 and not ask(left):
        name = _suspected(left, ask, suspects()) or _last_of_shortest(left, ask)
        left = tuple(other for other in left if other != name)
        outliers.append(_outlier(name, names, left, ask))
    return Division(left, tuple(outliers))


def _suspected(
    names: Names, ask: Callable[[Names], bool], suspects: Sequence[str]
) -> str | None:
    for name in suspects:
        others = tuple(other for other in names if other != name)
        if name in names and (len(others) == 1 or ask(others)):
            return name
    return None


def _last_of_shortest(names: Names, ask: Callable[[Names], bool]) -> str:
    """The last name of the shortest prefix of ``names`` that does not hold."""
    good, bad = 0, len(names)
    while bad - good > 1:
        middle = (good + bad) // 2
        if ask(names[:middle]):
            good = middle
        else:
            bad = middle
    return names[good]


def _outlier(
    name: str, names: Names, left: Names, ask: Callable[[Names], bool]
) -> Outlier:
    if not ask((name,)):
        return Outlier(name, None, alone=False)
    return Outlier(name, culprit(name, names, left, ask), alone=True)


def culprit(
    name: str, names: Names, others: Names, ask: Callable[[Names], bool]
) -> str | None:
    """Which of ``others`` conflicts with ``name``, which holds alone.

    None if no single one does: a pair that is named was tested, and does not hold.
    """

    def beside(part: Names) -> bool:
        # In the order of ``names``, in which answers are cached.
        return ask(
            tuple(member for member in names if member == name or member in part)
        )

    if not others or beside(others):
        return None
    other = _last_of_shortest(others, beside)
    return None if beside((other,)) else other


def declared(all_series: Sequence[Series]) -> Division:
    """Which series stand apart because series.toml declares a conflict."""
    by_name = {series.name: series for series in all_series}

    def holds(names: Names) -> bool:
        return not any(
            conflict.series in names
            for name in names
            for conflict in by_name[name].spec.conflict
        )

    return divide(tuple(by_name), holds)


def applied(
    base: source.Base, all_series: Sequence[Series], scratch: Path
) -> tuple[Group, Division]:
    """The group of as many as apply together, and which series stand apart.

    Raises `am.ApplyError` or `am.BadPatch` if the first one does not even apply alone.
    """
    by_name = {series.name: series for series in all_series}

    def ordered(names: Names) -> tuple[Series, ...]:
        # Fixes first, as there is a kernel of fixes alone; which series stand apart
        # depends on the names only.
        chosen = (by_name[name] for name in names)
        return tuple(sorted(chosen, key=lambda series: not series.is_fix))

    @functools.cache
    def planned(part: Names) -> tree.Plan | Exception:
        patches = [patch for name in part for patch in by_name[name].patches]
        try:
            return tree.plan(base, patches, scratch)
        except (am.ApplyError, am.BadPatch) as error:
            return error

    def holds(names: Names) -> bool:
        plans = map(planned, neighbours(ordered(names)))
        return all(isinstance(plan, tree.Plan) for plan in plans)

    division = divide(tuple(by_name), holds)
    together = ordered(division.together)
    plans = []
    for part in neighbours(together):
        plan = planned(part)
        if isinstance(plan, Exception):
            raise plan
        plans.append(plan)
    patches = [patch for series in together for patch in series.patches]
    return Group(together, tree.combined(patches, plans)), division


def _meet(paths: Set[str], others: Set[str]) -> bool:
    """Whether a file of one is one of the other, or a directory there."""
    return bool(_reached(paths) & others or paths & _reached(others))


def _reached(paths: Set[str]) -> set[str]:
    parents = (parent for path in paths for parent in PurePosixPath(path).parents)
    return {*paths, *map(str, parents)}


def neighbours(all_series: Sequence[Series]) -> list[Names]:
    """The parts of ``all_series``, in its order, that share no file with each other.

    Whether one part applies does not depend on the others.
    """
    parts: list[tuple[set[str], set[str]]] = []
    for series in all_series:
        paths = set(series.touches)
        members = {series.name}
        others = []
        for part in parts:
            if not _meet(paths, part[0]):
                others.append(part)
            else:
                paths |= part[0]
                members |= part[1]
        parts = [*others, (paths, members)]
    return [
        tuple(series.name for series in all_series if series.name in members)
        for _, members in parts
    ]
