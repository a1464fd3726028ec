# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading a printed event back, exactly as its TP_printk wrote it.

The kernel publishes each event's format string and arguments.  Turned into a pattern
they say where a value ends far better than any rule about "key=value" could: names
with spaces, commas and equal signs in them stay whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# flags, width, precision, length, conversion; %p takes letters after it.
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?:hh|h|ll|l|z|t|j|q|L)?(?P<kind>[diouxXcs%]|p[A-Za-z0-9]*)"
)
_BARE = re.compile(r"[\s()]*(?:\([\w\s*]+\)[\s()]*)*REC->(\w+)[\s()]*")
_HELPER = re.compile(
    r"__(?:get_(?:str|rel_str|sockaddr|bitmask|cpumask|rel_\w+)|print_\w+)"
    r"\(\s*(?:REC->)?(\w+)"
)
_PRINTED_KEY = re.compile(r"(\w+)\s*[=:]\s*(?:0x)?$")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "0": "\0"}


# How to read a value that is no number in some base.
_TEXT, _PADDED, _POINTER = 0, -1, 1


@dataclass(frozen=True)
class Printed:
    """A compiled print fmt; ``values`` are (member, base or one of the above)."""

    pattern: re.Pattern[str]
    values: tuple[tuple[str, int], ...]

    def match(self, body: str) -> dict[str, int | str] | None:
        """The members in ``body``, the text after "name: ", or None if it differs."""
        found = self.pattern.fullmatch(body)
        if found is None:
            return None
        return {
            name: _value(text, base)
            for (name, base), text in zip(self.values, found.groups(), strict=True)
        }


def compile_fmt(print_fmt: str) -> Printed:
    """Compile the text after "print fmt: " in a format file.

    A value is named after the record's member where it is that member (``REC->x``,
    ``__get_str(x)``, ``__print_symbolic(REC->x, ...)``, the latter as text); a value
    computed from members is named after the printed key ("key=%d", "key: %d").
    Values that neither names are matched and dropped.  Raises `ValueError`.
    """
    literal, rest = _string(print_fmt)
    arguments = [part.strip() for part in _split(rest)][1:]
    pattern: list[str] = []
    values: list[tuple[str, int]] = []
    position = 0
    open_text = False
    for spec in _CONVERSION.finditer(literal):
        before = literal[position : spec.start()]
        pattern.append(re.escape(before))
        position = spec.end()
        if spec["kind"] == "%":
            pattern.append("%")
            continue
        for star in (spec["width"], spec["precision"]):
            if star == "*" and not spec["kind"].startswith("p"):
                arguments.pop(0)
        if not arguments:
            raise ValueError(f"more conversions than arguments: {print_fmt!r}")
        shape, base = _shape(spec)
        if open_text and base in (_TEXT, _PADDED) and not before:
            # "%s%s": nothing tells where the first ends, so the first takes both.
            arguments.pop(0)
            continue
        open_text = base in (_TEXT, _PADDED) and spec["kind"] != "c"
        name = _name(arguments.pop(0), literal[: spec.start()])
        if name is None or name in (known for known, _ in values):
            pattern.append(f"(?:{shape})")
            continue
        pattern.append(f"({shape})")
        values.append((name, base))
    # A TP_printk that ends in a newline prints an empty line after each event.
    pattern.append(re.escape(literal[position:].rstrip("\n")) + r"\n?")
    return Printed(re.compile("".join(pattern), re.S), tuple(values))


def _shape(spec: re.Match[str]) -> tuple[str, int]:
    """What a conversion prints, and how to read it."""
    kind = spec["kind"]
    pad = r"\s*" if spec["width"] else ""
    after = r"\s*" if "-" in spec["flags"] else ""
    if kind in "di":
        return rf"{pad}[-+ ]?\d+{after}", 10
    if kind == "u":
        return rf"{pad}\d+{after}", 10
    if kind in "xX":
        return rf"{pad}(?:0[xX])?[0-9a-fA-F]+{after}", 16
    if kind == "o":
        return rf"{pad}[0-7]+{after}", 8
    if kind in ("p", "px", "pK"):
        return rf"{pad}\S+{after}", _POINTER
    text = _PADDED if spec["width"] else _TEXT
    return (r".", _TEXT) if kind == "c" else (r".*?", text)


def _name(argument: str, before: str) -> str | None:
    if found := _BARE.fullmatch(argument):
        return found[1]
    if found := _HELPER.match(argument.lstrip("( ")):
        return found[1]
    if found := _PRINTED_KEY.search(before):
        return found[1]
    return None


def _value(text: str, base: int) -> int | str:
    if base == _TEXT:
        return text
    if base == _PADDED:
        return text.strip(" ")
    if base == _POINTER:
        # "(null)" and "(____ptrval____)" are no addresses; the first one has a value.
        if text.strip() == "(null)":
            return 0
        try:
            return int(text, 16)
        except ValueError:
            return text
    return int(text, base)


def _string(text: str) -> tuple[str, str]:
    """The leading C string literals of ``text``, decoded, and what follows them."""
    decoded = []
    rest = text.lstrip()
    while rest.startswith('"'):
        match = re.match(r'"((?:[^"\\]|\\.)*)"', rest, re.S)
        if match is None:
            raise ValueError(f"unterminated string: {text!r}")
        decoded.append(_ESCAPE.sub(_unescape, match[1]))
        rest = rest[match.end() :].lstrip()
    if not decoded:
        raise ValueError(f"no format string: {text!r}")
    return "".join(decoded), rest


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code in _ESCAPED:
        return _ESCAPED[code]
    return chr(int(code, 8)) if code.isdigit() else code


def _split(text: str) -> list[str]:
    """``text`` at its top-level commas; strings, brackets and braces stay whole."""
    parts = [""]
    depth = 0
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|.', text, re.S):
        if token == "," and depth == 0:
            parts.append("")
            continue
        depth += (token in "([{") - (token in ")]}")
        parts[-1] += token
    return parts
