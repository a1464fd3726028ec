# SPDX-License-Identifier: GPL-2.0-or-later
"""``python3 -m kstall_node``, and what the zipapp runs."""

import sys

from kstall_node.cli import main

if __name__ == "__main__":
    sys.exit(main())
