# SPDX-License-Identifier: GPL-2.0-or-later
"""Text from elsewhere as text and nothing else.

Kernels, programs and patches write what ends up in reports; none of it may move a
cursor, colour a line, set a title or turn the direction of writing.
"""

from __future__ import annotations

import unicodedata

#: Control characters, surrogates, and marks that reorder text or take no room.
_UNWANTED = frozenset({"Cc", "Cs", "Cf"})


def printable(text: str) -> str:
    """``text`` without control characters but line ends and tabs, without surrogates
    and marks of format, and without what XML has no place for."""
    return "".join(
        c
        for c in text.replace("\x85", "\n")
        if c in "\n\t"
        or (c not in "\ufffe\uffff" and unicodedata.category(c) not in _UNWANTED)
    )


def shortened(line: str, most: int) -> str:
    """``line`` as printable text in one line of ``most`` characters or fewer."""
    line = " ".join(printable(line.replace("\r", "")).expandtabs().splitlines())
    return line if len(line) <= most else line[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
