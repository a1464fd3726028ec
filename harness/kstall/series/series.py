# SPDX-License-Identifier: GPL-2.0-or-later
"""A patch series, and the project that has it.

``patches/<name>/`` holds the patches, ``series.toml``, the cover letter's body and
``checks.py``.  `load` reads all of it, holds the parts against each other, and raises
one `SeriesError` that lists every problem as ``file:line: message``.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import Architecture, cache
from . import contradictions, patchfile, tables
from .spec import (
    BESIDE,
    ArchOverrides,
    CheckSpec,
    ExemptionSpec,
    Measure,
    SeriesError,
    Spec,
)


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
        """The series as it is proven on ``architecture``."""
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
            hashlib.sha256(BESIDE.split(text, maxsplit=1)[0]).hexdigest(),
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
    faults = list(contradictions.of_files(project, path.parent, spec))
    patches = []
    for position, file in enumerate(spec.patches):
        if (path.parent / file).is_file():
            try:
                patches.append(patchfile.parse(path.parent / file))
            except patchfile.NotAPatch as error:
                faults.append((("patches", position), error.what))
        else:
            faults.append((("patches", position), f"no such file: {file}"))
    if not faults:
        faults = list(contradictions.of_patches(spec, patches))
    if faults:
        raise tables.mistakes(path, text, faults, SeriesError, "series")
    return Series(name, path.parent, spec, tuple(patches))
