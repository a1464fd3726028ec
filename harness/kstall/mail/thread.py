# SPDX-License-Identifier: GPL-2.0-or-later
"""A received thread: the patches of its newest version, complete and in order.

Replies, mails without a patch and older versions are left out and listed.  A thread
from which the series cannot be restored as it was sent is refused: with a missing or
duplicate patch, or one in an attachment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default as mail_policy
from pathlib import Path

from ..base import FailedCheck, KstallError
from ..tree import git

#: Bytes; a thread with review is a few hundred thousand.
_LARGEST = 64 * 2**20
_REPLY = re.compile(r"^\s*(?:re|aw|fwd?|sv|antw)\s*:", re.IGNORECASE)
_TAG = re.compile(r"\[([^]\[]*)\]")
_LEADING = re.compile(r"^(?:\s*\[[^]]*\])+\s*")
_NUMBERS = re.compile(r"\b(\d{1,4})/(\d{1,4})\b")
_VERSION = re.compile(r"\bv(\d{1,4})\b", re.IGNORECASE)
_DIFF = re.compile(r"(?m)^diff --git ")
# Attachments that do no harm beside a patch.
_HARMLESS = ("application/pgp-signature", "application/pkcs7-signature")


class BadThread(FailedCheck):
    """The thread holds no series that could be applied as it was sent."""


@dataclass(frozen=True)
class ReceivedMail:
    """One message: ``number`` of ``count``, 0 for the cover letter."""

    subject: str
    version: int
    number: int
    count: int
    message_id: str
    content: bytes


@dataclass(frozen=True)
class ReceivedThread:
    """``patches`` are in order; ``ignored`` says what was left out, and why."""

    version: int
    cover: ReceivedMail | None
    patches: tuple[ReceivedMail, ...]
    ignored: tuple[str, ...]

    @property
    def title(self) -> str:
        """The title of the series."""
        return (self.cover or self.patches[0]).subject


def read(path: Path, scratch: Path, version: int | None = None) -> ReceivedThread:
    """The series in an mbox, or in a directory with a file per mail.

    ``version`` defaults to the newest.  Raises `BadThread`, and `KstallError` for a
    path that cannot be read.
    """
    mails, ignored = [], []
    for content in _messages(path, scratch):
        parsed = _parse(content)
        subject = _subject(parsed)
        message = _numbered(subject, parsed, content)
        if isinstance(message, str):
            ignored.append(f"{subject or '(no subject)'}: {message}")
        else:
            mails.append((message, parsed))
    if not mails:
        raise BadThread(
            f"{path}: {len(ignored)} mails, and none of them is a patch",
            next="patches have [PATCH] in their subject and a diff in their text",
        )
    chosen_version = version or max(mail.version for mail, _ in mails)
    chosen = []
    for mail, parsed in mails:
        if mail.version == chosen_version:
            _require_inline(mail, parsed)
            chosen.append(mail)
        else:
            ignored.append(f"{mail.subject}: version {mail.version}")
    return _ordered(path, chosen_version, chosen, ignored)


def _messages(path: Path, scratch: Path) -> Iterable[bytes]:
    r"""Each mail's bytes, in the order of the file, with \n at line ends."""
    if path.is_dir():
        files = [*path.glob("*.patch"), *path.glob("*.eml")]
        files += [*path.glob("new/*"), *path.glob("cur/*")]
        if not files:
            raise KstallError(f"{path}: a directory without mails")
        for file in sorted(files):
            yield _lines(file.read_bytes())
        return
    try:
        size = path.stat().st_size
    except OSError as error:
        raise KstallError(f"{path}: {error.strerror}") from error
    if size > _LARGEST:
        raise KstallError(f"{path}: {size} bytes, too many for a thread")
    target = scratch / "split"
    target.mkdir(parents=True)
    try:
        git.git("mailsplit", "-b", "--mboxrd", f"-o{target}", path.absolute())
    except git.GitError as error:
        raise KstallError(f"{path}: not a file of mails: {error.reason}") from error
    for file in sorted(target.iterdir()):
        yield _lines(file.read_bytes())


