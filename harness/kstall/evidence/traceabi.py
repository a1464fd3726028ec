# SPDX-License-Identifier: GPL-2.0-or-later
"""What patches do to the trace events that programs read already.

Both sides are directories of format files as tracefs has them below ``events``,
``<system>/<event>`` or ``<system>/<event>/format``.  Consumers find fields by offset,
or by the text that is printed, so an event may only grow at its end.  Numbers of
events (ID) are no part of it: every kernel gives out its own.
"""

from __future__ import annotations

import json
import re
import shutil
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
_NAME = "all-trace-events"
_DEADLINE_S = 600
_KEPT = "formats"
# As tail has it between the files that it prints.
_FILE = re.compile(r"(?m)^\n?==> (\w+)/\w+/format <==\n")
_FORMAT = re.compile(r'\s*("(?:[^"\\]|\\.)*")(.*)', re.DOTALL)


class NoFormats(KstallError):
    """A directory that holds no format files, or one that cannot be read."""


@dataclass(frozen=True)
class Change:
    """An event that was there before; ``what`` is what happened to it."""

    event: str
    what: str


@dataclass(frozen=True)
class FormatChanges:
    """Events by what became of them.

    ``broken`` changed in a way that a consumer can stumble over, or are gone,
    ``grown`` have more at their end, ``same`` counts the others.  ``new`` are those
    that were not there, and ``clashing`` those of them whose name an event of another
    system has.
    """

    broken: tuple[Change, ...]
    grown: tuple[Change, ...]
    same: int
    new: tuple[Layout, ...]
    clashing: tuple[Change, ...]


def read(directory: Path) -> dict[str, Layout]:
    """The events below ``directory``, by ``system:name``.  Raises `NoFormats`."""
    texts = []
    files = [*directory.glob("*/*/format"), *directory.glob("*/*")]
    for path in sorted(path for path in files if path.is_file()):
        name = path.parent if path.name == "format" else path
        # What else lies there: "enable" and "filter" of a system.
        if name.name in ("enable", "filter"):
            continue
        try:
            texts.append((name.parent.name, str(path), path.read_text()))
        except OSError as error:
            raise NoFormats(f"{path}: {error}") from error
    found = _layouts(texts)
    if not found:
        raise NoFormats(
            f"{directory}: no format files below it",
            next="copy /sys/kernel/tracing/events of a booted kernel there",
        )
    return found


def listed(text: str) -> dict[str, Layout]:
    """The events that `PROGRAM` printed.  Raises `NoFormats`."""
    parts = _FILE.split(text)
    systems = parts[1::2]
    found = _layouts(list(zip(systems, systems, parts[2::2], strict=True)))
    if not found or parts[0].strip():
        raise NoFormats(f"not a list of formats: {text[:60]!r}")
    return found


def _layouts(texts: Sequence[tuple[str, str, str]]) -> dict[str, Layout]:
    """Events by name, from their systems, where that is told, and texts."""
    found = {}
    for system, where, text in texts:
        # ftrace's own records are no trace events, and are not stable.
        if system != "ftrace":
            layout = _layout(system, where, text)
            found[layout.event] = layout
    return found


def _layout(system: str, where: str, text: str) -> Layout:
    """The event; one with a field that we cannot read is its text, and nothing else."""
    try:
        return records.parse_layout(text, system)
    except records.Malformed as error:
        name = re.search(r"^name: (\w+)$", text, re.MULTILINE)
        if name is None or "\nprint fmt: " not in text:
            raise NoFormats(f"{where}: {error}") from error
        return Layout(system, name[1], 0, (), (), re.sub(r"(?m)^ID: .*\n", "", text))


def workload() -> dict[str, Any]:
    """The job's entry for `PROGRAM`."""
    argv = [str(jobs.GUEST / PROGRAM)]
    return jobs.workload(_NAME, argv, _DEADLINE_S, buffer_kb=64)


def keep(boot: Path, target: Path) -> None:
    """Copy what `PROGRAM` printed in a boot, of which this is the directory, to
    ``target``.

    What was not printed whole is not copied: why a guest could not do it decides of
    nothing.
    """
    printed = boot / "results" / _NAME / "stdout"
    facts = boot / "results" / "agent.json"
    if printed.exists() and facts.exists():
        agent = json.loads(facts.read_text(encoding="utf-8"))
        mine = [one for one in agent["workloads"] if one["name"] == _NAME]
        if [one.get("exit_status") for one in mine] == [0]:
            shutil.copyfile(printed, target / _KEPT)


def kept(directory: Path) -> str | None:
    """What `keep` copied there, if there was anything to copy."""
    file = directory / _KEPT
    return file.read_text(encoding="utf-8") if file.exists() else None


