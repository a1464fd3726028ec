# SPDX-License-Identifier: GPL-2.0-or-later
"""Who gets which mail of a series, and why.

The tree's own ``scripts/get_maintainer.pl`` is asked about each patch, with the
MAINTAINERS file as the series leaves it.  It runs on copies of the few files that it
reads, so that neither the workspace nor a user's tree is needed, or in its way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from email.headerregistry import Address
from email.utils import formataddr
from pathlib import Path

from ..base import KstallError, process
from ..series import Cc, Patch, Series
from ..tree import tree

_SCRIPT = "scripts/get_maintainer.pl"
_READS = (_SCRIPT, "MAINTAINERS", ".get_maintainer.ignore", ".mailmap")
_LINE = re.compile(
    r"(?:(?P<name>.*) <(?P<address>\S+)>|(?P<bare>\S+)) \((?P<role>.+)\)"
)
_LIST = re.compile(r"[a-z -]*\blist\b")
_MORE_ROLES = re.compile(r",(?:maintainer|supporter|reviewer|[a-z]+ list):")
_TRACING = "linux-trace-kernel@vger.kernel.org"
_TIMEOUT_S = 120.0


class BadAddress(KstallError):
    """Something that should be an e-mail address, and is not."""


@dataclass(frozen=True)
class Recipient:
    """A person or a mailing list; ``to`` is for those who are to act on the series.

    ``because`` has the roles that the tree's script tells, or a reason of ours.
    """

    name: str
    address: str
    is_list: bool
    to: bool
    because: tuple[str, ...]

    @property
    def header(self) -> str:
        """As it stands in To: and Cc:, encoded where it is not ASCII."""
        return formataddr((self.name, self.address))

    @property
    def shown(self) -> str:
        """As people read it."""
        return f"{self.name} <{self.address}>" if self.name else self.address


@dataclass(frozen=True)
class Recipients:
    """Those of each patch, those of the cover letter (all of them), and who was left
    out though the tree's script names them, with the reason."""

    patches: tuple[tuple[Recipient, ...], ...]
    cover: tuple[Recipient, ...]
    omitted: tuple[Recipient, ...]


def require_address(address: str, where: str) -> str:
    """``address`` if mail can be sent to it; else raises `BadAddress`."""
    try:
        found = Address(addr_spec=address)
    except Exception as error:  # a dozen kinds, most of them private
        raise BadAddress(f"{where}: {address!r} is no e-mail address") from error
    domain = found.domain.split(".")
    if not address.isascii() or not address.isprintable() or " " in address:
        raise BadAddress(f"{where}: {address!r} is no plain e-mail address")
    if len(domain) < 2 or not all(re.fullmatch(r"[\w-]+", part) for part in domain):
        raise BadAddress(f"{where}: {address!r} has no domain that mail can go to")
    return address


def find(series: Series, plan: tree.Plan, scratch: Path) -> Recipients:
    """Ask the tree about each patch and add what ``series.toml`` says.

    ``scratch`` is a directory of ours for copies and patches.  Raises `KstallError`
    for a tree without the script or MAINTAINERS, and `BadAddress`.
    """
    here = _copies(plan, scratch)
    omitted: dict[str, Recipient] = {}
    patches = []
    for patch in series.patches:
        found = [_ranked(one, series) for one in _ask(patch, here, scratch)]
        kept = []
        for one in found:
            if (reason := _omitted(one, series)) is not None:
                omitted[one.address.lower()] = replace(one, because=(reason,))
            else:
                kept.append(one)
        patches.append(_merged([*kept, *_ours(series, patch)]))
    # Whoever is to act on one patch has to see the others.
    acting = _merged(one for found in patches for one in found if one.to)
    everyone = tuple(_merged([*found, *acting]) for found in patches)
    cover = _merged(one for found in everyone for one in found)
    named = {one.address.lower() for one in cover}
    left = tuple(one for key, one in omitted.items() if key not in named)
    return Recipients(everyone, cover, left)


