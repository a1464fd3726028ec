# SPDX-License-Identifier: GPL-2.0-or-later
"""The time that a report is asked for, and when that was by the clock of each node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import duckdb

from .errors import OpsError

#: A table for SQL: by session, the time that is asked for.
TABLE = (
    "asked AS (SELECT unnest(?::STRUCT(sid VARCHAR, w0 BIGINT, w1 BIGINT)[], "
    "recursive := true))"
)
#: SQL: whether a row of `stall` overlaps that time.
OVERLAPS = "coalesce(t1, 9223372036854775807) >= w0 AND coalesce(t0, t1) < w1"
_FAR = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A clock may be set, so the reading nearest to that time counts.
_AHEAD = """
SELECT sid,
    (SELECT min_by(t_real - t_mono, abs(t_real - ?)) FROM clock c WHERE c.sid = s.sid),
    (SELECT min_by(t_real - t_mono, abs(t_real - ?)) FROM clock c WHERE c.sid = s.sid)
FROM session s
"""
_RANGE = """
SELECT min(t + ahead), max(t + ahead)
FROM (SELECT sid, t FROM mark UNION ALL SELECT sid, t FROM collective)
    JOIN (SELECT sid, min_by(t_real - t_mono, t_mono) AS ahead FROM clock GROUP BY sid)
    USING (sid)
"""


class Window(NamedTuple):
    """From when until when, in ns of CLOCK_REALTIME; None where that has no limit."""

    begin: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        ends = (("from", self.begin), ("until", self.end))
        return " ".join(f"{word} {_exactly(t)}" for word, t in ends if t is not None)

    def spans(self, opened: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        """The rows for `TABLE`; no time of a session whose wall clock is not known."""
        rows = opened.execute(_AHEAD, [self.begin or 0, self.end or 0]).fetchall()
        return [
            {
                "sid": sid,
                "w0": _less(self.begin, first, -_FAR, _FAR),
                "w1": _less(self.end, last, _FAR, -_FAR),
            }
            for sid, first, last in rows
        ]


#: All time.
ALL = Window()


def _less(t: int | None, ahead: int | None, unlimited: int, unknown: int) -> int:
    """A time on the clock that CLOCK_REALTIME is ahead of."""
    if t is None:
        return unlimited
    return unknown if ahead is None else max(-_FAR, min(t - ahead, _FAR))


def moment(text: str) -> int:
    """A time as reports print it, in ns of CLOCK_REALTIME, to the microsecond.

    Raises `ValueError`.
    """
    when = datetime.fromisoformat(text.removesuffix("UTC").strip())
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - _EPOCH) // timedelta(microseconds=1) * 1000


def _exactly(t: int) -> str:
    """What `moment` reads as ``t``."""
    when = _EPOCH + timedelta(microseconds=t // 1000)
    return f"{when.replace(tzinfo=None)} UTC"


def wall(t: int) -> str:
    """A time of CLOCK_REALTIME in ns as text."""
    return f"{datetime.fromtimestamp(t / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def nothing(opened: duckdb.DuckDBPyConnection, window: Window) -> OpsError:
    """That there is no step in ``window``, and when there are some."""
    first, last = opened.execute(_RANGE).fetchone() or (None, None)
    when = "at times that are not known"
    if first is not None:
        when = f"from {wall(first)} until {wall(last)}"
    return OpsError(f"no marks {window}; there are some {when}")
