# SPDX-License-Identifier: GPL-2.0-or-later
"""What the series here say in messages and cover letters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from kstall.lint import patchcheck, patchtext
from kstall.mail import figures
from kstall.series import Project, Series, patchfile
from kstall.tree import Plan

ROOT = Path(__file__).resolve().parents[1]
#: Figures that are no measurement: constants of the source, and of what the workloads
#: do.  All else is for the run to say.
CONSTANTS = {
    "drm-sched": {"100": "jobs of a queue of a KUnit suite"},
    "drm-sched-tests": {"7.3": "the release that has these tests"},
    "iommu-fq": {
        "255": "entries of a flush queue, IOVA_DEFAULT_FQ_SIZE less one",
        "256": "IOVA_DEFAULT_FQ_SIZE",
    },
    "iommu-lazy": {
        "7.3": "the release whose source was read",
    },
    "pci-aer": {"130": "messages that a workload has sent"},
    "pci-aer-fixes": {"7.3": "the release whose source was read"},
    "pci-aer-leaks": {"2026": "the year in which others had fixed the same"},
    "pci-aer-overflow": {
        "128": "AER_ERROR_SOURCES_MAX, and with the patch AER_COR_SOURCES_MAX",
        "256": "AER_ERROR_SOURCES_MAX with the patch",
        "260": "messages that a workload has sent",
    },
}
#: Lines of a message, without its tags: what a reviewer reads before the diff.
MESSAGE = 30
#: Lines of a cover letter that are written by hand; a run adds its results.
COVER = 60


@pytest.fixture(params=Project(ROOT).names())
def series(request: pytest.FixtureRequest) -> Series:
    """Each series that is here."""
    (subject,) = Project(ROOT).load([request.param])
    return subject


def _texts(series: Series) -> list[str]:
    cover = (series.dir / series.spec.cover).read_text()
    return [cover, *(patchfile.split(patch.path)[0] for patch in series.patches)]


def test_no_figure_is_somebody_s_memory(series: Series) -> None:
    numbers = {figure for text in _texts(series) for figure in figures.in_prose(text)}
    assert numbers == CONSTANTS.get(series.name, {}).keys()


def test_no_size_is_somebody_s_memory(series: Series) -> None:
    for text in _texts(series):
        assert not re.search(r"\d bytes (of|more|less) (text|data)", text)
        assert "objdump" not in text


@pytest.mark.parametrize(
    "check",
    [
        patchcheck.spelling_is_right,
        patchcheck.prose_is_wrapped,
        patchcheck.nothing_to_fill_in,
    ],
)
def test_checks_of_texts_find_nothing(
    series: Series, check: patchcheck.Finder, tmp_path: Path
) -> None:
    """Those that need no tree: an edited sentence is not seen in a run only."""
    nowhere = cast(Plan, None)
    findings = check(patchcheck.CheckedSeries(series, nowhere, tmp_path))
    assert [*map(list, findings)] == [[]] * (len(series.patches) + 1)


def test_messages_are_no_wider_than_a_mail(series: Series) -> None:
    for text in _texts(series)[1:]:
        # Tags are not to be wrapped.
        wide = [
            line
            for line in text.splitlines()
            if len(line) > patchtext.WIDTH
            and not line.startswith(("Fixes: ", "Link: "))
        ]
        assert not wide


def test_no_line_of_a_cover_is_taken_for_a_tag(series: Series) -> None:
    """b4 takes one for an address or a commit, wherever in the text it is."""
    cover, *_ = _texts(series)
    tag = re.compile(r"(?i)(cc|to|link|fixes|closes|change-id|[a-z-]+-by): ")
    assert not [line for line in cover.splitlines() if tag.match(line)]


def _without_tags(message: str) -> list[str]:
    """The lines before the last paragraph, if that consists of tags."""
    text, _, last = message.rstrip().rpartition("\n\n")
    tags = all(re.match(r"[A-Z][A-Za-z-]*: ", line) for line in last.splitlines())
    return (text if tags else message.rstrip()).splitlines()


def test_no_message_is_too_long(series: Series) -> None:
    lengths = {
        patch.path.name: len(_without_tags(text))
        for patch, text in zip(series.patches, _texts(series)[1:], strict=True)
    }
    assert {name: n for name, n in lengths.items() if n > MESSAGE} == {}


def test_no_cover_is_too_long(series: Series) -> None:
    cover, *_ = _texts(series)
    assert len(cover.splitlines()) <= COVER
