# SPDX-License-Identifier: GPL-2.0-or-later
"""What can stop a run, as typed exceptions.

An error here means *kstall could not judge* (exit 2), unless its class says otherwise:
`FailedCheck` is a verdict (exit 1), and `DoesNotApply` an outcome of its own (exit 3).
A check that ran and found the series wanting is no exception: it is a result (exit 1).
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path


class KstallError(Exception):
    """Something that stops a stage.

    ``what`` happened, where the ``log`` is, and what to do ``next``.
    """

    def __init__(
        self, what: str, *, log: Path | None = None, next: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.log = log
        self.next = next

    @property
    def headline(self) -> str:
        """What happened, in a line: the first one, with the next if that lists it."""
        lines = [line.strip() for line in self.what.splitlines() if line.strip()]
        return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""

    def __str__(self) -> str:
        parts = [self.what]
        if self.log is not None:
            parts.append(f"  log: {self.log}")
        if self.next is not None:
            parts.append(f"  next: {self.next}")
        return "\n".join(parts)


class FailedCheck(KstallError):
    """The tree or the series is at fault, not the machine: a verdict (exit 1)."""


class NotJudged(KstallError):
    """The apparatus failed in a way that need not recur: trying again may help."""


class DoesNotApply(KstallError):
    """A patch does not fit the tree it was asked about (exit 3).

    Neither the patch nor the machine is at fault, for the same patch may fit another
    tree.  ``what`` begins with the place, as in ``0001-x.patch, drivers/y.c:12``.
    """


def explain(error: KstallError | OSError) -> str:
    """What happened and what to do next, also for errors of the operating system."""
    if isinstance(error, KstallError):
        return str(error)
    number = cause(error)
    place = error.filename or "the cache or the run directory"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left on the device that holds {place}\n"
            "  next: free some, or point KSTALL_CACHE and --out at a larger disk"
        )
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"{place}: {os.strerror(number)}\n"
            "  next: point KSTALL_CACHE and --out to where you may write"
        )
    if number == errno.EIO:
        return f"{place}: {os.strerror(number)}\n  next: check that disk (`dmesg`)"
    return str(error)


def cause(error: OSError) -> int:
    """The errno of ``error``; 0 where there is none.

    `shutil.copytree` raises one error for all files, which has only their messages.
    """
    if isinstance(error, shutil.Error) and error.errno is None:
        texts = [
            str(failure[-1]) for failure in error.args[0] if isinstance(failure, tuple)
        ]
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            if any(os.strerror(number) in text for text in texts):
                return number
    return error.errno or 0
