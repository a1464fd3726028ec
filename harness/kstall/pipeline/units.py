# SPDX-License-Identifier: GPL-2.0-or-later
"""The kinds of units that workers can do for a run, and the functions that do them.

Each kind is requested and performed in one module, so that both sides agree.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from rich.console import Console

from ..base import elsewhere
from ..compile import perform as compile_variant
from ..cost import counting
from ..guest import guestrun
from ..tree import tree
from . import kernels
from .ui import Ui

#: Entries that are more than a directory that `cache.keep` made.
KINDS: Mapping[str, elsewhere.EntryKind] = {"trees": tree.Trees()}


def performers() -> dict[str, elsewhere.Performer]:
    """The function that does each kind of unit; its progress is not printed."""
    ui = Ui(Console(quiet=True))
    return {
        "kernels": functools.partial(kernels.perform, ui=ui),
        "compile": functools.partial(compile_variant, ui=ui),
        "guest": functools.partial(guestrun.perform, ui=ui),
        "counting": functools.partial(counting.perform, ui=ui),
    }
