# SPDX-License-Identifier: GPL-2.0-or-later
"""What the documents name is there: files, headings, verbs, make's targets."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstall import cli
from kstall_node import cli as node_cli
from kstall_ops import VERBS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "harness/COVERAGE.md",
)
WIDTH = 88
README_LINES = 110
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
        for action in cli.parser()._actions
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


def _shown(program: str) -> Iterator[list[str]]:
    """The commands of ``program`` in all documents, without the program's own name."""
    for path in DOCUMENTS:
        for block in re.findall(r"(?ms)^```sh\n(.*?)^```$", path.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                # Options that a variable of the shell has.
                words = shlex.split(line.replace("$tls", ""), comments=True)
                if words and words[0].endswith(program):
                    yield words[1:]


def test_commands_are_taken() -> None:
    commands = [words for words in _shown("kstall") if words[0] not in VERBS]
    assert len(commands) > 10
    for words in commands:
        # Unknown options end this.
        assert cli.parser().parse_args(words).verb, words


def test_the_unit_for_systemd_is_taken() -> None:
    """It stores where `kstall fleet pull` looks."""
    unit = (ROOT / "docs/examples/kstall-node.service").read_text()
    options = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit))
    words = shlex.split(options["ExecStart"])
    assert words[0] == "/usr/local/bin/kstall-node"
    started = node_cli.parser().parse_args(words[1:])
    assert started.out == f"/var/lib/{options['StateDirectory']}" == node_cli.DIR
    assert started.ring and started.open_marker


def test_the_job_goes_on_without_marks(tmp_path: Path) -> None:
    """The function that is shown; what it cannot write, it prints once."""
    (text,) = re.findall(
        r"(?ms)^```python\n(.*?)^mark\(", (ROOT / "docs/operator.md").read_text()
    )
    names: dict[str, Any] = {}
    exec(text, names)
    marker = tmp_path / "trace_marker"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for step in range(3):
            names["mark"](step, "enter", marker / "absent")
        (warning,) = caught
        assert "kstall: no mark: " in str(warning.message)
        marker.touch()
        names["mark"](7, "exit", marker)
        assert len(caught) == 1
    assert marker.read_text() == "kstall step=7 phase=exit\n"


def test_variables_of_make_exist() -> None:
    text = (ROOT / "Makefile").read_text()
    known = set(re.findall(r"(?m)^(?:export )?(?:KSTALL_)?([A-Z]+) *\??=", text))
    commands = [*_shown("make")]
    assert len(commands) > 5
    for words in commands:
        given = {word.partition("=")[0] for word in words if re.match("[A-Z]+=", word)}
        assert given <= known, words


def test_every_verb_is_told_of() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS)
    for verb in _verbs():
        assert re.search(rf"kstall\s+{verb}\b", text), verb


def test_every_option_is_told_of() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS)
    top = cli.parser()
    (verbs,) = (
        action.choices for action in top._actions if isinstance(action.choices, dict)
    )
    for parser in (top, *verbs.values()):
        for action in parser._actions:
            if argparse.SUPPRESS in (action.help, action.default):
                continue
            for option in action.option_strings:
                assert re.search(rf"{option}(?![\w-])", text), option


@pytest.mark.parametrize(
    "script", sorted((ROOT / "scripts").glob("*.bt")), ids=lambda path: path.name
)
def test_every_map_that_a_script_prints_is_explained(script: Path) -> None:
    """bpftrace prints all that are not empty when it ends."""
    head, _, code = script.read_text().partition("*/")
    cleared = set(re.findall(r"clear\(@(\w+)\);", code))
    # In a sentence, or in a list of them.
    explained = set(re.findall(r"(?m)(?:@|^ \*   )(\w+)", head))
    assert set(re.findall(r"@(\w+)", code)) <= cleared | explained


def test_every_document_is_linked() -> None:
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in _links(path)
    }
    assert set(DOCUMENTS) <= linked | {ROOT / "README.md"}


def _names_in_rows() -> Iterator[tuple[str, str, list[str]]]:
    """Rows of ARCHITECTURE, functions and private names in them, and their files."""
    for row in _prose(ROOT / "docs/ARCHITECTURE.md").splitlines():
        quoted = re.findall(r"`([^`]+)`", row) if row.startswith("| ") else []
        files = [text.rpartition("/")[2] for text in quoted if text.endswith(".py")]
        for text in quoted:
            if files and re.fullmatch(r"_\w+(?:\(\))?|\w+\(\)", text):
                yield row.split("|")[1].strip(), text.removesuffix("()"), files


def _defined(path: Path) -> set[str]:
    """Functions, classes and variables of a module, those in classes as well."""
    tree = ast.parse(path.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_names_in_the_architecture_are_defined_in_a_file_of_their_row() -> None:
    names = [*_names_in_rows()]
    assert len(names) > 40
    modules: dict[str, set[str]] = {}
    for path in (*ROOT.glob("harness/**/*.py"), *ROOT.glob("tests/*.py")):
        modules.setdefault(path.name, set()).update(_defined(path))
    unknown = [
        (row, name)
        for row, name, files in names
        if not any(name in modules[file] for file in files)
    ]
    assert unknown == []


def test_the_readme_is_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    # A series more is a row more.
    assert len([line for line in lines if line[:1] != "|"]) <= README_LINES
    # Rows of a table cannot be wrapped.
    assert [line for line in lines if len(line) > WIDTH and line[0] != "|"] == []


def _run_that_is_shown(path: Path) -> list[str]:
    """The lines of the first run that a document shows."""
    blocks: list[str] = _FENCE.findall(path.read_text())
    return next(text for text in blocks if "\nverdict " in text).splitlines()


def test_the_readme_shows_the_run_that_the_report_s_document_shows() -> None:
    whole = _run_that_is_shown(ROOT / "docs/report.md")
    shown = _run_that_is_shown(ROOT / "README.md")
    assert [line for line in shown if line not in whole] == []


def test_the_changelog_has_this_version() -> None:
    version = re.search(
        r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text()
    )
    assert version is not None
    assert f"\n## {version[1]}\n" in (ROOT / "CHANGELOG.md").read_text()
