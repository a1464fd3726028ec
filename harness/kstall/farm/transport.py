# SPDX-License-Identifier: GPL-2.0-or-later
"""Which addresses may be used, and with which certificates.

A worker executes what a client of its scheduler sends: that is how Dask works.  So
whoever can connect can run programs as the worker's user, and without a certificate
only this machine may connect.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributed import Security

from ..base import KstallError, cache, temporary

#: Dask serves its state by HTTP, even without a dashboard: to this machine only.
NO_PAGE = "127.0.0.1:0"


@dataclass(frozen=True)
class Tls:
    """Files in PEM: the CA that is trusted, and our own certificate and key."""

    ca: Path
    cert: Path
    key: Path

    def security(self) -> Security:
        """The settings for Dask.  Raises `KstallError` for a file that is missing or
        not what it should be, which Dask would not name."""
        for path in (self.ca, self.cert, self.key):
            if not path.is_file():
                raise KstallError(f"{path}: there is no such file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for path in (self.ca, self.cert):
            with _named(f"{path} has no certificate in PEM"):
                context.load_verify_locations(path)
        with _named(f"{self.key} has no key in PEM that belongs to {self.cert}"):
            # Of one with a password nobody could be asked for it.
            context.load_cert_chain(self.cert, self.key, password="")
        files: dict[str, Any] = {"tls_ca_file": str(self.ca)}
        for role in ("client", "scheduler", "worker"):
            files[f"tls_{role}_cert"] = str(self.cert)
            files[f"tls_{role}_key"] = str(self.key)
        return Security(require_encryption=True, **files)


@contextlib.contextmanager
def _named(fault: str) -> Iterator[None]:
    """Raise errors of OpenSSL as ``fault``, which names the file."""
    try:
        yield
    except OSError as error:
        raise KstallError(f"{fault}: {error.strerror or error}") from error


def reason(error: BaseException) -> str:
    """What Dask says in ``error``, and what that was due to."""
    texts = [_text(error)]
    cause = error.__cause__ or error.__context__
    while cause is not None:
        if str(cause):
            texts[1:] = [_text(cause)]
        cause = cause.__cause__ or cause.__context__
    return ": ".join(dict.fromkeys(texts))


def _text(error: BaseException) -> str:
    """``error`` in a line."""
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def temporary_certificates() -> Security:
    """A certificate and its key for one run, which are only in memory."""
    try:
        security: Security = Security.temporary()
    except ImportError as error:
        raise KstallError(
            "workers need cryptography, which is not installed",
            next="in a checkout, pip install '.[workers]'",
        ) from error
    return security


@contextlib.contextmanager
def written(security: Security) -> Iterator[Tls]:
    """`temporary_certificates` in files that only this user can read, which are gone
    when the block ends."""
    with temporary.directory("tls") as place:
        tls = Tls(place / "cert.pem", place / "cert.pem", place / "key.pem")
        texts = security.get_tls_config_for_role("worker")
        cache.write_text(tls.cert, texts["cert"], mode=0o600)
        cache.write_text(tls.key, texts["key"], mode=0o600)
        yield tls


def require_private(address: str, tls: Tls | None) -> Security | None:
    """The settings to use ``address``.  Raises `KstallError` if it is not private."""
    parts = urlsplit(address)
    if parts.scheme not in ("tcp", "tls") or not parts.hostname:
        raise KstallError(
            f"{address} is not an address of a scheduler",
            next="it looks like tcp://127.0.0.1:8786 or tls://host:8786",
        )
    try:
        port = parts.port
    except ValueError as error:
        raise KstallError(f"{address}: {error}") from error
    if port is None:
        raise KstallError(f"{address}: there is no port", next=f"try {address}:8786")
    if parts.scheme == "tls":
        if tls is None:
            raise KstallError(
                f"{address} asks for certificates",
                next="name them: --tls-ca-file, --tls-cert and --tls-key",
            )
        return tls.security()
    require_loopback(parts.hostname, address)
    return None


def require_loopback(host: str, named: str) -> None:
    """Raise `KstallError`, about what the user ``named``, if others can connect to
    ``host``, where nothing is encrypted."""
    if not is_loopback(host):
        raise KstallError(
            f"{named} is not this machine, and tcp:// has no encryption: a worker "
            "executes what it is sent",
            next="use tls:// with certificates, see docs/workers.md",
        )


def own_address(address: str) -> str:
    """Our own address, as the machine at ``address`` sees it."""
    parts = urlsplit(address)
    try:
        (info, *_) = socket.getaddrinfo(
            parts.hostname, parts.port, type=socket.SOCK_DGRAM
        )
        with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
            # Nothing is sent.
            probe.connect(info[4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise KstallError(f"{address}: {error.strerror}") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to ``host``."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise KstallError(f"{host}: {error.strerror}") from error
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
