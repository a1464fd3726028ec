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

    What is indented is a sample, and has the width it has; so has a single word, such
    as an address, and a tag, which must not be wrapped.
    """
    for number, line in enumerate(text.splitlines(), 1):
        sample = line[:1].isspace() or len(line.split()) < 2 or _TAG.match(line)
        if len(line) > WIDTH and not sample:
            yield number, f"{len(line)} columns, {WIDTH} are wanted: {line[:40]}..."


def unfilled(text: str) -> Iterator[Fault]:
    """Places, by line (from 1), where a sample or a figure still belongs."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in PLACEHOLDER.findall(line):
            yield number, f"{found} is to be filled in"


def tag_faults(message: str, author: str) -> Iterator[Fault]:
    """What is wrong with the tags of a commit message; ``author`` is From:.

    A patch that is written by nobody who could sign it (an address in .invalid) is not
    signed; any other is, by its author.
    """
    lines = message.splitlines()
    first = _first_tag(lines)
    signed = []
    for number, line in enumerate(lines, 1):
        name = line.partition(":")[0]
        if number <= first:
            # A tag that is not at the end is none to git.
            if name in _KNOWN - {"Link", "Cc"} and _TAG.match(line):
                yield number, f"{name}: is not in the last paragraph"
            continue
        if name not in _KNOWN:
            yield number, f"{name}: is no tag that kernel developers use"
        elif name == "Fixes" and not _FIXES.fullmatch(line):
            yield number, f'not of the form Fixes: <12 digits> ("subject"): {line}'
        elif name in ("Link", "Closes") and not _URL.fullmatch(line):
            yield number, f"{name}: without an address of the web"
        elif name == "Signed-off-by":
            # A name in a tag is not quoted, whatever it contains.
            found = _ADDRESS.search(line)
            signed.append(found[1].lower() if found else "")
    address = parseaddr(author)[1].lower()
    if nobody(author):
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


def nobody(author: str) -> bool:
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
