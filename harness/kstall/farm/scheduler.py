# SPDX-License-Identifier: GPL-2.0-or-later
"""A Dask scheduler that accepts only this machine, or peers with certificates."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from distributed import Scheduler

from ..base import KstallError
from .transport import NO_PAGE, Tls, is_loopback, require_private
from .worker import quiet


def scheduler(
    host: str, port: int, tls: Tls | None, say: Callable[[str], None]
) -> None:
    """Schedule at ``host`` and ``port`` until a signal ends it.

    Raises `KstallError` if other machines could connect without ``tls``.
    """
    protocol = "tcp" if tls is None else "tls"
    security = require_private(f"{protocol}://{host}:{port}", tls)
    quiet()

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            server = await Scheduler(
                host=host,
                port=port,
                protocol=f"{protocol}://",
                security=security,
                dashboard=False,
                dashboard_address=NO_PAGE,
            )
        except OSError as error:
            raise KstallError(
                f"cannot listen at {host}, port {port}: {error.strerror or error}"
            ) from error
        say(f"scheduler at {server.address}")
        if tls is not None and is_loopback(host):
            # Debian gives a machine's own name to 127.0.1.1.
            say(
                f"only this machine can connect to it: {host} is its loopback "
                "interface; for others, --host needs the address that they see"
            )
        await stop.wait()
        await server.close()

    asyncio.run(serve())
