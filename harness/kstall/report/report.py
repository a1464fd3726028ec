# SPDX-License-Identifier: GPL-2.0-or-later
"""``report.json``, the record of a run, and its schema.

The models below are the schema, which ``kstall schema`` prints: field descriptions are
its documentation.  Views (terminal, JUnit) read a `Report` and nothing else.
Version 1: fields may be added; a field that changes or goes away makes version 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field
from pydantic_core import PydanticSerializationError

from ..base import Status, cache
from ..cost import costs
from ..evidence import falsity
from ..verdict import Check, Comparison, Explanation, Model
from .plain import escaped

_Document = TypeVar("_Document", bound=Model)

RunStatus = Literal[
    "running", "proven", "failed", "could-not-run", "does-not-apply", "interrupted"
]
#: Exit codes of `kstall validate`; could-not-run: something could not be judged.
EXIT = {
    "proven": 0,
    "failed": 1,
    "does-not-apply": 3,
    "could-not-run": 2,
    "interrupted": 2,
    "running": 2,
}


class Command(Model):
    """A program that was run."""

    argv: list[str]
    returncode: int
    seconds: float = Field(description="wall-clock time")


class Figure(Model):
    """A number that a stage measured."""

    name: str
    value: float
    unit: str


class Stage(Model):
    """A step on the way from series to evidence."""

    name: str
    status: Status
    seconds: float = Field(description="wall-clock time")
    reused: bool = Field(
        default=False, description="the result comes from an earlier run"
    )
    summary: str = Field(default="", description="the result, in one line")
    error: str | None = Field(
        default=None, description="what happened, where the log is, what to do next"
    )
    log: str | None = Field(default=None, description="path in the run directory")
    figures: list[Figure] = []
    commands: list[Command] = []
    explanation: Explanation | None = Field(
        default=None, description="of a stage that did not pass"
    )


class EventField(Model):
    """A member of an event's record, or an argument of a bare tracepoint."""

    name: str
    ctype: str
    offset: int | None = Field(default=None, description="bytes; None: not recorded")
    size: int | None = Field(default=None, description="bytes")


class EventFormat(Model):
    """A new tracepoint, as the booted kernel declares it."""

    name: str = Field(description="system:name")
    kind: Literal["event", "bare"] = Field(
        description="bare: DECLARE_TRACE(), without a record or a file in tracefs"
    )
    joins: str = Field(default="", description="what its identifiers join it with")
    sites: list[str] = Field(default=[], description="where it fires")
    fields: list[EventField] = []
    holes: int | None = Field(
        default=None, description="bytes between members; None: it has no record"
    )
    print_fmt: str | None = Field(default=None, description="as tracefs prints it")


class Patch(Model):
    """A patch of a series, as it was proven."""

    file: str = Field(description="name in the series' directory")
    subject: str = Field(description="without [PATCH n/m]")
    sha256: str = Field(description="of the file")


class Unjudged(Model):
    """A check that could not be judged."""

    check: str
    cause: str


class Try(Model):
    """A boot of a series' guest.

    A guest that could not be judged because of the apparatus is booted a second time.
    """

    number: int = Field(description="from 1; the last one was judged")
    evidence: str | None = Field(
        default=None, description="guest results, a path in the run directory"
    )
    guest: Stage = Field(description="how the guest ended")
    unjudged: list[Unjudged] = []


class Repeat(Model):
    """One of several requested boots of a series' guest."""

    number: int = Field(description="from 1")
    status: Status = Field(description="fail: the guest, or a check of it, failed")
    evidence: str | None = Field(
        default=None, description="path in the run directory; None: dropped"
    )
    odd: bool = Field(
        default=False,
        description="failed, could not be judged, or unlike most others in a check",
    )
    seconds: float = Field(default=0, description="wall-clock time")
    error: str | None = Field(default=None, description="why the guest has no results")
    failed: list[str] = Field(default=[], description="checks")
    unjudged: list[Unjudged] = []


class Tally(Model):
    """The results of a check, counted over all repeats."""

    check: str = Field(description="or guest: whether it ended well")
    passed: int = 0
    failed: int = 0
    unjudged: int = 0
    skipped: int = 0


class Repeats(Model):
    """The results of booting a series' guest several times."""

    asked: int
    runs: list[Repeat] = []
    tally: list[Tally] = []


class Shown(Model):
    """A bug that a series fixes, as observed on the kernel without it."""

    check: str = Field(description="it holds with the patches, and fails without")
    looks: str = Field(description="how the bug looks, as the series says")
    comparisons: list[Comparison] = Field(
        default=[], description="those that did not hold without the patches"
    )


class SeriesReport(Model):
    """The results of one series in a run."""

    name: str
    title: str
    not_sent: str | None = Field(
        default=None, description="why it is not to be sent; None: it is"
    )
    digest: str = Field(description="changes with any byte of the series")
    patches: list[Patch] = []
    kernel: str | None = Field(default=None, description="key of the patched kernel")
    beside: list[str] | None = Field(
        default=None,
        description="the other series in that kernel; None: not recorded",
    )
    evidence: str | None = Field(
        default=None, description="guest results, a path in the run directory"
    )
    expected: bool | None = Field(
        default=None,
        description="whether it is expected to apply to this tree; None: undeclared",
    )
    merged: bool = Field(
        default=False, description="it does not apply, as the tree has all its patches"
    )
    status: Status = "error"
    stages: list[Stage] = []
    events: list[EventFormat] = []
    checks: list[Check] = []
    shown: list[Shown] = Field(
        default=[], description="how the bugs that it fixes show without it"
    )
    tries: list[Try] = Field(default=[], description="boots of its guest, in order")
    base_tries: list[Try] = Field(
        default=[], description="boots of its guest without the patches, in order"
    )
    repeats: Repeats | None = Field(
        default=None, description="of a run that repeats its guest"
    )
    overhead: costs.Overhead | None = Field(
        default=None, description="what the new events cost while off and on"
    )
    mutation: falsity.Mutation | None = Field(
        default=None, description="verdicts of the checks on falsified evidence"
    )

    @property
    def applies(self) -> bool:
        """Whether all its patches applied."""
        return any(
            stage.name == "apply" and stage.status == "pass" for stage in self.stages
        )

    def stage(self, name: str) -> Stage:
        """Its stage of that ``name``, which has to be there."""
        return next(stage for stage in self.stages if stage.name == name)


