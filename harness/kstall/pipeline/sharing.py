# SPDX-License-Identifier: GPL-2.0-or-later
"""Series proven on the kernel that they share, and what stands in the way of that.

All series are in one kernel.  If they do not apply, build or boot together, those that
are in the way stand apart, and are proven on a kernel of their own; so is what fails
beside the others, before that is held against it: a failure that another series is
shown to make, by a kernel with these two, is not its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..base import KstallError, figure, figures, parallel, places, space
from ..build import kconfig
from ..cost import Kernels, objects, shares
from ..evidence import Evidence, mutate
from ..guest import Guest, accel, guestrun, machine_for, run_guest
from ..report import SeriesReport
from ..series import Context, Level, Series
from ..tree import Plan
from ..verdict import Verdict, run_check
from . import groups, kernels, overhead, trials, without
from . import run as runs
from .groups import Apart, Divided, Ground, Group, Names
from .kernels import Built

#: The check that a series is proven on a kernel of its own as well.
ALONE = "holds_alone"
# Of a guest, beyond its memory: QEMU's own, and what reads its results.
_BESIDE_MEMORY = 512 * 2**20


@dataclass(frozen=True)
class Wanted:
    """How series are to be proven; see `validate.Request`."""

    level: Level
    again: bool = False
    repeat: int | None = None
    alone: bool = False
    at_once: int | None = None


@dataclass(frozen=True, eq=False)
class Subject:
    """A series that applies, its part of the report, and the plan for it alone.

    ``told`` is what objects say of its costs.
    """

    series: Series
    entry: SeriesReport
    plan: Plan
    ground: Ground
    told: objects.Told | None = None

    @property
    def name(self) -> str:
        """That of the series."""
        return self.series.name

    @property
    def group(self) -> Group:
        """It alone."""
        return Group((self.series,), self.plan)

    @functools.cached_property
    def part(self) -> shares.Part:
        """What tells its changes from those of others in the same kernel."""
        return overhead.part(self.series, self.group.code.changed)

    def scratch(self) -> Subject:
        """The same with a copy of its part of the report, which is in no report."""
        return dataclasses.replace(self, entry=self.entry.model_copy(deep=True))

    def become(self, entry: SeriesReport) -> None:
        """Have its part of the report be like ``entry``."""
        copied = entry.model_copy(deep=True)
        for name in type(entry).model_fields:
            setattr(self.entry, name, getattr(copied, name))

    @property
    def failures(self) -> frozenset[str]:
        """The checks and stages that failed."""
        stages = (one.name for one in self.entry.stages if one.status == "fail")
        checks = (one.name for one in self.entry.checks if one.status == "fail")
        return frozenset((*stages, *checks))


def prove(subjects: Sequence[Subject], wanted: Wanted, run: runs.Run) -> None:
    """Prove each of ``subjects``; their parts of the report have what came of it."""
    _Sharing(tuple(subjects), wanted, run).prove()


def guests(
    subjects: Sequence[Subject], wanted: Wanted, run: runs.Run
) -> Iterator[tuple[Subject, Guest]]:
    """A guest for each of ``subjects`` whose kernel can be built."""
    sharing = _Sharing(tuple(subjects), wanted, run)
    shared, built = sharing.shared()
    for subject in shared:
        with contextlib.suppress(runs.StageStopped):
            assert built is not None
            yield subject, sharing.guest(subject, built)
    for subject in subjects:
        if subject not in shared:
            with contextlib.suppress(runs.StageStopped):
                made = sharing.built_alone(subject, built)
                yield subject, sharing.guest(subject, made)


def ahead(every: Sequence[Series], ground: Ground, level: Level, run: runs.Run) -> None:
    """Have the kernel begun elsewhere that `prove` will ask for first.

    Raises `KstallError` if they do not apply.
    """
    series = {one.name: one for one in sorted(every, key=lambda one: one.name)}
    names = groups.declared([*series.values()]).together
    if names:
        group, _ = groups.applied(
            ground.base, [series[name] for name in names], run.dir / "shared"
        )
        kernels.ahead(ground, group, level, run)


class _Sharing:
    """The series of a run, by name, and the kernels that were made of parts of them."""

    def __init__(
        self, subjects: tuple[Subject, ...], wanted: Wanted, run: runs.Run
    ) -> None:
        self._wanted = wanted
        self._run = run
        self._subjects = {one.name: one for one in subjects}
        self._attempts = 0

    def prove(self) -> None:
        shared, built = self.shared()
        single = [one for one in self._subjects.values() if one not in shared]
        if built is not None:
            single += self._prove_shared(shared, built)
        for subject in single:
            with contextlib.suppress(runs.StageStopped):
                self._prove_alone(subject, self._context(subject), built)
                self._mutate(subject)

    def _context(self, subject: Subject, *below: str) -> Context:
        """What its stages are told; results are ``below`` its directory of the run."""
        ground, run = subject.ground, self._run
        context = run.context(ground.project, ground.cache, self._wanted.level)
        if below:
            out = run.dir.joinpath(subject.name, *below)
            context = dataclasses.replace(context, out=out)
        return context

    # -- kernels -----------------------------------------------------------------------

    def shared(self) -> tuple[list[Subject], Built | None]:
        """As many as apply and build together, and their kernels; none, or two and
        more."""
        # In any other order it would be another kernel.
        names = tuple(sorted(self._subjects))
        if len(names) < 2:
            return [], None
        apart = groups.declared([self._subjects[name].series for name in names])
        with self._run.stage("together") as stage:
            group, found = self._applied(apart.together)
            stage.summary = "; ".join(
                [
                    f"{len(found.together)} series in one kernel",
                    *(f"{one.name} {_of(one, 'hold')}" for one in apart.apart),
                    *(f"{one.name} {_of(one, 'apply')}" for one in found.apart),
                ]
            )
        self._tell(apart, "hold", "series.toml declares it: [[conflict]]")
        self._tell(found, "apply")
        if len(found.together) < 2:
            return [], None
        built, found = self._build(group)
        if built is None:
            return [], None
        return [self._subjects[name] for name in found.together], built

    def _applied(self, names: Names) -> tuple[Group, Divided]:
        base = self._subjects[names[0]].ground.base
        series = [self._subjects[name].series for name in names]
        return groups.applied(base, series, self._run.dir / "shared")

    def _build(self, group: Group) -> tuple[Built | None, Divided]:
        ground = self._subjects[group.series[0].name].ground
        level, run = self._wanted.level, self._run
        names = tuple(one.name for one in group.series)
        try:
            return kernels.make(ground, group, level, run), Divided(names)
        except kernels.NotTogether as error:
            first = error
        last = [first]

        def holds(part: Names) -> bool:
            try:
                # What only the other kernel can show is not asked of it.
                wanted = level if first.stage in ("base", "fixed") else "quick"
                self._attempt(part, wanted)
            except kernels.NotTogether as error:
                last.append(error)
            else:
                return True
            return False

        known = {names: False}
        found = groups.divide(
            names,
            lambda part: known[part] if part in known else holds(part),
            lambda: last[-1].suspects,
        )
        self._tell(found, "build", str(first.cause))
        if len(found.together) < 2:
            return None, found
        together, _ = self._applied(found.together)
        try:
            return kernels.make(ground, together, level, run), found
        except kernels.NotTogether:
            # The base, of which was not asked: with what is left, each for itself.
            return None, found

    def _attempt(self, names: Names, level: Level) -> Built:
        """The kernel of a part.  Raises `kernels.NotTogether`."""
        self._attempts += 1
        if len(names) == 1:
            group = self._subjects[names[0]].group
        else:
            group, _ = self._applied(names)
        ground = self._subjects[names[0]].ground
        return kernels.make(ground, group, level, self._run, attempt=self._attempts)

    def built_alone(self, subject: Subject, like: Built | None = None) -> Built:
        """Its kernels, with it alone.  Raises `runs.StageStopped`.

        If ``like`` has all that it asks for, they are configured as that is: it has the
        same base then.
        """
        ground, group = subject.ground, subject.group
        if like is not None and _has_all(like, group):
            group = dataclasses.replace(group, configured_as=like.group)
        return kernels.make(ground, group, self._wanted.level, self._run, subject.entry)

    def guest(self, subject: Subject, built: Built) -> Guest:
        """The guest of a series, on a kernel that has it."""
        entry, run, series = subject.entry, self._run, subject.series
        entry.kernel = built.patched.key
        if (error := built.broken.get(subject.name)) is not None:
            with run.stage("programs", entry):
                raise error
        root = subject.ground.root
        with run.stage("accelerator", entry) as stage:
            speed = accel.probe(
                subject.ground.cache, built.patched.image, root, run.ui.say
            )
            stage.summary = f"{speed.kind}: {speed.why}"
            run.report.environment.accelerator = speed.kind
            run.report.environment.accelerator_reason = speed.why
        programs = built.programs.get(subject.name, ())
        return Guest(built.patched, root, speed, machine_for(series), programs)

    # -- guests ------------------------------------------------------------------------

    def _chain(
        self, subject: Subject, built: Built, context: Context, beside: int = 1
    ) -> None:
        """Boot, judge and compare, with so many guests ``beside`` each other.

        Raises `runs.StageStopped`.
        """
        run, entry, series = self._run, subject.entry, subject.series
        guest = self.guest(subject, built)
        again = self._wanted.again
        bench = trials.Bench(context, series, guest, run, entry, again=again)
        both = built.pair(series) if context.level != "quick" else None
        saved: Evidence | None
        if self._wanted.repeat is not None:
            saved = trials.many(bench, self._wanted.repeat)
        elif both is not None and series.measures and beside > 1:
            saved = self._once_and_counted(bench, both, beside)
        else:
            saved = trials.once(bench)
        if saved is not None:
            run.report.environment.guest.update(saved.versions)
        if series.spec.shown and built.base is not None:
            without.prove(bench, built.base)
        if both is not None:
            among = self._shares(built)
            overhead.prove(
                context, series, both, run, entry, among=among, told=subject.told
            )
        elif context.level != "quick":
            overhead.not_compared(run, entry)

    def _once_and_counted(
        self, bench: trials.Bench, both: Kernels, count: int
    ) -> Evidence:
        """Count beside the guest, which changes nothing for what counts instructions.

        Raises `runs.StageStopped`.
        """
        entry = bench.entry
        stopped: list[runs.StageStopped] = []
        saved: list[Evidence] = []

        def counts() -> None:
            try:
                overhead.count(bench.context, bench.series, both, self._run, entry)
            except runs.StageStopped as error:
                # The guest goes on: it has something to say all the same.
                stopped.append(error)

        tasks: dict[str, Callable[[], None]] = {
            "guest": lambda: saved.append(trials.once(bench)),
            "counts": counts,
        }
        try:
            with places.limited(count):
                parallel.each(tasks, len(tasks), lambda *_: None)
        except KeyboardInterrupt:
            _ended(entry)
            raise
        except runs.StageStopped:
            counting = [one for one in entry.stages if one.name == "instructions"]
            for stage in counting:
                if stage.status == "error":
                    stage.status, stage.error = "skip", None
                    stage.summary = "ended, as the guest did not come to its end"
            raise
        if stopped:
            raise stopped[0]
        return saved[0]

    def _shares(self, built: Built) -> shares.Shares | None:
        # Fixes are in what is compared with as well.
        names = [one.name for one in built.group.series if not one.is_fix]
        if len(names) < 2:
            return None
        return shares.Shares(tuple(self._subjects[name].part for name in names))

    def _mutate(self, subject: Subject) -> None:
        """Whether the checks would have noticed wrong values, as `mutate` asks them."""
        entry, series = subject.entry, subject.series
        if entry.evidence is None or not mutate.concerns(series):
            return
        with self._run.stage("mutate", entry) as stage:
            if self._wanted.level == "quick":
                stage.status = "skip"
                stage.summary = (
                    "LEVEL=quick: nothing is said of what checks would notice"
                )
                return
            if any(check.status in ("fail", "error") for check in entry.checks):
                stage.status = "skip"
                stage.summary = "only evidence that is accepted can be falsified"
                return
            entry.mutation, stage.reused = mutate.mutation(
                series,
                self._run.dir / entry.evidence,
                subject.ground.cache,
                self._run.report.environment.cpus,
            )
            stage.summary = mutate.summary(entry.mutation)
            figure("falsified values", len(entry.mutation.mutants), "mutants")
            entry.checks.append(mutate.judge(series, entry.mutation))

    def _prove_shared(self, subjects: Sequence[Subject], built: Built) -> list[Subject]:
        """Prove ``subjects`` on one kernel; those that stand apart come back."""
        before = {one.name: one.entry.model_copy(deep=True) for one in subjects}
        self._each(subjects, lambda one: self._chain(one, built, self._context(one)))
        if all("guest" in one.failures for one in subjects):
            return self._prove_those_that_boot(subjects, before)
        for subject in subjects:
            if subject.failures:
                self._settle(subject, subjects, before[subject.name])
            elif self._wanted.alone:
                self._prove_alone_too(subject, before[subject.name])
            # In processes of its own, which are forked from one without threads.
            self._mutate(subject)
        return []

    def _each(
        self, subjects: Sequence[Subject], act: Callable[[Subject], None]
    ) -> None:
        """Do it for each, for as many at once as there is room for."""

        def task(subject: Subject) -> None:
            with contextlib.suppress(runs.StageStopped):
                act(subject)

        count = self._at_once(subjects)
        # What takes long comes first, lest it be all that is left.
        order = sorted(subjects, key=lambda one: -_deadline(one.series))
        # Who only waits for others takes up nothing here.
        here = count if self._run.away is None else _room(subjects)
        with places.limited(max(here, 1)):
            if count < 2:
                for subject in order:
                    task(subject)
            else:
                tasks = {one.name: functools.partial(task, one) for one in order}
                ended: set[str] = set()
                try:
                    parallel.each(tasks, count, lambda name, _: ended.add(name))
                except KeyboardInterrupt:
                    _interrupted(one for one in subjects if one.name not in ended)
                    raise

    def _at_once(self, subjects: Sequence[Subject]) -> int:
        if self._run.away is not None:
            # With what is counted beside each guest.
            return max(2, len(subjects))
        return self._wanted.at_once or (1 if self._wanted.repeat else _room(subjects))

    def _prove_alone(
        self, subject: Subject, context: Context, like: Built | None = None
    ) -> None:
        """Prove it on a kernel of its own.  Raises `runs.StageStopped`."""
        built = self.built_alone(subject, like)
        self._chain(subject, built, context, self._at_once([subject]))

    def _prove_those_that_boot(
        self, subjects: Sequence[Subject], before: dict[str, SeriesReport]
    ) -> list[Subject]:
        """No guest came to its end: find out whose fault that is, and leave it out."""
        names = tuple(one.name for one in subjects)
        why = next(
            one.error or one.summary
            for one in subjects[0].entry.stages
            if one.name == "guest"
        )

        def holds(part: Names) -> bool:
            return part != names and self._boots(part)

        try:
            found = groups.divide(names, holds)
        except runs.StageStopped:
            return []
        for subject in subjects:
            subject.become(before[subject.name])
            self._set_aside(subject)
        self._tell(found, "boot", why)
        apart = [self._subjects[one.name] for one in found.apart]
        together = [self._subjects[name] for name in found.together]
        if len(together) < 2:
            return [*apart, *together]
        group, _ = self._applied(found.together)
        try:
            made = kernels.make(
                together[0].ground, group, self._wanted.level, self._run
            )
        except (kernels.NotTogether, runs.StageStopped):
            return [*apart, *together]
        return [*apart, *self._prove_shared(together, made)]

    def _set_aside(self, subject: Subject) -> None:
        """Keep what its guest left, and have room for that of another."""
        place = self._run.dir / subject.name
        aside = place / f"attempt-{self._attempts}"
        for one in ("results", "instructions"):
            if (place / one).exists():
                aside.mkdir(exist_ok=True)
                (place / one).rename(aside / one)

    def _boots(self, part: Names) -> bool:
        """Whether the guest of the first one comes to its end on a kernel of these."""
        try:
            built = self._attempt(part, "quick")
        except kernels.NotTogether:
            return False
        subject = self._subjects[part[0]].scratch()
        context = self._context(subject, f"attempt-{self._attempts}")
        with self._run.stage(f"attempt-{self._attempts}-guest") as stage, figures():
            guest = self.guest(subject, built)
            try:
                booted = run_guest(context, subject.series, guest, stage.log)
            except guestrun.GuestFailed as error:
                stage.status, stage.error = "skip", str(error)
                stage.summary = error.what.splitlines()[0]
                return False
            stage.summary, stage.reused = booted.summary, booted.reused
        return True

    # -- failures ----------------------------------------------------------------------

    def _settle(
        self, subject: Subject, subjects: Sequence[Subject], before: SeriesReport
    ) -> None:
        """Find out whether what failed beside others is the fault of one of them.

        Nothing is tried again until it is right: it has to hold alone, and to fail
        once more on a kernel with the one other series that is named.
        """
        failures = subject.failures
        fresh = dataclasses.replace(subject, entry=before).scratch()
        alone = fresh.scratch()
        with contextlib.suppress(runs.StageStopped):
            self._prove_alone(alone, self._context(alone, "alone"))
        if not _holds(alone):
            said = ", ".join(sorted(alone.failures)) or "it could not be judged"
            self._remark(subject, f"on a kernel of its own as well: {said}")
            return
        other = self._culprit(fresh, [one.name for one in subjects], failures)
        said = ", ".join(sorted(failures))
        if other is None:
            self._remark(
                subject,
                f"on a kernel of its own {said} holds, and beside no single other "
                "series it fails",
            )
            return
        subject.become(alone.entry)
        error = f"beside {other}, {said} fails; this is of a kernel without it"
        with self._run.stage("beside", subject.entry) as stage:
            stage.status, stage.summary = "skip", error

    def _culprit(
        self, fresh: Subject, names: Sequence[str], failures: frozenset[str]
    ) -> str | None:
        """Beside which other series ``failures`` are seen; alone they are not."""
        others = [name for name in names if name != fresh.name]
        known = {(fresh.name,): True, tuple(names): False}

        def holds(part: Names) -> bool:
            if part not in known:
                known[part] = not self._fails_beside(fresh, part, failures)
            return known[part]

        mine = {path for patch in fresh.series.patches for path in patch.touches}
        for name in others:
            theirs = self._subjects[name].series.patches
            if any(mine & {*patch.touches} for patch in theirs):
                pair = tuple(sorted((fresh.name, name)))
                if not holds(pair):
                    return name
        return groups.culprit(fresh.name, tuple(names), tuple(others), holds)

    def _fails_beside(
        self, fresh: Subject, part: Names, failures: frozenset[str]
    ) -> bool:
        subject = fresh.scratch()
        try:
            with contextlib.suppress(runs.StageStopped):
                built = self._attempt(part, self._wanted.level)
                below = f"attempt-{self._attempts}"
                self._chain(subject, built, self._context(subject, below))
        except kernels.NotTogether:
            # That says nothing of these failures.
            return False
        return bool(subject.failures & failures)

    def _prove_alone_too(self, subject: Subject, before: SeriesReport) -> None:
        """Prove it on a kernel of its own as well, and add the check that it is."""
        alone = dataclasses.replace(subject, entry=before).scratch()
        with contextlib.suppress(runs.StageStopped):
            self._prove_alone(alone, self._context(alone, "alone"))
        claim = "On a kernel with this series only, everything comes out as well."
        check = run_check(ALONE, "harness", claim, _alone, alone.entry)
        subject.entry.checks.append(check)

    # -- what is told ------------------------------------------------------------------

    def _tell(self, found: Divided, what: str, why: str = "") -> None:
        """Put into each series' part of the report why it stands apart."""
        for one in found.apart:
            entry = self._subjects[one.name].entry
            with self._run.stage("beside", entry) as stage:
                stage.status = "skip"
                stage.summary = f"{_of(one, what)}: on a kernel of its own"
                stage.error = why or None

    def _remark(self, subject: Subject, text: str) -> None:
        with self._run.stage("alone", subject.entry) as stage:
            stage.summary = text


