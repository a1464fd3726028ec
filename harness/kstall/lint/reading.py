# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings of programs that take minutes, in a series' files in each of its states.

They read whole sources, not patches, so each state is checked out for them.  Findings
are cached by state, or by file content for readers that read each file by itself: after
an edit only the changed files are read again, and those with which a program failed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ..base import cache, sources, temporary
from ..series import Context, Series
from ..tree import AppliedTree, Plan
from ..verdict import Check, Verdict, run_check
from . import patchcheck
from .coccinelle import Coccinelle
from .patchcheck import CannotTell, Finding, ProgramFailed
from .sphinx import Sphinx

DEEP = "read at LEVEL=deep"
_KEEP = 2000
_OUTCOME = "said.json"
_UNREAD = "unreadable"


class Reader(Protocol):
    """A program that reads sources, from Debian's ``package``.

    If it reads files ``apart``, the findings in a file depend on that file alone.
    """

    title: str
    package: str
    program: str
    apart: bool

    def version(self) -> str:
        """Its version line."""

    def reads(self, path: str) -> bool:
        """Whether its findings can change with ``path``."""

    def more(self, tree: Path, paths: Sequence[str]) -> tuple[str, ...]:
        """Further files to read where ``paths`` are touched."""

    def read(
        self,
        tree: Path,
        paths: Sequence[str],
        scratch: Path,
        log: Path,
        progress: Callable[[int, int, str], None],
    ) -> tuple[list[Finding], list[str], list[str]]:
        """Its findings, the parts that it cannot run, and those that failed, with the
        reason.  Raises `CannotTell` if none could run."""


#: The checks in order, each with its reader and claim; `series.PatchExemption` has the
#: same names.
CHECKS: dict[str, tuple[Reader, str]] = {
    "coccinelle_clean": (
        Coccinelle(),
        "No patch adds a report of Coccinelle with the tree's semantic patches.",
    ),
    "sphinx_clean": (
        Sphinx(),
        "No patch adds a Sphinx warning in a document that it touches or that includes "
        "kernel-doc comments of code that it touches; references are resolved.",
    ),
}


@dataclass(frozen=True)
class _Outcome:
    """The outcome of reading a unit: findings and the parts that could not run, or why
    it cannot be read."""

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]
    cannot: str | None


@dataclass(frozen=True)
class _Unit:
    """Files that are read together, and the cache entry of their outcome."""

    paths: tuple[str, ...]
    entry: Path


def postponed() -> list[Check]:
    """The checks as they are at other levels: skipped, with the reason."""
    return [_skipped(name, DEEP) for name in CHECKS]


def judge(
    context: Context,
    series: Series,
    plan: Plan,
    checkout: Callable[[Plan], AppliedTree],
) -> tuple[list[Check], bool]:
    """The checks of ``plan``, and whether all findings come from the cache.

    ``checkout`` is called only if there is something to read.
    """
    checks = []
    reused = True
    for name, (reader, claim) in CHECKS.items():
        if shutil.which(reader.program) is None:
            checks.append(_skipped(name, _lacking(reader)))
            continue
        reading = _Reading(context, series, plan, reader, checkout)
        check = run_check(name, "patch", claim, _judge, name, series, reading)
        if check.status in ("pass", "fail"):
            check.detail = reading.detail
        checks.append(check)
        reused = reused and not reading.asked
    cache.prune(context.cache / "readings", keep=_KEEP)
    return checks, reused


def _lacking(reader: Reader) -> str:
    return f"{reader.program} is not installed; apt-get install {reader.package}"


def _skipped(name: str, reason: str) -> Check:
    return run_check(name, "patch", CHECKS[name][1], Verdict().skip, reason)


