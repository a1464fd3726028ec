# SPDX-License-Identifier: GPL-2.0-or-later
"""A host that is busy with something else, on purpose.

stress-ng does the work.  It runs as every child of ours does, in a PID namespace that
ends with us, so that neither Ctrl-C nor SIGKILL leaves a busy machine behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..base import KstallError, process, temporary

PROGRAM = "stress-ng"
# Of each worker that uses memory, and of each that writes files.
_BYTES = "128M"
# Its output when it forks its worker.
_STARTED = b"dispatching hogs"
_STARTED_S = 60.0


def commands(times: int, processors: int, scratch: Path) -> list[tuple[str, ...]]:
    """A stress-ng of one worker each, ``times`` a processor, of three kinds.

    A quarter of them writes files below ``scratch`` and a quarter uses memory, at least
    one each; the others only compute.
    """
    workers = max(3, times * processors)
    quarter = workers // 4 or 1
    kinds = ["hdd"] * quarter + ["vm"] * quarter
    kinds += ["cpu"] * (workers - len(kinds))
    size = {"hdd": ("--hdd-bytes", _BYTES), "vm": ("--vm-bytes", _BYTES), "cpu": ()}
    return [
        (
            *(PROGRAM, f"--{kind}", "1", *size[kind], "--timeout", "0"),
            *("--temp-path", str(scratch / str(number))),
            # Out of memory, rather one of its workers is killed than a guest.
            "--oomable",
        )
        for number, kind in enumerate(kinds)
    ]


@contextlib.contextmanager
def put(times: int, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Keep the host busy while the block runs; with ``times`` 0 leave it alone.

    Yields a function that raises `KstallError` if the load has ended: then results are
    not those of the load that they name.
    """
    if times == 0:
        yield lambda: None
        return
    if shutil.which(PROGRAM) is None:
        raise KstallError(
            f"{PROGRAM}: command not found, so the host cannot be kept busy",
            next=f"install it (`sudo apt-get install {PROGRAM}`), or ask for --load 0",
        )
    trial = f"see whether `{PROGRAM} --cpu 1 --timeout 1` runs"
    count = len(os.sched_getaffinity(0))
    with temporary.directory("load") as scratch, contextlib.ExitStack() as stack:
        children = []
        # Each in a session of its own: the kernel gives all of one session together
        # as much time as it gives a guest (sched_autogroup).
        for number, command in enumerate(commands(times, count, scratch)):
            # Their process ids, each in its namespace, are the same.
            (scratch / str(number)).mkdir()
            log = scratch / f"log{number}"
            sink = stack.enter_context(log.open("wb"))
            child = process.start(command, stdout=sink.fileno())
            children.append((stack.enter_context(child), log))

        def required() -> None:
            for child, log in children:
                if (status := child.poll()) is not None:
                    raise KstallError(
                        f"the load on the host ended by itself, exit status {status}"
                        f"{_tail(log)}",
                        next=trial,
                    )

        limit = time.monotonic() + _STARTED_S
        while not all(_STARTED in log.read_bytes() for _, log in children):
            required()
            if time.monotonic() > limit:
                raise KstallError(
                    f"{PROGRAM} did not begin in {_STARTED_S:g} s", next=trial
                )
            time.sleep(0.05)
        say(f"the host is busy: {len(children)} workers on {count} processors")
        yield required
        required()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return ":\n" + "\n".join(lines[-5:]) if lines else ""
