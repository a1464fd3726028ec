# SPDX-License-Identifier: GPL-2.0-or-later
"""Functions that are inline where they should not be, or are not where they should."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

# The line on which a function's definition begins, as the kernel's style has it: what
# is in parentheses need not end there.
_STATIC = re.compile(r"^static\b(?P<words>[^=;(){}]*?)\b(?P<name>\w+)\(")
_INLINE = re.compile(r"^(?:static[ \t]+)?(?:inline|__inline__|__inline)\b[^=;]*\(")
# Inline already, or out of line or unused on purpose.
_KEPT = re.compile(
    r"\b(?:__always_inline|inline|__inline|__maybe_unused|noinline\w*)\b"
)


def misplaced(path: str, old: str, new: str) -> Iterator[tuple[int, str]]:
    """Line and fault of each function that is misplaced in ``new``, the text of
    ``path``, but not in ``old``."""
    old_faults = Counter(text for _, text in _faults(path, old))
    for line, text in _faults(path, new):
        if old_faults[text]:
            old_faults[text] -= 1
        else:
            yield line, text


def _faults(path: str, text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if path.endswith(".c") and _INLINE.match(line):
            yield number + 1, f"inline in a C file: {line.strip()}"
        elif (
            path.endswith(".h")
            and (match := _STATIC.match(line))
            and not _KEPT.search(match["words"])
            and _is_definition(lines, number)
        ):
            yield number + 1, f"not inline in a header: {line.strip()}"


def _is_definition(lines: list[str], start: int) -> bool:
    """Whether this is a definition with a body, not a declaration."""
    for line in lines[start:]:
        if line.startswith("{") or line.rstrip().endswith("{"):
            return True
        if ";" in line or not line.strip():
            return False
    return False
