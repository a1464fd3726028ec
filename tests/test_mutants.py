# SPDX-License-Identifier: GPL-2.0-or-later
"""`mutants.toml`: what it may say, and what it does to a copy of the patches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kstall.series import Project, SeriesError, mutants

SERIES = "pci-aer-inject"
PATCHES = (
    "0002-PCI-AER-aer-inject-Have-errors-reported-whose-mask-i.patch",
    "0003-PCI-AER-aer-inject-Do-not-keep-errors-that-are-maske.patch",
)


def _write(project: Project, text: str) -> tuple[mutants.Mutant, ...]:
    (project.patches / SERIES / mutants.FILE).write_text(text)
    (series,) = project.load([SERIES])
    return mutants.load(series)


def _mutant(**keys: str) -> str:
    """A table with these keys, written as TOML, in place of those that it has."""
    whole = {
        "name": '"m"',
        "patch": f'"{PATCHES[0]}"',
        "left-out": "true",
        "caught-by": '["overridden_error_is_reported"]',
    }
    whole |= {key.replace("_", "-"): value for key, value in keys.items()}
    lines = [f"{key} = {value}\n" for key, value in whole.items() if value]
    return "[[mutant]]\n" + "".join(lines)


def _added_line(project: Project) -> str:
    text = (project.patches / SERIES / PATCHES[0]).read_text()
    lines = re.findall(r"(?m)^\+\t.*;$", text)
    (line, *_) = (str(line) for line in lines if text.count(line) == 1)
    return line


def test_without_a_file_there_is_none(project_copy: Project) -> None:
    (project_copy.patches / SERIES / mutants.FILE).unlink(missing_ok=True)
    (series,) = project_copy.load([SERIES])
    assert mutants.load(series) == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"caught_by": '["nobody"]'}, "no [[check]] called nobody"),
        ({"caught_by": "[]"}, "`caught-by`: Tuple should have at least 1 item"),
        ({"patch": '"0009-x.patch"'}, "no such patch: 0009-x.patch"),
        ({"left_out": ""}, "either old and new, or left-out"),
        ({"old": '"a"', "new": '"b"'}, "either old and new, or left-out"),
        ({"left_out": "", "old": '"no such line"', "new": '"x"'}, "occurs 0 times in"),
        (
            {"left_out": "", "old": '"+++ b/drivers"', "new": '"+++ b/drivers\\n+\\n"'},
            "the hunk's line counts would be wrong",
        ),
        ({"fails": '"x"'}, "unknown key `fails`"),
        (
            {"falsifies": '{ event = "a:b", field = "c", operator = "half" }'},
            "no field c in a:b",
        ),
        ({"complaint": '"x*"'}, "complaint matches any report"),
        ({"complaint": '"("'}, "`complaint`"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    project_copy: Project, keys: dict[str, str], message: str
) -> None:
    with pytest.raises(SeriesError) as error:
        _write(project_copy, "# comment\n\n" + _mutant(**keys))
    assert message in str(error.value)
    path = project_copy.patches / SERIES / mutants.FILE
    assert re.search(rf"^{re.escape(str(path))}:[3-9]: ", str(error.value))


def test_two_of_one_name(project_copy: Project) -> None:
    with pytest.raises(SeriesError, match="second mutant called m"):
        _write(project_copy, _mutant() + _mutant())


def test_what_is_no_toml(project_copy: Project) -> None:
    with pytest.raises(SeriesError, match=r"mutants\.toml:1: "):
        _write(project_copy, "[[mutant]\n")


def test_a_line_is_changed(project_copy: Project) -> None:
    line = _added_line(project_copy)
    text = _mutant(left_out="", old=f"'{line}'", new=f"'{line.replace(';', ' + 1;')}'")
    (mutant,) = _write(project_copy, text)
    folder = project_copy.patches / SERIES
    before = (folder / PATCHES[0]).read_text()
    mutants.make(folder, mutant)
    after = (folder / PATCHES[0]).read_text()
    assert after == before.replace(line, line.replace(";", " + 1;"))


def test_later_patches_show_the_changed_line(project_copy: Project) -> None:
    line = _added_line(project_copy)
    folder = project_copy.patches / SERIES
    later = folder / PATCHES[1]
    later.write_text(later.read_text() + f"\n {line[1:]}\n")
    text = _mutant(left_out="", old=f"'{line}'", new=f"'{line.replace(';', ' + 1;')}'")
    (mutant,) = _write(project_copy, text)
    mutants.make(folder, mutant)
    changed = line[1:].replace(";", " + 1;")
    assert later.read_text().endswith(f"\n {changed}\n")


def test_a_patch_is_left_out(project_copy: Project) -> None:
    (mutant,) = _write(project_copy, _mutant(patch=f'"{PATCHES[1]}"'))
    folder: Path = project_copy.patches / SERIES
    mutants.make(folder, mutant)
    assert not (folder / PATCHES[1]).exists()
    (series,) = project_copy.load([SERIES])
    assert series.spec.patches[1:] == PATCHES[:1]
