# SPDX-License-Identifier: GPL-2.0-or-later
"""The prose and the tags of patch mails and cover letters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import parseaddr

#: Columns of prose in a mail.
WIDTH = 75
PLACEHOLDER = re.compile(r"@@\w*@@")
_TAG = re.compile(r"([A-Z][A-Za-z-]*): \S")
_KNOWN = frozenset(
    (
        *("Fixes", "Cc", "Link", "Closes", "Message-ID", "Reported-by"),
        *("Suggested-by", "Assisted-by", "Co-developed-by", "Signed-off-by"),
        *("Tested-by", "Reviewed-by", "Acked-by", "Debugged-by", "Originally-by"),
    )
)
_FIXES = re.compile(r'Fixes: ([0-9a-f]{12,40}) \("([^"].*)"\)')
_ADDRESS = re.compile(r"<([^<>\s]+)>")
_URL = re.compile(r"(?:Link|Closes): https?://\S+( # .*)?")

Fault = tuple[int, str]


def too_wide(text: str) -> Iterator[Fault]:
    """Lines (from 1) of prose that are wider than `WIDTH`.

    Exempt are indented lines, which are samples, lines of a single word, such as an
    address, and tags, which must not be wrapped.
    """
    for number, line in enumerate(text.splitlines(), 1):
        sample = line[:1].isspace() or len(line.split()) < 2 or _TAG.match(line)
        if len(line) > WIDTH and not sample:
            yield number, f"{len(line)} columns, more than {WIDTH}: {line[:40]}..."


def unfilled(text: str) -> Iterator[Fault]:
    """Placeholders, by line (from 1), of samples and figures."""
    for number, line in enumerate(text.splitlines(), 1):
        for placeholder in PLACEHOLDER.findall(line):
            yield number, f"{placeholder} is not filled in"


def tag_faults(message: str, author: str) -> Iterator[Fault]:
    """What is wrong with the tags of a commit message; ``author`` is From:.

    A patch from an address in .invalid, which nobody could sign, must not be signed;
    any other must be, by its author.
    """
    lines = message.splitlines()
    first = _first_tag(lines)
    signed = []
    for number, line in enumerate(lines, 1):
        name = line.partition(":")[0]
        if number <= first:
            # git ignores tags outside of the last paragraph.
            if name in _KNOWN - {"Link", "Cc"} and _TAG.match(line):
                yield number, f"{name}: is not in the last paragraph"
            continue
        if name not in _KNOWN:
            yield number, f"{name}: is no tag that kernel developers use"
        elif name == "Fixes" and not _FIXES.fullmatch(line):
            yield number, f'not of the form Fixes: <12 digits> ("subject"): {line}'
        elif name in ("Link", "Closes") and not _URL.fullmatch(line):
            yield number, f"{name}: without a web address"
        elif name == "Signed-off-by":
            # A name in a tag is not quoted, whatever characters it contains.
            match = _ADDRESS.search(line)
            signed.append(match[1].lower() if match else "")
    address = parseaddr(author)[1].lower()
    if is_placeholder(author):
        if signed:
            yield len(lines), "Signed-off-by: in a patch that nobody has signed"
    elif address not in signed:
        yield len(lines), f"no Signed-off-by: of its author, {author}"


def fixes(message: str) -> Iterator[tuple[int, str, str]]:
    """Line (from 1), digits and subject of each commit that a message names in a tag
    Fixes: of the usual form."""
    for number, line in enumerate(message.splitlines(), 1):
        if match := _FIXES.fullmatch(line):
            yield number, match[1], match[2]


def tag(line: str) -> str:
    """The tag that ``line`` is, of those that kernel developers use, or ""."""
    match = _TAG.match(line)
    return match[1] if match is not None and match[1] in _KNOWN else ""


def is_placeholder(author: str) -> bool:
    """Whether ``author`` is an address that no mail can come from."""
    return parseaddr(author)[1].endswith(".invalid")


def _first_tag(lines: list[str]) -> int:
    """The number of lines before the last paragraph, if that has tags only."""
    first = len(lines)
    while first and lines[first - 1].strip():
        first -= 1
    block = lines[first:]
    if not block or not all(_TAG.match(line) or line[:1] in " [" for line in block):
        return len(lines)
    return first
