# SPDX-License-Identifier: GPL-2.0-or-later
"""``python3 -m kstall_node``, and what the zipapp runs."""

import sys


def run() -> None:
    """Start, or report in one line that this Python is too old.

    Some distributions' python3 is still 3.6: this file may use nothing newer.
    """
    if sys.version_info < (3, 9):  # noqa: UP036
        sys.exit(
            "kstall-node: Python 3.9 or later is needed, and this is "
            f"{sys.version.split()[0]}; try python3.9 {sys.argv[0]}"
        )
    from kstall_node.cli import main  # noqa: PLC0415

    sys.exit(main())


if __name__ == "__main__":
    run()
