# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian's archive, as this machine reaches it.

The mirror comes from the machine's own apt sources, so that whatever proxy, mirror or
credentials it needs are those its owner already set up; no host is named here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ..base import KstallError

APT_ETC = Path("/etc/apt")
KEYRINGS = Path("/usr/share/keyrings")
# A suite called "stable" is no proof of Debian: vendors use that name, too.
_CODENAMES = frozenset(
    ("buster", "bullseye", "bookworm", "trixie", "forky", "duke", "sid")
)
_ALIASES = frozenset(("oldoldstable", "oldstable", "stable", "testing", "unstable"))
_POCKET = re.compile(r"([-/])(updates|security|backports(-sloppy)?|proposed-updates)$")


@dataclass(frozen=True)
class Mirror:
    """A place that holds Debian's archive, or (``security``) its security archive."""

    uri: str
    security: bool


@dataclass(frozen=True)
class _Entry:
    """One apt source, whichever of the two formats it was written in."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str


def mirrors(etc: Path = APT_ETC) -> tuple[Mirror, ...]:
    """The Debian mirrors that the apt sources below ``etc`` name, likeliest first.

    Entries of other vendors are left out; a wrong guess among what is left is
    harmless, because whoever uses a mirror verifies it with Debian's `keyring`.
    """
    ranked: dict[Mirror, int] = {}
    for entry in _entries(etc):
        for uri in entry.uris:
            if (rank := _rank(entry, uri)) is not None:
                # A machine may spell one mirror with and without the slash.
                mirror = Mirror(uri.rstrip("/"), _is_security(entry, uri))
                ranked[mirror] = min(rank, ranked.get(mirror, rank))
    return tuple(sorted(ranked, key=lambda mirror: ranked[mirror]))


def mirror_for(suite: str, etc: Path = APT_ETC) -> str:
    """The URI to fetch Debian's ``suite`` from, as `mirrors` ranks them."""
    for mirror in mirrors(etc):
        if mirror.security == suite.endswith("-security"):
            return mirror.uri
    raise KstallError(
        f"no Debian mirror for {suite} among the apt sources in {etc}",
        next=f"add a `deb` line for Debian to {etc / 'sources.list'}",
    )


def keyring(folder: Path = KEYRINGS) -> Path:
    """The keys that sign Debian's archive, as Debian packages them."""
    path = folder / "debian-archive-keyring.gpg"
    if not path.is_file():
        raise KstallError(
            f"{path}: not there, so nothing from Debian can be verified",
            next="install the package debian-archive-keyring",
        )
    return path


def _rank(entry: _Entry, uri: str) -> int | None:
    """0: surely Debian's; 1: may be; None: not."""
    suites = {_POCKET.sub("", suite) for suite in entry.suites}
    if "main" not in entry.components or not suites & (_CODENAMES | _ALIASES):
        return None
    if "debian-archive" in entry.signed_by:
        return 0
    last = urlsplit(uri).path.rstrip("/").rpartition("/")[2]
    if entry.signed_by:
        return None
    if last in ("debian", "debian-security"):
        return 0
    return 1 if suites & _CODENAMES else None


def _is_security(entry: _Entry, uri: str) -> bool:
    return "debian-security" in uri or all(
        suite.endswith(("-security", "/updates")) for suite in entry.suites
    )


def _entries(etc: Path) -> Iterator[_Entry]:
    parts = etc / "sources.list.d"
    for path in (etc / "sources.list", *sorted(parts.glob("*.list"))):
        if path.is_file():
            yield from _one_line(path.read_text(encoding="utf-8", errors="replace"))
    for path in sorted(parts.glob("*.sources")):
        if path.is_file():
            yield from _deb822(path.read_text(encoding="utf-8", errors="replace"))


def _one_line(text: str) -> Iterator[_Entry]:
    """``deb [option=value ...] uri suite component...`` lines."""
    pattern = re.compile(r"deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s*([^#]*)")
    for line in text.splitlines():
        if match := pattern.match(line.strip()):
            options, uri, suite, components = match.groups()
            signed_by = re.search(r"\bsigned-by=(\S+)", options or "")
            yield _Entry(
                _resolve((uri,)),
                (suite,),
                tuple(components.split()),
                signed_by.group(1) if signed_by else "",
            )


def _deb822(text: str) -> Iterator[_Entry]:
    """Stanzas of ``Field: value``; an indented line continues the field above it."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", body):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t") and name:
                fields[name] += "\n" + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        enabled = fields.get("enabled", "yes").lower()
        if "deb" in fields.get("types", "").split() and enabled in ("yes", "true", "1"):
            yield _Entry(
                _resolve(tuple(fields.get("uris", "").split())),
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", ""),
            )


def _resolve(uris: tuple[str, ...]) -> tuple[str, ...]:
    """``uris`` with apt's ``mirror+file:`` lists (Debian's cloud images) opened."""
    resolved: list[str] = []
    for uri in uris:
        scheme, _, rest = uri.partition(":")
        if scheme == "mirror+file":
            listing = Path("/" + rest.lstrip("/"))
            if listing.is_file():
                lines = listing.read_text(encoding="utf-8").splitlines()
                resolved += [words[0] for words in map(str.split, lines) if words]
        elif scheme not in ("cdrom", "mirror"):
            resolved.append(uri)
    return tuple(uri for uri in resolved if not uri.startswith("#"))
