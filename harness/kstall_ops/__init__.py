# SPDX-License-Identifier: GPL-2.0-or-later
"""Which thread of which rank waited for what, and how we know.

In come recordings of nodes, as ``kstall-node record`` writes them; out come a store,
and tested claims about a late job.  It shares with the harness only `base` and
`ftrace`, so that an operator's install needs nothing that builds or boots kernels.
"""

#: Verbs of the ``kstall`` command in this package, and what each does.
VERBS = {
    "seal": "decode recordings of nodes into a store",
    "query": "read-only SQL on a store",
    "explain": "say which rank was late, and what it waited for",
    "timeline": "write a store as a trace for Perfetto",
    "fleet": "fetch recordings from agents on nodes",
    "mcp": "answer a model's questions about a store, read-only, on stdio",
}
