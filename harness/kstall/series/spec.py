# SPDX-License-Identifier: GPL-2.0-or-later
"""``series.toml``, table by table: what a series declares about itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from packaging import specifiers
from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    model_validator,
)

from . import tables
from .tables import Table

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")]
Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$")]
#: Of functions and structs, which macros can give capitals.
CName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EventName = Annotated[
    str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*:[a-z_][a-z0-9_]*$")
]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
#: Sentences, which may be wrapped in the file, in one line.
Prose = Annotated[Text, AfterValidator(lambda text: " ".join(text.split()))]
Word = Annotated[str, StringConstraints(pattern=r"^\S+$")]


def _condition(text: str) -> str:
    try:
        specifiers.SpecifierSet(text)
    except specifiers.InvalidSpecifier as error:
        raise ValueError(
            f"{text!r} is no condition on a version, such as >=7.3 or ==7.2.*"
        ) from error
    if not text.strip():
        raise ValueError("an empty condition holds everywhere; say >=0")
    return text


Compiler = Annotated[
    str, StringConstraints(pattern=r"^(x86_64|arm64) (gcc|clang) [1-9]\d*$")
]
Condition = Annotated[str, AfterValidator(_condition)]
_RELEASE = re.compile(r"(\d+(?:\.\d+)*)(?:-rc(\d+))?")


def _release(version: str) -> str:
    match = _RELEASE.match(version)
    if match is None:
        return "0"
    return match[1] + (f"rc{match[2]}" if match[2] else "")


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return text


Expression = Annotated[str, AfterValidator(_expression)]
#: Where the tables begin that do not affect a proof, with the comment above them.
BESIDE = re.compile(rb"(?m)^(?:\n|#.*\n)*\[\[?(?:applies|mail)\b")
TreePath = Annotated[str, StringConstraints(pattern=r"^(\.|\w[\w.-]*(/\w[\w.-]*)*)$")]


class SeriesError(tables.TableError):
    """Metadata that is malformed or that contradicts the files beside it."""


class Subsystem(Table):
    """Whose code this is; ``name`` is the entry in the tree's MAINTAINERS.

    ``trace_system`` is what its tracepoints are filed under.
    """

    name: Text
    prefix: Text
    tree: Text
    branch: Text
    list: Text
    trace_system: Identifier | None = None


class SiteSpec(Table):
    """A place that emits the event; ``hot`` where its cost counts per operation."""

    file: Text
    function: CName
    hot: bool
    context: Text


class RecordPart(Table):
    """Records of an event that are made in a place of their own.

    They are those of ``workloads``, if it names any, whose fields have one of the
    values of ``where``: `kstall mutate` falsifies them alone as well.
    """

    name: CName
    workloads: tuple[Name, ...] = ()
    where: dict[Identifier, Annotated[tuple[int, ...], Field(min_length=1)]] = Field(
        default={}
    )

    @model_validator(mode="after")
    def _not_all(self) -> RecordPart:
        if not (self.workloads or self.where):
            raise ValueError("either workloads or where: else it is all records")
        return self


class MachineSpec(Table):
    """The guest that the workloads need.

    ``append`` goes onto the kernel's command line, ``devices`` onto QEMU's, as they are
    but for ``{scripts}``, below which the workloads' programs lie.
    """

    cpus: Annotated[int, Field(ge=1, le=16)] = 2
    memory: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[MG]$")] = "2G"
    append: tuple[Word, ...] = ()
    devices: tuple[Word, ...] = ()


class Skipped(Table):
    """What an architecture cannot have, and why.

    A check is skipped with any of its workloads.  ``measures`` are those of
    ``[[overhead.workload]]``.
    """

    workloads: tuple[Name, ...] = ()
    checks: tuple[Identifier, ...] = ()
    measures: tuple[Name, ...] = ()
    because: Prose


class ArchOverrides(Table):
    """What differs on another architecture than x86-64.

    ``append`` and ``devices`` replace those of ``[machine]``.
    """

    append: tuple[Word, ...] | None = None
    devices: tuple[Word, ...] | None = None
    skipped: tuple[Skipped, ...] = ()


class Tracepoint(Table):
    """One new event: ``fields`` maps name to C type in record order.

    ``values`` has the numbers that a field can hold, of an enum that the event prints
    as a number and of a flag that is no ``bool``, ``values = { full = [0, 1] }``:
    `kstall mutate` replaces each by another one.

    A value that is wrong at one site only has to be noticed as well: ``part`` says
    which records are that site's, where the event has several.

    A ``bare`` one (`DECLARE_TRACE`) has no record and no tracefs event: its fields are
    the probe's arguments, and ``reads`` names integers behind pointer arguments that
    the recorder reads along, ``cpu = "cfs_rq->rq->cpu"``.
    """

    name: Identifier
    system: Identifier
    kind: Literal["event", "bare"] = "event"
    patch: Text
    header: Text
    joins: Text
    site: Annotated[tuple[SiteSpec, ...], Field(min_length=1)]
    part: tuple[RecordPart, ...] = ()
    fields: dict[Identifier, Text]
    values: dict[Identifier, Annotated[tuple[int, ...], Field(min_length=2)]] = Field(
        default={}
    )
    reads: dict[Identifier, Text] = Field(default={})

    @property
    def event(self) -> str:
        """``system:name``, as tracefs and bpftrace spell it."""
        return f"{self.system}:{self.name}"

    @property
    def symbol(self) -> str:
        """The name in the kernel, which programs attach to."""
        # DECLARE_TRACE() adds the suffix, TRACE_EVENT() does not.
        return f"{self.name}_tp" if self.kind == "bare" else self.name


class Script(Table):
    """A bpftrace script below ``scripts/`` and the events it attaches to."""

    file: Text
    events: tuple[EventName, ...]


class FromTree(Table):
    """A program of the applied tree: C files, folders of headers, libraries."""

    sources: Annotated[tuple[TreePath, ...], Field(min_length=1)]
    include: tuple[TreePath, ...] = ()
    libraries: tuple[Name, ...] = ()


class MonitorCommand(Table):
    """A command for QEMU's monitor: one of QMP with ``arguments``, or one for humans.

    What the latter prints has to match ``reply``, a regular expression: it cannot fail
    in another way.  Without ``reply`` it has to print nothing.
    """

    qmp: Annotated[str, StringConstraints(pattern=r"^[\w-]+$")] | None = None
    arguments: dict[str, Any] = Field(default={})
    hmp: Text | None = None
    reply: Expression | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> MonitorCommand:
        if (self.qmp is None) == (self.hmp is None):
            raise ValueError("either qmp or hmp")
        if self.arguments and self.qmp is None:
            raise ValueError("only qmp takes arguments")
        if self.reply is not None and self.hmp is None:
            raise ValueError("only to hmp the reply is text")
        return self


class Inject(Table):
    """A step that the host performs from outside the guest when the program asks."""

    step: Name
    commands: Annotated[tuple[MonitorCommand, ...], Field(min_length=1)]


class Workload(Table):
    """A program that makes events fire, and how it is observed.

    ``program`` is a path below ``scripts/``: a script, or, where only ``<program>.c``
    is there, a C program that is compiled on the host.  With ``from_tree`` it is the
    path that the tree's own program gets.  ``module`` is one of ours, a C file below
    ``scripts/`` that is compiled for each kernel, and loaded after ``modules``.  With
    ``decode`` perf and trace-cmd print the records of new events, too; that takes
    seconds, and one workload for each event will do.  ``shows_events`` are the values
    of "what" of the JSON lines in which the program prints what new events recorded: to
    `kstall mutate` these are no witnesses.  ``inject`` are the steps that it may ask
    for by `kstall_guest.monitor`.  ``not_debugged`` says why it is not run on
    debug kernels (KASAN + lockdep; KCSAN), and ``debugged_with`` names a fix, one of
    those that the series needs, with which it is.
    """

    name: Name
    program: Text
    from_tree: FromTree | None = None
    args: tuple[str, ...] = ()
    modules: tuple[Identifier, ...] = ()
    module: Text | None = None
    events: tuple[EventName, ...] = ()
    record: tuple[EventName, ...] = ()
    decode: bool = False
    scripts: tuple[str, ...] = ()
    shows_events: tuple[Name, ...] = ()
    inject: tuple[Inject, ...] = ()
    not_debugged: Text | None = None
    debugged_with: Name | None = None
    deadline_s: Annotated[float, Field(gt=0, le=3600)]


class CheckSpec(Table):
    """A claim, judged by the function of the same name in ``checks.py``."""

    name: Identifier
    kind: Literal["positive", "negative", "invariant"]
    workloads: Annotated[tuple[Name, ...], Field(min_length=1)]
    claim: Text


class ExemptionSpec(Table):
    """Something that costs more than one NOP a site while off, and why that is right.

    For a ``function`` the ``instructions`` that a path of it may run more, and the
    ``calls`` among them; for a ``struct`` the ``bytes`` that it may grow by.
    """

    function: CName | None = None
    struct: CName | None = None
    instructions: Annotated[int, Field(ge=0)] = 0
    calls: tuple[CName, ...] = ()
    bytes_: Annotated[int, Field(ge=0)] = 0
    because: Prose

    @model_validator(mode="after")
    def _one_kind(self) -> ExemptionSpec:
        if (self.function is None) == (self.struct is None):
            raise ValueError("either function or struct")
        return self


class Measure(Table):
    """A program that repeats one ``operation``; its instructions are counted.

    The program prints ``operations N`` and then, for each repetition, how many
    instructions N of them took; it uses nothing that only the patched tree has.
    ``nops`` are the sites that one operation crosses, ``events`` those that are
    switched on for the traced modes, and ``script`` the bpftrace script.  ``module`` is
    one of ours, a C file below ``scripts/`` that is compiled for each kernel.
    """

    name: Name
    program: Text
    args: tuple[str, ...] = ()
    modules: tuple[Identifier, ...] = ()
    module: Text | None = None
    operation: Text
    nops: Annotated[float, Field(ge=0)] = 0
    more: Annotated[float, Field(ge=0)] = 0
    because: Prose | None = None
    events: tuple[EventName, ...] = ()
    script: Text | None = None
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 60

    @model_validator(mode="after")
    def _argued(self) -> Measure:
        if self.more and self.because is None:
            raise ValueError("more than the NOPs needs a because")
        return self


class OverheadSpec(Table):
    """What is measured of the series' cost, and what it may cost.

    ``compilers`` are those that the figures are of, ``["x86_64 gcc 12"]``: another one
    generates other code, so what costs more there is reported, and only new calls,
    clock reads and longer loops fail.  Without any they hold for all.
    """

    compilers: tuple[Compiler, ...] = ()
    exemption: tuple[ExemptionSpec, ...] = ()
    workload: tuple[Measure, ...] = ()


class PatchExemption(Table):
    """A finding of a check of the patches that the series does not follow, and why.

    ``kinds`` are the names of such findings (checkpatch's own, in capitals), ``files``
    those of the tree that they may be in, or "message"; without them that may be
    anywhere.  Where a kind is broad, ``saying`` is a regular expression that a finding
    has to match.
    """

    check: Literal[
        "checkpatch_strict",
        "checkpatch_tags",
        "kernel_doc",
        "documents",
        "include_order",
        "new_files_are_maintained",
        "sections_complete",
        "inlines_are_in_headers",
        "mentioned_documents_exist",
        "event_names_are_new",
        "tags",
        "fixes_are_in_history",
        "spelling_is_right",
        "prose_is_wrapped",
        "coccinelle_clean",
        "sphinx_clean",
        "compiles_as_configured",
        "no_new_warnings",
        "sparse_clean",
        "headers_stand_alone",
        "tracepoints_are_called",
        "compiles_without_tracing",
        "compiles_tiny",
        "compiles_without_options",
        "compiles_built_in",
        "compiles_with_clang",
        "compiles_for_arm64",
        "compiles_for_i386",
        "compiles_at_random",
    ]
    kinds: Annotated[tuple[Word, ...], Field(min_length=1)]
    files: tuple[Word, ...] = ()
    saying: Expression | None = None
    because: Prose


#: Operators of `kstall mutate` that move records by the least that is tried.
_MOVES = frozenset({"1 ms later", "1 ms earlier"})


class Unproven(Table):
    """What a run cannot show of an event's values, and why that is right.

    ``operators`` are those of `kstall mutate` that no check notices on any of
    ``fields``, or, without any, on whole records; with ``part`` only if they are
    applied to that `RecordPart` alone.  ``resolution`` says what the
    instrument resolves, where a difference below that is the reason: on a faster
    machine a check may notice it.

    With ``changes_nothing`` the false values are the true ones.  Where they are not, a
    check has to notice them: then the argument does not hold.  With ``noticed_from_ms``
    a record that is moved by so many ms has to be noticed.

    An argument that a run does not need, as a check notices all the same, is named and
    no failure: other evidence of the same kernel may need it.  One about an operator
    that there is not for the field is a failure.
    """

    event: EventName
    part: CName | None = None
    fields: tuple[Identifier, ...] = ()
    operators: Annotated[tuple[Text, ...], Field(min_length=1)]
    changes_nothing: bool = False
    noticed_from_ms: Literal[10, 100] | None = None
    resolution: Text | None = None
    because: Prose

    @model_validator(mode="after")
    def _one_kind(self) -> Unproven:
        if self.changes_nothing and (self.noticed_from_ms or self.resolution):
            raise ValueError("what changes nothing is not a matter of resolution")
        if self.noticed_from_ms and (
            self.fields or not _MOVES.issuperset(self.operators)
        ):
            raise ValueError(
                f"noticed-from-ms is only about records and {', '.join(sorted(_MOVES))}"
            )
        return self

    @property
    def keys(self) -> Iterator[tuple[str, str | None, str]]:
        """Each event, field (None: whole records) and operator that it is about."""
        for field in self.fields or (None,):
            for operator in self.operators:
                yield self.event, field, operator


def _address(value: str) -> str:
    """An e-mail address that no header can be broken with."""
    if not re.fullmatch(r"[\w.+=-]+@[\w-]+(\.[\w-]+)+", value, re.ASCII):
        raise ValueError("no e-mail address")
    return value


class Cc(Table):
    """Somebody who gets the mails besides those that the tree's own script names.

    ``patches`` are file names; without them it is the whole series.
    """

    name: Annotated[str, StringConstraints(pattern=r'^[^\x00-\x1f\x7f<>"\\]*$')] = ""
    address: Annotated[str, AfterValidator(_address)]
    because: Prose
    patches: tuple[str, ...] = ()


class Omission(Table):
    """A section of MAINTAINERS that matches, and does not concern the series."""

    section: Text
    because: Prose


class VersionChanges(Table):
    """What changed in a ``version`` since the one before: an item each, wrapped."""

    version: Annotated[int, Field(ge=2)]
    items: Annotated[tuple[Text, ...], Field(min_length=1)]


class Mail(Table):
    """What only the mails need.

    It is at the end of ``series.toml`` and no part of the series' digest, because
    recipients do not affect what is proven.
    """

    cc: tuple[Cc, ...] = ()
    omit: tuple[Omission, ...] = ()
    change: tuple[VersionChanges, ...] = ()


class Applies(Table):
    """The trees that the series is expected to apply to.

    ``trees`` are conditions on the tree's version, of which one has to hold: ">=7.3",
    "==7.2.*" or ">=6.12,<6.15", as in Python packages.  Before a release come its
    candidates, as 7.3rc2.  ``because`` says why it is not expected on others.

    It is at the end of ``series.toml``, before ``[mail]``, and no part of the series'
    digest, because expectations do not affect what is proven.
    """

    trees: Annotated[tuple[Condition, ...], Field(min_length=1)]
    because: Prose | None = None

    def to(self, version: str) -> bool:
        """Whether it is expected on a tree of ``version``, as `make kernelversion`
        prints it; what follows numbers and candidate is ignored."""
        release = _release(version)
        return any(
            specifiers.SpecifierSet(condition).contains(release, prereleases=True)
            for condition in self.trees
        )


class Conflict(Table):
    """Another ``series`` that invalidates what is proven here, and why.

    One of the two is then proven on a kernel of its own.
    """

    series: Name
    because: Prose


class ShownBug(Table):
    """A bug that ``check`` shows: it fails on the base, and passes with the patches.

    ``fails`` are the labels of the comparisons that do not hold on the base; all others
    do, so that the bug is at fault there and not the workload.  ``complaint`` matches
    the kernel's reports of the bug, of which there has to be one; if one ends the
    kernel, nothing else is compared.  ``looks`` describes the symptom.
    """

    check: Identifier
    fails: tuple[Text, ...] = ()
    complaint: Expression | None = None
    looks: Prose


class Spec(Table):
    """``series.toml``, typed.

    A series of ``kind`` fix has no tracepoint: it was not ordered, belongs to no trace
    system, and shows its bugs.  One that was ``discovered`` is somebody else's: only
    names and places of its events are known.  ``not_sent`` says why a series is proven
    and kept, but not to be sent.  ``needs`` are series of fixes that are applied with
    it in debug kernels (KASAN + lockdep; KCSAN); all else is proven without them.
    """

    schema_: Literal[1]
    kind: Literal["events", "fix"] = "events"
    discovered: bool = False
    title: Text
    not_sent: Prose | None = None
    ordered_as: Text | None = None
    renamed_because: Text | None = None
    patches: Annotated[tuple[str, ...], Field(min_length=1)]
    needs: tuple[Name, ...] = ()
    cover: Text
    kconfig: Text
    subsystem: Subsystem
    machine: MachineSpec = MachineSpec()
    on: dict[Literal["arm64"], ArchOverrides] = Field(default_factory=dict)
    tracepoint: tuple[Tracepoint, ...] = ()
    script: tuple[Script, ...] = ()
    workload: tuple[Workload, ...] = ()
    check: tuple[CheckSpec, ...] = ()
    shown: tuple[ShownBug, ...] = ()
    unproven: tuple[Unproven, ...] = ()
    overhead: OverheadSpec | None = None
    conflict: tuple[Conflict, ...] = ()
    exemption: tuple[PatchExemption, ...] = ()
    applies: Applies | None = None
    mail: Mail = Mail()
