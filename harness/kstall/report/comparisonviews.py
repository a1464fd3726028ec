# SPDX-License-Identifier: GPL-2.0-or-later
"""A `Comparison` for people: on a terminal, and as a page."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from ..base import Status, cache
from .comparison import WEIGHTS, Change, Comparison, Weight
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
_VERDICTS = {
    0: ("NOTHING WORSE", "pass"),
    1: ("WORSE", "fail"),
    2: ("NO LONGER JUDGED", "error"),
}


def where(change: Change) -> str:
    """What the change is of."""
    return " on ".join(filter(None, (change.series, change.place)))


def counts(found: Comparison) -> str:
    """How many changes are what, the gravest first."""
    shown = [
        f"{len(found.of(one))} {_HEADS[one].lower()}"
        for one in WEIGHTS
        if found.of(one)
    ]
    return f"{', '.join(shown) or 'no change'}; {found.compared} series compared"


def terminal(found: Comparison, console: Console) -> None:
    """Print what changed, the gravest first, and last whether anything got worse."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    for weight in WEIGHTS:
        for one in found.of(weight):
            mark = f"[{STYLE[_LOOKS[weight]]}]{_HEADS[weight]}[/]"
            place = f"{where(one)}: " if where(one) else ""
            then = " -> ".join(filter(None, (one.before, one.after)))
            say(f"{mark}  {escape(place)}{escape(one.what)}: {escape(then)}")
    say(f"before   {escape(found.before)}  {found.started[0]}")
    say(f"after    {escape(found.after)}  {found.started[1]}")
    head, look = _VERDICTS[found.exit_code]
    say(f"verdict  [{STYLE[_look(look)]}]{head}[/]  {counts(found)}")


def _look(name: str) -> Status:
    return next(one for one in _LOOKS.values() if one == name)


def write_page(found: Comparison, path: Path) -> None:
    """Write the page to ``path``, whole or not at all."""
    template = environment().get_template("comparison.html.j2")
    head, look = _VERDICTS[found.exit_code]
    pages = {
        side: os.path.relpath(place, path.absolute().parent)
        for side, directory in (("before", found.before), ("after", found.after))
        for place in (_page(Path(directory)),)
    }
    text = template.render(
        found=found,
        head=head,
        look=look,
        heads=_HEADS,
        looks=_LOOKS,
        weights=[one for one in WEIGHTS if found.of(one)],
        where=where,
        counts=counts(found),
        pages=pages,
    )
    cache.write_text(path, text)


def _page(directory: Path) -> Path:
    """The page of a run or a matrix, where ``latest`` leads today: a page stays."""
    real = directory.resolve()
    name = "matrix.html" if (real / "matrix.json").exists() else "report.html"
    return real / name
