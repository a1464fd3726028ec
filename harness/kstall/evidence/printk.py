# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading a printed event back, exactly as its TP_printk wrote it.

The kernel publishes each event's format string and arguments.  A pattern made from them
finds the end of a value far better than any rule about "key=value" could: names with
spaces, commas and equal signs in them stay whole.  And the arguments, evaluated over a
record's members, give what has to be printed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..base import KstallError
from . import cexpr
from .cexpr import Member, Unknown

# flags, width, precision, length, conversion; %p takes letters after it.
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?P<length>hh|h|ll|l|z|t|j|q|L)?(?P<kind>[diouxXcs%]|p[A-Za-z0-9]*)"
)
_BARE = re.compile(r"[\s()]*(?:\([\w\s*]+\)[\s()]*)*REC->(\w+)[\s()]*")
_HELPER = re.compile(
    r"__(?:get_(?:str|rel_str|sockaddr|bitmask|cpumask|rel_\w+)|print_\w+)"
    r"\(\s*(?:REC->)?(\w+)"
)
_MEMBER_ALONE = re.compile(r"REC->(\w+)")
_STRING = re.compile(r"__get_(?:rel_)?str\(\s*(\w+)\s*\)")
_SYMBOLIC = re.compile(r"__print_symbolic(?:_u64)?\((.*)\)", re.S)
_FLAGS = re.compile(r"__print_flags(?:_u64)?\((.*)\)", re.S)
_MEMBER = re.compile(r"REC->(\w+)|__get_\w+\(\s*(\w+)")
_MODULE = re.compile(r" \[[\w-]+\]$")
_PRINTED_KEY = re.compile(r"(\w+)\s*[=:]\s*(?:0x)?$")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "0": "\0"}


# In the place of a base, for values that are no numbers.
_TEXT, _PADDED, _POINTER = 0, -1, 1
_FUNCTIONS = ("ps", "pS", "psR", "pSR", "pB", "psb", "pSb")


class Unreadable(KstallError):
    """A print fmt that cannot be compiled, so that no text of it can be read."""


class TooFewArguments(Unreadable):
    """A print fmt with more conversions than arguments: it prints garbage."""


@dataclass(frozen=True)
class PrintedValue:
    """One value that is printed, from the C expression ``argument``.

    ``name`` is its member or printed key, ``base`` a number's base or one of the above,
    ``bits`` its width.  ``function``: an address that is printed as a name.
    """

    name: str | None
    base: int
    argument: str
    bits: int = 64
    function: bool = False

    def read(self, text: str) -> int | str:
        """The value in ``text``, as it was printed."""
        value = _value(text, self.base)
        if isinstance(value, int):
            return value & ((1 << self.bits) - 1)
        # The kernel appends the module of a function, other readers do not.
        return _MODULE.sub("", value) if self.function else value

    def of(self, members: Mapping[str, Member]) -> int | str:
        """The value that a record with ``members`` prints; of a ``function``, the
        address.

        Raises `cexpr.Unknown` where only the kernel could compute it.
        """
        # Most are, and records are many.
        if self._number is not None:
            number = members.get(self._number)
            if isinstance(number, int):
                return number & ((1 << self.bits) - 1)
        if match := _STRING.fullmatch(self.argument):
            value = members.get(match[1])
            if isinstance(value, str):
                return value
            raise Unknown(f"{self.argument}: the record has no such string")
        if match := _SYMBOLIC.fullmatch(self.argument):
            return _symbol(match[1], members)
        if match := _FLAGS.fullmatch(self.argument):
            return _flags(match[1], members)
        computed = cexpr.evaluate(self.argument, members)
        if isinstance(computed, str):
            return computed
        if self.base in (_TEXT, _PADDED) and not self.function:
            raise Unknown(f"{self.argument}: a number where text is printed")
        return computed & ((1 << self.bits) - 1)

    @functools.cached_property
    def _number(self) -> str | None:
        """The member that is printed as a number, as it is; None if it is not so."""
        match = _MEMBER_ALONE.fullmatch(self.argument)
        is_text = self.base in (_TEXT, _PADDED) and not self.function
        return match[1] if match and not is_text else None

    @functools.cached_property
    def members(self) -> frozenset[str]:
        """The record's members that it is computed from."""
        return frozenset(_named(self.argument))

    def parse(self, text: str) -> int | str:
        """The value in ``text`` for a reader of text alone, as in `Printed.match`."""
        return _value(text, self.base)

    @property
    def symbols(self) -> tuple[int, ...]:
        """The numbers for which a `__print_symbolic` has names; else none."""
        match = _SYMBOLIC.fullmatch(self.argument)
        table = _table(match[1])[1] if match else ()
        return tuple(int(cexpr.evaluate(key, {})) for key, _ in table)


@dataclass(frozen=True)
class Printed:
    """A compiled print fmt: one group of ``pattern`` for each of ``values``."""

    pattern: re.Pattern[str]
    values: tuple[PrintedValue, ...]
    members: frozenset[str]

    def match(self, body: str) -> dict[str, int | str] | None:
        """The members in ``body``, the text after "name: ", or None if it differs."""
        match = self.pattern.fullmatch(body)
        if match is None:
            return None
        fields: dict[str, int | str] = {}
        for value, text in zip(self.values, match.groups(), strict=True):
            if value.name is not None:
                fields.setdefault(value.name, _value(text, value.base))
        return fields

    def spans(self, body: str) -> tuple[tuple[int, int], ...] | None:
        """The span of each of ``values`` in ``body``; None if the format differs."""
        match = self.pattern.fullmatch(body)
        if match is None:
            return None
        return tuple(match.span(place + 1) for place in range(len(self.values)))

    def read(self, body: str) -> tuple[int | str, ...] | None:
        """All ``values`` in ``body``, or None if the format differs."""
        match = self.pattern.fullmatch(body)
        if match is None:
            return None
        pairs = zip(self.values, match.groups(), strict=True)
        return tuple(value.read(text) for value, text in pairs)


