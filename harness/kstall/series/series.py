# SPDX-License-Identifier: GPL-2.0-or-later
"""A patch series and what it declares about itself.

``patches/<name>/`` holds the patches, ``series.toml``, the cover letter's body and
``checks.py``.  `load` reads all of it, holds the parts against each other, and raises
one `SeriesError` that lists every problem as ``file:line: message``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging import specifiers
from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    model_validator,
)

from ..base import Architecture, cache
from . import patchfile, tables
from .tables import Fault, Table

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
# Where the tables begin that do not affect a proof, with the comment above them.
_BESIDE = re.compile(rb"(?m)^(?:\n|#.*\n)*\[\[?(?:applies|mail)\b")
# The kind of a series, read without validating the rest.
_OF_FIXES = re.compile(r'(?m)^kind\s*=\s*"fix"\s*(#.*)?$')
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
    """What is measured of the series' cost, and what it may cost."""

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
    ``fields``, or, without any, on whole records.  ``resolution`` says what the
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


@dataclass(frozen=True)
class Series:
    """A series that is consistent with itself.

    ``skipped`` are the checks that the architecture cannot have, with the reason.
    """

    name: str
    dir: Path
    spec: Spec
    patches: tuple[patchfile.PatchFile, ...]
    skipped: tuple[tuple[CheckSpec, str], ...] = ()

    def on(self, architecture: Architecture) -> Series:
        """The series as it is proven on ``whose`` architecture."""
        deviation = self.spec.on.get(architecture.name)  # type: ignore[call-overload]
        if deviation is None:
            return self
        spec, skipped = _without(self.spec, deviation)
        return dataclasses.replace(self, spec=spec, skipped=(*self.skipped, *skipped))

    @property
    def is_fix(self) -> bool:
        """Whether it fixes bugs, rather than adding events."""
        return self.spec.kind == "fix"

    @property
    def not_sent(self) -> str | None:
        """Why it is not to be sent; None if it is."""
        return self.spec.not_sent

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The programs whose instructions are counted."""
        return self.spec.overhead.workload if self.spec.overhead else ()

    @property
    def exemptions(self) -> tuple[ExemptionSpec, ...]:
        """What may cost more than a NOP a site while off."""
        return self.spec.overhead.exemption if self.spec.overhead else ()

    @property
    def touches(self) -> frozenset[str]:
        """Every path, relative to the tree, that some patch changes or adds."""
        return frozenset(path for patch in self.patches for path in patch.touches)

    @property
    def digest(self) -> str:
        """Changes with any byte of the patches or of ``series.toml``, but for where
        they are expected to apply, and what only the mails need."""
        text = (self.dir / "series.toml").read_bytes()
        return cache.digest(
            self.name,
            hashlib.sha256(_BESIDE.split(text, maxsplit=1)[0]).hexdigest(),
            [cache.file_digest(patch.path) for patch in self.patches],
        )


def _without(
    spec: Spec, deviation: ArchOverrides
) -> tuple[Spec, tuple[tuple[CheckSpec, str], ...]]:
    """``spec`` on an architecture, and the checks that it cannot have there."""
    reasons: dict[tuple[str, str], str] = {}
    for skip in deviation.skipped:
        for kind in ("workloads", "checks", "measures"):
            for name in getattr(skip, kind):
                reasons.setdefault((kind, name), skip.because)

    def reason(check: CheckSpec) -> str | None:
        keys = [
            ("checks", check.name),
            *(("workloads", workload) for workload in check.workloads),
        ]
        return next((reasons[key] for key in keys if key in reasons), None)

    skipped = tuple(
        (check, text) for check in spec.check if (text := reason(check)) is not None
    )
    names = {check.name for check, _ in skipped}
    overhead = spec.overhead
    if overhead is not None:
        measures = [
            measure
            for measure in overhead.workload
            if ("measures", measure.name) not in reasons
        ]
        overhead = overhead.model_copy(update={"workload": tuple(measures)})
    machine = {
        key: value
        for key in ("append", "devices")
        if (value := getattr(deviation, key)) is not None
    }
    return spec.model_copy(
        update={
            "machine": spec.machine.model_copy(update=machine),
            "workload": tuple(
                workload
                for workload in spec.workload
                if ("workloads", workload.name) not in reasons
            ),
            "check": tuple(check for check in spec.check if check.name not in names),
            "shown": tuple(bug for bug in spec.shown if bug.check not in names),
            "overhead": overhead,
        }
    ), skipped


@dataclass(frozen=True)
class Project:
    """Where a checkout of kstall keeps its parts."""

    root: Path

    @property
    def patches(self) -> Path:
        """The directory that has one directory a series."""
        return self.root / "patches"

    @property
    def kconfigs(self) -> Path:
        """The directory of kconfig fragments."""
        return self.root / "kconfigs"

    @property
    def scripts(self) -> Path:
        """bpftrace scripts, and guest programs in ``workloads/``."""
        return self.root / "scripts"

    @property
    def harness(self) -> Path:
        """What goes on ``PYTHONPATH``, here and in the guest."""
        return self.root / "harness"

    def names(self) -> tuple[str, ...]:
        """The series there are, sorted."""
        # Patches alone are a series, too: one that cannot be loaded, and says why.
        paths = [*self.patches.glob("*/series.toml"), *self.patches.glob("*/*.patch")]
        return tuple(sorted({path.parent.name for path in paths}))

    def load(self, names: Sequence[str] = ()) -> tuple[Series, ...]:
        """The named series, or all of them; unknown names are one error."""
        available = self.names()
        if unknown := [name for name in names if name not in available]:
            raise SeriesError(
                f"no such series: {', '.join(unknown)}",
                next=f"choose from: {', '.join(available) or '(patches/ is empty)'}",
            )
        if not available:
            raise SeriesError(
                f"no series below {self.patches}",
                next="run kstall in its checkout, or name that with --project",
            )
        return tuple(load(self, name) for name in dict.fromkeys(names or available))


def load(project: Project, name: str) -> Series:
    """Read and check ``patches/<name>``; raises `SeriesError` naming every fault."""
    path = project.patches / name / "series.toml"
    try:
        spec, text = tables.read(path, Spec, SeriesError, "series")
    except FileNotFoundError as error:
        raise SeriesError(
            f"{path} does not exist, and has to describe the patches",
            next="write it; `kstall schema series` lists its keys",
        ) from error
    faults = list(_contradictions(project, path.parent, spec))
    patches = []
    for position, file in enumerate(spec.patches):
        if (path.parent / file).is_file():
            patches.append(patchfile.parse(path.parent / file))
        else:
            faults.append((("patches", position), f"no such file: {file}"))
    if not faults:
        faults = list(_patch_contradictions(spec, patches))
    if faults:
        raise tables.mistakes(path, text, faults, SeriesError, "series")
    return Series(name, path.parent, spec, tuple(patches))


def _is_runnable(program: Path) -> bool:
    """Whether a guest can run it: a C program is compiled first."""
    return not program.is_file() or bool(program.stat().st_mode & stat.S_IXUSR)


def _contradictions(  # noqa: PLR0912, PLR0915 - one after the other
    project: Project, dir: Path, spec: Spec
) -> Iterator[Fault]:
    """Contradictions of the metadata with the series' files and with itself."""
    listed = set(spec.patches)
    for extra in sorted({p.name for p in dir.glob("*.patch")} - listed):
        yield ("patches",), f"{extra} lies in {dir.name}/ but is not listed"
    if list(spec.patches) != sorted(spec.patches):
        yield ("patches",), "not in the order of their numbers"
    yield from _mail_contradictions(dir, spec)
    if not (dir / spec.cover).is_file():
        yield ("cover",), f"no such file: {spec.cover}"
    if not (project.kconfigs / spec.kconfig).is_file():
        yield ("kconfig",), f"no such file: kconfigs/{spec.kconfig}"
    for kind in ("tracepoint", "script", "workload", "check"):
        names = [
            getattr(item, "name", None) or item.file for item in getattr(spec, kind)
        ]
        for position, name in enumerate(names):
            if name in names[:position]:
                yield (kind, position), f"second {kind} called {name}"
    for position, script in enumerate(spec.script):
        if not (project.scripts / script.file).is_file():
            yield ("script", position, "file"), f"no such file: scripts/{script.file}"
    if spec.tracepoint and spec.ordered_as is None:
        yield ("tracepoint", 0), "tracepoints, but no ordered-as"
    if spec.tracepoint and spec.subsystem.trace_system is None:
        yield ("subsystem",), "tracepoints, but no trace-system"
    bare = {point.event for point in spec.tracepoint if point.kind == "bare"}
    formatted = {point.event for point in spec.tracepoint} - bare
    for position, point in enumerate(spec.tracepoint):
        if point.reads and point.kind != "bare":
            yield ("tracepoint", position, "reads"), "only bare tracepoints have reads"
        for field, values in point.values.items():
            key = ("tracepoint", position, "values")
            if field not in point.fields:
                yield key, f"{point.event} has no field {field}"
            elif re.search(r"\*|\b(char|bool)\b", point.fields[field]):
                yield key, f"{field} is no number"
            if len(set(values)) < len(values):
                yield key, f"{field}: a value is there twice"
    scripts = {script.file for script in spec.script}
    for position, workload in enumerate(spec.workload):
        table = ("workload", position)
        for event in sorted(bare.intersection(workload.events)):
            yield (*table, "events"), f"{event} is bare: ftrace has no such event"
        if workload.decode and not formatted.intersection(workload.events):
            yield (*table, "decode"), "none of its events is new"
        program = project.scripts / workload.program
        files = (program, program.with_suffix(".c"))
        if workload.from_tree is None and not any(map(Path.is_file, files)):
            yield (*table, "program"), f"no such file: scripts/{workload.program}[.c]"
        elif not _is_runnable(program):
            yield (*table, "program"), f"not executable: scripts/{workload.program}"
        if workload.module is not None:
            if not (project.scripts / workload.module).is_file():
                yield (*table, "module"), f"no such file: scripts/{workload.module}"
            if workload.not_debugged is None or workload.debugged_with is not None:
                yield (*table, "module"), "debug kernels get no module: not-debugged"
        steps = [injection.step for injection in workload.inject]
        for name in sorted({name for name in steps if steps.count(name) > 1}):
            yield (*table, "inject"), f"second step called {name}"
        for file in workload.scripts:
            if file not in scripts:
                yield (*table, "scripts"), f"{file} is not declared as a [[script]]"
    measures = spec.overhead.workload if spec.overhead else ()
    for position, measure in enumerate(measures):
        place = ("overhead", "workload", position)
        program = project.scripts / measure.program
        if not any(map(Path.is_file, (program, program.with_suffix(".c")))):
            yield (*place, "program"), f"no such file: scripts/{measure.program}[.c]"
        elif not _is_runnable(program):
            yield (*place, "program"), f"not executable: scripts/{measure.program}"
        module = measure.module
        if module is not None and not (project.scripts / module).is_file():
            yield (*place, "module"), f"no such file: scripts/{module}"
        if measure.script is not None and measure.script not in scripts:
            file = measure.script
            yield (*place, "script"), f"{file} is not declared as a [[script]]"
        for event in sorted(bare.intersection(measure.events)):
            yield (*place, "events"), f"{event} is bare: ftrace has no such event"
    yield from _on_contradictions(spec)
    yield from _need_contradictions(project, dir, spec)
    yield from _check_contradictions(dir, spec)
    yield from _unproven_contradictions(spec)
    yield from _shown_contradictions(spec)


