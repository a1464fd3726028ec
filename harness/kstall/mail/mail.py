# SPDX-License-Identifier: GPL-2.0-or-later
"""A series as mails: a cover letter and a reply to it for each patch.

The diff of a patch is copied byte for byte.  Mails that lists do not accept are
refused: another charset than UTF-8, and mails that are too big.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.charset import QP, Charset
from email.header import Header
from email.utils import format_datetime

from ..base import cache
from ..series import Unmailable
from .contributor import Person
from .recipients import Recipient

#: Bytes: the limit of majordomo, and the most that each kernel list surely accepts.
LARGEST = 300_000
# A tag, or what somebody who passed the patch on says of a change.
_TRAILER = re.compile(r"[A-Z][A-Za-z-]*(?:-by|-to)?: \S.*|\[[^]\s]+: .*\]")
# Tags that others add after the author's sign-off.
_LATER = re.compile(r"(?:Tested|Reviewed|Acked)-by: |Cc: |Link: ")
_MBOX_FROM = re.compile(rb"(?m)^(>*From )")
_MAGIC = "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001"


@dataclass(frozen=True)
class Letter:
    r"""One mail: ``number`` 0 is the cover letter; ``content`` has \n at line ends."""

    number: int
    name: str
    recipients: tuple[Recipient, ...]
    content: bytes


@dataclass(frozen=True)
class MailContent:
    """The contents of one mail: subject without prefix, body and recipients."""

    subject: str
    body: str
    recipients: tuple[Recipient, ...]


@dataclass(frozen=True)
class Thread:
    """What all mails of a series have in common."""

    author: Person
    version: int
    rfc: bool
    change_id: str
    now: datetime

    def prefix(self, number: int, count: int) -> str:
        """``[PATCH v2 01/12]``, as `git format-patch` has it."""
        words = ["RFC"] if self.rfc else []
        words += ["PATCH"] + ([f"v{self.version}"] if self.version > 1 else [])
        width = len(str(count))
        return f"[{' '.join(words)} {number:0{width}}/{count}]"


def change_id(name: str, began: datetime) -> str:
    """An id that is the same for all versions of a series."""
    slug = re.sub(r"[^a-z0-9-]+", "-", name.lower())
    return f"{began:%Y%m%d}-{slug}-{cache.digest('change-id', name)[:12]}"


def signed_off(message: str, author: Person) -> str:
    """``message`` with the author's Signed-off-by: after all tags but the last ones, if
    others add those."""
    lines = message.rstrip("\n").splitlines()
    first = len(lines)
    while first and _TRAILER.fullmatch(lines[first - 1]):
        first -= 1
    tag = f"Signed-off-by: {author.tag}"
    block = [line for line in lines[first:] if line != tag]
    place = len(block)
    while place and _LATER.match(block[place - 1]):
        place -= 1
    block.insert(place, tag)
    head = lines[:first]
    if head and head[-1]:
        head.append("")
    return "\n".join([*head, *block])


def compose(thread: Thread, parts: Sequence[MailContent]) -> tuple[Letter, ...]:
    """The mails of ``parts``, of which the first is the cover letter."""
    root = _message_id(thread, 0, parts[0])
    return tuple(
        _letter(thread, number, len(parts) - 1, part, root)
        for number, part in enumerate(parts)
    )


def _message_id(thread: Thread, number: int, part: MailContent) -> str:
    """A unique message-id that names the series, version and patch."""
    unique = cache.digest(thread.rfc, part.subject, part.body, str(thread.now))[:8]
    domain = thread.author.address.rpartition("@")[2]
    name = thread.change_id.partition("-")[2]
    return f"{thread.now:%Y%m%d}-{name}-v{thread.version}-{number}-{unique}@{domain}"


def _letter(
    thread: Thread, number: int, count: int, part: MailContent, root: str
) -> Letter:
    subject = f"{thread.prefix(number, count)} {part.subject}"
    if not subject.isprintable():
        raise Unmailable(f"{subject!r}: a subject with control characters")
    message_id = root if number == 0 else _message_id(thread, number, part)
    text = part.body.rstrip("\n") + "\n-- \nkstall\n"
    plain = text.isascii()
    head = [
        _MAGIC,
        f"From: {thread.author.header}",
        f"Date: {format_datetime(thread.now + timedelta(seconds=number))}",
        f"Subject: {_encoded(thread.prefix(number, count), part.subject)}",
        *_addresses("To", part.recipients),
        *_addresses("Cc", part.recipients),
        f"Message-ID: <{message_id}>",
        *([f"In-Reply-To: <{root}>", f"References: <{root}>"] if number else []),
        f"X-Change-ID: {thread.change_id}",
        "MIME-Version: 1.0",
        f"Content-Type: text/plain; charset={'US-ASCII' if plain else 'UTF-8'}",
        f"Content-Transfer-Encoding: {'7bit' if plain else '8bit'}",
    ]
    content = ("\n".join(head) + "\n\n" + text).encode()
    if len(content) > LARGEST:
        raise Unmailable(
            f"{subject}: {len(content)} bytes; lists accept {LARGEST} at most",
            next="split the patch",
        )
    name = "0000-cover-letter.patch" if number == 0 else _file_name(number, part)
    return Letter(number, name, part.recipients, content)


def _encoded(prefix: str, title: str) -> str:
    """A folded subject; only non-ASCII text is encoded, as people filter by it."""
    header = Header(prefix, "us-ascii", maxlinelen=76, header_name="Subject")
    charset = Charset("utf-8")
    charset.header_encoding = QP
    header.append(title, "us-ascii" if title.isascii() else charset)
    return header.encode()


def _file_name(number: int, part: MailContent) -> str:
    """As `git format-patch` would call it."""
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", part.subject).strip("-.")
    return f"{number:04}-{words[:52].rstrip('-.')}.patch"


def _addresses(field: str, recipients: Sequence[Recipient]) -> list[str]:
    """A header with an address a line, or none."""
    addresses = [
        recipient.header for recipient in recipients if recipient.field == field
    ]
    return [f"{field}: " + ",\n\t".join(addresses)] if addresses else []


def mbox(letters: Sequence[Letter]) -> bytes:
    """The mails as one file (mboxrd)."""
    return b"".join(quoted(letter.content) for letter in letters)


def quoted(content: bytes) -> bytes:
    """A mail for an mbox, with "From " quoted reversibly (mboxrd)."""
    first, _, rest = content.partition(b"\n")
    if not first.startswith(b"From "):
        first, rest = _MAGIC.encode(), content
    return first + b"\n" + _MBOX_FROM.sub(rb">\1", rest) + b"\n"


def now() -> datetime:
    """The time for Date:, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)
