# SPDX-License-Identifier: GPL-2.0-or-later
"""Several tasks at once, and none left behind when the run ends early."""

from __future__ import annotations

import concurrent.futures
import contextvars
from collections.abc import Callable, Mapping
from typing import TypeVar

from . import process

K = TypeVar("K")
V = TypeVar("V")
# A signal that comes just before the interpreter waits does not end that wait: so none
# is longer than this, in seconds.
_LOOK_S = 0.5


def each(
    tasks: Mapping[K, Callable[[], V]], workers: int, on_result: Callable[[K, V], None]
) -> None:
    """Call all ``tasks``, ``workers`` at once, and ``on_result`` here as they return.

    Any exception, of a task, of ``on_result`` or by Ctrl-C, first ends the children of
    the other tasks: a pool waits for its threads when it is left, and they for their
    children.
    """
    with (
        process.together() as children,
        concurrent.futures.ThreadPoolExecutor(workers) as pool,
    ):
        try:
            # The first one runs before the last one is handed out.
            waiting = {
                # A new thread has an empty context.
                pool.submit(contextvars.copy_context().run, task): key
                for key, task in tasks.items()
            }
            while waiting:
                ended, _ = concurrent.futures.wait(
                    waiting, _LOOK_S, concurrent.futures.FIRST_COMPLETED
                )
                for future in [future for future in waiting if future in ended]:
                    on_result(waiting.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children.end()
            raise
