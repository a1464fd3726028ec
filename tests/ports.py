# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports for servers that have to be told one before they start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held() -> Iterator[int]:
    """A port of 127.0.0.1 that the kernel gives nobody else while the block runs.

    Whoever names it and sets SO_REUSEADDR, as servers do, may listen there: we do not.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
