# SPDX-License-Identifier: GPL-2.0-or-later
"""KUnit suites that a series adds or mends, run many times in one guest.

A test that fails once in a hundred runs for want of time is a reason to reject the
series that adds it, and does not show in a single run.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import KstallError
from .series import Series
from .spec import Workload

PROGRAM = "workloads/kunit/repeat"
# Its arguments are suites, of which it runs the first that the kernel has.
_RUNNER = "workloads/drm-sched/kunit-suite"
_WORKLOAD = "kunit"
_SUITE = re.compile(
    r'^\+static struct kunit_suite \w+ = \{\n\+\t\.name = "(\w+)"', re.M
)
# Of one run of a suite, on an idle host.
_RUN_S = 5.0


@dataclass(frozen=True)
class Count:
    """How often a suite passed, failed, or gave no answer or skipped a case.

    ``complaints`` are the lines of each run that did not pass.
    """

    passed: int
    failed: int
    not_run: int
    complaints: tuple[str, ...]


def added(series: Series) -> tuple[str, ...]:
    """The suites that the patches of ``series`` add."""
    texts = (patch.path.read_text(encoding="utf-8") for patch in series.patches)
    return tuple(suite for text in texts for suite in _SUITE.findall(text))


def concerned(series: Series) -> tuple[str, ...]:
    """The suites that ``series`` is responsible for.

    Those that its patches add; if they add none, those that its workloads run, as the
    patches may change cases of these.  If a workload names several, it is the first.
    """
    own = added(series)
    if own:
        return own
    loads = [load for load in series.spec.workload if load.program == _RUNNER]
    return tuple(dict.fromkeys(load.args[0] for load in loads if load.args))


def repeated(series: Series, suite: str, runs: int) -> Series:
    """``series`` with one workload, which runs ``suite`` that often.

    Raises `KstallError` if no workload names the module of the suite.
    """
    loads = [load for load in series.spec.workload if suite in load.args]
    if not loads:
        raise KstallError(
            f"{series.name}: no workload runs the KUnit suite {suite}, so its "
            "module is not known",
            next="add a workload with the suite in `args` and its module in `modules`",
        )
    load = Workload.model_validate(
        {
            "name": _WORKLOAD,
            "program": PROGRAM,
            "args": (suite, str(runs)),
            "modules": loads[0].modules,
            "deadline-s": min(3600.0, _RUN_S * runs + 60),
        }
    )
    spec = series.spec.model_copy(update={"workload": (load,)})
    return dataclasses.replace(series, spec=spec)


def read(results: Path) -> Count:
    """What the workload counted.  Raises `KstallError` if it did not end."""
    folder = results / _WORKLOAD
    lines = (folder / "stdout").read_text(encoding="utf-8").splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    totals = [line for line in records if line["what"] == "total"]
    if not totals:
        raise KstallError(
            "the KUnit suite was not run as often as it should have been",
            log=folder / "stderr",
            next="read that; if it is empty, time was up: ask for fewer runs",
        )
    complaints = tuple(
        f"run {line['number']}: {line['what']}: {'; '.join(line['lines'])}"
        for line in records
        if line["what"] != "total"
    )
    (total,) = totals
    return Count(total["passed"], total["failed"], total["not-run"], complaints)
