# SPDX-License-Identifier: GPL-2.0-or-later
"""The file with sealed recordings: written once as a whole, then only read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import duckdb

from . import files, schema
from .errors import NotAStore, Refused, shown

Row = Mapping[str, Any]
#: Frequent queries, by name.
NAMED = {
    "sessions": "SELECT node, kernel, began, ended, records, sid FROM session "
    "ORDER BY node, began",
    "lost": "SELECT s.node, class, cause, count(*) AS n, sum(dur)/1e6 AS ms, "
    "max(dur)/1e6 AS worst_ms FROM stall JOIN session s USING (sid) "
    "GROUP BY ALL ORDER BY ms DESC NULLS LAST",
    "threads": "SELECT s.node, tgid, tid, comm, class, cause, count(*) AS n, "
    "sum(dur)/1e6 AS ms FROM stall JOIN session s USING (sid) GROUP BY ALL "
    "ORDER BY ms DESC NULLS LAST LIMIT 50",
    "open": "SELECT s.node, class, cause, tgid, tid, comm, device, t0, provider "
    "FROM stall JOIN session s USING (sid) WHERE t0 IS NOT NULL AND t1 IS NULL "
    "ORDER BY node, t0",
    "ranks": "SELECT DISTINCT job, rank, local_rank, world, s.node, p.pid, p.comm "
    "FROM proc p JOIN session s USING (sid) WHERE rank IS NOT NULL "
    "ORDER BY job, rank",
    "losses": "SELECT s.node, cpu, reason, count(*) AS intervals, sum(n) AS events "
    "FROM loss JOIN session s USING (sid) GROUP BY ALL ORDER BY node, cpu",
    "oracles": "SELECT s.node, provider, scope, metric, ours, theirs, verdict "
    "FROM oracle JOIN session s USING (sid) ORDER BY node, provider, scope",
    "missing": "SELECT kind, node, place, reason FROM missing ORDER BY ALL",
    "collectives": "SELECT job, process_group, rank, s.node, c.thread, count(*) AS n, "
    "count(ended_by) AS ended, count(lasted) AS timed, min(t) AS first, "
    "max(t) AS last FROM collective c JOIN session s USING (sid) GROUP BY ALL "
    "ORDER BY job, process_group, rank",
    "findings": "SELECT job, process_group, start, rank, node, class, level, severity, "
    "coverage, impact, p, text FROM finding ORDER BY ALL",
    "clocks": "SELECT s.node, method, peer, count(*) AS n, min(bound) AS best_ns "
    "FROM clock JOIN session s USING (sid) GROUP BY ALL ORDER BY node, method",
}


@contextmanager
def writing(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A new store that replaces ``path`` if the block raises no exception.

    Raises `OpsError` if it cannot be written.
    """
    with (
        files.replacing(path, store=True) as draft,
        closing(duckdb.connect(str(draft))) as database,
    ):
        database.execute(schema.ddl())
        yield database
        # Closing alone does not report that writing has failed.
        database.execute("CHECKPOINT")


