# SPDX-License-Identifier: GPL-2.0-or-later
"""Who sends a series, and what they certify by that.

Documentation/process/coding-assistants.rst: only people can certify the Developer's
Certificate of Origin, and no tool adds Signed-off-by: on its own.  So it is added only
after the contributor was shown what it means, and has said so for exactly this content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formataddr

from ..base import KstallError, cache, process
from ..series import Series
from ..tree import tree
from .recipients import require_address

#: Who wrote the patches of this checkout; nobody that mail could be sent as.
NOBODY_DOMAIN = "invalid"
_CERTIFICATE = "Documentation/process/submitting-patches.rst"
_ASSISTANTS = "Documentation/process/coding-assistants.rst"
_DCO = re.compile(
    r"^ *Developer's Certificate of Origin 1\.1$.*?(?=^\S)", re.MULTILINE | re.DOTALL
)
_IDENT = re.compile(r"(?P<name>.*) <(?P<address>[^<>]*)> \d+ [+-]\d+\s*")


@dataclass(frozen=True)
class Person:
    """A contributor, as git knows them."""

    name: str
    address: str

    @property
    def header(self) -> str:
        """For From:, encoded where it is not ASCII."""
        return formataddr((self.name, self.address))

    @property
    def tag(self) -> str:
        """For Signed-off-by: and the like."""
        return f"{self.name} <{self.address}>"


class NoIdentity(KstallError):
    """Git does not know who the contributor is."""


class NotCertified(KstallError):
    """A sign-off was asked for, and what it certifies was not confirmed."""


@dataclass(frozen=True)
class Statement:
    """What somebody certifies; ``key`` changes with any word or patch of it."""

    text: str
    key: str


def identity() -> Person:
    """The author that git would take here; raises `NoIdentity`."""
    done = process.run(
        ["git", "-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"],
        env={"LC_ALL": "C.UTF-8"},
        check=False,
    )
    match = _IDENT.fullmatch(done.stdout)
    setting = 'git config --global user.name "..." and user.email'
    if done.returncode != 0 or match is None:
        raise NoIdentity("git has no name and address of yours", next=setting)
    name, address = match["name"].strip(), match["address"]
    if not name or not name.isprintable() or re.search(r'[<>"\\]', name):
        raise NoIdentity(f"{name!r} is no name to sign off with", next=setting)
    require_address(address, "git's user.email")
    if address.rpartition(".")[2].lower() in (NOBODY_DOMAIN, "localhost", "local"):
        raise NoIdentity(f"{address} is nobody's address", next=setting)
    return Person(name, address)


def statement(
    series: Series, plan: tree.Plan, who: Person, doubts: Sequence[str]
) -> Statement:
    """What ``who`` certifies with a sign-off on ``series``.

    ``doubts`` are figures and records in the texts that no run carries.
    """
    found = tree.pristine(plan.base, (_CERTIFICATE, _ASSISTANTS))
    page = found[_CERTIFICATE]
    match = _DCO.search(page.data.decode("utf-8", "replace")) if page else None
    if match is None:
        raise KstallError(
            f"the tree {plan.base.origin} has no Developer's Certificate of Origin in "
            f"{_CERTIFICATE}, so there is nothing to certify",
            next="give KERNEL= a whole kernel tree",
        )
    lines = [f"Signed-off-by: {who.tag}", "", "on each of"]
    for patch in series.patches:
        text = patch.path.read_text(encoding="utf-8", errors="replace")
        tags = re.findall(r"(?m)^Assisted-by: .*$", text.partition("\n---\n")[0])
        lines.append(f"  {patch.subject}" + "".join(f" ({tag})" for tag in tags))
    lines += ["", "means that you certify:", "", match[0].rstrip(), ""]
    if found[_ASSISTANTS] is not None:
        lines += [
            f"{_ASSISTANTS} makes you responsible for",
            "reviewing all code that a tool wrote, for its licence, and for the whole",
            "contribution; the patches become yours, with you as their author.",
            "",
        ]
    if doubts:
        lines += [
            "The texts have figures that the run they quote does not show; you vouch",
            "for them: " + ", ".join(doubts),
            "",
        ]
    text = "\n".join(lines)
    digests = [cache.file_digest(patch.path) for patch in series.patches]
    return Statement(text, cache.digest(text, digests, series.digest))


def require_certified(made: Statement, key: str | None, again: str) -> None:
    """Raise `NotCertified` with the statement unless ``key`` is its own.

    ``again`` is the command that would go on.
    """
    if key == made.key:
        return
    what = "you have not seen this" if not key else f"{key} is not for this text"
    raise NotCertified(
        f"nothing is signed off: {what}\n\n{made.text}",
        next=f"if you certify that: {again} --sign-off={made.key}",
    )
