# SPDX-License-Identifier: GPL-2.0-or-later
"""Who sends a series, and what they certify by that.

Documentation/process/coding-assistants.rst: only people can certify the Developer's
Certificate of Origin, and no tool adds Signed-off-by: on its own.  kstall adds
it only when the contributor has confirmed the certificate for these very patches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.charset import BASE64, Charset
from email.utils import formataddr
from pathlib import Path

from ..base import KstallError, cache, process
from ..report import Report
from ..series import Series, patchfile
from ..tree import git, tree
from .recipients import require_address

#: Top-level domain of the author of drafts, as whom no mail can be sent.
NOBODY_DOMAIN = "invalid"
_CERTIFICATE = "Documentation/process/submitting-patches.rst"
_ASSISTANTS = "Documentation/process/coding-assistants.rst"
_DCO = re.compile(
    r"^ *Developer's Certificate of Origin 1\.1$.*?(?=^\S)", re.MULTILINE | re.DOTALL
)
# `git mailinfo` says who the author is, and a message may begin with the same.
_AUTHOR = re.compile(r"Author: (?P<name>.*)\nEmail: (?P<address>.*)\n")
_IN_BODY = re.compile(r"\AFrom: .*<.*@.*>(?:\n\n+|\Z)")
_IDENT = re.compile(r"(?P<name>.*) <(?P<address>[^<>]*)> \d+ [+-]\d+\s*")


@dataclass(frozen=True)
class Person:
    """A contributor, as git knows them."""

    name: str
    address: str

    @property
    def header(self) -> str:
        """For From:, encoded where it is not ASCII."""
        # `git send-email` decodes what is quoted-printable, takes the result for
        # another sender than that of --from, and writes a From: above the message.
        charset = Charset("utf-8")
        charset.header_encoding = BASE64
        return formataddr((self.name, self.address), charset)

    @property
    def tag(self) -> str:
        """For Signed-off-by: and the like."""
        return f"{self.name} <{self.address}>"

    def is_same(self, other: Person) -> bool:
        """Whether ``other`` has the same address, however the name is written."""
        return self.address.lower() == other.address.lower()


class NoIdentity(KstallError):
    """Git does not know who the contributor is."""


class NotCertified(KstallError):
    """A sign-off was requested, but what it certifies was not confirmed."""


@dataclass(frozen=True)
class Statement:
    """What somebody certifies; ``key`` changes with any word or patch of it."""

    text: str
    key: str


def identity() -> Person:
    """The author by the configuration of git; raises `NoIdentity`."""
    completed = process.run(
        ["git", "-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"],
        env={"LC_ALL": "C.UTF-8"},
        check=False,
    )
    match = _IDENT.fullmatch(completed.stdout)
    setting = 'git config --global user.name "..." and user.email'
    if completed.returncode != 0 or match is None:
        raise NoIdentity("git has no user.name and user.email", next=setting)
    name, address = match["name"].strip(), match["address"]
    if not name or not name.isprintable() or re.search(r'[<>"\\]', name):
        raise NoIdentity(f"{name!r} is no name to sign off with", next=setting)
    require_address(address, "git's user.email")
    if _top(address) in (NOBODY_DOMAIN, "localhost", "local"):
        raise NoIdentity(f"{address} is not a real address", next=setting)
    return Person(name, address)


def author(mail: Path) -> Person | None:
    """Whom a mail is from; None for the author of drafts.

    As for `git am`, a From: above the message counts more than the header.  Raises
    `BadAddress`.
    """
    words = ("mailinfo", "--no-scissors", "--encoding=UTF-8", "/dev/null", "/dev/null")
    facts = git.git(*words, env=git.IDENTITY, input=mail.read_bytes()).decode()
    match = _AUTHOR.match(facts)
    if match is None or _top(match["address"]) == NOBODY_DOMAIN:
        return None
    return Person(match["name"], require_address(match["address"], f"From: of {mail}"))


def split(patch: Path) -> tuple[str, str]:
    """A patch's message, without a From: above it, and what comes after its ``---``.

    Raises `patchfile.Unmailable`.
    """
    message, rest = patchfile.split(patch)
    return _IN_BODY.sub("", message), rest


def _top(address: str) -> str:
    """The top-level domain."""
    return address.rpartition(".")[2].lower()


def statement(
    series: Series,
    plan: tree.Plan,
    person: Person,
    authors: Sequence[Person | None],
    run: Report,
    doubts: Sequence[str],
) -> Statement:
    """What ``person`` certifies with a sign-off on ``series``.

    ``authors`` are those of its patches, ``run`` is quoted, and ``doubts`` are figures
    and records in the texts that it does not show.
    """
    files = tree.pristine(plan.base, (_CERTIFICATE, _ASSISTANTS))
    page = files[_CERTIFICATE]
    match = _DCO.search(page.text) if page else None
    if match is None:
        raise KstallError(
            f"the tree {plan.base.origin} has no Developer's Certificate of Origin in "
            f"{_CERTIFICATE}, so there is nothing to certify",
            next="give KERNEL= a whole kernel tree",
        )
    lines = [f"Signed-off-by: {person.tag}", "", "on each of"]
    for patch, author in zip(series.patches, authors, strict=True):
        text = patch.path.read_text(encoding="utf-8", errors="replace")
        tags = re.findall(r"(?m)^Assisted-by: .*$", text.partition("\n---\n")[0])
        if author is not None and not author.is_same(person):
            tags.insert(0, f"From: {author.tag}")
        lines.append(f"  {patch.subject}" + "".join(f" ({tag})" for tag in tags))
    lines += ["", "means that you certify:", "", match[0].rstrip(), ""]
    if files[_ASSISTANTS] is not None:
        lines += [
            f"{_ASSISTANTS} makes you responsible for",
            "reviewing all code that a tool wrote, for its licence, and for the whole",
            "contribution; you become the author of patches that name no other.",
            "",
        ]
    lines += [f"The mails quote the run {run.run}, started {run.started}.", ""]
    if doubts:
        lines += [
            "The texts have figures that the quoted run does not show; you vouch for",
            "them: " + ", ".join(doubts),
            "",
        ]
    text = "\n".join(lines)
    digests = [cache.file_digest(patch.path) for patch in series.patches]
    return Statement(text, cache.digest(text, digests, series.digest))


def require_certified(declaration: Statement, key: str | None, again: str) -> None:
    """Raise `NotCertified` with the statement unless ``key`` is its key.

    ``again`` is the command to repeat with the key.
    """
    if key == declaration.key:
        return
    reason = "you have not seen this" if not key else f"{key} is not for this text"
    raise NotCertified(
        f"nothing is signed off: {reason}\n\n{declaration.text}",
        next=f"if you certify that: {again} --sign-off={declaration.key}",
    )
