# SPDX-License-Identifier: GPL-2.0-or-later
"""``python3 -m kstall``: the same as the ``kstall`` command."""

import sys

from .entry import main

sys.exit(main())
