# SPDX-License-Identifier: GPL-2.0-or-later
"""Who gets which mail of a series, and why.

The tree's own ``scripts/get_maintainer.pl`` runs for each patch, with the patched
MAINTAINERS file.  It runs on copies of the few files that it reads, so it needs neither
the workspace nor a user's tree.  Without a history it does not know who wrote the
commits in Fixes: tags; these are looked up in that of the base, if it has one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from email.headerregistry import Address
from email.utils import formataddr, parseaddr
from pathlib import Path

from ..base import KstallError, process
from ..lint import patchtext
from ..series import Cc, PatchFile, Series, patchfile
from ..tree import Base, git, tree

_SCRIPT = "scripts/get_maintainer.pl"
_IGNORE = ".get_maintainer.ignore"
_READS = (_SCRIPT, "MAINTAINERS", _IGNORE, ".mailmap")
_LINE = re.compile(
    r"(?:(?P<name>.*) <(?P<address>\S+)>|(?P<bare>\S+)) \((?P<role>.+)\)"
)
_LIST = re.compile(r"[a-z -]*\blist\b")
_MORE_ROLES = re.compile(r",(?:maintainer|supporter|reviewer|[a-z]+ list):")
_TRACING = "linux-trace-kernel@vger.kernel.org"
_WROTE = "wrote the commit in Fixes:"
_TIMEOUT_S = 120.0


class BadAddress(KstallError):
    """A string that is not a valid e-mail address."""


@dataclass(frozen=True)
class Recipient:
    """A person or a mailing list; ``to`` is for those who should act on the series.

    ``because`` has the roles that the tree's script prints, or a reason of ours.
    """

    name: str
    address: str
    is_list: bool
    to: bool
    because: tuple[str, ...]

    @property
    def field(self) -> str:
        """The header that names it."""
        return "To" if self.to else "Cc"

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
    """The recipients of each patch, those of the cover letter (all of them), and those
    whom the tree's script names but the series omits, with the reason.

    ``unknown`` has the commits in Fixes: tags of which the author is not known.
    """

    patches: tuple[tuple[Recipient, ...], ...]
    cover: tuple[Recipient, ...]
    omitted: tuple[Recipient, ...]
    unknown: tuple[str, ...]

    def know(self, section: str) -> bool:
        """Whether MAINTAINERS has any of them in that section, for a touched file."""
        return any(
            why.partition(":")[2].startswith(section)
            for recipient in self.cover + self.omitted
            for why in recipient.because
        )


def require_address(address: str, where: str) -> str:
    """``address`` if mail can be sent to it; else raises `BadAddress`."""
    try:
        parsed = Address(addr_spec=address)
    except Exception as error:  # a dozen kinds, most of them private
        raise BadAddress(f"{where}: {address!r} is no e-mail address") from error
    domain = parsed.domain.split(".")
    if not address.isascii() or not address.isprintable() or " " in address:
        raise BadAddress(f"{where}: {address!r} is no plain e-mail address")
    if len(domain) < 2 or not all(re.fullmatch(r"[\w-]+", part) for part in domain):
        raise BadAddress(f"{where}: {address!r} has no domain that mail can go to")
    return address


def find(series: Series, plan: tree.Plan, scratch: Path) -> Recipients:
    """The recipients by the tree's script and by ``series.toml``.

    ``scratch`` is a directory for copies and patches.  Raises `KstallError` for a tree
    without the script or MAINTAINERS, and `BadAddress`.
    """
    copies = _copies(plan, scratch)
    ignored = _ignored(copies)
    omitted: dict[str, Recipient] = {}
    unknown: dict[str, None] = {}
    patches = []
    for patch in series.patches:
        ranked = [
            _ranked(recipient, series) for recipient in _query(patch, copies, scratch)
        ]
        recipients = []
        for recipient in ranked:
            if (reason := _omitted(recipient, series)) is not None:
                omitted[recipient.address.lower()] = replace(
                    recipient, because=(reason,)
                )
            else:
                recipients.append(recipient)
        for digits, author in _fixed(patch, plan.base).items():
            if author is None:
                unknown[digits] = None
            elif author.address.lower() not in ignored:
                recipients.append(author)
        patches.append(_merged([*recipients, *_additions(series, patch)]))
    # Those who should act on one patch have to see the others.
    acting = _merged(
        recipient for recipients in patches for recipient in recipients if recipient.to
    )
    everyone = tuple(_merged([*recipients, *acting]) for recipients in patches)
    cover = _merged(recipient for recipients in everyone for recipient in recipients)
    addresses = {recipient.address.lower() for recipient in cover}
    left_out = tuple(
        recipient for address, recipient in omitted.items() if address not in addresses
    )
    return Recipients(everyone, cover, left_out, tuple(unknown))


def parse(output: str) -> tuple[Recipient, ...]:
    """The recipients in the output of get_maintainer.pl, all as Cc."""
    recipients = []
    for line in output.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise KstallError(
                f"{_SCRIPT} printed a line that is no recipient: {line!r}"
            )
        address = require_address(match["address"] or match["bare"], _SCRIPT)
        name = (match["name"] or "").strip('"').replace('\\"', '"')
        if not name.isprintable():
            raise BadAddress(f"{_SCRIPT}: {name!r} is no name for a header")
        listed = _LIST.match(match["role"]) is not None
        recipients.append(Recipient(name, address, listed, False, (match["role"],)))
    return tuple(recipients)


def _copies(plan: tree.Plan, scratch: Path) -> Path:
    """A directory with the files that the script reads, with patched MAINTAINERS."""
    directory = scratch / "maintainers"
    for path, before in tree.pristine(plan.base, _READS).items():
        file = plan.files.get(path, before)
        if file is None:
            if path in (_SCRIPT, "MAINTAINERS"):
                raise KstallError(
                    f"the tree {plan.base.origin} has no {path}, so the recipients "
                    "are not known",
                    next="give KERNEL= a whole kernel tree",
                )
            continue
        file.write(directory / path)
    return directory


def _ignored(directory: Path) -> frozenset[str]:
    """The addresses of those who asked the script not to name them for a history."""
    path = directory / _IGNORE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    addresses = [parseaddr(line.partition("#")[0])[1].lower() for line in lines]
    return frozenset(filter(None, addresses))


def _fixed(patch: PatchFile, base: Base) -> dict[str, Recipient | None]:
    """The authors of the commits in Fixes: tags of ``patch``, by commit; None if the
    base does not have that commit in a history, or no address for it."""
    message, _ = patchfile.split(patch.path)
    top = base.repository
    authors: dict[str, Recipient | None] = {}
    for _, digits, subject in patchtext.fixes(message):
        authors[digits] = None
        if top is None or base.commit is None:
            continue
        commit = git.commit(top, digits, base.commit)
        if commit is None or commit.subject != subject:
            continue
        name, address = git.author(top, commit.id, base.commit)
        with contextlib.suppress(BadAddress):
            require_address(address, digits)
            if name.isprintable():
                authors[digits] = Recipient(name, address, False, False, (_WROTE,))
    return authors


def _query(patch: PatchFile, directory: Path, scratch: Path) -> tuple[Recipient, ...]:
    completed = process.run(
        (
            *("perl", _SCRIPT, "--no-tree", "--no-git", "--no-git-fallback"),
            *("--roles", "--no-rolestats", patch.path.absolute()),
        ),
        cwd=directory,
        # A .get_maintainer.conf in the user's home must not matter.
        env={"HOME": str(scratch), "LC_ALL": "C.UTF-8"},
        timeout=_TIMEOUT_S,
    )
    return parse(completed.stdout)


def _ranked(recipient: Recipient, series: Series) -> Recipient:
    """``recipient`` with To: for maintainers and list of the series' subsystem."""
    home = series.spec.subsystem
    role, _, section = recipient.because[0].partition(":")
    acts = role in ("maintainer", "supporter") and section.startswith(home.name)
    is_home = recipient.is_list and recipient.address.lower() == home.list.lower()
    return replace(recipient, to=acts or is_home)