def _lines(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def _parse(content: bytes) -> EmailMessage:
    raw = content.partition(b"\n")[2] if content.startswith(b"From ") else content
    return BytesParser(EmailMessage, policy=mail_policy).parsebytes(raw)


def _header(parsed: EmailMessage, name: str) -> str:
    """A header as one line; empty if Python's parser fails on it."""
    try:
        value = str(parsed[name] or "")
    except Exception:  # any kind, for hostile values
        return ""
    return " ".join(value.split())


def _subject(parsed: EmailMessage) -> str:
    subject = _header(parsed, "subject")
    return "".join(sign if sign.isprintable() else "?" for sign in subject)


def _numbered(subject: str, parsed: EmailMessage, content: bytes) -> ReceivedMail | str:
    """The mail as a part of a series, or the reason why it is not."""
    # The title itself may have brackets as well.
    leading = _LEADING.match(subject)
    tags = " ".join(_TAG.findall(leading[0])) if leading else ""
    if _REPLY.match(subject):
        return "a reply"
    if not re.search(r"\bpatch", tags, re.IGNORECASE):
        return "no patch"
    numbers = _NUMBERS.search(tags)
    number, count = map(int, numbers.groups()) if numbers else (1, 1)
    version = _VERSION.search(tags)
    title = _LEADING.sub("", subject)
    if number > count or count < 1:
        return f"number {number} of {count}"
    return ReceivedMail(
        title,
        int(version[1]) if version else 1,
        number,
        count,
        _header(parsed, "message-id"),
        content,
    )


def _require_inline(mail: ReceivedMail, parsed: EmailMessage) -> None:
    """Raise `BadThread` unless the diff is in the mail's own text, and nowhere else."""
    place = f"[{mail.number}/{mail.count}] {mail.subject}"
    inline = False
    for part in parsed.walk():
        kind = part.get_content_type()
        if part.is_multipart() or kind in _HARMLESS:
            continue
        attached = part.get_content_disposition() == "attachment"
        if attached or kind != "text/plain":
            name = part.get_filename() or kind
            raise BadThread(
                f"{place}: has an attachment, {name!r}; lists want patches as text",
                next="ask for patches that were sent by `git send-email` or b4",
            )
        payload = part.get_payload(decode=True)
        text = payload if isinstance(payload, bytes) else b""
        inline = inline or _DIFF.search(text.decode("utf-8", "replace")) is not None
    if mail.number and not inline:
        raise BadThread(f"{place}: has [PATCH] in its subject, but has no diff")


def _ordered(
    path: Path, version: int, mails: Sequence[ReceivedMail], ignored: Sequence[str]
) -> ReceivedThread:
    label = f"{path}: version {version}" if version > 1 else str(path)
    if not mails:
        raise BadThread(f"{path}: has no version {version}")
    counts = sorted({mail.count for mail in mails})
    if len(counts) > 1:
        raise BadThread(
            f"{label}: numbered as of {' and of '.join(map(str, counts))}: more than "
            "one series",
            next="give a file with one thread",
        )
    by_number: dict[int, ReceivedMail] = {}
    for mail in mails:
        if (other := by_number.get(mail.number)) is not None:
            raise BadThread(
                f"{label}: [{mail.number}/{mail.count}] is there twice: "
                f"{other.subject!r} {other.message_id} and {mail.subject!r} "
                f"{mail.message_id}",
                next="keep one of them",
            )
        by_number[mail.number] = mail
    cover = by_number.pop(0, None)
    missing = [n for n in range(1, counts[0] + 1) if n not in by_number]
    if missing:
        names = ", ".join(f"[{n}/{counts[0]}]" for n in missing)
        raise BadThread(
            f"{label}: {names} missing", next="get the whole thread: b4 mbox MESSAGE-ID"
        )
    patches = tuple(by_number[n] for n in sorted(by_number))
    return ReceivedThread(version, cover, patches, tuple(ignored))