def compile_fmt(print_fmt: str) -> Printed:
    """Compile the text after "print fmt: " in a format file.

    A value is named after the record's member where it is that member (``REC->x``,
    ``__get_str(x)``, ``__print_symbolic(REC->x, ...)``, the latter as text); a value
    computed from members is named after the printed key ("key=%d", "key: %d").
    Values that neither names are matched and dropped.  Raises `Unreadable`.
    """
    literal, rest = _string(print_fmt)
    arguments = [part.strip() for part in _split(rest)][1:]
    members = {name for part in arguments for name in _named(part)}
    pattern: list[str] = []
    values: list[PrintedValue] = []
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
                _next_argument(arguments, print_fmt)
        argument = _next_argument(arguments, print_fmt)
        shape, base = _shape(spec)
        if open_text and base in (_TEXT, _PADDED) and not before:
            # "%s%s": nothing tells where the first ends, so the first takes both.
            expression = f"{values[-1].argument}, {argument}"
            values[-1] = replace(values[-1], argument=expression)
            continue
        open_text = base in (_TEXT, _PADDED) and spec["kind"] != "c"
        pattern.append(f"({shape})")
        values.append(
            PrintedValue(
                name=_name(argument, literal[: spec.start()]),
                base=base,
                argument=argument,
                bits=_bits(spec),
                function=spec["kind"] in _FUNCTIONS,
            )
        )
    # A TP_printk that ends in a newline prints an empty line after each event.
    pattern.append(re.escape(literal[position:].rstrip("\n")) + r"\n?")
    return Printed(
        re.compile("".join(pattern), re.S), tuple(values), frozenset(members)
    )


def _next_argument(arguments: list[str], print_fmt: str) -> str:
    """Remove and return the first of ``arguments``."""
    if not arguments:
        raise TooFewArguments(f"more conversions than arguments: {print_fmt!r}")
    return arguments.pop(0)


def _named(argument: str) -> set[str]:
    """The members of the record that ``argument`` is computed from."""
    return {direct or dynamic for direct, dynamic in _MEMBER.findall(argument)}


def _bits(spec: re.Match[str]) -> int:
    """How many bits of a number a conversion prints."""
    if spec["kind"].startswith("p"):
        return 64
    return {"hh": 8, "h": 16, None: 32}.get(spec["length"], 64)


def _symbol(arguments: str, members: Mapping[str, Member]) -> str:
    """What ``__print_symbolic(arguments)`` prints.  Raises `cexpr.Unknown`."""
    value, table = _table(arguments)
    number = cexpr.evaluate(value, members)
    for key, name in table:
        if cexpr.evaluate(key, {}) == number:
            return _string(name)[0]
    if isinstance(number, str):
        raise Unknown(f"{value}: a string has no symbol")
    return f"0x{number:x}"


@functools.lru_cache(maxsize=256)  # asked for each record
def _table(arguments: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The expression that is printed, and each value with its name, all as in C."""
    value, *entries = (part.strip() for part in _split(arguments))
    pairs = (entry.strip("{} ").partition(",") for entry in entries)
    return value, tuple((key, name) for key, _, name in pairs)


def _flags(arguments: str, members: Mapping[str, Member]) -> str:
    """What ``__print_flags(arguments)`` prints.  Raises `cexpr.Unknown`."""
    value, between, *table = (part.strip() for part in _split(arguments))
    left = cexpr.evaluate(value, members)
    if isinstance(left, str):
        raise Unknown(f"{value}: a string has no flags")
    names = []
    for entry in table:
        key, _, name = entry.strip("{} ").partition(",")
        mask = int(cexpr.evaluate(key, {}))
        if left and left & mask == mask:
            names.append(_string(name)[0])
            left &= ~mask
    if left:
        names.append(f"0x{left:x}")
    return _string(between)[0].join(names)


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
    if match := _BARE.fullmatch(argument):
        return match[1]
    if match := _HELPER.match(argument.lstrip("( ")):
        return match[1]
    if match := _PRINTED_KEY.search(before):
        return match[1]
    return None


def _value(text: str, base: int) -> int | str:
    if base == _TEXT:
        return text
    if base == _PADDED:
        return text.strip(" ")
    if base == _POINTER:
        # "(null)" and "(____ptrval____)" are no addresses; only the first has a value.
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
            raise Unreadable(f"unterminated string: {text!r}")
        decoded.append(_ESCAPE.sub(_unescape, match[1]))
        rest = rest[match.end() :].lstrip()
    if not decoded:
        raise Unreadable(f"no format string: {text!r}")
    return "".join(decoded), rest


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code in _ESCAPED:
        return _ESCAPED[code]
    return chr(int(code, 8)) if code[0] in "01234567" else code


def _split(text: str) -> list[str]:
    """``text`` at its top-level commas; strings, brackets and braces stay whole."""
    parts = [""]
    depth = 0
    for word in re.findall(r'"(?:[^"\\]|\\.)*"|.', text, re.S):
        if word == "," and depth == 0:
            parts.append("")
            continue
        depth += (word in "([{") - (word in ")]}")
        parts[-1] += word
    return parts
