# SPDX-License-Identifier: GPL-2.0-or-later
"""The ``kstall`` command: arguments in, exit status out.

In come words of a command line; out come what the packages below find, printed, and an
exit status.  Nothing is decided here that a package could decide.
"""

from .arguments import parser
from .command import main
from .views import schema_text

__all__ = [
    "main",
    "parser",
    "schema_text",
]
