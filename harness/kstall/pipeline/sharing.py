# SPDX-License-Identifier: GPL-2.0-or-later
"""Series proven on the kernel that they share, as far as they can share one.

All series are in one kernel.  If they do not apply, build or boot together, those that
conflict stand apart, and are proven on a kernel of their own.  So is a series that
fails beside the others, before that counts against it: a failure that a kernel with
just one other series shows to be due to that one is not its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..base import KstallError, figure, figures, once, parallel, places
from ..build import Ground
from ..cost import Kernels, objects, shares
from ..evidence import Evidence, mutate
from ..guest import Guest, accel, guestrun, machine_for, run_guest
from ..report import SeriesReport
from ..series import Context, Level, Series
from ..tree import Plan
from ..verdict import Verdict, run_check
from . import groups, kernels, overhead, trials, without
from . import run as runs
from .groups import Division, Group, Names, Outlier
from .kernels import Built
from .request import Request

#: The check that a series is proven on a kernel of its own as well.
ALONE = "holds_alone"
#: For how many series kernels of their own are built before their guests run: three
#: kernels each, and no more than ten stay in the cache.
_ALONE = 3


@dataclass(frozen=True, eq=False)
class AppliedSeries:
    """A series that applies, its part of the report, and the plan for it alone.

    ``object_costs`` is what objects show of its costs.
    """

    series: Series
    entry: SeriesReport
    plan: Plan
    ground: Ground
    object_costs: objects.ObjectCosts | None = None

    @property
    def name(self) -> str:
        """The name of the series."""
        return self.series.name

    @property
    def group(self) -> Group:
        """The group of this series alone."""
        return Group((self.series,), self.plan)

    @once
    def part(self) -> shares.SeriesPart:
        """What identifies its changes among those of others in the same kernel."""
        return overhead.part(self.series, self.group.code.changed)

    def scratch(self) -> AppliedSeries:
        """The same with a copy of its part of the report, to try something with."""
        return dataclasses.replace(self, entry=self.entry.model_copy(deep=True))

    def become(self, entry: SeriesReport) -> None:
        """Replace its part of the report by a copy of ``entry``."""
        copied = entry.model_copy(deep=True)
        for name in type(entry).model_fields:
            setattr(self.entry, name, getattr(copied, name))

    @property
    def failures(self) -> frozenset[str]:
        """The checks and stages that failed."""
        stages = (stage.name for stage in self.entry.stages if stage.status == "fail")
        checks = (check.name for check in self.entry.checks if check.status == "fail")
        return frozenset((*stages, *checks))


def prove(subjects: Sequence[AppliedSeries], request: Request, run: runs.Run) -> None:
    """Prove each of ``subjects``; the outcome is in their parts of the report."""
    _Sharing(tuple(subjects), request, run).prove()


def guests(
    subjects: Sequence[AppliedSeries], request: Request, run: runs.Run
) -> Iterator[tuple[AppliedSeries, Guest, Guest | None]]:
    """A guest for each of ``subjects`` whose kernel can be built, and a base guest if
    it shows bugs."""
    sharing = _Sharing(tuple(subjects), request, run)
    shared, built = sharing.shared()
    for subject in shared:
        with contextlib.suppress(runs.StageStopped):
            assert built is not None
            guest = sharing.guest(subject, built)
            yield subject, guest, without.guest_of(subject.series, guest, built)
    for subject in subjects:
        if subject not in shared:
            with contextlib.suppress(runs.StageStopped):
                own_build = sharing.built_alone(subject, built)
                guest = sharing.guest(subject, own_build)
                yield subject, guest, without.guest_of(subject.series, guest, own_build)


def ahead(
    all_series: Sequence[Series], ground: Ground, level: Level, run: runs.Run
) -> None:
    """Start on a worker the kernel that `prove` will need first.

    Raises `KstallError` if they do not apply.
    """
    by_name = {
        series.name: series
        for series in sorted(all_series, key=lambda series: series.name)
    }
    names = groups.declared([*by_name.values()]).together
    if names:
        group, _ = groups.applied(
            ground.base, [by_name[name] for name in names], run.dir / "shared"
        )
        kernels.ahead(ground, group, level, run)


class _Sharing:
    """The series of a run, by name, and the kernels that are built of them."""

    def __init__(
        self, subjects: tuple[AppliedSeries, ...], request: Request, run: runs.Run
    ) -> None:
        self._request = request
        self._run = run
        self._subjects = {subject.name: subject for subject in subjects}
        self._attempts = 0

    def prove(self) -> None:
        shared, built = self.shared()
        single = [
            subject for subject in self._subjects.values() if subject not in shared
        ]
        if built is not None:
            single += self._prove_shared(shared, built)
        for first in range(0, len(single), _ALONE):
            self._prove_each_alone(single[first : first + _ALONE], built)

    def _context(self, subject: AppliedSeries, *below: str) -> Context:
        """The context of its stages; results are ``below`` its directory of the run."""
        ground, run = subject.ground, self._run
        context = run.context(ground.project, ground.cache, self._request.level)
        if below:
            out = run.dir.joinpath(subject.name, *below)
            context = dataclasses.replace(context, out=out)
        return context

    # -- kernels -----------------------------------------------------------------------

    def shared(self) -> tuple[list[AppliedSeries], Built | None]:
        """The series that apply and build together, and their kernels: none, or two
        and more."""
        # Another order would be another kernel.
        names = tuple(sorted(self._subjects))
        if len(names) < 2:
            return [], None
        declared = groups.declared([self._subjects[name].series for name in names])
        with self._run.stage("together") as stage:
            group, division = self._applied(declared.together)
            stage.summary = "; ".join(
                [
                    f"{len(division.together)} series in one kernel",
                    *(
                        f"{outlier.name} {_of(outlier, 'hold')}"
                        for outlier in declared.outliers
                    ),
                    *(
                        f"{outlier.name} {_of(outlier, 'apply')}"
                        for outlier in division.outliers
                    ),
                ]
            )
        self._report_outliers(declared, "hold", "series.toml declares it: [[conflict]]")
        self._report_outliers(division, "apply")
        if len(division.together) < 2:
            return [], None
        built, division = self._build(group)
        if built is None:
            return [], None
        return [self._subjects[name] for name in division.together], built

    def _applied(self, names: Names) -> tuple[Group, Division]:
        base = self._subjects[names[0]].ground.base
        series = [self._subjects[name].series for name in names]
        return groups.applied(base, series, self._run.dir / "shared")

    def _build(self, group: Group) -> tuple[Built | None, Division]:
        ground = self._subjects[group.series[0].name].ground
        level, run = self._request.level, self._run
        names = tuple(series.name for series in group.series)
        try:
            return kernels.make(ground, group, level, run), Division(names)
        except kernels.NotTogether as error:
            first = error
        last = [first]

        def holds(part: Names) -> bool:
            try:
                # The base is not built again unless that is what failed.
                part_level = level if first.stage in ("base", "fixed") else "quick"
                self._attempt(part, part_level)
            except kernels.NotTogether as error:
                last.append(error)
            else:
                return True
            return False

        answers = {names: False}
        division = groups.divide(
            names,
            lambda part: answers[part] if part in answers else holds(part),
            lambda: last[-1].suspects,
        )
        self._report_outliers(division, "build", str(first.cause))
        if len(division.together) < 2:
            return None, division
        together, _ = self._applied(division.together)
        try:
            return kernels.make(ground, together, level, run), division
        except kernels.NotTogether:
            # The base, which was not tried: each of the others on its own kernel.
            return None, division

    def _attempt(self, names: Names, level: Level) -> Built:
        """The kernel of a subset.  Raises `kernels.NotTogether`."""
        self._attempts += 1
        if len(names) == 1:
            group = self._subjects[names[0]].group
        else:
            group, _ = self._applied(names)
        ground = self._subjects[names[0]].ground
        return kernels.make(ground, group, level, self._run, attempt=self._attempts)

    def built_alone(self, subject: AppliedSeries, like: Built | None = None) -> Built:
        """The kernels of this series alone.  Raises `runs.StageStopped`.

        If ``like`` has all symbols that it needs, they are configured like that, so
        that the base is the same.
        """
        ground, group = subject.ground, subject.group
        if like is not None and group.is_met_by(like.patched.config, like.ground):
            group = dataclasses.replace(group, configured_as=like.group)
        return kernels.make(
            ground, group, self._request.level, self._run, subject.entry
        )

    def guest(self, subject: AppliedSeries, built: Built) -> Guest:
        """The guest of a series, on a kernel that has it."""
        entry, run, series = subject.entry, self._run, subject.series
        entry.kernel = built.patched.key
        # Some of them may be proven on another one in the end.
        members = [member.name for member in built.group.series]
        entry.beside = [name for name in members if name != series.name]
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
        _, own = built.own.get(subject.name, (None, None))
        return Guest(built.patched, root, speed, machine_for(series), programs, own)

    # -- guests ------------------------------------------------------------------------

    def _chain(
        self,
        subject: AppliedSeries,
        built: Built,
        context: Context,
        beside: int = 1,
        *,
        repeated: bool = False,
    ) -> None:
        """Boot, judge and compare, with so many guests ``beside`` each other.

        ``repeated``: a guest of this kernel failed, and its results stay those that
        later runs use.  Raises `runs.StageStopped`.
        """
        run, entry, series = self._run, subject.entry, subject.series
        guest = self.guest(subject, built)
        again = self._request.again or repeated
        bench = trials.Bench(
            context, series, guest, run, entry, again=again, kept=not repeated
        )
        both = built.pair(series) if context.level != "quick" else None
        base = without.guest_of(series, guest, built)
        repeat = self._request.repeat
        saved: Evidence | None
        if repeat is not None and base is not None:
            saved = without.many(bench, base, repeat)
        elif repeat is not None:
            saved = trials.many(bench, repeat)
        elif both is not None and series.measures and beside > 1:
            saved = self._once_and_counted(bench, both, beside)
        else:
            saved = trials.once(bench)
        if saved is not None:
            run.report.environment.guest.update(saved.versions)
        if base is not None and repeat is None:
            without.prove(bench, base)
        if both is not None:
            among = self._shares(built)
            overhead.prove(
                context,
                series,
                both,
                run,
                entry,
                among=among,
                object_costs=subject.object_costs,
            )
        elif context.level != "quick":
            overhead.not_compared(run, entry)

    def _once_and_counted(
        self, bench: trials.Bench, both: Kernels, count: int
    ) -> Evidence:
        """Count while the guest runs, which does not change counts of instructions.

        Raises `runs.StageStopped`.
        """
        entry = bench.entry
        stopped: list[runs.StageStopped] = []
        saved: list[Evidence] = []

        def counts() -> None:
            try:
                overhead.count(bench.context, bench.series, both, self._run, entry)
            except runs.StageStopped as error:
                # The guest goes on: its checks are reported all the same.
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
            counting = [stage for stage in entry.stages if stage.name == "instructions"]
            for stage in counting:
                if stage.status == "error":
                    stage.status, stage.error = "skip", None
                    stage.summary = "ended, as the guest did not finish"
            raise
        if stopped:
            raise stopped[0]
        return saved[0]

    def _shares(self, built: Built) -> shares.Shares | None:
        # Fixes are in the kernel that costs are compared with, too.
        names = [series.name for series in built.group.series if not series.is_fix]
        if len(names) < 2:
            return None
        return shares.Shares(tuple(self._subjects[name].part for name in names))

    def _mutate(self, subject: AppliedSeries) -> None:
        """Falsify the evidence, to see whether the checks notice wrong values."""
        entry, series = subject.entry, subject.series
        if entry.evidence is None or not mutate.concerns(series):
            return
        if self._request.level == "quick":
            self._run.skip("mutate", "LEVEL=quick: evidence is not falsified", entry)
            return
        if any(check.status in ("fail", "error") for check in entry.checks):
            why = "other checks did not pass; `kstall mutate` falsifies all the same"
            self._run.skip("mutate", why, entry)
            return
        with self._run.stage("mutate", entry) as stage:
            entry.mutation, stage.reused = mutate.mutation(
                series,
                self._run.dir / entry.evidence,
                subject.ground.cache,
                self._run.report.environment.cpus,
            )
            stage.summary = mutate.summary(entry.mutation)
            figure("falsified values", len(entry.mutation.mutants), "mutants")
            entry.checks.append(mutate.judge(series, entry.mutation))

    def _prove_shared(
        self, subjects: Sequence[AppliedSeries], built: Built
    ) -> list[AppliedSeries]:
        """Prove ``subjects`` on one kernel; return those that stand apart."""
        before = {
            subject.name: subject.entry.model_copy(deep=True) for subject in subjects
        }
        self._each(
            subjects,
            lambda subject: self._chain(subject, built, self._context(subject)),
        )
        if all("guest" in subject.failures for subject in subjects):
            names = tuple(subject.name for subject in subjects)
            try:
                if not self._boots(names, again=True):
                    return self._prove_those_that_boot(subjects, before)
            except runs.StageStopped:
                return []
        for subject in subjects:
            if subject.failures:
                self._settle(subject, subjects, before[subject.name])
            elif self._request.each_alone:
                self._prove_alone_too(subject, before[subject.name])
            # It takes all processors.
            with contextlib.suppress(runs.StageStopped):
                self._mutate(subject)
        return []

    def _each(
        self, subjects: Sequence[AppliedSeries], act: Callable[[AppliedSeries], None]
    ) -> None:
        """Call ``act`` for each, for as many at once as there is room for."""

        def task(subject: AppliedSeries) -> None:
            with contextlib.suppress(runs.StageStopped):
                act(subject)

        count = self._at_once(subjects)
        # The longest first, lest one runs alone at the end.
        order = sorted(subjects, key=lambda subject: -_deadline(subject.series))
        # What workers do takes up nothing here.
        slots = count if self._run.away is None else _room(subjects)
        with places.limited(max(slots, 1)):
            if count < 2:
                for subject in order:
                    task(subject)
            else:
                tasks = {
                    subject.name: functools.partial(task, subject) for subject in order
                }
                ended: set[str] = set()
                try:
                    parallel.each(tasks, count, lambda name, _: ended.add(name))
                except KeyboardInterrupt:
                    _interrupted(
                        subject for subject in subjects if subject.name not in ended
                    )
                    raise

    def _at_once(self, subjects: Sequence[AppliedSeries]) -> int:
        if self._run.away is not None:
            # With what is counted beside each guest.
            return max(2, len(subjects))
        return self._request.at_once or (1 if self._request.repeat else _room(subjects))

    def _prove_alone(
        self, subject: AppliedSeries, context: Context, like: Built | None = None
    ) -> None:
        """Prove it on a kernel of its own.  Raises `runs.StageStopped`."""
        built = self.built_alone(subject, like)
        self._chain(subject, built, context, self._at_once([subject]))

    def _prove_each_alone(
        self, subjects: Sequence[AppliedSeries], like: Built | None
    ) -> None:
        """Prove each on a kernel of its own: the kernels first, then all guests."""
        kernels_of: dict[str, Built] = {}
        for subject in subjects:
            with contextlib.suppress(runs.StageStopped):
                kernels_of[subject.name] = self.built_alone(subject, like)
        ready = [subject for subject in subjects if subject.name in kernels_of]
        if not ready:
            return
        # What one guest leaves free, its own counts can have.
        beside = self._at_once(ready) if len(ready) == 1 else 1
        ended: list[AppliedSeries] = []

        def chain(subject: AppliedSeries) -> None:
            built = kernels_of[subject.name]
            self._chain(subject, built, self._context(subject), beside)
            ended.append(subject)

        self._each(ready, chain)
        for subject in ready:
            if subject in ended:
                with contextlib.suppress(runs.StageStopped):
                    self._mutate(subject)

    def _prove_those_that_boot(
        self, subjects: Sequence[AppliedSeries], before: dict[str, SeriesReport]
    ) -> list[AppliedSeries]:
        """No guest finished, and again none does: find out which series is to blame,
        and prove the others."""
        names = tuple(subject.name for subject in subjects)
        guest = subjects[0].entry.stage("guest")
        why = guest.error or guest.summary

        def holds(part: Names) -> bool:
            return part != names and self._boots(part)

        try:
            division = groups.divide(names, holds)
        except runs.StageStopped:
            return []
        for subject in subjects:
            subject.become(before[subject.name])
            self._set_aside(subject)
        self._report_outliers(division, "boot", why)
        outliers = [self._subjects[outlier.name] for outlier in division.outliers]
        together = [self._subjects[name] for name in division.together]
        if len(together) < 2:
            return [*outliers, *together]
        group, _ = self._applied(division.together)
        try:
            built = kernels.make(
                together[0].ground, group, self._request.level, self._run
            )
        except (kernels.NotTogether, runs.StageStopped):
            return [*outliers, *together]
        return [*outliers, *self._prove_shared(together, built)]

    def _set_aside(self, subject: AppliedSeries) -> None:
        """Move the results of its guest, to have room for those of another."""
        place = self._run.dir / subject.name
        aside = place / f"attempt-{self._attempts}"
        for name in ("results", "instructions"):
            if (place / name).exists():
                aside.mkdir(exist_ok=True)
                (place / name).rename(aside / name)

    def _boots(self, part: Names, *, again: bool = False) -> bool:
        """Whether the guest of the first series finishes on a kernel of these.

        ``again``: guests of this kernel failed, and what this one says replaces nothing
        of that for later runs.
        """
        try:
            built = self._attempt(part, "quick")
        except kernels.NotTogether:
            return False
        subject = self._subjects[part[0]].scratch()
        context = self._context(subject, f"attempt-{self._attempts}")
        with self._run.stage(f"attempt-{self._attempts}-guest") as stage, figures():
            guest = self.guest(subject, built)
            try:
                booted = run_guest(
                    context,
                    subject.series,
                    guest,
                    stage.log,
                    fresh=again,
                    keep=lambda results: not again and trials.is_complete(results),
                )
            except guestrun.GuestFailed as error:
                stage.status, stage.error = "skip", str(error)
                stage.summary = error.headline
                return False
            stage.summary, stage.reused = booted.summary, booted.reused
        return True

    # -- failures ----------------------------------------------------------------------

    def _settle(
        self,
        subject: AppliedSeries,
        subjects: Sequence[AppliedSeries],
        before: SeriesReport,
    ) -> None:
        """Find out whether another series is to blame for what failed beside it.

        Nothing is repeated until it passes: it has to hold alone, and all that failed
        has to fail again on a kernel with the one other series that is named.
        """
        failures = subject.failures
        fresh = dataclasses.replace(subject, entry=before).scratch()
        alone = fresh.scratch()
        with contextlib.suppress(runs.StageStopped):
            self._prove_alone(alone, self._context(alone, "alone"))
        if not _holds(alone):
            failed = ", ".join(sorted(alone.failures)) or "it could not be judged"
            self._remark(subject, f"on a kernel of its own as well: {failed}")
            return
        other = self._culprit(fresh, [subject.name for subject in subjects], failures)
        failed = ", ".join(sorted(failures))
        if other is None:
            self._remark(
                subject,
                f"{failed}: passes on a kernel of its own, and fails beside no single "
                "other series",
            )
            return
        subject.become(alone.entry)
        why = f"beside {other}, {failed} fails; these results are without it"
        self._run.skip("beside", why, subject.entry)

    def _culprit(
        self, fresh: AppliedSeries, names: Sequence[str], failures: frozenset[str]
    ) -> str | None:
        """The other series beside which all ``failures`` are seen; alone none is."""
        every = tuple(names)
        others = [name for name in names if name != fresh.name]
        answers: dict[Names, bool] = {(fresh.name,): True}
        if len(others) > 1:
            # A pair of them is booted in the end.  If they are only two, they are that
            # pair, and what failed once has to fail again.
            answers[every] = False

        def holds(part: Names) -> bool:
            if part not in answers:
                fails = self._fails_beside(fresh, part, failures, again=part == every)
                answers[part] = not fails
            return answers[part]

        touched = fresh.series.touches
        for name in others:
            if touched & self._subjects[name].series.touches:
                # In the order of ``names``, in which answers are cached.
                pair = tuple(member for member in names if member in (fresh.name, name))
                if not holds(pair):
                    return name
        return groups.culprit(fresh.name, every, tuple(others), holds)

    def _fails_beside(
        self,
        fresh: AppliedSeries,
        part: Names,
        failures: frozenset[str],
        *,
        again: bool,
    ) -> bool:
        """Whether all ``failures`` are seen on a kernel of ``part``; ``again``: they
        were seen there already, and have to be seen once more."""
        subject = fresh.scratch()
        try:
            with contextlib.suppress(runs.StageStopped):
                built = self._attempt(part, self._request.level)
                context = self._context(subject, f"attempt-{self._attempts}")
                self._chain(subject, built, context, repeated=again)
        except kernels.NotTogether:
            # No result, as to these failures.
            return False
        # What does not fail again here would be excused by what does.
        return failures <= subject.failures

    def _prove_alone_too(self, subject: AppliedSeries, before: SeriesReport) -> None:
        """Prove it on a kernel of its own as well, and add the check that it is."""
        alone = dataclasses.replace(subject, entry=before).scratch()
        with contextlib.suppress(runs.StageStopped):
            self._prove_alone(alone, self._context(alone, "alone"))
        claim = "Everything also passes on a kernel with this series only."
        check = run_check(ALONE, "harness", claim, _alone, alone.entry)
        subject.entry.checks.append(check)

    # -- report ------------------------------------------------------------------------

    def _report_outliers(self, division: Division, verb: str, why: str = "") -> None:
        """Report in each series' part why it stands apart."""
        for outlier in division.outliers:
            entry = self._subjects[outlier.name].entry
            text = f"{_of(outlier, verb)}: on a kernel of its own"
            self._run.skip("beside", text, entry, error=why or None)

    def _remark(self, subject: AppliedSeries, text: str) -> None:
        with self._run.stage("alone", subject.entry) as stage:
            stage.summary = text


