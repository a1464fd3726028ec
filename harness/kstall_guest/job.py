# SPDX-License-Identifier: GPL-2.0-or-later
"""The job: what the guest is to do, and its validation.

All of it is checked before the first step: a guest takes seconds to boot, and a typo
that shows after a minute of tracing costs a minute.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bare import Bare
from .errors import BadJob

SCHEMA = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_EVENT = re.compile(r"[A-Za-z0-9_]+:[A-Za-z0-9_]+")
_BUILD_ID = re.compile(r"[0-9a-f]{16,128}")
# Directories of the results, whose names no workload may have.
_TAKEN = frozenset({"formats"})


@dataclass(frozen=True)
class Script:
    """A bpftrace script, relative to ``Job.scripts``."""

    name: str
    script: str


@dataclass(frozen=True)
class Workload:
    """A program and its tracers.

    ``events`` go to an ftrace instance of its own, with those of ``beside`` that this
    kernel has; ``record`` and the hooks in ``bare`` go to the generated bpftrace
    recorder; perf and trace-cmd decode those of ``events`` that are in ``decode``, too.
    ``deadline_s`` is the program's, ``attach_s`` the time that all bpftrace processes
    together may take to attach (TCG: seconds each).  ``buffer_kb`` is the size of
    ftrace's buffer per CPU.
    """

    name: str
    argv: tuple[str, ...]
    modules: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    record: tuple[str, ...] = ()
    bare: tuple[Bare, ...] = ()
    decode: tuple[str, ...] = ()
    bpftrace: tuple[Script, ...] = ()
    deadline_s: float = 60.0
    attach_s: float = 300.0
    buffer_kb: int = 8192


@dataclass(frozen=True)
class Stress:
    """The stress of a debug kernel while, and after, the workloads run.

    ``program``, which also gets the ``options``, switches ``events`` and the hooks in
    ``bare`` on and off all the time; those that the kernel lacks are left out.  Each
    has to be switched ``toggles`` times by all readers together, each CPU to go offline
    ``cycles`` times, and the modules in ``reload``, in this order, to be unloaded
    ``reloads`` times.
    """

    program: Path
    options: tuple[str, ...]
    events: tuple[str, ...]
    bare: tuple[str, ...]
    reload: tuple[str, ...]
    toggles: int
    cycles: int
    reloads: int


@dataclass(frozen=True)
class Job:
    """Everything one guest run does.  ``modules`` is modprobe's ``-d`` directory."""

    series: str
    build_id: str
    results: Path
    scripts: Path
    modules: Path | None
    formats: tuple[str, ...]
    workloads: tuple[Workload, ...]
    stress: Stress | None = None

    def all_formats(self) -> tuple[str, ...]:
        """Every event whose format file belongs to the results, without repeats."""
        wanted = dict.fromkeys(self.formats)
        for workload in self.workloads:
            wanted.update(dict.fromkeys(workload.events))
            wanted.update(dict.fromkeys(workload.record))
        return tuple(wanted)

    def all_modules(self) -> tuple[str, ...]:
        """Every module that a workload needs, without repeats, in order."""
        return tuple(
            dict.fromkeys(name for load in self.workloads for name in load.modules)
        )


