# SPDX-License-Identifier: GPL-2.0-or-later
"""What is not in a store although it was to be sealed, so that no claim forgets it.

A recording that is damaged is left out, and the others are sealed.  A node that was not
reached is in the file that ``fleet pull`` leaves beside the recordings that came.
A row for each stays in the store until the recording, or the node's, comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb

from . import recording
from .errors import NotARecording, shown
from .recording import Recording

#: What ``fleet pull`` leaves: each node that was asked, and why it did not answer.
PULL = "kstall-pull.json"
FORMAT = 1
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
    except NotARecording:
        row = Missing("recording", _place(dir), None, None, None, None, None, "")
    else:
        row = Missing(
            kind="recording",
            place=_place(dir),
            node=_plain(session["node"]),
            sid=recording.sid_of(session),
            boot_id=_plain(session["boot_id"]),
            began=_time(session["began"]),
            ended=_time(session.get("ended")),
            reason="",
        )
    said = str(error)
    if isinstance(error, OSError):
        said = f"{error.filename or dir}: {error.strerror or error}"
    said = said.removeprefix(f"{dir}: ").replace(f"{dir}/", "")
    return Damaged(dir, row._replace(reason=_plain(said)))


def _plain(text: str) -> str:
    """Without half a surrogate pair, which no store takes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _time(value: object) -> int | None:
    """None if it is none: it is damage that all this is about."""
    return value if isinstance(value, int) and abs(value) <= _FAR else None


def _place(dir: Path) -> str:
    """What is fetched may be fetched into another directory the next time."""
    pulled = (dir.parent / PULL).is_file()
    return _plain(dir.name if pulled else str(dir.resolve()))


class Pull(NamedTuple):
    """One such file; ``why`` it cannot be read is empty if it can."""

    path: Path
    nodes: Mapping[str, str | None]
    why: str = ""


def pulls(dirs: Iterable[Path], recordings: Iterable[Path]) -> list[Pull]:
    """Those that are among or in ``dirs``, or beside ``recordings``."""
    files: dict[Path, None] = {}
    paths = [path for dir in dirs for path in (dir, dir / PULL)]
    for path in [*paths, *(dir.parent / PULL for dir in recordings)]:
        if path.name == PULL and path.is_file():
            files[path.resolve()] = None
    return [_pull(path) for path in files]


def _pull(path: Path) -> Pull:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        nodes = dict(content["nodes"])
        if content["format"] != FORMAT or not all(
            isinstance(word, str | None) for word in nodes.values()
        ):
            raise ValueError("of another kstall")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Pull(path, {}, f"cannot be read: {shown(error)}")
    return Pull(path, nodes)


def note(top: Path, nodes: Mapping[str, str | None]) -> None:
    """Write down in ``top`` which nodes were asked, and why some did not answer.

    Nodes that were asked before and are not now stay as they were.
    """
    path = top / PULL
    before = _pull(path).nodes if path.exists() else {}
    draft = path.with_name(f".{PULL}.new")
    said = {"format": FORMAT, "nodes": {**before, **nodes}}
    draft.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def read(opened: duckdb.DuckDBPyConnection) -> list[Missing]:
    """The rows of a store."""
    columns = ", ".join(Missing._fields)
    rows = opened.execute(f"SELECT {columns} FROM missing").fetchall()  # noqa: S608
    return sorted((Missing(*row) for row in rows), key=repr)


def write(database: duckdb.DuckDBPyConnection, rows: Sequence[Missing]) -> None:
    """Put ``rows`` into a store that has none."""
    if rows:
        columns = ", ".join(Missing._fields)
        marks = ", ".join("?" * len(Missing._fields))
        database.executemany(
            f"INSERT INTO missing ({columns}) VALUES ({marks})",  # noqa: S608
            rows,
        )


def after(
    before: Iterable[Missing],
    came: Iterable[Recording],
    left_out: Iterable[Damaged],
    pulled: Iterable[Pull],
    known: Iterable[str],
) -> list[Missing]:
    """The rows once ``came`` is in the store; ``known`` are all recordings that are.

    Of a recording that is in the store a damaged copy is nothing that is missing.
    """
    rows = {(one.kind, one.place): one for one in before}
    for there in came:
        rows.pop(("recording", _place(there.dir)), None)
    for one in pulled:
        rows.pop(("pull", _plain(str(one.path))), None)
        if one.why:
            bad = _of_pull("pull", str(one.path), one.why)
            rows[bad.kind, bad.place] = bad
        for node, why in one.nodes.items():
            rows.pop(("node", _plain(node)), None)
            if why is not None:
                bad = _of_pull("node", node, why)
                rows[bad.kind, bad.place] = bad
    for _, bad in left_out:
        rows[bad.kind, bad.place] = bad
    sids = set(known)
    left = [row for row in rows.values() if row.sid is None or row.sid not in sids]
    return sorted(left, key=repr)


def _of_pull(kind: str, name: str, why: str) -> Missing:
    """A node from which nothing came, or a file of which nobody knows what it says."""
    place = _plain(name)
    node = place if kind == "node" else None
    return Missing(kind, place, node, None, None, None, None, _plain(why))


def names(rows: Sequence[Missing]) -> str:
    """Of many the first ones."""
    found = list(dict.fromkeys(row.name for row in rows))
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


def unseen(rows: Sequence[Missing], world: int | None, ranks: int) -> str:
    """Those on which a job may have more ranks than are known; empty if none is left.

    Of one that does not even tell whose it is anything may be in it.
    """
    whole = world is not None and world <= ranks
    return names([row for row in rows if not whole or _is_anybodys(row)])


def _is_anybodys(one: Missing) -> bool:
    return one.kind == "recording" and one.sid is None


def losses(
    rows: Iterable[Missing], boots: Mapping[str, str]
) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """What that is for other recordings of the same boot: their clock is the same."""
    for row in rows:
        if row.boot_id is None or row.began is None:
            continue
        end = _FAR if row.ended is None else row.ended
        reason = f"the recording {shown(row.place)} is missing"
        for sid, boot in boots.items():
            if boot == row.boot_id:
                yield sid, (row.began, end, reason)


def remarks(rows: Sequence[Missing]) -> Iterator[str]:
    """What is missing, why, and what to do about it."""
    for row in rows[:_LINES]:
        if row.kind == "pull":
            yield f"{row.name}: which nodes a pull has missed is not known: " + (
                f"{shown(row.reason)}; pull from all again"
            )
            continue
        if row.kind == "node":
            yield (
                f"{row.name}: its recordings are missing, as `kstall fleet pull` got "
                f"none: {shown(row.reason)}; pull from it again"
            )
            continue
        yield (
            f"{row.name}: a recording is missing, {shown(row.place)}: "
            f"{shown(row.reason)}; {NEXT}"
        )
    if len(rows) > _LINES:
        yield f"… {len(rows) - _LINES} more: kstall query --named missing"
