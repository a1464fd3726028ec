# SPDX-License-Identifier: GPL-2.0-or-later
"""What comes from Debian: source packages of kernels, and the root that guests run on.

In come names of packages; out come their files, or a `Root`, an entry of the cache.
It knows nothing of trees, series or what is run in a root.
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
