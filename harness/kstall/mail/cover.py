# SPDX-License-Identifier: GPL-2.0-or-later
"""The cover letter: the text of ``cover.txt``, and the results of one run.

The body is written by hand: what cannot be observed today, what exists, what is added
and what is not covered.  The rest is generated from the patches and from the report of
the run that proved the series.  It has at most `LINES` lines, whatever the report has:
lists are shortened until it fits, and a reference to the report ends it.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from ..base import KstallError
from ..lint import patchtext
from ..series import Series
from ..tree import Base
from . import excerpts, figures, results
from .proof import Proof

WIDTH = patchtext.WIDTH
_ITEM = re.compile(r"(?:[-*] |\d+(?: and \d+| to \d+)? )")
#: Lines of the generated part of a letter, at most: a screen.
LINES = 50
#: Lines of an item of a list, at most.
_MOST = 4
#: Lines of bugs, and of a table, that come before anything else.
_BUGS = 12
_ROWS = 9
#: Where there is no room for these, lists are shortened in this order to so many lines:
#: of a table, its head, two rows, and how many more there are.
_FLOORS = (
    *(("operations", 4), ("shown", 6), ("records", 1), ("reasons", 1), ("argued", 1)),
    *(("paths", 1), ("uncovered", 1), ("shown", 1)),
)
#: Lists get one more line each in this order, again and again, while there are some.
_TURNS = (
    *("shown", "uncovered", "paths", "operations"),
    *("shown", "uncovered", "paths", "reasons", "records", "argued"),
)


class Unfinished(KstallError):
    """A text of the series is not complete."""


@dataclass(frozen=True)
class Cover:
    """``text`` ends before shortlog and diffstat; ``unfounded`` are figures in the
    hand-written prose that the run does not show."""

    text: str
    unfounded: tuple[str, ...]


def require_finished(series: Series) -> None:
    """Raise `Unfinished` for ``@@...@@`` left in the cover letter or in a patch."""
    places = []
    for path in (
        series.dir / series.spec.cover,
        *(patch.path for patch in series.patches),
    ):
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if path.suffix == ".patch" and line.startswith("diff --git "):
                # The diff follows, where hunks begin with @@.
                break
            placeholders = patchtext.PLACEHOLDER.findall(line)
            places += [
                f"{path}:{number}: {placeholder}" for placeholder in placeholders
            ]
    if places:
        raise Unfinished(
            "not filled in yet:\n    " + "\n    ".join(places),
            next="insert the output of a run there, and validate the series again",
        )


def render(
    series: Series,
    proof: Proof,
    trace: excerpts.RunTrace,
    base: Base,
    *,
    assisted: int,
    quoted: Collection[str] = (),
    applied: str = "",
    url: str | None = None,
) -> Cover:
    """The letter's text; ``trace`` is that of ``proof``.

    ``assisted`` is the number of patches with an Assisted-by: tag; ``quoted`` are the
    events of which patches show a record; ``applied`` is a remark on how the patches
    apply, or empty; ``url`` is where the report is published, if it is.  Raises
    `KstallError` if the letter is not finished, or an event has no record to show.
    """
    require_finished(series)
    text = (series.dir / series.spec.cover).read_text(encoding="utf-8")
    records = trace.records()
    replaced = excerpts.replaced(text, trace)
    names = {point.symbol: point for point in series.spec.tracepoint}
    if missing := [name for name in names if name not in records]:
        raise KstallError(
            f"{proof.dir}: proven, but it has no record of {', '.join(missing)}",
            next="run it again",
        )
    entry = proof.entry
    # A bare tracepoint has no record of its own.
    unshown = [
        name
        for name, point in names.items()
        if point.kind == "event" and name not in {*replaced.shown, *quoted}
    ]
    argued = results.argued(series, entry.checks)
    lists = {
        "records": [_Item("  ", records[name][0].record, 6) for name in unshown],
        "shown": _bullets(results.shown(entry)),
        "argued": _bullets(argued),
        "uncovered": _bullets(results.uncovered(entry)),
    }
    values: dict[str, Any] = {
        "series": series,
        "assisted": assisted,
        "ran": results.ran(series, proof, base, applied),
        "checked": results.checked(entry, argued=bool(argued)),
        "overhead": entry.overhead,
        "url": url,
    }
    if entry.overhead is not None:
        architecture = proof.report.environment.arch.replace("_", "-")
        values["code"] = results.code(entry.overhead, architecture)
        lists["operations"] = [
            _Item(f"  {figures}  ", name, len(figures) + 4)
            for figures, name in results.table(entry.overhead.measurements)
        ]
        lists["reasons"] = _bullets(results.reasons(entry.overhead))
        lists["paths"] = _bullets(results.paths(entry.overhead))
    body = wrapped(replaced.text).strip("\n")
    letter = f"{body}\n\n{_generated(values, lists)}\n"
    return Cover(letter, figures.unfounded(replaced.text, proof.report, entry))


@dataclass(frozen=True)
class _Item:
    """An item of a list: ``lead``, then ``text``; later lines are indented by ``hang``
    columns."""

    lead: str
    text: str
    hang: int

    def lines(self, most: int) -> list[str]:
        """As it is laid out in ``most`` lines."""
        return _filled(self.text, self.lead, " " * self.hang, most).splitlines()


def _bullets(texts: Iterable[str]) -> list[_Item]:
    return [_Item("- ", text, 2) for text in texts]


def _generated(values: Mapping[str, Any], lists: Mapping[str, Sequence[_Item]]) -> str:
    """The generated part of a letter, with as much of ``lists`` as fits."""
    template = _environment().get_template("cover.txt")

    def text(lines: Mapping[str, Sequence[str]]) -> str:
        filled = template.render(values, **lines)
        return re.sub(r"\n{3,}", "\n\n", filled).strip("\n")

    # One line of each, to count the others; an empty line comes before all of it.
    bare = text({name: ["-"] * bool(items) for name, items in lists.items()})
    kept = len(bare.splitlines()) + 1 - sum(map(bool, lists.values()))
    shares = _shares(lists, LINES - kept)
    return text({name: _few(items, shares[name]) for name, items in lists.items()})


def _shares(lists: Mapping[str, Sequence[_Item]], lines: int) -> dict[str, int]:
    """How many of ``lines`` each list gets."""
    wanted = {
        name: sum(len(item.lines(_MOST)) for item in items)
        for name, items in lists.items()
    }
    # Others begin with an item, and how many more there are.
    first = {"shown": _BUGS, "operations": _ROWS}
    shares = {
        name: min(wanted[name] if name == "shown" else len(items), first.get(name, 2))
        for name, items in lists.items()
    }
    for name, floor in _FLOORS:
        while sum(shares.values()) > lines and shares.get(name, 0) > floor:
            shares[name] -= 1
    # A line of each item comes before a second line of any.
    for goal in ({name: len(items) for name, items in lists.items()}, wanted):
        for name in _TURNS * LINES:
            spare = lines - sum(shares.values())
            if name in lists and shares[name] < goal[name] and spare > 0:
                shares[name] += 1
    return shares


def _few(items: Sequence[_Item], share: int) -> list[str]:
    """The lines of ``items`` in ``share`` lines: a line of each, more of the first."""
    if len(items) > share:
        rest = len(items) - share + 1
        more = _Item(items[0].lead[:2], f"and {rest} more", 2)
        items = [*items[: share - 1], more]
    laid = [item.lines(1) for item in items]
    for most in range(2, _MOST + 1):
        for number, item in enumerate(items):
            longer = item.lines(most)
            if sum(map(len, laid)) - len(laid[number]) + len(longer) <= share:
                laid[number] = longer
    return list(itertools.chain(*laid))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Mails are plain text.
        autoescape=False,  # noqa: S701
    )
    environment.filters["fill"] = fill
    return environment


def fill(
    text: str, indent: int = 0, hang: int | None = None, most: int | None = None
) -> str:
    """One paragraph, filled to the width of a mail; later lines ``hang`` further.

    What does not fit into ``most`` lines is replaced by a mark.
    """
    later = indent if hang is None else hang
    return _filled(text, " " * indent, " " * later, most)


def _filled(text: str, first: str, later: str, most: int | None) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" [...]",
    )


def wrapped(text: str) -> str:
    """``text`` with paragraphs that are too wide filled again.

    Indented lines, such as records and commands, stay as they are.  An item of a list
    keeps its mark and its hanging indent.
    """
    return "\n\n".join(map(_paragraph, re.split(r"\n{2,}", text.strip("\n")))) + "\n"


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if all(len(line) <= WIDTH for line in lines):
        return text
    items: list[list[str]] = []
    for line in lines:
        starts = _ITEM.match(line) is not None and (
            not items or _ITEM.match(items[0][0]) is not None
        )
        if not items or starts:
            items.append([line])
        else:
            items[-1].append(line)
    return "\n".join(map(_item, items))


def _item(lines: list[str]) -> str:
    first, *rest = lines
    hang = (
        2 if _ITEM.match(first) and all(line.startswith("  ") for line in rest) else 0
    )
    if first.startswith(" ") or (
        not hang and any(line.startswith(" ") for line in rest)
    ):
        return "\n".join(lines)
    # Rejoin names that were broken behind an underscore.
    return fill(re.sub(r"_\n\s*", "_", "\n".join(lines)), 0, hang)
