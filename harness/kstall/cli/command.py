# SPDX-License-Identifier: GPL-2.0-or-later
"""The command: arguments in, exit status out."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from ..base import KstallError, cache, explain, process
from .arguments import parser
from .places import CANNOT_RUN
from .terminal import complain, output

# `make validate KERNEL=...` exports some of these, and users may have set others for
# builds of their own; the makes that we call would obey them.
_NOT_FOR_KBUILD = (
    "MAKEFLAGS",
    "MFLAGS",
    "MAKEOVERRIDES",
    "MAKELEVEL",
    "ARCH",
    "CROSS_COMPILE",
    "LLVM",
    "KBUILD_OUTPUT",
    "KBUILD_EXTMOD",
    "KCFLAGS",
    "KCPPFLAGS",
    "KCONFIG_CONFIG",
    "KCONFIG_ALLCONFIG",
    "LOCALVERSION",
    "LANGUAGE",
    "LC_ALL",
    "INSTALL_MOD_PATH",
    "O",
    "C",
    "V",
    "W",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kstall``; 0 proven, 1 a check failed, 2 no verdict, 3 a series does not
    apply."""
    arguments = parser().parse_args(argv)
    for name in _NOT_FOR_KBUILD:
        os.environ.pop(name, None)
    # Compiler messages are parsed; kbuild unsets LC_ALL, and uses the others.
    os.environ.update(LANG="C.UTF-8", LC_MESSAGES="C.UTF-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Paths may hold bytes that are not UTF-8, and are printed all the same.
        sys.stdout.reconfigure(errors="backslashreplace")
    console = output()
    # All three like Ctrl-C, so that the report is written.  Those that are ignored, as
    # nohup and shells have it of what they start in the background, stay so.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, process.interrupt)
    try:
        with cache.remarked() as remarks:
            try:
                return int(arguments.verb(arguments, console))
            finally:
                # Remarks of a run's stages were printed, and are in its report.
                for remark in remarks:
                    complain(remark)
    except (KstallError, OSError) as error:
        complain(explain(error))
    except KeyboardInterrupt:
        complain(
            "interrupted; what was finished is kept: run the same command again to "
            "continue"
        )
    except Exception:
        # Python's exit status for a crash is 1, which stands for a check that failed.
        complain(f"a bug in kstall:\n{traceback.format_exc()}")
    return CANNOT_RUN
