# SPDX-License-Identifier: GPL-2.0-or-later
"""The ``kstall`` command: verbs that prove patches, and verbs that explain stalls.

The two need different packages, so only the module of the verb is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from kstall_ops import VERBS

_EXTRA = {"kstall.cli": "harness", "kstall_ops.cli": "ops"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return its exit status, or 2 if a package it needs is not installed.

    ``--help``, ``--version`` and no verb work with either set of packages.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    module = "kstall_ops.cli" if words and words[0] in VERBS else "kstall.cli"
    general = not words or words[0] in ("-h", "--help", "--version")
    try:
        try:
            cli = importlib.import_module(module)
        except ModuleNotFoundError:
            if not general:
                raise
            cli = importlib.import_module("kstall_ops.cli")
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "kstall", "kstall_guest", "kstall_ops"):
            raise
        extra = _EXTRA[module]
        command = f"kstall {words[0]}" if words else "kstall"
        print(
            f"kstall: `{command}` needs {name}, which is not installed: "
            f"in a checkout, pip install '.[{extra}]'",
            file=sys.stderr,
        )
        return 2
    return int(cli.main(words))
