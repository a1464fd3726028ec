# SPDX-License-Identifier: GPL-2.0-or-later
"""Functions in the text of C sources."""

from __future__ import annotations

import re

# How a function's definition begins: nothing else starts at the margin, and so does
# the brace that its body begins with.
_DEFINITION = re.compile(
    r"(?m)^(?:[A-Za-z_][\w\s*]*?\b)?(\w+)\((?P<args>[^;{}]*)(?:\{|\n\{)"
)
_SYSCALL = re.compile(r"(?:COMPAT_)?SYSCALL_DEFINE\d")


def functions(text: str) -> dict[str, str]:
    """The functions that a C file defines, as far as its layout tells, by name.

    The bodies of one that is defined several times, for different configurations, are
    joined.
    """
    bodies: dict[str, str] = {}
    for match in _DEFINITION.finditer(text):
        names = {match[1]}
        if _SYSCALL.fullmatch(match[1]):
            call = re.split(r"[,)]", match["args"])[0].strip()
            names = {f"__{prefix}_sys_{call}" for prefix in ("do", "se", "x64", "ia32")}
        elif match[1] == "UVERBS_HANDLER":
            names = {f"ib_uverbs_handler_{match['args'].partition(')')[0]}"}
        line, _, _ = text[match.end() :].partition("\n")
        # A stub ends in the line in which it begins.
        body = line if "}" in line else text[match.end() :].partition("\n}")[0]
        for name in names:
            bodies[name] = bodies.get(name, "") + match[0] + body
    return bodies
