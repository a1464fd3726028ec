# SPDX-License-Identifier: GPL-2.0-or-later
"""kstall-node: record stalls on a node, with Python's standard library only.

It is one file to copy (``make node``), runs as root on tracefs, needs no BPF, and opens
no port.  Python 3.9 and later.  docs/recording.md says what it leaves.
"""

VERSION = "0.1.0"
#: Of a recording.
FORMAT = 1
