# SPDX-License-Identifier: GPL-2.0-or-later
"""One patch mail, as `git format-patch` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default as mail_policy
from pathlib import Path, PurePosixPath

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from ..base import KstallError

_NOWHERE = "/dev/null"
# What `git am` takes off a subject: "Re: [PATCH v2 1/3] subsys: ...".
_SUBJECT_PREFIX = re.compile(r"^(?:\s*(?:re:|\[[^]]*\]))*\s*", re.IGNORECASE)
_NAMED = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$", re.MULTILINE)
_SIGNATURE = re.compile(r"\n-- ?\n[^\n]*\n*\Z")
_REGULAR = ("100644", "100755")


class Unmailable(KstallError):
    """A patch that cannot be mailed as it is."""


@dataclass(frozen=True)
class Hunk:
    """The ``number``-th hunk (from 1) on ``file``, before and after (line, length)."""

    file: str
    number: int
    old: tuple[int, int]
    new: tuple[int, int]


@dataclass(frozen=True)
class PatchFile:
    """A patch mail: its subject without ``[PATCH n/m]`` and the files it touches.

    ``touches`` is in the order of the mail and holds both names of a renamed file.
    """

    path: Path
    subject: str
    touches: tuple[str, ...]
    hunks: tuple[Hunk, ...] = ()


class NotAPatch(KstallError):
    """A file that should be a patch mail and is not: ``path:line`` and why."""

    def __init__(self, path: Path, line: int | None, why: str) -> None:
        place = f"{path}:{line}" if line is not None else str(path)
        super().__init__(
            f"{place}: {why}", next="write patches with `git format-patch`"
        )
        self.path = path
        self.line = line
        self.why = why


def parse(path: Path) -> PatchFile:
    """Read one mail.  Raises `NotAPatch`, also for a path that leaves the tree."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise NotAPatch(path, None, error.strerror or str(error)) from error
    mail = BytesParser(EmailMessage, policy=mail_policy).parsebytes(raw)
    subject = _SUBJECT_PREFIX.sub("", str(mail["subject"] or "")).strip()
    if not subject or not mail["from"]:
        missing = "Subject:" if mail["from"] else "From:"
        raise NotAPatch(path, 1, f"no {missing} header, so this is no patch mail")
    body = _body(path, mail)
    lines = body.removesuffix("\n").split("\n")
    first = next(
        (n for n, line in enumerate(lines) if line.startswith("diff --git ")), None
    )
    headers = _header_lines(raw)
    if first is None:
        raise NotAPatch(path, headers + 1, "no `diff --git` line: the mail has no diff")
    reader = _Lines(lines[first:])
    # Only an unencoded body has the same lines as the file.
    start = headers + first if _is_plain(mail) else None
    try:
        files = PatchSet(iter(reader))
        touches, hunks = _touches(files), _hunks(files)
    except (UnidiffParseError, _Refused) as error:
        at = error.line if isinstance(error, _Refused) else reader.number
        line = None if start is None else start + at
        raise NotAPatch(path, line, str(error).strip()) from error
    return PatchFile(path, subject, touches, hunks)


class _Refused(Exception):
    """A file in the diff that no series may change; ``line`` of the diff."""

    def __init__(self, file: PatchedFile, why: str) -> None:
        super().__init__(why)
        self.line: int = file.diff_line_no or 1


class _Lines:
    """Lines that count how many were read, because unidiff's errors have no line."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, 1):
            self.number = number
            yield line + "\n"


def _body(path: Path, mail: EmailMessage) -> str:
    part = mail.get_body(preferencelist=("plain",))
    if part is None:
        raise NotAPatch(path, None, "the mail has no text part")
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    charset = part.get_content_charset() or "utf-8"
    try:
        # Source files need not be in the mail's charset: keep what does not fit.
        return content.decode(charset, "surrogateescape").replace("\r\n", "\n")
    except LookupError as error:
        raise NotAPatch(path, None, f"unknown charset {charset!r}") from error


def _is_plain(mail: EmailMessage) -> bool:
    encoding = str(mail.get("content-transfer-encoding", "8bit")).lower()
    return encoding in ("7bit", "8bit", "binary") and not mail.is_multipart()


def _header_lines(raw: bytes) -> int:
    """How many lines come before the body, the empty one included."""
    head = re.split(rb"\r?\n\r?\n", raw, maxsplit=1)[0]
    return head.count(b"\n") + 2


def _touches(files: PatchSet) -> tuple[str, ...]:
    touched: dict[str, None] = {}
    for file in files:
        names = [_strip(file, file.source_file), _strip(file, file.target_file)]
        info = "".join(str(line) for line in file.patch_info or ())
        for name in (*names, *_NAMED.findall(info)):
            if name is not None:
                _require_safe(file, name)
                touched[name] = None
        for mode in (file.source_mode, file.target_mode):
            if mode is not None and mode not in _REGULAR:
                raise _Refused(
                    file, f"{names[1] or names[0]}: mode {mode} is not a regular file's"
                )
        if file.is_binary_file:
            raise _Refused(file, f"{names[1] or names[0]}: binary patches are refused")
    return tuple(touched)


def _strip(file: PatchedFile, name: str) -> str | None:
    if name == _NOWHERE:
        return None
    if name.startswith('"'):
        raise _Refused(file, f"{name}: a path that git has to quote")
    if name[:2] not in ("a/", "b/"):
        raise _Refused(file, f"{name}: no a/ or b/ before the path")
    return name[2:]


def _require_safe(file: PatchedFile, name: str) -> None:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise _Refused(file, f"{name}: leads out of the kernel tree")
    if any(part.lower() == ".git" for part in parts):
        raise _Refused(file, f"{name}: lies in git's own directory")
    if str(PurePosixPath(name)) != name or not name.isprintable():
        raise _Refused(file, f"{name!r}: not a plain path")


def _hunks(files: PatchSet) -> tuple[Hunk, ...]:
    return tuple(
        Hunk(
            file.path,
            number,
            (hunk.source_start, hunk.source_length),
            (hunk.target_start, hunk.target_length),
        )
        for file in files
        for number, hunk in enumerate(file, 1)
    )


def split(path: Path) -> tuple[str, str]:
    """A patch file's commit message, and what comes after its ``---`` line.

    The signature at the end is left out.  Raises `Unmailable`.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unmailable(
            f"{path}: byte {error.start} is not UTF-8, and mail with another charset "
            "does not arrive as it was",
            next="take the change to that line out of the patch",
        ) from error
    _, _, body = text.partition("\n\n")
    message, mark, rest = body.partition("\n---\n")
    if not mark:
        raise Unmailable(f"{path}: no `---` line between message and diff")
    return message.strip("\n"), _SIGNATURE.sub("\n", rest)
