# SPDX-License-Identifier: GPL-2.0-or-later
"""sparse, the kernel's own semantic checker, as new as the tree requires.

The sparse of Debian's releases is too old for current kernels.  So where the host's is
too old, the newest package is fetched, and runs with the C library of the guest's root,
as pahole does.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..base import KstallError, cache, process
from ..debian import Root, apt

_HELP = "install sparse 0.6.5 or newer"
# The prefix tells its lines from the compiler's, which have the same form.  If it dies
# of a signal it has not read all of the file.
_MARKED = """\
#!/bin/sh
said=$({program} "$@" 2>&1)
status=$?
test -z "$said" || printf '%s\\n' "$said" | sed 's/^/sparse: /' >&2
test $status -lt 128 || exit $status
"""


class NoChecker(KstallError):
    """There is no sparse that is new enough for this tree."""


@dataclass(frozen=True)
class Checker:
    """``program`` is for ``CHECK=``; all lines that it prints begin with "sparse: "."""

    program: Path
    version: str


def obtain(
    tree: Path, root: Root, cache_dir: Path, say: Callable[[str], None]
) -> Checker:
    """The host's sparse if ``tree`` can be read by it, else Debian's newest.

    Raises `NoChecker` with a remedy.
    """
    home = cache_dir / "sparse"
    host = shutil.which("sparse")
    if host is not None and _is_new_enough(tree, host):
        return _marked(home, host)
    try:
        deb = apt.newest("sparse", home, say, now=time.time())
        unpacked = home / deb.version
        if not cache.is_complete(unpacked):
            with cache.keep(unpacked) as scratch:
                process.run(["dpkg-deb", "-x", deb.path, scratch])
    except KstallError as error:
        raise NoChecker(
            f"no sparse new enough for this kernel: {error.headline}",
            next=_HELP,
        ) from error
    command = shlex.join(map(str, root.command(unpacked / "usr/bin/sparse")))
    borrowed = _script(home, "borrowed", f'#!/bin/sh\nexec {command} "$@"\n')
    if not _is_new_enough(tree, str(borrowed)):
        raise NoChecker(
            f"sparse {deb.version} is too old for this kernel",
            next=_HELP,
        )
    return _marked(home, str(borrowed))


def _is_new_enough(tree: Path, program: str) -> bool:
    """Whether ``program`` passes the tree's own test, if the tree has one."""
    test = tree / "scripts/checker-valid.sh"
    if process.run([program, "--version"], check=False).returncode != 0:
        return False
    if not test.exists():
        return True
    completed = process.run(["sh", test, program, "-m64"], check=False)
    return completed.stdout.strip() == "1"


def _marked(home: Path, program: str) -> Checker:
    marked = _script(home, "check", _MARKED.format(program=program))
    version = process.run([program, "--version"]).stdout.strip()
    return Checker(marked, version)


def _script(home: Path, name: str, text: str) -> Path:
    """A program; one for another tree, which a run may be using, stays."""
    path = home / f"{name}-{cache.digest(text)}"
    cache.write_text(path, text, mode=0o755)
    return path
