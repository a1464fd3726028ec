# SPDX-License-Identifier: GPL-2.0-or-later
"""Writing results so that a panic right afterwards loses none of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` atomically: the old file or the new one is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.tmp")
    with scratch.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, for text."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, value: Any) -> None:
    """As `write_bytes`, for a JSON value."""
    write_text(path, json.dumps(value, indent=1) + "\n")
