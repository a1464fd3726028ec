# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel configuration: fragments in, a ``.config`` that holds all of them out."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kconfiglib  # type: ignore[import-untyped]

from . import process
from .errors import FailedCheck, KstallError

_SET = re.compile(r"^CONFIG_(\w+)=(.*)$")
_DEFINED = re.compile(r"^(?:menu)?config[ \t]+(\w+)", re.MULTILINE)
_UNSET = re.compile(r"^# CONFIG_(\w+) is not set$")
# Before a line that is meant to contradict fragments before this one.
_OVERRIDE = "# override:"


class KconfigError(KstallError):
    """A fragment that cannot be read or that contradicts another."""


class UnmetSymbols(FailedCheck):
    """Requested symbols that are not in the final ``.config``."""


class CannotBeOff(KstallError):
    """A symbol that this architecture, or what nobody can choose, keeps on."""


@dataclass(frozen=True)
class Request:
    """One line of a fragment: ``value`` is as in ``.config``, with ``n`` for unset.

    ``overrides``: it stands instead of what fragments before it ask for.
    """

    symbol: str
    value: str
    file: Path
    line: int
    overrides: bool = False

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}: CONFIG_{self.symbol}={self.value}"

    @property
    def line_of_config(self) -> str:
        """It as a line of a ``.config``."""
        if self.value == "n":
            return f"# CONFIG_{self.symbol} is not set"
        return f"CONFIG_{self.symbol}={self.value}"


def parse_fragment(path: Path) -> tuple[Request, ...]:
    """The requests of a fragment, in order; raises `KconfigError` with its line.

    One below a comment that begins with ``# override:`` overrides.
    """
    requests = []
    above = ""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = text.strip()
        overrides = above.startswith(_OVERRIDE)
        if found := _SET.match(line):
            requests.append(Request(found[1], found[2], path, number, overrides))
        elif found := _UNSET.match(line):
            requests.append(Request(found[1], "n", path, number, overrides))
        elif line and not line.startswith("#"):
            raise KconfigError(f"{path}:{number}: not a kconfig assignment: {line}")
        above = line
    return tuple(requests)


def combine(fragments: Sequence[Path]) -> dict[str, Request]:
    """All requests by symbol; two that differ raise `KconfigError` naming both.

    The later one may say that it overrides the other.
    """
    combined: dict[str, Request] = {}
    for path in fragments:
        for request in parse_fragment(path):
            earlier = combined.setdefault(request.symbol, request)
            if request.overrides:
                combined[request.symbol] = request
            elif earlier.value != request.value:
                raise KconfigError(f"{request} contradicts {earlier}")
    return combined


def parse_config(path: Path) -> dict[str, str]:
    """A ``.config`` as symbol -> value; symbols that are not set are absent."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {found[1]: found[2] for line in lines if (found := _SET.match(line))}


def missing(
    requests: Mapping[str, Request],
    config: Mapping[str, str],
    absent: Collection[str] = (),
) -> tuple[Request, ...]:
    """The requests that did not stick, but for ``absent`` symbols."""
    return tuple(
        request
        for request in requests.values()
        if config.get(request.symbol, "n") != request.value
        and request.symbol not in absent
    )


def defined(text: str) -> set[str]:
    """The symbols that a Kconfig file defines."""
    return set(_DEFINED.findall(text))


def configure(
    tree: Path,
    build: Path,
    fragments: Sequence[Path],
    make: Sequence[str],
    *,
    log: Path,
    absent: Collection[str] = (),
) -> dict[str, str]:
    """Merge ``fragments`` into ``build/.config`` and return it.

    What nobody asks for is off.  ``make`` holds the variables that the build will use,
    because the toolchain decides which symbols there are.  ``absent`` are those that
    this tree need not have.  Raises `UnmetSymbols` naming each unmet dependency.
    """
    requests = combine(fragments)
    build.mkdir(parents=True, exist_ok=True)
    final = build / ".config"
    merged = build / "merged.config"
    merged.write_text("".join(f"{one.line_of_config}\n" for one in requests.values()))
    # Not olddefconfig: that takes the default of every symbol that the fragments make
    # visible, and CONFIG_NET alone brings IPv6 and wireless with it.
    wanted = (f"KCONFIG_ALLCONFIG={merged}", "allnoconfig")
    process.run(
        ["make", "-s", f"O={build}", *make, *wanted],
        cwd=tree,
        log=log,
    )
    config = parse_config(final)
    variables = dict(word.split("=", 1) for word in make if "=" in word)
    if lost := missing(requests, config, absent):
        lines = [
            f"{request} did not stick (is {config.get(request.symbol, 'n')}): {why}"
            for request, why in zip(
                lost, explain(tree, final, lost, variables), strict=True
            )
        ]
        raise UnmetSymbols(
            "\n".join(lines),
            log=log,
            next="add the dependency to the fragment, or drop the symbol",
        )
    return config


class _Kconfig(kconfiglib.Kconfig):  # type: ignore[misc]
    """kconfiglib 14.1 with three pieces of syntax that kconfig learnt after it."""

    def _open(self, filename: str, mode: str) -> Any:
        with super()._open(filename, mode) as file:
            text = file.read()
        text = re.sub(r"(?m)^\s+transitional$", "", text)
        text = re.sub(r"(?m)^\tmodules$", "\toption modules", text)
        text = re.sub(
            r"(?m)^(\s+depends on) ([^#\n]+) if ([^#\n]+)$", r"\1 (\2) || !(\3)", text
        )
        patched = io.StringIO(text)
        patched.name = filename
        return patched


def without(
    tree: Path, config: Path, symbols: Sequence[str], variables: Mapping[str, str]
) -> frozenset[str]:
    """All that has to be off for ``symbols`` to be off, as they are among it.

    That is whatever selects them, and so on.  ``config`` is a ``.config`` of ``tree``.
    Raises `CannotBeOff`.
    """
    kconf = _load(tree, config, variables)
    off: dict[str, None] = {}
    waiting = [name for name in symbols if name in kconf.syms]
    while waiting:
        symbol = kconf.syms[waiting.pop(0)]
        if symbol.name not in off:
            off[symbol.name] = None
            symbol.set_value(0)
            if symbol.tri_value:
                waiting += _keepers(symbol)
    for name in symbols:
        if (symbol := kconf.syms.get(name)) is not None and symbol.tri_value:
            by = ", ".join(_keepers(symbol)) or "its own default"
            raise CannotBeOff(f"{name} cannot be off: it is kept on by {by}")
    return frozenset(off)


def _keepers(symbol: Any) -> list[str]:
    """The symbols that keep ``symbol`` on: those that select it, and its defaults."""
    terms = kconfiglib.split_expr(symbol.rev_dep, kconfiglib.OR)
    selecting = [
        kconfiglib.split_expr(term, kconfiglib.AND)[0]
        for term in terms
        if kconfiglib.expr_value(term)
    ]
    if not selecting and all(node.prompt is None for node in symbol.nodes):
        selecting = [
            one
            for value, condition in symbol.defaults
            if kconfiglib.expr_value(condition)
            for one in kconfiglib.expr_items(value)
        ]
    return [
        one.name
        for one in selecting
        if isinstance(one, kconfiglib.Symbol) and not one.is_constant
    ]


def explain(
    tree: Path, config: Path, lost: Sequence[Request], variables: Mapping[str, str]
) -> Iterator[str]:
    """Why each of ``lost`` did not stick, by the tree's own Kconfig files."""
    try:
        kconf = _load(tree, config, variables)
    except Exception as error:  # any failure here only costs the explanation
        for _ in lost:
            yield f"its Kconfig could not be read to say why ({error})"
        return
    for request in lost:
        yield _explain(kconf, request)


