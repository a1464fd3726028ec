# SPDX-License-Identifier: GPL-2.0-or-later
"""The operations of the series here, whose instructions are counted.

What an event costs while it is on means little by itself.  So each new event is beside
the dearest one that the subsystem already has, on the same operation of the same run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kstall.series import Measure, Project, Series

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=Project(ROOT).names())
def series(request: pytest.FixtureRequest) -> Series:
    """Each series that is here."""
    (subject,) = Project(ROOT).load([request.param])
    return subject


def _operation(measure: Measure) -> object:
    return measure.program, measure.args, measure.modules, measure.module


def _older(series: Series, measure: Measure) -> bool:
    """Whether it traces existing events, and nothing else."""
    new = {point.event for point in series.spec.tracepoint}
    return bool(measure.events) and new.isdisjoint(measure.events)


def _compared(measure: Measure) -> bool:
    """Whether the tables show that it is for comparison."""
    return ", while " in measure.operation and measure.operation.endswith(" traced")


def test_each_new_event_is_beside_an_older_one(series: Series) -> None:
    for point in series.spec.tracepoint:
        # No existing event is like a bare tracepoint, which has no record.
        if point.kind == "bare":
            continue
        # Operations without a NOP are there because the event does not fire.
        firing = [
            measure
            for measure in series.measures
            if point.event in measure.events and measure.nops
        ]
        assert any(
            _older(series, other)
            and _operation(other) == _operation(measure)
            and len(other.events) == len(measure.events)
            for measure in firing
            for other in series.measures
        ), f"nothing to compare {point.event} with: {[m.name for m in firing]}"


def test_what_is_compared_stands_together(series: Series) -> None:
    # The tables of report and letter have the operations in this order.
    for before, measure in zip(series.measures, series.measures[1:], strict=False):
        assert _compared(measure) == (_operation(measure) == _operation(before)), (
            f"{measure.name} does not follow what it is compared with"
        )


def test_the_events_of_a_comparison_are_named(series: Series) -> None:
    for measure in filter(_compared, series.measures):
        assert _older(series, measure)
        for event in measure.events:
            system, _, name = event.partition(":")
            assert name in measure.operation or system in measure.operation