def _omitted(recipient: Recipient, series: Series) -> str | None:
    for omission in series.spec.mail.omit:
        section = recipient.because[0].partition(":")[2]
        if section.startswith(omission.section) and not _MORE_ROLES.search(section):
            return f"{omission.section}: {omission.because}"
    return None


def _additions(series: Series, patch: PatchFile) -> list[Recipient]:
    """The recipients of ``patch`` whom the script does not know."""
    home = series.spec.subsystem
    where = f"{series.name}/series.toml"
    address = require_address(home.list, f"{where}: subsystem.list")
    recipients = [Recipient("", address, True, True, (f"list of {home.name}",))]
    headers = {point.header for point in series.spec.tracepoint} & set(patch.touches)
    if headers:
        reason = f"trace events in {', '.join(sorted(headers))}"
        recipients.append(Recipient("", _TRACING, True, False, (reason,)))
    for cc in series.spec.mail.cc:
        if not cc.patches or patch.path.name in cc.patches:
            recipients.append(_from_cc(cc))
    return recipients


def _from_cc(cc: Cc) -> Recipient:
    return Recipient(cc.name, cc.address, not cc.name, False, (cc.because,))


def _merged(recipients: Iterable[Recipient]) -> tuple[Recipient, ...]:
    """Each address once, with all reasons; To: first, people before lists."""
    merged: dict[str, Recipient] = {}
    for recipient in recipients:
        earlier = merged.get(recipient.address.lower())
        if earlier is None:
            merged[recipient.address.lower()] = recipient
            continue
        because = tuple(dict.fromkeys((*earlier.because, *recipient.because)))
        merged[recipient.address.lower()] = replace(
            earlier,
            name=earlier.name or recipient.name,
            to=earlier.to or recipient.to,
            because=because,
        )
    return tuple(
        sorted(
            merged.values(), key=lambda recipient: (not recipient.to, recipient.is_list)
        )
    )


def shown(recipients: Sequence[Recipient], *, lists: bool, to: bool) -> str:
    """The recipients of one kind, in one line."""
    return ", ".join(
        recipient.shown
        for recipient in recipients
        if recipient.is_list == lists and recipient.to == to
    )