def _has_all(built: Built, group: Group) -> bool:
    """Whether the kernel is configured as ``group`` asks for."""
    ground = built.ground
    try:
        own = group.fragments(ground.project)
        wanted = kconfig.combine(own, ground.tools.arch)
    except kconfig.KconfigError:
        return False  # whoever configures it says what is wrong
    return not kconfig.missing(wanted, kconfig.parse_config(built.patched.config))


def _interrupted(subjects: Iterable[Subject]) -> None:
    """Have the stages that were under way say what ended them."""
    for subject in subjects:
        _ended(subject.entry)


def _ended(entry: SeriesReport) -> None:
    for stage in entry.stages:
        if stage.status == "error":
            stage.error = stage.summary = "interrupted"


def _of(one: Apart, what: str) -> str:
    if not one.alone:
        return f"does not {what}"
    return f"does not {what} beside {one.other or 'the others together'}"


def _holds(subject: Subject) -> bool:
    """Whether it came to a verdict, and to no other one than that it holds."""
    found = [one.status for one in subject.entry.stages]
    found += [one.status for one in subject.entry.checks]
    good = all(status in ("pass", "skip") for status in found)
    return good and subject.entry.evidence is not None


def _alone(entry: SeriesReport) -> Verdict:
    verdict = Verdict()
    stopped = [one for one in entry.stages if one.status not in ("pass", "skip")]
    for one in stopped:
        if one.status != "fail":
            raise KstallError(one.error or one.summary)
        verdict.true(f"stage {one.name}", False, one.error or one.summary)
    for check in entry.checks:
        if check.kind == "patch" or check.status == "skip":
            continue
        if check.status == "error":
            raise KstallError(f"{check.name}: {check.detail}")
        verdict.true(check.name, check.status == "pass", check.detail)
    return verdict


def _deadline(series: Series) -> float:
    return sum(load.deadline_s for load in series.spec.workload)


def _room(subjects: Sequence[Subject]) -> int:
    """How many guests there are processors and memory for."""
    processors = len(os.sched_getaffinity(0))
    largest = max(machine_for(one.series).bytes_of_memory for one in subjects)
    return max(1, min(processors, space.memory() // (largest + _BESIDE_MEMORY)))
