# SPDX-License-Identifier: GPL-2.0-or-later
"""A `RunComparison` for people: on a terminal, and as a page."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from ..base import Status, cache
from .comparison import WEIGHTS, Change, RunComparison, Weight
from .html import environment
from .views import STYLE, escape

_HEADS: dict[Weight, str] = {
    "worse": "WORSE",
    "unjudged": "NO LONGER JUDGED",
    "better": "better",
    "changed": "changed",
}
_LOOKS: dict[Weight, Status] = {
    "worse": "fail",
    "unjudged": "error",
    "better": "pass",
    "changed": "skip",
}
_VERDICTS: dict[int, tuple[str, Status]] = {
    0: ("NOTHING WORSE", "pass"),
    1: ("WORSE", "fail"),
    2: ("NO LONGER JUDGED", "error"),
}


def where(change: Change) -> str:
    """The series and the column of the change."""
    return " on ".join(filter(None, (change.series, change.place)))


def counts(comparison: RunComparison) -> str:
    """The number of changes by weight, the worst first."""
    parts = [
        f"{len(comparison.of(weight))} {_HEADS[weight].lower()}"
        for weight in WEIGHTS
        if comparison.of(weight)
    ]
    return f"{', '.join(parts) or 'no change'}; {comparison.compared} series compared"


def terminal(comparison: RunComparison, console: Console) -> None:
    """Print the changes, the worst first, and last whether anything got worse."""

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    for weight in WEIGHTS:
        for change in comparison.of(weight):
            mark = f"[{STYLE[_LOOKS[weight]]}]{_HEADS[weight]}[/]"
            place = f"{where(change)}: " if where(change) else ""
            transition = " -> ".join(filter(None, (change.before, change.after)))
            if change.since:
                transition += f" (since {Path(change.since).name})"
            say(f"{mark}  {escape(place)}{escape(change.what)}: {escape(transition)}")
    say(f"before   {escape(comparison.before)}  {comparison.started[0]}")
    say(f"after    {escape(comparison.after)}  {comparison.started[1]}")
    head, look = _VERDICTS[comparison.exit_code]
    say(f"verdict  [{STYLE[look]}]{head}[/]  {counts(comparison)}")


def write_page(comparison: RunComparison, path: Path) -> None:
    """Write the page to ``path``, atomically."""
    template = environment().get_template("comparison.html.j2")
    head, look = _VERDICTS[comparison.exit_code]
    directories = {comparison.before, comparison.after}
    directories |= {change.since for change in comparison.changes if change.since}
    pages = {
        directory: os.path.relpath(_page(Path(directory)), path.absolute().parent)
        for directory in directories
    }
    text = template.render(
        comparison=comparison,
        head=head,
        look=look,
        heads=_HEADS,
        looks=_LOOKS,
        weights=[weight for weight in WEIGHTS if comparison.of(weight)],
        where=where,
        counts=counts(comparison),
        pages=pages,
    )
    cache.write_text(path, text)


def _page(directory: Path) -> Path:
    """The page of a run or a matrix, with ``latest`` resolved: it will move on."""
    real = directory.resolve()
    name = "matrix.html" if (real / "matrix.json").exists() else "report.html"
    return real / name