class Tree(Model):
    """The kernel that the series were proven on."""

    kind: Literal["git", "directory", "tarball", "debian"]
    origin: str = Field(description="what KERNEL= named, or the package")
    version: str = Field(description="from the tree's Makefile")
    describe: str
    commit: str | None = Field(default=None, description="HEAD, for a git checkout")
    id: str = Field(description="changes with the tree's contents")
    dirty: list[str] = Field(
        default=[], description="uncommitted paths; they were not part of the run"
    )


class Environment(Model):
    """Versions of everything that influences the result."""

    kstall: str
    python: str
    host: str
    cpus: int
    arch: str = Field(
        default="x86_64", description="of the kernels and guests, as --arch calls it"
    )
    compiler: str | None = None
    pahole: str | None = None
    qemu: str | None = None
    virtme_ng: str | None = None
    accelerator: str | None = Field(default=None, description="kvm or tcg")
    accelerator_reason: str | None = None
    guest_root: str | None = Field(default=None, description="key of the guest root")
    guest: dict[str, str] = Field(
        default={}, description="versions of programs in the guest"
    )


class Report(Model):
    """One run of ``kstall validate``."""

    schema_version: Literal[1] = 1
    run: str = Field(description="name of the run directory")
    started: str = Field(description="UTC, ISO 8601")
    seconds: float = Field(default=0, description="wall-clock time")
    status: RunStatus = "running"
    command: list[str]
    options: dict[str, list[str]] | None = Field(
        default=None,
        description="by name: with them `kstall validate` proves a series of this run "
        "again, on the same tree; None: only the whole command does",
    )
    tree: Tree | None = None
    environment: Environment
    stages: list[Stage] = Field(default=[], description="shared by all series")
    series: list[SeriesReport] = []

    @property
    def exit_code(self) -> int:
        """0 proven, 1 a check failed, 2 could not judge, 3 a series does not apply."""
        return EXIT[self.status]

    def all_stages(self) -> Iterator[tuple[SeriesReport | None, Stage]]:
        """The stages that all series share, and then those of each, with the series."""
        for stage in self.stages:
            yield None, stage
        for series in self.series:
            for stage in series.stages:
                yield series, stage

    def settle(self) -> None:
        """Set each series' status and the run's from the stages and checks."""
        for series in self.series:
            series.status = worst(
                [stage.status for stage in series.stages]
                + [check.status for check in series.checks]
            )
            judged = [check for check in series.checks if check.kind != "patch"]
            if series.status == "does-not-apply":
                continue
            if not any(check.status in ("pass", "fail") for check in judged):
                # A series is not proven if only its patches were judged.
                series.status = worst([series.status, "error"])
        states = [stage.status for stage in self.stages]
        states += [series.status for series in self.series]
        self.status = run_status(states if self.series else [])


def worst(states: list[Status]) -> Status:
    """The worst status: a failure is a verdict, an error is the lack of one.

    does-not-apply comes after both: another series may still be judged.
    """
    order: tuple[Status, ...] = ("fail", "error", "does-not-apply", "pass", "skip")
    for state in order:
        if state in states:
            return state
    return "error"


_OF_RUNS: dict[RunStatus, Status] = {
    "proven": "pass",
    "failed": "fail",
    "does-not-apply": "does-not-apply",
}
_RUNS: dict[Status, RunStatus] = {
    "pass": "proven",
    # A skip is no failure; the views show each with its reason.
    "skip": "proven",
    "fail": "failed",
    "error": "could-not-run",
    "does-not-apply": "does-not-apply",
}


def run_status(states: list[Status]) -> RunStatus:
    """The status of a run whose series, and the stages that they share, have these."""
    return _RUNS[worst(states)]


def worst_run(states: Iterable[RunStatus]) -> RunStatus:
    """The worst status of several runs, by the rule for the series of one run."""
    return run_status([_OF_RUNS.get(state, "error") for state in states])


def printable(document: _Document) -> _Document:
    """``document``, with undecodable bytes in names as escapes.

    A path may contain any bytes; JSON and HTML cannot.
    """
    try:
        document.model_dump_json()
    except (PydanticSerializationError, UnicodeEncodeError):
        return document.model_validate(_printable(document.model_dump()))
    return document


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {_printable(key): _printable(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(element) for element in value]
    return value


def write(document: Model, path: Path) -> None:
    """Write a report, a matrix or a comparison as JSON, atomically."""
    cache.write_text(path, document.model_dump_json(indent=2) + "\n")


def read(path: Path) -> Report:
    """A saved report; raises pydantic's `ValidationError` if it is not valid."""
    return Report.model_validate_json(path.read_text(encoding="utf-8"))
