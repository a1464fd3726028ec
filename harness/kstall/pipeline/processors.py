# SPDX-License-Identifier: GPL-2.0-or-later
"""As many processors for compilers as there is memory for.

make gets a job for each processor that its thread may use.  On a machine of many
processors, or in a container that may use little of the machine's memory, so many
compilers would be killed for want of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ..base import space

# gcc 12 takes 0.17 GB for kernel/fork.c of Linux 7.3, and for the largest files, such
# as arch/x86/kvm/x86.c, 0.32 GB; sanitizers take some more.
_OF_A_COMPILER = 384 * 2**20


@contextlib.contextmanager
def for_compilers() -> Iterator[int]:
    """Restrict this thread, and all that it starts, to as many processors as there is
    memory for compilers now, at least one; yields their number.

    Other threads, in which guests may run, keep theirs.
    """
    allowed = os.sched_getaffinity(0)
    count = max(1, min(len(allowed), space.memory() // _OF_A_COMPILER))
    if count == len(allowed):
        yield count
        return
    ordered = sorted(allowed)
    # Another run, which has as little memory, should not choose the same ones.
    first = os.getpid() % len(ordered)
    os.sched_setaffinity(0, (ordered[first:] + ordered[:first])[:count])
    try:
        yield count
    finally:
        # There may be none left of these: a group of processors can be changed.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)
