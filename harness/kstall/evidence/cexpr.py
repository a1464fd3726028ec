# SPDX-License-Identifier: GPL-2.0-or-later
"""C expressions over a record's members, such as the arguments of a print fmt."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from pycparser import c_ast, c_parser

from ..ftrace import Member

# Types that casts name, with the width in bits to which a cast truncates.
_WIDTHS = {
    **{f"{sign}{bits}": bits for sign in "us" for bits in (8, 16, 32, 64)},
    **{f"__{sign}{bits}": bits for sign in "us" for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("pid_t", "uid_t", "gid_t", "dev_t", "gfp_t"), 32),
    **dict.fromkeys(("size_t", "ssize_t", "loff_t", "sector_t", "dma_addr_t"), 64),
    "bool": 8,
}
_TYPEDEFS = "".join(f"typedef int {name};" for name in _WIDTHS)
_BUILT_IN = {"char": 8, "short": 16, "int": 32, "long": 64}
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlL]*")
_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": operator.not_,
}


class Unknown(ValueError):
    """Not an expression that can be evaluated without the kernel."""


def evaluate(text: str, members: Mapping[str, Member]) -> int | str:
    """The value of ``text``, in which ``REC->x`` is ``members["x"]``.

    Only casts truncate numbers: the caller knows how many bits count.  Raises
    `Unknown` on calls, on text that is not C, and on missing members.
    """
    try:
        return _value(_parsed(text), members)
    except Unknown as error:
        raise Unknown(f"{text}: {error}") from None


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    source = f"{_TYPEDEFS} void f(void) {{ return {text}; }}"
    try:
        unit = c_parser.CParser().parse(source)
    except c_parser.ParseError as error:
        raise Unknown("not a C expression") from error
    return unit.ext[-1].body.block_items[0].expr


def _value(node: Any, members: Mapping[str, Member]) -> int | str:
    match node:
        case c_ast.Constant(type="string"):
            return str(node.value[1:-1])
        case c_ast.Constant() if literal := _INTEGER.fullmatch(node.value):
            octal = re.fullmatch(r"0[0-7]+", literal[1])
            return int(literal[1], 8 if octal else 0)
        case c_ast.StructRef(name=c_ast.ID(name="REC"), field=c_ast.ID(name=name)):
            value = members.get(name)
            if isinstance(value, int | str):
                return value
            raise Unknown(f"REC->{name}: neither a number nor a string")
        case c_ast.Cast():
            return _cast(node.to_type.type, _value(node.expr, members))
        case c_ast.UnaryOp(op=op) if op in _UNARY:
            return int(_UNARY[op](_number(node.expr, members)))
        case c_ast.BinaryOp(op=op) if op in _BINARY:
            left, right = _number(node.left, members), _number(node.right, members)
            return int(_BINARY[op](left, right))
        case c_ast.TernaryOp():
            chosen = node.iftrue if _number(node.cond, members) else node.iffalse
            return _value(chosen, members)
    raise Unknown(f"{type(node).__name__} cannot be evaluated without the kernel")


def _number(node: Any, members: Mapping[str, Member]) -> int:
    value = _value(node, members)
    if isinstance(value, str):
        raise Unknown("a string where a number is needed")
    return value


def _cast(to: Any, value: int | str) -> int | str:
    if isinstance(value, str) or not isinstance(to, c_ast.TypeDecl):
        # A cast to a pointer keeps all bits.
        return value
    names = to.type.names if isinstance(to.type, c_ast.IdentifierType) else ["int"]
    widths = [_WIDTHS.get(name) or _BUILT_IN.get(name) for name in names]
    # "unsigned" alone is an int, and "short int" is as wide as a short.
    candidates = [width for width in widths if width] or [32]
    bits = min(candidates) if "short" in names else max(candidates)
    signed = "unsigned" not in names and not re.match(r"(__)?u\d|bool|size_t", names[0])
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value
