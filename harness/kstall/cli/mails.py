# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands that write series as mails, and read series from mails."""

from __future__ import annotations

import argparse
import functools

from rich.console import Console

from ..base import DoesNotApply, FailedCheck, KstallError, cache, temporary
from ..mail import export, incoming, prep, summary
from ..pipeline import Request
from ..report import report
from ..series import Project
from ..tree import source
from . import terminal
from .given import signing
from .places import CANNOT_RUN, cache_directory, out_directory, require_temporary
from .proofs import prove


def do_series(arguments: argparse.Namespace, console: Console) -> int:
    """Write proven series as mails; 2 one of them is not written."""
    project = Project(arguments.project)
    chosen = project.load(arguments.series)
    if arguments.series:
        export.require_for_sending(chosen)
    to_send = [series for series in chosen if series.not_sent is None]
    if arguments.sign_off is not None and len(to_send) != 1:
        raise KstallError("--sign-off is for one series", next="name that series")
    if arguments.report_url is not None and arguments.run is None and len(to_send) > 1:
        # Each series has the newest run that proved it, which need not be the same.
        raise KstallError(
            "--report-url is the report of one run",
            next="name that run with --run, or one series",
        )
    request = export.Export(
        project=project,
        kernel=arguments.kernel,
        cache=cache_directory(),
        out=out_directory(arguments, arguments.kernel),
        version=arguments.version,
        rfc=arguments.rfc,
        run=arguments.run,
        previous=arguments.previous,
        report_url=arguments.report_url,
        sign_off=arguments.sign_off,
        again=signing(arguments, to_send),
        replace=arguments.replace,
    )
    say = functools.partial(terminal.say, console)
    base = source.obtain(request.kernel, request.cache, say)
    outcomes = summary.export_all(request, chosen, base)
    summary.print_outcomes(outcomes, say)
    if arguments.b4_prep is not None:
        for outcome in outcomes:
            if outcome.exported is not None:
                name = prep.branch(outcome.exported, arguments.b4_prep)
                say(f"  inspect it: git switch {name}; then b4 prep --check, b4 send")
    say(f"summary: {summary.write(outcomes, base, request.out)}")
    written = all(outcome.exported or outcome.left_out for outcome in outcomes)
    return 0 if written else CANNOT_RUN


def do_check_thread(arguments: argparse.Namespace, console: Console) -> int:
    """Apply a thread of mails, compare it with the series here, and prove it."""
    project = Project(arguments.project)
    out = out_directory(arguments, arguments.kernel)
    say = functools.partial(terminal.say, console)
    if not arguments.no_validate:
        require_temporary()
    # Mistakes come to light before a kernel is fetched.
    source.require(arguments.kernel)
    for path in (arguments.kconfig, arguments.workload):
        if path is not None and not path.is_file():
            raise KstallError(f"{path}: there is no such file")
    try:
        with temporary.directory("thread") as place:
            posting = incoming.read(arguments.thread, place, arguments.version)
            base = source.obtain(arguments.kernel, cache_directory(), say)
            received = incoming.receive(posting, project, base, out, place)
    except FailedCheck as error:
        terminal.complain(str(error))
        return report.EXIT["failed"]
    except DoesNotApply as error:
        terminal.complain(f"does not apply: {error}")
        return report.EXIT["does-not-apply"]
    findings = incoming.text(received)
    cache.write_text(received.dir / "found.txt", findings)
    say(findings)
    say(f"patches: {received.dir / 'patches'}")
    if arguments.no_validate:
        return 0
    series = incoming.adopted(
        received,
        project,
        kconfig=arguments.kconfig,
        workload=arguments.workload,
        level=arguments.level,
        trusted=arguments.trusted,
    )
    request = Request(
        project=Project(received.dir / "project"),
        series=(series,),
        kernel=arguments.kernel,
        cache=cache_directory(),
        out=out,
        level=arguments.level,
    )
    return prove(request, console)