def parse(said: str) -> tuple[Recipient, ...]:
    """What get_maintainer.pl printed, all of it as Cc."""
    found = []
    for line in said.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise KstallError(f"{_SCRIPT} printed what is no recipient: {line!r}")
        address = require_address(match["address"] or match["bare"], _SCRIPT)
        name = (match["name"] or "").strip('"').replace('\\"', '"')
        if not name.isprintable():
            raise BadAddress(f"{_SCRIPT}: {name!r} is no name for a header")
        listed = _LIST.match(match["role"]) is not None
        found.append(Recipient(name, address, listed, False, (match["role"],)))
    return tuple(found)


def _copies(plan: tree.Plan, scratch: Path) -> Path:
    """A directory with what the script reads, MAINTAINERS as the series leaves it."""
    here = scratch / "maintainers"
    for path, before in tree.pristine(plan.base, _READS).items():
        file = plan.files.get(path, before)
        if file is None:
            if path in (_SCRIPT, "MAINTAINERS"):
                raise KstallError(
                    f"the tree {plan.base.origin} has no {path}, so nothing says who "
                    "should get the mails",
                    next="give KERNEL= a whole kernel tree",
                )
            continue
        target = here / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
    return here


def _ask(patch: Patch, here: Path, scratch: Path) -> tuple[Recipient, ...]:
    done = process.run(
        (
            *("perl", _SCRIPT, "--no-tree", "--no-git", "--no-git-fallback"),
            *("--roles", "--no-rolestats", patch.path.absolute()),
        ),
        cwd=here,
        # A .get_maintainer.conf in the user's home must not decide.
        env={"HOME": str(scratch), "LC_ALL": "C.UTF-8"},
        timeout=_TIMEOUT_S,
    )
    return parse(done.stdout)


def _ranked(one: Recipient, series: Series) -> Recipient:
    """To: the maintainers and the list of the subsystem whose series it is."""
    home = series.spec.subsystem
    role, _, section = one.because[0].partition(":")
    acts = role in ("maintainer", "supporter") and section.startswith(home.name)
    mine = one.is_list and one.address.lower() == home.list.lower()
    return replace(one, to=acts or mine)


def _omitted(one: Recipient, series: Series) -> str | None:
    for omission in series.spec.mail.omit:
        section = one.because[0].partition(":")[2]
        if section.startswith(omission.section) and not _MORE_ROLES.search(section):
            reason = " ".join(omission.because.split())
            return f"{omission.section}: {reason}"
    return None


def _ours(series: Series, patch: Patch) -> list[Recipient]:
    """Whom the script does not name for ``patch``."""
    home = series.spec.subsystem
    where = f"{series.name}/series.toml"
    mine = require_address(home.list, f"{where}: subsystem.list")
    found = [Recipient("", mine, True, True, (f"list of {home.name}",))]
    headers = {point.header for point in series.spec.tracepoint} & set(patch.touches)
    if headers:
        why = f"trace events in {', '.join(sorted(headers))}"
        found.append(Recipient("", _TRACING, True, False, (why,)))
    for cc in series.spec.mail.cc:
        if not cc.patches or patch.path.name in cc.patches:
            found.append(_of(cc))
    return found


def _of(cc: Cc) -> Recipient:
    reason = " ".join(cc.because.split())
    return Recipient(cc.name, cc.address, not cc.name, False, (reason,))


def _merged(found: Iterable[Recipient]) -> tuple[Recipient, ...]:
    """Each address once, with all reasons; To: first, people before lists."""
    merged: dict[str, Recipient] = {}
    for one in found:
        known = merged.get(one.address.lower())
        if known is None:
            merged[one.address.lower()] = one
            continue
        because = tuple(dict.fromkeys((*known.because, *one.because)))
        merged[one.address.lower()] = replace(
            known,
            name=known.name or one.name,
            to=known.to or one.to,
            because=because,
        )
    return tuple(sorted(merged.values(), key=lambda one: (not one.to, one.is_list)))


def shown(recipients: Sequence[Recipient], *, lists: bool, to: bool) -> str:
    """Those of one kind, as one line."""
    return ", ".join(
        one.shown for one in recipients if one.is_list == lists and one.to == to
    )
