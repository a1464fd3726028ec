# SPDX-License-Identifier: GPL-2.0-or-later
"""What another process may do for a run, and how: the table of all units.

Each kind is asked for and done in one module, so that both agree; here is which.
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
KINDS: Mapping[str, elsewhere.Kind] = {"trees": tree.Trees()}


def performers() -> dict[str, elsewhere.Performer]:
    """How each kind of unit is done; what it says on the way nobody hears."""
    ui = Ui(Console(quiet=True))
    return {
        "kernels": functools.partial(kernels.perform, ui=ui),
        "compile": functools.partial(compile_variant, ui=ui),
        "guest": functools.partial(guestrun.perform, ui=ui),
        "counting": functools.partial(counting.perform, ui=ui),
    }
