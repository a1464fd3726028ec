# SPDX-License-Identifier: GPL-2.0-or-later
"""Where ``series.toml`` contradicts itself, the files beside it, or the patches."""

from __future__ import annotations

import ast
import functools
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import patchfile
from .spec import BESIDE, SeriesError, Spec
from .tables import Fault

if TYPE_CHECKING:
    from .series import Project

# The kind of a series, read without validating the rest.
_OF_FIXES = re.compile(r'(?m)^kind\s*=\s*"fix"\s*(#.*)?$')


def _is_runnable(program: Path) -> bool:
    """Whether a guest can run it: a C program is compiled first."""
    return not program.is_file() or bool(program.stat().st_mode & stat.S_IXUSR)


def of_files(project: Project, dir: Path, spec: Spec) -> Iterator[Fault]:
    """Contradictions of the metadata with the series' files and with itself."""
    listed = set(spec.patches)
    for extra in sorted({p.name for p in dir.glob("*.patch")} - listed):
        yield ("patches",), f"{extra} lies in {dir.name}/ but is not listed"
    if list(spec.patches) != sorted(spec.patches):
        yield ("patches",), "not in the order of their numbers"
    yield from _of_mail(dir, spec)
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
    yield from _of_tracepoints(spec)
    yield from _of_workloads(project, spec)
    yield from _of_measures(project, spec)
    yield from _of_skipped(spec)
    yield from _of_needs(project, dir, spec)
    yield from _of_checks(dir, spec)
    yield from _of_unproven(spec)
    yield from _of_shown(spec)


def _bare(spec: Spec) -> frozenset[str]:
    """Its tracepoints that are no trace events."""
    return frozenset(point.event for point in spec.tracepoint if point.kind == "bare")


def _of_tracepoints(spec: Spec) -> Iterator[Fault]:
    if spec.tracepoint and spec.ordered_as is None:
        yield ("tracepoint", 0), "tracepoints, but no ordered-as"
    if spec.tracepoint and spec.subsystem.trace_system is None:
        yield ("subsystem",), "tracepoints, but no trace-system"
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
        yield from _of_parts(spec, position)


def _of_parts(spec: Spec, position: int) -> Iterator[Fault]:
    """Contradictions of the parts of one tracepoint's records."""
    point = spec.tracepoint[position]
    watching = {
        load.name
        for load in spec.workload
        if point.event in (*load.events, *load.record)
    }
    names = [part.name for part in point.part]
    for number, part in enumerate(point.part):
        table = ("tracepoint", position, "part", number)
        if part.name in names[:number]:
            yield table, f"second part called {part.name}"
        for name in part.workloads:
            if name not in watching:
                yield (*table, "workloads"), f"{name} does not record {point.event}"
        for field in part.where:
            if field not in point.fields:
                yield (*table, "where"), f"{point.event} has no field {field}"


def _of_workloads(project: Project, spec: Spec) -> Iterator[Fault]:
    bare = _bare(spec)
    formatted = {point.event for point in spec.tracepoint} - bare
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


def _of_measures(project: Project, spec: Spec) -> Iterator[Fault]:
    bare = _bare(spec)
    scripts = {script.file for script in spec.script}
    measures = spec.overhead.workload if spec.overhead else ()
    for position, measure in enumerate(measures):
        place = ("overhead", "workload", position)
        if measure.name in [other.name for other in measures[:position]]:
            yield place, f"second overhead.workload called {measure.name}"
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


def _of_skipped(spec: Spec) -> Iterator[Fault]:
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


def _of_mail(dir: Path, spec: Spec) -> Iterator[Fault]:
    tail = BESIDE.split((dir / "series.toml").read_bytes(), maxsplit=1)[1:]
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


def _of_needs(project: Project, dir: Path, spec: Spec) -> Iterator[Fault]:
    for position, name in enumerate(spec.needs):
        path = project.patches / name / "series.toml"
        if name == dir.name or name in spec.needs[:position]:
            yield ("needs", position), f"{name} is the series itself, or named twice"
        elif not path.is_file():
            yield ("needs", position), f"no such series: {name}"
        elif not _OF_FIXES.search(path.read_text(encoding="utf-8", errors="replace")):
            yield ("needs", position), f"{name} is no series of fixes (kind)"
    for position, conflict in enumerate(spec.conflict):
        if not (project.patches / conflict.series / "series.toml").is_file():
            key = ("conflict", position, "series")
            yield key, f"no such series: {conflict.series}"
    for position, load in enumerate(spec.workload):
        place = ("workload", position, "debugged-with")
        if load.debugged_with is None:
            continue
        if load.debugged_with not in spec.needs:
            yield place, f"{load.debugged_with} is not among what the series needs"
        if load.not_debugged is None:
            yield place, "it has no effect without not-debugged"


def _of_unproven(spec: Spec) -> Iterator[Fault]:
    fields = {point.event: point.fields for point in spec.tracepoint}
    parts = {(point.event, p.name) for point in spec.tracepoint for p in point.part}
    argued: set[tuple[str | None, ...]] = set()
    for position, unproven in enumerate(spec.unproven):
        table = ("unproven", position)
        if unproven.event not in fields:
            yield (*table, "event"), f"{unproven.event} is not one of the new events"
            continue
        for field in unproven.fields:
            if field not in fields[unproven.event]:
                yield (*table, "fields"), f"{unproven.event} has no field {field}"
        if unproven.part and (unproven.event, unproven.part) not in parts:
            yield (*table, "part"), f"{unproven.event} has no part {unproven.part}"
        for key in unproven.keys:
            if (unproven.part, *key) in argued:
                yield (*table, "operators"), f"{key[2]} is argued twice"
            argued.add((unproven.part, *key))


def _of_shown(spec: Spec) -> Iterator[Fault]:
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


def _of_checks(dir: Path, spec: Spec) -> Iterator[Fault]:
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


def of_patches(spec: Spec, patches: Sequence[patchfile.PatchFile]) -> Iterator[Fault]:
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
