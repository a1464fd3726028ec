# SPDX-License-Identifier: GPL-2.0-or-later
"""Text from outside as plain text.

Reports contain output of kernels, programs and patches; none of it may move a cursor,
colour a line, set a title or reverse the direction of writing.
"""

from __future__ import annotations

import re
import unicodedata

#: Control characters, surrogates, and marks that reorder text or are invisible.
_UNWANTED = frozenset({"Cc", "Cs", "Cf"})
#: Those of ASCII, of which line ends and tabs are wanted.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def printable(text: str) -> str:
    """``text`` without control characters except line ends and tabs, without
    surrogates and format marks, and without characters that XML forbids."""
    if text.isascii() and not _CONTROL.search(text):
        return text
    return "".join(
        c
        for c in text.replace("\x85", "\n")
        if c in "\n\t"
        or (c not in "\ufffe\uffff" and unicodedata.category(c) not in _UNWANTED)
    )


def escaped(text: str) -> str:
    """``text`` with undecodable bytes, as in a path, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(line: str, most: int) -> str:
    """``line`` as printable text in one line of at most ``most`` characters."""
    line = " ".join(printable(line.replace("\r", "")).expandtabs().splitlines())
    return line if len(line) <= most else line[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
