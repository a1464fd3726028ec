# SPDX-License-Identifier: GPL-2.0-or-later
"""Seal recordings: decode each, and put all into one store.

Sealing several directories merges nodes.  Sealing the same again changes nothing; a
recording that has grown replaces its sealed version.  A damaged recording is left out,
and the store knows that it is missing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from . import files, missing, schema, store
from .decode import Decoder
from .errors import NotARecording, OpsError
from .missing import Damaged, Missing, Pull
from .recording import (
    FACTS,
    LEFT_OUT,
    SEGMENTS,
    SESSION,
    Extent,
    Recording,
    load,
    scope_of,
)
from .rules import rules

#: A stall that goes on at a look is in neither sum: what differs by less is no word of
#: disagreement, nor what is known less exactly one of agreement.
_ENOUGH_NS = 20_000_000
#: After all records.
_FOREVER = (1 << 63) - 1
#: Tables that do not come from facts of a recording.
_OF_OTHERS = ("session", "stall", "missing", "collective")

#: Exit statuses: all was sealed, nothing, or only some.
ALL, NONE, SOME = 0, 2, 3
#: How many damaged recordings are named in one line.
_NAMED = 5


@dataclass
class Sealed:
    """What became of each directory, and remarks on it."""

    records: int = 0
    added: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    left_out: list[Damaged] = field(default_factory=list)


class NothingSealed(NotARecording):
    """All recordings are damaged."""

    def __init__(self, left_out: Sequence[Damaged]) -> None:
        listed = [str(damaged) for damaged in left_out[:_NAMED]]
        if len(left_out) > _NAMED:
            listed.append(f"and {len(left_out) - _NAMED} more")
        super().__init__("; ".join(listed))
        self.left_out = list(left_out)


def find(dirs: Iterable[Path]) -> list[Path]:
    """``dirs``; a directory that only contains recordings is replaced by these.

    Raises `NotARecording`.
    """
    recordings = []
    for dir in dirs:
        if dir.name == missing.PULL and dir.is_file():
            continue
        here = (dir / SESSION).exists()
        if not here and not dir.is_dir():
            what = "no directory" if dir.exists() else "no such directory"
            raise NotARecording(f"{dir}: {what}")
        # A directory without session.json is a damaged recording if it has other parts.
        parts = (SESSION, FACTS, SEGMENTS)
        below = {path.parent for name in parts for path in dir.glob(f"*/{name}")}
        recordings += sorted(below) if below and not here else [dir]
    return recordings


def seal(dirs: Iterable[Path], path: Path) -> Sealed:
    """Put the recordings in ``dirs`` into the store at ``path``.

    Damaged recordings are left out.  Raises `OpsError`, `NothingSealed` if all are
    damaged; then the store is unchanged.
    """
    done = Sealed()
    dirs = list(dirs)
    places = find(dirs)
    pulled = missing.pulls(dirs, places)
    done.remarks += [
        f"{node}: its recordings are missing: {why}"
        for recording in pulled
        for node, why in recording.nodes.items()
        if why is not None
    ]
    loaded = _loaded(places, done)
    if not loaded and not done.left_out:
        raise OpsError("nothing to seal: no directories were given")
    with files.locked(path):
        _merge(loaded, pulled, path, done)
    return done


def _merge(
    loaded: Sequence[Recording], pulled: Sequence[Pull], path: Path, done: Sealed
) -> None:
    """Put ``loaded`` into the store beside what it has, unless that is as new."""
    known = _known(path) if path.exists() else {}
    before = _missing(path) if path.exists() else []
    fresh, came = [], []
    for recording in loaded:
        if recording.sid in known and known[recording.sid] >= recording.extent:
            done.same.append(_name(recording))
            came.append(recording)
        else:
            fresh.append(recording)
    sids = {*known, *(recording.sid for recording in came)}
    if not fresh:
        if not came:
            raise NothingSealed(done.left_out)
        if missing.after(before, came, done.left_out, pulled, sids) == before:
            return
    with store.writing(path) as database:
        if path.exists():
            replaced = {recording.sid for recording in fresh}
            store.copy(database, path, replaced, others=True)
        sealed = _seal_all(fresh, database, path, done, known)
        came += sealed
        if not came:
            raise NothingSealed(done.left_out)
        sids |= {recording.sid for recording in sealed}
        rows = missing.after(before, came, done.left_out, pulled, sids)
        missing.write(database, rows)
        # Of the others only the recorder had all records that its oracle counted.
        whole = [recording for recording in sealed if recording.since is None]
        _judge_oracles(database, whole)


def _name(recording: Recording) -> str:
    return f"{recording.session['node']} {recording.sid}"


def _loaded(dirs: Iterable[Path], done: Sealed) -> list[Recording]:
    """The recordings that can be read; the others are left out."""
    loaded = []
    for dir in dirs:
        try:
            loaded.append(load(dir))
        except (NotARecording, OSError) as error:
            done.left_out.append(missing.damaged(dir, error))
    return _newest(loaded)


def _missing(path: Path) -> list[Missing]:
    with store.reading(path) as opened:
        return missing.read(opened)


def _seal_all(
    fresh: Iterable[Recording],
    database: duckdb.DuckDBPyConnection,
    path: Path,
    done: Sealed,
    known: Mapping[str, object],
) -> list[Recording]:
    """Seal ``fresh``; those that are in the store now, the others have left no rows."""
    sealed = []
    with tempfile.TemporaryDirectory(prefix=".kstall-", dir=path.parent) as spool:
        for recording in fresh:
            writer = store.Writer(database, Path(spool))
            remarks = [f"{recording.dir}: {text}" for text in recording.remarks]
            # Damage of pages or facts shows only when some rows are in the store.
            database.execute("BEGIN")
            try:
                records = _seal_recording(recording, writer, remarks)
            except NotARecording as error:
                database.execute("ROLLBACK")
                writer.drop()
                done.left_out.append(missing.damaged(recording.dir, error))
                if recording.sid in known:
                    store.copy(database, path, {recording.sid}, others=False)
                continue
            database.execute("COMMIT")
            done.records += records
            done.added.append(_name(recording))
            done.remarks += remarks
            sealed.append(recording)
    return sealed


def _newest(loaded: Sequence[Recording]) -> list[Recording]:
    """Each recording once, and of several copies the latest."""
    best: dict[str, Recording] = {}
    for recording in loaded:
        if recording.sid not in best or best[recording.sid].extent < recording.extent:
            best[recording.sid] = recording
    return list(best.values())


def _known(path: Path) -> dict[str, Extent]:
    with store.reading(path) as opened:
        rows = opened.execute(
            "SELECT sid, ended IS NOT NULL, facts, NOT EXISTS (FROM loss l "
            "WHERE l.sid = s.sid AND reason = ?), pages FROM session s",
            [LEFT_OUT],
        ).fetchall()
    return {
        sid: (ended, facts, whole, pages) for sid, ended, facts, whole, pages in rows
    }


def _seal_recording(
    recording: Recording,
    writer: store.Writer,
    remarks: list[str],
) -> int:
    decoder = Decoder(recording)
    for table, row in decoder.rows():
        if not _is_left_out(row, recording.since):
            writer.write(table, row)
    gone = {
        (fact.get("pid"), fact.get("starttime")): fact.get("t")
        for fact in recording.facts
        if fact["kind"] == "gone"
    }
    others = (fact for fact in recording.facts if fact["kind"] != "oracle")
    for fact in (*others, *_oracles(recording)):
        columns = schema.TABLES.get(fact["kind"])
        if columns is None or fact["kind"] in _OF_OTHERS:
            continue
        row = {name: fact.get(name) for name in columns}
        if fact["kind"] == "proc":
            row["ended"] = gone.get((fact.get("pid"), fact.get("starttime")))
        writer.write(fact["kind"], row | {"sid": recording.sid})
    names = ("node", "boot_id", "kernel", "instance", "began", "ended")
    session: dict[str, Any] = {name: recording.session.get(name) for name in names}
    config = json.dumps(recording.session.get("config") or {}, sort_keys=True)
    session |= {
        "sid": recording.sid,
        "pages": recording.pages,
        "facts": recording.noted,
        "config": config,
        "unrecorded": json.dumps(recording.unrecorded),
    }
    writer.write("session", session | {"records": decoder.records})
    if recording.session.get("ended") is None or any(
        not s.sealed for s in recording.segments
    ):
        lost = {"sid": recording.sid, "cpu": None, "n": None, "reason": "recorder gone"}
        writer.write("loss", lost | {"t0": recording.complete, "t1": None})
    if recording.since is not None:
        lost = {"sid": recording.sid, "cpu": None, "n": None, "reason": LEFT_OUT}
        began = recording.session["began"]
        writer.write("loss", lost | {"t0": began, "t1": recording.since})
    try:
        writer.load()
    except duckdb.IOException:
        raise
    except duckdb.Error as error:
        first = str(error).splitlines()[0].replace(f"{writer.spool}/", "")
        raise NotARecording(f"{recording.dir}: its facts do not fit: {first}") from None
    if decoder.unpaired:
        remarks.append(
            f"{recording.dir}: {decoder.unpaired} stalls of which only one end was "
            "recorded"
        )
    return decoder.records


def _is_left_out(row: Mapping[str, Any], since: int | None) -> bool:
    """Whether it had ended before ``since``: of some CPUs a copy has more than asked.

    If it has no end, that may be among what was left out.
    """
    times = (row.get(name) for name in ("t1", "t", "t0"))
    last = next((t for t in times if t is not None), None)
    return since is not None and last is not None and last < since


def _union(
    cursor: duckdb.DuckDBPyConnection,
    sid: str,
    provider: str,
    group: str,
    until: int,
) -> int:
    """How long any thread was stalled on a CPU, summed over CPUs.

    The kernel counts the time of a throttled queue once, for any number of threads.
    """
    row = cursor.execute(
        "WITH span AS (SELECT cpu, t0, t1, max(t1) OVER (PARTITION BY cpu "
        "ORDER BY t0, t1 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before "
        "FROM stall WHERE sid = ? AND provider = ? AND dur IS NOT NULL "
        "AND (? = '' OR cgroup_id = TRY_CAST(? AS UBIGINT)) AND t1 <= ?) "
        "SELECT coalesce(sum(greatest(0, t1 - greatest(t0, coalesce(before, t0)))), 0) "
        "FROM span",
        [sid, provider, group, group, until],
    ).fetchone()
    assert row is not None
    return int(row[0])


def _oracles(recording: Recording) -> list[Mapping[str, Any]]:
    """The last comparison of each scope, among those of what the recording has.

    Facts are fetched after segments, so they may compare what a copy lacks.  What a
    ring has deleted nobody can compare.
    """
    ended = recording.session.get("ended") is not None
    known = recording.complete or 0
    ring = any(
        fact["kind"] == "loss" and fact.get("reason") == "ring"
        for fact in recording.facts
    )
    last: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for fact in recording.facts:
        until = fact.get("until")
        late = not ended and isinstance(until, int) and until > known
        if fact["kind"] == "oracle" and not late:
            unknown = {"theirs": None, "verdict": "unknown"} if ring else {}
            last[scope_of(fact)] = {**fact, **unknown}
    return list(last.values())


def _span(fact: Mapping[str, Any]) -> tuple[int, int] | None:
    """The interval in which the oracle's number is; None in older recordings."""
    low, high = fact.get("low"), fact.get("high")
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    return max(low, -_FOREVER), min(high, _FOREVER)