class Writer:
    """Rows of all tables, spooled so that none of them has to fit in memory.

    The format is JSON, which distinguishes NULL, an empty name and a name with quotes
    or line ends; for CSV we would need rules of our own.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, spool: Path) -> None:
        self._database, self.spool = database, spool
        self._files: dict[str, IO[str]] = {}

    def write(self, table: str, row: Row) -> None:
        """Add a row; columns that are not named are NULL."""
        file = self._files.get(table)
        if file is None:
            path = self.spool / f"{table}.jsonl"
            file = self._files[table] = path.open("w", encoding="utf-8")
        # As ASCII, so that a lone surrogate in a name is no error.
        file.write(json.dumps(row, separators=(",", ":")) + "\n")

    def load(self) -> None:
        """Move all rows into the store."""
        for table, file in self._files.items():
            file.close()
            path = Path(file.name)
            columns = schema.TABLES[table]
            types = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
            order = _ORDER.get(table, "ALL")
            self._database.execute(
                f'INSERT INTO "{table}" SELECT * FROM read_json('  # noqa: S608
                f"?, format='newline_delimited', columns={{{types}}}) ORDER BY {order}",
                [str(path)],
            )
            path.unlink()
        self._files.clear()

    def drop(self) -> None:
        """Discard rows that were not loaded."""
        for file in self._files.values():
            file.close()
            Path(file.name).unlink(missing_ok=True)
        self._files.clear()


_ORDER = {
    "stall": "sid, class, tid, t0",
    "mark": "sid, tid, t",
    "clock": "sid, t_mono",
    "collective": "sid, tgid, process_group, seq",
}
#: The table whose rows stay when a recording is replaced: they come from dumps.
_STAYS = "collective"


def copy(
    database: duckdb.DuckDBPyConnection, old: Path, sids: Iterable[str], *, others: bool
) -> None:
    """Copy the rows of these sessions from ``old``, or those of all ``others``.

    With ``others`` the rows imported from dumps are copied for all sessions.
    """
    check(old)
    literal = str(old).replace("'", "''")
    database.execute(f"ATTACH '{literal}' AS old (READ_ONLY)")
    listed = list(sids)
    for table in schema.TABLES:
        # The rows of `missing` belong to no session in the store.
        if table != "missing":
            database.execute(
                f'INSERT INTO "{table}" SELECT * FROM old."{table}" '  # noqa: S608
                "WHERE list_contains(?::VARCHAR[], sid) <> ?",
                [[] if table == _STAYS else listed, others],
            )
    database.execute("DETACH old")


def check(path: Path) -> None:
    """Raise `NotAStore` unless ``path`` is a store of this version."""
    with closing(_connect(path)):
        pass


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    if not path.exists():
        raise NotAStore(f"{path}: no such store; `kstall seal DIR -o {path}` makes one")
    if not path.is_file():
        raise NotAStore(f"{path}: not a file; a store is one, a recording is not")
    try:
        opened = duckdb.connect(str(path), read_only=True)
    except (duckdb.Error, UnicodeDecodeError) as error:
        first = shown(str(error).splitlines()[0])
        raise NotAStore(f"{path}: cannot be opened as a store: {first}") from None
    try:
        row = opened.execute("SELECT version FROM meta").fetchone()
    except duckdb.Error:
        opened.close()
        raise NotAStore(f"{path}: a database, but not a store of kstall") from None
    if row is None or row[0] != schema.VERSION:
        opened.close()
        version = "no version" if row is None else f"version {row[0]}"
        raise NotAStore(
            f"{path}: a store of {version}, this kstall reads version "
            f"{schema.VERSION}; seal the recordings again"
        )
    return opened


@contextmanager
def reading(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that can neither write, nor reach any other file or the network.

    ``read_only`` alone allows COPY ... TO and ATTACH, and settings that forbid these
    could be reset unless the configuration is locked.
    """
    opened = _connect(path)
    with closing(opened):
        for setting in (
            "autoinstall_known_extensions=false",
            "autoload_known_extensions=false",
            # A query that does not fit in memory fails: it must not write to a file.
            "temp_directory=''",
            "memory_limit='4GB'",
            "enable_external_access=false",
            "lock_configuration=true",
        ):
            opened.execute(f"SET {setting}")
        yield opened


def query(
    path: Path,
    sql: str,
    *,
    rows: int | None = None,
    seconds: float | None = None,
    findings: Sequence[Sequence[Any]] | None = None,
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """(columns, rows, whether there were more) of ``sql``.  Raises `Refused`.

    ``findings`` become the table `finding`, for this query only.
    """
    with reading(path) as opened:
        if findings is not None:
            _add(opened, "finding", schema.FINDING, findings)
        timer = threading.Timer(seconds, opened.interrupt) if seconds else None
        if timer:
            timer.daemon = True
            timer.start()
        try:
            result = opened.execute(sql)
            names = [column[0] for column in result.description or ()]
            if rows is None:
                return names, result.fetchall(), False
            batch = result.fetchmany(rows + 1)
            return names, batch[:rows], len(batch) > rows
        except duckdb.InterruptException:
            raise Refused(f"the query took longer than {seconds:g} s") from None
        except (duckdb.Error, RuntimeError) as error:
            # Keep one line: DuckDB appends candidates and a caret after a blank line.
            text = " ".join(str(error).split("\n\n")[0].splitlines())
            raise Refused(shown(text, 400)) from None
        finally:
            if timer:
                timer.cancel()


def _add(
    opened: duckdb.DuckDBPyConnection,
    table: str,
    columns: Mapping[str, str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Add a table that is only in memory."""
    body = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    opened.execute(f'CREATE TEMP TABLE "{table}"({body})')
    if rows:
        marks = ", ".join("?" * len(columns))
        opened.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)  # noqa: S608


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as aligned text, without control characters."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max([len(name), *(len(row[at]) for row in cells)])
        for at, name in enumerate(names)
    ]
    lines = [list(names), *cells]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else shown(value)
