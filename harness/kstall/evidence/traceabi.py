# SPDX-License-Identifier: GPL-2.0-or-later
"""What patches change in the formats of existing trace events.

Both sides are directories of format files as tracefs has them below ``events``,
``<system>/<event>`` or ``<system>/<event>/format``.  Consumers find fields by offset,
or by the text that is printed, so an event may only grow at its end.  Event numbers
(ID) are not part of a format: every kernel assigns its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import KstallError
from ..guest import jobs
from ..verdict import Verdict
from . import records
from .records import Field, Layout

#: What prints the formats of all events in a guest, a path in the project.
PROGRAM = Path("scripts/workloads/overhead/trace-events")
#: The name of its workload.
NAME = "all-trace-events"
# The header that tail prints before each of several files.
_FILE = re.compile(r"(?m)^\n?==> (\w+)/\w+/format <==\n")
_FORMAT = re.compile(r'\s*("(?:[^"\\]|\\.)*")(.*)', re.DOTALL)


class NoFormats(KstallError):
    """A directory without format files, or with one that cannot be read."""


@dataclass(frozen=True)
class EventChange:
    """An existing event; ``what`` describes how it changed."""

    event: str
    what: str


@dataclass(frozen=True)
class FormatChanges:
    """Events by how they changed.

    ``broken`` events changed incompatibly, or are gone, ``grown`` ones have more at
    their end, ``same`` counts the others.  ``new`` ones did not exist before, and
    ``clashing`` are those of them that share their name with an event of another
    system.
    """

    broken: tuple[EventChange, ...]
    grown: tuple[EventChange, ...]
    same: int
    new: tuple[Layout, ...]
    clashing: tuple[EventChange, ...]


def read(directory: Path) -> dict[str, Layout]:
    """The events below ``directory``, by ``system:name``.  Raises `NoFormats`."""
    texts = []
    files = [*directory.glob("*/*/format"), *directory.glob("*/*")]
    for path in sorted(path for path in files if path.is_file()):
        name = path.parent if path.name == "format" else path
        # A system's own files, "enable" and "filter", are there as well.
        if name.name in ("enable", "filter"):
            continue
        try:
            texts.append((name.parent.name, str(path), path.read_text()))
        except OSError as error:
            raise NoFormats(f"{path}: {error}") from error
    layouts = _layouts(texts)
    if not layouts:
        raise NoFormats(
            f"{directory}: no format files below it",
            next="copy /sys/kernel/tracing/events of a booted kernel there",
        )
    return layouts


def parse_list(text: str) -> dict[str, Layout]:
    """The events that `PROGRAM` printed.  Raises `NoFormats`."""
    parts = _FILE.split(text)
    systems = parts[1::2]
    layouts = _layouts(list(zip(systems, systems, parts[2::2], strict=True)))
    if not layouts or parts[0].strip():
        raise NoFormats(f"not a list of formats: {text[:60]!r}")
    return layouts


def _layouts(texts: Sequence[tuple[str, str, str]]) -> dict[str, Layout]:
    """Events by name; ``texts`` are system, origin for error messages, and format."""
    layouts = {}
    for system, origin, text in texts:
        # ftrace's own records are no trace events, and are not stable.
        if system != "ftrace":
            layout = _layout(system, origin, text)
            layouts[layout.event] = layout
    return layouts


def _layout(system: str, origin: str, text: str) -> Layout:
    """The event; if one of its fields cannot be read, it has only its text."""
    try:
        return records.parse_layout(text, system)
    except records.Malformed as error:
        name = re.search(r"^name: (\w+)$", text, re.MULTILINE)
        if name is None or "\nprint fmt: " not in text:
            raise NoFormats(f"{origin}: {error}") from error
        return Layout(system, name[1], 0, (), (), re.sub(r"(?m)^ID: .*\n", "", text))


def workload(deadline_s: float) -> dict[str, Any]:
    """The job's entry for `PROGRAM`."""
    argv = [str(jobs.GUEST / PROGRAM)]
    return jobs.workload(NAME, argv, deadline_s, buffer_kb=64)


def printed(boot: Path) -> str:
    """The output of `PROGRAM` in ``boot``, the directory of a boot."""
    return (boot / "results" / NAME / "stdout").read_text(encoding="utf-8")