def compare(base: Mapping[str, Layout], patched: Mapping[str, Layout]) -> FormatChanges:
    """What became of the events of ``base``, and which are new."""
    broken, grown = [], []
    for event, old in base.items():
        new = patched.get(event)
        if new is None:
            broken.append(Change(event, "is gone"))
            continue
        wrong = [*_fields_broken(old, new), *_text_broken(old, new)]
        if wrong:
            broken.append(Change(event, "; ".join(wrong)))
        elif (old.fields, old.print_fmt) != (new.fields, new.print_fmt):
            names = [field.name for field in new.fields[len(old.fields) :]]
            more = ", ".join(names) or "text only"
            grown.append(Change(event, f"has more at its end: {more}"))
    added = tuple(one for event, one in patched.items() if event not in base)
    return FormatChanges(
        tuple(broken),
        tuple(grown),
        len(base) - len(broken) - len(grown),
        added,
        tuple(_clashes(added, patched)),
    )


def judge(found: FormatChanges, declared: frozenset[str]) -> Verdict:
    """Existing events only grow, new ones are ``declared``, whole, and have a name of
    their own."""
    verdict = Verdict()
    kept = found.same + len(found.grown)
    verdict.true(f"{kept} events of before can be read as before", True)
    for one in found.broken:
        verdict.true(f"{one.event} can be read as before", False, one.what)
    for one in found.grown:
        verdict.true(f"{one.event} can be read as before", True, one.what)
    for layout in found.new:
        verdict.true(f"{layout.event} is declared", layout.event in declared)
        holes = [f"{hole.size} bytes before {hole.before}" for hole in layout.holes()]
        verdict.equal(f"{layout.event}: holes", ", ".join(holes) or "none", "none")
    for one in found.clashing:
        verdict.true(f"{one.event} has a name of its own", False, one.what)
    return verdict


def describe(layout: Layout) -> list[str]:
    """An event's fields with offset and size in bytes, and its holes, a line each."""
    holes = {hole.before: hole for hole in layout.holes()}
    lines = [layout.event]
    for one in layout.fields:
        if (hole := holes.get(one.name)) is not None:
            lines.append(f"  {hole.offset:5} {hole.size:4}  (hole)")
        lines.append(f"  {one.offset:5} {one.size:4}  {one.ctype} {one.name}")
    return lines


def _fields_broken(old: Layout, new: Layout) -> list[str]:
    """Fields of ``old`` have to come first in ``new``, as they are."""
    wrong = []
    ours = {one.name: one for one in (*new.common, *new.fields)}
    for field in (*old.common, *old.fields):
        found = ours.get(field.name)
        if found is None:
            wrong.append(f"{field.name} is gone")
        elif found != field:
            wrong.append(f"{_shown(field)} became {_shown(found)}")
    end = max((one.offset + one.size for one in old.fields), default=0)
    known = {one.name for one in (*old.common, *old.fields)}
    wrong += [
        f"{one.name} is new at {one.offset}, before the end at {end}"
        for one in (*new.common, *new.fields)
        if one.name not in known and one.offset < end
    ]
    return wrong


def _shown(field: Field) -> str:
    sign = "signed" if field.signed else "unsigned"
    return f"{field.ctype} {field.name} ({field.size} bytes at {field.offset}, {sign})"


def _text_broken(old: Layout, new: Layout) -> list[str]:
    """What is printed may only get more behind it."""
    before, after = _FORMAT.fullmatch(old.print_fmt), _FORMAT.fullmatch(new.print_fmt)
    if before is None or after is None:
        same = old.print_fmt == new.print_fmt
        return [] if same else [f"prints {new.print_fmt}"]
    text = after[1].removeprefix(before[1][:-1])
    # Right behind a number, another digit makes it another number.
    if not after[1].startswith(before[1][:-1]) or re.match(r"[\w.]", text):
        return [f"prints {after[1]}, not {before[1]}"]
    # More arguments follow a comma; without one, the last is another expression.
    rest = after[2].removeprefix(before[2])
    if not after[2].startswith(before[2]) or (rest and not rest.startswith(",")):
        return [f"prints{after[2].removeprefix(',')}, not{before[2].removeprefix(',')}"]
    return []


def _clashes(added: tuple[Layout, ...], patched: Mapping[str, Layout]) -> list[Change]:
    by_name: dict[str, list[str]] = {}
    for one in patched.values():
        by_name.setdefault(one.name, []).append(one.event)
    return [
        Change(one.event, f"{', '.join(others)} has the same name")
        for one in added
        if (others := [name for name in by_name[one.name] if name != one.event])
    ]
