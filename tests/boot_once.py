# SPDX-License-Identifier: GPL-2.0-or-later
"""Boot a guest that never ends, in a process that a test can kill.

usage: boot_once.py IMAGE ROOT OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

from kstall.debian import Root
from kstall.guest.guest import Accel, Machine, Share, boot

if __name__ == "__main__":
    image, root, out = map(Path, sys.argv[1:])
    boot(
        image,
        Root(root.name, root, {}, reused=True),
        Accel("tcg", "for the test"),
        Machine(),
        (Share("/run/share", out, writable=True),),
        ("sh", "-c", "touch /run/share/up; sleep 1000"),
        out=out / "out",
        deadline=300.0,
        say=print,
    )
