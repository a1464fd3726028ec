# SPDX-License-Identifier: GPL-2.0-or-later
"""A scheduler of Dask's that listens to nobody it was not told of."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from distributed import Scheduler

from ..base import KstallError
from .transport import NO_PAGE, Tls, require_private
from .worker import quiet


def scheduler(
    host: str, port: int, tls: Tls | None, say: Callable[[str], None]
) -> None:
    """Schedule at ``host`` and ``port`` until we are told to end.

    Raises `KstallError` if others than this machine could listen without ``tls``.
    """
    protocol = "tcp" if tls is None else "tls"
    security = require_private(f"{protocol}://{host}:{port}", tls)
    quiet()

    async def serve() -> None:
        told = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        try:
            made = await Scheduler(
                host=host,
                port=port,
                protocol=f"{protocol}://",
                security=security,
                dashboard=False,
                dashboard_address=NO_PAGE,
            )
        except OSError as error:
            raise KstallError(
                f"nobody can listen at {host}, port {port}: {error.strerror or error}"
            ) from error
        say(f"scheduler at {made.address}")
        await told.wait()
        await made.close()

    asyncio.run(serve())