def load(path: Path) -> Job:
    """Read a job file.  Raises `BadJob` with the place and the mistake."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadJob(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadJob(f"{path}: not JSON: {error}") from error
    return parse(value)


def parse(value: object) -> Job:
    """A job from its decoded JSON.  Raises `BadJob`."""
    top = _Table(value, "job")
    if (schema := top.take("schema", int)) != SCHEMA:
        raise BadJob(f"job.schema: this agent reads {SCHEMA}, not {schema}")
    modules = top.take("modules", str, default=None)
    job = Job(
        series=top.name("series"),
        build_id=top.matching("build_id", _BUILD_ID, "hex digits"),
        results=Path(top.take("results", str)),
        scripts=Path(top.take("scripts", str)),
        modules=None if modules is None else Path(modules),
        formats=top.events("formats"),
        workloads=tuple(_workload(table) for table in top.tables("workloads")),
        stress=_stress(top.table("stress")),
    )
    top.done()
    if not job.workloads:
        raise BadJob("job.workloads: empty: there is nothing to run")
    _distinct([load.name for load in job.workloads], "job.workloads")
    if job.modules is None and job.all_modules():
        raise BadJob("job.modules: missing, but a workload asks for modules")
    return job


def _workload(table: _Table) -> Workload:
    load = Workload(
        name=table.name("name"),
        argv=table.strings("argv"),
        modules=table.strings("modules", default=()),
        events=table.events("events"),
        beside=table.events("beside"),
        record=table.events("record"),
        bare=tuple(_bare(entry) for entry in table.tables("bare")),
        decode=table.events("decode"),
        bpftrace=tuple(_script(entry) for entry in table.tables("bpftrace")),
        deadline_s=table.positive("deadline_s", Workload.deadline_s),
        attach_s=table.positive("attach_s", Workload.attach_s),
        buffer_kb=int(table.positive("buffer_kb", Workload.buffer_kb)),
    )
    table.done()
    if not load.argv:
        raise BadJob(f"{table.place}.argv: empty")
    if load.name in _TAKEN:
        raise BadJob(f"{table.place}.name: {load.name!r} is taken by the results")
    for event in load.decode:
        if event not in load.events:
            raise BadJob(f"{table.place}.decode: {event} is not among its events")
    _distinct([script.name for script in load.bpftrace], f"{table.place}.bpftrace")
    return load


def _stress(table: _Table | None) -> Stress | None:
    if table is None:
        return None
    stress = Stress(
        program=Path(table.take("program", str)),
        options=table.strings("options", default=()),
        events=table.events("events"),
        bare=table.events("bare"),
        reload=table.strings("reload", default=()),
        toggles=int(table.positive("toggles", 0)),
        cycles=int(table.positive("cycles", 0)),
        reloads=int(table.positive("reloads", 0)),
    )
    table.done()
    return stress


def _bare(table: _Table) -> Bare:
    bare = Bare(
        event=table.matching("event", _EVENT, "system:event"),
        args=table.pairs("args"),
        reads=table.pairs("reads"),
    )
    table.done()
    return bare


def _script(table: _Table) -> Script:
    script = Script(name=table.name("name"), script=table.take("script", str))
    table.done()
    if script.name == "record":
        raise BadJob(f"{table.place}.name: 'record' is taken by the recorder")
    return script


def _distinct(names: list[str], place: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadJob(f"{place}: two are called {name!r}")


class _Table:
    """A JSON object with its place in the job, and the keys that were not read yet."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, dict):
            raise BadJob(f"{place}: expected an object, got {_kind(value)}")
        self.place = place
        self._left: dict[str, Any] = dict(value)

    def take(self, key: str, kind: type, *, default: Any = ...) -> Any:
        if key not in self._left:
            if default is ...:
                raise BadJob(f"{self.place}.{key}: missing")
            return default
        value = self._left.pop(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadJob(
                f"{self.place}.{key}: expected {kind.__name__}, got {_kind(value)}"
            )
        return value

    def matching(self, key: str, pattern: re.Pattern[str], what: str) -> str:
        value: str = self.take(key, str)
        if not pattern.fullmatch(value):
            raise BadJob(f"{self.place}.{key}: expected {what}, got {value!r}")
        return value

    def name(self, key: str) -> str:
        return self.matching(key, _NAME, "letters, digits, _ . -")

    def positive(self, key: str, default: float) -> float:
        value = self._left.pop(key, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < float("inf"):
            raise BadJob(f"{self.place}.{key}: expected a positive number: {value!r}")
        return float(value)

    def strings(self, key: str, *, default: Any = ...) -> tuple[str, ...]:
        values = self.take(key, list, default=list(default) if default == () else ...)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise BadJob(
                    f"{self.place}.{key}[{index}]: expected str, got {_kind(value)}"
                )
        return tuple(values)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """An object of strings, in its order."""
        values = self.take(key, dict, default={})
        for name, value in values.items():
            if not isinstance(value, str):
                raise BadJob(
                    f"{self.place}.{key}.{name}: expected str, got {_kind(value)}"
                )
        return tuple(values.items())

    def events(self, key: str) -> tuple[str, ...]:
        values = self.strings(key, default=())
        for index, value in enumerate(values):
            if not _EVENT.fullmatch(value):
                raise BadJob(
                    f"{self.place}.{key}[{index}]: expected system:event, got {value!r}"
                )
        return values

    def table(self, key: str) -> _Table | None:
        """An object, or None if there is none."""
        value = self.take(key, dict, default=None)
        return None if value is None else _Table(value, f"{self.place}.{key}")

    def tables(self, key: str) -> list[_Table]:
        values = self.take(key, list, default=[])
        return [
            _Table(value, f"{self.place}.{key}[{index}]")
            for index, value in enumerate(values)
        ]

    def done(self) -> None:
        if self._left:
            raise BadJob(f"{self.place}: unknown keys: {', '.join(sorted(self._left))}")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
