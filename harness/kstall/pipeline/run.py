# SPDX-License-Identifier: GPL-2.0-or-later
"""The bookkeeping of a run: stages, their verdicts, and a report that is always on
disk, so that an interrupted run loses nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..base import (
    DoesNotApply,
    FailedCheck,
    KstallError,
    Status,
    cache,
    elsewhere,
    figures,
    process,
    program,
)
from ..base import explain as explain_error
from ..report import Report, SeriesReport, explain, html, junit, kcidb, ktap, report
from ..series import Context, Level, Project
from ..verdict import Check
from .ui import Ui

#: How many seconds after the last ones the views of a running run are drawn again.
_REDRAWN_S = 10.0


class StageStopped(Exception):
    """A stage failed, or could not be judged; its entry in the report says why."""


@dataclass
class Opened:
    """A stage that is running: what it sets here ends up in its report entry."""

    log: Path
    summary: str = ""
    reused: bool = False
    status: Status = "pass"
    error: str | None = None


@dataclass(frozen=True)
class Run:
    """A run directory and the report that grows in it.

    Series may be proven in threads of their own: the report is written by one at a
    time.  ``away`` hands out what workers may do, if there are any.
    """

    dir: Path
    report: report.Report
    ui: Ui
    began: float
    away: elsewhere.Elsewhere | None = None
    _writing: threading.RLock = field(default_factory=threading.RLock)
    _drawn: list[float] = field(default_factory=list)

    def save(self) -> None:
        """Write ``report.json`` as things stand; ``junit.xml`` and ``results.ktap``
        too, but seldom, and when the run is over ``report.html`` and ``kcidb.json``."""
        with self._writing:
            self._save()

    def _save(self) -> None:
        self.report.seconds = round(time.monotonic() - self.began, 3)
        if self.report.status != "running":
            try:
                explain.fill(self.report, self.dir)
            except Exception as error:
                # The verdict holds without it.
                self.ui.say(f"not all failures are explained: {error!r}")
        printed = report.printable(self.report)
        report.write(printed, self.dir / "report.json")
        over = self.report.status != "running"
        now = time.monotonic()
        if over or not self._drawn or now - self._drawn[-1] >= _REDRAWN_S:
            self._drawn[:] = [now]
            self._draw(junit.write, printed, "junit.xml")
            self._draw(ktap.write, printed, "results.ktap")
        if over:
            again = f"; `{shlex.join([program(), 'html', str(self.dir)])}` tries again"
            self._draw(html.write, printed, "report.html", again)
            if self.report.status != "interrupted":
                # What is submitted is final.
                self._draw(kcidb.write, printed, "kcidb.json")

    def _draw(
        self,
        write: Callable[[Report, Path], None],
        printed: Report,
        name: str,
        again: str = "",
    ) -> None:
        try:
            write(printed, self.dir / name)
        except Exception as error:
            # The verdict is in report.json, and must not be lost by an error in these.
            self.ui.say(f"{name} could not be written: {error!r}{again}")

    def context(self, project: Project, cache: Path, level: Level = "full") -> Context:
        """The context of its stages."""
        return Context(project, cache, self.dir, level, self.ui, away=self.away)

    @contextlib.contextmanager
    def stage(self, name: str, series: SeriesReport | None = None) -> Iterator[Opened]:
        """Time a stage and record its outcome, however it ends.

        Raises `StageStopped` in place of an error.
        """
        folder = self.dir / (series.name if series else "shared")
        opened = Opened(log=folder / f"{name}.log")
        entry = report.Stage(name=name, status="error", seconds=0)
        (series.stages if series else self.report.stages).append(entry)
        self.ui.begin(series.name if series else None, name)
        began = time.monotonic()
        with (
            process.recorded() as commands,
            cache.remarked() as remarks,
            figures() as measured,
        ):
            try:
                yield opened
                entry.status, entry.error = opened.status, opened.error
            except DoesNotApply as error:
                entry.status, entry.error = "does-not-apply", str(error)
                opened.summary = error.headline
                raise StageStopped from error
            except FailedCheck as error:
                entry.status, entry.error = "fail", str(error)
                opened.summary = error.headline
                raise StageStopped from error
            except (KstallError, OSError) as error:
                entry.error = explain_error(error)
                opened.summary = entry.error.splitlines()[0]
                if isinstance(error, KstallError):
                    opened.summary = error.headline
                raise StageStopped from error
            except KeyboardInterrupt:
                entry.error = opened.summary = "interrupted"
                raise
            except StageStopped:
                raise
            except Exception as error:
                opened.summary = f"a bug in kstall: {error!r}"
                entry.error = traceback.format_exc()
                raise
            finally:
                entry.seconds = round(time.monotonic() - began, 3)
                entry.summary = "; ".join(filter(None, (opened.summary, *remarks)))
                entry.reused = opened.reused
                entry.figures = [
                    report.Figure(**figure._asdict()) for figure in measured
                ]
                if opened.log.exists():
                    entry.log = str(opened.log.relative_to(self.dir))
                entry.commands = [
                    report.Command(
                        argv=list(command.argv),
                        returncode=command.returncode,
                        seconds=round(command.seconds, 3),
                    )
                    for command in commands
                ]
                self.ui.end(entry)
                self.save()

    def skip(
        self,
        name: str,
        why: str,
        series: SeriesReport | None = None,
        *,
        error: str | None = None,
    ) -> None:
        """Record that a stage is left out, and ``why``."""
        with self.stage(name, series) as stage:
            stage.status, stage.summary, stage.error = "skip", why, error


def score(checks: Sequence[Check], what: str = "checks") -> str:
    """How many of ``checks`` pass, for the summary of a stage."""
    good = sum(check.status == "pass" for check in checks)
    return f"{good} of {len(checks)} {what} pass"


def begin(
    out: Path,
    command: Sequence[str],
    ui: Ui,
    *,
    place: Path | None = None,
    away: elsewhere.Elsewhere | None = None,
    describe: Callable[[report.Report], None] = lambda _: None,
) -> Run:
    """Make the run's directory below ``out`` and point ``out/latest`` to it; or make
    it at ``place``, which is below a directory of `new_directory`.

    ``describe`` adds to the report what is known before anything is done.
    """
    now = datetime.now(UTC)
    directory = new_directory(out, now) if place is None else place
    run = Run(
        dir=directory,
        report=report.Report(
            run=directory.name,
            started=now.isoformat(timespec="seconds"),
            command=list(command),
            environment=report.Environment(
                kstall=__version__,
                python=platform.python_version(),
                host=f"{platform.system()} {platform.release()} {platform.machine()}",
                cpus=len(os.sched_getaffinity(0)),
            ),
        ),
        ui=ui,
        began=time.monotonic(),
        away=away,
    )
    describe(run.report)
    try:
        if place is not None:
            place.mkdir()
        run.save()
        if place is None:
            lead_latest(out, directory)
    except OSError as error:
        raise _unusable(out, error) from error
    return run


def new_directory(out: Path, now: datetime) -> Path:
    """A new directory below ``out``, with ``now`` as its name."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            directory = out / (f"{stamp}-{number}" if number else stamp)
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
                return directory
    except OSError as error:
        raise _unusable(out, error) from error
    raise AssertionError("unreachable")


def lead_latest(out: Path, directory: Path) -> None:
    """Point ``latest`` to a run that has a report, atomically."""
    link = out / f".latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(directory.name)
    try:
        link.rename(out / "latest")
    except OSError:
        link.unlink()
        raise


def _unusable(out: Path, error: OSError) -> KstallError:
    return KstallError(
        f"{out} cannot hold run directories: {error.strerror}",
        next="name another directory with --out",
    )


def command_line() -> list[str]:
    """How this process was called, to put into the report."""
    return [program(), *sys.argv[1:]]
