# SPDX-License-Identifier: GPL-2.0-or-later
"""Which thread of which rank waited for what, and how we know.

In come recordings of nodes, as ``kstall-node record`` leaves them; out come a store,
and claims about a late job that were tested.  It shares with the harness only `base`
and `ftrace`, so that an operator's install needs nothing that builds or boots kernels.
"""

#: Verbs of the ``kstall`` command that are this package's, and what each does.
VERBS = {
    "seal": "decode recordings of nodes into a store",
    "query": "read-only SQL on a store",
    "explain": "say which rank was late, and what it waited for",
    "timeline": "write a store as a trace for Perfetto",
    "fleet": "fetch recordings from agents on nodes",
    "mcp": "answer a model's questions about a store, read-only, on stdio",
}