def judge(metric: str, ours: int, low: int, high: int) -> tuple[int, str]:
    """Compare with an oracle that is between ``low`` and ``high``, as recorders do.

    The number in there that is nearest to ``ours``, and the verdict.
    """
    nearest = min(max(ours, low), high)
    if metric == "count":
        # No tolerance: each event makes one record.
        return nearest, "agrees" if ours == nearest else "disagrees"
    # Of no other class durations are compared.
    share, absolute = rules().oracles["throttle"]
    allowed = max(absolute, int(share * nearest))
    if abs(ours - nearest) > allowed:
        return nearest, "disagrees"
    wide = high - low > 2 * max(allowed, _ENOUGH_NS)
    return nearest, "unknown" if wide else "agrees"


def _judge_oracles(
    database: duckdb.DuckDBPyConnection, sealed: Sequence[Recording]
) -> None:
    """Compare the sealed records with the oracles, rather than the recorder's sums.

    This also shows records that were lost without notice.  Providers that the recorder
    refused stay refused.
    """
    sids = [recording.sid for recording in sealed]
    spans = {
        (recording.sid, *scope_of(fact)): _span(fact)
        for recording in sealed
        for fact in _oracles(recording)
    }
    pairs = {
        (recording.sid, str(provider.get("provider")))
        for recording in sealed
        for provider in recording.session["providers"]
        if isinstance(provider, dict) and provider.get("oracle") == "pairs"
    }
    with closing(database.cursor()) as cursor:
        rows = cursor.execute(
            "SELECT rowid, o.sid, provider, scope, metric, theirs, verdict, "
            "coalesce(until, ?) "
            "FROM oracle o WHERE list_contains(?::VARCHAR[], o.sid)",
            [_FOREVER, sids],
        ).fetchall()
        for rowid, sid, provider, scope, metric, theirs, verdict, until in rows:
            group = str(scope or "").partition("cgroup:")[2]
            device = str(scope or "").partition("device:")[2]
            # An oracle that counts beginnings has those of stalls that ended later.
            begun = (sid, provider) in pairs
            row = cursor.execute(
                "SELECT count(*), coalesce(sum(dur), 0) FROM stall "
                "WHERE sid = ? AND (provider = ? OR starts_with(provider, ?)) "
                "AND (? = '' OR cgroup_id = TRY_CAST(? AS UBIGINT)) "
                "AND (? = '' OR device = ?) "
                "AND coalesce(CASE WHEN ? THEN t0 END, t1, t0, 0) <= ?",
                [
                    *(sid, provider, f"{provider}+", group, group, device, device),
                    *(begun, until),
                ],
            ).fetchone()
            assert row is not None
            count, total = row
            ours = int(count if metric == "count" else total)
            if metric == "union_ns":
                ours = _union(cursor, str(sid), str(provider), group, until)
            if theirs is None:
                text = "unknown"
            else:
                span = spans.get((sid, str(provider), str(scope), str(metric)))
                low, high = span or (theirs, theirs)
                theirs, text = judge(str(metric), ours, low, high)  # noqa: PLW2901
                text = "disagrees" if verdict == "disagrees" else text
            cursor.execute(
                "UPDATE oracle SET ours = ?, theirs = ?, verdict = ? WHERE rowid = ?",
                [ours, theirs, text, rowid],
            )
