# SPDX-License-Identifier: GPL-2.0-or-later
"""Who may listen where, and with which certificates.

A worker executes what a client of its scheduler sends: that is Dask's nature.  So who
can connect has the worker's user account, and nothing but this machine may connect
without a certificate.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributed import Security

from ..base import KstallError

#: Dask answers there how it is, also without a page and to whoever asks: nobody else.
NO_PAGE = "127.0.0.1:0"


@dataclass(frozen=True)
class Tls:
    """Files in PEM: whose signature is trusted, and what we show ourselves."""

    ca: Path
    cert: Path
    key: Path

    def security(self) -> Security:
        """As Dask wants it.  Raises `KstallError` for a file that is not there."""
        for path in (self.ca, self.cert, self.key):
            if not path.is_file():
                raise KstallError(f"{path}: there is no such file")
        files: dict[str, Any] = {"tls_ca_file": str(self.ca)}
        for role in ("client", "scheduler", "worker"):
            files[f"tls_{role}_cert"] = str(self.cert)
            files[f"tls_{role}_key"] = str(self.key)
        return Security(require_encryption=True, **files)


def require_private(address: str, tls: Tls | None) -> Security | None:
    """How to speak to ``address``.  Raises `KstallError` if others could listen."""
    parts = urlsplit(address)
    if parts.scheme not in ("tcp", "tls") or not parts.hostname:
        raise KstallError(
            f"{address} is no address of a scheduler",
            next="it looks like tcp://127.0.0.1:8786 or tls://host:8786",
        )
    try:
        parts.port  # noqa: B018 - it is parsed when it is asked for
    except ValueError as error:
        raise KstallError(f"{address}: {error}") from error
    if parts.scheme == "tls":
        if tls is None:
            raise KstallError(
                f"{address} asks for certificates",
                next="name them: --tls-ca-file, --tls-cert and --tls-key",
            )
        return tls.security()
    if not is_loopback(parts.hostname):
        raise KstallError(
            f"{address} is not this machine, and tcp:// has no encryption: a worker "
            "executes what it is sent",
            next="use tls:// with certificates, see docs/workers.md",
        )
    return None


def own_address(address: str) -> str:
    """Our own one, as the machine at ``address`` sees it."""
    parts = urlsplit(address)
    try:
        (found, *_) = socket.getaddrinfo(
            parts.hostname, parts.port, type=socket.SOCK_DGRAM
        )
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            # Nothing is sent.
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise KstallError(f"{address}: {error.strerror}") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to ``host``."""
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise KstallError(f"{host}: {error.strerror}") from error
    return all(ipaddress.ip_address(one).is_loopback for one in found)
