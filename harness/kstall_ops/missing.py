# SPDX-License-Identifier: GPL-2.0-or-later
"""What should be in a store and is not, so that claims can take it into account.

Damaged recordings are left out, and the others are sealed.  Nodes that were not reached
are in a file that ``fleet pull`` writes beside the recordings that it fetched.  Each
has a row in the store until that recording, or one of that node, is sealed.
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

#: The file of ``fleet pull``: each node, with the reason if its pull failed.
PULL = "kstall-pull.json"
FORMAT = 1
#: What the user can do about a recording that was left out.
NEXT = "copy it again, if that damaged it, and seal it"
#: How many are named in one line.
_NAMED = 4
#: How many have a line of their own.
_LINES = 20
_FAR = (1 << 63) - 1


class Missing(NamedTuple):
    """A row of the table `missing`; None for what cannot be read from the recording."""

    kind: str
    #: The directory (only its name if it was pulled), the node, or the file of a pull.
    place: str
    node: str | None
    sid: str | None
    boot_id: str | None
    began: int | None
    ended: int | None
    reason: str

    @property
    def name(self) -> str:
        """A name for the user: the node if it is known, else the place."""
        return shown(self.node or self.place)


class Damaged(NamedTuple):
    """A directory that was left out."""

    dir: Path
    row: Missing

    def __str__(self) -> str:
        return f"{self.dir}: {self.row.reason}"


def damaged(dir: Path, error: NotARecording | OSError) -> Damaged:
    """The row for a recording that cannot be sealed because of ``error``."""
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
    reason = str(error)
    if isinstance(error, OSError):
        reason = f"{error.filename or dir}: {error.strerror or error}"
    reason = reason.removeprefix(f"{dir}: ").replace(f"{dir}/", "")
    return Damaged(dir, row._replace(reason=_plain(reason)))


def _plain(text: str) -> str:
    """``text`` without lone surrogates, which no store accepts."""
    return text.encode("utf-8", "backslashreplace").decode()


def _time(value: object) -> int | None:
    """A time, or None for another value, as the recording is damaged."""
    return value if isinstance(value, int) and abs(value) <= _FAR else None


def _place(dir: Path) -> str:
    """The place of ``dir``; its name if pulled, as the next pull may go elsewhere."""
    pulled = (dir.parent / PULL).is_file()
    return _plain(dir.name if pulled else str(dir.resolve()))


class Pull(NamedTuple):
    """A file of ``fleet pull``; ``why`` it cannot be read is empty if it can."""

    path: Path
    nodes: Mapping[str, str | None]
    why: str = ""


def pulls(dirs: Iterable[Path], recordings: Iterable[Path]) -> list[Pull]:
    """The files of pulls among or in ``dirs``, or beside ``recordings``."""
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
    """Write into ``top`` which nodes were pulled from, and why some pulls failed.

    Entries of other nodes, from earlier pulls, stay as they are.
    """
    path = top / PULL
    before = _pull(path).nodes if path.exists() else {}
    draft = path.with_name(f".{PULL}.new")
    content = {"format": FORMAT, "nodes": {**before, **nodes}}
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
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
    """The rows once ``came`` is in the store; ``known`` are all recordings in it.

    If a recording is in the store, a damaged copy of it does not count as missing.
    """
    rows = {(row.kind, row.place): row for row in before}
    for there in came:
        rows.pop(("recording", _place(there.dir)), None)
    for pull in pulled:
        rows.pop(("pull", _plain(str(pull.path))), None)
        if pull.why:
            bad = _of_pull("pull", str(pull.path), pull.why)
            rows[bad.kind, bad.place] = bad
        for node, why in pull.nodes.items():
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
    """The row for a node from which nothing came, or for an unreadable file."""
    place = _plain(name)
    node = place if kind == "node" else None
    return Missing(kind, place, node, None, None, None, None, _plain(why))


def names(rows: Sequence[Missing]) -> str:
    """The first names, and how many more there are."""
    names = list(dict.fromkeys(row.name for row in rows))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def unseen(rows: Sequence[Missing], world: int | None, ranks: int) -> str:
    """Missing recordings that may have unknown ranks of a job, as text or empty.

    A recording whose session cannot be read may have ranks of any job.
    """
    whole = world is not None and world <= ranks
    return names([row for row in rows if not whole or _may_have_any_rank(row)])


def _may_have_any_rank(row: Missing) -> bool:
    return row.kind == "recording" and row.sid is None


def losses(
    rows: Iterable[Missing], boots: Mapping[str, str]
) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """Losses of other recordings of the same boot, whose clock is the same."""
    for row in rows:
        if row.boot_id is None or row.began is None:
            continue
        end = _FAR if row.ended is None else row.ended
        reason = f"the recording {shown(row.place)} is missing"
        for sid, boot in boots.items():
            if boot == row.boot_id:
                yield sid, (row.began, end, reason)


def remarks(rows: Sequence[Missing]) -> Iterator[str]:
    """What is missing, why, and what the user can do about it, a line each."""
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
