# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands that prove series, or judge what a proof recorded."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ..base import Architecture, KstallError, arch
from ..pipeline import (
    Request,
    Ui,
    again,
    attempts,
    command_line,
    matrix,
    matrixfile,
    rebasing,
    stability,
    validate,
)
from ..report import matrixviews, report, views
from ..series import Project
from ..tree import source
from . import given, terminal, workers
from .places import (
    CANNOT_RUN,
    cache_directory,
    out_directory,
    require_temporary,
)

if TYPE_CHECKING:
    from .. import farm


def do_validate(arguments: argparse.Namespace, console: Console) -> int:
    """Prove series, on one tree or several; the exit status of the worst verdict."""
    project = Project(arguments.project)
    columns = _columns(arguments, project)
    _require_effects(arguments, columns)
    names = arguments.series or [name for column in columns for name in column.series]
    kernels = arguments.kernel or [None]
    request = Request(
        project=project,
        series=project.load(names),
        kernel=kernels[0],
        cache=cache_directory(),
        out=out_directory(arguments, *kernels, *(column.kernel for column in columns)),
        level=arguments.level or "full",
        again=arguments.again,
        repeat=arguments.repeat,
        alone=arguments.alone,
        at_once=arguments.at_once,
        arch=_architecture(arguments),
        seeds=tuple(arguments.seed),
        options=given.options(arguments),
    )
    if arguments.on is None:
        require_temporary()
    where = workers.where_to(arguments)
    if not columns:
        return prove(request, console, where)
    with workers.helped(request, console, where) as (helped, ui):
        directory, outcome = matrix.prove(helped, columns, ui, command_line())
    console.print()
    matrixviews.terminal(outcome, directory, console)
    return outcome.exit_code


def _require_effects(
    arguments: argparse.Namespace, columns: Sequence[matrixfile.ColumnPlan]
) -> None:
    """Raise `KstallError` for options that would have no effect."""
    levels = {column.level for column in columns} or {arguments.level}
    if arguments.seed and levels == {"quick"}:
        raise KstallError(
            "--seed: no effect at level quick, which compiles no patch by itself",
            next="choose --level full or deep, or leave it out",
        )
    helped = arguments.workers is not None or arguments.on is not None
    if arguments.at_once is not None and helped:
        raise KstallError(
            "--at-once: no effect with workers, which have slots for guests",
            next="leave it out; `kstall worker --nthreads N` sets their number",
        )


def _architecture(arguments: argparse.Namespace) -> Architecture:
    return arch.host() if arguments.arch is None else arch.named(arguments.arch)


def _columns(
    arguments: argparse.Namespace, project: Project
) -> tuple[matrixfile.ColumnPlan, ...]:
    """A column for each tree, if there are several trees."""
    if arguments.matrix is not None:
        if arguments.kernel:
            raise KstallError("--matrix FILE names the trees: leave out --kernel")
        columns = matrixfile.read(arguments.matrix, project)
        return matrixfile.narrowed(
            columns, arguments.series, arguments.level, arguments.arch
        )
    if len(arguments.kernel or ()) < 2:
        return ()
    return matrixfile.of_kernels(
        arguments.kernel,
        arguments.series or project.names(),
        _architecture(arguments).name,
        arguments.level or "full",
    )


def prove(request: Request, console: Console, where: farm.Where | None = None) -> int:
    """Carry out ``request``, print the report, and return its exit status."""
    with workers.helped(request, console, where) as (helped, ui):
        directory, outcome = validate.validate(helped, ui, command_line())
    console.print()
    views.terminal(outcome, directory, console)
    return outcome.exit_code


def do_stability(arguments: argparse.Namespace, console: Console) -> int:
    """Boot guests many times; 1 a guest was FAILED, 2 too many had no verdict."""
    project = Project(arguments.project)
    request = Request(
        project=project,
        series=project.load(arguments.series),
        kernel=arguments.kernel,
        cache=cache_directory(),
        out=out_directory(arguments, arguments.kernel),
    )
    require_temporary()
    loads = tuple(arguments.load or (2, 4))
    at_once = tuple(arguments.at_once or (1, 2))
    plan = stability.StabilityPlan(arguments.runs, loads, arguments.kunit, at_once)
    with Ui(console) as ui:
        outcome = stability.measure(
            request, plan, ui, command_line(), resume=arguments.resume
        )
    terminal.say(console, "\n".join(attempts.summary(outcome)))
    if outcome.place is not None:
        terminal.say(console, f"results  {outcome.place / attempts.FILE}")
    unseen = {series.name for series in request.series} - outcome.series
    for name in sorted(unseen):
        terminal.complain(f"{name}: its kernel could not be built, see above")
    if why := stability.unmeasured(outcome, plan):
        terminal.complain(why)
    code = attempts.exit_code(outcome)
    return code if code == report.EXIT["failed"] or not unseen else CANNOT_RUN


