# SPDX-License-Identifier: GPL-2.0-or-later
"""A proven series as mails, and series that came as mails.

In come a series, its base and the report that proves it; out come a thread in files, or
what a received one changes.  It sends nothing, and starts no proof.
"""

from . import export, incoming, prep, summary

__all__ = [
    "export",
    "incoming",
    "prep",
    "summary",
]
