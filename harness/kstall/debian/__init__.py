# SPDX-License-Identifier: GPL-2.0-or-later
"""What Debian gives: source packages of kernels, and the root that guests run on.

In come names of packages; out come files of theirs, or a `Root`, a directory of the
cache under a key.  It knows nothing of trees, series or what is run in a root.
"""

from . import apt, root
from .debian import mirror_for
from .root import Root

__all__ = [
    "Root",
    "apt",
    "mirror_for",
    "root",
]
