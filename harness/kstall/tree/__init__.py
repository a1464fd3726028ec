# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel sources: bases, and patches applied to them.

In come ``KERNEL=`` and patch mails, each a `PatchFile`; out come a `Base`, a `Plan`
(each state that the patches lead through, by content) and a private copy with a state
checked out.  It builds nothing.
"""

from . import am, commits, git, rebase, remote, source, tree
from .am import File
from .source import Base
from .tree import AppliedTree, Plan, TouchedFile

__all__ = [
    "AppliedTree",
    "Base",
    "File",
    "Plan",
    "TouchedFile",
    "am",
    "commits",
    "git",
    "rebase",
    "remote",
    "source",
    "tree",
]
