# SPDX-License-Identifier: GPL-2.0-or-later
"""What programs that take minutes say of a series' files, in each of its states.

They read whole sources, not patches, so each state is checked out for them.  What was
said of a state is kept, and of a file that is read apart from others what was said of
its content: after an edit only that is read again.
"""

from __future__ import annotations

import functools
import json
import os
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
from .patchcheck import CannotTell, Finding
from .sphinx import Sphinx

DEEP = "read at LEVEL=deep"
_KEPT = 2000
_SAID = "said.json"
_UNREAD = "unreadable"


class Reader(Protocol):
    """A program that reads sources; ``package`` of Debian has it.

    Where it reads each file ``apart``, what it says of one hangs on that alone.
    """

    title: str
    package: str
    program: str
    apart: bool

    def version(self) -> str:
        """What it calls itself."""

    def reads(self, path: str) -> bool:
        """Whether what it says can change with such a file."""

    def more(self, tree: Path, paths: Sequence[str]) -> tuple[str, ...]:
        """Further files to read where ``paths`` are touched."""

    def read(
        self,
        tree: Path,
        paths: Sequence[str],
        scratch: Path,
        log: Path,
        progress: Callable[[int, int, str], None],
    ) -> tuple[list[Finding], list[str]]:
        """Its findings, and what could not be asked, and why.  Raises `CannotTell` if
        nothing could."""


#: The checks, in the order in which they are made, with who makes each and the claim;
#: `series.PatchExemption` has the same names.
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
class Work:
    """A ``series``, planned on its base."""

    context: Context
    series: Series
    plan: Plan

    @property
    def log(self) -> Path:
        """What the programs print goes there."""
        return self.context.out / self.series.name / "reading.log"


@dataclass(frozen=True)
class _Said:
    """What was said of a unit: findings, and what could not be asked; or why nothing
    was."""

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]
    cannot: str | None


@dataclass(frozen=True)
class _Unit:
    """Files that are read together, and the place of what was said of them."""

    paths: tuple[str, ...]
    entry: Path


def postponed() -> list[Check]:
    """The checks as they are at other levels: skipped, with the reason."""
    return [_skipped(name, DEEP) for name in CHECKS]


def judge(
    work: Work, checkout: Callable[[Plan], AppliedTree]
) -> tuple[list[Check], bool]:
    """The checks, and whether earlier runs had read all that they read.

    ``checkout`` is called only if there is something to read.
    """
    checks = []
    reused = True
    for name, (reader, claim) in CHECKS.items():
        if shutil.which(reader.program) is None:
            checks.append(_skipped(name, _lacking(reader)))
            continue
        reading = _Reading(work, reader, checkout)
        check = run_check(
            name, "patch", claim, functools.partial(_judge, name, work.series), reading
        )
        if check.status in ("pass", "fail"):
            check.detail = reading.detail
        checks.append(check)
        reused = reused and not reading.asked
    cache.prune(work.context.cache / "readings", keep=_KEPT)
    return checks, reused


def _lacking(reader: Reader) -> str:
    return f"no {reader.program} here; apt-get install {reader.package}"


def _skipped(name: str, reason: str) -> Check:
    verdict = Verdict()
    verdict.skip(reason)
    return run_check(name, "patch", CHECKS[name][1], lambda _: verdict, None)


class _Reading:
    """All states of a series, as a reader sees them; each is read once."""

    def __init__(
        self, work: Work, reader: Reader, checkout: Callable[[Plan], AppliedTree]
    ) -> None:
        self.work = work
        self.reader = reader
        self.asked = 0
        self._checkout = checkout
        self._version = reader.version()
        self._left_out: dict[str, None] = {}

    @property
    def detail(self) -> str:
        """The reader by its version, and what of it said nothing."""
        return "; ".join([self._version, *self._left_out])

    @property
    def read_any(self) -> bool:
        """Whether the series has a file that it reads."""
        return any(self.reader.reads(path) for path, _ in self.work.plan.states[-1])

    def states(self) -> Iterator[list[Finding]]:
        """What is found in each state, from the base on.

        Raises `CannotTell` if the base cannot be read; another state that cannot be is
        a finding.
        """
        for number in range(len(self.work.plan.states)):
            units = [*self._units(number)]
            missing = [one for one in units if not cache.kept(one.entry)]
            if missing:
                self._read(number, missing)
            said = [self._recall(one) for one in units]
            self._left_out |= {text: None for one in said for text in one.left_out}
            cannot = [one.cannot for one in said if one.cannot is not None]
            if cannot and number == 0:
                raise CannotTell(cannot[0])
            yield [
                *(found for one in said for found in one.findings),
                *(
                    Finding(unit.paths[0], 0, _UNREAD, one.cannot)
                    for unit, one in zip(units, said, strict=True)
                    if one.cannot is not None
                ),
            ]

    def _units(self, number: int) -> Iterator[_Unit]:
        files = {
            path: file
            for path, file in self.work.plan.states[number]
            if file is not None and self.reader.reads(path)
        }
        groups = [(path,) for path in files] if self.reader.apart else [tuple(files)]
        for paths in groups:
            facts = [(path, files[path].facts()) for path in paths]
            key = cache.digest(
                sources.digest("kstall.lint"),
                self.reader.title,
                self._version,
                self.work.plan.base.id,
                facts,
            )
            if paths:
                yield _Unit(paths, self.work.context.cache / "readings" / key)

    def _read(self, number: int, units: Sequence[_Unit]) -> None:
        applied = self._checkout(self.work.plan.upto(number))
        # Who had the workspace while we waited for it may have read them.
        units = [one for one in units if not cache.kept(one.entry)]
        paths = [path for one in units for path in one.paths]
        if not paths:
            return
        self.asked += len(units)
        more = self.reader.more(applied.path, paths)
        named = f"patch {number}" if number else "the base"

        def progress(done: int, total: int, what: str) -> None:
            title = f"{self.reader.title}, {named}: {what}"
            self.work.context.ui.progress(done, total, title)

        with temporary.directory("reading") as scratch:
            wanted = list(dict.fromkeys([*paths, *more]))
            cannot = None
            try:
                found, left_out = self.reader.read(
                    applied.path, wanted, scratch, self.work.log, progress
                )
            except CannotTell as error:
                found, left_out, cannot = [], [], error.what
        for unit in units:
            mine = [one for one in found if len(units) == 1 or one.file in unit.paths]
            with cache.keep(unit.entry) as made:
                said = [asdict(one) for one in mine]
                kept = {"said": said, "left_out": left_out, "cannot": cannot}
                cache.write_json(made / _SAID, kept)

    def _recall(self, unit: _Unit) -> _Said:
        os.utime(unit.entry)  # `cache.prune` drops what was not used for longest
        raw: dict[str, Any] = json.loads(
            (unit.entry / _SAID).read_text(encoding="utf-8")
        )
        findings = tuple(Finding(**one) for one in raw["said"])
        return _Said(findings, tuple(raw["left_out"]), raw["cannot"])


def _judge(name: str, series: Series, reading: _Reading) -> Verdict:
    if not reading.read_any:
        skipped = Verdict()
        skipped.skip(f"{reading.reader.title} reads nothing of what is touched")
        return skipped
    try:
        told = [*reading.states()]
    except CannotTell as error:
        skipped = Verdict()
        skipped.skip(error.what)
        return skipped
    findings = []
    for number in range(len(series.patches)):
        # What a patch before this one has hidden may be the base's, too.
        before = [*told[number], *patchcheck.new(told[number], told[0])]
        findings.append(patchcheck.new(before, told[number + 1]))
    return patchcheck.verdict(name, findings, series)