def do_judge(arguments: argparse.Namespace, console: Console) -> int:
    """Judge the evidence of a finished run again, and return its exit status."""
    directory = arguments.run.resolve()
    outcome = again.judge_again(Project(arguments.project), directory)
    views.terminal(outcome, directory, console)
    return outcome.exit_code


def do_mutate(arguments: argparse.Namespace, console: Console) -> int:
    """Falsify the evidence of a finished run; 1 a wrong value escapes its checks."""
    outcome = again.mutate_again(
        Project(arguments.project),
        arguments.run.resolve(),
        arguments.series,
        cache_directory(),
    )
    views.mutations(outcome, console, everything=arguments.all)
    statuses = {check.status for series in outcome.series for check in series.checks}
    if "fail" in statuses:
        return 1
    return 0 if outcome.series and statuses <= {"pass"} else CANNOT_RUN


def do_rebase(arguments: argparse.Namespace, console: Console) -> int:
    """Carry series over to another tree; the exit status of the worst outcome."""
    project = Project(arguments.project)
    if arguments.write and arguments.no_compile:
        raise KstallError("--write needs a compiled result: leave out --no-compile")
    # Both, before either is fetched.
    for kernel in (arguments.kernel, arguments.origin):
        source.require(kernel)
    out = out_directory(arguments, arguments.kernel, arguments.origin)
    states = []
    for series in project.load(arguments.series):
        request = Request(
            project=project,
            series=(series,),
            kernel=arguments.kernel,
            cache=cache_directory(),
            out=out,
        )
        with Ui(console) as ui:
            outcome = rebasing.port(
                request,
                arguments.origin,
                ui,
                given.rebasing(arguments, series),
                compiled=not arguments.no_compile,
            )
        states.append(outcome.report.status)
        _rebased(outcome, console)
        if arguments.write and not _written(outcome, console):
            states.append("could-not-run")
    return report.EXIT[report.worst_run(states)]


def _written(outcome: rebasing.Rebased, console: Console) -> bool:
    """Replace the patches of a series by what was carried over, if they all were; False
    if that is for people to do, as the error says.  Others go on all the same."""
    if not outcome.clean or outcome.result is None or not outcome.result.patches:
        # The verdict says so; where the tree has all of them there is nothing to do.
        return True
    try:
        for path in rebasing.write(outcome):
            terminal.say(console, f"written  {path}")
    except KstallError as error:
        terminal.complain(str(error))
        return False
    return True


def _rebased(outcome: rebasing.Rebased, console: Console) -> None:
    """Print the outcome of a series, and where its files are."""
    say = functools.partial(terminal.say, console)
    name, result = outcome.series.name, outcome.result
    console.print()
    if result is not None and result.range_diff:
        say(result.range_diff)
    for _, stage in outcome.report.all_stages():
        if stage.error:
            say(f"{name}: {stage.name}: {stage.error}")
    for check in outcome.report.series[0].checks:
        if check.status in ("fail", "error"):
            say(f"{name}: {check.name}: {views.check_summary(check)}")
    if result is not None:
        if result.patches:
            say(f"patches  {result.directory / 'patches'}")
        say(f"tree     {result.tree}")
        say(f"page     {outcome.dir / 'report.html'}")
    state = outcome.report.series[0].status
    words = {
        "pass": "carried over",
        "fail": "carried over, and does not compile",
        "does-not-apply": "a conflict is left",
    }
    console.print(
        f"verdict  [{views.STYLE.get(state, 'bold')}]{escape(name)}: "
        f"{words.get(state, 'could not be carried over')}[/]",
        soft_wrap=True,
    )
