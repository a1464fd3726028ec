# SPDX-License-Identifier: GPL-2.0-or-later
"""Time of an operation with the patches and without, where guests run under KVM.

Counted instructions say nothing about caches or branch prediction; time does, and it
says as much about what else the host does.  So each boot of the patched kernel has one
of the base right beside it, only their ratio is looked at, and it comes as an interval.
No verdict depends on it, and without KVM there is none: under emulation the time of an
instruction is QEMU's.

The programs are those whose instructions are counted.  They read the time stamp
counter, which is not the emulator's here.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import KstallError, cache, places
from ..guest import accel
from ..series import Context, Series
from . import costs, counting
from .counting import Boot, Kernels

#: Changes when the same kernels would be timed in another way.
VERSION = 1
_PAIRS = 12
_RESAMPLES = 4000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Timed:
    """What was timed, or in ``skipped`` why it was not, with all of the ``error``."""

    timings: list[costs.Timing]
    reused: bool = False
    skipped: str = ""
    error: str | None = None


def measure(
    context: Context, series: Series, kernels: Kernels, speed: accel.Accel, log: Path
) -> Timed:
    """Time both kernels if ``speed`` is KVM; else, and if it goes wrong, skip why."""
    if speed.kind != "kvm":
        return Timed([], skipped=f"no usable KVM: {speed.why}")
    project, out = context.project, context.out / series.name / "time"

    def boot(one: Boot) -> list[dict[str, Any]]:
        machine = counting.one_processor(series)
        return counting.run(project, series, kernels, one, out, speed, machine)

    key = cache.digest(
        VERSION,
        _PAIRS,
        [counting.key_of(project, series, kernels, one) for one in ("base", "patched")],
        accel.machine_key(),
    )
    kept = context.cache / "timings" / key
    reused = False
    try:
        if reused := cache.kept(kept):
            rows = json.loads((kept / "rows.json").read_text(encoding="utf-8"))
        else:
            counting.compile_programs(project, series, out, log)
            # Nothing of ours beside it, or that is what would be timed.
            with places.taken(every=True):
                rows = interleaved(
                    kernels, boot, lambda n: context.ui.progress(n, 2 * _PAIRS, "boots")
                )
            with cache.keep_if_possible(kept) as scratch:
                cache.write_json(scratch / "rows.json", rows)
        cache.prune(context.cache / "timings", keep=200)
        return Timed(timings(series, rows), reused)
    except KstallError as error:
        # Never required: what can be said of the cost is said without it.
        why = f"could not be timed: {error.what.splitlines()[0]}"
        return Timed([], reused, why, str(error))


def interleaved(
    kernels: Kernels,
    boot: Callable[[Boot], list[dict[str, Any]]],
    progress: Callable[[int], None],
) -> list[dict[str, Any]]:
    """The rows of all boots, one at a time, in pairs whose first takes turns.

    So a host that becomes slower or faster meanwhile does so for both.
    """
    rows: list[dict[str, Any]] = []
    done = itertools.count(1)
    for number in range(_PAIRS):
        pair = [
            Boot(kernels.base, kernels.base_extra, f"base-{number}", ("base",)),
            Boot(kernels.patched, kernels.patched_extra, f"patched-{number}", ("off",)),
        ]
        for one in reversed(pair) if number % 2 else pair:
            rows += [{**row, "pair": number} for row in boot(one)]
            progress(next(done))
    return rows


def timings(series: Series, rows: Sequence[dict[str, Any]]) -> list[costs.Timing]:
    """What ``rows`` say of each workload; pure."""
    found = []
    for one in series.measures:
        mine = [row for row in rows if row["workload"] == one.name]
        ticks = {(row["pair"], row["mode"]): _median(row) for row in mine}
        pairs = [
            costs.Pair(base=ticks[number, "base"], patched=ticks[number, "off"])
            for number in sorted({row["pair"] for row in mine})
        ]
        ratio, low, high = interval([pair.patched / pair.base for pair in pairs])
        found.append(
            costs.Timing(
                workload=one.name,
                operation=one.operation,
                pairs=pairs,
                ratio=ratio,
                low=low,
                high=high,
                confidence=_CONFIDENCE,
            )
        )
    return found


def _median(row: dict[str, Any]) -> float:
    taken: list[int] = row["taken"]
    return statistics.median(taken) / int(row["operations"])


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ``ratios``, and a 95 % interval of it by the bootstrap.

    Percentiles of resampled means: with a dozen pairs it holds the truth in about nine
    of ten cases, not in 95 of 100.  The same numbers give the same interval.
    """
    if not ratios:
        raise ValueError("no pair, so no ratio")
    logs = [math.log(ratio) for ratio in ratios]
    chance = random.Random(0)  # noqa: S311 - the same each time, on purpose
    means = sorted(
        statistics.fmean(chance.choices(logs, k=len(logs))) for _ in range(_RESAMPLES)
    )
    tail = round((1 - _CONFIDENCE) / 2 * _RESAMPLES)
    low, high = means[tail], means[-1 - tail]
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)
