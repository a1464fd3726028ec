# SPDX-License-Identifier: GPL-2.0-or-later
"""What the user can do something about: one line each."""

from __future__ import annotations

from kstall.base import KstallError


class OpsError(KstallError):
    """Something that was asked for cannot be done; the text says why."""


class NotARecording(OpsError):
    """A directory that is not what ``kstall-node record`` leaves."""


class NotADump(OpsError):
    """A file that is not a Flight Recorder's dump, or is not of what was recorded."""


class NotAStore(OpsError):
    """A file that is not what ``kstall seal`` makes, or of another version."""


class Refused(OpsError):
    """A query that DuckDB would not run."""


def shown(text: object, limit: int = 200) -> str:
    """``text`` of strangers on a terminal: no control characters, and not for ever."""
    # One more than may be shown: that there is more has to be seen, and no more looked
    # at, as who writes them may write a lot.
    said = str(text)[: limit + 1]
    clean = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in said
    )
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
