# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel configuration: what fragments ask for, and what a tree's Kconfig says of it.

A fragment is a piece of a ``.config``.  Comments directly above an assignment, each
in a line of its own, say on which trees it is needed and what may replace it:

``# or: CONFIG_OLD=y CONFIG_OTHER=n (before 7.3: why)``
    an alternative to the next assignment, for trees that cannot have that.
``# optional: why``
    wanted but not needed, for all assignments up to the next comment or empty line.
``# if known: why``
    needed where the tree has such a symbol; likewise for a block of assignments.
``# only NAME: why``
    all assignments up to the next comment or empty line are only for kernels of that
    architecture, as ``--arch`` calls it; it may stand above one of the others.
``# override: FRAGMENT``
    the next assignment replaces those of earlier fragments.

All others are needed.  `resolve` makes a ``.config`` of them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import kconfiglib  # type: ignore[import-untyped]

from ..base import Architecture, KstallError, arch, process

_SET = re.compile(r"^CONFIG_(\w+)=(.*)$")
_DEFINED = re.compile(r"^(?:menu)?config[ \t]+(\w+)", re.MULTILINE)
_UNSET = re.compile(r"^# CONFIG_(\w+) is not set$")
_OVERRIDE = "# override:"
_OPTIONAL = "# optional:"
_IF_KNOWN = "# if known:"
_OR = "# or:"
_ONLY = re.compile(r"# only (\S+): .*\w")
_ALTERNATIVE = re.compile(r"# or: ((?:CONFIG_\w+=\S+ )+)\((.*\w.*)\)")
_TRANSITIONAL = re.compile(
    r"^config[ \t]+(\w+)\n(?:(?!(?:menu)?config\b|choice\b).*\n)*?[ \t]+transitional$",
    re.MULTILINE,
)
Need = Literal["needed", "if-known", "optional"]
_STRICTNESS: tuple[Need, ...] = ("optional", "if-known", "needed")


class KconfigError(KstallError):
    """A fragment or a tree's Kconfig that cannot be read, or two that contradict."""


class CannotBeOff(KstallError):
    """A symbol that the architecture, or a symbol without a prompt, keeps on."""


@dataclass(frozen=True)
class Alternative:
    """Assignments that replace one that the tree cannot have, and ``why``."""

    values: tuple[tuple[str, str], ...]
    why: str


@dataclass(frozen=True)
class Setting:
    """One line of a fragment: ``value`` is as in ``.config``, with ``n`` for unset.

    ``overrides``: it replaces those of earlier fragments.  ``alternatives`` are in the
    order in which they are tried; ``only`` is the one architecture that it is for, if
    not all.
    """

    symbol: str
    value: str
    file: Path
    line: int
    overrides: bool = False
    need: Need = "needed"
    alternatives: tuple[Alternative, ...] = ()
    only: str | None = None

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}: CONFIG_{self.symbol}={self.value}"

    @property
    def line_of_config(self) -> str:
        """The setting as a line of a ``.config``."""
        if self.value == "n":
            return f"# CONFIG_{self.symbol} is not set"
        return f"CONFIG_{self.symbol}={self.value}"


def parse_fragment(path: Path) -> tuple[Setting, ...]:
    """The requests of a fragment, in order; raises `KconfigError` with its line."""
    requests = []
    above = _Above()
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = text.strip()
        if not (match := _SET.match(line) or _UNSET.match(line)):
            if line and not line.startswith("#"):
                raise KconfigError(f"{path}:{number}: not a kconfig assignment: {line}")
            above = above.followed_by(line, f"{path}:{number}")
            continue
        value = match[2] if match.re is _SET else "n"
        requests.append(
            Setting(
                match[1],
                value,
                path,
                number,
                above.overrides,
                above.need,
                above.alternatives,
                above.only,
            )
        )
        above = _Above(need=above.need, only=above.only, closed=True)
    if above.alternatives:
        raise KconfigError(f"{path}: the last `{_OR}` has no assignment below it")
    return tuple(requests)


@dataclass(frozen=True)
class _Above:
    """What comments say of the assignment below them; ``closed`` by an assignment."""

    overrides: bool = False
    need: Need = "needed"
    alternatives: tuple[Alternative, ...] = ()
    only: str | None = None
    closed: bool = False

    def followed_by(self, line: str, place: str) -> _Above:
        """With one more line that is no assignment."""
        if not line:
            if self.alternatives:
                raise KconfigError(f"{place}: `{_OR}` has no assignment below it")
            return _Above()
        previous = _Above() if self.closed else self
        if line.startswith(_OR):
            match = _ALTERNATIVE.fullmatch(line)
            if match is None:
                raise KconfigError(
                    f"{place}: not of the form `{_OR} CONFIG_A=y (reason)`: {line}"
                )
            pairs = (word[7:].partition("=") for word in match[1].split())
            values = tuple((name, value) for name, _, value in pairs)
            alternatives = (*previous.alternatives, Alternative(values, match[2]))
            return replace(previous, alternatives=alternatives)
        if line.startswith("# only "):
            name_match = _ONLY.match(line)
            if name_match is None or name_match[1] not in arch.NAMES:
                raise KconfigError(
                    f"{place}: not of the form `# only NAME: why`, with NAME one of "
                    f"{', '.join(arch.NAMES)}: {line}"
                )
            return replace(previous, only=name_match[1])
        need = previous.need
        if line.startswith(_OPTIONAL):
            need = "optional"
        elif line.startswith(_IF_KNOWN):
            need = "if-known"
        return replace(previous, need=need, overrides=line.startswith(_OVERRIDE))