def _on_contradictions(spec: Spec) -> Iterator[Fault]:
    measures = spec.overhead.workload if spec.overhead else ()
    declared = {
        "workloads": {workload.name for workload in spec.workload},
        "checks": {check.name for check in spec.check},
        "measures": {measure.name for measure in measures},
    }
    for name, deviation in spec.on.items():
        for position, skip in enumerate(deviation.skipped):
            table = ("on", name, "skipped", position)
            named = False
            for kind, names in declared.items():
                for entry in getattr(skip, kind):
                    named = True
                    if entry not in names:
                        yield (*table, kind), f"no {kind[:-1]} called {entry}"
            if not named:
                yield table, "it names nothing that is skipped"


def _mail_contradictions(dir: Path, spec: Spec) -> Iterator[Fault]:
    tail = _BESIDE.split((dir / "series.toml").read_bytes(), maxsplit=1)[1:]
    if tail and re.search(rb"(?m)^\[\[?(?!\[|(?:applies|mail)\b)", tail[0]):
        key = "mail" if spec.applies is None else "applies"
        yield (key,), "stands before other tables; it has to be the last"
    for position, cc in enumerate(spec.mail.cc):
        for file in cc.patches:
            if file not in spec.patches:
                yield ("mail", "cc", position, "patches"), f"no such patch: {file}"
    versions = [change.version for change in spec.mail.change]
    if versions != sorted(set(versions)):
        yield ("mail", "change"), "versions have to be different, and in order"


