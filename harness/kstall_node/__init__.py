# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall-node: record stalls on a node, with Python's standard library only.

It is one file to copy (``make node``), runs as root on tracefs, needs no BPF, and opens
no port.  Python 3.9 and later.  Its output is described in docs/recording.md.
"""

VERSION = "0.1.0"
#: Version of the format of recordings.
FORMAT = 1