def compare(base: Mapping[str, Layout], patched: Mapping[str, Layout]) -> FormatChanges:
    """How the events of ``base`` changed, and which are new."""
    broken, grown = [], []
    for event, old in base.items():
        new = patched.get(event)
        if new is None:
            broken.append(EventChange(event, "is gone"))
            continue
        wrong = [*_fields_broken(old, new), *_text_broken(old, new)]
        if wrong:
            broken.append(EventChange(event, "; ".join(wrong)))
        elif (old.fields, old.print_fmt) != (new.fields, new.print_fmt):
            names = [field.name for field in new.fields[len(old.fields) :]]
            additions = ", ".join(names) or "text only"
            grown.append(EventChange(event, f"has more at its end: {additions}"))
    added = tuple(layout for event, layout in patched.items() if event not in base)
    return FormatChanges(
        tuple(broken),
        tuple(grown),
        len(base) - len(broken) - len(grown),
        added,
        tuple(_clashes(added, patched)),
    )


def existing_events_are_kept(
    changes: FormatChanges, declared: frozenset[str]
) -> Verdict:
    """Existing events only grow, new ones are ``declared``, have no holes, and have a
    unique name."""
    verdict = Verdict()
    readable = changes.same + len(changes.grown)
    verdict.true(f"{readable} existing events can be read as before", True)
    for change in changes.broken:
        verdict.true(f"{change.event} can be read as before", False, change.what)
    for change in changes.grown:
        verdict.true(f"{change.event} can be read as before", True, change.what)
    for layout in changes.new:
        verdict.true(f"{layout.event} is declared", layout.event in declared)
        holes = [f"{hole.size} bytes before {hole.before}" for hole in layout.holes()]
        verdict.equal(f"{layout.event}: holes", ", ".join(holes) or "none", "none")
    for change in changes.clashing:
        verdict.true(f"{change.event} has a unique name", False, change.what)
    return verdict


def describe(layout: Layout) -> list[str]:
    """An event's fields with offset and size in bytes, and its holes, a line each."""
    holes = {hole.before: hole for hole in layout.holes()}
    lines = [layout.event]
    for field in layout.fields:
        if (hole := holes.get(field.name)) is not None:
            lines.append(f"  {hole.offset:5} {hole.size:4}  (hole)")
        lines.append(f"  {field.offset:5} {field.size:4}  {field.ctype} {field.name}")
    return lines


def _fields_broken(old: Layout, new: Layout) -> list[str]:
    """How the fields of ``old`` differ in ``new``, where they have to come first."""
    wrong = []
    new_fields = {field.name: field for field in (*new.common, *new.fields)}
    for field in (*old.common, *old.fields):
        counterpart = new_fields.get(field.name)
        if counterpart is None:
            wrong.append(f"{field.name} is gone")
        elif counterpart != field:
            wrong.append(f"{_shown(field)} became {_shown(counterpart)}")
    end = max((field.offset + field.size for field in old.fields), default=0)
    old_names = {field.name for field in (*old.common, *old.fields)}
    wrong += [
        f"{field.name} is new at {field.offset}, before the end at {end}"
        for field in (*new.common, *new.fields)
        if field.name not in old_names and field.offset < end
    ]
    return wrong


def _shown(field: Field) -> str:
    sign = "signed" if field.signed else "unsigned"
    return f"{field.ctype} {field.name} ({field.size} bytes at {field.offset}, {sign})"


def _text_broken(old: Layout, new: Layout) -> list[str]:
    """How the printed text changed, other than by an addition at its end."""
    before, after = _FORMAT.fullmatch(old.print_fmt), _FORMAT.fullmatch(new.print_fmt)
    if before is None or after is None:
        same = old.print_fmt == new.print_fmt
        return [] if same else [f"prints {new.print_fmt}"]
    text = after[1].removeprefix(before[1][:-1])
    # A digit that is added to a number changes the number.
    if not after[1].startswith(before[1][:-1]) or re.match(r"[\w.]", text):
        return [f"prints {after[1]}, not {before[1]}"]
    # More arguments follow a comma; without one, the last expression changed.
    rest = after[2].removeprefix(before[2])
    if not after[2].startswith(before[2]) or (rest and not rest.startswith(",")):
        return [f"prints{after[2].removeprefix(',')}, not{before[2].removeprefix(',')}"]
    return []


def _clashes(
    added: tuple[Layout, ...], patched: Mapping[str, Layout]
) -> list[EventChange]:
    by_name: dict[str, list[str]] = {}
    for layout in patched.values():
        by_name.setdefault(layout.name, []).append(layout.event)
    return [
        EventChange(layout.event, f"{', '.join(others)} has the same name")
        for layout in added
        if (others := [name for name in by_name[layout.name] if name != layout.event])
    ]