def _need_contradictions(project: Project, dir: Path, spec: Spec) -> Iterator[Fault]:
    for position, name in enumerate(spec.needs):
        path = project.patches / name / "series.toml"
        if name == dir.name or name in spec.needs[:position]:
            yield ("needs", position), f"{name} is the series itself, or named twice"
        elif not path.is_file():
            yield ("needs", position), f"no such series: {name}"
        elif not _OF_FIXES.search(path.read_text(encoding="utf-8", errors="replace")):
            yield ("needs", position), f"{name} is no series of fixes (kind)"
    for position, load in enumerate(spec.workload):
        place = ("workload", position, "debugged-with")
        if load.debugged_with is None:
            continue
        if load.debugged_with not in spec.needs:
            yield place, f"{load.debugged_with} is not among what the series needs"
        if load.not_debugged is None:
            yield place, "it has no effect without not-debugged"


def _unproven_contradictions(spec: Spec) -> Iterator[Fault]:
    fields = {point.event: point.fields for point in spec.tracepoint}
    argued: set[tuple[str, str | None, str]] = set()
    for position, unproven in enumerate(spec.unproven):
        table = ("unproven", position)
        if unproven.event not in fields:
            yield (*table, "event"), f"{unproven.event} is not one of the new events"
            continue
        for field in unproven.fields:
            if field not in fields[unproven.event]:
                yield (*table, "fields"), f"{unproven.event} has no field {field}"
        for key in unproven.keys:
            if key in argued:
                yield (*table, "operators"), f"{key[2]} is argued twice"
            argued.add(key)


