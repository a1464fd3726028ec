# SPDX-License-Identifier: GPL-2.0-or-later
"""How kstall itself was called, for commands that people paste."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_NAME = "kstall"


def program() -> str:
    """The first word of a command that calls kstall from where it was called.

    That is a path, as in ``.venv/bin/kstall``, if the shell would not find it by name.
    Where Python was called instead, and in tests, it is the name.
    """
    called = Path(sys.argv[0])
    if called.name != _NAME:
        return _NAME
    by_name = shutil.which(_NAME)
    if by_name is not None and called.exists() and called.samefile(by_name):
        return _NAME
    return sys.argv[0]
