# SPDX-License-Identifier: GPL-2.0-or-later
"""The word by which commands that people paste call kstall."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kstall.base import program
from kstall.pipeline import command_line


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed kstall, below the current directory."""
    path = tmp_path / ".venv/bin/kstall"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_who_calls_a_path_is_shown_that_path(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for called in (".venv/bin/kstall", str(script)):
        monkeypatch.setattr(sys, "argv", [called, "validate", "demo"])
        assert command_line() == [called, "validate", "demo"]
    # Another one is found by name.
    other = script.parents[2] / "kstall"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert program() == str(script)


def test_who_calls_it_by_name_is_shown_the_name(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), "list"])
    assert command_line() == ["kstall", "list"]


def test_what_cannot_be_called_so_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for called in ("", "-c", "/usr/lib/kstall/__main__.py", "/usr/bin/pytest"):
        monkeypatch.setattr(sys, "argv", [called, "list"])
        assert command_line() == ["kstall", "list"]
