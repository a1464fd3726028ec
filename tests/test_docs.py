# SPDX-License-Identifier: GPL-2.0-or-later
"""What the documents name is there: files, headings, verbs, make's targets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstall import cli

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "harness/COVERAGE.md",
)
WIDTH = 88
README_LINES = 130
_FENCE = re.compile(r"(?ms)^```.*?^```$")


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> Path:
    """Each of them."""
    path: Path = request.param
    return path


def _prose(path: Path) -> str:
    """All but what is in fences, where a bracket is none of Markdown's."""
    return _FENCE.sub("", path.read_text())


def _links(path: Path) -> Iterator[str]:
    text = _prose(path)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r"(?m)^\[[^]]+\]: (\S+)$", text)


def _anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", _prose(path))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in headings
    }


def _verbs() -> set[str]:
    (verbs,) = (
        action.choices
        for action in cli._parser()._actions
        if isinstance(action.choices, dict)
    )
    return set(verbs)


def test_links_lead_somewhere(document: Path) -> None:
    for link in _links(document):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in _anchors(target), link


def test_short_references_are_defined(document: Path) -> None:
    text = _prose(document)
    defined = set(re.findall(r"(?m)^\[([^]]+)\]: ", text))
    # What is in backquotes is code, as [[exemption]] is.
    used = re.findall(
        r"(?<![\]\w])\[([^][]+)\](?![\[(:])", re.sub(r"`[^`]*`", "", text)
    )
    assert set(used) <= defined
    assert defined <= set(used)


def test_verbs_exist(document: Path) -> None:
    known = _verbs()
    text = document.read_text()
    # As code, or as a command with kstall's path; a verb may be on the next line.
    for verb in re.findall(r"(?:`|bin/)kstall\s+([a-z][\w-]*)", text):
        assert verb in known, verb


def test_targets_exist(document: Path) -> None:
    known = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    text = document.read_text()
    code = [*re.findall(r"`(make [^`]+)`", text), *_FENCE.findall(text)]
    for target in re.findall(r"(?m)^make ([a-z][\w-]*)", "\n".join(code)):
        assert target in known, target


def test_every_verb_is_told_of() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS)
    for verb in _verbs():
        assert re.search(rf"kstall\s+{verb}\b", text), verb


def test_every_document_is_linked() -> None:
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in _links(path)
    }
    assert set(DOCUMENTS) <= linked | {ROOT / "README.md"}


def test_the_readme_is_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES
    # Rows of a table cannot be wrapped.
    assert [line for line in lines if len(line) > WIDTH and line[0] != "|"] == []


def test_the_changelog_has_this_version() -> None:
    version = re.search(
        r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text()
    )
    assert version is not None
    assert f"\n## {version[1]}\n" in (ROOT / "CHANGELOG.md").read_text()