def _interrupted(subjects: Iterable[AppliedSeries]) -> None:
    """Mark the stages that were running as interrupted."""
    for subject in subjects:
        _ended(subject.entry)


def _ended(entry: SeriesReport) -> None:
    for stage in entry.stages:
        if stage.status == "error":
            stage.error = stage.summary = "interrupted"


def _of(outlier: Outlier, verb: str) -> str:
    if not outlier.alone:
        return f"does not {verb}"
    return f"does not {verb} beside {outlier.other or 'the others together'}"


def _holds(subject: AppliedSeries) -> bool:
    """Whether it was judged, and nothing failed."""
    statuses = [stage.status for stage in subject.entry.stages]
    statuses += [check.status for check in subject.entry.checks]
    good = all(status in ("pass", "skip") for status in statuses)
    return good and subject.entry.evidence is not None


def _alone(entry: SeriesReport) -> Verdict:
    verdict = Verdict()
    stopped = [stage for stage in entry.stages if stage.status not in ("pass", "skip")]
    for stage in stopped:
        if stage.status != "fail":
            raise KstallError(stage.error or stage.summary)
        verdict.true(f"stage {stage.name}", False, stage.error or stage.summary)
    for check in entry.checks:
        if check.kind == "patch" or check.status == "skip":
            continue
        if check.status == "error":
            raise KstallError(f"{check.name}: {check.detail}")
        verdict.true(check.name, check.status == "pass", check.detail)
    return verdict


def _deadline(series: Series) -> float:
    return sum(load.deadline_s for load in series.spec.workload)


def _room(subjects: Sequence[AppliedSeries]) -> int:
    """How many guests there are processors and memory for."""
    machines = [machine_for(subject.series) for subject in subjects]
    return guestrun.at_once(len(os.sched_getaffinity(0)), machines)
