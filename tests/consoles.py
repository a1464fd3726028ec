# SPDX-License-Identifier: GPL-2.0-or-later
"""The reports in a text, which is read as a guest's console is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kstall.guest import console


def scan(text: str) -> tuple[console.Splat, ...]:
    """The reports in ``text``."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "console"
        path.write_bytes(text.encode())
        return console.scan_file(path)
