# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong on a node; each error is one line for the user."""

from __future__ import annotations

import errno


class NodeError(Exception):
    """Something that cannot be done here; the text gives reason and remedy."""


class Full(NodeError):
    """The disk with the recording is full."""


def shown(text: object) -> str:
    """``text`` made safe for a terminal: names of threads and files are untrusted."""
    plain = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)


def is_full(error: OSError) -> bool:
    """Whether the cause is a full disk, a quota or a limit on file size."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
