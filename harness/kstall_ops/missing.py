# SPDX-License-Identifier: GPL-2.0-or-later
"""What is not in a store although it was to be sealed, so that no claim forgets it.

A recording that is damaged is left out, and the others are sealed.  A row for it stays
in the store until the recording itself comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb

from . import recording
from .errors import NotARecording, shown
from .recording import Recording

#: What to do about a recording that was left out.
NEXT = "copy it again, if that damaged it, and seal it"
#: So many are named in one line.
_NAMED = 4
#: And so many have a line of their own.
_LINES = 20
_FAR = (1 << 63) - 1


class Missing(NamedTuple):
    """A row of the table; what the recording does not tell of itself is None."""

    kind: str
    #: The directory, or what stands for it wherever it is.
    place: str
    node: str | None
    sid: str | None
    boot_id: str | None
    began: int | None
    ended: int | None
    reason: str

    @property
    def name(self) -> str:
        """For people: the node if it is known."""
        return shown(self.node or self.place)


class Damaged(NamedTuple):
    """A directory that was left out."""

    dir: Path
    row: Missing

    def __str__(self) -> str:
        return f"{self.dir}: {self.row.reason}"


def damaged(dir: Path, error: NotARecording | OSError) -> Damaged:
    """What is known of a recording that cannot be sealed because of ``error``."""
    try:
        session = recording.session_of(dir)
        sid, node = recording.sid_of(session), str(session["node"])
        boot, began = str(session["boot_id"]), int(session["began"])
        end = session.get("ended")
    except NotARecording:
        row = Missing("recording", _place(dir), None, None, None, None, None, "")
    else:
        ended = end if isinstance(end, int) else None
        row = Missing("recording", _place(dir), node, sid, boot, began, ended, "")
    said = str(error)
    if isinstance(error, OSError):
        said = f"{error.filename or dir}: {error.strerror or error}"
    said = said.removeprefix(f"{dir}: ").replace(f"{dir}/", "")
    return Damaged(dir, row._replace(reason=said))


def _place(dir: Path) -> str:
    return str(dir.resolve())


def read(opened: duckdb.DuckDBPyConnection) -> list[Missing]:
    """The rows of a store."""
    columns = ", ".join(Missing._fields)
    rows = opened.execute(f"SELECT {columns} FROM missing ORDER BY ALL").fetchall()  # noqa: S608
    return [Missing(*row) for row in rows]


def write(made: duckdb.DuckDBPyConnection, rows: Sequence[Missing]) -> None:
    """Put ``rows`` into a store that has none."""
    if rows:
        columns = ", ".join(Missing._fields)
        marks = ", ".join("?" * len(Missing._fields))
        made.executemany(
            f"INSERT INTO missing ({columns}) VALUES ({marks})",  # noqa: S608
            rows,
        )


def after(
    before: Iterable[Missing],
    came: Iterable[Recording],
    left_out: Iterable[Damaged],
    known: Iterable[str],
) -> list[Missing]:
    """The rows once ``came`` is in the store; ``known`` are all recordings that are.

    Of a recording that is in the store a damaged copy is nothing that is missing.
    """
    rows = {(one.kind, one.place): one for one in before}
    for there in came:
        rows.pop(("recording", _place(there.dir)), None)
    for bad in left_out:
        rows[bad.row.kind, bad.row.place] = bad.row
    sids = set(known)
    left = [one for one in rows.values() if one.sid is None or one.sid not in sids]
    return sorted(left, key=repr)


def names(rows: Sequence[Missing]) -> str:
    """Of many the first ones."""
    found = list(dict.fromkeys(one.name for one in rows))
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


def unseen(rows: Sequence[Missing], world: int | None, ranks: int) -> str:
    """Those on which a job may have more ranks than are known; empty if none is left.

    Of one that does not even tell whose it is anything may be in it.
    """
    whole = world is not None and world <= ranks
    return names([one for one in rows if not whole or _is_anybodys(one)])


def _is_anybodys(one: Missing) -> bool:
    return one.kind == "recording" and one.sid is None


def losses(
    rows: Iterable[Missing], boots: Mapping[str, str]
) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """What that is for other recordings of the same boot: their clock is the same."""
    for one in rows:
        if one.boot_id is None or one.began is None:
            continue
        end = _FAR if one.ended is None else one.ended
        reason = f"the recording {shown(one.place)} is missing"
        for sid, boot in boots.items():
            if boot == one.boot_id:
                yield sid, (one.began, end, reason)


def remarks(rows: Sequence[Missing]) -> Iterator[str]:
    """What is missing, why, and what to do about it."""
    for one in rows[:_LINES]:
        yield (
            f"{one.name}: a recording is missing, {shown(one.place)}: "
            f"{shown(one.reason)}; {NEXT}"
        )
    if len(rows) > _LINES:
        yield f"… {len(rows) - _LINES} more: kstall query --named missing"
