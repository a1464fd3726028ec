# SPDX-License-Identifier: GPL-2.0-or-later
"""The kinds of units that workers can do for a run, and the functions that do them.

Each kind is requested and performed in one module, so that both sides agree.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..base import elsewhere
from ..compile import perform as compile_variant
from ..cost import counting
from ..guest import guestrun
from ..tree import tree
from . import kernels, processors
from .ui import Ui

#: Entries that are more than a directory that `cache.keep` made.
KINDS: Mapping[str, elsewhere.EntryKind] = {"trees": tree.Trees()}


def performers() -> dict[str, elsewhere.Performer]:
    """The function that does each kind of unit; its progress is not printed."""
    ui = Ui(Console(quiet=True))
    return {
        "kernels": functools.partial(kernels.perform, ui=ui),
        "compile": functools.partial(_compiled, ui=ui),
        "guest": functools.partial(guestrun.perform, ui=ui),
        "counting": functools.partial(counting.perform, ui=ui),
    }


def _compiled(
    cache_dir: Path, out: Path, spec: Mapping[str, Any], ui: Ui
) -> elsewhere.WorkerResult:
    with processors.for_compilers():
        return compile_variant(cache_dir, out, spec, ui)
