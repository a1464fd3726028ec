# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants of each series (`patches/*/mutants.toml`): who is to notice does, by name.

`kstall mutate` falsifies records; some mutants do the same in a kernel, so that its
operators are seen to be honest.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import live
from kstall.base import cache
from kstall.evidence import Evidence, evidence, falsify, operators
from kstall.series import Project, Series, mutants
from kstall.tree import Base, source, tree
from kstall.verdict import run_check

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def base() -> Base:
    """Debian's newest kernel source, as `kstall validate` takes it."""
    return source.obtain(None, cache.default_dir(), lambda _: None)


def _all() -> list[tuple[str, mutants.Mutant]]:
    pairs = []
    for name in Project(ROOT).names():
        (series,) = Project(ROOT).load([name])
        pairs += [(name, mutant) for mutant in mutants.load(series)]
    return pairs


MUTANTS = [
    pytest.param(series, mutant, id=f"{series}: {mutant.name}")
    for series, mutant in _all()
]
FALSIFYING = [
    pytest.param(series, mutant, id=f"{series}: {mutant.name}")
    for series, mutant in _all()
    if mutant.falsifies is not None
]


def test_each_series_with_events_has_one_that_falsifies_a_record() -> None:
    wanted = {series.name for series in Project(ROOT).load() if series.spec.tracepoint}
    assert wanted <= {series for series, mutant in _all() if mutant.falsifies}


def _operators(
    series: Series, falsified: mutants.Falsified, saved: Evidence
) -> set[str]:
    """What `kstall mutate` does to the field that ``falsified`` names."""
    return {
        mutant.operator
        for mutant in operators.mutants(series, saved)
        if (mutant.event, mutant.field) == (falsified.event, falsified.field)
    }


@pytest.mark.parametrize(("name", "mutant"), FALSIFYING)
def test_what_it_does_to_a_record_is_an_operator(
    name: str, mutant: mutants.Mutant
) -> None:
    assert mutant.falsifies is not None
    (series,) = Project(ROOT).load([name])
    nothing = Evidence(Path(), {}, {}, {})
    operators = _operators(series, mutant.falsifies, nothing)
    # Which fields have symbols is only known of a kernel that was booted.
    assert mutant.falsifies.operator in operators | {"another enum value"}


# A patch that is worked on changes the lines around it, and a mutant that does not
# apply would only be noticed where all are booted.
@pytest.mark.live
@pytest.mark.parametrize("name", sorted({series for series, _ in _all()}))
def test_each_applies(
    base: Base, project_copy: Project, tmp_path: Path, name: str
) -> None:
    folder = project_copy.patches / name
    files = [*folder.glob("*.patch"), folder / "series.toml"]
    pristine = {path: path.read_text() for path in files}
    (series,) = project_copy.load([name])
    unchanged = tree.plan(base, series.patches, tmp_path).content
    for mutant in mutants.load(series):
        mutants.make(folder, mutant)
        (broken,) = project_copy.load([name])
        plan = tree.plan(base, broken.patches, tmp_path)
        assert plan.content != unchanged, mutant.name
        for path, text in pristine.items():
            path.write_text(text)


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_what_only_a_mutant_s_checks_need_is_a_series(
    project_copy: Project, name: str, mutant: mutants.Mutant
) -> None:
    live.keep_only(project_copy.patches / name, mutant.caught_by)
    (series,) = project_copy.load([name])
    assert set(mutant.caught_by) <= {check.name for check in series.spec.check}


@pytest.mark.live
@pytest.mark.deep
@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_a_mutant_is_caught_by_name(
    project_copy: Project, tmp_path: Path, name: str, mutant: mutants.Mutant
) -> None:
    """Only the checks that have to notice are run, with the workloads they look at.

    An error in one of them is no catch; the kernel's report is one if it is expected.
    """
    folder = project_copy.patches / name
    mutants.make(folder, mutant)
    live.keep_only(folder, mutant.caught_by)
    outcome = live.validate(project_copy.root, tmp_path / "out", name)
    assert outcome.exit_code == 1, outcome.output
    if mutant.complaint is not None:
        guest = outcome.stage("guest")
        assert guest.status == "fail", outcome.output
        assert re.search(mutant.complaint, guest.error or ""), guest.error
        return
    checks = outcome.report.series[0].checks
    failed = {check.name for check in checks if check.status == "fail"}
    assert set(mutant.caught_by) <= failed, outcome.failed()


@pytest.mark.live
@pytest.mark.deep
@pytest.mark.parametrize(("name", "mutant"), FALSIFYING)
def test_its_check_also_notices_the_falsified_record(
    project_root: Path, tmp_path: Path, name: str, mutant: mutants.Mutant
) -> None:
    """What catches the broken kernel catches what is called the same in evidence of
    the good one: else one of the two is not what it is called."""
    assert mutant.falsifies is not None
    outcome = live.validate(project_root, tmp_path / "out", name, "--level", "quick")
    assert outcome.exit_code == 0, outcome.output
    (entry,) = outcome.report.series
    assert entry.evidence is not None
    (series,) = Project(project_root).load([name])
    saved = evidence.load(outcome.dir / entry.evidence)
    assert mutant.falsifies.operator in _operators(series, mutant.falsifies, saved)
    false, where = falsify.Genuine(series, saved).falsified(
        operators.FieldMutant(**mutant.falsifies.model_dump())
    )
    assert where, "it changes nothing"
    (check,) = (
        check for check in series.spec.check if check.name == mutant.caught_by[0]
    )
    function = evidence.functions(series)[check.name]
    judged = run_check(check.name, check.kind, check.claim, function, false)
    assert judged.status == "fail", judged.detail