def _load(tree: Path, config: Path, variables: Mapping[str, str]) -> Any:
    # What the top Makefile exports before it runs scripts/kconfig/conf.
    defaults = {
        "srctree": str(tree),
        "ARCH": "x86",
        "SRCARCH": {"i386": "x86"}.get(arch := variables.get("ARCH", "x86"), arch),
        "CC": "gcc",
        "LD": "ld",
        "AR": "ar",
        "NM": "nm",
        "OBJCOPY": "objcopy",
        "HOSTCC": "gcc",
        "HOSTCXX": "g++",
        "RUSTC": "rustc",
        "BINDGEN": "bindgen",
        "PAHOLE": "pahole",
        "KERNELVERSION": "",
    }
    saved = dict(os.environ)
    try:
        # kconfiglib reads these from the environment only.
        os.environ.update({**defaults, **variables, "srctree": str(tree)})
        kconf = _Kconfig(str(tree / "Kconfig"), warn=False)
        kconf.load_config(str(config))
    finally:
        os.environ.clear()
        os.environ.update(saved)
    return kconf


def _explain(kconf: Any, request: Request) -> str:
    symbol = kconf.syms.get(request.symbol)
    if symbol is None or not symbol.nodes:
        return "this tree has no such symbol"
    if unmet := [
        _pretty(part)
        for part in kconfiglib.split_expr(symbol.direct_dep, kconfiglib.AND)
        if kconfiglib.expr_value(part) == 0
    ]:
        return f"unmet dependency {' and '.join(dict.fromkeys(unmet))}"
    if request.value == "n":
        selectors = kconfiglib.split_expr(symbol.rev_dep, kconfiglib.OR)
        by = [_pretty(part) for part in selectors if kconfiglib.expr_value(part)]
        if by:
            return f"selected by {' and '.join(by)}"
    if all(node.prompt is None for node in symbol.nodes):
        selectors = kconfiglib.split_expr(symbol.rev_dep, kconfiglib.OR)
        by = sorted({_pretty(part).split(" && ")[0] for part in selectors})
        return f"has no prompt; it is selected by one of {', '.join(by[:8])}"
    limit = kconfiglib.TRI_TO_STR[symbol.visibility]
    if symbol.choice is not None:
        return "another member of its choice was taken"
    return f"may be {limit} at most" if limit != "y" else "the value was overridden"


def _pretty(expression: Any) -> str:
    def name(symbol: Any) -> str:
        plain = kconfiglib.standard_sc_expr_str(symbol)
        if symbol.__class__ is kconfiglib.Symbol and not symbol.is_constant:
            return f"{plain} [={symbol.str_value}]"
        return str(plain)

    return str(kconfiglib.expr_str(expression, name))