def _shown_contradictions(spec: Spec) -> Iterator[Fault]:
    if spec.kind == "fix" and spec.tracepoint:
        yield ("tracepoint", 0), "a series of fixes adds none"
    if spec.kind == "fix" and not spec.shown:
        yield ("kind",), "a fix, but no [[shown]] says what fails without it"
    checks = [check.name for check in spec.check]
    seen: set[str] = set()
    for position, bug in enumerate(spec.shown):
        if spec.kind != "fix":
            yield ("shown", position), "only of a series of fixes (kind)"
        if bug.check not in checks:
            yield ("shown", position, "check"), f"no [[check]] called {bug.check}"
        if bug.check in seen:
            yield ("shown", position, "check"), f"{bug.check} is shown twice"
        if not bug.fails and bug.complaint is None:
            yield ("shown", position), "neither fails nor complaint says what is wrong"
        if bug.complaint is not None and re.search(bug.complaint, ""):
            yield ("shown", position, "complaint"), "it matches any complaint"
        seen.add(bug.check)


def _check_contradictions(dir: Path, spec: Spec) -> Iterator[Fault]:
    workloads = {workload.name for workload in spec.workload}
    used = {name for check in spec.check for name in check.workloads}
    for position, workload in enumerate(spec.workload):
        if workload.name not in used:
            yield ("workload", position), f"no check judges workload {workload.name}"
    functions: frozenset[str] = frozenset()
    path = dir / "checks.py"
    if path.is_file():
        try:
            functions = _public_functions(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            raise SeriesError(f"{path}:{error.lineno}: {error.msg}") from error
    elif spec.check:
        yield ("check",), "checks declared, but there is no checks.py"
        return
    for position, check in enumerate(spec.check):
        for name in check.workloads:
            if name not in workloads:
                yield ("check", position, "workloads"), f"no workload called {name}"
        if check.name not in functions:
            yield ("check", position, "name"), f"checks.py has no function {check.name}"
    for name in sorted(functions - {check.name for check in spec.check}):
        yield ("check",), f"checks.py judges {name}, which no [[check]] declares"


@functools.lru_cache(maxsize=64)  # each series of a run asks for all of them
def _public_functions(code: str) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.parse(code).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )


def _patch_contradictions(
    spec: Spec, patches: Sequence[patchfile.PatchFile]
) -> Iterator[Fault]:
    """Contradictions of the metadata with the patches."""
    touches = {path for patch in patches for path in patch.touches}
    for position, point in enumerate(spec.tracepoint):
        table = ("tracepoint", position)
        if point.patch not in spec.patches:
            yield (*table, "patch"), f"{point.patch} is not one of the patches"
            continue
        patch = patches[spec.patches.index(point.patch)]
        if point.header not in patch.touches:
            yield (*table, "header"), f"{point.patch} does not touch {point.header}"
        added = patch.path.read_text(encoding="utf-8", errors="replace")
        if not re.search(rf"(?m)^\+.*\b{point.name}\b", added):
            yield (*table, "name"), f"{point.patch} does not add {point.name}"
        for number, site in enumerate(point.site):
            if site.file not in touches:
                yield (*table, "site", number, "file"), f"no patch touches {site.file}"
