# SPDX-License-Identifier: GPL-2.0-or-later
"""Errors that the user can do something about; each is one line."""

from __future__ import annotations

from kstall.base import KstallError


class OpsError(KstallError):
    """A request that cannot be carried out; the text gives the reason."""


class NotARecording(OpsError):
    """A directory that is not a recording of ``kstall-node record``, or is damaged."""


class NotADump(OpsError):
    """A file that is no Flight Recorder dump, or belongs to no recorded process."""


class NotAStore(OpsError):
    """A file that is not a store of ``kstall seal``, or has another version."""


class Refused(OpsError):
    """A query that DuckDB does not run."""


def shown(text: object, limit: int = 200) -> str:
    """Untrusted ``text`` for a terminal: no control characters, at most ``limit``."""
    # One character more than is shown tells whether there is more; the rest is never
    # looked at, as untrusted text may be very long.
    head = str(text)[: limit + 1]
    clean = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in head
    )
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