def combine(
    fragments: Sequence[Path], architecture: Architecture = arch.X86_64
) -> dict[str, Setting]:
    """All requests for kernels of ``architecture``, by symbol.

    Two that differ raise `KconfigError` naming both, unless the later one overrides the
    other.  Of several that agree the strictest counts, with the alternatives of all.
    """
    combined: dict[str, Setting] = {}
    for path in fragments:
        for request in parse_fragment(path):
            if request.only not in (None, architecture.name):
                continue
            earlier = combined.setdefault(request.symbol, request)
            if request.overrides:
                combined[request.symbol] = request
            elif earlier.value != request.value:
                raise KconfigError(f"{request} contradicts {earlier}")
            else:
                combined[request.symbol] = _merge(earlier, request)
    return combined


def _merge(earlier: Setting, later: Setting) -> Setting:
    strict = max(earlier, later, key=lambda setting: _STRICTNESS.index(setting.need))
    alternatives = dict.fromkeys((*earlier.alternatives, *later.alternatives))
    return replace(strict, alternatives=tuple(alternatives))


def parse_config(path: Path) -> dict[str, str]:
    """A ``.config`` as symbol -> value; symbols that are not set are absent."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {match[1]: match[2] for line in lines if (match := _SET.match(line))}


def missing(
    requests: Mapping[str, Setting], config: Mapping[str, str]
) -> tuple[Setting, ...]:
    """The requests that did not stick."""
    return tuple(
        request
        for request in requests.values()
        if config.get(request.symbol, "n") != request.value
    )


def defined(text: str) -> set[str]:
    """The symbols that a Kconfig file defines."""
    return set(_DEFINED.findall(text))


class _Kconfig(kconfiglib.Kconfig):  # type: ignore[misc]
    """kconfiglib 14.1 with three pieces of syntax that kconfig gained later.

    ``transitional`` are the old names of symbols that were renamed: a tree has those
    for a while, so that the new ones can take their defaults from them.
    """

    def __init__(self, filename: str, *, warn: bool) -> None:
        self.transitional: set[str] = set()
        super().__init__(filename, warn=warn)

    def _open(self, filename: str, mode: str) -> Any:
        with super()._open(filename, mode) as file:
            text = file.read()
        self.transitional.update(_TRANSITIONAL.findall(text))
        text = re.sub(r"(?m)^\s+transitional$", "", text)
        text = re.sub(r"(?m)^\tmodules$", "\toption modules", text)
        text = re.sub(
            r"(?m)^(\s+depends on) ([^#\n]+) if ([^#\n]+)$", r"\1 (\2) || !(\3)", text
        )
        patched = io.StringIO(text)
        patched.name = filename
        return patched


def without(
    tree: Path, config: Path, symbols: Sequence[str], make: Sequence[str]
) -> frozenset[str]:
    """All symbols that have to be off for ``symbols`` to be off, these included.

    That is whatever selects them, and so on.  ``config`` is a ``.config`` of ``tree``;
    for ``make`` see `load`.  Raises `CannotBeOff`, and `KconfigError` for files with
    unknown syntax.
    """
    try:
        kconf = load(tree, config, make)
    except Exception as error:
        raise KconfigError(
            f"the Kconfig files of {tree} cannot be read: {error}",
            next="LEVEL=quick does not need that",
        ) from error
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
    selectors = [
        kconfiglib.split_expr(term, kconfiglib.AND)[0]
        for term in terms
        if kconfiglib.expr_value(term)
    ]
    if not selectors and all(node.prompt is None for node in symbol.nodes):
        selectors = [
            selector
            for value, condition in symbol.defaults
            if kconfiglib.expr_value(condition)
            for selector in kconfiglib.expr_items(value)
        ]
    return [
        selector.name
        for selector in selectors
        if isinstance(selector, kconfiglib.Symbol) and not selector.is_constant
    ]


def explain(
    tree: Path,
    config: Path,
    requests: Sequence[Setting],
    make: Sequence[str],
) -> Iterator[str]:
    """Why each of ``requests`` did not stick, by the tree's own Kconfig files."""
    try:
        kconf = load(tree, config, make)
    except Exception as error:  # any failure here only costs the explanation
        for _ in requests:
            yield f"its Kconfig could not be read to say why ({error})"
        return
    for request in requests:
        yield _explain(kconf, request)


def load(tree: Path, config: Path, make: Sequence[str]) -> Any:
    """The tree's Kconfig files with the values of ``config``, as kconfiglib has them.

    ``make`` are the variables that make gets, as `Toolchain.make`.  Raises whatever
    kconfiglib does.
    """
    variables = dict(word.split("=", 1) for word in make)
    # What the top Makefile exports before it runs scripts/kconfig/conf.
    prefix = variables.get("CROSS_COMPILE", "")
    arch_name = variables.get("ARCH", arch.host().kbuild)
    defaults = {
        "ARCH": arch_name,
        "SRCARCH": {"i386": "x86"}.get(arch_name, arch_name),
        "CC": f"{prefix}gcc",
        "LD": f"{prefix}ld",
        "AR": f"{prefix}ar",
        "NM": f"{prefix}nm",
        "OBJCOPY": f"{prefix}objcopy",
        "HOSTCC": "gcc",
        "HOSTCXX": "g++",
        "RUSTC": "rustc",
        "BINDGEN": "bindgen",
        "PAHOLE": "pahole",
        "KERNELVERSION": "",
    }
    # kconfiglib reads these from the environment only.
    with process.environment({**defaults, **variables, "srctree": str(tree)}):
        kconf = _Kconfig(str(tree / "Kconfig"), warn=False)
        kconf.load_config(str(config))
    return kconf


def _explain(kconf: Any, request: Setting) -> str:
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
