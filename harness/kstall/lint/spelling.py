# SPDX-License-Identifier: GPL-2.0-or-later
"""Misspelt words, as codespell knows them: the words that checkpatch --codespell asks
for, in a tenth of its time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from ..base import process
from . import patchtext

_SAID = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): (?P<text>.+ ==> .+)")
# What codespell exits with when it finds some.
_FOUND = 65
_TIMEOUT_S = 120.0


def version() -> str:
    """That of codespell, which comes with its words."""
    return metadata.version("codespell")


def misspelt(
    texts: Mapping[str, str], scratch: Path
) -> dict[str, tuple[tuple[int, str], ...]]:
    """Line (from 1), word and what it should be, in each of ``texts`` by its name.

    ``scratch`` is a directory that the caller removes.
    """
    here = scratch / "spelling"
    here.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (here / name).write_text(text, encoding="utf-8")
    done = process.run(
        (
            *(sys.executable, "-m", "codespell_lib", "--builtin", "clear"),
            *("--disable-colors", "--", *texts),
        ),
        cwd=here,
        env={"HOME": str(scratch), "LC_ALL": "C.UTF-8"},
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode not in (0, _FOUND):
        raise process.CommandError(done.argv, done.returncode, done.stdout)
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in texts}
    for line in done.stdout.splitlines():
        if match := _SAID.fullmatch(line):
            found[match["file"]].append((int(match["line"]), match["text"]))
    return {name: tuple(lines) for name, lines in found.items()}


def written(mail: str) -> str:
    """What the author of a patch wrote: subject, message and added lines, each where
    it is in the mail, without tags, which have names in them."""
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
