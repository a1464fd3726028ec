# SPDX-License-Identifier: GPL-2.0-or-later
"""A proven series as mails, and received mails as a series.

In come a series, its base and the report that proves it; out come a thread in files, or
a received thread as a series.  It sends nothing, and starts no proof.
"""

from . import export, incoming, prep, summary

__all__ = [
    "export",
    "incoming",
    "prep",
    "summary",
]
