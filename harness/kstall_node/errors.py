# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong on a node; each is one line for whoever started the recorder."""

from __future__ import annotations

import errno


class NodeError(Exception):
    """It cannot be done here; the text says why and what to do."""


class Full(NodeError):
    """The disk that the recording is on has no room left."""


def shown(text: object) -> str:
    """``text`` for a terminal: names of threads and files are what strangers chose."""
    plain = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)


def is_full(error: OSError) -> bool:
    """Whether it says that there is no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
