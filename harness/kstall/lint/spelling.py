# SPDX-License-Identifier: GPL-2.0-or-later
"""Misspelt words, found by codespell: the same words as checkpatch --codespell, in a
tenth of its time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from ..base import process
from . import patchtext

_MISSPELT = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): (?P<text>.+ ==> .+)")
# Exit status of codespell if it finds misspelt words.
_EXIT_MISSPELT = 65
_TIMEOUT_S = 120.0


def version() -> str:
    """The version of codespell, which comes with its dictionary."""
    return metadata.version("codespell")


def misspelt(
    texts: Mapping[str, str], scratch: Path
) -> dict[str, tuple[tuple[int, str], ...]]:
    """Line (from 1), word and correction of each misspelling, by the name of the text.

    ``scratch`` is a directory that the caller removes.
    """
    directory = scratch / "spelling"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    completed = process.run(
        (
            *(sys.executable, "-m", "codespell_lib", "--builtin", "clear"),
            *("--disable-colors", "--", *texts),
        ),
        cwd=directory,
        env={"HOME": str(scratch), "LC_ALL": "C.UTF-8"},
        check=False,
        timeout=_TIMEOUT_S,
    )
    if completed.returncode not in (0, _EXIT_MISSPELT):
        raise completed.failure()
    faults: dict[str, list[tuple[int, str]]] = {name: [] for name in texts}
    for line in completed.stdout.splitlines():
        if match := _MISSPELT.fullmatch(line):
            faults[match["file"]].append((int(match["line"]), match["text"]))
    return {name: tuple(lines) for name, lines in faults.items()}


def written(mail: str) -> str:
    """The author's text in a patch mail: subject, message and added lines, each at its
    line of the mail, without tags, which contain names."""
    return "\n".join(_written(mail.splitlines()))


def _written(lines: list[str]) -> Iterator[str]:
    part = "head"
    for line in lines:
        if part == "head":
            yield line if line.lower().startswith("subject:") else ""
            part = "head" if line else "message"
        elif part == "message":
            yield "" if patchtext.tag(line) else line
            part = "diff" if line == "---" else "message"
        else:
            yield line[1:] if line.startswith("+") and line[:4] != "+++ " else ""