class _Reading:
    """All states of a series, as a reader sees them; each is read once."""

    def __init__(
        self,
        context: Context,
        series: Series,
        plan: Plan,
        reader: Reader,
        checkout: Callable[[Plan], AppliedTree],
    ) -> None:
        self.plan = plan
        self.reader = reader
        self.asked = 0
        self._context = context
        self._log = context.out / series.name / "reading.log"
        self._checkout = checkout
        self._version = reader.version()
        self._left_out: dict[str, None] = {}

    @property
    def detail(self) -> str:
        """The reader's version, and its parts that could not run."""
        return "; ".join([self._version, *self._left_out])

    @property
    def read_any(self) -> bool:
        """Whether the series has a file that it reads."""
        return any(self.reader.reads(path) for path, _ in self.plan.states[-1])

    def states(self) -> Iterator[list[Finding]]:
        """The findings in each state, from the base on.

        Raises `CannotTell` if the base cannot be read; for another state, that is a
        finding.
        """
        for number in range(len(self.plan.states)):
            units = [*self._units(number)]
            missing = [unit for unit in units if not cache.is_complete(unit.entry)]
            fresh = self._read(number, missing) if missing else {}
            outcomes = [fresh.get(unit) or _recall(unit) for unit in units]
            self._left_out |= {
                text: None for outcome in outcomes for text in outcome.left_out
            }
            cannot = [
                outcome.cannot for outcome in outcomes if outcome.cannot is not None
            ]
            if cannot and number == 0:
                raise CannotTell(cannot[0])
            yield [
                *(finding for outcome in outcomes for finding in outcome.findings),
                *(
                    Finding(unit.paths[0], 0, _UNREAD, outcome.cannot)
                    for unit, outcome in zip(units, outcomes, strict=True)
                    if outcome.cannot is not None
                ),
            ]

    def _units(self, number: int) -> Iterator[_Unit]:
        files = {
            path: file
            for path, file in self.plan.states[number]
            if file is not None and self.reader.reads(path)
        }
        groups = [(path,) for path in files] if self.reader.apart else [tuple(files)]
        for paths in groups:
            facts = [(path, files[path].facts()) for path in paths]
            key = cache.digest(
                sources.digest("kstall.lint"),
                self.reader.title,
                self._version,
                self.plan.base.id,
                facts,
            )
            if paths:
                yield _Unit(paths, self._context.cache / "readings" / key)

    def _read(self, number: int, units: Sequence[_Unit]) -> dict[_Unit, _Outcome]:
        """Read what is not cached, and cache it unless the reader failed."""
        applied = self._checkout(self.plan.upto(number))
        # Another run may have read them while this one waited for the workspace.
        units = [unit for unit in units if not cache.is_complete(unit.entry)]
        paths = [path for unit in units for path in unit.paths]
        if not paths:
            return {}
        self.asked += len(units)
        further = self.reader.more(applied.path, paths)
        state = f"patch {number}" if number else "the base"

        def progress(count: int, total: int, step: str) -> None:
            title = f"{self.reader.title}, {state}: {step}"
            self._context.ui.progress(count, total, title)

        with temporary.directory("reading") as scratch:
            all_paths = list(dict.fromkeys([*paths, *further]))
            cannot = None
            try:
                findings, left_out, failed = self.reader.read(
                    applied.path, all_paths, scratch, self._log, progress
                )
                lasting = not failed
            except CannotTell as error:
                findings, left_out, failed, cannot = [], [], [], error.what
                lasting = not isinstance(error, ProgramFailed)
        outcomes = {}
        for unit in units:
            unit_findings = [
                finding
                for finding in findings
                if len(units) == 1 or finding.file in unit.paths
            ]
            outcome = _Outcome(tuple(unit_findings), (*left_out, *failed), cannot)
            outcomes[unit] = outcome
            if lasting:
                _keep(unit, outcome)
        return outcomes


def _keep(unit: _Unit, outcome: _Outcome) -> None:
    with cache.keep(unit.entry) as directory:
        entries = [asdict(finding) for finding in outcome.findings]
        content = {
            "said": entries,
            "left_out": outcome.left_out,
            "cannot": outcome.cannot,
        }
        cache.write_json(directory / _OUTCOME, content)


def _recall(unit: _Unit) -> _Outcome:
    raw: dict[str, Any] = json.loads(
        (unit.entry / _OUTCOME).read_text(encoding="utf-8")
    )
    findings = tuple(Finding(**entry) for entry in raw["said"])
    return _Outcome(findings, tuple(raw["left_out"]), raw["cannot"])


def _judge(name: str, series: Series, reading: _Reading) -> Verdict:
    if not reading.read_any:
        return Verdict().skip(f"{reading.reader.title} reads none of the touched files")
    try:
        states = [*reading.states()]
    except CannotTell as error:
        return Verdict().skip(error.what)
    findings = []
    for number in range(len(series.patches)):
        # A finding of the base that an earlier patch has hidden is not new either.
        before = [*states[number], *patchcheck.new(states[number], states[0])]
        findings.append(patchcheck.new(before, states[number + 1]))
    return patchcheck.verdict(name, findings, series)
